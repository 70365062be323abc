"""A simulated broker: which requests it knows, what its faults do to them, and what it tells of topics."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest, MetadataResponse

from airflow_provider_kafka_migration.kafka import error_codes
from simulated.answering import Handler
from simulated.faults import Fault
from simulated.log_handlers import LogHandlers
from simulated.transaction_handlers import TransactionHandlers

if TYPE_CHECKING:
    from simulated.cluster import SimulatedCluster, Topic

#: by api key: lowest and highest version of Kafka 4.1, as far as it is simulated
API_VERSIONS = {
    0: (3, 12), 1: (4, 11), 2: (1, 8), 3: (0, 12), 9: (1, 7), 10: (0, 3), 18: (0, 4), 21: (0, 2), 22: (0, 4),
    23: (2, 4), 24: (0, 3), 25: (0, 4), 26: (0, 5), 27: (1, 1), 28: (0, 5), 61: (0, 0),
}  # fmt: skip


class Drop(Exception):
    """The connection is closed without an answer."""


class Broker:
    """One broker of a simulated cluster."""

    def __init__(self, cluster: SimulatedCluster, broker_id: int) -> None:
        self._cluster = cluster
        found: dict[Any, Handler] = {
            MetadataRequest: self._metadata,
            **LogHandlers(cluster, broker_id).by_api,
            **TransactionHandlers(cluster, broker_id).by_api,
        }
        self._handlers = {kind.API_KEY: (kind, handler) for kind, handler in found.items()}

    def answer(self, frame: bytes) -> bytes:
        """Handle one request and return the frame of its answer.

        :raises Drop: a fault closes the connection.
        """
        api, version, correlation = struct.unpack_from(">hhi", frame)
        if api == ApiVersionsRequest.API_KEY:
            return self._encoded(self._api_versions(), version, correlation)
        cluster = self._cluster
        with cluster.changed:
            cluster.coordinators.tick()
            fault = cluster.fault_of(api)
            kind = fault.kind if fault is not None else None
            if kind == "drop_before":
                self._count(api)
                raise Drop
            kind_of_request, handler = self._handlers[api]
            response = handler(kind_of_request.decode(frame, version=version, header=True), fault)
            if fault is not None and kind == "delay":
                cluster.changed.wait_for(lambda: cluster.in_hurry, fault.seconds)
            if fault is not None and kind == "throttle":
                response.throttle_time_ms = int(fault.seconds * 1000)
            if fault is not None and kind == "act":
                fault.action()
            self._count(api)
        if kind == "drop_after":
            raise Drop
        return self._encoded(response, version, correlation)

    def _count(self, api: int) -> None:
        self._cluster.handled += 1
        self._cluster.requests.append(api)
        self._cluster.changed.notify_all()

    @staticmethod
    def _encoded(response: Any, version: int, correlation: int) -> bytes:
        response.API_VERSION = version
        response.with_header(correlation_id=correlation)
        return bytes(response.encode(header=True))

    def _api_versions(self) -> ApiVersionsResponse:
        feature = ApiVersionsResponse.FinalizedFeatureKey(
            name="transaction.version",
            max_version_level=self._cluster.transaction_version,
            min_version_level=self._cluster.transaction_version,
        )
        keys = [
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in API_VERSIONS.items()
            if key in self._cluster.api_keys
        ]
        return ApiVersionsResponse(
            error_code=0, api_keys=keys, finalized_features_epoch=1, finalized_features=[feature]
        )

    def _metadata(self, request: Any, fault: Fault | None) -> MetadataResponse:
        cluster = self._cluster
        names = sorted(cluster.topics) if request.topics is None else [topic.name for topic in request.topics]
        return MetadataResponse(
            brokers=[
                MetadataResponse.MetadataResponseBroker(node_id=number, host="127.0.0.1", port=server.port, rack=None)
                for number, server in enumerate(cluster.servers)
            ],
            cluster_id=cluster.name,
            controller_id=0,
            topics=[self._topic(name, cluster.topics.get(name), fault) for name in names],
        )

    @staticmethod
    def _topic(name: str, topic: Topic | None, fault: Fault | None) -> Any:
        kind = MetadataResponse.MetadataResponseTopic
        if fault is not None and fault.kind == "code" and fault.concerns(name):
            return kind(error_code=fault.code, name=name, partitions=[])
        if topic is None:
            return kind(error_code=error_codes.UNKNOWN_TOPIC_OR_PARTITION, name=name, partitions=[])
        partitions = [
            kind.MetadataResponsePartition(
                error_code=0 if leader >= 0 else error_codes.LEADER_NOT_AVAILABLE,
                partition_index=number,
                leader_id=leader,
                leader_epoch=log.leader_epoch,
                replica_nodes=[leader],
                isr_nodes=[leader],
                offline_replicas=[],
            )
            for number, (leader, log) in enumerate(zip(topic.leaders, topic.logs, strict=True))
        ]
        return kind(error_code=0, name=name, topic_id=topic.topic_id, is_internal=False, partitions=partitions)
