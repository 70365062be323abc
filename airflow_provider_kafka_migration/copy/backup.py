"""The loop of a lane that knows only the source and the archive: fetch, archive. The archive is the checkpoint.

The range that segments cover without a gap is done; a backup that is killed anywhere continues from its end. This loop
decides nothing: batches, markers, aborted ranges and holes lie in the archive as the source has them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from airflow_provider_kafka_migration.copy.archive import SegmentIndex, record_count, write_gap
from airflow_provider_kafka_migration.copy.lane import (
    CLOSING_SECONDS,
    STALLED_SECONDS,
    STOP_POLL_SECONDS,
    SliceLimits,
    SocketPoller,
)
from airflow_provider_kafka_migration.copy.partition import CopyState, PartitionCopy, fail_recreated
from airflow_provider_kafka_migration.copy.read_ahead import ARCHIVE_BUFFER_BYTES, SourceReader
from airflow_provider_kafka_migration.copy.read_watch import ReadWatch
from airflow_provider_kafka_migration.copy.recovery import is_missing, note_trouble, topic_gone
from airflow_provider_kafka_migration.copy.transform import Chunk
from airflow_provider_kafka_migration.documents.copy import CopyJob, CopyLane, PartitionResult
from airflow_provider_kafka_migration.errors import (
    BrokerUnreachable,
    MigrationError,
    SliceExpired,
    SourceGap,
    Terminal,
    Transient,
    Where,
)
from airflow_provider_kafka_migration.kafka import clock
from airflow_provider_kafka_migration.kafka.batches.api import read_batches
from airflow_provider_kafka_migration.kafka.connection import BrokerConnection
from airflow_provider_kafka_migration.kafka.wire import Wire
from airflow_provider_kafka_migration.storage.base import ObjectStore

log = logging.getLogger(__name__)

#: A partition that makes no progress for this long stops with the last error; the next slice tries again.
PATIENCE_SECONDS = 60.0
_RETRY_PAUSES = (0.0, 0.1, 0.3, 1.0, 3.0)
#: In this last part of a slice, the backup reads nothing more and archives what it has read.
FLUSH_SECONDS = 2.0


class BackupCopier:
    """Archives the partitions of a lane until all are done, the slice ends, or a stop is requested.

    There is no target: ``target_offset`` of the results is -1, and ``source_offset`` is how far the archive reaches.
    """

    def __init__(
        self, job: CopyJob, lane: CopyLane, *, source: Wire, archive_store: ObjectStore, limits: SliceLimits
    ) -> None:
        self._job = job
        self._limits = limits
        self._source = source
        self._archive = archive_store
        self.copies = [PartitionCopy(spec, lane.lane) for spec in lane.partitions]
        self._watch = ReadWatch(job, lane.lane, archive_store, self.copies)
        self._feed = SourceReader(
            job,
            source,
            archive_store,
            copies=self.copies,
            on_chunk=self._on_durable,
            on_trouble=self._on_trouble,
            wants=self._wants,
            reached=self._is_read,
            rate=limits.rate,
            watch=self._watch,
        )
        self._poller = SocketPoller()
        self._feed.wake = self._poller.wake
        self._noted: list[tuple[PartitionCopy, int, MigrationError]] = []
        self._reading_bytes = 0
        self._asked_to_stop = False
        self._next_look = 0.0

    # -- the loop ----------------------------------------------------------------------------------------------------

    def run(self) -> list[PartitionResult]:
        """Archive the lane and return one result per partition, whatever happened."""
        try:
            self._watch.load()
            self._loop()
        finally:
            self._feed.close()
            self._poller.close()
        self._watch.save()
        results = [
            copy.result(done=self._is_done(copy)).model_copy(update={"target_offset": -1}) for copy in self.copies
        ]
        throttled = {"source_throttled_seconds": round(self._feed.throttled_seconds, 3)}
        return [results[0].model_copy(update=throttled), *results[1:]] if results else []

    def _loop(self) -> None:
        while True:
            now = time.monotonic()
            if clock.is_over(self._limits.deadline) or all(self._is_settled(copy) for copy in self.copies):
                return
            self._look_around(now)
            closing = self._asked_to_stop or now >= self._limits.deadline - self._flush_seconds
            if closing and not self._feed.flush():
                return
            if now >= self._limits.deadline - CLOSING_SECONDS:
                return
            self._resume_due(now)
            self._settle()
            self._reading_bytes = self._feed.reading_bytes
            if not closing:
                self._feed.pump(now)
            self._poller.wait(self._connections(), self._pause(now), self._on_broken)
            self._feed.collect()
            self._settle()

    @property
    def _flush_seconds(self) -> float:
        return min(FLUSH_SECONDS, self._job.slice_seconds / 4)

    def _look_around(self, now: float) -> None:
        if now < self._next_look:
            return
        self._next_look = now + STOP_POLL_SECONDS
        self._asked_to_stop = self._asked_to_stop or self._limits.stop()
        for connection in self._connections():
            if connection.waiting_seconds(now) > STALLED_SECONDS:
                self._on_broken(connection, connection.no_answer())

    def _pause(self, now: float) -> float:
        due = [copy.resume_at - now for copy in self.copies if copy.state is CopyState.RESUMING]
        due += [self._limits.deadline - now, STOP_POLL_SECONDS, self._feed.due_seconds(now)]
        due.append(self._feed.next_due(now) - now)
        return max(0.0, min(due))

    def _connections(self) -> list[BrokerConnection]:
        return [reader.connection for reader in self._feed.readers]

    def _on_broken(self, connection: BrokerConnection, error: BrokerUnreachable) -> None:
        for reader in self._feed.readers:
            if reader.connection is connection:
                self._feed.lose(reader, error)

    # -- progress of a partition -------------------------------------------------------------------------------------

    def _is_read(self, copy: PartitionCopy) -> bool:
        until = self._limits.until(copy)
        return until is not None and copy.read.next_offset >= until

    def _is_done(self, copy: PartitionCopy) -> bool:
        until = self._limits.until(copy)
        return until is not None and copy.state is CopyState.RUNNING and copy.write.source_offset >= until

    def _is_settled(self, copy: PartitionCopy) -> bool:
        return copy.state is CopyState.FAILED or self._is_done(copy)

    def _wants(self, copy: PartitionCopy) -> bool:
        return (
            copy.state is CopyState.RUNNING and not self._is_read(copy) and self._reading_bytes < ARCHIVE_BUFFER_BYTES
        )

    def _resume_due(self, now: float) -> None:
        """Continue to read where the archive ends."""
        due = [copy for copy in self.copies if copy.state is CopyState.RESUMING and copy.resume_at <= now]
        if not due:
            return
        try:
            missing = fail_recreated(self._source, due, self._where)
        except Transient as error:
            for copy in due:
                self._on_trouble(copy, error)
            return
        ready = []
        for copy in due:
            if copy in missing:
                self._on_trouble(copy, missing[copy])
            if copy in missing or copy.state is not CopyState.RESUMING:
                continue
            try:
                position = self._archived_until(copy)
            except MigrationError as error:
                self._on_trouble(copy, error)
                continue
            copy.go_back_to(position)
            if copy.read.before is not None and copy.read.before[0] >= position:
                # The epoch lets attach check, before the first fetch, whether the source has lost what was archived.
                # What was read beyond the archive counts as well, or a slice that ended with SOURCE_TRUNCATED there
                # would be forgotten. The epoch of a lower offset says nothing about this position.
                copy.read.leader_epoch = max(copy.read.leader_epoch, copy.read.before[1])
            copy.state = CopyState.RUNNING
            ready.append(copy)
        self._attach(ready)

    def _attach(self, copies: Sequence[PartitionCopy]) -> None:
        for copy in copies:
            try:
                self._feed.attach([copy])
            except MigrationError as error:
                self._on_trouble(copy, error)

    def _archived_until(self, copy: PartitionCopy) -> int:
        spec = copy.spec
        index = SegmentIndex(self._archive, self._job.migration_id, spec.topic, spec.partition, spec.topic_id)
        return index.until_offset(spec.source_start_offset)

    # -- chunks ------------------------------------------------------------------------------------------------------

    def _on_durable(self, copy: PartitionCopy, chunk: Chunk) -> None:
        copy.write.source_offset = chunk.until_offset
        copy.figures.records += sum(record_count(batch) for batch in read_batches(chunk.batches)[0])
        copy.figures.copied_bytes += len(chunk.batches)
        copy.retries = 0
        copy.stuck_since = None

    # -- troubles ----------------------------------------------------------------------------------------------------

    def _on_trouble(self, copy: PartitionCopy, error: MigrationError) -> None:
        self._noted.append((copy, copy.incarnation, error))

    def _settle(self) -> None:
        while self._noted:
            copy, incarnation, error = self._noted.pop(0)
            if copy.incarnation == incarnation and copy.state is not CopyState.FAILED:
                log.info("%s-%s: %s", *copy.key, error.what)
                try:
                    self._settle_one(copy, error)
                except MigrationError as second:
                    copy.fail(second)
                    self._feed.reset(copy)

    def _settle_one(self, copy: PartitionCopy, error: MigrationError) -> None:
        # This comes first: if a put ends after it, the archive check below sees its segment.
        unfinished = self._feed.unfinished_put(copy)
        if isinstance(error, SourceGap) and self._archived_until(copy) > copy.read.next_offset:
            # A put that a reset has left behind has ended meanwhile: nothing is lost, and reading continues behind it.
            copy.reset(resume_at=time.monotonic())
            self._feed.reset(copy)
            return
        if isinstance(error, SourceGap):
            error = unfinished or error
        is_first = copy.read.next_offset == copy.read.start_offset
        if isinstance(error, SourceGap) and (is_first or self._job.on_source_gap == "record"):
            self._archive_gap(copy, int(error.details["log_start_offset"]), is_lost=not is_first)
            return
        now = note_trouble(copy, error)
        is_stuck = copy.stuck_since is not None and now - copy.stuck_since > PATIENCE_SECONDS
        if is_missing(copy, error, now, self._job.slice_seconds):
            copy.fail(topic_gone(self._job, copy, error))
        elif isinstance(error, Terminal | SliceExpired) or is_stuck:
            copy.fail(error)
        else:
            pause = _RETRY_PAUSES[min(copy.retries, len(_RETRY_PAUSES) - 1)]
            copy.retries += 1
            copy.reset(resume_at=now + pause)
        self._feed.reset(copy)

    def _archive_gap(self, copy: PartitionCopy, log_start_offset: int, *, is_lost: bool) -> None:
        """Cover what retention has deleted by a segment without batches, so that a restore can continue."""
        gap = (copy.read.next_offset, self._feed.gap_until(copy, log_start_offset))
        if is_lost:
            # Written ahead: the next backup continues behind the segment, and can no longer see the gap.
            write_gap(self._archive, self._job.migration_id, copy.spec, gap)
            copy.figures.gaps.append(gap)
        else:
            copy.read.start_offset = gap[1]
        self._feed.pass_gap(copy, gap[1], log_start_offset)

    def _where(self, copy: PartitionCopy) -> Where:
        return Where(
            migration_id=self._job.migration_id,
            phase=self._job.name,
            topic=copy.spec.topic,
            partition=copy.spec.partition,
            offset=copy.write.source_offset,
        )
