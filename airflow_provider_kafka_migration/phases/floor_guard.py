"""The offset-floor guard: check before clients switch that the target has not lost records.

End offsets alone would miss a retention run or DeleteRecords on the target. So the guard checks both ends: the target's
log start must not be past the first copied offset, and its log end must not be before the end of the copied range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_kafka_migration.access import write_grants
from airflow_provider_kafka_migration.documents.copy import MappedPartition, OffsetMapDocument
from airflow_provider_kafka_migration.documents.cutover import Bypass, FrozenTime
from airflow_provider_kafka_migration.errors import ConnectionInvalid, FloorViolated, FreezeFailed, FreezeUnconfirmed
from airflow_provider_kafka_migration.freeze import fence, frozen, stand_still, stops, words
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext, PhaseResult
from airflow_provider_kafka_migration.record.freeze_attempt import (
    READY_MESSAGE,
    FreezeAttempt,
    boundary_ends,
)
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso, parse_iso
from airflow_provider_kafka_migration.spec.advice import begin_again
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics import copy_settings
from airflow_provider_kafka_migration.topics import log_starts as topology_log_starts
from airflow_provider_kafka_migration.way_back import guard

PHASE = "cutover"


@dataclass(frozen=True)
class Violation:
    """A partition whose target log has lost records."""

    topic: str
    partition: int
    kind: str
    expected: int
    seen: int

    def __str__(self) -> str:
        if self.kind == "floor":
            return f"{self.topic}-{self.partition} starts at {self.seen}, the first copied offset is {self.expected}"
        return f"{self.topic}-{self.partition} ends at {self.seen}, the copied range ends at {self.expected}"

    def as_dict(self) -> dict[str, Any]:
        """Return the violation as data."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "kind": self.kind,
            "expected": self.expected,
            "seen": self.seen,
        }


def judge(
    document: OffsetMapDocument,
    log_starts: Mapping[TopicPartition, int],
    log_ends: Mapping[TopicPartition, int],
) -> list[Violation]:
    """Return the violations, ascending by topic and partition.

    :param log_starts: earliest offsets by (target topic, partition).
    :param log_ends: high watermarks by the same keys.
    """
    found = []
    for item in document.partitions:
        key = (item.target_topic, item.partition)
        if item.target_start_offset is None or item.target_end_offset is None:
            continue
        if log_starts[key] > item.target_start_offset and not _is_empty(item):
            found.append(Violation(*key, "floor", item.target_start_offset, log_starts[key]))
        if log_ends[key] < item.target_end_offset:
            found.append(Violation(*key, "end", item.target_end_offset, log_ends[key]))
    return found


def _is_empty(item: MappedPartition) -> bool:
    """Whether nothing was copied, so that nothing can be missing."""
    return item.target_start_offset == item.target_end_offset


def find_violations(target: Cluster, document: OffsetMapDocument) -> list[Violation]:
    """Read log starts and ends from the target's brokers and return the violations."""
    keys = [(item.target_topic, item.partition) for item in document.partitions]
    wire = target.wire
    return judge(document, wire.list_offsets(keys, "earliest"), wire.list_offsets(keys, "latest"))


def _after_loss(record: MigrationRecord) -> str:
    """Return what to do about lost records; until clients may switch, the copy brings them again."""
    if _is_ready(record):
        return f"the client switch stays blocked; {words.WAY_OUT}"
    if record.spec.adopt is not None:
        return f"delete nothing there, because not all of it was copied by this migration: {begin_again(record.spec)}"
    return (
        "then delete these topics on the target, and clear tail, and drain_ready and what follows it: the tail creates "
        "them again, and copies them from the source's log start; then approve the cutover again"
    )


def violated(record: MigrationRecord, violations: list[Violation]) -> FloorViolated:
    """Return the error that names the partitions."""
    first = violations[0]
    return FloorViolated(
        f"{len(violations)} target partitions have lost copied records: {first}",
        where=record.where(PHASE, cluster="target", topic=first.topic, partition=first.partition),
        next_step="find what deleted records on the target (retention, DeleteRecords, an unclean leader election), and "
        f"stop it; {_after_loss(record)}",
        details={"violations": [item.as_dict() for item in violations]},
    )


def _is_ready(record: MigrationRecord) -> bool:
    attempt = record.freeze()
    return attempt is not None and attempt.ready


def run(context: PhaseContext) -> PhaseResult:
    """Restore producer-visible settings, check the floor, journal READY_FOR_CLIENT_SWITCH, and fence the copiers.

    :raises FloorViolated: target partitions have lost records; the error names them, and the freeze is lifted.
    :raises FreezeFailed: the limit is over, nothing is frozen, a producer wrote to the source after the freeze, or the
        webhook's receiver does not keep producers stopped.
    :raises FreezeUnconfirmed: the webhook's receiver does not answer.
    """
    record = context.record
    attempt = frozen.verified_attempt(record, steps.FLOOR_GUARD)
    if attempt.ready:
        return _already_ready(context, attempt)
    with write_grants.taken_back_if_lifted(context), frozen.frozen_step(context, steps.FLOOR_GUARD) as attempt:
        if record.cutover_step(attempt, steps.COMMIT_GROUPS) is None:
            raise FreezeFailed(
                "the groups are not committed yet", where=context.where(PHASE), next_step="clear cutover.commit_groups"
            )
        timer = frozen.StepTimer.start(record, attempt, steps.FLOOR_GUARD)
        document = _document(record)
        # Before compaction is restored: compacted topics refuse DeleteRecords.
        topology_log_starts.restore_log_starts(record, context.target, document)
        restored = copy_settings.restore_producer_visible(record, context.target)
        violations = find_violations(context.target, document)
        if violations:
            raise violated(record, violations)
        # Before the last check of the source, which has to see everything that was written until then.
        held = stops.hold(context, attempt)
        bypasses = stand_still.check_not_bypassed(
            record, context.source, attempt, boundary_ends(record, record.boundary())
        )
        # Last, because applications must not write to a target while the cutover can still be abandoned.
        granted = write_grants.grant(record, context.source, context.target)
        # After READY the freeze is never lifted, so its limit must not have passed before READY.
        stops.check_deadline(record, attempt)
        details = timer.done(
            {
                "partitions": len(document.partitions),
                "violations": [],
                "restored": restored.details,
                "write_grants": granted,
                "held": held,
                "bypasses": [item.model_dump(mode="json") for item in bypasses],
            }
        )
        frozen_time = _frozen_time(record, attempt)
        record.put_result(keys.FROZEN_TIME, frozen_time)
        # READY must not follow once the watch on the limit has given up the freeze, not even if another one has begun.
        ready, lifted = frozen_time.model_dump(mode="json"), (steps.FREEZE_LIFTED, attempt.key)
        context.journal.step(steps.READY, attempt.key, ready, only_in={State.CUTOVER}, unless_step=lifted)
    context.announce(words.ready(attempt.number, is_mirror=False))
    # Not earlier, and not within the frozen step: after a lifted freeze the copy could not continue under a fenced id.
    fenced = fence.fence_copiers(record, context.target, attempt, document)
    # After the fence, so that no copier of the way back can write behind the first record of a client that returned.
    opened = guard.open_for_return(context)
    return PhaseResult(
        PHASE,
        f"{READY_MESSAGE}: {len(document.partitions)} partitions checked, "
        f"producers frozen for {frozen_time.frozen_seconds:.1f} s; {fenced['summary']}{_todo(opened)}",
        {**details, "frozen": frozen_time.model_dump(mode="json"), "fence": fenced},
    )


def _todo(opened: dict[str, Any] | None) -> str:
    """Return what a person has to do before clients return from a way back, as the end of a summary."""
    return f"; {opened['todo']}" if opened and "todo" in opened else ""


def _already_ready(context: PhaseContext, attempt: FreezeAttempt) -> PhaseResult:
    """Check again after READY: clearing this task asks whether READY still holds."""
    record = context.record
    document = _document(record)
    moved = _check_again(record, context.target, document)
    entry = context.journal.find_step(steps.READY, attempt.key)
    details = dict(entry.details) if entry else {}
    if context.journal.is_past(State.CUTOVER):
        # Clients may write by now: a copier that was not fenced before they were told to switch is only named.
        fenced = dict(record.cutover_step(attempt, steps.FENCE) or {})
        bypasses = []
        opened = None
    else:
        # The task died between READY and its end: no client was told to switch, and someone may have freed the
        # producers.
        context.announce(words.ready(attempt.number, is_mirror=False))
        _hold_behind_ready(context, attempt)
        bypasses = _check_still_frozen(record, context.source, attempt)
        fenced = fence.fence_copiers(record, context.target, attempt, document)
        opened = guard.open_for_return(context)
    found = {
        "frozen": details,
        "fence": fenced,
        "bypasses": [item.model_dump(mode="json") for item in bypasses],
        "moved_starts": [item.as_dict() for item in moved],
    }
    summary = f"{READY_MESSAGE} (again){_todo(opened)}"
    if moved:
        summary += (
            f"; since then, retention or clients have deleted the first copied records of {len(moved)} target "
            f"partitions ({moved[0]}): validate reports whether they had been compared"
        )
    return PhaseResult(PHASE, summary, found, already_done=True)


def _hold_behind_ready(context: PhaseContext, attempt: FreezeAttempt) -> None:
    """Ask the webhook's receiver to forget its deadline, unless it has confirmed that already.

    An older release, which did not ask the receiver for this, may have journaled READY.

    :raises FreezeFailed: the receiver refuses.
    :raises FreezeUnconfirmed: the receiver does not answer.
    """
    if (context.record.cutover_step(attempt, steps.FLOOR_GUARD) or {}).get("held"):
        return
    try:
        stops.hold(context, attempt)
    except (FreezeFailed, FreezeUnconfirmed, ConnectionInvalid) as error:
        raise type(error)(
            f"{steps.READY} is journaled, but it is not confirmed that producers stay stopped: {error.what}",
            where=error.where,
            next_step="the freeze is not lifted any more: make the receiver accept a freeze without a deadline, or "
            f"correct its address, then clear cutover.floor_guard; do not free the producers by hand; {words.WAY_OUT}",
            details=error.details,
        ) from error


def _check_again(record: MigrationRecord, target: Cluster, document: OffsetMapDocument) -> list[Violation]:
    """Return log starts that have moved legitimately since READY: clients write, and ``validate`` restores retention.

    :raises FloorViolated: before the client switch any moved log start is a loss; a log that ends too early always is.
    """
    violations = find_violations(target, document)
    if not record.journal.is_past(State.AWAITING_CLIENT_SWITCH):
        if violations:
            raise violated(record, violations)
        return []
    lost = [item for item in violations if item.kind == "end"]
    if lost:
        raise FloorViolated(
            f"{len(lost)} target partitions have lost records at their ends: {lost[0]}",
            where=record.where(PHASE, cluster="target", topic=lost[0].topic, partition=lost[0].partition),
            next_step="find what removed the records (an unclean leader election, a topic that was created again); "
            "clients use these topics already, so send the missing records again from the source",
            details={"violations": [item.as_dict() for item in lost]},
        )
    return violations


def _check_still_frozen(record: MigrationRecord, source: Cluster, attempt: FreezeAttempt) -> list[Bypass]:
    """Check that the source still ends at the cutover's boundary.

    :returns: producers that wrote beyond it, with ``on_bypass: note``.
    :raises FreezeFailed: the source has grown; the freeze is not lifted, since READY is journaled.
    """
    try:
        return stand_still.check_not_bypassed(record, source, attempt, boundary_ends(record, record.boundary()))
    except FreezeFailed as error:
        raise FreezeFailed(
            f"{steps.READY} is journaled, and clients must not be told to switch: {error.what}",
            where=error.where,
            next_step=f"stop these producers again, or stay on the source: {words.WAY_OUT}. The records named here are "
            "on the source only: have them sent again to the target after the switch, then set cutover.on_bypass: "
            "note and clear cutover.floor_guard, which then names them and "
            f"continues; {words.IF_PARAMS}",
            details=error.details,
        ) from error


def _document(record: MigrationRecord) -> OffsetMapDocument:
    document = record.offset_map()
    if document is None:
        raise FreezeFailed(
            "there is no offset-map.json",
            where=record.where(PHASE),
            next_step="clear cutover.final_drain",
        )
    return document


def _frozen_time(record: MigrationRecord, attempt: FreezeAttempt) -> FrozenTime:
    assert attempt.verified is not None
    now = record.now()
    prefix = f"{attempt.key}/"
    seconds = {
        entry.step_key.removeprefix(prefix): float(entry.details["seconds"])
        for entry in record.journal.steps(steps.CUTOVER_STEP)
        if entry.step_key is not None and entry.step_key.startswith(prefix)
    }
    verification = (parse_iso(attempt.verified.verified_at) - attempt.requested_at).total_seconds()
    return FrozenTime(
        migration_id=record.migration_id,
        attempt=attempt.number,
        requested_at=attempt.verified.requested_at,
        verified_at=attempt.verified.verified_at,
        ready_at=iso(now),
        stopped_at=iso(attempt.stopped_at),
        # As producers experience it: they are also stopped while the freeze is being verified.
        frozen_seconds=round((now - attempt.stopped_at).total_seconds(), 3),
        steps={"freeze": round(verification, 3), **seconds},
    )
