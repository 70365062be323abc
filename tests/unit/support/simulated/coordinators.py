"""The coordinators of a simulated cluster: producer ids, transactions, committed offsets.

The rules are those of Apache Kafka's ``TransactionCoordinator`` and ``GroupMetadataManager``. Transaction version 1
adds partitions by request; version 2 (KIP-890) adds them with the first append, and each end raises the epoch. The
version of a transaction is that of its requests, as with brokers that support both.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from simulated.partition_log import PartitionLog, Refused

_MAX_EPOCH = 32_766


class Committed(NamedTuple):
    """An offset that a group has committed."""

    offset: int
    metadata: str


@dataclass
class Transaction:
    """The state of one transactional id."""

    producer_id: int
    epoch: int
    is_open: bool = False
    #: how the last transaction ended; None: none has ended under this epoch
    committed: bool | None = None
    partitions: set[TopicPartition] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    #: markers are written after this many more requests; until then the id is busy
    markers_due: int = 0
    #: (epoch of the markers, commit) that are still to be written
    ending: tuple[int, bool] | None = None


class Coordinators:
    """All coordinators of a cluster. The cluster's lock protects it.

    :param log_of: returns a partition's log, or raises :class:`Refused`.
    """

    def __init__(self, log_of: Callable[[TopicPartition], PartitionLog]) -> None:
        self._log_of = log_of
        self._ids = itertools.count(1000)
        self.transactions: dict[str, Transaction] = {}
        self.offsets: dict[tuple[str, TopicPartition], Committed] = {}
        #: by producer id: offsets that count once its transaction is committed
        self._pending: dict[int, dict[tuple[str, TopicPartition], Committed]] = {}
        #: for how many requests the markers of an ended transaction are still to come
        self.marker_delay = 0
        #: ``offset.metadata.max.bytes``
        self.max_metadata_bytes = 4096

    def tick(self) -> None:
        """Note that a request arrived; markers that were late may be due."""
        for transaction in self.transactions.values():
            if transaction.ending is not None:
                transaction.markers_due -= 1
                if transaction.markers_due <= 0:
                    self._write_markers(transaction)

    def settle(self) -> None:
        """Write all markers that are still to come."""
        for transaction in self.transactions.values():
            if transaction.ending is not None:
                self._write_markers(transaction)

    # -- producer ids ------------------------------------------------------------------------------------------------

    def init(self, transactional_id: str | None) -> tuple[int, int]:
        """InitProducerId: (producer id, epoch)."""
        if transactional_id is None:
            return next(self._ids), 0
        found = self.transactions.get(transactional_id)
        if found is None:
            found = self.transactions[transactional_id] = Transaction(next(self._ids), -1)
        if found.ending is not None:
            raise Refused(error_codes.CONCURRENT_TRANSACTIONS)
        if found.is_open:
            # The former incarnation is fenced and its transaction aborted; the caller asks again.
            found.epoch += 1
            self._end(found, commit=False)
            raise Refused(error_codes.CONCURRENT_TRANSACTIONS)
        if found.epoch >= _MAX_EPOCH:
            found.producer_id, found.epoch = next(self._ids), -1
        found.epoch += 1
        found.committed = None
        return found.producer_id, found.epoch

    def _known(self, transactional_id: str, producer_id: int, epoch: int) -> Transaction:
        found = self.transactions.get(transactional_id)
        if found is None or found.producer_id != producer_id:
            raise Refused(error_codes.INVALID_PRODUCER_ID_MAPPING)
        if found.epoch != epoch:
            raise Refused(error_codes.PRODUCER_FENCED)
        if found.ending is not None:
            raise Refused(error_codes.CONCURRENT_TRANSACTIONS)
        return found

    # -- transactions ------------------------------------------------------------------------------------------------

    def add_partitions(self, transactional_id: str, producer_id: int, epoch: int, keys: set[TopicPartition]) -> None:
        """AddPartitionsToTxn."""
        found = self._known(transactional_id, producer_id, epoch)
        found.is_open = True
        found.partitions |= keys

    def add_group(self, transactional_id: str, producer_id: int, epoch: int, group: str) -> None:
        """AddOffsetsToTxn."""
        found = self._known(transactional_id, producer_id, epoch)
        found.is_open = True
        found.groups.add(group)

    def check_append(self, transactional_id: str, key: TopicPartition) -> None:
        """Verify the partition of a transactional append (version 1)."""
        found = self.transactions.get(transactional_id)
        if found is None or not found.is_open or key not in found.partitions:
            raise Refused(error_codes.INVALID_TXN_STATE)

    def commit_offset(
        self, transactional_id: str, producer_id: int, epoch: int, group: str, key: TopicPartition, value: Committed
    ) -> None:
        """TxnOffsetCommit of one partition."""
        found = self._known(transactional_id, producer_id, epoch)
        if group not in found.groups:
            raise Refused(error_codes.INVALID_TXN_STATE)
        if len(value.metadata) > self.max_metadata_bytes:
            raise Refused(error_codes.OFFSET_METADATA_TOO_LARGE)
        self._pending.setdefault(producer_id, {})[(group, key)] = value

    def is_unstable(self, group: str, key: TopicPartition) -> bool:
        """Return whether a transaction that is not over has committed an offset of this partition."""
        return any((group, key) in waiting for waiting in self._pending.values())

    def end(
        self, transactional_id: str, producer_id: int, epoch: int, *, commit: bool, is_second: bool
    ) -> tuple[int, int]:
        """EndTxn: (producer id, epoch) for the next transaction.

        :param is_second: the request is one of transaction version 2.
        """
        found = self._known(transactional_id, producer_id, epoch)
        if not found.is_open:
            if found.committed is not commit:
                raise Refused(error_codes.INVALID_TXN_STATE)
            return found.producer_id, found.epoch  # a repeated request
        if is_second:
            found.epoch += 1
        self._end(found, commit=commit)
        return found.producer_id, found.epoch

    def _end(self, transaction: Transaction, *, commit: bool) -> None:
        transaction.is_open, transaction.committed = False, commit
        transaction.ending, transaction.markers_due = (transaction.epoch, commit), self.marker_delay
        if not self.marker_delay:
            self._write_markers(transaction)

    def _write_markers(self, transaction: Transaction) -> None:
        assert transaction.ending is not None
        epoch, commit = transaction.ending
        for key in sorted(transaction.partitions):
            self._log_of(key).write_marker(transaction.producer_id, epoch, commit=commit)
        waiting = self._pending.pop(transaction.producer_id, {})
        if commit:
            self.offsets.update(waiting)
        transaction.partitions, transaction.groups, transaction.ending = set(), set(), None
