"""Tombstones that a mirror may have missed, because it stood still for longer than its source keeps them.

The source's cleaner removes a tombstone ``delete.retention.ms`` after its first pass. A mirror that was paused, or
down, for longer may go on behind it: a key that was deleted on the source lives on on the target. Copiers look at each
gap and act by ``offsets.on_overtaken_tombstones``; this tells people beforehand, when the mirror goes on.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow_provider_kafka_migration.documents.base import canonical_digest
from airflow_provider_kafka_migration.documents.copy import CopyJob, LaneReading, PartitionReading
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext, Progress
from airflow_provider_kafka_migration.record.partition_names import partition_name
from airflow_provider_kafka_migration.record.record import MigrationRecord

PHASE = "mirror"


def note_risk(context: PhaseContext, job: CopyJob) -> dict[str, Any]:
    """Journal the partitions that were at the source's end too long ago, once per standstill, and return them.

    :returns: by source partition: ``caught_up_at`` (time), ``delete_retention_seconds``.
    """
    retention_ms = {} if job.tombstones is None else job.tombstones.retention_ms
    now = context.now().timestamp()
    at_risk = {
        partition_name(item.key): {
            "caught_up_at": datetime.fromtimestamp(item.caught_up_at, UTC).isoformat(timespec="seconds"),
            "delete_retention_seconds": retention_ms[item.topic] / 1000,
        }
        for item in _readings(context.record)
        if item.topic in retention_ms
        and item.caught_up_at >= 0
        and (now - item.caught_up_at) * 1000 > retention_ms[item.topic]
    }
    if at_risk:
        first = min(at_risk)
        reason = (
            f"tombstones may have been removed on the source before they were read in {len(at_risk)} partitions; "
            f"{first} was last at the source's end at {at_risk[first]['caught_up_at']}, and the source keeps them for "
            f"{at_risk[first]['delete_retention_seconds']:g} s"
        )
        key = canonical_digest(at_risk)[:16]
        context.journal.step_once(steps.TOMBSTONES_AT_RISK, key, {"partitions": at_risk}, reason=reason)
        context.progress(Progress(PHASE, reason))
    return at_risk


def last_risk(record: MigrationRecord) -> dict[str, Any] | None:
    """Return the last entry about this, for people: when, and which partitions; None: there is none."""
    entry = record.journal.find_step(steps.TOMBSTONES_AT_RISK)
    return None if entry is None else {"at": entry.at, "reason": entry.reason, **entry.details}


def _readings(record: MigrationRecord) -> list[PartitionReading]:
    """Read when each partition was at the source's end; of a partition that has changed its lane, the latest counts."""
    found: dict[tuple[str, int], PartitionReading] = {}
    for info in record.journal_store.list(record.key("reading/")):
        data = record.journal_store.get(info.key)
        for item in () if data is None else LaneReading.parse(data).partitions:
            if item.key not in found or found[item.key].caught_up_at < item.caught_up_at:
                found[item.key] = item
    return [found[key] for key in sorted(found)]
