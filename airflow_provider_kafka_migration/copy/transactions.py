"""Appends in transactions (KIP-656): records, map and source position become visible together, or not at all.

For target partitions where offsets cannot be kept, because others write there too or the brokers do not compare
sequence numbers. Each partition has its own transactional id, so partitions never wait for each other, and the next
copier of a partition fences the previous one. The appender never aborts a transaction explicitly: after any error the
partition is reset, and the InitProducerId of its resume ends what was left open.

It has the same interface as :class:`~.append.Appender`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum

from airflow_provider_kafka_migration.copy.append import Channel, TargetWriter
from airflow_provider_kafka_migration.copy.append_errors import (
    PAUSES,
    TooLarge,
    append_error,
    coordinator_error,
    has_replaced_timestamps,
    is_concurrent,
    replaced_timestamps,
)
from airflow_provider_kafka_migration.copy.limits import SliceLimits
from airflow_provider_kafka_migration.copy.partition import (
    Confirmed,
    CopyState,
    PartitionCopy,
    Sent,
    advance_sequence,
)
from airflow_provider_kafka_migration.copy.transform import Append
from airflow_provider_kafka_migration.errors import MigrationError, RecordTooLarge, SliceExpired, Where
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka import transactions as requests
from airflow_provider_kafka_migration.kafka.batches.api import patched_header
from airflow_provider_kafka_migration.kafka.transactions import Producer
from airflow_provider_kafka_migration.kafka.wire import GROUP_COORDINATOR, Wire
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange
from airflow_provider_kafka_migration.offset_map.transactional import MAX_METADATA_BYTES, MapPages, Position

# -- transactional session --------------------------------------------------------------------------------------------
#
# One partition's transactions as a state machine without I/O: the open transaction, its content, and when it ends.


#: Unanswered appends; a broker remembers the last five batches of a producer id and partition.
MAX_UNANSWERED = 5
#: A transaction ends when it has this many bytes ...
MAX_TRANSACTION_BYTES = 32 * 1024 * 1024
#: ... or reaches this age; sooner if nothing waits, but not immediately: each one costs a marker and a run of the map.
MAX_TRANSACTION_SECONDS = 1.0
IDLE_TRANSACTION_SECONDS = 0.04
#: Interval for committing source offsets without records (markers, compacted ones); also committed when a copy ends.
POSITION_SECONDS = 1.0
#: A position of this age is committed again, long before brokers forget it (``offsets.retention.minutes``).
KEEP_ALIVE_SECONDS = 6 * 3600
#: Interval for checking the age of an idle partition's position.
REST_SECONDS = 60.0
_LOOK_SECONDS = 0.02
_LEAST_PAUSE_SECONDS = 0.002


class Stage(Enum):
    """The stage of a transaction."""

    #: none is open
    IDLE = "idle"
    #: the first position is committed; the note of this fact is being written
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
class ProducerSession:
    """The present incarnation of a partition's transactional id, and its transaction.

    ``copy.write.in_flight`` has every append of the transaction, answered or not: none of them counts before the end.
    """

    copy: PartitionCopy
    incarnation: int
    producer: Producer
    #: the committed position
    position: Position
    coordinator_id: int
    #: the note is written that a position was committed once, so that its loss would be noticed
    is_begun: bool = True
    stage: Stage = Stage.IDLE
    sequence: int = 0
    #: runs that the open transaction has appended
    runs: list[OffsetRange] = field(default_factory=list)
    answered: int = 0
    size_bytes: int = 0
    opened_at: float = 0.0
    #: no more appends: the transaction ends as soon as all are answered
    is_closing: bool = False
    #: the position that the transaction will commit
    next_position: Position | None = None
    page: Future[Position] | None = None
    beginning: Future[None] | None = None
    #: a request to a coordinator waits for its answer
    asked: bool = False
    #: no request is sent before this moment (monotonic clock), and how often the last one was sent in vain
    due: float = 0.0
    tries: int = 0
    #: the first append of a transaction (version 2) is sent alone: it adds the partition, and may have to be sent again
    first_step: Append | None = None
    position_due: float = 0.0
    #: a session with nothing to do is not checked before this moment
    rests_until: float = 0.0

    def is_resting(self, now: float) -> bool:
        """Return whether nothing is to be done and the position's age was checked lately, as for most partitions."""
        copy = self.copy
        return (
            self.stage is Stage.IDLE
            and not copy.write.pending
            and not copy.write.owes_position
            and now < self.rests_until
        )

    @property
    def unanswered(self) -> int:
        """The number of unanswered appends."""
        return len(self.copy.write.in_flight) - self.answered

    @property
    def is_live(self) -> bool:
        """Whether this session still belongs to the copy's present incarnation."""
        return self.copy.incarnation == self.incarnation

    def go_on(self, stage: Stage) -> None:
        """Enter a stage, with its request due immediately."""
        self.stage, self.asked, self.due, self.tries = stage, False, 0.0, 0

    def again(self, now: float, pauses: Sequence[float]) -> None:
        """Send the request again after a growing pause."""
        self.asked = False
        self.due = now + pauses[min(self.tries, len(pauses) - 1)]
        self.tries += 1

    def next_look(self, now: float) -> float:
        """Return when there is something to do even if no answer comes before (monotonic clock)."""
        if self.stage is not Stage.OPEN or self.due > now:
            return self.due if self.due > now else now + _LOOK_SECONDS
        patience = MAX_TRANSACTION_SECONDS if self.copy.write.pending else IDLE_TRANSACTION_SECONDS
        return max(self.opened_at + patience, now + _LEAST_PAUSE_SECONDS)

    # -- what a transaction holds ------------------------------------------------------------------------------------

    def may_append(self) -> bool:
        """Return whether the next batch can be sent."""
        return (
            not self.is_closing
            and bool(self.copy.write.pending)
            and self.unanswered < (1 if self.first_step is not None else MAX_UNANSWERED)
        )

    def take_append(self) -> tuple[Append, int]:
        """Take the next batch, as sent: (step, base sequence)."""
        copy = self.copy
        step = copy.write.take()
        assert isinstance(step, Append)
        sent = Sent.of(step, -1)
        copy.write.in_flight.append(sent)
        sequence = self.sequence
        self.sequence = advance_sequence(sequence, step.batch.last_offset_delta)
        self.size_bytes += sent.size_bytes
        return step, sequence

    def take_back(self, step: Append) -> None:
        """Put back the first batch, which was not accepted yet, to send it again with the same sequence."""
        copy = self.copy
        sent = copy.write.in_flight.pop()
        copy.write.take_back(step)
        self.size_bytes -= sent.size_bytes
        self.sequence = 0

    @property
    def oldest(self) -> Sent:
        """The append whose answer comes next."""
        return self.copy.write.in_flight[self.answered]

    def confirm(self, base_offset: int) -> None:
        """Confirm the oldest append: the leader wrote it at an offset that it chose."""
        sent = self.oldest
        self.answered += 1
        self.first_step = None
        for run in sent.runs_at(base_offset):
            self._add_run(run)

    def _add_run(self, run: OffsetRange) -> None:
        last = self.runs[-1] if self.runs else None
        if last is not None and last.count is not None and run.count is not None:
            ends = (last.source_start + last.count, last.target_start + last.count)
            if ends == (run.source_start, run.target_start):
                self.runs[-1] = OffsetRange(last.source_start, last.target_start, last.count + run.count)
                return
        self.runs.append(run)

    # -- when it begins and ends -------------------------------------------------------------------------------------

    @property
    def has_position(self) -> bool:
        """Whether a position was committed, by this incarnation or a former one."""
        return self.position.committed_at > 0

    @property
    def owes_position(self) -> bool:
        """Whether source offsets are decided that the committed position does not cover."""
        return self.copy.write.source_offset > self.position.source_offset

    def open(self, now: float, *, is_second: bool, holds_records: bool) -> None:
        """Begin a transaction; one without records only commits a position."""
        self.opened_at = now
        self.runs, self.answered, self.size_bytes = [], 0, 0
        self.is_closing, self.next_position = not holds_records, None
        self.go_on(Stage.OPEN if is_second or not holds_records else Stage.ADDING)
        head = self.copy.write.pending[0] if holds_records else None
        self.first_step = head if is_second and isinstance(head, Append) else None

    def wants_end(self, now: float, *, hurry: bool) -> bool:
        """Return whether the open transaction should end."""
        age = now - self.opened_at
        if self.size_bytes >= MAX_TRANSACTION_BYTES or age >= MAX_TRANSACTION_SECONDS:
            return True
        return not self.copy.write.pending and (hurry or age >= IDLE_TRANSACTION_SECONDS)

    def plan_commit(self, seconds_now: int) -> Position:
        """Return the position that the transaction commits."""
        copy = self.copy
        if not self.is_begun:
            source_offset = self.position.source_offset
        else:
            source_offset = copy.write.pending[0].source_offset if copy.write.pending else copy.write.source_offset
        return self.position.extended(
            self.runs, source_offset, self.producer.producer_id, seconds_now, copy.read.leader_epoch
        )

    def committed(self, producer_id: int, producer_epoch: int, now: float) -> None:
        """Confirm the transaction, which has ended well: its content counts now."""
        copy = self.copy
        assert self.next_position is not None
        self.position = self.next_position
        self.next_position = None
        now_ms = time.time_ns() // 1_000_000
        for sent in copy.write.in_flight:
            copy.figures.add_sent(sent, now_ms)
        copy.write.in_flight.clear()
        copy.write.confirmed_offset = self.position.target_offset
        copy.write.has_appended = True
        copy.write.owes_position = self.owes_position
        copy.note_progress()
        self.runs, self.answered, self.size_bytes, self.is_closing = [], 0, 0, False
        self.position_due = now + POSITION_SECONDS
        if producer_epoch >= 0:
            self.producer = Producer(self.producer.transactional_id, producer_id, producer_epoch)
            self.sequence = 0
        self.go_on(Stage.IDLE)


# -- transactions -----------------------------------------------------------------------------------------------------


#: No transaction begins this close to the end of the slice: it could not end in time, and would hold readers back.
LAST_BEGIN_SECONDS = 0.4
#: Connections to each leader. A request can name one transactional id, so it carries one batch of one partition, and a
#: broker answers one connection's requests one after the other.
LEADER_CHANNELS = 8
_COORDINATOR_CHANNEL = 100
_GROUP_CHANNEL = 101
_PAGE_THREADS = 4


class TransactionalAppender(TargetWriter):
    """The target side of a lane's transactional partitions.

    :param group: the consumer group whose offsets on the target are the source positions.
    :param pages: returns a partition's map pages, for runs that no longer fit into the commit.
    :param limits: nothing is sent after their deadline.
    :param wake: ends the lane's wait when a page has been written. Thread-safe.
    :param merges: topics have the records of both clusters, so the target's configs are its own, and it may write its
        own time.
    """

    def __init__(
        self,
        target: Wire,
        group: str,
        *,
        pages: Callable[[PartitionCopy], MapPages],
        limits: SliceLimits,
        wake: Callable[[], object],
        merges: bool = False,
    ) -> None:
        super().__init__(target, limits, wake)
        self._group = group
        self._merges = merges
        self._pages = pages
        self._sessions: dict[PartitionCopy, ProducerSession] = {}
        self._leader_of: dict[PartitionCopy, Channel] = {}
        self._coordinator_of: dict[PartitionCopy, Channel] = {}
        self._group_channel: Channel | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._max_metadata_bytes = MAX_METADATA_BYTES

    # -- channels ----------------------------------------------------------------------------------------------------

    def begin(self, session: ProducerSession) -> None:
        """Continue a partition under a new incarnation of its transactional id."""
        self._sessions[session.copy] = session
        session.position_due = time.monotonic()

    def attach(self, copies: Iterable[PartitionCopy]) -> None:
        """Give each partition channels to its present leader and to its coordinators."""
        todo = [copy for copy in copies if copy not in self._leader_of]
        if not todo:
            return
        leaders = self._target.leaders([copy.target_key for copy in todo])
        if self._group_channel is None or self._group_channel.connection.closed:
            broker_id = self._target.coordinator(self._group, GROUP_COORDINATOR)
            self._group_channel = self._channel(broker_id, _GROUP_CHANNEL)
        for copy in todo:
            self._coordinator_of[copy] = self._channel(self._sessions[copy].coordinator_id, _COORDINATOR_CHANNEL)
            self._leader_of[copy] = self._channel(leaders[copy.target_key], copy.spec.partition % LEADER_CHANNELS)
            # Also where there is nothing to copy: the position records where the target's log ended at the start.
            copy.write.owes_position = not self._sessions[copy].has_position
            for channel in (self._coordinator_of[copy], self._leader_of[copy], self._group_channel):
                channel.copies[copy] = None

    def detach(self, copy: PartitionCopy) -> None:
        """Take a partition off its channels; the next attach looks up leader and coordinators again."""
        self._leader_of.pop(copy, None)
        self._coordinator_of.pop(copy, None)
        for channel in self._channels.values():
            channel.copies.pop(copy, None)
        self._target.forget_leaders([copy.target_key])

    def _lose(self, channel: Channel, error: MigrationError) -> None:
        """Drop a channel: what it carried has an unknown outcome until the ids are taken over again."""
        if self._group_channel is channel:
            self._group_channel = None
        super()._lose(channel, error)

    def close(self) -> None:
        """Close all connections. The next incarnation, or the coordinator, ends transactions that are still open."""
        super().close()
        self._leader_of.clear()
        self._coordinator_of.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def is_settling(self, copy: PartitionCopy) -> bool:
        """Return False: the InitProducerId of a resume settles what was in flight."""
        return False

    # -- the loop ----------------------------------------------------------------------------------------------------

    def send(self, now: float) -> None:
        """Do what can be done now.

        :raises SliceExpired: the deadline has passed.
        """
        self._limits.check()
        for copy, session in list(self._sessions.items()):
            if session.is_resting(now):
                continue
            if copy.state is not CopyState.RUNNING or not session.is_live or copy not in self._leader_of:
                continue
            try:
                self._advance(session, now)
            except SliceExpired:
                raise
            except MigrationError as error:
                self._report(copy, error)

    def next_due(self, now: float) -> float:
        """Return when to poll, or to check the next transaction (monotonic clock)."""
        due = [
            session.next_look(now)
            for copy, session in self._sessions.items()
            if copy.state is CopyState.RUNNING and session.is_live and not session.asked and not copy.write.is_idle
        ]
        return min([*due, super().next_due(now)])

    def _advance(self, session: ProducerSession, now: float) -> None:
        """Pass through as many stages as possible without waiting for an answer."""
        while not session.asked and now >= session.due:
            stage = session.stage
            if stage is Stage.IDLE:
                self._open_if_needed(session, now)
            elif stage is Stage.BEGINNING:
                self._take_beginning(session)
            elif stage is Stage.OPEN:
                self._append_all(session, now)
            elif stage is Stage.PAGING:
                self._take_page(session)
            else:
                self._ask(session)
            if session.stage is stage:
                return

    def _open_if_needed(self, session: ProducerSession, now: float) -> None:
        copy = session.copy
        if copy.write.pending:
            wanted = now < self._limits.deadline - LAST_BEGIN_SECONDS
        elif session.owes_position:
            # A position at the source's end is committed without waiting.
            wanted = now >= session.position_due or copy.read.next_offset >= copy.read.last_stable_offset
        else:
            wanted = time.time() - session.position.committed_at > KEEP_ALIVE_SECONDS
            session.rests_until = now + REST_SECONDS
        if not wanted:
            return
        if not session.is_begun and session.has_position:
            self._write_beginning(session)
            return
        # The very first transaction has no records: once it is committed, a missing position is a lost one.
        holds_records = bool(copy.write.pending) and session.is_begun
        session.open(now, is_second=self._versions(session).is_second, holds_records=holds_records)

    def _write_beginning(self, session: ProducerSession) -> None:
        pages = self._pages(session.copy)
        session.beginning = self._background().submit(pages.begin, self._group)
        session.beginning.add_done_callback(self._wake_up)
        session.go_on(Stage.BEGINNING)

    def _take_beginning(self, session: ProducerSession) -> None:
        if session.beginning is not None and session.beginning.done():
            beginning, session.beginning = session.beginning, None
            beginning.result()
            session.is_begun = True
            session.go_on(Stage.IDLE)

    def _background(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_PAGE_THREADS, "map-pages")
        return self._pool

    def _append_all(self, session: ProducerSession, now: float) -> None:
        hurry = now >= self._limits.deadline - LAST_BEGIN_SECONDS
        session.is_closing = session.is_closing or session.wants_end(now, hurry=hurry)
        while session.may_append() and now >= self._leader_of[session.copy].muted_until:
            self._append(session)
        if session.is_closing and not session.unanswered:
            self._prepare_commit(session)

    def _append(self, session: ProducerSession) -> None:
        channel = self._leader_of[session.copy]
        version = self._versions(session).produce
        step, sequence = session.take_append()
        header = patched_header(
            step.batch, session.producer.producer_id, session.producer.producer_epoch, sequence, transactional=True
        )
        encoded = requests.append(session.producer, session.copy.target_key, header, step.batch.payload, version)
        self._submit(channel, encoded, lambda frame: self._on_appended(session, channel, version, frame))

    def _prepare_commit(self, session: ProducerSession) -> None:
        """Determine what the transaction commits, now that its whole content is known."""
        position = session.plan_commit(int(time.time()))
        session.next_position = position
        stage = Stage.COMMITTING if self._versions(session).is_second else Stage.ADDING_OFFSETS
        if len(position.metadata()) <= self._max_metadata_bytes:
            session.go_on(stage)
            return
        session.page = self._background().submit(self._pages(session.copy).put, position)
        session.page.add_done_callback(self._wake_up)
        session.go_on(Stage.PAGING)

    def _wake_up(self, _page: object) -> None:
        try:
            self._wake()
        except OSError:
            return  # the copier's slice has ended, so nothing waits

    def _take_page(self, session: ProducerSession) -> None:
        if session.page is None or not session.page.done():
            return
        page, session.page = session.page, None
        session.next_position = page.result()
        session.go_on(Stage.COMMITTING if self._versions(session).is_second else Stage.ADDING_OFFSETS)

    # -- the coordinators --------------------------------------------------------------------------------------------

    def _ask(self, session: ProducerSession) -> None:
        """Send the request of the present stage."""
        copy, producer = session.copy, session.producer
        channel = self._coordinator_of[copy]
        versions = self._versions(session)
        session.asked = True
        if session.stage is Stage.ADDING:
            encoded = requests.add_partition(producer, copy.target_key)
            self._submit(channel, encoded, lambda frame: self._on_added(session, frame))
        elif session.stage is Stage.ADDING_OFFSETS:
            encoded = requests.add_offsets(producer, self._group)
            self._submit(channel, encoded, lambda frame: self._on_offsets_added(session, frame))
        elif session.stage is Stage.COMMITTING:
            assert session.next_position is not None
            assert self._group_channel is not None
            offset, metadata = session.next_position.source_offset, session.next_position.metadata()
            version = versions.commit_offsets
            encoded = requests.commit_offset(producer, self._group, copy.target_key, offset, metadata, version)
            self._submit(self._group_channel, encoded, lambda frame: self._on_offset(session, version, frame))
        else:
            encoded = requests.end_transaction(producer, versions.end)
            self._submit(channel, encoded, lambda frame: self._on_ended(session, versions.end, frame))

    def _versions(self, session: ProducerSession) -> requests.Versions:
        return requests.versions_of(self._coordinator_of[session.copy].connection)

    def _submit(self, channel: Channel, encoded: requests.Encoded, on_answer: Callable[[memoryview], None]) -> None:
        try:
            channel.connection.submit(
                encoded.api_key, encoded.version, encoded.parts, on_answer, flexible=encoded.flexible
            )
        except SliceExpired:
            raise
        except MigrationError as error:
            self._lose(channel, error)
            raise

    # -- answers -----------------------------------------------------------------------------------------------------

    def _on_appended(self, session: ProducerSession, channel: Channel, version: int, frame: memoryview) -> None:
        answer = requests.append_answer(frame, version)
        if answer.throttle_time_ms > 0:
            channel.muted_until = self.throttling.note(answer.throttle_time_ms, time.monotonic())
        if not session.is_live:
            return
        replaced = not self._merges and has_replaced_timestamps(session.oldest, answer.log_append_time)
        if not answer.error_code and replaced:
            session.is_closing = True  # aborted by the next incarnation
            found = (session.oldest, answer.log_append_time, answer.base_offset)
            self._report(session.copy, replaced_timestamps(session.copy, *found, stays=False))
        elif not answer.error_code:
            session.confirm(answer.base_offset)
        elif is_concurrent(answer.error_code) and session.first_step is not None:
            # The markers of the previous transaction are not written yet.
            session.take_back(session.first_step)
            session.again(time.monotonic(), PAUSES)
        else:
            # The whole transaction is lost; its records are read and appended again.
            session.is_closing = True
            error = append_error(session.copy, session.oldest, answer.error_code, answer.error_message)
            if isinstance(error, RecordTooLarge):
                # The transformer finds the record again on the retry; then what lies before it is committed, and
                # nothing behind it.
                limit = session.oldest.size_bytes - 1
                session.copy.spec = session.copy.spec.model_copy(update={"max_batch_bytes": limit})
                error = TooLarge(error.what, where=error.where, details={"size_bytes": limit})
            self._report(session.copy, error)

    def _on_added(self, session: ProducerSession, frame: memoryview) -> None:
        if self._is_good(session, requests.add_partition_answer(frame), "no transaction takes the partition", "Write"):
            session.go_on(Stage.OPEN)

    def _on_offsets_added(self, session: ProducerSession, frame: memoryview) -> None:
        needs = f"Read on Group {self._group}"
        if self._is_good(session, requests.add_offsets_answer(frame), "the transaction refused the group", needs):
            session.go_on(Stage.COMMITTING)

    def _on_offset(self, session: ProducerSession, version: int, frame: memoryview) -> None:
        code = requests.commit_offset_answer(frame, version)
        if code == error_codes.OFFSET_METADATA_TOO_LARGE and self._max_metadata_bytes > 256 and session.is_live:
            self._max_metadata_bytes //= 2
            self._prepare_commit(session)
            return
        if self._is_good(session, code, "the group refused the position", f"Read on Group {self._group}"):
            session.go_on(Stage.ENDING)

    def _on_ended(self, session: ProducerSession, version: int, frame: memoryview) -> None:
        code, producer_id, epoch = requests.end_transaction_answer(frame, version)
        needs = f"Write on TransactionalId {session.producer.transactional_id}"
        if self._is_good(session, code, "the transaction cannot be ended", needs):
            session.committed(producer_id, epoch, time.monotonic())
            self._events.append(Confirmed(session.copy))

    def _is_good(self, session: ProducerSession, code: int, what: str, needs: str) -> bool:
        """Return whether to continue; otherwise repeat the request later, or report the partition's error."""
        if not session.is_live:
            return False
        if not code:
            return True
        if is_concurrent(code):
            session.again(time.monotonic(), PAUSES)
            return False
        session.asked = False
        where = Where(
            cluster=self._target.config.name,
            topic=session.copy.spec.target_topic,
            partition=session.copy.spec.partition,
            group=self._group,
        )
        self._report(session.copy, coordinator_error(code, what, where, needs))
        return False
