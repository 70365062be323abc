"""The task beside the cutover: defers while there is something to watch, ends and fails as the core says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from airflow_releases import TaskDeferred

import airflow_provider_kafka_migration.migration as core
from airflow_provider_kafka_migration.dag import build_migration_dag
from airflow_provider_kafka_migration.errors import FreezeFailed, StillFrozen, StorageUnavailable
from airflow_provider_kafka_migration.operators.freeze_limit import KafkaMigrationFreezeLimitOperator
from airflow_provider_kafka_migration.record.context import PhaseResult
from airflow_provider_kafka_migration.triggers.drain import failed
from airflow_provider_kafka_migration.triggers.freeze_limit import FreezeLimitTrigger


class Watched:
    """Stands for Migration: answers one phase, again and again."""

    def __init__(self, *answers: PhaseResult | Exception) -> None:
        self.answers = list(answers)

    def run(self, phase: str) -> PhaseResult:
        assert phase == "cutover.freeze_limit"
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def spec(self) -> Any:
        return SimpleNamespace(migration_id="orders")


def _result(watch: bool) -> PhaseResult:
    return PhaseResult("freeze_limit", "told", {"watch": watch}, already_done=not watch)


def _operator(spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch, watched: Watched, **more: Any) -> Any:
    @contextmanager
    def open_migration(self: Any, *_: Any, **__: Any) -> Iterator[Watched]:
        self.storage_uris = {"journal": "s3://bucket/orders"}
        yield watched

    monkeypatch.setattr(KafkaMigrationFreezeLimitOperator, "open_migration", open_migration)
    return KafkaMigrationFreezeLimitOperator(task_id="freeze_limit", spec=spec, **more)


def test_it_defers_while_there_may_be_a_freeze(minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    operator = _operator(minimal_spec, monkeypatch, Watched(_result(True), _result(True), _result(False)))
    with pytest.raises(TaskDeferred) as caught:
        operator.execute({"params": {}})
    trigger = caught.value.trigger
    assert isinstance(trigger, FreezeLimitTrigger)
    path, arguments = trigger.serialize()
    assert path == "airflow_provider_kafka_migration.triggers.freeze_limit.FreezeLimitTrigger"
    assert FreezeLimitTrigger(**arguments).serialize() == (path, arguments)
    with pytest.raises(TaskDeferred):
        operator.execute_complete({"params": {}}, {"status": "ready"})
    assert operator.execute_complete({"params": {}}, {"status": "ready"})["already_done"]


def test_without_a_triggerer_it_waits_in_the_worker(
    minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(_result(True), _result(True), _result(False))
    operator = _operator(minimal_spec, monkeypatch, watched, deferrable=False, poll_seconds=0.0)
    assert operator.execute({"params": {}})["already_done"]
    assert watched.answers == []


def test_a_lifted_freeze_is_red(minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    operator = _operator(minimal_spec, monkeypatch, Watched(FreezeFailed("it was lifted")))
    with pytest.raises(FreezeFailed):
        operator.execute_complete({"params": {}}, {"status": "ready"})


def test_what_the_trigger_met_is_red(minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    operator = _operator(minimal_spec, monkeypatch, Watched())
    with pytest.raises(FreezeFailed, match="no journal"):
        operator.execute_complete({"params": {}}, dict(failed(FreezeFailed("no journal")).payload))


def test_what_may_pass_is_tried_again_before_the_task_fails(
    minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(StorageUnavailable("S3"), StillFrozen("the source is away"), FreezeFailed("it was lifted"))
    operator = _operator(minimal_spec, monkeypatch, watched, poll_seconds=0.0)
    # The trigger could not look any more: the task looks itself.
    with pytest.raises(FreezeFailed):
        operator.execute_complete({"params": {}}, dict(failed(StorageUnavailable("S3")).payload))
    assert watched.answers == []
    operator = _operator(minimal_spec, monkeypatch, Watched(StillFrozen("still")), patience_seconds=0.0)
    with pytest.raises(StillFrozen):
        operator.execute({"params": {}})


def test_its_trigger_looks_often_and_its_task_is_tried_again_without_an_end(minimal_spec: dict[str, Any]) -> None:
    assert FreezeLimitTrigger.longest_pause_seconds <= 5.0
    task = build_migration_dag(minimal_spec).get_task("cutover.freeze_limit")
    assert task.retries == 1_000_000
    assert task.retry_delay.total_seconds() == 10
    [told] = task.on_retry_callback
    assert told.thins_out, "somebody is told, and not each minute"


def test_the_trigger_looks_with_the_journal_only(minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    monkeypatch.setattr(core.FreezeWatch, "open", lambda spec, resolver: opened.append((spec, resolver)))
    FreezeLimitTrigger(spec=minimal_spec).open_watch("spec", "resolver")  # type: ignore[arg-type]
    assert opened == [("spec", "resolver")]
