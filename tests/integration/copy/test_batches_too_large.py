"""Batches that the target's limits do not take: split, or a named end of one partition."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from airflow_provider_kafka_migration.errors import CopyFailed
from harness.brokers import KafkaCluster
from harness.compare import Record, read_records
from harness.load import write
from harness.raw_writer import RawTransactions, RawWriter, plain
from tests.integration.copy.conftest import MakeCopying, kept_topic

pytestmark = pytest.mark.integration

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("via", "is_known"),
    [
        pytest.param("direct", False, id="direct-limit found out"),
        pytest.param("s3", True, id="s3-limit known"),
        pytest.param("direct", True, id="direct-limit known", marks=pytest.mark.soak),
        pytest.param("s3", False, id="s3-limit found out", marks=pytest.mark.soak),
    ],
)
def test_batches_are_split(
    copying: MakeCopying,
    source_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    is_known: bool,
    via: str,
) -> None:
    topics = {codec: unique_name(codec) for codec in ("none", "lz4", "zstd")}
    rng = random.Random(3)
    for codec, name in topics.items():
        kept_topic(source_cluster, name, 1, {"max.message.bytes": "2000000"})
        records = [Record(-1, NOW + n, b"%d" % n, rng.randbytes(rng.randrange(4000))) for n in range(600)]
        config = {**source_cluster.client_config(), "batch.size": 900_000, "linger.ms": 200}
        write(config, name, [(0, record) for record in records], codec=codec)
        sizes = [int(batch["size"]) for batch in source_cluster.dump_log(name)[0]]
        assert max(sizes) > 200_000
    copy = copying(list(topics.values()), via=via, target_config={"max.message.bytes": "30000"})
    if is_known:
        copy.partitions = {
            key: item.model_copy(update={"max_batch_bytes": 30_000}) for key, item in copy.partitions.items()
        }
    copy.run()
    copy.compare().check()


def test_the_target_compresses_worse(
    copying: MakeCopying, source_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    """A batch within the limit that the target's own compression.type makes larger than the limit."""
    topic = unique_name("inflated")
    kept_topic(source_cluster, topic)
    records = [(0, Record(-1, NOW, None, b"a" * 2_000)) for _ in range(400)]
    write({**source_cluster.client_config(), "linger.ms": 200}, topic, records, codec="zstd")
    copy = copying([topic], target_config={"compression.type": "uncompressed", "max.message.bytes": "100000"})
    copy.run()
    copy.compare().check()


@pytest.mark.parametrize("limit_bytes", [None, 50_000])
def test_a_single_record_too_large_stops_its_partition_only(
    copying: MakeCopying,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    raw_writer: RawWriter,
    unique_name: Callable[[str], str],
    limit_bytes: int | None,
) -> None:
    topic = unique_name("large")
    kept_topic(source_cluster, topic, 3)
    large = b"L" * 60_000
    # Partition 0: alone in its batch. 1: among others, in one batch. 2: nothing large.
    for value in (b"1", b"2", large, b"4", b"5"):
        raw_writer.write(topic, 0, plain(value))
    raw_writer.write(topic, 1, plain(b"1", b"2", b"3", large, b"5"))
    transactions = RawTransactions(raw_writer, unique_name("tx"))
    transactions.write(topic, 1, plain(b"aborted"))
    transactions.end(commit=False)
    raw_writer.write(topic, 1, plain(b"8"))
    for number in range(100):
        raw_writer.write(topic, 2, plain(b"%d" % number))
    copy = copying([topic], target_config={"max.message.bytes": "50000"})
    copy.partitions = {
        key: item.model_copy(update={"max_batch_bytes": limit_bytes}) for key, item in copy.partitions.items()
    }
    with pytest.raises(CopyFailed) as caught:
        copy.run()
    failed = {item["partition"]: item["error"] for item in caught.value.details["partitions"]}
    assert sorted(failed) == [0, 1]
    assert {item["code"] for item in failed.values()} == {"RECORD_TOO_LARGE"}
    assert failed[0]["where"]["offset"] == 2
    assert failed[1]["where"]["offset"] == 3
    assert "max.message.bytes" in failed[0]["next_step"]
    on_target = {
        partition: [item.value for item in items]
        for partition, items in read_records(target_cluster.client_config(), topic).items()
    }
    assert on_target[0] == [b"1", b"2"]
    # All before it, or all before its batch; never anything behind it.
    assert on_target[1] in ([b"1", b"2", b"3"], [])
    assert len(on_target[2]) == 100

    # Once the target takes it, the same job goes on where it stopped.
    target_cluster.alter_topic_configs({topic: {"max.message.bytes": "100000"}})
    copy.partitions = {
        key: item.model_copy(update={"max_batch_bytes": 100_000}) for key, item in copy.partitions.items()
    }
    copy.run()
    copy.compare().check()


def test_a_hole_before_a_record_too_large_is_still_filled(
    copying: MakeCopying,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    raw_writer: RawWriter,
    unique_name: Callable[[str], str],
) -> None:
    topic = unique_name("large")
    kept_topic(source_cluster, topic)
    raw_writer.write(topic, 0, plain(b"first"))
    transactions = RawTransactions(raw_writer, unique_name("tx"))
    transactions.write(topic, 0, plain(*[b"aborted"] * 200))
    transactions.end(commit=False)
    raw_writer.write(topic, 0, plain(b"L" * 60_000))
    raw_writer.write(topic, 0, plain(b"last"))
    copy = copying([topic], target_config={"max.message.bytes": "50000"})
    copy.partitions = {
        key: item.model_copy(update={"max_batch_bytes": 50_000}) for key, item in copy.partitions.items()
    }
    with pytest.raises(CopyFailed) as caught:
        copy.run()
    error = caught.value.details["partitions"][0]["error"]
    assert (error["code"], error["where"]["offset"]) == ("RECORD_TOO_LARGE", 202)
    assert copy.clients.wire("target").list_offsets([(topic, 0)], "latest")[(topic, 0)] == 202
    assert [item.value for item in read_records(target_cluster.client_config(), topic)[0]] == [b"first"]
