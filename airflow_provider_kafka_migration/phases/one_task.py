"""The cutover's steps in one process (``cutover.in_one_task``): the same journaled steps, without changes of tasks.

For executors that start a pod or a container for each task, which would keep producers frozen for minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from airflow_provider_kafka_migration.phases import frozen, tail
from airflow_provider_kafka_migration.phases.context import PhaseContext
from airflow_provider_kafka_migration.state import State

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
) -> None:
    """Until the tail has reached its stop and verified it, which it does in a task of its own.

    :raises FreezeFailed: not within ``max_producer_freeze``; the freeze is lifted.
    """
    attempt = frozen.current_attempt(context)
    if attempt is None or not attempt.is_open:
        # Nothing is frozen, so nothing waits: the step itself says whether it may run.
        return
    while not tail.has_ended(context):
        with frozen.lifting(context, attempt):
            frozen.check_deadline(context, attempt)
        sleep(poll_seconds)
        context.journal.refresh()
        if context.journal.is_past(State.CUTOVER) or context.journal.tip_state is not State.CUTOVER:
            return
