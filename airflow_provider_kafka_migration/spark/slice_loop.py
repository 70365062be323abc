"""Runs the slices of a job, each as a small Spark job of its own, from threads of the driver.

A *unit* is some lanes that one task drives at the same time. Units do not wait for each other: as soon as the slice of
one has ended, its results are merged and its lanes start their next slice. Which lanes form a unit is decided then, so
a job spreads over executors that come later and moves together when some go. The target is the checkpoint: a killed
driver leaves nothing to clean up, and the next one continues from the target's log ends.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from airflow_provider_kafka_migration.documents.copy import CopyJob, CopyLane
from airflow_provider_kafka_migration.errors import SparkJobFailed
from airflow_provider_kafka_migration.lanes.job_progress import JobProgress
from airflow_provider_kafka_migration.spark.drivers import Merger
from airflow_provider_kafka_migration.spark.main import MAX_SPARK_FAILURES, root_cause, spark_errors
from airflow_provider_kafka_migration.spark.rows import RESULT_COLUMNS, SliceOutcome, read_rows
from airflow_provider_kafka_migration.spark.tasks import TaskRunner
from airflow_provider_kafka_migration.spark.worker import JobPointer, RunLane, make_copy_slice, run_lane

log = logging.getLogger(__name__)

#: How often progress is written while no slice ends.
_POLL_SECONDS = 0.5
#: Pause between two attempts to cancel the slices of a driver that ends.
_CANCEL_SECONDS = 1.0
#: Rest of a unit whose slice has reported nothing.
_NOTHING_SECONDS = 1.0
#: Driver threads, and so slices that Spark knows about: more than the slots that a driver sees before all executors
#: have come.
_MOST_UNITS = 512
_MOST_NAMED = 8


@dataclass(frozen=True)
class Unit:
    """The lanes of one task, and how the slice begins.

    :param lanes: ascending.
    :param number: of the slice, for people.
    :param left: the unfinished partitions; None: all that the job document has when the slice begins.
    :param pause: seconds to wait before it.
    :param seconds: how long the slice is; 0: as the job document says.
    :param first: partitions that go first, longest wait first.
    """

    lanes: tuple[int, ...]
    number: int
    left: tuple[tuple[str, int], ...] | None
    pause: float
    seconds: int = 0
    first: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        named = ", ".join(str(lane) for lane in self.lanes[:_MOST_NAMED])
        more = f" and {len(self.lanes) - _MOST_NAMED} more" if len(self.lanes) > _MOST_NAMED else ""
        return f"lane{'s' if len(self.lanes) > 1 else ''} {named}{more}, slice {self.number}"


class SliceLoop:
    """Drives a copy job until its coordinator has finished.

    :param run: what a task does with a lane; tests pass their own function.
    """

    def __init__(
        self,
        runner: TaskRunner,
        job: CopyJob,
        pointer: JobPointer,
        coordinator: JobProgress,
        *,
        run: RunLane = run_lane,
    ) -> None:
        self._runner = runner
        self._job = job
        self._coordinator = coordinator
        self._pointer = pointer
        self._run_lane = run
        self._merger = Merger(coordinator)
        self._cancelled = threading.Event()
        self._open: dict[Future[SliceOutcome], Unit] = {}
        #: lane -> when its next slice may begin, and when its current one began (monotonic clock)
        self._rests: dict[int, float] = {}
        self._began: dict[int, float] = {}
        #: lane -> slices that have ended, and consecutive failed Spark jobs
        self._slices: dict[int, int] = {}
        self._spark_failures: dict[int, int] = {}

    def run(self) -> None:
        """Return when the coordinator has finished.

        :raises CopyFailed: some partitions could not be copied; the error lists all of them.
        :raises ExecutorUnfit: an executor lacks packages.
        :raises SparkJobFailed: Spark gave up a task twice in a row.
        """
        self._coordinator.begin()
        if not self._coordinator.finished:
            width = min(len(self._job.lanes), _MOST_UNITS)
            with ThreadPoolExecutor(max(width, 1), thread_name_prefix=self._job.name) as pool:
                try:
                    self._rounds(pool)
                except BaseException:
                    self._cancelled.set()
                    self._cancel_open()
                    raise
        self._coordinator.check()

    def _cancel_open(self) -> None:
        """Cancel the slices that run, and wait for their ends.

        Asked once, Spark would miss a slice whose job reaches it a moment later. A Spark that cannot be asked any more
        must not hide the error for which the driver ends.
        """
        left = set(self._open)
        while left:
            for future in left:
                try:
                    self._runner.cancel(self._group(self._open[future]))
                except Exception as error:
                    log.warning("Spark could not cancel %s: %s", self._open[future], root_cause(str(error)))
            left = wait(left, timeout=_CANCEL_SECONDS).not_done

    def _rounds(self, pool: ThreadPoolExecutor) -> None:
        self._start_units(pool)
        while self._open:
            done, _ = wait(self._open, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=lambda future: self._open[future].lanes):
                self._ended(self._open.pop(future), future)
            if done:
                self._start_units(pool)
            self._coordinator.tick(self._running_since())

    def _start_units(self, pool: ThreadPoolExecutor) -> None:
        if self._coordinator.finished:
            # Units that pause have nothing to wait for; running ones end their slices.
            self._cancelled.set()
            return
        # Something may have become unfinished again: a stop was withdrawn, or partitions were added.
        self._cancelled.clear()
        busy = {lane for unit in self._open.values() for lane in unit.lanes}
        for unit in self._next_units(busy):
            self._open[pool.submit(self._slice, unit)] = unit
            self._began.update(dict.fromkeys(unit.lanes, time.monotonic() + unit.pause))

    def _next_units(self, busy: set[int]) -> list[Unit]:
        """Return the units that start now.

        :param busy: lanes whose slice has not ended.
        """
        raise NotImplementedError

    def _running_since(self) -> Mapping[int, float]:
        """Return when slices began that should not last longer than a slice: lane -> monotonic clock."""
        raise NotImplementedError

    def _unit(self, lanes: Sequence[int], left: Sequence[tuple[str, int]] | None) -> Unit:
        now = time.monotonic()
        pause = min(self._rests.get(lane, 0.0) for lane in lanes) - now
        number = 1 + max(self._slices.get(lane, 0) for lane in lanes)
        return Unit(
            tuple(sorted(lanes)),
            number,
            None if left is None else tuple(left),
            max(pause, 0.0),
            seconds=self._coordinator.slice_seconds(lanes),
            first=tuple(self._coordinator.waiting(lanes)),
        )

    def _ended(self, unit: Unit, future: Future[SliceOutcome]) -> None:
        outcome = self._outcome(unit, future)
        pause = max(self._merger.merge(outcome), self._rest(unit, outcome))
        for lane in unit.lanes:
            self._slices[lane] = unit.number
            self._rests[lane] = time.monotonic() + pause
            self._began.pop(lane, None)

    def _rest(self, unit: Unit, outcome: SliceOutcome) -> float:
        """Return seconds that a unit waits although nothing is wrong with it."""
        # Its lanes have no partitions of this driver in the job document as it is now: the next slice may be as short.
        return _NOTHING_SECONDS if not outcome.results and not outcome.lane_errors else 0.0

    def _outcome(self, unit: Unit, future: Future[SliceOutcome]) -> SliceOutcome:
        """Return the outcome of a slice; the first of consecutive failed Spark jobs counts as an error of its lanes."""
        try:
            outcome = future.result()
        except SparkJobFailed as error:
            for lane in unit.lanes:
                self._spark_failures[lane] = self._spark_failures.get(lane, 0) + 1
            if max(self._spark_failures[lane] for lane in unit.lanes) >= MAX_SPARK_FAILURES:
                raise
            return SliceOutcome(lane_errors=dict.fromkeys(unit.lanes, error))
        for lane in unit.lanes:
            self._spark_failures.pop(lane, None)
        return outcome

    def _slice(self, unit: Unit) -> SliceOutcome:
        if self._cancelled.wait(unit.pause):
            return SliceOutcome()
        function = make_copy_slice(
            self._pointer, unit.lanes, self._run_lane, unit.left, seconds=unit.seconds, first=unit.first
        )
        what = f"{self._job.name} of {self._job.migration_id}: {unit}"
        with spark_errors(what):
            rows = self._runner.run(
                function, RESULT_COLUMNS, [unit.lanes[0]], group=self._group(unit), description=self._description(what)
            )
        return read_rows(rows)

    def _description(self, what: str) -> str:
        """Return what Spark's UI shows of a slice: the job as a whole until then is part of it."""
        return f"{what} ({self._merger.line})" if self._merger.line else what

    def _group(self, unit: Unit) -> str:
        return f"{self._job.migration_id}/{self._job.name}/lane-{unit.lanes[0]:04d}"


def lane_weights(lanes: Sequence[CopyLane]) -> dict[int, int]:
    """Return lane -> its bytes, as far as they are known."""
    return {lane.lane: sum(max(item.size_bytes, 0) for item in lane.partitions) for lane in lanes}


def group_lanes(weights: Mapping[int, int], slots: int) -> list[list[int]]:
    """Spread lanes over at most ``slots`` groups of similar weight (largest lane first, then by lane number).

    :param weights: lane -> its bytes; lanes of unknown or zero size count a little, so that they are spread too.
    """
    groups: list[list[int]] = [[] for _ in range(max(1, min(slots, len(weights))))]
    loads = [0] * len(groups)
    for lane in sorted(weights, key=lambda lane: (-weights[lane], lane)):
        lightest = loads.index(min(loads))
        groups[lightest].append(lane)
        loads[lightest] += max(weights[lane], 1)
    return [sorted(group) for group in groups if group]
