"""The limit of a freeze: what is left of it, what has used it up, and what a person does when it cannot be kept."""

from __future__ import annotations

from airflow_provider_kafka_migration.errors import (
    FreezeFailed,
    MigrationError,
    StillFrozen,
)
from airflow_provider_kafka_migration.freeze import by_hand, words
from airflow_provider_kafka_migration.freeze.deny_acls import planned_acls
from airflow_provider_kafka_migration.record import handover, times
from airflow_provider_kafka_migration.record.freeze_attempt import FreezeAttempt
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso


def check_deadline(record: MigrationRecord, attempt: FreezeAttempt) -> None:
    """Raise :class:`FreezeFailed` when producers have been frozen for longer than ``max_producer_freeze``."""
    over = (record.now() - attempt.deadline).total_seconds()
    if attempt.ready or over <= 0:
        return
    raise FreezeFailed(
        f"producers have been frozen for longer than max_producer_freeze "
        f"({record.spec.cutover.max_producer_freeze.total_seconds():g} s), by {over:.1f} s",
        where=record.where(words.phase_of(record.spec)),
        next_step=f"{too_slow(record, attempt)}; then {words.again(record.spec)}",
        details={"attempt": attempt.number, "deadline": iso(attempt.deadline)},
    )


def too_slow(record: MigrationRecord, attempt: FreezeAttempt) -> str:
    """Say what helps against a freeze that has lasted too long: what most of its time has gone into; one clause."""
    found = handover.measure_freeze(record, attempt.key, actor=record.journal.actor)
    if found is None or not found.is_mostly_handover or record.spec.cutover.in_one_task or attempt.request is not None:
        return (
            "find the slow step (the journal has the seconds of each); raise cutover.max_producer_freeze or choose a "
            "quieter hour"
        )
    return (
        f"{times.words(found.handover_seconds)} of {times.words(found.frozen_seconds)} were hand-overs between tasks: "
        "set cutover.in_one_task: true, which runs all steps in one task, or raise cutover.max_producer_freeze "
        f"({words.IF_PARAMS})"
    )


def seconds_left(record: MigrationRecord, attempt: FreezeAttempt) -> float:
    """Return the seconds until the freeze is lifted; never below 0."""
    return max((attempt.deadline - record.now()).total_seconds(), 0.0)


def still_frozen(
    record: MigrationRecord, attempt: FreezeAttempt, cause: MigrationError, *, what: str = "", abandoned: bool = False
) -> StillFrozen:
    """Return the error of a freeze that cannot be lifted now, with instructions for a person.

    :param abandoned: the migration was abandoned, so no client writes to the target.
    """
    return by_hand.still_frozen(
        record.spec,
        what or f"producers are still frozen, and freeze {attempt.number} cannot be lifted",
        cause,
        method=attempt.method,
        deadline=attempt.deadline,
        acls=planned_acls(record, attempt.key),
        held=attempt.held,
        abandoned=abandoned,
    )
