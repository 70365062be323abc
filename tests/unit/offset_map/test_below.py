"""Positions below the boundary: nothing is ever skipped, and exact maps read as little again as can be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kafka_migration.documents.adoption import BelowMap
from airflow_provider_kafka_migration.offset_map.below import (
    BelowRange,
    BelowTranslator,
    flat_ranges,
    inverted,
    ranges_of,
)


def translator(
    *ranges: BelowRange | tuple[int, int, int], end: tuple[int, int], is_exact: bool = True
) -> BelowTranslator:
    return BelowTranslator(
        BelowMap(
            migration_id="m",
            topic="t",
            partition=0,
            source_offset=end[0],
            target_offset=end[1],
            is_exact=is_exact,
            ranges=flat_ranges(item if isinstance(item, BelowRange) else BelowRange(*item) for item in ranges),
        )
    )


def at(item: BelowTranslator, source_offset: int) -> int | None:
    found = item.translate(source_offset)
    return None if found is None else found.target_offset


def test_each_record_once() -> None:
    once = translator((10, 0, 5), (20, 5, 5), end=(30, 10))
    assert [at(once, offset) for offset in (0, 10, 14, 15, 19, 20, 24, 25, 29)] == [0, 0, 4, 5, 5, 5, 9, 10, 10]


def test_records_that_were_copied_twice_are_read_from_their_last_copy() -> None:
    # Killed at 100 after committing 50; the next life begins at 50.
    twice = translator((0, 0, 100), (50, 100, 100), end=(150, 200))
    assert [at(twice, offset) for offset in (0, 49, 50, 99, 100, 149)] == [0, 49, 100, 149, 150, 199]


def test_a_last_copy_without_what_follows_is_not_used() -> None:
    odd = translator((0, 0, 100), (50, 100, 10), end=(100, 110))
    assert at(odd, 55) == 55, "records 60..99 are only in the first copy"


def test_an_approximate_map_is_early_never_late() -> None:
    syncs = translator((100, 40, 1), (200, 120, 1), end=(300, 250), is_exact=False)
    assert at(syncs, 99) is None, "before the first known record nothing is known"
    assert [at(syncs, offset) for offset in (100, 101, 199, 200, 201, 299)] == [40, 41, 41, 120, 121, 121]


@st.composite
def lives(draw: st.DrawFn) -> list[BelowRange]:
    """What a copier writes that is killed and starts again from a position that it had committed."""
    ranges: list[BelowRange] = []
    copied = target = 0
    for _ in range(draw(st.integers(1, 5))):
        source = draw(st.integers(0, copied))
        for _ in range(draw(st.integers(1, 4))):
            count = draw(st.integers(1, 8))
            ranges.append(BelowRange(source, target, count))
            hole, marker = draw(st.integers(0, 3)), draw(st.integers(0, 2))
            source, target = source + count + hole, target + count + marker
        copied = max(copied, ranges[-1].source_end)
    return ranges


@given(lives(), st.data())
def test_nothing_at_or_above_a_committed_offset_is_skipped(ranges: list[BelowRange], data: st.DataObject) -> None:
    log = {item.target_first + n: item.source_first + n for item in ranges for n in range(item.count)}
    end = (max(log.values()) + 1, max(log) + 1)
    exact = translator(*ranges, end=end)
    known = set(log.values())
    offset = data.draw(st.integers(0, end[0]))
    position = at(exact, offset)
    assert position is not None
    read = {source for target, source in log.items() if target >= position}
    assert {source for source in known if source >= offset} <= read


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(1, 9))))
def test_stored_ranges_are_read_back_and_inverting_twice_changes_nothing(items: list[tuple[int, int, int]]) -> None:
    ranges = [BelowRange(*item) for item in items]
    assert ranges_of(flat_ranges(ranges)) == sorted(ranges, key=lambda item: item.target_first)
    assert inverted(inverted(ranges)) == ranges
