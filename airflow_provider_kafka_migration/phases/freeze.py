"""Freeze producers on the source and verify it on the brokers (docs/decisions/0007).

Verified means: no open transaction (last stable offset = high watermark = log end) and log ends that do not move for
``freeze_stable_window``. Producers that continue to write are named: partition, producer id, and transactional id where
known.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from airflow_provider_kafka_migration.access import write_grants
from airflow_provider_kafka_migration.approvals import check
from airflow_provider_kafka_migration.documents.cutover import ApprovalAnswer, FreezeResult
from airflow_provider_kafka_migration.drift import take_over
from airflow_provider_kafka_migration.errors import FreezeFailed, MigrationError, Terminal
from airflow_provider_kafka_migration.freeze import final_schemas, frozen, source_registry, stops, webhook_spec, words
from airflow_provider_kafka_migration.freeze.stand_still import POLL_SECONDS, Watch, verify
from airflow_provider_kafka_migration.planning import follow, late_ids
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult, Progress
from airflow_provider_kafka_migration.record.freeze_attempt import FreezeAttempt
from airflow_provider_kafka_migration.record.times import iso, parse_iso
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.topics import lags

PHASE = "cutover"


def run(
    context: PhaseContext,
    *,
    poll_seconds: float = POLL_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> PhaseResult:
    """Freeze and verify; the freeze's clock starts here.

    :raises ApprovalRefused: no valid approval of the cutover is in the journal.
    :raises FreezeFailed: the freeze failed, or a producer continues to write (``on_bypass: stop``); the freeze is
        lifted again.
    """
    attempt = context.record.freeze()
    if attempt is not None and attempt.is_open and attempt.given_up:
        raise _end_of_former(context, attempt)
    if attempt is not None and not attempt.lifted and attempt.verified is not None:
        with frozen.lifting(context, attempt):
            stops.check_deadline(context.record, attempt)
        return PhaseResult(PHASE, _summary(attempt.verified), _details(attempt.verified), already_done=True)
    if attempt is None or attempt.lifted:
        try:
            attempt = _begin(context, attempt)
        except MigrationError as error:
            error.add_next_step(words.not_begun(context.spec.cutover.freeze))
            if isinstance(error, Terminal):
                # No producer was asked to stop, so the migration need not stay in a state without rollback.
                frozen.back_to_tail(context.record, f"the cutover did not begin: {error.what}")
            raise
    with frozen.lifting(context, attempt):
        stops.check_deadline(context.record, attempt)
        result = _freeze(context, attempt, Watch(poll_seconds, sleep, clock))
    return PhaseResult(PHASE, _summary(result), _details(result))


def _end_of_former(context: PhaseContext, attempt: FreezeAttempt) -> FreezeFailed:
    """Lift a freeze that was given up but not journaled as lifted: producers may write by now."""
    frozen.lift(context, attempt, reason="it was given up before, but its end was not journaled")
    return FreezeFailed(
        f"freeze {attempt.number} was given up earlier, but not journaled as lifted; it is lifted now",
        where=context.where(PHASE),
        next_step=f"{words.again(context.spec)}; {words.lifted(attempt.method)}",
    )


def unwatched(context: PhaseContext, task_id: str, state: str) -> FreezeFailed:
    """Return the error of a freeze that must not begin, because the task that would end it in time has ended."""
    error = FreezeFailed(
        f"no freeze is begun: the task {task_id}, which lifts a freeze that lasts too long, has ended ({state})",
        where=context.where(PHASE),
        next_step=words.again(context.spec),
    )
    error.add_next_step(words.not_begun(context.spec.cutover.freeze))
    return error


def _begin(context: PhaseContext, former: FreezeAttempt | None) -> FreezeAttempt:
    """Journal a new attempt. No producer is stopped before this step is in the journal."""
    answers = check.require(context, "cutover")
    follow.check_all_followed(context.record, context.source)
    webhook_spec.check_receiver(context)
    source_registry.check_before_freeze(context)
    final_schemas.before_freeze(context)
    late_ids.check_before_freeze(context)
    status = lags.small_again(context)
    worst = status.worst
    if worst is not None and not status.is_small:
        raise FreezeFailed(
            f"{check.why_not_small(status)}: {status.summary()}",
            where=context.where(PHASE, topic=worst.topic, partition=worst.partition),
            next_step=words.again(context.spec),
        )
    # Last, because this may change access on the target: a cutover that is refused for anything else changes nothing.
    take_over.check_before_freeze(context)
    write_grants.remember(context.record, context.source, context.target)
    seen = stops.wait_for_frees(context, former)
    now = context.now()
    number = former.number + 1 if former else 1
    stopped_at = _stopped_at(context, answers, now)
    deadline = stopped_at + context.spec.cutover.max_producer_freeze
    attempt = FreezeAttempt(number, context.spec.cutover.freeze, now, deadline, stopped_at)
    details = {
        "method": attempt.method,
        "requested_at": iso(now),
        "stopped_at": iso(stopped_at),
        "deadline": iso(deadline),
    }
    context.journal.step(steps.FREEZE_REQUESTED, key=attempt.key, details={**details, "lag": status.total})
    stops.wait_for_frees(context, former, behind=seen)
    return attempt


def _stopped_at(context: PhaseContext, answers: Sequence[ApprovalAnswer], now: datetime) -> datetime:
    """Return since when producers are stopped; by hand, since the answer that completed the approval.

    :raises FreezeFailed: that is longer ago than producers may be stopped at all.
    """
    if not _by_hand(context.spec):
        return now
    stopped_at = min(now, max(parse_iso(item.answered_at) for item in answers))
    if is_too_old(context, answers):
        raise FreezeFailed(
            f"the producers were stopped by hand {(now - stopped_at).total_seconds():.0f} s ago, when the cutover was "
            f"approved, and max_producer_freeze is {context.spec.cutover.max_producer_freeze.total_seconds():g} s",
            where=context.where(PHASE),
            next_step="raise cutover.max_producer_freeze, or give the cutover's tasks a faster executor (the command "
            "line first catches up with what was written since it ended: let it do so without a code, before "
            f"producers are stopped); then {words.again(context.spec)}",
        )
    return stopped_at


def is_too_old(context: PhaseContext, answers: Sequence[ApprovalAnswer]) -> bool:
    """Whether producers that were stopped by hand for these answers stand still longer than they may already."""
    if not _by_hand(context.spec) or not answers:
        return False
    last = max(parse_iso(item.answered_at) for item in answers)
    return context.now() - last >= context.spec.cutover.max_producer_freeze


def _by_hand(spec: MigrationSpec) -> bool:
    """Whether people stopped the producers before the approval, as its text asks them to confirm."""
    return spec.cutover.freeze == "manual"


def _freeze(context: PhaseContext, attempt: FreezeAttempt, watch: Watch) -> FreezeResult:
    method = stops.freeze(context, attempt)
    method |= source_registry.make_readonly(context, stops.changes_of(context, attempt))
    context.progress(Progress(PHASE, f"producers asked to stop ({attempt.method}); verifying on the source's brokers"))
    result = verify(context.record, context.source, attempt, method, watch)
    details = {"result": result.model_dump(mode="json")}
    # What was given up meanwhile is not verified, whatever the source's ends say.
    context.journal.step(steps.FREEZE_VERIFIED, attempt.key, details, **stops.in_force(attempt))
    follow.name_born_late(context.record, context.source, attempt.key)
    return result


def _summary(result: FreezeResult) -> str:
    suffix = f"; {len(result.bypasses)} partitions are still written to" if result.bypasses else ""
    return f"producers frozen ({result.method}), {len(result.ends)} partitions verified{suffix}"


def _details(result: FreezeResult) -> dict[str, Any]:
    return {
        "attempt": result.attempt,
        "method": result.method,
        "requested_at": result.requested_at,
        "verified_at": result.verified_at,
        "deadline": result.deadline,
        "partitions": len(result.ends),
        "bypasses": [item.model_dump(mode="json") for item in result.bypasses],
    }
