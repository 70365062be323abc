"""How the tail continues after a lifted freeze: first the copy-time settings of its topics, then no stop any more.

The last step of a cutover restores configs that producers notice. A copier that appends after that would, for instance,
get the broker's time into its records (``message.timestamp.type``). So where the settings may be restored, the tail's
stop stays in force until they are set again, whatever dies in between.
"""

from __future__ import annotations

import logging
from typing import Any

from airflow_provider_kafka_migration.documents.copy import StopAt
from airflow_provider_kafka_migration.errors import HANDS_OFF, MigrationError
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext
from airflow_provider_kafka_migration.record.freeze_attempt import FreezeAttempt
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.topics import copy_settings

log = logging.getLogger(__name__)

#: In the step of a lifted freeze: why the tail's stop is still in force.
TAIL_WAITS = "tail_waits"


def may_be_restored(record: MigrationRecord, attempt: FreezeAttempt) -> bool:
    """Whether an attempt may have restored configs that producers notice: that follows when the groups are committed.

    The step of the restore itself is no measure: a process may have died before it could journal it.
    """
    return record.cutover_step(attempt, steps.COMMIT_GROUPS) is not None


def lift(context: PhaseContext, *, ends: bool) -> dict[str, Any]:
    """Let the tail continue once producers are free; return details for the journal.

    If the target cannot be reached, the stop stays in force and the details say so: neither the producers nor the
    journal wait for the target, and the tail does it when it runs (:func:`continue_after_lift`).

    :param ends: the migration ends, so nothing has to continue.
    """
    if ends:
        return {TAIL_WAITS: "the migration was about to end"}
    try:
        changed = _set_and_clear(context.record, context.target)
    except HANDS_OFF:
        raise
    except MigrationError as error:
        log.warning("the tail stays stopped until it is run again and can set the copy-time settings: %s", error)
        return {TAIL_WAITS: error.what}
    return {"copy_time_settings": changed}


def continue_after_lift(record: MigrationRecord, target: Cluster) -> bool:
    """Before the tail copies after a lifted freeze: set the copy-time settings again, and withdraw a stop that is left.

    The lift may have left it, or a final drain that was slow, and was killed, has written it after the lift.

    :returns: whether a stop was withdrawn.
    :raises MigrationError: the settings cannot be set; the stop stays in force.
    """
    if not record.freezes_lifted() or record.is_frozen():
        return False
    stop = record.tail_stop()
    # A rollback stops the tail at 0, for good.
    waits = stop is not None and any(stop.offsets.values())
    if waits:
        _set_and_clear(record, target)
    elif stop is None:
        copy_settings.set_copy_time_again(record, target)
    return waits


def _set_and_clear(record: MigrationRecord, target: Cluster) -> int:
    changed = copy_settings.set_copy_time_again(record, target)
    clear_tail_stop(record)
    return len(changed)


def clear_tail_stop(record: MigrationRecord) -> None:
    """Withdraw the tail's stop, if one is in force: a StopAt without offsets stops nothing, so the tail continues."""
    if record.tail_stop() is not None:
        record.journal.check_holds()
        clear_stop(record)


def clear_stop(record: MigrationRecord) -> None:
    """Withdraw the tail's stop without checking who holds the migration."""
    key = record.key(keys.TAIL_STOP)
    if record.tail_stop() is not None:
        record.journal_store.put(key, StopAt(migration_id=record.migration_id, offsets={}).canonical())
