"""Reads stretches of a log by offset: for resume checks and for the comparison of contents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from airflow_provider_kafka_migration.errors import BrokerBusy, MigrationError, OutsideOfLog, Transient, Where
from airflow_provider_kafka_migration.kafka import error_codes, fetch
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, RawBatch, read_batches
from airflow_provider_kafka_migration.kafka.empty_answers import (
    FULL_WAIT_MS,
    Says,
    cut_short,
    end_of,
    enough_bytes,
    proven_hole,
    says,
)
from airflow_provider_kafka_migration.kafka.ends import by_leader, local_log_start
from airflow_provider_kafka_migration.kafka.fetch import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Aborted,
    FetchedPartition,
    FetchRange,
)
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire, api_version

FIRST_FETCH_BYTES = 1024 * 1024


class Span(NamedTuple):
    """What a log has from an offset on: the next batches, a proven hole, or its end."""

    #: whole batches; the first may begin below the offset
    batches: list[AnyBatch]
    #: their bytes
    records: memoryview
    #: aborted transactions that overlap the batches
    aborted: list[Aborted]
    #: all that the log has from the asked offset to here is in ``batches``; the asked offset: the log ends there
    until_offset: int
    #: exclusive end of the log for readers of the isolation level, as told with the answer
    end_offset: int


def fetch_span(
    wire: Wire,
    key: TopicPartition,
    from_offset: int,
    *,
    isolation: int = READ_COMMITTED,
    max_bytes: int = FIRST_FETCH_BYTES,
) -> Span:
    """The next batches of one partition, or the proof that there are none; tried again while the leader moves.

    :raises OutsideOfLog: the log start is above ``from_offset``, or its end below it.
    :raises RecordsWithheld: the broker goes on saying that there is more, and does not give it.
    """
    topic, partition = key

    def attempt() -> Span:
        where = Where(cluster=wire.config.name, topic=topic, partition=partition, offset=from_offset)
        found, batches = _fetch_one(wire, FetchRange(topic, partition, from_offset, max_bytes), isolation, where)
        said = says(found, batches, from_offset, isolation)
        if said is Says.NOTHING:
            # Remote storage may have needed longer.
            found, batches = _fetch_one(
                wire, FetchRange(topic, partition, from_offset, max_bytes), isolation, where, FULL_WAIT_MS
            )
            said = says(found, batches, from_offset, isolation)
        end = end_of(found, isolation)
        if said is Says.BATCHES:
            return Span(batches, found.records, found.aborted, batches[-1].next_offset, end)
        until = from_offset if said is Says.END else _hole_end(wire, key, from_offset, end, where)
        return Span([], memoryview(b""), [], until, end)

    return wire.retrying(attempt)


def _hole_end(wire: Wire, key: TopicPartition, offset: int, promised_end: int, where: Where) -> int:
    """Where the hole ends that begins at an offset, if one is proven."""
    wire.leaders([key])
    leader_epoch = wire.leader_epochs([key])[key]
    asked = FetchRange(*key, offset, FIRST_FETCH_BYTES, leader_epoch)
    probe, batches = _fetch_one(wire, asked, READ_UNCOMMITTED, where, FULL_WAIT_MS)
    local_start = None if batches else local_log_start(wire, key, leader_epoch)
    return proven_hole(offset, promised_end, probe, batches, local_start, where)


def _fetch_one(
    wire: Wire, asked: FetchRange, isolation: int, where: Where, max_wait_ms: int = 0
) -> tuple[FetchedPartition, list[AnyBatch]]:
    """One answer without an error, cut behind its last whole batch; more is asked for where a batch needs it."""
    while True:
        answers = wire.fetch_once([asked], isolation=isolation, max_wait_ms=max_wait_ms)
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
                f"offset {asked.offset} is outside of the log (start {found.log_start_offset}, "
                f"end {found.high_watermark})",
                where=where,
                next_step="compare the log's start and end with the plan",
                details={"log_start_offset": found.log_start_offset, "high_watermark": found.high_watermark},
            )
        if found.error_code:
            raise error_codes.error_for(found.error_code, "records cannot be read", where=where, needs="Read")
        batches, used = read_batches(found.records)
        if batches or not len(found.records):
            return found._replace(records=found.records[:used]), batches
        size = enough_bytes(found.records, asked.max_bytes)
        if size is None:
            raise cut_short(asked.offset, len(found.records), where)
        asked = asked._replace(max_bytes=size)


def read_span(
    wire: Wire, key: TopicPartition, from_offset: int, until_offset: int, *, isolation: int = READ_COMMITTED
) -> Iterator[AnyBatch]:
    """Batches that overlap ``[from_offset, until_offset)``, ascending; ends early where the log ends.

    :raises RecordsWithheld: see :func:`fetch_span`.
    """
    position = from_offset
    while position < until_offset:
        span = fetch_span(wire, key, position, isolation=isolation)
        if span.until_offset <= position:
            return
        for batch in span.batches:
            if isinstance(batch, RawBatch) and batch.base_offset >= until_offset:
                return
            if batch.next_offset > position:
                yield batch
        position = span.until_offset


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
