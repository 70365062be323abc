"""The freeze of a migration's cutover, or of a mirror's promotion, according to its journal."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_provider_kafka_migration.documents.cutover import Boundary, FreezeResult
from airflow_provider_kafka_migration.documents.journal import JournalEntry
from airflow_provider_kafka_migration.errors import FreezeFailed
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.partition_names import partition_name
from airflow_provider_kafka_migration.record.times import parse_iso
from airflow_provider_kafka_migration.state import Resume, ResumeAction, State

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.journal.journal import Journal
    from airflow_provider_kafka_migration.kafka.wire import TopicPartition
    from airflow_provider_kafka_migration.record.record import MigrationRecord


@dataclass(frozen=True)
class FreezeAttempt:
    """One attempt to freeze, from its journal steps.

    It is at home in the cutover of a migration, or in the promotion of a mirror. The two differ in the step with which
    clients may be on the target, and in how the journal shows that no further step of the attempt may follow: a
    migration goes back to ``tail``; a mirror stays in its state, and journals ``freeze_given_up``.

    :param requested_at: when the migration asked producers to stop.
    :param stopped_at: when producers were stopped: at the request, or with ``freeze: manual`` at the approval, in which
        a person confirmed it. The limit counts from here.
    """

    number: int
    method: str
    requested_at: datetime
    deadline: datetime
    stopped_at: datetime
    verified: FreezeResult | None = None
    #: Clients may be on the target: the freeze is never lifted any more.
    ready: bool = False
    lifted: bool = False
    #: Since when no step of the attempt may follow: producers may be free, whatever is known about the lift.
    given_up_at: datetime | None = None
    #: The webhook's receiver was asked to keep producers stopped without a deadline; whether it complied is unknown.
    held: bool = False
    #: Number of the request to promote the mirror; None: the attempt belongs to a cutover.
    request: int | None = None

    @property
    def key(self) -> str:
        """The key of this attempt's journal steps."""
        return str(self.number)

    @property
    def last_step(self) -> tuple[str, str | None]:
        """Name and key of the step with which clients may be on the target."""
        return _last_step(self.request, self.key)

    @property
    def given_up(self) -> bool:
        """Whether no step of the attempt may follow."""
        return self.given_up_at is not None

    @property
    def is_in_force(self) -> bool:
        """Whether steps of the attempt may follow."""
        return self.is_open and not self.given_up

    @property
    def is_open(self) -> bool:
        """Producers are (or may be) stopped for this attempt, and clients have not been told to switch."""
        return not self.ready and not self.lifted


def latest(journal: Journal) -> FreezeAttempt | None:
    """Return the latest attempt, or ``None`` if there was none."""
    number, found = 1, None
    while (entry := journal.find_step(steps.FREEZE_REQUESTED, str(number))) is not None:
        found = entry
        number += 1
    return None if found is None else _attempt(journal, str(number - 1), found)


def _attempt(journal: Journal, key: str, requested: JournalEntry) -> FreezeAttempt:
    verified = journal.find_step(steps.FREEZE_VERIFIED, key)
    given_up = _given_up(journal, key, requested)
    request = requested.details.get("request")
    return FreezeAttempt(
        number=int(key),
        method=requested.details["method"],
        requested_at=parse_iso(requested.details["requested_at"]),
        deadline=parse_iso(requested.details["deadline"]),
        stopped_at=parse_iso(requested.details.get("stopped_at", requested.details["requested_at"])),
        verified=FreezeResult.model_validate(verified.details["result"]) if verified else None,
        ready=journal.find_step(*_last_step(request, key)) is not None,
        lifted=_is_lifted(journal, key),
        given_up_at=parse_iso(given_up.at) if given_up else None,
        held=journal.find_step(steps.FREEZE_HELD, key) is not None,
        request=request,
    )


def lifted_resume(journal: Journal) -> Resume | None:
    """Return what to do with a migration whose freeze was lifted, as long as no new cutover is approved; else None."""
    attempt = latest(journal)
    if attempt is None or not attempt.lifted or attempt.request is not None or journal.working_state is not State.TAIL:
        return None
    return Resume(
        ResumeAction.REENTER,
        State.TAIL,
        f"freeze {attempt.number} was lifted and the copy goes on. In Airflow, {AGAIN}; on the command line, run "
        "`kafka-migration resume FILE`",
    )


def _last_step(request: int | None, key: str) -> tuple[str, str | None]:
    return (steps.READY, key) if request is None else (steps.PROMOTED, None)


def _is_lifted(journal: Journal, key: str) -> bool:
    """Whether producers were freed, and none was stopped after that by a request that came too late."""
    lifted, late = journal.find_step(steps.FREEZE_LIFTED, key), journal.find_step(steps.FREEZE_CAME_LATE, key)
    return lifted is not None and (late is None or lifted.seq > late.seq)


def _given_up(journal: Journal, key: str, requested: JournalEntry) -> JournalEntry | None:
    """Return the entry after which no step of the attempt may follow: a migration goes back to ``tail``."""
    if requested.details.get("request") is not None:
        return journal.find_step(steps.FREEZE_GIVEN_UP, key)
    return next(
        (
            entry
            for entry in journal.entries()
            if entry.seq > requested.seq and not entry.is_step and entry.to_state is State.TAIL
        ),
        None,
    )


#: The one set of tasks with which a cutover begins again, whether its freeze was lifted or never began. The watch on
#: the limit and the approval are in it; the command line says ``resume`` instead.
AGAIN = (
    "clear drain_ready and everything below it (tail, too, if it has ended): the cutover begins again with a new "
    "approval"
)

READY_MESSAGE = "READY_FOR_CLIENT_SWITCH"


# -- boundary ---------------------------------------------------------------------------------------------------------
#
# The boundary of a cutover: the end of the source's records that belong to the migration.


PHASE = "cutover"


def boundary_ends(record: MigrationRecord, boundary: Boundary) -> dict[TopicPartition, int]:
    """Return the exclusive source end of each partition.

    :raises FreezeFailed: a partition appeared after the freeze.
    """
    partitions = record.partitions()
    missing = [key for key in partitions if partition_name(key) not in boundary.ends]
    if missing:
        raise FreezeFailed(
            f"{len(missing)} partitions appeared after the freeze; the first is {partition_name(missing[0])}",
            where=record.where(PHASE, topic=missing[0][0], partition=missing[0][1]),
            next_step=f"stop whoever creates topics or partitions on the source; then {AGAIN}",
        )
    return {key: boundary.ends[partition_name(key)] for key in partitions}
