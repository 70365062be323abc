"""The independent proof's judgement of what only one side has, by log starts that move while Spark reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.documents.proof import ContentRange, TopicRules
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange, PartitionMap
from airflow_provider_kafka_migration.offset_map.transactional import TransactionalMap
from airflow_provider_kafka_migration.spark import independent_compare
from airflow_provider_kafka_migration.spark.independent_compare import Found, Item, Side, _Records

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


def item(offset_map: PartitionMap) -> Item:
    return Item(RANGE, offset_map, TopicRules(compacted=False))


@pytest.mark.parametrize(
    ("log_start", "below"), [(0, 100), (1, 101), (50, 150), (60, 150), (61, 161), (90, 190), (10_000, 200)]
)
def test_what_the_target_has_deleted_is_known_by_its_log_start(log_start: int, below: int) -> None:
    """Two runs, with source offsets between them that were never copied."""
    runs = [OffsetRange(100, 0), OffsetRange(160, 60)]
    offset_map = TransactionalMap(
        OffsetRange(100, 0), [OffsetRange(100, 0, 50), OffsetRange(160, 60, 40)], source_end_offset=200
    )
    assert item(offset_map).deleted_below(log_start) == below
    one = PartitionMap(runs[:1], source_end_offset=200, target_end_offset=100)
    assert item(one).deleted_below(log_start) == min(100 + log_start, 200)


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

    def reasons(starts: Mapping[int, int]) -> Any:
        rows = MagicMock()
        reason = "deleted" if starts[0] >= is_deleted_at else None
        # Row of Spark, whose own count is not a column.
        rows.groupBy.return_value.count.return_value.collect.return_value = [
            {"number": 0, "reason": reason, "count": 10}
        ]
        return rows

    return records._explained(Side({}, brokers), [("t", 0)], reasons, [found]), found


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
