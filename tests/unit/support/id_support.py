"""Records with schema ids, and id maps, for content tests."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Literal

from content_support import NOW_MS, MemoryLog, batch

from airflow_provider_kafka_migration.compare.record_ids import RecordIds
from airflow_provider_kafka_migration.documents.proof import PartitionContent
from airflow_provider_kafka_migration.documents.schemas import SchemaIdMap, TopicIdSettings
from airflow_provider_kafka_migration.kafka.batches.api import Record
from airflow_provider_kafka_migration.schema_ids.id_map import IdMap

Parts = Literal["key", "value", "both"]
SHIFT = 1_000


def guid_of(number: int) -> uuid.UUID:
    """A GUID for a number."""
    return uuid.UUID(int=number + (1 << 100))


def prefixed(number: int, payload: bytes = b"payload") -> bytes:
    """A payload with an id of 4 bytes in front."""
    return b"\0" + number.to_bytes(4, "big") + payload


def long_prefixed(number: int, payload: bytes = b"payload") -> bytes:
    """A payload with an id of 8 bytes in front."""
    return b"\0" + number.to_bytes(8, "big") + payload


def guid_header(number: int, part: str = "value") -> tuple[bytes, bytes | None]:
    """An id header with a GUID."""
    return f"__{part}_schema_id".encode(), b"\1" + guid_of(number).bytes


def id_header(number: int, part: str = "value") -> tuple[bytes, bytes | None]:
    """An id header with a number."""
    return f"__{part}_schema_id".encode(), prefixed(number, b"")


def at(
    offset: int,
    value: bytes | None,
    key: bytes | None = None,
    headers: Sequence[tuple[bytes, bytes | None]] = (),
) -> Record:
    """A record at an offset."""
    return Record(offset, NOW_MS - 60_000 + offset, key, value, list(headers))


def shifting_map(ids: Sequence[int], *, absent: Sequence[int] = (), guids: Sequence[int] = ()) -> IdMap:
    """A map that adds 1000 to every id and to the number of every GUID."""
    return IdMap(map_document(ids, absent=absent, guids=guids))


def map_document(ids: Sequence[int], *, absent: Sequence[int] = (), guids: Sequence[int] = ()) -> SchemaIdMap:
    """The document of such a map."""
    return SchemaIdMap(
        migration_id="m1",
        id_mode="translate",
        ids=[(".", number, number + SHIFT) for number in ids],
        guids=[(str(guid_of(number)), str(guid_of(number + SHIFT))) for number in guids],
        absent=[(".", number) for number in absent],
    )


def rewriting(id_map: IdMap, parts: Parts = "value") -> RecordIds:
    """What the comparison does where ids are rewritten."""
    return RecordIds(TopicIdSettings(parts=parts, rewrite=True), id_map)


def keeping(parts: Parts = "value") -> RecordIds:
    """What the comparison does where ids are kept."""
    return RecordIds(TopicIdSettings(parts=parts, rewrite=False))


def log_with(
    record: Callable[[int], Record], count: int, per_batch: int = 10, codec: int = 3, first: int = 0
) -> MemoryLog:
    """A log of records that a function makes."""
    made = [record(offset) for offset in range(first, first + count)]
    return MemoryLog([batch(made[start : start + per_batch], codec) for start in range(0, count, per_batch)])


def uses(content: PartitionContent) -> list[tuple[str, str, int | str, int, int]]:
    """The gathered ids as tuples."""
    return [(use.part, use.kind, use.id, use.count, use.first_offset) for use in content.schema_ids]
