"""The fence without the right to write markers: the transaction coordinator writes them.

A producer id that was taken with a transactional id can be fenced by it: InitProducerId gives the next epoch, and an
aborted transaction without records leaves a marker of that epoch in each of its partitions. It needs Write on the
transactional id and on the topics, and no right on the cluster. A transaction of any *other* transactional id writes
markers of its own producer id and fences nothing; InitProducerId alone fences nothing either, since the leaders of the
partitions hear of the new epoch by the marker only.

Coordinators forget a transactional id that was not used for ``transactional.id.expiration.ms`` (7 days by default), and
give a new producer id then. So it is renewed while the migration runs; a forgotten one is an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from kafka.protocol.producer.transaction import AddPartitionsToTxnRequest, EndTxnRequest

from airflow_provider_kafka_migration.errors import MigrationError, Terminal, Transient, Where
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.admin.base import batches
from airflow_provider_kafka_migration.kafka.wire import TRANSACTION_COORDINATOR, TopicPartition, Wire, by_topic

_T = TypeVar("_T")

#: The last versions that are not flexible; all of 0.11 to 4.x have them.
_ADD_VERSION = 2
_END_VERSION = 2
_PARTITIONS_PER_TRANSACTION = 500
_MARKER_PAUSE_SECONDS = 0.05
#: Errors of the transaction, which are told of each of its partitions: its last markers are not written yet, the
#: coordinator moves, somebody else has taken the id over, or it may not be used.
_OF_ALL = frozenset(
    {
        error_codes.CONCURRENT_TRANSACTIONS,
        error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        *error_codes.COORDINATOR_MOVED,
        *error_codes.FENCED,
    }
)


class _TakenOver(Transient):
    """A newer epoch of the transactional id is in force."""


class TransactionFence:
    """Fences a producer id by its transactional id.

    :param producer_id: the one that is to be fenced; another one behind the transactional id fences nothing.
    :param deadline: moment of the monotonic clock after which nothing is tried again.
    """

    def __init__(self, wire: Wire, transactional_id: str, producer_id: int, *, deadline: float) -> None:
        self._wire = wire
        self._transactional_id = transactional_id
        self._producer_id = producer_id
        self._epoch = -1
        self._deadline = deadline

    def begin(self) -> None:
        """Take the id over. When it returns, all markers of its former transactions are written.

        :raises Terminal: the right is missing, or the coordinator has forgotten the id.
        """
        producer_id, self._epoch = self._wire.init_producer_id(self._transactional_id)
        if producer_id != self._producer_id:
            raise Terminal(
                f"the target has forgotten the transactional id {self._transactional_id}, so it cannot fence producer "
                f"id {self._producer_id} any more",
                where=Where(cluster=self._wire.config.name),
                next_step="grant Alter (before Kafka 3.8: ClusterAction) on the target cluster, which fences without "
                "it; or make sure that no copier of the migration is left",
            )

    def write(self, keys: Sequence[TopicPartition]) -> dict[TopicPartition, MigrationError]:
        """Leave a marker in each partition; those that the coordinator refused, with the reason.

        Markers are written after the last answer: :meth:`begin` waits for them.

        :raises Transient: also if another process has renewed the id since: to be begun again.
        :raises MigrationError: what stands in the way of all of them.
        """
        refused: dict[TopicPartition, MigrationError] = {}
        for batch in batches(sorted(keys), _PARTITIONS_PER_TRANSACTION):
            codes = self._add(batch)
            if codes:
                # Nothing was added: the others are tried again without them.
                refused.update({key: self._refusal(key, code) for key, code in codes.items()})
                batch = [key for key in batch if key not in codes]
                codes = self._add(batch) if batch else {}
                refused.update({key: self._refusal(key, code) for key, code in codes.items()})
            if batch and not codes:
                self._end()
        return refused

    def _add(self, keys: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """AddPartitionsToTxn; error codes of single partitions. With one of them nothing is added."""
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._transactional_id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[topic(name=name, partitions=numbers) for name, numbers in by_topic(keys)],
        )

        def attempt() -> dict[TopicPartition, int]:
            answer = self._wire.request(request, self._coordinator(), version=_ADD_VERSION)
            codes = {
                (item.name, part.partition_index): int(part.partition_error_code)
                for item in answer.results_by_topic_v3_and_below
                for part in item.results_by_partition
                if part.partition_error_code not in (error_codes.NONE, error_codes.OPERATION_NOT_ATTEMPTED)
            }
            for code in sorted(set(codes.values()) & _OF_ALL):
                raise self._error(code)
            return codes

        return self._retried(attempt)

    def _end(self) -> None:
        request = EndTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            committed=False,
        )

        def attempt() -> None:
            code = int(self._wire.request(request, self._coordinator(), version=_END_VERSION).error_code)
            if code:
                raise self._error(code)

        self._retried(attempt)

    def _retried(self, attempt: Callable[[], _T]) -> _T:
        while True:
            try:
                return attempt()
            except _TakenOver:
                raise
            except Transient:
                if time.monotonic() + _MARKER_PAUSE_SECONDS >= self._deadline:
                    raise
            time.sleep(_MARKER_PAUSE_SECONDS)

    def _coordinator(self) -> int:
        return self._wire.coordinator(self._transactional_id, TRANSACTION_COORDINATOR)

    def _error(self, code: int) -> MigrationError:
        if code in error_codes.FENCED:
            return _TakenOver(
                "another process of the migration has renewed the transactional id that fences its producer",
                where=Where(cluster=self._wire.config.name),
                next_step="none: the id is taken over again",
            )
        return error_codes.error_for(
            code,
            "the transaction that fences the migration's producer was refused",
            where=Where(cluster=self._wire.config.name),
            needs=f"Write on TransactionalId {self._transactional_id}",
        )

    def _refusal(self, key: TopicPartition, code: int) -> MigrationError:
        where = Where(cluster=self._wire.config.name, topic=key[0], partition=key[1])
        return error_codes.error_for(
            code, "no transaction that fences the migration's producer takes the partition", where=where, needs="Write"
        )
