"""Spark sessions for the data plane: they set what a copy needs and refuse settings under which it is not safe."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark import SparkContext
from pyspark.sql import SparkSession

from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.errors import ExecutorUnfit, SparkSettingsRefused
from airflow_provider_kafka_migration.lanes.job_progress import JobProgress
from airflow_provider_kafka_migration.lanes.spark_conf import unsafe_settings
from airflow_provider_kafka_migration.spark.main import JobArguments
from airflow_provider_kafka_migration.spark.source import KafkaLanes

#: Python packages (import names) that must be installed on every executor; our own code is shipped.
EXECUTOR_PACKAGES = ("boto3", "cramjam", "crc32c", "kafka", "pyarrow", "pydantic", "rfc8785", "urllib3")

#: Settings that apply where the user has set nothing. None of them affects how other parts of Spark work.
DEFAULTS = {
    "spark.ui.showConsoleProgress": "false",
    # Executors return a Python worker to the pool after a task: no startup cost between two slices.
    "spark.python.worker.reuse": "true",
    # Tasks wait on sockets; Spark never plans a shuffle or a broadcast join.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.metricsEnabled": "true",
}


def check_settings(conf: Mapping[str, str]) -> None:
    """Refuse settings under which two copies of a task may run, or a lost task is not retried.

    :param conf: Spark's settings, including ``spark.master``.
    :raises SparkSettingsRefused: the settings are not safe; the error lists all problems.
    """
    problems = unsafe_settings(conf)
    if problems:
        raise SparkSettingsRefused(
            "Spark's settings are not safe for a copy: " + "; ".join(problems),
            next_step="correct the spark connection, spark.conf of the spec, or the arguments of spark-submit",
            details={"problems": problems},
        )


def build_session(name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSession:
    """Build a session with our defaults and data source, and check it.

    :param name: application name, as shown in the Spark UI.
    :param master: only without spark-submit (tests, ``python seed.py``); spark-submit's master wins.
    :param conf: more settings, only without spark-submit.
    :raises SparkSettingsRefused: see :func:`check_settings`.
    :raises ExecutorUnfit: see :func:`check_executors`.
    """
    _set_python()
    builder = SparkSession.builder.appName(name)
    given = _given_settings()
    for key, value in {**DEFAULTS, **({"spark.master": master} if master else {}), **(conf or {})}.items():
        if key not in given:
            builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    try:
        check_settings(dict(session.sparkContext.getConf().getAll()))
        session.dataSource.register(KafkaLanes)
        check_executors(session.sparkContext)
    except BaseException:
        session.stop()
        raise
    return session


def _set_python() -> None:
    """Make executors run the driver's Python unless another one is set; otherwise they use the system's Python."""
    if not os.environ.get("PYSPARK_PYTHON"):
        os.environ["PYSPARK_PYTHON"] = sys.executable


def _given_settings() -> set[str]:
    """Return the settings of spark-submit, including spark-defaults.conf; empty without a JVM (no spark-submit)."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return set()
    from pyspark import SparkConf

    SparkContext._ensure_initialized()
    return {key for key, _ in SparkConf().getAll()}


def check_executors(context: SparkContext) -> None:
    """Check that an executor has what a copier imports. This also warms up the pool of Python workers.

    :raises ExecutorUnfit: packages are missing, or our own package was not shipped; the error names them.
    """
    context.setJobGroup("check", "check the executors' Python packages")
    next_step = (
        "install the packages in the executors' Python and set spark.pyspark.python (or PYSPARK_PYTHON) to it; "
        "ship this package with --py-files, as described in docs/spark.md"
    )
    try:
        missing = context.parallelize([EXECUTOR_PACKAGES], 1).flatMap(_missing_packages).collect()
    except Exception as error:
        text = str(error)
        if "ModuleNotFoundError" in text or "PYTHON_VERSION_MISMATCH" in text or "Cannot run program" in text:
            raise ExecutorUnfit(_root_line(text), next_step=next_step) from None
        raise
    finally:
        clear_job_group(context)
    if missing:
        raise ExecutorUnfit(
            f"an executor's Python lacks {', '.join(missing)}", next_step=next_step, details={"missing": missing}
        )


def _missing_packages(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if importlib.util.find_spec(name) is None]


def _root_line(text: str) -> str:
    for line in text.splitlines():
        if any(mark in line for mark in ("ModuleNotFoundError", "PYTHON_VERSION_MISMATCH", "Cannot run program")):
            return line.strip()[:500]
    return text.strip()[:500]


@contextmanager
def job_group(context: SparkContext, group: str, description: str) -> Iterator[None]:
    """Group and name this thread's jobs in the Spark UI; cancelling the group interrupts its tasks."""
    context.setJobGroup(group, description, interruptOnCancel=True)
    try:
        yield
    finally:
        clear_job_group(context)


def clear_job_group(context: SparkContext) -> None:
    """Remove this thread's later jobs from any group."""
    for key in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
        context.setLocalProperty(key, None)


def slots(context: SparkContext) -> int:
    """Return how many tasks run in parallel, as far as Spark knows now; at least 1."""
    return max(1, int(context.defaultParallelism))


# -- open job ---------------------------------------------------------------------------------------------------------
#
# Opens what a driver needs: the job document, its store, the coordinator and a named Spark session.


@contextmanager
def session_for(name: str, arguments: JobArguments) -> Iterator[SparkSession]:
    """Open a session that ends with the block."""
    session = build_session(f"kafka-migration {name}", master=arguments.master)
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def copy_job(arguments: JobArguments) -> Iterator[tuple[SparkSession, CopyJob, JobProgress]]:
    """Open the copy job that the arguments name; it is read before Spark starts."""
    store = arguments.pointer.store(arguments.secrets)
    job = arguments.pointer.read(CopyJob, store)
    with session_for(f"{job.migration_id} {job.name}", arguments) as session:
        coordinator = JobProgress(job, store)
        yield session, job, coordinator
