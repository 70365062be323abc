"""What the coordinators of a simulated cluster answer, and what a leader answers to hand-made markers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafka.protocol.consumer import OffsetFetchRequest, OffsetFetchResponse
from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse
from kafka.protocol.producer.transaction import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.wire import TRANSACTION_COORDINATOR, TopicPartition
from simulated.answering import Handler, attempt
from simulated.coordinators import Committed
from simulated.faults import Fault
from simulated.partition_log import Refused

if TYPE_CHECKING:
    from simulated.cluster import SimulatedCluster

#: With transaction version 2 the group coordinator adds the group, and the end raises the epoch.
_SECOND_COMMIT_VERSION, _SECOND_END_VERSION = 5, 5


class TransactionHandlers:
    """Answers requests to coordinators."""

    def __init__(self, cluster: SimulatedCluster, broker_id: int) -> None:
        self._cluster = cluster
        self._id = broker_id
        self.by_api: dict[Any, Handler] = {
            FindCoordinatorRequest: self._find_coordinator,
            InitProducerIdRequest: self._init_producer,
            AddPartitionsToTxnRequest: self._add_partitions,
            AddOffsetsToTxnRequest: self._add_offsets,
            TxnOffsetCommitRequest: self._commit_offsets,
            EndTxnRequest: self._end_transaction,
            WriteTxnMarkersRequest: self._write_markers,
            OffsetFetchRequest: self._fetch_offsets,
        }

    def _find_coordinator(self, request: Any, fault: Fault | None) -> FindCoordinatorResponse:
        def check() -> None:
            is_id = request.key_type == TRANSACTION_COORDINATOR
            if is_id and request.key.startswith(self._cluster.forbidden_ids or ("\0",)):
                raise Refused(error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)

        code, _ = attempt(fault, "", check)
        return FindCoordinatorResponse(
            error_code=code, error_message="", node_id=0, host="127.0.0.1", port=self._cluster.servers[0].port
        )

    def _init_producer(self, request: Any, fault: Fault | None) -> InitProducerIdResponse:
        code, found = attempt(fault, "", lambda: self._cluster.coordinators.init(request.transactional_id))
        producer_id, epoch = found or (-1, -1)
        return InitProducerIdResponse(error_code=code, producer_id=producer_id, producer_epoch=epoch)

    def _add_partitions(self, request: Any, fault: Fault | None) -> AddPartitionsToTxnResponse:
        kind = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
        keys = [(topic.name, number) for topic in request.v3_and_below_topics for number in topic.partitions]
        codes: dict[TopicPartition, int] = {}
        for key in keys:
            codes[key], _ = attempt(fault, key[0], lambda k=key: self._cluster.log(k))
        if any(codes.values()):
            # All or nothing.
            codes = {key: code or error_codes.OPERATION_NOT_ATTEMPTED for key, code in codes.items()}
        else:
            code, _ = attempt(
                None,
                "",
                lambda: self._cluster.coordinators.add_partitions(
                    request.v3_and_below_transactional_id,
                    request.v3_and_below_producer_id,
                    request.v3_and_below_producer_epoch,
                    set(keys),
                ),
            )
            codes = dict.fromkeys(keys, code)
        topics = [
            kind(
                name=topic.name,
                results_by_partition=[
                    kind.AddPartitionsToTxnPartitionResult(
                        partition_index=number, partition_error_code=codes[(topic.name, number)]
                    )
                    for number in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)

    def _add_offsets(self, request: Any, fault: Fault | None) -> AddOffsetsToTxnResponse:
        code, _ = attempt(
            fault,
            "",
            lambda: self._cluster.coordinators.add_group(
                request.transactional_id, request.producer_id, request.producer_epoch, request.group_id
            ),
        )
        return AddOffsetsToTxnResponse(error_code=code)

    def _commit_offsets(self, request: Any, fault: Fault | None) -> TxnOffsetCommitResponse:
        kind = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
        topics = []
        for topic in request.topics:
            parts = []
            for item in topic.partitions:
                key = (topic.name, item.partition_index)
                value = Committed(item.committed_offset, item.committed_metadata or "")
                code, _ = attempt(fault, topic.name, lambda k=key, v=value: self._commit_offset(request, k, v))
                parts.append(
                    kind.TxnOffsetCommitResponsePartition(partition_index=item.partition_index, error_code=code)
                )
            topics.append(kind(name=topic.name, partitions=parts))
        return TxnOffsetCommitResponse(topics=topics)

    def _commit_offset(self, request: Any, key: TopicPartition, value: Committed) -> None:
        coordinators = self._cluster.coordinators
        writer = (request.transactional_id, request.producer_id, request.producer_epoch, request.group_id)
        if request.header.request_api_version >= _SECOND_COMMIT_VERSION:
            coordinators.add_group(*writer)
        coordinators.commit_offset(*writer, key, value)

    def _end_transaction(self, request: Any, fault: Fault | None) -> EndTxnResponse:
        code, found = attempt(
            fault,
            "",
            lambda: self._cluster.coordinators.end(
                request.transactional_id,
                request.producer_id,
                request.producer_epoch,
                commit=request.committed,
                is_second=request.header.request_api_version >= _SECOND_END_VERSION,
            ),
        )
        producer_id, epoch = found or (-1, -1)
        return EndTxnResponse(error_code=code, producer_id=producer_id, producer_epoch=epoch)

    def _write_markers(self, request: Any, fault: Fault | None) -> WriteTxnMarkersResponse:
        kind = WriteTxnMarkersResponse.WritableTxnMarkerResult
        # A broker answers all markers of one producer id in one entry.
        codes: dict[int, dict[TopicPartition, int]] = {}
        for marker in request.markers:
            for topic in marker.topics:
                for number in topic.partition_indexes:
                    key = (topic.name, number)
                    code, _ = attempt(fault, topic.name, lambda m=marker, k=key: self._write_marker(m, k))
                    codes.setdefault(marker.producer_id, {})[key] = code
        markers = []
        for producer_id, found in codes.items():
            names = sorted({topic for topic, _ in found})
            topics = [
                kind.WritableTxnMarkerTopicResult(
                    name=name,
                    partitions=[
                        kind.WritableTxnMarkerTopicResult.WritableTxnMarkerPartitionResult(
                            partition_index=number, error_code=code
                        )
                        for (topic, number), code in sorted(found.items())
                        if topic == name
                    ],
                )
                for name in names
            ]
            markers.append(kind(producer_id=producer_id, topics=topics))
        return WriteTxnMarkersResponse(markers=markers)

    def _write_marker(self, marker: Any, key: TopicPartition) -> None:
        if not self._cluster.writes_markers:
            raise Refused(error_codes.CLUSTER_AUTHORIZATION_FAILED)
        self._cluster.led_log(key, self._id).write_marker(
            marker.producer_id,
            marker.producer_epoch,
            commit=marker.transaction_result,
            coordinator_epoch=marker.coordinator_epoch,
        )

    def _fetch_offsets(self, request: Any, fault: Fault | None) -> OffsetFetchResponse:
        kind = OffsetFetchResponse.OffsetFetchResponseTopic
        coordinators = self._cluster.coordinators
        if request.topics is None:
            keys = sorted(key for group, key in coordinators.offsets if group == request.group_id)
        else:
            keys = [(topic.name, number) for topic in request.topics for number in topic.partition_indexes]
        topics: dict[str, Any] = {}
        for key in keys:
            code = error_codes.UNSTABLE_OFFSET_COMMIT if coordinators.is_unstable(request.group_id, key) else 0
            if fault is not None and fault.kind == "code" and fault.concerns(key[0]):
                code = fault.code
            found = None if code else coordinators.offsets.get((request.group_id, key))
            topic = topics.setdefault(key[0], kind(name=key[0], partitions=[]))
            topic.partitions.append(
                kind.OffsetFetchResponsePartition(
                    partition_index=key[1],
                    committed_offset=-1 if found is None else found.offset,
                    committed_leader_epoch=-1,
                    metadata="" if found is None else found.metadata,
                    error_code=code,
                )
            )
        return OffsetFetchResponse(topics=list(topics.values()), error_code=0)
