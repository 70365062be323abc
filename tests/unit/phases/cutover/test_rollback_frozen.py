"""A rollback whose freeze cannot be lifted leaves a tail that works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from phase_support import make_context

from airflow_provider_kafka_migration.documents.copy import StopAt
from airflow_provider_kafka_migration.errors import BrokerUnreachable, StillFrozen
from airflow_provider_kafka_migration.phases import rollback
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import PhaseResult
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics import copy_settings


def _topics(restored: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def restore(*_: object) -> PhaseResult:
        restored.append("topics")
        return PhaseResult("rollback", "put back")

    monkeypatch.setattr(copy_settings, "restore_for_rollback", restore)


def test_while_producers_are_frozen_nothing_of_the_copy_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = make_context(tmp_path, state=State.CUTOVER, cutover={"freeze": "manual"})
    now = context.now()
    details = {"method": "acl", "requested_at": iso(now), "deadline": iso(now)}
    context.journal.step(steps.FREEZE_REQUESTED, key="1", details=details)
    answers: list[Exception | None] = [BrokerUnreachable("the source is away"), None]
    restored: list[str] = []
    _topics(restored, monkeypatch)

    def unfreeze(*_: Any) -> dict[str, Any]:
        error = answers.pop(0)
        if error is not None:
            raise error
        return {}

    monkeypatch.setattr("airflow_provider_kafka_migration.freeze.stops.unfreeze", unfreeze)
    with pytest.raises(StillFrozen):
        rollback.run(context)
    assert context.journal.tip_state is State.TAIL
    assert restored == [], "a tail that goes on needs its copy-time settings"
    stop_key = context.key(keys.TAIL_STOP)
    assert StopAt.in_force(context.journal_store.get(stop_key)) is None, "and is not stopped"

    rollback.run(context)
    assert context.journal.tip_state is State.ROLLED_BACK
    assert restored == ["topics"]
    assert StopAt.in_force(context.journal_store.get(stop_key)) is not None
