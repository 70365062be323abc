"""The map of partitions that others write to, its commits, and its pages: against brute force."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import OffsetMapInvalid
from airflow_provider_kafka_migration.offset_map.runs import (
    How,
    MapEntry,
    OffsetRange,
    TranslatedPosition,
    build_offset_map_document,
)
from airflow_provider_kafka_migration.offset_map.transactional import (
    MAX_METADATA_BYTES,
    MapPages,
    Position,
    TransactionalMap,
    flat_runs,
    read_map,
    read_position,
    runs_of,
)
from airflow_provider_kafka_migration.storage.local import LocalStore

CASES = Path(__file__).parents[2] / "cases" / "transactional" / "v1"


@dataclass
class Copied:
    """What a copy has done: source and target offset of each record, and where both began and ended."""

    source: list[int]
    target: list[int]
    runs: list[OffsetRange]
    source_start: int
    target_start: int
    source_end: int

    def map(self, *, closed: bool = True) -> TransactionalMap:
        """The map of it."""
        found = TransactionalMap(
            OffsetRange(self.source_start, self.target_start), self.runs, copied_until_offset=self.source_end
        )
        return found.closed(self.source_end, 2**40) if closed else found


@st.composite
def copies(draw: st.DrawFn) -> Copied:
    """Runs with holes on the source, and markers or records of others on the target, between them."""
    source_start, target_start = draw(st.integers(0, 50)), draw(st.integers(0, 50))
    source_at, target_at = source_start, target_start
    copied = Copied([], [], [], source_start, target_start, 0)
    for source_gap, target_gap, count in draw(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 4)), max_size=12)
    ):
        source_at, target_at = source_at + source_gap, target_at + target_gap
        copied.runs.append(OffsetRange(source_at, target_at, count))
        copied.source += range(source_at, source_at + count)
        copied.target += range(target_at, target_at + count)
        source_at, target_at = source_at + count, target_at + count
    copied.source_end = source_at + draw(st.integers(0, 4))
    return copied


@given(copies())
def test_every_source_offset_is_found_where_brute_force_finds_it(copied: Copied) -> None:
    closed, open_map = copied.map(), copied.map(closed=False)
    behind = copied.target[-1] + 1 if copied.target else copied.target_start
    for offset in range(copied.source_end + 2):
        index = bisect_left(copied.source, offset)
        wanted = copied.target[index] if index < len(copied.target) else behind
        assert closed.translate(offset).target_offset == wanted
        assert open_map.translate(offset).target_offset == wanted
        how = closed.translate(offset).how
        if offset < copied.source_start:
            assert how is How.RESET_TO_START
        elif offset > copied.source_end:
            assert how is How.CLAMPED
        elif offset in copied.source:
            assert how in (How.EQUAL, How.EXACT)


@given(copies())
def test_the_inverse_leads_to_the_next_record_that_was_copied(copied: Copied) -> None:
    for found in (copied.map().inverse(), copied.map(closed=False).inverse()):
        behind = copied.source[-1] + 1 if copied.source else copied.source_start
        for offset in range((copied.target[-1] if copied.target else copied.target_start) + 3):
            index = bisect_left(copied.target, offset)
            wanted = copied.source[index] if index < len(copied.source) else behind
            assert found.translate(offset).target_offset == wanted


@given(copies())
def test_target_offsets_are_ours_or_not(copied: Copied) -> None:
    found = copied.map()
    own = dict(zip(copied.target, copied.source, strict=True))
    end = (copied.target[-1] if copied.target else 0) + 5
    for offset in range(end):
        assert found.covers(offset) == (offset in own)
        if offset in own:
            assert found.source_of(offset) == own[offset]
        for until in range(offset + 1, end):
            assert found.overlaps(offset, until) == any(offset <= item < until for item in own)


@given(copies())
def test_documents_and_positions_keep_the_map(copied: Copied) -> None:
    closed = copied.map()
    document = build_offset_map_document("m", [MapEntry("t", 0, closed)])
    entry = document.partition("t", 0)
    assert entry.verdict == Verdict.TRANSACTIONAL
    again = read_map(entry)
    assert list(again.runs()) == list(closed.runs())
    assert [again.translate(o) for o in range(copied.source_end + 2)] == [
        closed.translate(o) for o in range(copied.source_end + 2)
    ]
    position = Position(copied.source_end, 7, OffsetRange(3, 4), "00000001-aa", tuple(copied.runs), (5, 9), 17)
    assert read_position(copied.source_end, position.metadata()) == position
    assert list(runs_of(flat_runs(copied.runs))) == copied.runs


@pytest.mark.parametrize(
    "metadata", ["", "{}", "[]", '{"v":2}', '{"v":1,"start":[0],"target":1}', '{"v":1,"start":[0,0],"runs":"gA=="}']
)
def test_metadata_of_somebody_else_is_an_error(metadata: str) -> None:
    with pytest.raises(OffsetMapInvalid, match="cannot be read"):
        read_position(3, metadata)


def test_an_altered_offset_with_its_metadata_is_an_error() -> None:
    """A tool has set the position back: what its runs say is on the target already would be copied again."""
    metadata = Position(10, 12, OffsetRange(0, 0), runs=(OffsetRange(0, 2, 10),)).metadata()
    assert read_position(10, metadata).source_offset == 10
    with pytest.raises(OffsetMapInvalid, match="behind the committed offset, 9"):
        read_position(9, metadata)


def test_overlapping_runs_are_an_error() -> None:
    with pytest.raises(OffsetMapInvalid, match="overlaps"):
        TransactionalMap(OffsetRange(0, 0), [OffsetRange(0, 0, 5), OffsetRange(4, 9, 1)])
    with pytest.raises(OffsetMapInvalid, match="overlaps"):
        TransactionalMap(OffsetRange(0, 0), [OffsetRange(0, 0, 5), OffsetRange(6, 4, 1)])


def test_a_map_can_be_cut(tmp_path: Path) -> None:
    found = TransactionalMap(OffsetRange(0, 0), [OffsetRange(0, 0, 5), OffsetRange(5, 8, 5)])
    assert found.override(10, [])
    assert list(found.runs()) == [OffsetRange(0, 0, 5), OffsetRange(5, 8, 2)]
    assert found.source_position(10) == 7
    assert found.source_position(7) == 5
    assert not found.override(10, [OffsetRange(7, 20, 1)])
    assert found.translate(7) == TranslatedPosition(20, How.EXACT)


def _pages(tmp_path: Path) -> MapPages:
    return MapPages(LocalStore(tmp_path), "m", "t", 0)


def test_pages_hold_what_no_longer_fits(tmp_path: Path) -> None:
    pages = _pages(tmp_path)
    position = Position(0, 0, OffsetRange(0, 0))
    runs = [OffsetRange(number * 3, number * 5, 2) for number in range(3_000)]
    for first in range(0, len(runs), 100):
        batch = runs[first : first + 100]
        position = position.extended(batch, batch[-1].source_start + 3, 40 + first // 1000, 99)
        if len(position.metadata()) > MAX_METADATA_BYTES:
            position = pages.put(position)
    assert position.page
    found = pages.load(read_position(position.source_offset, position.metadata()))
    assert list(found.runs()) == runs
    assert found.producer_ids == {40, 41, 42}
    assert found.translate(2_999 * 3 + 1) == TranslatedPosition(2_999 * 5 + 1, How.EXACT)


def test_a_page_that_no_commit_names_does_not_count(tmp_path: Path) -> None:
    pages = _pages(tmp_path)
    start = Position(0, 0, OffsetRange(0, 0))
    first = pages.put(start.extended([OffsetRange(0, 0, 5)], 5, 1, 1))
    pages.put(first.extended([OffsetRange(5, 6, 9)], 14, 1, 2))  # its transaction was aborted
    second = pages.put(first.extended([OffsetRange(5, 16, 3)], 8, 1, 3))
    assert list(pages.load(first).runs()) == [OffsetRange(0, 0, 5)]
    assert list(pages.load(second).runs()) == [OffsetRange(0, 0, 5), OffsetRange(5, 16, 3)]
    assert pages.put(first.extended([OffsetRange(5, 16, 3)], 8, 1, 3)) == second  # written again: the same


def test_a_page_that_is_gone_or_changed_is_an_error(tmp_path: Path) -> None:
    pages = _pages(tmp_path)
    position = pages.put(Position(0, 0, OffsetRange(0, 0)).extended([OffsetRange(0, 0, 5)], 5, 1, 1))
    path = tmp_path / f"{pages.prefix}{position.page}.json"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"5", b"6"))
    with pytest.raises(OffsetMapInvalid, match="does not match its name"):
        pages.load(position)
    path.unlink()
    with pytest.raises(OffsetMapInvalid, match="it is missing"):
        pages.load(position)


def test_documents_of_version_1(tmp_path: Path) -> None:
    """Written by the first version; never rewritten."""
    store = LocalStore(CASES)
    pages = MapPages(store, "orders-2026", "orders", 0)
    metadata = (CASES / "metadata.json").read_text(encoding="utf-8").strip()
    position = read_position(1_000, metadata)
    assert list(pages.load(position).runs()) == [
        OffsetRange(0, 100, 10),
        OffsetRange(12, 111, 5),
        OffsetRange(17, 130, 983),
    ]
    assert pages.has_begun()
    final = pages.load_final()
    assert final.producer_ids == {4_000, 4_001}
    assert final.translate(11) == TranslatedPosition(111, How.HOLE_FORWARD)
    assert final.translate(1_000) == TranslatedPosition(1_113, How.EXACT)
