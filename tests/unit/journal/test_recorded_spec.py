"""The spec in force, read from the journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kafka_migration.errors import DocumentUnreadable
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.journal.spec_guard import guard_spec, recorded_spec, spec_to_record
from airflow_provider_kafka_migration.spec import MigrationSpec, parse_spec
from airflow_provider_kafka_migration.storage.local import LocalStore


def spec(**sections: Any) -> MigrationSpec:
    return parse_spec(
        {
            "migration_id": "m1",
            "source": {"conn_id": "kafka_source"},
            "target": {"conn_id": "kafka_target"},
            "storage": {"journal": "s3://bucket/m1", "conn_id": "aws"},
            "topics": {"include": ["orders\\..*"], "rename": {"topics": {"orders.a": "orders.b"}}},
            **sections,
        },
        recorded=True,
    )


def started(folder: Path, first: MigrationSpec | None) -> Journal:
    journal = Journal.create_or_open(
        LocalStore(str(folder)),
        "m1",
        Fingerprint("s", "t"),
        owner=Owner("dag_run", "dag/run", "plan"),
        details={"spec": spec_to_record(first.model_dump(mode="json"))} if first else None,
    )
    if first is not None:
        guard_spec(journal, first.model_dump(mode="json"))
    return journal


def test_as_started_and_with_all_changes_since(tmp_path: Path) -> None:
    journal = started(tmp_path, spec())
    assert parse_spec(recorded_spec(journal)) == spec()
    for changed in (
        spec(tail={"slice_seconds": 9}),
        spec(
            tail={"slice_seconds": 9},
            cutover={"freeze": "webhook", "producer_freeze_webhook": "https://x.example/freeze"},
        ),
        spec(),
    ):
        guard_spec(journal, changed.model_dump(mode="json"))
        assert parse_spec(recorded_spec(journal)) == changed


def test_a_section_that_was_added_or_removed_since(tmp_path: Path) -> None:
    journal = started(tmp_path, spec())
    for changed in (
        spec(adopt={"from": "comparison", "min_records": 5}),
        spec(adopt={"from": "way_back", "migration_id": "m0"}),
        spec(),
        spec(adopt={"from": "comparison"}),
    ):
        guard_spec(journal, changed.model_dump(mode="json"))
        assert parse_spec(recorded_spec(journal)) == changed


def test_a_hashed_address_is_never_replaced_by_an_older_one(tmp_path: Path) -> None:
    old = "https://old.example/freeze"
    journal = started(tmp_path, spec(cutover={"freeze": "webhook", "producer_freeze_webhook": old}))
    changed = spec(cutover={"freeze": "webhook", "producer_freeze_webhook": "https://new.example/?token=1"})
    guard_spec(journal, changed.model_dump(mode="json"))
    with pytest.raises(DocumentUnreadable, match="producer_freeze_webhook"):
        recorded_spec(journal)


def test_an_address_that_stayed_is_known_although_it_is_hashed(tmp_path: Path) -> None:
    same = spec(cutover={"freeze": "webhook", "producer_freeze_webhook": "https://x.example/?token=1"})
    journal = started(tmp_path, same)
    assert parse_spec(recorded_spec(journal), recorded=True) == same


def test_an_address_by_reference_is_known(tmp_path: Path) -> None:
    first = spec(cutover={"freeze": "webhook", "producer_freeze_webhook": "env:FREEZE"})
    journal = started(tmp_path, first)
    assert parse_spec(recorded_spec(journal)) == first
    second = spec(cutover={"freeze": "webhook", "producer_freeze_webhook": "airflow:freeze"})
    guard_spec(journal, second.model_dump(mode="json"))
    assert parse_spec(recorded_spec(journal)) == second


def test_spark_s_conf_is_not_in_the_journal_and_not_missed(tmp_path: Path) -> None:
    """What looks like no secret may be one; no reader of a journal submits to Spark."""
    data = spec(spark={"conf": {"spark.x": "hunter2"}}, notifications={"notifier": "a.B", "kwargs": {"to": "ops"}})
    journal = started(tmp_path, data)
    assert parse_spec(recorded_spec(journal)) == data.model_copy(update={"spark": spec().spark})
    guard_spec(journal, spec(spark={"conf": {"spark.x": "hunter3"}}).model_dump(mode="json"))
    assert recorded_spec(journal)["spark"]["conf"] == {}
    written = b"".join(path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file())
    assert b"spark.conf" in written
    assert b"hunter" not in written


def test_a_journal_without_a_spec_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DocumentUnreadable, match="does not have the spec") as caught:
        recorded_spec(started(tmp_path, None))
    assert "kafka-migration rollback FILE" in caught.value.next_step
