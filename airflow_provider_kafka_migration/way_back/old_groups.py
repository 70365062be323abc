"""Consumer groups on the old cluster while records come back: kept up to date, and exact at the return.

While the tail of a way back copies, groups follow on the old cluster (:mod:`~.groups.sync`): idle there, forward only,
never beyond what is copied. So nobody has to wait for them at the return.

The return is exact as if nothing had been written before: an offset that the way back itself has written may be set
back to what the return finds, but never below the offset that the group had there before (:mod:`~.groups.written`).

*Keep* leaves the offsets where they are, next to the records that have come back: whoever started a consumer on the
old cluster by mistake would otherwise read those again. The report lists each of them with its former offset.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from airflow_provider_kafka_migration.documents.cutover import GroupsResult
from airflow_provider_kafka_migration.groups.sync import PeriodicSync, check_in_time, never, sync_groups_once
from airflow_provider_kafka_migration.groups.written import OwnWrites
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.rolling_back import has_begun
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.way_back.derived_spec import section_of

PHASE = "tail"
_REASON = "offsets of groups follow on the old cluster"


# -- while the tail copies --------------------------------------------------------------------------------------------


def _is_time(record: MigrationRecord) -> bool:
    """Whether groups may be written; with a stop the copy ends, for the return.

    So it does once *Keep* has begun: its report lists what is left there, and producers may write there again.
    """
    record.journal.refresh()
    is_copying = record.journal.tip_state in (State.TAIL, State.DRAIN_READY) and not has_begun(record.journal)
    return is_copying and not record.is_frozen() and record.tail_stop() is None


def sync_once(context: PhaseContext, is_over: Callable[[], bool] = never) -> GroupsResult | None:
    """Bring the groups on the old cluster up to date; None: records do not come back now. Failures are in the result.

    Writes ``results/groups.json``.

    :param is_over: asked before each group; once it is True, no more groups are written.
    """
    if not _is_time(context.record):
        return None
    check_all = partial(check_in_time, context, _is_time)
    written = partial(OwnWrites, context, steps.OLD_GROUPS_WRITTEN, _REASON, check=check_all)
    return sync_groups_once(context, keys.GROUPS, partial(check_all, is_over), written)


class OldGroupSync(PeriodicSync):
    """Syncs in a thread until the ``with`` block ends; does nothing in other migrations, or if the spec says so."""

    def __init__(self, context: PhaseContext) -> None:
        section = section_of(context.spec)
        is_on = context.spec.is_way_back and section.sync_groups
        super().__init__(context, sync_once, section.sync_interval if is_on else None, phase=PHASE)
