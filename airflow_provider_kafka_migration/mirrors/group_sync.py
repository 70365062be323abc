"""Offsets of consumer groups on a mirror's target, up to date from the moment that a partition is mirrored (KIP-545).

Rules: :mod:`~.groups.sync`. A sync that fails is stored for ``mirror status`` and the metrics: without that, the result
of an earlier pass would look as if all were well, and a sync that has never succeeded as if there were no groups.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from airflow_provider_kafka_migration.documents.cutover import GroupsResult
from airflow_provider_kafka_migration.documents.mirror import GroupSyncReport
from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.groups.sync import PeriodicSync, TooLate, never, sync_groups_once
from airflow_provider_kafka_migration.groups.written import OwnWrites
from airflow_provider_kafka_migration.mirrors import group_deletions, group_refresh
from airflow_provider_kafka_migration.offset_map.recent import KeptMaps
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.state import State

log = logging.getLogger(__name__)

PHASE = "mirror"
_REASON = "offsets of groups follow on the target of the mirror"


def sync_once(
    context: PhaseContext, is_over: Callable[[], bool] = never, kept: KeptMaps | None = None
) -> GroupsResult | None:
    """Bring the groups on the target up to date, and write ``results/groups.json``. Failures are in the result.

    :param is_over: asked before each group; once it is True, no more groups are written.
    :param kept: what earlier passes have read of the offset maps.
    :returns: None if nothing is mirrored any more: clients write to a promoted target, and commit there.
    :raises ClaimLost: another owner has taken over.
    """
    if is_over() or not is_mirroring(context):
        return None
    check = partial(_check, context, is_over)
    refreshes = group_refresh.due(context)
    written = partial(_own_writes, context, check)
    result = sync_groups_once(context, keys.GROUPS, check, written, kept=kept, refreshes=refreshes)
    if result is not None:
        group_refresh.note(context, refreshes, result)
    return result


def sync_and_delete(
    context: PhaseContext, is_over: Callable[[], bool] = never, kept: KeptMaps | None = None
) -> GroupsResult | None:
    """Do the same, and then delete groups that were deleted on the source, if the policy is to do that."""
    result = sync_once(context, is_over, kept)
    check = partial(_check, context, is_over)
    written = _own_writes(context, check)
    if result is not None and written is not None:
        with suppress(TooLate):
            group_deletions.carry_out(context, {item.group for item in result.groups}, written, check)
    return result


def _own_writes(context: PhaseContext, check: Callable[[], None]) -> OwnWrites | None:
    """Return the record of what the mirror writes for groups; None: nothing is ever deleted, so nobody needs it."""
    if context.spec.groups.on_deleted != "repair":
        return None
    return OwnWrites(context, steps.GROUPS_WRITTEN, _REASON, check=check)


def _check(context: PhaseContext, is_over: Callable[[], bool]) -> None:
    """Check directly before a change of groups that it is not too late.

    :raises TooLate: clients commit on the target from now on.
    :raises ClaimLost: another owner has taken over.
    """
    if is_over() or not is_mirroring(context):
        raise TooLate


def is_mirroring(context: PhaseContext) -> bool:
    """Whether groups may be written. A pass that has slept may wake up after its mirror was promoted or paused."""
    journal = context.journal
    journal.check_holds()
    return journal.working_state in (State.SEED, State.TAIL) and journal.find_step(steps.PROMOTED) is None


class GroupSync(PeriodicSync):
    """Syncs in a thread with its own connections until the ``with`` block ends; nothing if the spec says so."""

    def __init__(self, context: PhaseContext) -> None:
        section = context.spec.mirror
        is_on = context.spec.kind == "mirror" and section.sync_groups
        interval = section.sync_interval if is_on else None
        super().__init__(context, partial(sync_and_delete, kept=KeptMaps()), interval, phase=PHASE)
        #: the problem as it is stored; None: not known in this process
        self._stored: str | None = None

    def _pass(self, own: PhaseContext) -> None:
        super()._pass(own)
        self._store("")

    def _tell(self, error: Exception) -> None:
        super()._tell(error)
        self._store(error.what if isinstance(error, MigrationError) else f"{type(error).__name__}: {error}")

    def _store(self, problem: str) -> None:
        """Store the problem if it is another one than before. A failure is only logged: people only miss a line."""
        if problem == self._stored:
            return
        record = self._context.record
        try:
            former = last_report(record)
            if problem or (former is not None and former.problem):
                now = iso(self._context.now())
                since = former.failing_since if former is not None and former.problem else now
                fields: dict[str, Any] = {"failing_since": since, "problem": problem} if problem else {}
                report = GroupSyncReport(migration_id=record.migration_id, at=now, **fields)
                record.put_result(keys.GROUP_SYNC, report)
            self._stored = problem
        except MigrationError as error:
            log.warning("The problem of the group sync could not be stored: %s", error)


def last_report(record: MigrationRecord) -> GroupSyncReport | None:
    """Return what is stored about the sync of the groups; None: no pass has failed yet."""
    data = record.result(keys.GROUP_SYNC)
    return None if data is None else GroupSyncReport.parse(data)
