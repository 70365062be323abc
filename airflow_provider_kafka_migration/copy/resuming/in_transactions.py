"""Finds the position of a transactional partition's copy from the target's coordinators.

1. InitProducerId for the partition's transactional id: when it answers, the last transaction of every former
   incarnation is over, with its markers written, and former copiers that still run are fenced.
2. The position is the offset that the migration's group has committed on the target, stable ones only (KIP-447).
3. The target must still have everything below the position: its log does not end below it, and the migration wrote the
   last record that the position names. (This detects an unclean election, or a topic that was deleted and recreated.)
   Where others may have caused that record to be compacted away (merged topics), its absence proves nothing.
4. Nothing that the migration has committed lies behind the position: a partition of ``__consumer_offsets`` that went
   back (unclean election, a restored disk) gives an older one that is as valid as the last, and everything since would
   be copied twice. The position that an earlier slice has noted must not be ahead of it either.

Many partitions resume at a time: requests to one coordinator are sent together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from airflow_provider_kafka_migration.copy.append_errors import is_concurrent
from airflow_provider_kafka_migration.copy.partition import PartitionCopy, ResumePoint
from airflow_provider_kafka_migration.copy.transactions import ProducerSession
from airflow_provider_kafka_migration.copy.transform import AbortedTransactions
from airflow_provider_kafka_migration.errors import (
    KEEP_MERGED,
    BrokerBusy,
    MigrationError,
    OutsideOfLog,
    PositionLost,
    Where,
)
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka import transactions as requests
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, RawBatch, read_batches
from airflow_provider_kafka_migration.kafka.fetch import READ_COMMITTED, READ_UNCOMMITTED, Aborted, FetchedPartition
from airflow_provider_kafka_migration.kafka.logs import LogEnds, fetch_span, fetch_where_possible, read_ends
from airflow_provider_kafka_migration.kafka.transactions import Producer
from airflow_provider_kafka_migration.kafka.wire import TRANSACTION_COORDINATOR, TopicPartition, Wire
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange
from airflow_provider_kafka_migration.offset_map.transactional import (
    MapPages,
    Position,
    group_name,
    read_positions,
    transactional_id,
)

#: After this time the coordinator ends an open transaction by itself; until then it holds read-committed readers back.
TRANSACTION_TIMEOUT_MS = 30_000
_LAST_BATCH_BYTES = 128 * 1024
#: How much of the log behind a position is read where no slice has noted that very position: others may write there.
_BEHIND_BYTES = 4 * 1024 * 1024

#: The resume point; None: not known yet, ask again soon; or the error of the partition.
Resumed = ResumePoint | MigrationError | None


@dataclass
class _Look:
    copy: PartitionCopy
    producer: Producer
    coordinator_id: int
    position: Position | None = None
    is_begun: bool = False
    ends: LogEnds | None = None


class TransactionalResumer:
    """Takes transactional ids over and finds resume points.

    :param pages: returns a partition's map pages.
    :param on_session: called with the new incarnation of each partition that can continue.
    :param merges: topics have the records of both clusters (``job.provenance``), so the target compacts them as its
        own, and an opposite flow copies them back.
    """

    def __init__(
        self,
        migration_id: str,
        target: Wire,
        *,
        pages: Callable[[PartitionCopy], MapPages],
        on_session: Callable[[ProducerSession], None],
        merges: bool = False,
    ) -> None:
        self._migration_id = migration_id
        self._target = target
        self._pages = pages
        self._on_session = on_session
        self._merges = merges

    def resume(self, copies: Sequence[PartitionCopy]) -> dict[PartitionCopy, Resumed]:
        """Return the resume point of each partition, or its error, which does not stop the others.

        :raises Transient: a coordinator, or every broker of the cluster, does not answer.
        """
        found: dict[PartitionCopy, Resumed] = dict.fromkeys(copies)
        looks = self._take_over(copies, found)
        looks = self._locate(looks, found)
        looks = self._check(looks, found)
        for look in looks:
            try:
                found[look.copy] = self._point(look)
            except MigrationError as error:
                found[look.copy] = error
        return found

    # -- the transactional ids ---------------------------------------------------------------------------------------

    def _take_over(self, copies: Sequence[PartitionCopy], found: dict[PartitionCopy, Resumed]) -> list[_Look]:
        names = {transactional_id(self._migration_id, *copy.target_key): copy for copy in copies}
        groups: dict[int, list[str]] = {}
        for name in sorted(names):
            groups.setdefault(self._target.coordinator(name, TRANSACTION_COORDINATOR), []).append(name)
        looks = []
        for broker_id, members in sorted(groups.items()):
            for name, (code, producer_id, epoch) in self._init_all(broker_id, members).items():
                copy = names[name]
                if not code:
                    looks.append(_Look(copy, Producer(name, producer_id, epoch), broker_id))
                elif not is_concurrent(code):
                    found[copy] = self._init_error(copy, name, code)
        return looks

    def _init_all(self, broker_id: int, names: Sequence[str]) -> dict[str, tuple[int, int, int]]:
        """Send InitProducerId for all names on one connection."""
        connection = self._target.connection(broker_id)
        answers: dict[str, tuple[int, int, int]] = {}

        def keep(name: str) -> Callable[[memoryview], None]:
            return lambda frame: answers.update({name: requests.init_producer_answer(frame)})

        for name in names:
            encoded = requests.init_producer(name, TRANSACTION_TIMEOUT_MS)
            connection.submit(encoded.api_key, encoded.version, encoded.parts, keep(name))
        deadline = time.monotonic() + self._target.timeout_seconds
        while len(answers) < len(names):
            left = deadline - time.monotonic()
            if left <= 0:
                raise connection.no_answer()
            connection.wait(left)
        return answers

    def _init_error(self, copy: PartitionCopy, name: str, code: int) -> MigrationError:
        return error_codes.error_for(
            code,
            f"the transactional id {name} cannot be taken over",
            where=self._where(copy),
            needs=f"Write on TransactionalId {name}",
        )

    # -- the positions -----------------------------------------------------------------------------------------------

    def _locate(self, looks: Sequence[_Look], found: dict[PartitionCopy, Resumed]) -> list[_Look]:
        if not looks:
            return []
        keys = [look.copy.target_key for look in looks]
        positions = read_positions(self._target, group_name(self._migration_id), keys)
        good = []
        for look in looks:
            position = positions[look.copy.target_key]
            if isinstance(position, BrokerBusy):
                continue  # the outcome of a transaction is not yet known to the group
            if isinstance(position, MigrationError):
                found[look.copy] = position
                continue
            look.position = position
            try:
                self._check_begun(look)
            except MigrationError as error:
                found[look.copy] = error
            else:
                good.append(look)
        return good

    def _check_begun(self, look: _Look) -> None:
        if look.position is not None and (look.position.runs or look.position.page):
            look.is_begun = True
            return
        look.is_begun = self._pages(look.copy).has_begun()
        if look.position is None and look.is_begun:
            raise PositionLost(
                f"the group {group_name(self._migration_id)} no longer has a position of this partition",
                where=self._where(look.copy),
                next_step="find out who deleted the group or its offsets on the target (or whether "
                "offsets.retention.minutes passed while nothing ran); it is not known any more what was copied: "
                + self._way_out(),
                details={"group": group_name(self._migration_id)},
            )

    # -- the target's log --------------------------------------------------------------------------------------------

    def _check(self, looks: Sequence[_Look], found: dict[PartitionCopy, Resumed]) -> list[_Look]:
        """Check that the logs still have what the positions cover; return the partitions that passed."""
        ends = read_ends(self._target, [look.copy.target_key for look in looks]) if looks else {}
        good = []
        for look in looks:
            end = ends[look.copy.target_key]
            if isinstance(end, MigrationError):
                found[look.copy] = end
                continue
            look.ends = end
            if look.position is not None and end.log_end_offset < look.position.target_offset:
                found[look.copy] = self._went_back(look, f"the log ends at {end.log_end_offset}")
                continue
            noted = look.copy.read.noted
            if look.position is not None and noted is not None and look.position.target_offset < noted.target_offset:
                found[look.copy] = self._old_position(look, noted.target_offset - 1)
                continue
            good.append(look)
        for check in (self._foreign_ends, self._old_positions):
            bad = check(good)
            found.update(bad)
            good = [look for look in good if look.copy not in bad]
        return good

    def _old_positions(self, looks: Sequence[_Look]) -> dict[PartitionCopy, MigrationError]:
        """Return an error for each partition that has records of the migration behind the position."""
        behind = {
            look.copy.target_key: look
            for look in looks
            if look.position is not None and look.ends is not None and look.ends.log_end_offset > _start_behind(look)
        }
        if not behind:
            return {}
        places = [(key, _start_behind(look)) for key, look in sorted(behind.items())]
        answers, _ = fetch_where_possible(self._target, places, isolation=READ_COMMITTED, max_bytes=_LAST_BATCH_BYTES)
        bad: dict[PartitionCopy, MigrationError] = {}
        for key, look in sorted(behind.items()):
            try:
                offset = self._committed_behind(key, look, answers.get(key))
            except OutsideOfLog:
                continue  # retention was faster than this check
            except MigrationError as error:
                bad[look.copy] = error
                continue
            if offset is not None:
                bad[look.copy] = self._old_position(look, offset)
        return bad

    def _committed_behind(self, key: TopicPartition, look: _Look, answer: FetchedPartition | None) -> int | None:
        """Return the first offset behind the position at which the migration has committed records; None: not seen."""
        assert look.position is not None
        offset, size = _start_behind(look), 0
        batches: Sequence[AnyBatch] = []
        if answer is not None and not answer.error_code:
            batches = read_batches(answer.records)[0]
            size = len(answer.records)
            own = _own_committed(batches, answer.aborted, look)
            if own is not None:
                return own
            offset = batches[-1].next_offset if batches else offset
        noted = look.copy.read.noted
        is_noted = noted is not None and noted.target_offset == look.position.target_offset
        while size < (_LAST_BATCH_BYTES if is_noted else _BEHIND_BYTES):
            span = fetch_span(self._target, key, offset, isolation=READ_COMMITTED)
            own = _own_committed(span.batches, span.aborted, look)
            if own is not None or span.until_offset <= offset:
                return own
            offset, size = span.until_offset, size + len(span.records)
        return None

    def _foreign_ends(self, looks: Sequence[_Look]) -> dict[PartitionCopy, MigrationError]:
        """Return an error for each partition whose record at the position the migration has not written."""
        wanted = {look.copy.target_key: look for look in looks if _last_run(look) is not None}
        if not wanted:
            return {}
        places = [(key, _last_offset(look)) for key, look in sorted(wanted.items())]
        answers, _ = fetch_where_possible(self._target, places, isolation=READ_UNCOMMITTED, max_bytes=_LAST_BATCH_BYTES)
        bad: dict[PartitionCopy, MigrationError] = {}
        for key, look in sorted(wanted.items()):
            try:
                batches = self._batches_at(key, _last_offset(look), answers.get(key))
                problem = _problem(batches, look, may_be_compacted=self._merges)
            except MigrationError as error:
                bad[look.copy] = error
                continue
            if problem:
                bad[look.copy] = self._went_back(look, problem)
        return bad

    def _batches_at(self, key: TopicPartition, offset: int, answer: FetchedPartition | None) -> list[AnyBatch]:
        """Return the batches at an offset; none only if the record is deleted, or proven to be compacted away."""
        if answer is not None and not answer.error_code:
            batches, _ = read_batches(answer.records)
            if batches:
                return batches
        try:
            return fetch_span(
                self._target, key, offset, isolation=READ_UNCOMMITTED, max_bytes=_LAST_BATCH_BYTES
            ).batches
        except OutsideOfLog:
            return []  # retention was faster than this check

    def _point(self, look: _Look) -> ResumePoint:
        copy, position = look.copy, look.position
        assert look.ends is not None
        if position is None:
            # Where others write, followers hardly ever have the whole log. What they have is never lost.
            start = OffsetRange(copy.spec.source_start_offset, look.ends.high_watermark)
            position = Position(start.source_start, start.target_start, start)
        session = ProducerSession(
            copy, copy.incarnation, look.producer, position, look.coordinator_id, is_begun=look.is_begun
        )
        self._on_session(session)
        return ResumePoint(position.source_offset, position.target_offset, 0, 0, source_epoch=position.source_epoch)

    # -- errors ------------------------------------------------------------------------------------------------------

    def _went_back(self, look: _Look, what: str) -> PositionLost:
        assert look.position is not None
        return PositionLost(
            f"the committed position is at target offset {look.position.target_offset}, but {what}",
            where=self._where(look.copy),
            next_step="the target lost records (unclean election?), or the topic was recreated: " + self._way_out(),
            details={
                "target_offset": look.position.target_offset,
                "source_offset": look.position.source_offset,
                "group": group_name(self._migration_id),
            },
        )

    def _old_position(self, look: _Look, offset: int) -> PositionLost:
        assert look.position is not None
        return PositionLost(
            f"the committed position is at target offset {look.position.target_offset}, but the migration has "
            f"committed records behind it, at least up to offset {offset}: they would be copied twice",
            where=self._where(look.copy),
            next_step="the group's offsets went back (unclean election of __consumer_offsets, a restored disk?): "
            + self._way_out(),
            details={
                "target_offset": look.position.target_offset,
                "source_offset": look.position.source_offset,
                "behind_offset": offset,
                "group": group_name(self._migration_id),
            },
        )

    def _way_out(self) -> str:
        if self._merges:
            return KEEP_MERGED
        return "start again with another migration_id, and remove what this migration has copied"

    def _where(self, copy: PartitionCopy) -> Where:
        return Where(
            migration_id=self._migration_id,
            cluster="target",
            topic=copy.spec.target_topic,
            partition=copy.spec.partition,
        )


def _last_run(look: _Look) -> OffsetRange | None:
    """Return the last run that the metadata names, if the log still has its end."""
    position, ends = look.position, look.ends
    if position is None or ends is None or not position.runs or position.target_offset - 1 < ends.log_start_offset:
        return None
    return position.runs[-1]


def _start_behind(look: _Look) -> int:
    """Return the first target offset behind the position that is still there."""
    assert look.position is not None
    assert look.ends is not None
    return max(look.position.target_offset, look.ends.log_start_offset)


def _own_committed(batches: Sequence[AnyBatch], aborted: Sequence[Aborted], look: _Look) -> int | None:
    """Return the last offset of the first committed batch of the migration behind the position; None: there is none."""
    assert look.position is not None
    own = {*look.position.producer_ids, look.producer.producer_id}
    transactions = AbortedTransactions(aborted)
    for batch in batches:
        if not isinstance(batch, RawBatch) or transactions.drops(batch) or batch.is_control:
            continue
        if batch.producer_id in own and batch.next_offset > look.position.target_offset:
            return batch.last_offset
    return None


def _last_offset(look: _Look) -> int:
    assert look.position is not None
    return look.position.target_offset - 1


def _problem(batches: Sequence[object], look: _Look, *, may_be_compacted: bool) -> str:
    """Return why the migration has not written the batch at the position; empty if it has, or if that is unknown.

    :param may_be_compacted: the target's cleaner may have removed the record: a local producer has written its key
        again. Then the next batch begins above the position and says nothing about it.
    """
    assert look.position is not None
    offset = _last_offset(look)
    batch = next((item for item in batches if isinstance(item, RawBatch) and item.next_offset > offset), None)
    if batch is None:
        return ""
    if batch.base_offset > offset and may_be_compacted:
        return ""
    if batch.base_offset > offset or batch.is_control or batch.producer_id not in look.position.producer_ids:
        return f"offset {offset} has other data than were written there (producer id {batch.producer_id})"
    return ""
