"""The cutover's steps in one process (``cutover.in_one_task``): the same journaled steps, without task hand-overs.

Some executors start a pod or a container for each task; the hand-overs would keep producers frozen for minutes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from airflow_provider_kafka_migration.errors import Transient
from airflow_provider_kafka_migration.freeze import frozen, stops
from airflow_provider_kafka_migration.record import handover, rolling_back
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult
from airflow_provider_kafka_migration.state import State

PHASE = "cutover"
POLL_SECONDS = 0.5
#: The tail's task looks this often whether the cutover is over.
TAIL_POLL_SECONDS = 2.0
#: A scheduler starts a task that waits for nothing more within so many looks, or in twice the time that a change of
#: tasks has taken in this migration.
WAITED_FOR_LOOKS = 5

log = logging.getLogger(__name__)


def wait_for_tail(
    context: PhaseContext, *, poll_seconds: float = POLL_SECONDS, sleep: Callable[[float], None] = time.sleep
) -> PhaseResult:
    """Wait until the tail, which runs in a separate task, has reached its stop and verified it.

    Run it like a step of the cutover, so that a brief outage of the storage does not end the wait.

    :param sleep: may raise the error with which the tail has failed: a terminal one lifts the freeze; after a
        transient one the wait continues.
    :returns: ``details["ended"]``: whether the tail has ended; if not, there is nothing to wait for.
    :raises FreezeFailed: the tail did not end within ``max_producer_freeze``; the freeze is lifted.
    """
    attempt = context.record.freeze()
    if attempt is None or not attempt.is_open:
        # Nothing is frozen, so there is no wait: the next step itself checks whether it may run.
        return PhaseResult(PHASE, "nothing is frozen", {"ended": False})
    while not context.record.has_tail_ended():
        # After a failure of the tail the tip state is ``failed`` until the tail runs again; the cutover keeps waiting.
        if context.journal.working_state is not State.CUTOVER:
            return PhaseResult(PHASE, f"the cutover is over: {context.journal.tip_state}", {"ended": False})
        with frozen.lifting(context, attempt):
            stops.check_deadline(context.record, attempt)
            sleep(poll_seconds)
        context.journal.refresh()
    return PhaseResult(PHASE, "the tail has ended", {"ended": True})


def tail_goes_on(
    context: PhaseContext,
    *,
    poll_seconds: float = TAIL_POLL_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
    is_waited_for: Callable[[], bool] = lambda: False,
) -> bool:
    """Wait, after the tail has reached its stop, until the cutover is over; return whether the tail has to go on.

    It has to after the lift of a freeze: nobody else would start a task again that has ended. While producers cannot
    be freed, the wait continues, and finishes a lift that was given up.

    :param is_waited_for: whether the next task of the cutover seems to wait for the end of the tail's task. If it says
        so :data:`WAITED_FOR_LOOKS` times in a row, or more often where tasks start slowly, the wait ends: both would
        wait until the freeze's limit.
    :raises ClaimLost: another owner has taken the migration over.
    """
    journal, looks = context.journal, 0
    patience = max(WAITED_FOR_LOOKS * poll_seconds, 2 * handover.of(context.record).typical_seconds)
    while True:
        try:
            journal.refresh()
            tip = journal.tip_state
            attempt = context.record.freeze()
            if tip is None or tip.is_terminal or journal.is_past(State.CUTOVER) or attempt is None or attempt.ready:
                return False
            # A rollback lifts the freeze, too: then this waits for its end.
            if attempt.lifted and not rolling_back.has_begun(journal):
                return True
            journal.check_holds()
            frozen.finish_given_up(context)
        except Transient as error:
            log.warning("The journal cannot be read; the tail waits for the end of the cutover: %s", error)
        looks = looks + 1 if is_waited_for() else 0
        if looks * poll_seconds >= patience:
            log.warning(
                "The cutover goes on only once this task has ended, as in runs that an earlier release began: it ends. "
                "If the freeze is lifted later, clear tail together with drain_ready"
            )
            return False
        sleep(poll_seconds)
