"""Transactions and producers: what holds a last stable offset back, and which producers wrote to a partition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kafka.protocol.admin import DescribeProducersRequest, DescribeTransactionsRequest, ListTransactionsRequest

from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError, WireAdmin, batches, item_error

API_LIST_TRANSACTIONS = 66
API_DESCRIBE_PRODUCERS = 61
TRANSACTION_COORDINATOR = 1
#: States in which a transaction holds the last stable offset back.
OPEN_STATES = ("Ongoing", "PrepareAbort", "PrepareCommit", "PrepareEpochFence")


@dataclass(frozen=True)
class TransactionFacts:
    """A transaction as its coordinator knows it; ``partitions`` and times are known only after describing it."""

    transactional_id: str
    producer_id: int
    state: str
    broker: int
    partitions: tuple[tuple[str, int], ...] = ()
    start_time_ms: int = -1
    timeout_ms: int = -1
    error: ItemError | None = None

    @property
    def is_open(self) -> bool:
        """Whether the transaction has not ended yet."""
        return self.state in OPEN_STATES


@dataclass(frozen=True)
class ProducerState:
    """A producer that a partition leader remembers. ``transaction_start`` is -1 without an open transaction."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start: int


@dataclass(frozen=True)
class PartitionProducers:
    """Producers of one partition, ascending by id, or the error (needs READ on the topic)."""

    producers: tuple[ProducerState, ...] = ()
    error: ItemError | None = None


class TransactionsAdmin(WireAdmin):
    """List and describe transactions, describe producers."""

    def list_transactions(
        self, states: Sequence[str] = (), producer_ids: Iterable[int] = ()
    ) -> list[TransactionFacts] | None:
        """List the transactions of all coordinators; ``None`` before 3.0, where brokers cannot list them.

        :param producer_ids: only those of these producers; empty: of all.

        Brokers silently leave out transactional ids that this principal may not describe. An empty list therefore
        proves nothing; last stable offset = high watermark does.
        """
        if self.api_version(API_LIST_TRANSACTIONS) < 0:
            return None
        found: dict[str, TransactionFacts] = {}
        wanted = sorted(set(producer_ids))
        self.wire.metadata([])  # a broker that has joined since coordinates transactions, too
        for broker in self.wire.brokers():
            response = self._list_transactions_on(broker.broker_id, states, wanted)
            for item in response.transaction_states:
                facts = TransactionFacts(
                    item.transactional_id, item.producer_id, item.transaction_state, broker.broker_id
                )
                found[item.transactional_id] = facts
        return [found[name] for name in sorted(found)]

    def _list_transactions_on(self, broker_id: int, states: Sequence[str], producer_ids: Sequence[int]) -> Any:
        request_type = ListTransactionsRequest

        def attempt() -> Any:
            request = request_type(state_filters=list(states), producer_id_filters=list(producer_ids))
            response = self.wire.request(request, broker_id=broker_id)
            self.check(response.error_code, None, "transactions cannot be listed", broker=str(broker_id))
            return response

        return self.wire.retrying(attempt)

    def open_transactions(self) -> list[TransactionFacts] | None:
        """List transactions that have not ended, with their partitions; :meth:`list_transactions` names the limits."""
        listed = self.list_transactions(OPEN_STATES[:3])
        if listed is None:
            return None
        return sorted(self.describe_transactions(listed), key=lambda item: item.transactional_id)

    def describe_transactions(self, listed: Iterable[TransactionFacts]) -> list[TransactionFacts]:
        """Ask the coordinators of listed transactions for their partitions and times."""
        by_broker: dict[int, list[str]] = defaultdict(list)
        for item in listed:
            by_broker[item.broker].append(item.transactional_id)
        found: list[TransactionFacts] = []
        for broker, names in sorted(by_broker.items()):
            for batch in batches(names):
                response = self.wire.request(DescribeTransactionsRequest(transactional_ids=batch), broker_id=broker)
                found.extend(_transaction(item, broker) for item in response.transaction_states)
        return found

    def producers(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], PartitionProducers]:
        """Read producer states of partitions from their leaders (DescribeProducers, 2.8+); needs Read on the topics.

        Errors per partition are data. Without the api the result is empty.
        """
        if self.api_version(API_DESCRIBE_PRODUCERS) < 0:
            return {}
        found: dict[tuple[str, int], PartitionProducers] = {}

        def send(batch: list[tuple[str, int]]) -> dict[tuple[str, int], ItemError | None]:
            leaders = self.wire.leaders(batch)
            by_broker: dict[int, list[tuple[str, int]]] = defaultdict(list)
            for key in batch:
                by_broker[leaders[key]].append(key)
            for broker, keys in sorted(by_broker.items()):
                response = self.wire.request(_producers_request(keys), broker_id=broker)
                for topic in response.topics:
                    for item in topic.partitions:
                        found[topic.name, item.partition_index] = _producers(item)
            self.wire.forget_leaders(key for key in batch if key in found and found[key].error is not None)
            return {key: found[key].error for key in batch if key in found}

        self.in_batches(sorted(set(partitions)), send, size=1000)
        return dict(sorted(found.items()))


def _transaction(item: Any, broker: int) -> TransactionFacts:
    partitions = tuple(sorted((topic.topic, number) for topic in item.topics for number in topic.partitions))
    return TransactionFacts(
        item.transactional_id,
        item.producer_id,
        item.transaction_state,
        broker,
        partitions,
        item.transaction_start_time_ms,
        item.transaction_timeout_ms,
        item_error(item.error_code),
    )


def _producers_request(keys: Iterable[tuple[str, int]]) -> Any:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, partition in keys:
        by_topic[topic].append(partition)
    return DescribeProducersRequest(
        topics=[
            DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=numbers)
            for topic, numbers in sorted(by_topic.items())
        ]
    )


def _producers(item: Any) -> PartitionProducers:
    error = item_error(item.error_code, item.error_message)
    if error is not None:
        return PartitionProducers(error=error)
    states = (
        ProducerState(
            state.producer_id,
            state.producer_epoch,
            state.last_sequence,
            state.last_timestamp,
            state.coordinator_epoch,
            state.current_txn_start_offset,
        )
        for state in item.active_producers
    )
    return PartitionProducers(tuple(sorted(states, key=lambda state: state.producer_id)))
