"""Compares in the background what the tail of a lane has copied, beside the copy and never in its way.

It runs in a thread for as long as a slice of the lane does, with connections of its own that can only read, at a
limited rate. What is found equal is stored per partition after each piece, so a kill loses one piece. Nothing depends
on it: it may fail, or be left behind by its slice, and the validation compares what it has not.

A difference is stored, and compared again in each slice. It may be no difference at all: when a hole was filled twice,
the offset map is right again only after the next take-over.
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
from airflow_provider_kafka_migration.errors import Interrupted, MigrationError, Where
from airflow_provider_kafka_migration.kafka.wire import Wire
from airflow_provider_kafka_migration.offset_map.runs import PartitionMap
from airflow_provider_kafka_migration.offset_map.store import RunLog, base_run
from airflow_provider_kafka_migration.storage.base import ObjectStore

log = logging.getLogger(__name__)

#: One partition is compared for so long before the next one has its turn.
PIECE_SECONDS = 5.0
#: A partition of which little is new is not compared again sooner: each piece costs a write to the store.
REST_SECONDS = 10.0
LITTLE_OFFSETS = 10_000
#: A compacted partition whose comparison does not fit into a slice is left alone for so long.
POSTPONE = timedelta(minutes=10)
_TOO_LONG = "the source has compacted it since, and looking for later records of its keys takes longer than a slice"
_CUT = (
    "the source has compacted it since, and what only the target has may have been deleted by tombstones behind the "
    "piece that fits into a slice"
)
_IDLE_SECONDS = 1.0
_REQUEST_SECONDS = 10.0
#: The end of a slice does not wait longer for this thread: it can do no harm when it is left behind.
_JOIN_SECONDS = 0.2
#: The comparisons that run in this process, by migration and lane. One that was left behind ends at its next batch;
#: until then no other one begins.
_running: dict[tuple[str, int], threading.Thread] = {}
_running_lock = threading.Lock()
#: Of a slice's time, what is left for judging and storing the last piece.
_RESERVE = 0.25


class Pace:
    """Holds readers back to a rate, in bytes per second. One owner."""

    def __init__(self, max_bytes_per_second: int | None, wait: Callable[[float], object]) -> None:
        self._rate = max_bytes_per_second
        self._wait = wait
        self._free_at = time.monotonic()

    def __call__(self, size_bytes: int) -> None:
        """So many bytes were read; waits until they are allowed."""
        if not self._rate:
            return
        now = time.monotonic()
        self._free_at = max(self._free_at, now - 1.0) + size_bytes / self._rate
        if self._free_at > now:
            self._wait(self._free_at - now)


@dataclass
class _Known:
    """What this slice knows of a partition."""

    document: ProvenPartition
    #: it differed in this slice: looked at again in the next one
    differed: bool = False
    compared_at: float = 0.0
    target_end_offset: int = -1


class LaneProver:
    """The background comparison of one lane for one slice; a context manager around the copy.

    :param store: of the journal location.
    :param deadline: end of the slice, of the monotonic clock.
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
        #: the slice is over: nothing is stored any more, another slice may know better by then
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
        """Each slice begins with another partition, so that all have their turn however short slices are."""
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
                log.warning("Nothing is compared in the background: the comparison of the slice before has not ended")
                self._thread = None
            else:
                _running[self._lane] = self._thread
                self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # The piece under way is cut short and stored; after that moment whatever is not is given up.
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
            # Nothing of the copy depends on this: the validation compares what is left.
            log.exception("The comparison in the background has ended")
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
        """Each partition once; whether something was compared."""
        worked = False
        try:
            keys = [(spec.target_topic, spec.partition) for spec in self._specs]
            # Not the high watermark: an empty transaction that fills holes may be open, and hides what lies behind it.
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
        """Compare the next piece of a partition; False if it is not its turn, or all is compared."""
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
        # Before anything is looked at: what is written again meanwhile has another epoch when the range is used.
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
        """Whether what only the target has may go back to a tombstone that lies behind the cut.

        The source drops a record when a tombstone of its key comes, and the tombstone some time later. The target has
        both, but the comparison has not seen the second one.
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
        if proven is None or not fits(proven, whole, offset_map):
            return None
        if not still_holds(self._wire("target"), proven, whole.target_topic, whole.partition):
            log.warning("%s-%d: the target's log was written again, so it is compared again", *whole.key)
            return None
        return proven

    def _waits(self, spec: CopyPartition, target_end: int) -> bool:
        """Whether a partition has to wait for its next turn. Asks nobody."""
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
            # What was copied since is compared at its next turn; what this piece was cut short of, at once.
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
        """A piece did not fit into the slice. One of a compacted topic never may: keys are looked for up to the end."""
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
        """As it is now; runs are written before the first append that needs them. Without objects: the base run."""
        runs = RunLog(self._store, self._job.migration_id, *spec.key, base_run(spec), topic_id=spec.topic_id)
        return runs.load()
