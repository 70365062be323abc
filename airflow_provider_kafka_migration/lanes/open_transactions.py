"""Transactions that hold a partition's records back: who has left them open, and since when.

A copy reads up to the last stable offset. An open transaction stops it there, at a lag of 0, however many records of
others lie behind it. Usually it ends within moments. One that a producer has left behind (a hanging transaction) never
ends by itself: the copy then stands still for good, and a freeze would wait for it in vain.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence

from airflow_provider_kafka_migration.copy.partition import CopyState, PartitionCopy
from airflow_provider_kafka_migration.documents.copy import PartitionResult
from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.kafka.admin.producers import ProducerState, TransactionsAdmin
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire

log = logging.getLogger(__name__)

#: A shorter wait is not worth a question to the brokers.
_ASKED_SECONDS = 2.0


def with_holders(
    results: Sequence[PartitionResult], copies: Iterable[PartitionCopy], source: Wire
) -> list[PartitionResult]:
    """Return the results of a slice with the names of those who held its partitions back at its end."""
    now = time.monotonic()
    held = {
        copy.key
        for copy in copies
        if copy.state is CopyState.RUNNING
        and copy.read.held_since is not None
        and now - copy.read.held_since >= _ASKED_SECONDS
    }
    if not held:
        return list(results)
    found = _holders(source, held)
    return [
        item.model_copy(update=_fields(*found.get((item.topic, item.partition), ([], {}))))
        if (item.topic, item.partition) in held
        else item
        for item in results
    ]


def _holders(
    source: Wire, held: Iterable[TopicPartition]
) -> dict[TopicPartition, tuple[list[ProducerState], dict[int, str]]]:
    """Ask the leaders who holds partitions back, and the coordinators for their names. No answer names nobody."""
    admin = TransactionsAdmin(source, "source")
    try:
        states = {
            key: [state for state in item.producers if state.transaction_start >= 0]
            for key, item in admin.producers(held).items()
        }
    except MigrationError as error:
        log.warning("The brokers do not say who holds records back: %s", error)
        return {}
    try:
        names = {item.producer_id: item.transactional_id for item in admin.list_transactions() or []}
    except MigrationError as error:
        log.warning("The brokers do not say the transactional ids of those who hold records back: %s", error)
        names = {}
    return {key: (found, names) for key, found in states.items()}


def _fields(states: Sequence[ProducerState], names: dict[int, str]) -> dict[str, object]:
    # The first open transaction is the one at the last stable offset.
    first = min(states, key=lambda state: state.transaction_start, default=None)
    if first is None:
        return {"is_held": True}
    called = f"producer id {first.producer_id}"
    if name := names.get(first.producer_id):
        called = f"transactional id {name} ({called})"
    return {"is_held": True, "held_by": called, "held_since_ms": first.last_timestamp_ms}
