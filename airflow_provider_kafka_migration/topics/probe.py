"""What this target accepts, tried on a scratch topic that is removed afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from airflow_provider_kafka_migration.copy.append_errors import is_concurrent
from airflow_provider_kafka_migration.copy.holes import (
    MARKERS_API_KEY,
    Fill,
    connection_marker_parts,
    fill_and_wait,
    fill_log_start,
    marker_errors,
    markers_are_refused,
)
from airflow_provider_kafka_migration.documents.base import canonical_digest
from airflow_provider_kafka_migration.documents.copy import ProducerIds
from airflow_provider_kafka_migration.errors import BrokerBusy, MigrationError, PermissionMissing
from airflow_provider_kafka_migration.internal_topics import SCRATCH_PREFIX
from airflow_provider_kafka_migration.kafka import error_codes, produce
from airflow_provider_kafka_migration.kafka import transactions as requests
from airflow_provider_kafka_migration.kafka.admin.topics import TOPIC_ALREADY_EXISTS, NewTopic
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch, Record, encode_batch, patched_header
from airflow_provider_kafka_migration.kafka.connection import BrokerConnection
from airflow_provider_kafka_migration.kafka.wire import (
    GROUP_COORDINATOR,
    TRANSACTION_COORDINATOR,
    TopicPartition,
    Wire,
    api_version,
)
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange
from airflow_provider_kafka_migration.offset_map.transactional import Position, group_name, read_positions
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.record.record import MigrationRecord

# -- probe transactions -----------------------------------------------------------------------------------------------
#
# Whether a target accepts what the transactional mode does: one whole transaction, tried on the scratch topic.


_SECONDS = 30.0
_PAUSE_SECONDS = 0.02
_TIMEOUT_MS = 30_000

_APPOINTING = frozenset(
    {
        error_codes.COORDINATOR_LOAD_IN_PROGRESS,
        error_codes.COORDINATOR_NOT_AVAILABLE,
        error_codes.NOT_COORDINATOR,
    }
)

_T = TypeVar("_T")


def try_transaction(wire: Wire, key: TopicPartition, migration_id: str) -> str:
    """Write one record and its position in one transaction and read them back; return "" or what went wrong.

    The position belongs to the scratch topic's partition, and disappears with the topic.

    :raises MigrationError: a coordinator cannot be reached.
    """
    name, group = f"kafka-migration.{migration_id}.probe", group_name(migration_id)
    producer = requests.Producer(name, *wire.init_producer_id(name, transaction_timeout_ms=_TIMEOUT_MS))
    coordinator = wire.connection(wire.coordinator(name, TRANSACTION_COORDINATOR))
    versions = requests.versions_of(coordinator)
    position = Position(
        1, 1, OffsetRange(0, 0), runs=(OffsetRange(0, 0, 1),), producer_ids=(producer.producer_id,), committed_at=1
    )
    answers: list[tuple[str, Callable[[], int]]] = []
    if not versions.is_second:
        added = requests.add_partition(producer, key)
        answers.append(("AddPartitionsToTxn", lambda: requests.add_partition_answer(_ask(coordinator, added))))
    answers.append(("Produce", lambda: _append_in_transaction(wire, producer, key, versions.produce)))
    if not versions.is_second:
        offsets = requests.add_offsets(producer, group)
        answers.append(("AddOffsetsToTxn", lambda: requests.add_offsets_answer(_ask(coordinator, offsets))))
    answers.append(("TxnOffsetCommit", lambda: _commit(wire, producer, group, key, position, versions.commit_offsets)))
    end = requests.end_transaction(producer, versions.end)
    answers.append(("EndTxn", lambda: requests.end_transaction_answer(_ask(coordinator, end), versions.end)[0]))
    for what, ask in answers:
        code = _until(ask, _may_pass)
        if code:
            return f"{what}: {error_codes.name(code)}"
    found = _until(
        lambda: read_positions(wire, group, [key])[key], lambda item: item is None or isinstance(item, BrokerBusy)
    )
    return "" if found == position else f"the committed position is read back as {found}"


def _may_pass(code: int) -> bool:
    """Return whether to ask again. On a cluster that no group has used yet, coordinators are only being appointed."""
    return is_concurrent(code) or code in _APPOINTING


def _until(ask: Callable[[], _T], again: Callable[[_T], bool]) -> _T:
    deadline = time.monotonic() + _SECONDS
    while True:
        found = ask()
        if not again(found) or time.monotonic() > deadline:
            return found
        time.sleep(_PAUSE_SECONDS)


def _ask(connection: BrokerConnection, encoded: requests.Encoded) -> memoryview:
    answer: list[memoryview] = []
    connection.submit(encoded.api_key, encoded.version, encoded.parts, answer.append, flexible=encoded.flexible)
    deadline = time.monotonic() + _SECONDS
    while not answer:
        left = deadline - time.monotonic()
        if left <= 0:
            raise connection.no_answer()
        connection.wait(left)
    return answer[0]


def _append_in_transaction(wire: Wire, producer: requests.Producer, key: TopicPartition, version: int) -> int:
    record = Record(0, int(time.time() * 1000), b"probe", b"probe", [])
    batch = RawBatch(memoryview(encode_batch([record], 0)))
    header = patched_header(batch, producer.producer_id, producer.producer_epoch, 0, transactional=True)
    encoded = requests.append(producer, key, header, batch.payload, version)
    return requests.append_answer(_ask(wire.connection(wire.leaders([key])[key]), encoded), version).error_code


def _commit(
    wire: Wire, producer: requests.Producer, group: str, key: TopicPartition, position: Position, version: int
) -> int:
    encoded = requests.commit_offset(producer, group, key, position.source_offset, position.metadata(), version)
    connection = wire.connection(wire.coordinator(group, GROUP_COORDINATOR))
    return requests.commit_offset_answer(_ask(connection, encoded), version)


# -- probe ------------------------------------------------------------------------------------------------------------


_FILLERS = 1_000
_MARKERS = 5
_REMOVAL_SECONDS = 60.0
_PAUSE_SECONDS = 0.2
_TRANSACTION_SECONDS = 20.0


@dataclass
class ProbeResult:
    """What was tried and the outcome: name to "" (works) or the broker's answer."""

    outcomes: dict[str, str] = field(default_factory=dict)
    #: what was tried -> the operation that the migration's principal lacks for it
    missing: dict[str, str] = field(default_factory=dict)
    #: markers may not be written, so empty transactions fill holes instead
    uses_transactions: bool = False
    #: whether this principal may write markers; None if unknown
    may_mark: bool | None = None

    def works(self, name: str) -> bool:
        """Whether something that was tried worked."""
        return self.outcomes.get(name) == ""


def record_outcomes(record: MigrationRecord, result: ProbeResult) -> None:
    """Journal what was tried and the outcome if it is new, because plan reads it."""
    details = {"outcomes": dict(sorted(result.outcomes.items())), "uses_transactions": result.uses_transactions}
    former = record.journal.find_step(steps.PROBED)
    if former is None or dict(former.details) != details:
        record.journal.step(steps.PROBED, details=details)


def no_compare(record: MigrationRecord) -> str:
    """Why the last probe could not append by sequence on the target; empty if it could, or if that is unknown.

    Only ``offsets.mode: auto`` then continues in transactions; with any other mode it is a blocker.
    """
    entry = record.journal.find_step(steps.PROBED)
    if entry is None or record.spec.offsets.mode != "auto":
        return ""
    return str(entry.details["outcomes"].get("sequence", ""))


def scratch_topic(record: MigrationRecord, target: Cluster) -> str:
    """Name of the scratch topic: the same in each attempt, so that a killed probe's topic is found and removed."""
    return f"{SCRATCH_PREFIX}{canonical_digest([record.migration_id, target.cluster_id])[:12]}"


def probe_target(record: MigrationRecord, target: Cluster, *, transactions: bool = False) -> ProbeResult:
    """Try fillers and DeleteRecords, the sequence check, the log end by replica_id -2, and markers.

    :param transactions: try a whole transaction as well; it is always tried where sequences are not compared.
    :raises MigrationError: not even the scratch topic can be created.
    """
    name = scratch_topic(record, target)
    wire = target.wire
    _remove(target, name)
    error = _create(target, name)
    if error is not None:
        raise error.exception("the scratch topic of the probe cannot be created", record.where("precheck"))
    result = ProbeResult()
    try:
        _try_all(record, target, name, result)
        if transactions or result.outcomes.get("sequence"):
            _try(result, "transactions", lambda: try_transaction(wire, (name, 0), record.migration_id))
    finally:
        _remove(target, name)
        wire.forget_leaders([(name, 0)])
    return result


def _remove(target: Cluster, name: str) -> None:
    """Delete the scratch topic and wait until it is gone: deletion takes a while, and the name is used again."""
    error = target.admin.delete_topics([name])[name]
    if error is not None and error.unauthorized:
        return  # never created, or no right to delete it: the creation will report that
    deadline = time.monotonic() + _REMOVAL_SECONDS
    while time.monotonic() < deadline:
        facts = target.admin.describe_topics([name]).get(name)
        if facts is None or facts.error is not None:
            return
        time.sleep(_PAUSE_SECONDS)


def _create(target: Cluster, name: str) -> ItemError | None:
    """Create the scratch topic.

    Brokers in ZooKeeper mode no longer list a topic that they are still deleting, and refuse to create it until then.
    A probe that was killed has left one.
    """
    deadline = time.monotonic() + _REMOVAL_SECONDS
    while True:
        new = NewTopic(name, 1, -1, {"retention.ms": "-1", "cleanup.policy": "delete"})
        error = target.admin.create_topics([new])[name].error
        if error is None or error.code != TOPIC_ALREADY_EXISTS or time.monotonic() >= deadline:
            return error
        time.sleep(_PAUSE_SECONDS)


def _try_all(record: MigrationRecord, target: Cluster, name: str, result: ProbeResult) -> None:
    wire, key = target.wire, (name, 0)
    data, filler = wire.init_producer_id(), wire.init_producer_id()
    ids = ProducerIds(
        data_producer_id=data[0],
        data_producer_epoch=data[1],
        filler_producer_id=filler[0],
        filler_producer_epoch=filler[1],
    )

    def fillers() -> str:
        fill_log_start(wire, name, 0, _FILLERS, ids)
        wire.delete_records({key: _FILLERS})
        start, end = wire.list_offsets([key], "earliest")[key], wire.list_offsets([key], "log_end")[key]
        return "" if start == end == _FILLERS else f"log start {start} and end {end}, expected {_FILLERS}"

    def log_end() -> str:
        end, high_watermark = wire.list_offsets([key], "log_end")[key], wire.list_offsets([key], "latest")[key]
        return "" if end >= high_watermark else f"log end {end} below the high watermark {high_watermark}"

    def sequence() -> str:
        first = _append(target, name, ids, 0)
        if first:
            return f"a first append was refused: {error_codes.name(first)}"
        code = _append(target, name, ids, 7)
        return "" if code == error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER else f"append out of order: code {code}"

    attempts = {"log_end": log_end, "fillers": fillers, "sequence": sequence}
    attempts["markers"] = lambda: _markers(record, target, key, result)
    for tried, attempt in attempts.items():
        _try(result, tried, attempt)


def _try(result: ProbeResult, name: str, attempt: Callable[[], str]) -> None:
    try:
        result.outcomes[name] = attempt()
    except MigrationError as error:
        result.outcomes[name] = error.what
        if isinstance(error, PermissionMissing):
            result.missing[name] = str(error.details.get("operation") or error.what)


def _markers(record: MigrationRecord, target: Cluster, key: tuple[str, int], result: ProbeResult) -> str:
    """Try control markers, or what fills holes instead of them."""
    wire = target.wire
    result.may_mark = not markers_are_refused(wire)
    if not result.may_mark:
        outcome = _empty_transactions(record, target, key)
        result.uses_transactions = not outcome
        return outcome
    before = wire.list_offsets([key], "log_end")[key]
    marker_id, epoch = wire.init_producer_id(f"kafka-migration.{record.migration_id}.probe")
    connection = wire.connection(wire.leaders([key])[key])
    version, parts = connection_marker_parts(connection, {key: _MARKERS}, marker_id, epoch)
    answer: list[memoryview] = []
    connection.submit(MARKERS_API_KEY, version, parts, answer.append, flexible=True)
    deadline = time.monotonic() + 10
    while not answer and time.monotonic() < deadline:
        connection.wait(1.0)
    code = marker_errors(answer[0])[key] if answer else error_codes.REQUEST_TIMED_OUT
    if code:
        return error_codes.name(code)
    grown = wire.list_offsets([key], "log_end")[key] - before
    return "" if grown == _MARKERS else f"{grown} of {_MARKERS} markers were written"


def _empty_transactions(record: MigrationRecord, target: Cluster, key: tuple[str, int]) -> str:
    """Fill some offsets without the right to write markers."""
    wire = target.wire
    before = wire.list_offsets([key], "log_end")[key]
    transactional_id = f"kafka-migration.{record.migration_id}.probe"
    fills = {key: Fill(_MARKERS, before, None)}
    filled = fill_and_wait(wire.config, transactional_id, fills, seconds=_TRANSACTION_SECONDS).get(key)
    if filled is None or filled.error is not None:
        why = "no answer in time" if filled is None or filled.error is None else filled.error.what
        return f"markers may not be written, and empty transactions failed: {why}"
    grown = filled.log_end_offset - before
    return "" if grown == _MARKERS else f"{grown} of {_MARKERS} empty transactions left a marker"


def _append(target: Cluster, name: str, ids: ProducerIds, sequence: int) -> int:
    """Append one record at a sequence and return the broker's error code."""
    wire, key = target.wire, (name, 0)
    record = Record(0, int(time.time() * 1000), b"probe", b"probe", [])
    batch = RawBatch(memoryview(encode_batch([record], 0)))
    header = patched_header(batch, ids.data_producer_id, ids.data_producer_epoch, sequence)
    connection = wire.connection(wire.leaders([key])[key])
    version = api_version(connection, produce.API_KEY, produce.MAX_VERSION)
    parts = produce.encode([produce.ProduceBatch(name, 0, header, batch.payload)], timeout_ms=10_000)
    answer = produce.decode(connection.call_raw(produce.API_KEY, version, parts), version)
    return answer.partitions[0].error_code
