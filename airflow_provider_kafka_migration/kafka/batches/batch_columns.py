"""The records of a batch as columns: one list per field, for work that does not look at keys and values."""

from __future__ import annotations

from typing import NamedTuple

from airflow_provider_kafka_migration.kafka.batches.header import RawBatch
from airflow_provider_kafka_migration.kafka.batches.records import (
    Timestamps,
    index_records,
    record_offsets,
    record_times,
)


class Columns(NamedTuple):
    """Records: equal lists, compared as such at the speed of C.

    A body is key, value and headers as they are encoded in a batch.
    """

    offsets: list[int]
    times: list[int]
    bodies: list[bytes]

    def slice(self, first: int, stop: int) -> Columns:
        """Records ``first`` to ``stop - 1``."""
        return Columns(self.offsets[first:stop], self.times[first:stop], self.bodies[first:stop])


def read_columns(batch: RawBatch, timestamps: Timestamps) -> Columns:
    """All records of a batch.

    :raises BatchMalformed: damaged data, a wrong CRC included.
    """
    batch.check_crc()
    index = index_records(batch)
    buffer = index.buffer
    bodies = [buffer[first:stop] for first, stop in zip(index.bodies, index.ends, strict=True)]
    return Columns(record_offsets(batch, index), record_times(batch, index, timestamps), bodies)
