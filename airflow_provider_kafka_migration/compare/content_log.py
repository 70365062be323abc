"""What a consumer with isolation level read_committed sees of one partition, as batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from airflow_provider_kafka_migration.copy.transform import AbortedTransactions
from airflow_provider_kafka_migration.errors import OutsideOfLog, RecordsWithheld, Where
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, LegacyBatch
from airflow_provider_kafka_migration.kafka.logs import Span, fetch_span
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire

#: One fetch; a batch that is larger comes whole anyway. Two sides and some decoding stay well below 100 MiB.
FETCH_BYTES = 4 * 1024 * 1024


class CommittedLog(Protocol):
    """One partition of one side."""

    @property
    def read_bytes(self) -> int:
        """Batch bytes that were read."""

    @property
    def skipped(self) -> list[tuple[int, int]]:
        """Ranges that were asked for, but lay below the log start when their turn came; in the order of reading."""

    def batches(self, start_offset: int, stop_offset: int) -> Iterator[AnyBatch]:
        """Committed data batches that overlap ``[start_offset, stop_offset)``, ascending.

        Without control batches, aborted and empty ones. Begins at the log start if that is higher.

        :raises MigrationError: not all that is there can be read.
        """

    def log_start_offset(self) -> int:
        """The present log start: it may move while the log is read."""

    def last_stable_offset(self) -> int:
        """The present end of what is committed."""


class KafkaLog:
    """A partition on a live cluster.

    :param wire: used by this log only while it reads.
    """

    def __init__(self, wire: Wire, topic: str, partition: int) -> None:
        self._wire = wire
        self._key: TopicPartition = (topic, partition)
        self.read_bytes = 0
        self.skipped: list[tuple[int, int]] = []

    def batches(self, start_offset: int, stop_offset: int) -> Iterator[AnyBatch]:
        """See :class:`CommittedLog`."""
        position = max(start_offset, self.log_start_offset())
        if position > start_offset:
            self.skipped.append((start_offset, position))
        while position < stop_offset:
            span = self._fetch(position)
            if span is None:
                log_start = self.log_start_offset()
                if log_start <= position:
                    return  # the log ends below the stop offset: what the other side has there is a difference
                self.skipped.append((position, log_start))
                position = log_start  # retention or DeleteRecords went by while we read
                continue
            if span.until_offset <= position:
                self._check_not_held_back(position, stop_offset)
                return
            self.read_bytes += len(span.records)
            aborted = AbortedTransactions(span.aborted)
            for batch in span.batches:
                dropped = not isinstance(batch, LegacyBatch) and aborted.drops(batch)
                if batch.next_offset <= position or dropped or batch.is_control:
                    continue
                if isinstance(batch, LegacyBatch) or batch.record_count:
                    yield batch
            position = max(position, span.until_offset)

    def _fetch(self, position: int) -> Span | None:
        """What is at an offset; None if it is outside of the log."""
        try:
            return fetch_span(self._wire, self._key, position, max_bytes=FETCH_BYTES)
        except OutsideOfLog:
            return None

    def _check_not_held_back(self, position: int, stop_offset: int) -> None:
        """Where committed records end the log must end, too: what cannot be read is not compared, and not equal.

        :raises RecordsWithheld: an open transaction hides the rest.
        """
        high_watermark = self._wire.list_offsets([self._key], "latest")[self._key]
        if high_watermark <= position:
            return
        raise RecordsWithheld(
            f"committed records end at offset {position}, the log at {high_watermark}, and those up to {stop_offset} "
            "were to be compared",
            where=Where(cluster=self._wire.config.name, topic=self._key[0], partition=self._key[1], offset=position),
            next_step="find the open transaction (kafka-transactions.sh find-hanging) and wait for its end; then clear "
            "validate",
            details={"offset": position, "end_offset": stop_offset},
        )

    def log_start_offset(self) -> int:
        """See :class:`CommittedLog`."""
        return self._wire.list_offsets([self._key], "earliest")[self._key]

    def last_stable_offset(self) -> int:
        """See :class:`CommittedLog`."""
        return self._wire.list_offsets([self._key], "stable")[self._key]
