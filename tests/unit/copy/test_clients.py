"""Clients of the data plane are opened from settings, files and variables; what is missing is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated.small import plain
from simulated.worlds import Worlds

from airflow_provider_kafka_migration.copy.clients import Clients, write_references
from airflow_provider_kafka_migration.errors import BrokerRefused, ConnectionInvalid, Terminal


def test_references_from_a_file_that_only_its_owner_reads(worlds: Worlds, tmp_path: Path) -> None:
    copy = worlds.copy(plain)
    path = tmp_path / "references.json"
    write_references(str(path), copy.references)
    assert path.stat().st_mode & 0o777 == 0o600
    with Clients.from_file(str(path)) as clients:
        assert clients.wire("source").metadata(["t"])["t"].leaders == {0: 0}


def test_settings_from_a_variable(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = worlds.copy(plain)
    monkeypatch.setenv("SOURCE", f'{{"bootstrap.servers": "{copy.source.bootstrap}"}}')
    with Clients({"source": "env:SOURCE"}) as clients:
        assert clients.client_config("source").bootstrap_servers == copy.source.bootstrap


def test_a_connection_that_is_not_given() -> None:
    with pytest.raises(ConnectionInvalid, match="no connection for the target cluster"):
        Clients({"source": {}}).client_config("target")


def test_a_value_that_is_neither_settings_nor_a_reference() -> None:
    with pytest.raises(ConnectionInvalid, match="neither settings nor a reference"):
        Clients({"source": 5}).client_config("source")


def test_secrets_are_not_in_the_text() -> None:
    assert "hidden" not in repr(Clients({"source": {"sasl.password": "hidden"}}))


def test_a_job_is_read_from_the_store(worlds: Worlds) -> None:
    copy = worlds.copy(plain)
    job = copy.job()
    copy.store.put("jobs/seed.json", job.canonical())
    with copy.clients() as clients:
        assert clients.load_job(job.journal_location, "jobs/seed.json") == job
        with pytest.raises(Terminal, match="does not exist"):
            clients.load_job(job.journal_location, "jobs/tail.json")


def test_a_connection_for_reading_writes_nothing(worlds: Worlds) -> None:
    copy = worlds.copy(plain)
    with copy.clients() as clients:
        wire = clients.wire("target", read_only=True)
        with pytest.raises(BrokerRefused, match="read-only"):
            wire.delete_records({("t", 0): 0})
    assert 21 not in copy.target.requests
