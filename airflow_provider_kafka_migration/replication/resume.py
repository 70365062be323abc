"""Where does the copy of a partition stand? The target's own log answers; nothing else is stored.

The rules are paid for (KIP-98's sequence numbers make them possible):

1. Wait until the high watermark has reached the log end: what a dead copier left is then there to stay.
2. The last *data* batch gives the next sequence and the source offset; it must equal the source's records there.
3. Markers behind it fill a part of the next hole; the next source record must not lie below the log end. That is
   checked when the next record is decided (``PartitionCopy.prefilled``), so it needs no extra read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from airflow_provider_kafka_migration.errors import (
    FloorViolated,
    ForeignData,
    MigrationError,
    SourceGap,
    Terminal,
    Transient,
    Where,
)
from airflow_provider_kafka_migration.kafka.batches import AnyBatch, LegacyBatch, RawBatch, Record, records
from airflow_provider_kafka_migration.kafka.fetch import READ_UNCOMMITTED
from airflow_provider_kafka_migration.kafka.wire import Wire
from airflow_provider_kafka_migration.replication.maps import LaneMaps
from airflow_provider_kafka_migration.replication.offset_map import PartitionMap
from airflow_provider_kafka_migration.replication.partition_copy import PartitionCopy, ResumePoint, advance_sequence
from airflow_provider_kafka_migration.replication.reading import fetch_many, read_span

_FIRST_WINDOW_OFFSETS = 1
_WINDOW_GROWTH = 64


@dataclass(frozen=True)
class _Ends:
    log_start_offset: int
    high_watermark: int
    log_end_offset: int


class Resumer:
    """Finds resume points, many partitions at a time.

    :param data_producer_id: the id that all copiers of the migration share.
    :param timestamps: as in the job: how times of LogAppendTime topics were copied.
    """

    def __init__(
        self, source: Wire | None, target: Wire, data_producer_id: int, timestamps: Literal["visible", "raw"]
    ) -> None:
        self._source = source
        self._target = target
        self._data_producer_id = data_producer_id
        self._timestamps: Literal["visible", "raw"] = timestamps

    def resume(
        self, copies: Sequence[PartitionCopy], lane_maps: LaneMaps
    ) -> dict[PartitionCopy, ResumePoint | MigrationError | None]:
        """Resume points; None: not yet, ask again soon; an error stops that partition only.

        :param lane_maps: taken over here, at the log ends that are found.
        :raises Transient: the target does not answer at all.
        """
        found: dict[PartitionCopy, ResumePoint | MigrationError | None] = dict.fromkeys(copies)
        ends = self._ends(copies)
        lane_maps.load([copy.spec for copy in copies], {copy.target_key: ends[copy].log_end_offset for copy in copies})
        maps = lane_maps.maps
        settled = [copy for copy in copies if ends[copy].high_watermark >= ends[copy].log_end_offset]
        batches = self._last_data_batches(settled, ends, found)
        to_check: list[tuple[PartitionCopy, RawBatch]] = []
        for copy in settled:
            if copy in found and isinstance(found[copy], MigrationError):
                continue
            batch = batches.get(copy)
            try:
                point = self._point(copy, ends[copy], batch, maps[copy.key])
            except MigrationError as error:
                found[copy] = error
                continue
            found[copy] = point
            if batch is not None:
                to_check.append((copy, batch))
        self._check_content(to_check, maps, found)
        return found

    # -- the target --------------------------------------------------------------------------------------------------

    def _ends(self, copies: Sequence[PartitionCopy]) -> dict[PartitionCopy, _Ends]:
        keys = [copy.target_key for copy in copies]
        # The log end first: a high watermark asked for later can only be further on.
        log_end = self._target.list_offsets(keys, "log_end")
        high_watermark = self._target.list_offsets(keys, "latest")
        log_start = self._target.list_offsets(keys, "earliest")
        return {
            copy: _Ends(log_start[copy.target_key], high_watermark[copy.target_key], log_end[copy.target_key])
            for copy in copies
        }

    def _last_data_batches(
        self,
        copies: Sequence[PartitionCopy],
        ends: dict[PartitionCopy, _Ends],
        found: dict[PartitionCopy, ResumePoint | MigrationError | None],
    ) -> dict[PartitionCopy, RawBatch]:
        """Last batch of ours that isn't a marker, walking back from the log end with growing windows."""
        last: dict[PartitionCopy, RawBatch] = {}
        todo = [copy for copy in copies if ends[copy].log_end_offset > ends[copy].log_start_offset]
        window = _FIRST_WINDOW_OFFSETS
        while todo:
            starts = {copy: max(ends[copy].log_start_offset, ends[copy].log_end_offset - window) for copy in todo}
            quick = fetch_many(
                self._target,
                [(copy.target_key, starts[copy]) for copy in todo],
                isolation=READ_UNCOMMITTED,
                max_bytes=1024 * 1024,
            )
            left = []
            for copy in todo:
                try:
                    batch = self._last_data(copy, starts[copy], ends[copy].log_end_offset, quick)
                except (ForeignData, SourceGap) as error:
                    found[copy] = error
                    continue
                if batch is not None:
                    last[copy] = batch
                elif starts[copy] > ends[copy].log_start_offset:
                    left.append(copy)
            todo = left
            window *= _WINDOW_GROWTH
        return last

    def _last_data(
        self,
        copy: PartitionCopy,
        start_offset: int,
        end_offset: int,
        quick: dict[tuple[str, int], list[AnyBatch]],
    ) -> RawBatch | None:
        batches = quick.get(copy.target_key, [])
        if not batches or batches[-1].next_offset < end_offset:
            batches = list(
                read_span(self._target, copy.target_key, start_offset, end_offset, isolation=READ_UNCOMMITTED)
            )
        last = None
        for batch in batches:
            if isinstance(batch, LegacyBatch) or (not batch.is_control and batch.producer_id != self._data_producer_id):
                raise self._foreign(copy, batch)
            if not batch.is_control and batch.record_count:
                last = batch
        return last

    def _foreign(self, copy: PartitionCopy, batch: AnyBatch) -> ForeignData:
        producer = batch.producer_id if isinstance(batch, RawBatch) else -1
        return ForeignData(
            f"the target holds records that this migration did not write (producer id {producer})",
            where=self._where(copy, batch.last_offset),
            next_step="find and stop the producer that writes to the target topic; then delete the topic there and "
            "start a new migration, or leave the topic out",
            details={"producer_id": producer, "target_offset": batch.last_offset},
        )

    def _where(self, copy: PartitionCopy, offset: int | None = None) -> Where:
        return Where(cluster="target", topic=copy.spec.target_topic, partition=copy.spec.partition, offset=offset)

    def _point(self, copy: PartitionCopy, ends: _Ends, batch: RawBatch | None, offset_map: PartitionMap) -> ResumePoint:
        if batch is not None:
            source_next = offset_map.source_position(batch.next_offset)
            return ResumePoint(
                source_offset=source_next,
                target_end_offset=ends.log_end_offset,
                next_sequence=advance_sequence(batch.base_sequence, batch.last_offset_delta),
                prefilled=ends.log_end_offset - batch.next_offset,
            )
        start = copy.spec.target_start_offset
        if ends.log_end_offset < start:
            raise Transient(
                f"the log end {ends.log_end_offset} is below the first offset to copy, {start}: the log start is not "
                "filled yet",
                where=self._where(copy),
                next_step="clear topology_copy, then this task",
            )
        if ends.log_start_offset > start:
            raise FloorViolated(
                f"the log start {ends.log_start_offset} is above the first copied offset {start} and nothing is left",
                where=self._where(copy),
                next_step="find what deleted records on the target (retention, DeleteRecords); delete the topic and "
                "start again",
            )
        return ResumePoint(copy.spec.source_start_offset, ends.log_end_offset, 0, ends.log_end_offset - start)

    # -- the source --------------------------------------------------------------------------------------------------

    def _check_content(
        self,
        to_check: Sequence[tuple[PartitionCopy, RawBatch]],
        maps: dict[tuple[str, int], PartitionMap],
        found: dict[PartitionCopy, ResumePoint | MigrationError | None],
    ) -> None:
        if self._source is None or not to_check:
            return
        starts = {copy: maps[copy.key].source_position(batch.base_offset + 1) - 1 for copy, batch in to_check}
        log_start = self._source.list_offsets([copy.key for copy, _ in to_check], "earliest")
        log_end = self._source.list_offsets([copy.key for copy, _ in to_check], "latest")
        checkable = []
        for copy, batch in to_check:
            if starts[copy] + batch.last_offset_delta >= log_end[copy.key]:
                found[copy] = self._beyond(copy, batch, log_end[copy.key])
            elif starts[copy] >= log_start[copy.key]:
                checkable.append((copy, batch))
            # Records that the source has deleted meanwhile can't be compared, and don't count.
        quick = fetch_many(
            self._source,
            [(copy.key, starts[copy]) for copy, _ in checkable],
            isolation=READ_UNCOMMITTED,
            max_bytes=1024 * 1024,
        )
        for copy, batch in checkable:
            until = starts[copy] + batch.last_offset_delta + 1
            batches = quick.get(copy.key, [])
            if not batches or batches[-1].next_offset < until:
                batches = list(read_span(self._source, copy.key, starts[copy], until, isolation=READ_UNCOMMITTED))
            if not self._same(batch, starts[copy], batches):
                found[copy] = self._mismatch(copy, batch, starts[copy])

    def _same(self, batch: RawBatch, source_start: int, batches: Sequence[AnyBatch]) -> bool:
        first = batches[0] if batches else None
        if (
            isinstance(first, RawBatch)
            and first.base_offset == source_start
            and first.base_timestamp == batch.base_timestamp
            and first.record_count == batch.record_count
            and first.payload == batch.payload
        ):
            return True
        shift = source_start - batch.base_offset
        mine = {record.offset + shift: record for record in records(batch)}
        for source_batch in batches:
            if isinstance(source_batch, RawBatch) and source_batch.is_control:
                continue
            for record in self._records(source_batch):
                own = mine.get(record.offset)
                if own is not None and own._replace(offset=record.offset) != record:
                    return False
        return True

    def _records(self, batch: AnyBatch) -> list[Record]:
        if isinstance(batch, LegacyBatch):
            return list(batch.records(self._timestamps))
        return list(records(batch, self._timestamps))

    def _beyond(self, copy: PartitionCopy, batch: RawBatch, source_end: int) -> Terminal:
        return ForeignData(
            f"the target's last record stands for source offset "
            f"{copy.spec.source_start_offset - copy.spec.target_start_offset + batch.last_offset}, "
            f"but the source ends at {source_end}",
            where=self._where(copy, batch.last_offset),
            next_step="the source lost records (unclean election?) or somebody wrote to the target; compare both ends",
            details={"target_offset": batch.last_offset, "source_end_offset": source_end},
        )

    def _mismatch(self, copy: PartitionCopy, batch: RawBatch, source_start: int) -> ForeignData:
        return ForeignData(
            f"the last batch on the target (offsets {batch.base_offset}..{batch.last_offset}) differs from the "
            f"source's records at {source_start}",
            where=self._where(copy, batch.base_offset),
            next_step="a hole was filled twice or somebody wrote to the target; delete the target topic and start "
            "again, or leave the topic out",
            details={"target_offset": batch.base_offset, "source_offset": source_start},
        )
