"""Schema ids of records are replaced on the way: equal under the id map at each offset, decoded on the target."""

from __future__ import annotations

import io
import random
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry.serde import SchemaId

from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.documents.schemas import SchemaIdMap
from airflow_provider_kafka_migration.schema_ids.id_map import parse_wanted_key, wanted_prefix
from harness import load as loading
from harness.brokers import KafkaCluster
from harness.compare import Record, read_records
from harness.copiers.copying import Copying, results_of
from tests.integration.copy.conftest import MakeCopying
from tests.integration.copy.test_batches_times import magics, plain_client
from tests.integration.copy.test_copy_kills import finish, kill_copiers

pytestmark = pytest.mark.integration

#: What the target's registry has made of the ids of the source's.
IDS = {number: 100_000 + 7 * number for number in range(1, 21)}
GUIDS = {str(uuid.UUID(int=number)): str(uuid.UUID(int=2**100 + number)) for number in range(1, 4)}
VALUE_HEADER, KEY_HEADER = "__value_schema_id", "__key_schema_id"


def framed(number: int, rest: bytes) -> bytes:
    return struct.pack(">bi", 0, number) + rest


def put_map(copy: Copying, ids: Mapping[int, int] = IDS) -> None:
    """Write the id map as the synchronization of the schemas does."""
    document = SchemaIdMap(
        migration_id=copy.migration_id,
        id_mode="translate",
        ids=[(".", source, target) for source, target in sorted(ids.items())],
        guids=sorted(GUIDS.items()),
    )
    copy.clients.store(copy.journal).put(f"{copy.migration_id}/schemas/id-map.json", document.canonical())


def with_ids(copying: MakeCopying, topics: list[str], *, parts: str = "both", **options: Any) -> Copying:
    """A copy that replaces the ids of all its topics."""
    copy = copying(topics, **options)
    copy.job_fields = {
        **copy.job_fields,
        "schema_ids": {
            "id_map_key": f"{copy.migration_id}/schemas/id-map.json",
            "topics": {topic: {"parts": parts} for topic in topics},
        },
    }
    put_map(copy)
    return copy


# -- what consumers see -----------------------------------------------------------------------------------------------


def parsed(payload: bytes | None, header: bytes | None) -> tuple[object, bytes | None]:
    """(schema id or GUID, the rest) of a key or value, as confluent-kafka's deserializer finds them."""
    schema_id = SchemaId("AVRO")
    if header is not None:
        rest = schema_id.from_bytes(io.BytesIO(header)).read()
        return schema_id.id or str(schema_id.guid), rest + b"|" + (payload or b"")
    if payload is None or len(payload) < 5 or payload[0] != 0:
        return None, payload
    return (schema_id.from_bytes(io.BytesIO(payload)) and schema_id.id), payload[5:]


def seen(record: Record, ids: Mapping[Any, Any] | None = None) -> tuple[object, ...]:
    """A record with its ids apart, and under a map of ids."""
    headers = dict(record.headers)
    parts = []
    for payload, name in ((record.key, KEY_HEADER), (record.value, VALUE_HEADER)):
        schema, rest = parsed(payload, headers.get(name))
        parts.append((schema if ids is None or schema is None else ids[schema], rest))
    others = [(name, content) for name, content in record.headers if name not in (KEY_HEADER, VALUE_HEADER)]
    return (record.offset, record.timestamp, *parts, others, [name for name, _ in record.headers])


def assert_equal_under_the_map(copy: Copying, *, ids: Mapping[int, int] = IDS, offsets: bool = True) -> int:
    """Every record is on the target, with the ids of the target, at its offset; return how many ids were replaced."""
    both: dict[Any, Any] = {**ids, **GUIDS}
    replaced = 0
    for topic in copy.topics:
        source = read_records(copy.source.client_config(), topic)
        target = read_records(copy.target.client_config(), topic)
        for number, found in source.items():
            first = 0 if offsets else 1
            wanted = [seen(record, both)[first:] for record in found]
            assert [seen(record)[first:] for record in target[number]] == wanted
            replaced += sum(part[0] is not None for record in found for part in seen(record)[2:4])  # type: ignore[index]
    return replaced


# -- sources whose records carry ids ----------------------------------------------------------------------------------


@pytest.fixture
def loads_with_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the usual topics of each kind have ids in keys, values and headers, and some records without."""
    plain_records = loading.records_of

    def records_of(*arguments: Any) -> Iterator[tuple[int, loading.Record]]:
        guids = sorted(GUIDS)
        for number, (partition, record) in enumerate(plain_records(*arguments)):
            key = None if record.key is None else framed(3, record.key)
            value, headers = record.value, record.headers
            if number % 5 == 4 and value is not None:
                content = b"\x01" + uuid.UUID(guids[number % 3]).bytes + b"\x02\x04"
                headers = (*headers, (VALUE_HEADER, content if number % 2 else framed(7, b"")))
            elif number % 7 and value is not None:
                value = framed(1 + number % 20, value)
            yield partition, loading.Record(record.offset, record.timestamp, key, value, headers)

    monkeypatch.setattr(loading, "records_of", records_of)


@pytest.mark.usefixtures("loads_with_ids")
@pytest.mark.parametrize("via", ["direct", pytest.param("s3", marks=pytest.mark.soak)])
def test_all_kinds_of_topics(
    copying: MakeCopying, source_cluster: KafkaCluster, unique_name: Callable[[str], str], via: str
) -> None:
    topics = loading.tiny_topics(unique_name("ids") + ".")
    loading.load(source_cluster, topics, seed=11)
    names = [topic.name for topic in topics]
    copy = with_ids(copying, names, lanes=2, via=via, job_fields={"segment_max_bytes": 20_000})
    progress = copy.run()
    assert int(progress["holes"]) > 100  # compaction and transactions are in there
    assert assert_equal_under_the_map(copy) > 1000
    # Nothing is copied twice, and the ends agree.
    assert copy.run()["records"] == 0


@pytest.mark.usefixtures("loads_with_ids")
def test_all_kinds_of_topics_in_transactions(
    copying: MakeCopying, source_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    topics = loading.tiny_topics(unique_name("ids") + ".")
    loading.load(source_cluster, topics, seed=12)
    verdicts = {(topic.name, number): Verdict.TRANSACTIONAL for topic in topics for number in range(topic.partitions)}
    copy = with_ids(copying, [topic.name for topic in topics], lanes=2, verdicts=verdicts)
    copy.run()
    assert assert_equal_under_the_map(copy, offsets=False) > 1000


def test_old_message_formats(copying: MakeCopying, old_source: KafkaCluster, unique_name: Callable[[str], str]) -> None:
    """Message formats 0 and 1, plain and as compressed wrappers, become format 2 with the ids of the target."""
    records = [
        (0, loading.Record(-1, 1_700_000_000_000 + number, framed(3, b"key"), framed(1 + number % 20, b"%d" % number)))
        for number in range(300)
    ]
    topics = []
    for version in ("0.9.0", "0.10.0"):
        for codec in ("none", "gzip"):
            name = unique_name(f"old-{version}-{codec}")
            old_source.create_topic(name, 1, config={"message.format.version": version, "retention.ms": "-1"})
            loading.write(plain_client(old_source), name, records, codec=codec)
            topics.append(name)
            assert magics(old_source, name) == {0 if version == "0.9.0" else 1}
    copy = with_ids(copying, topics, source=old_source)
    assert copy.run()["records"] == 1200
    assert assert_equal_under_the_map(copy) == 2400


def test_ten_thousand_avro_records(
    copying: MakeCopying, source_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    """Each record decodes on the target with the schema that the target's registry has under its id."""
    schemas = {
        number: fastavro.parse_schema(
            {
                "type": "record",
                "name": f"Order{number}",
                "fields": [{"name": "n", "type": "long"}, {"name": f"text{number}", "type": "string"}],
            }
        )
        for number in IDS
    }
    on_target = {IDS[number]: schema for number, schema in schemas.items()}
    topic = unique_name("avro")
    source_cluster.create_topic(topic, 2)
    producer = Producer({"bootstrap.servers": source_cluster.bootstrap, "compression.type": "zstd", "linger.ms": 20})
    for number in range(10_000):
        schema = 1 + number % len(IDS)
        body = io.BytesIO()
        fastavro.schemaless_writer(body, schemas[schema], {"n": number, f"text{schema}": f"text {number}"})
        producer.produce(topic, framed(schema, body.getvalue()), b"%d" % number, number % 2)
    assert producer.flush(60) == 0
    copy = with_ids(copying, [topic], parts="value")
    assert copy.run()["records"] == 10_000
    found: dict[int, dict[str, object]] = {}
    for number, records in read_records(copy.target.client_config(), topic).items():
        for place, record in enumerate(records):
            assert record.offset == place
            schema_id, body_bytes = parsed(record.value, None)
            assert isinstance(schema_id, int)
            assert body_bytes is not None
            decoded = fastavro.schemaless_reader(io.BytesIO(body_bytes), on_target[schema_id], None)
            assert isinstance(decoded, dict)
            found[2 * place + number] = decoded
    assert found == {
        number: {"n": number, f"text{1 + number % len(IDS)}": f"text {number}"} for number in range(10_000)
    }


# -- copiers that are killed, schemas that come late ------------------------------------------------------------------


@contextmanager
def writing_with_new_schemas(cluster: KafkaCluster, topic: str) -> Iterator[set[int]]:
    """Write records all the time, now and then with an id that nobody has seen before; yield the ids in use."""
    stop = threading.Event()
    used: set[int] = set()

    def write() -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 2, "compression.type": "lz4"})
        chance, number = random.Random(5), 0
        while not stop.is_set():
            newest = 1 + number // 400
            for _ in range(chance.randrange(1, 40)):
                schema = chance.randint(1, newest)
                used.add(schema)
                producer.produce(topic, framed(schema, b"value %d" % number), framed(1, b"key"), number % 2)
                number += 1
            producer.flush()
            time.sleep(0.01)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield used
    finally:
        stop.set()
        thread.join()


@contextmanager
def answering(copy: Copying, ids: dict[int, int]) -> Iterator[None]:
    """Put every wanted id into the map, a little later, as the synchronization of the schemas does."""
    stop = threading.Event()
    store = copy.clients.store(copy.journal)

    def answer() -> None:
        while not stop.wait(0.3):
            wanted = [
                parse_wanted_key(copy.migration_id, info.key) for info in store.list(wanted_prefix(copy.migration_id))
            ]
            new = {int(item.value) for item in wanted if item is not None} - ids.keys()
            if new:
                ids.update({number: 100_000 + 7 * number for number in new})
                put_map(copy, ids)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("via", ["direct", pytest.param("s3", marks=pytest.mark.soak)])
def test_killed_copiers_and_schemas_that_come_late(
    copying: MakeCopying, source_cluster: KafkaCluster, unique_name: Callable[[str], str], via: str
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    live = unique_name("live")
    source_cluster.create_topic(live, 2)
    copy = with_ids(copying, [live], via=via, job_fields={"segment_max_bytes": 30_000, "slice_seconds": 2})
    ids = {1: IDS[1]}
    put_map(copy, ids)
    with answering(copy, ids):
        with writing_with_new_schemas(source_cluster, live) as used:
            kill_copiers(copy, "tail", random.Random(seed), kills=8)
        copy.write_job("seed")
        results = results_of(finish(copy.worker()))
    assert all(item.done for item in results)
    assert ids.keys() == used
    assert len(used) > 2
    assert_equal_under_the_map(copy, ids=ids)


def test_an_unknown_id_holds_one_partition(
    copying: MakeCopying, source_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    topic = unique_name("late")
    source_cluster.create_topic(topic, 2)
    producer = Producer({"bootstrap.servers": source_cluster.bootstrap})
    for number in range(200):
        producer.produce(topic, framed(99 if number == 101 else 1, b"%d" % number), partition=number % 2)
    assert producer.flush(120) == 0
    copy = with_ids(copying, [topic], job_fields={"slice_seconds": 3})
    copy.write_job("seed")
    worker = copy.worker(0, "seed", "--slices", "1")
    first = {item.partition: item for item in results_of(worker.communicate(timeout=240)[0])}
    assert first[0].done
    assert not first[1].done
    assert first[1].trouble is not None
    assert first[1].trouble["code"] == "SCHEMA_ID_UNKNOWN"
    assert first[1].lag == 100 - first[1].source_offset > 0
    put_map(copy, {**IDS, 99: 5})
    assert all(item.done for item in results_of(finish(copy.worker())))
    assert_equal_under_the_map(copy, ids={**IDS, 99: 5})
