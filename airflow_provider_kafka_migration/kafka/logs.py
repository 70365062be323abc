"""Reads ranges of a log by offset, for resume checks and for the comparison of contents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeVar

from kafka.protocol.consumer import ListOffsetsRequest

from airflow_provider_kafka_migration.errors import (
    BrokerBusy,
    MigrationError,
    OutsideOfLog,
    RecordsWithheld,
    Transient,
    Where,
)
from airflow_provider_kafka_migration.kafka import error_codes, fetch
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, RawBatch, read_batches
from airflow_provider_kafka_migration.kafka.fetch import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Aborted,
    FetchedPartition,
    FetchRange,
)
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire, api_version, by_topic

# -- ends -------------------------------------------------------------------------------------------------------------
#
# Reads where logs begin and end without waiting for any single partition: a partition without a leader delays no other.


_T = TypeVar("_T")
_EARLIEST, _LATEST = -2, -1
_VERSION = 5
#: KIP-405: asks for the first offset that the leader has on its own disks; Kafka 3.4 and later
_EARLIEST_LOCAL = -4
_LOCAL_VERSION = 8
#: Key in ``details`` of an error: the cluster reports that the topic does not exist.
MISSING_TOPIC = "missing_topic"


@dataclass(frozen=True)
class LogEnds:
    """Start and ends of one log; all are exclusive except the start."""

    log_start_offset: int
    high_watermark: int
    log_end_offset: int

    @property
    def settled(self) -> bool:
        """Whether everything that the leader has is replicated: then what a dead copier left will stay."""
        return self.high_watermark >= self.log_end_offset


def read_ends(wire: Wire, keys: Iterable[TopicPartition]) -> dict[TopicPartition, LogEnds | MigrationError]:
    """Read the ends of every partition, or the error that prevents it.

    :raises Transient: no broker of the cluster answers.
    """
    found: dict[TopicPartition, LogEnds | MigrationError] = {}
    for broker_id, group in by_leader(wire, keys, found).items():
        found.update(_ends_at(wire, broker_id, group))
    return found


def by_leader(
    wire: Wire, keys: Iterable[TopicPartition], problems: MutableMapping[TopicPartition, _T | MigrationError]
) -> dict[int, list[TopicPartition]]:
    """Group partitions by their current leader; those without one go to ``problems``."""
    wanted = sorted(set(keys))
    topics = wire.metadata({topic for topic, _ in wanted}) if wanted else {}
    groups: dict[int, list[TopicPartition]] = {}
    for key in wanted:
        topic = topics.get(key[0])
        leader = -1 if topic is None else topic.leaders.get(key[1], -1)
        if leader >= 0:
            groups.setdefault(leader, []).append(key)
            continue
        where = Where(cluster=wire.config.name, topic=key[0], partition=key[1])
        if topic is not None and topic.error_code == error_codes.UNKNOWN_TOPIC_OR_PARTITION:
            problems[key] = topic_missing(wire.config.name, *key)
        elif topic is not None and topic.error_code and not error_codes.retriable(topic.error_code):
            problems[key] = error_codes.error_of_read(topic.error_code, "the topic cannot be described", where=where)
        else:
            problems[key] = no_leader(wire.config.name, *key)
    return dict(sorted(groups.items()))


def no_leader(cluster: str, topic: str, partition: int) -> BrokerBusy:
    """The error for a partition that has no leader at present."""
    return BrokerBusy(
        "the partition has no leader",
        where=Where(cluster=cluster, topic=topic, partition=partition),
        next_step="check that the topic exists and its brokers run; then clear the task",
    )


def topic_missing(cluster: str, topic: str, partition: int) -> BrokerBusy:
    """The error for a topic that does not exist. Transient: a broker that has just started may not know it yet."""
    return BrokerBusy(
        "the topic does not exist",
        where=Where(cluster=cluster, topic=topic, partition=partition),
        next_step="check whether the topic was deleted",
        details={MISSING_TOPIC: topic},
    )


def _ends_at(
    wire: Wire, broker_id: int, keys: Sequence[TopicPartition]
) -> dict[TopicPartition, LogEnds | MigrationError]:
    try:
        # Read the log end first: a high watermark that is read later can only be higher.
        log_end = list_offsets_at(wire, broker_id, keys, _LATEST, replica_id=-2)
        high_watermark = list_offsets_at(wire, broker_id, keys, _LATEST)
        log_start = list_offsets_at(wire, broker_id, keys, _EARLIEST)
    except Transient as error:
        return dict.fromkeys(keys, error)
    found: dict[TopicPartition, LogEnds | MigrationError] = {}
    for key in keys:
        start, high, end = log_start[key], high_watermark[key], log_end[key]
        if isinstance(start, int) and isinstance(high, int) and isinstance(end, int):
            found[key] = LogEnds(start, high, end)
        else:
            found[key] = next(item for item in (end, high, start) if not isinstance(item, int))
    return found


def local_log_start(wire: Wire, key: TopicPartition, leader_epoch: int) -> int | None:
    """Return the first offset that a leader has on its own disks, not in remote storage; None: unknown.

    Without remote storage it is the log start.

    :param leader_epoch: epoch of the leader to ask. A leader of another epoch refuses the request: what is local there
        says nothing about the answers of this one. -1: the epoch is unknown, and so is the result.
    :raises MigrationError: the leader does not answer, or refuses; if it refuses, it is looked up again next time.
    """
    if leader_epoch < 0:
        return None
    broker_id = wire.leaders([key])[key]
    versions = wire.connection(broker_id).api_versions.get(ListOffsetsRequest.API_KEY, (0, 0))
    if not versions[0] <= _LOCAL_VERSION <= versions[1]:
        return None
    found = list_offsets_at(wire, broker_id, [key], _EARLIEST_LOCAL, leader_epoch=leader_epoch, version=_LOCAL_VERSION)[
        key
    ]
    if isinstance(found, MigrationError):
        wire.forget_leaders([key])
        raise found
    return found


def list_offsets_at(
    wire: Wire,
    broker_id: int,
    keys: Sequence[TopicPartition],
    timestamp: int,
    *,
    replica_id: int = -1,
    leader_epoch: int = -1,
    version: int = _VERSION,
) -> dict[TopicPartition, int | MigrationError]:
    """Send ListOffsets to one broker; errors of single partitions are values.

    :param replica_id: -2, the "debugging" replica, returns the leader's log end instead of its high watermark.
    :param leader_epoch: expected epoch of the leader; a leader of another epoch refuses. -1: not compared.
    :raises Transient: the broker does not answer.
    """
    entry = ListOffsetsRequest.ListOffsetsTopic
    request = ListOffsetsRequest(
        replica_id=replica_id,
        isolation_level=0,
        topics=[
            entry(
                name=topic,
                partitions=[
                    entry.ListOffsetsPartition(
                        partition_index=number, current_leader_epoch=leader_epoch, timestamp=timestamp
                    )
                    for number in numbers
                ],
            )
            for topic, numbers in by_topic(keys)
        ],
    )
    answer = wire.connection(broker_id).call(request, version=version)
    found: dict[TopicPartition, int | MigrationError] = {}
    for topic in answer.topics:
        for item in topic.partitions:
            key = (topic.name, item.partition_index)
            where = Where(cluster=wire.config.name, topic=key[0], partition=key[1])
            found[key] = (
                error_codes.error_of_read(item.error_code, "offsets cannot be listed", where=where)
                if item.error_code
                else item.offset
            )
    return found


# -- empty answers ----------------------------------------------------------------------------------------------------
#
# What a fetch answer without records means: one rule for all code that reads logs.
#
# A broker answers NONE, no records, and a last stable offset (or high watermark) above the requested offset when
#
# * other partitions of the request have used up its size limits. This does not happen to a partition that is requested
#   alone: its first batch is returned whole, however large it is (fetch version 3 and later);
# * the offset is in remote storage (KIP-405), and the read timed out, the quota of such reads is used up, or another
#   partition of the request was served first. Any number of records may exist at and after the offset;
# * it names another replica to read from (KIP-392). ``kafka.fetch`` uses a version in which it cannot;
# * nothing is there: a hole.
#
# An empty answer is therefore no evidence of a hole. This is evidence:
#
# 1. *A later batch.* A leader reads its log upwards from the requested offset. If the first batch of an answer begins
#    above that offset, nothing is between them. This proves all holes inside a log. With read_uncommitted the leader
#    also returns batches beyond the last stable offset, which covers a log whose last records before an open
#    transaction were compacted away.
# 2. *Nothing at all up to the high watermark*, from a leader that was asked for this partition alone, with
#    read_uncommitted, and has waited the full time, and whose local log afterwards begins at or below the offset
#    (ListOffsets EARLIEST_LOCAL, Kafka 3.4 and later). Local log starts only move up, so the offset was on the leader's
#    own disks when it answered the fetch. A local read has no timeout and no quota: it finds every batch that exists.
#    Both requests name one leader epoch, so that one leader answers both: another leader's local log may begin lower.
#
# Holes of the second kind hardly exist. The active segment is never compacted, control batches and aborted records
# are returned at every isolation level, DeleteRecords and retention move the log start (OFFSET_OUT_OF_RANGE, not an
# empty answer), and batches that hold producer state are kept, empty. Such a hole needs an active segment that was
# emptied by a truncation after a segment whose last batches were compacted away (KAFKA-17076, fixed in 4.0).
# Followers, which advance by batches, could not copy such an end either. A broker that cannot tell what is local
# (before 3.4, and brokers other than Apache's, which may have their own storage tiers) therefore gets no benefit of the
# doubt: one more record makes the hole visible.
#
# Everything else is :class:`RecordsWithheld`: transient, retried with pauses, and a named error when it persists.


#: The full wait of a fetch that serves as evidence. Kafka 3.6 and 3.7 give up remote reads after the wait of the
#: request, later versions after ``remote.fetch.max.wait.ms`` (500 ms).
FULL_WAIT_MS = 1000
#: The largest batch that is requested.
MAX_FETCH_BYTES = 256 * 1024 * 1024
#: Length and offset at the head of each batch, of any format.
_OVERHEAD_BYTES = 12


class Says(Enum):
    """What an answer says about the requested offset."""

    #: the answer has whole batches
    BATCHES = "batches"
    #: the log ends here, for readers of this isolation level
    END = "end"
    #: the answer has only a piece of a batch
    PIECE = "piece"
    #: the answer is empty although the log continues: no evidence of anything
    NOTHING = "nothing"


def end_of(found: FetchedPartition, isolation: int) -> int:
    """Return where the log ends for readers of this isolation level."""
    return found.last_stable_offset if isolation == READ_COMMITTED else found.high_watermark


def says(found: FetchedPartition, batches: Sequence[AnyBatch], offset: int, isolation: int) -> Says:
    """Classify what an answer without an error says about the requested offset."""
    if batches:
        return Says.BATCHES
    if len(found.records):
        return Says.PIECE
    return Says.NOTHING if end_of(found, isolation) > offset else Says.END


def enough_bytes(piece: memoryview, asked_bytes: int) -> int | None:
    """Return the bytes to request to get the whole batch of which only a piece came; None: more would not help."""
    if len(piece) < _OVERHEAD_BYTES:
        size_bytes = asked_bytes * 4
    else:
        size_bytes = int.from_bytes(piece[8:12], "big", signed=True) + _OVERHEAD_BYTES
    return size_bytes if asked_bytes < size_bytes <= MAX_FETCH_BYTES else None


def first_offset(batch: AnyBatch) -> int:
    """Return the lowest offset of a batch; in old formats, the offset of its first record."""
    if isinstance(batch, RawBatch):
        return batch.base_offset
    return next(batch.records()).offset


def proven_hole(
    offset: int,
    promised_end: int,
    probe: FetchedPartition,
    batches: Sequence[AnyBatch],
    local_start: int | None,
    where: Where,
) -> int:
    """Return the exclusive end of the hole that begins at an offset, at most ``promised_end``.

    :param promised_end: end of the log according to the answer that showed no records.
    :param probe: answer of a fetch of this partition alone, at this offset, with read_uncommitted and a full wait.
    :param batches: whole batches of the probe.
    :param local_start: :func:`local_log_start` of the probe's leader, read after the probe; None: unknown.
    :raises RecordsWithheld: nothing proves a hole.
    """
    if batches:
        first = first_offset(batches[0])
        if first > offset:
            return min(first, promised_end)
        raise withheld(offset, promised_end, "it now has a batch there", where)
    if len(probe.records):
        raise cut_short(offset, len(probe.records), where)
    if probe.preferred_read_replica >= 0:
        raise withheld(offset, promised_end, f"it names broker {probe.preferred_read_replica} to read from", where)
    end = min(promised_end, probe.high_watermark)
    if end <= offset:  # truncated since
        raise withheld(offset, promised_end, f"its log now ends at {probe.high_watermark}", where)
    if local_start is None:
        raise withheld(offset, promised_end, "it cannot tell whether they are in remote storage", where)
    if local_start > offset:
        raise withheld(offset, promised_end, f"they are in remote storage (local log start: {local_start})", where)
    return end


def withheld(offset: int, end: int, reason: str, where: Where) -> RecordsWithheld:
    """The error of an answer that proves nothing."""
    return RecordsWithheld(
        f"the broker returns no records from offset {offset} on, although its log ends at {end}: {reason}",
        where=where,
        next_step="the read is retried with pauses. If the error persists, check the broker's reads of remote storage "
        "(timeouts, remote.log.manager.fetch.max.bytes.per.second) and its log; if there is only a hole, one more "
        "record in this partition proves it; then clear the task",
        details={"offset": offset, "end_offset": end},
    )


def cut_short(offset: int, size_bytes: int, where: Where) -> RecordsWithheld:
    """The error of an answer that ends within its first batch, however much is requested."""
    return RecordsWithheld(
        f"the broker returns only {size_bytes} bytes of the batch at offset {offset}, not the whole batch",
        where=where,
        next_step="the read is retried with pauses. If the error persists, inspect the partition with kafka-dump-log "
        "and check what is between this machine and the broker; then clear the task",
        details={"offset": offset},
    )


# -- logs -------------------------------------------------------------------------------------------------------------


FIRST_FETCH_BYTES = 1024 * 1024


class Span(NamedTuple):
    """What a log contains from an offset on: the next batches, a proven hole, or its end."""

    #: whole batches; the first may begin below the offset
    batches: list[AnyBatch]
    #: their bytes
    records: memoryview
    #: aborted transactions that overlap the batches
    aborted: list[Aborted]
    #: ``batches`` has everything from the requested offset to here; equal to the requested offset: the log ends there
    until_offset: int
    #: exclusive end of the log for readers of the isolation level, according to the answer
    end_offset: int


def fetch_span(
    wire: Wire,
    key: TopicPartition,
    from_offset: int,
    *,
    isolation: int = READ_COMMITTED,
    max_bytes: int = FIRST_FETCH_BYTES,
) -> Span:
    """Fetch the next batches of one partition, or prove that there are none; retry while the leader moves.

    :raises OutsideOfLog: the log starts above ``from_offset``, or ends below it.
    :raises RecordsWithheld: the broker keeps reporting more records but does not return them.
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
    """Return the end of the hole that begins at an offset, if one is proven."""
    wire.leaders([key])
    leader_epoch = wire.leader_epochs([key])[key]
    asked = FetchRange(*key, offset, FIRST_FETCH_BYTES, leader_epoch)
    probe, batches = _fetch_one(wire, asked, READ_UNCOMMITTED, where, FULL_WAIT_MS)
    local_start = None if batches else local_log_start(wire, key, leader_epoch)
    return proven_hole(offset, promised_end, probe, batches, local_start, where)


def _fetch_one(
    wire: Wire, asked: FetchRange, isolation: int, where: Where, max_wait_ms: int = 0
) -> tuple[FetchedPartition, list[AnyBatch]]:
    """Fetch one answer without an error, cut after its last whole batch; request more where a batch needs it."""
    while True:
        answers = wire.fetch_once([asked], isolation=isolation, max_wait_ms=max_wait_ms)
        if not answers:
            # A broker whose quota is used up answers immediately, without any partition.
            raise BrokerBusy(
                "the broker's quota delays fetches",
                where=where,
                next_step="raise consumer_byte_rate of the migration's principal, or wait",
            )
        found = answers[0]
        if found.error_code == error_codes.OFFSET_OUT_OF_RANGE:
            raise OutsideOfLog(
                f"offset {asked.offset} is outside the log (start {found.log_start_offset}, "
                f"end {found.high_watermark})",
                where=where,
                next_step="compare the log's start and end with the plan",
                details={"log_start_offset": found.log_start_offset, "high_watermark": found.high_watermark},
            )
        if found.error_code:
            raise error_codes.error_of_read(found.error_code, "records cannot be read", where=where, needs="Read")
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
    """Yield the batches that overlap ``[from_offset, until_offset)``, ascending; stop early where the log ends.

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
    """Fetch batches from several positions in one request per broker.

    The answer omits partitions with an error and partitions that the size limits left without a whole batch: fetch
    those one by one.
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
    """Fetch once from each leader, without waiting for any: (answers, errors of the other partitions).

    Error codes of single partitions stay in the answers, and the size limits may leave answers without a whole batch.

    :raises Transient: no broker of the cluster answers.
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
