"""Part of ``cutover.floor_guard``: the migration's producers are fenced on the target before clients may switch.

It comes behind the journal's READY, from which on no freeze is lifted any more: a copy that has to go on could not
write under a fenced id. Until it is journaled the migration stays in ``cutover``, so nobody can acknowledge the switch.
What could not be fenced never holds the cutover up: it is named in the result, the approval and the evidence.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

from kafka.protocol.producer.transaction import AddPartitionsToTxnRequest, EndTxnRequest, WriteTxnMarkersRequest

from airflow_provider_kafka_migration.copy.holes import MARKERS_VERSION
from airflow_provider_kafka_migration.documents.copy import MappedPartition, OffsetMapDocument
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import (
    MigrationError,
    OutsideOfLog,
    PermissionMissing,
    Terminal,
    Transient,
    Where,
)
from airflow_provider_kafka_migration.freeze import frozen
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.admin.base import batches
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, RawBatch
from airflow_provider_kafka_migration.kafka.fetch import READ_UNCOMMITTED
from airflow_provider_kafka_migration.kafka.logs import LogEnds, by_leader, fetch_many, read_ends, read_span
from airflow_provider_kafka_migration.kafka.wire import TRANSACTION_COORDINATOR, TopicPartition, Wire, by_topic
from airflow_provider_kafka_migration.offset_map.transactional import transactional_id
from airflow_provider_kafka_migration.record import freeze_attempt, producer_ids
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.facts import by_name, partition_name
from airflow_provider_kafka_migration.record.freeze_attempt import FreezeAttempt
from airflow_provider_kafka_migration.record.producer_ids import load_producer_ids

# -- fence transaction ------------------------------------------------------------------------------------------------
#
# The fence without the right to write markers: the transaction coordinator writes them.
#
# A producer id that was taken with a transactional id can be fenced by it: InitProducerId gives the next epoch, and an
# aborted transaction without records leaves a marker of that epoch in each of its partitions. It needs Write on the
# transactional id and on the topics, and no right on the cluster. A transaction of any *other* transactional id writes
# markers of its own producer id and fences nothing; InitProducerId alone fences nothing either, since the leaders of
# the partitions hear of the new epoch by the marker only.
#
# Coordinators forget a transactional id that was not used for ``transactional.id.expiration.ms`` (7 days by default),
# and give a new producer id then. So it is renewed while the migration runs; a forgotten one is an error.


_T = TypeVar("_T")

#: The last versions that are not flexible; all of 0.11 to 4.x have them.
_ADD_VERSION = 2
_END_VERSION = 2
_PARTITIONS_PER_TRANSACTION = 500
_MARKER_PAUSE_SECONDS = 0.05
#: Errors of the transaction, which are told of each of its partitions: its last markers are not written yet, the
#: coordinator moves, somebody else has taken the id over, or it may not be used.
_OF_ALL = frozenset(
    {
        error_codes.CONCURRENT_TRANSACTIONS,
        error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        *error_codes.COORDINATOR_MOVED,
        *error_codes.FENCED,
    }
)


class _TakenOver(Transient):
    """A newer epoch of the transactional id is in force."""


class TransactionFence:
    """Fences a producer id by its transactional id.

    :param producer_id: the one that is to be fenced; another one behind the transactional id fences nothing.
    :param deadline: moment of the monotonic clock after which nothing is tried again.
    """

    def __init__(self, wire: Wire, transactional_id: str, producer_id: int, *, deadline: float) -> None:
        self._wire = wire
        self._transactional_id = transactional_id
        self._producer_id = producer_id
        self._epoch = -1
        self._deadline = deadline

    def begin(self) -> None:
        """Take the id over. When it returns, all markers of its former transactions are written.

        :raises Terminal: the right is missing, or the coordinator has forgotten the id.
        """
        producer_id, self._epoch = self._wire.init_producer_id(self._transactional_id)
        if producer_id != self._producer_id:
            raise Terminal(
                f"the target has forgotten the transactional id {self._transactional_id}, so it cannot fence producer "
                f"id {self._producer_id} any more",
                where=Where(cluster=self._wire.config.name),
                next_step="grant Alter (before Kafka 3.8: ClusterAction) on the target cluster, which fences without "
                "it; or make sure that no copier of the migration is left",
            )

    def write(self, keys: Sequence[TopicPartition]) -> dict[TopicPartition, MigrationError]:
        """Leave a marker in each partition; those that the coordinator refused, with the reason.

        Markers are written after the last answer: :meth:`begin` waits for them.

        :raises Transient: also if another process has renewed the id since: to be begun again.
        :raises MigrationError: what stands in the way of all of them.
        """
        refused: dict[TopicPartition, MigrationError] = {}
        for batch in batches(sorted(keys), _PARTITIONS_PER_TRANSACTION):
            codes = self._add(batch)
            if codes:
                # Nothing was added: the others are tried again without them.
                refused.update({key: self._refusal(key, code) for key, code in codes.items()})
                batch = [key for key in batch if key not in codes]
                codes = self._add(batch) if batch else {}
                refused.update({key: self._refusal(key, code) for key, code in codes.items()})
            if batch and not codes:
                self._end()
        return refused

    def _add(self, keys: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """AddPartitionsToTxn; error codes of single partitions. With one of them nothing is added."""
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._transactional_id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[topic(name=name, partitions=numbers) for name, numbers in by_topic(keys)],
        )

        def attempt() -> dict[TopicPartition, int]:
            answer = self._wire.request(request, self._coordinator(), version=_ADD_VERSION)
            codes = {
                (item.name, part.partition_index): int(part.partition_error_code)
                for item in answer.results_by_topic_v3_and_below
                for part in item.results_by_partition
                if part.partition_error_code not in (error_codes.NONE, error_codes.OPERATION_NOT_ATTEMPTED)
            }
            for code in sorted(set(codes.values()) & _OF_ALL):
                raise self._error(code)
            return codes

        return self._retried(attempt)

    def _end(self) -> None:
        request = EndTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            committed=False,
        )

        def attempt() -> None:
            code = int(self._wire.request(request, self._coordinator(), version=_END_VERSION).error_code)
            if code:
                raise self._error(code)

        self._retried(attempt)

    def _retried(self, attempt: Callable[[], _T]) -> _T:
        while True:
            try:
                return attempt()
            except _TakenOver:
                raise
            except Transient:
                if time.monotonic() + _MARKER_PAUSE_SECONDS >= self._deadline:
                    raise
            time.sleep(_MARKER_PAUSE_SECONDS)

    def _coordinator(self) -> int:
        return self._wire.coordinator(self._transactional_id, TRANSACTION_COORDINATOR)

    def _error(self, code: int) -> MigrationError:
        if code in error_codes.FENCED:
            return _TakenOver(
                "another process of the migration has renewed the transactional id that fences its producer",
                where=Where(cluster=self._wire.config.name),
                next_step="none: the id is taken over again",
            )
        return error_codes.error_for(
            code,
            "the transaction that fences the migration's producer was refused",
            where=Where(cluster=self._wire.config.name),
            needs=f"Write on TransactionalId {self._transactional_id}",
        )

    def _refusal(self, key: TopicPartition, code: int) -> MigrationError:
        where = Where(cluster=self._wire.config.name, topic=key[0], partition=key[1])
        return error_codes.error_for(
            code, "no transaction that fences the migration's producer takes the partition", where=where, needs="Write"
        )


# -- fence producer ---------------------------------------------------------------------------------------------------
#
# The last act of a copy: its producer id is fenced on every target partition, before applications write there.
#
# The sequence check compares the producer's own records, never the log end. So a copier that was frozen somewhere and
# has the right next sequence in its hands would be accepted behind what applications have written. One ABORT marker of
# the data id with the next epoch ends that: every append and marker of the older epoch gets INVALID_PRODUCER_EPOCH,
# over restarts and leader elections, for as long as brokers keep the producer's state (``producer.id.expiration.ms``,
# 24 h).
#
# A marker takes one offset: a fenced partition ends one above the source. The log itself tells whether it is there, so
# fencing can be killed and repeated; a request of a dead process that is applied late costs one more offset, and no
# more.
#
# Where the principal may not write markers, the coordinator of the data id's transactional id writes them
# (``fence_transaction``).


#: For so long partitions without a leader, or with replicas that are behind, are asked again.
PATIENCE_SECONDS = 15.0
_PAUSE_SECONDS = 0.1
_QUICK_BYTES = 1024
#: Partitions in one request.
_REQUEST_PARTITIONS = 1000
#: The marker is looked for in so many batches behind the end of the copy.
_LOOKED_AT_BATCHES = 10_000
#: With a producer epoch above this one there is none left to fence with.
_LAST_EPOCH = 32_766


@dataclass
class Fenced:
    """What became of each partition."""

    #: target offset of the marker
    markers: dict[TopicPartition, int] = field(default_factory=dict)
    #: why a partition is not fenced
    problems: dict[TopicPartition, MigrationError] = field(default_factory=dict)


def fence_producer(
    wire: Wire,
    ends: Mapping[TopicPartition, int],
    producer_id: int,
    producer_epoch: int,
    *,
    transactional_id: str = "",
    patience_seconds: float = PATIENCE_SECONDS,
) -> Fenced:
    """Write a marker of the next epoch to each partition that has none yet.

    :param ends: target partition to the end of its copy: the marker is looked for from there on.
    :param producer_id: data id of the migration, and the epoch under which it was used.
    :param transactional_id: that the data id was taken with: it fences where markers may not be written. Empty: none.
    :returns: failures of single partitions are data; nothing is raised for a cluster that is away.
    """
    found = Fenced()
    if producer_epoch > _LAST_EPOCH:
        raise Terminal(
            f"the epoch {producer_epoch} of the migration's producer id is the last one, so it cannot be fenced",
            next_step="make sure that no copier is left, then go on without the fence (cutover.fence_copiers: false)",
        )
    deadline = time.monotonic() + patience_seconds
    while True:
        missing = _look(wire, {key: ends[key] for key in _waiting(ends, found)}, producer_id, producer_epoch, found)
        _send(wire, missing, producer_id, producer_epoch + 1, found)
        refused = [key for key in missing if isinstance(found.problems.get(key), PermissionMissing)]
        if refused and transactional_id:
            fence = TransactionFence(wire, transactional_id, producer_id, deadline=deadline)
            _send_in_transactions(wire, fence, {key: ends[key] for key in refused}, producer_id, producer_epoch, found)
        _look(wire, {key: ends[key] for key in missing}, producer_id, producer_epoch, found)
        waiting = _waiting(ends, found)
        if not waiting or time.monotonic() >= deadline:
            break
        time.sleep(_PAUSE_SECONDS)
    for key in waiting:
        found.problems.setdefault(key, _not_there(wire, key))
    found.problems = {key: error for key, error in sorted(found.problems.items()) if key not in found.markers}
    return found


def _waiting(ends: Mapping[TopicPartition, int], found: Fenced) -> list[TopicPartition]:
    """Partitions for which trying again may help."""
    return [
        key for key in sorted(ends) if key not in found.markers and not isinstance(found.problems.get(key), Terminal)
    ]


def _not_there(wire: Wire, key: TopicPartition) -> Transient:
    return Transient(
        "the marker was asked for, and is not in the log",
        where=Where(cluster=wire.config.name, topic=key[0], partition=key[1]),
        next_step="look into the log of the partition's leader",
    )


def _look(
    wire: Wire, ends: Mapping[TopicPartition, int], producer_id: int, producer_epoch: int, found: Fenced
) -> list[TopicPartition]:
    """Note the partitions whose marker is in the log; those that certainly have none are returned."""
    if not ends:
        return []
    try:
        logs = read_ends(wire, ends)
        quick = _first_batches(wire, ends, logs)
    except MigrationError as error:
        found.problems.update(dict.fromkeys(ends, error))
        return []
    missing = []
    for key in sorted(ends):
        log = logs[key]
        try:
            if isinstance(log, MigrationError):
                raise log
            _check_settled(wire, key, log)
            offset = _marker_in(quick.get(key, ()), producer_id, producer_epoch)
            if offset is None:
                start = max(ends[key], log.log_start_offset)
                batches = read_span(wire, key, start, log.log_end_offset, isolation=READ_UNCOMMITTED)
                offset = _marker_in(islice(batches, _LOOKED_AT_BATCHES), producer_id, producer_epoch)
        except (OutsideOfLog, Transient) as error:
            found.problems[key] = Transient(error.what, where=error.where, next_step=error.next_step)
            continue
        except MigrationError as error:
            found.problems[key] = error
            continue
        if offset is None:
            missing.append(key)
        else:
            found.markers[key] = offset
    return missing


def _first_batches(
    wire: Wire, ends: Mapping[TopicPartition, int], logs: Mapping[TopicPartition, LogEnds | MigrationError]
) -> dict[TopicPartition, list[AnyBatch]]:
    """What lies directly behind the copies, in one request per leader: where all goes well that is the marker."""
    grown = []
    for key in sorted(ends):
        log = logs[key]
        if isinstance(log, LogEnds) and log.log_start_offset <= ends[key] < log.log_end_offset:
            grown.append((key, ends[key]))
    found: dict[TopicPartition, list[AnyBatch]] = {}
    for start in range(0, len(grown), _REQUEST_PARTITIONS):
        part = grown[start : start + _REQUEST_PARTITIONS]
        found.update(fetch_many(wire, part, isolation=READ_UNCOMMITTED, max_bytes=_QUICK_BYTES))
    return found


def _check_settled(wire: Wire, key: TopicPartition, log: LogEnds) -> None:
    """What is not replicated yet may still go away."""
    if not log.settled:
        raise Transient(
            f"the replicas do not have the log's end {log.log_end_offset} yet, only {log.high_watermark}",
            where=Where(cluster=wire.config.name, topic=key[0], partition=key[1]),
            next_step="wait until the replicas have caught up",
        )


def _marker_in(batches: Iterable[AnyBatch], producer_id: int, producer_epoch: int) -> int | None:
    """Offset of a marker of the producer with a higher epoch."""
    for batch in batches:
        is_marker = isinstance(batch, RawBatch) and batch.is_control and batch.producer_id == producer_id
        if is_marker and isinstance(batch, RawBatch) and batch.producer_epoch > producer_epoch:
            return batch.base_offset
    return None


def _send(wire: Wire, keys: list[TopicPartition], producer_id: int, epoch: int, found: Fenced) -> None:
    """Ask the leaders for one marker each. Answers only tell of errors; the log tells of success."""
    problems: dict[TopicPartition, MigrationError] = {}
    try:
        groups = by_leader(wire, keys, problems)
    except MigrationError as error:
        problems, groups = dict.fromkeys(keys, error), {}
    found.problems.update(problems)
    for broker_id, own in groups.items():
        for start in range(0, len(own), _REQUEST_PARTITIONS):
            part = own[start : start + _REQUEST_PARTITIONS]
            try:
                _send_to(wire, broker_id, part, producer_id, epoch, found)
            except MigrationError as error:
                found.problems.update(dict.fromkeys(part, error))


def _send_in_transactions(
    wire: Wire,
    fence: TransactionFence,
    ends: Mapping[TopicPartition, int],
    producer_id: int,
    producer_epoch: int,
    found: Fenced,
) -> None:
    """Let the coordinator write the markers, and wait until it has."""
    for key in ends:
        del found.problems[key]
    try:
        fence.begin()
        # What a killed process has left open has ended just now, and has left its markers.
        found.problems.update(fence.write(_look(wire, ends, producer_id, producer_epoch, found)))
        fence.begin()
    except MigrationError as error:
        found.problems.update(dict.fromkeys(ends, error))


def _send_to(
    wire: Wire, broker_id: int, keys: list[TopicPartition], producer_id: int, epoch: int, found: Fenced
) -> None:
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    request = WriteTxnMarkersRequest(
        markers=[
            marker(
                producer_id=producer_id,
                producer_epoch=epoch,
                transaction_result=False,
                topics=[
                    marker.WritableTxnMarkerTopic(name=topic, partition_indexes=numbers)
                    for topic, numbers in by_topic(keys)
                ],
                coordinator_epoch=0,
            )
        ]
    )
    # Not through the wire's retries: a second marker would take a second offset, so the log is looked at first.
    answer = wire.connection(broker_id).call(request, version=MARKERS_VERSION)
    for entry in answer.markers:
        for topic in entry.topics:
            for item in topic.partitions:
                key = (topic.name, item.partition_index)
                if item.error_code:
                    where = Where(cluster=wire.config.name, topic=key[0], partition=key[1])
                    found.problems[key] = error_codes.error_for(
                        item.error_code,
                        "the migration's producer cannot be fenced",
                        where=where,
                        needs="ClusterAction, or from 3.8 on Alter, on the cluster",
                    )


# -- fence ------------------------------------------------------------------------------------------------------------


FENCE_STEP = "fence"


def fence_copiers(context: PhaseContext, attempt: FreezeAttempt, document: OffsetMapDocument) -> dict[str, Any]:
    """Fence every partition once, and journal where the markers are; details of the step."""
    done = freeze_attempt.step_done(context, attempt, FENCE_STEP)
    if done is not None:
        return dict(done)
    timer = frozen.StepTimer.start(context, attempt, FENCE_STEP)
    if not context.spec.cutover.fence_copiers:
        return timer.done({"summary": "copiers are not fenced (cutover.fence_copiers: false)", "unfenced": []})
    context.journal.check_holds()
    markers, problems = _fence_markers(context, document)
    fenced_ids, more_problems = _fence_transactions(context, document)
    problems.update(more_problems)
    unfenced = [
        {"topic": key[0], "partition": key[1], "reason": error.what, "error": error.code}
        for key, error in sorted(problems.items())
    ]
    summary = f"copiers are fenced on {len(markers) + fenced_ids} partitions"
    if unfenced:
        name = partition_name(min(problems))
        summary += f"; NOT on {len(unfenced)}, the first is {name}: {unfenced[0]['reason']}"
    return timer.done(
        {"summary": summary, "markers": by_name(markers), "transactional": fenced_ids, "unfenced": unfenced}
    )


def was_fenced(details: Mapping[str, Any]) -> bool:
    """Whether the details of the step are those of a fence, not of one that was left out."""
    return "markers" in details


def _fence_markers(
    context: PhaseContext, document: OffsetMapDocument
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, MigrationError]]:
    ends = {
        (item.target_topic, item.partition): item.target_end_offset
        for item in document.partitions
        if not _is_transactional(item) and item.target_end_offset is not None
    }
    ids = load_producer_ids(context)
    found = fence_producer(
        context.target.wire,
        ends,
        ids.data_producer_id,
        ids.data_producer_epoch,
        transactional_id=producer_ids.transactional_id(context),
    )
    return found.markers, found.problems


def _fence_transactions(
    context: PhaseContext, document: OffsetMapDocument
) -> tuple[int, dict[TopicPartition, MigrationError]]:
    """Copies in transactions: the coordinator gives the next epoch, and ends what an older one has open."""
    fenced, problems = 0, {}
    for item in document.partitions:
        if not _is_transactional(item):
            continue
        key = (item.target_topic, item.partition)
        try:
            context.target.wire.init_producer_id(transactional_id(context.migration_id, *key))
            fenced += 1
        except MigrationError as error:
            problems[key] = error
    return fenced, problems


def _is_transactional(item: MappedPartition) -> bool:
    return item.verdict == Verdict.TRANSACTIONAL
