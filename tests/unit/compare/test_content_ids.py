"""Topics with schema ids: equal under the id map, each wrong id is found, and all ids that occur are gathered."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from content_support import (
    COMPACTED,
    DELETED_ONLY,
    NOW_MS,
    MemoryLog,
    batch,
    compare,
    content_range,
    copy_of,
    kinds,
    log_of,
    rewrite,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from id_support import (
    SHIFT,
    at,
    guid_header,
    guid_of,
    id_header,
    keeping,
    log_with,
    long_prefixed,
    prefixed,
    rewriting,
    shifting_map,
    uses,
)

from airflow_provider_kafka_migration.compare.comparison import ContentOptions, Stretch, compare_stretch, range_map
from airflow_provider_kafka_migration.compare.logs import OurLog
from airflow_provider_kafka_migration.compare.proven import joined
from airflow_provider_kafka_migration.compare.record_ids import RecordIds, gathered_ids
from airflow_provider_kafka_migration.documents.proof import PartitionContent, TopicRules
from airflow_provider_kafka_migration.documents.schemas import TopicIdSettings
from airflow_provider_kafka_migration.kafka.batches.api import LegacyBatch, RawBatch, Record, read_batches, records
from airflow_provider_kafka_migration.kafka.batches.records import Headers
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange
from airflow_provider_kafka_migration.offset_map.transactional import TransactionalMap
from airflow_provider_kafka_migration.schema_ids.id_map import IdMap
from airflow_provider_kafka_migration.schema_ids.rewrite import IdRewriter
from airflow_provider_kafka_migration.schema_ids.wire_format import Part, ids_in_record

MAP = shifting_map(range(1, 10), absent=[77], guids=range(1, 5))


def options(ids: RecordIds | None = None) -> ContentOptions:
    return ContentOptions(now_ms=NOW_MS, ids=ids)


def check(source: MemoryLog, target: MemoryLog, ids: RecordIds, rules: TopicRules = DELETED_ONLY) -> PartitionContent:
    return compare(source, target, rules=rules, options=options(ids))


def values(shift: int = 0, per_batch: int = 10, codec: int = 3) -> MemoryLog:
    """Thirty records with the ids 1, 2 and 3 in turn."""
    return log_with(lambda offset: at(offset, prefixed(offset % 3 + 1 + shift, b"v%d" % offset)), 30, per_batch, codec)


# -- parts that no subject is named after ----------------------------------------------------------------------------

DECODED = TopicIdSettings(parts="value", topic="t", decoded={"value": [1, 2]})


def deciding(*rows: tuple[str, Part, int, bool]) -> RecordIds:
    assert MAP.document is not None
    return RecordIds(DECODED, IdMap(MAP.document.model_copy(update={"decided": list(rows)})))


def partly() -> MemoryLog:
    """What does not decode, here the id 3, is on the target as it is on the source."""
    shift = (SHIFT, SHIFT, 0)
    return log_with(lambda offset: at(offset, prefixed(offset % 3 + 1 + shift[offset % 3], b"v%d" % offset)), 30, 10, 3)


def test_bytes_that_were_found_not_to_decode_must_not_be_rewritten() -> None:
    ids = deciding(("t", "value", 3, False), ("other", "value", 3, True))
    content = check(values(), partly(), ids)
    assert content.is_proven
    assert {use[2] for use in uses(content)} == {1, 2}
    wrong = check(values(), values(SHIFT), ids)
    assert (wrong.difference_count, wrong.is_proven) == (10, False)


def test_a_rewriting_that_nobody_has_decided_is_found() -> None:
    assert check(values(), values(SHIFT), deciding(("t", "value", 3, True))).is_proven
    assert check(values(), values(SHIFT), deciding()).difference_count == 10
    assert check(values(), partly(), deciding()).difference_count == 10


# -- equal under the map ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", range(5))
def test_rewritten_records_are_equal_without_comparing_them_one_by_one(codec: int) -> None:
    content = check(values(codec=codec), values(SHIFT, codec=codec), rewriting(MAP))
    assert content.is_proven
    assert (content.compared, content.method) == (30, "payload")
    assert content.source_digest == content.target_digest


@pytest.mark.parametrize("per_batch", [1, 7, 30])
def test_rewritten_records_in_other_batches_are_equal(per_batch: int) -> None:
    content = check(values(), values(SHIFT, per_batch), rewriting(MAP))
    assert content.is_proven
    assert (content.compared, content.method) == (30, "decoded")
    assert content.source_digest == content.target_digest


def test_other_compression_of_rewritten_records_is_equal() -> None:
    assert check(values(codec=2), values(SHIFT, codec=4), rewriting(MAP)).is_proven


def test_records_that_were_not_rewritten_differ() -> None:
    content = check(values(), values(), rewriting(MAP))
    assert content.difference_count == 30
    assert {difference.detail for difference in content.differences} == {"value"}


def test_rewritten_records_differ_where_ids_are_kept() -> None:
    assert check(values(), values(SHIFT), keeping()).difference_count == 30


@pytest.mark.parametrize("per_batch", [10, 7])
@pytest.mark.parametrize("wrong", [SHIFT + 1, 3, 1, 0])
def test_one_wrong_id_is_a_difference_at_its_record(wrong: int, per_batch: int) -> None:
    target = values(SHIFT, per_batch)
    damaged = rewrite(target, {14: at(14, prefixed(wrong, b"v14"))})
    content = check(values(), damaged, rewriting(MAP))
    assert kinds(content) == [("changed", 14)]
    assert (content.difference_count, content.compared) == (1, 29)
    assert content.source_digest != content.target_digest


def test_another_value_behind_a_right_id_is_a_difference() -> None:
    damaged = rewrite(values(SHIFT), {14: at(14, prefixed(14 % 3 + 1 + SHIFT, b"V14"))})
    assert kinds(check(values(), damaged, rewriting(MAP))) == [("changed", 14)]


def test_a_rewritten_batch_with_a_wrong_checksum_is_unreadable() -> None:
    target = values(SHIFT)
    damaged = bytearray(target.stored[1].data)
    damaged[17] ^= 1  # the CRC itself: the records are right, but no consumer accepts them
    target.stored[1] = RawBatch(memoryview(bytes(damaged)))
    content = check(values(), target, rewriting(MAP))
    assert "unreadable" in {kind for kind, _ in kinds(content)}
    assert content.compared == 20


# -- ids that the map lacks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_target", [50, 50 + SHIFT])
def test_an_id_that_the_map_lacks_is_a_difference_whatever_the_target_has(on_target: int) -> None:
    source = rewrite(values(), {14: at(14, prefixed(50))})
    target = rewrite(values(SHIFT), {14: at(14, prefixed(on_target))})
    content = check(source, target, rewriting(MAP))
    assert kinds(content) == [("changed", 14)]
    assert (
        content.differences[0].detail
        == "the id map has no answer for schema id 50 (value), so the record cannot be compared"
    )
    assert (content.compared, content.difference_count) == (29, 1)
    assert content.source_digest != content.target_digest
    assert ("value", "id32", 50, 1, 14) in uses(content)


def test_an_id_that_the_source_registry_does_not_have_stays_as_it_is() -> None:
    source = rewrite(values(), {14: at(14, prefixed(77))})
    assert check(source, rewrite(values(SHIFT), {14: at(14, prefixed(77))}), rewriting(MAP)).is_proven
    changed = rewrite(values(SHIFT), {14: at(14, prefixed(77 + SHIFT))})
    assert kinds(check(source, changed, rewriting(MAP))) == [("changed", 14)]


@pytest.mark.parametrize("on_target", [8, 8 + SHIFT])
def test_an_id_that_was_absent_and_is_copied_now_is_a_difference(on_target: int) -> None:
    """Copiers have left it as it is, and its records may refer to another schema on the target."""
    both = shifting_map(range(1, 10), absent=[8])
    source = rewrite(values(), {14: at(14, prefixed(8))})
    content = check(source, rewrite(values(SHIFT), {14: at(14, prefixed(on_target))}), rewriting(both))
    assert kinds(content) == [("changed", 14)]
    assert "no answer for schema id 8 (value)" in content.differences[0].detail


def test_ids_of_another_context_are_not_in_the_map() -> None:
    ids = RecordIds(TopicIdSettings(parts="value", context=".other", rewrite=True), MAP)
    assert check(values(), values(SHIFT), ids).difference_count == 30


def test_rewritten_ids_need_a_map() -> None:
    with pytest.raises(ValueError, match="id map"):
        RecordIds(TopicIdSettings(parts="value", rewrite=True))


# -- keys, headers, other forms --------------------------------------------------------------------------------------


def mixed(shift: int = 0, per_batch: int = 10) -> MemoryLog:
    """Ids in all forms and places, and payloads that only look like it."""

    def record(offset: int) -> Record:
        forms = [
            at(offset, prefixed(2 + shift), prefixed(1 + shift, b"k")),
            at(offset, long_prefixed(3 + shift), long_prefixed(4 + shift)),
            at(offset, b"plain", b"plain", [guid_header(1 + shift, "key"), guid_header(2 + shift)]),
            # The header holds the id, so what looks like one in the payload is not one.
            at(offset, prefixed(1), None, [(b"trace", None), id_header(5 + shift)]),
            at(offset, None, prefixed(6 + shift, b"")),
            at(offset, b"\0\0\0\1", b""),
            at(offset, prefixed(77), b"\0" * 9, [(b"__value_schema_id", b"?")]),
            at(offset, b"x" * 300, prefixed(7 + shift, b"y" * 200)),
        ]
        return forms[offset % len(forms)]

    return log_with(record, 40, per_batch)


@pytest.mark.parametrize("per_batch", [10, 3])
def test_all_forms_in_keys_values_and_headers(per_batch: int) -> None:
    content = check(mixed(), mixed(SHIFT, per_batch), rewriting(MAP, "both"))
    assert content.is_proven
    assert content.source_digest == content.target_digest
    assert uses(content) == [
        ("key", "guid", str(guid_of(1)), 5, 2),
        ("key", "id32", 1, 5, 0),
        ("key", "id32", 6, 5, 4),
        ("key", "id32", 7, 5, 7),
        ("key", "id64", 4, 5, 1),
        ("value", "guid", str(guid_of(2)), 5, 2),
        ("value", "id32", 2, 5, 0),
        ("value", "id32", 5, 5, 3),
        ("value", "id32", 77, 5, 6),
        ("value", "id64", 3, 5, 1),
    ]


@pytest.mark.parametrize("part", ["key", "value"])
def test_a_wrong_guid_in_a_header_is_a_difference(part: str) -> None:
    source = log_with(lambda offset: at(offset, b"v", b"k", [guid_header(1, part)]), 20)
    target = log_with(lambda offset: at(offset, b"v", b"k", [guid_header(1 + SHIFT, part)]), 20)
    assert check(source, target, rewriting(MAP, "both")).is_proven
    damaged = rewrite(target, {8: at(8, b"v", b"k", [guid_header(2 + SHIFT, part)])})
    content = check(source, damaged, rewriting(MAP, "both"))
    assert [(item.kind, item.source_offset, item.detail) for item in content.differences] == [("changed", 8, "headers")]


def test_only_the_parts_that_carry_ids_are_compared_under_the_map() -> None:
    source = log_with(lambda offset: at(offset, prefixed(2), prefixed(1)), 20)
    target = log_with(lambda offset: at(offset, prefixed(2 + SHIFT), prefixed(1)), 20)
    content = check(source, target, rewriting(MAP, "value"))
    assert content.is_proven
    assert uses(content) == [("value", "id32", 2, 20, 0)]
    assert check(source, target, rewriting(MAP, "both")).difference_count == 20
    assert check(source, target, rewriting(MAP, "key")).difference_count == 20


def legacy(shift: int) -> LegacyBatch:
    import struct
    import zlib

    value = prefixed(3 + shift)
    content = struct.pack(">bbqi", 1, 0, NOW_MS, -1) + struct.pack(">i", len(value)) + value
    message = struct.pack(">I", zlib.crc32(content)) + content
    (found,), _ = read_batches(struct.pack(">qi", 0, len(message)) + message)
    assert isinstance(found, LegacyBatch)
    return found


def test_messages_of_the_old_formats_are_compared_under_the_map() -> None:
    def target(shift: int) -> MemoryLog:
        return MemoryLog([batch([Record(0, NOW_MS, None, prefixed(3 + shift), [])])])

    content = check(MemoryLog([legacy(0)]), target(SHIFT), rewriting(MAP))
    assert content.is_proven
    assert uses(content) == [("value", "id32", 3, 1, 0)]
    assert not check(MemoryLog([legacy(0)]), target(0), rewriting(MAP)).is_equal


# -- what only the target has ----------------------------------------------------------------------------------------


def keyed(shift: int = 0) -> MemoryLog:
    """Sixty records of twenty keys, each key with the id 1."""
    return log_with(lambda offset: at(offset, b"v%d" % offset, prefixed(1 + shift, b"k%d" % (offset % 20))), 60)


def test_rewritten_keys_of_a_compacted_topic_are_found_again_on_the_source() -> None:
    source = rewrite(keyed(), dict.fromkeys(range(25)))
    content = check(source, keyed(SHIFT), rewriting(MAP, "key"), COMPACTED)
    assert content.is_proven
    assert (content.compared, content.explained) == (35, {"compacted": 25})
    assert uses(content) == [("key", "id32", 1, 35, 25)]


def test_a_key_under_another_id_explains_nothing() -> None:
    """The source has no later record of the target's key, only one of the same bytes before they are rewritten."""
    source = rewrite(keyed(), dict.fromkeys(range(25)))
    target = rewrite(keyed(SHIFT), {7: at(7, b"v7", prefixed(1, b"k7"))})
    content = check(source, target, rewriting(MAP, "key"), COMPACTED)
    assert [(item.kind, item.target_offset) for item in content.differences] == [("extra", 7)]


def test_a_later_key_whose_id_the_map_lacks_explains_nothing() -> None:
    source = MemoryLog([batch([at(10, b"later", prefixed(50, b"k"))])])
    target = MemoryLog([batch([at(0, b"old", prefixed(50, b"k"))]), batch([at(10, b"later", prefixed(50, b"k"))])])
    content = check(source, target, rewriting(MAP, "key"), COMPACTED)
    assert {item.kind for item in content.differences} == {"extra", "changed"}
    assert content.difference_count == 2


def test_a_partition_that_others_write_to_is_compared_under_the_map() -> None:
    runs = [OffsetRange(number * 10, 5 + number * 13, 10) for number in range(3)]
    offset_map = TransactionalMap(OffsetRange(0, 2), runs, producer_ids=[7]).closed(30, 10_000)

    def target(shift: int) -> OurLog:
        made = [
            batch(
                [
                    at(offset, prefixed(offset % 3 + 1 + shift, b"v%d" % offset))._replace(
                        offset=run.target_start + offset - run.source_start
                    )
                    for offset in range(run.source_start, run.source_start + 10)
                ],
                producer_id=7,
            )
            for run in runs
        ]
        return OurLog(MemoryLog(made), offset_map)

    compared = content_range(0, 30, verdict="transactional", target_end=offset_map.target_end_offset)
    compared = compared.model_copy(update={"target_start_offset": offset_map.target_start_offset})
    for shift, equal in ((SHIFT, True), (0, False)):
        content = compare_stretch(
            compared, offset_map, DELETED_ONLY, values(), target(shift), options(rewriting(MAP))
        ).content
        assert content.is_proven is equal
        assert [use[:4] for use in uses(content)] == [("value", "id32", number, 10) for number in (1, 2, 3)]


# -- gathering -------------------------------------------------------------------------------------------------------


def test_kept_ids_are_gathered() -> None:
    content = check(values(), copy_of(values()), keeping())
    assert content.is_proven
    assert content.method == "payload"
    assert content.schema_id_rule == "value, context ., kept"
    assert uses(content) == [("value", "id32", number + 1, 10, number) for number in range(3)]


def test_only_ids_of_the_compared_range_are_gathered() -> None:
    source = log_with(lambda offset: at(offset, prefixed(offset + 1)), 30)
    content = compare(source, copy_of(source), content_range(5, 25), options=options(keeping()))
    assert content.is_proven
    assert [use[2] for use in uses(content)] == list(range(6, 26))


def test_nothing_is_gathered_for_other_topics() -> None:
    content = compare(values(), copy_of(values()))
    assert (content.schema_ids, content.schema_id_rule) == ([], "")
    assert "schema_ids" not in content.model_dump(mode="json")


def test_a_topic_without_any_id_in_its_records_says_that_it_was_searched() -> None:
    content = check(log_of(20), log_of(20), keeping("both"))
    assert (content.schema_ids, content.schema_id_rule) == ([], "both, context ., kept")
    assert PartitionContent.model_validate_json(content.model_dump_json()) == content


@pytest.mark.parametrize("shift", [0, SHIFT])
@pytest.mark.parametrize("per_batch", [10, 4])
def test_the_pieces_of_a_partition_add_up(shift: int, per_batch: int) -> None:
    """However a comparison is cut into pieces, together they have the ids of the whole."""
    source, target = mixed(), mixed(shift, per_batch)
    ids = rewriting(MAP, "both") if shift else keeping("both")
    whole = check(source, target, ids)
    assert whole.is_proven
    for seed in range(8):
        rng = random.Random(seed)
        left = content_range(0, 40)
        contents: list[PartitionContent] = []
        while left.source_start_offset < left.source_end_offset:
            cut = ContentOptions(now_ms=NOW_MS, ids=ids, enough=lambda rng=rng: rng.random() < 0.3)  # type: ignore[misc]
            piece: Stretch = compare_stretch(left, range_map(left), DELETED_ONLY, source, target, cut)
            contents.append(piece.content)
            left = left.model_copy(
                update={
                    "source_start_offset": piece.compared.source_end_offset,
                    "target_start_offset": piece.compared.target_end_offset,
                }
            )
        together = contents[0]
        for content in contents[1:]:
            together = joined(together, content)
        assert uses(together) == uses(whole)
        assert together.schema_id_rule == whole.schema_id_rule
        assert together.compared == whole.compared == 40


def test_ids_of_a_piece_that_were_not_gathered_are_not_taken_for_none() -> None:
    without = compare(values(), copy_of(values()), content_range(0, 10))
    gathered = compare(values(), copy_of(values()), content_range(10, 30), options=options(keeping()))
    assert joined(without, gathered).schema_id_rule == ""
    assert joined(gathered, without).schema_id_rule == ""


def test_too_many_different_ids_are_counted_and_not_lost() -> None:
    def half(first: int) -> PartitionContent:
        log = log_with(lambda offset: at(offset, prefixed(offset + 1)), 8_000, 500, first=first)
        compared = content_range(first, first + 8_000)
        return compare(log, copy_of(log), compared, options=options(keeping()))

    both = joined(half(0), half(8_000))
    assert both.is_proven
    assert (len(both.schema_ids), both.schema_ids_left_out) == (10_000, 6_000)
    assert PartitionContent.model_validate_json(both.model_dump_json()) == both


# -- anything ---------------------------------------------------------------------------------------------------------

NUMBERS = st.integers(1, 9)
PAYLOADS = st.one_of(
    st.none(),
    st.binary(max_size=12),
    st.builds(prefixed, st.one_of(NUMBERS, st.just(77)), st.binary(max_size=6)),
    st.builds(long_prefixed, NUMBERS, st.binary(max_size=150)),
    st.just(bytes(9)),
)
HEADERS: st.SearchStrategy[Headers] = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([b"trace", b"__value_schema_idx"]), st.one_of(st.none(), st.binary(max_size=5))),
        st.builds(guid_header, st.integers(1, 4), st.sampled_from(["key", "value"])),
        st.builds(id_header, NUMBERS, st.sampled_from(["key", "value"])),
        st.tuples(st.just(b"__value_schema_id"), st.one_of(st.none(), st.binary(max_size=6))),
    ),
    max_size=3,
)
PARTS = st.sampled_from(["key", "value", "both"])


def known(key: bytes | None, value: bytes | None, headers: Headers) -> bool:
    """Whether the map has all ids of a record."""
    found = ids_in_record(key, value, headers)
    return all(MAP.find(".", item.kind, item.value) is not None for item in found)


@st.composite
def some_records(draw: st.DrawFn) -> list[Record]:
    contents = draw(st.lists(st.tuples(PAYLOADS, PAYLOADS, HEADERS).filter(lambda item: known(*item)), min_size=1))
    return [at(offset, value, key, headers) for offset, (key, value, headers) in enumerate(contents)]


def model_rewrite(record: Record, parts: str) -> tuple[Record, list[tuple[str, int, int, int]]]:
    """Rewrite a record field by field; return also (field, header number, start, stop) of each of its ids.

    Written down once more from the format's description, for a second opinion on both walks.
    """
    key, value, headers = record.key, record.value, [*record.headers]
    places: list[tuple[str, int, int, int]] = []
    in_header = set()
    for number, (name, content) in enumerate(headers):
        part = {b"__key_schema_id": "key", b"__value_schema_id": "value"}.get(name)
        if part is None or content is None:
            continue
        if len(content) >= 17 and content[0] == 1:
            size, new = 16, guid_of(int.from_bytes(content[1:17], "big") - (1 << 100) + SHIFT).bytes
        elif len(content) >= 5 and content[0] == 0 and content[1] < 128:
            found = int.from_bytes(content[1:5], "big")
            size, new = 4, (found if found == 77 else found + SHIFT).to_bytes(4, "big")
        else:
            continue
        in_header.add(part)
        if parts in (part, "both"):
            headers[number] = (name, content[:1] + new + content[1 + size :])
            places.append(("header", number, 1, 1 + size))
    fields = {"key": key, "value": value}
    for part, payload in fields.items():
        if part in in_header or parts not in (part, "both") or payload is None or payload[:1] != b"\0":
            continue
        for size in (4, 8):
            found = int.from_bytes(payload[1 : 1 + size], "big")
            if len(payload) > size and 0 < found < 2**31:
                new = (found if found == 77 else found + SHIFT).to_bytes(size, "big")
                fields[part] = payload[:1] + new + payload[1 + size :]
                places.append((part, 0, 1, 1 + size))
                break
    return record._replace(key=fields["key"], value=fields["value"], headers=headers), places


def batches_of(found: list[Record], per_batch: int, codec: int) -> MemoryLog:
    return MemoryLog([batch(found[start : start + per_batch], codec) for start in range(0, len(found), per_batch)])


@settings(max_examples=3 * settings.default.max_examples)
@given(some_records(), PARTS, st.integers(1, 8), st.integers(1, 8), st.sampled_from([0, 3]), st.randoms())
def test_any_records_are_equal_under_the_map_and_any_changed_byte_of_an_id_is_found(
    found: list[Record], parts: str, per_batch: int, target_per_batch: int, codec: int, rng: random.Random
) -> None:
    source = batches_of(found, per_batch, codec)
    ids = RecordIds(TopicIdSettings(parts=parts, rewrite=True), MAP)  # type: ignore[arg-type]
    rewritten = [model_rewrite(record, parts) for record in found]
    content = check(source, batches_of([record for record, _ in rewritten], target_per_batch, codec), ids)
    assert content.is_proven
    expected = Counter(
        (item.part, item.kind, item.value)
        for record in found
        for item in {item[:3]: item for item in ids_in_record(record.key, record.value, record.headers)}.values()
        if parts in (item.part, "both")
    )
    assert {use[:3]: use[3] for use in uses(content)} == expected
    assert len(gathered_ids(content)) == len(expected)

    copier = IdRewriter(parts, MAP)  # type: ignore[arg-type]
    copied = MemoryLog([copier.rewrite(item) for item in source.stored])
    assert check(source, copied, ids).is_proven

    with_ids = [(number, places) for number, (_, places) in enumerate(rewritten) if places]
    if not with_ids:
        return
    number, places = rng.choice(with_ids)
    field, header, start, stop = rng.choice(places)
    position, bit = rng.randrange(start, stop), 1 << rng.randrange(8)
    record = rewritten[number][0]

    def flipped(content: bytes) -> bytes:
        return content[:position] + bytes([content[position] ^ bit]) + content[position + 1 :]

    if field == "header":
        name, held = record.headers[header]
        assert held is not None
        headers = [*record.headers[:header], (name, flipped(held)), *record.headers[header + 1 :]]
        damaged = record._replace(headers=headers)
    elif field == "key":
        assert record.key is not None
        damaged = record._replace(key=flipped(record.key))
    else:
        assert record.value is not None
        damaged = record._replace(value=flipped(record.value))
    target = [record for record, _ in rewritten]
    target[number] = damaged
    content = check(source, batches_of(target, target_per_batch, codec), ids)
    assert kinds(content)[0][1] == number
    assert content.difference_count == 1


@given(some_records(), st.binary(min_size=1, max_size=40))
def test_bodies_that_cannot_be_read_are_compared_as_they_are(found: list[Record], garbage: bytes) -> None:
    ids = rewriting(MAP, "both")
    scan = ids.scan(garbage, [(0, len(garbage))])
    assert len(scan.found) == 1
    assert len(scan.patched(garbage)) == len(garbage)
    assert list(records(batch(found))) == found
