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
    """Return all losses by partition and time, each with a sentence for people.

    A copier that is killed before it has copied a loss again leaves it to the next one, which meets what is left of it:
    that is ``seen_again``, not another loss.
    """
    losses: list[list[TargetLossRecord]] = []
    for item in read_losses(record.journal_store, record.migration_id):
        if losses and _is_rest(losses[-1][0], losses[-1][-1], item):
            losses[-1].append(item)
        else:
            losses.append([item])
    return [_shown(*seen) for seen in losses]


def _is_rest(first: TargetLossRecord, last: TargetLossRecord, item: TargetLossRecord) -> bool:
    """Whether the copy goes on towards the position from which the log went back first."""
    same = (first.topic, first.topic_id, first.partition, first.from_target_offset, first.source_offset)
    mine = (item.topic, item.topic_id, item.partition, item.from_target_offset, item.source_offset)
    return same == mine and item.to_target_offset > last.to_target_offset


def _shown(item: TargetLossRecord, *rests: TargetLossRecord) -> dict[str, Any]:
    shown = {
        "topic": item.topic,
        "partition": item.partition,
        "target_topic": item.target_topic,
        "from_target_offset": item.from_target_offset,
        "to_target_offset": item.to_target_offset,
        "source_offset": item.source_offset,
        "seen_at": item.seen_at,
        "what": _describe(item),
    }
    if rests:
        again = [{"to_target_offset": rest.to_target_offset, "seen_at": rest.seen_at} for rest in rests]
        places = ", ".join(f"from {rest.to_target_offset} at {rest.seen_at}" for rest in rests)
        what = f"{shown['what']}; copiers that were killed meanwhile left the rest to others, who went on {places}"
        shown |= {"seen_again": again, "what": what}
    return shown


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
