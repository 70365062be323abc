"""Gathers small batches, so that each doesn't become an append of its own."""

from __future__ import annotations

from airflow_provider_kafka_migration.kafka.batches.api import RawBatch

#: Larger batches, and those of more records, are cheaper to forward than to read.
SMALL_BATCH_BYTES = 4 * 1024
SMALL_BATCH_RECORDS = 16
JOINED_BATCH_BYTES = 64 * 1024


class SmallBatches:
    """Batches of CreateTime that are to become one.

    Nothing is waited for: what a fetch has brought is joined, so a record that comes alone goes alone.

    :param limit_bytes: of one batch at the target; None: none that is known.
    :param packs: also batches with holes, and such that do not follow on each other: the target keeps no holes.
    """

    __slots__ = ("_batches", "_bytes", "_codec", "_limit_bytes", "_next_offset", "_packs")

    def __init__(self, limit_bytes: int | None, *, packs: bool = False) -> None:
        self._limit_bytes = JOINED_BATCH_BYTES if limit_bytes is None else min(JOINED_BATCH_BYTES, limit_bytes)
        self._packs = packs
        self._batches: list[RawBatch] = []
        self._bytes = 0
        self._codec = 0
        self._next_offset = 0

    def takes(self, batch: RawBatch) -> bool:
        """Whether a batch is better joined than sent alone."""
        if batch.size_bytes > self._limit_bytes or batch.is_log_append_time:
            return False
        if batch.record_count != batch.last_offset_delta + 1:
            return self._packs
        return batch.size_bytes <= SMALL_BATCH_BYTES and batch.record_count <= SMALL_BATCH_RECORDS

    def has_room_for(self, batch: RawBatch) -> bool:
        """Whether a batch can go with what is there."""
        return not self._batches or (
            (self._packs or self._next_offset == batch.base_offset)
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
