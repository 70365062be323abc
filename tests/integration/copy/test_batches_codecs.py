"""Batches of every codec and of every size of record, to targets that keep the codec or force another one."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from airflow_provider_kafka_migration.kafka.batches.api import build_batch
from airflow_provider_kafka_migration.kafka.batches.records import encode_body, encode_varint
from harness.brokers import KafkaCluster
from harness.compare import Record, read_records
from harness.load import write
from harness.raw_writer import RawWriter, plain
from tests.integration.copy.conftest import MakeCopying, kept_topic

pytestmark = pytest.mark.integration

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
NOW = 1_700_000_000_000
MIB = 1024 * 1024


def records_of_all_sizes(mark: str, *, up_to: int, partitions: int = 1) -> list[tuple[int, Record]]:
    """Records that peers get wrong: nothing, null, empty, bytes that are no text, repeated headers, large ones."""
    rng = random.Random(mark)
    odd = [
        (None, None, ()),
        (b"", b"", ()),
        (None, b"", (("", b""),)),
        (b"", None, (("a", None), ("a", b""), ("b", b"1"), ("a", b"2"))),
        (b"\xff\xfe\x00", b"\x00" * 70, (("trace", b"\xff\xff"), ("trace", None))),
        (b"k" * 200, rng.randbytes(up_to), ()),
        (b"large", b"x" * up_to, (("h", b"y" * 1000),)),
    ]
    small = [(b"%d" % number, b"value %d %s" % (number, mark.encode()), ()) for number in range(300)]
    same_time = [(None, b"burst %d %s" % (number, mark.encode()), ()) for number in range(1000)]
    records = [*small[:150], *odd, *small[150:], *same_time, *odd]
    return [
        (index % partitions, Record(-1, NOW + index // 900, key, value, headers))
        for index, (key, value, headers) in enumerate(records)
    ]


def test_every_codec_and_size_of_record(
    copying: MakeCopying, source_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    topics = {codec: unique_name(codec) for codec in CODECS}
    for name in topics.values():
        kept_topic(source_cluster, name, 2, {"max.message.bytes": str(8 * MIB)})
    config = {**source_cluster.client_config(), "message.max.bytes": 8 * MIB, "batch.size": 50_000}
    for codec, name in topics.items():
        write(config, name, records_of_all_sizes(codec, up_to=3 * MIB, partitions=2), codec=codec)
    copy = copying(list(topics.values()))
    copy.run()
    copy.compare().check()


@pytest.mark.parametrize("in_batches", [pytest.param("raw", marks=pytest.mark.soak), "rebuilt"])
def test_every_compression_type_of_the_target(
    copying: MakeCopying,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    in_batches: str,
) -> None:
    """``producer`` keeps the codec; any other makes the broker write the batches anew, at the same offsets."""
    # The first batch is too large for the lower limit: those behind it must not be written in its place.
    kinds = ("producer", "uncompressed", "zstd")
    if in_batches == "raw":
        kinds += ("gzip", "snappy", "lz4")
    topics = {kind: unique_name(kind) for kind in kinds}
    for name in topics.values():
        kept_topic(source_cluster, name)
        for codec in CODECS:
            write(source_cluster.client_config(), name, records_of_all_sizes(codec, up_to=30_000), codec=codec)
    limit = {"raw": "20000000", "rebuilt": "40000"}[in_batches]
    copy = copying(
        list(topics.values()),
        topic_configs={name: {"compression.type": kind, "max.message.bytes": limit} for kind, name in topics.items()},
    )
    copy.run()
    copy.compare().check()
    assert codecs_of(target_cluster, topics["producer"]) == {"none", "gzip", "snappy", "lz4", "zstd"}
    assert codecs_of(target_cluster, topics["zstd"]) == {"zstd"}


def codecs_of(cluster: KafkaCluster, topic: str) -> set[str]:
    """The codecs of a topic's batches as they lie on disk."""
    return {batch["compresscodec"] for batches in cluster.dump_log(topic).values() for batch in batches}


def test_skewed_offsets_inside_of_a_batch(
    copying: MakeCopying, source_cluster: KafkaCluster, raw_writer: RawWriter, unique_name: Callable[[str], str]
) -> None:
    """A broker takes an uncompressed batch whose inner deltas are 0, 5 and shows it at 0, 5; ours must not."""
    topic = unique_name("skewed")
    kept_topic(source_cluster, topic)
    raw_writer.write(topic, 0, plain(b"before"))
    body = [
        b"\0" + encode_varint(0) + encode_varint(delta) + encode_body(None, value, [])
        for delta, value in ((0, b"first"), (5, b"second"))
    ]
    payload = b"".join(encode_varint(len(item)) + item for item in body)
    batch = build_batch(
        payload,
        base_offset=0,
        last_offset_delta=1,
        record_count=2,
        attributes=0,
        base_timestamp=NOW,
        max_timestamp=NOW,
    )
    assert raw_writer.append(topic, 0, batch) == 1
    raw_writer.write(topic, 0, plain(b"after"))
    copy = copying([topic])
    copy.run()
    values = [(item.offset, item.value) for item in read_records(copy.target.client_config(), topic)[0]]
    assert values == [(0, b"before"), (1, b"first"), (2, b"second"), (3, b"after")]
