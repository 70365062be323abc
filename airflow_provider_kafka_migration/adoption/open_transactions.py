"""Who holds a last stable offset of the target back: a killed exactly-once copier leaves its transaction open."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.kafka.admin.producers import TransactionFacts
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.record.times import iso_of_ms


def read_holders(cluster: Cluster, keys: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
    """Return a text about the open transactions of each partition, to be put behind a reason.

    A partition is absent if its transaction is not known: brokers before 3.0 list none, and all leave out transactional
    ids that the principal may not describe.
    """
    wanted = set(keys)
    if not wanted:
        return {}
    try:
        listed = cluster.admin.open_transactions() or []
    except MigrationError:
        return {}  # the reason itself does not depend on the names
    texts: dict[TopicPartition, list[str]] = {}
    for item in listed:
        for key in wanted.intersection(item.partitions):
            texts.setdefault(key, []).append(_text(item))
    return {key: f" ({', '.join(found)})" for key, found in texts.items()}


def _text(item: TransactionFacts) -> str:
    if item.start_time_ms < 0 or item.timeout_ms < 0:
        return f"transactional id {item.transactional_id}"
    until = iso_of_ms(item.start_time_ms + item.timeout_ms)
    return f"transactional id {item.transactional_id}: brokers abort it soon after {until}"
