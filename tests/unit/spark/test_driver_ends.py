"""How a driver tells its end, even where it could not begin."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_kafka_migration.documents.job_end import JobEnd
from airflow_provider_kafka_migration.errors import ConnectionInvalid, MigrationError
from airflow_provider_kafka_migration.spark import main as spark_main


def parse(store: Path, references: str, *more: str) -> spark_main.JobArguments:
    given = ["--job-location", store.as_uri(), "--job-key", "orders/jobs/seed.json", "--references", references]
    return spark_main.parse_arguments([*given, *more], "a driver")


def told(store: Path) -> JobEnd:
    return JobEnd.parse((store / "orders" / "jobs" / "ends" / "seed-1.json").read_bytes())


@pytest.mark.parametrize("references", ["env:NOT_THERE", "inline:source=env:NOT_THERE", "sealed:v1.abc.def"])
def test_references_that_cannot_be_used_stay_a_terminal_error(
    references: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """YARN shows no log of the driver: without the document, a missing key looks like a failure that may pass."""
    monkeypatch.delenv("KAFKA_MIGRATION_SEALING_KEY", raising=False)
    with pytest.raises(MigrationError) as caught:
        parse(tmp_path / "store", references, "--token", "seed-1")
    end = told(tmp_path / "store")
    assert (end.token, end.status, end.kind, end.code) == ("seed-1", "failed", "terminal", caught.value.code)
    assert end.what == caught.value.what


@pytest.mark.parametrize(
    ("container", "application"),
    [
        ("container_1410901177871_0001_01_000005", "application_1410901177871_0001"),
        ("container_e17_1410901177871_10000_01_000005", "application_1410901177871_10000"),
        ("9f86d081884c", ""),
        ("", ""),
    ],
)
def test_a_driver_on_yarn_says_which_application_it_is(
    container: str, application: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two drivers may have one token there, and write to the same place."""
    monkeypatch.setenv("CONTAINER_ID", container)
    with pytest.raises(MigrationError):
        parse(tmp_path / "store", "env:NOT_THERE", "--token", "seed-1")
    assert told(tmp_path / "store").application_id == application


def test_an_end_elsewhere_is_written_as_before() -> None:
    assert b"application_id" not in JobEnd.of("seed-1", None).canonical()
    assert b"application_id" in JobEnd.of("seed-1", None, application_id="application_1_0001").canonical()


def test_nobody_asked_for_an_end(tmp_path: Path) -> None:
    with pytest.raises(ConnectionInvalid):
        parse(tmp_path / "store", "env:NOT_THERE")
    assert not (tmp_path / "store").exists()


def test_a_storage_that_needs_the_connections_does_not_hide_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "store").write_text("no folder")
    with pytest.raises(ConnectionInvalid, match="NOT_THERE"):
        parse(tmp_path / "store", "env:NOT_THERE", "--token", "seed-1")
