"""The client switch: groups are taken over for the last time when a person acknowledges it (seed 002)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from airflow_provider_kafka_migration.approvals import check
from airflow_provider_kafka_migration.documents.groups import GroupsResult
from airflow_provider_kafka_migration.errors import WaitsForOperator
from airflow_provider_kafka_migration.freeze import behind_boundary
from airflow_provider_kafka_migration.freeze.behind_boundary import BehindBoundary
from airflow_provider_kafka_migration.groups import commit, left_out
from airflow_provider_kafka_migration.groups.commit import FINAL_GROUPS
from airflow_provider_kafka_migration.record import freeze_attempt
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult
from airflow_provider_kafka_migration.record.facts import put_result

PHASE = "awaiting_client_switch"
ACKNOWLEDGED = commit.ACKNOWLEDGED
WAIT_SECONDS = 600.0


def switch_clients(
    context: PhaseContext,
    *,
    wait_seconds: float = WAIT_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> PhaseResult:
    """Acknowledge the switch: last refresh of all groups; who still reads the source is named.

    :raises ApprovalRefused: nobody has approved it.
    :raises WaitsForOperator: ``on_active_source`` is fail (or wait, and it took too long) and groups are active; or the
        source has records behind the boundary, or could not be checked, and ``on_bypass`` does not accept it.
    :raises GroupsIncomplete: groups failed in the last refresh.
    """
    entry = context.journal.find_step(ACKNOWLEDGED)
    if entry is not None:
        return PhaseResult(PHASE, entry.details["summary"], dict(entry.details), already_done=True)
    attempt = freeze_attempt.current_attempt(context)
    if attempt is None or not attempt.ready:
        raise WaitsForOperator(
            f"the migration has not reached {freeze_attempt.READY_MESSAGE} yet",
            where=context.where(PHASE),
            next_step="clear the step of the cutover that failed",
        )
    answers = check.require(context, "client_switch")
    behind = _read_behind_boundary(context)
    result = _last_sync(context, wait_seconds, sleep)
    error = commit.failures_error(context, result.groups)
    if error is not None:
        raise error
    # A copy of its own: a refresh that was under way may still rewrite results/groups.json.
    put_result(context, FINAL_GROUPS, result)
    left_out.record(context)
    details: dict[str, Any] = {
        "summary": f"clients switch: {commit.summarize(result.groups)}" + _active(result) + _late(behind),
        "active_on_source": result.active_on_source,
        "policy": context.spec.groups.on_active_source,
        "behind_boundary": behind.as_dict(),
        "approved_by": sorted(person.user_id for answer in answers for person in answer.responders),
        "left_alone": {item.group: item.skipped_reason for item in result.groups if item.skipped_reason},
        "at": result.at,
    }
    context.journal.step_once(ACKNOWLEDGED, details=details)
    return PhaseResult(PHASE, details["summary"], details)


def _read_behind_boundary(context: PhaseContext) -> BehindBoundary:
    """Look at the source once more: the answer may be from a while ago.

    :raises WaitsForOperator: clients must not switch yet.
    """
    found = behind_boundary.read(context)
    if found.problem and not behind_boundary.is_accepted(context):
        raise WaitsForOperator(
            f"clients must not switch yet: {found.problem}",
            where=context.where(PHASE, cluster="source"),
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
        result = commit.sync_groups(context)
        if not result.active_on_source or policy == "warn":
            return result
        if policy == "fail" or waited >= wait_seconds:
            names = result.active_on_source
            raise WaitsForOperator(
                f"{len(names)} groups still have members on the source: {', '.join(names[:20])}",
                where=context.where(PHASE, group=names[0]),
                next_step="stop these consumers, then approve the client switch again; or set "
                "groups.on_active_source: warn",
                details={"groups": names},
            )
        sleep(interval)
        waited += interval


def _active(result: GroupsResult) -> str:
    names = result.active_on_source
    if not names:
        return ""
    return f"; {len(names)} groups still read the source: {', '.join(names[:10])}"
