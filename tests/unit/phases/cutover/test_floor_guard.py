"""``floor_guard`` that died between READY and its end, and is cleared."""

from __future__ import annotations

from pathlib import Path

import pytest
from phase_support import equal_offset_map, make_context

from airflow_provider_kafka_migration.errors import FloorViolated, FreezeFailed
from airflow_provider_kafka_migration.freeze import fence
from airflow_provider_kafka_migration.phases import floor_guard, sentinels
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.freeze_attempt import FreezeAttempt
from airflow_provider_kafka_migration.record.partition_names import by_name
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.state import State

ENDS = {("orders", 0): 100, ("orders", 1): 50}


def ready_context(folder: Path, monkeypatch: pytest.MonkeyPatch, on_bypass: str) -> tuple[PhaseContext, FreezeAttempt]:
    """READY is journaled, and the migration still in ``cutover``; both sides end at the boundary."""
    context = make_context(folder, state=State.CUTOVER, cutover={"freeze": "manual", "on_bypass": on_bypass})
    now = iso(context.now())
    context.journal.step(steps.FREEZE_REQUESTED, "1", {"method": "manual", "requested_at": now, "deadline": now})
    context.journal.step(steps.READY, "1", {})
    boundary = sentinels.Boundary(migration_id="m1", attempt=1, mode="end_offsets", sentinels=[], ends=by_name(ENDS))
    context.record.put_result("boundary", boundary)
    document = equal_offset_map(ENDS)
    monkeypatch.setattr(MigrationRecord, "offset_map", lambda _: document)
    monkeypatch.setattr(fence, "fence_copiers", lambda *_: {"summary": "fenced"})
    for side in (context.source, context.target):
        side.wire.offsets["latest"] = dict(ENDS)  # type: ignore[attr-defined]
    attempt = context.record.freeze()
    assert attempt is not None
    return context, attempt


def test_a_source_that_stood_still_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, attempt = ready_context(tmp_path, monkeypatch, "fail")
    assert floor_guard._already_ready(context, attempt).already_done


def test_a_source_that_was_written_to_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, attempt = ready_context(tmp_path, monkeypatch, "fail")
    context.source.wire.offsets["latest"][("orders", 1)] = 53  # type: ignore[attr-defined]
    with pytest.raises(FreezeFailed, match="orders-1 got offsets 50 to 52") as caught:
        floor_guard._already_ready(context, attempt)
    assert "approve the cutover again" not in caught.value.next_step, "there is no way back from READY"
    assert "on_bypass: note" in caught.value.next_step
    assert "start a new run with the changed ones and takeover" in caught.value.next_step, "Params cannot change"
    assert context.journal.find_step(steps.FREEZE_LIFTED) is None


def test_a_person_may_go_on_with_what_was_written_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, attempt = ready_context(tmp_path, monkeypatch, "continue")
    context.source.wire.offsets["latest"][("orders", 1)] = 53  # type: ignore[attr-defined]
    result = floor_guard._already_ready(context, attempt)
    assert [(item["topic"], item["to_offset"]) for item in result.details["bypasses"]] == [("orders", 53)]


def test_after_the_cutover_late_writes_are_the_validation_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, attempt = ready_context(tmp_path, monkeypatch, "fail")
    context.journal.transition(State.AWAITING_CLIENT_SWITCH, "test")
    context.source.wire.offsets["latest"][("orders", 1)] = 53  # type: ignore[attr-defined]
    assert floor_guard._already_ready(context, attempt).already_done


def trimmed_context(folder: Path, monkeypatch: pytest.MonkeyPatch, state: State) -> tuple[PhaseContext, FreezeAttempt]:
    """READY was reached, and the target's log starts have moved since."""
    context, attempt = ready_context(folder, monkeypatch, "fail")
    for later in (State.AWAITING_CLIENT_SWITCH, State.VALIDATING):
        if state in (later, State.VALIDATING):
            context.journal.transition(later, "test")
    context.target.wire.offsets["earliest"] = {("orders", 1): 20}  # type: ignore[attr-defined]
    return context, attempt


@pytest.mark.parametrize("state", [State.CUTOVER, State.AWAITING_CLIENT_SWITCH])
def test_before_clients_have_switched_nothing_may_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: State
) -> None:
    context, attempt = trimmed_context(tmp_path, monkeypatch, state)
    with pytest.raises(FloorViolated, match="orders-1 starts at 20, the first copied offset is 0"):
        floor_guard._already_ready(context, attempt)


def test_what_restored_retention_or_a_client_has_deleted_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, attempt = trimmed_context(tmp_path, monkeypatch, State.VALIDATING)
    result = floor_guard._already_ready(context, attempt)
    assert result.already_done
    assert [(item["topic"], item["partition"], item["seen"]) for item in result.details["moved_starts"]] == [
        ("orders", 1, 20)
    ]
    assert "orders-1 starts at 20" in result.summary


def test_a_log_that_ends_too_early_is_a_loss_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, attempt = trimmed_context(tmp_path, monkeypatch, State.VALIDATING)
    context.target.wire.offsets["latest"][("orders", 0)] = 99  # type: ignore[attr-defined]
    with pytest.raises(FloorViolated, match="orders-0 ends at 99, the copied range ends at 100") as caught:
        floor_guard._already_ready(context, attempt)
    assert len(caught.value.details["violations"]) == 1
    assert "delete these topics" not in caught.value.next_step, "clients have written to them"
