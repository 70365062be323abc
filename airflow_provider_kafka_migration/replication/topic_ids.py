"""A topic deleted and created again is another topic, whatever its offsets are (KIP-516 topic ids tell)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from airflow_provider_kafka_migration.errors import TopicRecreated, Where
from airflow_provider_kafka_migration.kafka.wire import Wire
from airflow_provider_kafka_migration.replication.partition_copy import PartitionCopy


def fail_recreated(source: Wire, copies: Iterable[PartitionCopy], where: Callable[[PartitionCopy], Where]) -> None:
    """Fail the partitions whose source topic has another id than the job says.

    :raises Transient: nobody of the source answers.
    """
    looked_at = [copy for copy in copies if copy.spec.topic_id]
    found = source.metadata({copy.spec.topic for copy in looked_at}) if looked_at else {}
    for copy in looked_at:
        now = found.get(copy.spec.topic)
        if now is not None and now.topic_id and now.topic_id != copy.spec.topic_id:
            copy.fail(
                TopicRecreated(
                    f"the source topic was deleted and created again (id {now.topic_id}, planned {copy.spec.topic_id})",
                    where=where(copy),
                    next_step="delete the target topic, and start a new migration for this topic",
                )
            )
