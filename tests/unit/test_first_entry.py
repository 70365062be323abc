"""What the journal's first entry keeps of the spec."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from phase_support import make_context

from airflow_provider_kafka_migration import split
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.migration import Migration
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec import MigrationSpec, parse_spec

OWNER = Owner("cli", "tester", "tester")


def _spec(folder: Path) -> MigrationSpec:
    return parse_spec(
        {
            **make_context(folder / "other").spec.model_dump(mode="json"),
            "storage": {"journal": (folder / "journal").as_uri()},
            "cutover": {"freeze": "webhook", "producer_freeze_webhook": "env:FREEZE_WEBHOOK"},
            "spark": {"conf": {"spark.whatever": "hunter2"}},
            "notifications": {"notifier": "a.B", "kwargs": {"token": "env:NOTIFIER_TOKEN", "to": "ops"}},
        }
    )


def _written_by_the_migration(spec: MigrationSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    migration = Migration(spec, OWNER, Resolver())
    monkeypatch.setattr(migration, "_fingerprint", lambda: Fingerprint("s", "t"))
    migration._claimed_journal()


def _written_by_the_split_restore(spec: MigrationSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    backup = SimpleNamespace(source=SimpleNamespace(cluster_id="s"))
    monkeypatch.setattr(MigrationRecord, "backup_source", lambda _: backup)
    monkeypatch.setattr(split.restore, "run", lambda *_, **__: None)
    job = split.SplitJob(spec, "target", Resolver(), SimpleNamespace(), owner=OWNER)  # type: ignore[arg-type]
    job.__dict__["_cluster"] = SimpleNamespace(cluster_id="t", close=lambda: None)
    job.restore()


@pytest.mark.parametrize("write", [_written_by_the_migration, _written_by_the_split_restore])
def test_it_holds_references_and_nothing_of_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Any) -> None:
    spec = _spec(tmp_path)
    write(spec, monkeypatch)
    files = [path for path in sorted((tmp_path / "journal").rglob("*")) if path.is_file()]
    assert files
    assert all(b"hunter2" not in path.read_bytes() for path in files)
    store = Migration(spec, OWNER, Resolver()).journal_store
    kept = Journal(store, "m1").entries()[0].details["spec"]
    assert kept["cutover"]["producer_freeze_webhook"] == "env:FREEZE_WEBHOOK"
    assert kept["notifications"]["kwargs"] == {"token": "env:NOTIFIER_TOKEN", "to": "ops"}
    assert kept["spark"] == {**json.loads(spec.spark.model_dump_json()), "conf": {}}
