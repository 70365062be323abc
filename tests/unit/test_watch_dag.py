"""The DAGs whose runs last as long as a freeze or a lag: their deadlines, and which files become which DAGs."""

from __future__ import annotations

import json
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.sdk import DAG
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference
from airflow_releases import AsyncCallback, DagSerialization, SyncCallback

from airflow_provider_kafka_migration.errors import SpecInvalid
from airflow_provider_kafka_migration.notifications.deadline import notify_missed
from airflow_provider_kafka_migration.sensors.deadline import KafkaMigrationDeadlineSensor
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.triggers.deadline import DeadlineStartTrigger
from airflow_provider_kafka_migration.watch_dag import build_freeze_watch_dag, build_lag_watch_dag, load_watch_dags

MINUTE = timedelta(minutes=1)
NOTIFICATIONS = {"notifier": "a.b.Notifier", "kwargs": {"text": "{{ migration_message }}"}}


@pytest.fixture
def spec(minimal_spec: dict[str, Any]) -> dict[str, Any]:
    return {**minimal_spec, "notifications": NOTIFICATIONS}


@pytest.fixture
def mirror(minimal_spec: dict[str, Any]) -> dict[str, Any]:
    aliases = {"source_alias": "A", "target_alias": "B"}
    return {
        **minimal_spec, "kind": "mirror", "migration_id": "a-to-b", "mirror": aliases, "notifications": NOTIFICATIONS,
    }  # fmt: skip


def _serialised(dag: DAG) -> str:
    return json.dumps(DagSerialization.to_dict(dag), sort_keys=True)


def _alert(dag: DAG) -> DeadlineAlert:
    assert isinstance(dag.deadline, list)
    (alert,) = dag.deadline
    return alert


def _trigger(dag: DAG) -> DeadlineStartTrigger:
    (asset,) = dag.schedule  # type: ignore[misc]
    (watcher,) = asset.watchers  # type: ignore[union-attr]
    assert isinstance(watcher.trigger, DeadlineStartTrigger)
    return watcher.trigger


def test_a_run_is_a_freeze_and_its_deadline_counts_from_its_beginning(spec: dict[str, Any]) -> None:
    dag = build_freeze_watch_dag(spec, MINUTE)
    assert (dag.dag_id, dag.max_active_runs, dag.catchup) == ("kafka_watch_freeze_orders", 1, False)
    alert = _alert(dag)
    assert (alert.reference, alert.interval) == (DeadlineReference.DAGRUN_QUEUED_AT, MINUTE)
    assert isinstance(alert.callback, AsyncCallback)
    assert alert.callback.path == f"{notify_missed.__module__}.notify_missed"
    assert alert.callback.kwargs["within_seconds"] == 60
    (task,) = dag.tasks
    assert isinstance(task, KafkaMigrationDeadlineSensor)
    assert task.task_id == "watch"
    assert dag.tags == {"kafka", "kafka-watch", "orders"}


def test_start_and_end_look_at_the_same(spec: dict[str, Any], mirror: dict[str, Any]) -> None:
    limits: dict[str, Any] = {"lag_limit": timedelta(seconds=90), "lag_limit_records": 5}
    dags = (
        build_freeze_watch_dag(spec, MINUTE, poll_seconds=2.0),
        build_lag_watch_dag(spec, MINUTE, poll_seconds=2.0, **limits),
        build_lag_watch_dag(mirror, MINUTE, poll_seconds=2.0, **limits),
    )
    for dag in dags:
        started = dag.get_task("watch").start_trigger_args
        assert started is not None
        assert started.trigger_kwargs == _trigger(dag).serialize()[1]
        assert started.trigger_kwargs["poll_seconds"] == 2.0
    assert [_trigger(dag).watched for dag in dags] == ["freeze", "lag", "lag"]
    assert (_trigger(dags[1]).lag_limit_seconds, _trigger(dags[1]).lag_limit_records) == (90.0, 5)
    assert parse_spec(_trigger(dags[2]).spec).kind == "mirror"
    assert _alert(dags[1]).callback.kwargs["limit"] == "90 s and 5 records"


@pytest.mark.parametrize("watched", ["freeze", "lag"])
def test_serialises_equal_twice_and_back(spec: dict[str, Any], watched: str) -> None:
    def build(data: dict[str, Any]) -> DAG:
        if watched == "freeze":
            return build_freeze_watch_dag(data, MINUTE)
        return build_lag_watch_dag(data, MINUTE, lag_limit_records=5)

    text = _serialised(build(spec))
    assert text == _serialised(build(dict(reversed(list(spec.items())))))
    restored = DagSerialization.from_dict(json.loads(text))
    assert restored.get_task("watch").start_from_trigger
    ((alert),) = json.loads(text)["dag"]["deadline"]
    decoders = pytest.importorskip("airflow.serialization.decoders", reason="an Airflow before 3.2")
    assert decoders.decode_deadline_alert({"__type": "deadline_alert", "__var": alert}).interval == MINUTE


def test_any_callback_of_airflows(spec: dict[str, Any], minimal_spec: dict[str, Any]) -> None:
    sync = [] if SyncCallback.__module__.endswith("deadline") else [SyncCallback("my.module.page", executor="mine")]
    for callback in (AsyncCallback("my.module.page"), *sync):
        for given in (spec, minimal_spec):
            assert _alert(build_freeze_watch_dag(given, MINUTE, callback=callback)).callback is callback
    with pytest.raises(ValueError, match="nobody would hear"):
        build_freeze_watch_dag(minimal_spec, MINUTE)


def test_arguments_of_the_dag_override_the_defaults(spec: dict[str, Any]) -> None:
    dag = build_freeze_watch_dag(spec, MINUTE, dag_id="mine", tags=["x"], is_paused_upon_creation=True)
    assert (dag.dag_id, dag.tags, dag.is_paused_upon_creation) == (
        "mine",
        {"x", "kafka", "kafka-watch", "orders"},
        True,
    )
    assert dag.schedule[0].name == "mine", "two DAGs with one asset would start each other"  # type: ignore[index]


def test_what_cannot_be_watched_is_refused(spec: dict[str, Any], mirror: dict[str, Any]) -> None:
    with pytest.raises(SpecInvalid, match="spec of a mirror, not of a migration"):
        build_freeze_watch_dag(mirror, MINUTE)
    with pytest.raises(ValueError, match="positive"):
        build_freeze_watch_dag(spec, timedelta(0))
    with pytest.raises(ValueError, match="lag_limit"):
        build_lag_watch_dag(spec, MINUTE)


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def folders(tmp_path: Path, spec: dict[str, Any], mirror: dict[str, Any]) -> tuple[Path, Path]:
    first, second = tmp_path / "migrations", tmp_path / "mirrors"
    for folder, content in ((first, spec), (second, mirror)):
        folder.mkdir()
        (folder / "one.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    return first, second


def test_the_dags_of_all_files(folders: tuple[Path, Path]) -> None:
    everything: dict[str, Any] = {}
    load_watch_dags(everything, *folders, freeze_within=MINUTE, lag_within=MINUTE, lag_limit=MINUTE)
    assert sorted(everything) == ["kafka_watch_freeze_orders", "kafka_watch_lag_a-to-b", "kafka_watch_lag_orders"]
    freezes: dict[str, Any] = {}
    load_watch_dags(freezes, *folders, freeze_within=MINUTE, is_paused_upon_creation=True)
    assert sorted(freezes) == ["kafka_watch_freeze_orders"]
    assert freezes["kafka_watch_freeze_orders"].is_paused_upon_creation
    nothing: dict[str, Any] = {}
    load_watch_dags(nothing, *folders)
    assert not nothing
    with pytest.raises(ValueError, match="lag_limit"):
        load_watch_dags(nothing, *folders, lag_within=MINUTE)


def test_a_bad_file_hides_no_other(folders: tuple[Path, Path], minimal_spec: dict[str, Any]) -> None:
    (folders[0] / "a_bad.yaml").write_text("migration_id: [", encoding="utf-8")
    (folders[0] / "b_wrong.yaml").write_text("migration_id: wrong", encoding="utf-8")
    silent = {**minimal_spec, "migration_id": "silent"}
    (folders[0] / "c_silent.yaml").write_text(yaml.safe_dump(silent), encoding="utf-8")
    found: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        load_watch_dags(found, *folders, freeze_within=MINUTE)
    assert sorted(found) == ["kafka_watch_freeze_orders"]
    texts = [str(item.message) for item in warned]
    for name, why in (("a_bad", ""), ("b_wrong", "source"), ("c_silent", "its freeze is not watched: silent: nobody")):
        assert any(name in text and why in text for text in texts), texts


def test_a_task_builds_only_its_own(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "kafka_watch_lag_a-to-b")
    found: dict[str, Any] = {}
    load_watch_dags(found, *folders, freeze_within=MINUTE, lag_within=MINUTE, lag_limit=MINUTE)
    assert list(found) == ["kafka_watch_lag_a-to-b"]
