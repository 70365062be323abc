"""Approvals: what is shown, what the code binds, which answers are refused."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from phase_support import Clock, FakeGroup, approval, make_plan, ready

from airflow_provider_kafka_migration.approvals import answers, check, request
from airflow_provider_kafka_migration.cli.runner import MigrationRunner
from airflow_provider_kafka_migration.documents.cutover import ApprovalAnswer
from airflow_provider_kafka_migration.documents.plan import Finding, PrecheckResult, Severity
from airflow_provider_kafka_migration.errors import ApprovalRefused
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.pages.rendering import escape_markdown
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics import lags


def test_the_text_shows_what_a_person_needs(tmp_path: Path) -> None:
    context = ready(tmp_path, waive=["W104"])
    context.source.wire.offsets["latest"][("orders", 0)] = 103  # type: ignore[attr-defined]
    context.record.put_result(
        "precheck",
        PrecheckResult(
            migration_id="m1",
            findings=[
                Finding(code="W104", severity=Severity.WARNING, title="t", seen="RF 1", fix="f", waived=True),
                Finding(code="I001", severity=Severity.INFO, title="t", seen="not shown", fix="f"),
            ],
        ),
    )
    facts = request.make_facts(context, "cutover")
    assert facts.code in facts.body
    assert "| orders | 2 | 3 | 3 |" in facts.body
    assert "| billing | classic | Empty | NotFound | 2 equal |" in facts.body
    assert "W104" in facts.body
    assert "not shown" not in facts.body
    assert "at most 60 s" in facts.body
    assert "SHA256:" in facts.body, "the key that will sign is named"
    assert facts.subject == "m1: approve the cutover"


def test_names_cannot_break_out_of_the_text(tmp_path: Path) -> None:
    evil = "a|b](javascript:x) <script>"
    context = ready(tmp_path)
    context.source.admin.groups[evil] = FakeGroup()  # type: ignore[attr-defined]
    body = request.make_facts(context, "cutover").body
    assert "<script>" not in body.replace("\\<", "")
    assert escape_markdown(evil) in body
    assert "](javascript" not in body


def test_lag_does_not_change_the_code_but_groups_plan_and_settings_do(tmp_path: Path) -> None:
    context = ready(tmp_path)
    code = request.make_facts(context, "cutover").code
    context.source.wire.offsets["latest"][("orders", 0)] = 104  # type: ignore[attr-defined]
    context.source.admin.groups["billing"].offsets[("orders", 0)] = (41, "")  # type: ignore[attr-defined]
    assert request.make_facts(context, "cutover").code == code

    context.source.admin.groups["elsewhere"] = FakeGroup({("unrelated", 0): (1, "")})  # type: ignore[attr-defined]
    context.source.admin.groups["billing"].kind = "consumer"  # type: ignore[attr-defined]
    assert request.make_facts(context, "cutover").code == code, "neither is what the migration touches"

    context.source.admin.groups["new"] = FakeGroup({("orders", 1): (3, "")})  # type: ignore[attr-defined]
    with_group = request.make_facts(context, "cutover").code
    assert with_group != code
    context.journal_store.put("m1/plan.json", make_plan({"orders": 2, "more": 1}).canonical())
    assert request.make_facts(context, "cutover").code not in (code, with_group)

    other = ready(tmp_path / "other", cutover={"on_bypass": "note"})
    assert request.make_facts(other, "cutover").code != code


def test_the_right_code_is_accepted_and_journaled(tmp_path: Path) -> None:
    context = ready(tmp_path)
    code = request.make_facts(context, "cutover").code
    answers.answer(context, approval(context, "cutover", f" {code.upper()} \n"))
    entry = context.journal.find_step("approval", "cutover")
    assert entry is not None
    assert entry.details["body_shown"] == "what was shown"
    assert entry.details["responders"] == [{"user_id": "ann", "user_name": "Ann"}]
    assert [item.code for item in check.require(context, "cutover")] == [code]


@pytest.mark.parametrize("code", ["", "00000000", "approve", "\u0661" * 8])
def test_a_wrong_code_is_refused_and_journaled(tmp_path: Path, code: str) -> None:
    context = ready(tmp_path)
    with pytest.raises(ApprovalRefused):
        answers.answer(context, approval(context, "cutover", code))
    assert context.journal.find_step("approval") is None
    refused = context.journal.find_step("approval_refused", "cutover")
    assert refused is not None
    assert refused.details["why"]
    with pytest.raises(ApprovalRefused):
        check.require(context, "cutover")


def test_a_code_from_before_a_change_is_refused_with_what_has_changed(tmp_path: Path) -> None:
    context = ready(tmp_path)
    code = request.show(context, "cutover").code
    context.source.admin.groups["new"] = FakeGroup({("orders", 0): (1, "")})  # type: ignore[attr-defined]
    context.source.admin.groups["billing"].offsets.clear()  # type: ignore[attr-defined]
    context.journal.step("freeze_lifted", key="1", details={})
    with pytest.raises(ApprovalRefused, match="not the present one") as caught:
        answers.answer(context, approval(context, "cutover", code))
    assert "this has changed: cutover.lifted_before: 0 -> 1; groups (new: new; gone: billing)" in caught.value.what
    with pytest.raises(ApprovalRefused, match="mistyped"):
        answers.answer(context, approval(context, "cutover", "0" * 8))


def test_a_group_that_cannot_be_read_counts_as_migrated(tmp_path: Path) -> None:
    context = ready(tmp_path)
    code = request.make_facts(context, "cutover").code
    denied = ItemError(30, "GROUP_AUTHORIZATION_FAILED")
    context.source.admin.groups["closed"] = FakeGroup(read_error=denied)  # type: ignore[attr-defined]
    assert request.make_facts(context, "cutover").code != code


def test_a_change_after_the_answer_is_noticed_at_the_cutover(tmp_path: Path) -> None:
    context = ready(tmp_path)
    answers.answer(context, approval(context, "cutover", request.make_facts(context, "cutover").code))
    context.journal_store.put("m1/plan.json", make_plan({"other": 1}).canonical())
    with pytest.raises(ApprovalRefused, match="not the present one"):
        check.require(context, "cutover")


def test_a_lag_that_stays_high_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lags, "SMALL_AGAIN_SECONDS", 0.0)
    context = ready(tmp_path)
    code = request.make_facts(context, "cutover").code
    context.source.wire.offsets["latest"][("orders", 1)] = 1000  # type: ignore[attr-defined]
    with pytest.raises(ApprovalRefused, match="lag has risen"):
        answers.answer(context, approval(context, "cutover", code))


def test_an_old_answer_is_refused_when_it_comes_and_later(tmp_path: Path) -> None:
    clock = Clock()
    context = ready(tmp_path, clock=clock, approvals={"max_age": "5m"})
    code = request.make_facts(context, "cutover").code
    old = approval(context, "cutover", code, answered_at=iso(context.now() - timedelta(minutes=6)))
    with pytest.raises(ApprovalRefused, match="old"):
        answers.answer(context, old)
    answers.answer(context, approval(context, "cutover", code))
    clock.sleep(301)
    with pytest.raises(ApprovalRefused, match="old"):
        check.require(context, "cutover")


def test_not_yet_needs_no_code_and_authorises_nothing(tmp_path: Path) -> None:
    context = ready(tmp_path)
    result = answers.answer(context, approval(context, "cutover", "", decision="not_yet"))
    assert result.details["decision"] == "not_yet"
    with pytest.raises(ApprovalRefused):
        check.require(context, "cutover")


def test_an_abort_needs_its_own_code(tmp_path: Path) -> None:
    """A click on a stale page, or on the wrong button with the approval's code, must not end weeks of copying."""
    context = ready(tmp_path, approvals={"assigned_users": ["ann"]})
    facts = request.make_facts(context, "cutover")
    code = facts.facts["abort_code"]
    assert f"type this other code instead: `{code}`" in facts.body
    for wrong in ("", facts.code):
        with pytest.raises(ApprovalRefused, match="end"):
            answers.answer(context, approval(context, "cutover", wrong, decision="abort"))
    with pytest.raises(ApprovalRefused, match="eve"):
        answers.answer(context, approval(context, "cutover", code, decision="abort", user="eve"))
    with pytest.raises(ApprovalRefused, match="not the present one"):
        answers.answer(context, approval(context, "cutover", code))
    assert context.journal.find_step("approval") is None
    assert len(context.journal.steps("approval_refused")) == 4
    assert answers.answer(context, approval(context, "cutover", code, decision="abort")).details["decision"] == "abort"


def test_a_later_no_takes_back_an_approval(tmp_path: Path) -> None:
    context = ready(tmp_path)
    answers.answer(context, approval(context, "cutover", request.make_facts(context, "cutover").code))
    answers.answer(context, approval(context, "cutover", "", decision="not_yet"))
    with pytest.raises(ApprovalRefused):
        check.require(context, "cutover")


def test_only_assigned_users_may_approve(tmp_path: Path) -> None:
    context = ready(tmp_path, approvals={"assigned_users": ["ann"]})
    code = request.make_facts(context, "cutover").code
    with pytest.raises(ApprovalRefused, match="eve"):
        answers.answer(context, approval(context, "cutover", code, user="eve"))
    with pytest.raises(ApprovalRefused, match="not known"):
        answers.answer(context, approval(context, "cutover", code, user=""))
    answers.answer(context, approval(context, "cutover", code, user="ann"))


def test_two_people(tmp_path: Path) -> None:
    context = ready(tmp_path, approvals={"assigned_users": ["ann", "bob"], "second_users": ["bob", "ann"]})
    code = request.make_facts(context, "cutover").code
    with pytest.raises(ApprovalRefused, match="first person"):
        answers.answer(context, approval(context, "cutover", code, user="bob", second=True))
    answers.answer(context, approval(context, "cutover", code, user="ann"))
    with pytest.raises(ApprovalRefused, match="2 people"):
        check.require(context, "cutover")
    with pytest.raises(ApprovalRefused, match="same person"):
        answers.answer(context, approval(context, "cutover", code, user="ann", second=True))
    answers.answer(context, approval(context, "cutover", code, user="bob", second=True))
    assert len(check.require(context, "cutover")) == 2
    # The first one answering again as the other person makes it one person again.
    answers.answer(context, approval(context, "cutover", code, user="bob"))
    with pytest.raises(ApprovalRefused, match="2 people"):
        check.require(context, "cutover")


@pytest.mark.parametrize("why", ["too old", "another code"])
def test_two_people_on_the_command_line_begin_again_when_the_first_answer_holds_no_more(
    tmp_path: Path, why: str
) -> None:
    clock = Clock()
    context = ready(tmp_path, clock=clock, approvals={"second_users": ["bob"]})

    def types_the_code(person: str) -> ApprovalAnswer:
        migration: Any = SimpleNamespace(context=context)
        driver = MigrationRunner(migration, Mock(), person=person, on_result=Mock())
        facts = request.make_facts(context, "cutover")
        given = driver._answer(facts, facts.code)
        answers.answer(context, given)
        return given

    assert [types_the_code(person).second for person in ("ann", "bob")] == [False, True]
    assert len(check.require(context, "cutover")) == 2
    if why == "too old":
        clock.sleep(20 * 60)
    else:
        context.source.admin.groups["new"] = FakeGroup(offsets={("orders", 0): (1, "")})  # type: ignore[attr-defined]
    with pytest.raises(ApprovalRefused):
        check.require(context, "cutover")
    assert [types_the_code(person).second for person in ("ann", "bob")] == [False, True]
    assert len(check.require(context, "cutover")) == 2


def test_after_a_lifted_freeze_a_new_approval_is_needed_and_brings_the_migration_back(tmp_path: Path) -> None:
    clock = Clock()
    context = ready(tmp_path, clock=clock)
    answers.answer(context, approval(context, "cutover", request.make_facts(context, "cutover").code))
    clock.sleep(1)
    context.journal.transition(State.CUTOVER, "t")
    context.journal.step("freeze_lifted", key="1", details={})
    context.journal.transition(State.TAIL, "t", from_states={State.CUTOVER})
    clock.sleep(1)
    with pytest.raises(ApprovalRefused):
        check.require(context, "cutover")
    answers.answer(context, approval(context, "cutover", request.make_facts(context, "cutover").code))
    assert check.require(context, "cutover")
    assert context.journal.tip_state is State.DRAIN_READY


@pytest.mark.parametrize("ahead_seconds", [-50, 50])
def test_the_order_of_entries_decides_whether_an_approval_is_newer_than_a_lift(
    tmp_path: Path, ahead_seconds: int
) -> None:
    """The lift is journaled by a machine whose clock is wrong."""
    clock = Clock()
    context = ready(tmp_path, clock=clock)
    answers.answer(context, approval(context, "cutover", request.make_facts(context, "cutover").code))
    context.journal.transition(State.CUTOVER, "t")
    clock.sleep(ahead_seconds)
    context.journal.step("freeze_lifted", key="1", details={})
    context.journal.transition(State.TAIL, "t", from_states={State.CUTOVER})
    clock.sleep(-ahead_seconds)
    assert check.given(context, "cutover") == [], "the approval before the lift is used up"
    answers.answer(context, approval(context, "cutover", request.make_facts(context, "cutover").code))
    assert len(check.require(context, "cutover")) == 1


def test_after_a_lift_the_first_of_two_people_answers_again(tmp_path: Path) -> None:
    context = ready(tmp_path, approvals={"second_users": ["bob"]})
    answers.answer(context, approval(context, "cutover", request.make_facts(context, "cutover").code))
    context.journal.transition(State.CUTOVER, "t")
    context.journal.step("freeze_lifted", key="1", details={})
    context.journal.transition(State.TAIL, "t", from_states={State.CUTOVER})
    code = request.make_facts(context, "cutover").code
    with pytest.raises(ApprovalRefused, match="first person"):
        answers.answer(context, approval(context, "cutover", code, user="bob", second=True))


def after_the_cutover(folder: Path, step: dict[str, Any] | None) -> PhaseContext:
    """A migration whose clients may switch; ``step`` is what the journal has of the fence, None: nothing."""
    context = ready(folder)
    requested = {"method": "manual", "requested_at": iso(context.now()), "deadline": iso(context.now())}
    context.journal.step(steps.FREEZE_REQUESTED, key="1", details=requested)
    if step is not None:
        context.journal.step(steps.CUTOVER_STEP, key=f"1/{steps.FENCE}", details=step)
    return context


@pytest.mark.parametrize(
    ("step", "shown"),
    [
        (None, "not fenced on the target**: the journal has no entry of a fence in this cutover. Make sure"),
        ({"summary": "-", "unfenced": []}, "not fenced on the target**: cutover.fence_copiers is false. Make sure"),
        (
            {
                "markers": {"orders-0": 100},
                "transactional": 0,
                "unfenced": [{"topic": "orders", "partition": 1, "reason": "no leader", "error": "BROKER_BUSY"}],
            },
            "not fenced on 1 target partitions.** Make sure",
        ),
        ({"markers": {"orders-0": 100, "orders-1": 50}, "transactional": 0, "unfenced": []}, None),
    ],
    ids=["no step", "left out", "in part", "everywhere"],
)
def test_the_client_switch_says_where_the_producer_is_not_fenced(
    tmp_path: Path, step: dict[str, Any] | None, shown: str | None
) -> None:
    """That nothing is named as unfenced is no proof: the fence may have been left out, or never run."""
    context = after_the_cutover(tmp_path, step)
    body = request.make_facts(context, "client_switch").body
    if shown is None:
        assert "not fenced" not in body
    else:
        assert shown in body
    assert ("- orders-1: no leader" in body) is bool(step and step["unfenced"])
