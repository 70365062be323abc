"""Runs tasks on Spark: a function that gets a number and returns small rows, in as many tasks as there are numbers.

A session of Spark itself runs them as an RDD: no data source and no SQL, so executors start one kind of Python worker,
each imports our code once, and the driver starts nothing but a SparkContext. Spark Connect has neither a SparkContext
nor RDDs; there the same function runs in ``mapInArrow`` over a range of numbers.

This module is what an executor imports first, so that it can name the packages it lacks: it imports none of them.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import pickle
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

#: Python packages (import names) that must be installed on every executor; our own code is shipped.
EXECUTOR_PACKAGES = ("boto3", "cramjam", "crc32c", "kafka", "pydantic", "rfc8785", "urllib3")
#: What the message of a task contains if its executor lacks packages; :mod:`.main` looks for it.
UNFIT = "an executor's Python lacks"

#: How long the slots of a Spark Connect server count as known.
_COUNT_SECONDS = 10.0
#: In how many partitions a plan reads a range: ``Range (0, 9, step=1, splits=2)``.
_SPLITS = re.compile(r"Range \(.*splits=(?:Some\()?(?P<number>\d+)")

#: A task: its number -> rows. Blocks for as long as the task lasts.
TaskFunction = Callable[[int], Iterable[tuple[Any, ...]]]
#: Column name -> SQL type of the rows of a task: bigint, int or string.
Columns = Mapping[str, str]
#: A row as the driver gets it: column name -> value.
Row = Mapping[str, Any]


class TaskRunner(Protocol):
    """Runs tasks on one kind of session. Thread-safe: each thread of the driver runs tasks of its own."""

    def run(
        self, function: TaskFunction, columns: Columns, numbers: Sequence[int], *, group: str, description: str
    ) -> list[Row]:
        """Run the function once per number, each in a task of its own, and return all rows.

        :param numbers: what the tasks get; at least one.
        :param group: name under which :meth:`cancel` ends these tasks.
        :param description: what Spark's UI shows.
        :raises PySparkException | Py4JError: Spark gave up a task, or the tasks were cancelled.
        """

    def slots(self) -> int:
        """Return how many tasks run in parallel, as far as Spark knows now; at least 1."""

    def cancel(self, group: str) -> None:
        """End the tasks of a group that are running now."""

    def stop(self) -> None:
        """End the session, and with it all of its tasks."""


# -- on the executor --------------------------------------------------------------------------------------------------


def missing_packages(names: Iterable[str] = EXECUTOR_PACKAGES) -> list[str]:
    """Return the packages that this Python cannot import."""
    return [name for name in names if importlib.util.find_spec(name) is None]


@functools.cache
def _check_packages() -> None:
    """Check this process once.

    :raises ImportError: packages are missing; the message names all of them, and this machine.
    """
    missing = missing_packages()
    if missing:
        raise ImportError(f"{UNFIT} {', '.join(missing)} on {socket.gethostname()}")


class Task:
    """What Spark ships to executors. The function inside is bytes, so that packages are checked before it is imported.

    :param columns: of the rows; only ``arrow`` uses their types.
    :param numbers: ``arrow`` gets positions in this list.
    """

    def __init__(self, function: TaskFunction, columns: Columns, numbers: Sequence[int]) -> None:
        from pyspark import cloudpickle

        self._function: bytes = cloudpickle.dumps(function)
        self._columns = dict(columns)
        self._numbers = list(numbers)

    def rows(self, numbers: Iterable[int]) -> Iterator[tuple[Any, ...]]:
        """Return the rows of some numbers, one after another.

        :raises ImportError: this executor lacks packages.
        """
        _check_packages()
        function: TaskFunction = pickle.loads(self._function)  # noqa: S301 - Spark itself ships functions this way
        for number in numbers:
            yield from function(number)

    def arrow(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the rows as Arrow batches: the function for ``mapInArrow``."""
        import pyarrow as pa

        types = {"bigint": pa.int64(), "int": pa.int32(), "string": pa.string()}
        schema = pa.schema([(name, types[kind]) for name, kind in self._columns.items()])
        for batch in batches:
            for row in self.rows(self._numbers[position] for position in batch.column(0).to_pylist()):
                # A batch per row: a task that drives several lanes returns each as soon as it ends.
                yield pa.RecordBatch.from_pylist([dict(zip(self._columns, row, strict=True))], schema=schema)


# -- on the driver ----------------------------------------------------------------------------------------------------


class ContextRunner:
    """Runs tasks of a SparkContext as RDDs."""

    def __init__(self, context: SparkContext) -> None:
        self.context = context

    def run(
        self, function: TaskFunction, columns: Columns, numbers: Sequence[int], *, group: str, description: str
    ) -> list[Row]:
        """See :meth:`TaskRunner.run`."""
        task = Task(function, columns, ())
        with job_group(self.context, group, description):
            rows = self.context.parallelize(list(numbers), len(numbers)).mapPartitions(task.rows).collect()
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def slots(self) -> int:
        """Return the cores of the executors that are there now; Spark counts 2 before the first one has come."""
        return max(1, int(self.context.defaultParallelism))

    def cancel(self, group: str) -> None:
        """Cancel the jobs of a group; their tasks are interrupted."""
        self.context.cancelJobGroup(group)

    def stop(self) -> None:
        """Stop the context."""
        self.context.stop()


@contextmanager
def job_group(context: SparkContext, group: str, description: str) -> Iterator[None]:
    """Group and name this thread's jobs in the Spark UI; cancelling the group interrupts its tasks."""
    context.setJobGroup(group, description, interruptOnCancel=True)
    try:
        yield
    finally:
        for key in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            context.setLocalProperty(key, None)


class ConnectRunner:
    """Runs tasks of a Spark Connect session in ``mapInArrow``. Tags take the place of job groups.

    Spark Connect describes jobs itself, so the UI shows its description and not the one of this package.
    """

    def __init__(self, session: SparkSession, clock: Callable[[], float] = time.monotonic) -> None:
        self.session = session
        self._clock = clock
        self._slots = 0
        self._counted_at = -math.inf

    def run(
        self, function: TaskFunction, columns: Columns, numbers: Sequence[int], *, group: str, description: str
    ) -> list[Row]:
        """See :meth:`TaskRunner.run`."""
        task = Task(function, columns, numbers)
        schema = ", ".join(f"{name} {kind}" for name, kind in columns.items())
        self.session.addTag(group)
        try:
            positions = self.session.range(0, len(numbers), 1, len(numbers))
            rows = positions.mapInArrow(lambda batches: task.arrow(batches), schema).collect()
        finally:
            self.session.removeTag(group)
        return [row.asDict() for row in rows]

    def slots(self) -> int:
        """Ask Spark into how many partitions it would split a range: as many as its executors have cores now.

        Only the plan is asked for: a job that counts would wait behind the slices that fill all slots. A server whose
        plans do not show the number keeps what it said last, and is counted by a job if it has never said anything.
        """
        now = self._clock()
        if now - self._counted_at >= _COUNT_SECONDS:
            self._counted_at = now
            plan = self.session.sql("EXPLAIN SELECT id FROM range(1000000)").collect()[0][0]
            found = _SPLITS.search(str(plan))
            self._slots = max(1, int(found["number"])) if found else self._slots or self._counted()
        return self._slots

    def _counted(self) -> int:
        numbers = self.session.range(0, 100_000).selectExpr("spark_partition_id() AS part")
        return 1 + int(numbers.selectExpr("max(part) AS last").collect()[0]["last"])

    def cancel(self, group: str) -> None:
        """Interrupt the operations that carry the tag."""
        self.session.interruptTag(group)

    def stop(self) -> None:
        """Close the session; the server ends what still runs in it."""
        self.session.stop()
