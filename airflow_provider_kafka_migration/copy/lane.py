"""The loop of a lane: one thread that moves what is read to the end that the lane writes to.

    source -> (archive) -> transform -> layout -> writer     seed, tail, restore   (``TargetSink``)
    source ->  archive                                       backup                (``ArchiveSink``)

Every stage is polled and returns what has come since the last time; nothing calls back into the loop. A lane stores no
position: the target's log, or the archive, determines where it continues. An error of one partition never stops the
others: that partition is reset and resumes, or stops with a named error.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from airflow_provider_kafka_migration.copy.backup import ArchiveSink
from airflow_provider_kafka_migration.copy.limits import SliceLimits
from airflow_provider_kafka_migration.copy.partition import (
    CopyState,
    PartitionCopy,
    Read,
    ResumePoint,
    Trouble,
    fail_recreated,
)
from airflow_provider_kafka_migration.copy.read_ahead import ARCHIVE_BUFFER_BYTES, SourceReader
from airflow_provider_kafka_migration.copy.read_watch import ReadWatch
from airflow_provider_kafka_migration.copy.recovery import RecoveryPolicy
from airflow_provider_kafka_migration.copy.recovery import Sink as RecoverySink
from airflow_provider_kafka_migration.copy.resuming.finder import Resumed
from airflow_provider_kafka_migration.copy.target import TargetSink
from airflow_provider_kafka_migration.copy.transform import Chunk
from airflow_provider_kafka_migration.documents.copy import CopyJob, CopyLane, PartitionResult
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import BrokerUnreachable, MigrationError, SliceExpired, Transient
from airflow_provider_kafka_migration.kafka.connection import BrokerConnection
from airflow_provider_kafka_migration.kafka.poller import SocketPoller
from airflow_provider_kafka_migration.kafka.wire import Wire
from airflow_provider_kafka_migration.storage.base import ObjectStore

log = logging.getLogger(__name__)

#: Limit for decided but unsent bytes of one partition; beyond it nothing more of it is read.
PARTITION_BUFFER_BYTES = 4 * 1024 * 1024
STOP_POLL_SECONDS = 0.5
#: The lane drops the connection to a broker that leaves a request unanswered for this long; the affected partitions
#: then look up their leaders again.
STALLED_SECONDS = 10.0
#: Log an open transaction that holds records back for this long.
OPEN_TRANSACTION_SECONDS = 2.0
#: Partitions of which earlier slices have copied nothing have this part of a slice for themselves, if they need it.
_FIRST_SHARE = 3
#: Pause before the target's log is read again when its replicas are behind.
_REPLICAS_SECONDS = 0.05


def _in_order(lane: CopyLane) -> list[PartitionCopy]:
    """Return the copies of a lane, those that waited longest first."""
    copies = {spec.key: PartitionCopy(spec, lane.lane) for spec in lane.partitions}
    first = [copies.pop(key) for key in lane.goes_first if key in copies]
    for copy in first:
        copy.goes_first = True
    return [*first, *copies.values()]


def _still_waits(copy: PartitionCopy) -> bool:
    """Return whether a partition may still have something to copy in this slice that it has not begun with."""
    if copy.progressed_at is not None or copy.state is CopyState.FAILED or copy.trouble is not None:
        return False
    return copy.read.had_backlog or copy.read.last_stable_offset < 0


class Sink(RecoverySink, Protocol):
    """The end that a lane writes to: :class:`TargetSink` or :class:`ArchiveSink`."""

    #: limit for what the lane may hold unsent, in addition to what is on its way to the archive
    buffer_bytes: int
    #: how long before the deadline the lane stops reading
    closing_seconds: float
    #: whether a request to stop waits until the sink is drained
    drains_when_stopped: bool

    @property
    def connections(self) -> Sequence[BrokerConnection]: ...
    @property
    def throttled_seconds(self) -> float: ...
    @property
    def pending_bytes(self) -> int: ...

    def prepare(self, copies: Iterable[PartitionCopy]) -> None: ...
    def is_settling(self, copy: PartitionCopy) -> bool: ...
    def resume(self, copies: Sequence[PartitionCopy]) -> dict[PartitionCopy, Resumed]: ...
    def begin(self, copy: PartitionCopy, point: ResumePoint) -> None: ...
    def take(self, copy: PartitionCopy, chunk: Chunk) -> None: ...
    def poll(self) -> list[Trouble]: ...
    def send(self, now: float) -> None: ...
    def next_due(self, now: float) -> float: ...
    def settle_end(self, copy: PartitionCopy) -> None: ...
    def is_drained(self, copies: Iterable[PartitionCopy]) -> bool: ...
    def lose(self, connection: BrokerConnection, error: MigrationError) -> None: ...
    def result(self, copy: PartitionCopy, *, done: bool) -> PartitionResult: ...
    def close(self) -> None: ...


class Lane:
    """Copies the partitions of a lane until all are done, the slice ends, or a stop is requested.

    :param source: None for a restore from segments alone.
    :param target: None for a backup.
    :param map_store: holds offset maps, gaps, and how far the source was read; of a backup it is the archive.
    :param archive_store: holds the segments; None if the job does not go through an archive.
    """

    def __init__(
        self,
        job: CopyJob,
        lane: CopyLane,
        *,
        source: Wire | None,
        target: Wire | None,
        map_store: ObjectStore,
        archive_store: ObjectStore | None,
        limits: SliceLimits,
    ) -> None:
        self._job = job
        self._lane = lane
        self._limits = limits
        self._source_wire = source
        self.copies = _in_order(lane)
        #: until then, or until they have progressed, partitions that waited have the lane for themselves
        self._others_begin = time.monotonic() + max(0.0, (limits.deadline - time.monotonic()) / _FIRST_SHARE)
        self._poller = SocketPoller()
        self._watch = ReadWatch(job, lane.lane, map_store, self.copies, check=limits.check)
        self.source = SourceReader(
            job, source, archive_store, copies=self.copies, limits=limits, wake=self._poller.wake, watch=self._watch
        )
        self.sink = self._open_sink(target, map_store, archive_store)
        #: partitions whose position must be found: kept separately because a lane may have thousands of others
        self._resuming: dict[PartitionCopy, None] = dict.fromkeys(self.copies)
        self.recovery = RecoveryPolicy(
            job, self.source, self.sink, limits=limits, resuming=self._resuming, gap_store=map_store
        )
        self._buffer_limit_bytes = self.sink.buffer_bytes + (ARCHIVE_BUFFER_BYTES if job.via == "s3" else 0)
        self._buffered_bytes = 0
        self._is_stopping = False
        self._next_check = 0.0
        self._unsettled: PartitionCopy | None = None

    def _open_sink(self, target: Wire | None, map_store: ObjectStore, archive_store: ObjectStore | None) -> Sink:
        if target is None:
            assert archive_store is not None
            return ArchiveSink(self._job, archive_store, self.source, self._limits)
        return TargetSink(
            self._job,
            self._lane,
            target,
            source=self._source_wire,
            map_store=map_store,
            archive=self.source.archive_reader,
            limits=self._limits,
            wake=self._poller.wake,
        )

    # -- the loop ----------------------------------------------------------------------------------------------------

    def run(self) -> list[PartitionResult]:
        """Copy the lane and return one result per partition, whatever happened."""
        try:
            if self._source_wire is not None:
                self._watch.load()
            self.sink.prepare(self.copies)
            self._loop()
        except SliceExpired:
            log.debug("lane %s: the slice has ended", self._lane.lane)
        finally:
            self.close()
        if self._source_wire is not None:
            self._watch.save()
        # What the loop has not looked at any more: an error that takes a whole slice to occur must not be lost.
        self._note(self.source.last_troubles())
        self._note(self.sink.poll())
        self.recovery.close()
        results = [self.sink.result(copy, done=self._is_done(copy)) for copy in self.copies]
        throttled = {
            "source_throttled_seconds": round(self.source.throttled_seconds, 3),
            "target_throttled_seconds": round(self.sink.throttled_seconds, 3),
        }
        return [results[0].model_copy(update=throttled), *results[1:]] if results else []

    def _loop(self) -> None:
        while not self._limits.is_over and not self._all_are_settled():
            now = time.monotonic()
            self._check_around(now)
            is_closing = self._is_stopping or self._limits.ends_within(self.sink.closing_seconds)
            if is_closing and self._may_end():
                return
            self._resume_due(now)
            for item in self.source.poll():
                self._take(item)
            self._note(self.sink.poll())
            self.recovery.settle()
            if not is_closing:
                self._buffered_bytes = self.sink.pending_bytes + self.source.reading_bytes
                self.source.fetch_more(now, self._has_room)
            self.sink.send(time.monotonic())
            self._poller.wait(self._connections(), self._pause(now), self._lose)

    def _take(self, item: Read | Trouble) -> None:
        """Hand a chunk, which is durable in every place that the job requires, to the sink."""
        if isinstance(item, Trouble):
            self.recovery.note(item)
            return
        copy, chunk = item.copy, item.chunk
        if self._source_wire is None:
            # A restore knows the source only as it was when the segment was written.
            copy.read.last_stable_offset = max(copy.read.last_stable_offset, chunk.last_stable_offset)
        if item.is_stale or copy.stopping is not None or copy.state is not CopyState.RUNNING:
            return
        try:
            self.sink.take(copy, chunk)
        except MigrationError as error:
            self.recovery.note(Trouble.of(copy, error))

    def _note(self, troubles: Iterable[Trouble]) -> None:
        for trouble in troubles:
            self.recovery.note(trouble)

    def _has_room(self, copy: PartitionCopy) -> bool:
        return (
            copy.state is CopyState.RUNNING
            and copy.stopping is None
            and not self._limits.is_read(copy)
            and copy.write.pending_bytes < PARTITION_BUFFER_BYTES
            and self._buffered_bytes < self._buffer_limit_bytes
        )

    def _may_end(self) -> bool:
        """Return whether a lane that reads nothing more has nothing left to wait for."""
        if self._is_stopping and not self.sink.drains_when_stopped:
            return True
        return self.sink.is_drained(self.copies)

    def _pause(self, now: float) -> float:
        if self._all_are_settled():
            return 0.0  # the last partition has just ended: no answer and no time brings anything more
        due = [copy.due_at for copy in self._still_resuming()]
        if self._others_begin > now:
            due.append(self._others_begin)
        due += [self._limits.deadline, now + STOP_POLL_SECONDS, self.sink.next_due(now), self.source.next_due(now)]
        return max(0.0, min(due) - now)

    def _connections(self) -> list[BrokerConnection]:
        return [*self.sink.connections, *self.source.connections]

    def _lose(self, connection: BrokerConnection, error: BrokerUnreachable) -> None:
        self.sink.lose(connection, error)
        self.source.lose(connection, error)

    def close(self) -> None:
        """Close all sockets; unanswered requests have an unknown outcome."""
        self.source.close()
        self.sink.close()
        self._poller.close()

    # -- now and then ------------------------------------------------------------------------------------------------

    def _check_around(self, now: float) -> None:
        """Check periodically for a stop request, lasting open transactions and brokers that do not answer."""
        if now < self._next_check:
            return
        self._next_check = now + STOP_POLL_SECONDS
        self._is_stopping = self._is_stopping or self._limits.stop()
        self._watch.save_first_ends(now)
        for copy in self.copies:
            self._check_open_transactions(copy, now)
        for connection in self._connections():
            if connection.waiting_seconds(now) > STALLED_SECONDS:
                self._lose(connection, connection.no_answer())

    def _check_open_transactions(self, copy: PartitionCopy, now: float) -> None:
        """Log once when, for a while, only an open transaction keeps the copier from reading on."""
        read = copy.read
        if not read.held_back or read.next_offset < read.last_stable_offset or self._limits.is_read(copy):
            read.held_since, read.is_held_logged = None, False
            return
        if read.held_since is None:
            read.held_since = now
        elif not read.is_held_logged and now - read.held_since >= OPEN_TRANSACTION_SECONDS:
            read.is_held_logged = True
            log.warning(
                "%s-%s: an open transaction on the source holds back %s records (last stable offset %s, "
                "high watermark %s)",
                *copy.key,
                read.held_back,
                read.last_stable_offset,
                read.high_watermark,
            )

    # -- progress of a partition -------------------------------------------------------------------------------------

    def _is_done(self, copy: PartitionCopy) -> bool:
        return self._is_copied(copy) and not (copy.write.fills_holes and copy.write.excess_markers > 0)

    def _is_copied(self, copy: PartitionCopy) -> bool:
        """Whether everything up to the stop offset is decided, and confirmed by the target."""
        until = self._limits.until(copy)
        if until is None or copy.state is not CopyState.RUNNING:
            return False
        return copy.write.is_idle and copy.write.source_offset >= until

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
                self.sink.settle_end(copy)
            except MigrationError as error:
                self.recovery.note(Trouble.of(copy, error))
        return copy.state is CopyState.FAILED or self._is_done(copy)

    # -- resume ------------------------------------------------------------------------------------------------------

    def _still_resuming(self) -> list[PartitionCopy]:
        for copy in [copy for copy in self._resuming if copy.state is not CopyState.RESUMING]:
            del self._resuming[copy]
        first = self._go_first()
        return [copy for copy in self._resuming if not self.sink.is_settling(copy) and (not first or copy in first)]

    def _go_first(self) -> set[PartitionCopy]:
        """Return the partitions that waited longest and have not progressed yet, while the others let them begin."""
        if time.monotonic() >= self._others_begin:
            return set()
        first = {copy for copy in self.copies if copy.goes_first and _still_waits(copy)}
        if not first:
            self._others_begin = 0.0
        return first

    def _resume_due(self, now: float) -> None:
        due = [copy for copy in self._still_resuming() if copy.due_at <= now]
        if not due:
            return
        found: dict[PartitionCopy, Resumed]
        try:
            self._check_topic_ids(due)
            due = [copy for copy in due if copy.state is CopyState.RESUMING and copy.due_at <= now]
            found = self.sink.resume(due) if due else {}
        except Transient as error:
            found = dict.fromkeys(due, error)
        for copy, point in found.items():
            if point is None:
                # The replicas are behind, or a transaction. That is not an error; the log is read again soon.
                copy.resume_at = now + _REPLICAS_SECONDS
                in_transactions = copy.spec.verdict is Verdict.TRANSACTIONAL
                behind = "the last transaction is not over" if in_transactions else "replicas are not catching up"
                self.recovery.is_patient(
                    copy, Transient(f"the copy waits for the target: {behind}", where=copy.where(self._job))
                )
            elif isinstance(point, ResumePoint):
                self._begin(copy, point)
            else:
                self.recovery.note(Trouble.of(copy, point))

    def _begin(self, copy: PartitionCopy, point: ResumePoint) -> None:
        try:
            self.sink.begin(copy, point)
            self.source.attach([copy])
        except MigrationError as error:
            self.recovery.note(Trouble.of(copy, error))

    def _check_topic_ids(self, copies: Sequence[PartitionCopy]) -> None:
        """Fail partitions whose topic was deleted and recreated: it is another topic, whatever its offsets are."""
        if self._source_wire is None:
            return
        for copy, error in fail_recreated(self._source_wire, copies, lambda copy: copy.where(self._job)).items():
            self.recovery.note(Trouble.of(copy, error))
            # settle() handles the noted error before the next check. Until then nothing may look up leaders of a topic
            # that does not exist.
            copy.resume_at = float("inf")
