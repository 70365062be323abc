"""What a simulated leader answers about its logs."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Any

from kafka.protocol.admin import DeleteRecordsRequest, DeleteRecordsResponse
from kafka.protocol.admin.transactions import DescribeProducersRequest, DescribeProducersResponse
from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from airflow_provider_kafka_migration.kafka.fetch import READ_COMMITTED
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from simulated.answering import Handler, attempt
from simulated.faults import Fault
from simulated.partition_log import PartitionLog

if TYPE_CHECKING:
    from simulated.cluster import SimulatedCluster

_LATEST, _EARLIEST, _EARLIEST_LOCAL = -1, -2, -4
_DEBUGGING_REPLICA = -2
#: With transaction version 2 the leader adds the partition.
_SECOND_PRODUCE_VERSION = 12


class LogHandlers:
    """Answers requests to the leader of partitions."""

    def __init__(self, cluster: SimulatedCluster, broker_id: int) -> None:
        self._cluster = cluster
        self._id = broker_id
        self.by_api: dict[Any, Handler] = {
            ProduceRequest: self._produce,
            FetchRequest: self._fetch,
            ListOffsetsRequest: self._list_offsets,
            OffsetForLeaderEpochRequest: self._epoch_ends,
            DeleteRecordsRequest: self._delete_records,
            DescribeProducersRequest: self._describe_producers,
        }

    def _led(self, topic: str, partition: int) -> PartitionLog:
        return self._cluster.led_log((topic, partition), self._id)

    def _produce(self, request: Any, fault: Fault | None) -> ProduceResponse:
        kind = ProduceResponse.TopicProduceResponse
        topics = []
        for topic in request.topic_data:
            parts = []
            for item in topic.partition_data:
                key = (topic.name, item.index)
                code, written = attempt(fault, topic.name, lambda k=key, d=item.records: self._append(request, k, d))
                base, append_time = (-1, -1) if code else written
                parts.append(
                    kind.PartitionProduceResponse(
                        index=item.index,
                        error_code=code,
                        base_offset=base,
                        log_append_time_ms=append_time,
                        log_start_offset=-1,
                        record_errors=[],
                        error_message=None,
                    )
                )
            topics.append(kind(name=topic.name, partition_responses=parts))
        return ProduceResponse(responses=topics)

    def _append(self, request: Any, key: TopicPartition, data: bytes) -> tuple[int, int]:
        """(base offset, log append time): the time of a batch that is there already is its own, as Kafka answers."""
        log = self._led(*key)
        transactional_id = request.transactional_id
        if transactional_id is not None:
            coordinators = self._cluster.coordinators
            if request.header.request_api_version >= _SECOND_PRODUCE_VERSION:
                producer_id, epoch = struct.unpack_from(">qh", data, 43)
                coordinators.add_partitions(transactional_id, producer_id, epoch, {key})
            else:
                coordinators.check_append(transactional_id, key)
        repeated = log.remembers(data)
        base = log.append(data, transactional=transactional_id is not None)
        return base, -1 if repeated is None else repeated.max_timestamp

    def _fetch(self, request: Any, fault: Fault | None) -> FetchResponse:
        cluster = self._cluster
        until = time.monotonic() + request.max_wait_ms / 1000
        while True:
            topics, has_news = self._read(request, fault)
            left = until - time.monotonic()
            if has_news or left <= 0 or cluster.in_hurry or (fault is not None and fault.kind != "empty"):
                break
            cluster.changed.wait(left)
        return FetchResponse(error_code=0, session_id=0, responses=topics)

    def _read(self, request: Any, fault: Fault | None) -> tuple[list[Any], bool]:
        """(topics of the answer, whether there is something to be answered without waiting)."""
        room = request.max_bytes
        has_news = False
        topics = []
        if fault is not None and fault.kind == "throttle":
            return [], True
        for topic in request.topics:
            parts = []
            for item in topic.partitions:
                if fault is not None and fault.kind == "leave_out" and fault.concerns(topic.topic):
                    continue
                part = self._read_one(request, topic.topic, item, room, fault, at_least_one=room == request.max_bytes)
                room = max(0, room - len(part.records))
                has_news = has_news or bool(part.error_code) or len(part.records) >= request.min_bytes
                parts.append(part)
            topics.append(FetchResponse.FetchableTopicResponse(topic=topic.topic, partitions=parts))
        return topics, has_news

    def _read_one(
        self, request: Any, topic: str, item: Any, room: int, fault: Fault | None, *, at_least_one: bool
    ) -> Any:
        committed = request.isolation_level == READ_COMMITTED

        def read() -> tuple[PartitionLog, bytes]:
            log = self._led(topic, item.partition)
            log.check_epoch(item.current_leader_epoch)
            size = min(item.partition_max_bytes, room)
            data = log.read(item.fetch_offset, size, committed=committed, at_least_one=at_least_one)
            if fault is not None and fault.concerns(topic):
                data = b"" if fault.kind == "empty" else data[:40] if fault.kind == "cut" else data
            return log, data

        code, found = attempt(fault, topic, read)
        kind = FetchResponse.FetchableTopicResponse.PartitionData
        if code:
            return kind(
                partition_index=item.partition,
                error_code=code,
                high_watermark=-1,
                last_stable_offset=-1,
                log_start_offset=-1,
                aborted_transactions=None,
                preferred_read_replica=-1,
                records=b"",
            )
        log, data = found
        aborted = None
        if committed:
            entry = kind.AbortedTransaction
            pairs = log.aborted_from(item.fetch_offset)
            aborted = [entry(producer_id=producer, first_offset=first) for producer, first in pairs]
        return kind(
            partition_index=item.partition,
            error_code=0,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start,
            aborted_transactions=aborted,
            preferred_read_replica=-1,
            records=data,
        )

    def _list_offsets(self, request: Any, fault: Fault | None) -> ListOffsetsResponse:
        kind = ListOffsetsResponse.ListOffsetsTopicResponse
        topics = []
        for topic in request.topics:
            parts = []
            for item in topic.partitions:
                code, found = attempt(
                    fault,
                    topic.name,
                    lambda t=topic.name, i=item: self._offset(request, self._led(t, i.partition_index), i),
                )
                timestamp, offset, epoch = found or (-1, -1, -1)
                parts.append(
                    kind.ListOffsetsPartitionResponse(
                        partition_index=item.partition_index,
                        error_code=code,
                        timestamp=timestamp,
                        offset=offset,
                        leader_epoch=epoch,
                    )
                )
            topics.append(kind(name=topic.name, partitions=parts))
        return ListOffsetsResponse(topics=topics)

    @staticmethod
    def _offset(request: Any, log: PartitionLog, item: Any) -> tuple[int, int, int]:
        """(timestamp, offset, leader epoch)."""
        log.check_epoch(item.current_leader_epoch)
        if item.timestamp == _EARLIEST:
            return -1, log.log_start, log.leader_epoch
        if item.timestamp == _EARLIEST_LOCAL:
            return -1, log.log_start if log.local_start is None else log.local_start, log.leader_epoch
        if item.timestamp == _LATEST:
            if request.replica_id == _DEBUGGING_REPLICA:
                return -1, log.log_end, log.leader_epoch
            committed = request.isolation_level == READ_COMMITTED
            return -1, log.last_stable_offset if committed else log.high_watermark, log.leader_epoch
        return (*log.offset_at(item.timestamp), log.leader_epoch)

    def _epoch_ends(self, request: Any, fault: Fault | None) -> OffsetForLeaderEpochResponse:
        kind = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult

        def end(topic: str, item: Any) -> tuple[int, int]:
            log = self._led(topic, item.partition)
            log.check_epoch(item.current_leader_epoch)
            return log.epoch_end(item.leader_epoch)

        topics = []
        for topic in request.topics:
            parts = []
            for item in topic.partitions:
                code, found = attempt(fault, topic.topic, lambda t=topic.topic, i=item: end(t, i))
                epoch, offset = found or (-1, -1)
                parts.append(
                    kind.EpochEndOffset(
                        error_code=code, partition=item.partition, leader_epoch=epoch, end_offset=offset
                    )
                )
            topics.append(kind(topic=topic.topic, partitions=parts))
        return OffsetForLeaderEpochResponse(topics=topics)

    def _delete_records(self, request: Any, fault: Fault | None) -> DeleteRecordsResponse:
        kind = DeleteRecordsResponse.DeleteRecordsTopicResult

        def delete(topic: str, item: Any) -> int:
            log = self._led(topic, item.partition_index)
            log.delete_until(log.high_watermark if item.offset < 0 else item.offset)
            return log.log_start

        topics = []
        for topic in request.topics:
            parts = []
            for item in topic.partitions:
                code, low = attempt(fault, topic.name, lambda t=topic.name, i=item: delete(t, i))
                parts.append(
                    kind.DeleteRecordsPartitionResult(
                        partition_index=item.partition_index, low_watermark=-1 if code else low, error_code=code
                    )
                )
            topics.append(kind(name=topic.name, partitions=parts))
        return DeleteRecordsResponse(topics=topics)

    def _describe_producers(self, request: Any, fault: Fault | None) -> DescribeProducersResponse:
        kind = DescribeProducersResponse.TopicResponse
        topics = []
        for topic in request.topics:
            parts = []
            for number in topic.partition_indexes:
                code, log = attempt(fault, topic.name, lambda t=topic.name, n=number: self._led(t, n))
                states = [] if code else sorted(log.producers.items())
                parts.append(
                    kind.PartitionResponse(
                        partition_index=number,
                        error_code=code,
                        error_message=None,
                        active_producers=[
                            kind.PartitionResponse.ProducerState(
                                producer_id=producer,
                                producer_epoch=state.epoch,
                                last_sequence=state.last_sequence,
                                last_timestamp=state.last_timestamp,
                                coordinator_epoch=state.coordinator_epoch,
                                current_txn_start_offset=-1
                                if state.transaction_offset is None
                                else state.transaction_offset,
                            )
                            for producer, state in states
                        ],
                    )
                )
            topics.append(kind(name=topic.name, partitions=parts))
        return DescribeProducersResponse(topics=topics)
