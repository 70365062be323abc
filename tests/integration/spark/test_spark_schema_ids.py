"""Schema ids in Spark's executors: replaced by the seed, held until the map has them, compared under the map."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable

import fastavro
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry.serde import SchemaId

from airflow_provider_kafka_migration.compare.runner import ContentResults
from airflow_provider_kafka_migration.documents.proof import ContentJob, PartitionContent
from airflow_provider_kafka_migration.documents.schemas import SchemaIdSettings, TopicIdSettings
from airflow_provider_kafka_migration.schema_ids.id_map import wanted_key, wanted_prefix
from harness.brokers import KafkaCluster
from harness.compare import Record, read_records
from tests.integration.content.test_content_on_brokers import content_job
from tests.integration.copy.copying import Copying, wait_for
from tests.integration.copy.test_schema_ids import (
    GUIDS,
    IDS,
    VALUE_HEADER,
    assert_equal_under_the_map,
    framed,
    put_map,
)
from tests.integration.spark.spark_runs import SparkRun

# A Spark application takes seconds to start, and a minute on a busy machine.
pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(900)]

RECORDS, PARTITIONS = 900, 3
#: An id that the map does not have at first, and from which record on partition 0 has it.
LATE, LATE_FROM = 99, 450
ON_TARGET = {**IDS, LATE: 5}
_GUIDS = sorted(GUIDS)


def avro(number: int) -> fastavro.types.Schema:
    """The schema that the source's registry has under an id."""
    fields = [{"name": "n", "type": "long"}, {"name": f"text{number}", "type": "string"}]
    return fastavro.parse_schema({"type": "record", "name": f"Order{number}", "fields": fields})


SCHEMAS = {number: avro(number) for number in (1, 2, 3, LATE)}
#: What the target's registry has under its ids and GUIDs. The GUIDs are those of the first three schemas.
TARGET_SCHEMAS: dict[int | str | None, fastavro.types.Schema] = {
    **{ON_TARGET[number]: schema for number, schema in SCHEMAS.items()},
    **{GUIDS[guid]: SCHEMAS[1 + place] for place, guid in enumerate(_GUIDS)},
}


def schema_of(number: int) -> int:
    """The schema of a record: one of three, and a late one in the second half of partition 0."""
    is_late = number >= LATE_FROM and number % PARTITIONS == 0 and number % 2 == 0
    return LATE if is_late else 1 + number // PARTITIONS % 3


def content_of(number: int) -> dict[str, object]:
    return {"n": number, f"text{schema_of(number)}": f"text {number}"}


def produce(cluster: KafkaCluster, topic: str) -> None:
    """Write Avro records; every fifth has its id in a header, as a GUID or as a number, and all keys have one."""
    cluster.create_topic(topic, PARTITIONS)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": "lz4", "batch.num.messages": 30})
    for number in range(RECORDS):
        schema, body = schema_of(number), io.BytesIO()
        fastavro.schemaless_writer(body, SCHEMAS[schema], content_of(number))
        value, headers = framed(schema, body.getvalue()), [("trace", b"%d" % number)]
        if number % 5 == 4:
            guid = b"\x01" + uuid.UUID(_GUIDS[schema - 1]).bytes if schema != LATE and number % 2 else None
            value, headers = body.getvalue(), [*headers, (VALUE_HEADER, guid or framed(schema, b""))]
        producer.produce(topic, value, framed(1, b"key %d" % number), number % PARTITIONS, headers=headers)
    assert producer.flush(60) == 0


def decoded(record: Record) -> object:
    """The value of a record of the target, read with the schema that the target's registry has under its id."""
    assert record.value is not None
    found, header = SchemaId("AVRO"), dict(record.headers).get(VALUE_HEADER)
    if header is None:
        body = found.from_bytes(io.BytesIO(record.value))
    else:
        found.from_bytes(io.BytesIO(header))
        body = io.BytesIO(record.value)
    schema = TARGET_SCHEMAS[str(found.guid) if found.guid is not None else found.id]
    return fastavro.schemaless_reader(body, schema, None)


def with_ids(copy: Copying) -> SchemaIdSettings:
    return SchemaIdSettings(
        id_map_key=f"{copy.migration_id}/schemas/id-map.json",
        topics={topic: TopicIdSettings(parts="both") for topic in copy.topics},
    )


def verified(copy: Copying, submit: Callable[..., SparkRun]) -> list[PartitionContent]:
    """Compare by Spark; return the results, ascending."""
    job = content_job(copy).model_copy(update={"schema_ids": with_ids(copy)})
    store = copy.clients.store(copy.journal)
    store.put(copy.job_key("verify"), job.canonical())
    run = submit(copy, "verify", "verify")
    assert run.wait() == 0, run.text()[-4000:]
    found = ContentResults(ContentJob.parse(job.canonical()), store).read_all()
    return sorted(found, key=lambda item: item.key)


def occurring(partition: int) -> dict[tuple[str, str, int | str], int]:
    """How often each id occurs in a partition of the source, by part and kind."""
    counts: dict[tuple[str, str, int | str], int] = {}
    for number in range(partition, RECORDS, PARTITIONS):
        schema = schema_of(number)
        is_guid = number % 5 == 4 and number % 2 and schema != LATE
        value = ("value", "guid", _GUIDS[schema - 1]) if is_guid else ("value", "id32", schema)
        for key in (("key", "id32", 1), value):
            counts[key] = counts.get(key, 0) + 1
    return counts


def test_executors_replace_ids_wait_for_late_ones_and_compare_under_the_map(
    copying: Callable[..., Copying],
    submit: Callable[..., SparkRun],
    source_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
) -> None:
    topic = unique_name("avro")
    produce(source_cluster, topic)
    copy = copying([topic], lanes=2)
    put_map(copy, IDS)
    copy.write_job("seed", schema_ids=with_ids(copy))
    store, target = copy.clients.store(copy.journal), copy.clients.wire("target")

    def ends() -> dict[tuple[str, int], int]:
        return target.list_offsets(list(copy.partitions), "latest")

    seed = submit(copy, "seed", "seed")
    wanted = wanted_key(copy.migration_id, ".", LATE)
    wait_for(lambda: store.get(wanted) is not None or seed.process.poll() is not None, 300, "a copier asks for the id")
    assert seed.process.poll() is None, seed.text()[-4000:]
    # Partition 2 is copied by the same executor task as partition 0, which waits.
    whole = RECORDS // PARTITIONS
    wait_for(lambda: min(ends()[topic, 1], ends()[topic, 2]) == whole, 200, "all other partitions are copied")
    held = ends()[topic, 0]
    assert held <= LATE_FROM // PARTITIONS
    request = json.loads(store.get(wanted) or b"")
    assert (request["topic"], request["partition"], request["id"]) == (topic, 0, LATE)
    assert [info.key for info in store.list(wanted_prefix(copy.migration_id))] == [wanted]
    assert seed.process.poll() is None, seed.text()[-4000:]
    put_map(copy, ON_TARGET)
    assert seed.wait() == 0, seed.text()[-4000:]

    assert assert_equal_under_the_map(copy, ids=ON_TARGET) == 2 * RECORDS
    for partition, records in read_records(copy.target.client_config(), topic).items():
        wanted_contents = [content_of(number) for number in range(partition, RECORDS, PARTITIONS)]
        assert [record.offset for record in records] == list(range(whole))
        assert [decoded(record) for record in records] == wanted_contents

    found = verified(copy, submit)
    assert [content.key for content in found] == [(topic, number) for number in range(PARTITIONS)]
    for content in found:
        assert content.is_proven, (content.key, content.differences[:3], content.error)
        assert (content.compared, content.schema_id_rule) == (whole, TopicIdSettings(parts="both").rule)
        gathered = {(use.part, use.kind, use.id): use.count for use in content.schema_ids}
        assert gathered == occurring(content.partition)
        assert content.schema_ids_left_out == 0
