"""The content check finds each kind of damage, and knows what the source may have done since."""

from __future__ import annotations

import random

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
    raw_copy,
    record,
    rewrite,
)

from airflow_provider_kafka_migration.compare.comparison import ContentOptions, Stretch, compare_stretch, range_map
from airflow_provider_kafka_migration.documents.proof import ContentRange
from airflow_provider_kafka_migration.errors import Interrupted
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch, encode_batch, rebuild, records
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange, PartitionMap


def test_raw_copy_is_equal_without_decoding() -> None:
    source = log_of(100)
    content = compare(source, copy_of(source))
    assert content.is_equal
    assert (content.source_records, content.target_records, content.compared) == (100, 100, 100)
    assert content.method == "payload"
    assert content.source_digest == content.target_digest
    assert content.explained == {}


def test_digest_depends_on_content() -> None:
    source = log_of(20)
    other = rewrite(source, {5: record(5, value=b"other")})
    first, second = compare(source, copy_of(source)), compare(other, copy_of(other))
    assert first.source_digest != second.source_digest


def test_empty_partition_is_equal() -> None:
    content = compare(MemoryLog([]), MemoryLog([]), content_range(0, 0))
    assert content.is_equal
    assert content.compared == 0


@pytest.mark.parametrize("per_batch", [1, 7, 100])
def test_other_batch_borders_are_equal(per_batch: int) -> None:
    source = log_of(100)
    content = compare(source, log_of(100, per_batch))
    assert content.is_equal
    assert content.compared == 100
    assert content.method == "decoded"
    assert content.source_digest == content.target_digest


def test_other_codec_is_equal() -> None:
    source = log_of(30)
    other = MemoryLog([batch(list(records(item)), codec=4) for item in source.stored if isinstance(item, RawBatch)])
    assert compare(source, other).is_equal


def test_shifted_partition_is_equal_at_its_shift_only() -> None:
    source = log_of(50, first=1_000)
    target = copy_of(source, shift=1_000)
    assert compare(source, target, content_range(1_000, 1_050, shift=1_000, verdict="shifted")).is_equal
    wrong = compare(source, target, content_range(1_000, 1_050, shift=999, verdict="shifted", target_end=51))
    assert not wrong.is_equal


def test_flipped_byte_in_a_batch_with_a_right_crc_is_a_changed_record() -> None:
    source = log_of(30)
    target = copy_of(rewrite(source, {13: record(13, value=b"valuE 13")}))
    content = compare(source, target)
    assert kinds(content) == [("changed", 13)]
    assert content.differences[0].detail == "value"
    assert content.difference_count == 1
    assert content.compared == 29
    assert content.source_digest != content.target_digest


@pytest.mark.parametrize("position", [61, 65, -1])
def test_flipped_byte_with_a_wrong_crc_is_unreadable(position: int) -> None:
    source = log_of(30)
    target = copy_of(source)
    damaged = bytearray(target.stored[1].data)
    damaged[position] ^= 1
    target.stored[1] = RawBatch(memoryview(bytes(damaged)))
    content = compare(source, target)
    assert not content.is_equal
    assert "unreadable" in {kind for kind, _ in kinds(content)}
    assert content.compared == 20


@pytest.mark.parametrize(
    ("field", "changed"),
    [
        ("key", record(4)._replace(key=b"k")),
        ("value", record(4)._replace(value=None)),
        ("value", record(4)._replace(value=b"")),
        ("timestamp", record(4)._replace(timestamp=5)),
        ("headers", record(4)._replace(headers=[])),
        ("headers", record(4)._replace(headers=[(b"trace", None), (b"trace", b"1")])),
        ("headers", record(4)._replace(headers=[(b"trace", b"1"), (b"trace", b"")])),
    ],
)
def test_each_field_counts(field: str, changed: object) -> None:
    source = log_of(10)
    content = compare(source, rewrite(copy_of(source), {4: changed}))  # type: ignore[dict-item]
    assert kinds(content) == [("changed", 4)]
    assert content.differences[0].detail == field


@pytest.mark.parametrize("offset", [0, 9, 10, 15, 29])
def test_lost_record_is_missing(offset: int) -> None:
    source = log_of(30)
    content = compare(source, rewrite(copy_of(source), {offset: None}))
    assert kinds(content) == [("missing", offset)]


def test_lost_batch_is_missing() -> None:
    source = log_of(30)
    target = copy_of(source)
    del target.stored[1]
    content = compare(source, target)
    assert kinds(content) == [("missing", offset) for offset in range(10, 20)]


def test_copy_that_stops_early_misses_the_rest() -> None:
    source = log_of(30)
    target = copy_of(source)
    del target.stored[2]
    content = compare(source, target, content_range(0, 30))
    assert content.difference_count == 10
    assert (content.source_records, content.target_records) == (30, 20)


def test_extra_record_at_the_end_is_found() -> None:
    source = log_of(30)
    target = copy_of(source)
    target.stored.append(batch([record(30)]))
    content = compare(source, target, content_range(0, 30, target_end=31))
    assert [(item.kind, item.target_offset) for item in content.differences] == [("extra", 30)]


def test_duplicated_record_is_named() -> None:
    source = log_of(30)
    flat = [item for stored in source.stored if isinstance(stored, RawBatch) for item in records(stored)]
    doubled = [*flat[:12], flat[11], *flat[12:]]
    target = MemoryLog([batch([item._replace(offset=at) for at, item in enumerate(doubled)])])
    content = compare(source, target, content_range(0, 30, target_end=31))
    assert kinds(content)[0] == ("duplicate", 12)
    assert {kind for kind, _ in kinds(content)[1:]} == {"offset", "extra"}
    assert content.difference_count == 19


def test_swapped_pair_is_out_of_order() -> None:
    source = log_of(30)
    first, second = record(14), record(15)
    target = rewrite(copy_of(source), {14: second._replace(offset=14), 15: first._replace(offset=15)})
    content = compare(source, target)
    assert kinds(content) == [("order", 14), ("order", 15)]


def test_hole_filled_twice_shows_wrong_offsets() -> None:
    source = log_of(30)
    flat = [item for stored in source.stored if isinstance(stored, RawBatch) for item in records(stored)]
    moved = [item if item.offset < 10 else item._replace(offset=item.offset + 1) for item in flat]
    target = MemoryLog([batch(moved, base_offset=0)])
    content = compare(source, target, content_range(0, 30, target_end=31))
    assert kinds(content)[0] == ("missing", 10)
    assert {kind for kind, _ in kinds(content)[1:]} == {"offset", "extra"}


def test_only_the_first_differences_are_kept_and_all_are_counted() -> None:
    source = log_of(500)
    content = compare(source, MemoryLog([]), content_range(0, 500), options=ContentOptions(keep=10, now_ms=NOW_MS))
    assert content.difference_count == 500
    assert kinds(content) == [("missing", offset) for offset in range(10)]


def test_range_leaves_the_rest_out() -> None:
    source = log_of(50)
    target = rewrite(copy_of(source), {3: None, 44: None})
    content = compare(source, target, content_range(5, 40))
    assert content.is_equal
    assert content.compared == 35


def test_holes_of_the_source_are_rebuilt_and_equal() -> None:
    source = rewrite(log_of(60, key_every=7), dict.fromkeys((0, 3, 4, 19, 31, 59)))
    content = compare(source, copy_of(source), rules=COMPACTED)
    assert content.is_equal
    assert content.compared == 54


def test_uncompressed_batch_with_skewed_offsets_is_read_as_the_copier_numbers_it() -> None:
    skewed = bytearray(encode_batch([record(0), record(1)], 0))
    dense = batch([record(0), record(1)], 0)
    # offset delta of the second record: 1 (zigzag 2) becomes 5 (zigzag 10)
    body = bytes(skewed[61:])
    second = len(body) // 2
    at = second + 3 + body[second + 3 :].index(b"\x02")
    assert body[at] == 2
    changed = body[:at] + b"\x0a" + body[at + 1 :]
    from airflow_provider_kafka_migration.kafka.batches.api import build_batch

    source = RawBatch(
        memoryview(
            build_batch(
                changed,
                base_offset=0,
                last_offset_delta=1,
                record_count=2,
                attributes=0,
                base_timestamp=dense.base_timestamp,
                max_timestamp=dense.max_timestamp,
            )
        )
    )
    assert compare(MemoryLog([source]), MemoryLog([dense])).is_equal


# --- time -----------------------------------------------------------------------------------------------------------


def log_append_time_log() -> MemoryLog:
    return MemoryLog([RawBatch(memoryview(encode_batch([record(0), record(1), record(2)], 3, log_append_time=NOW_MS)))])


def test_log_append_time_is_compared_as_readers_see_it() -> None:
    source = log_append_time_log()
    visible = MemoryLog([raw_copy(part) for part in rebuild(source.stored[0], timestamps="visible")])  # type: ignore[arg-type]
    raw = MemoryLog([raw_copy(source.stored[0])])  # type: ignore[arg-type]
    assert compare(source, visible).is_equal
    assert kinds(compare(source, raw)) == [("changed", 0), ("changed", 1), ("changed", 2)]
    raw_options = ContentOptions(timestamps="raw", now_ms=NOW_MS)
    assert compare(source, raw, options=raw_options).is_equal
    assert not compare(source, visible, options=raw_options).is_equal


# --- the source goes on ---------------------------------------------------------------------------------------------


def test_deleted_since_could_not_be_compared_and_is_named() -> None:
    source = log_of(60)
    target = copy_of(source)
    source.log_start = 25
    content = compare(source, target, content_range(0, 60))
    assert content.is_equal
    assert not content.is_proven
    assert content.explained == {}
    # The batch that the log start lies in is still read as a whole.
    assert (content.uncompared, content.uncompared_records) == ([(0, 20)], 20)
    assert content.compared == 40
    assert content.source_digest == content.target_digest


def test_a_source_emptied_by_retention_proves_nothing_of_half_a_target() -> None:
    source = log_of(60)
    target = copy_of(source)
    del target.stored[3:]
    source.stored, source.log_start = [], 60
    content = compare(source, target, content_range(0, 60))
    assert (content.compared, content.difference_count) == (0, 0)
    assert not content.is_proven
    # The whole range, not only where the target happens to have records.
    assert (content.uncompared, content.uncompared_records) == ([(0, 60)], 30)


def test_records_of_which_none_was_compared_prove_nothing() -> None:
    full = log_of(10, key_every=10)
    later = MemoryLog([*full.stored, *log_of(10, first=10, key_every=10).stored])
    source = rewrite(later, dict.fromkeys(range(10)))
    content = compare(source, copy_of(full), content_range(0, 10), rules=COMPACTED)
    assert content.is_equal
    assert content.explained == {"compacted": 10}
    assert not content.is_proven


def test_log_start_that_moves_while_reading_is_taken_as_it_is_at_the_end() -> None:
    source = log_of(60)
    target = copy_of(source)
    late = MemoryLog(source.stored, 0)
    late.stored = [item for item in source.stored if item.next_offset > 30]
    moves = iter([30])
    late.log_start_offset = lambda: next(moves)  # type: ignore[method-assign]
    content = compare(late, target, content_range(0, 60))
    assert (content.uncompared, content.uncompared_records) == ([(0, 30)], 30)


def test_a_hole_above_the_log_start_is_no_deletion() -> None:
    source = log_of(60)
    target = copy_of(source)
    content = compare(rewrite(source, {33: None}), target)
    assert kinds(content) == [("extra", 33)]
    assert content.explained == {}


def test_compacted_since_is_explained_by_a_later_record_of_the_key() -> None:
    full = log_of(60, key_every=7)
    target = copy_of(full)
    source = rewrite(full, dict.fromkeys((0, 7, 20, 40)))
    content = compare(source, target, rules=COMPACTED)
    assert content.is_equal
    assert content.explained == {"compacted": 4}
    assert content.compared == 56
    assert content.source_digest == content.target_digest


def test_compaction_explains_nothing_on_a_topic_that_is_not_compacted() -> None:
    full = log_of(60, key_every=7)
    content = compare(rewrite(full, {7: None}), copy_of(full), rules=DELETED_ONLY)
    assert kinds(content) == [("extra", 7)]


def test_last_record_of_a_key_may_not_vanish() -> None:
    full = log_of(60, key_every=7)
    content = compare(rewrite(full, {59: None, 3: None}), copy_of(full), rules=COMPACTED)
    assert kinds(content) == [("extra", 59)]
    assert content.explained == {"compacted": 1}


def test_a_changed_record_is_no_compaction() -> None:
    full = log_of(60, key_every=7)
    target = rewrite(copy_of(full), {10: record(10, key=b"key 3", value=b"other")})
    assert kinds(compare(full, target, rules=COMPACTED)) == [("changed", 10)]


def test_later_records_behind_the_range_compact_too() -> None:
    full = MemoryLog([batch([record(0, b"a"), record(1, b"b")]), batch([record(2, b"a")])])
    target = copy_of(MemoryLog(full.stored[:1]))
    source = rewrite(full, {0: None})
    content = compare(source, target, content_range(0, 2), rules=COMPACTED)
    assert content.is_equal
    assert content.explained == {"compacted": 1}


def test_expired_tombstone_explains_itself_and_what_it_deleted() -> None:
    old = [record(0, b"a"), record(1, b"a", None), record(2, b"b")]
    target = copy_of(MemoryLog([batch(old)]))
    source = MemoryLog([batch([old[2]], base_offset=0)])
    content = compare(source, target, rules=COMPACTED)
    assert content.is_equal
    assert content.explained == {"compacted": 1, "expired": 1}


def test_young_tombstone_may_not_vanish() -> None:
    young = [record(0, b"a"), record(1, b"a", None)._replace(timestamp=NOW_MS - 500), record(2, b"b")]
    source = MemoryLog([batch([young[2]], base_offset=0)])
    content = compare(source, copy_of(MemoryLog([batch(young)])), rules=COMPACTED)
    assert kinds(content) == [("extra", 0), ("extra", 1)]


def test_unkeyed_records_of_a_compacted_topic_may_vanish() -> None:
    full = MemoryLog([batch([record(0), record(1, b"a")])])
    content = compare(rewrite(full, {0: None}), copy_of(full), rules=COMPACTED)
    assert content.explained == {"unkeyed": 1}


def test_many_keys_take_several_passes_with_the_same_answer() -> None:
    full = log_of(400, key_every=50)
    target = copy_of(full)
    source = rewrite(full, dict.fromkeys(range(0, 340, 2)) | {399: None})
    one = compare(source, target, rules=COMPACTED)
    reads = source.reads
    many = compare(source, target, rules=COMPACTED, options=ContentOptions(max_keys=20, now_ms=NOW_MS))
    assert many == one
    assert source.reads - reads > 5
    assert one.explained == {"compacted": 170}
    assert kinds(one) == [("extra", 399)]


# --- mapped offsets -------------------------------------------------------------------------------------------------


def mapped() -> tuple[MemoryLog, MemoryLog, PartitionMap]:
    """Offsets 10..19 and 30..34 are a hole on the source, and no offsets on the target."""
    source = rewrite(log_of(50), dict.fromkeys((*range(10, 20), *range(30, 35))))
    parts = [part for stored in source.stored for part in rebuild(stored)]  # type: ignore[arg-type]
    made, runs, end = [], [], 0
    for part in parts:
        made.append(raw_copy(part, shift=part.base_offset - end))
        runs.append(OffsetRange(part.base_offset, end))
        end += part.record_count
    return source, MemoryLog(made), PartitionMap(runs, source_end_offset=50, target_end_offset=end)


def test_mapped_partition_is_equal_by_its_runs() -> None:
    source, target, offset_map = mapped()
    assert len(offset_map) == 3
    compared = content_range(0, 50, target_end=35, verdict="mapped")
    content = compare(source, target, compared, offset_map=offset_map)
    assert content.is_equal
    assert content.compared == 35


def test_mapped_partition_with_a_wrong_run_differs() -> None:
    source, target, _ = mapped()
    wrong = PartitionMap(
        [OffsetRange(0, 0), OffsetRange(20, 11), OffsetRange(35, 20)], source_end_offset=50, target_end_offset=35
    )
    content = compare(source, target, content_range(0, 50, target_end=35, verdict="mapped"), offset_map=wrong)
    assert not content.is_equal


def test_source_record_in_a_hole_of_the_map_is_missing() -> None:
    _, target, offset_map = mapped()
    compared = content_range(0, 50, target_end=35, verdict="mapped")
    content = compare(log_of(50), target, compared, offset_map=offset_map)
    assert kinds(content) == [("missing", offset) for offset in (*range(10, 20), *range(30, 35))]
    assert content.compared == 35


def test_compacted_since_in_a_mapped_partition() -> None:
    full = log_of(50, key_every=7)
    source = rewrite(full, dict.fromkeys(range(10, 20)))
    parts = [part for stored in source.stored for part in rebuild(stored)]  # type: ignore[arg-type]
    target = MemoryLog([raw_copy(part, shift=10 if part.base_offset >= 20 else 0) for part in parts])
    offset_map = PartitionMap([OffsetRange(0, 0), OffsetRange(20, 10)], source_end_offset=50, target_end_offset=40)
    later = rewrite(source, {25: None, 3: None})
    content = compare(
        later, target, content_range(0, 50, target_end=40, verdict="mapped"), rules=COMPACTED, offset_map=offset_map
    )
    assert content.is_equal
    assert content.explained == {"compacted": 2}


# --- cut short ------------------------------------------------------------------------------------------------------


def in_pieces(source: MemoryLog, target: MemoryLog, whole: ContentRange, offset_map: PartitionMap) -> list[Stretch]:
    """The comparison in pieces that are as short as they can be."""
    pieces: list[Stretch] = []
    left = whole
    while left.source_start_offset < left.source_end_offset:
        options = ContentOptions(now_ms=NOW_MS, enough=lambda: True)
        pieces.append(compare_stretch(left, offset_map, COMPACTED, source, target, options))
        done = pieces[-1].compared
        assert done.source_end_offset > left.source_start_offset
        left = whole.model_copy(
            update={"source_start_offset": done.source_end_offset, "target_start_offset": done.target_end_offset}
        )
    return pieces


@pytest.mark.parametrize("shift", [0, -7])
def test_a_comparison_that_is_cut_short_goes_on_behind_what_it_has_seen(shift: int) -> None:
    full = log_of(60, key_every=7)
    target = copy_of(full, shift)
    source = rewrite(full, dict.fromkeys((0, 7, 8, 9, 20, 33)))
    whole = content_range(0, 60, shift)
    pieces = in_pieces(source, target, whole, range_map(whole))
    assert len(pieces) > 5
    assert all(piece.content.is_equal for piece in pieces), "nothing is seen twice, and nothing is left out"
    assert sum(piece.content.compared for piece in pieces) == 54
    assert sum(sum(piece.content.explained.values()) for piece in pieces) == 6
    assert all(piece.compared.source_end_offset - shift == piece.compared.target_end_offset for piece in pieces)


def test_a_mapped_partition_is_cut_only_behind_records_that_are_the_same() -> None:
    source, target, offset_map = mapped()
    whole = content_range(0, 50, target_end=35, verdict="mapped")
    pieces = in_pieces(source, target, whole, offset_map)
    assert len(pieces) > 3
    assert all(piece.content.is_equal for piece in pieces)
    assert sum(piece.content.compared for piece in pieces) == 35
    for piece in pieces:
        place = offset_map.translate(piece.compared.source_end_offset - 1).target_offset
        assert place == piece.compared.target_end_offset - 1


def test_a_difference_in_a_piece_is_found() -> None:
    source = log_of(60)
    target = rewrite(copy_of(source), {31: None})
    whole = content_range(0, 60)
    found = [kind for piece in in_pieces(source, target, whole, range_map(whole)) for kind in kinds(piece.content)]
    assert found == [("missing", 31)]


# --- all together ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_random_damage_is_found_and_faithful_copies_are_not_blamed(seed: int) -> None:
    rng = random.Random(seed)
    full = log_of(300, per_batch=rng.choice([1, 5, 20, 64]), key_every=rng.choice([5, 40]))
    target = copy_of(full)
    last = {}
    for stored in full.stored:
        assert isinstance(stored, RawBatch)
        last.update({item.key: item.offset for item in records(stored)})
    removable = sorted(set(range(300)) - set(last.values()))
    since = rewrite(full, dict.fromkeys(rng.sample(removable, rng.randrange(60))))
    since.log_start = rng.choice([0, 0, 50])
    faithful = compare(since, target, content_range(0, 300), rules=COMPACTED)
    assert faithful.is_equal, faithful.differences
    assert faithful.compared + sum(faithful.explained.values()) + faithful.uncompared_records == 300
    assert faithful.source_digest == faithful.target_digest
    left = [item.offset for stored in since.stored for item in records(stored) if item.offset >= since.log_start]  # type: ignore[arg-type]
    victim = rng.choice(left)
    damage = rng.choice([None, record(victim, key=b"key 1", value=b"damaged")])
    damaged = compare(since, rewrite(target, {victim: damage}), content_range(0, 300), rules=COMPACTED)
    assert kinds(damaged) == [("missing" if damage is None else "changed", victim)]
    assert damaged.source_digest != damaged.target_digest


def test_told_to_stop() -> None:
    source = log_of(30)
    with pytest.raises(Interrupted):
        compare(source, copy_of(source), options=ContentOptions(stop=lambda: True))
