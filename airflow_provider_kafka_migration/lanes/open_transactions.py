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
from airflow_provider_kafka_migration.kafka.admin.producers import ProducerState, TransactionFacts, TransactionsAdmin
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
        item.model_copy(
            update=_fields((item.topic, item.partition), *found.get((item.topic, item.partition), ([], {})))
        )
        if (item.topic, item.partition) in held
        else item
        for item in results
    ]


def _holders(
    source: Wire, held: Iterable[TopicPartition]
) -> dict[TopicPartition, tuple[list[ProducerState], dict[int, TransactionFacts]]]:
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
    ids = {state.producer_id for found in states.values() for state in found}
    try:
        listed = (admin.list_transactions(producer_ids=ids) or []) if ids else []
        names = {item.producer_id: item for item in admin.describe_transactions(listed)}
    except MigrationError as error:
        log.warning("The brokers do not say the transactional ids of those who hold records back: %s", error)
        names = {}
    return {key: (found, names) for key, found in states.items()}


def _fields(
    key: TopicPartition, states: Sequence[ProducerState], names: dict[int, TransactionFacts]
) -> dict[str, object]:
    # The first open transaction is the one at the last stable offset.
    first = min(states, key=lambda state: state.transaction_start, default=None)
    if first is None:
        return {"is_held": True}
    called, since_ms = f"producer id {first.producer_id}", -1
    if (facts := names.get(first.producer_id)) is not None:
        called = f"transactional id {facts.transactional_id} ({called})"
        if facts.is_open and key in facts.partitions:
            # Not the time of its last record: applications choose that, and may write of last year.
            since_ms = facts.start_time_ms
    return {"is_held": True, "held_by": called, "held_since_ms": since_ms}
