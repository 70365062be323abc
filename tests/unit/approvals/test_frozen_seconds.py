"""Frozen time is what producers feel: from the moment they are asked to stop until clients may switch."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from phase_support import Clock, approval, make_context

from airflow_provider_kafka_migration.approvals import check, request
from airflow_provider_kafka_migration.cli.runner import MigrationRunner
from airflow_provider_kafka_migration.documents.cutover import FreezeResult, FrozenTime
from airflow_provider_kafka_migration.errors import FreezeFailed
from airflow_provider_kafka_migration.freeze import deny_acls, frozen
from airflow_provider_kafka_migration.kafka.admin.access import Acl, AclListing
from airflow_provider_kafka_migration.phases import floor_guard, freeze
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.freeze_attempt import AGAIN
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.state import State


def verify(context: PhaseContext, clock: Clock, seconds: float) -> None:
    """The freeze that was requested is verified so much later."""
    attempt = context.record.freeze()
    assert attempt is not None
    clock.sleep(seconds)
    result = FreezeResult(
        migration_id="m1",
        attempt=attempt.number,
        method="manual",
        requested_at=iso(attempt.requested_at),
        verified_at=iso(clock.now()),
        deadline=iso(attempt.deadline),
        ends={},
    )
    context.journal.step(steps.FREEZE_VERIFIED, key=attempt.key, details={"result": result.model_dump(mode="json")})


def ready(context: PhaseContext, clock: Clock, seconds: float) -> FrozenTime:
    """A step of 20 s, and READY so much after the verification."""
    attempt = context.record.freeze()
    assert attempt is not None
    timer = frozen.StepTimer.start(context.record, attempt, "final_drain")
    clock.sleep(20)
    timer.done({})
    clock.sleep(seconds - 20)
    return floor_guard._frozen_time(context.record, attempt)


def begin(
    context: PhaseContext, monkeypatch: pytest.MonkeyPatch, *, after_seconds: float = 5, second: str = ""
) -> None:
    """The freeze is requested as the task does it; the lag is small."""
    monkeypatch.setattr(freeze.follow, "check_all_followed", lambda *_: None)
    context.source.wire.offsets["latest"] = {("orders", 0): 100, ("orders", 1): 100}  # type: ignore[attr-defined]
    context.target.wire.offsets["latest"] = {("orders", 0): 100, ("orders", 1): 100}  # type: ignore[attr-defined]
    code = request.make_facts(context, "cutover").code
    check.check_approval(context, approval(context, "cutover", code))
    context.now.__self__.sleep(after_seconds)  # type: ignore[attr-defined]
    if second:
        check.check_approval(context, approval(context, "cutover", code, user=second, second=True))
        context.now.__self__.sleep(5)  # type: ignore[attr-defined]
    freeze._begin(context, None)


@pytest.mark.parametrize(
    ("section", "felt"),
    [
        ({"freeze": "webhook", "producer_freeze_webhook": "http://127.0.0.1:1/"}, 37.0),
        # Whoever approves confirms that the producers are stopped: they have been since then, five seconds longer.
        ({"freeze": "manual"}, 42.0),
    ],
    ids=["webhook", "manual"],
)
def test_it_counts_from_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: dict[str, Any], felt: float
) -> None:
    clock = Clock()
    context = make_context(tmp_path, state=State.CUTOVER, clock=clock, cutover=section)
    begin(context, monkeypatch)
    verify(context, clock, 12)
    time = ready(context, clock, 25)
    assert time.frozen_seconds == felt
    assert time.steps == {"freeze": 12.0, "final_drain": 20.0}
    attempt = context.record.freeze()
    assert attempt is not None
    assert attempt.deadline - attempt.stopped_at == timedelta(seconds=60), "the limit counts from the same moment"
    if section["freeze"] == "manual":
        assert frozen.lift(context, attempt, reason="test")["frozen_seconds"] == felt


def test_the_approval_speaks_of_the_same_seconds(tmp_path: Path) -> None:
    context = make_context(tmp_path, state=State.DRAIN_READY)
    text = request.make_facts(context, "cutover").body
    one, two = (
        request.estimate_freeze_seconds(partitions=0, group_count=0, lag=0, window_seconds=window, handover_seconds=1.0)
        for window in (2.0, 12.0)
    )
    assert two - one == 10, "the verification is part of it"
    assert one >= request.STOP_SECONDS + 2.0, "and so is the way to the producers"
    assert "counted from your answer" in text, "producers that are stopped by hand are stopped before it"
    other = make_context(tmp_path / "acl", state=State.DRAIN_READY, cutover={"freeze": "acl"})
    assert "from the moment they are asked to stop" in request.make_facts(other, "cutover").body


def test_a_freeze_by_hand_that_has_lasted_too_long_before_it_begins_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executor took a minute to start the task, and nobody writes since the answer."""
    clock = Clock()
    context = make_context(tmp_path, state=State.CUTOVER, clock=clock, cutover={"freeze": "manual"})
    with pytest.raises(FreezeFailed, match="stopped by hand 60 s ago") as caught:
        begin(context, monkeypatch, after_seconds=60)
    assert AGAIN in caught.value.next_step
    assert context.record.freeze() is None


@pytest.mark.parametrize(("method", "holds"), [("manual", [True, False]), ("acl", [True, True])])
def test_the_command_line_asks_again_when_no_freeze_can_begin_with_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, holds: list[bool]
) -> None:
    """It would fail with the old answer again and again until that is too old for an approval, and take no new one."""
    clock = Clock()
    context = make_context(tmp_path, state=State.DRAIN_READY, clock=clock, cutover={"freeze": method})
    monkeypatch.setattr(deny_acls, "count_denials", lambda *_: 0)
    code = request.make_facts(context, "cutover").code
    check.check_approval(context, approval(context, "cutover", code))
    migration: Any = SimpleNamespace(context=context)
    driver = MigrationRunner(migration, Mock(), person="ann", on_result=Mock())
    found = [driver._holds("cutover")]
    clock.sleep(90)
    assert [*found, driver._holds("cutover")] == holds


def test_of_two_people_the_second_one_confirms_that_producers_are_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    two = {"second_users": ["bob"]}
    context = make_context(tmp_path, state=State.CUTOVER, clock=clock, cutover={"freeze": "manual"}, approvals=two)
    begin(context, monkeypatch, after_seconds=300, second="bob")
    attempt = context.record.freeze()
    assert attempt is not None
    assert attempt.requested_at - attempt.stopped_at == timedelta(seconds=5)
    assert "counted from the second answer" in request.make_facts(context, "cutover").body


@pytest.mark.parametrize(("method", "denials"), [("acl", 3000), ("manual", 0)])
def test_many_denials_take_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, denials: int
) -> None:
    context = make_context(tmp_path, state=State.DRAIN_READY, cutover={"freeze": method})
    acls = tuple(Acl("TOPIC", "orders", "LITERAL", f"User:{n}", "*", "WRITE", "ALLOW") for n in range(3000))
    admin = context.source.admin
    monkeypatch.setattr(admin, "describe_acls", lambda **_: AclListing(True, acls), raising=False)
    own = deny_acls.OwnPrincipal("source", "User:migration", True, "")
    monkeypatch.setattr(deny_acls.OwnPrincipal, "of", lambda *_: own)
    facts = request.make_facts(context, "cutover")
    assert facts.facts["denials"] == denials
    assert ("3,000 DENY ACLs stop them" in facts.body) is bool(denials)
    one, two = (
        request.estimate_freeze_seconds(
            partitions=0, group_count=0, lag=0, window_seconds=2.0, handover_seconds=1.0, denials=count
        )
        for count in (0, 3000)
    )
    assert two - one == 3.0


def test_what_an_older_release_has_written_is_read(tmp_path: Path) -> None:
    clock = Clock()
    context = make_context(tmp_path, state=State.CUTOVER, clock=clock)
    now = clock.now()
    details = {"method": "manual", "requested_at": iso(now), "deadline": iso(now + timedelta(seconds=60))}
    context.journal.step(steps.FREEZE_REQUESTED, key="1", details=details)
    attempt = context.record.freeze()
    assert attempt is not None
    assert attempt.stopped_at == attempt.requested_at
