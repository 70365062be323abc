"""Every kind of source log ends on the target with equal content at equal offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kafka.protocol.admin import UpdateFeaturesRequest

from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.wire import Wire
from harness.brokers import KafkaCluster
from harness.load import load, tiny_topics
from harness.processes import wait_for
from tests.integration.copy.conftest import MakeCopying

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("via", ["direct", pytest.param("s3", marks=pytest.mark.soak)])
def test_all_kinds_end_equal(
    copying: MakeCopying, source_cluster: KafkaCluster, unique_name: Callable[[str], str], via: str
) -> None:
    topics = tiny_topics(unique_name("k") + ".")
    load(source_cluster, topics, seed=7)
    copy = copying([topic.name for topic in topics], lanes=2, via=via, job_fields={"segment_max_bytes": 20_000})
    progress = copy.run()
    assert progress["partitions_done"] == sum(topic.partitions for topic in topics)
    assert int(progress["holes"]) > 100  # compaction and transactions are in there
    comparison = copy.compare()
    comparison.check()
    assert {name: item.content_equal and item.offsets_equal for name, item in comparison.topics.items()} == {
        topic.name: True for topic in topics
    }


@pytest.fixture(scope="module")
def target_of_another_kind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Transactions of version 1, a codec and limits of its own."""
    config = {"compression.type": "zstd", "message.max.bytes": "60000", "min.insync.replicas": "1"}
    folder = tmp_path_factory.mktemp("target-tv1")
    with KafkaCluster(folder, "4.1.1", config=config, sasl=False, authorizer=False) as cluster:
        with Wire(ClientConfig.from_librdkafka({"bootstrap.servers": cluster.bootstrap}, "target")) as wire:
            update = UpdateFeaturesRequest.FeatureUpdateKey(
                feature="transaction.version", max_version_level=1, upgrade_type=2
            )
            answer = wire.controller_request(UpdateFeaturesRequest(timeout_ms=10_000, feature_updates=[update]))
            assert answer.error_code == 0, answer

            def finalized() -> bool:
                with Wire(wire.config) as fresh:
                    return fresh.connection().finalized_features.get("transaction.version") == 1

            wait_for("transaction.version 1", finalized, 120)
        yield cluster


@pytest.mark.soak
def test_all_kinds_on_a_target_of_another_kind(
    copying: MakeCopying,
    source_cluster: KafkaCluster,
    target_of_another_kind: KafkaCluster,
    unique_name: Callable[[str], str],
) -> None:
    topics = tiny_topics(unique_name("k") + ".")
    load(source_cluster, topics, seed=9)
    names = [topic.name for topic in topics]
    kept = {"max.message.bytes": "60000"}
    copy = copying(names, target=target_of_another_kind, target_config=kept, lanes=2)
    assert int(copy.run()["holes"]) > 100
    copy.compare().check()


def test_a_second_seed_copies_nothing_and_reads_no_source_bytes(
    copying: MakeCopying, source_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    topics = tiny_topics(unique_name("k") + ".")[:2]
    load(source_cluster, topics, seed=8)
    copy = copying([topic.name for topic in topics], via="s3")
    first = copy.run()
    again = copy.run()
    assert int(first["records"]) > 0
    assert (again["records"], again["source_bytes"]) == (0, 0)
    copy.compare().check()
