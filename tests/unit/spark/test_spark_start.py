"""When Spark starts, and what ends it, with a runner that is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.errors import JobMissing, SparkSettingsRefused
from airflow_provider_kafka_migration.spark import session
from airflow_provider_kafka_migration.spark.main import JobArguments
from airflow_provider_kafka_migration.spark.worker import JobPointer
from tests.spark_support import store_job


class Started:
    """Notes what happens to it."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def open(self, name: str, *, master: str | None = None) -> Started:
        self.events.append(f"{name} on {master}")
        return self

    def stop(self) -> None:
        self.events.append("stop")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """What :func:`open_runner` returns."""
    made = Started()
    monkeypatch.setattr(session, "open_runner", made.open)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    return made


def arguments(folder: Path, key: str | None = None) -> JobArguments:
    pointer = store_job(folder).pointer
    if key is not None:
        pointer = JobPointer(pointer.location, key, pointer.references)
    return JobArguments(pointer, {"storage": None}, "local[2,4]")


def test_spark_is_named_after_the_job_and_ends_with_it(tmp_path: Path, started: Started) -> None:
    with session.job_and_runner(CopyJob, arguments(tmp_path)) as (job, _store, runner):
        assert (job.name, runner) == ("seed", started)
        assert started.events == ["kafka-migration orders-move seed on local[2,4]"]
    assert started.events[1:] == ["stop"]


def test_without_a_jvm_a_missing_job_starts_nothing(tmp_path: Path, started: Started) -> None:
    given = arguments(tmp_path, "orders-move/jobs/tail.json")
    with pytest.raises(JobMissing), session.job_and_runner(CopyJob, given):
        pass
    assert started.events == []


def test_below_spark_submit_a_missing_job_stops_what_has_started(
    tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    given = arguments(tmp_path, "orders-move/jobs/tail.json")
    with pytest.raises(JobMissing), session.job_and_runner(CopyJob, given):
        pass
    assert started.events[-1] == "stop"


def test_refused_settings_are_told_below_spark_submit_too(
    tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")

    def refuse(_name: str, *, master: str | None = None) -> Started:
        raise SparkSettingsRefused("unsafe")

    monkeypatch.setattr(session, "open_runner", refuse)
    with pytest.raises(SparkSettingsRefused), session.job_and_runner(CopyJob, arguments(tmp_path)):
        pass
    with pytest.raises(JobMissing), session.job_and_runner(CopyJob, arguments(tmp_path, "orders-move/jobs/tail.json")):
        pass


def test_a_failure_inside_the_block_stops_spark(tmp_path: Path, started: Started) -> None:
    with pytest.raises(ValueError, match="odd"), session.job_and_runner(CopyJob, arguments(tmp_path)):
        raise ValueError("odd")
    assert started.events[-1] == "stop"


def test_a_spark_that_cannot_be_stopped_hides_neither_a_success_nor_an_error(
    tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def gone() -> None:
        raise ConnectionRefusedError("the JVM has ended")

    monkeypatch.setattr(started, "stop", gone)
    with session.job_and_runner(CopyJob, arguments(tmp_path)):
        pass
    assert "the JVM has ended" in caplog.text
    with pytest.raises(JobMissing), session.job_and_runner(CopyJob, arguments(tmp_path)):
        raise JobMissing("no such job")
