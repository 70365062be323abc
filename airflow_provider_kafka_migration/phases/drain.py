"""Lag of all partitions, and whether the migration is ready for its cutover.

Lag of a partition = the source's last stable offset - the source offset that the target's log end stands for. For
``equal`` and ``shifted`` that is the target's log end less a constant; for ``mapped`` the last run
of the offset map says it. Nothing is stored: two ListOffsets calls are the whole truth.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from airflow_provider_kafka_migration.errors import DrainTimeout, Interrupted, Transient
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult, Progress, iso, parse_iso
from airflow_provider_kafka_migration.record.tail_health import HealthWatch
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics.lags import POLL_SECONDS, DrainStatus, PartitionLag, check

PHASE = "drain_ready"
_LONGEST_PAUSE_SECONDS = 30.0

log = logging.getLogger(__name__)


def record_ready(context: PhaseContext, status: DrainStatus) -> PhaseResult:
    """Journal that the drain is ready (or that it is ready again); what :func:`run` and the sensor end with."""
    details = {**status.as_event(), "lags": [item.as_dict() for item in status.lags if item.lag > 0]}
    context.journal.step("drain_ready", key=iso(status.at), details=details)
    return PhaseResult(PHASE, f"ready for the cutover: {status.summary()}", details)


def run_or_confirm(
    context: PhaseContext,
    *,
    event: dict[str, Any] | None = None,
    poll_seconds: float = POLL_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> PhaseResult:
    """Task ``drain_ready``: wait here, or end the wait of a trigger.

    A migration that was ready before and waits for its approval is looked at again: nothing may have been copied since.

    :param event: what the trigger has seen (:meth:`DrainStatus.as_event`). It may be old, so this looks once more; if
        a lag has grown meanwhile, the wait goes on here.
    """
    if context.journal.is_past(State.DRAIN_READY):
        summary = f"the lags were small enough before; the migration is in {context.journal.working_state}"
        return PhaseResult(PHASE, summary, {}, already_done=True)
    since = event.get("stable_since") if event else None
    return run(context, since=parse_iso(since) if since else None, poll_seconds=poll_seconds, sleep=sleep)


def run(
    context: PhaseContext,
    *,
    since: datetime | None = None,
    poll_seconds: float = POLL_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> PhaseResult:
    """Wait until all lags are at or below the limit for the whole window.

    :param since: since when they have been, as an earlier look has seen.
    :raises DrainTimeout: not ready within ``tail.drain_ready_timeout``.
    :raises CopyFailed: the tail does not copy some partitions any more, until a person has done something.
    :raises Transient: a cluster or the storage did not answer when that time was over.
    """
    started, health, failures = context.now(), HealthWatch(), 0
    while True:
        pause = poll_seconds
        problem: Transient | None = None
        status: DrainStatus | None = None
        try:
            status = check(context, since, health=health)
            since, failures = status.stable_since, 0
            context.progress(Progress(PHASE, status.summary(), done=len(_small(status)), total=len(status.lags)))
            if status.ready:
                return record_ready(context, status)
        except (Interrupted, DrainTimeout):
            raise
        except Transient as error:
            # A cluster, or the storage, that is away for minutes ends a wait of days as little as it ends the tail.
            problem, since, failures = error, None, failures + 1
            pause = min(poll_seconds * 2.0 ** min(failures, 16), _LONGEST_PAUSE_SECONDS)
            log.warning("The lags cannot be looked at, try %d: %s", failures, error)
            context.progress(Progress(PHASE, f"the lags cannot be looked at (try {failures}): {error.what}"))
        if context.now() - started > context.spec.tail.drain_ready_timeout:
            raise problem or not_ready(context, status)
        sleep(pause)


def _small(status: DrainStatus) -> list[PartitionLag]:
    return [item for item in status.lags if item.lag <= status.max_lag]


def not_ready(context: PhaseContext, status: DrainStatus | None) -> DrainTimeout:
    """The error of a wait that took too long."""
    assert status is not None, "either a look or what stood in its way"
    worst = status.worst
    return DrainTimeout(
        f"the migration is not ready for its cutover: {status.summary()}",
        where=context.where(PHASE, topic=worst.topic if worst else None, partition=worst.partition if worst else None),
        next_step="check that the tail runs and keeps up; raise tail.drain_max_partition_lag if the source is that "
        "busy; then clear drain_ready",
        details=status.as_event(),
    )
