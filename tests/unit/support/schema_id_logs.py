"""Logs whose records carry schema ids, and what they are under an id map."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from simulated.cluster import SimulatedCluster

from airflow_provider_kafka_migration.documents.schemas import SchemaIdMap
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch, Record, encode_batch, records


def framed(number: int, rest: bytes = b"rest") -> bytes:
    """A payload as Confluent's serializers write it."""
    return struct.pack(">bi", 0, number) + rest


def frame_values(cluster: SimulatedCluster, topic: str, ids: Iterable[int]) -> None:
    """Put an id, in turn, before every value of a topic; tombstones stay."""
    log = cluster.log((topic, 0))
    numbers = list(ids)
    log.batches = [_framed_batch(batch, numbers) for batch in log.views()]


def _framed_batch(batch: RawBatch, numbers: list[int]) -> bytes:
    if batch.is_control:
        return bytes(batch.data)
    found = [
        record
        if record.value is None
        else record._replace(value=framed(numbers[record.offset % len(numbers)], record.value))
        for record in records(batch)
    ]
    return encode_batch(
        found,
        batch.codec,
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        leader_epoch=batch.leader_epoch,
        transactional=batch.is_transactional,
    )


def under(ids: Mapping[int, int], found: Mapping[int, Record]) -> dict[int, Record]:
    """Records by offset with the ids of their values replaced; ids that the map lacks stay."""
    return {offset: record._replace(value=_value_under(ids, record.value)) for offset, record in found.items()}


def _value_under(ids: Mapping[int, int], value: bytes | None) -> bytes | None:
    if value is None or len(value) < 5 or value[0] != 0:
        return value
    number = int.from_bytes(value[1:5], "big")
    return framed(ids.get(number, number), value[5:])


def id_map(migration_id: str, ids: Mapping[int, int], absent: Iterable[int] = ()) -> bytes:
    """The document of the id map, as it is stored."""
    return SchemaIdMap(
        migration_id=migration_id,
        id_mode="translate",
        ids=[(".", source, target) for source, target in sorted(ids.items())],
        absent=[(".", number) for number in sorted(absent)],
    ).canonical()
