"""Translation against brute force over random contents; documents; positions."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_kafka_migration.documents.copy import MappedPartition, OffsetMapDocument
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import OffsetMapInvalid
from airflow_provider_kafka_migration.offset_map.runs import (
    How,
    MapEntry,
    OffsetRange,
    PartitionMap,
    TranslatedPosition,
    build_offset_map_document,
    read_partition_map,
)


@dataclass
class Copied:
    """Both sides of a copied partition: which source offsets hold records, and where each of them went."""

    source_start: int
    target_start: int
    runs: list[OffsetRange] = field(default_factory=list)
    #: source offset -> target offset of each record
    records: dict[int, int] = field(default_factory=dict)
    source_end: int = 0
    target_end: int = 0

    def closed(self) -> PartitionMap:
        return PartitionMap(self.runs, source_end_offset=self.source_end, target_end_offset=self.target_end)

    def next_record(self, source_offset: int) -> int | None:
        """Target offset of the first record at or above a source offset."""
        return min((target for source, target in self.records.items() if source >= source_offset), default=None)

    def read_from(self, target_offset: int) -> int | None:
        """Target offset of the first record that a consumer at ``target_offset`` reads."""
        return min((target for target in self.records.values() if target >= target_offset), default=None)


@st.composite
def copies(draw: st.DrawFn) -> Copied:
    """A copy in which each hole is filled, left out, filled twice or filled in part, as the copier may decide."""
    start = draw(st.sampled_from([0, 0, 4, 1000]))
    target = draw(st.sampled_from([start, start, 0]))
    copied = Copied(start, target, [OffsetRange(start, target)])
    source = start
    for _ in range(draw(st.integers(0, 12))):
        hole = draw(st.sampled_from([0, 0, 1, 2, 5]))
        filled = hole if draw(st.booleans()) else draw(st.integers(0, hole + 2))
        source += hole
        target += filled
        if filled != hole:
            copied.runs.append(OffsetRange(source, target))
        for _ in range(draw(st.integers(1, 4))):
            copied.records[source] = target
            source += 1
            target += 1
    hole = draw(st.sampled_from([0, 0, 3]))
    copied.source_end = source + hole
    copied.target_end = target + (hole if draw(st.booleans()) else draw(st.integers(0, hole)))
    return copied


@given(copies())
@settings(max_examples=3 * settings.default.max_examples)
def test_translate_is_what_brute_force_says(copied: Copied) -> None:
    found = copied.closed()
    for offset in range(max(0, copied.source_start - 3), copied.source_end + 4):
        target, how = found.translate(offset)
        assert target is not None
        assert copied.read_from(target) == copied.next_record(offset), f"offset {offset} went to {target} ({how})"
        assert target <= copied.target_end
        if offset in copied.records:
            assert target == copied.records[offset]
            assert how == (How.EQUAL if target == offset else How.EXACT)
        if offset < copied.source_start:
            assert (target, how) == (copied.target_start, How.RESET_TO_START)
        if offset > copied.source_end:
            assert (target, how) == (copied.target_end, How.CLAMPED)


@given(copies())
def test_translate_never_goes_backwards(copied: Copied) -> None:
    found = copied.closed()
    targets = [found.translate(offset).target_offset for offset in range(copied.source_end + 4)]
    assert targets == sorted(targets)  # type: ignore[type-var]


@given(copies())
@settings(max_examples=2 * settings.default.max_examples)
def test_the_inverse_is_what_brute_force_says(copied: Copied) -> None:
    """A consumer that goes back reads next, on the source, the first record that it had not read on the target."""
    back = copied.closed().inverse()
    source_of = {target: source for source, target in copied.records.items()}
    for offset in range(max(0, copied.target_start - 3), copied.target_end + 4):
        source, how = back.translate(offset)
        assert source is not None
        wanted = min((at for target, at in source_of.items() if target >= offset), default=None)
        read = min((at for at in copied.records if at >= source), default=None)
        assert read == wanted, f"offset {offset} went to {source} ({how})"
        if offset < copied.target_start:
            assert (source, how) == (copied.source_start, How.RESET_TO_START)
        if offset > copied.target_end:
            assert (source, how) == (copied.source_end, How.CLAMPED)


@given(copies())
def test_an_open_map_says_the_same_of_what_was_copied(copied: Copied) -> None:
    found = PartitionMap(copied.runs)
    for offset in copied.records:
        assert found.translate(offset) == copied.closed().translate(offset)
    assert found.translate(copied.source_end + 100).how in (How.EQUAL, How.EXACT)


@given(copies())
def test_position_after_each_record(copied: Copied) -> None:
    """A crash after any append: the copy goes on behind that record, runs written ahead do not count."""
    found = PartitionMap(copied.runs)
    assert found.source_position(copied.target_start) == copied.source_start
    for source, target in copied.records.items():
        position = found.source_position(target + 1)
        assert position == source + 1


@given(copies())
def test_documents_keep_the_map(copied: Copied) -> None:
    for partition_map in (copied.closed(), PartitionMap(copied.runs)):
        document = build_offset_map_document("m", [MapEntry("t", 0, partition_map)])
        again = OffsetMapDocument.parse(document.canonical())
        assert again == document
        assert read_partition_map(again.partition("t", 0)) == partition_map


@given(copies())
def test_closed_leaves_out_what_was_never_appended(copied: Copied) -> None:
    ahead = [
        *copied.runs,
        OffsetRange(copied.source_end + 10, copied.target_end),
        OffsetRange(copied.source_end + 50, copied.target_end + 5),
    ]
    closed = PartitionMap(ahead).closed(copied.source_end, copied.target_end)
    for offset in range(copied.source_start, copied.source_end + 3):
        assert closed.translate(offset).target_offset == copied.closed().translate(offset).target_offset


def closed(runs: list[OffsetRange], source_end: int, target_end: int) -> PartitionMap:
    return PartitionMap(runs, source_end_offset=source_end, target_end_offset=target_end)


def test_the_cases_of_the_linear_formula() -> None:
    """One run: ResetToStart, Clamped (to one past the last record, which re-delivers nothing), Skip."""
    shifted = closed([OffsetRange(1000, 0)], 1100, 100)
    assert shifted.translate(999) == TranslatedPosition(0, How.RESET_TO_START)
    assert shifted.translate(1000) == TranslatedPosition(0, How.EXACT)
    assert shifted.translate(1042) == TranslatedPosition(42, How.EXACT)
    assert shifted.translate(1100) == TranslatedPosition(100, How.EXACT)
    assert shifted.translate(1101) == TranslatedPosition(100, How.CLAMPED)
    assert PartitionMap().translate(5) == TranslatedPosition(None, How.SKIPPED)
    assert closed([OffsetRange(7, 7)], 9, 9).translate(8) == TranslatedPosition(8, How.EQUAL)


def test_a_partition_that_is_empty_but_starts_at_an_offset() -> None:
    equal = closed([OffsetRange(50, 50)], 50, 50)
    assert equal.translate(50) == TranslatedPosition(50, How.EQUAL)
    assert equal.translate(10) == TranslatedPosition(50, How.RESET_TO_START)
    assert equal.translate(51) == TranslatedPosition(50, How.CLAMPED)


def test_holes_lead_forward() -> None:
    mapped = closed([OffsetRange(0, 0), OffsetRange(15, 10)], 25, 18)
    assert mapped.translate(9) == TranslatedPosition(9, How.EQUAL)
    assert mapped.translate(10) == TranslatedPosition(10, How.HOLE_FORWARD)
    assert mapped.translate(14) == TranslatedPosition(10, How.HOLE_FORWARD)
    assert mapped.translate(15) == TranslatedPosition(10, How.EXACT)
    assert mapped.translate(23) == TranslatedPosition(18, How.EXACT)
    assert mapped.translate(25) == TranslatedPosition(18, How.HOLE_FORWARD)
    assert mapped.translate(26) == TranslatedPosition(18, How.CLAMPED)


def test_verdicts_and_lengths() -> None:
    assert PartitionMap().verdict is None
    assert PartitionMap([OffsetRange(5, 5)]).verdict is Verdict.EQUAL
    assert PartitionMap([OffsetRange(5, 0)]).verdict is Verdict.SHIFTED
    mapped = closed([OffsetRange(5, 0), OffsetRange(20, 10)], 30, 20)
    assert mapped.verdict is Verdict.MAPPED
    assert list(mapped.runs()) == [OffsetRange(5, 0, 10), OffsetRange(20, 10, 10)]
    assert list(PartitionMap([OffsetRange(5, 0), OffsetRange(20, 10)]).runs()) == [
        OffsetRange(5, 0, 10),
        OffsetRange(20, 10, None),
    ]
    assert mapped.last_run == OffsetRange(20, 10)


def test_runs_of_one_shift_are_one_and_empty_ones_go() -> None:
    assert len(PartitionMap([OffsetRange(0, 0), OffsetRange(10, 10), OffsetRange(30, 30)])) == 1
    assert list(PartitionMap([OffsetRange(0, 0), OffsetRange(10, 7), OffsetRange(12, 7)]).runs()) == [
        OffsetRange(0, 0, 7),
        OffsetRange(12, 7, None),
    ]
    assert list(PartitionMap([OffsetRange(0, 0), OffsetRange(10, 7), OffsetRange(10, 10)]).runs()) == [
        OffsetRange(0, 0, None)
    ]
    assert list(PartitionMap([OffsetRange(0, 0), OffsetRange(10, 7), OffsetRange(10, 8)]).runs()) == [
        OffsetRange(0, 0, 8),
        OffsetRange(10, 8, None),
    ]


def test_the_first_run_says_where_the_partition_starts() -> None:
    holes_first = closed([OffsetRange(4, 4), OffsetRange(9, 4)], 12, 7)
    assert list(holes_first.runs()) == [OffsetRange(4, 4, 0), OffsetRange(9, 4, 3)]
    assert holes_first.translate(3) == TranslatedPosition(4, How.RESET_TO_START)
    assert holes_first.translate(4) == TranslatedPosition(4, How.HOLE_FORWARD)
    assert holes_first.source_position(4) == 4
    overfilled = closed([OffsetRange(4, 4), OffsetRange(4, 6)], 8, 10)
    assert overfilled.translate(3) == TranslatedPosition(4, How.RESET_TO_START)
    assert overfilled.translate(4) == TranslatedPosition(6, How.EXACT)
    assert overfilled.source_position(5) == 4
    assert overfilled.override(0, [OffsetRange(4, 4)])
    assert list(overfilled.runs()) == [OffsetRange(4, 4, 4)], "the first run is never dropped"


@pytest.mark.parametrize("runs", [[OffsetRange(5, 5), OffsetRange(4, 9)], [OffsetRange(5, 5), OffsetRange(9, 4)]])
def test_runs_that_go_backwards(runs: list[OffsetRange]) -> None:
    with pytest.raises(OffsetMapInvalid, match="comes before"):
        PartitionMap(runs)


def test_override() -> None:
    found = PartitionMap([OffsetRange(0, 0), OffsetRange(15, 10), OffsetRange(40, 30)])
    assert not found.override(31, [])
    assert found.override(10, [OffsetRange(17, 10)])
    assert list(found.runs()) == [OffsetRange(0, 0, 10), OffsetRange(17, 10, None)]
    with pytest.raises(OffsetMapInvalid, match="without runs"):
        PartitionMap().source_position(0)


def test_many_runs_are_small() -> None:
    count = 100_000
    found = closed([OffsetRange(3 * index, index) for index in range(count)], 3 * count, count)
    assert len(found) == count
    assert found.translate(150_001) == TranslatedPosition(50_001, How.HOLE_FORWARD)
    assert found.translate(150_000) == TranslatedPosition(50_000, How.EXACT)
    assert found._source.itemsize + found._target.itemsize == 16


def test_documents_are_compact() -> None:
    found = closed([OffsetRange(1000 + 3 * index, 1000 + index) for index in range(10_000)], 31_000, 11_000)
    document = build_offset_map_document("m", [MapEntry("t", 0, found)])
    assert len(document.canonical()) < 8 * 10_000 + 500
    assert json.loads(document.canonical())["partitions"][0]["runs"][:6] == [0, 0, 1, 2, 0, 1]


def test_documents_are_sorted() -> None:
    one = PartitionMap([OffsetRange(0, 0)])
    entries = [MapEntry("b", 0, one), MapEntry("a", 10, one), MapEntry("a", 2, one, target_topic="x", topic_id="id")]
    document = build_offset_map_document("m", entries)
    assert [(entry.topic, entry.partition) for entry in document.partitions] == [("a", 2), ("a", 10), ("b", 0)]
    assert document.partition("a", 2).target_topic == "x"
    assert document.canonical() == build_offset_map_document("m", reversed(entries)).canonical()
    with pytest.raises(KeyError, match="c-1"):
        document.partition("c", 1)


def test_a_document_that_is_cut() -> None:
    entry = MappedPartition(topic="t", target_topic="t", partition=0, verdict="equal", runs=[0, 0])
    with pytest.raises(OffsetMapInvalid, match="not complete"):
        read_partition_map(entry)
    with pytest.raises(OffsetMapInvalid, match="not complete"):
        read_partition_map(entry.model_copy(update={"runs": [0, 0, 5]}))
