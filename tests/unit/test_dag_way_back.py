"""The DAG of the way back: the tasks of a migration, whose spec is derived from the first migration's journal."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow_releases import DagSerialization, Waits, waits

from airflow_provider_kafka_migration.dag import WAY_BACK_DAG_ID, build_migration_dag, build_way_back_dag
from airflow_provider_kafka_migration.errors import Terminal
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.journal.spec_guard import spec_to_record
from airflow_provider_kafka_migration.operators.way_back import KeepOrBackOperator
from airflow_provider_kafka_migration.provider.task import run_spec
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.state import FORWARD, State
from airflow_provider_kafka_migration.storage.local import LocalStore


def _serialised(dag: DAG) -> str:
    return json.dumps(DagSerialization.to_dict(dag), sort_keys=True)


def test_it_has_the_tasks_of_a_migration_and_is_serialised_the_same_each_time() -> None:
    dag = build_way_back_dag()
    assert dag.dag_id == WAY_BACK_DAG_ID == "kafka_migration_way_back"
    assert set(dag.task_ids) == set(build_migration_dag().task_ids)
    assert _serialised(dag) == _serialised(build_way_back_dag())


def test_the_question_is_keep_or_back() -> None:
    dag = build_way_back_dag()
    task = dag.get_task("approve_cutover")
    assert isinstance(task, KeepOrBackOperator)
    assert list(task.options or ()) == ["Back", "Later", "Keep"]
    assert dict(task.decisions) == {"Back": "approve", "Later": "not_yet", "Keep": "abort"}
    assert "old_cluster_released" in (dag.get_task("rollback").doc_md or "")
    assert not isinstance(build_migration_dag().get_task("approve_cutover"), KeepOrBackOperator)


def test_two_people_can_be_asked() -> None:
    assert "approve_cutover_second" in build_way_back_dag(two_people=True).task_ids


def _params(tmp_path: Path, state: State, **more: Any) -> dict[str, Any]:
    """The Params of a run, and the journal of a migration that stands in a state."""
    location = f"file://{tmp_path}/journal"
    spec = parse_spec(
        {
            "migration_id": "orders-1",
            "source": {"conn_id": "old"},
            "target": {"conn_id": "new"},
            "storage": {"journal": location},
            "way_back": {"freeze": "webhook"},
            "cutover": {"producer_freeze_webhook": "https://freeze.example/hook"},
        }
    )
    store = LocalStore(str(tmp_path / "journal"))
    details = {"spec": spec_to_record(spec.model_dump(mode="json"))}
    journal = Journal.create_or_open(
        store, "orders-1", Fingerprint("s", "t"), owner=Owner("cli", "ann", "ann"), details=details
    )
    for item in FORWARD[1 : FORWARD.index(state) + 1]:
        journal.transition(item, f"{item} starts")
    plan = {"migration_id": "orders-1", "source": _facts("s"), "target": _facts("t"), "topics": [], "lanes": []}
    store.put("orders-1/plan.json", json.dumps(plan).encode())
    return {"migration_id": "orders-1", "journal": location, "way_back": True, **more}


def _facts(cluster_id: str) -> dict[str, Any]:
    return {"cluster_id": cluster_id, "kafka_version": "4.1", "mode": "kraft", "brokers": [1]}


def test_a_run_derives_its_spec_from_the_journal_that_its_params_name(tmp_path: Path) -> None:
    context: Any = {"params": _params(tmp_path, State.FINALIZED)}
    spec = run_spec(None, context)
    assert (spec.migration_id, spec.source.conn_id, spec.target.conn_id) == ("orders-1.back", "new", "old")
    assert spec.cutover.freeze == "webhook"
    task = build_way_back_dag().get_task("rollback")
    assert task.migration_spec(context).migration_id == "orders-1.back", "keep must never end the first migration"
    assert task.told_spec(context).migration_id == "orders-1.back"


def test_a_run_may_differ_from_the_first_migration(tmp_path: Path) -> None:
    more = {"spark": {"conf": {"spark.executor.memory": "2g"}}, "cutover": {"freeze": "manual"}}
    spec = run_spec(None, {"params": _params(tmp_path, State.VALIDATING, more=more)})  # type: ignore[arg-type]
    assert spec.spark.conf == {"spark.executor.memory": "2g"}
    assert spec.cutover.freeze == "manual"
    assert spec.migration_id == "orders-1.back"


def test_a_run_before_the_switch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Terminal, match="no way back yet"):
        run_spec(None, {"params": _params(tmp_path, State.TAIL)})  # type: ignore[arg-type]


def test_the_question_is_asked_again_after_a_while(tmp_path: Path) -> None:
    spec = run_spec(None, {"params": _params(tmp_path, State.FINALIZED)})  # type: ignore[arg-type]
    task = build_way_back_dag().get_task("approve_cutover")
    task._set_people(spec)
    assert task.response_timeout is not None
    assert task.response_timeout.days == 7
    asked: list[Any] = []
    facts = SimpleNamespace()
    task.open_migration = _Opened  # type: ignore[method-assign,assignment]
    task._show_again = lambda _core: facts

    def ask(_context: Any, shown: Any) -> None:
        asked.append(shown)
        raise waits()

    task._ask = ask
    with pytest.raises(Waits):
        task.execute_complete({}, {"error": "no answer", "error_type": "timeout"})  # type: ignore[typeddict-item]
    assert asked == [facts]


class _Opened:
    """Stands for the open migration."""

    context = None

    def __init__(self, *_: Any) -> None:
        return

    def __enter__(self) -> _Opened:
        return self

    def __exit__(self, *_: object) -> None:
        return


def test_a_migration_starts_its_way_back_once_next_to_validate(minimal_spec: dict[str, Any]) -> None:
    spark = {"conf": {"spark.executor.memory": "2g"}}
    dag = build_migration_dag({**minimal_spec, "way_back": {}, "spark": spark})
    task = dag.get_task("way_back")
    assert task.upstream_task_ids == {"approve_client_switch"} == dag.get_task("validate").upstream_task_ids
    assert not task.downstream_task_ids, "nothing of the migration depends on it"
    assert (task.trigger_dag_id, task.skip_when_already_exists) == (WAY_BACK_DAG_ID, True)
    assert task.conf == {
        "migration_id": minimal_spec["migration_id"],
        "journal": minimal_spec["storage"]["journal"],
        "storage": minimal_spec["storage"]["conn_id"],
        "way_back": True,
        "more": {"spark": spark},
    }
    assert set(task.conf) <= set(build_way_back_dag().params)


@pytest.mark.parametrize("section", [None, {"enabled": False}])
def test_other_migrations_start_none(minimal_spec: dict[str, Any], section: dict[str, Any] | None) -> None:
    assert "way_back" not in build_migration_dag({**minimal_spec, "way_back": section}).task_ids
    assert "way_back" not in build_migration_dag().task_ids
