"""The judge of fault runs sees what it has to see."""

from __future__ import annotations

import pytest

from airflow_provider_kafka_migration.offset_map.runs import OffsetRange, PartitionMap
from harness.compare import PartitionContent, Record, record_digest
from harness.faults import judge
from harness.faults.judge import Damage, _judge_partition, judge_equal

pytestmark = pytest.mark.slow


def content(records: dict[int, str], end: int | None = None, keys: dict[str, bytes] | None = None) -> PartitionContent:
    """A partition with these values at these offsets; ``keys`` by value."""
    made = PartitionContent(0, max(records, default=-1) + 1 if end is None else end)
    for offset, value in records.items():
        made.offsets.append(offset)
        made.digests += record_digest(Record(offset, 0, None, value.encode()))
        made.keys += (keys or {}).get(value, b"").ljust(16, b"\0")
    return made


def judged(source: PartitionContent, target: PartitionContent, runs: list[OffsetRange] | None = None) -> Damage:
    offset_map = PartitionMap(runs or [OffsetRange(0, 0)]).closed(source.end, target.end)
    return _judge_partition(source, target, offset_map, compacted=False)


SOURCE = content({0: "a", 1: "b", 5: "c", 6: "d"})


def test_equal_logs() -> None:
    assert not judged(SOURCE, SOURCE).found


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ({0: "a", 1: "b", 6: "d"}, "lost"),
        ({0: "a", 1: "b", 5: "c", 6: "d", 7: "b"}, "duplicated"),
        ({0: "a", 1: "b", 5: "c", 6: "d", 7: "foreign"}, "duplicated"),
        ({0: "b", 1: "a", 5: "c", 6: "d"}, "reordered"),
        ({0: "a", 1: "b", 4: "c", 6: "d"}, "wrong_offsets"),
        ({0: "a", 1: "b", 5: "c", 7: "d"}, "wrong_offsets"),
    ],
)
def test_damage(target: dict[int, str], kind: str) -> None:
    damage = judged(SOURCE, content(target))
    assert getattr(damage, kind)
    assert damage.silent


def test_ends_that_differ_are_wrong_offsets() -> None:
    assert judged(SOURCE, content({0: "a", 1: "b", 5: "c", 6: "d"}, end=9)).wrong_offsets


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ({1: SOURCE}, None),
        ({}, "lost"),
        ({1: SOURCE, 2: SOURCE}, "duplicated"),
        ({1: content({0: "a", 1: "b", 4: "c", 6: "d"}, end=7)}, "wrong_offsets"),
    ],
)
def test_equal_topics(monkeypatch: pytest.MonkeyPatch, target: dict[int, PartitionContent], kind: str | None) -> None:
    """A partition that only one side has is damage, too."""
    clusters = {"a": {"t": {1: SOURCE}}, "b": {"A.t": target}}
    monkeypatch.setattr(judge, "read", lambda config, _: clusters[config["bootstrap.servers"]])
    damage = judge_equal({"bootstrap.servers": "a"}, {"bootstrap.servers": "b"}, {"t": "A.t"})
    assert damage.found is (kind is not None)
    assert kind is None or getattr(damage, kind)
    assert [place.partition(":")[0] for place in damage.where] == ([f"t-{max(target, default=1)}"] if kind else [])


def test_a_map_that_tells_the_truth_and_one_that_does_not() -> None:
    target = content({0: "a", 1: "b", 8: "c", 9: "d"})
    assert not judged(SOURCE, target, [OffsetRange(0, 0), OffsetRange(5, 8)]).silent
    assert judged(SOURCE, target, [OffsetRange(0, 0), OffsetRange(5, 7)]).wrong_offsets


def test_what_the_source_has_compacted_away_since_is_no_damage() -> None:
    keys = {"a": b"k", "old": b"k", "gone": b"x"}
    source = content({3: "a"}, keys=keys)
    offset_map = PartitionMap([OffsetRange(0, 0)]).closed(4, 4)
    fine = content({0: "old", 3: "a"}, keys=keys)
    assert not _judge_partition(source, fine, offset_map, compacted=True).found
    wrong = content({0: "gone", 3: "a"}, keys=keys)
    assert _judge_partition(source, wrong, offset_map, compacted=True).duplicated
