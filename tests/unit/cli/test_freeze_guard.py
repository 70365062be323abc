"""The thread that keeps the limit of a freeze on the command line."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_kafka_migration.cli.freeze_guard import FreezeGuard
from airflow_provider_kafka_migration.cli.migrate import MigrationOpener
from airflow_provider_kafka_migration.errors import ClaimLost, FreezeFailed, StillFrozen
from airflow_provider_kafka_migration.record.context import PhaseResult
from airflow_provider_kafka_migration.spec.sections import NotificationsSection

PATIENCE_SECONDS = 60.0


class Watched:
    """Stands for Migration: answers the phase with these, the last one for ever."""

    def __init__(self, *answers: PhaseResult | Exception) -> None:
        self._answers = list(answers)
        self.all_given = threading.Event()
        self.closed = False

    def run(self, phase: str) -> PhaseResult:
        assert phase == "cutover.freeze_limit"
        if len(self._answers) > 1:
            answer = self._answers.pop(0)
        else:
            answer = self._answers[0]
            self.all_given.set()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.closed = True


WATCH = PhaseResult("freeze_limit", "nothing is frozen", {"watch": True})


def guarded(*answers: PhaseResult | Exception) -> tuple[FreezeGuard, Watched]:
    migration: Any = Watched(*answers)
    with FreezeGuard(migration, look_seconds=0.001) as guard:
        assert migration.all_given.wait(PATIENCE_SECONDS)
    return guard, migration


def test_it_watches_through_failures_until_it_has_lifted() -> None:
    lifted = FreezeFailed("freeze 1 was lifted")
    guard, migration = guarded(WATCH, StillFrozen("the source is away"), WATCH, lifted)
    assert guard.ended_by is lifted
    assert migration.closed


def test_it_ends_quietly_with_what_it_watches_for() -> None:
    guard, migration = guarded(WATCH)
    assert guard.ended_by is None
    assert migration.closed


def test_who_lost_the_migration_stops_watching() -> None:
    lost = ClaimLost("somebody else")
    guard, _ = guarded(WATCH, lost)
    assert guard.ended_by is lost


@pytest.mark.parametrize(("kind", "phase"), [("mirror", "freeze_limit"), ("migration", "cutover.freeze_limit")])
def test_it_runs_the_phase_of_its_kind(monkeypatch: pytest.MonkeyPatch, kind: str, phase: str) -> None:
    asked: list[str] = []
    looked = threading.Event()

    def run(name: str) -> PhaseResult:
        asked.append(name)
        looked.set()
        return PhaseResult(name, "nothing is frozen", {"watch": False})

    monkeypatch.setattr(MigrationOpener, "open", lambda *_, **__: SimpleNamespace(run=run, close=lambda: None))
    spec = SimpleNamespace(kind=kind, notifications=NotificationsSection())
    opener = MigrationOpener(spec, None)  # type: ignore[arg-type]
    with opener.open_guard():
        assert looked.wait(PATIENCE_SECONDS)
    assert asked == [phase]
