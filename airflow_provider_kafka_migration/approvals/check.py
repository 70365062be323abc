"""Check whether an answer to an approval is valid, and find the answers that have been given."""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from airflow_provider_kafka_migration.approvals import abandon, proof, way_back
from airflow_provider_kafka_migration.approvals.code import code_of
from airflow_provider_kafka_migration.approvals.request import (
    abort_code,
    cannot_fit,
    changes_since,
    make_binding,
    proof_to_boundary,
)
from airflow_provider_kafka_migration.documents.cutover import ApprovalAnswer, ApprovalKind
from airflow_provider_kafka_migration.errors import ApprovalRefused
from airflow_provider_kafka_migration.freeze import late_writes, words
from airflow_provider_kafka_migration.record import handover, rolling_back, steps
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import parse_iso
from airflow_provider_kafka_migration.topics import lags


def check_approval(context: PhaseContext, answer: ApprovalAnswer) -> ApprovalAnswer:
    """Check an answer and write it to the journal; return it as journaled.

    An approval must carry the current code, and what is final, "abort" and "back_out", a code of its own; "not_yet"
    needs none. To "abort" a way back keeps the new cluster, and to "back_out" abandons a migration whose clients were
    told to switch: both need the same people as an approval.

    :raises ApprovalRefused: the code is missing, wrong or outdated; the answer is too old; the lag has risen; the same
        person has answered twice; or the source has records beyond the boundary.
    :raises IllegalTransition: a rollback has begun.
    """
    record = context.record
    rolling_back.check_not_begun(record.journal, record.spec, f"approve_{answer.kind}")
    answer = answer.model_copy(update={"code": _clean(answer.code)})
    key = answer_key(answer.kind, second=answer.second)
    if answer.decision == "approve":
        try:
            _check_person(record, answer)
            _check_code(record, context.source, answer)
            _check_age(record, answer)
            if answer.kind == "cutover":
                _check_budget(record)
                _check_lag(context)
            else:
                _check_source_stands(record, context.source)
            _check_proof(record, answer)
        except ApprovalRefused as error:
            if answer.kind == "cutover" and context.spec.cutover.freeze == "manual":
                # With ``freeze: manual``, people have stopped the producers before they approve.
                error.add_next_step(words.not_begun("manual"))
            details = {"answer": answer.model_dump(mode="json"), "why": error.what}
            context.journal.step(steps.APPROVAL_REFUSED, key=key, details=details, reason=error.what)
            raise
    final = _checks_of_an_end(context, answer)
    if final is not None:
        try:
            final()
        except ApprovalRefused as error:
            details = {"answer": answer.model_dump(mode="json"), "why": error.what}
            context.journal.step(steps.APPROVAL_REFUSED, key=key, details=details, reason=error.what)
            raise
    context.journal.step(steps.APPROVAL, key=key, details=answer.model_dump(mode="json"), reason=_reason(answer))
    return answer


def _checks_of_an_end(context: PhaseContext, answer: ApprovalAnswer) -> Callable[[], None] | None:
    """Return what checks an answer that ends a migration for good; None: the answer does not."""
    if answer.decision == "back_out":
        return partial(check_abandon, context, answer)
    if answer.decision == "abort":
        return partial(check_keep if context.spec.is_way_back else _check_abort, context.record, answer)
    return None


def check_abandon(context: PhaseContext, answer: ApprovalAnswer) -> None:
    """Check an answer that abandons a migration whose clients were told to switch; write nothing.

    :raises IllegalTransition: it is too early or too late for that.
    :raises ApprovalRefused: the code is not the present one; the answer is too old; the person may not decide that; or
        clients have written to the target, or may have.
    """
    record = context.record
    abandon.check_possible(record)
    abandon.check_code(record, _clean(answer.code))
    _check_person(record, answer)
    _check_age(record, answer)
    abandon.check_target(record, context.target, accepts_unread=answer.target_unread)


def is_second_abandon(record: MigrationRecord, person: str, code: str) -> bool:
    """Whether this person would be the second one who abandons the migration with a code, where two have to."""
    return _is_second_end(record, "client_switch", "back_out", person, code)


def check_keep(record: MigrationRecord, answer: ApprovalAnswer) -> None:
    """Check an answer that keeps the new cluster, which is as final as going back; write nothing.

    :raises ApprovalRefused: the code is not the present one; the answer is too old; or the person may not decide that.
    """
    way_back.check_code(record, answer.code)
    _check_person(record, answer)
    _check_age(record, answer)


def _check_abort(record: MigrationRecord, answer: ApprovalAnswer) -> None:
    """Check an answer that ends the migration for good.

    :raises ApprovalRefused: the code is not the one for that; the answer is too old; or the person may not answer.
    """
    check_abort_code(record, answer.code)
    section = record.spec.approvals
    allowed = section.second_users if answer.second else section.assigned_users
    _check_allowed(record, answer, allowed)
    _check_age(record, answer)


def check_abort_code(record: MigrationRecord, code: str) -> None:
    """Check the code of a person who ends the migration.

    :raises ApprovalRefused: it is not the code for that.
    """
    given = _clean(code)
    if hmac.compare_digest(abort_code(record).encode(), given.encode()):
        return
    raise ApprovalRefused(
        f"the code {given[:20]!r} does not end the migration" if given else "ending the migration needs its code",
        where=record.where("rollback"),
        next_step="type the code that the text shows for *Abort*: it is not the code that approves the cutover. Clear "
        "the approval task; its log shows the current text. `kafka-migration rollback FILE` shows the code as well",
        details={"given": given[:20]},
    )


def is_second_keep(record: MigrationRecord, person: str, code: str) -> bool:
    """Whether this person would be the second one who keeps the new cluster with a code, where two have to."""
    return _is_second_end(record, "cutover", "abort", person, code)


def _is_second_end(record: MigrationRecord, kind: ApprovalKind, decision: str, person: str, code: str) -> bool:
    entry = record.journal.find_step(steps.APPROVAL, answer_key(kind, second=False))
    if entry is None or not record.spec.approvals.second_users:
        return False
    first = ApprovalAnswer.model_validate(entry.details)
    return first.decision == decision and first.code == _clean(code) and _person(first) != person


def answer_key(kind: ApprovalKind, *, second: bool) -> str:
    """Return the key of the journal step of an answer."""
    return f"{kind}/second" if second else kind


def _clean(code: str) -> str:
    """Remove white space that a person may have typed; keep anything else, to be refused."""
    return re.sub(r"\s", "", code).lower()[:40]


def _person(answer: ApprovalAnswer) -> str:
    return answer.responders[0].user_id if answer.responders else ""


def _reason(answer: ApprovalAnswer) -> str:
    people = " and ".join(item.user_name or item.user_id for item in answer.responders) or "unknown"
    return f"approval of the {answer.kind.replace('_', ' ')}: {answer.decision} by {people}"


def _check_person(record: MigrationRecord, answer: ApprovalAnswer) -> None:
    section = record.spec.approvals
    person = _check_allowed(record, answer, section.second_users if answer.second else section.assigned_users)
    if answer.second:
        first = record.journal.find_step(steps.APPROVAL, answer_key(answer.kind, second=False))
        if first is None or first.seq <= valid_after(record, answer.kind):
            raise _refused(record, answer, "the first person has not answered yet")
        if _person(ApprovalAnswer.model_validate(first.details)) == person:
            raise _refused(record, answer, f"both answers are from the same person, {person}")


def _check_allowed(record: MigrationRecord, answer: ApprovalAnswer, allowed: Sequence[str]) -> str:
    """Return who answered, if this person may answer."""
    person = _person(answer)
    if not person:
        raise _refused(record, answer, "it is not known who answered")
    if allowed and person not in allowed:
        raise _refused(record, answer, f"{person} is not among those who may approve")
    return person


def _check_code(record: MigrationRecord, source: Cluster, answer: ApprovalAnswer) -> None:
    if not answer.code:
        raise _refused(record, answer, "the answer has no code")
    binding = make_binding(record, source, answer.kind)
    if not hmac.compare_digest(code_of(binding).encode(), answer.code.encode()):
        raise _refused(
            record, answer, f"the code {answer.code!r} is not the present one: {_why_another(record, answer, binding)}"
        )


def _why_another(record: MigrationRecord, answer: ApprovalAnswer, binding: dict[str, Any]) -> str:
    """Return why a code is not the present one; a person who sees what has changed need not guess."""
    shown = [
        entry
        for entry in record.journal.steps(steps.APPROVAL_SHOWN, answer.kind)
        if entry.details.get("code") == answer.code
    ]
    if not shown:
        return "no text of this approval has shown it, so it is mistyped or belongs to something else"
    changes = changes_since(shown[-1].details.get("binding") or {}, binding)
    if not changes or "binding" not in shown[-1].details:
        return "what will happen has changed since the text was made"
    return f"since its text was made, this has changed: {'; '.join(changes)}"


def _check_age(record: MigrationRecord, answer: ApprovalAnswer) -> None:
    age = record.now() - parse_iso(answer.answered_at)
    if age > record.spec.approvals.max_age:
        raise _refused(record, answer, f"the answer is {age.total_seconds():.0f} s old")
    if age < timedelta(seconds=-60):
        raise _refused(record, answer, "the answer has a time in the future; check the machines' clocks")


def _check_budget(record: MigrationRecord) -> None:
    why = cannot_fit(record.spec, handover.of(record))
    if why is not None:
        raise ApprovalRefused(
            f"the cutover cannot be done in time: {why}",
            where=record.where("cutover"),
            next_step="set cutover.in_one_task: true, which runs all steps in one task; or raise "
            "cutover.max_producer_freeze; or give the cutover's tasks a faster executor. Then clear the approval task; "
            + words.IF_PARAMS,
        )


def _check_lag(context: PhaseContext) -> None:
    status = lags.small_again(context)
    worst = status.worst
    if worst is not None and not status.is_small:
        raise ApprovalRefused(
            f"{why_not_small(status)}: {status.summary()}",
            where=context.where("drain_ready", topic=worst.topic, partition=worst.partition),
            next_step="clear drain_ready and what follows it (or kafka-migration resume FILE): it asks again when all "
            "lags are small enough",
        )


def _check_source_stands(record: MigrationRecord, source: Cluster) -> None:
    """Check that the source has no records that the target will never get, unless ``on_bypass: note`` accepts them.

    :raises ApprovalRefused: there are records beyond the boundary, or the source could not be checked for them; all
        partitions are named.
    """
    if late_writes.is_accepted(record.spec):
        return
    found = late_writes.read(record, source)
    if found.problem:
        raise ApprovalRefused(
            f"the approval of the client switch is refused: {found.problem}",
            where=record.where("client_switch", cluster="source"),
            next_step=found.next_step,
            details=found.as_dict(),
        )


def why_not_small(status: lags.DrainStatus) -> str:
    """Describe what prevents a cutover; the status has the figures."""
    if not status.tail.copies_all:
        return "the tail does not copy all partitions"
    return "the lag has risen since the approval" if status.tail.is_heard else "the tail has not been heard from"


def _check_proof(record: MigrationRecord, answer: ApprovalAnswer) -> None:
    """Check that no difference was found: one blocks both approvals, unless the policy is only to show it.

    :raises ApprovalRefused: partitions differ; all are named in ``details``.
    """
    section = record.spec.validation
    if not section.before_cutover:
        return
    status = proof_to_boundary(record) if answer.kind == "client_switch" else None
    if status is None:
        status = proof.read_status(record, dict.fromkeys(record.partitions(), 0))
    proof.journal_status(record, f"{answer.kind}/answer", status)
    if not status.differing or section.on_difference == "note":
        return
    name, what = next(iter(status.differing.items()))
    raise ApprovalRefused(
        f"the approval of the {answer.kind.replace('_', ' ')} is refused: {len(status.differing)} partitions differ "
        f"between source and target; the first is {name}: {what}",
        where=record.where(answer.kind),
        next_step="find out who has written to the target topic; the comparison checks again in each slice of the "
        "tail, and a resolved difference no longer blocks. To proceed anyway, set validation.on_difference: note",
        details={"differing": status.differing},
    )


def _refused(record: MigrationRecord, answer: ApprovalAnswer, why: str) -> ApprovalRefused:
    return ApprovalRefused(
        f"the approval of the {answer.kind.replace('_', ' ')} is refused: {why}",
        where=record.where(answer.kind),
        next_step="clear the approval task; its new text and log, and `kafka-migration status`, show the current code",
    )


def given(context: PhaseContext, kind: ApprovalKind) -> list[ApprovalAnswer]:
    """Return the valid approvals in the journal: the latest answer of the first and of the second person.

    The order of entries decides which ones are valid, never their times, which different machines wrote.
    """
    after_seq = valid_after(context.record, kind)
    found = []
    for second in (False, True):
        entry = context.journal.find_step(steps.APPROVAL, answer_key(kind, second=second))
        if entry is None or entry.seq <= after_seq:
            continue
        answer = ApprovalAnswer.model_validate(entry.details)
        if answer.decision == "approve":
            found.append(answer)
    return found


def require(context: PhaseContext, kind: ApprovalKind) -> list[ApprovalAnswer]:
    """Return the approvals in the journal that permit to continue now: one, or those of two people.

    :raises ApprovalRefused: an approval is missing or too old, or what will happen has changed since.
    """
    answers = given(context, kind)
    wanted = 2 if context.spec.approvals.second_users else 1
    if len({_person(item) for item in answers}) < wanted:
        raise ApprovalRefused(
            f"{wanted} people must approve the {kind.replace('_', ' ')}, but only {len(answers)} did"
            if wanted > 1
            else f"nobody has approved the {kind.replace('_', ' ')}",
            where=context.where(kind),
            next_step="answer the approval (Airflow: Required Actions; or kafka-migration resume FILE --approve CODE)",
        )
    for answer in answers:
        _check_code(context.record, context.source, answer)
        _check_age(context.record, answer)
    return answers


def valid_after(record: MigrationRecord, kind: ApprovalKind) -> int:
    """Return the number of the journal entry before which approvals are not valid any more; -1: all are.

    That is the last lift of a freeze: each freeze needs approvals of its own. The client switch has no freeze after it.
    """
    entry = record.journal.find_step(steps.FREEZE_LIFTED) if kind == "cutover" else None
    return -1 if entry is None else entry.seq
