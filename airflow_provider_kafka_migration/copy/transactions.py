"""Appends in transactions (KIP-656): records, map and source position become visible together, or not at all.

For target partitions where offsets cannot be kept: others write there, too, or the brokers do not compare sequence
numbers. Each partition has a transactional id of its own, so partitions never wait for each other, and whoever copies
a partition next fences who did before. Nothing is aborted by name: after any trouble the partition is reset, and the
InitProducerId of its resume ends what was left open.

With the same surface as :class:`~.appender.Appender`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from airflow_provider_kafka_migration.copy.append import Channel
from airflow_provider_kafka_migration.copy.append_errors import TooLarge
from airflow_provider_kafka_migration.copy.partition import PartitionCopy, Phase, Sent
from airflow_provider_kafka_migration.copy.throttling import Throttling
from airflow_provider_kafka_migration.copy.transactional_errors import (
    PAUSES,
    append_error,
    coordinator_error,
    is_concurrent,
)
from airflow_provider_kafka_migration.copy.transactional_session import KEEP_ALIVE_SECONDS, REST_SECONDS, Session, Stage
from airflow_provider_kafka_migration.errors import MigrationError, RecordTooLarge, SliceExpired, Where
from airflow_provider_kafka_migration.kafka import clock, error_codes
from airflow_provider_kafka_migration.kafka import transactions as requests
from airflow_provider_kafka_migration.kafka.batches.api import patched_header
from airflow_provider_kafka_migration.kafka.wire import GROUP_COORDINATOR, Wire
from airflow_provider_kafka_migration.offset_map.transactional_pages import MapPages
from airflow_provider_kafka_migration.offset_map.transactional_position import MAX_METADATA_BYTES

#: No transaction begins so close to the end of the slice: it could not end there, and would hold readers back.
LAST_BEGIN_SECONDS = 0.4
#: Connections to each leader. A request can name one transactional id, so it carries one batch of one partition, and a
#: broker answers one connection's requests one after the other.
LEADER_CHANNELS = 8
_COORDINATOR_CHANNEL = 100
_GROUP_CHANNEL = 101
_PAGE_THREADS = 4


class TransactionalAppender:
    """The target side of a lane's transactional partitions.

    :param group: whose offsets on the target are the source positions.
    :param pages: of a partition, for runs that no longer fit into the commit.
    :param deadline: moment of the monotonic clock after which nothing is sent.
    :param on_trouble: called with (copy, error): the partition must be reset or stopped.
    :param on_confirmed: called with the partition when a transaction has ended well.
    """

    def __init__(
        self,
        target: Wire,
        group: str,
        *,
        pages: Callable[[PartitionCopy], MapPages],
        deadline: float,
        on_trouble: Callable[[PartitionCopy, MigrationError], None],
        on_confirmed: Callable[[PartitionCopy, Sent | None], None],
    ) -> None:
        self._target = target
        self._group = group
        self._pages = pages
        self._deadline = deadline
        self._on_trouble = on_trouble
        self._on_confirmed = on_confirmed
        self._sessions: dict[PartitionCopy, Session] = {}
        self._channels: dict[tuple[int, int], Channel] = {}
        self._leader_of: dict[PartitionCopy, Channel] = {}
        self._coordinator_of: dict[PartitionCopy, Channel] = {}
        self._group_channel: Channel | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._max_metadata_bytes = MAX_METADATA_BYTES
        self.throttling = Throttling()
        #: wakes the copier's loop when a page has been written
        self.wake: Callable[[], object] = lambda: None

    # -- channels ----------------------------------------------------------------------------------------------------

    @property
    def channels(self) -> list[Channel]:
        """All open channels."""
        return list(self._channels.values())

    def begin(self, session: Session) -> None:
        """A partition goes on under a new incarnation of its transactional id."""
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
            # Also where there is nothing to copy: the position says where the target ended when the copy began.
            copy.owes_position = not self._sessions[copy].has_position
            for channel in (self._coordinator_of[copy], self._leader_of[copy], self._group_channel):
                channel.copies[copy] = None

    def _channel(self, broker_id: int, number: int) -> Channel:
        channel = self._channels.get((broker_id, number))
        if channel is None or channel.connection.closed:
            connection = self._target.open_connection(broker_id)
            connection.send_deadline = self._deadline
            channel = Channel(broker_id, number, connection)
            self._channels[(broker_id, number)] = channel
        return channel

    def detach(self, copy: PartitionCopy) -> None:
        """Take a partition off its channels; leader and coordinators are asked for again."""
        self._leader_of.pop(copy, None)
        self._coordinator_of.pop(copy, None)
        for channel in self._channels.values():
            channel.copies.pop(copy, None)
        self._target.forget_leaders([copy.target_key])

    def lose(self, channel: Channel, error: MigrationError) -> None:
        """A connection broke: the outcome of all that it carried is unknown, until the ids are taken over again."""
        channel.connection.close()
        if self._channels.get((channel.broker_id, channel.number)) is channel:
            del self._channels[(channel.broker_id, channel.number)]
        if self._group_channel is channel:
            self._group_channel = None
        for copy in list(channel.copies):
            self._on_trouble(copy, error)
            self.detach(copy)

    def close(self) -> None:
        """Close all connections. What is open stays open until the next incarnation, or the coordinator, ends it."""
        for channel in self._channels.values():
            channel.connection.close()
        self._channels.clear()
        self._leader_of.clear()
        self._coordinator_of.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def is_settling(self, copy: PartitionCopy) -> bool:
        """Never: the InitProducerId of a resume settles what was on its way."""
        return False

    # -- the loop ----------------------------------------------------------------------------------------------------

    def pump(self, now: float) -> None:
        """Do what can be done now.

        :raises SliceExpired: the deadline has passed.
        """
        if clock.is_over(self._deadline):
            raise SliceExpired(
                "the slice has ended", next_step="none: the next slice goes on from the position on the target"
            )
        for copy, session in list(self._sessions.items()):
            if session.is_resting(now):
                continue
            if copy.phase is not Phase.RUNNING or not session.is_live or copy not in self._leader_of:
                continue
            try:
                self._advance(session, now)
            except SliceExpired:
                raise
            except MigrationError as error:
                self._on_trouble(copy, error)

    def next_due(self, now: float) -> float:
        """When the next transaction wants to be looked at again (monotonic clock)."""
        due = [
            session.next_look(now)
            for copy, session in self._sessions.items()
            if copy.phase is Phase.RUNNING and session.is_live and not session.asked and not copy.is_idle
        ]
        return min(due, default=now + 1.0)

    def _advance(self, session: Session, now: float) -> None:
        """As many stages as go without an answer."""
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

    def _open_if_needed(self, session: Session, now: float) -> None:
        copy = session.copy
        if copy.pending:
            wanted = now < self._deadline - LAST_BEGIN_SECONDS
        elif session.owes_position:
            # What was read up to the end, or is left at the end of a slice, does not wait.
            wanted = now >= session.position_due or copy.fetch_offset >= copy.source_end_offset
        else:
            wanted = time.time() - session.position.committed_at > KEEP_ALIVE_SECONDS
            session.rests_until = now + REST_SECONDS
        if not wanted:
            return
        if not session.is_begun and session.has_position:
            self._write_beginning(session)
            return
        # The very first transaction has no records: once it is committed, a position that is gone was lost.
        holds_records = bool(copy.pending) and session.is_begun
        session.open(now, is_second=self._versions(session).is_second, holds_records=holds_records)

    def _write_beginning(self, session: Session) -> None:
        pages = self._pages(session.copy)
        session.beginning = self._background().submit(pages.begin, self._group)
        session.beginning.add_done_callback(self._wake_up)
        session.go_on(Stage.BEGINNING)

    def _take_beginning(self, session: Session) -> None:
        if session.beginning is not None and session.beginning.done():
            beginning, session.beginning = session.beginning, None
            beginning.result()
            session.is_begun = True
            session.go_on(Stage.IDLE)

    def _background(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_PAGE_THREADS, "map-pages")
        return self._pool

    def _append_all(self, session: Session, now: float) -> None:
        hurry = now >= self._deadline - LAST_BEGIN_SECONDS
        session.is_closing = session.is_closing or session.wants_end(now, hurry=hurry)
        while session.may_append() and now >= self._leader_of[session.copy].muted_until:
            self._append(session)
        if session.is_closing and not session.unanswered:
            self._prepare_commit(session)

    def _append(self, session: Session) -> None:
        channel = self._leader_of[session.copy]
        version = self._versions(session).produce
        step, sequence = session.take_append()
        header = patched_header(
            step.batch, session.producer.producer_id, session.producer.producer_epoch, sequence, transactional=True
        )
        encoded = requests.append(session.producer, session.copy.target_key, header, step.batch.payload, version)
        self._submit(channel, encoded, lambda frame: self._on_appended(session, channel, version, frame))

    def _prepare_commit(self, session: Session) -> None:
        """All that the transaction holds is known: decide what its commit says."""
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
            self.wake()
        except OSError:
            return  # the copier's slice has ended, nobody waits

    def _take_page(self, session: Session) -> None:
        if session.page is None or not session.page.done():
            return
        page, session.page = session.page, None
        session.next_position = page.result()
        session.go_on(Stage.COMMITTING if self._versions(session).is_second else Stage.ADDING_OFFSETS)

    # -- the coordinators --------------------------------------------------------------------------------------------

    def _ask(self, session: Session) -> None:
        """Send what the stage is about."""
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

    def _versions(self, session: Session) -> requests.Versions:
        return requests.versions_of(self._coordinator_of[session.copy].connection)

    def _submit(self, channel: Channel, encoded: requests.Encoded, on_answer: Callable[[memoryview], None]) -> None:
        try:
            channel.connection.submit(
                encoded.api_key, encoded.version, encoded.parts, on_answer, flexible=encoded.flexible
            )
        except SliceExpired:
            raise
        except MigrationError as error:
            self.lose(channel, error)
            raise

    # -- answers -----------------------------------------------------------------------------------------------------

    def _on_appended(self, session: Session, channel: Channel, version: int, frame: memoryview) -> None:
        answer = requests.append_answer(frame, version)
        if answer.throttle_time_ms > 0:
            channel.muted_until = self.throttling.note(answer.throttle_time_ms, time.monotonic())
        if not session.is_live:
            return
        if not answer.error_code:
            session.confirm(answer.base_offset)
        elif is_concurrent(answer.error_code) and session.first_step is not None:
            # The markers of the transaction before it are not written yet.
            session.take_back(session.first_step)
            session.again(time.monotonic(), PAUSES)
        else:
            # The transaction is lost with it; what it holds is read and appended again.
            session.is_closing = True
            error = append_error(session.copy, session.oldest, answer.error_code, answer.error_message)
            if isinstance(error, RecordTooLarge):
                # Found again when it is decided anew: what lies before it is committed then, and nothing behind it.
                limit = session.oldest.size_bytes - 1
                session.copy.spec = session.copy.spec.model_copy(update={"max_batch_bytes": limit})
                error = TooLarge(error.what, where=error.where, details={"size_bytes": limit})
            self._on_trouble(session.copy, error)

    def _on_added(self, session: Session, frame: memoryview) -> None:
        if self._is_good(session, requests.add_partition_answer(frame), "the partition is not taken", "Write"):
            session.go_on(Stage.OPEN)

    def _on_offsets_added(self, session: Session, frame: memoryview) -> None:
        needs = f"Read on Group {self._group}"
        if self._is_good(session, requests.add_offsets_answer(frame), "the group is not taken", needs):
            session.go_on(Stage.COMMITTING)

    def _on_offset(self, session: Session, version: int, frame: memoryview) -> None:
        code = requests.commit_offset_answer(frame, version)
        if code == error_codes.OFFSET_METADATA_TOO_LARGE and self._max_metadata_bytes > 256 and session.is_live:
            self._max_metadata_bytes //= 2
            self._prepare_commit(session)
            return
        if self._is_good(session, code, "the position is not taken", f"Read on Group {self._group}"):
            session.go_on(Stage.ENDING)

    def _on_ended(self, session: Session, version: int, frame: memoryview) -> None:
        code, producer_id, epoch = requests.end_transaction_answer(frame, version)
        needs = f"Write on TransactionalId {session.producer.transactional_id}"
        if self._is_good(session, code, "the transaction cannot be ended", needs):
            session.committed(producer_id, epoch, time.monotonic())
            self._on_confirmed(session.copy, None)

    def _is_good(self, session: Session, code: int, what: str, needs: str) -> bool:
        """Whether to go on; else it is asked again, or the partition is in trouble."""
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
        self._on_trouble(session.copy, coordinator_error(code, what, where, needs))
        return False
