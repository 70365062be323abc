"""The content check on topics whose schema ids are other ones on the target, on real logs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_kafka_migration.compare.runner import LocalContentRunner
from airflow_provider_kafka_migration.documents.proof import PartitionContent
from airflow_provider_kafka_migration.documents.schemas import SchemaIdMap, SchemaIdSettings, TopicIdSettings
from harness.brokers import KafkaCluster
from harness.load import Record, write
from tests.integration.content.conftest import Prove, job_of
from tests.integration.content.test_content_on_brokers import content_job
from tests.integration.copy.copying import Copying

# Spark takes seconds to start, and a minute on a busy machine.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

RECORDS = 300
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
#: What an id becomes.
SHIFT = 1_000


def prefixed(number: int, payload: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + payload


def record(number: int, shift: int = 0) -> Record:
    """Keys with the id 1; values with the ids 2 to 6, two of seven in a header, and one of seven beside one without."""
    now = 1_700_000_000_000 + number
    value_id, payload = number % 5 + 2 + shift, b"value %d " % number * 10
    key = prefixed(1 + shift, b"key %d" % number)
    if number % 7 > 2:
        return Record(-1, now, key, prefixed(value_id, payload))
    if number % 7 == 2:
        # Neither a number nor a GUID: the id is where deserializers look for it then.
        return Record(-1, now, key, prefixed(value_id, payload), (("__value_schema_id", b"\2none"),))
    more = b"more" if number % 7 else b""
    return Record(-1, now, key, payload, (("trace", b"1"), ("__value_schema_id", prefixed(value_id, more))))


@pytest.fixture
def begun(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, tmp_path: Path, unique_name: Callable[[str], str]
) -> Copying:
    """A topic per codec with the source's records, and an id map; nothing is copied."""
    topics = {unique_name(codec): codec for codec in CODECS}
    rows = [(0, record(number)) for number in range(RECORDS)]
    for topic, codec in topics.items():
        source_cluster.create_topic(topic, 1)
        write(source_cluster.client_config(), topic, rows, codec=codec)
    copy = Copying(source_cluster, target_cluster, tmp_path, list(topics), unique_name("m").lower())
    document = SchemaIdMap(
        migration_id=copy.migration_id,
        id_mode="translate",
        ids=[(".", number, number + SHIFT) for number in range(1, 7)],
    )
    copy.clients.store(copy.journal).put(id_map_key(copy), document.canonical())
    return copy


def id_map_key(copy: Copying) -> str:
    return f"{copy.migration_id}/schemas/id-map.json"


def id_settings(copy: Copying) -> SchemaIdSettings:
    return SchemaIdSettings(
        id_map_key=id_map_key(copy), topics={topic: TopicIdSettings(parts="both") for topic in copy.topics}
    )


def check(copy: Copying) -> list[PartitionContent]:
    job = content_job(copy).model_copy(update={"schema_ids": id_settings(copy)})
    assert {item.target_end_offset for item in job.ranges} == {RECORDS}, job.ranges
    return LocalContentRunner(copy.clients, threads=2).run(job)


def test_a_rewritten_copy_is_equal_and_all_ids_are_gathered(begun: Copying, prove: Prove) -> None:
    begun.run(schema_ids=id_settings(begun))
    for content in check(begun):
        assert content.is_proven, (content.topic, content.differences[:3], content.error)
        assert content.compared == RECORDS
        assert content.method == "payload", "compared batch by batch"
        assert content.source_digest == content.target_digest
        assert [(use.part, use.kind, use.id) for use in content.schema_ids] == [
            ("key", "id32", 1),
            *(("value", "id32", number) for number in range(2, 7)),
        ]
        assert sum(use.count for use in content.schema_ids) == 2 * RECORDS
    again = prove(begun, job_of(begun, schema_ids=id_settings(begun)))
    assert [(found.compared, found.difference_count) for found in again] == [(RECORDS, 0)] * len(CODECS)


def test_one_wrong_id_is_found(begun: Copying, target_cluster: KafkaCluster, prove: Prove) -> None:
    """In a key, in a value, and in a header of a log that another producer has written."""
    records = [record(number, SHIFT) for number in range(RECORDS)]
    records[40] = replace(records[40], key=prefixed(2 + SHIFT, b"key 40"))
    records[41] = replace(records[41], value=prefixed(7, (records[41].value or b"")[5:]))
    records[42] = replace(records[42], headers=(("trace", b"1"), ("__value_schema_id", prefixed(2, b""))))
    for topic in begun.topics:
        write(target_cluster.client_config(), topic, [(0, item) for item in records])
    for content in check(begun):
        assert (content.error, content.source_records) == (None, RECORDS), content
        assert [(item.kind, item.source_offset, item.detail) for item in content.differences] == [
            ("changed", 40, "key"),
            ("changed", 41, "value"),
            ("changed", 42, "headers"),
        ]
        assert content.compared == RECORDS - 3
    for found in prove(begun, job_of(begun, schema_ids=id_settings(begun))):
        assert [item.source_offset for item in found.differences] == [40, 41, 42]


def test_a_copy_that_was_not_rewritten_is_not_equal(begun: Copying) -> None:
    begun.run()
    assert {content.difference_count for content in check(begun)} == {RECORDS}
