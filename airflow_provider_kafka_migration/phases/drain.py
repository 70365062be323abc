"""The lag of all partitions, and whether the migration is ready for its cutover.

Lag of a partition = the source's last stable offset - the source offset that corresponds to the target's log end. For
``equal`` and ``shifted`` that offset is the target's log end minus a constant; for ``mapped`` it comes from the last
run of the offset map. Nothing is stored: the lag is computed from two ListOffsets calls.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from airflow_provider_kafka_migration.errors import DrainTimeout, Interrupted, Transient
from airflow_provider_kafka_migration.jobs.tail_health import HealthWatch
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult, Progress
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso, parse_iso
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics.lags import POLL_SECONDS, DrainStatus, PartitionLag, check

PHASE = "drain_ready"
_LONGEST_PAUSE_SECONDS = 30.0

log = logging.getLogger(__name__)


def record_ready(record: MigrationRecord, status: DrainStatus) -> PhaseResult:
    """Journal that the drain is ready (or ready again); the last act of :func:`run` and of the sensor."""
    details = {**status.as_event(), "lags": [item.as_dict() for item in status.lags if item.lag > 0]}
    record.journal.step(steps.DRAIN_READY, key=iso(status.at), details=details)
    return PhaseResult(PHASE, f"ready for the cutover: {status.summary()}", details)


def run_or_confirm(
    context: PhaseContext,
    *,
    event: dict[str, Any] | None = None,
    poll_seconds: float = POLL_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> PhaseResult:
    """Run task ``drain_ready``: wait in this process, or confirm the result of a trigger's wait.

    A migration that was ready before and waits for its approval is checked again, because the tail may have copied
    nothing since.

    :param event: what the trigger has seen (:meth:`DrainStatus.as_event`). It may be old, so the lags are checked once
        more; if a lag has grown meanwhile, the wait continues in this process.
    """
    if context.journal.is_past(State.DRAIN_READY):
        summary = f"the lags were small enough before; the migration is in state {context.journal.working_state}"
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

    :param since: since when an earlier check has seen all lags small enough.
    :raises DrainTimeout: the migration is not ready within ``tail.drain_ready_timeout``.
    :raises CopyFailed: the tail has stopped copying some partitions and needs a person to intervene.
    :raises Transient: a cluster or the storage did not answer when the timeout expired.
    """
    started, health, failures = context.now(), HealthWatch(), 0
    while True:
        pause = poll_seconds
        problem: Transient | None = None
        status: DrainStatus | None = None
        try:
            status = check(context.record, context.source, context.target, since, health=health)
            since, failures = status.stable_since, 0
            context.progress(Progress(PHASE, status.summary(), done=len(_small(status)), total=len(status.lags)))
            if status.ready:
                return record_ready(context.record, status)
        except (Interrupted, DrainTimeout):
            raise
        except Transient as error:
            # An outage of a cluster or the storage for minutes must not end a wait of days; it does not end the tail
            # either.
            problem, since, failures = error, None, failures + 1
            pause = min(poll_seconds * 2.0 ** min(failures, 16), _LONGEST_PAUSE_SECONDS)
            log.warning("The lags cannot be read (try %d): %s", failures, error)
            context.progress(Progress(PHASE, f"the lags cannot be read (try {failures}): {error.what}"))
        if context.now() - started > context.spec.tail.drain_ready_timeout:
            raise problem or not_ready(context.record, status)
        sleep(pause)


def _small(status: DrainStatus) -> list[PartitionLag]:
    return [item for item in status.lags if item.lag <= status.max_lag]


def not_ready(record: MigrationRecord, status: DrainStatus | None) -> DrainTimeout:
    """Return the error for a wait that took too long."""
    assert status is not None, "the last check gave either a status or an error"
    worst = status.worst
    return DrainTimeout(
        f"the migration is not ready for its cutover: {status.summary()}",
        where=record.where(PHASE, topic=worst.topic if worst else None, partition=worst.partition if worst else None),
        next_step="check that the tail runs and keeps up; if the source is too busy for the limit, raise "
        "tail.drain_max_partition_lag; then clear drain_ready",
        details=status.as_event(),
    )
