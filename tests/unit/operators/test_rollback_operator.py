"""The rollback DAG knows where the journal is, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kafka_migration.dag import build_rollback_dag
from airflow_provider_kafka_migration.errors import IllegalTransition, SpecInvalid
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.operators.migration import KafkaMigrationRollbackOperator, MigrationOperator
from airflow_provider_kafka_migration.provider.params import params_from_spec, recorded_run_spec
from airflow_provider_kafka_migration.spec import MigrationSpec, parse_spec
from airflow_provider_kafka_migration.storage.local import LocalStore


@pytest.fixture
def spec(tmp_path: Path) -> MigrationSpec:
    """A migration that has begun, with much that no form of the rollback asks for."""
    made = parse_spec(
        {
            "migration_id": "orders",
            "source": {"conn_id": "kafka_source"},
            "target": {"conn_id": "kafka_target"},
            "storage": {"journal": tmp_path.as_uri(), "evidence": f"{tmp_path.as_uri()}/evidence"},
            "cutover": {"freeze": "webhook", "producer_freeze_webhook": "https://x.example/freeze"},
        }
    )
    Journal.create_or_open(
        LocalStore(str(tmp_path)),
        "orders",
        Fingerprint("s", "t"),
        owner=Owner("dag_run", "dag/run", "plan"),
        details={"spec": made.model_dump(mode="json")},
    )
    return made


def where(spec: MigrationSpec, **more: Any) -> dict[str, Any]:
    return {"migration_id": spec.migration_id, "journal": spec.storage.journal, "storage": None, **more}


def test_the_spec_comes_from_the_journal(spec: MigrationSpec) -> None:
    task = build_rollback_dag().get_task("rollback")
    assert isinstance(task, KafkaMigrationRollbackOperator)
    assert task.migration_spec({"params": where(spec)}) == spec  # type: ignore[typeddict-item]
    # The form of the generic DAG has defaults for much: they must not count.
    assert recorded_run_spec(where(spec, freeze="manual", offsets="mapped", more={})) == spec
    assert recorded_run_spec(params_from_spec(spec)) == spec


@pytest.mark.parametrize(("given", "expected"), [({}, False), ({"withdraw_access": True}, True)])
def test_the_run_says_whether_access_is_withdrawn(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], expected: bool
) -> None:
    task = build_rollback_dag().get_task("rollback")
    assert isinstance(task, KafkaMigrationRollbackOperator)
    monkeypatch.setattr(MigrationOperator, "execute", lambda self, _: dict(self.options))
    assert task.execute({"params": given}) == {"withdraw_access": expected}  # type: ignore[typeddict-item]


def test_connections_may_be_others(spec: MigrationSpec) -> None:
    found = recorded_run_spec(where(spec, target="kafka_target_by_night"))
    assert found.target.conn_id == "kafka_target_by_night"
    assert found.source == spec.source


def test_its_form_asks_for_the_journal_only() -> None:
    dag = build_rollback_dag()
    assert set(dag.params) == {"migration_id", "journal", "storage", "source", "target", "takeover", "withdraw_access"}
    assert dag.params["takeover"] is True


def test_a_migration_that_is_not_there_is_told(spec: MigrationSpec) -> None:
    with pytest.raises(IllegalTransition, match="does not exist"):
        recorded_run_spec(where(spec, migration_id="other"))
    with pytest.raises(SpecInvalid, match="journal's location"):
        recorded_run_spec({"migration_id": "orders"})
