"""Migrations and mirrors as task groups: ids, order, what stands before and after, and which DAGs they fit in."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, TaskGroup
from airflow_releases import DagRunTriggerException, DagSerialization, DownstreamTasksSkipped

from airflow_provider_kafka_migration.dag import build_migration_dag, migration_task_group
from airflow_provider_kafka_migration.errors import SpecInvalid
from airflow_provider_kafka_migration.freeze import one_task
from airflow_provider_kafka_migration.mirror_dag import build_mirror_dag, mirror_task_group
from airflow_provider_kafka_migration.operators.migration import _check_second_approval
from airflow_provider_kafka_migration.phases import freeze
from airflow_provider_kafka_migration.provider.run_chain import RUN_IS_OVER
from airflow_provider_kafka_migration.spec import parse_spec

ROOT = Path(__file__).parents[2]
PEOPLE = {"assigned_users": ["anna"], "second_users": ["bert"]}


def _migration(name: str, **sections: Any) -> dict[str, Any]:
    return {
        "migration_id": name,
        "source": {"conn_id": "a"},
        "target": {"conn_id": "b"},
        "storage": {"journal": "s3://bucket/x"},
        **sections,
    }


def _mirror(name: str = "a-to-b", **sections: Any) -> dict[str, Any]:
    return {**_migration(name), "kind": "mirror", "mirror": {"source_alias": "A", "target_alias": "B"}, **sections}


def _dag(**arguments: Any) -> DAG:
    return DAG("own", schedule=None, **arguments)


def _edges(dag: DAG, prefix: str = "") -> dict[str, set[str]]:
    """What is above each task, without the group."""
    return {
        task.task_id.removeprefix(prefix): {name.removeprefix(prefix) for name in task.upstream_task_ids}
        for task in dag.tasks
    }


class _Instance(SimpleNamespace):
    """The instance of a task that runs, in an Airflow that knows the states of other tasks."""

    def __init__(self, task_id: str, states: Mapping[str, Any] | None = None) -> None:
        super().__init__(dag_id="own", run_id="manual__1", task_id=task_id, map_index=-1, pushed={})
        self._states = states or {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value

    def xcom_pull(self, *, task_ids: str) -> Any:
        return self._states.get(task_ids)

    def get_task_states(self, *, dag_id: str, task_ids: list[str], run_ids: list[str]) -> dict[str, Any]:
        known = {name: self._states[name] for name in task_ids if name in self._states}
        return dict.fromkeys(run_ids, known)


# -- the example ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example() -> DAG:
    dag: DAG = runpy.run_path(str(ROOT / "dags" / "example_task_groups.py"))["dag"]
    return dag


def test_the_example_has_the_tasks_and_the_order_of_a_dag_of_its_own(example: DAG) -> None:
    spec = example.get_task("orders.plan").spec
    alone = _edges(build_migration_dag(spec))
    grouped = _edges(example, "orders.")
    assert grouped.pop("create_target") == set()
    assert grouped.pop("announce") == {"evidence"}
    assert grouped == {**alone, "plan": {"create_target"}}
    assert example.get_task("orders.tail").downstream_task_ids == set(), "it would end at its stop"
    assert example.get_task("orders.seed").pool == "source-cluster"


def test_the_example_is_that_of_the_documentation(example: DAG) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "dag.md").read_text(encoding="utf-8"), re.DOTALL)
    block = next(block for block in blocks if "migration_task_group(" in block)
    names: dict[str, Any] = {}
    exec(block, names)
    assert _edges(names["dag"]) == _edges(example)


def test_the_example_is_serialised_equal_twice(example: DAG) -> None:
    again = runpy.run_path(str(ROOT / "dags" / "example_task_groups.py"))["dag"]
    first, second = (json.dumps(DagSerialization.to_dict(item), sort_keys=True) for item in (example, again))
    assert first == second
    back = DagSerialization.from_dict(json.loads(first))
    assert back.task_group.get_task_group_dict()["orders.cutover"].group_id == "orders.cutover"
    assert back.get_task("announce").upstream_task_ids == {"orders.evidence"}


# -- two migrations in a DAG ------------------------------------------------------------------------------------------


@pytest.fixture
def two() -> DAG:
    with _dag() as dag:
        first = migration_task_group(_migration("a.b", approvals=PEOPLE))
        with TaskGroup("outer"):
            second = migration_task_group(_migration("c"), task_args={"cutover.freeze": {"pool": "p"}})
        first >> second
    return dag


def test_one_migration_after_another(two: DAG) -> None:
    assert two.get_task("outer.c.plan").upstream_task_ids == {"a_b.evidence"}
    assert two.get_task("outer.c.cutover.freeze").pool == "p"
    assert two.get_task("a_b.cutover.freeze").pool != "p"


@pytest.mark.parametrize(
    ("task_id", "decision", "skipped"),
    [
        ("outer.c.approve_cutover", "abort", {"outer.c.cutover.freeze"}),
        ("outer.c.approve_cutover", "approve", {"outer.c.rollback"}),
        ("outer.c.approve_client_switch", "back_out", {"outer.c.validate"}),
        ("outer.c.approve_client_switch", "approve", {"outer.c.abandon"}),
        ("a_b.approve_cutover_second", "abort", {"a_b.cutover.freeze"}),
        ("a_b.approve_cutover_second", "approve", {"a_b.rollback"}),
        ("a_b.approve_client_switch_second", "back_out", {"a_b.validate"}),
    ],
)
def test_an_answer_leads_to_the_tasks_of_its_group(two: DAG, task_id: str, decision: str, skipped: set[str]) -> None:
    task: Any = two.get_task(task_id)
    with pytest.raises(DownstreamTasksSkipped) as raised:
        task._go_on({"ti": _Instance(task_id), "task": task}, decision, {})
    assert set(raised.value.tasks) == skipped


def test_the_second_person_is_asked_by_the_group(two: DAG) -> None:
    second: Any = two.get_task("a_b.approve_cutover_second")
    assert second.first_task_id == "a_b.approve_cutover"
    aborted = _Instance(second.task_id, {"a_b.approve_cutover": {"decision": "abort"}})
    assert second._first_aborted({"ti": aborted}) == "abort"
    spec = parse_spec(_migration("x", approvals=PEOPLE))
    _check_second_approval(two.get_task("a_b.plan"), spec, {"dag": two})
    with pytest.raises(SpecInvalid, match="second"):
        _check_second_approval(two.get_task("outer.c.plan"), spec, {"dag": two})


@pytest.mark.parametrize(("state", "begins"), [("deferred", True), ("failed", False)])
def test_the_freeze_sees_the_watch_of_its_group(
    two: DAG, monkeypatch: pytest.MonkeyPatch, state: str, begins: bool
) -> None:
    monkeypatch.setattr(freeze, "unwatched", lambda _context, *found: RuntimeError(*found))
    task: Any = two.get_task("outer.c.cutover.freeze")
    states = {"outer.c.cutover.freeze_limit": state, "a_b.cutover.freeze_limit": "success"}
    record = SimpleNamespace(freeze=lambda: None)
    migration = SimpleNamespace(context=SimpleNamespace(journal=SimpleNamespace(refresh=lambda: None), record=record))
    context = {"ti": _Instance(task.task_id, states), "dag": two}
    if begins:
        task.prepare(context, migration)
        return
    with pytest.raises(RuntimeError, match=r"outer\.c\.cutover\.freeze_limit"):
        task.prepare(context, migration)


def test_the_tail_sees_the_cutover_of_its_group(two: DAG, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(one_task, "tail_goes_on", lambda _context, is_waited_for: asked.append(is_waited_for))
    waits = {"outer.c.cutover.snapshot_groups": "success", "outer.c.cutover.commit_groups": None}
    for task_id in ("outer.c.tail", "a_b.tail"):
        task: Any = two.get_task(task_id)
        task._goes_on({"ti": _Instance(task_id, waits)}, SimpleNamespace(context=None))
    assert [is_waited_for() for is_waited_for in asked] == [True, False]


def test_a_task_says_how_its_group_is_called(two: DAG) -> None:
    for task in two.tasks:
        if task.task_id.startswith("outer.c."):
            assert "`x` is `outer.c.x`" in (task.doc_md or ""), task.task_id
            assert getattr(task, "group_prefix", "outer.c.") == "outer.c."


# -- arguments --------------------------------------------------------------------------------------------------------


def test_defaults_of_the_dag_do_not_make_a_cutover_unsafe() -> None:
    told: list[str] = []

    def tell(_context: Any) -> None:
        told.append("dag")

    defaults = {"owner": "team", "retries": 0, "pool": "slow", "execution_timeout": timedelta(hours=1)}
    with _dag(default_args={**defaults, "on_failure_callback": tell}) as dag:
        migration_task_group(_migration("a"), default_args={"retries": 7})
    plan, freeze_task = dag.get_task("a.plan"), dag.get_task("a.cutover.freeze")
    assert (plan.owner, plan.retries, plan.pool, plan.execution_timeout) == ("team", 7, "slow", None)
    assert freeze_task.priority_weight == 1000
    assert dag.default_args["retries"] == 0, "other tasks keep theirs"
    assert tell in list(plan.on_failure_callback)
    assert len(list(plan.on_failure_callback)) == 2, "ours stays"


def test_a_run_of_the_dag_may_take_over() -> None:
    with _dag() as dag:
        migration_task_group(_migration("a"))
    assert dag.params["takeover"] is False
    with _dag(params={"takeover": True}) as dag:
        migration_task_group(_migration("a"))
    assert dag.params["takeover"] is True, "the caller's"


def test_arguments_of_unknown_tasks_and_groups_without_a_spec_are_refused() -> None:
    with _dag(), pytest.raises(ValueError, match=r"do not exist: a\.seed"):
        migration_task_group(_migration("a"), task_args={"a.seed": {}})
    none: Any = None
    with _dag(), pytest.raises(ValueError, match="needs the spec"):
        migration_task_group(none)
    with pytest.raises(RuntimeError, match="inside a dag"):
        migration_task_group(_migration("a"))
    with _dag(), pytest.raises(SpecInvalid):
        migration_task_group(_mirror())


# -- mirrors ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def mirrored() -> DAG:
    with _dag(max_active_runs=1) as dag:
        before, after = EmptyOperator(task_id="before"), EmptyOperator(task_id="after")
        before >> mirror_task_group(_mirror(cutover={"freeze": "acl"}), group_id="m") >> after
    return dag


def test_a_mirror_has_the_tasks_and_the_order_of_a_dag_of_its_own(mirrored: DAG) -> None:
    alone = _edges(build_mirror_dag(_mirror(cutover={"freeze": "acl"})))
    grouped = _edges(mirrored, "m.")
    assert (grouped.pop("before"), grouped.pop("after")) == (set(), {"mirror"})
    assert grouped == {**alone, "plan": {"before"}}


def test_what_follows_a_mirror_is_skipped_while_a_next_run_goes_on(mirrored: DAG) -> None:
    task: Any = mirrored.get_task("m.mirror")
    instance = _Instance(task.task_id)
    pointers = {"state": "tail", RUN_IS_OVER: True}
    with pytest.raises(DownstreamTasksSkipped) as raised:
        task._settled({"ti": instance}, pointers)
    assert list(raised.value.tasks) == ["after"], "not next_run"
    assert instance.pushed["return_value"] == pointers, "next_run reads it"
    assert task._settled({"ti": instance}, {"state": "promoted"}) == {"state": "promoted"}


def test_the_other_tasks_of_a_mirror_find_it_in_its_group(mirrored: DAG) -> None:
    following: Any = mirrored.get_task("m.next_run")
    with pytest.raises(DagRunTriggerException) as started:
        following.execute({"ti": _Instance("m.next_run", {"m.mirror": {RUN_IS_OVER: True}}), "dag_run": None})
    assert started.value.trigger_dag_id == "own"
    limit: Any = mirrored.get_task("m.freeze_limit")
    assert limit._mirror_state({"ti": _Instance("m.freeze_limit", {"m.mirror": "success"})}) == "success"


def test_a_chain_of_runs_needs_the_dag_for_itself() -> None:
    with _dag(max_active_runs=1):
        migration_task_group(_migration("a"))
        with pytest.raises(ValueError, match=r"m\.next_run starts the next run of the whole DAG own.*run_for=None"):
            mirror_task_group(_mirror(), group_id="m")
    with _dag(max_active_runs=1):
        mirror_task_group(_mirror(), group_id="m")
        with pytest.raises(ValueError, match=r"m\.next_run starts the next run of the whole DAG own.*the tasks of a:"):
            migration_task_group(_migration("a"))
    with _dag(), pytest.raises(ValueError, match="max_active_runs=1"):
        mirror_task_group(_mirror())
    with _dag(max_active_runs=1), pytest.raises(ValueError, match="at least"):
        mirror_task_group(_mirror(), run_for=timedelta(minutes=1))


def test_mirrors_without_a_chain_stand_beside_others() -> None:
    with _dag() as dag:
        mirror_task_group(_mirror("m1"), run_for=None)
        mirror_task_group(_mirror("m2"), run_for=None)
        migration_task_group(_migration("a"))
    assert not [name for name in dag.task_ids if name.endswith("next_run")]
    assert {"m1.mirror", "m2.mirror", "a.evidence"} <= set(dag.task_ids)
