"""Proves where a copy stands when the target has deleted the last records of the copy.

While a mirror runs, records are deleted on its target, too: by retention, by its cleaner, by people. The log end
remains, but it does not say by itself which source record comes next: a hole may have been filled twice by a copier
that died, and records behind it then lie further on than planned. Accepted as a proof is, in this order:

1. The leader still knows the last sequence of the copy, and it is that of the last batch that is left. Then only
   markers are missing behind it.
2. A slice has noted its position at its end, and the log end is the same since: nothing was written after it. Before
   the first note, where the copy began counts as one. If the leader knows another sequence than the note, one of them
   is of another end, and neither counts.
3. The sequence has grown since that note by as much as the log end. Sequences count records, and all of them are of
   this copy: so no marker and no other writer took an offset in between.
4. The source has deleted everything below the log end as well. Whatever became of it, the copy can miss none of it.

Anything else is an error: a guess could lose records, or copy them twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from airflow_provider_kafka_migration.copy.partition import (
    SEQUENCE_MODULUS,
    NotedPosition,
    PartitionCopy,
    advance_sequence,
)
from airflow_provider_kafka_migration.documents.copy import ProducerIds
from airflow_provider_kafka_migration.errors import BrokerBusy, PositionUnknown, Where
from airflow_provider_kafka_migration.kafka.admin.producers import TransactionsAdmin
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire
from airflow_provider_kafka_migration.offset_map.runs import PartitionMap


class EndProof(NamedTuple):
    """A proven position at the log end."""

    source_offset: int
    next_sequence: int


def known_sequences(
    wire: Wire, partitions: Iterable[TopicPartition], producers: ProducerIds
) -> dict[TopicPartition, int]:
    """Return the next sequence of the copy where the leader knows it; partitions that it does not know are left out.

    Leaders forget a producer after ``producer.id.expiration.ms`` without an append. Before 2.8 they cannot be asked.
    """
    admin = TransactionsAdmin(wire, "target")
    return {
        key: (state.last_sequence + 1) % SEQUENCE_MODULUS
        for key, found in admin.producers(partitions).items()
        for state in found.producers
        if state.producer_id == producers.data_producer_id
        and state.producer_epoch == producers.data_producer_epoch
        and state.last_sequence >= 0
    }


def is_last(batch: RawBatch, next_sequence: int | None) -> bool:
    """Whether the leader's sequence proves that this is the last batch of the copy."""
    return next_sequence == advance_sequence(batch.base_sequence, batch.last_offset_delta)


def prove(
    copy: PartitionCopy,
    offset_map: PartitionMap,
    log_end_offset: int,
    *,
    next_sequence: int | None,
    source_start_offset: int | None,
    where: Where,
) -> EndProof:
    """Return the position of a copy at the log end.

    :param next_sequence: what :func:`known_sequences` says; None: the leader does not know.
    :param source_start_offset: log start of the source; None: it is not known.
    :raises BrokerBusy: note and leader contradict each other; both have to be read again.
    :raises PositionUnknown: nothing proves it.
    """
    spec = copy.spec
    noted = copy.read.noted or NotedPosition(spec.source_start_offset, spec.target_start_offset, 0)
    source_offset = offset_map.source_position(log_end_offset)
    if noted.target_offset == log_end_offset and next_sequence not in (None, noted.next_sequence):
        raise BrokerBusy(
            f"the target's log ends at {log_end_offset}, where the copy noted sequence {noted.next_sequence}, but its "
            f"leader expects {next_sequence} next",
            where=where,
            next_step="none: the end is read again. If it stays so, delete this target topic and run the mirror again: "
            "it copies the topic from the source's log start",
        )
    if noted.target_offset == log_end_offset:
        return EndProof(noted.source_offset, noted.next_sequence if next_sequence is None else next_sequence)
    grown = log_end_offset - noted.target_offset
    if (
        next_sequence is not None
        and 0 < grown < SEQUENCE_MODULUS
        and (next_sequence - noted.next_sequence) % SEQUENCE_MODULUS == grown
    ):
        return EndProof(source_offset, next_sequence)
    if source_start_offset is not None and source_start_offset >= source_offset:
        # Where the leader has forgotten the sequence, it takes any. This one counts no markers, so that those to come
        # are not taken for too many.
        counted = (log_end_offset - spec.target_start_offset) % SEQUENCE_MODULUS
        return EndProof(source_offset, counted if next_sequence is None else next_sequence)
    raise PositionUnknown(
        f"the records at the end of the target's log (up to {log_end_offset}) were deleted, and nothing proves how far "
        f"the copy was: its last note is of target offset {noted.target_offset} (source offset {noted.source_offset}), "
        f"and the source still has records from {source_start_offset} on",
        where=where,
        next_step=f"wait until the source's log starts at or above {source_offset} and run the mirror again, or delete "
        "this target topic and run the mirror again: it copies the topic from the source's log start",
        details={
            "target_end_offset": log_end_offset,
            "noted_target_offset": noted.target_offset,
            "noted_source_offset": noted.source_offset,
            "source_start_offset": source_start_offset,
        },
    )
