"""Whether a target takes what the transactional mode does: one whole transaction, tried on the scratch topic."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from airflow_provider_kafka_migration.copy.transactional_errors import is_concurrent
from airflow_provider_kafka_migration.errors import BrokerBusy
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka import transactions as requests
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch, Record, encode_batch, patched_header
from airflow_provider_kafka_migration.kafka.connection import BrokerConnection
from airflow_provider_kafka_migration.kafka.wire import (
    GROUP_COORDINATOR,
    TRANSACTION_COORDINATOR,
    TopicPartition,
    Wire,
)
from airflow_provider_kafka_migration.offset_map.runs import Run
from airflow_provider_kafka_migration.offset_map.transactional_position import Position, group_name
from airflow_provider_kafka_migration.offset_map.transactional_positions import read_positions

_SECONDS = 10.0
_PAUSE_SECONDS = 0.02
_TIMEOUT_MS = 30_000

_T = TypeVar("_T")


def try_transaction(wire: Wire, key: TopicPartition, migration_id: str) -> str:
    """One record and its position in one transaction, read back; "" or what went wrong.

    The position is of the scratch topic's partition, and goes with the topic.

    :raises MigrationError: a coordinator cannot be asked.
    """
    name, group = f"kafka-migration.{migration_id}.probe", group_name(migration_id)
    producer = requests.Producer(name, *wire.init_producer_id(name, transaction_timeout_ms=_TIMEOUT_MS))
    coordinator = wire.connection(wire.coordinator(name, TRANSACTION_COORDINATOR))
    versions = requests.versions_of(coordinator)
    position = Position(1, 1, Run(0, 0), runs=(Run(0, 0, 1),), producer_ids=(producer.producer_id,), committed_at=1)
    answers: list[tuple[str, Callable[[], int]]] = []
    if not versions.is_second:
        added = requests.add_partition(producer, key)
        answers.append(("AddPartitionsToTxn", lambda: requests.add_partition_answer(_ask(coordinator, added))))
    answers.append(("Produce", lambda: _append(wire, producer, key, versions.produce)))
    if not versions.is_second:
        offsets = requests.add_offsets(producer, group)
        answers.append(("AddOffsetsToTxn", lambda: requests.add_offsets_answer(_ask(coordinator, offsets))))
    answers.append(("TxnOffsetCommit", lambda: _commit(wire, producer, group, key, position, versions.commit_offsets)))
    end = requests.end_transaction(producer, versions.end)
    answers.append(("EndTxn", lambda: requests.end_transaction_answer(_ask(coordinator, end), versions.end)[0]))
    for what, ask in answers:
        code = _until(ask, is_concurrent)
        if code:
            return f"{what}: {error_codes.name(code)}"
    found = _until(
        lambda: read_positions(wire, group, [key])[key], lambda item: item is None or isinstance(item, BrokerBusy)
    )
    return "" if found == position else f"the position that was committed is read as {found}"


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


def _append(wire: Wire, producer: requests.Producer, key: TopicPartition, version: int) -> int:
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
