"""The DAGs: ids, order, stable serialisation, and parsing without connections and network."""

from __future__ import annotations

import itertools
import json
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, BaseOperator
from airflow_releases import DagSerialization

from airflow_provider_kafka_migration import dag as dag_module
from airflow_provider_kafka_migration.dag import (
    TASK_DOCS,
    build_migration_dag,
    build_rollback_dag,
    build_way_back_dag,
    load_migration_dags,
)
from airflow_provider_kafka_migration.errors import SpecInvalid
from airflow_provider_kafka_migration.operators.spark_job import SparkMigrationOperator
from airflow_provider_kafka_migration.provider import compat

ROOT = Path(__file__).parents[2]
DAGS = ROOT / "dags"

#: Stable over releases: state store keys, clears and on-call docs depend on them.
TASK_IDS = [
    "plan",
    "spark_check",
    "precheck",
    "topology_copy",
    "schemas",
    "seed",
    "tail",
    "drain_ready",
    "approve_cutover",
    "cutover.freeze",
    "cutover.sentinels",
    "cutover.final_drain",
    "cutover.snapshot_groups",
    "cutover.commit_groups",
    "cutover.floor_guard",
    "approve_client_switch",
    "validate",
    "evidence",
]
SIDE_TASKS = ["abandon", "cutover.freeze_limit", "rollback", "sync_groups"]


def _serialised(dag: DAG) -> str:
    return json.dumps(DagSerialization.to_dict(dag), sort_keys=True)


def _upstream(dag: DAG, task_id: str) -> set[str]:
    return set(dag.get_task(task_id).upstream_task_ids)


def test_task_ids_are_those_of_the_documentation() -> None:
    assert sorted(build_migration_dag().task_ids) == sorted(TASK_IDS + SIDE_TASKS)


def test_order_of_the_tasks() -> None:
    dag = build_migration_dag()
    chain = [task_id for task_id in TASK_IDS if task_id != "tail"]
    for above, below in itertools.pairwise(chain):
        assert above in _upstream(dag, below), (above, below)
    assert _upstream(dag, "tail") == {"seed"}
    assert _upstream(dag, "drain_ready") == {"seed"}
    assert _upstream(dag, "cutover.commit_groups") == {"cutover.snapshot_groups"}
    assert _upstream(dag, "rollback") == {"approve_cutover"}
    assert _upstream(dag, "abandon") == {"approve_client_switch"}
    assert _upstream(dag, "cutover.freeze_limit") == {"drain_ready"}
    assert _upstream(dag, "sync_groups") == {"cutover.floor_guard"}


def test_clients_do_not_wait_for_tasks_that_only_confirm(minimal_spec: dict[str, Any]) -> None:
    """With the cutover in one task the target is ready when ``cutover.freeze`` ends: five pods would be an outage."""
    dag = build_migration_dag({**minimal_spec, "cutover": {"in_one_task": True}})
    for task_id in ("approve_client_switch", "sync_groups"):
        assert _upstream(dag, task_id) == {"cutover.freeze"}
    assert _upstream(dag, "cutover.sentinels") == {"cutover.freeze"}, "the others confirm beside it"
    plain = build_migration_dag({**minimal_spec, "cutover": {"in_one_task": False}})
    assert _upstream(plain, "approve_client_switch") == {"cutover.floor_guard"}


def test_failed_cutover_cannot_fail_the_tail() -> None:
    dag = build_migration_dag()
    above_tail = dag.get_task("tail").get_flat_relative_ids(upstream=True)
    assert above_tail == {"plan", "spark_check", "precheck", "topology_copy", "schemas", "seed"}


def test_every_task_has_docs_and_no_doc_is_left_over() -> None:
    dag = build_migration_dag(_with_two_people())
    assert set(TASK_DOCS) == set(dag.task_ids)
    for task in dag.tasks:
        assert "Red?" in task.doc_md or task.task_id == "rollback"


def test_the_tasks_of_the_way_back_tell_of_leaving_a_topic_out() -> None:
    dag = build_way_back_dag()
    for task_id in ("topology_copy", "seed", "tail", "drain_ready"):
        assert "way-back leave-out FILE TOPIC" in dag.get_task(task_id).doc_md
    assert "way-back leave-out FILE TOPIC" in dag.doc_md
    assert not any("leave-out" in task.doc_md for task in build_migration_dag(_with_two_people()).tasks)


def _with_two_people() -> dict[str, Any]:
    return {
        "migration_id": "orders",
        "source": {"conn_id": "a"},
        "target": {"conn_id": "b"},
        "storage": {"journal": "s3://bucket/x"},
        "approvals": {"assigned_users": ["anna"], "second_users": ["bert"]},
    }


def test_two_people_are_asked_one_after_the_other() -> None:
    dag = build_migration_dag(_with_two_people())
    assert _upstream(dag, "approve_cutover_second") == {"approve_cutover"}
    assert _upstream(dag, "cutover.freeze") == {"approve_cutover_second"}
    assert _upstream(dag, "rollback") == {"approve_cutover_second"}
    assert _upstream(dag, "abandon") == {"approve_client_switch_second"}
    assert _upstream(dag, "validate") == {"approve_client_switch_second"}
    assert dag.get_task("approve_cutover").awaits_second
    assert dag.get_task("approve_cutover_second").first_task_id == "approve_cutover"


def test_approvals_have_no_retries_and_all_others_do() -> None:
    for task in build_migration_dag().tasks:
        assert (task.retries == 0) == task.task_id.startswith("approve_"), task.task_id
        assert getattr(task, "has_retry_policy", False) == compat.HAS_RETRY_POLICIES, task.task_id


def test_what_lasts_for_weeks_never_runs_out_of_attempts(minimal_spec: dict[str, Any]) -> None:
    """Each restart of a worker and of the API server takes one; errors for a person are final at once."""
    endless = {"seed", "tail", "sync_groups", "cutover.freeze_limit", "abandon"}
    for dag in (build_migration_dag(), build_migration_dag(minimal_spec)):
        assert {task.task_id for task in dag.tasks if task.retries > 1_000} == endless
        for task_id in ("seed", "tail", "sync_groups"):
            task = dag.get_task(task_id)
            assert (task.retry_exponential_backoff, task.max_retry_delay) == (compat.DOUBLING, timedelta(minutes=5))
            assert [item.thins_out for item in task.on_retry_callback] == [True]


def test_no_limit_of_a_site_ends_a_task(minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """``[core] default_task_execution_timeout`` becomes the default of the operators' argument."""
    a_site = {"execution_timeout": timedelta(hours=1)}
    made: Any = BaseOperator.__init__
    monkeypatch.setitem(made.__wrapped__.__kwdefaults__, "execution_timeout", timedelta(hours=1))
    assert EmptyOperator(task_id="other").execution_timeout == timedelta(hours=1)
    for dag in (
        build_migration_dag(minimal_spec, default_args=a_site),
        build_rollback_dag(default_args=a_site),
        build_way_back_dag(default_args=a_site),
    ):
        assert {task.execution_timeout for task in dag.tasks} == {None}
    task_args = {"validate": {"execution_timeout": timedelta(days=2)}}
    given = build_migration_dag(minimal_spec, task_args=task_args)
    assert given.get_task("validate").execution_timeout == timedelta(days=2)


def test_a_cleared_task_runs_with_the_spec_and_the_package_of_now(minimal_spec: dict[str, Any]) -> None:
    """In a bundle with versions (git) Airflow would take those that the run began with."""
    if not hasattr(build_migration_dag(minimal_spec), "rerun_with_latest_version"):
        pytest.skip("an Airflow before 3.2")
    assert build_migration_dag(minimal_spec).rerun_with_latest_version is True
    assert build_migration_dag(minimal_spec, rerun_with_latest_version=False).rerun_with_latest_version is False


def test_spark_and_deferrable_and_approval_classes() -> None:
    from airflow.providers.standard.operators.hitl import ApprovalOperator

    dag = build_migration_dag()
    for task_id in ("seed", "tail", "validate"):
        assert isinstance(dag.get_task(task_id), SparkMigrationOperator)
    for task_id in ("approve_cutover", "approve_client_switch"):
        assert isinstance(dag.get_task(task_id), ApprovalOperator)
    assert dag.get_task("drain_ready").deferrable
    assert dag.get_task("cutover.freeze_limit").deferrable


@pytest.mark.parametrize("kind", ["generic", "spec", "rollback"])
def test_serialises_equal_twice(kind: str, minimal_spec: dict[str, Any]) -> None:
    def build() -> DAG:
        if kind == "generic":
            return build_migration_dag()
        return build_rollback_dag() if kind == "rollback" else build_migration_dag(minimal_spec)

    assert _serialised(build()) == _serialised(build())


def test_order_of_the_keys_in_a_spec_makes_no_new_version(minimal_spec: dict[str, Any]) -> None:
    turned = dict(reversed(list(minimal_spec.items())))
    assert _serialised(build_migration_dag(minimal_spec)) == _serialised(build_migration_dag(turned))


def test_one_run_at_a_time_per_migration(minimal_spec: dict[str, Any]) -> None:
    assert build_migration_dag(minimal_spec).max_active_runs == 1


def test_arguments_reach_the_tasks(minimal_spec: dict[str, Any]) -> None:
    dag = build_migration_dag(
        minimal_spec, dag_id="mine", task_args={"seed": {"pool": "source", "num_executors": 3}}, tags=["team-a"]
    )
    assert dag.dag_id == "mine"
    assert dag.get_task("seed").pool == "source"
    assert dag.get_task("tail").pool == "default_pool"
    assert dag.get_task("seed").submit_arguments == {"num_executors": 3}
    assert set(dag.tags) == {"team-a", "kafka", "kafka-migration", minimal_spec["migration_id"]}


def test_arguments_for_unknown_tasks_are_refused() -> None:
    with pytest.raises(ValueError, match="sed"):
        build_migration_dag(task_args={"sed": {}})


#: Producers wait for these; the last one may have to let them go.
HURRIED = [task_id for task_id in [*TASK_IDS, *SIDE_TASKS] if task_id.startswith("cutover.")]
HURRIED += ["abandon", "rollback"]


def test_tasks_for_which_producers_wait_go_before_all_others() -> None:
    """As the scheduler sees them: weights must not add up in the tasks above, which are in no hurry."""
    dag = build_migration_dag()
    assert len(HURRIED) == 9
    for task in DagSerialization.from_dict(DagSerialization.to_dict(dag)).tasks:
        hurried = task.task_id in HURRIED
        assert task.priority_weight == (1000 if hurried else 1), task.task_id
        assert type(task.weight_rule).__name__ == "_AbsolutePriorityWeightStrategy", task.task_id
        assert task.pool == "default_pool"


def test_pool_of_the_cutover_is_a_setting_and_a_task_may_have_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pool by default but Airflow's: a task in a pool that does not exist never runs."""
    monkeypatch.setenv("AIRFLOW__KAFKA_MIGRATION__CUTOVER_POOL", "cutovers")
    arguments = {"cutover.freeze": {"pool": "mine", "priority_weight": 7}, "seed": {"pool": "source"}}
    dag = build_migration_dag(task_args=arguments)
    freeze = dag.get_task("cutover.freeze")
    assert (freeze.pool, freeze.priority_weight) == ("mine", 7)
    assert {dag.get_task(task_id).pool for task_id in HURRIED[1:]} == {"cutovers"}
    assert dag.get_task("seed").pool == "source"
    assert dag.get_task("plan").pool == "default_pool"
    assert build_rollback_dag().get_task("rollback").pool == "cutovers"


@pytest.mark.parametrize(
    ("task_id", "arguments", "told"),
    [
        ("seed", {"application": "mine.py"}, "application"),
        ("seed", {"conn_id": "spark_other", "name": "x"}, "conn_id, name"),
        ("tail", {"application_args": []}, "application_args"),
        ("validate", {"conf": {"spark.speculation": "true"}}, "spark.speculation"),
        ("approve_cutover", {"retries": 3}, "retries"),
        ("approve_client_switch", {"params": {}, "body": "x"}, "body, params"),
        ("plan", {"spec": {}}, "spec"),
        ("cutover.freeze", {"task_group": None}, "task_group"),
    ],
)
def test_arguments_that_would_be_overwritten_are_refused(task_id: str, arguments: dict[str, Any], told: str) -> None:
    """They had no effect, and nobody was told."""
    with pytest.raises(ValueError, match=told):
        build_migration_dag(task_args={task_id: arguments})


def test_callbacks_of_the_caller_come_after_ours(minimal_spec: dict[str, Any]) -> None:
    """One that took the place of ours would end the notifications that the spec asks for."""

    def page(_context: Any) -> None:
        return None

    dag = build_migration_dag(
        minimal_spec,
        task_args={
            "seed": {"on_failure_callback": page, "conf": {"spark.speculation": "false"}},
            "evidence": {"on_success_callback": [page]},
            "plan": {"on_success_callback": page},
            "approve_cutover": {"notifiers": [page]},
        },
    )
    assert [type(item).__name__ for item in dag.get_task("seed").on_failure_callback] == [
        "MigrationNotifier",
        "function",
    ]
    evidence = dag.get_task("evidence")
    assert [type(item).__name__ for item in evidence.on_success_callback] == ["MigrationNotifier", "function"]
    assert list(dag.get_task("plan").on_success_callback) == [page]
    assert dag.get_task("approve_cutover").notifiers[1] is page


def test_every_list_of_ours_is_kept_and_none_adds_nothing() -> None:
    """A lost callback of the freeze's limit means: producers stay frozen and nobody hears of it."""

    def mine(_context: Any) -> None:
        return None

    dag = build_migration_dag(
        task_args={
            "cutover.freeze_limit": {"on_retry_callback": mine},
            "tail": {"on_trouble": mine, "on_failure_callback": None},
            "seed": {"on_trouble": [mine]},
            "cutover.floor_guard": {"outlets": [Asset(name="theirs", uri="x://theirs")]},
        },
    )

    def names(task_id: str, field: str) -> list[str]:
        return [type(item).__name__ for item in getattr(dag.get_task(task_id), field)]

    assert names("cutover.freeze_limit", "on_retry_callback") == ["MigrationNotifier", "function"]
    assert names("tail", "on_trouble") == ["MigrationNotifier", "function"]
    assert names("tail", "on_failure_callback") == ["MigrationNotifier"]
    assert names("seed", "on_trouble") == ["MigrationNotifier", "function"]
    assert names("cutover.floor_guard", "outlets") == ["AssetAlias", "Asset"]


def test_callbacks_in_default_args_are_called_beside_ours() -> None:
    def mine(_context: Any) -> None:
        return None

    def other(_context: Any) -> None:
        return None

    given = dict.fromkeys(("on_failure_callback", "on_retry_callback", "on_success_callback", "on_trouble"), mine)
    dag = build_migration_dag(
        default_args={**given, "notifiers": [mine]}, task_args={"seed": {"on_failure_callback": [other]}}
    )

    def called(task_id: str, field: str) -> list[Any]:
        found = getattr(dag.get_task(task_id), field)
        return [item if item in (mine, other) else item.event for item in found]

    for task_id in dag.task_ids:
        assert called(task_id, "on_failure_callback") == ["failed", other if task_id == "seed" else mine], task_id
    assert called("cutover.freeze_limit", "on_retry_callback") == ["failed", mine]
    assert called("plan", "on_retry_callback") == [mine]
    assert called("evidence", "on_success_callback") == ["finalized", mine]
    assert called("drain_ready", "on_success_callback") == ["drain_ready", mine]
    assert called("plan", "on_success_callback") == [mine]
    for task_id in ("seed", "tail"):
        assert called(task_id, "on_trouble") == ["trouble", mine]
    for task_id in ("approve_cutover", "approve_client_switch"):
        assert called(task_id, "notifiers") == ["approval_wanted", mine]

    rollback = build_rollback_dag(default_args={"on_failure_callback": [mine, other]}).get_task("rollback")
    assert [item if item in (mine, other) else item.event for item in rollback.on_failure_callback] == [
        "failed",
        mine,
        other,
    ]
    alone = build_migration_dag(default_args={"on_failure_callback": None}).get_task("plan")
    assert [item.event for item in alone.on_failure_callback] == ["failed"]


def test_default_args_of_the_caller_leave_the_others_of_ours() -> None:
    for dag in (
        build_migration_dag(default_args={"owner": "me", "retries": 5}),
        build_rollback_dag(default_args={"owner": "me", "retries": 5}),
    ):
        task = dag.get_task("rollback")
        assert (task.owner, task.retries, task.retry_delay) == ("me", 5, timedelta(seconds=30))
        assert dag.default_args["weight_rule"] == "absolute"


def test_bad_spec_is_refused_with_all_mistakes(minimal_spec: dict[str, Any]) -> None:
    minimal_spec |= {"colour": "red", "seed": {"lanes": 0}}
    with pytest.raises(SpecInvalid) as caught:
        build_migration_dag(minimal_spec)
    assert len(caught.value.details["mistakes"]) == 2


def _with_plain_secrets(minimal: dict[str, Any]) -> dict[str, Any]:
    """As an earlier version took them."""
    section = {"freeze": "webhook", "producer_freeze_webhook": "https://hooks.example/freeze?token=hunter2"}
    return {**minimal, "cutover": section}


@pytest.mark.parametrize("way", ["spec", "file"])
def test_a_plain_secret_leaves_an_open_freeze_its_dag_and_starts_no_migration(
    tmp_path: Path, minimal_spec: dict[str, Any], way: str
) -> None:
    spec = _with_plain_secrets(minimal_spec)
    found: dict[str, Any] = {}
    if way == "spec":
        with pytest.warns(UserWarning, match="producer_freeze_webhook") as told:
            dag = build_migration_dag(spec)
    else:
        _write(tmp_path, "orders.yaml", spec)
        with pytest.warns(UserWarning, match="producer_freeze_webhook") as told:
            load_migration_dags(found, tmp_path)
        dag = found["kafka_migration_orders"]
    assert not any("hunter2" in str(item.message) for item in told)
    context: Any = {"params": {}, "dag": dag, "ti": SimpleNamespace(dag_id="d", run_id="r", task_id="t")}
    for task_id in ("drain_ready", "cutover.freeze_limit", "rollback"):
        task = dag.get_task(task_id)
        assert (
            task.migration_spec(context).cutover.producer_freeze_webhook == spec["cutover"]["producer_freeze_webhook"]
        )
    for task_id in ("plan", "precheck", "topology_copy", "cutover.freeze"):
        with pytest.raises(SpecInvalid, match="producer_freeze_webhook") as caught:
            dag.get_task(task_id).execute(context)
        assert "hunter2" not in str(caught.value)


def test_a_plain_secret_hides_no_other_mistake(minimal_spec: dict[str, Any]) -> None:
    with pytest.raises(SpecInvalid) as caught:
        build_migration_dag({**_with_plain_secrets(minimal_spec), "colour": "red"})
    assert {item["path"] for item in caught.value.details["mistakes"]} == {"colour", "cutover.producer_freeze_webhook"}


# ---- a DAG per YAML file


def _write(folder: Path, name: str, spec: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(spec if isinstance(spec, str) else yaml.safe_dump(spec))


def test_a_dag_per_yaml_file(tmp_path: Path, minimal_spec: dict[str, Any]) -> None:
    for name in ("a", "b"):
        _write(tmp_path, f"{name}.yaml", {**minimal_spec, "migration_id": name})
    _write(tmp_path, ".hidden.yaml", "{")
    found: dict[str, Any] = {}
    load_migration_dags(found, tmp_path)
    assert sorted(found) == ["kafka_migration_a", "kafka_migration_b"]
    assert found["kafka_migration_a"].get_task("plan").spec["migration_id"] == "a"


def test_a_missing_folder_gives_no_dags(tmp_path: Path) -> None:
    found: dict[str, Any] = {}
    load_migration_dags(found, tmp_path / "nowhere")
    assert found == {}


def test_worker_builds_only_the_dag_it_needs(
    tmp_path: Path, minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.definitions.context import _AIRFLOW_PARSING_CONTEXT_DAG_ID as variable

    for name in ("a", "b"):
        _write(tmp_path, f"{name}.yaml", {**minimal_spec, "migration_id": name})
    monkeypatch.setenv(variable, "kafka_migration_b")
    found: dict[str, Any] = {}
    load_migration_dags(found, tmp_path)
    assert sorted(found) == ["kafka_migration_b"]


def test_worker_reads_only_the_file_it_needs(
    tmp_path: Path, minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each task starts a process, and a folder may have hundreds of files."""
    from airflow.sdk.definitions.context import _AIRFLOW_PARSING_CONTEXT_DAG_ID as variable

    for number in range(20):
        _write(tmp_path, f"{number:02}.yaml", {**minimal_spec, "migration_id": f"m{number:02}"})
    read: list[str] = []
    migrations_in = dag_module.migrations_in

    def counting(file: Path) -> Any:
        read.append(file.name)
        return migrations_in(file)

    monkeypatch.setattr(dag_module, "migrations_in", counting)
    monkeypatch.setenv(variable, "kafka_migration_m13")
    found: dict[str, Any] = {}
    load_migration_dags(found, tmp_path)
    assert (sorted(found), read) == (["kafka_migration_m13"], ["13.yaml"])
    # That of another DAG file.
    read.clear()
    monkeypatch.setenv(variable, "kafka_mirror_m13")
    load_migration_dags(found, tmp_path)
    assert read == []


def test_worker_finds_an_id_that_no_file_spells_out(
    tmp_path: Path, minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.definitions.context import _AIRFLOW_PARSING_CONTEXT_DAG_ID as variable

    _write(
        tmp_path,
        "a.yaml",
        yaml.safe_dump({**minimal_spec, "migration_id": "REPLACED"}).replace("REPLACED", '"ord\\x65rs-2"'),
    )
    _write(tmp_path, "broken.yaml", "{")
    monkeypatch.setenv(variable, "kafka_migration_orders-2")
    found: dict[str, Any] = {}
    load_migration_dags(found, tmp_path)
    assert sorted(found) == ["kafka_migration_orders-2"]
    monkeypatch.setenv(variable, "kafka_migration_gone")
    with pytest.warns(UserWarning, match="broken.yaml") as told:
        load_migration_dags(found, tmp_path)
    assert {item.filename for item in told} == {__file__}, "a warning names the DAG file"
