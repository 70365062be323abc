"""The cutover's steps in one process (``cutover.in_one_task``): the same journaled steps, without changes of tasks.

For executors that start a pod or a container for each task, which would keep producers frozen for minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from airflow_provider_kafka_migration.freeze import frozen
from airflow_provider_kafka_migration.record import freeze_attempt, tail_health
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult
from airflow_provider_kafka_migration.state import State

PHASE = "cutover"
#: The steps in their order.
STEPS = (
    "cutover.freeze",
    "cutover.sentinels",
    "cutover.final_drain",
    "cutover.snapshot_groups",
    "cutover.commit_groups",
    "cutover.floor_guard",
)
#: Before this one the tail must have ended, as in the DAG.
AFTER_TAIL = "cutover.commit_groups"

POLL_SECONDS = 0.5


def wait_for_tail(
    context: PhaseContext, *, poll_seconds: float = POLL_SECONDS, sleep: Callable[[float], None] = time.sleep
) -> PhaseResult:
    """Until the tail has reached its stop and verified it, which it does in a task of its own.

    To be run as a step of the cutover is, so that storage that is away for a moment does not end the wait.

    :param sleep: may raise why the tail has failed: for good, and the freeze is lifted; else it is waited on.
    :returns: ``details["ended"]``: whether the tail has ended; if not, there is nothing to wait for.
    :raises FreezeFailed: not within ``max_producer_freeze``; the freeze is lifted.
    """
    attempt = freeze_attempt.current_attempt(context)
    if attempt is None or not attempt.is_open:
        # Nothing is frozen, so nothing waits: the step itself says whether it may run.
        return PhaseResult(PHASE, "nothing is frozen", {"ended": False})
    while not tail_health.has_ended(context):
        # A tail that failed makes the migration's state ``failed`` until it is run again: the cutover still waits then.
        if context.journal.working_state is not State.CUTOVER:
            return PhaseResult(PHASE, f"the cutover is over: {context.journal.tip_state}", {"ended": False})
        with frozen.lifting(context, attempt):
            frozen.check_deadline(context, attempt)
            sleep(poll_seconds)
        context.journal.refresh()
    return PhaseResult(PHASE, "the tail has ended", {"ended": True})
