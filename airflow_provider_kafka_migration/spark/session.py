"""Starts Spark for the data plane: sets what a copy needs and refuses settings under which it is not safe."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_kafka_migration.documents.base import Document
from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.errors import SparkSettingsRefused
from airflow_provider_kafka_migration.lanes.job_progress import JobProgress
from airflow_provider_kafka_migration.lanes.spark_conf import unsafe_settings
from airflow_provider_kafka_migration.metrics.prometheus import endpoint
from airflow_provider_kafka_migration.spark.launch import build_py_files
from airflow_provider_kafka_migration.spark.main import JobArguments, spark_errors
from airflow_provider_kafka_migration.spark.tasks import EXECUTOR_PACKAGES as EXECUTOR_PACKAGES
from airflow_provider_kafka_migration.spark.tasks import ConnectRunner, ContextRunner, TaskRunner
from airflow_provider_kafka_migration.storage.base import ObjectStore

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

#: Settings that apply where the user has set nothing. None of them affects how other parts of Spark work.
DEFAULTS = {
    "spark.ui.showConsoleProgress": "false",
    # Executors return a Python worker to the pool after a task: no startup cost between two slices.
    "spark.python.worker.reuse": "true",
}

_REMOTE = "sc://"

log = logging.getLogger(__name__)


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


def open_runner(name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None) -> TaskRunner:
    """Start Spark with our defaults, or connect to it, and check its settings.

    :param name: application name, as shown in the Spark UI.
    :param master: only without spark-submit (tests, ``python seed.py``); spark-submit's master wins. ``sc://...`` is a
        Spark Connect server, as is the environment variable ``SPARK_REMOTE``.
    :param conf: more settings, only without spark-submit and Spark Connect.
    :raises SparkSettingsRefused: see :func:`check_settings`.
    :raises SparkJobFailed: Spark could not be started or reached.
    """
    remote = master if (master or "").startswith(_REMOTE) else os.environ.get("SPARK_REMOTE", "")
    if remote:
        return _connect(name, remote)
    return ContextRunner(_start_context(name, master, conf or {}))


def _start_context(name: str, master: str | None, conf: Mapping[str, str]) -> SparkContext:
    """Start a SparkContext: enough for all jobs, and seconds earlier there than a SparkSession."""
    from pyspark import SparkConf, SparkContext

    _set_python()
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # Below spark-submit: its JVM has the settings, including those of spark-defaults.conf.
        SparkContext._ensure_initialized()
    settings = SparkConf()
    given = {key for key, _ in settings.getAll()}
    for key, value in {**DEFAULTS, **({"spark.master": master} if master else {}), **conf}.items():
        if key not in given:
            settings.set(key, value)
    context = SparkContext.getOrCreate(settings.setAppName(name))
    try:
        check_settings(dict(context.getConf().getAll()))
    except BaseException:
        context.stop()
        raise
    return context


def _set_python() -> None:
    """Make executors run the driver's Python unless another one is set; otherwise they use the system's Python."""
    if not os.environ.get("PYSPARK_PYTHON"):
        os.environ["PYSPARK_PYTHON"] = sys.executable


def _connect(name: str, remote: str) -> TaskRunner:
    """Open a session on a Spark Connect server, and give it this package.

    :param remote: ``sc://host:port/;key=value``.
    """
    from pyspark.sql import SparkSession

    with spark_errors("connecting to Spark"):
        session: SparkSession = SparkSession.builder.remote(remote).appName(name).create()
    try:
        with spark_errors("reading the settings of Spark"):
            check_settings(dict(session.conf.getAll))
        with tempfile.TemporaryDirectory() as folder, spark_errors("sending this package to Spark"):
            session.addArtifacts(str(build_py_files(folder)), pyfile=True)
    except BaseException:
        session.stop()
        raise
    return ConnectRunner(session)


# -- open job ---------------------------------------------------------------------------------------------------------
#
# Opens what a driver needs: the job document, its store, the coordinator and Spark under the job's name.


_D = TypeVar("_D", bound=Document)


@contextmanager
def job_and_runner(kind: type[_D], arguments: JobArguments) -> Iterator[tuple[_D, ObjectStore, TaskRunner]]:
    """Read the job document that the arguments name, and start Spark for as long as the block lasts.

    Below spark-submit there is a JVM already, so Spark starts while the document is read; elsewhere a mistake in the
    arguments starts nothing.

    :raises MigrationError: the document cannot be read, or Spark cannot be started.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="spark-start") as pool:
        starting = pool.submit(_start, arguments) if "PYSPARK_GATEWAY_PORT" in os.environ else None
        try:
            store = arguments.pointer.store(arguments.secrets)
            job = arguments.pointer.read(kind, store)
        except BaseException:
            if starting is not None:
                with suppress(Exception):
                    starting.result().stop()
            raise
        runner = starting.result() if starting is not None else _start(arguments)
    try:
        yield job, store, runner
    finally:
        try:
            runner.stop()
        except Exception as error:
            # The application may have been ended from outside. How the job went is known, whatever Spark does.
            log.warning("Spark could not be stopped: %s", error)


def _start(arguments: JobArguments) -> TaskRunner:
    migration_id, _, name = arguments.pointer.key.partition("/jobs/")
    return open_runner(f"kafka-migration {migration_id} {name.removesuffix('.json')}", master=arguments.master)


@contextmanager
def copy_job(arguments: JobArguments) -> Iterator[tuple[TaskRunner, CopyJob, JobProgress]]:
    """Open the copy job that the arguments name."""
    with job_and_runner(CopyJob, arguments) as (job, store, runner):
        coordinator = JobProgress(job, store)
        with endpoint(job, store):
            yield runner, job, coordinator
