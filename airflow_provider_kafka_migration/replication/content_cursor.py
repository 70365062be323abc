"""A place in one side's log: whole batches as long as nobody needs their records, then record by record."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from airflow_provider_kafka_migration.errors import BatchMalformed
from airflow_provider_kafka_migration.kafka.batches import AnyBatch, LegacyBatch, RawBatch, Record, Timestamps, records


class Cursor:
    """Walks over batches and decodes one only when asked for a record. Holds one batch at a time.

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
        self._records: Iterator[Record] | None = None
        self._decoding: AnyBatch | None = None
        self._record: Record | None = None
        #: the batch ahead, as long as it is whole
        self.batch: RawBatch | None = None
        #: no record ahead has a lower offset; None at the end
        self.low: int | None = None
        #: records that were walked over
        self.record_count = 0
        #: batches that were decoded
        self.decoded_batches = 0
        self._load()

    def _load(self) -> None:
        """Take the next batch; decode it at once if its header does not tell where it begins."""
        while True:
            self.batch, self._records, self._record, self.low = None, None, None, None
            batch = next(self._batches, None)
            if batch is None:
                return
            if isinstance(batch, LegacyBatch):
                if self._decode(batch):
                    return
            elif batch.base_offset < self._stop and batch.next_offset > self._start:
                self.batch = batch
                self.low = max(batch.base_offset, self._start)
                return

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

    def peek(self) -> Record | None:
        """The record ahead; decodes its batch. None at the end, or after a batch that had nothing for us."""
        if self.batch is not None:
            batch, self.batch = self.batch, None
            if not self._decode(batch):
                self._load()
        return self._record

    def pop(self) -> None:
        """Walk over the record that :meth:`peek` gave."""
        self.record_count += 1
        if not self._advance():
            self._load()

    def _decode(self, batch: AnyBatch) -> bool:
        """Start with the records of a batch; False if it has none for us."""
        self.decoded_batches += 1
        self._decoding = batch
        try:
            batch.check_crc()
        except BatchMalformed as error:
            self._on_unreadable(batch, error)
            return False
        if isinstance(batch, LegacyBatch):
            self._records = batch.records(self._timestamps)
        else:
            self._records = records(batch, self._timestamps)
        return self._advance()

    def _advance(self) -> bool:
        """Go to the next record of the decoded batch; False at its end."""
        assert self._records is not None
        assert self._decoding is not None
        try:
            for record in self._records:
                if self._start <= record.offset < self._stop:
                    self._record = record
                    self.low = record.offset
                    return True
        except BatchMalformed as error:
            self._on_unreadable(self._decoding, error)
        return False
