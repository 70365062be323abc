"""The simulated broker of the unit tests answers as a real one does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from simulated.cluster import SimulatedCluster

from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.wire import Wire
from harness.brokers import KafkaCluster
from tests.integration.copy.broker_script import BrokerScript

pytestmark = pytest.mark.integration

_MAX_BATCH_BYTES = 2_000


@pytest.mark.parametrize(("fixture", "has_second"), [("target_cluster", True), ("source_cluster", False)])
def test_both_answer_a_script_of_requests_alike(
    request: pytest.FixtureRequest, unique_name: Callable[[str], str], fixture: str, has_second: bool
) -> None:
    real_cluster: KafkaCluster = request.getfixturevalue(fixture)
    topics = (unique_name("plain"), unique_name("transactions"))
    for topic in topics:
        config = {"max.message.bytes": str(_MAX_BATCH_BYTES), "retention.ms": "-1"}
        real_cluster.create_topic(topic, 1, config=config)
    with Wire(ClientConfig.from_librdkafka({"bootstrap.servers": real_cluster.bootstrap}, "real")) as wire:
        real = BrokerScript(wire, topics, unique_name("id"), has_second=has_second).play()
    with SimulatedCluster("simulated") as cluster:
        for topic in topics:
            cluster.create(topic, max_batch_bytes=_MAX_BATCH_BYTES)
        with Wire(ClientConfig.from_librdkafka(cluster.settings, "simulated")) as wire:
            simulated = BrokerScript(wire, topics, "id", has_second=has_second).play()
    assert len(real) > 60
    differences = [
        f"{step}: simulated {answer}, real {real[step]}" for step, answer in simulated.items() if answer != real[step]
    ]
    assert not differences, "\n".join(differences)
