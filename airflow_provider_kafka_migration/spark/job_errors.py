"""Failures of Spark itself as errors of ours, with the line that matters instead of two stack traces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from airflow_provider_kafka_migration.errors import MigrationError, SparkJobFailed

_MARKS = (
    "Python worker exited unexpectedly",
    "ExecutorLostFailure",
    "Job aborted",
    "cancelled",
    "Error:",
    "Exception:",
)
_LONGEST = 600

#: Spark jobs in a row that may fail, each with all attempts of its tasks, before the driver gives up.
MAX_SPARK_FAILURES = 2


@contextmanager
def spark_errors(what: str) -> Iterator[None]:
    """Turn Spark's exceptions into :class:`SparkJobFailed`; ours pass as they are.

    :param what: the job, for the message.
    """
    try:
        yield
    except MigrationError:
        raise
    except (PySparkException, Py4JError) as error:
        raise SparkJobFailed(
            f"Spark could not finish a job ({what}): {root_cause(str(error))}",
            next_step="look at the failed stage in the Spark UI or its log, then clear the task: the copy goes on from "
            "where the target ends",
        ) from error


def root_cause(text: str) -> str:
    """The most telling line of a Spark error: the last Python error if there is one, else the first known mark."""
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
