"""Where the copy of a partition ends on the target, if it may end anywhere: others may have written behind it.

The log end says nothing then. What copiers have confirmed is on the target, and so is what follows it under the
mirror's own producer ids: a copier that was killed could not confirm its last records.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from itertools import islice

from airflow_provider_kafka_migration.documents.copy import CopyPartition
from airflow_provider_kafka_migration.errors import HANDS_OFF, MigrationError
from airflow_provider_kafka_migration.groups.sync import confirmed_positions
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, RawBatch
from airflow_provider_kafka_migration.kafka.fetch import READ_UNCOMMITTED
from airflow_provider_kafka_migration.kafka.logs import read_span
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.offset_map.runs import PartitionMap
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.record.offset_maps import SourcePositions
from airflow_provider_kafka_migration.record.partition_names import target_key
from airflow_provider_kafka_migration.record.record import MigrationRecord

log = logging.getLogger(__name__)

#: Own batches are searched for in this many batches behind what is confirmed; the copy then ends in the last of them.
_LOOKED_AT_BATCHES = 10_000
#: The same while copiers run, and confirm soon what they have written.
_LOOKED_AT_BATCHES_SO_FAR = 500

_Offsets = Mapping[TopicPartition, int]


def copy_ends(
    record: MigrationRecord,
    target: Cluster,
    positions: SourcePositions,
    log_ends: Mapping[TopicPartition, int],
    starts: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return the exclusive target offset at which each copy certainly ends, by source partition.

    Partitions that are copied in transactions are left out: their committed positions tell it. No copier may run.

    :param log_ends: by target partition; those that are missing do not exist any more, and are left out, too.
    :param starts: log starts by target partition.
    :raises MigrationError: the target or the storage does not answer.
    """
    partitions = record.partitions()
    maps = {
        key: found
        for key, found in positions.maps.items()
        if key not in positions.committed and target_key(partitions[key]) in log_ends
    }
    return _ends(record, target, maps, log_ends, starts, _LOOKED_AT_BATCHES)


def ends_so_far(
    record: MigrationRecord, target: Cluster, maps: Mapping[TopicPartition, PartitionMap], log_ends: _Offsets
) -> dict[TopicPartition, int]:
    """Return the exclusive target offset up to which each partition certainly is a copy, by source partition.

    Copiers may run: the answer may be some seconds old, and it is smaller where much follows what they have confirmed.

    :param maps: by source partition, without those that are copied in transactions.
    :param log_ends: high watermarks by target partition; those that are missing do not exist yet.
    :raises MigrationError: the target or the storage does not answer.
    """
    partitions = record.partitions()
    places = sorted({target_key(partitions[key]) for key in maps} & log_ends.keys())
    if not places or not record.has_producer_ids():
        return {}
    there = {key: found for key, found in maps.items() if target_key(partitions[key]) in log_ends}
    starts = target.wire.list_offsets(places, "earliest")
    return _ends(record, target, there, log_ends, starts, _LOOKED_AT_BATCHES_SO_FAR)


def _ends(
    record: MigrationRecord,
    target: Cluster,
    maps: Mapping[TopicPartition, PartitionMap],
    log_ends: _Offsets,
    starts: _Offsets,
    looks_at: int,
) -> dict[TopicPartition, int]:
    confirmed, _ = confirmed_positions(record)
    own = _OwnProducers(record, target)
    found: dict[TopicPartition, int] = {}
    for key, item in record.partitions().items():
        if key not in maps:
            continue
        place = target_key(item)
        end = max(_confirmed_end(item, maps[key], confirmed.get(key, -1)), starts[place])
        if end < log_ends[place]:
            batches = read_span(target.wire, place, end, log_ends[place], isolation=READ_UNCOMMITTED)
            end = _end_of_own(islice(batches, looks_at), end, own)
        found[key] = min(end, log_ends[place])
    return found


def _confirmed_end(item: CopyPartition, found: PartitionMap, confirmed: int) -> int:
    """Return the target offset that follows what is confirmed; its start if nothing is."""
    translated = found.translate(max(confirmed, item.source_start_offset)).target_offset
    return item.target_start_offset if translated is None else translated


class _OwnProducers:
    """The producer ids of a mirror: that of its data, that of its fillers, and those of the markers that fill holes.

    Each lane fills holes under transactional ids of its own, which keep their producer ids. The target is asked for
    them once, when the first marker is met; where it does not tell them, markers at the end do not count as own.
    """

    def __init__(self, record: MigrationRecord, target: Cluster) -> None:
        ids = record.producer_ids()
        self._data = {ids.data_producer_id, ids.filler_producer_id}
        self._prefix = f"kafka-migration.{record.migration_id}.lane-"
        self._target = target
        self._markers: set[int] | None = None

    def wrote(self, batch: RawBatch) -> bool:
        """Whether a batch is the mirror's own, as far as that is known."""
        if batch.producer_id in self._data:
            return True
        if not batch.is_control:
            return False
        if self._markers is None:
            self._markers = self._read_markers()
        return batch.producer_id in self._markers

    def _read_markers(self) -> set[int]:
        try:
            listed = self._target.admin.list_transactions() or []
        except HANDS_OFF:
            raise
        except MigrationError as error:
            log.warning("transactions of the target cannot be listed, so markers at the end do not count: %s", error)
            return set()
        return {item.producer_id for item in listed if item.transactional_id.startswith(self._prefix)}


def _end_of_own(batches: Iterable[AnyBatch], end: int, own: _OwnProducers) -> int:
    """Return the end of the mirror's own batches, before the first record of others.

    Markers under unknown ids are passed over.
    """
    for batch in batches:
        if isinstance(batch, RawBatch) and own.wrote(batch):
            end = batch.next_offset
        elif not (isinstance(batch, RawBatch) and batch.is_control):
            break
    return end
