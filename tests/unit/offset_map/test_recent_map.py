"""Translations from the newest pages of a map: the same answers as from the whole map, from few pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kafka_migration.errors import OffsetMapInvalid
from airflow_provider_kafka_migration.offset_map.recent import KeptMaps, RecentMap
from airflow_provider_kafka_migration.offset_map.runs import How, OffsetRange, TranslatedPosition
from airflow_provider_kafka_migration.offset_map.transactional import MapPages, Position
from airflow_provider_kafka_migration.storage.local import LocalStore


@dataclass
class Reader:
    """Reads a map again and again, as the passes of a group sync do."""

    folder: Path
    kept: KeptMaps = field(default_factory=KeptMaps)
    reads: Counter[str] = field(default_factory=Counter)

    @property
    def whole(self) -> MapPages:
        return MapPages(LocalStore(self.folder), "m", "t", 0)

    def look(self, position: Position, topic_id: str = "id") -> RecentMap:
        store = LocalStore(self.folder)

        def fetch(key: str) -> bytes | None:
            self.reads[key] += 1
            return store.get(key)

        pages = MapPages(store, "m", "t", 0, get=partial(self.kept.page, fetch=fetch))
        return RecentMap(pages, position, self.kept, topic_id)


def write(reader: Reader, sizes: list[tuple[int, int, int]], per_page: int, start: OffsetRange) -> list[Position]:
    """Commit runs, each with a gap before it on both sides; a page after each so many. Return all positions."""
    position, found = Position(start.source_start, start.target_start, start), []
    source, target = start.source_start, start.target_start
    for number, (source_gap, target_gap, count) in enumerate(sizes, start=1):
        source, target = source + source_gap, target + target_gap
        run = OffsetRange(source, target, count)
        source, target = source + count, target + count
        position = position.extended([run], source + number % 2, 7, 1)
        if number % per_page == 0:
            position = reader.whole.put(position)
        found.append(position)
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    return lambda: tmp_path_factory.mktemp("pages")


gaps = st.integers(0, 2)


@given(
    sizes=st.lists(st.tuples(gaps, gaps, st.integers(1, 3)), max_size=12),
    per_page=st.integers(1, 5),
    start=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    order=st.randoms(use_true_random=False),
)
def test_each_answer_is_that_of_the_whole_map(
    folders: Callable[[], Path], sizes: list[tuple[int, int, int]], per_page: int, start: tuple[int, int], order: object
) -> None:
    """At each moment of a copy, and with what was kept at all earlier ones."""
    reader = Reader(folders())
    positions = write(reader, sizes, per_page, OffsetRange(*start))
    for position in positions:
        whole = reader.whole.load(position)
        offsets = list(range(position.source_offset + 4))
        order.shuffle(offsets)  # type: ignore[attr-defined]
        found = reader.look(position)
        for offset in offsets:
            assert found.translate(offset) == whole.translate(offset), offset
        assert found.target_start_offset == start[1]
        for offset in range(start[1], position.target_offset + 1):
            assert reader.look(position).source_of(offset) == whole.source_of(offset), offset
        for offset in offsets[:5]:
            alone = Reader(reader.folder).look(position)
            assert alone.translate(offset) == whole.translate(offset), "of a process that has read nothing before"


def test_a_group_at_the_tip_reads_no_old_page(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    positions = write(reader, [(0, 1, 2)] * 1_000, 10, OffsetRange(0, 0))
    for position in positions[900:]:
        tip = position.source_offset
        assert reader.look(position).translate(tip).target_offset == position.target_offset
    assert len(reader.reads) <= 11, "where the newest page has just been written, that one tells the end"


def test_a_dead_group_is_looked_for_once(tmp_path: Path) -> None:
    """It has stood at the same place for a year; a mirror asks about it each minute."""
    reader = Reader(tmp_path, KeptMaps(max_bytes=2_000))
    positions = write(reader, [(0, 1, 2)] * 1_000, 10, OffsetRange(4, 0))
    for place in (3, 0, 17):
        expected = reader.whole.load(positions[900]).translate(place)
        assert reader.look(positions[900]).translate(place) == expected
        reader.reads.clear()
        for position in positions[901:]:
            assert reader.look(position).translate(place) == expected
        assert not reader.reads
    assert reader.look(positions[-1]).translate(3).how is How.RESET_TO_START


def test_a_group_that_lags_reads_each_page_once(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    positions = write(reader, [(0, 1, 2)] * 1_000, 10, OffsetRange(0, 0))
    for position in positions[500:]:
        reader.look(position).translate(position.source_offset - 400)
    assert set(reader.reads.values()) == {1}


def test_what_is_kept_is_limited(tmp_path: Path) -> None:
    reader = Reader(tmp_path, KeptMaps(max_bytes=3_000, max_answers=50))
    position = write(reader, [(0, 1, 2)] * 1_000, 10, OffsetRange(0, 0))[-1]
    found = reader.look(position)
    for offset in range(0, 2_000, 3):
        found.translate(offset)
    assert len(reader.kept._answers) == 50
    assert 0 < sum(map(len, reader.kept._pages.values())) <= 3_000


def test_a_topic_that_was_created_again_has_other_answers(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    before = write(reader, [(0, 0, 5), (0, 1, 5)], 9, OffsetRange(0, 0))[-1]
    assert reader.look(before, "first").translate(3) == TranslatedPosition(3, How.EQUAL)
    after = write(reader, [(0, 30, 5), (0, 1, 5)], 9, OffsetRange(0, 0))[-1]
    assert reader.look(after, "second").translate(3) == TranslatedPosition(33, How.EXACT)


def test_a_page_that_is_missing_is_an_error_each_time(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    position = write(reader, [(0, 1, 2)] * 20, 10, OffsetRange(0, 0))[-1]
    for path in (tmp_path / reader.whole.prefix).iterdir():
        path.unlink()
    for _ in range(2):
        with pytest.raises(OffsetMapInvalid, match="it is missing"):
            reader.look(position).translate(3)
