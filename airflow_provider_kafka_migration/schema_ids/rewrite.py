"""Replaces schema ids in record batches, each in its place: offsets, times and lengths of records stay as they are.

Batches without an id to change are returned as they are, the very same object. In all others only the ids differ, and
with them the CRC and the result of the compression; the codec stays. The same batch always becomes the same bytes, so
that a copier that continues another one's work can compare its end with the source.

A hot loop walks the records without creating objects for them, and each prefix is looked up once per batch. Only
records with ids of 8 bytes or in headers are treated one by one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Final, Literal, NamedTuple

from airflow_provider_kafka_migration.errors import BatchMalformed, SchemaIdUnknown, SchemaIdUnresolved, Where
from airflow_provider_kafka_migration.kafka.batches import header
from airflow_provider_kafka_migration.kafka.batches.api import (
    AnyBatch,
    LegacyBatch,
    RawBatch,
    Record,
    RecordIndex,
    build_batch,
    encode_batch,
    index_records,
    record_offsets,
)
from airflow_provider_kafka_migration.kafka.batches.records import read_varint
from airflow_provider_kafka_migration.schema_ids.id_map import DEFAULT_CONTEXT, Absent, IdMap
from airflow_provider_kafka_migration.schema_ids.wire_format import (
    ID_HEADERS,
    MAX_ID,
    MIN_PREFIX_BYTES,
    Kind,
    Part,
    encode_id,
    id_in_header,
    id_in_payload,
)

Parts = Literal["key", "value", "both"]
Patches = list[tuple[int, bytes]]

#: In the place of new bytes: the id stays.
_STAY: Final = b""
#: A payload that begins like this has an id of 8 bytes, or none (unless the registry has the id 0).
_NO_ID32: Final = bytes(MIN_PREFIX_BYTES)
#: A topic whose payloads only look like serialized records may have any number of ids.
_MAX_DECIDED: Final = 100_000
#: Unknown ids that are asked for together, about.
_MAX_WANTED_AT_ONCE: Final = 1000
_CUT = "a record extends beyond its batch"


class _Use(NamedTuple):
    """An id in records.

    :param part: of the payload that begins with it, if no subject is named after this part; else None.
    """

    kind: Kind
    value: int | str
    part: Part | None = None


class IdRewriter:
    """Replaces the ids in the batches of one partition.

    Control batches are left alone. Batches of aborted transactions are not recognized: leave them out, because an
    unknown id in them would hold the partition for nothing.

    :param parts: which parts of the records carry ids. Headers belong to the part that they name.
    :param ids: what each id becomes.
    :param context: context of the source registry in which ids are looked up.
    :param decoded: parts that no subject is named after, with the ids whose payloads decode. Others of their payloads
        are rewritten only if the map says that they decode; ids in headers always.
    :param strict: an id that the source registry does not have is an error; otherwise the record stays as it is.
    :param where: migration, topic and partition, for errors.
    :param unknown: what to do with an id that the map does not have yet. ``hold`` asks for it and raises; ``pass``
        leaves the record as it is, counts it in :attr:`passed_unknown` and describes it in :attr:`last_unknown`.
    """

    def __init__(
        self,
        parts: Parts,
        ids: IdMap,
        *,
        context: str = DEFAULT_CONTEXT,
        decoded: Mapping[Part, Collection[int]] | None = None,
        strict: bool = False,
        where: Where | None = None,
        unknown: Literal["hold", "pass"] = "hold",
    ) -> None:
        self._ids = ids
        self._context = context
        self._decoded = {part: frozenset(found) for part, found in (decoded or {}).items()}
        self._strict = strict
        self._where = where or Where()
        self._unknown = unknown
        #: occurrences of ids that the map did not have, with ``unknown="pass"``
        self.passed_unknown = 0
        self.last_unknown: SchemaIdUnknown | None = None
        self._parts: tuple[Part, ...] = ("key", "value") if parts == "both" else (parts,)
        self._decided: dict[_Use, bytes] = {}
        #: unknown ids of the present batch, with the offset of the first record that has each
        self._missing: dict[_Use, int] = {}
        #: whether batches are read that nothing waits for yet
        self._is_ahead = False

    def rewrite(self, batch: AnyBatch) -> AnyBatch:
        """Return the batch with the ids of the target.

        A batch of message format 0 or 1 in which an id changes becomes one of format 2, which the target stores anyway.

        :raises SchemaIdUnknown: the map lacks an id; all missing ids of the batch have been asked for.
        :raises SchemaIdUnresolved: the source registry does not have an id, and ``strict`` is set.
        :raises BatchMalformed: damaged data.
        """
        if not isinstance(batch, LegacyBatch) and (batch.is_control or not batch.record_count):
            return batch
        # A new batch gets a valid CRC: damage must not go unnoticed.
        batch.check_crc()
        self._missing.clear()
        rewritten = self._rewrite_legacy(batch) if isinstance(batch, LegacyBatch) else self._rewrite_records(batch)
        if self._missing:
            raise self._ask()
        return rewritten

    def ask_ahead(self, batches: Iterable[AnyBatch]) -> None:
        """Ask for unknown ids of batches that come later, so that the partition does not wait for one id at a time."""
        asked, self._is_ahead = 0, True
        try:
            for batch in batches:
                try:
                    self.rewrite(batch)
                except SchemaIdUnknown:
                    asked += len(self._missing)
                if asked >= _MAX_WANTED_AT_ONCE:
                    return
        except (SchemaIdUnresolved, BatchMalformed):
            return  # that stops the partition when it gets there
        finally:
            self._is_ahead = False

    def _rewrite_records(self, batch: RawBatch) -> RawBatch:
        walk = _Walk(batch)
        starts = walk.starts()
        patches: Patches = []
        if "key" in self._parts:
            self._payloads("key", walk, starts.keys, patches)
        if "value" in self._parts:
            self._payloads("value", walk, starts.values, patches)
        for number in starts.with_headers:
            self._record(walk, number, patches)
        return _patched(batch, walk.data, patches) if patches else batch

    # -- payloads ----------------------------------------------------------------------------------------------------

    def _payloads(self, part: Part, walk: _Walk, starts: list[int], patches: Patches) -> None:
        """Treat the keys or the values that begin with the magic byte; each prefix is looked up once per batch."""
        data = walk.data
        prefixes = [data[start : start + MIN_PREFIX_BYTES] for start in starts]
        changed: dict[bytes, bytes] = {}
        for prefix, count in Counter(prefixes).items():
            if prefix == _NO_ID32 and not self._ids.has_zero(self._context):
                for start in [start for start, other in zip(starts, prefixes, strict=True) if other == prefix]:
                    self._payload(part, walk, start, walk.stop_of(start), patches)
                continue
            number = int.from_bytes(prefix[1:], "big")
            if number <= MAX_ID:
                first = partial(walk.first_offset, starts, prefixes, prefix)
                changed[prefix] = self._new_bytes(self._in_payload(part, "id32", number), first, count)
        if any(changed.values()):
            patches += [
                (start + 1, changed[prefix])
                for start, prefix in zip(starts, prefixes, strict=True)
                if changed.get(prefix)
            ]

    def _payload(self, part: Part, walk: _Walk, start: int, stop: int, patches: Patches) -> None:
        """Treat one key or value, whatever form its id has."""
        prefix = id_in_payload(walk.data, start, stop, zero_is_id=self._ids.has_zero(self._context))
        if prefix is not None:
            new = self._new_bytes(self._in_payload(part, *prefix), lambda: walk.offset_at(start))
            if new:
                patches.append((start + 1, new))

    def _in_payload(self, part: Part, kind: Kind, value: int | str) -> _Use:
        return _Use(kind, value, part if part in self._decoded else None)

    # -- headers -----------------------------------------------------------------------------------------------------

    def _record(self, walk: _Walk, number: int, patches: Patches) -> None:
        """Treat a record that has headers: a part with an id in a header has none in its payload."""
        fields = walk.fields(number)
        in_header: set[Part] = set()
        for part, start, stop in fields.id_headers:
            header_id = id_in_header(walk.data[start:stop])
            if header_id is None:
                continue
            in_header.add(part)
            if part in self._parts and (new := self._new_bytes(_Use(*header_id), lambda: walk.offsets[number])):
                patches.append((start + 1, new))
        payloads: tuple[tuple[Part, int, int], ...] = (("key", *fields.key), ("value", *fields.value))
        for part, start, stop in payloads:
            if part in self._parts and part not in in_header:
                self._payload(part, walk, start, stop, patches)

    # -- ids ---------------------------------------------------------------------------------------------------------

    def _new_bytes(self, use: _Use, offset: Callable[[], int], count: int = 1) -> bytes:
        """Return the bytes that replace an id; empty: it stays as it is, at least for now.

        :param offset: returns the offset of the first record that has it, which is rarely needed.
        :param count: how many records have it.
        """
        decided = self._decided.get(use)
        if decided is None:
            decided = self._decide(use, offset(), count)
        return decided

    def _decide(self, use: _Use, offset: int, count: int) -> bytes:
        answer = self._ids.find(self._context, use.kind, use.value)
        is_id = None if answer is None else not isinstance(answer, Absent) and self._is_id(use)
        if is_id is None:
            # The schema comes first: without it, nobody can decode with it.
            self._note_unknown(use._replace(part=None) if answer is None else use, offset, count)
            return _STAY
        if not is_id and self._strict:
            raise self._unresolved(use, offset)
        new = encode_id(use.kind, answer) if is_id and isinstance(answer, int | str) else _STAY
        new = _STAY if answer == use.value else new
        if len(self._decided) >= _MAX_DECIDED:
            self._decided.clear()
        self._decided[use] = new
        return new

    def _is_id(self, use: _Use) -> bool | None:
        """Whether what looks like an id in a part is one; None: nobody has decided it yet."""
        if use.part is None or not isinstance(use.value, int) or use.value in self._decoded[use.part]:
            return True
        return self._ids.carries(str(self._where.topic), use.part, use.value)

    def _note_unknown(self, use: _Use, offset: int, count: int) -> None:
        if self._unknown == "pass":
            self.passed_unknown += count
            self.last_unknown = self._unknown_error(use, offset)
            return
        if len(self._missing) < _MAX_WANTED_AT_ONCE:
            self._missing[use] = min(offset, self._missing.get(use, offset))

    def _ask(self) -> SchemaIdUnknown:
        """Ask for the unknown ids of the batch; return the error of the first record that has one."""
        missing = sorted(self._missing.items(), key=lambda item: item[1])
        for use, offset in missing:
            where = replace(self._where, offset=offset)
            if use.part is None:
                self._ids.want(self._context, use.kind, use.value, where)
            else:
                self._ids.want_decided(self._context, use.part, int(use.value), where, is_ahead=self._is_ahead)
        return self._unknown_error(*missing[0])

    def _unknown_error(self, use: _Use, offset: int) -> SchemaIdUnknown:
        name = _name(use)
        what = f"the schema {name} of a record is not on the target yet (context {self._context})"
        if use.part is not None:
            what = (
                f"a {use.part} begins with the {name}, no subject is named after the {use.part}s of this topic, and "
                "nobody has decoded it yet"
            )
        return SchemaIdUnknown(
            what,
            where=replace(self._where, offset=offset),
            next_step="none at first: the partition continues once the schema is copied; if it lasts, each pass over "
            "the schemas reports why: see the step schemas_failed (kafka-migration journal), and failed in "
            "results/schemas.json of the journal's store",
            details=self._details(use, offset),
        )

    def _details(self, use: _Use, offset: int) -> dict[str, Any]:
        found = {"kind": use.kind, "id": use.value, "context": self._context, "offset": offset}
        return found if use.part is None else {**found, "part": use.part}

    def _unresolved(self, use: _Use, offset: int) -> SchemaIdUnresolved:
        why = f"but the source registry has no schema {_name(use)} (context {self._context})"
        if use.part is not None and not isinstance(self._ids.find(self._context, use.kind, use.value), Absent):
            why = f"but its {use.part} does not decode with the schema {_name(use)} (context {self._context})"
        return SchemaIdUnresolved(
            f"a record begins like a serialized one, {why}",
            where=replace(self._where, offset=offset),
            next_step="inspect the record: if it is not a serialized one, set schemas.strict to false or name the "
            "topic's parts with ids in the spec; if it is, register its schema again under this id on the source",
            details=self._details(use, offset),
        )

    # -- message formats 0 and 1 -------------------------------------------------------------------------------------

    def _rewrite_legacy(self, batch: LegacyBatch) -> AnyBatch:
        stored = list(batch.records("raw"))
        rewritten = [
            record._replace(
                key=self._rewrite_field("key", record, record.key),
                value=self._rewrite_field("value", record, record.value),
            )
            for record in stored
        ]
        if rewritten == stored:
            return batch
        append_time = batch.timestamp if batch.is_log_append_time else None
        return RawBatch(memoryview(encode_batch(rewritten, batch.codec, log_append_time=append_time)))

    def _rewrite_field(self, part: Part, record: Record, content: bytes | None) -> bytes | None:
        if content is None or part not in self._parts:
            return content
        prefix = id_in_payload(content, 0, len(content), zero_is_id=self._ids.has_zero(self._context))
        new = b"" if prefix is None else self._new_bytes(self._in_payload(part, *prefix), lambda: record.offset)
        return content[:1] + new + content[1 + len(new) :] if new else content


# -- the walk over the records ----------------------------------------------------------------------------------------


class _Starts(NamedTuple):
    """Where keys and values begin that have the magic byte and room for an id, and which records have id headers."""

    keys: list[int]
    values: list[int]
    #: numbers of records with any headers, if the batch has id headers at all; their fields are not in the other lists
    with_headers: list[int]


class _Fields(NamedTuple):
    """The places of one record's fields, as (start, stop); null fields are empty."""

    key: tuple[int, int]
    value: tuple[int, int]
    id_headers: list[tuple[Part, int, int]]


class _Walk:
    """The records of one batch, found without creating objects for them; all places are indexes of ``data``.

    :raises BatchMalformed: damaged data; also raised by the methods.
    """

    def __init__(self, batch: RawBatch) -> None:
        self._batch = batch
        try:
            self.data = header.decompress(batch.codec, batch.payload)
        except BatchMalformed as error:
            raise _malformed(batch, error.what) from None

    @cached_property
    def _index(self) -> RecordIndex:
        """The places of all records, which most batches do not need."""
        return index_records(self._batch, unpacked=self.data)

    @cached_property
    def offsets(self) -> list[int]:
        """The records' offsets on the source."""
        return record_offsets(self._batch, self._index)

    def offset_at(self, place: int) -> int:
        """Return the offset of the record that has this place."""
        return self.offsets[self._number_at(place)]

    def first_offset(self, starts: list[int], prefixes: list[bytes], prefix: bytes) -> int:
        """Return the offset of the first record that has a prefix at its start."""
        return self.offset_at(starts[prefixes.index(prefix)])

    def _number_at(self, place: int) -> int:
        return bisect_right(self._index.bodies, place) - 1

    def stop_of(self, start: int) -> int:
        """Return where the key or value ends that begins at a place."""
        fields = self.fields(self._number_at(start))
        return fields.key[1] if fields.key[0] == start and fields.key[1] > start else fields.value[1]

    def starts(self) -> _Starts:
        """Find the payloads that may have an id."""
        found = _Starts([], [], [])
        try:
            _fill_starts(
                self.data,
                self._batch.record_count,
                found,
                has_id_headers=any(name in self.data for name in ID_HEADERS),
            )
        except (IndexError, BatchMalformed) as error:
            raise _malformed(self._batch, error.what if isinstance(error, BatchMalformed) else _CUT) from None
        return found

    def fields(self, number: int) -> _Fields:
        """Find the fields of one record."""
        try:
            return self._fields(self._index.bodies[number], self._index.ends[number])
        except (IndexError, BatchMalformed) as error:
            raise _malformed(self._batch, error.what if isinstance(error, BatchMalformed) else _CUT) from None

    def _fields(self, position: int, end: int) -> _Fields:
        key = self._field(position, end)
        value = self._field(key[1], end)
        count, position = read_varint(self.data, value[1])
        if not 0 <= count <= end - position:
            raise BatchMalformed(f"a record claims to have {count} headers")
        id_headers: list[tuple[Part, int, int]] = []
        for _ in range(count):
            name = self._field(position, end)
            content = self._field(name[1], end)
            position = content[1]
            part = ID_HEADERS.get(self.data[name[0] : name[1]])
            if part is not None:
                id_headers.append((part, *content))
        if position != end:
            raise BatchMalformed("a record's length differs from that of its fields")
        return _Fields(key, value, id_headers)

    def _field(self, position: int, end: int) -> tuple[int, int]:
        length, start = read_varint(self.data, position)
        stop = start + max(length, 0)
        if stop > end:
            raise BatchMalformed(_CUT)
        return start, stop


def _fill_starts(data: bytes, count: int, found: _Starts, *, has_id_headers: bool) -> None:
    """Fill the lists. This is the hot loop: single-byte numbers are read in place."""
    end = 0
    for number in range(count):
        length, position = read_varint(data, end)
        end = position + length
        position += 1  # attributes, always 0
        numbers = 2  # timestamp delta and offset delta
        while numbers:
            numbers -= data[position] < 128
            position += 1
        key_length, key = data[position], position + 1
        if key_length < 128:
            key_length = key_length >> 1 ^ -(key_length & 1)
        else:
            key_length, key = read_varint(data, position)
        position = key + key_length if key_length > 0 else key
        length, value = data[position], position + 1
        if length < 128:
            length = length >> 1 ^ -(length & 1)
        else:
            length, value = read_varint(data, position)
        position = value + length if length > 0 else value
        if position >= end:
            raise BatchMalformed(_CUT)
        if has_id_headers and data[position]:
            found.with_headers.append(number)
            continue
        if key_length >= MIN_PREFIX_BYTES and not data[key]:
            found.keys.append(key)
        if length >= MIN_PREFIX_BYTES and not data[value]:
            found.values.append(value)
    if end != len(data):
        raise BatchMalformed(f"{len(data) - end} bytes follow the last record of a batch")


def _name(use: _Use) -> str:
    return f"GUID {use.value}" if use.kind == "guid" else f"id {use.value}"


def _apply(data: bytes, patches: Patches) -> bytes:
    buffer = bytearray(data)
    for position, new in patches:
        buffer[position : position + len(new)] = new
    return bytes(buffer)


def _patched(batch: RawBatch, data: bytes, patches: Patches) -> RawBatch:
    built = build_batch(
        header.compress(batch.codec, _apply(data, patches)),
        base_offset=batch.base_offset,
        last_offset_delta=batch.last_offset_delta,
        record_count=batch.record_count,
        attributes=batch.attributes,
        base_timestamp=batch.base_timestamp,
        max_timestamp=batch.max_timestamp,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        leader_epoch=batch.leader_epoch,
    )
    return RawBatch(memoryview(built))


def _malformed(batch: RawBatch, what: str) -> BatchMalformed:
    return BatchMalformed(
        what,
        where=Where(offset=batch.base_offset),
        next_step="inspect the batch on the source with kafka-dump-log --deep-iteration",
    )
