"""Approvals: live facts for a person, a code that binds the answer to what will happen, and the check of the answer.

A click alone never authorises: Airflow shows the first text again after a clear. So the text holds a code, the first
8 hex digits of a digest over what will happen; the person types it, and it is compared with a fresh digest when the
answer comes in. No code, no cutover, REST included.
"""

from __future__ import annotations

import hmac
import logging
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
from airflow_provider_kafka_migration.phases import (
    approval_text,
    behind_boundary,
    drain,
    fence,
    freeze_words,
    frozen,
    groups,
    handover,
    left_out,
    proof,
    take_over_drift,
)
from airflow_provider_kafka_migration.phases.content_ranges import content_ranges
from airflow_provider_kafka_migration.phases.context import PhaseContext
from airflow_provider_kafka_migration.phases.group_translation import count_translations
from airflow_provider_kafka_migration.phases.handover import Handover
from airflow_provider_kafka_migration.phases.migrated import migrated_partitions, result_data
from airflow_provider_kafka_migration.phases.offset_maps import load_document
from airflow_provider_kafka_migration.phases.overtaken import overtaken_tombstones
from airflow_provider_kafka_migration.phases.timing import iso, parse_iso, words

log = logging.getLogger(__name__)

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
    facts = {**facts, "overtaken_tombstones": overtaken_tombstones(context)}
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
    if kind == "client_switch":
        _prove_rest(context)
    facts = make_facts(context, kind)
    context.journal.step(
        SHOWN, key=kind, details={"code": facts.code, "facts_digest": facts.digest(), "made_at": facts.made_at}
    )
    return facts


def _prove_rest(context: PhaseContext) -> None:
    """Compare what is left up to the boundary, and journal what is proven: no client has moved yet."""
    document = load_document(context)
    if document is None or not context.spec.validation.before_cutover:
        return
    rest = proof.prove_rest(context, content_ranges(document))
    status = _proof_to_boundary(context, rest.unchecked)
    if status is not None:
        proof.journal_status(context, "client_switch", status)
    if rest.why:
        log.warning("Not all content up to the boundary is proven: %s", rest.why)


def _proof_to_boundary(context: PhaseContext, unchecked: int | None = None) -> proof.ProofStatus | None:
    """What is proven up to the boundary of the cutover; None before there is one, or if nothing is compared.

    :param unchecked: partitions whose target log could not be looked at; None: as it was journaled last.
    """
    document = load_document(context)
    if document is None or not context.spec.validation.before_cutover:
        return None
    ends = {(item.topic, item.partition): item.source_end_offset or 0 for item in document.partitions}
    if unchecked is None:
        looked = context.journal.find_step(proof.STEP, "client_switch")
        # Nobody has looked at any of them yet.
        unchecked = len(ends) if looked is None else int(looked.details.get("unchecked_partitions", len(ends)))
    return proof.read_status(context, ends, unchecked=unchecked)


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
            # Only where it is set: codes that people hold stay valid over an update.
            **({"in_one_task": True} if section.in_one_task else {}),
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
    changes = handover.of(context)
    return {
        "proof": _proof_so_far(context, status),
        "lag": drain.lag_by_topic(list(status.lags)),
        "total_lag": status.total,
        "partitions": len(status.lags),
        "max_lag": status.max_lag,
        "tail": status.tail.text,
        "tail_copies_all": status.tail.copies_all,
        "groups": [_group_line(item) for item in previews],
        "findings": waived_findings(context),
        "source_drift": take_over_drift.facts(context),
        "expected_freeze_seconds": estimate_freeze_seconds(
            partitions=len(status.lags),
            group_count=len(previews),
            lag=status.total,
            window_seconds=context.spec.cutover.freeze_stable_window.total_seconds(),
            handover_seconds=changes.frozen_seconds,
        ),
        "handover": changes.as_dict(),
        "cannot_fit": _cannot_fit(context, changes) or "",
    }


def _cannot_fit(context: PhaseContext, changes: Handover) -> str | None:
    """Why the cutover cannot be done within ``max_producer_freeze`` even if nothing is left to copy; else None.

    Only what was measured counts, and of that the shortest: neither a guess nor a wait for a slot may refuse.
    """
    section = context.spec.cutover
    if not changes.measured or not changes.changes:
        return None
    least = section.freeze_stable_window.total_seconds() + changes.changes * changes.least_seconds
    limit = section.max_producer_freeze.total_seconds()
    if least <= limit:
        return None
    return (
        f"producers would be frozen for {words(least)} at least, and max_producer_freeze is {words(limit)}: "
        f"{changes.changes} changes from task to task at {words(changes.least_seconds)} each, the shortest measured "
        f"in this migration, and the window of {words(section.freeze_stable_window.total_seconds())}"
    )


def _proof_so_far(context: PhaseContext, status: drain.DrainStatus) -> dict[str, Any] | None:
    if not context.spec.validation.before_cutover:
        return None
    positions = {(item.topic, item.partition): item.position for item in status.lags}
    return proof.read_status(context, positions).as_dict()


def _client_switch_facts(context: PhaseContext) -> dict[str, Any]:
    result = groups.load_result(context)
    proven = _proof_to_boundary(context)
    return {
        "proof": None if proven is None else proven.as_dict(),
        "frozen": result_data(context, "frozen-time"),
        "boundary": result_data(context, "boundary"),
        "groups": [_group_line(item) for item in result.groups] if result else [],
        "active_on_source": [item.group for item in groups.read_groups(context) if item.members],
        "behind_boundary": behind_boundary.read(context).as_dict(),
        "findings": waived_findings(context),
        **_fence_facts(context),
    }


def _fence_facts(context: PhaseContext) -> dict[str, Any]:
    """Why nothing is fenced ("": there was a fence), and on which target partitions an old copier can still write."""
    attempt = frozen.current_attempt(context)
    step = frozen.step_done(context, attempt, fence.STEP) if attempt else None
    if step is None:
        return {"not_fenced": "the journal names no fence of this cutover", "unfenced": []}
    if not fence.was_run(step):
        return {"not_fenced": "cutover.fence_copiers is false", "unfenced": []}
    rows = [f"{item['topic']}-{item['partition']}: {item['reason']}" for item in step.get("unfenced", [])]
    return {"not_fenced": "", "unfenced": rows}


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


#: From the request to stop until nothing of the producers is on its way any more, without the window.
STOP_SECONDS = 3.0


def estimate_freeze_seconds(
    *, partitions: int, group_count: int, lag: int, window_seconds: float, handover_seconds: float
) -> float:
    """How long producers will probably be frozen, in seconds, from measured rates (docs/cutover.md).

    Counted from the moment they are asked to stop. The way to the producers; the window; sentinels and checks by
    partitions; what is still to be copied; the tail's next look at its stop; group commits; and the way from task to
    task (:mod:`~.handover`).
    """
    copy = lag / 20_000
    return round(STOP_SECONDS + window_seconds + 2.0 + partitions / 150 + copy + group_count / 20 + handover_seconds, 1)


# -- answers ---------------------------------------------------------------------------------------------------------


def check_approval(context: PhaseContext, answer: ApprovalAnswer) -> ApprovalAnswer:
    """Check an answer and write it to the journal; the answer as journaled.

    An approval has to carry the present code; "not_yet" and "abort" change nothing by themselves and need none.

    :raises ApprovalRefused: no code, a wrong or outdated one, too old, lag risen, the same person twice, records on the
        source behind the boundary.
    """
    answer = answer.model_copy(update={"code": _clean(answer.code)})
    key = answer_key(answer.kind, second=answer.second)
    if answer.decision == "approve":
        try:
            _check_person(context, answer)
            _check_code(context, answer)
            _check_age(context, answer)
            if answer.kind == "cutover":
                _check_budget(context)
                _check_lag(context)
            else:
                _check_source_stands(context)
            _check_proof(context, answer)
        except ApprovalRefused as error:
            if answer.kind == "cutover" and context.spec.cutover.freeze == "manual":
                # Whoever approves has stopped the producers before.
                error.add_next_step(freeze_words.not_begun("manual"))
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


def _check_budget(context: PhaseContext) -> None:
    why = _cannot_fit(context, handover.of(context))
    if why is not None:
        raise ApprovalRefused(
            f"the cutover cannot be done in time: {why}",
            where=context.where("cutover"),
            next_step="set cutover.in_one_task: true, which runs all steps in one task; or raise "
            "cutover.max_producer_freeze; or give the cutover's tasks a faster executor. Then clear the approval task; "
            + freeze_words.IF_PARAMS,
        )


def _check_lag(context: PhaseContext) -> None:
    status = drain.small_again(context)
    worst = status.worst
    if worst is not None and not status.is_small:
        raise ApprovalRefused(
            f"{why_not_small(status)}: {status.summary()}",
            where=context.where("drain_ready", topic=worst.topic, partition=worst.partition),
            next_step="clear drain_ready and what follows it (or kafka-migration resume FILE): it asks again when all "
            "lags are small",
        )


def _check_source_stands(context: PhaseContext) -> None:
    """Nothing is on the source that the target will never get, unless ``on_bypass: continue`` accepts it.

    :raises ApprovalRefused: records lie behind the boundary, or that could not be checked; all partitions are named.
    """
    if behind_boundary.is_accepted(context):
        return
    found = behind_boundary.read(context)
    if found.problem:
        raise ApprovalRefused(
            f"the approval of the client switch is refused: {found.problem}",
            where=context.where("client_switch", cluster="source"),
            next_step=found.next_step,
            details=found.as_dict(),
        )


def why_not_small(status: drain.DrainStatus) -> str:
    """What stands in the way of a cutover, for people; the status has the figures."""
    if not status.tail.copies_all:
        return "the tail does not copy all partitions"
    return "the lag has risen since the approval" if status.tail.is_heard else "the tail is not heard from"


def _check_proof(context: PhaseContext, answer: ApprovalAnswer) -> None:
    """A difference that was found stands in the way of both approvals, unless the policy is to show it only.

    :raises ApprovalRefused: partitions differ; all are named in ``details``.
    """
    section = context.spec.validation
    if not section.before_cutover:
        return
    status = _proof_to_boundary(context) if answer.kind == "client_switch" else None
    if status is None:
        status = proof.read_status(context, dict.fromkeys(migrated_partitions(context), 0))
    proof.journal_status(context, f"{answer.kind}/answer", status)
    if not status.differing or section.on_difference == "warn":
        return
    name, what = next(iter(status.differing.items()))
    raise ApprovalRefused(
        f"the approval of the {answer.kind.replace('_', ' ')} is refused: {len(status.differing)} partitions differ "
        f"between source and target; the first is {name}: {what}",
        where=context.where(answer.kind),
        next_step="find out who has written to the target topic; the comparison looks again in each slice of the tail, "
        "and a resolved difference no longer blocks. To proceed anyway, set validation.on_difference: warn",
        details={"differing": status.differing},
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
