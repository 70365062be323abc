"""Freeze producers on the source and verify it on the brokers (seed 001 "Producer Freeze", DESIGN part 6).

Verified means: no open transaction (last stable offset = high watermark = log end) and log ends that stand still for
``freeze_stable_window``. Whoever goes on writing is named: partition, producer id, transactional id where known.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_provider_kafka_migration.documents.cutover import Bypass, FreezeResult
from airflow_provider_kafka_migration.errors import FreezeFailed, MigrationError, Terminal
from airflow_provider_kafka_migration.phases import (
    approvals,
    drain,
    follow,
    freeze_methods,
    freeze_words,
    frozen,
    take_over_drift,
    write_grants,
)
from airflow_provider_kafka_migration.phases.context import PhaseContext, PhaseResult, Progress
from airflow_provider_kafka_migration.phases.frozen import FreezeAttempt
from airflow_provider_kafka_migration.phases.migrated import (
    TopicPartition,
    by_name,
    migrated_partitions,
    partition_name,
)
from airflow_provider_kafka_migration.phases.timing import iso, parse_iso

PHASE = "cutover"
POLL_SECONDS = 0.2
#: What was on its way when producers stopped may still land for so long, beside the window.
GRACE_SECONDS = 3.0


@dataclass(frozen=True)
class SourceEnds:
    """One look at the source: log end, high watermark and last stable offset of each partition."""

    log_end: dict[TopicPartition, int]
    high_watermark: dict[TopicPartition, int]
    stable: dict[TopicPartition, int]

    @classmethod
    def look(cls, context: PhaseContext) -> SourceEnds:
        """Ask the source's leaders. The stable offset first: seen late, it would hide a transaction that just began."""
        keys = list(migrated_partitions(context))
        wire = context.source.wire
        stable = wire.list_offsets(keys, "stable")
        high_watermark = wire.list_offsets(keys, "latest")
        return cls(wire.list_offsets(keys, "log_end"), high_watermark, stable)

    @property
    def open_transactions(self) -> list[TopicPartition]:
        """Partitions whose last stable offset is held back."""
        return sorted(key for key, offset in self.stable.items() if offset < self.high_watermark[key])

    @property
    def unreplicated(self) -> list[TopicPartition]:
        """Partitions whose log end is not on all in-sync replicas yet."""
        return sorted(key for key, offset in self.high_watermark.items() if offset < self.log_end[key])


@dataclass
class StillWatch:
    """Decides whether log ends stand still. Pure: times come from outside, in seconds of one clock."""

    window_seconds: float
    started: float
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    first_ends: dict[TopicPartition, int] = field(default_factory=dict)
    still_since: float | None = None

    def see(self, ends: dict[TopicPartition, int], at: float, *, settled: bool) -> bool:
        """Take one look; whether the ends have stood still, and ``settled`` held, for the whole window."""
        self.first_ends = self.first_ends or dict(ends)
        if ends != self.ends or not settled:
            self.ends, self.still_since = dict(ends), None
        if self.still_since is None and settled:
            self.still_since = at
        return self.still_since is not None and at - self.still_since >= self.window_seconds

    def moved(self) -> list[TopicPartition]:
        """Partitions whose end grew since the first look."""
        return sorted(key for key, end in self.ends.items() if end != self.first_ends.get(key, end))


def run(
    context: PhaseContext,
    *,
    poll_seconds: float = POLL_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> PhaseResult:
    """Freeze and verify; the freeze's clock starts here.

    :raises ApprovalRefused: no valid approval of the cutover is in the journal.
    :raises FreezeFailed: not frozen, or somebody goes on writing (``on_bypass: fail``); the freeze is lifted again.
    """
    attempt = frozen.current_attempt(context)
    if attempt is not None and attempt.is_open and attempt.given_up:
        raise _end_of_former(context, attempt)
    if attempt is not None and not attempt.lifted and attempt.verified is not None:
        with frozen.lifting(context, attempt):
            frozen.check_deadline(context, attempt)
        return PhaseResult(PHASE, _summary(attempt.verified), _details(attempt.verified), already_done=True)
    if attempt is None or attempt.lifted:
        try:
            attempt = _begin(context, attempt)
        except MigrationError as error:
            error.add_next_step(freeze_words.not_begun(context.spec.cutover.freeze))
            if isinstance(error, Terminal):
                # The migration has not asked anybody to stop, so it does not stay where it cannot be rolled back.
                frozen.back_to_tail(context, f"the cutover did not begin: {error.what}")
            raise
    with frozen.lifting(context, attempt):
        frozen.check_deadline(context, attempt)
        result = _freeze(context, attempt, _Watch(poll_seconds, sleep, clock))
    return PhaseResult(PHASE, _summary(result), _details(result))


def _end_of_former(context: PhaseContext, attempt: FreezeAttempt) -> FreezeFailed:
    """Lift a freeze that was given up before, and whose lift was not journaled: producers may write by now."""
    frozen.lift(context, attempt, reason="it was given up before, and its end was not journaled")
    return FreezeFailed(
        f"freeze {attempt.number} was given up before it could be journaled as lifted; it is lifted now",
        where=context.where(PHASE),
        next_step="clear drain_ready and what follows it: the cutover starts again with a new approval; "
        f"{freeze_words.lifted(attempt.method)}",
    )


def _begin(context: PhaseContext, former: FreezeAttempt | None) -> FreezeAttempt:
    """Journal a new attempt. Nothing is touched before this step is in the journal."""
    answers = approvals.require(context, "cutover", newer_than=approvals.lifted_at(context))
    follow.check_all_followed(context)
    take_over_drift.check_before_freeze(context)
    freeze_methods.check_receiver(context)
    write_grants.remember(context)
    status = drain.small_again(context)
    worst = status.worst
    if worst is not None and not status.is_small:
        raise FreezeFailed(
            f"{approvals.why_not_small(status)}: {status.summary()}",
            where=context.where(PHASE, topic=worst.topic, partition=worst.partition),
            next_step="wait until drain_ready is green again, then approve again",
        )
    now = context.now()
    number = former.number + 1 if former else 1
    deadline = now + context.spec.cutover.max_producer_freeze
    stopped_at = min(now, *(parse_iso(item.answered_at) for item in answers)) if _by_hand(context) else now
    attempt = FreezeAttempt(number, context.spec.cutover.freeze, now, deadline, stopped_at)
    details = {
        "method": attempt.method,
        "requested_at": iso(now),
        "stopped_at": iso(stopped_at),
        "deadline": iso(deadline),
    }
    context.journal.step(frozen.REQUESTED, key=attempt.key, details={**details, "lag": status.total})
    return attempt


def _by_hand(context: PhaseContext) -> bool:
    """Producers were stopped by people before the approval, which says so."""
    return context.spec.cutover.freeze == "manual"


@dataclass(frozen=True)
class _Watch:
    poll_seconds: float
    sleep: Callable[[float], None]
    clock: Callable[[], float]


def _freeze(context: PhaseContext, attempt: FreezeAttempt, watch: _Watch) -> FreezeResult:
    method = freeze_methods.freeze(context, attempt.method, attempt.key, attempt.deadline)
    context.progress(Progress(PHASE, f"producers asked to stop ({attempt.method}); verifying on the source's brokers"))
    ends, bypasses = stand_still(context, attempt, watch)
    result = FreezeResult(
        migration_id=context.migration_id,
        attempt=attempt.number,
        method=context.spec.cutover.freeze if attempt.method == context.spec.cutover.freeze else attempt.method,
        requested_at=iso(attempt.requested_at),
        verified_at=iso(context.now()),
        deadline=iso(attempt.deadline),
        ends=by_name(ends),
        bypasses=bypasses,
        details=method,
    )
    context.journal.step(frozen.VERIFIED, key=attempt.key, details={"result": result.model_dump(mode="json")})
    follow.name_born_late(context, attempt.key)
    return result


def stand_still(
    context: PhaseContext, attempt: FreezeAttempt, watch: _Watch
) -> tuple[dict[TopicPartition, int], list[Bypass]]:
    """Wait until the source stands still: its log ends, and who went on writing if the policy is to continue."""
    section = context.spec.cutover
    still = StillWatch(section.freeze_stable_window.total_seconds(), watch.clock())
    while True:
        look = SourceEnds.look(context)
        now = watch.clock()
        if still.see(look.log_end, now, settled=not look.open_transactions and not look.unreplicated):
            return look.log_end, []
        waited = now - still.started
        if look.open_transactions and waited > section.max_open_transaction_wait.total_seconds():
            raise _held_back(context, look)
        moving = still.moved()
        patience = still.window_seconds + GRACE_SECONDS
        # Ends that have moved, but stand still by now, only need the window again.
        if moving and waited > patience and section.on_bypass != "wait" and _moved_lately(still, now):
            bypasses = name_bypasses(context, attempt.requested_at, still.first_ends, look.log_end)
            if section.on_bypass == "fail":
                raise bypassed(context, bypasses)
            if not look.open_transactions and not look.unreplicated:
                return look.log_end, bypasses
        frozen.check_deadline(context, attempt)
        watch.sleep(watch.poll_seconds)


def _moved_lately(still: StillWatch, now: float) -> bool:
    return still.still_since is None or now - still.still_since < still.window_seconds / 2


def name_bypasses(
    context: PhaseContext, since: datetime, before: dict[TopicPartition, int], after: dict[TopicPartition, int]
) -> list[Bypass]:
    """Who wrote between two looks, as far as the brokers tell (DescribeProducers: idempotent producers only)."""
    moved = sorted(key for key, end in after.items() if end > before.get(key, end))
    producers = context.source.admin.producers(moved)
    names = {item.producer_id: item.transactional_id for item in context.source.admin.list_transactions() or []}
    since_ms = int(since.timestamp() * 1000)
    found = []
    for key in moved:
        states = producers[key].producers if key in producers else ()
        found.append(
            Bypass(
                topic=key[0],
                partition=key[1],
                from_offset=before[key],
                to_offset=after[key],
                producers=[
                    {
                        "producer_id": state.producer_id,
                        "producer_epoch": state.producer_epoch,
                        "last_timestamp_ms": state.last_timestamp_ms,
                        "transactional_id": names.get(state.producer_id, ""),
                    }
                    for state in states
                    if state.last_timestamp_ms >= since_ms
                ],
            )
        )
    return found


def bypassed(context: PhaseContext, bypasses: list[Bypass]) -> FreezeFailed:
    """The error that names who went on writing."""
    first = bypasses[0]
    known = [f"producer id {item['producer_id']}" + _named(item) for item in first.producers]
    who = ", ".join(known) or "a producer without idempotence, which the broker does not name"
    return FreezeFailed(
        f"{len(bypasses)} partitions were written to after the freeze; {first.topic}-{first.partition} got "
        f"offsets {first.from_offset} to {first.to_offset - 1} from {who}",
        where=context.where(PHASE, cluster="source", topic=first.topic, partition=first.partition),
        next_step="stop that producer, then approve the cutover again (or choose cutover.on_bypass)",
        details={"bypasses": [item.model_dump(mode="json") for item in bypasses]},
    )


def _named(item: dict[str, Any]) -> str:
    return f" (transactional id {item['transactional_id']})" if item["transactional_id"] else ""


def _held_back(context: PhaseContext, look: SourceEnds) -> FreezeFailed:
    held = look.open_transactions
    producers = context.source.admin.producers(held)
    open_ids = sorted(
        {
            state.producer_id
            for key in held
            if key in producers
            for state in producers[key].producers
            if state.transaction_start >= 0
        }
    )
    named = [item for item in context.source.admin.open_transactions() or [] if item.producer_id in open_ids]
    who = ", ".join(f"{item.transactional_id} (producer id {item.producer_id})" for item in named)
    topic, partition = held[0]
    return FreezeFailed(
        f"{len(held)} partitions have open transactions after the freeze: {who or f'producer ids {open_ids}'}",
        where=context.where(PHASE, cluster="source", topic=topic, partition=partition, offset=look.stable[held[0]]),
        next_step="let the application end its transaction, or abort it (kafka-transactions.sh abort); then approve "
        "the cutover again",
        details={
            "partitions": [partition_name(key) for key in held],
            "producer_ids": open_ids,
            "transactional_ids": [item.transactional_id for item in named],
        },
    )


def check_not_bypassed(
    context: PhaseContext, attempt: FreezeAttempt, expected: dict[TopicPartition, int]
) -> list[Bypass]:
    """Look again after the freeze: whether the source's log ends are still where they should be.

    :raises FreezeFailed: they are not, and the policy is ``fail`` (or ``wait``: it is too late to wait).
    """
    ends = context.source.wire.list_offsets(list(expected), "log_end")
    if all(ends[key] <= end for key, end in expected.items()):
        return []
    bypasses = name_bypasses(context, attempt.requested_at, expected, ends)
    if context.spec.cutover.on_bypass != "continue":
        raise bypassed(context, bypasses)
    return bypasses


def _summary(result: FreezeResult) -> str:
    suffix = f"; {len(result.bypasses)} partitions are still written to" if result.bypasses else ""
    return f"producers frozen ({result.method}), {len(result.ends)} partitions stand still{suffix}"


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
