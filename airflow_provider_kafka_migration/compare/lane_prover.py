"""Compares in the background what the tail of a lane has copied, alongside the copy and without delaying it.

It runs in a thread for as long as a slice of the lane runs, with its own read-only connections, at a limited rate. What
is found equal is stored per partition after each piece, so a kill loses one piece. Nothing depends on it: it may fail,
or still run when its slice ends; the validation then compares the rest.

A difference is stored, and compared again in each slice. It may not be a real difference: when a hole was filled twice,
the offset map is correct again only after the next takeover.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from airflow_provider_kafka_migration.compare.archive import compare_deleted, is_final
from airflow_provider_kafka_migration.compare.comparison import ContentOptions, Stretch, compare_stretch
from airflow_provider_kafka_migration.compare.logs import KafkaLog
from airflow_provider_kafka_migration.compare.proven import (
    Anchor,
    differing,
    fits,
    grown,
    load_proven,
    rest_of,
    still_holds,
    store_proven,
)
from airflow_provider_kafka_migration.compare.record_ids import record_ids
from airflow_provider_kafka_migration.copy.archive import SegmentIndex
from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.documents.copy import CopyJob, CopyLane, CopyPartition, ProofSettings
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.documents.proof import (
    ContentRange,
    PartitionContent,
    ProvenPartition,
    ProvenRange,
)
from airflow_provider_kafka_migration.documents.schemas import id_rule
from airflow_provider_kafka_migration.errors import Interrupted, MigrationError, Where
from airflow_provider_kafka_migration.kafka.wire import Wire
from airflow_provider_kafka_migration.offset_map.runs import PartitionMap
from airflow_provider_kafka_migration.offset_map.store import RunLog, base_run
from airflow_provider_kafka_migration.storage.base import ObjectStore

log = logging.getLogger(__name__)

#: How long one partition is compared before it is the next one's turn.
PIECE_SECONDS = 5.0
#: A partition with little new data is not compared again sooner than this: each piece costs a write to the store.
REST_SECONDS = 10.0
LITTLE_OFFSETS = 10_000
#: How long a compacted partition is skipped after its comparison did not fit into a slice.
POSTPONE = timedelta(minutes=10)
_TOO_LONG = "the source has compacted it since, and searching for later records of its keys takes longer than a slice"
_CUT = (
    "the source has compacted it since, and tombstones beyond the piece that fits into a slice may have deleted what "
    "only the target has"
)
_IDLE_SECONDS = 1.0
_REQUEST_SECONDS = 10.0
#: Longest time that the end of a slice waits for this thread, which does no harm if it still runs afterwards.
_JOIN_SECONDS = 0.2
#: The comparisons that run in this process, by migration and lane. One that outlives its slice ends at its next batch;
#: until then no other one begins.
_running: dict[tuple[str, int], threading.Thread] = {}
_running_lock = threading.Lock()
#: The share of a slice's time that is reserved for judging and storing the last piece.
_RESERVE = 0.25


class Pace:
    """Limits readers to a rate in bytes per second. Not thread-safe: one owner."""

    def __init__(self, max_bytes_per_second: int | None, wait: Callable[[float], object]) -> None:
        self._rate = max_bytes_per_second
        self._wait = wait
        self._free_at = time.monotonic()

    def __call__(self, size_bytes: int) -> None:
        """Account for bytes that were read; wait until the rate allows them."""
        if not self._rate:
            return
        now = time.monotonic()
        self._free_at = max(self._free_at, now - 1.0) + size_bytes / self._rate
        if self._free_at > now:
            self._wait(self._free_at - now)


@dataclass
class _Known:
    """What this slice knows about a partition."""

    document: ProvenPartition
    #: whether it differed in this slice; the next slice compares it again
    differed: bool = False
    compared_at: float = 0.0
    target_end_offset: int = -1


class LaneProver:
    """The background comparison of one lane for one slice; a context manager around the copy.

    :param store: the object store of the journal location.
    :param deadline: end of the slice, on the monotonic clock.
    """

    def __init__(self, job: CopyJob, lane: CopyLane, clients: Clients, store: ObjectStore, deadline: float) -> None:
        self._job = job
        self._lane = (job.migration_id, lane.lane)
        self._settings = job.proof or ProofSettings()
        self._clients = clients
        self._store = store
        self._deadline = deadline
        began = time.monotonic()
        self._enough_at = deadline - (deadline - began) * _RESERVE
        self._specs = self._in_turn([spec for spec in lane.partitions if spec.verdict is not Verdict.TRANSACTIONAL])
        self._known: dict[tuple[str, int], _Known] = {}
        self._stop = threading.Event()
        #: set when the slice is over: nothing is stored after that, because another slice may have newer results
        self._is_left = threading.Event()
        self._pace = Pace(self._settings.max_bytes_per_second, self._stop.wait)
        self._wires: dict[str, Wire] = {}
        wanted = job.proof is not None and job.name == "tail" and bool(self._specs)
        self._thread = threading.Thread(target=self._run, name="prove", daemon=True) if wanted else None

    @property
    def runs(self) -> bool:
        """Whether there is something to compare in this slice."""
        return self._thread is not None

    def _in_turn(self, specs: list[CopyPartition]) -> list[CopyPartition]:
        """Start each slice with another partition, so that all get their turn however short slices are."""
        if not specs:
            return []
        ordered = sorted(specs, key=lambda spec: spec.key)
        first = int(time.time() / max(self._job.slice_seconds, 1)) % len(ordered)
        return [*ordered[first:], *ordered[:first]]

    def __enter__(self) -> LaneProver:
        if self._thread is None:
            return self
        with _running_lock:
            former = _running.get(self._lane)
            if former is not None and former.is_alive():
                log.warning("Nothing is compared in the background: the previous slice's comparison has not ended")
                self._thread = None
            else:
                _running[self._lane] = self._thread
                self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # The current piece is cut short and stored; what is not stored within this time is given up.
        self._deadline = min(self._deadline, time.monotonic() + _JOIN_SECONDS)
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)
        self._is_left.set()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _over(self) -> bool:
        return time.monotonic() >= self._deadline

    def _enough(self) -> bool:
        return self._stop.is_set() or time.monotonic() >= self._enough_at

    def _run(self) -> None:
        try:
            while not self._enough():
                if not self._round():
                    self._stop.wait(_IDLE_SECONDS)
        except Exception:
            # The copy does not depend on this: the validation compares the rest.
            log.exception("The comparison in the background has ended with an error")
        finally:
            self._close()

    def _close(self) -> None:
        for wire in self._wires.values():
            wire.close()
        self._wires.clear()

    def _wire(self, role: str) -> Wire:
        if role not in self._wires:
            self._wires[role] = self._clients.wire(role, timeout_seconds=_REQUEST_SECONDS, read_only=True)
        return self._wires[role]

    def _round(self) -> bool:
        """Compare a piece of each partition; return whether something was compared."""
        worked = False
        try:
            keys = [(spec.target_topic, spec.partition) for spec in self._specs]
            # Not the high watermark: an empty transaction that fills holes may be open, and hides what follows it.
            ends = self._wire("target").list_offsets(keys, "stable")
        except MigrationError as error:
            log.warning("Nothing is compared in the background for now: %s", error)
            self._close()
            return False
        for spec in self._specs:
            if self._enough():
                return True
            try:
                worked |= self._prove(spec, ends[spec.target_topic, spec.partition])
            except Interrupted:
                self._postpone(spec)
                return True
            except MigrationError as error:
                log.warning("%s-%d is not compared in the background for now: %s", *spec.key, error)
                self._close()
        return worked

    # -- one partition -----------------------------------------------------------------------------------------------

    def _prove(self, spec: CopyPartition, target_end: int) -> bool:
        """Compare the next piece of a partition; False if it is not its turn, or everything is compared."""
        if self._waits(spec, target_end):
            return False
        offset_map = self._offset_map(spec)
        whole = ContentRange(
            topic=spec.topic,
            target_topic=spec.target_topic,
            partition=spec.partition,
            verdict=spec.verdict,
            source_start_offset=spec.source_start_offset,
            source_end_offset=offset_map.source_position(target_end),
            target_start_offset=spec.target_start_offset,
            target_end_offset=target_end,
        )
        if whole.source_end_offset <= whole.source_start_offset or target_end <= whole.target_start_offset:
            return False
        known = self._known.get(spec.key)
        if known is None:
            known = self._known[spec.key] = _Known(load_proven(self._store, self._job.migration_id, whole))
        # Taken before anything is read: what is rewritten from now on has another epoch when the range is used.
        anchor = Anchor.below(self._wire("target"), (spec.target_topic, spec.partition), target_end)
        former = self._usable(known, whole, offset_map)
        piece = rest_of(whole, former)
        known.compared_at = time.monotonic()
        known.target_end_offset = target_end
        if piece is None:
            return False
        stretch, log_starts = self._compare(piece, offset_map)
        if self._may_be_explained_later(piece, stretch):
            self._leave_alone(known, _CUT)
        elif stretch.content.is_equal and not is_final(stretch.content):
            self._leave_alone(known, f"the archive cannot be used: {stretch.content.uncompared_reason}")
        else:
            self._take_in(known, former, stretch, anchor, log_starts)
        return True

    def _may_be_explained_later(self, piece: ContentRange, stretch: Stretch) -> bool:
        """Return whether a tombstone beyond the cut may explain what only the target has.

        The source drops a record after a tombstone of its key arrives, and some time later the tombstone. The target
        has both, but the comparison has not seen the tombstone.
        """
        content = stretch.content
        return (
            stretch.compared != piece
            and not content.is_equal
            and self._settings.rules(piece.topic).compacted
            and content.error is None
            and all(item.kind == "extra" for item in content.differences)
        )

    def _usable(self, known: _Known, whole: ContentRange, offset_map: PartitionMap) -> ProvenRange | None:
        proven = known.document.proven
        if proven is None or not fits(proven, whole, offset_map, id_rule(self._job.schema_ids, whole.topic)):
            return None
        if not still_holds(self._wire("target"), proven, whole.target_topic, whole.partition):
            log.warning("%s-%d: the target's log was rewritten, so it is compared again", *whole.key)
            return None
        return proven

    def _waits(self, spec: CopyPartition, target_end: int) -> bool:
        """Return whether a partition has to wait for its next turn, without any request."""
        known = self._known.get(spec.key)
        if known is None:
            return False
        document = known.document
        if known.differed or known.target_end_offset == target_end:
            return True
        if document.postponed and datetime.now(UTC) - datetime.fromisoformat(document.postponed_at) < POSTPONE:
            return True
        little = target_end - known.target_end_offset < LITTLE_OFFSETS
        return little and time.monotonic() - known.compared_at < REST_SECONDS

    def _compare(self, piece: ContentRange, offset_map: PartitionMap) -> tuple[Stretch, tuple[int, int]]:
        until = min(time.monotonic() + PIECE_SECONDS, self._enough_at)
        options = ContentOptions(
            timestamps=self._job.timestamps,
            stop=self._over,
            enough=lambda: self._stop.is_set() or time.monotonic() >= until,
            pace=self._pace,
            ids=record_ids(self._job.schema_ids, piece.topic, self._store, self._job.migration_id),
        )
        source = KafkaLog(self._wire("source"), piece.topic, piece.partition)
        target = KafkaLog(self._wire("target"), piece.target_topic, piece.partition)
        rules = self._settings.rules(piece.topic)
        stretch = compare_stretch(piece, offset_map, rules, source, target, options)
        if stretch.content.uncompared and self._settings.archive_of_deleted is not None:
            archive = self._clients.store(self._settings.archive_of_deleted)
            index = SegmentIndex(archive, self._job.migration_id, piece.topic, piece.partition)
            content = compare_deleted(stretch.content, stretch.compared, offset_map, index, target, options)
            stretch = stretch._replace(content=content)
        return stretch, (source.log_start_offset(), target.log_start_offset())

    def _take_in(
        self,
        known: _Known,
        former: ProvenRange | None,
        stretch: Stretch,
        anchor: Anchor,
        log_starts: tuple[int, int],
    ) -> None:
        content = stretch.content
        update: dict[str, object]
        if content.is_equal:
            proven = grown(former, stretch.compared, content, anchor, log_starts)
            update = {"proven": proven, "differing": None, "differed_times": 0, "postponed": "", "postponed_at": ""}
            # What was copied since is compared at its next turn; what was cut off this piece, without waiting.
            known.target_end_offset = stretch.compared.target_end_offset
        else:
            update = self._difference(known, content)
        known.document = known.document.model_copy(update=update)
        self._save(known.document)

    def _difference(self, known: _Known, content: PartitionContent) -> dict[str, object]:
        known.differed = True
        update = differing(known.document, content)
        log.warning(
            "%s-%d has %d differences on the target (seen %s times in a row)",
            *known.document.key,
            content.difference_count,
            update["differed_times"],
        )
        return update

    def _postpone(self, spec: CopyPartition) -> None:
        """Postpone a partition whose piece did not fit into the slice.

        A piece of a compacted topic may never fit, because its keys are searched for up to the end of the log.
        """
        known = self._known.get(spec.key)
        if known is None or self._is_left.is_set() or not self._settings.rules(spec.topic).compacted:
            return
        if time.monotonic() - known.compared_at < PIECE_SECONDS:
            return  # the slice has ended early
        self._leave_alone(known, _TOO_LONG)

    def _leave_alone(self, known: _Known, why: str) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        known.document = known.document.model_copy(update={"postponed": why, "postponed_at": now})
        self._save(known.document)

    def _save(self, document: ProvenPartition) -> None:
        if self._is_left.is_set():
            raise Interrupted(
                "the slice is over", where=Where(topic=document.topic, partition=document.partition), next_step="-"
            )
        store_proven(self._store, document)

    def _offset_map(self, spec: CopyPartition) -> PartitionMap:
        """Load the current map; runs are written before the first append that needs them. Without objects: base run."""
        runs = RunLog(self._store, self._job.migration_id, *spec.key, base_run(spec), topic_id=spec.topic_id)
        return runs.load()
