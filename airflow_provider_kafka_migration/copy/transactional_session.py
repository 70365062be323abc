"""One partition's transactions as a state machine without I/O: what is open, what it holds, when it ends."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum

from airflow_provider_kafka_migration.copy.partition import PartitionCopy, Sent, advance_sequence
from airflow_provider_kafka_migration.copy.transform import Append
from airflow_provider_kafka_migration.kafka.transactions import Producer
from airflow_provider_kafka_migration.offset_map.runs import Run
from airflow_provider_kafka_migration.offset_map.transactional_position import Position

#: Appends on their way; a broker remembers the last five batches of a producer id and partition.
MAX_UNANSWERED = 5
#: A transaction ends when it has so many bytes ...
MAX_TRANSACTION_BYTES = 32 * 1024 * 1024
#: ... or is so old; sooner when nothing waits, but not at once: each one costs a marker and a run of the map.
MAX_TRANSACTION_SECONDS = 1.0
IDLE_TRANSACTION_SECONDS = 0.04
#: Source offsets without records (markers, compacted ones) are committed so often, and whenever a copy ends.
POSITION_SECONDS = 1.0
#: A position is committed anew when it is so old, long before brokers forget it (``offsets.retention.minutes``).
KEEP_ALIVE_SECONDS = 6 * 3600
#: An idle partition's position is looked at so often.
REST_SECONDS = 60.0
_LOOK_SECONDS = 0.02
_LEAST_PAUSE_SECONDS = 0.002


class Stage(Enum):
    """Where a transaction stands."""

    #: none is open
    IDLE = "idle"
    #: the first position is committed; that this is so is being written down
    BEGINNING = "beginning"
    #: the partition is being added (transaction version 1)
    ADDING = "adding"
    #: records are appended
    OPEN = "open"
    #: the group is being added (transaction version 1)
    ADDING_OFFSETS = "adding_offsets"
    #: a page of the map is being written
    PAGING = "paging"
    #: the position is being committed
    COMMITTING = "committing"
    #: the transaction is being ended
    ENDING = "ending"


@dataclass(eq=False)
class Session:
    """The present incarnation of a partition's transactional id, and its transaction.

    In ``copy.in_flight`` is all that the transaction holds, answered or not: nothing of it counts before the end.
    """

    copy: PartitionCopy
    incarnation: int
    producer: Producer
    #: as committed
    position: Position
    coordinator_id: int
    #: it is written down that a position was committed once, so that its loss is noticed
    is_begun: bool = True
    stage: Stage = Stage.IDLE
    sequence: int = 0
    #: runs that the open transaction has appended
    runs: list[Run] = field(default_factory=list)
    answered: int = 0
    size_bytes: int = 0
    opened_at: float = 0.0
    #: no more appends: it ends as soon as all are answered
    is_closing: bool = False
    #: what it will commit
    next_position: Position | None = None
    page: Future[Position] | None = None
    beginning: Future[None] | None = None
    #: a request to a coordinator waits for its answer
    asked: bool = False
    #: nothing is asked before (monotonic clock), and how often it was asked in vain
    due: float = 0.0
    tries: int = 0
    #: the first append of a transaction (version 2) goes alone: it adds the partition, and may have to be sent again
    first_step: Append | None = None
    position_due: float = 0.0
    #: with nothing to do it is not looked at before
    rests_until: float = 0.0

    def is_resting(self, now: float) -> bool:
        """Nothing is to be done, and the age of the position was looked at lately: so it is with most partitions."""
        copy = self.copy
        return self.stage is Stage.IDLE and not copy.pending and not copy.owes_position and now < self.rests_until

    @property
    def unanswered(self) -> int:
        """Appends on their way."""
        return len(self.copy.in_flight) - self.answered

    @property
    def is_live(self) -> bool:
        """Whether answers are still meant for the copy's present life."""
        return self.copy.incarnation == self.incarnation

    def go_on(self, stage: Stage) -> None:
        """The next stage, at once."""
        self.stage, self.asked, self.due, self.tries = stage, False, 0.0, 0

    def again(self, now: float, pauses: Sequence[float]) -> None:
        """Ask once more after a pause that grows."""
        self.asked = False
        self.due = now + pauses[min(self.tries, len(pauses) - 1)]
        self.tries += 1

    def next_look(self, now: float) -> float:
        """When there is something to do though no answer has come (monotonic clock)."""
        if self.stage is not Stage.OPEN or self.due > now:
            return self.due if self.due > now else now + _LOOK_SECONDS
        patience = MAX_TRANSACTION_SECONDS if self.copy.pending else IDLE_TRANSACTION_SECONDS
        return max(self.opened_at + patience, now + _LEAST_PAUSE_SECONDS)

    # -- what a transaction holds ------------------------------------------------------------------------------------

    def may_append(self) -> bool:
        """Whether the next batch can go."""
        return (
            not self.is_closing
            and bool(self.copy.pending)
            and self.unanswered < (1 if self.first_step is not None else MAX_UNANSWERED)
        )

    def take_append(self) -> tuple[Append, int]:
        """The next batch, as sent: (step, base sequence)."""
        copy = self.copy
        step = copy.take()
        assert isinstance(step, Append)
        sent = Sent.of(step, -1)
        copy.in_flight.append(sent)
        sequence = self.sequence
        self.sequence = advance_sequence(sequence, step.batch.last_offset_delta)
        self.size_bytes += sent.size_bytes
        return step, sequence

    def take_back(self, step: Append) -> None:
        """The first batch was not taken yet: it goes again, with the same sequence."""
        copy = self.copy
        sent = copy.in_flight.pop()
        copy.take_back(step)
        self.size_bytes -= sent.size_bytes
        self.sequence = 0

    @property
    def oldest(self) -> Sent:
        """The append that is answered next."""
        return self.copy.in_flight[self.answered]

    def confirm(self, base_offset: int) -> None:
        """The oldest append was written at an offset of the leader's choice."""
        sent = self.oldest
        self.answered += 1
        self.first_step = None
        for run in sent.runs_at(base_offset):
            self._add_run(run)

    def _add_run(self, run: Run) -> None:
        last = self.runs[-1] if self.runs else None
        if last is not None and last.count is not None and run.count is not None:
            ends = (last.source_start + last.count, last.target_start + last.count)
            if ends == (run.source_start, run.target_start):
                self.runs[-1] = Run(last.source_start, last.target_start, last.count + run.count)
                return
        self.runs.append(run)

    # -- when it begins and ends -------------------------------------------------------------------------------------

    @property
    def has_position(self) -> bool:
        """A position was committed, by this incarnation or a former one."""
        return self.position.committed_at > 0

    @property
    def owes_position(self) -> bool:
        """Source offsets without records were decided that the committed position does not cover."""
        return self.copy.source_offset > self.position.source_offset

    def open(self, now: float, *, is_second: bool, holds_records: bool) -> None:
        """A transaction begins; one without records commits a position alone."""
        self.opened_at = now
        self.runs, self.answered, self.size_bytes = [], 0, 0
        self.is_closing, self.next_position = not holds_records, None
        self.go_on(Stage.OPEN if is_second or not holds_records else Stage.ADDING)
        head = self.copy.pending[0] if holds_records else None
        self.first_step = head if is_second and isinstance(head, Append) else None

    def wants_end(self, now: float, *, hurry: bool) -> bool:
        """Whether the open transaction has enough."""
        age = now - self.opened_at
        if self.size_bytes >= MAX_TRANSACTION_BYTES or age >= MAX_TRANSACTION_SECONDS:
            return True
        return not self.copy.pending and (hurry or age >= IDLE_TRANSACTION_SECONDS)

    def plan_commit(self, seconds_now: int) -> Position:
        """What the transaction commits."""
        copy = self.copy
        if not self.is_begun:
            source_offset = self.position.source_offset
        else:
            source_offset = copy.pending[0].source_offset if copy.pending else copy.source_offset
        return self.position.extended(
            self.runs, source_offset, self.producer.producer_id, seconds_now, copy.source_epoch
        )

    def committed(self, producer_id: int, producer_epoch: int, now: float) -> None:
        """The transaction has ended well: what it held counts."""
        copy = self.copy
        assert self.next_position is not None
        self.position = self.next_position
        self.next_position = None
        for sent in copy.in_flight:
            copy.records += sent.record_count
            copy.copied_bytes += sent.size_bytes
        copy.in_flight.clear()
        copy.confirmed_offset = self.position.target_offset
        copy.has_appended = True
        copy.owes_position = self.owes_position
        copy.retries, copy.stuck_since = 0, None
        self.runs, self.answered, self.size_bytes, self.is_closing = [], 0, 0, False
        self.position_due = now + POSITION_SECONDS
        if producer_epoch >= 0:
            self.producer = Producer(self.producer.transactional_id, producer_id, producer_epoch)
            self.sequence = 0
        self.go_on(Stage.IDLE)
