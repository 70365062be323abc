"""What a lane reads, and from where: the source cluster, the archive, or the one through the other.

Through S3 ("write-through") a chunk is durable in the archive before the target sees it; a resumed copy reads what the
archive has, and the source only from there on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from airflow_provider_kafka_migration.copy.archive import SegmentIndex, SegmentWriter
from airflow_provider_kafka_migration.copy.partition import CopyState, PartitionCopy
from airflow_provider_kafka_migration.copy.read_watch import ReadWatch
from airflow_provider_kafka_migration.copy.resume import ReadChunk, chunks_of_archive
from airflow_provider_kafka_migration.copy.source import PARTITION_FETCH_BYTES, KafkaSource, Reader, last_epoch
from airflow_provider_kafka_migration.copy.transform import Chunk
from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.errors import MigrationError, StorageUnavailable, Terminal, Where
from airflow_provider_kafka_migration.kafka.batches.api import read_batches
from airflow_provider_kafka_migration.kafka.fetch import Aborted
from airflow_provider_kafka_migration.kafka.wire import Wire
from airflow_provider_kafka_migration.storage.base import ObjectStore

#: Bytes that a lane gathers for its segments and has on their way into the archive; beyond it nothing more is read.
ARCHIVE_BUFFER_BYTES = 64 * 1024 * 1024
ARCHIVE_THREADS = 8
#: Puts of one partition on their way; their chunks are given on in order, whichever ends first.
PUTS_PER_PARTITION = 2
#: Segments get no smaller than that for want of buffers, where many partitions are copied at a time.
_LEAST_SEGMENT_BYTES = 4 * 1024 * 1024
#: A restore looks for more of a partition after such pauses: twice as long each time that nothing has come.
_FIRST_LOOK_SECONDS, _LONGEST_LOOK_SECONDS = 0.1, 3.2

OnChunk = Callable[[PartitionCopy, Chunk], None]
OnTrouble = Callable[[PartitionCopy, MigrationError], None]


@dataclass
class _Gathered:
    """Chunks of one partition that wait to become a segment.

    Their bytes are copied at once: a view would keep the whole answer, other partitions' chunks included.
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
    """Gives chunks to a lane's copier, one partition after the other or side by side.

    :param on_chunk: called with chunks in offset order, durable where they have to be.
    :param wants: whether a partition has room for more.
    :param reached: whether a partition is read up to its stop offset.
    :param rate: bytes per second that may be read at the moment; not given: those of the job.
    :param watch: hears of each answer of the source.
    """

    def __init__(
        self,
        job: CopyJob,
        source: Wire | None,
        archive_store: ObjectStore | None,
        *,
        copies: Sequence[PartitionCopy],
        on_chunk: OnChunk,
        on_trouble: OnTrouble,
        wants: Callable[[PartitionCopy], bool],
        reached: Callable[[PartitionCopy], bool],
        rate: Callable[[], int | None] | None = None,
        watch: ReadWatch | None = None,
    ) -> None:
        self._job = job
        self._rate = rate or (lambda: job.max_bytes_per_second)
        #: as it was when the next read was put off
        self._rate_before: int | None = None
        self._copies = sorted(copies, key=lambda copy: copy.key)
        self._on_chunk = on_chunk
        self._on_trouble = on_trouble
        self._wants_room = wants
        self._reached = reached
        self._archive = archive_store if job.via == "s3" else None
        # At least two fetches go into a segment, else each would be one of its own, however little it brought.
        self._fetch_bytes = min(PARTITION_FETCH_BYTES, job.segment_max_bytes // 2)
        self._kafka: KafkaSource | None = None
        if source is not None:
            self._kafka = KafkaSource(
                source,
                on_chunk=self._on_read,
                on_trouble=on_trouble,
                wants=self._wants,
                partition_fetch_bytes=self._fetch_bytes,
                watch=watch,
            )
        self._pool = ThreadPoolExecutor(ARCHIVE_THREADS, "archive") if self._archive is not None else None
        self._gathered: dict[PartitionCopy, _Gathered] = {}
        self._working: dict[PartitionCopy, deque[tuple[int, Future[Chunk | None]]]] = {}
        #: what earlier lives of a partition have begun in the background, and has not ended yet
        self._left_behind: dict[PartitionCopy, list[Future[Chunk | None]]] = {}
        self._indexes: dict[PartitionCopy, SegmentIndex] = {}
        self._from_archive: set[PartitionCopy] = set()
        self._read_again_at = 0.0
        #: when the archive is looked at again for a partition that it had no more of, and after what pause
        self._look_again: dict[PartitionCopy, tuple[float, float]] = {}
        self._active: frozenset[PartitionCopy] = frozenset()
        #: partitions that may have something left to read, so that those that are done are not looked at all the time
        self._unread: dict[PartitionCopy, None] = dict.fromkeys(copies)
        #: wakes the copier's loop when a background put or get has ended
        self.wake: Callable[[], object] = lambda: None

    @property
    def _is_backup(self) -> bool:
        """It begins where the archive ends, and has nothing to read in there."""
        return self._job.name == "backup"

    @property
    def readers(self) -> list[Reader]:
        """Open connections to source leaders."""
        return [] if self._kafka is None else self._kafka.readers

    @property
    def throttled_seconds(self) -> float:
        """For how long the source's quotas have held this lane back."""
        return 0.0 if self._kafka is None else self._kafka.throttling.seconds

    @property
    def reading_bytes(self) -> int:
        """Bytes of all partitions that are read and not given on yet."""
        return sum(copy.reading_bytes for copy in self._gathered.keys() | self._working.keys())

    def next_due(self, now: float) -> float:
        """When something is to be read without an answer having come (monotonic clock)."""
        if self._read_again_at > now:
            return self._read_again_at
        return now + _LONGEST_LOOK_SECONDS if self._kafka is None else self._kafka.next_due(now)

    def archive_reader(self, copy: PartitionCopy) -> ReadChunk | None:
        """Reads what the archive has of a partition; None without an archive."""
        return None if self._archive is None else chunks_of_archive(self._index(copy))

    def lose(self, reader: Reader, error: MigrationError) -> None:
        """A connection to a source leader broke."""
        assert self._kafka is not None
        self._kafka.lose(reader, error)

    def attach(self, copies: Iterable[PartitionCopy]) -> None:
        """Begin to read partitions at their ``fetch_offset``."""
        for copy in copies:
            if self._archive is not None and not self._is_backup:
                self._from_archive.add(copy)
            elif self._kafka is not None:
                self._kafka.attach([copy])

    def reset(self, copy: PartitionCopy) -> None:
        """Drop what was read of a partition; it begins anew after its resume."""
        self._gathered.pop(copy, None)
        self._leave_behind(copy, self._working.pop(copy, ()))
        self._from_archive.discard(copy)
        self._unread[copy] = None
        if self._kafka is not None:
            self._kafka.detach(copy)

    def close(self) -> None:
        """Stop reading. A put that is on its way ends by itself; its segment counts or does not, both are right."""
        if self._kafka is not None:
            self._kafka.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    # -- which partitions --------------------------------------------------------------------------------------------

    def _wants(self, copy: PartitionCopy) -> bool:
        return (
            self._is_active(copy)
            and copy not in self._from_archive
            and len(self._working.get(copy, ())) < PUTS_PER_PARTITION
            and self._wants_room(copy)
        )

    def _is_active(self, copy: PartitionCopy) -> bool:
        return copy.phase is CopyState.RUNNING if self._follows else copy in self._active

    def _choose_active(self) -> None:
        """A seed reads some partitions at a time, so that their segments get large; what follows reads all."""
        if self._follows:
            return
        chosen: list[PartitionCopy] = []
        done: list[PartitionCopy] = []
        for copy in self._unread:
            if len(chosen) >= self._job.max_concurrent_partitions:
                break
            if copy.phase is CopyState.RUNNING:
                (done if self._reached(copy) else chosen).append(copy)
        for copy in done:
            del self._unread[copy]
        self._active = frozenset(chosen)

    @property
    def _follows(self) -> bool:
        """Partitions have no end yet, so each must go on all the time."""
        return self._job.name == "tail" or (self._job.name != "seed" and self._job.stop_key is not None)

    def flush(self) -> bool:
        """Put what was gathered, whatever its size; whether something is still on its way into the archive."""
        for copy, gathered in list(self._gathered.items()):
            self._put(copy, gathered)
        return bool(self._working)

    def due_seconds(self, now: float) -> float:
        """After how long something that was gathered has to be put."""
        waits = [gathered.began_at + self._job.segment_linger_seconds - now for gathered in self._gathered.values()]
        return max(min(waits, default=60.0), 0.02)

    def pump(self, now: float) -> None:
        """Ask for more where there is room for it."""
        self._choose_active()
        if self._is_held_back(now):
            return
        # Of a seed most partitions wait for their turn in here: only those that are looked at are put in order.
        due = [
            copy
            for copy in self._from_archive
            if self._is_active(copy) and copy not in self._working and now >= self._look_again.get(copy, (0.0,))[0]
        ]
        for copy in sorted(due, key=lambda item: item.key):
            if self._wants_room(copy):
                self._look_into_archive(copy)
        if self._kafka is not None:
            self._kafka.pump(now)
        self._put_leftovers()

    def _throttle(self, size_bytes: int) -> None:
        rate = self._rate_before = self._rate()
        if rate:
            now = time.monotonic()
            self._read_again_at = max(now, self._read_again_at) + size_bytes / rate

    def _is_held_back(self, now: float) -> bool:
        """Whether the rate forbids to read. A pause that another rate has asked for ends when the rate changes."""
        if now < self._read_again_at and self._rate() != self._rate_before:
            self._rate_before, self._read_again_at = self._rate(), now
        return now < self._read_again_at

    # -- through the archive -----------------------------------------------------------------------------------------

    def _on_read(self, copy: PartitionCopy, chunk: Chunk) -> None:
        """A chunk came from the source cluster."""
        self._throttle(chunk.source_bytes)
        if self._archive is None:
            copy.fetch_offset = chunk.until_offset
            self._on_chunk(copy, chunk)
            return
        self.gather(copy, chunk)

    def gather(self, copy: PartitionCopy, chunk: Chunk) -> None:
        """Take a chunk for the archive; it is given on when it is durable."""
        copy.fetch_offset = chunk.until_offset
        gathered = self._gathered.get(copy)
        if gathered is not None and gathered.size_bytes + len(chunk.batches) > self._segment_bytes():
            self._put(copy, gathered)
            gathered = None
        if gathered is None:
            self._gathered[copy] = _Gathered.of(chunk)
        else:
            gathered.add(chunk)
        copy.reading_bytes += len(chunk.batches)

    def _leave_behind(self, copy: PartitionCopy, waiting: Iterable[tuple[int, Future[Chunk | None]]]) -> None:
        """Nobody waits for these puts and gets any more, but a put may still bring its segment into the archive."""
        before = self._left_behind.pop(copy, [])
        left = [future for future in [*before, *(future for _, future in waiting)] if not future.done()]
        if left:
            self._left_behind[copy] = left

    def unfinished_put(self, copy: PartitionCopy) -> StorageUnavailable | None:
        """Why it cannot be told yet what the archive has of a partition; None if it can.

        An earlier life of the copy may have read what the source has deleted since: its put is waited for before there
        is a gap.
        """
        self._leave_behind(copy, ())
        if copy not in self._left_behind:
            return None
        return StorageUnavailable(
            "records that the source has deleted since are still on their way into the archive",
            where=Where(topic=copy.spec.topic, partition=copy.spec.partition, offset=copy.fetch_offset),
            next_step="none: the partition goes on when the storage has answered",
        )

    def back_to_archive(self, copy: PartitionCopy) -> bool:
        """The source has deleted what comes next: whether the archive has it, to be read there behind what is gathered.

        A put that a reset has left behind may have ended since the archive was looked at.
        """
        if self._archive is None or self._is_backup:
            return False
        index = self._new_index(copy)
        if index.until_offset(copy.fetch_offset) <= copy.fetch_offset:
            return False
        if copy in self._gathered:
            self._put(copy, self._gathered[copy])
        if self._kafka is not None:
            self._kafka.detach(copy)
        self._from_archive.add(copy)
        return True

    def gap_until(self, copy: PartitionCopy, log_start_offset: int) -> int:
        """Where the gap ends that begins at a partition's position: not behind records that the archive has."""
        if self._archive is None:
            return log_start_offset
        return self._new_index(copy).gap_until(copy.fetch_offset, log_start_offset)

    def _new_index(self, copy: PartitionCopy) -> SegmentIndex:
        """Not the index in use: a look of an earlier life may still be going on in the background."""
        assert self._archive is not None
        spec = copy.spec
        return SegmentIndex(self._archive, self._job.migration_id, spec.topic, spec.partition, spec.topic_id)

    def pass_gap(self, copy: PartitionCopy, until_offset: int, log_start_offset: int) -> None:
        """Go on behind what the source has deleted: it is covered without records.

        With an archive the gap takes the same way as all that was read before it, so it overtakes nothing that is not
        durable yet. It becomes a segment, or a copy that resumes before it would have to ask the source again, which
        may have deleted more by then, though the archive has that.
        """
        gap = Chunk(
            copy.spec.topic, copy.spec.partition, copy.fetch_offset, until_offset, memoryview(b""),
            log_start_offset=log_start_offset, origin="kafka",
        )  # fmt: skip
        if self._archive is None:
            self._on_read(copy, gap)
            return
        # A segment of its own, which tells "deleted before it was read" from "the source had no records there".
        if copy in self._gathered:
            self._put(copy, self._gathered[copy])
        self.gather(copy, gap)
        self._put(copy, self._gathered[copy])

    def _segment_bytes(self) -> int:
        """How large segments get: two of each partition, one gathered and one on its way, fit into the buffer."""
        active = len(self._copies if self._follows else self._active)
        share = ARCHIVE_BUFFER_BYTES // (2 * max(1, active))
        return min(self._job.segment_max_bytes, max(share, _LEAST_SEGMENT_BYTES))

    def _put_leftovers(self) -> None:
        """Put segments that are as large as they get: the stop offset is read, or the lane's buffer is full."""
        total, limit = 0, self._segment_bytes()
        lingered = time.monotonic() - self._job.segment_linger_seconds
        for copy, gathered in list(self._gathered.items()):
            total += gathered.size_bytes
            # What is there of a partition that is read up to its end waits for the put before it, and grows.
            # A backup that follows is to be read soon, also where it never gets to the end.
            is_due = copy.fetch_offset >= copy.source_end_offset or self._job.segment_linger_seconds > 0
            at_end = self._reached(copy) or (is_due and gathered.began_at <= lingered)
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
        position = copy.fetch_offset

        def work() -> Chunk | None:
            entry = index.find(position)
            if entry is None:
                return None
            chunk = index.read(entry)
            # Parsed here, where what is damaged is the partition's trouble.
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
            self.wake()
        except OSError:
            return  # the copier's slice has ended, nobody waits

    def collect(self) -> None:
        """Take over what background puts and gets have brought."""
        for copy, waiting in list(self._working.items()):
            while waiting and waiting[0][1].done():
                incarnation, future = waiting.popleft()
                if copy.incarnation == incarnation and not self._take_over(copy, future):
                    # What was read behind it must not overtake it; the partition begins anew.
                    self._leave_behind(copy, waiting)
                    waiting.clear()
            if not waiting and self._working.get(copy) is waiting:
                del self._working[copy]

    def _take_over(self, copy: PartitionCopy, future: Future[Chunk | None]) -> bool:
        """Give on what a put or get has brought; False if it has failed."""
        try:
            chunk = future.result()
        except MigrationError as error:
            self._on_trouble(copy, error)
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
            # The new position goes with the epoch of what was read just below it, or leaders are asked for the end of
            # an epoch that ends earlier. A segment without batches does not tell it: nothing is asked then.
            epoch = last_epoch(chunk.parsed or ())
            copy.source_epoch = max(copy.source_epoch, epoch) if epoch >= 0 else -1
            copy.fetch_offset = chunk.until_offset
        else:
            copy.reading_bytes -= len(chunk.batches)
        self._on_chunk(copy, chunk)

    def _archive_exhausted(self, copy: PartitionCopy) -> None:
        """The archive has nothing from here on: read the source, or wait for a backup that goes on."""
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
            self._on_trouble(copy, error)
