"""Keep or back: each decision has its own code, and nothing decides by itself."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from phase_support import approval, ready

from airflow_provider_kafka_migration.approvals import answers, check, request, way_back
from airflow_provider_kafka_migration.approvals.code import code_of
from airflow_provider_kafka_migration.errors import ApprovalRefused, IllegalTransition
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.pages import rendering
from airflow_provider_kafka_migration.phases import rollback
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.state import State


@pytest.fixture
def context(tmp_path: Path) -> PhaseContext:
    """A way back that has caught up; the first migration's clients switched a moment ago."""
    made = ready(tmp_path)
    data = made.spec.model_dump(mode="json", by_alias=True)
    data |= {"adopt": {"from": "way_back", "migration_id": "m0"}, "way_back": {"keep_for": "7d"}}
    first = Journal.create_or_open(
        made.journal_store,
        "m0",
        Fingerprint("target-id", "source-id"),
        owner=Owner("cli", "tester", "tester"),
        clock=made.now,
    )
    first.step(steps.CLIENT_SWITCH_ACKNOWLEDGED, details={})
    return replace(made, spec=parse_spec(data))


def _abort(context: PhaseContext, code: str) -> Any:
    return answers.answer(context, approval(context, "cutover", code, decision="abort"))


def test_keeping_needs_its_own_code(context: PhaseContext) -> None:
    keep = way_back.keep_code(context.record)
    back = code_of(request.make_binding(context.record, context.source, "cutover"))
    assert keep != back
    for wrong in ("", "00000000", back):
        with pytest.raises(ApprovalRefused, match=r"keep(ing)? the new cluster"):
            _abort(context, wrong)
    assert len(context.journal.steps(steps.APPROVAL_REFUSED)) == 3
    with pytest.raises(ApprovalRefused):
        answers.answer(context, approval(context, "cutover", keep))
    assert _abort(context, f" {keep.upper()} ").details["decision"] == "abort"


def _decided_by(context: PhaseContext, **section: Any) -> PhaseContext:
    approvals = context.spec.approvals.model_copy(update=section)
    return replace(context, spec=context.spec.model_copy(update={"approvals": approvals}))


def _keep(context: PhaseContext, user: str, *, second: bool = False) -> None:
    code = way_back.keep_code(context.record)
    answers.answer(context, approval(context, "cutover", code, user=user, decision="abort", second=second))


def test_only_those_who_are_assigned_keep_the_new_cluster(context: PhaseContext) -> None:
    context = _decided_by(context, assigned_users=["ann"])
    with pytest.raises(ApprovalRefused, match="bob is not among those who may approve"):
        _keep(context, "bob")
    assert not way_back.is_keep_decided(context.record)
    assert context.journal.steps(steps.APPROVAL_REFUSED)
    with pytest.raises(ApprovalRefused, match="none of them has"):
        rollback.check_allowed(context.record, way_back.keep_code(context.record))
    _keep(context, "ann")
    assert way_back.is_keep_decided(context.record)
    assert rollback.check_allowed(context.record) is not None


def test_an_old_answer_does_not_keep_the_new_cluster(context: PhaseContext) -> None:
    old = approval(context, "cutover", way_back.keep_code(context.record), decision="abort")
    late = replace(context, now=lambda: context.now() + timedelta(days=2))
    with pytest.raises(ApprovalRefused, match="s old"):
        answers.answer(late, old)
    assert not way_back.is_keep_decided(context.record)


def test_where_two_people_decide_two_keep_the_new_cluster(context: PhaseContext) -> None:
    context = _decided_by(context, assigned_users=["ann"], second_users=["bob", "ann"])
    code = way_back.keep_code(context.record)
    with pytest.raises(ApprovalRefused, match="the first person has not answered yet"):
        _keep(context, "bob", second=True)
    _keep(context, "ann")
    assert not way_back.is_keep_decided(context.record)
    for given, why in ((code, "not two of them have"), ("", "needs its code")):
        with pytest.raises(ApprovalRefused, match=why):
            rollback.check_allowed(context.record, given)
    assert not check.is_second_keep(context.record, "ann", code)
    with pytest.raises(ApprovalRefused, match="both answers are from the same person"):
        _keep(context, "ann", second=True)
    assert check.is_second_keep(context.record, "bob", code)
    _keep(context, "bob", second=True)
    assert way_back.is_keep_decided(context.record)
    answers.answer(context, approval(context, "cutover", "", decision="not_yet"))
    assert not way_back.is_keep_decided(context.record), "the first person has thought again"


def test_two_people_keep_the_same(context: PhaseContext) -> None:
    """What is put back has changed between the two answers, so the first one did not see it."""
    context = _decided_by(context, second_users=["bob"])
    _keep(context, "ann")
    acl = ["TOPIC", "t", "LITERAL", "User:a", "*", "WRITE", "DENY"]
    context.journal.step(steps.OLD_CLUSTER_GUARDED, details={"acls": [acl]})
    assert not check.is_second_keep(context.record, "bob", way_back.keep_code(context.record))
    _keep(context, "bob", second=True)
    assert not way_back.is_keep_decided(context.record)
    _keep(context, "ann")
    assert way_back.is_keep_decided(context.record)


def test_other_migrations_are_aborted_with_a_code_of_their_own(tmp_path: Path) -> None:
    plain = ready(tmp_path)
    with pytest.raises(ApprovalRefused):
        _abort(plain, "")
    assert _abort(plain, request.abort_code(plain.record)).details["decision"] == "abort"


def test_the_code_changes_with_what_is_put_back(context: PhaseContext) -> None:
    before = way_back.keep_code(context.record)
    context.journal.step(
        steps.OLD_CLUSTER_GUARDED, details={"acls": [["TOPIC", "t", "LITERAL", "User:a", "*", "WRITE", "DENY"]]}
    )
    assert way_back.keep_code(context.record) != before


def test_the_text_shows_both_decisions_and_when_it_is_asked_again(context: PhaseContext) -> None:
    body = request.make_facts(context, "cutover").body
    assert "way back of migration m0" in body
    assert f"--approve {way_back.keep_code(context.record)}" in body
    assert "Decide until" in body
    late = replace(context, now=lambda: context.now() + timedelta(days=8))
    assert "The time to decide was" in request.make_facts(late, "cutover").body
    assert "way back" not in request.make_facts(replace(context, spec=_plain(context)), "cutover").body


def _plain(context: PhaseContext) -> Any:
    return context.spec.model_copy(update={"adopt": None, "way_back": None})


@pytest.mark.parametrize("state", [State.AWAITING_CLIENT_SWITCH, State.FINALIZED])
def test_it_is_too_late_to_keep_once_clients_were_told_to_return(tmp_path: Path, state: State) -> None:
    from phase_support import make_context

    with pytest.raises(IllegalTransition, match="cannot be kept any more") as refused:
        way_back.check_can_keep(make_context(tmp_path, state=state).record)
    assert "way-back return" in str(refused.value.next_step)


@pytest.mark.parametrize("todo", ["", "start the producers of the old cluster"])
def test_the_return_says_what_a_person_has_to_start(context: PhaseContext, todo: str) -> None:
    context.journal.step(steps.READY_FOR_CLIENT_RETURN, details={"todo": todo} if todo else {})
    shown = rendering.render("approval_way_back.md.j2", way_back=way_back.facts(context.record), boundary_is_known=True)
    assert "its producers are let in" in shown
    assert ("stopped by hand" in shown and todo in shown) is bool(todo)
