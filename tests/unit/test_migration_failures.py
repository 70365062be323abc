"""What a failed phase does to the migration: journaled as failed, unless nothing about the migration has failed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from phase_support import make_context

from airflow_provider_kafka_migration.errors import (
    CopyFailed,
    FingerprintChanged,
    FreezeFailed,
    IllegalTransition,
    Interrupted,
    StorageUnavailable,
    WaitsForOperator,
)
from airflow_provider_kafka_migration.freeze import frozen
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.lanes.slices import claim_key
from airflow_provider_kafka_migration.migration import Migration
from airflow_provider_kafka_migration.phase_table import PHASES, Phase
from airflow_provider_kafka_migration.record import rolling_back, steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.state import ResumeAction, State
from airflow_provider_kafka_migration.storage.local import LocalStore


def _migration(context: PhaseContext, monkeypatch: pytest.MonkeyPatch, phase: str, run: Any) -> Migration:
    migration = Migration(context.spec, Owner("cli", "tester", "tester"), Resolver())
    migration.__dict__["context"] = context

    class Failing(Phase):
        def load(self) -> Callable[..., Any]:
            return run

    row = PHASES[phase]
    given = {name: getattr(row, name) for name in ("state", "leads_to", "keeps_trying")}
    monkeypatch.setitem(PHASES, phase, Failing(row.id, row.doc, row.function, **given))
    return migration


def _raise(error: Exception) -> Any:
    def run(_: PhaseContext) -> None:
        raise error

    return run


@pytest.mark.parametrize("error", [CopyFailed("a partition"), ValueError("ours")], ids=["known", "unforeseen"])
def test_a_failure_is_journaled_and_walked_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    context = make_context(tmp_path, state=State.TAIL)
    with pytest.raises(type(error)):
        _migration(context, monkeypatch, "tail", _raise(error)).run("tail")
    assert context.journal.tip_state is State.FAILED
    resume = context.journal.resume()
    assert (resume.action, resume.state) == (ResumeAction.REENTER, State.TAIL)


@pytest.mark.parametrize("error", [WaitsForOperator("groups"), Interrupted("told to stop"), IllegalTransition("late")])
def test_what_is_no_failure_of_the_migration_leaves_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    context = make_context(tmp_path, state=State.AWAITING_CLIENT_SWITCH)
    with pytest.raises(type(error)):
        _migration(context, monkeypatch, "client_switch", _raise(error)).run("client_switch")
    assert context.journal.tip_state is State.AWAITING_CLIENT_SWITCH


def test_in_a_rolled_back_migration_only_the_rollback_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tries again what the schema registries did not take back; a retried task of the copy does nothing."""
    context = make_context(tmp_path, state=State.TAIL)
    context.journal.transition(State.ROLLED_BACK, "abort")
    assert _migration(context, monkeypatch, "tail", _raise(ValueError("it runs"))).run("tail").already_done
    with pytest.raises(ValueError, match="it runs"):
        _migration(context, monkeypatch, "rollback", _raise(ValueError("it runs"))).run("rollback")


def test_once_a_rollback_has_begun_only_the_rollback_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have died halfway: a copy that goes on would copy to topics that delete again."""
    context = make_context(tmp_path, state=State.TAIL)
    context.journal.step(steps.ROLLBACK_BEGUN)
    for phase in ("plan", "tail", "cutover.freeze"):
        with pytest.raises(IllegalTransition, match=r"the migration is rolled back since") as refused:
            _migration(context, monkeypatch, phase, _raise(ValueError("it runs"))).run(phase)
        assert "`kafka-migration rollback FILE`" in refused.value.next_step
    assert context.journal.tip_state is State.TAIL, "not a failure of the migration"
    found = rolling_back.resume(context.journal, context.spec)
    assert found is not None
    assert "a rollback has begun" in found.reason
    for phase in ("rollback", "cutover.freeze_limit"):
        with pytest.raises(ValueError, match="it runs"):
            _migration(context, monkeypatch, phase, _raise(ValueError("it runs"))).run(phase)


def test_after_a_lifted_freeze_it_failed_in_the_tail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is failed, then back to the last state that is not failed. That is tail: producers write again."""
    context = make_context(tmp_path, state=State.CUTOVER)

    def run(context: PhaseContext) -> None:
        frozen.back_to_tail(context.record, "the freeze was lifted")
        raise FreezeFailed("too long")

    migration = _migration(context, monkeypatch, "cutover.sentinels", run)
    with pytest.raises(FreezeFailed):
        migration.run("cutover.sentinels")
    assert [entry.to_state for entry in context.journal.entries()][-2:] == [State.TAIL, State.FAILED]
    assert context.journal.resume().state is State.TAIL
    # What is cleared now cannot run on in a cutover that is over.
    with pytest.raises(IllegalTransition):
        migration.run("cutover.sentinels")
    assert context.journal.tip_state is State.TAIL


def _opened(context: PhaseContext, **changes: Any) -> Migration:
    """The migration of a context in a process of its own, which has not claimed it yet."""
    spec = parse_spec({**context.spec.model_dump(mode="json"), **changes})
    migration = Migration(spec, Owner("cli", "tester", "tester"), Resolver())
    for name, cluster_id in (("source", "source-id"), ("target", "target-id")):
        config = SimpleNamespace(bootstrap_servers=name)
        cluster = SimpleNamespace(cluster_id=cluster_id, config=config, close=lambda: None)
        migration.__dict__[name] = cluster
    return migration


def test_a_retry_in_the_same_process_meets_the_spec_guard_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Migration, "_fingerprint", lambda _: Fingerprint("source-id", "target-id"))
    context = make_context(tmp_path, state=State.TAIL)
    with _opened(context) as migration:
        assert migration.context.journal.exists
    topics = {**context.spec.model_dump(mode="json")["topics"], "include": ["others-.*"]}
    with _opened(context, topics=topics) as migration:
        for _ in range(2):
            with pytest.raises(FingerprintChanged, match="topics"):
                _ = migration.context


def test_a_retry_in_the_same_process_publishes_the_claim_that_could_not_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Migration, "_fingerprint", lambda _: Fingerprint("source-id", "target-id"))
    context = make_context(tmp_path, state=State.TAIL)
    put, failures = LocalStore.put, [StorageUnavailable("503")]

    def failing(self: LocalStore, key: str, data: bytes, *args: Any, **more: Any) -> Any:
        if key == claim_key("m1") and failures:
            raise failures.pop()
        return put(self, key, data, *args, **more)

    monkeypatch.setattr(LocalStore, "put", failing)
    with _opened(context) as migration:
        with pytest.raises(StorageUnavailable):
            _ = migration.context
        assert migration.context.journal.generation
        assert context.journal_store.get(claim_key("m1")) is not None, "or copiers of a former owner would go on"
