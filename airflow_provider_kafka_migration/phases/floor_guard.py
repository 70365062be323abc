"""The offset-floor guard: was anything cut from the target before clients switch?

Looking only at end offsets would miss a retention run or DeleteRecords on the target. So: the target's log start must
not be past the first copied offset, and its end not behind the copied range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_kafka_migration.access import write_grants
from airflow_provider_kafka_migration.documents.copy import MappedPartition, OffsetMapDocument
from airflow_provider_kafka_migration.documents.cutover import Bypass, FrozenTime
from airflow_provider_kafka_migration.errors import ConnectionInvalid, FloorViolated, FreezeFailed, FreezeUnconfirmed
from airflow_provider_kafka_migration.freeze import fence, frozen, stand_still, words
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.record import freeze_attempt
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult, iso, parse_iso
from airflow_provider_kafka_migration.record.facts import put_result
from airflow_provider_kafka_migration.record.freeze_attempt import (
    READY_MESSAGE,
    FreezeAttempt,
    boundary_ends,
    load_boundary,
)
from airflow_provider_kafka_migration.record.offset_maps import load_document
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics import copy_settings
from airflow_provider_kafka_migration.topics import log_starts as topology_log_starts

PHASE = "cutover"
STEP = "floor_guard"


@dataclass(frozen=True)
class Violation:
    """A partition whose target log was cut."""

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
        """The violation as data."""
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
    """Violations, ascending by topic and partition.

    :param log_starts: earliest offsets by (target topic, partition); ``log_ends``: high watermarks likewise.
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
    """Nothing was copied, so nothing can be missing."""
    return item.target_start_offset == item.target_end_offset


def find_violations(context: PhaseContext, document: OffsetMapDocument) -> list[Violation]:
    """Ask the target's brokers and judge."""
    keys = [(item.target_topic, item.partition) for item in document.partitions]
    wire = context.target.wire
    return judge(document, wire.list_offsets(keys, "earliest"), wire.list_offsets(keys, "latest"))


def violated(context: PhaseContext, violations: list[Violation]) -> FloorViolated:
    """The error that names the partitions."""
    first = violations[0]
    return FloorViolated(
        f"{len(violations)} target partitions were cut: {first}",
        where=context.where(PHASE, cluster="target", topic=first.topic, partition=first.partition),
        next_step="find what deleted records on the target (retention, DeleteRecords, an unclean leader election); the "
        "client switch stays blocked: delete these topics on the target and migrate them anew",
        details={"violations": [item.as_dict() for item in violations]},
    )


def run(context: PhaseContext) -> PhaseResult:
    """Put back what producers can notice, check the floor, fence the copiers, and say READY_FOR_CLIENT_SWITCH.

    :raises FloorViolated: names the partitions; the freeze is lifted.
    :raises FreezeFailed: too late, not frozen, somebody wrote to the source after the freeze, or the webhook's receiver
        does not keep producers stopped.
    :raises FreezeUnconfirmed: the webhook's receiver does not answer.
    """
    attempt = frozen.verified_attempt(context, STEP)
    if attempt.ready:
        return _already_ready(context, attempt)
    with frozen.frozen_step(context, STEP) as attempt:
        if freeze_attempt.step_done(context, attempt, "commit_groups") is None:
            raise FreezeFailed(
                "the groups are not committed yet", where=context.where(PHASE), next_step="clear cutover.commit_groups"
            )
        timer = frozen.StepTimer.start(context, attempt, STEP)
        document = _document(context)
        # Before compaction comes back: compacted topics refuse DeleteRecords.
        topology_log_starts.restore_log_starts(context, document)
        restored = copy_settings.restore_producer_visible(context)
        violations = find_violations(context, document)
        if violations:
            raise violated(context, violations)
        # Before the last look at the source: it has to see what was written until then.
        held = frozen.hold(context, attempt)
        bypasses = stand_still.check_not_bypassed(context, attempt, boundary_ends(context, load_boundary(context)))
        # Last: nobody may write to a target that may still be given up.
        granted = write_grants.grant(context)
        # From READY on the freeze is not lifted any more, so its time must not be over before it.
        frozen.check_deadline(context, attempt)
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
        frozen_time = _frozen_time(context, attempt)
        put_result(context, "frozen-time", frozen_time)
        # Not after the freeze was given up by the watch on its limit.
        ready = frozen_time.model_dump(mode="json")
        context.journal.step(freeze_attempt.READY, key=attempt.key, details=ready, only_in={State.CUTOVER})
    # Not earlier, and not within the frozen step: under a fenced id a copy could not go on after a lifted freeze.
    fenced = fence.fence_copiers(context, attempt, document)
    return PhaseResult(
        PHASE,
        f"{READY_MESSAGE}: {len(document.partitions)} partitions checked, "
        f"producers frozen for {frozen_time.frozen_seconds:.1f} s; {fenced['summary']}",
        {**details, "frozen": frozen_time.model_dump(mode="json"), "fence": fenced},
    )


def _already_ready(context: PhaseContext, attempt: FreezeAttempt) -> PhaseResult:
    """READY was reached before: look again, since clearing this task asks whether it still holds."""
    document = _document(context)
    moved = _check_again(context, document)
    entry = context.journal.find_step(freeze_attempt.READY, attempt.key)
    details = dict(entry.details) if entry else {}
    if context.journal.is_past(State.CUTOVER):
        # Clients may write by now: whoever was not fenced before they were told stays so, and is named.
        fenced = dict(freeze_attempt.step_done(context, attempt, fence.FENCE_STEP) or {})
        bypasses = []
    else:
        # It died between READY and its end: nobody was told to switch, and somebody may have freed the producers.
        _hold_behind_ready(context, attempt)
        bypasses = _check_still_frozen(context, attempt)
        fenced = fence.fence_copiers(context, attempt, document)
    found = {
        "frozen": details,
        "fence": fenced,
        "bypasses": [item.model_dump(mode="json") for item in bypasses],
        "moved_starts": [item.as_dict() for item in moved],
    }
    summary = f"{READY_MESSAGE} (again)"
    if moved:
        summary += (
            f"; {len(moved)} target partitions have lost their first copied records since, to retention or to clients "
            f"({moved[0]}): validate tells whether they had been compared"
        )
    return PhaseResult(PHASE, summary, found, already_done=True)


def _hold_behind_ready(context: PhaseContext, attempt: FreezeAttempt) -> None:
    """A release that asked no receiver to forget its deadline may have journaled READY; a receiver that has confirmed
    it is not needed again.

    :raises FreezeFailed: it refuses. :raises FreezeUnconfirmed: it does not answer.
    """
    if (freeze_attempt.step_done(context, attempt, STEP) or {}).get("held"):
        return
    try:
        frozen.hold(context, attempt)
    except (FreezeFailed, FreezeUnconfirmed, ConnectionInvalid) as error:
        raise type(error)(
            f"{freeze_attempt.READY} is journaled, and nobody confirms that producers stay stopped: {error.what}",
            where=error.where,
            next_step="nothing can be rolled back any more: let the receiver take a freeze without a deadline, or put "
            "its address right, then clear cutover.floor_guard; do not free the producers",
            details=error.details,
        ) from error


def _check_again(context: PhaseContext, document: OffsetMapDocument) -> list[Violation]:
    """Log starts that have moved legitimately since READY: clients write, and ``validate`` puts retention back.

    :raises FloorViolated: before that time any cut is a loss; a log that ends too early is one at any time.
    """
    violations = find_violations(context, document)
    if not context.journal.is_past(State.AWAITING_CLIENT_SWITCH):
        if violations:
            raise violated(context, violations)
        return []
    lost = [item for item in violations if item.kind == "end"]
    if lost:
        raise FloorViolated(
            f"{len(lost)} target partitions were cut: {lost[0]}",
            where=context.where(PHASE, cluster="target", topic=lost[0].topic, partition=lost[0].partition),
            next_step="find what removed records at their ends (an unclean leader election, a topic that was created "
            "again); clients use these topics already, so send the missing records again from what the source has",
            details={"violations": [item.as_dict() for item in lost]},
        )
    return violations


def _check_still_frozen(context: PhaseContext, attempt: FreezeAttempt) -> list[Bypass]:
    """Whether the source still ends where the cutover's boundary is; those who wrote, with ``on_bypass: continue``.

    :raises FreezeFailed: it does not; the freeze is not lifted, since READY is journaled.
    """
    try:
        return stand_still.check_not_bypassed(context, attempt, boundary_ends(context, load_boundary(context)))
    except FreezeFailed as error:
        raise FreezeFailed(
            f"{freeze_attempt.READY} is journaled, and clients must not be told to switch: {error.what}",
            where=error.where,
            next_step="stop these producers again: the freeze is not lifted and nothing can be rolled back any more. "
            "The records named here are on the source only: have them sent again to the target after the switch, then "
            "set cutover.on_bypass: continue and clear cutover.floor_guard, which names them and goes on; "
            f"{words.IF_PARAMS}",
            details=error.details,
        ) from error


def _document(context: PhaseContext) -> OffsetMapDocument:
    document = load_document(context)
    if document is None:
        raise FreezeFailed(
            "there is no offset-map.json",
            where=context.where(PHASE),
            next_step="clear cutover.final_drain",
        )
    return document


def _frozen_time(context: PhaseContext, attempt: FreezeAttempt) -> FrozenTime:
    assert attempt.verified is not None
    now = context.now()
    prefix = f"{attempt.key}/"
    steps = {
        entry.step_key.removeprefix(prefix): float(entry.details["seconds"])
        for entry in context.journal.steps(freeze_attempt.STEP)
        if entry.step_key is not None and entry.step_key.startswith(prefix)
    }
    verification = (parse_iso(attempt.verified.verified_at) - attempt.requested_at).total_seconds()
    return FrozenTime(
        migration_id=context.migration_id,
        attempt=attempt.number,
        requested_at=attempt.verified.requested_at,
        verified_at=attempt.verified.verified_at,
        ready_at=iso(now),
        stopped_at=iso(attempt.stopped_at),
        # What producers feel: they stand still while it is verified that they do, too.
        frozen_seconds=round((now - attempt.stopped_at).total_seconds(), 3),
        steps={"freeze": round(verification, 3), **steps},
    )
