"""The copy of one partition as a state machine without I/O: steps decided, sent and confirmed.

``source_offset`` .. everything below it is decided; ``pending`` .. decided, not sent; ``in_flight`` .. sent, not
answered; ``confirmed_offset`` .. the target's log end according to the answers; ``projected_offset`` .. where the next
step will land. After any error, :meth:`reset` drops all of this and the target's log determines where the copy
resumes: there is no other state.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from airflow_provider_kafka_migration.copy.transform import Append, CopyOp, Hole
from airflow_provider_kafka_migration.documents.copy import CopyJob, CopyPartition, PartitionResult
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import (
    BrokerBusy,
    ForeignData,
    HolesExceedBudget,
    MigrationError,
    TopicRecreated,
    Transient,
    Where,
)
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.logs import topic_missing
from airflow_provider_kafka_migration.kafka.wire import Wire
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange
from airflow_provider_kafka_migration.offset_map.store import LaneMaps

SEQUENCE_MODULUS = 2**31
#: Memory that the objects of a step take in addition to the bytes of its batch: between holes, batches are small.
_APPEND_BYTES = 1024
_HOLE_BYTES = 128


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

    @classmethod
    def of(cls, step: Append, target_offset: int) -> Sent:
        """Describe a step that is sent to be written at an offset (-1: the leader chooses)."""
        return cls(
            target_offset,
            step.record_count,
            step.source_offset,
            step.batch.size_bytes,
            step.runs,
        )

    def runs_at(self, base_offset: int) -> Iterator[OffsetRange]:
        """Yield the offset map runs of these records when they are written from ``base_offset`` on."""
        ends = [number for _, number in self.runs[1:]] + [self.record_count]
        for (source_offset, number), end in zip(self.runs, ends, strict=True):
            yield OffsetRange(source_offset, base_offset + number, end - number)


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


def kept_bytes(step: CopyOp) -> int:
    """Return the approximate memory that a step takes until it is sent."""
    return _APPEND_BYTES + step.batch.size_bytes if isinstance(step, Append) else _HOLE_BYTES


def advance_sequence(sequence: int, last_offset_delta: int) -> int:
    """Return the sequence after a batch: plus last offset delta plus 1, modulo 2**31.

    As in ``DefaultRecordBatch.incrementSequence``.
    """
    return (sequence + last_offset_delta + 1) % SEQUENCE_MODULUS


@dataclass(eq=False)
class PartitionCopy:
    """One partition of a lane.

    :param spec: what to copy.
    """

    spec: CopyPartition
    lane: int
    phase: CopyState = CopyState.RESUMING
    #: goes up with each reset, so that answers to earlier requests are ignored
    incarnation: int = 0
    verdict: Verdict = Verdict.EQUAL
    #: False: holes become new runs of the offset map (mapped)
    fills_holes: bool = True

    source_offset: int = 0
    #: Where the copy begins: as planned, or where the source's log began when nothing was copied yet. Records below it
    #: were deleted on the source before the copy, and no earlier copier has copied any of them.
    begins_at: int = field(init=False)
    #: next offset to read; ahead of ``source_offset`` while chunks are being archived
    fetch_offset: int = 0
    #: leader epoch of the last source batch that was read; -1: not known. Survives resets, so that what was read
    #: beyond the new position is still compared with the present leader's log.
    source_epoch: int = -1
    #: (source offset, leader epoch) up to which an earlier slice had read, if known
    read_before: tuple[int, int] | None = None
    #: bytes read and not decided yet
    reading_bytes: int = 0
    #: last stable offset and high watermark of the source, as last seen
    source_end_offset: int = -1
    source_high_watermark: int = -1
    #: since when only an open transaction blocks reading
    held_since: float | None = None
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
    #: since when the next step has been a hole (monotonic clock), and for how long in total in this slice
    hole_since: float | None = None
    fill_seconds: float = 0.0
    #: source offset when this slice took the partition over
    resumed_source_offset: int = -1
    #: an append of this incarnation was confirmed, so the broker knows our sequence numbers
    has_appended: bool = False

    resume_at: float = 0.0
    #: until then, markers whose answer was lost may still arrive at the broker
    settles_at: float = 0.0
    retries: int = 0
    stuck_since: float | None = None
    #: the last error that is being retried
    trouble: MigrationError | None = None
    #: since when the cluster has answered that a topic of this partition does not exist (monotonic clock)
    missing_since: float | None = None
    error: MigrationError | None = None
    #: decided source offsets without records that the committed position does not cover yet (transactional)
    owes_position: bool = False
    #: stops the partition once everything decided before this error is confirmed
    stopping: MigrationError | None = None

    records: int = 0
    copied_bytes: int = 0
    source_bytes: int = 0
    holes: int = 0
    #: target log end when this slice took the partition over; -1: it has not yet
    resumed_offset: int = -1
    #: (from, to): the target's log end went back, and the copier copies the lost part again
    went_back: list[tuple[int, int]] = field(default_factory=list)
    #: holes (a part of ``holes``) that were filled by empty transactions
    transaction_holes: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)
    #: source offsets where compaction may have removed tombstones before they were read
    overtaken: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.begins_at = self.spec.source_start_offset
        self.verdict = self.spec.verdict
        self.fills_holes = self.verdict in (Verdict.EQUAL, Verdict.SHIFTED)

    @property
    def key(self) -> tuple[str, int]:
        """The (source topic, partition)."""
        return self.spec.key

    @property
    def target_key(self) -> tuple[str, int]:
        """The (target topic, partition)."""
        return (self.spec.target_topic, self.spec.partition)

    @property
    def held_back(self) -> int:
        """The number of source records that an open transaction holds back."""
        return max(0, self.source_high_watermark - self.source_end_offset) if self.source_end_offset >= 0 else 0

    @property
    def due_at(self) -> float:
        """When the target's log is read again."""
        return max(self.resume_at, self.settles_at)

    @property
    def is_fresh(self) -> bool:
        """Whether no copier has copied a record of this partition yet."""
        return self.next_sequence == 0 and not self.records and self.fetch_offset == self.begins_at

    def go_back_to(self, source_offset: int) -> None:
        """Continue to read from an offset, whatever was read before."""
        self.source_offset = self.fetch_offset = source_offset
        if source_offset != self.begins_at:
            # The source's log start was later than planned and has to be determined again.
            self.begins_at = self.spec.source_start_offset

    @property
    def is_idle(self) -> bool:
        """Whether nothing decided is left to send, and nothing sent is left to be answered."""
        return not self.pending and not self.in_flight and not self.filling and not self.owes_position

    def reset(self, *, resume_at: float) -> None:
        """Forget all decided and sent steps: the target's log will determine where the copy resumes."""
        self.incarnation += 1
        self.pending.clear()
        self.pending_bytes = 0
        self.in_flight.clear()
        self.filling = 0
        self.hole_since = None
        self.reading_bytes = 0
        if self.phase is not CopyState.FAILED:
            self.phase = CopyState.RESUMING
            self.resume_at = resume_at

    def resume(self, point: ResumePoint) -> None:
        """Continue from the position that the target's log gives."""
        if self.confirmed_offset > point.target_end_offset and self.resumed_offset >= 0:
            self.went_back.append((self.confirmed_offset, point.target_end_offset))
        if self.resumed_offset < 0:
            self.resumed_offset = point.target_end_offset
            self.resumed_source_offset = point.source_offset
        self.phase = CopyState.RUNNING
        self.go_back_to(point.source_offset)
        self.source_epoch = max(self.source_epoch, point.source_epoch)
        self.confirmed_offset = point.target_end_offset
        self.projected_offset = point.target_end_offset
        self.shift = point.shift
        self.next_sequence = point.next_sequence
        # Sequences count records, so all other offsets of the log are markers; exact below 2**31 of them.
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
        """Stop this partition; the others of the lane continue."""
        self.error = error
        self.phase = CopyState.FAILED
        self.reset(resume_at=0.0)

    @property
    def excess_markers(self) -> int:
        """The number of markers on the target, or pending, beyond the source offset that was decided last."""
        return self.projected_offset + self.shift - self.source_offset

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

    def confirm_append(self) -> Sent:
        """Confirm the oldest append: it was answered as expected."""
        sent = self.in_flight.popleft()
        self.confirmed_offset = sent.target_offset + sent.record_count
        self.has_appended = True
        self.records += sent.record_count
        self.copied_bytes += sent.size_bytes
        self.retries = 0
        self.stuck_since = None
        return sent

    def note_hole(self, now: float) -> None:
        """Start the clock for a hole if that is the next step: what was sent before it must be answered first."""
        if self.hole_since is None and self.pending and isinstance(self.pending[0], Hole):
            self.hole_since = now

    @property
    def remaining_fill_seconds(self) -> float:
        """How long filling takes up to the source's present end, at the pace of this slice."""
        advanced = self.confirmed_source_offset - self.resumed_source_offset
        if not self.fill_seconds or advanced <= 0:
            return 0.0
        return self.fill_seconds / advanced * max(self.source_end_offset - self.source_offset, 0)

    def confirm_fill(self, log_end_offset: int, now: float) -> None:
        """Confirm written markers: the log end has grown to the expected offset, or a part of the way."""
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
        """Return what keeps the partition from making progress although it has not failed; None: it makes progress.

        A partition whose log end was never read has reached no broker in the whole slice, which counts as trouble.
        """
        if self.phase is CopyState.RUNNING:
            return None if self.is_idle or self.stuck_since is None else self.trouble
        if self.phase is not CopyState.RESUMING:
            return None
        return self.trouble or Transient(
            "the slice ended before the position of the partition's copy could be read from the clusters",
            where=Where(topic=self.spec.topic, partition=self.spec.partition),
            next_step="none at first: the next slice tries again; if it lasts, check that both clusters answer",
        )

    def result(self, *, done: bool) -> PartitionResult:
        """Return what happened in this slice."""
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
        """The number of records that the copy has put on the target since it began, over all runs; -1: not known.

        Records whose answer never came are counted by the next slice, which reads the log.
        """
        if self.phase is not CopyState.RUNNING or self.spec.verdict is Verdict.TRANSACTIONAL:
            return -1
        pending = sum(step.record_count for step in self.pending if isinstance(step, Append))
        return self.total_records - pending - sum(sent.record_count for sent in self.in_flight)

    @property
    def confirmed_holes(self) -> int:
        """The number of markers on the target since the copy began; -1: not known."""
        records = self.confirmed_records
        return -1 if records < 0 else self.confirmed_offset - self.spec.target_start_offset - records

    @property
    def confirmed_source_offset(self) -> int:
        """The next source offset that the target does not have yet."""
        if self.in_flight:
            return self.in_flight[0].source_offset
        if self.pending:
            return self.pending[0].source_offset
        return self.source_offset


# -- placing ----------------------------------------------------------------------------------------------------------
#
# Where decided steps go on the target: markers for holes, runs of the offset map where the shift changes.
#
# All is arithmetic on three numbers of a partition: the shift in force (source offset minus target offset), the source
# offset that is decided next, and the target offset where the next step will land. Too many markers (a hole filled
# twice), holes left out (mapped), a log that begins elsewhere: each of them only changes the shift from some record
# on, and a new run is durable before the first record that needs it is sent.


log = logging.getLogger(__name__)

#: This many markers never exceed ``max_markers_per_record``: at the head of a log there are no records yet.
GRACE_MARKERS = 1_000_000
#: The time limit applies to the remaining holes only after holes have been filled for this long.
_MEASURED_SECONDS = 10.0


class OffsetLayout:
    """Queues steps for a lane's partitions, and makes their map runs durable before the records are sent."""

    def __init__(self, job: CopyJob, maps: LaneMaps) -> None:
        self._job = job
        self._maps = maps

    def place(self, copy: PartitionCopy, steps: Sequence[CopyOp]) -> None:
        """Queue steps that follow the ones placed before.

        :raises ForeignData: a hole was filled twice, and the policy is to fail.
        :raises HolesExceedBudget: there are more holes than the budget allows, and the policy is to fail.
        :raises OffsetMapConflict: another writer writes this partition's runs.
        """
        if copy.spec.verdict is Verdict.TRANSACTIONAL:
            place_in_transactions(copy, steps)
            return
        runs: list[OffsetRange] = []
        placed: list[CopyOp] = []
        for step in steps:
            if isinstance(step, Hole):
                self._place_hole(copy, step, placed)
            else:
                self._place_append(copy, step, placed, runs)
        if runs:
            self._maps.write_ahead(copy.spec, copy.confirmed_offset, runs)
        copy.queue(placed)

    def _place_hole(self, copy: PartitionCopy, hole: Hole, placed: list[CopyOp]) -> None:
        end = hole.source_offset + hole.count
        missing = end - copy.shift - copy.projected_offset
        copy.source_offset = end
        if missing <= 0 or not copy.fills_holes:
            return
        if not self._may_fill(copy, missing):
            copy.fills_holes = False
            copy.verdict = Verdict.MAPPED
            return
        placed.append(Hole(end - missing, missing))
        copy.projected_offset += missing
        copy.markers += missing

    def _place_append(self, copy: PartitionCopy, step: Append, placed: list[CopyOp], runs: list[OffsetRange]) -> None:
        for source_offset, number in step.runs:
            target_offset = copy.projected_offset + number
            extra = target_offset + copy.shift - source_offset
            if extra:
                if extra > 0 and copy.fills_holes:
                    self._overfilled(copy, extra, source_offset)
                self._begin_run(copy, OffsetRange(source_offset, target_offset), runs)
        placed.append(step)
        copy.source_offset = step.source_next_offset
        copy.projected_offset += step.record_count

    def _begin_run(self, copy: PartitionCopy, run: OffsetRange, runs: list[OffsetRange]) -> None:
        runs.append(run)
        copy.shift = run.shift
        copy.verdict = Verdict.MAPPED

    def _overfilled(self, copy: PartitionCopy, extra: int, source_offset: int) -> None:
        if (copy.spec.on_mismatch or self._job.on_mismatch) == "fail":
            raise ForeignData(
                f"a hole was filled twice: the target has {extra} control markers too many before source offset "
                f"{source_offset}",
                where=self._where(copy),
                next_step="delete the target topic and start again, or set offsets.on_mismatch: mapped",
                details={"extra_markers": extra, "source_offset": source_offset},
            )
        log.warning(
            "%s-%s: %s control markers too many before source offset %s, continuing as mapped",
            *copy.key,
            extra,
            source_offset,
        )

    def _may_fill(self, copy: PartitionCopy, count: int) -> bool:
        why = self._over_budget(copy, count)
        if why is None:
            return True
        if (copy.spec.on_mismatch or self._job.on_mismatch) == "fail":
            raise HolesExceedBudget(
                f"{why} for {copy.total_records} records exceeds the budget for holes",
                where=self._where(copy),
                next_step="raise offsets.max_markers, offsets.max_markers_per_record and offsets.max_fill_time, or let "
                "the partition become mapped (offsets.mode: auto, offsets.on_mismatch: mapped)",
                details={
                    "markers": copy.markers + count,
                    "records": copy.total_records,
                    "max_markers": self._job.max_markers,
                    "max_fill_seconds": self._job.max_fill_seconds,
                },
            )
        log.warning("%s-%s: %s exceeds the budget for holes, continuing as mapped", *copy.key, why)
        return False

    def _over_budget(self, copy: PartitionCopy, count: int) -> str | None:
        """Return which part of the budget filling a hole would exceed; None: the hole may be filled."""
        total = copy.markers + count
        by_records = max(GRACE_MARKERS, copy.total_records * self._job.max_markers_per_record)
        if total > min(self._job.max_markers, by_records):
            return f"writing {total} control markers"
        limit = self._job.max_fill_seconds
        rest = copy.remaining_fill_seconds
        # At the beginning of a slice, a few slow answers would weigh too much.
        if rest > limit and copy.fill_seconds >= min(_MEASURED_SECONDS, limit):
            return f"filling holes for another {rest:.0f} s"
        return None

    def settle_end(self, copy: PartitionCopy) -> None:
        """Begin a new run if all is copied and the target's markers reach beyond the source's end.

        Later records then have another shift.

        :raises ForeignData: as :meth:`place`.
        """
        extra = copy.excess_markers
        if extra <= 0 or not copy.fills_holes:
            return
        self._overfilled(copy, extra, copy.source_offset)
        runs: list[OffsetRange] = []
        self._begin_run(copy, OffsetRange(copy.source_offset, copy.projected_offset), runs)
        self._maps.write_ahead(copy.spec, copy.confirmed_offset, runs)

    def _where(self, copy: PartitionCopy) -> Where:
        return Where(
            migration_id=self._job.migration_id,
            phase=self._job.name,
            topic=copy.spec.topic,
            partition=copy.spec.partition,
            offset=copy.confirmed_source_offset,
        )


def place_in_transactions(copy: PartitionCopy, steps: Sequence[CopyOp]) -> None:
    """Queue the steps with records. The leader chooses the offsets; holes only advance the position."""
    for step in steps:
        if isinstance(step, Hole):
            copy.source_offset = step.source_offset + step.count
        else:
            copy.queue([step])
            copy.source_offset = step.source_next_offset
        copy.owes_position = True


# -- throttling -------------------------------------------------------------------------------------------------------
#
# For how long brokers' quotas have delayed a lane.


class Throttling:
    """Adds up throttle times, which overlap: each answer gives how long its connection is muted from now on.

    :ivar seconds: the time in which at least one connection was muted.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._until = 0.0

    def note(self, throttle_time_ms: int, now: float) -> float:
        """Add an answer's throttle time.

        :param now: the present time of the monotonic clock.
        :returns: when the answer's connection may send again.
        """
        until = now + throttle_time_ms / 1000
        self.seconds += max(0.0, until - max(now, self._until))
        self._until = max(self._until, until)
        return until


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
        next_step="to continue without it, set topology.on_topic_deleted: drop and clear tail (its copy on the target "
        "stays); or delete the target topic, and start a new migration for this topic",
    )
