"""A place in one side's log: whole batches as long as nobody needs their records, then columns of records."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from airflow_provider_kafka_migration.errors import BatchMalformed
from airflow_provider_kafka_migration.kafka.batches import batch_columns
from airflow_provider_kafka_migration.kafka.batches.api import (
    AnyBatch,
    LegacyBatch,
    RawBatch,
    Record,
    Timestamps,
    decode_body,
    encode_body,
)
from airflow_provider_kafka_migration.kafka.batches.batch_columns import Columns


def decode(columns: Columns, index: int) -> Record:
    """A record of some columns.

    :raises BatchMalformed: a body that cannot be read.
    """
    body = columns.bodies[index]
    try:
        key, value, headers = decode_body(body, 0, len(body))
    except IndexError:
        raise BatchMalformed("a record ends behind its batch") from None
    return Record(columns.offsets[index], columns.times[index], key, value, headers)


def key_of_body(body: bytes) -> bytes | None:
    """The key of a record, without a look at the rest of it; None without one."""
    shift = length = position = 0
    while True:
        byte = body[position]
        position += 1
        length |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
    size = length >> 1 ^ -(length & 1)
    return None if size < 0 else body[position : position + size]


def read_columns(batch: AnyBatch, timestamps: Timestamps) -> Columns:
    """All records of a batch.

    :raises BatchMalformed: damaged data, a wrong CRC included.
    """
    if isinstance(batch, RawBatch):
        return batch_columns.read_columns(batch, timestamps)
    batch.check_crc()
    found = list(batch.records(timestamps))
    return Columns(
        [record.offset for record in found],
        [record.timestamp for record in found],
        [encode_body(record.key, record.value, record.headers) for record in found],
    )


class Cursor:
    """Walks over batches and decodes one only when asked for its records. Holds one batch at a time.

    :param start_offset: records below it are left out, and those at or above ``stop_offset``.
    :param timestamps: ``visible`` what readers see, ``raw`` what producers have written.
    :param on_unreadable: told of a batch that is damaged; its records are left out.
    """

    def __init__(
        self,
        batches: Iterator[AnyBatch],
        start_offset: int,
        stop_offset: int,
        timestamps: Timestamps,
        on_unreadable: Callable[[AnyBatch, BatchMalformed], None],
    ) -> None:
        self._batches = batches
        self._start = start_offset
        self._stop = stop_offset
        self._timestamps: Timestamps = timestamps
        self._on_unreadable = on_unreadable
        #: the batch ahead, as long as it is whole
        self.batch: RawBatch | None = None
        #: the records ahead, once their batch was decoded; the first one is at ``at``
        self.columns: Columns | None = None
        self.at = 0
        #: records that were walked over
        self.record_count = 0
        #: batches that were decoded
        self.decoded_batches = 0
        self._load()

    def _load(self) -> None:
        """Take the next batch; decode it at once if its header does not tell where it begins."""
        self.batch, self.columns, self.at = None, None, 0
        for batch in self._batches:
            if isinstance(batch, LegacyBatch):
                if self._decode(batch):
                    return
            elif batch.base_offset < self._stop and batch.next_offset > self._start:
                self.batch = batch
                return

    @property
    def low(self) -> int | None:
        """No record ahead has a lower offset; None at the end."""
        if self.columns is not None:
            return self.columns.offsets[self.at]
        return None if self.batch is None else max(self.batch.base_offset, self._start)

    @property
    def is_whole(self) -> bool:
        """The batch ahead lies in the range with all of its records."""
        batch = self.batch
        return batch is not None and batch.base_offset >= self._start and batch.last_offset < self._stop

    def skip_batch(self) -> None:
        """Walk over the whole batch ahead."""
        assert self.batch is not None
        self.record_count += self.batch.record_count
        self._load()

    def open(self) -> Columns | None:
        """The records ahead, from ``at`` on; None at the end, or after a batch that had nothing for us."""
        if self.batch is not None:
            batch, self.batch = self.batch, None
            if not self._decode(batch):
                self._load()
                return None
        return self.columns

    def skip(self, count: int = 1) -> None:
        """Walk over records that :meth:`open` gave."""
        assert self.columns is not None
        self.record_count += count
        self.at += count
        if self.at >= len(self.columns.offsets):
            self._load()

    def _decode(self, batch: AnyBatch) -> bool:
        """Read the records of a batch; False if it has none for us."""
        self.decoded_batches += 1
        try:
            columns = read_columns(batch, self._timestamps)
        except BatchMalformed as error:
            self._on_unreadable(batch, error)
            return False
        offsets = columns.offsets
        if not offsets:
            return False
        if offsets[0] < self._start or offsets[-1] >= self._stop:
            first = sum(offset < self._start for offset in offsets)
            columns = columns.slice(first, len(offsets) - sum(offset >= self._stop for offset in offsets))
        if not columns.offsets:
            return False
        self.columns, self.at = columns, 0
        return True
