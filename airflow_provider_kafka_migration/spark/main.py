"""The shared part of the mains of ``spark_jobs/``: arguments, logging, signals, and how a job ends.

``seed.py --job-location URI --job-key KEY --references REFERENCES``. No argument contains a secret: REFERENCES is a
file (mode 0600), references to connections, or encrypted connections (:mod:`..references.argument`).

Exit status: 0: the job is done; 1: a person must act (Terminal); 75: trying again may help (Transient, and any
unexpected error); 143: terminated. The last line on stderr is the error in one line. With ``--token`` the driver also
writes its end as a document (:class:`~.documents.job_end.JobEnd`), so that it reaches those who do not see its log.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import FrameType
from typing import Any

from pyspark.errors import PySparkException

from airflow_provider_kafka_migration.documents.job_end import JobEnd
from airflow_provider_kafka_migration.errors import ExecutorUnfit, MigrationError, SparkJobFailed, Terminal
from airflow_provider_kafka_migration.references.sealing import Binding
from airflow_provider_kafka_migration.spark.tasks import UNFIT
from airflow_provider_kafka_migration.spark.worker import JobPointer, JobReferences, ParentWatch
from airflow_provider_kafka_migration.storage.base import ObjectStore
from airflow_provider_kafka_migration.storage.open import open_store

try:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
except ImportError:  # a Spark Connect client has no JVM, and no py4j
    _SPARK_ERRORS: tuple[type[Exception], ...] = (PySparkException,)
else:
    _SPARK_ERRORS = (PySparkException, Py4JError)

log = logging.getLogger(__name__)

EXIT_TERMINAL = 1
EXIT_TRANSIENT = 75  # EX_TEMPFAIL of sysexits.h
EXIT_TERMINATED = 143

_WATCH_SECONDS = 1.0

#: ``container_e17_1410901177871_0001_01_000005``: epoch of the ResourceManager, application, attempt, container.
_CONTAINER = re.compile(r"container_(?:e\d+_)?(\d+_\d+)_\d+_\d+")


@dataclass(frozen=True)
class JobArguments:
    """The arguments of a Spark main, read and checked.

    :param secrets: connections, for the driver's own use; never logged, never shipped.
    :param token: the submission; the driver writes its end under this name. None: nobody asked for it.
    """

    pointer: JobPointer
    secrets: dict[str, Any]
    master: str | None
    token: str | None = None

    def __repr__(self) -> str:
        return f"JobArguments({self.pointer!r})"


def parse_arguments(argv: Sequence[str], description: str) -> JobArguments:
    """Read the arguments, and the references once, so that a mistake is found before Spark starts anything.

    :raises ConnectionInvalid: the references file cannot be used.
    """
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("--job-location", required=True, help="s3://bucket/prefix or file:///folder")
    parser.add_argument("--job-key", required=True, help="key of the job document below the location")
    parser.add_argument(
        "--references", required=True, help="file (mode 0600), env:NAME, file:PATH, inline:... or sealed:..."
    )
    parser.add_argument("--master", help="Spark master, only without spark-submit; local mode needs local[N,4]")
    parser.add_argument("--token", help="name of this submission, under which the driver writes how it has ended")
    found = parser.parse_args(list(argv))
    location = found.job_location.rstrip("/")
    try:
        binding = _binding(found.job_key, found.token)
        references = JobReferences.open(found.references, location=location, binding=binding)
        secrets = references.resolve()
    except MigrationError as error:
        # Without the storage's connection, this machine's own rights may do.
        _write_end(lambda: open_store(location), found.job_key, found.token, error)
        raise
    return JobArguments(JobPointer(location, found.job_key, references), secrets, found.master, found.token)


def _binding(job_key: str, token: str | None) -> Binding:
    """Return the job that a key names: ``<migration_id>/jobs/<name>.json``."""
    path = PurePosixPath(job_key)
    return Binding(path.parent.parent.as_posix(), path.stem, token)


def run_main(job: Callable[[JobArguments], None], description: str, argv: Sequence[str] | None = None) -> int:
    """Run a job and turn its end into an exit status and one clear last line."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S", stream=sys.stdout
    )
    logging.getLogger("py4j").setLevel(logging.WARNING)
    logging.getLogger("botocore").setLevel(logging.WARNING)
    logging.getLogger("kafka").setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, _terminate)
    _end_with_spark_submit()
    try:
        arguments = parse_arguments(sys.argv[1:] if argv is None else argv, description)
        with told_end(arguments):
            job(arguments)
    except MigrationError as error:
        return _last_line(str(error), EXIT_TERMINAL if isinstance(error, Terminal) else EXIT_TRANSIENT)
    except Exception as error:
        traceback.print_exc()
        text = f"[DRIVER_FAILED] {type(error).__name__}: {_one_line(str(error))}. Next: report it with the lines above"
        return _last_line(text, EXIT_TRANSIENT)
    return 0


@contextmanager
def told_end(arguments: JobArguments) -> Iterator[None]:
    """Write how the job has ended, for whoever submitted it: an engine's status does not tell why a driver failed."""
    try:
        yield
    except BaseException as error:
        _tell_end(arguments, error)
        raise
    _tell_end(arguments, None)


def _tell_end(arguments: JobArguments, error: BaseException | None) -> None:
    pointer = arguments.pointer
    _write_end(lambda: pointer.store(arguments.secrets), pointer.key, arguments.token, error)


def _write_end(store: Callable[[], ObjectStore], job_key: str, token: str | None, error: BaseException | None) -> None:
    if token is None:
        return
    key = f"{job_key.rpartition('/')[0]}/ends/{token}.json"
    try:
        store().put(key, JobEnd.of(token, error, application_id=_application_id()).canonical())
    except Exception as second:  # the end of the job is what it is, with or without the document
        log.warning("How the job has ended could not be written to %s: %s", key, type(second).__name__)


def _application_id() -> str:
    """Return YARN's id of the application whose driver this is; empty elsewhere.

    YARN gives each container its id as ``CONTAINER_ID``, so it is known even where Spark was never started.
    """
    found = _CONTAINER.fullmatch(os.environ.get("CONTAINER_ID", ""))
    return f"application_{found[1]}" if found else ""


def _last_line(text: str, status: int) -> int:
    sys.stdout.flush()
    print(_one_line(text), file=sys.stderr, flush=True)
    return status


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    # Only once: nothing may interrupt the shutdown. Leaving the session ends tasks and their workers.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(EXIT_TERMINATED)


def _end_with_spark_submit() -> None:
    """End this process when its parent, spark-submit's JVM, ends: the JVM is Spark, so nothing is left to drive."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return
    watch = ParentWatch()
    never = threading.Event()

    def look() -> None:
        while not never.wait(_WATCH_SECONDS):
            if watch.orphaned():
                os._exit(EXIT_TRANSIENT)

    threading.Thread(target=look, name="parent-watch", daemon=True).start()


# -- job errors -------------------------------------------------------------------------------------------------------
#
# Translates failures of Spark itself to our errors, with the relevant line instead of two stack traces.


_MARKS = (
    "Python worker exited unexpectedly",
    "ExecutorLostFailure",
    "Job aborted",
    "cancelled",
    "Error:",
    "Exception:",
)
_LONGEST = 600

#: How Spark names the machine of a task that has failed: ``Lost task 0.3 in stage 0.0 (TID 3) (host executor 1)``.
_EXECUTOR = re.compile(r"\(TID \d+\) \((?P<host>\S+) executor")
#: What Spark prints if an executor's Python cannot run our tasks at all.
_UNFIT = (UNFIT, "ModuleNotFoundError", "PYTHON_VERSION_MISMATCH", "Cannot run program")

#: Number of consecutive failed Spark jobs, each with all attempts of its tasks, at which the driver gives up.
MAX_SPARK_FAILURES = 2


@contextmanager
def spark_errors(what: str) -> Iterator[None]:
    """Turn Spark's exceptions into :class:`SparkJobFailed`; our errors pass unchanged.

    :param what: the job, for the message.
    :raises ExecutorUnfit: an executor's Python lacks packages, or is another version than the driver's.
    """
    try:
        yield
    except MigrationError:
        raise
    except _SPARK_ERRORS as error:
        unfit = next((line.strip() for line in str(error).splitlines() if any(mark in line for mark in _UNFIT)), "")
        if unfit:
            raise ExecutorUnfit(
                _with_host(unfit[:_LONGEST], str(error)),
                next_step="install the packages in the executors' Python and set spark.pyspark.python (or "
                "PYSPARK_PYTHON) to it; ship this package with --py-files, as described in docs/spark.md",
            ) from error
        raise SparkJobFailed(
            f"Spark could not finish a job ({what}): {root_cause(str(error))}",
            next_step="check the failed stage in the Spark UI or its log, then clear the task: the copy continues from "
            "the target's log ends",
        ) from error


def _with_host(line: str, text: str) -> str:
    """Return a line with the machine of the task that has failed, if Spark names one that the line does not name."""
    found = _EXECUTOR.search(text)
    if found is None or found["host"] in line:
        return line
    return f"{line} (an executor on {found['host']})"


def root_cause(text: str) -> str:
    """Return the most informative line of a Spark error: the last Python error, else the first known mark."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    python = [line for line in lines if _looks_like_python_error(line)]
    if python:
        return python[-1][:_LONGEST]
    for mark in _MARKS:
        for line in lines:
            if mark in line:
                return line[:_LONGEST]
    return (lines[0] if lines else "no reason given")[:_LONGEST]


def _looks_like_python_error(line: str) -> bool:
    name, separator, _ = line.partition(":")
    last = name.rpartition(".")[2]
    return bool(separator) and last.endswith(("Error", "Exception")) and not name.startswith(("at ", "org.", "py4j."))
