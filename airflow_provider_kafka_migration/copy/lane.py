"""The loop of a lane: fetch, (archive,) decide, place, append. One thread, no state but the target's log.

An error of one partition never stops the others: that partition is reset and resumes, or stops with a named error.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from airflow_provider_kafka_migration.copy.append import Appender
from airflow_provider_kafka_migration.copy.archive import write_gap
from airflow_provider_kafka_migration.copy.layout import OffsetLayout
from airflow_provider_kafka_migration.copy.partition import (
    CopyState,
    PartitionCopy,
    ResumePoint,
    Sent,
    fail_recreated,
)
from airflow_provider_kafka_migration.copy.read_ahead import ARCHIVE_BUFFER_BYTES, SourceReader
from airflow_provider_kafka_migration.copy.read_watch import ReadWatch
from airflow_provider_kafka_migration.copy.recovery import RecoveryPolicy
from airflow_provider_kafka_migration.copy.resume import ResumeFinder
from airflow_provider_kafka_migration.copy.transform import BatchTransformer, Chunk, CopyOp
from airflow_provider_kafka_migration.copy.writers import Writers
from airflow_provider_kafka_migration.documents.copy import CopyJob, CopyLane, PartitionResult
from airflow_provider_kafka_migration.errors import (
    BrokerUnreachable,
    MigrationError,
    RecordTooLarge,
    SliceExpired,
    SourceGap,
    Transient,
    Where,
)
from airflow_provider_kafka_migration.kafka import clock
from airflow_provider_kafka_migration.kafka.connection import BrokerConnection
from airflow_provider_kafka_migration.kafka.wire import Wire
from airflow_provider_kafka_migration.offset_map.store import LaneMaps
from airflow_provider_kafka_migration.storage.base import ObjectStore

# -- polling ----------------------------------------------------------------------------------------------------------
#
# Waits for the sockets of a copier: one selector for the connections of both clusters, and a wake-up for threads.


class SocketPoller:
    """A selector for a copier's sockets. Only :meth:`wake` is thread-safe."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)

    def wake(self) -> None:
        """End the other thread's wait. That thread may have stopped waiting already."""
        with contextlib.suppress(OSError):
            self._wake_writer.send(b"\0")

    def wait(
        self,
        connections: Iterable[BrokerConnection],
        timeout_seconds: float,
        on_broken: Callable[[BrokerConnection, BrokerUnreachable], None],
    ) -> None:
        """Wait until a socket is readable or writable and serve it; pass broken connections to ``on_broken``."""
        self._register(connections)
        for key, events in self._selector.select(timeout_seconds):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    self._wake_reader.recv(4096)
                continue
            connection: BrokerConnection = key.data
            try:
                if events & selectors.EVENT_WRITE and not connection.closed:
                    connection.on_writable()
                if events & selectors.EVENT_READ and not connection.closed:
                    connection.on_readable()
            except BrokerUnreachable as error:
                on_broken(connection, error)

    def _register(self, connections: Iterable[BrokerConnection]) -> None:
        """Update the selector: add new sockets, remove closed ones, and watch for writes where data is waiting."""
        wanted: dict[int, tuple[BrokerConnection | None, int]] = {
            self._wake_reader.fileno(): (None, selectors.EVENT_READ)
        }
        for connection in connections:
            descriptor = connection.fileno()
            if descriptor >= 0:
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.wants_write else 0)
                wanted[descriptor] = (connection, events)
        for key in list(self._selector.get_map().values()):
            if key.fd not in wanted or wanted[key.fd][0] is not key.data:
                self._selector.unregister(key.fd)
        present = self._selector.get_map()
        for fileno, (data, events) in wanted.items():
            if fileno not in present:
                self._selector.register(fileno, events, data)
            elif present[fileno].events != events:
                self._selector.modify(fileno, events, data)

    def close(self) -> None:
        """Close the selector and the wake-up sockets; connections are closed by their owners."""
        self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()


# -- lane -------------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

#: Limits for decided but unsent bytes, of one partition and of the lane; beyond them nothing more is read.
PARTITION_BUFFER_BYTES = 4 * 1024 * 1024
LANE_BUFFER_BYTES = 48 * 1024 * 1024
#: In this last part of a slice, the copier reads nothing more and only waits for confirmations.
CLOSING_SECONDS = 0.5
STOP_POLL_SECONDS = 0.5
#: The lane drops the connection to a broker that leaves a request unanswered for this long; the affected partitions
#: then look up their leaders again.
STALLED_SECONDS = 10.0
#: Log an open transaction that holds records back for this long.
OPEN_TRANSACTION_SECONDS = 2.0


@dataclass(frozen=True)
class SliceLimits:
    """How long, and how fast, a copier may run.

    :param deadline: a moment of the monotonic clock; nothing is sent after it. A ``Deadline`` counts time asleep.
    :param until: maps a partition's copy to its exclusive source stop offset, or to None while there is none.
    :param stop: polled periodically; True ends the slice early.
    :param rate: returns the bytes per second that may be read now; 0 or None is unlimited. Without this function the
        job's rate applies.
    """

    deadline: float
    until: Callable[[PartitionCopy], int | None]
    stop: Callable[[], bool] = lambda: False
    rate: Callable[[], int | None] | None = None


class LaneCopier:
    """Copies the partitions of a lane until all are done, the slice ends, or a stop is requested.

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
        self._lane = lane
        self._source_wire = source
        self._gap_store = map_store
        self.copies = [PartitionCopy(spec, lane.lane) for spec in lane.partitions]
        self._deciders: dict[PartitionCopy, BatchTransformer] = {}
        #: partitions with something to send, and those whose log end must be read: kept separately because a lane may
        #: have thousands of others, which must not add cost to each round
        self._busy: dict[PartitionCopy, None] = {}
        self._resuming: dict[PartitionCopy, None] = dict.fromkeys(self.copies)
        self._maps = LaneMaps(map_store, job.migration_id, self._check_deadline)
        self._placer = OffsetLayout(job, self._maps)
        append = Appender(
            target,
            job.producers,
            busy=self._busy,
            deadline=limits.deadline,
            transactional_id=lane.transactional_id,
            on_trouble=self._on_trouble,
            on_confirmed=self._on_confirmed,
        )
        self._appender = Writers(
            job,
            target,
            append,
            map_store,
            deadline=limits.deadline,
            on_trouble=self._on_trouble,
            on_confirmed=self._on_confirmed,
        )
        self._watch = ReadWatch(job, lane.lane, map_store, self.copies, check=self._check_deadline)
        self._feed = SourceReader(
            job,
            source,
            archive_store,
            copies=self.copies,
            on_chunk=self._on_chunk,
            on_trouble=self._on_trouble,
            wants=self._wants,
            reached=self._is_read,
            rate=limits.rate,
            watch=self._watch,
        )
        self._troubles = RecoveryPolicy(
            job, target, self._appender, self._feed, resuming=self._resuming, on_gap=self._record_gap
        )
        self._resumer = ResumeFinder(job, source, target, archive=self._feed.archive_reader)
        self._buffered_bytes = 0
        self._buffer_limit_bytes = LANE_BUFFER_BYTES + (ARCHIVE_BUFFER_BYTES if job.via == "s3" else 0)
        self._poller = SocketPoller()
        self._feed.wake = self._poller.wake
        self._appender.set_wake(self._poller.wake)
        self._asked_to_stop = False
        self._next_look = 0.0
        self._unsettled: PartitionCopy | None = None

    # -- the loop ----------------------------------------------------------------------------------------------------

    def run(self) -> list[PartitionResult]:
        """Copy the lane and return one result per partition, whatever happened."""
        try:
            if self._source_wire is not None:
                self._watch.load()
            if any(copy.write.fills_holes for copy in self.copies):
                self._appender.prepare()
            self._loop()
        except SliceExpired:
            log.debug("lane %s: the slice has ended", self._lane.lane)
        finally:
            self.close()
        if self._source_wire is not None:
            self._watch.save()
        self._troubles.close()
        results = [copy.result(done=self._is_done(copy)) for copy in self.copies]
        throttled = {
            "source_throttled_seconds": round(self._feed.throttled_seconds, 3),
            "target_throttled_seconds": round(self._appender.throttled_seconds, 3),
        }
        return [results[0].model_copy(update=throttled), *results[1:]] if results else []

    def _loop(self) -> None:
        while True:
            now = time.monotonic()
            if clock.is_over(self._limits.deadline) or self._all_are_settled():
                return
            self._look_around(now)
            if self._asked_to_stop:
                return
            self._resume_due(now)
            self._troubles.settle()
            self._forget_idle_ones()
            self._buffered_bytes = sum(copy.write.pending_bytes for copy in self._busy) + self._feed.reading_bytes
            closing = now >= self._limits.deadline - CLOSING_SECONDS
            if closing and all(copy.write.is_idle for copy in self.copies):
                return
            if not closing:
                self._feed.pump(now)
            self._appender.pump(time.monotonic())
            self._troubles.settle()
            self._wait(self._pause(now))

    def _forget_idle_ones(self) -> None:
        for copy in [copy for copy in self._busy if not copy.write.pending]:
            del self._busy[copy]

    def _look_around(self, now: float) -> None:
        """Check periodically for a stop request, lasting open transactions and brokers that do not answer."""
        if now < self._next_look:
            return
        self._next_look = now + STOP_POLL_SECONDS
        self._asked_to_stop = self._limits.stop()
        for copy in self.copies:
            self._look_for_open_transactions(copy, now)
        for connection in self._connections():
            if connection.waiting_seconds(now) > STALLED_SECONDS:
                self._on_broken(connection, connection.no_answer())

    def _look_for_open_transactions(self, copy: PartitionCopy, now: float) -> None:
        """Log once when, for a while, only an open transaction keeps the copier from reading on."""
        if not copy.read.held_back or copy.read.next_offset < copy.read.last_stable_offset or self._is_read(copy):
            copy.read.held_since = None
            return
        if copy.read.held_since is None:
            copy.read.held_since = now
        elif 0 < now - copy.read.held_since >= OPEN_TRANSACTION_SECONDS:
            copy.read.held_since = float("inf")
            log.warning(
                "%s-%s: an open transaction on the source holds back %s records (last stable offset %s, "
                "high watermark %s)",
                *copy.key,
                copy.read.held_back,
                copy.read.last_stable_offset,
                copy.read.high_watermark,
            )

    def _pause(self, now: float) -> float:
        due = [copy.due_at - now for copy in self._still_resuming()]
        due.append(self._limits.deadline - now)
        due.append(STOP_POLL_SECONDS)
        due.append(self._appender.next_due(now) - now)
        due.append(self._feed.next_due(now) - now)
        muted = [channel.muted_until - now for channel in self._appender.channels if channel.muted_until > now]
        return max(0.0, min(due + muted))

    def _connections(self) -> list[BrokerConnection]:
        channels = [channel.connection for channel in self._appender.channels]
        return channels + [reader.connection for reader in self._feed.readers]

    def _wait(self, timeout_seconds: float) -> None:
        self._poller.wait(self._connections(), timeout_seconds, self._on_broken)
        self._feed.collect()

    def _on_broken(self, connection: BrokerConnection, error: BrokerUnreachable) -> None:
        for channel in self._appender.channels:
            if channel.connection is connection:
                self._appender.lose(channel, error)
        for reader in self._feed.readers:
            if reader.connection is connection:
                self._feed.lose(reader, error)

    def close(self) -> None:
        """Close all sockets; unanswered requests have an unknown outcome."""
        self._feed.close()
        self._appender.close()
        self._poller.close()

    def _check_deadline(self) -> None:
        if clock.is_over(self._limits.deadline):
            raise SliceExpired(
                "the slice has ended", next_step="none: the next slice continues from the target's log end"
            )

    # -- progress of a partition -------------------------------------------------------------------------------------

    def _is_read(self, copy: PartitionCopy) -> bool:
        until = self._limits.until(copy)
        return until is not None and copy.read.next_offset >= until

    def _is_done(self, copy: PartitionCopy) -> bool:
        return self._is_copied(copy) and not (copy.write.fills_holes and copy.write.excess_markers > 0)

    def _is_copied(self, copy: PartitionCopy) -> bool:
        """Whether everything up to the stop offset is decided, and confirmed by the target."""
        until = self._limits.until(copy)
        return (
            until is not None
            and copy.state is CopyState.RUNNING
            and copy.write.is_idle
            and copy.write.source_offset >= until
        )

    def _all_are_settled(self) -> bool:
        """Whether every partition is done or failed.

        The partition that was unsettled at the last check comes first: usually it still is, and settles the question.
        """
        if self._unsettled is not None and not self._is_settled(self._unsettled):
            return False
        self._unsettled = next((copy for copy in self.copies if not self._is_settled(copy)), None)
        return self._unsettled is None

    def _is_settled(self, copy: PartitionCopy) -> bool:
        if self._is_copied(copy) and not self._is_done(copy):
            try:
                self._placer.settle_end(copy)
            except MigrationError as error:
                self._on_trouble(copy, error)
        return copy.state is CopyState.FAILED or self._is_done(copy)

    def _wants(self, copy: PartitionCopy) -> bool:
        return (
            copy.state is CopyState.RUNNING
            and copy.stopping is None
            and not self._is_read(copy)
            and copy.write.pending_bytes < PARTITION_BUFFER_BYTES
            and self._buffered_bytes < self._buffer_limit_bytes
        )

    # -- resume ------------------------------------------------------------------------------------------------------

    def _still_resuming(self) -> list[PartitionCopy]:
        for copy in [copy for copy in self._resuming if copy.state is not CopyState.RESUMING]:
            del self._resuming[copy]
        return [copy for copy in self._resuming if not self._appender.is_settling(copy)]

    def _resume_due(self, now: float) -> None:
        due = [copy for copy in self._still_resuming() if copy.due_at <= now]
        if not due:
            return
        found: dict[PartitionCopy, ResumePoint | MigrationError | None]
        try:
            self._check_topic_ids(due)
            due = [copy for copy in due if copy.state is CopyState.RESUMING and copy.due_at <= now]
            found = self._appender.resume(due, self._resumer, self._maps) if due else {}
        except Transient as error:
            found = dict.fromkeys(due, error)
        for copy, point in found.items():
            if point is None:
                # The replicas are behind. That is not an error; the log is read again soon.
                copy.resume_at = now + 0.05
                self._troubles.is_patient(
                    copy, Transient("the target's replicas are not catching up", where=self._where(copy))
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
        except MigrationError as error:
            self._on_trouble(copy, error)
            return
        if copy.figures.went_back and copy.figures.went_back[-1][1] == point.target_end_offset:
            log.warning(
                "%s-%s: the target's log end went back from %s to %s (unclean election?); copying again from the "
                "source",
                *copy.key,
                *copy.figures.went_back[-1],
            )
        self._deciders[copy] = BatchTransformer(
            point.source_offset,
            self._job.timestamps,
            copy.spec.max_batch_bytes,
            split_bytes=self._troubles.split_bytes(copy),
            where=Where(migration_id=self._job.migration_id, topic=copy.spec.topic, partition=copy.spec.partition),
        )

    def _check_topic_ids(self, copies: Sequence[PartitionCopy]) -> None:
        """Fail partitions whose topic was deleted and recreated: it is another topic, whatever its offsets are."""
        if self._source_wire is None:
            return
        for copy, error in fail_recreated(self._source_wire, copies, self._where).items():
            self._on_trouble(copy, error)
            # settle() handles the noted error before the next check. Until then nothing may look up leaders of a topic
            # that does not exist.
            copy.resume_at = float("inf")

    # -- chunks ------------------------------------------------------------------------------------------------------

    def _on_chunk(self, copy: PartitionCopy, chunk: Chunk) -> None:
        """Decide a chunk that is durable in every place that the job requires."""
        if self._source_wire is None:
            # A restore knows the source only as it was when the segment was written.
            copy.read.last_stable_offset = max(copy.read.last_stable_offset, chunk.last_stable_offset)
        if copy.stopping is not None or copy.state is not CopyState.RUNNING:
            return
        try:
            steps: list[CopyOp] = []
            # Once a partition leaves out its holes, it does so for as long as this decider lives.
            self._deciders[copy].packs = not copy.write.fills_holes
            try:
                # Steps decided before a record that is too large stay in the list.
                steps.extend(self._deciders[copy].decide_chunk(chunk))
            except RecordTooLarge as error:
                copy.stopping = error
            self._busy[copy] = None
            self._placer.place(copy, steps)
            self._stop_when_idle(copy)
        except MigrationError as error:
            self._on_trouble(copy, error)

    def _record_gap(self, copy: PartitionCopy, error: SourceGap) -> None:
        """Record a gap when retention was faster than the copy and the policy is to continue.

        The gap becomes a hole that results and evidence name.
        """
        log_start_offset = int(error.details["log_start_offset"])
        gap = (copy.read.next_offset, self._feed.gap_until(copy, log_start_offset))
        # A copier that wakes up late must not mark as a gap what others may have read before it was deleted.
        self._check_deadline()
        if copy.is_fresh:
            copy.read.start_offset = gap[1]
        else:
            # Written ahead: a copier that resumes behind the gap can no longer see it.
            write_gap(self._gap_store, self._job.migration_id, copy.spec, gap)
            copy.figures.gaps.append(gap)
        self._feed.pass_gap(copy, gap[1], log_start_offset)

    def _on_confirmed(self, copy: PartitionCopy, _sent: Sent | None) -> None:
        if self._troubles.relax(copy) and copy in self._deciders:
            self._deciders[copy].split_bytes = self._troubles.split_bytes(copy)
        self._stop_when_idle(copy)

    def _stop_when_idle(self, copy: PartitionCopy) -> None:
        """Stop a failed partition once everything decided before the error is sent, so that nothing overtakes it."""
        if copy.stopping is not None and copy.write.is_idle:
            self._on_trouble(copy, copy.stopping)

    def _on_trouble(self, copy: PartitionCopy, error: MigrationError) -> None:
        self._troubles.note(copy, error)

    def _where(self, copy: PartitionCopy) -> Where:
        return Where(
            migration_id=self._job.migration_id,
            phase=self._job.name,
            topic=copy.spec.topic,
            partition=copy.spec.partition,
            offset=copy.write.confirmed_source_offset,
        )
