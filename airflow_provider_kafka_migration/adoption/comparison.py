"""Takes over logs that anything else has copied: the contents of both sides alone show where the copy ends."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_kafka_migration.adoption.by_content import Recorded, find_by_content
from airflow_provider_kafka_migration.adoption.starts import Candidate, FoundStarts
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.record.context import PhaseContext


def find_starts(context: PhaseContext, candidates: Mapping[TopicPartition, Candidate]) -> FoundStarts:
    """See :class:`~.starts.FindStarts`: ``adopt.min_records`` equal records before the target's end are the proof."""
    return find_by_content(context, candidates, {}, copies_aborted=None, unrecorded=Recorded(None))
