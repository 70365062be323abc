"""Ids replaced in batches: against a rewrite record by record, on all codecs, and what must not change."""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Sequence

import pytest
from batch_strategies import CODECS, TIMES, batch_of, plain, view
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kafka_migration.documents.schemas import SchemaIdMap
from airflow_provider_kafka_migration.errors import BatchMalformed, SchemaIdUnknown, SchemaIdUnresolved, Where
from airflow_provider_kafka_migration.kafka.batches import header
from airflow_provider_kafka_migration.kafka.batches.api import (
    AnyBatch,
    LegacyBatch,
    RawBatch,
    Record,
    build_batch,
    read_batches,
    records,
)
from airflow_provider_kafka_migration.kafka.batches.records import encode_varint
from airflow_provider_kafka_migration.schema_ids.id_map import IdMap, SchemaIdValue
from airflow_provider_kafka_migration.schema_ids.rewrite import IdRewriter, Parts
from airflow_provider_kafka_migration.schema_ids.wire_format import Kind, Part, encode_id, ids_in_record

GUIDS = [str(uuid.UUID(int=number)) for number in (1, 2, 2**127)]
#: 1 .. 299 are known, and 5 stays as it is; 300 and above are absent.
TARGETS = {number: number if number == 5 else 2**31 - number for number in range(1, 300)}
DOCUMENT = SchemaIdMap(
    migration_id="m",
    id_mode="translate",
    ids=[(".", source, target) for source, target in TARGETS.items()],
    guids=[(GUIDS[0], GUIDS[1]), (GUIDS[1], GUIDS[2])],
    absent=[(".", number) for number in range(300, 600)],
    absent_guids=[GUIDS[2]],
)
IDS = IdMap(DOCUMENT)
WHERE = Where(migration_id="m", topic="t", partition=1)


class AskedIds(IdMap):
    """A map that notes what it is asked for."""

    def __init__(self, document: SchemaIdMap | None = None) -> None:
        super().__init__(document)
        self.asked: list[tuple[str, Kind, SchemaIdValue, int | None]] = []

    def want(self, context: str, kind: Kind, value: SchemaIdValue, where: Where) -> None:
        self.asked.append((context, kind, value, where.offset))


def prefixed(number: int, rest: bytes = b"rest") -> bytes:
    return struct.pack(">bi", 0, number) + rest


def long_prefixed(number: int, rest: bytes = b"rest") -> bytes:
    return struct.pack(">bq", 0, number) + rest


KNOWN = st.integers(1, 599)
PAYLOADS = st.one_of(
    st.none(),
    st.binary(max_size=12).filter(lambda data: not data.startswith(b"\0")),
    st.sampled_from([b"", b"\0", b"\0\0\0\0", bytes(5), bytes(9), bytes(20), prefixed(-1), long_prefixed(2**31)]),
    st.builds(prefixed, KNOWN, st.binary(max_size=150)),
    st.builds(prefixed, st.sampled_from([1, 2, 5, 299, 300]), st.sampled_from([b"", b"x", b"y" * 20_000])),
    st.builds(long_prefixed, KNOWN, st.binary(max_size=5)),
)
ID_HEADER_VALUES = st.one_of(
    st.none(),
    st.binary(max_size=4),
    st.builds(prefixed, KNOWN, st.binary(max_size=2)),
    st.builds(lambda guid, rest: b"\x01" + uuid.UUID(guid).bytes + rest, st.sampled_from(GUIDS), st.binary(max_size=3)),
)
HEADERS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([b"", b"a", b"__key_schema_i", b"\xff"]), st.none() | st.binary(max_size=5)),
        st.tuples(st.sampled_from([b"__key_schema_id", b"__value_schema_id"]), ID_HEADER_VALUES),
    ),
    max_size=3,
)


@st.composite
def serialized(draw: st.DrawFn) -> list[Record]:
    """Records as serializers write them, and others, with ascending offsets and gaps between them."""
    offset = draw(st.sampled_from([0, 1_000_000]))
    found = []
    for _ in range(draw(st.integers(1, 12))):
        offset += draw(st.sampled_from([1, 1, 1, 3, 200]))
        headers = draw(st.just([]) | HEADERS)
        found.append(Record(offset, draw(TIMES), draw(PAYLOADS), draw(PAYLOADS), headers))
    return found


def replaced(content: bytes, kind: Kind, value: SchemaIdValue) -> bytes:
    target = IDS.find(".", kind, value)
    if not isinstance(target, int | str):
        return content
    new = encode_id(kind, target)
    return content[:1] + new + content[1 + len(new) :]


def expected(record: Record, parts: Parts) -> Record:
    """A record with its ids replaced, one by one."""
    fields = {"key": record.key, "value": record.value}
    headers = list(record.headers)
    for found in ids_in_record(record.key, record.value, record.headers):
        if parts not in (found.part, "both"):
            continue
        if found.place == "payload":
            content = fields[found.part]
            assert content is not None
            fields[found.part] = replaced(content, found.kind, found.value)
            continue
        name = f"__{found.part}_schema_id".encode()
        for index, (other, content) in enumerate(headers):
            if other == name and content is not None and content == record.headers[index][1]:
                part_ids = ids_in_record(None, None, [(name, content)])
                if part_ids and (part_ids[0].kind, part_ids[0].value) == (found.kind, found.value):
                    headers[index] = (name, replaced(content, found.kind, found.value))
    return record._replace(key=fields["key"], value=fields["value"], headers=headers)


def rewriter(parts: Parts = "both", ids: IdMap = IDS, **options: object) -> IdRewriter:
    return IdRewriter(parts, ids, where=WHERE, **options)  # type: ignore[arg-type]


def read(batch: AnyBatch) -> list[Record]:
    batch.check_crc()
    return list(batch.records() if isinstance(batch, LegacyBatch) else records(batch))


FIELDS = [name for name in RawBatch.__slots__ if name not in ("crc", "data", "size_bytes")]


@given(serialized(), CODECS, st.sampled_from(["key", "value", "both"]), st.booleans())
def test_only_ids_change(found: list[Record], codec: int, parts: Parts, transactional: bool) -> None:
    batch = batch_of(
        found, codec, producer_id=7, producer_epoch=2, base_sequence=9, leader_epoch=4, transactional=transactional
    )
    rewritten = rewriter(parts).rewrite(batch)
    assert isinstance(rewritten, RawBatch)
    wanted = [expected(record, parts) for record in found]
    assert read(rewritten) == wanted
    assert [getattr(rewritten, name) for name in FIELDS] == [getattr(batch, name) for name in FIELDS]
    assert (rewritten is batch) == (wanted == found)
    if codec == 0:
        assert rewritten.size_bytes == batch.size_bytes


@given(serialized(), CODECS)
def test_same_bytes_each_time(found: list[Record], codec: int) -> None:
    batch = batch_of(found, codec)
    assert bytes(rewriter().rewrite(batch).data) == bytes(rewriter().rewrite(batch).data)


def test_other_contexts() -> None:
    ids = IdMap(DOCUMENT.model_copy(update={"ids": [(".", 1, 11), (".prod", 1, 21)]}))
    rewritten = rewriter("value", ids, context=".prod").rewrite(batch_of([plain(0, prefixed(1))]))
    assert read(rewritten)[0].value == prefixed(21)


def test_id_0_of_a_registry_that_has_it() -> None:
    ids = IdMap(DOCUMENT.model_copy(update={"ids": [(".", 0, 40), (".", 7, 47)]}))
    rewritten = rewriter("value", ids).rewrite(batch_of([plain(0, long_prefixed(7))]))
    assert read(rewritten)[0].value == prefixed(40, b"\0\0\0\x07rest")


# -- parts that no subject is named after ---------------------------------------------------------------------------

TWO = DOCUMENT.model_copy(update={"ids": [(".", 1, 11), (".", 2, 12), (".", 3, 13)], "absent": [(".", 9)]})


class Asking(AskedIds):
    """Notes, too, which ids of parts are to be decided."""

    def want_decided(self, context: str, part: Part, id_: int, where: Where, *, is_ahead: bool = False) -> None:
        self.decisions = [*getattr(self, "decisions", []), (context, part, id_, where.topic, where.offset)]


def decided(*rows: tuple[str, Part, int, bool]) -> Asking:
    return Asking(TWO.model_copy(update={"decided": list(rows)}))


def record(key: bytes | None, value: bytes | None = None, headers: Sequence[tuple[bytes, bytes | None]] = ()) -> Record:
    return Record(5, 0, key, value, list(headers))


def test_an_id_that_was_not_seen_to_decode_is_asked_for_and_not_rewritten() -> None:
    ids = decided()
    batch = batch_of([record(prefixed(1), prefixed(2)), record(prefixed(2), prefixed(2))._replace(offset=6)])
    with pytest.raises(SchemaIdUnknown, match="no subject is named after the keys") as error:
        rewriter("both", ids, decoded={"key": [1]}).rewrite(batch)
    assert (ids.asked, ids.decisions) == ([], [(".", "key", 2, "t", 6)])
    assert error.value.details["part"] == "key"


@pytest.mark.parametrize(("carries", "key"), [(True, prefixed(12)), (False, prefixed(2))])
def test_the_answer_decides_for_this_part_of_this_topic(carries: bool, key: bytes) -> None:
    ids = decided(("t", "key", 2, carries), ("another", "key", 2, not carries))
    (found,) = read(rewriter("both", ids, decoded={"key": []}).rewrite(batch_of([record(prefixed(2), prefixed(2))])))
    assert (found.key, found.value) == (key, prefixed(12))


def test_an_id_that_does_not_decode_stops_a_strict_partition() -> None:
    ids = decided(("t", "key", 2, False))
    with pytest.raises(SchemaIdUnresolved, match="its key does not decode with the schema id 2"):
        rewriter("both", ids, decoded={"key": []}, strict=True).rewrite(batch_of([record(prefixed(2))]))


def test_an_id_in_a_header_needs_no_evidence() -> None:
    batch = batch_of([record(b"k", headers=[(b"__key_schema_id", prefixed(2, b""))])])
    (found,) = read(rewriter("key", decided(), decoded={"key": []}).rewrite(batch))
    assert found.headers == [(b"__key_schema_id", prefixed(12, b""))]


def test_the_schema_is_asked_for_before_anybody_decodes_with_it() -> None:
    ids = decided()
    with pytest.raises(SchemaIdUnknown):
        rewriter("key", ids, decoded={"key": []}).rewrite(batch_of([record(prefixed(4))]))
    assert ids.asked == [(".", "id32", 4, 5)]


def test_an_id_that_the_source_does_not_have_is_no_question_of_decoding() -> None:
    batch = batch_of([record(prefixed(9))])
    assert rewriter("key", decided(), decoded={"key": []}).rewrite(batch) is batch


# -- what stays as it is ----------------------------------------------------------------------------------------------


def test_batches_without_records_and_control_batches_stay() -> None:
    empty = batch_of([], 2, base_offset=5, last_offset=9)
    control = batch_of([Record(5, 1, b"\0\0\0\x01", prefixed(1), [])], control=True)
    assert rewriter().rewrite(empty) is empty
    assert rewriter().rewrite(control) is control


def test_tombstones_keep_their_null() -> None:
    found = [Record(0, 1, prefixed(1), None, []), Record(1, 1, None, prefixed(2), [])]
    assert [(item.key, item.value) for item in read(rewriter().rewrite(batch_of(found)))] == [
        (prefixed(TARGETS[1]), None),
        (None, prefixed(TARGETS[2])),
    ]


def test_header_bits_stay() -> None:
    batch = batch_of([plain(0, prefixed(1))], log_append_time=99)
    changed = view(
        build_batch(
            bytes(batch.payload),
            base_offset=0,
            last_offset_delta=0,
            record_count=1,
            attributes=batch.attributes | header.DELETE_HORIZON_BIT,
            base_timestamp=55,
            max_timestamp=99,
        )
    )
    rewritten = rewriter().rewrite(changed)
    assert isinstance(rewritten, RawBatch)
    assert rewritten.is_log_append_time
    assert rewritten.has_delete_horizon
    assert (rewritten.base_timestamp, rewritten.max_timestamp) == (55, 99)


# -- unknown and absent ids -------------------------------------------------------------------------------------------


def test_all_unknown_ids_of_a_batch_are_asked_for() -> None:
    ids = AskedIds(DOCUMENT)
    guid = b"\x01" + uuid.UUID(int=77).bytes
    found = [
        Record(10, 1, prefixed(900), prefixed(1), []),
        Record(11, 1, None, prefixed(901), [(b"__key_schema_id", guid)]),
        Record(12, 1, None, long_prefixed(902), []),
        Record(13, 1, None, prefixed(901), []),
    ]
    with pytest.raises(SchemaIdUnknown, match="id 900") as raised:
        rewriter("both", ids).rewrite(batch_of(found))
    assert raised.value.where == Where(migration_id="m", topic="t", partition=1, offset=10)
    assert len(ids.asked) == 4
    assert set(ids.asked) == {
        (".", "id32", 900, 10),
        (".", "guid", str(uuid.UUID(int=77)), 11),
        (".", "id32", 901, 11),
        (".", "id64", 902, 12),
    }


def test_an_id_that_becomes_known_is_rewritten() -> None:
    ids = AskedIds()
    rewriting = rewriter("value", ids)
    batch = batch_of([plain(0, prefixed(1))])
    with pytest.raises(SchemaIdUnknown):
        rewriting.rewrite(batch)
    ids._load(DOCUMENT)
    assert read(rewriting.rewrite(batch))[0].value == prefixed(TARGETS[1])


def test_unknown_ids_can_pass() -> None:
    ids = AskedIds(DOCUMENT)
    rewriting = rewriter("value", ids, unknown="pass")
    rewritten = rewriting.rewrite(batch_of([plain(0, prefixed(900)), plain(1, prefixed(1)), plain(2, prefixed(900))]))
    assert [record.value for record in read(rewritten)] == [prefixed(900), prefixed(TARGETS[1]), prefixed(900)]
    assert rewriting.passed_unknown == 2
    assert not ids.asked


@pytest.mark.parametrize("value", [prefixed(300), long_prefixed(300), prefixed(599, b"")])
def test_absent_ids_pass_or_stop(value: bytes) -> None:
    batch = batch_of([plain(70, prefixed(1)), plain(71, value)])
    assert read(rewriter("value").rewrite(batch))[1].value == value
    with pytest.raises(SchemaIdUnresolved, match=r"schemas\.strict") as raised:
        rewriter("value", strict=True).rewrite(batch)
    assert raised.value.where.offset == 71
    assert raised.value.where.partition == 1


def test_strict_minds_only_what_looks_like_an_id() -> None:
    found = [plain(0, b'{"a": 1}'), plain(1, None), plain(2, b"\0\0\0"), plain(3, prefixed(1))]
    assert read(rewriter("value", strict=True).rewrite(batch_of(found)))[3].value == prefixed(TARGETS[1])


# -- damaged data -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", range(5))
def test_damage_does_not_get_a_valid_crc(codec: int) -> None:
    data = bytearray(batch_of([plain(0, prefixed(1) * 30)], codec).data)
    data[-1] ^= 1
    with pytest.raises(BatchMalformed, match="CRC"):
        rewriter().rewrite(view(bytes(data)))


@given(st.binary(min_size=1, max_size=40), st.booleans())
def test_any_content_of_a_record_is_rewritten_or_refused(body: bytes, with_name: bool) -> None:
    tail = b"\0\0\0" + body + (b"__value_schema_id" if with_name else b"")
    data = build_batch(
        encode_varint(len(tail)) + tail,
        base_offset=4,
        last_offset_delta=0,
        record_count=1,
        attributes=0,
        base_timestamp=0,
        max_timestamp=0,
    )
    batch = view(data)
    try:
        wanted = [expected(record, "both") for record in records(batch)]
    except BatchMalformed:
        wanted = None
    try:
        rewritten = rewriter("both", unknown="pass").rewrite(batch)
    except BatchMalformed:
        assert wanted is None
    else:
        assert wanted is None or read(rewritten) == wanted


# -- message formats 0 and 1 ------------------------------------------------------------------------------------------


def legacy(offset: int, magic: int, attributes: int, key: bytes | None, value: bytes | None, time: int = 5) -> bytes:
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", time) if magic else b"")
    for content in (key, value):
        body += struct.pack(">i", -1) if content is None else struct.pack(">i", len(content)) + content
    body = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(body)) + body


def legacy_batch(data: bytes) -> AnyBatch:
    (batch,), used = read_batches(data)
    assert used == len(data)
    assert isinstance(batch, LegacyBatch)
    return batch


@pytest.mark.parametrize("magic", [0, 1])
def test_legacy_records_are_rewritten(magic: int) -> None:
    batch = legacy_batch(legacy(7, magic, 0, prefixed(1), prefixed(2)))
    (record,) = read(rewriter().rewrite(batch))
    (before,) = read(batch)
    assert record == before._replace(key=prefixed(TARGETS[1]), value=prefixed(TARGETS[2]))


@pytest.mark.parametrize("attributes", [1, 1 | 0x08])
def test_legacy_wrappers_keep_offsets_and_times(attributes: int) -> None:
    inner = b"".join(legacy(place, 1, 0, b"k", prefixed(1), time=place + 10) for place in (0, 1, 4))
    batch = legacy_batch(legacy(1004, 1, attributes, None, header.compress(1, inner), time=777))
    rewritten = rewriter("value").rewrite(batch)
    assert isinstance(rewritten, RawBatch)
    assert rewritten.codec == 1
    assert rewritten.next_offset == batch.next_offset
    assert read(rewritten) == [record._replace(value=prefixed(TARGETS[1])) for record in read(batch)]
    raw = [record.timestamp for record in records(rewritten, "raw")]
    assert raw == [10, 11, 14]


def test_legacy_records_without_ids_stay() -> None:
    batch = legacy_batch(legacy(7, 1, 0, b"k", prefixed(300)))
    assert rewriter().rewrite(batch) is batch


def test_unknown_id_in_a_legacy_record() -> None:
    with pytest.raises(SchemaIdUnknown, match="id 900"):
        rewriter("value").rewrite(legacy_batch(legacy(7, 1, 0, b"k", prefixed(900))))
