"""Reads chunks for a lane from the source cluster, from the archive, or from the source through the archive.

Through S3 ("write-through"), a chunk is durable in the archive before the target sees it; a resumed copy reads what the
archive has, and the source only from there on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from airflow_provider_kafka_migration.copy.archive import SegmentIndex, SegmentWriter
from airflow_provider_kafka_migration.copy.limits import SliceLimits
from airflow_provider_kafka_migration.copy.partition import CopyState, PartitionCopy, Read, Trouble
from airflow_provider_kafka_migration.copy.read_watch import ReadWatch
from airflow_provider_kafka_migration.copy.resuming.agreement import ReadChunk, chunks_of_archive
from airflow_provider_kafka_migration.copy.source import PARTITION_FETCH_BYTES, KafkaSource, last_epoch
from airflow_provider_kafka_migration.copy.transform import Chunk
from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.errors import MigrationError, StorageUnavailable, Terminal, Where
from airflow_provider_kafka_migration.kafka.batches.api import read_batches
from airflow_provider_kafka_migration.kafka.connection import BrokerConnection
from airflow_provider_kafka_migration.kafka.fetch import Aborted
from airflow_provider_kafka_migration.kafka.wire import Wire
from airflow_provider_kafka_migration.storage.base import ObjectStore

#: Limit for the bytes that a lane gathers for segments or is putting into the archive; beyond it, it reads nothing
#: more.
ARCHIVE_BUFFER_BYTES = 64 * 1024 * 1024
ARCHIVE_THREADS = 8
#: Concurrent puts of one partition; their chunks are passed on in order, whichever put ends first.
PUTS_PER_PARTITION = 2
#: Segments are at least this large even if many partitions share the buffer.
_LEAST_SEGMENT_BYTES = 4 * 1024 * 1024
#: Pauses before a restore looks for more segments of a partition: each is twice the last if nothing new came.
_FIRST_LOOK_SECONDS, _LONGEST_LOOK_SECONDS = 0.1, 3.2


@dataclass
class _Gathered:
    """Chunks of one partition that wait to become a segment.

    Their bytes are copied immediately: a view would keep the whole answer in memory, with other partitions' chunks.
    """

    first: Chunk
    last: Chunk
    data: bytearray = field(default_factory=bytearray)
    began_at: float = field(default_factory=time.monotonic)
    aborted: set[Aborted] = field(default_factory=set)

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def add(self, chunk: Chunk) -> None:
        self.data += chunk.batches
        self.aborted.update(chunk.aborted)
        self.last = replace(chunk, batches=memoryview(b""), parsed=None)

    def joined(self) -> Chunk:
        return replace(
            self.first,
            until_offset=self.last.until_offset,
            batches=memoryview(self.data),
            aborted=sorted(self.aborted, key=lambda pair: pair[::-1]),
            last_stable_offset=self.last.last_stable_offset,
            source_bytes=self.size_bytes,
        )

    @classmethod
    def of(cls, chunk: Chunk) -> _Gathered:
        first = replace(chunk, batches=memoryview(b""), parsed=None)
        gathered = cls(first, first)
        gathered.add(chunk)
        return gathered


class SourceReader:
    """Reads a lane's partitions, one after the other or several concurrently.

    :param wake: ends the lane's wait when a background put or get has ended. Thread-safe.
    :param watch: notified of each answer of the source.
    """

    def __init__(
        self,
        job: CopyJob,
        source: Wire | None,
        archive_store: ObjectStore | None,
        *,
        copies: Sequence[PartitionCopy],
        limits: SliceLimits,
        wake: Callable[[], object],
        watch: ReadWatch | None = None,
    ) -> None:
        self._job = job
        self._limits = limits
        self._rate = limits.rate or (lambda: job.max_bytes_per_second)
        #: the rate when the next read was postponed
        self._rate_before: int | None = None
        self._copies = sorted(copies, key=lambda copy: copy.key)
        #: what was read since the last poll and is durable, and errors
        self._ready: list[Read | Trouble] = []
        self._wake = wake
        self._archive = archive_store if job.via == "s3" else None
        # A segment has room for at least two fetches; otherwise each fetch would become a segment, however small.
        self._fetch_bytes = min(PARTITION_FETCH_BYTES, job.segment_max_bytes // 2)
        self._kafka: KafkaSource | None = None
        if source is not None:
            self._kafka = KafkaSource(
                source,
                partition_fetch_bytes=self._fetch_bytes,
                watch=watch,
            )
        self._pool = ThreadPoolExecutor(ARCHIVE_THREADS, "archive") if self._archive is not None else None
        self._gathered: dict[PartitionCopy, _Gathered] = {}
        self._working: dict[PartitionCopy, deque[tuple[int, Future[Chunk | None]]]] = {}
        #: unfinished background work that earlier incarnations of a partition have begun
        self._left_behind: dict[PartitionCopy, list[Future[Chunk | None]]] = {}
        self._indexes: dict[PartitionCopy, SegmentIndex] = {}
        self._from_archive: set[PartitionCopy] = set()
        self._read_again_at = 0.0
        #: when the archive is checked again for a partition of which it had no more, and after which pause
        self._look_again: dict[PartitionCopy, tuple[float, float]] = {}
        self._active: frozenset[PartitionCopy] = frozenset()
        #: partitions that may have something left to read, so that finished ones are not checked all the time
        self._unread: dict[PartitionCopy, None] = dict.fromkeys(copies)

    @property
    def _is_backup(self) -> bool:
        """Whether this is a backup, which begins where the archive ends and reads nothing from it."""
        return self._job.name == "backup"

    @property
    def connections(self) -> list[BrokerConnection]:
        """Open connections to source leaders."""
        return [] if self._kafka is None else self._kafka.connections

    def poll(self) -> list[Read | Trouble]:
        """Return what was read since the last poll, durable in every place that the job requires, and errors.

        The chunks of a partition come in offset order.
        """
        self._collect()
        for item in self._kafka.poll() if self._kafka is not None else ():
            if isinstance(item, Trouble):
                self._ready.append(item)
            elif not item.is_stale:
                self.take(item.copy, item.chunk)
        ready, self._ready = self._ready, []
        return ready

    def last_troubles(self) -> list[Trouble]:
        """Return the errors since the last poll, for a reader that is closed: nothing more is read or archived."""
        unseen = [*self._ready, *(self._kafka.poll() if self._kafka is not None else ())]
        return [item for item in unseen if isinstance(item, Trouble)]

    def _report(self, copy: PartitionCopy, error: MigrationError) -> None:
        self._ready.append(Trouble.of(copy, error))

    @property
    def throttled_seconds(self) -> float:
        """For how long the source's quotas have delayed this lane."""
        return 0.0 if self._kafka is None else self._kafka.throttling.seconds

    @property
    def reading_bytes(self) -> int:
        """Bytes of all partitions that are read but not passed on yet."""
        return sum(copy.read.undecided_bytes for copy in self._gathered.keys() | self._working.keys())

    def next_due(self, now: float) -> float:
        """Return when to poll or to fetch next even if nothing comes before (monotonic clock)."""
        if self._ready:
            return now
        due = [now + _LONGEST_LOOK_SECONDS if self._kafka is None else self._kafka.next_due(now)]
        if self._read_again_at > now:
            due = [self._read_again_at]
        if self._is_backup:
            due.append(now + self.due_seconds(now))
        return min(due)

    def archive_reader(self, copy: PartitionCopy) -> ReadChunk | None:
        """Return a reader of what the archive has of a partition; None without an archive."""
        return None if self._archive is None else chunks_of_archive(self._index(copy))

    def lose(self, connection: BrokerConnection, error: MigrationError) -> None:
        """Drop a broken connection, if it is one to a source leader."""
        if self._kafka is not None:
            self._kafka.lose(connection, error)

    def attach(self, copies: Iterable[PartitionCopy]) -> None:
        """Begin to read partitions at their ``fetch_offset``."""
        for copy in copies:
            if self._archive is not None and not self._is_backup:
                self._from_archive.add(copy)
            elif self._kafka is not None:
                self._kafka.attach([copy])

    def reset(self, copy: PartitionCopy) -> None:
        """Drop what was read of a partition; reading starts again after the partition resumes."""
        self._gathered.pop(copy, None)
        self._leave_behind(copy, self._working.pop(copy, ()))
        self._from_archive.discard(copy)
        self._unread[copy] = None
        if self._kafka is not None:
            self._kafka.detach(copy)

    def close(self) -> None:
        """Stop reading. An unfinished put ends by itself; whether its segment counts or not, both are correct."""
        if self._kafka is not None:
            self._kafka.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    # -- which partitions --------------------------------------------------------------------------------------------

    def _may_fetch(self, copy: PartitionCopy) -> bool:
        return (
            self._is_active(copy)
            and copy not in self._from_archive
            and len(self._working.get(copy, ())) < PUTS_PER_PARTITION
        )

    def _is_active(self, copy: PartitionCopy) -> bool:
        return copy.state is CopyState.RUNNING if self._follows else copy in self._active

    def _choose_active(self) -> None:
        """Choose the partitions to read.

        A seed reads only some at a time, so that their segments get large. A copy that follows the source reads all.
        """
        if self._follows:
            return
        chosen: list[PartitionCopy] = []
        done: list[PartitionCopy] = []
        for copy in self._unread:
            if len(chosen) >= self._job.max_concurrent_partitions:
                break
            if copy.state is CopyState.RUNNING:
                (done if self._limits.is_read(copy) else chosen).append(copy)
        for copy in done:
            del self._unread[copy]
        self._active = frozenset(chosen)

    @property
    def _follows(self) -> bool:
        """Whether partitions have no end yet, so that the copy must read all of them continuously."""
        return self._job.name == "tail" or (self._job.name != "seed" and self._job.stop_key is not None)

    def flush(self) -> bool:
        """Put what was gathered, whatever its size; return whether any put is still unfinished."""
        for copy, gathered in list(self._gathered.items()):
            self._put(copy, gathered)
        return bool(self._working)

    def due_seconds(self, now: float) -> float:
        """Return after how long gathered chunks have to be put."""
        waits = [gathered.began_at + self._job.segment_linger_seconds - now for gathered in self._gathered.values()]
        return max(min(waits, default=60.0), 0.02)

    def fetch_more(self, now: float, has_room: Callable[[PartitionCopy], bool]) -> None:
        """Read more of the partitions that have room for it."""
        self._choose_active()
        if self._is_held_back(now):
            return
        # In a seed most partitions wait here for their turn, so only those that are due are sorted.
        due = [
            copy
            for copy in self._from_archive
            if self._is_active(copy) and copy not in self._working and now >= self._look_again.get(copy, (0.0,))[0]
        ]
        for copy in sorted(due, key=lambda item: item.key):
            if has_room(copy):
                self._look_into_archive(copy)
        if self._kafka is not None:
            self._kafka.fetch_more(now, lambda copy: self._may_fetch(copy) and has_room(copy))
        self._put_leftovers()

    def _throttle(self, size_bytes: int) -> None:
        rate = self._rate_before = self._rate()
        if rate:
            now = time.monotonic()
            self._read_again_at = max(now, self._read_again_at) + size_bytes / rate

    def _is_held_back(self, now: float) -> bool:
        """Return whether the rate forbids reading now. A change of the rate ends a pause due to the former rate."""
        if now < self._read_again_at and self._rate() != self._rate_before:
            self._rate_before, self._read_again_at = self._rate(), now
        return now < self._read_again_at

    # -- through the archive -----------------------------------------------------------------------------------------

    def take(self, copy: PartitionCopy, chunk: Chunk) -> None:
        """Take a chunk from the source cluster."""
        self._throttle(chunk.source_bytes)
        copy.read.next_offset = chunk.until_offset
        if self._archive is None:
            self._ready.append(Read.of(copy, chunk))
        else:
            self._gather(copy, chunk)

    def _gather(self, copy: PartitionCopy, chunk: Chunk) -> None:
        """Keep a chunk for the archive; it is passed on when it is durable."""
        gathered = self._gathered.get(copy)
        if gathered is not None and gathered.size_bytes + len(chunk.batches) > self._segment_bytes():
            self._put(copy, gathered)
            gathered = None
        if gathered is None:
            self._gathered[copy] = _Gathered.of(chunk)
        else:
            gathered.add(chunk)
        copy.read.undecided_bytes += len(chunk.batches)

    def _leave_behind(self, copy: PartitionCopy, waiting: Iterable[tuple[int, Future[Chunk | None]]]) -> None:
        """Stop waiting for these puts and gets; a put may still bring its segment into the archive."""
        before = self._left_behind.pop(copy, [])
        left = [future for future in [*before, *(future for _, future in waiting)] if not future.done()]
        if left:
            self._left_behind[copy] = left

    def unfinished_put(self, copy: PartitionCopy) -> StorageUnavailable | None:
        """Return why it is not known yet what the archive has of a partition; None if it is known.

        An earlier incarnation of the copy may have read what the source has deleted since: the copier waits for its put
        before it records a gap.
        """
        self._leave_behind(copy, ())
        if copy not in self._left_behind:
            return None
        return StorageUnavailable(
            "records that the source has deleted since are still being written to the archive",
            where=Where(topic=copy.spec.topic, partition=copy.spec.partition, offset=copy.read.next_offset),
            next_step="none: the partition continues when the storage has answered",
        )

    def back_to_archive(self, copy: PartitionCopy) -> bool:
        """Switch to the archive if it has what the source has deleted at the position; return whether it has.

        The archive is read after what is gathered. A put that a reset has left behind may have ended since the archive
        was last checked. A backup is reset: it continues where its archive ends.
        """
        if self._archive is None:
            return False
        index = self._new_index(copy)
        if index.until_offset(copy.read.next_offset) <= copy.read.next_offset:
            return False
        if self._is_backup:
            copy.reset(resume_at=time.monotonic())
            self.reset(copy)
            return True
        if copy in self._gathered:
            self._put(copy, self._gathered[copy])
        if self._kafka is not None:
            self._kafka.detach(copy)
        self._from_archive.add(copy)
        return True

    def gap_until(self, copy: PartitionCopy, log_start_offset: int) -> int:
        """Return where a gap at a partition's position ends: not behind records that the archive has."""
        if self._archive is None:
            return log_start_offset
        return self._new_index(copy).gap_until(copy.read.next_offset, log_start_offset)

    def _new_index(self, copy: PartitionCopy) -> SegmentIndex:
        """Return a new index: an earlier incarnation's look-up may still use the present one in the background."""
        assert self._archive is not None
        spec = copy.spec
        return SegmentIndex(self._archive, self._job.migration_id, spec.topic, spec.partition, spec.topic_id)

    def pass_gap(self, copy: PartitionCopy, until_offset: int, log_start_offset: int) -> None:
        """Continue behind what the source has deleted: the gap is covered without records.

        With an archive, the gap takes the same way as all that was read before it, so it overtakes nothing that is not
        durable yet. It becomes a segment: otherwise a copy that resumes before it would have to ask the source again,
        which may have deleted more by then, although the archive has that.
        """
        gap = Chunk(
            copy.spec.topic, copy.spec.partition, copy.read.next_offset, until_offset, memoryview(b""),
            log_start_offset=log_start_offset, origin="kafka",
        )  # fmt: skip
        if self._archive is None:
            self.take(copy, gap)
            return
        # A separate segment, which distinguishes "deleted before it was read" from "the source had no records there".
        if copy in self._gathered:
            self._put(copy, self._gathered[copy])
        self.take(copy, gap)
        self._put(copy, self._gathered[copy])

    def _segment_bytes(self) -> int:
        """Return the segment size: two of each partition, one gathered and one being put, fit into the buffer."""
        active = len(self._copies if self._follows else self._active)
        share = ARCHIVE_BUFFER_BYTES // (2 * max(1, active))
        return min(self._job.segment_max_bytes, max(share, _LEAST_SEGMENT_BYTES))

    def _put_leftovers(self) -> None:
        """Put segments that cannot or must not grow: full, lingering, up to the stop offset, or the buffer is full."""
        total, limit = 0, self._segment_bytes()
        lingered = time.monotonic() - self._job.segment_linger_seconds
        for copy, gathered in list(self._gathered.items()):
            total += gathered.size_bytes
            # Chunks of a partition that is read up to its end wait for the put before them, and grow meanwhile.
            # What a following backup archives must be readable soon, even if the backup never reaches the end.
            is_due = copy.read.next_offset >= copy.read.last_stable_offset or self._job.segment_linger_seconds > 0
            at_end = self._limits.is_read(copy) or (is_due and gathered.began_at <= lingered)
            if gathered.size_bytes + self._fetch_bytes > limit or (at_end and copy not in self._working):
                self._put(copy, gathered)
        if total > ARCHIVE_BUFFER_BYTES and self._gathered:
            largest = max(self._gathered, key=lambda copy: self._gathered[copy].size_bytes)
            self._put(largest, self._gathered[largest])

    def _put(self, copy: PartitionCopy, gathered: _Gathered) -> None:
        assert self._archive is not None
        del self._gathered[copy]
        writer = SegmentWriter(
            self._archive, self._job.migration_id, copy.spec.topic, copy.spec.partition, copy.spec.topic_id
        )

        def work() -> Chunk:
            chunk = gathered.joined()
            writer.put_chunk(chunk)
            return chunk

        self._submit(copy, work)

    def _look_into_archive(self, copy: PartitionCopy) -> None:
        assert self._archive is not None
        index = self._index(copy)
        position = copy.read.next_offset

        def work() -> Chunk | None:
            entry = index.find(position)
            if entry is None:
                return None
            chunk = index.read(entry)
            # Parsed here, where damaged data become an error of this partition.
            chunk.parsed = read_batches(chunk.batches)[0]
            return chunk

        self._submit(copy, work)

    def _index(self, copy: PartitionCopy) -> SegmentIndex:
        assert self._archive is not None
        index = self._indexes.get(copy)
        if index is None:
            index = self._indexes[copy] = self._new_index(copy)
        return index

    def _submit(self, copy: PartitionCopy, work: Callable[[], Chunk | None]) -> None:
        assert self._pool is not None
        future = self._pool.submit(work)
        self._working.setdefault(copy, deque()).append((copy.incarnation, future))
        future.add_done_callback(self._wake_up)

    def _wake_up(self, _future: Future[Chunk | None]) -> None:
        try:
            self._wake()
        except OSError:
            return  # the copier's slice has ended, so nothing waits

    def _collect(self) -> None:
        """Process what background puts and gets have brought."""
        for copy, waiting in list(self._working.items()):
            while waiting and waiting[0][1].done():
                incarnation, future = waiting.popleft()
                if copy.incarnation == incarnation and not self._take_over(copy, future):
                    # What was read behind the failed part must not overtake it; the partition resumes.
                    self._leave_behind(copy, waiting)
                    waiting.clear()
            if not waiting and self._working.get(copy) is waiting:
                del self._working[copy]

    def _take_over(self, copy: PartitionCopy, future: Future[Chunk | None]) -> bool:
        """Pass on what a put or get has brought; False if it has failed."""
        try:
            chunk = future.result()
        except MigrationError as error:
            self._report(copy, error)
            return False
        if chunk is None:
            self._archive_exhausted(copy)
        else:
            self._deliver(copy, chunk)
        return True

    def _deliver(self, copy: PartitionCopy, chunk: Chunk) -> None:
        if chunk.origin == "segment":
            self._throttle(len(chunk.batches))
            self._look_again.pop(copy, None)
            # The new position needs the epoch of what was read just below it, or leaders would be asked for the end of
            # an epoch that ends earlier. A segment without batches does not name it, so leaders are not asked then.
            epoch = last_epoch(chunk.parsed or ())
            copy.read.leader_epoch = max(copy.read.leader_epoch, epoch) if epoch >= 0 else -1
            copy.read.next_offset = chunk.until_offset
        else:
            copy.read.undecided_bytes -= len(chunk.batches)
        self._ready.append(Read.of(copy, chunk))

    def _archive_exhausted(self, copy: PartitionCopy) -> None:
        """Switch to the source where the archive ends, or wait for a backup that continues."""
        if self._kafka is None:
            pause = min(2 * self._look_again.get(copy, (0.0, _FIRST_LOOK_SECONDS / 2))[1], _LONGEST_LOOK_SECONDS)
            self._look_again[copy] = (time.monotonic() + pause, pause)
            return
        self._from_archive.discard(copy)
        try:
            self._kafka.attach([copy])
        except MigrationError as error:
            if isinstance(error, Terminal):
                raise
            self._report(copy, error)
