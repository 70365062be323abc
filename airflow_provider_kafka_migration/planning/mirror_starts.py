"""Where a mirror begins that copies only what comes after its start (``mirror.start: latest``).

The first plan reads the end of each source partition, and the journal keeps these offsets for good: a mirror that is
planned again, or goes on after a kill, begins where it first did. Topics and partitions that the first plan did not
have are copied from their beginning.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_kafka_migration.documents.plan import TopicPlan
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.spec import MigrationSpec


def is_late(spec: MigrationSpec) -> bool:
    """Whether only records after the start are copied."""
    return spec.kind == "mirror" and spec.mirror.start == "latest"


def kept(record: MigrationRecord, topic_ids: Mapping[str, str]) -> dict[TopicPartition, int]:
    """Return where partitions begin by the journal; those that begin at their log's start are absent.

    :param topic_ids: the source's topics now, by name; the id is empty before 2.8.
    """
    entry = record.journal.find_step(steps.MIRROR_STARTS) if is_late(record.spec) else None
    if entry is None:
        return {}
    return {
        (name, number): int(offset)
        for name, topic in entry.details["topics"].items()
        if name in topic_ids and _is_same(str(topic["topic_id"]), topic_ids[name])
        for number, offset in enumerate(topic["offsets"])
    }


def _is_same(topic_id: str, topic_id_now: str) -> bool:
    """Whether a topic is still the one that was planned: one that was created again since is a new one."""
    return not topic_id or not topic_id_now or topic_id == topic_id_now


def are_known(record: MigrationRecord) -> bool:
    """Whether a plan that is made now gets its starts from the journal, or needs none."""
    return not is_late(record.spec) or record.journal.find_step(steps.MIRROR_STARTS) is not None


def keep(record: MigrationRecord, topics: list[TopicPlan]) -> bool:
    """Journal where the partitions of the first plan begin; return whether these are the offsets in the journal.

    They are not if another task has planned at the same time and was faster: then the plan has to be made again.
    """
    found = {
        topic.name: {
            "topic_id": topic.topic_id,
            "offsets": [item.source_start_offset for item in sorted(topic.partitions, key=lambda item: item.partition)],
        }
        for topic in topics
    }
    count = sum(len(topic.partitions) for topic in topics)
    entry = record.journal.step_once(
        steps.MIRROR_STARTS, None, {"topics": found}, reason=f"{count} partitions are mirrored from their ends on"
    )
    return bool(entry.details["topics"] == found)
