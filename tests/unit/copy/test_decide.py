"""The table of decisions, row by row, and against a model of a broker's log."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from source_logs import SourceLog, legacy, marker, record, source_logs

from airflow_provider_kafka_migration.copy.transform import (
    JOINED_BATCH_BYTES,
    Append,
    BatchTransformer,
    Chunk,
    CopyOp,
    Hole,
)
from airflow_provider_kafka_migration.errors import BatchMalformed, RecordTooLarge, Where
from airflow_provider_kafka_migration.kafka.batches.api import (
    RawBatch,
    Record,
    Timestamps,
    encode_batch,
    inner_offsets_are_dense,
    read_batches,
    records,
)


def steps_of(
    data: bytes, start: int = 0, aborted: list[tuple[int, int]] | None = None, **options: object
) -> list[CopyOp]:
    until = options.pop("until", None)
    decider = BatchTransformer(start, **options)  # type: ignore[arg-type]
    return list(decider.decide(read_batches(data)[0], aborted or [], until))  # type: ignore[arg-type]


def short(steps: list[CopyOp]) -> list[tuple[str, int, int]]:
    return [
        ("hole", step.source_offset, step.count)
        if isinstance(step, Hole)
        else ("rebuilt" if step.rebuilt else "raw", step.source_offset, step.record_count)
        for step in steps
    ]


def appended(steps: list[CopyOp]) -> list[Record]:
    return [found for step in steps if isinstance(step, Append) for found in records(step.batch)]


def batch(first: int, count: int, **options: object) -> bytes:
    return encode_batch([record(first + delta) for delta in range(count)], 3, **options)  # type: ignore[arg-type]


def test_full_batches_go_raw_untouched() -> None:
    data = batch(10, 30) + batch(40, 20, producer_id=4, producer_epoch=0, base_sequence=0, transactional=True)
    steps = steps_of(data, 10)
    assert short(steps) == [("raw", 10, 30), ("raw", 40, 20)]
    assert b"".join(bytes(step.batch.data) for step in steps if isinstance(step, Append)) == data


def test_a_begin_below_the_wanted_offset_is_cut() -> None:
    steps = steps_of(batch(10, 5), 12)
    assert short(steps) == [("rebuilt", 12, 3)]
    assert [found.offset for found in appended(steps)] == [12, 13, 14]


def test_batches_below_the_wanted_offset_give_nothing() -> None:
    assert steps_of(batch(0, 5) + batch(5, 5), 10) == []
    assert steps_of(batch(0, 5) + batch(5, 5), 20, until=15) == []


def test_gaps_between_batches_are_holes() -> None:
    assert short(steps_of(batch(3, 1) + batch(9, 1))) == [("hole", 0, 3), ("raw", 3, 1), ("hole", 4, 5), ("raw", 9, 1)]


def test_compaction_holes_at_head_inside_and_tail() -> None:
    data = encode_batch([record(2), record(3), record(6)], 4, base_offset=0, last_offset=9)
    assert short(steps_of(data)) == [
        ("hole", 0, 2),
        ("rebuilt", 2, 2),
        ("hole", 4, 2),
        ("rebuilt", 6, 1),
        ("hole", 7, 3),
    ]


def test_adjacent_holes_are_one() -> None:
    data = (
        batch(0, 1)
        + encode_batch([], base_offset=1, last_offset=4)
        + marker(5, 9, commit=True)
        + encode_batch([], base_offset=7, last_offset=7)
        + batch(10, 1)
        + marker(11, 9, commit=True)
    )
    assert short(steps_of(data, until=20)) == [("raw", 0, 1), ("hole", 1, 9), ("raw", 10, 1), ("hole", 11, 9)]


def test_nothing_at_all_up_to_a_known_end() -> None:
    assert short(steps_of(b"", 7, until=12)) == [("hole", 7, 5)]
    assert steps_of(b"", 7) == []


def test_an_aborted_transaction_between_others() -> None:
    def of(producer: int, offset: int, **options: object) -> bytes:
        return batch(offset, 2, producer_id=producer, producer_epoch=0, base_sequence=0, **options)

    data = (
        of(1, 0, transactional=True)
        + of(2, 2, transactional=True)
        + of(1, 4)  # not of the transaction: kept
        + marker(6, 1, commit=False)
        + of(1, 7, transactional=True)  # a new transaction of the same producer: committed
        + marker(9, 2, commit=True)
        + marker(10, 1, commit=True)
    )
    assert short(steps_of(data, aborted=[(1, 0)])) == [
        ("hole", 0, 2),
        ("rebuilt", 2, 4),
        ("hole", 6, 1),
        ("raw", 7, 2),
        ("hole", 9, 2),
    ]


def test_two_aborted_transactions_of_one_producer() -> None:
    def of(offset: int) -> bytes:
        return batch(offset, 1, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)

    data = of(0) + marker(1, 1, commit=False) + of(2) + marker(3, 1, commit=True) + of(4) + marker(5, 1, commit=False)
    assert short(steps_of(data, aborted=[(1, 4), (1, 0), (1, 0)])) == [("hole", 0, 2), ("raw", 2, 1), ("hole", 3, 3)]


def test_the_abort_marker_of_a_skipped_batch_counts() -> None:
    """A chunk read from a segment begins below the wanted offset: its markers still end transactions."""

    def of(offset: int) -> bytes:
        return batch(offset, 1, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)

    data = of(0) + marker(1, 1, commit=False) + of(2) + marker(3, 1, commit=True)
    assert short(steps_of(data, 2, aborted=[(1, 0)])) == [("raw", 2, 1), ("hole", 3, 1)]


def test_a_marker_emptied_by_the_cleaner_ends_nothing() -> None:
    def of(offset: int) -> bytes:
        return batch(offset, 1, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)

    emptied = encode_batch([], base_offset=1, producer_id=1, producer_epoch=0, transactional=True, control=True)
    assert short(steps_of(of(0) + emptied + of(2), aborted=[(1, 0)])) == [("hole", 0, 3)]


def test_log_append_time() -> None:
    data = encode_batch([record(0, time=5), record(1, time=6)], 3, log_append_time=99)
    visible = steps_of(data)
    assert short(visible) == [("rebuilt", 0, 2)]
    assert [found.timestamp for found in appended(visible)] == [99, 99]
    assert short(steps_of(data, timestamps="raw")) == [("raw", 0, 2)]


def test_small_neighbours_keep_the_time_of_their_broker() -> None:
    """Joined, they would get the times of their producers: the time of the broker is in each batch's header."""
    data = b"".join(encode_batch([record(offset, time=5)], 3, log_append_time=99 + offset) for offset in range(3))
    visible = steps_of(data)
    assert short(visible) == [("rebuilt", offset, 1) for offset in range(3)]
    assert [found.timestamp for found in appended(visible)] == [99, 100, 101]
    assert short(steps_of(data, timestamps="raw")) == [("raw", offset, 1) for offset in range(3)]


def test_skewed_offsets_of_uncompressed_batches() -> None:
    good = bytearray(encode_batch([record(0), record(1)]))
    good[-len(good) + 61 + 3] = 10  # the first record's offset delta: 5
    good[17:21] = int(crc32c(bytes(good[21:]))).to_bytes(4, "big")
    batches = read_batches(bytes(good))[0]
    assert isinstance(batches[0], RawBatch)
    assert not inner_offsets_are_dense(batches[0])
    decider = BatchTransformer(0)
    steps = list(decider.decide(batches))
    assert short(steps) == [("rebuilt", 0, 2)]
    assert decider.skewed_batches == 1
    assert [found.offset for found in appended(steps)] == [0, 1]
    assert short(steps_of(bytes(good), check_inner_offsets=False)) == [("raw", 0, 2)]


def test_split_of_large_batches() -> None:
    found = [record(offset, bytes(500)) for offset in range(20)]
    steps = steps_of(encode_batch(found), max_batch_bytes=2000)
    assert all(isinstance(step, Append) and step.rebuilt and step.batch.size_bytes <= 2000 for step in steps)
    assert appended(steps) == found


def test_a_record_that_does_not_fit_is_named_with_its_place() -> None:
    found = [record(50, b"x" * 10), record(51, b"x" * 5000)]
    where = Where(topic="orders", partition=3)
    decider = BatchTransformer(40, max_batch_bytes=1000, where=where)
    steps = decider.decide(read_batches(batch(40, 10) + encode_batch(found))[0])
    assert isinstance(next(steps), Append)
    with pytest.raises(RecordTooLarge) as caught:
        next(steps)
    assert (caught.value.where.topic, caught.value.where.partition, caught.value.where.offset) == ("orders", 3, 51)
    assert decider.next_offset == 50, "nothing was overtaken"


def test_damaged_data_is_named_with_its_place() -> None:
    data = bytearray(encode_batch([record(7), record(9)]))
    data[70] ^= 0xFF
    with pytest.raises(BatchMalformed) as caught:
        steps_of(bytes(data), 7, where=Where(topic="orders", partition=0))
    assert str(caught.value.where) == "offset 7, topic-partition orders-0"


@pytest.mark.parametrize("data", [batch(0, 1) + batch(1, 1), encode_batch([record(0), record(2)])])
def test_a_flipped_bit_gets_no_new_crc(data: bytes) -> None:
    """Forwarded as it is, the target refuses it; joined or rebuilt, nobody would see it any more."""
    damaged = bytearray(data)
    damaged[-2] ^= 1  # of the last value
    with pytest.raises(BatchMalformed, match="CRC"):
        steps_of(bytes(damaged))


def test_small_batches_in_a_row_are_joined() -> None:
    found = [record(offset, bytes(50), time=1000 - offset) for offset in range(500)]
    steps = steps_of(b"".join(encode_batch([one], 3) for one in found))
    assert short(steps) == [("rebuilt", 0, 500)]
    assert appended(steps) == found


def test_joined_batches_stay_below_the_limits() -> None:
    found = [record(offset, bytes(100)) for offset in range(2000)]
    data = b"".join(encode_batch([one]) for one in found)
    for options in ({"max_batch_bytes": 3000}, {"split_bytes": 3000}, {}):
        steps = steps_of(data, **options)
        assert appended(steps) == found
        sizes = [step.batch.size_bytes for step in steps if isinstance(step, Append)]
        assert max(sizes) <= (3000 if options else JOINED_BATCH_BYTES)
        assert len(sizes) < 200


def test_what_stands_between_small_batches_is_not_overtaken() -> None:
    def of(offset: int) -> bytes:
        return batch(offset, 1, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)

    data = (
        batch(0, 1) + batch(1, 1) + batch(2, 40) + of(42) + of(43) + marker(44, 1, commit=True) + batch(45, 2)
        + encode_batch([record(47), record(48)], 2) + encode_batch([record(49)], 2)
        + encode_batch([record(50), record(52)]) + batch(53, 1)
    )  # fmt: skip
    assert short(steps_of(data)) == [
        ("rebuilt", 0, 2),
        ("raw", 2, 40),
        ("rebuilt", 42, 2),
        ("hole", 44, 1),
        ("raw", 45, 2),
        ("rebuilt", 47, 3),
        ("rebuilt", 50, 1),
        ("hole", 51, 1),
        ("rebuilt", 52, 1),
        ("raw", 53, 1),
    ]


def test_small_batches_before_a_record_that_is_too_large_are_given() -> None:
    decider = BatchTransformer(0, max_batch_bytes=1000)
    steps = decider.decide(read_batches(batch(0, 1) + batch(1, 1) + encode_batch([record(2, bytes(5000))]))[0])
    assert short([next(steps)]) == [("rebuilt", 0, 2)]
    with pytest.raises(RecordTooLarge):
        next(steps)


def test_small_batches_ages_apart_are_not_joined() -> None:
    data = encode_batch([record(0, time=-(2**63))]) + encode_batch([record(1, time=2**63 - 1)])
    steps = steps_of(data)
    assert short(steps) == [("raw", 0, 1), ("raw", 1, 1)]
    assert b"".join(bytes(step.batch.data) for step in steps if isinstance(step, Append)) == data


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_gathered_and_converted(magic: int) -> None:
    time = 1000 if magic else -1
    found = [record(offset, time=time) for offset in range(100)]
    data = b"".join(legacy(one.offset, magic, 0, [one]) for one in found)
    steps = steps_of(data)
    assert short(steps) == [("rebuilt", 0, 100)]
    assert appended(steps) == found
    assert short(steps_of(data, max_batch_bytes=500))[0][2] < 100
    assert appended(steps_of(data, 42, max_batch_bytes=500)) == found[42:]


def test_old_formats_with_holes_and_codecs() -> None:
    data = (
        legacy(0, 1, 0, [record(0)])
        + legacy(0, 1, 3, [record(1), record(2), record(5)])
        + legacy(0, 1, 1, [record(7)])
        + batch(8, 1)
    )
    steps = steps_of(data)
    assert short(steps) == [
        ("rebuilt", 0, 1),
        ("rebuilt", 1, 2),
        ("hole", 3, 2),
        ("rebuilt", 5, 1),
        ("hole", 6, 1),
        ("rebuilt", 7, 1),
        ("raw", 8, 1),
    ]
    assert [step.batch.codec for step in steps if isinstance(step, Append)] == [0, 3, 3, 1, 3]


def copied(
    log: SourceLog, start: int, cuts: list[int], timestamps: str = "visible", *, packs: bool = False
) -> tuple[list[CopyOp], int]:
    """Copy a log by fetches of so many batches each; a new decider now and then, as after a crash."""
    decider = BatchTransformer(start, timestamps, 3000, packs=packs)  # type: ignore[arg-type]
    steps: list[CopyOp] = []
    for cut in [*cuts, 1000]:
        data, aborted, until = log.fetch(decider.next_offset, cut)
        steps += decider.decide(read_batches(data)[0], aborted, until)
        if cut % 2:
            decider = BatchTransformer(decider.next_offset, timestamps, 3000, packs=packs)  # type: ignore[arg-type]
    return steps, decider.next_offset


@given(source_logs(), st.integers(-3, 40), st.lists(st.integers(1, 3), max_size=8))
@settings(max_examples=2 * settings.default.max_examples)
def test_steps_are_what_a_consumer_sees(log: SourceLog, skip: int, cuts: list[int]) -> None:
    first = log.batches[0][1]
    start = max(0, min(first + skip, log.end_offset))
    steps, reached = copied(log, start, cuts)
    assert appended(steps) == [found for found in log.visible if found.offset >= start]
    assert reached == log.end_offset
    position = start
    for step in steps:
        assert step.source_offset == position
        if isinstance(step, Append):
            step.batch.check_crc()
            assert step.batch.is_full
            assert step.record_count == step.batch.record_count > 0
            assert not step.batch.is_control
            assert not step.rebuilt or not step.batch.attributes & ~7
            position = step.batch.next_offset
        else:
            assert step.count > 0
            position += step.count
    assert position == log.end_offset


def at_source(step: Append, timestamps: Timestamps = "visible") -> list[Record]:
    """The records of a step with the source offsets that its runs give them."""
    ends = [number for _, number in step.runs[1:]] + [step.record_count]
    offsets = [
        offset + number - first
        for (offset, first), end in zip(step.runs, ends, strict=True)
        for number in range(first, end)
    ]
    return [
        found._replace(offset=offset) for found, offset in zip(records(step.batch, timestamps), offsets, strict=True)
    ]


@given(source_logs(), st.integers(-3, 40), st.lists(st.integers(1, 3), max_size=8))
@settings(max_examples=2 * settings.default.max_examples)
def test_packed_steps_are_what_a_consumer_sees(log: SourceLog, skip: int, cuts: list[int]) -> None:
    start = max(0, min(log.batches[0][1] + skip, log.end_offset))
    steps, reached = copied(log, start, cuts, packs=True)
    assert reached == log.end_offset
    found = [one for step in steps if isinstance(step, Append) for one in at_source(step)]
    assert found == [one for one in log.visible if one.offset >= start]
    position = start
    for step in steps:
        assert step.source_offset == position
        if isinstance(step, Append):
            step.batch.check_crc()
            assert step.batch.is_full
            assert step.batch.size_bytes <= 3000
            assert step.record_count == step.batch.record_count == step.batch.last_offset_delta + 1
            runs = [(offset - number, number) for offset, number in step.runs]
            assert runs == sorted(set(runs)), "each run begins behind a hole"
            assert step.source_next_offset > step.source_offset
            position = step.source_next_offset
        else:
            position += step.count


def test_runs_between_holes_go_as_one_batch() -> None:
    holey = encode_batch([record(offset) for offset in (1, 2, 5, 9)], 3, base_offset=0, last_offset=11)
    data = holey + marker(12, 7, commit=True) + batch(13, 2) + batch(20, 400)
    steps = steps_of(data, packs=True)
    assert short(steps) == [("hole", 0, 1), ("rebuilt", 1, 6), ("hole", 15, 5), ("raw", 20, 400)]
    assert isinstance(steps[1], Append)
    assert steps[1].packed == [(1, 0), (5, 2), (9, 3), (13, 4)]
    assert steps[1].source_next_offset == 15
    assert [one.offset for one in at_source(steps[1])] == [1, 2, 5, 9, 13, 14]
    assert [one.offset for one in records(steps[1].batch)] == [1, 2, 3, 4, 5, 6]


def test_a_pack_begins_at_the_wanted_offset_and_keeps_to_one_codec() -> None:
    first = encode_batch([record(offset) for offset in (0, 3, 6)], 3)
    second = encode_batch([record(offset) for offset in (8, 10)], 2)
    steps = steps_of(first + second, 3, packs=True)
    assert short(steps) == [("rebuilt", 3, 2), ("hole", 7, 1), ("rebuilt", 8, 2)]
    assert [step.batch.codec for step in steps if isinstance(step, Append)] == [3, 2]


def test_packed_times_of_all_kinds() -> None:
    ages = [record(0, time=-(2**63)), record(4, time=2**63 - 1), record(6, time=-1)]
    steps = steps_of(b"".join(encode_batch([one]) for one in ages), packs=True)
    assert [one for step in steps if isinstance(step, Append) for one in at_source(step)] == ages
    stamped = encode_batch([record(0, time=5), record(2, time=9)], log_append_time=77)
    visible, raw = steps_of(stamped, packs=True), steps_of(stamped, packs=True, timestamps="raw")
    assert isinstance(visible[0], Append)
    assert isinstance(raw[0], Append)
    assert [one.timestamp for one in records(visible[0].batch)] == [77, 77]
    assert [one.timestamp for one in records(raw[0].batch)] == [5, 9]
    assert not raw[0].batch.is_log_append_time


def test_a_record_too_large_stops_a_pack_behind_what_fits() -> None:
    large = Record(6, 1, b"k", bytes(5000), [])
    data = encode_batch([record(0), record(2), large, record(9)])
    decider = BatchTransformer(0, max_batch_bytes=1000, packs=True)
    found = []
    with pytest.raises(RecordTooLarge) as caught:
        found.extend(short([step]) for step in decider.decide(read_batches(data)[0]))
    assert found == [[("rebuilt", 0, 2)], [("hole", 3, 3)]]
    assert caught.value.where.offset == 6
    assert decider.next_offset == 6


def test_damage_is_not_packed() -> None:
    data = bytearray(encode_batch([record(0), record(2)]))
    data[-1] ^= 1
    with pytest.raises(BatchMalformed, match="CRC"):
        steps_of(bytes(data), packs=True)


def test_old_formats_with_holes_are_packed() -> None:
    found = [record(offset, time=1000) for offset in (0, 1, 5, 8)]
    data = b"".join(legacy(one.offset, 1, 0, [one]) for one in found)
    steps = steps_of(data, packs=True)
    assert short(steps) == [("rebuilt", 0, 4)]
    assert isinstance(steps[0], Append)
    assert at_source(steps[0]) == found


@given(source_logs())
def test_raw_timestamps_change_no_offsets(log: SourceLog) -> None:
    start = log.batches[0][1]
    steps, _ = copied(log, start, [], "raw")
    found = [one.offset for step in steps if isinstance(step, Append) for one in records(step.batch, "raw")]
    assert found == [one.offset for one in log.visible]


def chunk_of(data: bytes, until: int, aborted: list[tuple[int, int]] | None = None) -> Chunk:
    return Chunk("t", 0, 0, until, memoryview(data), aborted or [])


def test_chunks() -> None:
    data = batch(0, 2) + batch(2, 2, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    assert short(list(BatchTransformer(0).decide_chunk(chunk_of(data, 9, [(1, 2)])))) == [("raw", 0, 2), ("hole", 2, 7)]
    assert short(list(BatchTransformer(0).decide_chunk(chunk_of(data[:-1], 2)))) == [("raw", 0, 2)]


@pytest.mark.parametrize("lacking", [1, 2])
def test_a_chunk_that_is_cut_below_its_end_is_not_a_hole(lacking: int) -> None:
    data = batch(0, 2) + batch(2, lacking)
    with pytest.raises(BatchMalformed, match="cut off at offset 2"):
        BatchTransformer(0, where=Where(topic="t", partition=0)).decide_chunk(chunk_of(data[:-1], 2 + lacking))
