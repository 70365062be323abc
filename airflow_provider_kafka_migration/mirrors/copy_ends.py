"""Where the copy of a partition ends on the target, if it may end anywhere: others may have written behind it.

The log end says nothing then. What copiers have confirmed is on the target, and so is what follows it under the
mirror's own producer ids: a copier that was killed could not confirm its last records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from airflow_provider_kafka_migration.documents.copy import CopyPartition
from airflow_provider_kafka_migration.groups.sync import confirmed_positions
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, RawBatch
from airflow_provider_kafka_migration.kafka.fetch import READ_UNCOMMITTED
from airflow_provider_kafka_migration.kafka.logs import read_span
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.record.offset_maps import SourcePositions
from airflow_provider_kafka_migration.record.partition_names import target_key
from airflow_provider_kafka_migration.record.record import MigrationRecord

#: Own batches are searched for in this many batches behind what is confirmed; the copy then ends in the last of them.
_LOOKED_AT_BATCHES = 10_000


def copy_ends(
    record: MigrationRecord,
    target: Cluster,
    positions: SourcePositions,
    log_ends: Mapping[TopicPartition, int],
    starts: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return the exclusive target offset at which each copy certainly ends, by source partition.

    Partitions that are copied in transactions are left out: their committed positions tell it. No copier may run.

    :param log_ends: by target partition.
    :param starts: log starts by target partition.
    :raises MigrationError: the target or the storage does not answer.
    """
    confirmed, _ = confirmed_positions(record)
    ids = record.producer_ids()
    own = {ids.data_producer_id, ids.filler_producer_id}
    found: dict[TopicPartition, int] = {}
    for key, item in record.partitions().items():
        if key in positions.committed:
            continue
        place = target_key(item)
        end = max(_confirmed_end(item, positions, confirmed.get(key, -1)), starts[place])
        if end < log_ends[place]:
            batches = read_span(target.wire, place, end, log_ends[place], isolation=READ_UNCOMMITTED)
            end = _end_of_own(batches, end, own)
        found[key] = min(end, log_ends[place])
    return found


def _confirmed_end(item: CopyPartition, positions: SourcePositions, confirmed: int) -> int:
    """Return the target offset that follows what is confirmed; its start if nothing is."""
    translated = positions.maps[item.key].translate(max(confirmed, item.source_start_offset)).target_offset
    return item.target_start_offset if translated is None else translated


def _end_of_own(batches: Iterable[AnyBatch], end: int, own: set[int]) -> int:
    """Return the end of the mirror's own batches, before the first record of others.

    Markers under other ids are passed over: those that fill holes in transactions have ids of their own.
    """
    for batch in islice(batches, _LOOKED_AT_BATCHES):
        if isinstance(batch, RawBatch) and batch.producer_id in own:
            end = batch.next_offset
        elif not (isinstance(batch, RawBatch) and batch.is_control):
            break
    return end
