"""Schema ids in the records of one topic: which ones occur, and what the source's records look like under the id map.

The comparison finds ids with a walk of its own, not with the copier's: a mistake of one shows against the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from airflow_provider_kafka_migration.documents.proof import PartitionContent, SchemaIdUse
from airflow_provider_kafka_migration.documents.schemas import SchemaIdMap, SchemaIdSettings, TopicIdSettings
from airflow_provider_kafka_migration.errors import BatchMalformed
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch
from airflow_provider_kafka_migration.kafka.batches.header import decompress
from airflow_provider_kafka_migration.kafka.batches.records import Columns, read_varint
from airflow_provider_kafka_migration.schema_ids.found import FoundIds, IdKey
from airflow_provider_kafka_migration.schema_ids.id_map import ABSENT, IdMap, LiveIdMap
from airflow_provider_kafka_migration.schema_ids.wire_format import (
    ID_HEADERS,
    MIN_PREFIX_BYTES,
    Kind,
    Part,
    encode_id,
    id_in_header,
    id_in_payload,
)
from airflow_provider_kafka_migration.storage.base import ObjectStore

#: The ids of one record, each once.
Ids = tuple[IdKey, ...]
#: The body of a record whose id the map lacks. No record has an empty body, so it equals nothing on the target.
UNMAPPED: Final = b""

_NO_IDS: Ids = ()
_ZERO_PREFIX = bytes(MIN_PREFIX_BYTES)
#: No prefix is longer: the byte 0 and an id of 8 bytes.
_LONGEST_PREFIX = 9
_CACHED_PREFIXES = 10_000


class _Known(NamedTuple):
    """What is known about an id: the bytes that replace it (None: it stays), and whether the map has no answer."""

    ids: Ids
    replacement: bytes | None = None
    is_unmapped: bool = False


_NOT_AN_ID = _Known(_NO_IDS)


class Scan(NamedTuple):
    """The ids in the bodies of some records.

    :param found: the ids of each record.
    :param patches: position and bytes of each id that is another one on the target; lengths stay the same.
    :param unmapped: number of each record with an id that the map lacks, and this id.
    """

    found: list[Ids]
    patches: list[tuple[int, bytes]]
    unmapped: dict[int, IdKey]

    def patched(self, buffer: bytes) -> bytes:
        """Return the scanned bytes with the target's ids."""
        if not self.patches:
            return buffer
        changed = bytearray(buffer)
        for position, replacement in self.patches:
            changed[position : position + len(replacement)] = replacement
        return bytes(changed)


class WalkedBatch(NamedTuple):
    """The records of a batch under the id map.

    :param payload: unpacked, with the target's ids; None: no id is another one on the target.
    """

    offsets: Sequence[int]
    found: list[Ids]
    payload: bytes | None


class MappedColumns(NamedTuple):
    """Records under the id map; bodies of records with an id that the map lacks are :data:`UNMAPPED`.

    :param unmapped: the first such id of each of these records, by the record's offset.
    """

    columns: Columns
    found: list[Ids]
    unmapped: dict[int, IdKey]


class RecordIds:
    """Finds the schema ids in records of one topic and replaces them by those of the target. For one thread.

    :param id_map: required if the settings say that ids are rewritten.
    """

    def __init__(self, settings: TopicIdSettings, id_map: IdMap | None = None) -> None:
        if settings.rewrite and id_map is None:
            raise ValueError("rewritten ids cannot be compared without the id map")
        self._settings = settings
        self._map = id_map if settings.rewrite else None
        self._keys = settings.parts in ("key", "both")
        self._values = settings.parts in ("value", "both")
        # Only a map knows whether the source registry has a schema with the id 0.
        self._zero_is_id = id_map is not None and id_map.has_zero(settings.context)
        self._cache: dict[Part, dict[bytes, _Known]] = {"key": {}, "value": {}}
        self._document: SchemaIdMap | None = None
        #: (context, id) and ("", GUID) of all schemas that were copied
        self._copied: set[tuple[str, int | str]] = set()

    @property
    def rule(self) -> str:
        """How ids are gathered and compared, for the result; never empty."""
        return self._settings.rule

    @property
    def rewrites(self) -> bool:
        """Whether an id of the source may be another one on the target."""
        return self._map is not None

    @property
    def rewrites_keys(self) -> bool:
        """Whether a key of the source may be another one on the target."""
        return self._keys and self._map is not None

    def walk(self, batch: RawBatch) -> WalkedBatch | None:
        """Read a whole batch; None if it cannot be read, has holes, or has an id that the map lacks."""
        if not batch.is_full:
            return None
        try:
            batch.check_crc()
            buffer = decompress(batch.codec, batch.payload)
            scan = self.scan(buffer, _bodies(buffer, batch.record_count))
        except (BatchMalformed, IndexError):
            return None
        if scan.unmapped:
            return None
        offsets = range(batch.base_offset, batch.next_offset)
        return WalkedBatch(offsets, scan.found, scan.patched(buffer) if scan.patches else None)

    def under_map(self, columns: Columns) -> MappedColumns:
        """Return records of the source as they must be on the target, and their ids on the source."""
        buffer = b"".join(columns.bodies)
        ends = list(accumulate(map(len, columns.bodies)))
        starts = [0, *ends[:-1]]
        scan = self.scan(buffer, zip(starts, ends, strict=True))
        if not scan.patches and not scan.unmapped:
            return MappedColumns(columns, scan.found, {})
        changed = scan.patched(buffer)
        bodies = [changed[start:end] for start, end in zip(starts, ends, strict=True)]
        for number in scan.unmapped:
            bodies[number] = UNMAPPED
        unmapped = {columns.offsets[number]: key for number, key in scan.unmapped.items()}
        return MappedColumns(columns._replace(bodies=bodies), scan.found, unmapped)

    # -- the walk over bodies ----------------------------------------------------------------------------------------

    def scan(self, buffer: bytes, places: Iterable[tuple[int, int]]) -> Scan:
        """Find the ids in record bodies (key, value and headers), each at ``buffer[start:end]``.

        A body that cannot be read has no ids: it is compared as it is. Single-byte lengths are read in place.
        """
        scan = Scan([], [], {})
        found = scan.found
        keys, values = self._keys, self._values
        has_id_headers = any(name in buffer for name in ID_HEADERS)
        for start, end in places:
            try:
                size = buffer[start]
                if size < 128:
                    size, key_at = size >> 1 ^ -(size & 1), start + 1
                else:
                    size, key_at = read_varint(buffer, start)
                key_stop = key_at + size if size > 0 else key_at
                size = buffer[key_stop]
                if size < 128:
                    size, value_at = size >> 1 ^ -(size & 1), key_stop + 1
                else:
                    size, value_at = read_varint(buffer, key_stop)
                value_stop = value_at + size if size > 0 else value_at
                if value_stop >= end:
                    found.append(_NO_IDS)
                    continue
                in_headers = (
                    self._in_headers(buffer, value_stop, end, scan) if has_id_headers and buffer[value_stop] else {}
                )
            except (IndexError, BatchMalformed):
                found.append(_NO_IDS)
                continue
            ids = _NO_IDS
            if keys:
                ids = in_headers["key"] if "key" in in_headers else self._prefix("key", buffer, key_at, key_stop, scan)
            if values:
                if "value" in in_headers:
                    ids += in_headers["value"]
                else:
                    ids += self._prefix("value", buffer, value_at, value_stop, scan)
            found.append(ids)
        return scan

    def _prefix(self, part: Part, buffer: bytes, start: int, stop: int, scan: Scan) -> Ids:
        """Return the id in front of a key or value, and note what becomes of it."""
        if stop - start < MIN_PREFIX_BYTES or buffer[start]:
            return _NO_IDS
        prefix = buffer[start : start + MIN_PREFIX_BYTES]
        if prefix == _ZERO_PREFIX:
            prefix = buffer[start : min(start + _LONGEST_PREFIX, stop)]
        known = self._cache[part].get(prefix)
        if known is None:
            found = id_in_payload(buffer, start, stop, zero_is_id=self._zero_is_id)
            known = _NOT_AN_ID if found is None else self._in_payload(IdKey(part, *found))
            self._remember(part, prefix, known)
        return self._take(known, start + 1, scan)

    def _remember(self, part: Part, prefix: bytes, known: _Known) -> None:
        cache = self._cache[part]
        if known.is_unmapped:
            return  # the map may have it by the next time
        if len(cache) >= _CACHED_PREFIXES:
            cache.clear()
        cache[prefix] = known

    def _take(self, known: _Known, position: int, scan: Scan) -> Ids:
        if known.is_unmapped:
            scan.unmapped.setdefault(len(scan.found), known.ids[0])
        elif known.replacement is not None:
            scan.patches.append((position, known.replacement))
        return known.ids

    def _in_payload(self, key: IdKey) -> _Known:
        """Return what is known about the id in front of a payload.

        In a part that no subject is named after it is one only if payloads with it were found to decode.
        """
        known = self._known(key)
        decoded = self._settings.decoded.get(key.part)
        if self._map is None or decoded is None or known.is_unmapped or key.value in decoded:
            return known
        if self._map.find(self._settings.context, key.kind, key.value) is ABSENT:
            return known
        carries = self._map.carries(self._settings.topic, key.part, int(key.value))
        if carries is None:
            return _Known((key,), is_unmapped=True)
        return known if carries else _NOT_AN_ID

    def _known(self, key: IdKey) -> _Known:
        if self._map is None:
            return _Known((key,))
        answer = self._map.find(self._settings.context, key.kind, key.value)
        if answer is None or (answer is ABSENT and self._is_copied(key)):
            return _Known((key,), is_unmapped=True)
        if answer is ABSENT or answer == key.value:
            return _Known((key,))
        assert isinstance(answer, int | str)
        return _Known((key,), encode_id(key.kind, answer))

    def _is_copied(self, key: IdKey) -> bool:
        """Return whether the map has a target id for an id that it also has as absent.

        The source registry has got the schema after it answered not to have it. Copiers have left the id as it is, so
        its records may refer to another schema on the target.
        """
        assert self._map is not None
        document = self._map.document
        if document is not self._document:
            self._document = document
            self._copied = set()
            if document is not None:
                self._copied = {(context, source) for context, source, _ in document.ids}
                self._copied |= {("", source.lower()) for source, _ in document.guids}
        return ("" if key.kind == "guid" else self._settings.context, key.value) in self._copied

    def _in_headers(self, buffer: bytes, position: int, end: int, scan: Scan) -> dict[Part, Ids]:
        """Return the ids in a record's headers, by part, only of parts that have one, and note what becomes of them.

        :raises BatchMalformed: the headers cannot be read; so does ``IndexError``.
        """
        found: dict[Part, dict[IdKey, _Known]] = {}
        places: list[tuple[int, _Known]] = []
        for name, start, stop in list(_headers(buffer, position, end)):
            part = ID_HEADERS.get(name)
            held: tuple[Kind, int | str] | None = None if part is None else id_in_header(buffer[start:stop])
            if part is None or held is None or not (self._keys if part == "key" else self._values):
                continue
            known = self._known(IdKey(part, *held))
            found.setdefault(part, {})[known.ids[0]] = known
            places.append((start + 1, known))
        for place, known in places:
            self._take(known, place, scan)
        return {part: tuple(ids) for part, ids in found.items()}


def _bodies(buffer: bytes, count: int) -> Iterator[tuple[int, int]]:
    """Yield where the body of each record of a batch begins and ends. Lengths of up to two bytes are read in place.

    :raises BatchMalformed: the batch has other records than its header says; so does ``IndexError``.
    """
    position, size = 0, len(buffer)
    for _ in range(count):
        low, high = buffer[position], buffer[position + 1]
        if low < 128:
            end = position + 1 + (low >> 1)
            position += 2  # the length, and the attributes
        elif high < 128:
            end = position + 2 + ((high << 7 | low & 127) >> 1)
            position += 3
        else:
            length, start = read_varint(buffer, position)
            end = start + length
            position = start + 1
        while buffer[position] >= 128:  # timestamp delta
            position += 1
        position += 1
        while buffer[position] >= 128:  # offset delta
            position += 1
        position += 1
        if not position < end <= size:
            raise BatchMalformed("a record extends beyond its batch")
        yield position, end
        position = end
    if position != size:
        raise BatchMalformed(f"{size - position} bytes follow the last record of a batch")


def _headers(buffer: bytes, position: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield (name, start, stop) of each header's value; an absent value is empty."""
    count, position = read_varint(buffer, position)
    for _ in range(count):
        name_size, position = read_varint(buffer, position)
        name = buffer[position : position + name_size]
        size, position = read_varint(buffer, position + name_size)
        stop = position + max(size, 0)
        if name_size < 0 or stop > end:
            raise BatchMalformed("a header extends beyond its record")
        yield name, position, stop
        position = stop
    if position != end:
        raise BatchMalformed("a record's length differs from that of its fields")


def id_fields(found: FoundIds) -> dict[str, Any]:
    """Return the fields of :class:`PartitionContent` that hold gathered ids."""
    names = ("part", "kind", "id", "count", "first_offset")
    uses = [SchemaIdUse.model_validate(dict(zip(names, item, strict=True))) for item in found.as_list()]
    return {"schema_ids": uses, "schema_ids_left_out": found.left_out}


def gathered_ids(content: PartitionContent) -> FoundIds:
    """Return the ids that a result holds."""
    uses = ((use.part, use.kind, use.id, use.count, use.first_offset) for use in content.schema_ids)
    return FoundIds.from_list(uses, left_out=content.schema_ids_left_out)


def gather(into: FoundIds, offsets: Sequence[int], found: list[Ids]) -> None:
    """Count the ids of consecutive records."""
    for ids, count in Counter(found).items():
        if ids:
            first_offset = offsets[found.index(ids)]
            for key in ids:
                into.add(key, first_offset, count)


def record_ids(
    settings: SchemaIdSettings | None, topic: str, store: ObjectStore, migration_id: str
) -> RecordIds | None:
    """Return what to do about the ids in a topic's records; None if its records carry none.

    Call it for each range, after its end was determined: the map is read from here on, so it has all ids of records
    that were copied before, and an id that it lacks is a difference and not an old map.

    :param store: the journal store.
    """
    found = None if settings is None else settings.topics.get(topic)
    if settings is None or found is None:
        return None
    return RecordIds(found, LiveIdMap(store, migration_id, settings.id_map_key))
