"""Reads chunks from the source cluster's leaders, without blocking; ``archive`` reads archived segments."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from kafka.protocol.consumer import OffsetForLeaderEpochRequest

from airflow_provider_kafka_migration.copy.limits import Throttling
from airflow_provider_kafka_migration.copy.partition import PartitionCopy, Read, Trouble
from airflow_provider_kafka_migration.copy.read_watch import Answered, ReadWatch
from airflow_provider_kafka_migration.copy.transform import Chunk
from airflow_provider_kafka_migration.errors import (
    BrokerBusy,
    BrokerUnreachable,
    MigrationError,
    RecordsWithheld,
    SourceGap,
    SourceTruncated,
    Transient,
    UncommittedRecords,
    Where,
)
from airflow_provider_kafka_migration.kafka import error_codes, fetch
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, RawBatch, read_batches
from airflow_provider_kafka_migration.kafka.connection import BrokerConnection
from airflow_provider_kafka_migration.kafka.logs import (
    FULL_WAIT_MS,
    Says,
    by_leader,
    cut_short,
    enough_bytes,
    local_log_start,
    no_leader,
    proven_hole,
    says,
)
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire, api_version, by_topic

# -- leader epochs ----------------------------------------------------------------------------------------------------
#
# Leader epochs reveal whether the source has lost records that were read already, as in KIP-320.
#
# Each batch names the epoch of the leader that appended it. An unclean election (or a broker restored from an old
# disk) cuts the log and begins another epoch at the cut, so the new log may grow past our position before the next
# fetch: offsets alone cannot distinguish it from the old one. Fetches name the leader's epoch, so a broker refuses them
# once the epoch has risen; then the copier asks the new leader where the epoch that was read last ends. If that is
# below our position, the source has lost records that were read.


#: The lowest version whose request names the present leader's epoch, so that a stale leader does not answer.
_LOWEST_VERSION = 2
_HIGHEST_VERSION = 3
_CONSUMER = -1


class ReadUpTo(NamedTuple):
    """How far a partition was read, and the leader epoch of the last batch."""

    source_offset: int
    epoch: int


def last_epoch(batches: Sequence[AnyBatch]) -> int:
    """Return the leader epoch of the last of these batches; -1: none has one (message formats 0 and 1)."""
    return max((batch.leader_epoch for batch in batches if isinstance(batch, RawBatch)), default=-1)


def truncated(
    offset: int, read: ReadUpTo, where: Where, *, leader_epoch: int = -1, last_epoch: int = -1
) -> SourceTruncated:
    """Return the error for a source whose log ends below our position, or diverges there from what was read.

    :param offset: first offset that may be lost; -1: not known.
    :param leader_epoch: the present leader's epoch.
    :param last_epoch: the newest epoch of the present leader that is not above the one that was read.
    """
    lost = f"records {offset}..{read.source_offset - 1}" if offset >= 0 else "some of the records"
    # If the leader lacks the epoch that was read altogether, the two logs may have diverged earlier.
    also = ", and maybe earlier ones," if offset >= 0 and last_epoch < read.epoch else ""
    leader = f"its leader of epoch {leader_epoch}" if leader_epoch >= 0 else "its present leader"
    return SourceTruncated(
        f"the source has lost {lost}{also} after they were read: {leader} does not have what was read under epoch "
        f"{read.epoch} up to offset {read.source_offset}",
        where=where,
        next_step="find out from the source's brokers what was lost (an unclean leader election, or a broker that came "
        "back without its disk): the target may still have these records while the source has others in their place; "
        "to copy the topic again, set offsets.on_source_truncation: repair and clear the task; or leave the topic out. "
        "In a mirror, delete the remote topic on the target once its consumers agree, then pause and resume the mirror",
        details={
            "truncated_offset": offset,
            "source_offset": read.source_offset,
            "read_epoch": read.epoch,
            "leader_epoch": leader_epoch,
        },
    )


def check_not_truncated(
    wire: Wire, read: Mapping[TopicPartition, ReadUpTo]
) -> dict[TopicPartition, MigrationError | None]:
    """Check that the present leaders still have what was read.

    :returns: an error by partition, or None where the leader still has it.
    :raises Transient: no broker of the cluster answers.
    """
    found: dict[TopicPartition, MigrationError | None] = {}
    for broker_id, keys in by_leader(wire, read, found).items():
        try:
            found.update(_ask(wire, broker_id, {key: read[key] for key in keys}))
        except Transient as error:
            wire.forget_leaders(keys)
            found.update(dict.fromkeys(keys, error))
    return found


def _ask(
    wire: Wire, broker_id: int, read: Mapping[TopicPartition, ReadUpTo]
) -> dict[TopicPartition, MigrationError | None]:
    connection = wire.connection(broker_id)
    low, high = connection.api_versions.get(OffsetForLeaderEpochRequest.API_KEY, (-1, -1))
    version = min(high, _HIGHEST_VERSION)
    if not max(low, _LOWEST_VERSION) <= version:
        # Brokers before 2.1 and some other products. The comparison at each take-over and the proof remain as checks.
        return dict.fromkeys(read)
    epochs = wire.leader_epochs(read)
    entry = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    request = OffsetForLeaderEpochRequest(
        replica_id=_CONSUMER,
        topics=[
            entry(
                topic=topic,
                partitions=[
                    entry.OffsetForLeaderPartition(
                        partition=number,
                        current_leader_epoch=epochs[(topic, number)],
                        leader_epoch=read[(topic, number)].epoch,
                    )
                    for number in numbers
                ],
            )
            for topic, numbers in by_topic(read)
        ],
    )
    answer = connection.call(request, version=version)
    found: dict[TopicPartition, MigrationError | None] = {
        key: BrokerBusy(
            "the broker did not answer whether it still has the records that were read",
            where=Where(cluster=wire.config.name, topic=key[0], partition=key[1]),
            next_step="none: the copier asks again",
        )
        for key in read
    }
    for topic in answer.topics:
        for item in topic.partitions:
            key = (topic.topic, item.partition)
            found[key] = _judge(wire, key, item, read[key], epochs[key])
    return found


def _judge(wire: Wire, key: TopicPartition, item: object, read: ReadUpTo, leader_epoch: int) -> MigrationError | None:
    code, epoch, end_offset = (int(getattr(item, name)) for name in ("error_code", "leader_epoch", "end_offset"))
    where = Where(cluster=wire.config.name, topic=key[0], partition=key[1], offset=read.source_offset)
    if code:
        if code in error_codes.STALE_METADATA:
            wire.forget_leaders([key])
        return error_codes.error_of_read(code, "the end of a leader epoch is not known", where=where, needs="Describe")
    # An end of -1: the leader does not know the epoch of a batch that it must have. An epoch earlier than the one that
    # was read: the leader has nothing of that epoch, so another leader wrote what it has at these offsets (KIP-279).
    if end_offset < read.source_offset or epoch < read.epoch:
        cut = end_offset if end_offset < read.source_offset else -1
        return truncated(cut, read, where, leader_epoch=leader_epoch, last_epoch=epoch)
    return None


# -- source -----------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

#: 1 MB per partition was as fast as 8 MB, and keeps many partitions' buffers small.
PARTITION_FETCH_BYTES = 1024 * 1024
RESPONSE_FETCH_BYTES = 16 * 1024 * 1024
LONG_POLL_MS = 500
SHORT_POLL_MS = 5
#: A fetch costs the broker and the copier something for each partition in it. Partitions that brought nothing for this
#: long are therefore fetched separately: their fetch waits, while that of the busy ones continues at its own pace.
QUIET_SECONDS = 1.0
#: This many partitions of a leader, or fewer, always stay in one fetch.
FEW_PARTITIONS = 16
#: Pauses before each retry of a partition whose records are withheld. After the last one the partition is in trouble:
#: it drops what is in flight, and resumes.
WITHHELD_PAUSES = (0.1, 0.3, 1.0, 2.0)
#: Pause between two fetches of the quiet partitions, so that single records now and then do not keep it fetching.
QUIET_PAUSE_SECONDS = 0.01


class Ask(Enum):
    """How a partition is fetched."""

    #: with others
    TOGETHER = "together"
    #: in a separate fetch: its first batch did not fit, or nothing came although there is more
    ALONE = "alone"
    #: nothing came again: a fetch that can prove a hole (``proven_hole``)
    PROBE = "probe"


@dataclass(eq=False)
class Reader:
    """One connection to one source leader, with at most one unanswered fetch.

    :param is_quiet: it carries the partitions that bring nothing.
    """

    broker_id: int
    connection: BrokerConnection
    is_quiet: bool = False
    busy: bool = False
    #: the last fetch was for one partition alone: the others come next
    was_alone: bool = False
    #: when the last fetch was sent (seconds since 1970)
    sent_at: float = 0.0
    muted_until: float = 0.0
    copies: dict[PartitionCopy, None] = field(default_factory=dict)
    #: of a quiet reader: partitions that have brought something and are to move to the busy reader
    lively: dict[PartitionCopy, None] = field(default_factory=dict)


class KafkaSource:
    """The source side of a lane: one unanswered fetch per reader, long-polling, read_committed.

    :param watch: notified of each answer before its content is passed on.
    """

    def __init__(
        self,
        source: Wire,
        *,
        partition_fetch_bytes: int = PARTITION_FETCH_BYTES,
        watch: ReadWatch | None = None,
    ) -> None:
        self._watch = watch
        self._source = source
        #: what answers have brought since the last poll
        self._arrived: list[Read | Trouble] = []
        self._partition_fetch_bytes = partition_fetch_bytes
        #: by broker id and whether they carry the quiet partitions
        self._readers: dict[tuple[int, bool], Reader] = {}
        self._reader_of: dict[PartitionCopy, Reader] = {}
        self._fetch_bytes: dict[PartitionCopy, int] = {}
        #: epoch of the leader that each partition was attached to: brokers refuse fetches once a later one has begun
        self._leader_epochs: dict[PartitionCopy, int] = {}
        #: when a partition last brought something (monotonic clock), or was attached
        self._heard_at: dict[PartitionCopy, float] = {}
        self._next_sorting = 0.0
        #: Partitions that must be fetched alone, and how.
        self._alone: dict[PartitionCopy, Ask] = {}
        #: Partitions whose records are withheld: how often that happened, and when they are fetched again.
        self._withheld: dict[PartitionCopy, tuple[int, float]] = {}
        self.throttling = Throttling()

    @property
    def connections(self) -> list[BrokerConnection]:
        """All open connections."""
        return [reader.connection for reader in self._readers.values()]

    def poll(self) -> list[Read | Trouble]:
        """Return what answers have brought since the last poll, in the order of the answers."""
        arrived, self._arrived = self._arrived, []
        return arrived

    def _report(self, copy: PartitionCopy, error: MigrationError) -> None:
        self._arrived.append(Trouble.of(copy, error))

    def attach(self, copies: Iterable[PartitionCopy]) -> None:
        """Give each partition a reader at its present leader; report those without a leader as in trouble."""
        todo = [copy for copy in copies if copy not in self._reader_of]
        if not todo:
            return
        # Waiting here for the leader of one partition would hold up all others of the lane.
        leaders = self._source.present_leaders([copy.key for copy in todo])
        for copy in todo:
            if copy.key not in leaders:
                self._report(copy, no_leader(self._source.config.name, *copy.key))
        epochs = self._source.leader_epochs(leaders)
        for copy in self._not_truncated([copy for copy in todo if copy.key in leaders], epochs):
            self._leader_epochs[copy] = epochs[copy.key]
            self._heard_at[copy] = time.monotonic()
            self._give(copy, self._reader(leaders[copy.key]))

    def _not_truncated(
        self, copies: Sequence[PartitionCopy], epochs: Mapping[tuple[str, int], int]
    ) -> list[PartitionCopy]:
        """Return the partitions whose leader still has what was read; report the others as in trouble.

        A leader whose epoch is that of the last batch is the one that was read from: its log only grows.
        """
        asked = {
            copy.key: ReadUpTo(copy.read.next_offset, copy.read.leader_epoch)
            for copy in copies
            if 0 <= copy.read.leader_epoch != epochs[copy.key]
        }
        found = check_not_truncated(self._source, asked) if asked else {}
        for copy in copies:
            error = found.get(copy.key)
            if error is not None:
                self._report(copy, error)
        return [copy for copy in copies if found.get(copy.key) is None]

    def _reader(self, broker_id: int, is_quiet: bool = False) -> Reader:
        reader = self._readers.get((broker_id, is_quiet))
        if reader is None or reader.connection.closed:
            reader = Reader(broker_id, self._source.open_connection(broker_id), is_quiet)
            self._readers[(broker_id, is_quiet)] = reader
        return reader

    def _give(self, copy: PartitionCopy, reader: Reader) -> None:
        self._take(copy)
        reader.copies[copy] = None
        self._reader_of[copy] = reader

    def _take(self, copy: PartitionCopy) -> None:
        reader = self._reader_of.pop(copy, None)
        if reader is not None:
            reader.copies.pop(copy, None)
            reader.lively.pop(copy, None)

    def detach(self, copy: PartitionCopy) -> None:
        """Take a partition off its reader; the next attach looks up its leader again."""
        self._take(copy)
        self._alone.pop(copy, None)
        self._withheld.pop(copy, None)
        self._source.forget_leaders([copy.key])

    def lose(self, connection: BrokerConnection, error: MigrationError) -> None:
        """Drop a broken connection, if it is one of this side."""
        for reader in list(self._readers.values()):
            if reader.connection is connection:
                self._lose(reader, error)

    def _lose(self, reader: Reader, error: MigrationError) -> None:
        reader.connection.close()
        if self._readers.get((reader.broker_id, reader.is_quiet)) is reader:
            del self._readers[(reader.broker_id, reader.is_quiet)]
        for copy in list(reader.copies):
            self.detach(copy)
            self._report(copy, error)

    def close(self) -> None:
        """Close all connections."""
        for reader in self._readers.values():
            reader.connection.close()
        self._readers.clear()
        self._reader_of.clear()

    # -- fetching ----------------------------------------------------------------------------------------------------

    def next_due(self, now: float) -> float:
        """Return when to poll or to fetch next even if no answer comes before (monotonic clock)."""
        if self._arrived:
            return now
        resting = [item.muted_until for item in self._readers.values() if not item.busy and item.muted_until > now]
        resting += [due_at for _, due_at in self._withheld.values() if due_at > now]
        return min(resting, default=now + LONG_POLL_MS / 1000)

    def fetch_more(self, now: float, wants: Callable[[PartitionCopy], bool]) -> None:
        """Send a fetch through each reader that has none unanswered.

        :param wants: returns whether a partition may be fetched now (room in its queues, stop offset not reached).
        """
        if now >= self._next_sorting:
            self._next_sorting = now + QUIET_SECONDS / 2
            self._open_for_quiet_ones(now)
        for reader in list(self._readers.values()):
            if reader.busy or now < reader.muted_until:
                continue
            try:
                self._take_in(reader, now)
                self._send(reader, wants)
            except Transient as error:
                self._lose(reader, error)

    def _open_for_quiet_ones(self, now: float) -> None:
        """Open a second connection to leaders with many partitions if some of them bring nothing."""
        for broker_id, is_quiet in list(self._readers):
            if is_quiet or (broker_id, True) in self._readers:
                continue
            reader = self._readers[(broker_id, False)]
            if len(reader.copies) > FEW_PARTITIONS and any(self._is_quiet(copy, now) for copy in reader.copies):
                try:
                    self._reader(broker_id, is_quiet=True)
                except Transient as error:
                    log.info("no second connection to broker %s of the source: %s", broker_id, error.what)

    def _take_in(self, reader: Reader, now: float) -> None:
        """Move to this reader, before its fetch, the partitions that belong to it by now.

        The reader that they leave may have them in an unanswered fetch, whose answer for them is then ignored.
        Otherwise, partitions that have become busy would have to wait for that answer.
        """
        other = self._readers.get((reader.broker_id, not reader.is_quiet))
        if other is None:
            return
        if reader.is_quiet:
            moving = [copy for copy in other.copies if self._is_quiet(copy, now)]
        else:
            moving = list(other.lively)
        for copy in moving:
            self._give(copy, reader)

    def _is_quiet(self, copy: PartitionCopy, now: float) -> bool:
        return (
            self._heard_at[copy] <= now - QUIET_SECONDS
            and copy not in self._alone
            # A partition that only waits for buffer room continues soon.
            and not copy.write.pending_bytes
            and not copy.read.undecided_bytes
        )

    def _send(self, reader: Reader, wants: Callable[[PartitionCopy], bool]) -> None:
        wanted = [copy for copy in reader.copies if wants(copy) and not self._is_resting(copy)]
        if not wanted:
            return
        chosen, ask = self._choose(reader, wanted)
        reader.was_alone = ask is not Ask.TOGETHER
        # Rotate: a broker fills an answer in the request's order, and the last ones may get nothing.
        chosen.sort(key=lambda copy: copy.figures.source_bytes)
        size = {copy: self._fetch_bytes.get(copy, self._partition_fetch_bytes) for copy in chosen}
        ranges = [
            fetch.FetchRange(*copy.key, copy.read.next_offset, size[copy], self._leader_epochs[copy]) for copy in chosen
        ]
        asked = {
            copy.key: (copy, copy.incarnation, copy.read.next_offset, self._leader_epochs[copy]) for copy in chosen
        }
        waits = reader.is_quiet or len(chosen) == len(reader.copies)
        version = api_version(reader.connection, fetch.API_KEY, fetch.MAX_VERSION)
        body = fetch.encode(
            ranges,
            version,
            # While some partitions are left out for lack of buffer room, a long poll must not keep them waiting.
            max_wait_ms=FULL_WAIT_MS if reader.was_alone else LONG_POLL_MS if waits else SHORT_POLL_MS,
            max_bytes=max(RESPONSE_FETCH_BYTES, max(size.values())),
            isolation=fetch.READ_UNCOMMITTED if ask is Ask.PROBE else fetch.READ_COMMITTED,
        )
        reader.busy = True
        reader.sent_at = time.time()
        reader.connection.submit(
            fetch.API_KEY,
            version,
            [body],
            lambda frame: self._on_fetched(reader, version, asked, ask, frame),
        )

    def _is_resting(self, copy: PartitionCopy) -> bool:
        return copy in self._withheld and time.monotonic() < self._withheld[copy][1]

    def _choose(self, reader: Reader, wanted: list[PartitionCopy]) -> tuple[list[PartitionCopy], Ask]:
        """Choose a partition that must be fetched alone, or all, in turn: an empty answer may take long."""
        alone = next((copy for copy in wanted if copy in self._alone), None)
        if alone is None or (reader.was_alone and len(wanted) > 1):
            return wanted, Ask.TOGETHER
        return [alone], self._alone[alone]

    def _on_fetched(
        self,
        reader: Reader,
        version: int,
        asked: dict[tuple[str, int], tuple[PartitionCopy, int, int, int]],
        ask: Ask,
        frame: memoryview,
    ) -> None:
        reader.busy = False
        answer = fetch.decode(frame[4:], version)
        if answer.throttle_time_ms > 0:
            reader.muted_until = self.throttling.note(answer.throttle_time_ms, time.monotonic())
        elif reader.is_quiet and len(asked) > FEW_PARTITIONS:
            reader.muted_until = time.monotonic() + QUIET_PAUSE_SECONDS
        left = {
            key: copy
            for key, (copy, incarnation, offset, epoch) in asked.items()
            if (copy.incarnation, copy.read.next_offset) == (incarnation, offset)
            # The same broker may lead again in a later epoch, with another log.
            and (self._reader_of.get(copy), self._leader_epochs[copy]) == (reader, epoch)
        }
        for item in answer.partitions:
            copy = left.pop((item.topic, item.partition), None)
            if copy is None:
                continue
            try:
                if item.error_code:
                    self._on_error(copy, item)
                else:
                    self._on_partition(copy, item, ask, reader.sent_at)
            except BrokerUnreachable:
                raise
            except RecordsWithheld as error:
                self._on_withheld(copy, error)
            except MigrationError as error:
                # Bytes that are not batches, or a broker that does not give its log start, concern only this partition.
                self._report(copy, error)
        if answer.throttle_time_ms <= 0:
            self._on_left_out(left.values(), answer.error_code)

    def _on_withheld(self, copy: PartitionCopy, error: RecordsWithheld) -> None:
        """Draw no conclusion: let the partition rest, then fetch it normally."""
        self._alone.pop(copy, None)
        times, _ = self._withheld.get(copy, (0, 0.0))
        if times == len(WITHHELD_PAUSES):
            self._report(copy, error)
            return
        log.info("%s-%s: %s", *copy.key, error.what)
        self._withheld[copy] = (times + 1, time.monotonic() + WITHHELD_PAUSES[times])

    def _on_left_out(self, copies: Iterable[PartitionCopy], error_code: int) -> None:
        """Report partitions missing from an answer: only an exhausted quota would be a valid reason to omit one."""
        for copy in copies:
            if error_code:
                error = error_codes.error_of_read(
                    error_code, "records cannot be read", where=self._where(copy), needs="Read"
                )
            else:
                error = BrokerBusy(
                    "the broker's answer does not contain the partition",
                    where=self._where(copy),
                    next_step="once the broker has recovered, clear the task",
                )
            self._report(copy, error)

    def _on_error(self, copy: PartitionCopy, item: fetch.FetchedPartition) -> None:
        where = self._where(copy)
        if item.error_code in error_codes.STALE_METADATA:
            self.detach(copy)
        if item.error_code == error_codes.OFFSET_OUT_OF_RANGE:
            self._report(copy, self._out_of_range(copy, where))
        else:
            self._report(
                copy, error_codes.error_of_read(item.error_code, "records cannot be read", where=where, needs="Read")
            )

    def _out_of_range(self, copy: PartitionCopy, where: Where) -> MigrationError:
        """Return the error: retention has overtaken the copy, the source lost records, or the log moved meanwhile."""
        log_start = self._source.list_offsets([copy.key], "earliest")[copy.key]
        log_end = self._source.list_offsets([copy.key], "log_end")[copy.key]
        details = {"from_offset": copy.read.next_offset, "log_start_offset": log_start, "log_end_offset": log_end}
        if log_start > copy.read.next_offset:
            return SourceGap(
                f"records {copy.read.next_offset}..{log_start - 1} were deleted on the source before they were copied",
                where=where,
                next_step="raise the retention of the source topic; to continue without these records, set "
                "offsets.on_source_gap: note, and the evidence names them",
                details=details,
            )
        if log_end < copy.read.next_offset:
            epoch = self._source.leader_epochs([copy.key])[copy.key]
            read = ReadUpTo(copy.read.next_offset, copy.read.leader_epoch)
            return truncated(log_end, read, where, leader_epoch=epoch, last_epoch=copy.read.leader_epoch)
        return BrokerBusy(
            "the source's log start or end moved while the log was read",
            where=where,
            next_step="none: the copier reads it again",
        )

    def _on_partition(self, copy: PartitionCopy, item: fetch.FetchedPartition, ask: Ask, sent_at: float) -> None:
        copy.read.last_stable_offset = item.last_stable_offset
        copy.read.high_watermark = item.high_watermark
        batches, consumed = read_batches(item.records)
        if ask is Ask.PROBE:
            self._on_probe(copy, item, batches, sent_at)
            return
        said = says(item, batches, copy.read.next_offset, fetch.READ_COMMITTED)
        if said is Says.BATCHES:
            self._check_committed(copy, item.last_stable_offset, batches[-1].last_offset)
            self._tell_watch(copy, batches, batches[-1].next_offset, item, sent_at)
            copy.read.leader_epoch = max(copy.read.leader_epoch, last_epoch(batches))
            self._alone.pop(copy, None)
            self._fetch_bytes.pop(copy, None)
            self._deliver(copy, item, batches, item.records[:consumed], batches[-1].next_offset)
        elif said is Says.PIECE:
            self._ask_for_more(copy, item, ask)
        elif said is Says.END:
            self._tell_watch(copy, [], copy.read.next_offset, item, sent_at)
            self._alone.pop(copy, None)
            if not copy.figures.source_bytes:
                self._heard_at[copy] = 0.0
        else:
            # Other partitions have used up the answer's bytes, or the answer means nothing at all.
            self._alone[copy] = Ask.PROBE if ask is Ask.ALONE else self._alone.get(copy, Ask.ALONE)

    def _check_committed(self, copy: PartitionCopy, last_stable_offset: int, last_offset: int) -> None:
        """Check that an answer does not reach beyond the last stable offset.

        Brokers name that offset before they read the log, so it may have advanced meanwhile: it is asked for again.

        :raises UncommittedRecords: the answer has records of open transactions.
        """
        if last_offset < last_stable_offset:
            return
        stable_offset = self._source.list_offsets([copy.key], "stable")[copy.key]
        if last_offset >= stable_offset:
            raise UncommittedRecords(
                f"the broker returns records up to offset {last_offset}, although only those below {stable_offset} are "
                "committed",
                where=self._where(copy),
                next_step="this broker does not keep apart what is committed (isolation level read_committed); leave "
                "topics with transactions out, or copy from brokers that do",
                details={"last_offset": last_offset, "last_stable_offset": stable_offset},
            )

    def _ask_for_more(self, copy: PartitionCopy, item: fetch.FetchedPartition, ask: Ask) -> None:
        """Fetch the partition alone: its batch is larger than the bytes requested and was not the answer's first."""
        size = self._fetch_bytes.get(copy, self._partition_fetch_bytes)
        enough = enough_bytes(item.records, size)
        if enough is None and ask is not Ask.TOGETHER:
            raise cut_short(copy.read.next_offset, len(item.records), self._where(copy))
        self._fetch_bytes[copy] = enough or size
        self._alone[copy] = Ask.ALONE

    def _tell_watch(
        self,
        copy: PartitionCopy,
        batches: list[AnyBatch],
        until_offset: int,
        item: fetch.FetchedPartition,
        sent_at: float,
    ) -> None:
        if self._watch is not None:
            self._watch.note(copy, Answered(batches, until_offset, item.last_stable_offset, sent_at))

    def _on_probe(
        self, copy: PartitionCopy, item: fetch.FetchedPartition, batches: list[AnyBatch], sent_at: float
    ) -> None:
        """Determine whether there is a hole: twice nothing came, although the last stable offset is further on.

        :raises RecordsWithheld: nothing proves a hole.
        """
        self._alone.pop(copy, None)
        if item.last_stable_offset <= copy.read.next_offset:
            return
        local_start = None if batches else local_log_start(self._source, copy.key, self._leader_epochs[copy])
        until = proven_hole(
            copy.read.next_offset, item.last_stable_offset, item, batches, local_start, self._where(copy)
        )
        log.info("%s-%s: offsets %s..%s are a hole", *copy.key, copy.read.next_offset, until - 1)
        # The hole may contain whole epochs: with the epoch before it, the position behind it would look truncated.
        behind = last_epoch(batches[:1]) if batches else self._leader_epochs[copy]
        copy.read.leader_epoch = max(copy.read.leader_epoch, behind)
        self._tell_watch(copy, [], until, item, sent_at)
        self._deliver(copy, item._replace(aborted=[]), [], item.records[:0], until)

    @staticmethod
    def _where(copy: PartitionCopy) -> Where:
        return Where(
            cluster="source", topic=copy.spec.topic, partition=copy.spec.partition, offset=copy.read.next_offset
        )

    def _deliver(
        self,
        copy: PartitionCopy,
        item: fetch.FetchedPartition,
        batches: list[AnyBatch],
        records: memoryview,
        until_offset: int,
    ) -> None:
        size = len(item.records)
        copy.figures.source_bytes += size
        self._withheld.pop(copy, None)
        self._note_heard(copy)
        chunk = Chunk(
            topic=item.topic,
            partition=item.partition,
            from_offset=copy.read.next_offset,
            until_offset=until_offset,
            batches=records,
            aborted=item.aborted,
            last_stable_offset=item.last_stable_offset,
            log_start_offset=item.log_start_offset,
            origin="kafka",
            source_bytes=size,
            parsed=batches,
        )
        # Immediately: a late answer of the partition's other reader brings the same records.
        copy.read.next_offset = until_offset
        self._arrived.append(Read.of(copy, chunk))

    def _note_heard(self, copy: PartitionCopy) -> None:
        self._heard_at[copy] = time.monotonic()
        reader = self._reader_of.get(copy)
        if reader is not None and reader.is_quiet:
            reader.lively[copy] = None
