"""The DAGs of mirrors: tasks, order, words, retries, and which files become which DAGs."""

from __future__ import annotations

import itertools
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.sdk import DAG
from airflow_releases import DagSerialization

from airflow_provider_kafka_migration.dag import build_migration_dag, load_migration_dags
from airflow_provider_kafka_migration.errors import SpecInvalid
from airflow_provider_kafka_migration.mirror_dag import (
    TASK_DOCS,
    build_mirror_dag,
    build_mirror_verify_dag,
    load_mirror_dags,
    load_mirror_verify_dags,
)
from airflow_provider_kafka_migration.operators.mirror import KafkaMirrorOperator, MirrorTask
from airflow_provider_kafka_migration.operators.mirror_verify import KafkaMirrorVerifyOperator
from airflow_provider_kafka_migration.provider import compat
from airflow_provider_kafka_migration.spec import parse_spec

#: Stable over releases, as those of a migration.
TASK_IDS = ["plan", "spark_check", "precheck", "topology_copy", "schemas", "seed", "mirror"]


@pytest.fixture
def mirror_spec() -> dict[str, Any]:
    return {
        "kind": "mirror",
        "migration_id": "a-to-b",
        "mirror": {"source_alias": "A", "target_alias": "B"},
        "source": {"conn_id": "kafka_a"},
        "target": {"conn_id": "kafka_b"},
        "storage": {"conn_id": "aws_s3", "journal": "s3://bucket/mirrors"},
    }


def _serialised(dag: DAG) -> str:
    return json.dumps(DagSerialization.to_dict(dag), sort_keys=True)


def test_tasks_in_a_line() -> None:
    dag = build_mirror_dag()
    assert {task.task_id for task in dag.tasks} == {*TASK_IDS, "next_run", "freeze_limit"}
    assert dag.get_task("next_run").upstream_task_ids == {"mirror"}
    assert dag.get_task("freeze_limit").upstream_task_ids == {"seed"}
    for above, below in itertools.pairwise(TASK_IDS):
        assert dag.get_task(below).upstream_task_ids == {above}


@pytest.mark.parametrize("freeze", ["manual", "acl"])
def test_the_limit_of_a_freeze_is_kept_only_where_the_mirror_stops_producers(
    mirror_spec: dict[str, Any], freeze: str
) -> None:
    dag = build_mirror_dag({**mirror_spec, "cutover": {"freeze": freeze}})
    assert ("freeze_limit" in dag.task_ids) is (freeze == "acl")
    if freeze == "acl":
        assert dag.get_task("freeze_limit").downstream_task_ids == set()
        assert dag.get_task("freeze_limit").deferrable


def test_schemas_only_where_they_are_copied(mirror_spec: dict[str, Any]) -> None:
    assert "schemas" not in build_mirror_dag(mirror_spec).task_ids
    registries = {"source": "env:R1", "target": "env:R2"}
    with_schemas = build_mirror_dag({**mirror_spec, "schemas": registries})
    assert with_schemas.get_task("seed").upstream_task_ids == {"schemas"}


def test_every_task_is_a_mirrors_and_says_so(mirror_spec: dict[str, Any]) -> None:
    dag = build_mirror_dag()
    assert set(TASK_DOCS) == set(dag.task_ids)
    for task in dag.tasks:
        assert task.spec_kind == "mirror", task.task_id
        assert isinstance(task, MirrorTask) is (task.task_id != "freeze_limit")
        assert "Red?" in task.doc_md
        for text in (task.doc_md, type(task).__doc__ or ""):
            assert "cutover" not in text, task.task_id
            assert "migration" not in text.replace("kafka-migration", ""), task.task_id
        assert task.migration_spec({"params": {**_params(mirror_spec)}}).kind == "mirror"
    for text in (dag.doc_md, dag.description, dag.dag_display_name):
        assert "cutover" not in text
        assert "migration" not in text.replace("kafka-migration", "")


def _params(spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "migration_id": spec["migration_id"],
        "source": spec["source"]["conn_id"],
        "target": spec["target"]["conn_id"],
        "journal": spec["storage"]["journal"],
        "source_alias": "A",
        "target_alias": "B",
    }


def test_all_tasks_are_retried_for_ever_and_tell_people(mirror_spec: dict[str, Any]) -> None:
    """Each run of a chain has all of them, and an outage may begin just when runs change."""
    for dag in (build_mirror_dag(), build_mirror_dag(mirror_spec)):
        for task in dag.tasks:
            assert task.retries == 1_000_000, task.task_id
            assert getattr(task, "has_retry_policy", False) == compat.HAS_RETRY_POLICIES, (
                "what a person has to change is an error at once"
            )
            assert task.on_retry_callback, task.task_id
            assert task.execution_timeout is None
        assert dag.dagrun_timeout is None
        assert getattr(dag, "rerun_with_latest_version", True) is True


def test_the_mirror_stays_unless_somebody_wants_its_slot(mirror_spec: dict[str, Any]) -> None:
    """Groups, heartbeats and checkpoints every few seconds need a process that stays; a pause needs none."""
    task = build_mirror_dag(mirror_spec).get_task("mirror")
    assert isinstance(task, KafkaMirrorOperator)
    assert (task.deferrable, task.waits_deferred) == (False, True)
    given = build_mirror_dag(mirror_spec, task_args={"mirror": {"deferrable": True, "pool": "mirrors"}})
    assert (given.get_task("mirror").deferrable, given.get_task("mirror").pool) == (True, "mirrors")


def test_a_mirror_is_a_chain_of_runs(mirror_spec: dict[str, Any]) -> None:
    dag = build_mirror_dag({**mirror_spec, "cutover": {"freeze": "acl"}})
    assert {dag.get_task(name).run_for for name in ("mirror", "freeze_limit")} == {timedelta(days=1)}
    weekly = build_mirror_dag(mirror_spec, run_for=timedelta(days=7))
    assert weekly.get_task("mirror").run_for == timedelta(days=7)
    one = build_mirror_dag(mirror_spec, run_for=None)
    assert "next_run" not in one.task_ids
    assert one.get_task("mirror").run_for is None
    with pytest.raises(ValueError, match="at least 1:00:00"):
        build_mirror_dag(mirror_spec, run_for=timedelta(minutes=5))
    with pytest.raises(ValueError, match="sets itself: run_for"):
        build_mirror_dag(mirror_spec, task_args={"mirror": {"run_for": None}})


def test_one_run_at_a_time(mirror_spec: dict[str, Any]) -> None:
    dag = build_mirror_dag(mirror_spec)
    assert (dag.dag_id, dag.max_active_runs, dag.schedule) == ("kafka_mirror_a-to-b", 1, None)
    assert dag.tags == {"kafka", "kafka-mirror", "a-to-b"}
    assert (build_mirror_dag().dag_id, build_mirror_dag().max_active_runs) == ("kafka_mirror", 256)
    assert build_mirror_dag(mirror_spec, schedule="@once").schedule == "@once"


@pytest.mark.parametrize("is_generic", [False, True])
def test_serialises_equal_twice(mirror_spec: dict[str, Any], is_generic: bool) -> None:
    spec = None if is_generic else mirror_spec
    turned = None if spec is None else dict(reversed(list(spec.items())))
    assert _serialised(build_mirror_dag(spec)) == _serialised(build_mirror_dag(turned))


def test_the_spec_of_a_task_is_that_of_the_file(mirror_spec: dict[str, Any]) -> None:
    """Selection and names of topics follow from the aliases, and do so again when a task reads them."""
    spec = parse_spec({**mirror_spec, "topics": {"include": ["orders.*"]}})
    task = build_mirror_dag(spec).get_task("mirror")
    again = task.migration_spec({"params": {}})
    assert again.model_dump(mode="json") == spec.model_dump(mode="json")
    assert again.topics.target_name("orders.x") == "A.orders.x"


def test_neither_builder_takes_the_other_kind(mirror_spec: dict[str, Any], minimal_spec: dict[str, Any]) -> None:
    with pytest.raises(SpecInvalid, match="spec of a mirror, not of a migration"):
        build_migration_dag(mirror_spec)
    with pytest.raises(SpecInvalid, match="spec of a migration, not of a mirror"):
        build_mirror_dag(minimal_spec)


def test_arguments_for_unknown_tasks_are_refused(mirror_spec: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="tail"):
        build_mirror_dag(mirror_spec, task_args={"tail": {}})


# -- comparisons -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_generic", [False, True])
def test_a_comparison_is_one_task_beside_the_mirror(mirror_spec: dict[str, Any], is_generic: bool) -> None:
    spec = None if is_generic else mirror_spec
    dag = build_mirror_verify_dag(spec)
    (task,) = dag.tasks
    assert isinstance(task, KafkaMirrorVerifyOperator)
    assert (task.task_id, task.retries) == ("verify", 3)
    assert getattr(task, "has_retry_policy", False) == compat.HAS_RETRY_POLICIES
    assert task.on_failure_callback
    assert "Red?" in task.doc_md
    for text in (task.doc_md, type(task).__doc__ or "", dag.doc_md, dag.description, dag.dag_display_name):
        assert "cutover" not in text
        assert "migration" not in text.replace("kafka-migration", "")
    assert task.migration_spec({"params": _params(mirror_spec)}).migration_id == "a-to-b"
    assert dag.schedule is None
    assert "takeover" not in dag.params, "it makes no claim"
    named = {"compared_topics", "compared_last"}
    assert named <= set(dag.params)
    assert (set(dag.params) == named) is not is_generic


def test_comparisons_of_one_mirror_follow_each_other(mirror_spec: dict[str, Any]) -> None:
    dag = build_mirror_verify_dag(mirror_spec, schedule="@daily", topics=["orders.*"], last=1000)
    assert (dag.dag_id, dag.max_active_runs, dag.catchup) == ("kafka_mirror_verify_a-to-b", 1, False)
    assert dag.schedule == "@daily"
    assert (dag.params["compared_topics"], dag.params["compared_last"]) == (["orders.*"], 1000)
    assert dag.tags == {"kafka", "kafka-mirror", "a-to-b"}
    assert (build_mirror_verify_dag().dag_id, build_mirror_verify_dag().max_active_runs) == ("kafka_mirror_verify", 256)


@pytest.mark.parametrize("is_generic", [False, True])
def test_a_comparison_serialises_equal_twice(mirror_spec: dict[str, Any], is_generic: bool) -> None:
    spec = None if is_generic else mirror_spec
    turned = None if spec is None else dict(reversed(list(spec.items())))
    first, second = (build_mirror_verify_dag(item, topics=["a", "b"], last=7) for item in (spec, turned))
    assert _serialised(first) == _serialised(second)


def test_a_comparison_takes_neither_a_migration_nor_unknown_tasks(
    mirror_spec: dict[str, Any], minimal_spec: dict[str, Any]
) -> None:
    with pytest.raises(SpecInvalid, match="spec of a migration, not of a mirror"):
        build_mirror_verify_dag(minimal_spec)
    with pytest.raises(ValueError, match="mirror"):
        build_mirror_verify_dag(mirror_spec, task_args={"mirror": {}})
    given = build_mirror_verify_dag(mirror_spec, task_args={"verify": {"pool": "mirrors", "deferrable": True}})
    assert (given.get_task("verify").pool, given.get_task("verify").deferrable) == ("mirrors", True)


def test_a_folder_of_flows_gives_a_comparison_of_each(tmp_path: Path, minimal_spec: dict[str, Any]) -> None:
    _write(tmp_path, "mirrors.yaml", _FLOWS)
    _write(tmp_path, "orders.yaml", minimal_spec)
    found: dict[str, Any] = {}
    load_mirror_verify_dags(found, tmp_path, schedule="@weekly", last=500)
    assert sorted(found) == ["kafka_mirror_verify_east-to-west", "kafka_mirror_verify_west-to-east"]
    assert {dag.schedule for dag in found.values()} == {"@weekly"}
    assert {dag.params["compared_last"] for dag in found.values()} == {500}


# -- files ------------------------------------------------------------------------------------------------------------


def _write(folder: Path, name: str, content: Any) -> None:
    (folder / name).write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")


_FLOWS: dict[str, Any] = {
    "clusters": {"east": {"conn_id": "kafka_east"}, "west": {"conn_id": "kafka_west"}},
    "storage": {"journal": "s3://mirrors/journal"},
    "flows": {"east->west": {}, "west->east": {"topics": {"include": ["refunds"]}}},
}


def test_a_folder_may_have_both_kinds(
    tmp_path: Path, mirror_spec: dict[str, Any], minimal_spec: dict[str, Any], recwarn: pytest.WarningsRecorder
) -> None:
    _write(tmp_path, "mirrors.yaml", _FLOWS)
    _write(tmp_path, "one.yaml", mirror_spec)
    _write(tmp_path, "orders.yaml", minimal_spec)
    mirrors: dict[str, Any] = {}
    load_mirror_dags(mirrors, tmp_path)
    assert sorted(mirrors) == ["kafka_mirror_a-to-b", "kafka_mirror_east-to-west", "kafka_mirror_west-to-east"]
    assert mirrors["kafka_mirror_west-to-east"].get_task("mirror").spec["mirror"]["two_way"] is True
    migrations: dict[str, Any] = {}
    load_migration_dags(migrations, tmp_path)
    assert sorted(migrations) == ["kafka_migration_orders"]
    assert not [item for item in recwarn if "yaml" in str(item.message)]


def test_mistakes_hide_neither_other_files_nor_other_flows(tmp_path: Path, mirror_spec: dict[str, Any]) -> None:
    """A flow that runs for months must not lose its DAG because somebody adds another one with a mistake."""
    flows = {**_FLOWS["flows"], "east->north": {}}
    _write(tmp_path, "mirrors.yaml", {**_FLOWS, "flows": flows})
    _write(tmp_path, "one.yaml", mirror_spec)
    _write(tmp_path, "two.yaml", mirror_spec)
    _write(tmp_path, "no_kind.yaml", {name: item for name, item in mirror_spec.items() if name != "kind"})
    _write(tmp_path, "bad.yaml", "clusters: {")
    found: dict[str, Any] = {}
    with pytest.warns(UserWarning, match="yaml") as told:
        load_mirror_dags(found, tmp_path)
    good = {"kafka_mirror_a-to-b", "kafka_mirror_east-to-west", "kafka_mirror_west-to-east"}
    broken = {f"broken.{name}.yaml" for name in ("mirrors", "two", "no_kind", "bad")}
    assert set(found) == good | broken
    assert {item.filename for item in told} == {__file__}, "a warning names the DAG file"
    texts = " ".join(str(item.message) for item in told)
    assert "north not in clusters" in texts
    assert "has no effect without kind: mirror" in texts
    assert "also used in one.yaml" in texts
    with pytest.raises(SpecInvalid, match="north not in clusters"):
        found["broken.mirrors.yaml"].get_serialized_fields()


def test_a_flow_that_is_there_twice_is_none(tmp_path: Path) -> None:
    _write(tmp_path, "mirrors.yaml", {**_FLOWS, "flows": {"east->west": {}, "east -> west": {}, "west->east": {}}})
    found: dict[str, Any] = {}
    with pytest.warns(UserWarning, match="there twice"):
        load_mirror_dags(found, tmp_path)
    assert sorted(found) == ["broken.mirrors.yaml", "kafka_mirror_west-to-east"]


def test_worker_builds_only_the_dag_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.definitions.context import _AIRFLOW_PARSING_CONTEXT_DAG_ID as variable

    _write(tmp_path, "mirrors.yaml", _FLOWS)
    monkeypatch.setenv(variable, "kafka_mirror_east-to-west")
    found: dict[str, Any] = {}
    load_mirror_dags(found, tmp_path)
    assert sorted(found) == ["kafka_mirror_east-to-west"]
