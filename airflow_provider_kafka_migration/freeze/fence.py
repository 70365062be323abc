"""Part of ``cutover.floor_guard``: the migration's producers are fenced on the target before clients may switch.

Fencing follows the journal's READY, after which no freeze is lifted: a copy that had to continue after a lifted freeze
could not write under a fenced id. Until the fence is journaled, the migration stays in ``cutover``, so nobody can
acknowledge the switch. A partition that could not be fenced never holds up the cutover: it is named in the result, the
approval and the evidence.
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
from airflow_provider_kafka_migration.kafka.admin.wire_admin import batches
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, RawBatch
from airflow_provider_kafka_migration.kafka.fetch import READ_UNCOMMITTED
from airflow_provider_kafka_migration.kafka.logs import LogEnds, by_leader, fetch_many, read_ends, read_span
from airflow_provider_kafka_migration.kafka.wire import TRANSACTION_COORDINATOR, TopicPartition, Wire, by_topic
from airflow_provider_kafka_migration.offset_map.transactional import transactional_id
from airflow_provider_kafka_migration.record import producer_ids, steps
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.record.freeze_attempt import FreezeAttempt
from airflow_provider_kafka_migration.record.partition_names import by_name, partition_name
from airflow_provider_kafka_migration.record.record import MigrationRecord

# -- fence transaction ------------------------------------------------------------------------------------------------
#
# The fence for principals that may not write markers: the transaction coordinator writes them.
#
# A producer id that was obtained with a transactional id can be fenced through it: InitProducerId gives the next epoch,
# and an aborted transaction without records leaves a marker of that epoch in each of its partitions. It needs Write on
# the transactional id and on the topics, and no right on the cluster. A transaction of any *other* transactional id
# writes markers of its own producer id and fences nothing; InitProducerId alone fences nothing either, since partition
# leaders learn of the new epoch only through the marker.
#
# Coordinators forget a transactional id that was not used for ``transactional.id.expiration.ms`` (7 days by default),
# and then give a new producer id. So the id is renewed while the migration runs; a forgotten one is an error.


_T = TypeVar("_T")

#: The last versions that are not flexible; all brokers from 0.11 to 4.x support them.
_ADD_VERSION = 2
_END_VERSION = 2
_PARTITIONS_PER_TRANSACTION = 500
_MARKER_PAUSE_SECONDS = 0.05
#: Errors of the whole transaction, which the coordinator reports for each of its partitions: its last markers are not
#: written yet, the coordinator moves, another process has taken the id over, or the principal may not use it.
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

    :param producer_id: the producer id to fence; if the transactional id yields another one, that fences nothing.
    :param deadline: moment of the monotonic clock after which nothing is retried.
    """

    def __init__(self, wire: Wire, transactional_id: str, producer_id: int, *, deadline: float) -> None:
        self._wire = wire
        self._transactional_id = transactional_id
        self._producer_id = producer_id
        self._epoch = -1
        self._deadline = deadline

    def begin(self) -> None:
        """Take over the transactional id. On return, all markers of its former transactions are written.

        :raises Terminal: the principal lacks the right, or the coordinator has forgotten the id.
        """
        producer_id, self._epoch = self._wire.init_producer_id(self._transactional_id)
        if producer_id != self._producer_id:
            raise Terminal(
                f"the target has forgotten the transactional id {self._transactional_id}, so it can no longer fence "
                f"producer id {self._producer_id}",
                where=Where(cluster=self._wire.config.name),
                next_step="grant Alter (before Kafka 3.8: ClusterAction) on the target cluster, which permits fencing "
                "without the transactional id; or make sure that no copier of the migration is left",
            )

    def write(self, keys: Sequence[TopicPartition]) -> dict[TopicPartition, MigrationError]:
        """Leave a marker in each partition.

        Markers are written after the last answer: :meth:`begin` waits for them.

        :returns: the partitions that the coordinator refused, with the reason.
        :raises Transient: also if another process has renewed the id since: call :meth:`begin` again.
        :raises MigrationError: an error that affects all partitions.
        """
        refused: dict[TopicPartition, MigrationError] = {}
        for batch in batches(sorted(keys), _PARTITIONS_PER_TRANSACTION):
            codes = self._add(batch)
            if codes:
                # Nothing was added: retry with the remaining partitions.
                refused.update({key: self._refusal(key, code) for key, code in codes.items()})
                batch = [key for key in batch if key not in codes]
                codes = self._add(batch) if batch else {}
                refused.update({key: self._refusal(key, code) for key, code in codes.items()})
            if batch and not codes:
                self._end()
        return refused

    def _add(self, keys: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Send AddPartitionsToTxn; return error codes of single partitions. If there is one, nothing was added."""
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
                next_step="nothing needs to be done: this process takes the id over again",
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
            code, "the partition cannot join the transaction that fences the producer", where=where, needs="Write"
        )


# -- fence producer ---------------------------------------------------------------------------------------------------
#
# The last act of a copy: its producer id is fenced on every target partition, before applications write there.
#
# The sequence check compares the producer's own records, never the log end. So the records of a suspended copier that
# holds the right next sequence would be accepted after those of applications. One ABORT marker of the data id with the
# next epoch prevents that: every append and marker of the older epoch gets INVALID_PRODUCER_EPOCH, across restarts and
# leader elections, for as long as brokers keep the producer's state (``producer.id.expiration.ms``, 24 h).
#
# A marker takes one offset: a fenced partition ends one above the source. The log itself shows whether the marker is
# there, so fencing can be killed and repeated; a request of a dead process that is applied late costs one more offset,
# and nothing else.
#
# If the principal may not write markers, the coordinator of the data id's transactional id writes them
# (:class:`TransactionFence`).


#: How long to retry partitions that have no leader, or whose replicas are behind.
PATIENCE_SECONDS = 15.0
_PAUSE_SECONDS = 0.1
_QUICK_BYTES = 1024
#: Partitions in one request.
_REQUEST_PARTITIONS = 1000
#: The marker is searched for in this many batches after the end of the copy.
_LOOKED_AT_BATCHES = 10_000
#: Above this producer epoch there is no next one to fence with.
_LAST_EPOCH = 32_766


@dataclass
class Fenced:
    """The result of fencing, by partition."""

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

    :param ends: end of the copy by target partition: the search for the marker starts there.
    :param producer_id: data id of the migration.
    :param producer_epoch: epoch under which the data id was used.
    :param transactional_id: the one that the data id was obtained with; it fences partitions whose markers the
        principal may not write. Empty: none.
    :returns: markers and the failures of single partitions; an unreachable cluster raises nothing.
    :raises Terminal: the epoch is the last one, so there is no next one to fence with.
    """
    found = Fenced()
    if producer_epoch > _LAST_EPOCH:
        raise Terminal(
            f"the epoch {producer_epoch} of the migration's producer id is the last one, so the id cannot be fenced",
            next_step="make sure that no copier is left, then continue without a fence (cutover.fence_copiers: false)",
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
    """Return the partitions for which a retry may help."""
    return [
        key for key in sorted(ends) if key not in found.markers and not isinstance(found.problems.get(key), Terminal)
    ]


def _not_there(wire: Wire, key: TopicPartition) -> Transient:
    return Transient(
        "the marker was requested, but it is not in the partition's log",
        where=Where(cluster=wire.config.name, topic=key[0], partition=key[1]),
        next_step="read the server log of the partition's leader",
    )


def _look(
    wire: Wire, ends: Mapping[TopicPartition, int], producer_id: int, producer_epoch: int, found: Fenced
) -> list[TopicPartition]:
    """Note the partitions whose marker is in the log; return those that certainly have none."""
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
    """Fetch what directly follows the copies, in one request per leader; normally that is the marker."""
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
    """Check that the log end is replicated: what is not may still be lost.

    :raises Transient: it is not replicated yet.
    """
    if not log.settled:
        raise Transient(
            f"the log end {log.log_end_offset} is not replicated yet: the high watermark is {log.high_watermark}",
            where=Where(cluster=wire.config.name, topic=key[0], partition=key[1]),
            next_step="wait until the replicas have caught up",
        )


def _marker_in(batches: Iterable[AnyBatch], producer_id: int, producer_epoch: int) -> int | None:
    """Return the offset of a marker of the producer with a higher epoch; None if there is none."""
    for batch in batches:
        if isinstance(batch, RawBatch) and is_marker_of(batch, producer_id, producer_epoch):
            return batch.base_offset
    return None


def is_marker_of(batch: AnyBatch, producer_id: int, producer_epoch: int) -> bool:
    """Whether a batch is a marker that fences a producer: of its id, with a higher epoch."""
    return (
        isinstance(batch, RawBatch)
        and batch.is_control
        and batch.producer_id == producer_id
        and batch.producer_epoch > producer_epoch
    )


def _send(wire: Wire, keys: list[TopicPartition], producer_id: int, epoch: int, found: Fenced) -> None:
    """Ask the leaders for one marker per partition. Answers only report errors; the log shows success."""
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
    """Have the coordinator write the markers, and wait until they are written."""
    for key in ends:
        del found.problems[key]
    try:
        fence.begin()
        # ``begin`` has just ended what a killed process had left open, which has left its markers.
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
    # Not through the wire's retries: a second marker would take a second offset, so the log is read first.
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


def fence_copiers(
    record: MigrationRecord, target: Cluster, attempt: FreezeAttempt, document: OffsetMapDocument
) -> dict[str, Any]:
    """Fence every partition once, and journal where the markers are; return the details of the step."""
    done = record.cutover_step(attempt, steps.FENCE)
    if done is not None:
        return dict(done)
    timer = frozen.StepTimer.start(record, attempt, steps.FENCE)
    return timer.done(write_fence(record, target, document))


def write_fence(
    record: MigrationRecord, target: Cluster, document: OffsetMapDocument, *, accept_transient: bool = True
) -> dict[str, Any]:
    """Fence every partition, and return what the journal is to hold. Repeating it costs nothing: the log is read first.

    :param document: finished offset map: the markers are behind its ends.
    :param accept_transient: whether a partition may stay without a fence although a repetition might fence it.
    :raises Transient: it may not, and there is such a partition.
    """
    if not record.spec.cutover.fence_copiers:
        return {"summary": "copiers are not fenced (cutover.fence_copiers: false)", "unfenced": []}
    record.journal.check_holds()
    markers, problems = fence_markers(record, target, document)
    fenced_ids, more_problems = _fence_transactions(record, target, document)
    problems.update(more_problems)
    if not accept_transient:
        _raise_transient(record, problems)
    unfenced = [
        {"topic": key[0], "partition": key[1], "reason": error.what, "error": error.code}
        for key, error in sorted(problems.items())
    ]
    summary = f"copiers are fenced on {len(markers) + fenced_ids} partitions"
    if unfenced:
        name = partition_name(min(problems))
        summary += f"; NOT on {len(unfenced)}, the first is {name}: {unfenced[0]['reason']}"
    return {"summary": summary, "markers": by_name(markers), "transactional": fenced_ids, "unfenced": unfenced}


def _raise_transient(record: MigrationRecord, problems: Mapping[TopicPartition, MigrationError]) -> None:
    passing = {key: error for key, error in sorted(problems.items()) if isinstance(error, Transient)}
    if not passing:
        return
    (topic, partition), error = next(iter(passing.items()))
    raise Transient(
        f"copiers are not fenced yet on {len(passing)} partitions of the target; the first is "
        f"{partition_name((topic, partition))}: {error.what}",
        where=record.where("fence", cluster="target", topic=topic, partition=partition),
        next_step="let no client write yet. Once the target answers for these partitions, run the command again (in "
        "Airflow: clear the task); it completes the fence. If a partition has no leader for good: make sure that no "
        "copier is left, set cutover.fence_copiers: false, and run it again",
        details={"partitions": {partition_name(key): item.as_dict() for key, item in passing.items()}},
    )


def was_fenced(details: Mapping[str, Any]) -> bool:
    """Whether the details of the step are those of a fence that was written, not of one that was skipped."""
    return "markers" in details


def fence_markers(
    record: MigrationRecord, target: Cluster, document: OffsetMapDocument
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, MigrationError]]:
    """Fence the partitions of a map that are not copied in transactions. It journals nothing and needs no claim.

    :returns: offsets of the markers, and why a partition is not fenced; both by target partition.
    """
    ends = {
        (item.target_topic, item.partition): item.target_end_offset
        for item in document.partitions
        if not _is_transactional(item) and item.target_end_offset is not None
    }
    ids = record.producer_ids()
    found = fence_producer(
        target.wire,
        ends,
        ids.data_producer_id,
        ids.data_producer_epoch,
        transactional_id=producer_ids.transactional_id(record),
    )
    return found.markers, found.problems


def _fence_transactions(
    record: MigrationRecord, target: Cluster, document: OffsetMapDocument
) -> tuple[int, dict[TopicPartition, MigrationError]]:
    """Fence copies in transactions: the coordinator gives the next epoch and ends what an older one has left open."""
    fenced, problems = 0, {}
    for item in document.partitions:
        if not _is_transactional(item):
            continue
        key = (item.target_topic, item.partition)
        try:
            target.wire.init_producer_id(transactional_id(record.migration_id, *key))
            fenced += 1
        except MigrationError as error:
            problems[key] = error
    return fenced, problems


def _is_transactional(item: MappedPartition) -> bool:
    return item.verdict == Verdict.TRANSACTIONAL
