"""The copy of one partition as a state machine without I/O: what is decided, what is sent, what is confirmed.

``source_offset`` .. decided up to here; ``pending`` .. decided, not sent; ``in_flight`` .. sent, not answered;
``confirmed_offset`` .. the target's log end as far as answers say; ``projected_offset`` .. where the next step will
land. Whatever goes wrong, :meth:`reset` drops all of it and the target's log says where to go on: there is no other
state.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from airflow_provider_kafka_migration.copy.transform import Append, Hole, Step
from airflow_provider_kafka_migration.documents.copy import CopyPartition, PartitionResult
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import MigrationError, Transient, Where
from airflow_provider_kafka_migration.offset_map.runs import Run

SEQUENCE_MODULUS = 2**31
#: What the objects of a step take in memory beside the bytes of its batch: between holes batches are small.
_APPEND_BYTES = 1024
_HOLE_BYTES = 128


class Phase(Enum):
    """Where the copy of a partition stands."""

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

    @classmethod
    def of(cls, step: Append, target_offset: int) -> Sent:
        """A step that is sent to be written at an offset (-1: the leader chooses)."""
        return cls(
            target_offset,
            step.record_count,
            step.source_offset,
            step.batch.size_bytes,
            step.runs,
        )

    def runs_at(self, base_offset: int) -> Iterator[Run]:
        """The runs of the offset map that these records are, written from an offset on."""
        ends = [number for _, number in self.runs[1:]] + [self.record_count]
        for (source_offset, number), end in zip(self.runs, ends, strict=True):
            yield Run(source_offset, base_offset + number, end - number)


class ResumePoint(NamedTuple):
    """What the target's log says: where the copy of a partition stands."""

    source_offset: int
    target_end_offset: int
    next_sequence: int
    #: source offset less target offset from here on: that of the map's last run
    shift: int
    #: the map has more than its base run
    is_mapped: bool = False
    #: holes were left out before, so they go on being left out
    skips_holes: bool = False
    #: leader epoch of the source's batch at this place; -1: not known
    source_epoch: int = -1


def kept_bytes(step: Step) -> int:
    """About what a step takes in memory until it is sent."""
    return _APPEND_BYTES + step.batch.size_bytes if isinstance(step, Append) else _HOLE_BYTES


def advance_sequence(sequence: int, last_offset_delta: int) -> int:
    """Next sequence after a batch: + last offset delta + 1, modulo 2**31 (``DefaultRecordBatch.incrementSequence``)."""
    return (sequence + last_offset_delta + 1) % SEQUENCE_MODULUS


@dataclass(eq=False)
class PartitionCopy:
    """One partition of a lane.

    :param spec: what to copy.
    """

    spec: CopyPartition
    lane: int
    phase: Phase = Phase.RESUMING
    #: goes up with each reset: answers to what was sent before are not ours any more
    incarnation: int = 0
    verdict: Verdict = Verdict.EQUAL
    #: False: holes become new runs of the offset map (mapped)
    fills_holes: bool = True

    source_offset: int = 0
    #: Where the copy begins: as planned, or where the source's log began when nothing was copied yet. What lies below
    #: it was deleted on the source before the copy, and owes nothing to an earlier one.
    begins_at: int = field(init=False)
    #: next offset to read; ahead of ``source_offset`` while chunks are being archived
    fetch_offset: int = 0
    #: leader epoch of the last source batch that was read; -1: not known. Survives resets: whatever came later than the
    #: position goes on to be compared with what the present leader has.
    source_epoch: int = -1
    #: (source offset, leader epoch) up to where an earlier slice had read, if that is known
    read_before: tuple[int, int] | None = None
    #: bytes read and not decided yet
    reading_bytes: int = 0
    #: last stable offset and high watermark of the source, as last seen
    source_end_offset: int = -1
    source_high_watermark: int = -1
    #: since when nothing but an open transaction stands in the way
    held_since: float | None = None
    confirmed_offset: int = 0
    #: target offset where the next step will land, after all that is pending
    projected_offset: int = 0
    #: source offset less target offset, of the run in force
    shift: int = 0
    next_sequence: int = 0
    #: control markers of this partition so far, those that are pending included, and records likewise
    markers: int = 0
    total_records: int = 0
    pending: deque[Step] = field(default_factory=deque)
    pending_bytes: int = 0
    in_flight: deque[Sent] = field(default_factory=deque)
    #: offsets of a marker request that waits for its answer; 0: none
    filling: int = 0
    has_filled: bool = False
    #: since when nothing but a hole is to be sent next (monotonic clock), and how long that was in all in this slice
    hole_since: float | None = None
    fill_seconds: float = 0.0
    #: source offset when this slice took the partition over
    resumed_source_offset: int = -1
    #: an append of this incarnation was confirmed: the broker knows our sequence numbers
    has_appended: bool = False

    resume_at: float = 0.0
    #: markers whose answer is lost may still be on their way until then
    settles_at: float = 0.0
    retries: int = 0
    stuck_since: float | None = None
    #: the last failure that is tried again
    trouble: MigrationError | None = None
    #: since when the cluster has answered that a topic of this partition is not there (monotonic clock)
    missing_since: float | None = None
    error: MigrationError | None = None
    #: decided source offsets without records that the committed position does not cover yet (transactional)
    owes_position: bool = False
    #: stops the partition once all that was decided before it is confirmed
    stopping: MigrationError | None = None

    records: int = 0
    copied_bytes: int = 0
    source_bytes: int = 0
    holes: int = 0
    #: target log end when this slice took it over; -1: it never did
    resumed_offset: int = -1
    #: (from, to): the target's log end went back, and what was lost there is copied again
    went_back: list[tuple[int, int]] = field(default_factory=list)
    #: of the holes: those filled by empty transactions
    transaction_holes: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)
    #: source offsets where tombstones may have gone before they were read
    overtaken: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.begins_at = self.spec.source_start_offset
        self.verdict = self.spec.verdict
        self.fills_holes = self.verdict in (Verdict.EQUAL, Verdict.SHIFTED)

    @property
    def key(self) -> tuple[str, int]:
        """(source topic, partition)."""
        return self.spec.key

    @property
    def target_key(self) -> tuple[str, int]:
        """(target topic, partition)."""
        return (self.spec.target_topic, self.spec.partition)

    @property
    def held_back(self) -> int:
        """Records of the source that an open transaction holds back."""
        return max(0, self.source_high_watermark - self.source_end_offset) if self.source_end_offset >= 0 else 0

    @property
    def due_at(self) -> float:
        """When the target's log is looked at again."""
        return max(self.resume_at, self.settles_at)

    @property
    def is_fresh(self) -> bool:
        """No record of this partition was copied yet, by anybody."""
        return self.next_sequence == 0 and not self.records and self.fetch_offset == self.begins_at

    def go_back_to(self, source_offset: int) -> None:
        """Read on from an offset, whatever was read before."""
        self.source_offset = self.fetch_offset = source_offset
        if source_offset != self.begins_at:
            # The source's log start was found later than planned, and is to be found again.
            self.begins_at = self.spec.source_start_offset

    @property
    def is_idle(self) -> bool:
        """Nothing decided is left to send, and nothing sent is left to be answered."""
        return not self.pending and not self.in_flight and not self.filling and not self.owes_position

    def reset(self, *, resume_at: float) -> None:
        """Forget all that was decided or sent: the target's log will say where to go on."""
        self.incarnation += 1
        self.pending.clear()
        self.pending_bytes = 0
        self.in_flight.clear()
        self.filling = 0
        self.hole_since = None
        self.reading_bytes = 0
        if self.phase is not Phase.FAILED:
            self.phase = Phase.RESUMING
            self.resume_at = resume_at

    def resume(self, point: ResumePoint) -> None:
        """Go on from what the target's log says."""
        if self.confirmed_offset > point.target_end_offset and self.resumed_offset >= 0:
            self.went_back.append((self.confirmed_offset, point.target_end_offset))
        if self.resumed_offset < 0:
            self.resumed_offset = point.target_end_offset
            self.resumed_source_offset = point.source_offset
        self.phase = Phase.RUNNING
        self.go_back_to(point.source_offset)
        self.source_epoch = max(self.source_epoch, point.source_epoch)
        self.confirmed_offset = point.target_end_offset
        self.projected_offset = point.target_end_offset
        self.shift = point.shift
        self.next_sequence = point.next_sequence
        # Sequences count records, so what the log has beside them are markers; exact below 2**31 of them.
        self.markers = (
            point.target_end_offset - self.spec.target_start_offset - point.next_sequence
        ) % SEQUENCE_MODULUS
        self.total_records = point.target_end_offset - self.spec.target_start_offset - self.markers
        if point.is_mapped:
            self.verdict = Verdict.MAPPED
        self.fills_holes = not point.skips_holes and self.spec.verdict in (Verdict.EQUAL, Verdict.SHIFTED)
        self.stopping = None
        self.owes_position = False
        self.has_filled = False
        self.has_appended = False

    def fail(self, error: MigrationError) -> None:
        """Stop this partition; the others of the lane go on."""
        self.error = error
        self.phase = Phase.FAILED
        self.reset(resume_at=0.0)

    @property
    def excess_markers(self) -> int:
        """Markers on the target, or pending, beyond the source offset that was decided last."""
        return self.projected_offset + self.shift - self.source_offset

    def queue(self, steps: Iterable[Step]) -> None:
        """Send these after what is pending."""
        for step in steps:
            self.pending.append(step)
            self.pending_bytes += kept_bytes(step)
            if isinstance(step, Append):
                self.total_records += step.record_count

    def take(self) -> Step:
        """The next step, which is not pending any more."""
        step = self.pending.popleft()
        self.pending_bytes -= kept_bytes(step)
        return step

    def take_back(self, step: Step) -> None:
        """A step that was taken is pending again, before all others."""
        self.pending.appendleft(step)
        self.pending_bytes += kept_bytes(step)

    def take_append(self) -> tuple[Append, Sent, int]:
        """The next step, an :class:`Append`, as sent: (step, what waits for its answer, base sequence)."""
        step = self.take()
        assert isinstance(step, Append)
        last = self.in_flight[-1] if self.in_flight else None
        target_offset = self.confirmed_offset if last is None else last.target_offset + last.record_count
        sent = Sent.of(step, target_offset)
        sequence = self.next_sequence
        self.next_sequence = advance_sequence(sequence, step.batch.last_offset_delta)
        self.in_flight.append(sent)
        return step, sent, sequence

    def confirm_append(self) -> Sent:
        """The oldest append was answered as expected."""
        sent = self.in_flight.popleft()
        self.confirmed_offset = sent.target_offset + sent.record_count
        self.has_appended = True
        self.records += sent.record_count
        self.copied_bytes += sent.size_bytes
        self.retries = 0
        self.stuck_since = None
        return sent

    def note_hole(self, now: float) -> None:
        """If a hole is what comes next, time is running for it: what was sent before must be answered first."""
        if self.hole_since is None and self.pending and isinstance(self.pending[0], Hole):
            self.hole_since = now

    @property
    def remaining_fill_seconds(self) -> float:
        """How long filling takes up to the source's present end, if it goes on as it has in this slice."""
        advanced = self.confirmed_source_offset - self.resumed_source_offset
        if not self.fill_seconds or advanced <= 0:
            return 0.0
        return self.fill_seconds / advanced * max(self.source_end_offset - self.source_offset, 0)

    def confirm_fill(self, log_end_offset: int, now: float) -> None:
        """Markers were written: the log end has grown to what was expected, or a part of it."""
        step = self.pending[0]
        assert isinstance(step, Hole)
        grown = log_end_offset - self.confirmed_offset
        self.confirmed_offset = log_end_offset
        self.holes += grown
        self.filling = 0
        if self.hole_since is not None:
            self.fill_seconds += now - self.hole_since
            self.hole_since = now if grown < step.count else None
        self.has_filled = True
        if grown:
            self.retries = 0
            self.stuck_since = None
        if grown == step.count:
            self.take()
        else:
            self.pending[0] = Hole(step.source_offset + grown, step.count - grown)

    def open_trouble(self) -> MigrationError | None:
        """What keeps the partition from going on, though nothing has stopped it; None: it goes on.

        A partition whose log end was never looked at has made no contact in the whole slice: that is no good news.
        """
        if self.phase is Phase.RUNNING:
            return None if self.is_idle or self.stuck_since is None else self.trouble
        if self.phase is not Phase.RESUMING:
            return None
        return self.trouble or Transient(
            "the slice ended before anybody had said where the copy of the partition stands",
            where=Where(topic=self.spec.topic, partition=self.spec.partition),
            next_step="none, unless it lasts: the next slice asks again; then check that both clusters answer",
        )

    def result(self, *, done: bool) -> PartitionResult:
        """What happened in this slice."""
        trouble = None if done else self.open_trouble()
        return PartitionResult(
            lane=self.lane,
            topic=self.spec.topic,
            partition=self.spec.partition,
            source_offset=self.confirmed_source_offset,
            target_offset=self.confirmed_offset,
            records=self.records,
            copied_bytes=self.copied_bytes,
            source_bytes=self.source_bytes,
            holes=self.holes,
            transaction_holes=self.transaction_holes,
            done=done,
            verdict=self.verdict,
            gaps=list(self.gaps),
            overtaken=list(self.overtaken),
            held_back=self.held_back,
            resumed_offset=self.resumed_offset,
            went_back=list(self.went_back),
            error=None if self.error is None else self.error.as_dict(),
            total_records=self.confirmed_records,
            total_holes=self.confirmed_holes,
            trouble=None if trouble is None else trouble.as_dict(),
            trouble_seconds=0.0
            if trouble is None or self.stuck_since is None
            else round(time.monotonic() - self.stuck_since, 3),
            lag=-1 if self.source_end_offset < 0 else max(self.source_end_offset - self.confirmed_source_offset, 0),
        )

    @property
    def confirmed_records(self) -> int:
        """Records on the target that the copy has put there since it began, whichever run did it; -1: not known.

        What an answer that never came has left in the log is counted by the next slice, which reads the log.
        """
        if self.phase is not Phase.RUNNING or self.spec.verdict is Verdict.TRANSACTIONAL:
            return -1
        pending = sum(step.record_count for step in self.pending if isinstance(step, Append))
        return self.total_records - pending - sum(sent.record_count for sent in self.in_flight)

    @property
    def confirmed_holes(self) -> int:
        """Markers on the target since the copy began; -1: not known."""
        records = self.confirmed_records
        return -1 if records < 0 else self.confirmed_offset - self.spec.target_start_offset - records

    @property
    def confirmed_source_offset(self) -> int:
        """Next source offset that the target does not have yet."""
        if self.in_flight:
            return self.in_flight[0].source_offset
        if self.pending:
            return self.pending[0].source_offset
        return self.source_offset
