"""Records on the source behind the boundary: named in the approval of the client switch, and in its way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from phase_support import FakeGroup, approval, make_context

from airflow_provider_kafka_migration.approvals import answers, check, request
from airflow_provider_kafka_migration.approvals.code import code_of
from airflow_provider_kafka_migration.documents.cutover import Boundary
from airflow_provider_kafka_migration.errors import ApprovalRefused, BrokerUnreachable, WaitsForOperator
from airflow_provider_kafka_migration.freeze import late_writes
from airflow_provider_kafka_migration.freeze.late_writes import LateWrites
from airflow_provider_kafka_migration.groups import commit
from airflow_provider_kafka_migration.phases import client_switch
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.partition_names import by_name
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.state import State

ENDS = {("orders", 0): 100, ("orders", 1): 50}


def switching(folder: Path, monkeypatch: pytest.MonkeyPatch, on_bypass: str = "stop") -> PhaseContext:
    """Clients may switch; both sides end at the boundary. Each offset behind it is one record."""
    context = make_context(
        folder, state=State.AWAITING_CLIENT_SWITCH, cutover={"freeze": "manual", "on_bypass": on_bypass}
    )
    now = iso(context.now())
    context.journal.step(steps.FREEZE_REQUESTED, "1", {"method": "manual", "requested_at": now, "deadline": now})
    context.journal.step(steps.READY, "1", {})
    context.record.put_result(
        "boundary", Boundary(migration_id="m1", attempt=1, mode="end_offsets", ends=by_name(ENDS))
    )
    for side in (context.source, context.target):
        side.wire.offsets["latest"] = dict(ENDS)  # type: ignore[attr-defined]
    context.source.admin.groups["billing"] = FakeGroup({("orders", 0): (40, "")})  # type: ignore[attr-defined]
    monkeypatch.setattr(late_writes, "_read", lambda _wire, _key, since, until, _ours: LateWrites(until - since))
    monkeypatch.setattr(commit, "failures_error", lambda *_: None)
    return context


def write_late(context: PhaseContext) -> None:
    context.source.wire.offsets["latest"][("orders", 1)] = 53  # type: ignore[attr-defined]


def lose_source(context: PhaseContext) -> None:
    def away(*_: Any) -> None:
        raise BrokerUnreachable("no broker of the source answers")

    context.source.wire.on_look = away  # type: ignore[attr-defined]


def approve(context: PhaseContext) -> Any:
    code = code_of(request.make_binding(context.record, context.source, "client_switch"))
    return answers.answer(context, approval(context, "client_switch", code))


def test_a_source_that_stands_still_is_said_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = switching(tmp_path, monkeypatch)
    body = request.make_facts(context, "client_switch").body
    assert "Nothing: all 2 partitions were checked." in body
    assert "every record of the source, and" in body


def test_records_behind_the_boundary_are_shown_and_refuse_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = switching(tmp_path, monkeypatch)
    write_late(context)
    body = request.make_facts(context, "client_switch").body
    assert "**3 records in 1 partitions are on the source only** (cutover.on_bypass: stop): an approval" in body
    assert "| orders-1 | 3 records were written to the source" in body
    assert "every record of the source up to the boundary" in body
    with pytest.raises(ApprovalRefused, match=r"orders-1: 3 records") as caught:
        approve(context)
    assert "on_bypass: note" in caught.value.next_step
    assert "start a new run with the changed ones and takeover" in caught.value.next_step, "Params cannot change"
    assert caught.value.details["records"] == 3
    assert context.journal.find_step("approval", "client_switch") is None


def test_records_that_came_after_the_answer_are_in_the_way_of_the_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = switching(tmp_path, monkeypatch)
    code = code_of(request.make_binding(context.record, context.source, "client_switch"))
    check.check_approval(context, approval(context, "client_switch", code))
    write_late(context)
    with pytest.raises(WaitsForOperator, match=r"orders-1: 3 records"):
        client_switch.run(context)
    assert context.journal.find_step(steps.CLIENT_SWITCH_ACKNOWLEDGED) is None


def test_continue_shows_and_journals_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = switching(tmp_path, monkeypatch, "continue")
    write_late(context)
    assert "this is only shown" in request.make_facts(context, "client_switch").body
    approve(context)
    entry = context.journal.find_step(steps.CLIENT_SWITCH_ACKNOWLEDGED)
    assert entry is not None
    assert list(entry.details["behind_boundary"]["late"]) == ["orders-1"]
    assert "orders-1" in entry.details["summary"]


@pytest.mark.parametrize("on_bypass", ["stop", "note"])
def test_a_source_that_cannot_be_asked_is_never_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_bypass: str
) -> None:
    context = switching(tmp_path, monkeypatch, on_bypass)
    lose_source(context)
    found = late_writes.read(context.record, context.source)
    assert found.unchecked == {"source": "no broker of the source answers"}
    body = request.make_facts(context, "client_switch").body
    assert "It could not be checked" in body
    assert "no broker of the source answers" in body
    assert "Nothing: all" not in body
    if on_bypass == "note":
        approve(context)
        entry = context.journal.find_step(steps.CLIENT_SWITCH_ACKNOWLEDGED)
        assert entry is not None
        assert entry.details["behind_boundary"]["unchecked"] == found.unchecked
        return
    with pytest.raises(ApprovalRefused, match="could not be checked"):
        approve(context)


def test_a_log_that_was_cut_and_records_that_cannot_be_read_are_unchecked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = switching(tmp_path, monkeypatch)
    write_late(context)
    context.source.wire.offsets["latest"][("orders", 0)] = 7  # type: ignore[attr-defined]

    def unreadable(*_: Any) -> Any:
        raise BrokerUnreachable("the leader is away")

    monkeypatch.setattr(late_writes, "_read", unreadable)
    found = late_writes.read(context.record, context.source)
    assert found.late == {}
    assert found.unchecked["orders-0"].startswith("the source ends at offset 7, before the boundary 100")
    assert found.unchecked["orders-1"] == "offsets 50 to 52 could not be read: the leader is away"
    assert found.problem.startswith("2 partitions could not be checked")


def test_no_boundary_is_no_proof(tmp_path: Path) -> None:
    context = make_context(tmp_path, state=State.AWAITING_CLIENT_SWITCH)
    assert late_writes.read(context.record, context.source).unchecked == {
        "source": "no boundary of the cutover is known"
    }
