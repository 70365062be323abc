"""Translations by hand for every verdict, and the linear formula as the special case of one run."""

from __future__ import annotations

import pytest

from airflow_provider_kafka_migration.documents.adoption import BelowMap
from airflow_provider_kafka_migration.documents.copy import CopyPartition
from airflow_provider_kafka_migration.documents.cutover import CommittedOffset, Translation
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.groups.offsets import count_translations, translate_offset
from airflow_provider_kafka_migration.offset_map.below import BelowRange, BelowTranslator, flat_ranges
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange, PartitionMap

KEY = ("orders", 0)


def translate(offset_map: PartitionMap | None, verdict: Verdict, offset: int) -> tuple[int | None, Translation]:
    start = (offset_map.source_start_offset if offset_map else 0) or 0
    item = CopyPartition(
        topic="orders",
        target_topic="new.orders",
        partition=0,
        source_start_offset=start,
        target_start_offset=(offset_map.target_start_offset if offset_map else 0) or 0,
        verdict=verdict,
    )
    committed = CommittedOffset(topic="orders", partition=0, offset=offset, metadata="kept")
    found = translate_offset(committed, {KEY: item}, {KEY: offset_map} if offset_map is not None else {})
    assert found.metadata == "kept"
    assert found.source_offset == offset
    if found.target_offset is None:
        assert found.reason
    else:
        assert found.target_topic == "new.orders"
    return found.target_offset, found.translation


EQUAL = PartitionMap([OffsetRange(0, 0)], source_end_offset=100, target_end_offset=100)
EQUAL_FROM_40 = PartitionMap([OffsetRange(40, 40)], source_end_offset=100, target_end_offset=100)
SHIFTED = PartitionMap([OffsetRange(1000, 0)], source_end_offset=1100, target_end_offset=100)
# 0-9, hole 10-19, 20-29, trailing hole 30-31
MAPPED = PartitionMap([OffsetRange(0, 0, 10), OffsetRange(20, 10)], source_end_offset=32, target_end_offset=20)
EMPTY = PartitionMap([OffsetRange(0, 0)], source_end_offset=0, target_end_offset=0)


@pytest.mark.parametrize(
    ("offset_map", "verdict", "offset", "target", "how"),
    [
        (EQUAL, Verdict.EQUAL, 0, 0, "equal"),
        (EQUAL, Verdict.EQUAL, 57, 57, "equal"),
        (EQUAL, Verdict.EQUAL, 100, 100, "equal"),
        (EQUAL, Verdict.EQUAL, 101, 100, "clamped"),
        (EQUAL_FROM_40, Verdict.EQUAL, 40, 40, "equal"),
        (EQUAL_FROM_40, Verdict.EQUAL, 12, 40, "reset_to_start"),
        (SHIFTED, Verdict.SHIFTED, 1000, 0, "exact"),
        (SHIFTED, Verdict.SHIFTED, 1057, 57, "exact"),
        (SHIFTED, Verdict.SHIFTED, 999, 0, "reset_to_start"),
        (SHIFTED, Verdict.SHIFTED, 2000, 100, "clamped"),
        (MAPPED, Verdict.MAPPED, 9, 9, "equal"),
        (MAPPED, Verdict.MAPPED, 10, 10, "hole_forward"),
        (MAPPED, Verdict.MAPPED, 15, 10, "hole_forward"),
        (MAPPED, Verdict.MAPPED, 20, 10, "exact"),
        (MAPPED, Verdict.MAPPED, 29, 19, "exact"),
        (MAPPED, Verdict.MAPPED, 31, 20, "hole_forward"),
        (MAPPED, Verdict.MAPPED, 33, 20, "clamped"),
        (EMPTY, Verdict.EQUAL, 0, 0, "equal"),
        (EMPTY, Verdict.EQUAL, 5, 0, "clamped"),
        (EQUAL, Verdict.EQUAL, -1, None, "skipped"),
        (None, Verdict.EQUAL, 5, None, "skipped"),
    ],
)
def test_translations(
    offset_map: PartitionMap | None, verdict: Verdict, offset: int, target: int | None, how: str
) -> None:
    assert translate(offset_map, verdict, offset) == (target, Translation(how))


@pytest.mark.parametrize("offset", range(1000, 1101))
def test_one_run_is_the_seeds_formula(offset: int) -> None:
    source_first, target_first = 1000, 0
    assert translate(SHIFTED, Verdict.SHIFTED, offset)[0] == target_first + (offset - source_first)


def test_counts_come_in_a_fixed_order_and_without_zeros() -> None:
    item = CopyPartition(
        topic="orders",
        target_topic="o",
        partition=0,
        source_start_offset=0,
        target_start_offset=0,
        verdict=Verdict.EQUAL,
    )
    offsets = [
        translate_offset(CommittedOffset(topic="orders", partition=0, offset=n), {KEY: item}, {KEY: EQUAL})
        for n in (101, 5, 6)
    ]
    assert list(count_translations(offsets).items()) == [("equal", 2), ("clamped", 1)]


# -- adopted partitions -----------------------------------------------------------------------------------------------


def adopted(offset: int, *, is_exact: bool | None) -> tuple[int | None, Translation, str]:
    """Translate an offset of a partition that is adopted at 200 -> 150; None: without a map below."""
    item = CopyPartition(
        topic="orders",
        target_topic="orders",
        partition=0,
        source_start_offset=200,
        target_start_offset=150,
        verdict=Verdict.SHIFTED,
        adopted=True,
    )
    ranges = [BelowRange(0, 0, 50), BelowRange(100, 50, 100)]
    if is_exact is False:
        ranges = [BelowRange(100, 50, 1)]
    below = BelowMap(
        migration_id="m",
        topic="orders",
        partition=0,
        source_offset=200,
        target_offset=150,
        is_exact=bool(is_exact),
        ranges=flat_ranges(ranges),
    )
    found = translate_offset(
        CommittedOffset(topic="orders", partition=0, offset=offset),
        {KEY: item},
        {KEY: PartitionMap([OffsetRange(200, 150)])},
        {} if is_exact is None else {KEY: BelowTranslator(below)},
    )
    return found.target_offset, found.translation, found.reason


@pytest.mark.parametrize(
    ("offset", "target", "how"),
    [
        (200, 150, Translation.EXACT),  # at the boundary: the map of the copy
        (210, 160, Translation.EXACT),
        (199, 149, Translation.EXACT),
        (100, 50, Translation.EXACT),
        (60, 50, Translation.EXACT),  # a hole
        (7, 7, Translation.EQUAL),
    ],
)
def test_a_group_behind_a_boundary_keeps_its_place(offset: int, target: int, how: Translation) -> None:
    assert adopted(offset, is_exact=True) == (target, how, "")


def test_where_little_is_known_a_group_gets_an_earlier_place() -> None:
    assert adopted(199, is_exact=False) == (51, Translation.EARLIER, "")


@pytest.mark.parametrize(("offset", "is_exact"), [(99, False), (199, None)])
def test_a_group_whose_place_is_not_known_is_named(offset: int, is_exact: bool | None) -> None:
    """The start of the copy would skip all records between its offset and the boundary."""
    target, how, reason = adopted(offset, is_exact=is_exact)
    assert (target, how) == (None, Translation.SKIPPED)
    assert "lags behind the boundary" in reason
