"""Handling of an answer to an approval: the single entry point for operators and CLI."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from airflow_provider_kafka_migration.approvals import check
from airflow_provider_kafka_migration.approvals.check import answer_key, check_approval
from airflow_provider_kafka_migration.documents.cutover import ApprovalAnswer, ApprovalKind, GroupsResult
from airflow_provider_kafka_migration.errors import Transient, WaitsForOperator
from airflow_provider_kafka_migration.freeze import late_writes, words
from airflow_provider_kafka_migration.freeze.late_writes import BehindBoundary
from airflow_provider_kafka_migration.groups import commit, final, left_out
from airflow_provider_kafka_migration.record import freeze_attempt, keys, rolling_back, steps
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext, PhaseResult
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.state import State

# -- switch -----------------------------------------------------------------------------------------------------------
#
# The client switch: when a person acknowledges it, consumer groups are synced a last time.


PHASE = "awaiting_client_switch"
WAIT_SECONDS = 600.0


def switch_clients(
    context: PhaseContext,
    *,
    wait_seconds: float = WAIT_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> PhaseResult:
    """Acknowledge the switch: sync all groups a last time, and name those that still read the source.

    :raises ApprovalRefused: nobody has approved the switch.
    :raises WaitsForOperator: ``on_active_source`` is stop, and groups are still active after a while; or the
        source has records beyond the boundary, or could not be checked, and ``on_bypass`` does not accept that.
    :raises GroupsIncomplete: groups failed in the last sync.
    """
    record = context.record
    switched = record.client_switch()
    if switched is not None:
        return PhaseResult(PHASE, switched["summary"], switched, already_done=True)
    attempt = record.freeze()
    if attempt is None or not attempt.ready:
        raise WaitsForOperator(
            f"the migration has not reached {freeze_attempt.READY_MESSAGE} yet",
            where=context.where(PHASE),
            next_step="clear the step of the cutover that failed",
        )
    answers = check.require(context, "client_switch")
    behind = _read_behind_boundary(record, context.source)
    try:
        result = _last_sync(context, wait_seconds, sleep)
    except Transient as problem:
        problem.add_next_step(words.WAY_OUT)
        raise
    error = commit.failures_error(record, result.groups)
    if error is not None:
        raise error
    # A separate copy: a sync that is still under way may rewrite results/groups.json.
    record.put_result(keys.FINAL_GROUPS, result)
    left_out.record(record, context.source)
    details: dict[str, Any] = {
        "summary": f"clients switch: {commit.summarize(result.groups)}" + _active(result) + _late(behind),
        "active_on_source": result.active_on_source,
        "policy": context.spec.groups.on_active_source,
        "behind_boundary": behind.as_dict(),
        "approved_by": sorted(person.user_id for answer in answers for person in answer.responders),
        "left_alone": {item.group: item.skipped_reason for item in result.groups if item.skipped_reason},
        "at": result.at,
    }
    # Two people may answer at the same time, one here and one on the command line: the first step counts.
    context.journal.step_once(steps.CLIENT_SWITCH_ACKNOWLEDGED, details=details, unless_step=(steps.ABANDONED, None))
    return PhaseResult(PHASE, details["summary"], details)


def _read_behind_boundary(record: MigrationRecord, source: Cluster) -> BehindBoundary:
    """Check the source once more, because the answer may be old.

    :raises WaitsForOperator: clients must not switch yet.
    """
    found = late_writes.read(record, source)
    if found.problem and not late_writes.is_accepted(record.spec):
        raise WaitsForOperator(
            f"clients must not switch yet: {found.problem}",
            where=record.where(PHASE, cluster="source"),
            next_step=found.next_step,
            details=found.as_dict(),
        )
    return found


def _late(found: BehindBoundary) -> str:
    return f"; {found.problem}" if found.problem else ""


def _last_sync(context: PhaseContext, wait_seconds: float, sleep: Callable[[float], None]) -> GroupsResult:
    policy = context.spec.groups.on_active_source
    interval = context.spec.groups.sync_interval.total_seconds()
    waited = 0.0
    while True:
        result = final.sync_groups(context)
        if not result.active_on_source or policy == "note":
            return result
        if waited >= wait_seconds:
            names = result.active_on_source
            raise WaitsForOperator(
                f"{len(names)} groups still have members on the source: {', '.join(names[:20])}",
                where=context.where(PHASE, group=names[0]),
                next_step="stop these consumers, then approve the client switch again; or set "
                "groups.on_active_source: note",
                details={"groups": names},
            )
        sleep(interval)
        waited += interval


def _active(result: GroupsResult) -> str:
    names = result.active_on_source
    if not names:
        return ""
    return f"; {len(names)} groups still read the source: {', '.join(names[:10])}"


# -- answers ----------------------------------------------------------------------------------------------------------


def answered(context: PhaseContext, kind: ApprovalKind, *, second: bool = False) -> PhaseResult | None:
    """Return the answer that has been acted on already; ``None``: ask.

    An approval of the cutover counts as acted on from the start of its freeze until the freeze is lifted; one of the
    client switch, once the switch is acknowledged.
    """
    entry = context.journal.find_step(steps.APPROVAL, answer_key(kind, second=second))
    if entry is None:
        return None
    if kind == "cutover":
        attempt = context.record.freeze()
        acted_on = attempt is not None and not attempt.lifted
    else:
        acted_on = context.record.client_switch() is not None
    if context.journal.tip_state is State.ROLLED_BACK or rolling_back.is_abandoned(context.journal):
        acted_on = True
    if not acted_on:
        return None
    answer = ApprovalAnswer.model_validate(entry.details)
    return PhaseResult(f"approve_{kind}", entry.reason, _details(answer), already_done=True)


def answer(context: PhaseContext, given: ApprovalAnswer) -> PhaseResult:
    """Check an answer, journal it, and immediately do what follows from it.

    An approved client switch syncs the groups a last time, so the answer succeeds only if that sync does.

    :raises ApprovalRefused: the answer is not valid.
    :raises WaitsForOperator: groups still read the source and the policy does not allow it.
    :raises GroupsIncomplete: groups failed in the last sync.
    """
    checked = check_approval(context, given)
    summary = f"{checked.kind.replace('_', ' ')}: {checked.decision}"
    if checked.decision == "approve" and _is_last(context.spec, checked):
        if checked.kind == "cutover":
            # After a lifted freeze the migration is back in tail; the lag was just checked again.
            if context.journal.working_state is State.TAIL:
                _ready_again(context.record)
        else:
            summary = switch_clients(context).summary
    return PhaseResult(f"approve_{checked.kind}", summary, _details(checked))


def _ready_again(record: MigrationRecord) -> None:
    if record.journal.tip_state is State.FAILED:
        record.journal.transition(State.TAIL, "the cutover is approved again")
    record.journal.transition(State.DRAIN_READY, "lags are small enough at the approval")


def _is_last(spec: MigrationSpec, checked: ApprovalAnswer) -> bool:
    """Whether no other person still has to answer."""
    return checked.second or not spec.approvals.second_users


def _details(given: ApprovalAnswer) -> dict[str, Any]:
    return {
        "decision": given.decision,
        "code": given.code,
        "responders": [item.model_dump(mode="json") for item in given.responders],
        "answered_at": given.answered_at,
    }
