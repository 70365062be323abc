"""Takes over Redpanda Migrator, and other copiers that read as a consumer group: its commits are a lower bound."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_kafka_migration.adoption.by_content import PHASE, Recorded, find_by_content
from airflow_provider_kafka_migration.adoption.starts import Candidate, FoundStarts
from airflow_provider_kafka_migration.errors import SpecInvalid
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.record.context import PhaseContext


def find_starts(context: PhaseContext, candidates: Mapping[TopicPartition, Candidate]) -> FoundStarts:
    """See :class:`~.starts.FindStarts`: from the committed offsets of the copier's group on, checked by content.

    :raises SpecInvalid: the source has no such group, or it has committed nothing.
    """
    adopt = context.spec.adopt
    assert adopt is not None
    group = adopt.redpanda_migrator.group
    answer = context.source.admin.groups_offsets([group], require_stable=False)[group]
    if answer.error is not None:
        raise answer.error.exception(
            f"the offsets of the copier's group {group} cannot be read",
            context.where(PHASE, cluster="source", group=group),
            operation=f"Describe on Group {group}",
        )
    if not answer.offsets:
        raise SpecInvalid(
            f"the group {group} has committed nothing on the source",
            where=context.where(PHASE, cluster="source", path="adopt.redpanda_migrator.group"),
            next_step="set the consumer_group of the copier's configuration, or use adopt.from: comparison",
        )
    recorded = {key: Recorded(item.offset - 1) for key, item in answer.offsets.items()}
    return find_by_content(context, candidates, recorded, copies_aborted=None)
