"""The requests of a transaction, as bytes (KIP-98, KIP-890). No I/O.

Transaction version 1 (brokers up to 3.9, and 4.x where the version was not raised): AddPartitionsToTxn before the first
append, AddOffsetsToTxn before the offset commit. Version 2 (KIP-890): the leaders do both themselves, and each EndTxn
returns a new epoch, so that no request still in flight can get into the next transaction.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.producer import ProduceResponse
from kafka.protocol.producer.transaction import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

from airflow_provider_kafka_migration.kafka import produce
from airflow_provider_kafka_migration.kafka.connection import BrokerConnection
from airflow_provider_kafka_migration.kafka.produce import Buffer
from airflow_provider_kafka_migration.kafka.wire import TopicPartition

PRODUCE_TIMEOUT_MS = 30_000
_FEATURE = "transaction.version"
_OFFSET_FETCH_VERSION = 7


class Producer(NamedTuple):
    """The writer: a transactional id and its current incarnation."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class Encoded(NamedTuple):
    """A request in the form that :meth:`BrokerConnection.submit` accepts."""

    api_key: int
    version: int
    parts: list[Buffer]
    flexible: bool


class Versions(NamedTuple):
    """Versions of the requests whose meaning depends on the transaction version."""

    produce: int
    commit_offsets: int
    end: int

    @property
    def is_second(self) -> bool:
        """Whether this is transaction version 2: leaders add partitions and offsets, each end gives a new epoch."""
        return self.end >= 5


FIRST = Versions(produce=8, commit_offsets=2, end=2)
SECOND = Versions(produce=12, commit_offsets=5, end=5)


def versions_of(connection: BrokerConnection) -> Versions:
    """Return the versions that a cluster supports, according to its finalized features."""
    wanted = {0: SECOND.produce, TxnOffsetCommitRequest.API_KEY: SECOND.commit_offsets, EndTxnRequest.API_KEY: 5}
    knows = all(connection.api_versions.get(key, (0, 0))[1] >= version for key, version in wanted.items())
    return SECOND if knows and connection.finalized_features.get(_FEATURE, 0) >= 2 else FIRST


def init_producer(transactional_id: str, timeout_ms: int) -> Encoded:
    """Encode InitProducerId: it ends what earlier incarnations left open, and fences them."""
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
    return Encoded(InitProducerIdRequest.API_KEY, 1, [bytes(request.encode(version=1))], flexible=False)


def init_producer_answer(frame: memoryview) -> tuple[int, int, int]:
    """(error code, producer id, epoch)."""
    answer = InitProducerIdResponse.decode(bytes(frame), version=1, header=True)
    return answer.error_code, answer.producer_id, answer.producer_epoch


def add_partition(producer: Producer, key: TopicPartition) -> Encoded:
    """Encode AddPartitionsToTxn for one partition."""
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=producer.transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[topic(name=key[0], partitions=[key[1]])],
    )
    return Encoded(AddPartitionsToTxnRequest.API_KEY, 2, [bytes(request.encode(version=2))], flexible=False)


def add_partition_answer(frame: memoryview) -> int:
    """The error code."""
    answer = AddPartitionsToTxnResponse.decode(bytes(frame), version=2, header=True)
    return next(
        (
            int(part.partition_error_code)
            for topic in answer.results_by_topic_v3_and_below
            for part in topic.results_by_partition
        ),
        0,
    )


def add_offsets(producer: Producer, group: str) -> Encoded:
    """Encode AddOffsetsToTxn."""
    request = AddOffsetsToTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        group_id=group,
    )
    return Encoded(AddOffsetsToTxnRequest.API_KEY, 2, [bytes(request.encode(version=2))], flexible=False)


def add_offsets_answer(frame: memoryview) -> int:
    """The error code."""
    return int(AddOffsetsToTxnResponse.decode(bytes(frame), version=2, header=True).error_code)


def commit_offset(
    producer: Producer, group: str, key: TopicPartition, offset: int, metadata: str, version: int
) -> Encoded:
    """Encode TxnOffsetCommit for one partition, without being a member of the group."""
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    item = topic.TxnOffsetCommitRequestPartition(
        partition_index=key[1], committed_offset=offset, committed_leader_epoch=-1, committed_metadata=metadata
    )
    request = TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id=group,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        generation_id=-1,
        member_id="",
        group_instance_id=None,
        topics=[topic(name=key[0], partitions=[item])],
    )
    body = bytes(request.encode(version=version))
    return Encoded(TxnOffsetCommitRequest.API_KEY, version, [body], flexible=version >= 3)


def commit_offset_answer(frame: memoryview, version: int) -> int:
    """The error code."""
    answer = TxnOffsetCommitResponse.decode(bytes(frame), version=version, header=True)
    return next((int(part.error_code) for topic in answer.topics for part in topic.partitions), 0)


def end_transaction(producer: Producer, version: int) -> Encoded:
    """Encode EndTxn with commit. We never send an abort: the next InitProducerId aborts."""
    request = EndTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        committed=True,
    )
    return Encoded(EndTxnRequest.API_KEY, version, [bytes(request.encode(version=version))], flexible=version >= 3)


def end_transaction_answer(frame: memoryview, version: int) -> tuple[int, int, int]:
    """(error code, producer id, epoch) for the next transaction; -1 where the broker does not assign new ones."""
    answer = EndTxnResponse.decode(bytes(frame), version=version, header=True)
    if version < 5:
        return answer.error_code, -1, -1
    return answer.error_code, answer.producer_id, answer.producer_epoch


def append(producer: Producer, key: TopicPartition, header: bytes, payload: Buffer, version: int) -> Encoded:
    """Encode Produce of one batch inside the transaction."""
    if version < 9:
        batch = produce.ProduceBatch(*key, header, payload)
        parts = produce.encode([batch], timeout_ms=PRODUCE_TIMEOUT_MS, transactional_id=producer.transactional_id)
        return Encoded(produce.API_KEY, version, parts, flexible=False)
    size = len(header) + len(payload)
    head = b"".join(
        (
            _compact(producer.transactional_id),
            struct.pack(">hi", produce.ACKS_ALL, PRODUCE_TIMEOUT_MS),
            _uvarint(2),
            _compact(key[0]),
            _uvarint(2),
            struct.pack(">i", key[1]),
            _uvarint(size + 1),
            header,
        )
    )
    # no tagged fields: of the partition, the topic, the request
    return Encoded(produce.API_KEY, version, [head, payload, b"\0\0\0"], flexible=True)


class Appended(NamedTuple):
    """The answer to an append."""

    error_code: int
    base_offset: int
    error_message: str
    throttle_time_ms: int
    log_append_time: int


def append_answer(frame: memoryview, version: int) -> Appended:
    """Decode the leader's answer to an append."""
    if version < 9:
        answer = produce.decode(frame[4:], version)
        item = answer.partitions[0]
        fields = (item.error_code, item.base_offset, item.error_message, answer.throttle_time_ms)
        return Appended(*fields, item.log_append_time)
    decoded = ProduceResponse.decode(bytes(frame), version=version, header=True)
    part = decoded.responses[0].partition_responses[0]
    fields = (part.error_code, part.base_offset, part.error_message or "", decoded.throttle_time_ms)
    return Appended(*fields, part.log_append_time_ms)


def fetch_offsets(group: str, keys: list[tuple[str, list[int]]] | None) -> tuple[OffsetFetchRequest, int]:
    """OffsetFetch of stable offsets only (KIP-447): (message, version). None: all offsets of the group."""
    topic = OffsetFetchRequest.OffsetFetchRequestTopic
    topics = None if keys is None else [topic(name=name, partition_indexes=numbers) for name, numbers in keys]
    return OffsetFetchRequest(group_id=group, topics=topics, require_stable=True), _OFFSET_FETCH_VERSION


def _uvarint(value: int) -> bytes:
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    data.append(value)
    return bytes(data)


def _compact(text: str) -> bytes:
    data = text.encode()
    return _uvarint(len(data) + 1) + data
