"""The last act of a copy: its producer id is fenced on every target partition, before applications write there.

The sequence check compares the producer's own records, never the log end. So a copier that was frozen somewhere and
has the right next sequence in its hands would be accepted behind what applications have written. One ABORT marker of
the data id with the next epoch ends that: every append and marker of the older epoch gets INVALID_PRODUCER_EPOCH, over
restarts and leader elections, for as long as brokers keep the producer's state (``producer.id.expiration.ms``, 24 h).

A marker takes one offset: a fenced partition ends one above the source. The log itself tells whether it is there, so
fencing can be killed and repeated; a request of a dead process that is applied late costs one more offset, and no more.

Where the principal may not write markers, the coordinator of the data id's transactional id writes them
(``fence_transaction``).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from kafka.protocol.producer.transaction import WriteTxnMarkersRequest

from airflow_provider_kafka_migration.copy.holes import MARKERS_VERSION
from airflow_provider_kafka_migration.errors import (
    MigrationError,
    OutsideOfLog,
    PermissionMissing,
    Terminal,
    Transient,
    Where,
)
from airflow_provider_kafka_migration.freeze.fence_transaction import TransactionFence
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, RawBatch
from airflow_provider_kafka_migration.kafka.ends import LogEnds, by_leader, read_ends
from airflow_provider_kafka_migration.kafka.fetch import READ_UNCOMMITTED
from airflow_provider_kafka_migration.kafka.logs import fetch_many, read_span
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire, by_topic

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
