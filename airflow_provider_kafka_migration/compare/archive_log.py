"""A partition as it lies in the archive, for the comparison of contents: nothing of it can be compacted or deleted."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_kafka_migration.copy.archive import SegmentIndex
from airflow_provider_kafka_migration.copy.transform import AbortedTransactions
from airflow_provider_kafka_migration.errors import SegmentTampered, Where
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, LegacyBatch, read_batches


class ArchiveLog:
    """See :class:`~.content_log.CommittedLog`.

    :param start_offset: where the archive begins.
    """

    def __init__(self, index: SegmentIndex, start_offset: int) -> None:
        self._index = index
        self._start_offset = start_offset
        self.read_bytes = 0
        #: nothing is deleted from an archive; a gap in it is an error
        self.skipped: list[tuple[int, int]] = []

    def batches(self, start_offset: int, stop_offset: int) -> Iterator[AnyBatch]:
        """Committed data batches that overlap the stretch, ascending.

        :raises SegmentTampered: a segment is torn, altered or missing.
        """
        position = max(start_offset, self._start_offset)
        while position < stop_offset:
            entry = self._index.find(position)
            if entry is None:
                raise SegmentTampered(
                    f"no segment covers offset {position}, though the archive was to reach {stop_offset}",
                    where=Where(topic=self._index.topic, partition=self._index.partition, offset=position),
                    next_step="restore the object from a version of the bucket, or run the backup again",
                )
            chunk = self._index.read(entry)
            self.read_bytes += len(chunk.batches)
            aborted = AbortedTransactions(chunk.aborted)
            for batch in read_batches(chunk.batches)[0]:
                dropped = not isinstance(batch, LegacyBatch) and aborted.drops(batch)
                if batch.next_offset <= position or dropped or batch.is_control:
                    continue
                if isinstance(batch, LegacyBatch) or batch.record_count:
                    yield batch
            position = chunk.until_offset

    def log_start_offset(self) -> int:
        """Where the archive begins."""
        return self._start_offset

    def last_stable_offset(self) -> int:
        """How far the archive reaches without a gap."""
        return self._index.until_offset(self._start_offset)
