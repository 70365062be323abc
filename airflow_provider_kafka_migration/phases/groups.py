"""Consumer groups: take a snapshot on the source, translate it, commit it on the target, and sync until the switch.

Rules (docs/decisions/0012): only groups that are empty on the target are written, and never moved backwards; offsets
are committed with leader epoch -1 and their metadata. One bad group never blocks the others: failures are collected and
reported at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from airflow_provider_kafka_migration.documents.cutover import GroupResult
from airflow_provider_kafka_migration.errors import (
    FreezeFailed,
)
from airflow_provider_kafka_migration.freeze import frozen
from airflow_provider_kafka_migration.groups.commit import (
    GroupTranslator,
    failures_error,
    make_result,
    summarize,
    take_snapshot,
)
from airflow_provider_kafka_migration.groups.final import commit_final, sync_groups
from airflow_provider_kafka_migration.groups.offsets import count_translations
from airflow_provider_kafka_migration.record import keys, rolling_back, steps
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult, Progress
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.schemas.settings_left import try_to_put_back_target
from airflow_provider_kafka_migration.state import State

PHASE = "cutover"
SYNC_PHASE = "sync_groups"


# -- snapshot --------------------------------------------------------------------------------------------------------


def snapshot_groups(context: PhaseContext) -> PhaseResult:
    """Run step ``cutover.snapshot_groups``: write ``results/groups-snapshot.json``.

    The snapshot includes groups that could not be read, with their error; commit_groups reports them.
    """
    record = context.record
    with frozen.frozen_step(context, steps.SNAPSHOT_GROUPS) as attempt:
        done = record.cutover_step(attempt, steps.SNAPSHOT_GROUPS)
        if done is not None and record.result(keys.GROUPS_SNAPSHOT) is not None:
            return PhaseResult(PHASE, done["summary"], done, already_done=True)
        timer = frozen.StepTimer.start(record, attempt, steps.SNAPSHOT_GROUPS)
        snapshot = take_snapshot(record, context.source)
        key = record.put_result(keys.GROUPS_SNAPSHOT, snapshot)
        offsets = sum(len(group.offsets) for group in snapshot.groups)
        details = timer.done(
            {
                "summary": f"{len(snapshot.groups)} groups with {offsets} committed offsets",
                "snapshot": key,
                "digest": snapshot.digest(),
                "groups": [group.group for group in snapshot.groups],
                "unread": [group.group for group in snapshot.groups if group.error],
            }
        )
        return PhaseResult(PHASE, details["summary"], details)


# -- translation -----------------------------------------------------------------------------------------------------


# -- commit ----------------------------------------------------------------------------------------------------------


def commit_groups(context: PhaseContext) -> PhaseResult:
    """Run step ``cutover.commit_groups``: translate the snapshot and commit it on the target.

    :raises GroupsIncomplete: some groups failed; all others are committed. Clearing the task retries only the rest.
    """
    record = context.record
    with frozen.frozen_step(context, steps.COMMIT_GROUPS) as attempt:
        done = record.cutover_step(attempt, steps.COMMIT_GROUPS)
        if done is not None and record.groups() is not None:
            return PhaseResult(PHASE, done["summary"], done, already_done=True)
        if record.cutover_step(attempt, steps.FINAL_DRAIN) is None:
            raise FreezeFailed(
                "the target does not have everything yet, so no offset is final",
                where=context.where(PHASE),
                next_step="clear cutover.final_drain",
            )
        timer = frozen.StepTimer.start(record, attempt, steps.COMMIT_GROUPS)
        snapshot = record.groups_snapshot()
        context.journal.check_holds()
        translator = GroupTranslator.final(record, context.target)
        results = commit_final(context, snapshot.groups, translator)
        key = record.put_result(keys.GROUPS, make_result(record, results, snapshot.groups))
        error = failures_error(record, results)
        if error is not None:
            context.journal.step(
                steps.GROUPS_INCOMPLETE, key=attempt.key, details={"groups": error.details["groups"]}, reason=error.what
            )
            raise error
        details = timer.done({"summary": summarize(results), "result": key, **_figures(results)})
        return PhaseResult(PHASE, details["summary"], details)


def _figures(results: list[GroupResult]) -> dict[str, Any]:
    return {
        "groups": len(results),
        "committed": sum(group.committed for group in results),
        "unchanged": sum(group.unchanged for group in results),
        "left_alone": {group.group: group.skipped_reason for group in results if group.skipped_reason},
        "not_undone": {group.group: len(group.not_undone) for group in results if group.not_undone},
        "translations": count_translations([item for group in results for item in group.offsets]),
    }


# -- until the client switch -----------------------------------------------------------------------------------------


def sync_until_switch(context: PhaseContext, *, sleep: Callable[[float], None] = time.sleep) -> PhaseResult:
    """Run task ``sync_groups``: sync every ``groups.sync_interval`` until the client switch is acknowledged.

    Each round also puts back modes and levels of the target registry that a killed pass has left.
    It runs in parallel with the approval. A failure loses nothing: the acknowledgement syncs once more.
    """
    rounds, result = 0, context.record.groups()
    while not _switched(context.record):
        if context.spec.schemas.copies:
            # The clients that switch register schemas: a mode that a killed pass has left must not wait for validate.
            try_to_put_back_target(context)
        result = sync_groups(context)
        rounds += 1
        context.progress(Progress(SYNC_PHASE, f"round {rounds}: {summarize(result.groups)}"))
        sleep(context.spec.groups.sync_interval.total_seconds())
    text = summarize(result.groups) if result else "no groups"
    return PhaseResult(SYNC_PHASE, f"synced {rounds} times: {text}", {"rounds": rounds}, already_done=not rounds)


def _switched(record: MigrationRecord) -> bool:
    record.journal.refresh()
    is_over = rolling_back.is_abandoned(record.journal) or record.journal.is_past(State.AWAITING_CLIENT_SWITCH)
    return record.client_switch() is not None or is_over
