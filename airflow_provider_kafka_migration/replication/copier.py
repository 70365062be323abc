"""The loop of a lane: fetch, (archive,) decide, append. One thread, no state but the target's log.

What goes wrong with one partition never stops the others: it is reset and resumes, or stops with a named error.
"""

from __future__ import annotations

import logging
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from airflow_provider_kafka_migration.documents.copy_job import CopyJob, CopyLane, PartitionResult
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import (
    BrokerUnreachable,
    ForeignData,
    MigrationError,
    RecordTooLarge,
    SliceExpired,
    SourceGap,
    Terminal,
    TopicRecreated,
    Transient,
    Where,
)
from airflow_provider_kafka_migration.kafka.batches import RawBatch
from airflow_provider_kafka_migration.kafka.fetch import READ_UNCOMMITTED
from airflow_provider_kafka_migration.kafka.wire import Wire
from airflow_provider_kafka_migration.replication.append_errors import (
    OutOfOrder,
    TooLarge,
    UnexpectedEnd,
    UnexpectedOffset,
)
from airflow_provider_kafka_migration.replication.appender import Appender, MarkerIdentity
from airflow_provider_kafka_migration.replication.chunk import Chunk
from airflow_provider_kafka_migration.replication.decide import Append, Decider, Hole, Step
from airflow_provider_kafka_migration.replication.feed import ARCHIVE_BUFFER_BYTES, Feed
from airflow_provider_kafka_migration.replication.maps import LaneMaps
from airflow_provider_kafka_migration.replication.offset_map import Run
from airflow_provider_kafka_migration.replication.partition_copy import PartitionCopy, Phase, ResumePoint, Sent
from airflow_provider_kafka_migration.replication.reading import read_span
from airflow_provider_kafka_migration.replication.resume import Resumer
from airflow_provider_kafka_migration.storage.base import ObjectStore

log = logging.getLogger(__name__)

#: Decided and unsent bytes of one partition, and of the lane, beyond which nothing more is read.
PARTITION_BUFFER_BYTES = 4 * 1024 * 1024
LANE_BUFFER_BYTES = 48 * 1024 * 1024
#: A partition that could not go on for so long stops with the last error; the next round tries again.
PATIENCE_SECONDS = 60.0
#: Bytes are still confirmed, but no longer read, in the last part of a slice.
CLOSING_SECONDS = 0.5
STOP_POLL_SECONDS = 0.5
_RETRY_PAUSES = (0.0, 0.02, 0.1, 0.3, 1.0)


@dataclass(frozen=True)
class SliceLimits:
    """How long a copier may go on.

    :param deadline: of the monotonic clock; nothing is sent after it.
    :param until: (topic, partition) -> exclusive source stop offset, or None while there is none.
    :param stop: asked now and then; True ends the slice early.
    """

    deadline: float
    until: Callable[[PartitionCopy], int | None]
    stop: Callable[[], bool] = lambda: False


class LaneCopier:
    """Copies the partitions of a lane until all are done, the slice ends, or it is told to stop.

    :param source: None for a restore from segments alone.
    """

    def __init__(
        self,
        job: CopyJob,
        lane: CopyLane,
        *,
        source: Wire | None,
        target: Wire,
        map_store: ObjectStore,
        archive_store: ObjectStore | None,
        limits: SliceLimits,
    ) -> None:
        self._job = job
        self._limits = limits
        self._source_wire = source
        self._target_wire = target
        self._maps = LaneMaps(map_store, job.migration_id)
        self._lane = lane
        self.copies = [PartitionCopy(spec, lane.lane) for spec in lane.partitions]
        self._deciders: dict[PartitionCopy, Decider] = {}
        self._max_batch_bytes: dict[PartitionCopy, int | None] = {c: c.spec.max_batch_bytes for c in self.copies}
        self._resumer = Resumer(source, target, job.producers.data_producer_id, job.timestamps)
        self._appender = Appender(
            target,
            job.producers,
            deadline=limits.deadline,
            transactional_id=lane.transactional_id,
            markers=self._marker_identity,
            on_trouble=self._on_trouble,
            on_confirmed=self._on_confirmed,
        )
        self._feed = Feed(
            job,
            source,
            archive_store,
            copies=self.copies,
            on_chunk=self._on_chunk,
            on_trouble=self._on_trouble,
            wants=self._wants,
            reached=self._is_read,
        )
        self._buffered_bytes = 0
        self._buffer_limit_bytes = LANE_BUFFER_BYTES + (ARCHIVE_BUFFER_BYTES if job.via == "s3" else 0)
        self._markers: MarkerIdentity | None = None
        self._troubles: list[tuple[PartitionCopy, int, MigrationError]] = []
        self._selector = selectors.DefaultSelector()
        self._registered: dict[int, int] = {}
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._feed.wake = self._appender.wake = lambda: self._wake_writer.send(b"\0")

    # -- the loop ----------------------------------------------------------------------------------------------------

    def run(self) -> list[PartitionResult]:
        """Copy; one result per partition, whatever happened."""
        self._check_topic_ids()
        try:
            if any(copy.fills_holes for copy in self.copies):
                self._appender.prepare()
            self._loop()
        except SliceExpired:
            log.debug("lane %s: the slice has ended", self._lane.lane)
        finally:
            self.close()
        return [copy.result(done=self._is_done(copy)) for copy in self.copies]

    def _loop(self) -> None:
        next_stop_poll = 0.0
        while True:
            now = time.monotonic()
            if now >= self._limits.deadline or all(self._is_settled(copy) for copy in self.copies):
                return
            if now >= next_stop_poll:
                if self._limits.stop():
                    return
                next_stop_poll = now + STOP_POLL_SECONDS
            self._resume_due(now)
            self._settle_troubles()
            self._buffered_bytes = sum(copy.pending_bytes + copy.reading_bytes for copy in self.copies)
            closing = now >= self._limits.deadline - CLOSING_SECONDS
            if closing and all(copy.is_idle for copy in self.copies):
                return
            if not closing:
                self._feed.pump(now)
            self._appender.pump(time.monotonic())
            self._settle_troubles()
            self._wait(self._pause(now))

    def _pause(self, now: float) -> float:
        due = [
            copy.resume_at - now
            for copy in self.copies
            if copy.phase is Phase.RESUMING and not self._appender.is_filling(copy)
        ]
        due.append(self._limits.deadline - now)
        due.append(STOP_POLL_SECONDS)
        muted = [channel.muted_until - now for channel in self._appender.channels if channel.muted_until > now]
        return max(0.0, min(due + muted))

    def _wait(self, timeout_seconds: float) -> None:
        connections = {channel.connection: channel for channel in self._appender.channels}
        readers = {reader.connection: reader for reader in self._feed.readers}
        self._register([*connections, *readers])
        for key, events in self._selector.select(timeout_seconds):
            if key.data is None:
                self._wake_reader.recv(4096)
                continue
            connection = key.data
            try:
                if events & selectors.EVENT_WRITE:
                    connection.on_writable()
                if events & selectors.EVENT_READ:
                    connection.on_readable()
            except BrokerUnreachable as error:
                if connection in connections:
                    self._appender.lose(connections[connection], error)
                else:
                    self._feed.lose(readers[connection], error)
        self._feed.collect()

    def _register(self, connections: Sequence[object]) -> None:
        """Bring the selector up to date: new sockets, closed ones, and who wants to write."""
        wanted: dict[int, tuple[object, int]] = {self._wake_reader.fileno(): (None, selectors.EVENT_READ)}
        for connection in connections:
            fileno = connection.fileno()  # type: ignore[attr-defined]
            if fileno >= 0:
                events = selectors.EVENT_READ
                if connection.wants_write:  # type: ignore[attr-defined]
                    events |= selectors.EVENT_WRITE
                wanted[fileno] = (connection, events)
        for fileno, key in list(self._selector.get_map().items()):
            if fileno not in wanted or wanted[fileno][0] is not key.data:
                self._selector.unregister(fileno)
        present = self._selector.get_map()
        for fileno, (connection, events) in wanted.items():
            if fileno not in present:
                self._selector.register(fileno, events, connection)
            elif present[fileno].events != events:
                self._selector.modify(fileno, events, connection)

    def close(self) -> None:
        """Close all sockets; what was not answered has an unknown outcome."""
        self._feed.close()
        self._appender.close()
        self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()

    # -- where a partition stands ------------------------------------------------------------------------------------

    def _is_read(self, copy: PartitionCopy) -> bool:
        until = self._limits.until(copy)
        return until is not None and copy.fetch_offset >= until

    def _is_done(self, copy: PartitionCopy) -> bool:
        until = self._limits.until(copy)
        return (
            until is not None
            and copy.phase in (Phase.RUNNING, Phase.DONE)
            and copy.is_idle
            and copy.source_offset >= until
            and not copy.prefilled
        )

    def _is_settled(self, copy: PartitionCopy) -> bool:
        return copy.phase is Phase.FAILED or self._is_done(copy)

    def _wants(self, copy: PartitionCopy) -> bool:
        return (
            copy.phase is Phase.RUNNING
            and not self._is_read(copy)
            and copy.pending_bytes < PARTITION_BUFFER_BYTES
            and self._buffered_bytes < self._buffer_limit_bytes
        )

    # -- resume ------------------------------------------------------------------------------------------------------

    def _resume_due(self, now: float) -> None:
        due = [
            copy
            for copy in self.copies
            if copy.phase is Phase.RESUMING and copy.resume_at <= now and not self._appender.is_filling(copy)
        ]
        if not due:
            return
        try:
            found = self._resumer.resume(due, self._maps)
        except Transient as error:
            found = dict.fromkeys(due, error)
        for copy, point in found.items():
            if point is None:
                # Replicas are behind: not an error, the log is asked again soon.
                copy.resume_at = now + 0.05
                self._give_up_if_stuck(
                    copy, Transient("the target's replicas do not catch up", where=self._where(copy))
                )
            elif isinstance(point, ResumePoint):
                self._start(copy, point)
            else:
                self._on_trouble(copy, point)

    def _start(self, copy: PartitionCopy, point: ResumePoint) -> None:
        try:
            copy.resume(point)
            self._appender.attach([copy])
            self._feed.attach([copy])
        except Transient as error:
            self._on_trouble(copy, error)
            return
        self._deciders[copy] = Decider(
            point.source_offset,
            self._job.timestamps,
            self._max_batch_bytes[copy],
            where=Where(migration_id=self._job.migration_id, topic=copy.spec.topic, partition=copy.spec.partition),
        )

    def _marker_identity(self) -> MarkerIdentity:
        if self._markers is None:
            producer_id, epoch = self._target_wire.init_producer_id(self._lane.transactional_id)
            self._markers = MarkerIdentity(producer_id, epoch)
        return self._markers

    def _check_topic_ids(self) -> None:
        """A topic deleted and created again is another topic, whatever its offsets are."""
        if self._source_wire is None:
            return
        known = {copy.spec.topic: copy.spec.topic_id for copy in self.copies if copy.spec.topic_id}
        found = self._source_wire.metadata(known) if known else {}
        for copy in self.copies:
            now = found.get(copy.spec.topic)
            if now is not None and now.topic_id and now.topic_id != copy.spec.topic_id:
                copy.fail(
                    TopicRecreated(
                        f"the source topic was deleted and created again (id {now.topic_id}, planned "
                        f"{copy.spec.topic_id})",
                        where=self._where(copy),
                        next_step="delete the target topic, and start a new migration for this topic",
                    )
                )

    # -- chunks ------------------------------------------------------------------------------------------------------

    def _on_chunk(self, copy: PartitionCopy, chunk: Chunk) -> None:
        """Decide a chunk that is durable where it has to be."""
        try:
            steps: list[Step] = []
            failure: MigrationError | None = None
            try:
                steps.extend(self._deciders[copy].decide_chunk(chunk))
            except RecordTooLarge as error:
                failure = error
            self._take(copy, steps)
            copy.source_offset = max(copy.source_offset, self._deciders[copy].next_offset)
            if failure is not None:
                self._fail_after_pending(copy, failure)
        except MigrationError as error:
            self._on_trouble(copy, error)

    def _take(self, copy: PartitionCopy, steps: list[Step]) -> None:
        for index, step in enumerate(steps):
            if isinstance(step, Append) and copy.prefilled:
                # Markers reach over the next record: a hole was filled twice.
                self._overfilled(copy, step.source_offset)
                steps = steps[index:]
                copy.add_steps(steps) if copy.fills_holes else self._add_mapped(copy, steps)
                return
            if isinstance(step, Hole) and copy.fills_holes and not self._budget_allows(copy, step.count):
                copy.fills_holes = False
                copy.verdict = Verdict.MAPPED
                log.warning("%s-%s: holes exceed the budget, going on as mapped", *copy.key)
            if copy.fills_holes:
                copy.add_steps([step])
            else:
                self._add_mapped(copy, steps[index:])
                return

    def _budget_allows(self, copy: PartitionCopy, count: int) -> bool:
        holes = copy.holes + count - copy.prefilled
        if self._job.on_mismatch == "fail":
            return True
        grace = 100_000
        records = copy.records + sum(step.record_count for step in copy.pending if isinstance(step, Append))
        return holes <= self._job.max_markers and holes <= grace + records * self._job.max_markers_per_record

    def _add_mapped(self, copy: PartitionCopy, steps: Sequence[Step]) -> None:
        """Holes become runs, written ahead of the first append of the chunk that needs them."""
        runs: list[Run] = []
        appends: list[Step] = []
        projected = copy.projected_offset
        expected_source = copy.source_offset
        last = self._maps.maps[copy.key].last_run
        shift = None if last is None else last.shift
        for step in steps:
            if isinstance(step, Hole):
                expected_source = step.source_offset + step.count
                continue
            if shift != step.source_offset - projected:
                runs.append(Run(step.source_offset, projected))
                shift = step.source_offset - projected
            projected += step.record_count
            expected_source = step.batch.next_offset
            appends.append(step)
        if runs:
            self._maps.write_ahead(copy.spec, copy.confirmed_offset, runs)
            copy.verdict = Verdict.MAPPED
        copy.add_steps(appends)
        copy.source_offset = max(copy.source_offset, expected_source)

    def _overfilled(self, copy: PartitionCopy, source_offset: int) -> None:
        """The target has more markers than the hole had offsets: go on with another shift, or stop."""
        extra = copy.prefilled
        if self._job.on_mismatch == "fail":
            raise ForeignData(
                f"a hole was filled twice: {extra} control markers too many before source offset {source_offset}",
                where=self._where(copy),
                next_step="delete the target topic and start again, or set offsets.on_mismatch: mapped",
                details={"extra_markers": extra, "source_offset": source_offset},
            )
        log.warning("%s-%s: %s markers too many, going on as mapped", *copy.key, extra)
        copy.prefilled = 0
        copy.verdict = Verdict.MAPPED
        self._maps.write_ahead(copy.spec, copy.confirmed_offset, [Run(source_offset, copy.projected_offset)])

    def _fail_after_pending(self, copy: PartitionCopy, error: MigrationError) -> None:
        """What was decided before the error is still sent; then the partition stops, and nothing overtakes."""
        copy.stopping = error
        if copy.is_idle:
            copy.fail(error)

    def _on_confirmed(self, copy: PartitionCopy, _sent: Sent) -> None:
        if copy.stopping is not None and copy.is_idle:
            copy.fail(copy.stopping)

    # -- trouble -----------------------------------------------------------------------------------------------------

    def _on_trouble(self, copy: PartitionCopy, error: MigrationError) -> None:
        """Note it; it is settled outside of socket callbacks."""
        self._troubles.append((copy, copy.incarnation, error))

    def _settle_troubles(self) -> None:
        while self._troubles:
            copy, incarnation, error = self._troubles.pop(0)
            if copy.incarnation != incarnation or copy.phase is Phase.FAILED:
                continue
            try:
                self._settle(copy, error)
            except MigrationError as second:
                copy.fail(second)

    def _settle(self, copy: PartitionCopy, error: MigrationError) -> None:
        log.info("%s-%s: %s", *copy.key, error.what)
        if isinstance(error, SliceExpired):
            copy.fail(error)
            return
        if isinstance(error, SourceGap) and (self._job.on_source_gap == "record" or copy.is_fresh):
            # Before the first record is copied nothing is lost: the source's log simply starts later than planned.
            self._record_gap(copy, error)
            return
        if isinstance(error, Terminal):
            copy.fail(error)
            return
        if isinstance(error, TooLarge):
            self._split_from_now_on(copy, error)
        elif isinstance(error, UnexpectedOffset | UnexpectedEnd):
            self._look_at_unexpected(copy, error)
        self._give_up_if_stuck(copy, error)
        if copy.phase is not Phase.FAILED:
            self._retry(copy, error)

    def _retry(self, copy: PartitionCopy, error: MigrationError) -> None:
        if not isinstance(error, OutOfOrder):
            self._appender.detach(copy)
        pause = _RETRY_PAUSES[min(copy.retries, len(_RETRY_PAUSES) - 1)]
        copy.retries += 1
        copy.reset(resume_at=time.monotonic() + pause)
        self._feed.reset(copy)

    def _give_up_if_stuck(self, copy: PartitionCopy, error: MigrationError) -> None:
        now = time.monotonic()
        copy.stuck_since = copy.stuck_since or now
        if now - copy.stuck_since > PATIENCE_SECONDS:
            copy.fail(error)

    def _record_gap(self, copy: PartitionCopy, error: MigrationError) -> None:
        """Retention was faster, and the policy is to go on: the gap is a hole, named in results and evidence."""
        gap = (copy.fetch_offset, int(error.details["log_start_offset"]))
        if not copy.is_fresh:
            copy.gaps.append(gap)
        self._on_chunk(
            copy,
            Chunk(copy.spec.topic, copy.spec.partition, gap[0], gap[1], memoryview(b""), origin="kafka"),
        )
        copy.fetch_offset = max(copy.fetch_offset, gap[1])

    def _split_from_now_on(self, copy: PartitionCopy, error: MigrationError) -> None:
        size = int(error.details["size_bytes"])
        limit = self._max_batch_bytes[copy]
        self._max_batch_bytes[copy] = min(size, limit or size) // 2
        if self._max_batch_bytes[copy] == 0:
            raise RecordTooLarge("the target refuses every size", where=self._where(copy))

    def _look_at_unexpected(self, copy: PartitionCopy, error: MigrationError) -> None:
        """Who wrote between the expected offset and the one that came? Markers of ours, or somebody else."""
        expected = int(error.details["expected_offset"])
        if isinstance(error, UnexpectedEnd):
            if int(error.details["log_end_offset"]) < expected:
                return
            until = int(error.details["log_end_offset"])
        else:
            until = int(error.details["base_offset"])
        for batch in read_span(self._target_wire, copy.target_key, expected, until, isolation=READ_UNCOMMITTED):
            producer_id = batch.producer_id if isinstance(batch, RawBatch) else -1
            if isinstance(batch, RawBatch) and (batch.is_control or batch.base_offset >= until):
                continue
            if producer_id != self._job.producers.data_producer_id:
                raise self._foreign_writer(copy, producer_id, batch.last_offset)
        if isinstance(error, UnexpectedOffset) and until > expected:
            self._accept_displaced(copy, error)

    def _foreign_writer(self, copy: PartitionCopy, producer_id: int, target_offset: int) -> ForeignData:
        return ForeignData(
            f"another producer writes to the target partition while it is copied (producer id {producer_id})",
            where=Where(
                migration_id=self._job.migration_id,
                cluster="target",
                topic=copy.spec.target_topic,
                partition=copy.spec.partition,
                offset=target_offset,
            ),
            next_step="stop that producer, delete the target topic and start again, or leave the topic out",
            details={"producer_id": producer_id, "target_offset": target_offset},
        )

    def _accept_displaced(self, copy: PartitionCopy, error: MigrationError) -> None:
        """Our records lie further on than planned, behind markers that were too many: a new run says where."""
        if self._job.on_mismatch == "fail":
            raise ForeignData(
                "a hole was filled twice: " + error.what,
                where=self._where(copy),
                next_step="delete the target topic and start again, or set offsets.on_mismatch: mapped",
                details=error.details,
            )
        source_offset, base_offset = int(error.details["source_offset"]), int(error.details["base_offset"])
        self._maps.write_ahead(copy.spec, base_offset, [Run(source_offset, base_offset)])
        copy.verdict = Verdict.MAPPED

    def _where(self, copy: PartitionCopy) -> Where:
        return Where(
            migration_id=self._job.migration_id,
            phase=self._job.name,
            topic=copy.spec.topic,
            partition=copy.spec.partition,
            offset=copy.confirmed_source_offset,
        )
