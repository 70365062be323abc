"""Groups of a migration on the target before its cutover, from the moment that a partition is copied.

``groups.early_sync`` asks for it. Groups follow by the rules of :mod:`~.groups.sync`: idle on the target only, forward
only, exact at what copiers have confirmed, never beyond it. A group that others use on the target, because it has
members there or an offset that was not written here, is left alone and named.

Nothing of this is final. The cutover commits the groups as if nothing had been written before: what was written here
may be set back, and each offset is written once more (:mod:`~.groups.written`). So the outcome of an early pass is a
result of its own (``results/groups-early.json``), which neither the approval of the client switch nor the evidence
reads. A rollback leaves the offsets next to the records, and its report lists each with the command that removes it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from airflow_provider_kafka_migration.documents.cutover import GroupsResult
from airflow_provider_kafka_migration.groups.sync import PeriodicSync, check_in_time, never, sync_groups_once
from airflow_provider_kafka_migration.groups.written import OwnWrites
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.state import State

PHASE = "tail"
_STATES = (State.SEED, State.TAIL, State.DRAIN_READY)
_REASON = "offsets of groups follow on the target before the cutover"


def is_on(spec: MigrationSpec) -> bool:
    """Whether groups of a migration follow before its cutover."""
    return spec.kind == "migration" and spec.groups.early_sync


def own_writes(context: PhaseContext, *, is_after_switch: bool = False) -> OwnWrites | None:
    """Return what the cutover's commit may set back; None: nothing was written before, and nothing will be.

    :param is_after_switch: that commit is done, and what it has written is never set back.
    """
    record = context.record
    if not is_on(context.spec) and record.journal.find_step(steps.GROUPS_WRITTEN) is None:
        return None
    return OwnWrites(context, steps.GROUPS_WRITTEN, _REASON, is_final=True, is_after_switch=is_after_switch)


def _is_time(record: MigrationRecord) -> bool:
    """Whether groups may be written; with a stop the copy ends, for a cutover or for a rollback."""
    record.journal.refresh()
    return record.journal.working_state in _STATES and not record.is_frozen() and record.tail_stop() is None


def sync_once(context: PhaseContext, is_over: Callable[[], bool] = never) -> GroupsResult | None:
    """Bring the groups on the target up to date; None: this is not the time for it. Failures are in the result.

    Writes ``results/groups-early.json``.

    :param is_over: asked before each group; once it is True, no more groups are written.
    :raises ClaimLost: another owner has taken over.
    """
    if not _is_time(context.record):
        return None
    check_all = partial(check_in_time, context, _is_time)
    written = partial(OwnWrites, context, steps.GROUPS_WRITTEN, _REASON, check=check_all, leaves_used=True)
    return sync_groups_once(context, keys.EARLY_GROUPS, partial(check_all, is_over), written)


class EarlyGroupSync(PeriodicSync):
    """Syncs in a thread until the ``with`` block ends; does nothing if the spec does not ask for it."""

    def __init__(self, context: PhaseContext) -> None:
        interval = context.spec.groups.early_sync_interval if is_on(context.spec) else None
        super().__init__(context, sync_once, interval, phase=PHASE)


def clean_up(left: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the commands that remove offsets from the target, or give groups their former ones back.

    There is none for an offset that cannot be read: it may be one of others by now. The tool does not know the offsets
    of share groups.

    :param left: as :func:`~.groups.written.read_left` lists the own ones.
    """
    tool = "kafka-consumer-groups.sh --bootstrap-server TARGET"
    commands = []
    for item in left:
        if item.get("unread") or item.get("type") == "share":
            continue
        place = f"--group {shlex.quote(item['group'])} --topic {item['topic']}:{item['partition']}"
        former = item["former_offset"]
        undo = "--delete-offsets" if former is None else f"--reset-offsets --to-offset {former} --execute"
        commands.append(f"{tool} {place} {undo}")
    return commands
