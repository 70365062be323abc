"""The copy of one partition as a state machine without I/O: what is read, decided, sent and confirmed.

After any error, :meth:`PartitionCopy.reset` drops what is decided and sent, and the target's log determines where the
copy resumes: there is no other state.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from airflow_provider_kafka_migration.copy.latency import LatencyHistogram
from airflow_provider_kafka_migration.copy.transform import Append, Chunk, CopyOp, Hole
from airflow_provider_kafka_migration.documents.copy import CopyJob, CopyPartition, PartitionResult
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import (
    BrokerBusy,
    MigrationError,
    SchemaIdUnknown,
    TargetTopicMissing,
    TopicRecreated,
    Transient,
    Where,
    leave_out_of_way_back,
)
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.logs import topic_missing
from airflow_provider_kafka_migration.kafka.wire import Wire
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange

SEQUENCE_MODULUS = 2**31
#: Memory that the objects of a step take in addition to the bytes of its batch: between holes, batches are small.
_APPEND_BYTES = 1024
_HOLE_BYTES = 128
#: A topic counts as deleted when the cluster has answered so for this long: a broker that has just started may not know
#: the topic yet.
MISSING_SECONDS = 10.0
#: In the details of an error: no cluster has answered, so it says nothing against what earlier answers said.
NO_ANSWER = "no_answer"


class CopyState(Enum):
    """The state of a partition's copy."""

    RESUMING = "resuming"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class Sent(NamedTuple):
    """An append that waits for its answer."""

    target_offset: int
    record_count: int
    source_offset: int
    size_bytes: int
    #: (source offset, records before it) of each stretch of consecutive source offsets
    runs: Sequence[tuple[int, int]]
    #: of the batch, in milliseconds since 1970; -1: none
    first_timestamp_ms: int = -1
    max_timestamp_ms: int = -1

    @classmethod
    def of(cls, step: Append, target_offset: int) -> Sent:
        """Describe a step that is sent to be written at an offset (-1: the leader chooses)."""
        batch = step.batch
        return cls(
            target_offset,
            step.record_count,
            step.source_offset,
            batch.size_bytes,
            step.runs,
            batch.first_timestamp,
            batch.max_timestamp,
        )

    def runs_at(self, base_offset: int) -> Iterator[OffsetRange]:
        """Yield the offset map runs of these records when they are written from ``base_offset`` on."""
        ends = [number for _, number in self.runs[1:]] + [self.record_count]
        for (source_offset, number), end in zip(self.runs, ends, strict=True):
            yield OffsetRange(source_offset, base_offset + number, end - number)


class NotedPosition(NamedTuple):
    """A position at which nothing was under way: both offsets, and the next sequence of the copy there."""

    source_offset: int
    target_offset: int
    next_sequence: int


class ResumePoint(NamedTuple):
    """The position of a partition's copy, read from the target's log."""

    source_offset: int
    target_end_offset: int
    next_sequence: int
    #: source offset minus target offset from here on: that of the map's last run
    shift: int
    #: the map has more than its base run
    is_mapped: bool = False
    #: an earlier slice left out holes, so the copy keeps leaving them out
    skips_holes: bool = False
    #: leader epoch of the source's batch at this place; -1: not known
    source_epoch: int = -1
    #: an earlier slice has noted this position on the same topic, and the log end is below it now: records were lost
    lost: NotedPosition | None = None


def kept_bytes(step: CopyOp) -> int:
    """Return the approximate memory that a step takes until it is sent."""
    return _APPEND_BYTES + step.batch.size_bytes if isinstance(step, Append) else _HOLE_BYTES


def advance_sequence(sequence: int, last_offset_delta: int) -> int:
    """Return the sequence after a batch: plus last offset delta plus 1, modulo 2**31.

    As in ``DefaultRecordBatch.incrementSequence``.
    """
    return (sequence + last_offset_delta + 1) % SEQUENCE_MODULUS


@dataclass(eq=False)
class ReadState:
    """How far a partition of the source is read, and what the source has said about its log."""

    #: Where the copy begins: as planned, or where the source's log began when nothing was copied yet. Records below it
    #: were deleted on the source before the copy, and no earlier copier has copied any of them.
    start_offset: int
    #: next offset to read; ahead of the offset that is decided next while chunks are being archived
    next_offset: int = 0
    #: leader epoch of the last source batch that was read; -1: not known. Survives resets, so that what was read
    #: beyond the new position is still compared with the present leader's log.
    leader_epoch: int = -1
    #: (source offset, leader epoch) up to which an earlier slice had read, if known
    before: tuple[int, int] | None = None
    #: the end of an earlier slice; None: the copy has noted nothing since its beginning
    noted: NotedPosition | None = None
    #: id of the target topic on which it was noted; empty: unknown. Once the log end is read, of the present topic.
    target_topic_id: str = ""
    #: the noted position, if the target has lost records below it since
    lost: NotedPosition | None = None
    #: the source's log end when the copy first read the partition; -1: it has not yet
    first_end_offset: int = -1
    #: bytes read and not decided yet
    undecided_bytes: int = 0
    #: of the source, as last seen; -1: not seen yet
    last_stable_offset: int = -1
    high_watermark: int = -1
    #: since when only an open transaction blocks reading (monotonic clock), and whether a line says so
    held_since: float | None = None
    is_held_logged: bool = False
    #: the source's first answer in this slice had something to copy
    had_backlog: bool = False

    @property
    def held_back(self) -> int:
        """The number of source records that an open transaction holds back."""
        return max(0, self.high_watermark - self.last_stable_offset) if self.last_stable_offset >= 0 else 0


@dataclass(eq=False)
class WriteState:
    """What is decided, sent and confirmed of a partition on the target."""

    #: False: holes become new runs of the offset map (mapped)
    fills_holes: bool = True
    #: everything below it is decided
    source_offset: int = 0
    #: the target's log end according to the answers
    confirmed_offset: int = 0
    #: target offset where the next step will land, after everything pending
    projected_offset: int = 0
    #: source offset minus target offset, of the run in force
    shift: int = 0
    next_sequence: int = 0
    #: control markers of this partition so far, including pending ones, and records likewise
    markers: int = 0
    total_records: int = 0
    pending: deque[CopyOp] = field(default_factory=deque)
    pending_bytes: int = 0
    in_flight: deque[Sent] = field(default_factory=deque)
    #: offsets of a marker request that waits for its answer; 0: none
    filling: int = 0
    has_filled: bool = False
    #: the marker request that waits for its answer registers the data id
    registers: bool = False
    #: since when the next step has been a hole (monotonic clock), and for how long in total in this slice
    hole_since: float | None = None
    fill_seconds: float = 0.0
    #: an append of this incarnation was confirmed, so the broker knows our sequence numbers
    has_appended: bool = False
    #: until then, markers whose answer was lost may still arrive at the broker
    settles_at: float = 0.0
    #: decided source offsets without records that the committed position does not cover yet (transactional)
    owes_position: bool = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing decided is left to send, and nothing sent is left to be answered."""
        return not self.pending and not self.in_flight and not self.filling and not self.owes_position

    @property
    def waiting_ms(self) -> int:
        """The timestamp of the oldest record that is read, and not known to be on the target; -1: not known.

        Another thread than the lane's may ask: a queue that changes meanwhile gives an answer of a moment ago.
        """
        try:
            if self.in_flight:
                return self.in_flight[0].first_timestamp_ms
            step = self.pending[0]
            # Behind a hole there usually is an append; behind two, it is not worth a search.
            step = self.pending[1] if isinstance(step, Hole) else step
        except IndexError:
            return -1
        return step.batch.first_timestamp if isinstance(step, Append) else -1

    @property
    def excess_markers(self) -> int:
        """The number of markers on the target, or pending, beyond the source offset that was decided last."""
        return self.projected_offset + self.shift - self.source_offset

    @property
    def confirmed_source_offset(self) -> int:
        """The next source offset that the target does not have yet."""
        if self.in_flight:
            return self.in_flight[0].source_offset
        if self.pending:
            return self.pending[0].source_offset
        return self.source_offset

    def drop(self) -> None:
        """Forget all decided and sent steps."""
        self.pending.clear()
        self.pending_bytes = 0
        self.in_flight.clear()
        self.filling = 0
        self.registers = False
        self.hole_since = None

    def resume(self, point: ResumePoint, start_offset: int) -> None:
        """Continue at the target's log end.

        :param start_offset: target offset where the copy began.
        """
        self.source_offset = point.source_offset
        self.confirmed_offset = self.projected_offset = point.target_end_offset
        self.shift = point.shift
        self.next_sequence = point.next_sequence
        # Sequences count records, so all other offsets of the log are markers; exact below 2**31 of them.
        self.markers = (point.target_end_offset - start_offset - point.next_sequence) % SEQUENCE_MODULUS
        self.total_records = point.target_end_offset - start_offset - self.markers
        self.owes_position = self.has_filled = self.has_appended = False

    def queue(self, steps: Iterable[CopyOp]) -> None:
        """Append steps to the pending ones."""
        for step in steps:
            self.pending.append(step)
            self.pending_bytes += kept_bytes(step)
            if isinstance(step, Append):
                self.total_records += step.record_count

    def take(self) -> CopyOp:
        """Remove the next step from the pending ones and return it."""
        step = self.pending.popleft()
        self.pending_bytes -= kept_bytes(step)
        return step

    def take_back(self, step: CopyOp) -> None:
        """Put a taken step back in front of all other pending ones."""
        self.pending.appendleft(step)
        self.pending_bytes += kept_bytes(step)

    def take_append(self) -> tuple[Append, Sent, int]:
        """Take the next step, an :class:`Append`, as sent.

        :returns: (step, its entry in ``in_flight``, base sequence).
        """
        step = self.take()
        assert isinstance(step, Append)
        last = self.in_flight[-1] if self.in_flight else None
        target_offset = self.confirmed_offset if last is None else last.target_offset + last.record_count
        sent = Sent.of(step, target_offset)
        sequence = self.next_sequence
        self.next_sequence = advance_sequence(sequence, step.batch.last_offset_delta)
        self.in_flight.append(sent)
        return step, sent, sequence

    def note_hole(self, now: float) -> None:
        """Start the clock for a hole if that is the next step: what was sent before it must be answered first."""
        if self.hole_since is None and self.pending and isinstance(self.pending[0], Hole):
            self.hole_since = now

    def end_fill(self, log_end_offset: int, now: float) -> int:
        """Confirm written markers, and return how many: the log end has grown to the expected offset, or partly."""
        step = self.pending[0]
        assert isinstance(step, Hole)
        grown = log_end_offset - self.confirmed_offset
        self.confirmed_offset = log_end_offset
        self.filling = 0
        if self.hole_since is not None:
            self.fill_seconds += now - self.hole_since
            self.hole_since = now if grown < step.count else None
        # A registering marker fences no markers of former incarnations, so the next one is sent alone, too.
        self.has_filled, self.registers = not self.registers, False
        if grown == step.count:
            self.take()
        else:
            self.pending[0] = Hole(step.source_offset + grown, step.count - grown)
        return grown


@dataclass(eq=False)
class Figures:
    """What this slice has done for a partition."""

    records: int = 0
    copied_bytes: int = 0
    #: bytes read from the source cluster
    source_bytes: int = 0
    holes: int = 0
    #: holes (a part of ``holes``) that were filled by empty transactions
    transaction_holes: int = 0
    #: records of a source that others copy to as well, which have come through the target or over too many hops
    skipped_records: int = 0
    #: target log end, and source offset, when this slice took the partition over; -1: it has not yet
    resumed_offset: int = -1
    resumed_source_offset: int = -1
    #: (from, to): the target's log end went back, and the copier copies the lost part again
    went_back: list[tuple[int, int]] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    #: source offsets where compaction may have removed tombstones before they were read
    overtaken: list[int] = field(default_factory=list)
    #: newest timestamp of the batch that the target has acknowledged last (ms since 1970); -1: none in this slice
    mirrored_ms: int = -1
    latency: LatencyHistogram = field(default_factory=LatencyHistogram)

    def add_skipped(self, count: int) -> None:
        """Count records that are not to be copied."""
        self.skipped_records += count

    def add_sent(self, sent: Sent, now_ms: int) -> None:
        """Count what the target has accepted.

        :param now_ms: this machine's clock at the acknowledgement, in milliseconds since 1970.
        """
        self.records += sent.record_count
        self.copied_bytes += sent.size_bytes
        timestamp_ms = sent.max_timestamp_ms
        if timestamp_ms >= 0:
            self.mirrored_ms = timestamp_ms
            self.latency.add(now_ms - timestamp_ms, sent.record_count)
        else:
            self.latency.untimed += sent.record_count


class Standing(NamedTuple):
    """Where the copy of a partition stands, for metrics: figures only, no decision depends on them."""

    #: next source offset that the target does not have yet
    source_offset: int
    #: source offsets up to the last stable offset that the target lacks; -1: not known, or the copy is not running
    lag: int
    held_back: int
    #: timestamp of the oldest record that is read and not acknowledged; -1: not known, or nothing waits
    waiting_ms: int
    #: newest timestamp of the batch that was acknowledged last; -1: none in this slice
    mirrored_ms: int


@dataclass(eq=False)
class PartitionCopy:
    """One partition of a lane.

    :param spec: what to copy.
    """

    spec: CopyPartition
    lane: int
    state: CopyState = CopyState.RESUMING
    #: goes up with each reset, so that answers to earlier requests are ignored
    incarnation: int = 0
    verdict: Verdict = Verdict.EQUAL
    read: ReadState = field(init=False)
    write: WriteState = field(init=False)
    figures: Figures = field(default_factory=Figures)

    #: earlier slices have copied nothing of it: the others of the lane let it begin first
    goes_first: bool = False
    #: when the target has first confirmed something in this slice (monotonic clock)
    progressed_at: float | None = None

    resume_at: float = 0.0
    retries: int = 0
    stuck_since: float | None = None
    #: the last error that is being retried
    trouble: MigrationError | None = None
    #: since when the cluster has answered that a topic of this partition does not exist (monotonic clock)
    missing_since: float | None = None
    error: MigrationError | None = None
    #: stops the partition once everything decided before this error is confirmed
    stopping: MigrationError | None = None

    def __post_init__(self) -> None:
        self.verdict = self.spec.verdict
        self.read = ReadState(self.spec.source_start_offset)
        self.write = WriteState(fills_holes=self._may_fill_holes)

    @property
    def _may_fill_holes(self) -> bool:
        return self.spec.verdict in (Verdict.EQUAL, Verdict.SHIFTED)

    @property
    def key(self) -> tuple[str, int]:
        """The (source topic, partition)."""
        return self.spec.key

    @property
    def target_key(self) -> tuple[str, int]:
        """The (target topic, partition)."""
        return (self.spec.target_topic, self.spec.partition)

    def where(self, job: CopyJob) -> Where:
        """Return the place of an error of this partition in a job."""
        return Where(
            migration_id=job.migration_id,
            phase=job.name,
            topic=self.spec.topic,
            partition=self.spec.partition,
            offset=self.write.confirmed_source_offset,
        )

    @property
    def due_at(self) -> float:
        """When the target's log is read again."""
        return max(self.resume_at, self.write.settles_at)

    @property
    def is_fresh(self) -> bool:
        """Whether no copier has copied a record of this partition yet."""
        is_at_start = self.read.next_offset == self.read.start_offset
        return self.write.next_sequence == 0 and not self.figures.records and is_at_start

    def late_until(self, log_end_offset: int) -> int:
        """Return up to where deleted records of the source are no loss, because its log started later than planned.

        That is so before the first record is copied, for records that were there when the partition was first read.
        Whatever was written later was to be copied. An adopted partition continues a copy that has begun before: there
        it is so only where no record was.

        :param log_end_offset: the source's present log end.
        """
        read = self.read
        if not self.is_fresh:
            return read.next_offset
        if self.spec.adopted:
            return max(self.spec.source_hole_end_offset, read.next_offset)
        if read.lost is not None and self.had_copied(read.lost):
            return read.next_offset
        first_end = read.first_end_offset if read.first_end_offset >= 0 else log_end_offset
        # What an earlier slice has passed over without records is settled.
        passed = read.noted.source_offset if read.noted is not None and read.lost is None else -1
        return max(first_end, passed, read.next_offset)

    def had_copied(self, noted: NotedPosition) -> bool:
        """Return whether records had been copied up to a noted position. Sequences count them."""
        return noted.next_sequence != 0 or (
            self.spec.verdict is Verdict.TRANSACTIONAL and noted.source_offset > self.spec.source_start_offset
        )

    def went_back(self, point: ResumePoint) -> tuple[int, int] | None:
        """Return (from, to) if the target's log end at this point is below the one that was known; else None."""
        if self.figures.resumed_offset >= 0:
            known = self.write.confirmed_offset
        else:
            known = -1 if point.lost is None else point.lost.target_offset
        return (known, point.target_end_offset) if known > point.target_end_offset else None

    def go_back_to(self, source_offset: int) -> None:
        """Continue to read from an offset, whatever was read before."""
        self.write.source_offset = self.read.next_offset = source_offset
        if source_offset != self.read.start_offset:
            # The source's log start was later than planned and has to be determined again.
            self.read.start_offset = self.spec.source_start_offset

    def reset(self, *, resume_at: float) -> None:
        """Forget all decided and sent steps: the target's log will determine where the copy resumes."""
        self.incarnation += 1
        self.write.drop()
        self.read.undecided_bytes = 0
        if self.state is not CopyState.FAILED:
            self.state = CopyState.RESUMING
            self.resume_at = resume_at

    def resume(self, point: ResumePoint) -> None:
        """Continue from the position that the target's log gives."""
        back = self.went_back(point)
        if back is not None:
            self.figures.went_back.append(back)
            if self.figures.resumed_offset >= 0:
                # Seen within this slice, so the position is the one that was confirmed.
                self.read.lost = NotedPosition(
                    self.write.confirmed_source_offset, self.write.confirmed_offset, self.write.next_sequence
                )
        self.read.lost = point.lost or self.read.lost
        if self.figures.resumed_offset < 0:
            self.figures.resumed_offset = point.target_end_offset
            self.figures.resumed_source_offset = point.source_offset
        self.state = CopyState.RUNNING
        self.go_back_to(point.source_offset)
        self.read.leader_epoch = max(self.read.leader_epoch, point.source_epoch)
        self.write.resume(point, self.spec.target_start_offset)
        if point.is_mapped:
            self.verdict = Verdict.MAPPED
        self.write.fills_holes = not point.skips_holes and self._may_fill_holes
        self.stopping = None

    def fail(self, error: MigrationError) -> None:
        """Stop this partition; the others of the lane continue."""
        self.error = error
        self.state = CopyState.FAILED
        self.reset(resume_at=0.0)

    def note_progress(self, *, has_begun: bool = True) -> None:
        """Forget earlier troubles: the partition has moved.

        :param has_begun: by more than the marker that the first hole after a resume begins with.
        """
        self.retries = 0
        self.stuck_since = None
        if has_begun and self.progressed_at is None:
            self.progressed_at = time.monotonic()

    def confirm_append(self, now_ms: int = -1) -> Sent:
        """Confirm the oldest append: it was answered as expected.

        :param now_ms: this machine's clock, in milliseconds since 1970; -1: read it here.
        """
        sent = self.write.in_flight.popleft()
        self.write.confirmed_offset = sent.target_offset + sent.record_count
        self.write.has_appended = True
        self.figures.add_sent(sent, now_ms if now_ms >= 0 else time.time_ns() // 1_000_000)
        self.note_progress()
        return sent

    def confirm_fill(self, log_end_offset: int, now: float) -> None:
        """Confirm written markers: the log end has grown to the expected offset, or a part of the way."""
        grown = self.write.end_fill(log_end_offset, now)
        self.figures.holes += grown
        if grown:
            self.note_progress(has_begun=self.figures.holes > 1)

    @property
    def remaining_fill_seconds(self) -> float:
        """How long filling takes up to the source's present end, at the pace of this slice."""
        advanced = self.write.confirmed_source_offset - self.figures.resumed_source_offset
        if not self.write.fill_seconds or advanced <= 0:
            return 0.0
        return self.write.fill_seconds / advanced * max(self.read.last_stable_offset - self.write.source_offset, 0)

    def open_trouble(self) -> MigrationError | None:
        """Return what keeps the partition from making progress although it has not failed; None: it makes progress.

        A partition whose log end was never read has reached no broker in the whole slice, which counts as trouble.
        """
        if self.state is CopyState.RUNNING and isinstance(self.stopping, SchemaIdUnknown):
            return self.stopping
        if self.state is CopyState.RUNNING:
            return None if self.write.is_idle or self.stuck_since is None else self.trouble
        if self.state is not CopyState.RESUMING:
            return None
        return self.trouble or Transient(
            "the slice ended before the position of the partition's copy could be read from the clusters",
            where=Where(topic=self.spec.topic, partition=self.spec.partition),
            next_step="none at first: the next slice tries again; if it lasts, check that both clusters answer",
            details={NO_ANSWER: True},
        )

    @property
    def standing(self) -> Standing:
        """Where the copy stands. Another thread than the lane's may ask.

        :raises IndexError: a queue has changed meanwhile; ask again.
        """
        # The last stable offset is read first: it only grows, so a race never makes a lag too large.
        stable_offset = self.read.last_stable_offset if self.state is CopyState.RUNNING else -1
        copied_until = self.write.confirmed_source_offset
        return Standing(
            source_offset=copied_until,
            lag=-1 if stable_offset < 0 else max(stable_offset - copied_until, 0),
            held_back=self.read.held_back,
            waiting_ms=self.write.waiting_ms,
            mirrored_ms=self.figures.mirrored_ms,
        )

    def result(self, *, done: bool) -> PartitionResult:
        """Return what happened in this slice."""
        trouble = None if done else self.open_trouble()
        copied_until, figures, standing = self.write.confirmed_source_offset, self.figures, self.standing
        return PartitionResult(
            lane=self.lane,
            topic=self.spec.topic,
            partition=self.spec.partition,
            source_offset=copied_until,
            target_offset=self.write.confirmed_offset,
            records=figures.records,
            copied_bytes=figures.copied_bytes,
            source_bytes=figures.source_bytes,
            holes=figures.holes,
            transaction_holes=figures.transaction_holes,
            skipped_records=figures.skipped_records,
            done=done,
            verdict=self.verdict,
            gaps=list(figures.gaps),
            overtaken=list(figures.overtaken),
            held_back=standing.held_back,
            resumed_offset=figures.resumed_offset,
            went_back=list(figures.went_back),
            error=None if self.error is None else self.error.as_dict(),
            total_records=self.confirmed_records,
            total_holes=self.confirmed_holes,
            trouble=None if trouble is None else trouble.as_dict(),
            trouble_seconds=0.0
            if trouble is None or self.stuck_since is None
            else round(time.monotonic() - self.stuck_since, 3),
            lag=-1 if self.read.last_stable_offset < 0 else max(self.read.last_stable_offset - copied_until, 0),
            waiting_ms=standing.waiting_ms,
            mirrored_ms=standing.mirrored_ms,
            latency=figures.latency.flat(),
        )

    @property
    def confirmed_records(self) -> int:
        """The number of records that the copy has put on the target since it began, over all runs; -1: not known.

        Records whose answer never came are counted by the next slice, which reads the log.
        """
        if self.state is not CopyState.RUNNING or self.spec.verdict is Verdict.TRANSACTIONAL:
            return -1
        write = self.write
        pending = sum(step.record_count for step in write.pending if isinstance(step, Append))
        return write.total_records - pending - sum(sent.record_count for sent in write.in_flight)

    @property
    def confirmed_holes(self) -> int:
        """The number of markers on the target since the copy began; -1: not known."""
        records = self.confirmed_records
        return -1 if records < 0 else self.write.confirmed_offset - self.spec.target_start_offset - records


# -- what a lane's stages return -------------------------------------------------------------------------------------


class Read(NamedTuple):
    """A chunk that was read of a partition. It is stale once the partition was reset."""

    copy: PartitionCopy
    incarnation: int
    chunk: Chunk

    @classmethod
    def of(cls, copy: PartitionCopy, chunk: Chunk) -> Read:
        """Describe a chunk of the present incarnation."""
        return cls(copy, copy.incarnation, chunk)

    @property
    def is_stale(self) -> bool:
        """Whether the partition was reset after the chunk was read."""
        return self.incarnation != self.copy.incarnation


class Trouble(NamedTuple):
    """An error of a partition, which must be reset or stopped. It is stale once the partition was reset."""

    copy: PartitionCopy
    incarnation: int
    error: MigrationError

    @classmethod
    def of(cls, copy: PartitionCopy, error: MigrationError) -> Trouble:
        """Describe an error of the present incarnation."""
        return cls(copy, copy.incarnation, error)

    @property
    def is_stale(self) -> bool:
        """Whether the partition was reset or stopped after the error."""
        return self.incarnation != self.copy.incarnation or self.copy.state is CopyState.FAILED


class Confirmed(NamedTuple):
    """The target has accepted an append, a fill or a transaction of a partition."""

    copy: PartitionCopy


# -- topic ids --------------------------------------------------------------------------------------------------------
#
# A topic deleted and created again is another topic, whatever its offsets are; KIP-516 topic ids reveal it.


def fail_recreated(
    source: Wire, copies: Iterable[PartitionCopy], where: Callable[[PartitionCopy], Where]
) -> dict[PartitionCopy, BrokerBusy]:
    """Fail the partitions whose source topic has another id than the job expects.

    :returns: an error for each partition whose topic does not exist according to the source. Waiting for a leader of
        such a partition is useless.
    :raises Transient: no broker of the source answers.
    """
    missing: dict[PartitionCopy, BrokerBusy] = {}
    looked_at = list(copies)
    found = source.metadata({copy.spec.topic for copy in looked_at}) if looked_at else {}
    for copy in looked_at:
        now = found.get(copy.spec.topic)
        if now is not None and now.error_code == error_codes.UNKNOWN_TOPIC_OR_PARTITION:
            missing[copy] = topic_missing(source.config.name, *copy.key)
        elif now is not None and now.topic_id and copy.spec.topic_id and now.topic_id != copy.spec.topic_id:
            what = f"was deleted and created again (id {now.topic_id}, planned {copy.spec.topic_id})"
            copy.fail(another_topic(what, where(copy)))
    return missing


def another_topic(what: str, where: Where) -> TopicRecreated:
    """Return the error of a source topic that is no longer the planned one."""
    return TopicRecreated(
        f"the source topic {what}",
        where=where,
        next_step="to continue without it, set topology.on_topic_deleted: note and clear tail (its copy on the target "
        "stays); or, if nobody else writes to the target topic, delete it there, and start a new migration for it",
    )


def topic_gone(job: CopyJob, spec: CopyPartition, cluster: str | None) -> MigrationError:
    """Return the error of a partition whose topic was deleted on a cluster while it is copied."""
    if cluster == "source":
        where = Where(
            migration_id=job.migration_id,
            phase=job.name,
            cluster="source",
            topic=spec.topic,
            partition=spec.partition,
        )
        return another_topic("was deleted", where)
    return TargetTopicMissing(
        "the target topic no longer exists: somebody has deleted it",
        where=Where(
            migration_id=job.migration_id,
            phase=job.name,
            cluster="target",
            topic=spec.target_topic,
            partition=spec.partition,
        ),
        next_step=_after_missing_target(job, spec.topic),
    )


def _after_missing_target(job: CopyJob, topic: str) -> str:
    if job.way_back:
        return leave_out_of_way_back(topic)
    if job.mirror:
        return (
            "to mirror it again from the source's log start, pause and resume the mirror (kafka-migration mirror pause "
            "FILE, then mirror resume FILE): it creates the topic again first. All other topics go on meanwhile"
        )
    return (
        f"to copy it again from the start, clear {job.name} (or kafka-migration resume FILE): the migration creates "
        "the topic again first if the source still has it; otherwise leave the topic out of the migration"
    )
