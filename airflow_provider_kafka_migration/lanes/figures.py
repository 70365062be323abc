"""What copiers have moved in slices that are still running. Results come only at a slice's end, up to a minute later.

``<migration_id>/progress/<job>/lane-000003.json`` holds the last slices of a lane with their figures so far. Readers
add those that the driver has not merged yet. The figures are only for people: no decision depends on them, and a failed
write is skipped.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from airflow_provider_kafka_migration.copy.latency import LatencyHistogram
from airflow_provider_kafka_migration.documents.base import Document, Part
from airflow_provider_kafka_migration.documents.copy import PartitionResult
from airflow_provider_kafka_migration.errors import MigrationError, PartitionStarved, TransactionHolds, Where
from airflow_provider_kafka_migration.storage.base import ObjectStore

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.copy.partition import PartitionCopy

WRITE_SECONDS = 2.0
#: The document names every partition of the lane: with many, it is written less often.
_WRITE_SECONDS_PER_PARTITION = 0.005
_LONGEST_WRITE_SECONDS = 10.0
#: How many slices of a lane are kept; the driver may not have merged them yet.
_KEPT_SLICES = 3
#: Up to so many lanes are read one after the other.
_FEW_LANES = 8
_READERS = 16
SUMS = ("records", "copied_bytes", "source_bytes", "holes", "skipped_records")

log = logging.getLogger(__name__)


class SliceFigures(Part):
    """Figures of one slice of a lane so far."""

    slice_number: int = Field(description="number of the lane's lease, ascending over all jobs")
    records: int = 0
    copied_bytes: int = 0
    source_bytes: int = 0
    holes: int = 0
    skipped_records: int = 0
    seconds: float = 0.0
    latency: list[int] = Field(default_factory=list, description="histogram; its form: copy/latency.py")


#: Numbers of one partition in :attr:`LaneFigures.standing`: the partition's, then those of ``copy.partition.Standing``.
_NUMBERS = 6


class PartitionStanding(NamedTuple):
    """Where the copy of a partition stands, as its lane or its driver has reported it. See ``copy.partition.Standing``.

    -1 in any field: not known.
    """

    source_offset: int = -1
    lag: int = -1
    held_back: int = 0
    waiting_ms: int = -1
    mirrored_ms: int = -1


class LaneFigures(Document):
    """The last slices of a lane, ascending."""

    LATER_FIELDS = ("standing",)

    version: int = 1
    lane: int
    slices: list[SliceFigures]
    standing: dict[str, list[int]] = Field(
        default_factory=dict,
        description="by topic, six numbers per partition that the last slice has read: partition, source offset, lag, "
        "held back, waiting_ms, mirrored_ms",
    )

    def partitions(self) -> Iterator[tuple[tuple[str, int], PartitionStanding]]:
        """Yield ((topic, partition), its standing in the last slice)."""
        for topic, numbers in self.standing.items():
            for at in range(0, len(numbers) - _NUMBERS + 1, _NUMBERS):
                yield (topic, numbers[at]), PartitionStanding(*numbers[at + 1 : at + _NUMBERS])


def _prefix(migration_id: str, job_name: str) -> str:
    return f"{migration_id}/progress/{job_name}/"


class FiguresWriter:
    """Writes the figures of a slice every few seconds, in a thread: the copier never waits for it.

    :param names: which figures to write: the backup half of a split job only reads; the restore half counts the rest.
    """

    def __init__(
        self,
        store: ObjectStore,
        migration_id: str,
        job_name: str,
        lane: int,
        slice_number: int,
        *,
        names: Sequence[str] = SUMS,
    ) -> None:
        self._store = store
        self._names = names
        self._key = f"{_prefix(migration_id, job_name)}lane-{lane:06d}.json"
        self._lane = lane
        self._number = slice_number
        self._began = time.monotonic()
        self._stop = threading.Event()

    @contextmanager
    def watching(self, copies: Sequence[PartitionCopy]) -> Iterator[None]:
        """Write while the block runs, and once more after it; the block's end does not wait for that."""
        threading.Thread(target=self._run, args=(copies,), name=f"figures-{self._lane}", daemon=True).start()
        try:
            yield
        finally:
            self._stop.set()

    def _run(self, copies: Sequence[PartitionCopy]) -> None:
        former: list[SliceFigures] | None = None
        written: tuple[object, ...] | None = None
        seconds = max(WRITE_SECONDS, min(len(copies) * _WRITE_SECONDS_PER_PARTITION, _LONGEST_WRITE_SECONDS))
        while True:
            ended = self._stop.wait(seconds)
            sums = {name: sum(getattr(copy.figures, name) for copy in copies) for name in self._names}
            standing = standing_of(copies) if self._names is SUMS else {}
            try:
                if former is None:
                    former = self._former()
                if (sums, standing) != written:
                    self._write(former, sums, latency_of(copies), standing)
                    written = (sums, standing)
            except MigrationError as error:
                log.debug("figures of lane %s could not be written: %s", self._lane, error)
            if ended:
                return

    def _former(self) -> list[SliceFigures]:
        found = _read(self._store, self._key)
        slices = [] if found is None else found.slices
        return [item for item in slices if item.slice_number < self._number][-(_KEPT_SLICES - 1) :]

    def _write(
        self,
        former: list[SliceFigures],
        sums: Mapping[str, int],
        latency: list[int],
        standing: dict[str, list[int]],
    ) -> None:
        seconds = round(time.monotonic() - self._began, 3)
        now = SliceFigures(slice_number=self._number, seconds=seconds, latency=latency, **sums)
        self._store.put(self._key, LaneFigures(lane=self._lane, slices=[*former, now], standing=standing).canonical())


def standing_of(copies: Sequence[PartitionCopy]) -> dict[str, list[int]]:
    """Return the standing of the partitions of which the source has said something, by topic."""
    found: dict[str, list[int]] = {}
    for copy in copies:
        try:
            standing = copy.standing
        except IndexError:
            # The lane has taken the last entry of a queue meanwhile: the next document has the partition again.
            continue
        if standing.lag >= 0:
            found.setdefault(copy.spec.topic, []).extend((copy.spec.partition, *standing))
    return found


def latency_of(copies: Sequence[PartitionCopy]) -> list[int]:
    total = LatencyHistogram()
    for copy in copies:
        total.merge(copy.figures.latency.flat())
    return total.flat()


def _read(store: ObjectStore, key: str) -> LaneFigures | None:
    data = store.get(key)
    try:
        return None if data is None else LaneFigures.parse(data)
    except ValidationError:
        return None


def is_same_topic(row: Mapping[str, Any], topic_id: str) -> bool:
    """Whether a partition's row of a progress document is about the topic with this id.

    Rows that were written before they had ids, and clusters before 2.8, tell nothing: then the name counts.
    """
    return not topic_id or row.get("topic_id", "") in ("", topic_id)


def live_lanes(store: ObjectStore, migration_id: str, job_name: str) -> list[LaneFigures]:
    """Read the figures of all lanes of a job, ascending."""
    keys = sorted(info.key for info in store.list(_prefix(migration_id, job_name)))
    if len(keys) <= _FEW_LANES:
        return [item for key in keys if (item := _read(store, key)) is not None]
    # One after the other, hundreds of lanes take seconds, and the figures are those of other moments.
    with ThreadPoolExecutor(_READERS, "figures") as pool:
        return [item for item in pool.map(lambda key: _read(store, key), keys) if item is not None]


def not_merged(lanes: Sequence[LaneFigures], merged: Mapping[str, int]) -> list[SliceFigures]:
    """Return the slices that are not in the sums of a progress document.

    :param merged: number of the last slice that is in the sums, by lane; the lane is text because it comes from JSON.
    """
    return [item for lane in lanes for item in lane.slices if item.slice_number > merged.get(str(lane.lane), 0)]


def lanes_under_way(store: ObjectStore, document: Mapping[str, Any]) -> list[LaneFigures]:
    """Read the figures of the lanes of an unfinished job; none if its progress document cannot be completed by them."""
    if not document or document.get("finished") or "slices" not in document:
        return []
    return live_lanes(store, str(document["migration_id"]), str(document["job"]))


def with_live_figures(store: ObjectStore, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a progress document whose sums include what the running slices have moved so far."""
    return with_lanes(document, lanes_under_way(store, document))


def with_lanes(document: Mapping[str, Any], lanes: Sequence[LaneFigures]) -> dict[str, Any]:
    """Return a progress document whose sums include what these lanes have moved since it was written."""
    shown = dict(document)
    if not lanes:
        return shown
    slices = not_merged(lanes, document["slices"])
    if not slices:
        return shown
    everything = dict(document.get("all_runs") or {})
    for name in SUMS:
        more = sum(getattr(item, name) for item in slices)
        shown[name] = document.get(name, 0) + more
        everything[name] = everything.get(name, 0) + more
    shown["all_runs"] = everything
    latency = LatencyHistogram()
    for flat in (document.get("latency") or [], *(item.latency for item in slices)):
        latency.merge(flat)
    shown["latency"] = latency.flat()
    latest = not_merged([lane.model_copy(update={"slices": lane.slices[-1:]}) for lane in lanes], document["slices"])
    rates = [item.records / item.seconds for item in latest if item.seconds > 0]
    if rates:
        shown["records_per_second"] = round(sum(rates), 1)
    return shown


# -- earlier runs -----------------------------------------------------------------------------------------------------
#
# What earlier drivers of a copy job have counted, so that figures describe the job and not only its last driver.
#
# These sums are for people while a job runs. A killed driver has not counted its last slices; the exact number of
# records at the end comes from the target's log (``PartitionResult.total_records``).


_SUMS = ("records", "copied_bytes", "source_bytes", "holes", "transaction_holes", "skipped_records", "seconds")


@dataclass(frozen=True)
class EarlierRuns:
    """Sums over the drivers before this one.

    :param runs: how many drivers there were.
    :param sums: sums by the names used in progress documents.
    :param slices: number of the last slice in the sums, by lane.
    """

    runs: int
    sums: Mapping[str, float]
    slices: Mapping[str, int]

    @classmethod
    def read(cls, store: ObjectStore, migration_id: str, job: str) -> EarlierRuns:
        """Read the sums from the progress document of the last driver; all zero if there was none."""
        data = store.get(f"{migration_id}/progress/{job}.json")
        document = json.loads(data) if data else {}
        # Documents of earlier releases describe only one driver.
        found = document.get("all_runs") or document
        runs = int(found.get("runs", 1)) if document else 0
        sums = {name: found.get(name, 0) for name in _SUMS}
        slices = dict(document.get("slices") or {})
        # The copiers have reported what a killed driver did not merge.
        lanes = live_lanes(store, migration_id, job)
        for item in not_merged(lanes, slices):
            for name in SUMS:
                sums[name] += getattr(item, name)
        for lane in lanes:
            last = max((item.slice_number for item in lane.slices), default=0)
            slices[str(lane.lane)] = max(slices.get(str(lane.lane), 0), last)
        return cls(runs, sums, slices)

    def with_run(self, progress: Mapping[str, Any]) -> dict[str, float]:
        """Return the sums including those of the current driver."""
        sums = {name: self.sums[name] + progress[name] for name in _SUMS}
        return {"runs": self.runs + 1, **sums, "seconds": round(sums["seconds"], 3)}


# -- stuck ------------------------------------------------------------------------------------------------------------
#
# Partitions of a job that are not being copied: stuck ones are retried, failed ones wait for a person.
#
# The operators of a job that follows a source for days must be told about both: in log lines, in the progress
# document, and from there in ``status``, in the drain and in notifications.


#: Most partitions that the progress document names; its figures count all of them.
MAX_NAMED = 20
#: A partition whose leader changes is stuck for a moment; nothing is logged before this time.
QUIET_SECONDS = 5.0
#: Wait before a line is repeated; a line about more partitions waits less.
REPEAT_SECONDS = 60.0
NEWS_SECONDS = 10.0

State = Literal["failed", "stuck"]


@dataclass(frozen=True)
class Trouble:
    """A partition that is not being copied.

    :param state: ``failed``: not retried until a person has acted; ``stuck``: retried.
    :param seconds: how long it has not been copied.
    :param error: ``MigrationError.as_dict()``.
    """

    topic: str
    partition: int
    state: State
    seconds: float
    error: Mapping[str, Any]

    @property
    def reason(self) -> str:
        """The error's code and what failed."""
        return f"[{self.error.get('code', 'UNKNOWN')}] {self.error.get('what', 'no reason is known')}"

    def as_dict(self) -> dict[str, Any]:
        """Return the entry for the progress document."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "state": self.state,
            "seconds": round(self.seconds, 1),
            "code": self.error.get("code"),
            "what": self.error.get("what"),
            "next_step": self.error.get("next_step"),
        }


def in_order(troubles: Sequence[Trouble]) -> list[Trouble]:
    """Sort troubles: failed partitions first, then those stuck the longest."""
    return sorted(troubles, key=lambda item: (item.state != "failed", -item.seconds, item.topic, item.partition))


def sentence(job: str, state: str, troubles: Sequence[Trouble]) -> str:
    """Describe for people failed, or stuck, partitions that have the same reason."""
    first, longest = troubles[0], max(item.seconds for item in troubles)
    several = len(troubles) > 1
    count = f"{len(troubles)} partitions" if several else "1 partition"
    if state == "failed":
        what = "cannot be copied, and will not be retried until a person has acted"
    else:
        what = f"could not be copied for {longest:.0f} s, and {'are' if several else 'is'} being retried"
    place = f"{'the first is ' if several else ''}{first.topic}-{first.partition}"
    text = f"{job}: {count} {what} ({place}): {first.reason}"
    return f"{text}. Next: {first.error['next_step']}" if first.error.get("next_step") else text


class TroubleLines:
    """Logs a job's troubles: soon when they are new, periodically while they last, once at the end.

    Partitions with the same reason share a line: a dead broker affects hundreds of them.

    :param job: name of the job, for people.
    """

    def __init__(self, job: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._job = job
        self._clock = clock
        self._told: dict[tuple[str, str], tuple[float, int]] = {}
        self._since: float | None = None

    def tell(self, troubles: Sequence[Trouble]) -> None:
        """Log what is due, given all current troubles."""
        now = self._clock()
        groups: dict[tuple[str, str], list[Trouble]] = {}
        for item in in_order(troubles):
            if item.state == "failed" or item.seconds >= QUIET_SECONDS:
                groups.setdefault((item.state, str(item.error.get("code"))), []).append(item)
        for key, group in groups.items():
            if self._is_due(key, len(group), now):
                self._told[key] = (now, len(group))
                self._since = now if self._since is None else self._since
                log.log(
                    logging.ERROR if key[0] == "failed" else logging.WARNING, "%s", sentence(self._job, key[0], group)
                )
        if self._since is not None and not troubles:
            log.warning(
                "%s: all partitions are being copied again, %.0f s after the first line about them",
                self._job,
                now - self._since,
            )
            self._since = None
            self._told.clear()

    def _is_due(self, key: tuple[str, str], count: int, now: float) -> bool:
        if key not in self._told:
            return True
        at, told = self._told[key]
        return now - at >= (NEWS_SECONDS if count > told else REPEAT_SECONDS)


# -- open transactions ------------------------------------------------------------------------------------------------


#: So many slices in a row without a record are no accident of one of them.
STARVED_SLICES = 3


def starved_error(result: PartitionResult, slices: int, migration_id: str) -> dict[str, Any]:
    """Return the error (``MigrationError.as_dict()``) of a partition that several slices have copied nothing of."""
    waiting = f"{result.lag} offsets wait" if result.lag > 0 else "the source has not answered before they ended"
    return PartitionStarved(
        f"{slices} slices have ended without copying anything of this partition, although nothing failed: {waiting}",
        where=Where(
            migration_id=migration_id, topic=result.topic, partition=result.partition, offset=result.source_offset
        ),
        next_step="none at first: it goes first in the next slices, and they get longer. If it lasts, the machines "
        "that copy are too slow or too far from the clusters, or a limit is too low: give executors more processor "
        "time, raise slice_seconds of the seed or the tail, and check the rates and quotas of the copy",
        details={"slices": slices, "lag": result.lag},
    ).as_dict()


#: Brokers end transactions that are older than ``transaction.max.timeout.ms``, by default 15 minutes: whatever is open
#: for longer hangs, or holds consumers back for so long that people should know.
HELD_TROUBLE_SECONDS = 900.0


def held_back_error(result: PartitionResult, migration_id: str) -> dict[str, Any]:
    """Return the error (``MigrationError.as_dict()``) of a partition that is held back for too long."""
    who, offset = result.held_by or "a producer that the brokers do not name", result.source_offset
    return TransactionHolds(
        f"an open transaction of {who} holds back everything from source offset {offset} on: {result.held_back} "
        "offsets, which no lag counts",
        where=Where(
            migration_id=migration_id, cluster="source", topic=result.topic, partition=result.partition, offset=offset
        ),
        next_step="let the application end its transaction; if it is gone, abort it on the source "
        f"(kafka-transactions.sh abort --topic {result.topic} --partition {result.partition} --start-offset {offset})",
        details={"held_by": result.held_by, "held_back": result.held_back},
    ).as_dict()
