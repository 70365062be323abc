"""The freeze of a migration, according to its journal."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_provider_kafka_migration.documents.cutover import Boundary, FreezeResult
from airflow_provider_kafka_migration.documents.journal import JournalEntry
from airflow_provider_kafka_migration.errors import (
    ClaimHeld,
    ClaimLost,
    FreezeFailed,
    JournalTampered,
)
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.record.facts import get_result, migrated_partitions, partition_name
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import parse_iso
from airflow_provider_kafka_migration.state import State

#: Names of journal steps; their key is the number of the attempt.
REQUESTED = "freeze_requested"
VERIFIED = "freeze_verified"
#: Journaled before the webhook's receiver is asked to drop the deadline: after that it might no longer lift by itself.
HELD = "freeze_held"
LIFTED = "freeze_lifted"
READY = "ready_for_client_switch"
STEP = "cutover_step"
TAIL_STOP = "control/tail-stop.json"
#: After these errors another process is in charge, or nothing can be trusted: touch nothing.
HANDS_OFF = (ClaimHeld, ClaimLost, JournalTampered)


@dataclass(frozen=True)
class FreezeAttempt:
    """One attempt to freeze, from its journal steps.

    :param requested_at: when the migration asked producers to stop; the limit counts from here.
    :param stopped_at: when producers were stopped: at the request, or with ``freeze: manual`` at the approval, in which
        a person confirmed it.
    """

    number: int
    method: str
    requested_at: datetime
    deadline: datetime
    stopped_at: datetime
    verified: FreezeResult | None = None
    ready: bool = False
    lifted: bool = False
    #: The migration has left ``cutover`` since the request: producers may be free, whatever is known about the lift.
    given_up: bool = False
    #: The webhook's receiver was asked to keep producers stopped without a deadline; whether it complied is unknown.
    held: bool = False

    @property
    def key(self) -> str:
        """The key of this attempt's journal steps."""
        return str(self.number)

    @property
    def is_open(self) -> bool:
        """Producers are (or may be) stopped for this attempt, and clients have not been told to switch."""
        return not self.ready and not self.lifted


def current_attempt(record: MigrationRecord) -> FreezeAttempt | None:
    """Return the latest attempt, or ``None`` if there was none."""
    number, found = 1, None
    while (entry := record.journal.find_step(REQUESTED, str(number))) is not None:
        found = entry
        number += 1
    return None if found is None else _attempt(record, number - 1, found)


def _attempt(record: MigrationRecord, number: int, requested: JournalEntry) -> FreezeAttempt:
    verified = record.journal.find_step(VERIFIED, str(number))
    return FreezeAttempt(
        number=number,
        method=requested.details["method"],
        requested_at=parse_iso(requested.details["requested_at"]),
        deadline=parse_iso(requested.details["deadline"]),
        stopped_at=parse_iso(requested.details.get("stopped_at", requested.details["requested_at"])),
        verified=FreezeResult.model_validate(verified.details["result"]) if verified else None,
        ready=record.journal.find_step(READY, str(number)) is not None,
        lifted=record.journal.find_step(LIFTED, str(number)) is not None,
        given_up=any(
            entry.seq > requested.seq and not entry.is_step and entry.to_state is State.TAIL
            for entry in record.journal.entries()
        ),
        held=record.journal.find_step(HELD, str(number)) is not None,
    )


def step_done(record: MigrationRecord, attempt: FreezeAttempt, name: str) -> dict[str, Any] | None:
    """Details of a step of this attempt, or ``None`` if it is not done."""
    entry = record.journal.find_step(STEP, f"{attempt.key}/{name}")
    return entry.details if entry else None


READY_MESSAGE = "READY_FOR_CLIENT_SWITCH"


def is_frozen(record: MigrationRecord) -> bool:
    """Whether a freeze was requested and not lifted, or the cutover is over."""
    attempt = current_attempt(record)
    return (attempt is not None and not attempt.lifted) or record.journal.is_past(State.CUTOVER)


# -- boundary ---------------------------------------------------------------------------------------------------------
#
# The boundary of a cutover: the end of the source's records that belong to the migration.


PHASE = "cutover"


def load_boundary(record: MigrationRecord) -> Boundary:
    """Load the end of the source as the sentinels step recorded it.

    :raises FreezeFailed: the step was not done.
    """
    data = get_result(record, "boundary")
    if data is None:
        raise FreezeFailed(
            "the end of the source is unknown, because the sentinels were not written",
            where=record.where(PHASE),
            next_step="clear cutover.sentinels",
        )
    return Boundary.parse(data)


def boundary_ends(record: MigrationRecord, boundary: Boundary) -> dict[TopicPartition, int]:
    """Return the exclusive source end of each partition.

    :raises FreezeFailed: a partition appeared after the freeze.
    """
    partitions = migrated_partitions(record)
    missing = [key for key in partitions if partition_name(key) not in boundary.ends]
    if missing:
        raise FreezeFailed(
            f"{len(missing)} partitions appeared after the freeze; the first is {partition_name(missing[0])}",
            where=record.where(PHASE, topic=missing[0][0], partition=missing[0][1]),
            next_step="stop whoever creates topics or partitions on the source; then approve the cutover again",
        )
    return {key: boundary.ends[partition_name(key)] for key in partitions}
