"""What a failed phase does to the migration: journaled as failed, unless nothing about the migration has failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from phase_support import make_context

from airflow_provider_kafka_migration.errors import (
    CopyFailed,
    FreezeFailed,
    IllegalTransition,
    Interrupted,
    WaitsForOperator,
)
from airflow_provider_kafka_migration.journal.claim import Owner
from airflow_provider_kafka_migration.migration import Migration
from airflow_provider_kafka_migration.phases import frozen
from airflow_provider_kafka_migration.phases.catalog import PHASES, PhaseEntry
from airflow_provider_kafka_migration.phases.context import PhaseContext
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.state import ResumeAction, State


def _migration(context: PhaseContext, monkeypatch: pytest.MonkeyPatch, phase: str, run: Any) -> Migration:
    migration = Migration(context.spec, Owner("cli", "tester", "tester"), Resolver())
    migration.__dict__["context"] = context
    entry = PHASES[phase]

    class Failing(PhaseEntry):
        def call(self, context: PhaseContext, options: Any) -> Any:
            return run(context)

    monkeypatch.setitem(PHASES, phase, Failing(entry.function, entry.state, entry.leads_to))
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


def test_after_a_lifted_freeze_it_failed_in_the_tail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 001: failed, then back to the last state that is not failed. That is tail: producers write again."""
    context = make_context(tmp_path, state=State.CUTOVER)

    def run(context: PhaseContext) -> None:
        frozen.back_to_tail(context, "the freeze was lifted")
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
