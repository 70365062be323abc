"""What follows an answer to an approval: the one entrance for operators and CLI."""

from __future__ import annotations

from typing import Any

from airflow_provider_kafka_migration.approvals import switch
from airflow_provider_kafka_migration.approvals.check import STEP, answer_key, check_approval
from airflow_provider_kafka_migration.documents.approval import (
    ApprovalAnswer,
    ApprovalKind,
)
from airflow_provider_kafka_migration.record import freeze_attempt
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult
from airflow_provider_kafka_migration.state import State


def answered(context: PhaseContext, kind: ApprovalKind, *, second: bool = False) -> PhaseResult | None:
    """The answer that the journal has acted on already; ``None``: ask.

    An approval of the cutover stays good once its freeze has begun, until the freeze is lifted; the client switch's
    once it is acknowledged.
    """
    entry = context.journal.find_step(STEP, answer_key(kind, second=second))
    if entry is None:
        return None
    if kind == "cutover":
        attempt = freeze_attempt.current_attempt(context)
        acted_on = attempt is not None and not attempt.lifted
    else:
        acted_on = context.journal.find_step(switch.ACKNOWLEDGED) is not None
    if context.journal.tip_state is State.ROLLED_BACK:
        acted_on = True
    if not acted_on:
        return None
    answer = ApprovalAnswer.model_validate(entry.details)
    return PhaseResult(f"approve_{kind}", entry.reason, _details(answer), already_done=True)


def answer(context: PhaseContext, given: ApprovalAnswer) -> PhaseResult:
    """Check an answer, journal it, and do what belongs to it at once.

    An approved client switch takes over the groups for the last time, so that the answer is green only when they are.

    :raises ApprovalRefused: the answer does not count.
    :raises WaitsForOperator: groups still read the source and the policy does not allow it.
    :raises GroupsIncomplete: groups failed in the last refresh.
    """
    checked = check_approval(context, given)
    summary = f"{checked.kind.replace('_', ' ')}: {checked.decision}"
    if checked.decision == "approve" and _is_last(context, checked):
        if checked.kind == "cutover":
            # After a lifted freeze the migration is back in tail; the lag was just checked again.
            if context.journal.working_state is State.TAIL:
                _ready_again(context)
        else:
            summary = switch.switch_clients(context).summary
    return PhaseResult(f"approve_{checked.kind}", summary, _details(checked))


def _ready_again(context: PhaseContext) -> None:
    if context.journal.tip_state is State.FAILED:
        context.journal.transition(State.TAIL, "the cutover is approved again")
    context.journal.transition(State.DRAIN_READY, "lags are small at the approval")


def _is_last(context: PhaseContext, checked: ApprovalAnswer) -> bool:
    """Whether no other person has to answer."""
    return checked.second or not context.spec.approvals.second_users


def _details(given: ApprovalAnswer) -> dict[str, Any]:
    return {
        "decision": given.decision,
        "code": given.code,
        "responders": [item.model_dump(mode="json") for item in given.responders],
        "answered_at": given.answered_at,
    }
