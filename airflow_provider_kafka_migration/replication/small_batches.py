"""Gathers small batches that follow on each other, so that each doesn't become an append of its own."""

from __future__ import annotations

from airflow_provider_kafka_migration.kafka.batches import RawBatch

#: Larger batches, and those of more records, are cheaper to forward than to read.
SMALL_BATCH_BYTES = 4 * 1024
SMALL_BATCH_RECORDS = 16
JOINED_BATCH_BYTES = 64 * 1024


class SmallBatches:
    """Full batches of CreateTime that are to become one.

    Nothing is waited for: what a fetch has brought is joined, so a record that comes alone goes alone.

    :param limit_bytes: of one batch at the target; None: none that is known.
    """

    __slots__ = ("_batches", "_bytes", "_codec", "_limit_bytes", "_next_offset")

    def __init__(self, limit_bytes: int | None) -> None:
        self._limit_bytes = JOINED_BATCH_BYTES if limit_bytes is None else min(JOINED_BATCH_BYTES, limit_bytes)
        self._batches: list[RawBatch] = []
        self._bytes = 0
        self._codec = 0
        self._next_offset = 0

    def takes(self, batch: RawBatch) -> bool:
        """Whether a batch is better joined than forwarded."""
        return (
            batch.size_bytes <= SMALL_BATCH_BYTES
            and batch.record_count <= SMALL_BATCH_RECORDS
            and batch.record_count == batch.last_offset_delta + 1
            and batch.size_bytes <= self._limit_bytes
            and not batch.is_log_append_time
        )

    def has_room_for(self, batch: RawBatch) -> bool:
        """Whether a batch that follows can go with what is there."""
        return not self._batches or (
            self._next_offset == batch.base_offset
            and self._codec == batch.codec
            and self._bytes + batch.size_bytes <= self._limit_bytes
        )

    def add(self, batch: RawBatch) -> None:
        """Take a batch for which there is room."""
        self._batches.append(batch)
        self._bytes += batch.size_bytes
        self._codec = batch.codec
        self._next_offset = batch.next_offset

    def take(self) -> list[RawBatch]:
        """What is there; nothing is, afterwards."""
        taken, self._batches, self._bytes = self._batches, [], 0
        return taken
