"""What the target has lost of the copy: found by copiers, told to people by journal, approvals and evidence.

A copier that finds the target's log end below a position that an earlier one has noted records that before it copies
the lost part again. What the source has deleted meanwhile is a gap of the source, and stops the partition or is
recorded by ``offsets.on_source_gap``. So a loss is either healed or named, but it always is an accident of the target
(an unclean leader election, a disk that was replaced) that its operators should know about.
"""

from __future__ import annotations

from typing import Any

from airflow_provider_kafka_migration.copy.archive import read_losses
from airflow_provider_kafka_migration.documents.copy import TargetLossRecord
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext, Progress
from airflow_provider_kafka_migration.record.partition_names import partition_name
from airflow_provider_kafka_migration.record.record import MigrationRecord

PHASE = "tail"


def found(record: MigrationRecord) -> list[dict[str, Any]]:
    """Return all losses by partition and time, each with a sentence for people."""
    return [
        {
            "topic": item.topic,
            "partition": item.partition,
            "target_topic": item.target_topic,
            "from_target_offset": item.from_target_offset,
            "to_target_offset": item.to_target_offset,
            "source_offset": item.source_offset,
            "seen_at": item.seen_at,
            "what": _describe(item),
        }
        for item in read_losses(record.journal_store, record.migration_id)
    ]


def note(context: PhaseContext) -> None:
    """Journal each loss once."""
    for item in found(context.record):
        key = f"{partition_name((item['topic'], item['partition']))}/{item['to_target_offset']}-{item['seen_at']}"
        if context.journal.find_step(steps.TARGET_LOST_RECORDS, key) is None:
            reason = f"{item['topic']}-{item['partition']}: {item['what']}"
            context.journal.step_once(steps.TARGET_LOST_RECORDS, key, item, reason=reason)
            context.progress(Progress(PHASE, reason))


def _describe(item: TargetLossRecord) -> str:
    return (
        f"the target lost offsets {item.to_target_offset}..{item.from_target_offset - 1} of {item.target_topic} after "
        f"they were copied (unclean leader election, lost disk?), seen at {item.seen_at}; the copy went on from "
        f"{item.to_target_offset}, and what the source had deleted by then is named as a gap of the source"
    )
