"""A topic deleted and created again is another topic, whatever its offsets are (KIP-516 topic ids tell)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from airflow_provider_kafka_migration.copy.partition import PartitionCopy
from airflow_provider_kafka_migration.errors import BrokerBusy, TopicRecreated, Where
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.ends import topic_missing
from airflow_provider_kafka_migration.kafka.wire import Wire


def fail_recreated(
    source: Wire, copies: Iterable[PartitionCopy], where: Callable[[PartitionCopy], Where]
) -> dict[PartitionCopy, BrokerBusy]:
    """Fail the partitions whose source topic has another id than the job says.

    :returns: partitions of topics that the source says are not there. Whoever asks for their leaders waits in vain.
    :raises Transient: nobody of the source answers.
    """
    missing: dict[PartitionCopy, BrokerBusy] = {}
    looked_at = list(copies)
    found = source.metadata({copy.spec.topic for copy in looked_at}) if looked_at else {}
    for copy in looked_at:
        now = found.get(copy.spec.topic)
        if now is not None and now.error_code == error_codes.UNKNOWN_TOPIC_OR_PARTITION:
            missing[copy] = topic_missing(source.config.name, *copy.key)
        elif now is not None and now.topic_id and copy.spec.topic_id and now.topic_id != copy.spec.topic_id:
            what = f"was deleted and created again (id {now.topic_id}, planned {copy.spec.topic_id})"
            copy.fail(another_topic(what, where(copy)))
    return missing


def another_topic(what: str, where: Where) -> TopicRecreated:
    """The error of a source topic that is not the planned one any more."""
    return TopicRecreated(
        f"the source topic {what}",
        where=where,
        next_step="to go on without it set topology.on_topic_deleted: drop and clear tail (its copy on the target "
        "stays); or delete the target topic, and start a new migration for this topic",
    )
