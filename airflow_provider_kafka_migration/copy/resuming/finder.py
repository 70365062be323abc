"""Finds the position of a partition's copy from the target's own log; no other state is stored.

The rules are learned from failures (KIP-98's sequence numbers make them possible):

1. Wait until the high watermark has reached the log end: what a dead copier left is then final.
2. The last *data* batch gives the next sequence and the source offset. The end of the log must agree with the source
   ("takeover check" below); where excess markers have displaced records, the map is corrected ("realign" below).
3. Markers behind that batch fill a part of the next hole; the next source record must not lie below the log end. The
   copier notices that when it places the next record (``OffsetLayout``), so it needs no extra read.
4. Where the target deletes records meanwhile (a mirror), that batch may be gone: see :mod:`~.copy.resuming.log_end`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_kafka_migration.copy.holes import delete_fillers_again
from airflow_provider_kafka_migration.copy.partition import (
    NotedPosition,
    PartitionCopy,
    ResumePoint,
    advance_sequence,
)
from airflow_provider_kafka_migration.copy.resuming import log_end
from airflow_provider_kafka_migration.copy.resuming.agreement import (
    Agreement,
    ReadChunk,
    agreement,
    chunks_of_cluster,
    realigned,
)
from airflow_provider_kafka_migration.copy.resuming.log_tail import LogTail, read_tails
from airflow_provider_kafka_migration.copy.rewriting import RewrittenChunks
from airflow_provider_kafka_migration.copy.source import ReadUpTo, check_not_truncated, last_epoch
from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import (
    BrokerBusy,
    FloorViolated,
    ForeignData,
    MigrationError,
    OutsideOfLog,
    Transient,
    Where,
)
from airflow_provider_kafka_migration.kafka.batches.api import (
    AnyBatch,
    LegacyBatch,
    RawBatch,
    read_batches,
)
from airflow_provider_kafka_migration.kafka.fetch import READ_COMMITTED, FetchedPartition
from airflow_provider_kafka_migration.kafka.logs import LogEnds, fetch_where_possible, read_ends
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire
from airflow_provider_kafka_migration.offset_map.runs import PartitionMap
from airflow_provider_kafka_migration.offset_map.store import LaneMaps

log = logging.getLogger(__name__)

_FIRST_WINDOW_OFFSETS = 64
_WINDOW_GROWTH = 64
#: How far back to read when the last batch alone is not conclusive, and when the map of displaced records is corrected.
_DEEPER_OFFSETS = 256
_REALIGN_OFFSETS = 100_000

#: The resume point; None: not known yet, ask again soon; or the error of the partition.
Resumed = ResumePoint | MigrationError | None
ArchiveReader = Callable[[PartitionCopy], ReadChunk | None]


@dataclass(eq=False)
class _Look:
    """One partition while its log end is examined."""

    copy: PartitionCopy
    ends: LogEnds
    map: PartitionMap
    tail: LogTail | None = None
    #: proves a position at the log end, because the last records are gone
    at_end: log_end.EndProof | None = None

    @property
    def lacks_end(self) -> bool:
        """Whether offsets are missing behind the last data batch that is left, or anywhere if none is left.

        A cleaner that removes all data batches, and leaves markers, does not move the log start.
        """
        if self.last is None and self.ends.log_start_offset > self.copy.spec.target_start_offset:
            return True
        return self.tail is not None and self.tail.lacks_end

    @property
    def last(self) -> RawBatch | None:
        """The last data batch of this migration."""
        if self.tail is None or not self.tail.batches:
            return None
        batch = self.tail.batches[-1]
        assert isinstance(batch, RawBatch)
        return batch

    @property
    def lost(self) -> NotedPosition | None:
        """The position that an earlier slice has noted, if the log ends below it: the target has lost records."""
        noted = self.copy.read.noted
        return noted if noted is not None and self.ends.log_end_offset < noted.target_offset else None

    @property
    def floor(self) -> int:
        """The offset below which this migration has written nothing that is still in the log."""
        return max(self.ends.log_start_offset, min(self.copy.spec.target_start_offset, self.ends.log_end_offset))

    @property
    def is_whole(self) -> bool:
        """Whether the tail reaches down to the very first record."""
        return self.tail is not None and self.tail.from_offset <= self.copy.spec.target_start_offset


class ResumeFinder:
    """Finds resume points, many partitions at a time.

    :param archive: returns the reader of the archive, for a restore that does not know the source.
    :param as_on_target: returns a reader of what it is given, with the schema ids that records have on the target.
    """

    def __init__(
        self,
        job: CopyJob,
        source: Wire | None,
        target: Wire,
        *,
        archive: ArchiveReader = lambda _copy: None,
        as_on_target: Callable[[PartitionCopy, ReadChunk], ReadChunk] = lambda _copy, read: read,
    ) -> None:
        self._job = job
        self._source = source
        self._target = target
        self._archive = archive
        self._as_on_target = as_on_target

    def resume(self, copies: Sequence[PartitionCopy], lane_maps: LaneMaps) -> dict[PartitionCopy, Resumed]:
        """Return the resume point of each partition, or its error, which does not stop the others.

        :param lane_maps: taken over here, at the log ends that are found.
        :raises Transient: no broker of a cluster answers, or the storage does not.
        """
        found: dict[PartitionCopy, Resumed] = dict.fromkeys(copies)
        looks = self._settled(copies, lane_maps, found)
        self._find_last(looks, found)
        self._identify([look for look in looks if look.copy not in _failed(found)])
        looks = self._prove_ends(looks, found)
        failed = _failed(found)
        looks = self._not_truncated([look for look in looks if look.copy not in failed], found)
        reads = self._readers([look for look in looks if look.last is not None])
        source_ends = self._source_ends([look for look in looks if look.last is not None])
        for look in looks:
            try:
                read, ends = reads.get(look.copy), source_ends.get(look.copy.key)
                self._check(look, read, ends, lane_maps)
                found[look.copy] = self._point(look, self._source_epoch(look, read, ends))._replace(lost=look.lost)
            except MigrationError as error:
                found[look.copy] = error
        return found

    # -- the target --------------------------------------------------------------------------------------------------

    def _settled(
        self, copies: Sequence[PartitionCopy], lane_maps: LaneMaps, found: dict[PartitionCopy, Resumed]
    ) -> list[_Look]:
        """Return the partitions whose replicas have caught up, with their maps taken over at the log end."""
        ends = read_ends(self._target, [copy.target_key for copy in copies])
        self._restore_log_starts(copies, ends)
        looks = []
        for copy in copies:
            end = ends[copy.target_key]
            if isinstance(end, MigrationError):
                found[copy] = end
                continue
            if not end.settled:
                continue
            try:
                looks.append(_Look(copy, end, lane_maps.load(copy.spec, end.log_end_offset)))
            except MigrationError as error:
                found[copy] = error
        return looks

    def _restore_log_starts(
        self, copies: Sequence[PartitionCopy], ends: dict[TopicPartition, LogEnds | MigrationError]
    ) -> None:
        """Delete fillers again where a broker that crashed has forgotten their deletion."""
        starts: dict[TopicPartition, int] = {}
        wanted: dict[TopicPartition, int] = {}
        for copy in copies:
            end, start = ends[copy.target_key], copy.spec.target_start_offset
            # Below the start of an adopted partition is content of others, and no filler.
            is_filled = copy.spec.verdict is Verdict.EQUAL and not copy.spec.adopted
            if is_filled and isinstance(end, LogEnds) and end.log_end_offset >= start:
                starts[copy.target_key], wanted[copy.target_key] = end.log_start_offset, start
        done = delete_fillers_again(self._target, starts, wanted, self._job.producers.filler_producer_id)
        for key, found in done.items():
            end = ends[key]
            assert isinstance(end, LogEnds)
            ends[key] = found if isinstance(found, MigrationError) else replace(end, log_start_offset=found)

    def _find_last(self, looks: Sequence[_Look], found: dict[PartitionCopy, Resumed]) -> None:
        """Read the tail of each log, back from the end in growing windows until it has at least one data batch."""
        todo = [look for look in looks if look.ends.log_end_offset > look.ends.log_start_offset]
        window = _FIRST_WINDOW_OFFSETS
        while todo:
            starts = {look: max(look.floor, look.ends.log_end_offset - window) for look in todo}
            self._read(starts, found)
            failed = _failed(found)
            todo = [
                look for look in todo if look.copy not in failed and look.last is None and starts[look] > look.floor
            ]
            window *= _WINDOW_GROWTH

    def _read(self, starts: Mapping[_Look, int], found: dict[PartitionCopy, Resumed]) -> None:
        spans = {look.copy.target_key: (start, look.ends.log_end_offset) for look, start in starts.items()}
        tails = read_tails(self._target, spans)
        for look in starts:
            tail = tails[look.copy.target_key]
            try:
                if isinstance(tail, OutsideOfLog) and self._job.target_deletes:
                    raise BrokerBusy(
                        "the target deleted records while the end of its log was read",
                        where=tail.where,
                        next_step="none: the end is read again",
                        details=tail.details,
                    ) from tail
                if isinstance(tail, MigrationError):
                    raise tail
                self._check_owner(look.copy, tail)
                look.tail = tail
            except MigrationError as error:
                found[look.copy] = error

    def _identify(self, looks: Sequence[_Look]) -> None:
        """Determine on which target topics earlier positions were noted: on another one they mean nothing.

        A topic that was deleted on the target and created again is empty because somebody wanted it so. A topic with
        the same id whose log ends earlier than before has lost records.
        """
        asked = {
            look.copy.spec.target_topic for look in looks if look.last is None or not look.copy.read.target_topic_id
        }
        found = self._target.metadata(asked) if asked else {}
        for look in looks:
            read, topic = look.copy.read, found.get(look.copy.spec.target_topic)
            present = "" if topic is None else topic.topic_id
            if present and read.target_topic_id not in ("", present):
                read.noted, read.first_end_offset = None, -1
            read.target_topic_id = present or read.target_topic_id

    def _prove_ends(self, looks: Sequence[_Look], found: dict[PartitionCopy, Resumed]) -> list[_Look]:
        """Prove the position of partitions whose last records may have been deleted on the target.

        :returns: the partitions without those whose log has grown meanwhile, for which the caller has to ask again.
        """
        failed = _failed(found)
        lacking = [look for look in looks if look.copy not in failed and look.lacks_end]
        if not lacking or not self._job.target_deletes:
            return list(looks)
        keys = [look.copy.target_key for look in lacking]
        sequences = log_end.known_sequences(self._target, keys, self._job.producers)
        # A dead copier's last append may have arrived since the log ends were read: then the leader's sequence is that
        # of a later end, and with it the copy would pass over what it has to append next.
        now = read_ends(self._target, keys)
        grown = {look for look in lacking if not _is_at(now[look.copy.target_key], look.ends.log_end_offset)}
        for look in grown:
            ends_now = now[look.copy.target_key]
            if isinstance(ends_now, MigrationError):
                found[look.copy] = ends_now
        lacking = [look for look in lacking if look not in grown]
        left = [
            look
            for look in lacking
            if look.last is None or not log_end.is_last(look.last, sequences.get(look.copy.target_key))
        ]
        source_ends = self._source_ends(left)
        for look in left:
            ends = source_ends.get(look.copy.key)
            try:
                if isinstance(ends, MigrationError):
                    raise ends
                look.at_end = log_end.prove(
                    look.copy,
                    look.map,
                    look.ends.log_end_offset,
                    next_sequence=sequences.get(look.copy.target_key),
                    source_start_offset=None if ends is None else ends.log_start_offset,
                    where=self._where(look.copy, look.ends.log_end_offset),
                )
                if ends is not None and look.at_end.source_offset > ends.high_watermark:
                    raise self._beyond(look, look.ends.log_end_offset - 1, ends.high_watermark)
            except MigrationError as error:
                found[look.copy] = error
        return [look for look in looks if look not in grown]

    def _check_owner(self, copy: PartitionCopy, tail: LogTail) -> None:
        for batch in tail.batches:
            if isinstance(batch, LegacyBatch) or batch.producer_id != self._job.producers.data_producer_id:
                raise self._foreign(copy, batch)

    def _source_epoch(self, look: _Look, read: ReadChunk | None, source_ends: LogEnds | MigrationError | None) -> int:
        """Return the leader epoch of the source's batch at the end of the copy; -1 if the batch is deleted by now."""
        if self._source is None or read is None or look.last is None or not isinstance(source_ends, LogEnds):
            return -1
        offset = look.map.source_of(look.last.base_offset)
        if offset < source_ends.log_start_offset:
            return -1
        chunk = read(offset)
        position = look.map.source_position(look.last.next_offset)
        batches = [] if chunk is None else read_batches(chunk.batches)[0]
        return last_epoch([item for item in batches if isinstance(item, RawBatch) and item.base_offset < position])

    def _point(self, look: _Look, source_epoch: int) -> ResumePoint:
        copy, end, last = look.copy, look.ends.log_end_offset, look.last
        run = look.map.last_run
        assert run is not None
        if look.at_end is not None:
            return ResumePoint(
                source_offset=look.at_end.source_offset,
                target_end_offset=end,
                next_sequence=look.at_end.next_sequence,
                shift=run.shift,
                is_mapped=len(look.map) > 1,
                skips_holes=look.map.skips_holes,
                source_epoch=-1,
            )
        if last is not None:
            source_offset = look.map.source_position(last.next_offset)
            noted = copy.read.noted
            if noted is not None and noted.target_offset == end and self._job.target_deletes:
                # Markers behind the last batch: the source may have deleted what they stand for.
                source_offset = max(source_offset, noted.source_offset)
            return ResumePoint(
                source_offset=source_offset,
                target_end_offset=end,
                next_sequence=advance_sequence(last.base_sequence, last.last_offset_delta),
                shift=run.shift,
                is_mapped=len(look.map) > 1,
                skips_holes=look.map.skips_holes,
                source_epoch=source_epoch,
            )
        start = copy.spec.target_start_offset
        if end < start:
            if copy.spec.adopted:
                raise ForeignData(
                    f"the log end {end} is below the boundary {start} behind which the copy begins: the target has "
                    "lost records that were there before",
                    where=self._where(copy, end),
                    next_step="find out what happened to the target's log (unclean election? a recreated topic?); this "
                    "partition has to be taken over again by a new migration, or copied from its start",
                )
            raise Transient(
                f"the log end {end} is below the first offset to copy, {start}: the fillers are not all written yet",
                where=self._where(copy),
                next_step="clear topology_copy, then this task",
            )
        if look.lacks_end:
            raise FloorViolated(
                f"offsets between the first copied one, {start}, and the log end {end} are missing (the log starts at "
                f"{look.ends.log_start_offset}), and no copied record is left",
                where=self._where(copy),
                next_step="find what deleted records on the target (retention, compaction, DeleteRecords); delete the "
                "topic and start again",
            )
        return ResumePoint(copy.spec.source_start_offset, end, 0, run.shift, len(look.map) > 1, look.map.skips_holes)

    # -- the source --------------------------------------------------------------------------------------------------

    def _readers(self, looks: Sequence[_Look]) -> dict[PartitionCopy, ReadChunk]:
        """Return a reader of what to compare each tail with; the first read from the source is one fetch for all."""
        if self._source is None:
            archived = {look.copy: self._archive(look.copy) for look in looks}
            return {copy: self._as_on_target(copy, read) for copy, read in archived.items() if read is not None}
        positions = {look.copy.key: look.map.source_of(look.last.base_offset) for look in looks if look.last}
        quick: dict[TopicPartition, FetchedPartition] = {}
        if positions:
            quick, _ = fetch_where_possible(
                self._source, list(positions.items()), isolation=READ_COMMITTED, max_bytes=1024 * 1024
            )
        return {
            look.copy: self._as_on_target(
                look.copy,
                chunks_of_cluster(
                    self._source,
                    look.copy.key,
                    (positions[look.copy.key], quick[look.copy.key]) if look.copy.key in quick else None,
                ),
            )
            for look in looks
        }

    def _not_truncated(self, looks: Sequence[_Look], found: dict[PartitionCopy, Resumed]) -> list[_Look]:
        """Return the partitions of which the source still has what was read.

        This check comes before the contents are compared: the comparison would show the difference, but not its cause.
        """
        if self._source is None:
            return list(looks)
        asked = {look.copy.key: read for look in looks if (read := _read_up_to(look)) is not None}
        problems = check_not_truncated(self._source, asked) if asked else {}
        for look in looks:
            problem = problems.get(look.copy.key)
            if problem is not None:
                found[look.copy] = problem
        return [look for look in looks if problems.get(look.copy.key) is None]

    def _source_ends(self, looks: Sequence[_Look]) -> dict[TopicPartition, LogEnds | MigrationError]:
        if self._source is None or not looks:
            return {}
        return read_ends(self._source, [look.copy.key for look in looks])

    def _check(
        self, look: _Look, read: ReadChunk | None, source_ends: LogEnds | MigrationError | None, lane_maps: LaneMaps
    ) -> None:
        """Check that the target's end equals the source's records there, and does not lie beyond the source's end."""
        last = look.last
        if last is None or read is None:
            return
        if isinstance(source_ends, MigrationError):
            raise source_ends
        start = 0
        if source_ends is not None:
            start = source_ends.log_start_offset
            if look.map.source_of(last.last_offset) >= source_ends.high_watermark:
                raise self._beyond(look, last.last_offset, source_ends.high_watermark)
        verdict = self._agreement(look, read, start)
        if verdict is Agreement.WEAK:
            self._look_further(look, last.base_offset - _DEEPER_OFFSETS)
            verdict = self._agreement(look, read, start)
        if verdict is Agreement.DIFFERENT and isinstance(read, RewrittenChunks):
            read.check_known()
        if verdict is Agreement.DIFFERENT:
            self._realign(look, last, read, start, lane_maps)

    def _agreement(self, look: _Look, read: ReadChunk, source_start_offset: int) -> Agreement:
        assert look.tail is not None
        return agreement(
            look.tail,
            look.map,
            read,
            source_start_offset=source_start_offset,
            is_whole=look.is_whole,
            timestamps=self._job.timestamps,
            is_cleaned=look.copy.spec.topic in self._job.target_compacts,
        )

    def _look_further(self, look: _Look, from_offset: int) -> None:
        found: dict[PartitionCopy, Resumed] = {}
        self._read({look: max(look.floor, from_offset)}, found)
        problem = found.get(look.copy)
        if isinstance(problem, MigrationError):
            raise problem

    def _realign(
        self, look: _Look, last: RawBatch, read: ReadChunk, source_start_offset: int, lane_maps: LaneMaps
    ) -> None:
        """Rewrite the map if excess markers have displaced records. Raise on any other difference."""
        self._look_further(look, last.base_offset - _REALIGN_OFFSETS)
        assert look.tail is not None
        runs = realigned(
            look.tail,
            look.map,
            read,
            source_start_offset=source_start_offset,
            is_whole=look.is_whole,
            timestamps=self._job.timestamps,
            is_cleaned=look.copy.spec.topic in self._job.target_compacts,
        )
        if runs is None or (look.copy.spec.on_mismatch or self._job.on_mismatch) == "stop":
            raise self._mismatch(look, last)
        log.warning(
            "%s-%s: the take-over found excess control markers before source offset %s; continuing as mapped",
            *look.copy.key,
            runs[0].source_start,
        )
        lane_maps.write_ahead(look.copy.spec, look.ends.log_end_offset, runs)
        look.map = lane_maps.maps[look.copy.key]

    # -- errors ------------------------------------------------------------------------------------------------------

    def _where(self, copy: PartitionCopy, offset: int | None = None) -> Where:
        return Where(
            migration_id=self._job.migration_id,
            cluster="target",
            topic=copy.spec.target_topic,
            partition=copy.spec.partition,
            offset=offset,
        )

    def _foreign(self, copy: PartitionCopy, batch: AnyBatch) -> ForeignData:
        producer = batch.producer_id if isinstance(batch, RawBatch) else -1
        return ForeignData(
            f"the target holds records that this migration did not write (producer id {producer})",
            where=self._where(copy, batch.last_offset),
            next_step=self._job.after_foreign_data(
                copy.spec.topic,
                "find and stop the producer that writes to the target topic; then delete the topic there and start a "
                "new migration, or leave the topic out",
            ),
            details={"producer_id": producer, "target_offset": batch.last_offset},
        )

    def _beyond(self, look: _Look, last_offset: int, source_end: int) -> ForeignData:
        return ForeignData(
            f"the target's last record is that of source offset {look.map.source_of(last_offset)}, "
            f"but the source ends at {source_end}",
            where=self._where(look.copy, last_offset),
            next_step="compare both ends: the source lost records (unclean election?), or another writer wrote to the "
            "target",
            details={"target_offset": last_offset, "source_end_offset": source_end},
        )

    def _mismatch(self, look: _Look, batch: RawBatch) -> ForeignData:
        source_offset = look.map.source_of(batch.base_offset)
        return ForeignData(
            f"the end of the target (offsets {batch.base_offset}..{batch.last_offset}) differs from the source's "
            f"records at {source_offset}",
            where=self._where(look.copy, batch.base_offset),
            next_step=self._job.after_foreign_data(
                look.copy.spec.topic,
                "a stale copier or another writer wrote to the target: delete the target topic and start again, or "
                "leave the topic out",
            ),
            details={"target_offset": batch.base_offset, "source_offset": source_offset},
        )


def _is_at(ends: LogEnds | MigrationError, log_end_offset: int) -> bool:
    return isinstance(ends, LogEnds) and ends.log_end_offset == log_end_offset


def _failed(found: Mapping[PartitionCopy, Resumed]) -> set[PartitionCopy]:
    return {copy for copy, item in found.items() if isinstance(item, MigrationError)}


def _read_up_to(look: _Look) -> ReadUpTo | None:
    """Return up to which offset, and under which leader epoch, the source was read; None: not known."""
    if look.at_end is not None:
        position = look.at_end.source_offset
    elif look.last is not None:
        position = look.map.source_position(look.last.next_offset)
    elif look.lost is not None and look.copy.read.before is not None:
        # All of it was lost on the target, so the source has to have it still.
        return ReadUpTo(*look.copy.read.before)
    else:
        return None
    if look.copy.read.leader_epoch >= 0:
        return ReadUpTo(position, look.copy.read.leader_epoch)
    before = look.copy.read.before
    # Beyond what the target has, the source may lose anything: that was not copied.
    return ReadUpTo(*before) if before is not None and before[0] <= position else None
