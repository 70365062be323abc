"""The rights that copies in transactions need: with them all is well, without one of them it is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from airflow_provider_kafka_migration.offset_map.transactional import group_name
from harness.brokers import KafkaCluster
from harness.copiers.copying import Copying, results_of
from tests.integration.security.support import TARGET_TOPIC
from tests.integration.transactional.transactional_support import check_copy, in_transactions

pytestmark = pytest.mark.integration


def test_without_the_right_on_the_group_the_partition_stops_and_says_so(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    topic, migration_id = unique_name("rights"), unique_name("m").lower()
    source_cluster.create_topic(topic, 2)
    producer = Producer({"bootstrap.servers": source_cluster.bootstrap})
    for number in range(500):
        producer.produce(topic, b"%d" % number, partition=number % 2)
    producer.flush()
    target_cluster.forget_rights("bob")
    target_cluster.allow("bob", "topic", topic, TARGET_TOPIC, prefixed=True)
    references = {
        "source": {"bootstrap.servers": source_cluster.bootstrap},
        "target": target_cluster.client_config("bob", "SCRAM-SHA-512"),
        "storage": None,
    }
    verdicts = in_transactions(source_cluster, [topic])
    copy = Copying(
        source_cluster, target_cluster, tmp_path, [topic], migration_id, verdicts=verdicts, references=references
    )

    def missing() -> set[str]:
        copy.write_job("seed")
        out, err = copy.worker().communicate(timeout=240)
        errors = [item.error for item in results_of(out)]
        assert all(error is not None and error["code"] == "PERMISSION_MISSING" for error in errors), err[-2000:]
        return {str(error["what"]) for error in errors if error is not None}

    assert all("TransactionalId" in what for what in missing())
    target_cluster.allow(
        "bob", "transactional_id", f"kafka-migration.{migration_id}.", ["write", "describe"], prefixed=True
    )
    assert all(f"Group {group_name(migration_id)}" in what for what in missing())
    target_cluster.allow("bob", "group", group_name(migration_id), ["read", "describe"])
    copy.write_job("seed")
    assert copy.worker().wait(240) == 0
    assert check_copy(copy) == 0
