"""Connections for Spark: private files, gone afterwards."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kafka_migration.errors import ConnectionInvalid
from airflow_provider_kafka_migration.provider.connections import (
    private_directory,
    references_document,
    references_file,
    remove_directory,
)
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec import parse_spec

CONNECTIONS = {
    "kafka_source": {"bootstrap.servers": "a:1", "sasl.password": "source-secret"},
    "kafka_target": {"bootstrap.servers": "b:1", "sasl.password": "target-secret"},
    "aws_s3": {"aws_access_key_id": "k", "aws_secret_access_key": "s3-secret"},
}
RESOLVER = Resolver({"airflow": lambda conn_id: json.dumps(CONNECTIONS[conn_id])})


def test_file_holds_the_connections(minimal_spec: dict[str, Any]) -> None:
    document = references_document(parse_spec(minimal_spec), RESOLVER)
    assert document == {
        "source": CONNECTIONS["kafka_source"],
        "target": CONNECTIONS["kafka_target"],
        "storage": CONNECTIONS["aws_s3"],
    }


def test_without_an_aws_connection_the_machine_s_identity_is_used(minimal_spec: dict[str, Any]) -> None:
    del minimal_spec["storage"]["conn_id"]
    assert references_document(parse_spec(minimal_spec), RESOLVER)["storage"] is None


def test_executors_may_resolve_by_themselves(minimal_spec: dict[str, Any]) -> None:
    minimal_spec |= {"spark": {"executor_references": "env"}, "target": {"conn_id": "file:/run/secrets/target"}}
    assert references_document(parse_spec(minimal_spec), RESOLVER) == {
        "source": "env:KAFKA_MIGRATION_SOURCE",
        "target": "file:/run/secrets/target",
        "storage": "env:KAFKA_MIGRATION_STORAGE",
    }


def test_executors_have_no_airflow(minimal_spec: dict[str, Any]) -> None:
    minimal_spec["spark"] = {"executor_references": "airflow"}
    with pytest.raises(ConnectionInvalid, match="executors have no Airflow"):
        references_document(parse_spec(minimal_spec), RESOLVER)


def test_file_is_private_and_removed(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    with references_file({"source": {"x": "secret"}}, folder) as path:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert json.loads(path.read_text()) == {"source": {"x": "secret"}}
    assert not folder.exists()


def test_file_is_removed_when_the_job_fails(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    with pytest.raises(RuntimeError), references_file({}, folder):
        raise RuntimeError("spark failed")
    assert not folder.exists()


def test_new_attempt_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    folder.mkdir()
    (folder / "references.json").write_text("old secret")
    (folder / "more").write_text("old secret")
    with references_file({}, folder) as path:
        assert sorted(item.name for item in folder.iterdir()) == ["references.json"]
        assert path.read_text() == "{}"


def test_folder_of_somebody_else_is_never_used(tmp_path: Path) -> None:
    """Another user could have made the folder, or a link, to read what is written there."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = tmp_path / "x"
    link.symlink_to(elsewhere)
    with pytest.raises(ConnectionInvalid, match="cannot be used"), references_file({"a": "secret"}, link):
        pass
    remove_directory(link)
    assert elsewhere.exists()
    assert list(elsewhere.iterdir()) == []


def test_folder_is_the_same_for_all_attempts_of_a_task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIRFLOW__KAFKA_MIGRATION__SECRETS_DIRECTORY", str(tmp_path))
    one = private_directory("dag/run", "seed")
    assert one == private_directory("dag/run", "seed")
    assert one != private_directory("dag/run", "tail")
    assert one != private_directory("dag/run2", "seed")
    assert one.parent == tmp_path
    assert str(os.getuid()) in one.name
