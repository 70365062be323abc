"""The content check on a partition that others write to: whose records are ours.

A batch is looked at if a producer id of ours has written it, or if the map says that our records lie in it. So a record
of ours that is there twice, outside of what the map names, is found; so is a record of somebody else in a place that
the map claims. All other batches are of others, and none of our business.
"""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_kafka_migration.compare.content_log import CommittedLog
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, RawBatch
from airflow_provider_kafka_migration.offset_map.transactional import TransactionalMap


class OurLog:
    """What of a committed log concerns us; see :class:`~.content_log.CommittedLog`.

    :param log: everything that is committed.
    :param offset_map: where our records are, and under which producer ids they were written.
    """

    def __init__(self, log: CommittedLog, offset_map: TransactionalMap) -> None:
        self._log = log
        self._map = offset_map
        #: records of others that were passed over
        self.foreign_records = 0

    @property
    def read_bytes(self) -> int:
        """Batch bytes that were read, those of others included."""
        return self._log.read_bytes

    @property
    def skipped(self) -> list[tuple[int, int]]:
        """Ranges that lay below the log start when their turn came."""
        return self._log.skipped

    def batches(self, start_offset: int, stop_offset: int) -> Iterator[AnyBatch]:
        """Our committed batches that overlap the range, ascending."""
        for batch in self._log.batches(start_offset, stop_offset):
            if self._is_ours(batch):
                yield batch
            else:
                self.foreign_records += batch.record_count if isinstance(batch, RawBatch) else 1

    def _is_ours(self, batch: AnyBatch) -> bool:
        if not isinstance(batch, RawBatch):
            return self._map.covers(batch.last_offset)
        return batch.producer_id in self._map.producer_ids or self._map.overlaps(batch.base_offset, batch.next_offset)

    def log_start_offset(self) -> int:
        """The present log start."""
        return self._log.log_start_offset()

    def last_stable_offset(self) -> int:
        """The present end of what is committed."""
        return self._log.last_stable_offset()
