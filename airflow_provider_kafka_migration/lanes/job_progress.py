"""Drives a copy job from outside the copiers: what is left, what has failed permanently, progress, the end.

A job that ends by itself gives up a partition after several transient failures; its caller retries. A job that follows
its source (it has a ``stop_key``) has no caller that would: it retries for as long as it runs, and reports stuck
partitions. Only an error that retrying cannot fix makes one of its partitions fail.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_kafka_migration.copy.latency import LatencyHistogram
from airflow_provider_kafka_migration.copy.partition import MISSING_SECONDS, NO_ANSWER, topic_gone
from airflow_provider_kafka_migration.documents.copy import BACKUP_LANES, CopyJob, CopyLane, PartitionResult, StopAt
from airflow_provider_kafka_migration.errors import (
    CopyFailed,
    CopyStalled,
    MigrationError,
    PartitionStarved,
    SchemaIdUnknown,
    TransactionHolds,
    Transient,
    Where,
    followed_by,
)
from airflow_provider_kafka_migration.journal.entries import utc_now
from airflow_provider_kafka_migration.kafka.logs import MISSING_TOPIC
from airflow_provider_kafka_migration.lanes.assignment import LanePauses
from airflow_provider_kafka_migration.lanes.figures import (
    HELD_TROUBLE_SECONDS,
    MAX_NAMED,
    STARVED_SLICES,
    EarlierRuns,
    State,
    Trouble,
    TroubleLines,
    held_back_error,
    in_order,
    is_same_topic,
    starved_error,
)
from airflow_provider_kafka_migration.lanes.slice_begin import next_slice_seconds
from airflow_provider_kafka_migration.storage.base import ObjectStore

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.copy.clients import Clients

#: Consecutive transient errors before a partition counts as failed.
MAX_TRANSIENT_ROUNDS = 5
#: The same as a time, for slices that end while something is still being retried: they end without an error.
MAX_STUCK_SECONDS = 300.0
#: Troubles of partitions that wait, although no request of theirs has failed.
_WAITS = (PartitionStarved.code, TransactionHolds.code)
#: A slice may wait for its lease (the length of a slice) and for answers; after that it counts as hanging.
OVERDUE_SECONDS = 60.0
_PROGRESS_SECONDS = 2.0
#: The document names every partition: with many, it is written less often. Readers add what running slices report.
_PROGRESS_SECONDS_PER_PARTITION = 0.0015
_LONGEST_PROGRESS_SECONDS = 15.0
#: Jobs that write to the target.
_WRITING_JOBS = ("seed", "tail", "restore")
_REFRESH_SECONDS = 1.0
#: The job names every partition, too: 0.3 MB per thousand.
_REFRESH_SECONDS_PER_PARTITION = 0.001
_LONGEST_REFRESH_SECONDS = 10.0
_STOP_SECONDS = 2.0

log = logging.getLogger(__name__)

#: (topic, partition, whether it is the backup half of a split job)
_Key = tuple[str, int, bool]


def failure_kind(errors: Iterable[object]) -> type[CopyFailed] | type[CopyStalled]:
    """Return the error class for partitions that failed with these errors (``MigrationError.as_dict()``, or None)."""
    final = any(isinstance(error, dict) and error.get("kind") == "terminal" for error in errors)
    return CopyFailed if final else CopyStalled


@dataclass
class _Standing:
    """What is known about one partition over all slices."""

    result: PartitionResult | None = None
    records: int = 0
    copied_bytes: int = 0
    source_bytes: int = 0
    holes: int = 0
    transaction_holes: int = 0
    skipped_records: int = 0
    transient_rounds: int = 0
    #: what prevents copying it, and since when (monotonic clock)
    trouble: dict[str, object] | None = None
    stuck_since: float | None = None
    #: slices in a row that have copied nothing although something waits, and since when (monotonic clock)
    starved_slices: int = 0
    starved_since: float = 0.0
    #: the position at which an open transaction holds it back, and since when (seconds since 1970)
    held_at: int = -1
    held_since: float = 0.0
    #: since when all slices have ended with the answer that its topic does not exist (monotonic clock)
    missing_since: float | None = None
    gaps: tuple[tuple[int, int], ...] = ()
    overtaken: tuple[int, ...] = ()
    went_back: tuple[tuple[int, int], ...] = ()
    #: target log end left by the last slice that took the partition over, possibly of an earlier driver
    end_offset: int = -1
    done: bool = False
    failed: bool = False
    #: of all runs, according to the target's log; -1: not known yet
    total_records: int = -1
    total_holes: int = -1
    #: newest timestamp of the batch that the target has acknowledged last, over all slices; -1: none yet
    mirrored_ms: int = -1
    #: its stop lies where it begins: there is nothing to copy
    empty: bool = False

    def is_well(self) -> None:
        """Reset after a slice without trouble, also after a person has fixed what had failed."""
        self.transient_rounds = 0
        self.trouble, self.stuck_since, self.missing_since, self.failed = None, None, None, False


def _topic_ids(job: CopyJob) -> dict[tuple[str, int], str]:
    return {spec.key: spec.topic_id for spec in job.partitions}


def _keys(job: CopyJob) -> list[_Key]:
    return [(*spec.key, lane.half == "backup") for lane in job.lanes for spec in lane.partitions]


class JobProgress:
    """Merges the results of slices. One per driver; its state is only for progress, the target's log is authoritative.

    :param store: the object store of the journal location.
    :param on_progress: called with the progress document every few seconds.
    """

    def __init__(
        self, job: CopyJob, store: ObjectStore, *, on_progress: Callable[[dict[str, object]], None] | None = None
    ) -> None:
        self.job = job
        self._store = store
        self._on_progress = on_progress
        self._standing = {key: _Standing() for key in _keys(job)}
        #: what is left of each lane; a lane is absent after something of it has changed
        self._left: dict[int, CopyLane | None] = {}
        self._began = time.monotonic()
        self._written_at = 0.0
        #: results may arrive in another thread than the one that calls :meth:`tick`
        self._lock = threading.RLock()
        self._run = secrets.token_hex(4)
        self._lines = TroubleLines(job.name)
        self._asked_stop_at = 0.0
        self._refreshed_at = time.monotonic()
        self._latency = LatencyHistogram()
        self._throttled = {"source": 0.0, "target": 0.0}
        #: lanes that read all of their partitions all the time, from the source
        self._followers = {lane.lane for lane in job.lanes if self.follows and "restore" not in (lane.half, job.name)}
        #: what the last slice of a lane that had something to copy took to begin with it
        self._begin_seconds: dict[int, float] = {}
        self._read_earlier_ends()
        self._earlier = EarlierRuns.read(store, job.migration_id, job.name)
        #: number of the last slice that was merged, by lane
        self._slices = dict(self._earlier.slices)

    def _read_earlier_ends(self) -> None:
        """Read what earlier drivers saw; otherwise a log that went back between two drivers would go unnoticed."""
        ids = _topic_ids(self.job)
        for name in _WRITING_JOBS if self.job.name in _WRITING_JOBS else ():
            data = self._store.get(f"{self.job.migration_id}/progress/{name}.json")
            for item in json.loads(data)["partitions"] if data else ():
                key = (item["topic"], item["partition"])
                standing = self._standing.get((*key, False))
                if standing is not None and is_same_topic(item, ids[key]):
                    standing.end_offset = max(standing.end_offset, item["target_offset"])
                    if name == self.job.name:
                        # People have to hear of it, however often the driver is restarted.
                        standing.went_back = tuple((int(end), int(to)) for end, to in item.get("went_back", ()))

    @property
    def follows(self) -> bool:
        """Whether the job runs until a stop is requested, and its caller does not retry it."""
        return self.job.stop_key is not None

    def begin(self) -> None:
        """Write progress before the first slice ends: it replaces what an earlier driver wrote."""
        self._try_to_write_progress()

    def tick(self, running_since: Mapping[int, float]) -> None:
        """Report while no results arrive: a hanging slice has no results and would otherwise go unnoticed.

        :param running_since: when the current slice of each lane began (monotonic clock).
        """
        with self._lock:
            now = time.monotonic()
            if now - self._written_at < self._progress_seconds:
                return
            for lane in self.job.lanes:
                seconds = now - running_since.get(lane.lane, now)
                if seconds >= self.job.slice_seconds + self.slice_seconds([lane.lane]) + OVERDUE_SECONDS:
                    self._note_overdue(lane, seconds)
            self._lines.tell(self.troubles())
            self._try_to_write_progress()

    @property
    def _progress_seconds(self) -> float:
        """How often progress is written: building and storing the document must stay a small part of the driver."""
        wanted = len(self._standing) * _PROGRESS_SECONDS_PER_PARTITION
        return max(_PROGRESS_SECONDS, min(wanted, _LONGEST_PROGRESS_SECONDS))

    @property
    def _refresh_seconds(self) -> float:
        wanted = len(self._standing) * _REFRESH_SECONDS_PER_PARTITION
        return max(_REFRESH_SECONDS, min(wanted, _LONGEST_REFRESH_SECONDS))

    def _note_overdue(self, lane: CopyLane, seconds: float) -> None:
        error = Transient(
            f"the slice of lane {lane.lane} has not ended after {seconds:.0f} s; it should end after "
            f"{self.slice_seconds([lane.lane])} s",
            where=Where(migration_id=self.job.migration_id, phase=self.job.name),
            next_step="check the process that runs it (on Spark: its executor, and whether one is free); "
            "killing it does no harm, because the next slice continues from the target's log end",
        ).as_dict()
        for spec in lane.partitions:
            standing = self._standing.get((*spec.key, lane.half == "backup"))
            if standing is not None and not standing.failed:
                standing.trouble = error
                if standing.stuck_since is None:
                    standing.stuck_since = time.monotonic() - seconds

    def _look_for_end(self) -> None:
        """Look for stops that lie where a partition begins (an empty one; all in a rollback): they need no broker.

        A stuck partition would otherwise be retried forever. The stop may be withdrawn, so it is not kept.
        """
        now = time.monotonic()
        stuck = any(item.trouble is not None for item in self._standing.values())
        if not self.follows or not stuck or now - self._asked_stop_at < _STOP_SECONDS:
            return
        self._asked_stop_at = now
        assert self.job.stop_key is not None
        try:
            stop = StopAt.in_force(self._store.get(self.job.stop_key))
        except Transient as error:
            log.warning("The stop offsets could not be read: %s", error)
            return
        for spec in self.job.partitions:
            until = None if stop is None else stop.offset(*spec.key)
            is_empty = until is not None and until <= spec.source_start_offset
            for key in ((*spec.key, False), (*spec.key, True)):
                if key in self._standing:
                    self._standing[key].empty = is_empty
        self._left.clear()

    def refresh_job(self) -> None:
        """Add partitions that were added to a tail's job while it runs, and drop those that were removed."""
        now = time.monotonic()
        if self.job.name != "tail" or now - self._refreshed_at < self._refresh_seconds:
            return
        self._refreshed_at = now
        try:
            data = self._store.get(f"{self.job.migration_id}/jobs/{self.job.name}.json")
        except Transient as error:
            log.warning("The job could not be read again: %s", error)
            return
        job = self.job if data is None else CopyJob.parse(data)
        if job.generation != self.job.generation:
            return
        if job.lanes == self.job.lanes:
            # What the source may do to its records depends on its configs: the next slices use the new rules. Where the
            # schema ids of a topic are does not change, because its records were copied accordingly.
            self.job = self.job.model_copy(update={"proof": job.proof, "tombstones": job.tombstones})
            return
        before, ids = _topic_ids(self.job), _topic_ids(job)
        standing = {
            # What was said of a deleted topic does not hold for the one that has its name now.
            key: self._standing.get(key, _Standing()) if before.get(key[:2]) == ids[key[:2]] else _Standing()
            for key in _keys(job)
        }
        log.info("The job now has %d partitions, it had %d", len(standing), len(self._standing))
        self.job, self._standing = job, standing
        self._followers |= {lane.lane for lane in job.lanes if lane.half != "restore"}
        self._left.clear()

    def remaining_lanes(self) -> list[CopyLane]:
        """Return the lanes that still have work, each with its unfinished partitions."""
        with self._lock:
            found = (self._remaining(lane) for lane in self.job.lanes)
            return [lane for lane in found if lane is not None]

    def _remaining(self, lane: CopyLane) -> CopyLane | None:
        """Return a lane with its unfinished partitions; None if nothing is left of it.

        Drivers ask after each slice of each lane, so only lanes that have changed are looked through again.
        """
        if lane.lane not in self._left:
            left = [spec for spec in lane.partitions if not self._is_over((*spec.key, lane.half == "backup"))]
            self._left[lane.lane] = lane.model_copy(update={"partitions": left}) if left else None
        return self._left[lane.lane]

    def _changed(self, lane: int) -> None:
        """Forget what is left of a lane, and of the other half of a split job's lane."""
        for number in (lane, lane + BACKUP_LANES, lane - BACKUP_LANES):
            self._left.pop(number, None)

    def _is_over(self, key: _Key) -> bool:
        standing, backup = self._standing[key], self._standing.get((*key[:2], True))
        # If its backup has failed, a restore has nothing to wait for.
        return standing.done or standing.failed or standing.empty or (backup is not None and backup.failed)

    def _failure(self, key: _Key) -> _Standing | None:
        """Return what failed: the partition, or the backup it is restored from; None once the partition is done."""
        both = (self._standing[key], self._standing.get((*key[:2], True)))
        return next((item for item in both if item is not None and item.failed and not item.done), None)

    @property
    def finished(self) -> bool:
        """Whether every partition is done or has failed permanently."""
        with self._lock:
            return all(self._remaining(lane) is None for lane in self.job.lanes)

    def record(self, results: Iterable[PartitionResult]) -> None:
        """Merge the results of slices and write progress every few seconds."""
        with self._lock:
            self._record(results)

    def _record(self, results: Iterable[PartitionResult]) -> None:
        self.refresh_job()
        backups = {lane.lane for lane in self.job.lanes if lane.half == "backup"}
        for result in results:
            lane = str(result.lane)
            self._slices[lane] = max(self._slices.get(lane, 0), result.slice_number)
            if result.begin_seconds >= 0:
                self._begin_seconds[result.lane] = result.begin_seconds
            self._throttled["source"] += result.source_throttled_seconds
            self._throttled["target"] += result.target_throttled_seconds
            self._latency.merge(result.latency)
            standing = self._standing.get((result.topic, result.partition, result.lane in backups))
            if standing is None:
                continue
            standing.went_back += self._went_back(standing, result)
            former, standing.result = standing.result, result
            standing.records += result.records
            standing.copied_bytes += result.copied_bytes
            standing.source_bytes += result.source_bytes
            standing.holes += result.holes
            standing.transaction_holes += result.transaction_holes
            standing.skipped_records += result.skipped_records
            standing.gaps += tuple(result.gaps)
            standing.overtaken += tuple(result.overtaken)
            if result.total_records >= 0:
                standing.total_records, standing.total_holes = result.total_records, result.total_holes
            if result.mirrored_ms >= 0:
                standing.mirrored_ms = result.mirrored_ms
            standing.done = result.done
            self._judge(standing, result)
            self._judge_progress(standing, former, result)
            self._changed(result.lane)
        self._look_for_end()
        self._lines.tell(self.troubles())
        if time.monotonic() - self._written_at >= self._progress_seconds or self.finished:
            self._try_to_write_progress()

    def _try_to_write_progress(self) -> None:
        """Write progress; a failure must not stop a copy, and :meth:`check` writes the last one."""
        try:
            self.write_progress()
        except Transient as error:
            log.warning("Progress could not be written: %s", error)

    @staticmethod
    def _went_back(standing: _Standing, now: PartitionResult) -> tuple[tuple[int, int], ...]:
        """Return where the target's log end went back: within the slice, and since the previous slice."""
        since: tuple[tuple[int, int], ...] = ()
        is_told = bool(now.went_back) and now.went_back[0][1] == now.resumed_offset
        if 0 <= now.resumed_offset < standing.end_offset and not is_told:
            since = ((standing.end_offset, now.resumed_offset),)
        if now.resumed_offset >= 0:
            standing.end_offset = now.target_offset
        return (*since, *now.went_back)

    def _judge(self, standing: _Standing, result: PartitionResult) -> None:
        error = result.error or result.trouble
        if error is None:
            standing.is_well()
            self._judge_held(standing, result)
            return
        now = time.monotonic()
        if standing.trouble is not None and standing.trouble["code"] in _WAITS:
            standing.stuck_since = None  # until now it waited, and nothing failed
        if result.records or result.holes:
            standing.transient_rounds, standing.stuck_since = 0, None
        if standing.stuck_since is None:
            standing.stuck_since = now - result.trouble_seconds
        error = self._topic_gone(standing, result, error, now) or error
        standing.trouble = error
        # Slices that ended while still retrying are not failed rounds, however many there are.
        standing.transient_rounds += result.error is not None
        exhausted = standing.transient_rounds >= MAX_TRANSIENT_ROUNDS or now - standing.stuck_since >= MAX_STUCK_SECONDS
        # A partition that waits for a schema waits for as long as it takes.
        exhausted = exhausted and error["code"] != SchemaIdUnknown.code
        standing.failed = error["kind"] == "terminal" or (exhausted and not self.follows)

    def _judge_held(self, standing: _Standing, result: PartitionResult) -> None:
        """Take an open transaction that holds a partition back for too long for trouble: no lag shows it."""
        now = utc_now().timestamp()
        if not result.is_held or result.done:
            standing.held_at = -1
            return
        if standing.held_at != result.source_offset:
            standing.held_at, standing.held_since = result.source_offset, now
        since = standing.held_since
        if result.held_since_ms >= 0:
            # It may have been open for long when this driver began. Clocks differ: what was seen here counts at least.
            since = min(since, result.held_since_ms / 1000)
        if now - since >= HELD_TROUBLE_SECONDS:
            standing.trouble = held_back_error(result, self.job.migration_id)
            standing.stuck_since = time.monotonic() - (now - since)

    def _judge_progress(self, standing: _Standing, former: PartitionResult | None, result: PartitionResult) -> None:
        """Take a partition for stuck if slices copy nothing of it, though records wait and nothing fails."""
        now = time.monotonic()
        seconds = self.slice_seconds([result.lane])
        # The first marker after a take-over is written alone: a slice that gets no further has not really begun.
        offsets = result.holes if former is None else max(result.holes, result.source_offset - former.source_offset)
        has_moved = result.records > 0 or offsets > 1
        # Before its first answer, nothing is known of the source; in a seed, a partition may wait for its turn.
        waits = result.lag > 0 or (result.lag < 0 and result.resumed_offset >= 0 and result.lane in self._followers)
        if standing.trouble is not None or result.done or has_moved or not waits:
            standing.starved_slices = 0
            return
        if not standing.starved_slices:
            standing.starved_since = now - seconds
        standing.starved_slices += 1
        if standing.starved_slices >= STARVED_SLICES and now - standing.starved_since >= (STARVED_SLICES - 1) * seconds:
            standing.trouble = starved_error(result, standing.starved_slices, self.job.migration_id)
            standing.stuck_since = standing.starved_since

    def slice_seconds(self, lanes: Iterable[int]) -> int:
        """Return how long the next slice of these lanes is: longer than wanted where it takes long to begin."""
        begin = max((self._begin_seconds.get(lane, -1.0) for lane in lanes), default=-1.0)
        return next_slice_seconds(self.job.slice_seconds, begin)

    def waiting(self, lanes: Iterable[int]) -> list[tuple[str, int]]:
        """Return the partitions of these lanes that the last slices have copied nothing of, longest wait first."""
        wanted = set(lanes)
        with self._lock:
            found = [
                (standing.starved_since, (spec.topic, spec.partition))
                for lane in self.job.lanes
                if lane.lane in wanted
                for spec in lane.partitions
                if (standing := self._standing.get((*spec.key, lane.half == "backup"))) and standing.starved_slices
            ]
        return [key for _, key in sorted(found)]

    def _topic_gone(
        self, standing: _Standing, result: PartitionResult, error: dict[str, Any], now: float
    ) -> dict[str, Any] | None:
        """Return the error of a topic that has been missing in one short slice after the other; None: it has not.

        In a long slice, the copier itself finds it out.
        """
        details = error.get("details", {})
        if MISSING_TOPIC in details:
            if standing.missing_since is None:
                standing.missing_since = now - result.trouble_seconds
        elif NO_ANSWER not in details:
            standing.missing_since = None
        if standing.missing_since is None or now - standing.missing_since < MISSING_SECONDS:
            return None
        spec = next((item for item in self.job.partitions if item.key == (result.topic, result.partition)), None)
        cluster = error.get("where", {}).get("cluster")
        return None if spec is None or cluster is None else topic_gone(self.job, spec, cluster).as_dict()

    def troubles(self) -> list[Trouble]:
        """Return the partitions that are not being copied: failed ones first, then those stuck the longest."""
        now = time.monotonic()
        found = []
        ill = {(*key[:2], False) for key, item in self._standing.items() if item.trouble is not None}
        for key in sorted(ill):
            standing = self._troubled(key) if key in self._standing else None
            if standing is not None and standing.trouble is not None:
                seconds = max(now - (now if standing.stuck_since is None else standing.stuck_since), 0.0)
                state: State = "failed" if standing.failed else "stuck"
                found.append(Trouble(key[0], key[1], state, seconds, standing.trouble))
        return in_order(found)

    def _troubled(self, key: _Key) -> _Standing | None:
        """Return the half of a partition that is in trouble; failed before stuck."""
        both = [item for item in (self._standing[key], self._standing.get((*key[:2], True))) if item is not None]
        both = [item for item in both if item.trouble is not None and not item.done and not item.empty]
        return next((item for item in both if item.failed), both[0] if both else None)

    def progress(self) -> dict[str, object]:
        """Return the progress document: totals and the state per partition. Backup halves only count what they read."""
        seconds = max(time.monotonic() - self._began, 1e-6)
        troubles = self.troubles()
        stuck = [item.seconds for item in troubles if item.state == "stuck"]
        keys = sorted(key for key in self._standing if not key[2])
        own = [self._standing[key] for key in keys]
        ids = _topic_ids(self.job)
        records = sum(item.records for item in own)
        document: dict[str, object] = {
            "version": 1,
            "migration_id": self.job.migration_id,
            "job": self.job.name,
            "generation": self.job.generation,
            # Distinguishes the documents of this driver from those of the previous one.
            "run": self._run,
            # Rewritten every few seconds, even while nothing is copied: it shows readers that this driver is alive.
            "at": utc_now().isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "finished": self.finished,
            "partitions_total": len(keys),
            "partitions_done": sum(item.done for item in own),
            "partitions_failed": sum(self._failure(key) is not None for key in keys),
            "partitions_stuck": len(stuck),
            "partitions_went_back": sum(bool(item.went_back) for item in own),
            "partitions_overtaken": len({key[:2] for key, item in self._standing.items() if item.overtaken}),
            "stuck_seconds": round(max(stuck, default=0.0), 1),
            "troubles": [item.as_dict() for item in troubles[:MAX_NAMED]],
            "records": records,
            "copied_bytes": sum(item.copied_bytes for item in own),
            "source_bytes": sum(item.source_bytes for item in self._standing.values()),
            "total_bytes": sum(max(spec.size_bytes, 0) for spec in self.job.partitions),
            # Caused by the brokers' quotas, summed over lanes.
            "source_throttled_seconds": round(self._throttled["source"], 1),
            "target_throttled_seconds": round(self._throttled["target"], 1),
            "holes": sum(item.holes for item in own),
            "transaction_holes": sum(item.transaction_holes for item in own),
            # Not copied, because they came through the target: they are read again after a restart, and counted again.
            "skipped_records": sum(item.skipped_records for item in own),
            "seconds": round(seconds, 3),
            "records_per_second": round(records / seconds, 1),
            # Of this driver's slices: copy/latency.py has the form.
            "latency": self._latency.flat(),
            "slices": dict(sorted(self._slices.items())),
            "partitions": [self._partition(key, ids[key[:2]]) for key in keys],
        }
        document["all_runs"] = self._earlier.with_run(document)
        return document

    def _partition(self, key: _Key, topic_id: str) -> dict[str, object]:
        standing, backup = self._standing[key], self._standing.get((*key[:2], True), _Standing())
        last, troubled = standing.result, self._troubled(key)
        return {
            "topic": key[0],
            # A row says nothing about a topic that was deleted and created again since.
            "topic_id": topic_id,
            "partition": key[1],
            "records": standing.records,
            "copied_bytes": standing.copied_bytes,
            "source_bytes": standing.source_bytes + backup.source_bytes,
            "holes": standing.holes,
            "total_records": standing.total_records,
            "total_holes": standing.total_holes,
            "gaps": [list(gap) for gap in standing.gaps + backup.gaps],
            "overtaken": sorted({*standing.overtaken, *backup.overtaken}),
            "done": standing.done,
            "source_offset": -1 if last is None else last.source_offset,
            "target_offset": standing.end_offset if last is None else last.target_offset,
            "lag": -1 if last is None else last.lag,
            "held_back": 0 if last is None else last.held_back,
            "waiting_ms": -1 if last is None else last.waiting_ms,
            "mirrored_ms": standing.mirrored_ms,
            "went_back": [list(item) for item in standing.went_back],
            "verdict": "" if last is None else str(last.verdict),
            "failed": troubled is not None and troubled.failed,
            "error": None if troubled is None else troubled.trouble,
        }

    def write_progress(self) -> dict[str, object]:
        """Write ``progress/<job>.json`` and call the listener."""
        self._written_at = time.monotonic()
        document = self.progress()
        # Not the canonical form, which takes a second for 10,000 partitions: no digest depends on this document.
        data = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        self._store.put(f"{self.job.migration_id}/progress/{self.job.name}.json", data.encode())
        if self._on_progress is not None:
            self._on_progress(document)
        return document

    def check(self) -> dict[str, object]:
        """Return the final progress document.

        :raises CopyFailed: some partitions could not be copied; the error lists each with its reason.
        :raises CopyStalled: the same, where every reason is transient.
        """
        document = self.write_progress()
        failed = [
            {"topic": key[0], "partition": key[1], "error": found.trouble}
            for key in sorted(self._standing)
            if not key[2] and (found := self._failure(key)) is not None
        ]
        if failed:
            first = failed[0]
            error = first["error"]
            reason = f"[{error['code']}] {error['what']}" if isinstance(error, dict) else "no answer"
            raise failure_kind(item["error"] for item in failed)(
                f"{len(failed)} of {document['partitions_total']} partitions could not be copied; the first is "
                f"{first['topic']}-{first['partition']}: {reason}",
                where=Where(migration_id=self.job.migration_id, phase=self.job.name),
                next_step=followed_by(
                    str(error["next_step"]) if isinstance(error, dict) else "see the task log",
                    "clear the task: it continues from the target's log ends",
                ),
                details={"partitions": failed},
            )
        return document


def lane_failed(lane: CopyLane, error: MigrationError) -> list[PartitionResult]:
    """Return results for a lane of which nothing could be copied."""
    return [
        PartitionResult(
            lane=lane.lane,
            topic=spec.topic,
            partition=spec.partition,
            source_offset=-1,
            target_offset=-1,
            verdict=spec.verdict,
            error=error.as_dict(),
        )
        for spec in lane.partitions
    ]


# -- local runner -----------------------------------------------------------------------------------------------------
#
# Runs a copy job in this process, with a thread per lane: for the command line, tests and small migrations.


#: Wait between checks while all lanes pause.
_REST_SECONDS = 0.1


def _slice_or_failure(
    job: CopyJob, lane: CopyLane, clients: Clients, stop: Callable[[], bool]
) -> list[PartitionResult]:
    # A driver on Spark follows progress without copying: it does not wait for what only a copier imports.
    from airflow_provider_kafka_migration.lanes import slices

    try:
        return slices.run_slice(job, lane, clients=clients, stop=stop)
    except MigrationError as error:
        return lane_failed(lane, error)


class LocalRunner:
    """Runs slices of all lanes in parallel until the job is finished.

    :param threads: how many lanes run in parallel.
    :param stop: called regularly; True ends the run early (a later run continues where the job was).
    """

    def __init__(self, clients: Clients, *, threads: int = 4, stop: Callable[[], bool] | None = None) -> None:
        self._clients = clients
        self._threads = threads
        self._stop = stop or (lambda: False)

    def run(self, job: CopyJob, *, on_progress: Callable[[dict[str, object]], None] | None = None) -> dict[str, object]:
        """Copy until every partition is done; return the final progress document.

        :raises CopyFailed: some partitions failed; the error lists all of them.
        """
        coordinator = JobProgress(job, self._clients.store(job.journal_location), on_progress=on_progress)
        coordinator.begin()
        running: dict[Future[list[PartitionResult]], int] = {}
        #: when a lane of which nothing could be copied is retried (monotonic clock)
        rests: dict[int, float] = {}
        #: when the current slice of a lane began (monotonic clock)
        began: dict[int, float] = {}
        pauses = LanePauses(follows=coordinator.follows)
        # Both halves of a split job must run at the same time, otherwise one waits for the other.
        threads = max(self._threads, len(job.lanes)) if any(lane.half for lane in job.lanes) else self._threads
        with ThreadPoolExecutor(threads, "lane") as pool:
            while not coordinator.finished and not self._stop():
                coordinator.refresh_job()
                self._start_lanes(pool, coordinator, running, rests)
                self._wait(running)
                for future in [future for future in running if future.done()]:
                    lane, results = running.pop(future), future.result()
                    began.pop(lane, None)
                    coordinator.record(results)
                    in_vain = bool(results) and all(result.error or result.trouble for result in results)
                    rests[lane] = time.monotonic() + pauses.after([lane], [lane] if in_vain else [])
                # Slices that wait for a thread do not run yet.
                under_way = {lane for future, lane in running.items() if future.running()}
                began = {lane: began.get(lane, time.monotonic()) for lane in sorted(under_way)}
                coordinator.tick(began)
            # The results of running slices count even after a stop was requested: recorded gaps, for instance.
            for future in running:
                coordinator.record(future.result())
        return coordinator.check()

    def submit(self, spec: object, job_location: str, job_key: str, read_progress: object) -> None:
        """Load the job document and run it: the interface of a runner (``record.context.CopyRunner``).

        :raises CopyFailed: some partitions failed; the error lists all of them.
        """
        self.run(self._clients.load_job(job_location, job_key))

    @staticmethod
    def _wait(running: dict[Future[list[PartitionResult]], int]) -> None:
        """Wait until a slice has ended, or for a moment while all lanes pause."""
        if running:
            wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
        else:
            time.sleep(_REST_SECONDS)

    def _start_lanes(
        self,
        pool: ThreadPoolExecutor,
        coordinator: JobProgress,
        running: dict[Future[list[PartitionResult]], int],
        rests: dict[int, float],
    ) -> None:
        busy = set(running.values())
        now = time.monotonic()
        for lane in coordinator.remaining_lanes():
            if lane.lane not in busy and rests.get(lane.lane, 0.0) <= now:
                job = coordinator.job.model_copy(update={"slice_seconds": coordinator.slice_seconds([lane.lane])})
                first = coordinator.waiting([lane.lane])
                lane = lane.model_copy(update={"goes_first": first}) if first else lane
                future = pool.submit(_slice_or_failure, job, lane, self._clients, self._stop)
                running[future] = lane.lane
