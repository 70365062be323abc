"""Source topics for the benchmarks: written by a real client, then multiplied batch by batch.

librdkafka writes some ten thousand records; their batches are read back and appended again and again, as they are, so
that tens of millions of records take seconds. Compacted and transactional topics are written record by record.
"""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

from confluent_kafka import KafkaError, KafkaException, Producer

from airflow_provider_kafka_migration.kafka import fetch, produce
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch, read_batches, records
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.wire import Wire
from benchmarks.measure import Content
from benchmarks.scenarios import Kind, Scenario
from harness.brokers import KafkaCluster
from harness.load import wait_cleaned

_TEMPLATE_RECORDS = 60_000
_FETCH_BYTES = 4 * 1024 * 1024
_TRANSACTION_RECORDS = 400
_ABORT_EVERY = 10
_SEGMENT_MS = 60_000

Say = Callable[[str], None]


def values(count: int, size: int, seed: int = 7) -> Iterator[bytes]:
    """JSON records of about ``size`` bytes that compress about as well as orders of a shop do."""
    rng = random.Random(seed)
    cities = ["Aachen", "Bergamo", "Coimbra", "Delft", "Espoo", "Fribourg", "Ghent", "Hradec", "Innsbruck", "Jerez"]
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(4, 9))) for _ in range(400)]
    for number in range(count):
        record: dict[str, object] = {"id": number, "at": 1_700_000_000_000 + number * 37, "amount": rng.random() * 1000}
        if size > 200:
            record |= {
                "customer": {"id": rng.randrange(10**9), "city": rng.choice(cities), "segment": rng.choice("ABCD")},
                "currency": "EUR",
                "status": rng.choice(["new", "paid", "shipped", "returned"]),
                "trace": f"{rng.getrandbits(128):032x}",
            }
        text = json.dumps(record)[:-1] + ', "note": "'
        while len(text) < size - 12:
            text += rng.choice(words) + " "
        yield (text[: size - 2] + '"}').encode()


def fill(cluster: KafkaCluster, scenario: Scenario, say: Say) -> Content:
    """Create and fill the scenario's topic; what it then holds.

    :raises KafkaException: the cluster refused something.
    """
    begun = time.monotonic()
    config = {"retention.ms": "-1", "file.delete.delay.ms": "1000"}
    if scenario.kind is Kind.COMPACTED:
        config |= {
            "cleanup.policy": "compact",
            "segment.ms": str(_SEGMENT_MS),
            "min.cleanable.dirty.ratio": "0.001",
            "min.compaction.lag.ms": "0",
        }
    cluster.create_topic(scenario.name, scenario.partitions, config=config)
    _FILLERS[scenario.kind](cluster, scenario)
    content = measure(cluster, scenario)
    say(
        f"{content.records:,} records, {content.stored_bytes / 1e6:,.0f} MB as stored, "
        f"in {time.monotonic() - begun:.0f} s"
    )
    return content


class _Producer:
    """A librdkafka producer that raises what it is told, and waits when its queue is full."""

    def __init__(self, cluster: KafkaCluster, scenario: Scenario, **more: object) -> None:
        self.refused: KafkaError | None = None
        self.raw = Producer(
            {
                **cluster.client_config(),
                "compression.codec": scenario.codec,
                "batch.num.messages": scenario.batch_records,
                # Sizes are of uncompressed batches here: only the number of records shall end one.
                "batch.size": 64_000_000,
                "message.max.bytes": 64_000_000,
                "linger.ms": 3000,
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 1_000_000,
                **more,
            }
        )

    def send(self, topic: str, partition: int, value: bytes, key: bytes | None = None, timestamp: int = 0) -> None:
        while True:
            try:
                self.raw.produce(topic, value, key, partition, on_delivery=self._told, timestamp=timestamp)
            except BufferError:
                self.raw.poll(0.05)
            else:
                self.raw.poll(0)
                return

    def flush(self) -> None:
        left = self.raw.flush(120)
        if self.refused is not None or left:
            raise KafkaException(self.refused or KafkaError(KafkaError._TIMED_OUT, f"{left} records wait"))

    def _told(self, error: KafkaError | None, _message: object) -> None:
        self.refused = self.refused or error


def _fill_plain(cluster: KafkaCluster, scenario: Scenario) -> None:
    """A template in each partition, a whole number of batches; then copies of it."""
    batches = max(1, round(_TEMPLATE_RECORDS / scenario.partitions / scenario.batch_records))
    per_partition = batches * scenario.batch_records
    producer = _Producer(cluster, scenario)
    for number, value in enumerate(values(per_partition * scenario.partitions, scenario.record_bytes)):
        prefix = b"\0" + (1 + number % scenario.schema_ids).to_bytes(4, "big") if scenario.schema_ids else b""
        producer.send(scenario.name, number // per_partition, prefix + value)
    producer.flush()
    _multiply(cluster, scenario, per_partition)


def _multiply(cluster: KafkaCluster, scenario: Scenario, per_partition: int) -> None:
    copies = max(0, round(scenario.records / scenario.partitions / per_partition) - 1)
    with Wire(ClientConfig.from_librdkafka(cluster.client_config(), "source")) as wire:
        partitions = range(scenario.partitions)
        templates = {number: list(stored_batches(wire, scenario.name, number, per_partition)) for number in partitions}
        leaders = wire.leaders([(scenario.name, number) for number in partitions])
        for _ in range(copies):
            for index in range(max(map(len, templates.values()))):
                for broker in sorted(set(leaders.values())):
                    parts = [
                        produce.ProduceBatch(scenario.name, number, _at_zero(found[index]), found[index].data[61:])
                        for number, found in templates.items()
                        if index < len(found) and leaders[(scenario.name, number)] == broker
                    ]
                    _append(wire, broker, parts)


def _at_zero(batch: RawBatch) -> bytes:
    # Base offset and leader epoch are not under the CRC.
    return bytes(8) + bytes(batch.data[8:12]) + b"\xff\xff\xff\xff" + bytes(batch.data[16:61])


def _append(wire: Wire, broker: int, parts: list[produce.ProduceBatch]) -> None:
    body = produce.encode(parts, timeout_ms=60_000)
    answer = produce.decode(wire.connection(broker).call_raw(produce.API_KEY, 8, body), 8)
    wrong = [item for item in answer.partitions if item.error_code]
    if wrong:
        raise KafkaException(KafkaError(wrong[0].error_code))


def stored_batches(wire: Wire, topic: str, partition: int, until: int, offset: int = 0) -> Iterator[RawBatch]:
    """Batches of a partition as they are stored."""
    broker = wire.leaders([(topic, partition)])[(topic, partition)]
    while offset < until:
        ranges = [fetch.FetchRange(topic, partition, offset, _FETCH_BYTES)]
        body = fetch.encode(ranges, 11, max_wait_ms=100, max_bytes=_FETCH_BYTES, isolation=fetch.READ_UNCOMMITTED)
        answer = fetch.decode(wire.connection(broker).call_raw(fetch.API_KEY, 11, [body]), 11)
        batches, _ = read_batches(answer.partitions[0].records)
        if not batches:
            return
        for batch in batches:
            assert isinstance(batch, RawBatch)
            if batch.base_offset >= offset:
                yield batch
        offset = batches[-1].next_offset


def _fill_compacted(cluster: KafkaCluster, scenario: Scenario) -> None:
    """Each key twice in a row: the cleaner takes every second record, all over the log."""
    producer = _Producer(cluster, scenario)
    pool = list(values(5_000, scenario.record_bytes))
    start = int(time.time() * 1000) - 3_600_000
    per_partition = scenario.records // scenario.partitions
    for index in range(per_partition):
        # Some segments; a batch must not reach over their borders.
        timestamp = start + index * 8 * _SEGMENT_MS // per_partition
        for number in range(scenario.partitions):
            for twice in (0, 1):
                value = pool[(index * 2 + twice) % len(pool)]
                producer.send(scenario.name, number, value, b"%d" % index, timestamp)
    producer.flush()
    for number in range(scenario.partitions):
        producer.send(scenario.name, number, b"last", b"last", start + 12 * _SEGMENT_MS)
    producer.flush()
    wait_cleaned(cluster, [scenario.name])
    cluster.alter_topic_configs({scenario.name: {"segment.ms": "604800000", "min.cleanable.dirty.ratio": "0.9"}})


def _fill_transactional(cluster: KafkaCluster, scenario: Scenario) -> None:
    producer = _Producer(cluster, scenario, **{"transactional.id": f"fill-{scenario.name}", "linger.ms": 5})
    producer.raw.init_transactions(30)
    pool = list(values(5_000, scenario.record_bytes))
    transactions = scenario.records * _ABORT_EVERY // (_ABORT_EVERY - 1) // _TRANSACTION_RECORDS
    for number in range(transactions):
        producer.raw.begin_transaction()
        for index in range(_TRANSACTION_RECORDS):
            value = pool[(number + index) % len(pool)]
            producer.send(scenario.name, index * scenario.partitions // _TRANSACTION_RECORDS, value)
        producer.flush()
        if number % _ABORT_EVERY == _ABORT_EVERY - 1:
            producer.raw.abort_transaction(30)
        else:
            producer.raw.commit_transaction(30)


_FILLERS: dict[Kind, Callable[[KafkaCluster, Scenario], None]] = {
    Kind.PLAIN: _fill_plain,
    Kind.COMPACTED: _fill_compacted,
    Kind.TRANSACTIONAL: _fill_transactional,
}


def measure(cluster: KafkaCluster, scenario: Scenario) -> Content:
    """What is in a topic. Plain ones are measured by their first batches; others are read through, headers only."""
    topic = scenario.name
    with Wire(ClientConfig.from_librdkafka(cluster.client_config(), "source")) as wire:
        keys = [(topic, number) for number in range(scenario.partitions)]
        ends = {number: end for (_, number), end in wire.list_offsets(keys, "latest").items()}
        sample = next(stored_batches(wire, topic, 0, ends[0]))
        sizes = [len(item.value or b"") + len(item.key or b"") for item in records(sample)]
        record_bytes = sum(sizes) / max(1, len(sizes))
        if scenario.kind is Kind.PLAIN:
            per_record = sample.size_bytes / sample.record_count
            return Content(ends, dict(ends), int(sum(ends.values()) * per_record), record_bytes)
        visible: dict[int, int] = {}
        stored = 0
        for number in range(scenario.partitions):
            batches = list(stored_batches(wire, topic, number, ends[number]))
            stored += sum(batch.size_bytes for batch in batches)
            visible[number] = visible_records(batches)
        return Content(ends, visible, stored, record_bytes)


def visible_records(batches: list[RawBatch]) -> int:
    """Records that a committed reader sees. One transactional producer at most, all of its transactions ended."""
    open_records: dict[int, int] = defaultdict(int)
    total = 0
    for batch in batches:
        if batch.is_control:
            marker = next(records(batch), None)
            committed = marker is not None and marker.key is not None and marker.key[2:4] == b"\0\1"
            waiting = open_records.pop(batch.producer_id, 0)
            total += waiting if committed else 0
        elif batch.is_transactional:
            open_records[batch.producer_id] += batch.record_count
        else:
            total += batch.record_count
    return total


def batch_bytes(cluster: KafkaCluster, scenario: Scenario) -> int:
    """Stored size of the topic's first batch: whether batches are as large as the title says."""
    with Wire(ClientConfig.from_librdkafka(cluster.client_config(), "source")) as wire:
        return next(stored_batches(wire, scenario.name, 0, 1)).size_bytes
