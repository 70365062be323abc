"""Reads stretches of a log by offset: for resume checks and for the comparison of contents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_provider_kafka_migration.errors import BrokerBusy, MigrationError, OutsideOfLog, Transient, Where
from airflow_provider_kafka_migration.kafka import error_codes, fetch
from airflow_provider_kafka_migration.kafka.batches import AnyBatch, RawBatch, read_batches
from airflow_provider_kafka_migration.kafka.fetch import READ_COMMITTED, FetchedPartition, FetchRange
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire, api_version
from airflow_provider_kafka_migration.replication.ends import by_leader

FIRST_FETCH_BYTES = 1024 * 1024
MAX_FETCH_BYTES = 256 * 1024 * 1024


def fetch_span(
    wire: Wire,
    key: TopicPartition,
    from_offset: int,
    *,
    isolation: int = READ_COMMITTED,
    max_bytes: int = FIRST_FETCH_BYTES,
) -> FetchedPartition:
    """One fetch of one partition, tried again while the leader moves.

    An answer without records means that there is nothing from ``from_offset`` to its last stable offset (or high
    watermark): a fetch of a single partition is never cut to nothing by the size of others.

    :raises OutsideOfLog: the log start is above ``from_offset``, or its end below it.
    """
    topic, partition = key

    def attempt() -> FetchedPartition:
        size = max_bytes
        while True:
            answers = wire.fetch_once([FetchRange(topic, partition, from_offset, size)], isolation=isolation)
            where = Where(cluster=wire.config.name, topic=topic, partition=partition, offset=from_offset)
            if not answers:
                # A broker whose quota is used up answers at once, and says nothing of any partition.
                raise BrokerBusy(
                    "the broker's quota holds fetches back",
                    where=where,
                    next_step="raise consumer_byte_rate of the migration's principal, or wait",
                )
            found = answers[0]
            if found.error_code == error_codes.OFFSET_OUT_OF_RANGE:
                raise OutsideOfLog(
                    f"offset {from_offset} is outside of the log (start {found.log_start_offset}, "
                    f"end {found.high_watermark})",
                    where=where,
                    next_step="compare the log's start and end with the plan",
                    details={"log_start_offset": found.log_start_offset, "high_watermark": found.high_watermark},
                )
            if found.error_code:
                raise error_codes.error_for(found.error_code, "records cannot be read", where=where, needs="Read")
            batches, _ = read_batches(found.records)
            if batches or not len(found.records):
                return found
            size *= 8
            if size > MAX_FETCH_BYTES:
                raise BrokerBusy(
                    f"a batch is larger than {MAX_FETCH_BYTES} bytes", where=where, next_step="report this batch"
                )

    return wire.retrying(attempt)


def read_span(
    wire: Wire, key: TopicPartition, from_offset: int, until_offset: int, *, isolation: int = READ_COMMITTED
) -> Iterator[AnyBatch]:
    """Batches that overlap ``[from_offset, until_offset)``, ascending; ends early where the log ends."""
    position = from_offset
    while position < until_offset:
        found = fetch_span(wire, key, position, isolation=isolation)
        batches, _ = read_batches(found.records)
        if not batches:
            return
        for batch in batches:
            if isinstance(batch, RawBatch) and batch.base_offset >= until_offset:
                return
            if batch.next_offset > position:
                yield batch
                position = batch.next_offset


def fetch_many(
    wire: Wire, positions: Sequence[tuple[TopicPartition, int]], *, isolation: int, max_bytes: int
) -> dict[TopicPartition, list[AnyBatch]]:
    """Batches from several positions in one request per broker.

    Partitions with an error, or that the size limits left without a whole batch, are not in the answer: ask for them
    one by one.
    """
    ranges = [FetchRange(topic, partition, offset, max_bytes) for (topic, partition), offset in positions]
    found: dict[TopicPartition, list[AnyBatch]] = {}
    for item in wire.fetch_once(ranges, isolation=isolation):
        if item.error_code:
            continue
        batches, _ = read_batches(item.records)
        if batches:
            found[(item.topic, item.partition)] = batches
    return found


def fetch_where_possible(
    wire: Wire, positions: Sequence[tuple[TopicPartition, int]], *, isolation: int, max_bytes: int
) -> tuple[dict[TopicPartition, FetchedPartition], dict[TopicPartition, MigrationError]]:
    """One fetch of each leader, without waiting for any: (answers, what stood in the way of the others).

    Error codes of single partitions stay in the answers, and the size limits may leave answers without a whole batch.

    :raises Transient: nobody of the cluster answers.
    """
    found: dict[TopicPartition, FetchedPartition] = {}
    problems: dict[TopicPartition, MigrationError] = {}
    offsets = dict(positions)
    for broker_id, keys in by_leader(wire, offsets, problems).items():
        try:
            connection = wire.connection(broker_id)
            version = api_version(connection, fetch.API_KEY, fetch.MAX_VERSION)
            body = fetch.encode(
                [FetchRange(*key, offsets[key], max_bytes) for key in keys],
                version,
                max_wait_ms=0,
                max_bytes=32 * 1024 * 1024,
                isolation=isolation,
            )
            answer = fetch.decode(connection.call_raw(fetch.API_KEY, version, [body]), version)
        except Transient as error:
            problems.update(dict.fromkeys(keys, error))
            continue
        found.update({(item.topic, item.partition): item for item in answer.partitions})
    return found, problems
