"""Partitions that are not copied while a task stays green: metrics, and one notification per reason to look."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_kafka_migration.dag import build_migration_dag
from airflow_provider_kafka_migration.notifications.migration import MigrationNotifier
from airflow_provider_kafka_migration.operators.migration import KafkaMigrationTailOperator
from airflow_provider_kafka_migration.provider.progress import TROUBLE, TroubleNotices
from airflow_provider_kafka_migration.record.context import Progress
from airflow_provider_kafka_migration.spec import MigrationSpec


def said(failed: int = 0, stuck: int = 0, seconds: float = 0.0) -> Progress:
    return Progress("tail", f"{failed} failed, {stuck} stuck", failed=failed, stuck=stuck, stuck_seconds=seconds)


def notices(told: list[str], gauges: list[tuple[str, float, dict[str, str]]] | None = None) -> TroubleNotices:
    return TroubleNotices(
        "orders", told.append, gauge=lambda *given: gauges.append(given) if gauges is not None else None
    )


def test_people_are_notified_once_of_a_partition_that_fails() -> None:
    told: list[str] = []
    take = notices(told)
    for progress in (said(), said(failed=1), said(failed=1), said(failed=2), said(failed=2)):
        take(progress)
    assert told == ["1 failed, 0 stuck", "2 failed, 0 stuck"]
    take(said())
    take(said(failed=1))
    assert len(told) == 3, "another tail has met it again"


def test_people_are_notified_once_of_what_the_target_has_lost() -> None:
    told: list[str] = []
    take = notices(told)
    for count in (0, 1, 1, 2):
        take(Progress("tail", f"lost in {count}", failed=0, stuck=0, went_back=count))
    assert told == ["lost in 1", "lost in 2"]
    # The task's next part, also one that an earlier version has begun.
    other = notices(told)
    other.recall(take.remembered())
    other(Progress("tail", "lost in 2", failed=0, stuck=0, went_back=2))
    assert len(told) == 2
    # One that begins afterwards finds it in the first progress, and says nothing.
    later = notices(told)
    old = take.remembered()
    del old["went_back"]
    later.recall(old)
    for count in (2, 2, 3):
        later(Progress("tail", f"lost in {count}", failed=0, stuck=0, went_back=count))
    assert told[2:] == ["lost in 3"]


def test_stuck_partitions_are_told_when_it_lasts_and_again_the_next_time() -> None:
    told: list[str] = []
    take = notices(told)
    for seconds in (10.0, 60.0, 119.0):
        take(said(stuck=3, seconds=seconds))
    assert told == [], "a broker that is restarted wakes nobody up"
    for seconds in (121.0, 200.0, 4000.0):
        take(said(stuck=3, seconds=seconds))
    assert told == ["0 failed, 3 stuck"]
    take(said())
    take(said(stuck=1, seconds=130.0))
    assert told == ["0 failed, 3 stuck", "0 failed, 1 stuck"]


def test_people_are_notified_once_each_time_a_driver_is_silent() -> None:
    told: list[str] = []
    gauges: list[tuple[str, float, dict[str, str]]] = []
    now = [1000.0]
    take = TroubleNotices("orders", told.append, gauge=lambda *given: gauges.append(given), clock=lambda: now[0])

    def look(later: float, heartbeat: str, phase: str = "tail") -> None:
        now[0] += later
        take(Progress(phase, "all copied", failed=0, stuck=0, heartbeat=heartbeat))

    for number in range(100):
        look(5, f"a {number}")
    look(119, "a 99")
    assert told == []
    for _ in range(3):
        look(5, "a 99")
    assert told == ["the tail's driver has not been heard from for 124 s: check that it runs"]
    assert gauges[-1] == (
        "kafka_migration.silent_seconds",
        134.0,
        {"migration_id": "orders", "phase": "tail"},
    )
    look(5, "b 0")
    look(120, "b 0")
    assert len(told) == 2
    for _ in range(3):
        look(200, "seed", "seed")
    assert len(told) == 2, "a seed's driver writes when a slice ends"


def test_progress_without_figures_says_nothing() -> None:
    gauges: list[tuple[str, float, dict[str, str]]] = []
    notices([], gauges)(Progress("plan", "looking"))
    assert gauges == []


def test_the_only_gauge_is_the_silence() -> None:
    """What the progress document has is written by the writer of metrics: test_metrics_writer.py."""
    gauges: list[tuple[str, float, dict[str, str]]] = []
    notices([], gauges)(said(failed=1, stuck=2, seconds=7.5))
    assert [name for name, _, _ in gauges] == ["kafka_migration.silent_seconds"]
    assert gauges[0][2] == {"migration_id": "orders", "phase": "tail"}


def test_they_reach_airflow_s_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = pytest.importorskip("airflow.sdk.observability.stats")
    if not hasattr(stats, "gauge"):
        pytest.skip("an Airflow before 3.3")

    written: list[tuple[Any, ...]] = []
    monkeypatch.setattr(stats, "gauge", lambda name, value, tags: written.append((name, value, tags)))
    TroubleNotices("orders", lambda _text: None, clock=lambda: 10.0)(said(stuck=2))
    assert written == [("kafka_migration.silent_seconds", 0.0, {"migration_id": "orders", "phase": "tail"})]


def test_the_task_calls_whoever_wants_to_hear(minimal_spec: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Any] = []

    def broken(_context: Any) -> None:
        raise OSError("mail server down")

    operator = KafkaMigrationTailOperator(task_id="tail", spec=minimal_spec, on_trouble=[broken, heard.append])
    memory: dict[str, Any] = {}
    spec = MigrationSpec.model_validate(minimal_spec)
    context: Any = {"ti": SimpleNamespace(task_id="tail"), "params": {}}
    operator.progress_taker(context, spec, memory)(said(failed=1))
    assert heard[0][TROUBLE] == "1 failed, 0 stuck"
    assert heard[0]["ti"].task_id == "tail"
    assert "mail server down" in caplog.text
    # The next part of a deferred task, perhaps on another machine, knows that people were told.
    operator.progress_taker(context, spec, json.loads(json.dumps(memory)))(said(failed=1))
    assert len(heard) == 1
    operator.progress_taker(context, spec, memory)(said(failed=2))
    assert len(heard) == 2


def test_seed_and_tail_of_a_dag_notify(minimal_spec: dict[str, Any]) -> None:
    dag = build_migration_dag(minimal_spec)
    for task_id in ("seed", "tail"):
        found = dag.get_task(task_id).on_trouble  # type: ignore[attr-defined]
        assert [type(item) for item in found] == [MigrationNotifier]
        assert found[0].event == "trouble"
