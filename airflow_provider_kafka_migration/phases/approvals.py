"""Approvals: live facts for a person, a code that binds the answer to what will happen, and the check of the answer.

A click alone never authorises: Airflow shows the first text again after a clear. So the text holds a code, the first
8 hex digits of a digest over what will happen; the person types it, and it is compared with a fresh digest when the
answer comes in. No code, no cutover, REST included.
"""

from __future__ import annotations

import hmac
import re
from datetime import timedelta
from typing import Any

from airflow_provider_kafka_migration.documents.approval import (
    ApprovalAnswer,
    ApprovalFacts,
    ApprovalKind,
)
from airflow_provider_kafka_migration.documents.base import canonical_digest
from airflow_provider_kafka_migration.documents.groups import GroupResult
from airflow_provider_kafka_migration.errors import ApprovalRefused
from airflow_provider_kafka_migration.phases import approval_text, drain, groups, left_out, take_over_drift
from airflow_provider_kafka_migration.phases.context import PhaseContext
from airflow_provider_kafka_migration.phases.group_translation import count_translations
from airflow_provider_kafka_migration.phases.migrated import migrated_partitions, result_data
from airflow_provider_kafka_migration.phases.timing import iso, parse_iso

STEP = "approval"
SHOWN = "approval_shown"
REFUSED = "approval_refused"
CODE_DIGITS = 8


# -- facts -----------------------------------------------------------------------------------------------------------


def make_facts(context: PhaseContext, kind: ApprovalKind) -> ApprovalFacts:
    """Live facts, the code and the text of an approval. Reads only."""
    binding = make_binding(context, kind)
    code = code_of(binding)
    facts = _cutover_facts(context) if kind == "cutover" else _client_switch_facts(context)
    others = left_out.look(context, context.load_plan())
    facts = {**facts, "signing_key": _signing_key(context), "left_out": [list(row) for row in left_out.rows(others)]}
    subject, body = approval_text.render(context.spec, kind, code, facts)
    return ApprovalFacts(
        migration_id=context.migration_id,
        kind=kind,
        code=code,
        binding=binding,
        facts=facts,
        subject=subject,
        body=body,
        made_at=iso(context.now()),
    )


def show(context: PhaseContext, kind: ApprovalKind) -> ApprovalFacts:
    """:func:`make_facts`, and what was shown goes to the journal (digest and code; the text goes there as answered)."""
    facts = make_facts(context, kind)
    context.journal.step(
        SHOWN, key=kind, details={"code": facts.code, "facts_digest": facts.digest(), "made_at": facts.made_at}
    )
    return facts


def code_of(binding: dict[str, Any]) -> str:
    """The code of a binding: 8 hex digits."""
    return canonical_digest(binding)[:CODE_DIGITS]


def make_binding(context: PhaseContext, kind: ApprovalKind) -> dict[str, Any]:
    """What will happen, as data. Things that move all the time (lag, offsets, times) are not in it."""
    section = context.spec.cutover
    binding: dict[str, Any] = {
        "kind": kind,
        "migration_id": context.migration_id,
        "plan": context.load_plan().digest(),
        "topology": _topology_digest(context),
        "partitions": canonical_digest([list(key) for key in migrated_partitions(context)]),
        "groups": _group_binding(context),
    }
    if kind == "cutover":
        binding["cutover"] = {
            "freeze": section.freeze,
            "sentinel": section.sentinel,
            "on_bypass": section.on_bypass,
            "max_producer_freeze_seconds": section.max_producer_freeze.total_seconds(),
            "lifted_before": len(context.journal.steps("freeze_lifted")),
        }
    else:
        binding["boundary"] = canonical_digest(result_data(context, "boundary"))
        binding["on_active_source"] = context.spec.groups.on_active_source
    return binding


def _topology_digest(context: PhaseContext) -> str:
    entry = context.journal.find_step("topology_copied") or context.journal.find_step("topology_copy")
    return canonical_digest(entry.details) if entry is not None else ""


def _group_binding(context: PhaseContext) -> list[list[str]]:
    """Ids and kinds of the groups that will be moved."""
    listings = context.source.admin.list_groups()
    return [[name, listings[name].type] for name in sorted(listings) if context.spec.groups.selects(name)]


def _cutover_facts(context: PhaseContext) -> dict[str, Any]:
    status = drain.check(context)
    previews = groups.preview(context)
    return {
        "lag": drain.lag_by_topic(list(status.lags)),
        "total_lag": status.total,
        "partitions": len(status.lags),
        "max_lag": status.max_lag,
        "groups": [_group_line(item) for item in previews],
        "findings": waived_findings(context),
        "source_drift": take_over_drift.facts(context),
        "expected_freeze_seconds": estimate_freeze_seconds(
            partitions=len(status.lags),
            group_count=len(previews),
            lag=status.total,
            window_seconds=context.spec.cutover.freeze_stable_window.total_seconds(),
        ),
    }


def _client_switch_facts(context: PhaseContext) -> dict[str, Any]:
    result = groups.load_result(context)
    return {
        "frozen": result_data(context, "frozen-time"),
        "boundary": result_data(context, "boundary"),
        "groups": [_group_line(item) for item in result.groups] if result else [],
        "active_on_source": [item.group for item in groups.read_groups(context) if item.members],
        "findings": waived_findings(context),
    }


def _group_line(group: GroupResult) -> dict[str, Any]:
    return {
        "group": group.group,
        "type": group.type,
        "source_state": group.source_state,
        "target_state": group.target_state,
        "partitions": len(group.offsets),
        "translations": count_translations(list(group.offsets)),
        "left_alone": group.skipped_reason,
        "failures": [failure["what"] for failure in group.failures],
    }


def waived_findings(context: PhaseContext) -> list[dict[str, Any]]:
    """Findings of the precheck that somebody accepted, and the other warnings."""
    findings = result_data(context, "precheck").get("findings", [])
    return [item for item in findings if item.get("waived") or item.get("severity") == "Warning"]


def _signing_key(context: PhaseContext) -> str:
    from airflow_provider_kafka_migration.phases.signing import fingerprint_for_people

    return fingerprint_for_people(context)


def estimate_freeze_seconds(*, partitions: int, group_count: int, lag: int, window_seconds: float) -> float:
    """How long producers will probably be frozen, in seconds, from measured rates (docs/cutover.md).

    The window; sentinels and checks by partitions; what is still to be copied; the tail's next look at its stop;
    group commits; and the scheduler's way from task to task.
    """
    copy = lag / 20_000
    return round(window_seconds + 2.0 + partitions / 150 + copy + group_count / 20 + 5.0, 1)


# -- answers ---------------------------------------------------------------------------------------------------------


def check_approval(context: PhaseContext, answer: ApprovalAnswer) -> ApprovalAnswer:
    """Check an answer and write it to the journal; the answer as journaled.

    An approval has to carry the present code; "not_yet" and "abort" change nothing by themselves and need none.

    :raises ApprovalRefused: no code, a wrong or outdated one, too old, lag risen, the same person twice.
    """
    answer = answer.model_copy(update={"code": _clean(answer.code)})
    key = answer_key(answer.kind, second=answer.second)
    if answer.decision == "approve":
        try:
            _check_person(context, answer)
            _check_code(context, answer)
            _check_age(context, answer)
            if answer.kind == "cutover":
                _check_lag(context)
        except ApprovalRefused as error:
            details = {"answer": answer.model_dump(mode="json"), "why": error.what}
            context.journal.step(REFUSED, key=key, details=details, reason=error.what)
            raise
    context.journal.step(STEP, key=key, details=answer.model_dump(mode="json"), reason=_reason(answer))
    return answer


def answer_key(kind: ApprovalKind, *, second: bool) -> str:
    """Key of the journal step of an answer."""
    return f"{kind}/second" if second else kind


def _clean(code: str) -> str:
    """White space that a person may have typed is taken off; anything else stays, to be refused."""
    return re.sub(r"\s", "", code).lower()[:40]


def _person(answer: ApprovalAnswer) -> str:
    return answer.responders[0].user_id if answer.responders else ""


def _reason(answer: ApprovalAnswer) -> str:
    people = " and ".join(item.user_name or item.user_id for item in answer.responders) or "unknown"
    return f"approval of the {answer.kind.replace('_', ' ')}: {answer.decision} by {people}"


def _check_person(context: PhaseContext, answer: ApprovalAnswer) -> None:
    section = context.spec.approvals
    person = _person(answer)
    if not person:
        raise _refused(context, answer, "it is not known who answered")
    allowed = section.second_users if answer.second else section.assigned_users
    if allowed and person not in allowed:
        raise _refused(context, answer, f"{person} is not among those who may approve")
    if answer.second:
        first = context.journal.find_step(STEP, answer_key(answer.kind, second=False))
        if first is None:
            raise _refused(context, answer, "the first person has not answered yet")
        if _person(ApprovalAnswer.model_validate(first.details)) == person:
            raise _refused(context, answer, f"both answers are from the same person, {person}")


def _check_code(context: PhaseContext, answer: ApprovalAnswer) -> None:
    if not answer.code:
        raise _refused(context, answer, "the answer has no code")
    fresh = code_of(make_binding(context, answer.kind))
    if not hmac.compare_digest(fresh.encode(), answer.code.encode()):
        raise _refused(
            context,
            answer,
            f"the code {answer.code!r} is not the present one: a typing error, or what will happen has changed "
            "since the text was made",
        )


def _check_age(context: PhaseContext, answer: ApprovalAnswer) -> None:
    age = context.now() - parse_iso(answer.answered_at)
    if age > context.spec.approvals.max_age:
        raise _refused(context, answer, f"the answer is {age.total_seconds():.0f} s old")
    if age < timedelta(seconds=-60):
        raise _refused(context, answer, "the answer comes from the future; check the machines' clocks")


def _check_lag(context: PhaseContext) -> None:
    status = drain.small_again(context)
    worst = status.worst
    if worst is not None and worst.lag > status.max_lag:
        raise ApprovalRefused(
            f"the lag has risen since the approval: {status.summary()}",
            where=context.where("drain_ready", topic=worst.topic, partition=worst.partition),
            next_step="clear drain_ready and what follows it: it asks again when the lag is small",
        )


def _refused(context: PhaseContext, answer: ApprovalAnswer, why: str) -> ApprovalRefused:
    return ApprovalRefused(
        f"the approval of the {answer.kind.replace('_', ' ')} is refused: {why}",
        where=context.where(answer.kind),
        next_step="clear the approval task; its new text and log, and `kafka-migration status`, show the present code",
    )


# -- later: was it approved? -----------------------------------------------------------------------------------------


def given(context: PhaseContext, kind: ApprovalKind, *, newer_than: str | None = None) -> list[ApprovalAnswer]:
    """The approvals in the journal that count: the latest answer of the first and of the second person."""
    found = []
    for second in (False, True):
        entry = context.journal.find_step(STEP, answer_key(kind, second=second))
        if entry is None or (newer_than is not None and parse_iso(entry.at) <= parse_iso(newer_than)):
            continue
        answer = ApprovalAnswer.model_validate(entry.details)
        if answer.decision == "approve":
            found.append(answer)
    return found


def require(context: PhaseContext, kind: ApprovalKind, *, newer_than: str | None = None) -> list[ApprovalAnswer]:
    """The approvals in the journal that allow to go on now: one, or those of two people.

    :param newer_than: time (ISO 8601) of something after which an older approval does not count any more.
    :raises ApprovalRefused: one is missing, is too old, or what will happen has changed since.
    """
    answers = given(context, kind, newer_than=newer_than)
    wanted = 2 if context.spec.approvals.second_users else 1
    if len({_person(item) for item in answers}) < wanted:
        raise ApprovalRefused(
            f"{wanted} people must approve the {kind.replace('_', ' ')}, and {len(answers)} did"
            if wanted > 1
            else f"nobody has approved the {kind.replace('_', ' ')}",
            where=context.where(kind),
            next_step="answer the approval (Airflow: Required Actions; or kafka-migration resume FILE --approve CODE)",
        )
    for answer in answers:
        _check_code(context, answer)
        _check_age(context, answer)
    return answers


def lifted_at(context: PhaseContext) -> str | None:
    """When the last freeze was lifted: older approvals of the cutover do not count."""
    entry = context.journal.find_step("freeze_lifted")
    return entry.at if entry else None
