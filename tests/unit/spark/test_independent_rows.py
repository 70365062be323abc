"""The independent proof's judgement of what only one side has, by log starts that move while Spark reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.documents.proof import ContentRange, TopicRules
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange, PartitionMap
from airflow_provider_kafka_migration.offset_map.transactional import TransactionalMap
from airflow_provider_kafka_migration.spark.frames import groups as independent_compare
from airflow_provider_kafka_migration.spark.frames.groups import Found, Item, Side, _Records, _There

RANGE = ContentRange(
    topic="t",
    target_topic="t",
    partition=0,
    verdict=Verdict.MAPPED,
    source_start_offset=100,
    source_end_offset=200,
    target_start_offset=0,
    target_end_offset=90,
)


NOTHING_MAY_GO = TopicRules(compacted=False)


def item(offset_map: PartitionMap) -> Item:
    return Item(RANGE, offset_map, NOTHING_MAY_GO)


MAPS = {
    "one run": PartitionMap([OffsetRange(100, 0)], source_end_offset=200, target_end_offset=100),
    "markers in excess": PartitionMap(
        [OffsetRange(100, 0), OffsetRange(130, 45)], source_end_offset=200, target_end_offset=120
    ),
    "holes left out": PartitionMap(
        [OffsetRange(100, 0), OffsetRange(160, 40)], source_end_offset=200, target_end_offset=80
    ),
    "open": PartitionMap([OffsetRange(100, 0), OffsetRange(160, 40)]),
    "beside others": TransactionalMap(
        OffsetRange(100, 0), [OffsetRange(100, 7, 50), OffsetRange(160, 60, 40)], source_end_offset=200
    ),
}


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("size", [1, 7, 33, 60, 100, 1000])
def test_slices_have_each_place_once_and_on_the_same_side_of_the_cut(name: str, size: int) -> None:
    found = MAPS[name]
    end = found.translate(200).target_offset
    assert end is not None
    start = found.translate(100).target_offset
    whole = Item(
        RANGE.model_copy(update={"target_start_offset": start, "target_end_offset": end}), found, NOTHING_MAY_GO
    )
    slices = [whole.slice(at, min(at + size, 200)) for at in range(100, 200, size)]
    assert slices[0].range.target_start_offset == start
    assert slices[-1].range.target_end_offset == end
    for before, after in pairwise(slices):
        assert before.range.target_end_offset == after.range.target_start_offset
        assert before.range.source_end_offset == after.range.source_start_offset
    for item in slices:
        first, past = item.range.source_start_offset, item.range.source_end_offset
        places = [run.source_start + number for run in item.runs() for number in range(run.count or 0)]
        assert places == [place for place in places_of(whole) if first <= place < past]


def places_of(item: Item) -> list[int]:
    return [run.source_start + number for run in item.runs() for number in range(run.count or 0)]


def test_the_places_of_a_map_are_those_of_its_runs() -> None:
    assert places_of(item(MAPS["beside others"])) == [*range(100, 150), *range(160, 190)], "up to the range's end"
    assert places_of(item(MAPS["open"])) == [*range(100, 140), *range(160, 210)]


class Brokers:
    """Log starts that move, one by one, whenever they are asked for."""

    def __init__(self, starts: Sequence[int]) -> None:
        self.starts = list(starts)
        self.asked = 0

    def __call__(self, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        self.asked += 1
        start = self.starts.pop(0) if len(self.starts) > 1 else self.starts[0]
        return dict.fromkeys(keys, start)


def judge(brokers: Brokers, monkeypatch: pytest.MonkeyPatch, is_deleted_at: int) -> tuple[list[Any], Found]:
    """Judge ten records that are explained once the log start is known to be beyond them."""
    monkeypatch.setattr(independent_compare, "F", MagicMock())
    monkeypatch.setattr(_Records, "_name", lambda *_: None)
    group = SimpleNamespace(items=[item(PartitionMap([OffsetRange(100, 0)]))])
    records = _Records(group, {0: {0}})  # type: ignore[arg-type]
    found = Found()

    def reasons(_self: Any, _there: Any, _rows: Any, starts: Mapping[int, int]) -> Any:
        rows = MagicMock()
        reason = "deleted" if starts[0] >= is_deleted_at else None
        # Row of Spark, whose own count is not a column.
        rows.groupBy.return_value.count.return_value.collect.return_value = [
            {"number": 0, "reason": reason, "count": 10}
        ]
        return rows

    monkeypatch.setattr(_Records, "_reasons", reasons)
    there = _There(Side({}, brokers), [("t", 0)], [NOTHING_MAY_GO], lambda _starts: MagicMock())
    return records._explained(there, MagicMock(), [found]), found


def test_records_that_were_deleted_while_spark_read_are_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    explained, found = judge(Brokers([100, 130]), monkeypatch, is_deleted_at=130)
    assert [row["reason"] for row in explained] == ["deleted"]
    assert found.difference_count == 0


def test_records_that_no_log_start_explains_are_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers([100])
    explained, found = judge(brokers, monkeypatch, is_deleted_at=130)
    assert explained == []
    assert found.difference_count == 10
    assert brokers.asked == 2


def test_a_log_start_that_never_rests_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    explained, found = judge(Brokers(range(100, 130)), monkeypatch, is_deleted_at=10**6)
    assert explained == []
    assert found.difference_count == 10
