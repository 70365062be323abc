"""Figures from samples, latencies and logs: pure arithmetic, no broker and no clock."""

from __future__ import annotations

import pytest

from airflow_provider_kafka_migration.kafka.batches.api import RawBatch, Record, encode_batch
from benchmarks.fixtures import values, visible_records
from benchmarks.groups import table
from benchmarks.groups_fixtures import Content as GroupContent
from benchmarks.groups_fixtures import judge as judge_group
from benchmarks.groups_fixtures import places, unread
from benchmarks.measure import Content, Sample, judge
from benchmarks.peers.base import Usage
from benchmarks.scenarios import SCENARIOS, scenarios
from benchmarks.tail import judge as judge_tail
from benchmarks.tail import percentile
from harness.compare import Record as SeenRecord

CONTENT = Content({0: 600, 1: 400}, {0: 600, 1: 400}, 300_000, 500.0)


def test_rate_counts_only_what_came_between_the_two_looks() -> None:
    first, last = Sample(2.0, 0.2, 1.0), Sample(6.0, 1.0, 5.0)
    found = judge("p", "P", CONTENT, first, last, Usage(5.0, 300 * 2**20, 150 * 2**20, 50 * 2**20))
    assert found.complete
    assert found.records_per_second == pytest.approx(200.0)
    assert found.stored_mb_per_second == pytest.approx(0.06)
    assert found.data_mb_per_second == pytest.approx(0.1)
    assert (found.start_seconds, found.seconds) == (2.0, 4.0)
    assert found.cpu_seconds == pytest.approx(5.0), "for the whole topic"
    assert found.cpu_seconds_with_start == 5.0
    assert found.worker_peak_mib == pytest.approx(100.0)
    assert found.peak_rss_mib == pytest.approx(300.0)


def test_a_copy_that_was_cut_off_has_the_rate_of_what_it_has_done() -> None:
    found = judge("p", "P", CONTENT, Sample(1.0, 0.1, 0.0), Sample(3.0, 0.35, 2.0), Usage(2.0, 1, 1))
    assert not found.complete
    assert found.records_per_second == pytest.approx(125.0)
    assert found.cpu_seconds == pytest.approx(8.0)
    assert found.worker_peak_mib is None


def test_a_copy_that_was_over_at_the_first_look_is_no_measurement() -> None:
    with pytest.raises(ValueError, match="too little data"):
        judge("p", "P", CONTENT, Sample(1.0, 1.0, 0.0), Sample(1.0, 1.0, 0.0), Usage(0.0, 1, 1))


@pytest.mark.parametrize(
    ("count", "share", "expected"), [(1, 0.5, 1), (2, 0.5, 1), (100, 0.5, 50), (100, 0.99, 99), (101, 0.99, 100)]
)
def test_percentile_is_the_nearest_rank(count: int, share: float, expected: int) -> None:
    assert percentile([float(number) for number in range(1, count + 1)], share) == expected


def test_no_latencies_are_an_error_and_not_zero() -> None:
    with pytest.raises(ValueError, match="no values"):
        judge_tail("p", "P", 1000, None, [])
    found = judge_tail("p", "P", 1000, 5, [3.0, 1.0, 2.0])
    assert (found.p50_ms, found.p99_ms, found.max_ms, found.records) == (2.0, 3.0, 3.0, 3)


def batch(count: int, base: int, **options: object) -> RawBatch:
    records = [Record(base + delta, 1, None, b"v", ()) for delta in range(count)]
    return RawBatch(memoryview(encode_batch(records, 0, **options)))  # type: ignore[arg-type]


def marker(base: int, producer_id: int, *, commit: bool) -> RawBatch:
    key = b"\0\0\0\1" if commit else b"\0\0\0\0"
    record = Record(base, 1, key, b"\0\0\0\0\0\0", ())
    return RawBatch(memoryview(encode_batch([record], 0, producer_id=producer_id, transactional=True, control=True)))


def test_visible_records_leave_aborted_ones_out() -> None:
    log = [
        batch(3, 0),
        batch(4, 3, producer_id=7, transactional=True),
        batch(2, 7, producer_id=7, transactional=True),
        marker(9, 7, commit=True),
        batch(5, 10, producer_id=7, transactional=True),
        marker(15, 7, commit=False),
        batch(1, 16, producer_id=7),
    ]
    assert visible_records(log) == 3 + 6 + 1


def test_values_have_about_the_size_that_was_asked_for_and_are_repeatable() -> None:
    for size in (100, 670):
        found = list(values(50, size))
        assert found == list(values(50, size))
        assert len(set(found)) == 50
        assert all(0.8 * size <= len(value) <= size for value in found)


def test_scenarios_by_name_and_size() -> None:
    assert [item.name for item in scenarios(quick=True)] == [item.name for item in SCENARIOS]
    (one,) = scenarios(quick=False, only=("compacted",), records=5)
    assert (one.name, one.records) == ("compacted", 5)
    with pytest.raises(ValueError, match="nonsense"):
        scenarios(quick=True, only=("nonsense",))
    assert all(quick.records <= full.records for quick, full in zip(scenarios(quick=True), SCENARIOS, strict=True))


# -- groups -----------------------------------------------------------------------------------------------------------


def seen(*offsets: int) -> list[SeenRecord]:
    return [SeenRecord(offset, 0, b"k", b"%d" % offset) for offset in offsets]


def test_reread_and_skipped_are_counted_as_multisets() -> None:
    one, two, three = ((0, b"k", b"%d" % number) for number in range(3))
    assert judge_group([one, two], [two, one]) == (0, 0)
    assert judge_group([one, two], [one, one, three]) == (2, 1)
    assert judge_group([], []) == (0, 0)


def test_unread_begins_at_the_commit_or_at_the_log_start() -> None:
    content = GroupContent({0: seen(3, 4, 7), 1: seen(0)}, {0: 3, 1: 0}, {0: 8, 1: 1})
    assert [identity[2] for identity in unread(content, {0: 5, 1: 1})] == [b"7"]
    assert len(unread(content, {0: 1})) == 4


def test_places_cover_holes_truncation_and_both_ends() -> None:
    content = GroupContent({0: seen(4, 5, 6, 9, 10)}, {0: 4}, {0: 12})
    found = places(content)
    assert found["start"] == {0: 4}
    assert found["end"] == {0: 12}
    assert found["beyond_end"] == {0: 22}
    assert found["behind_hole"] == {0: 9}
    assert found["in_hole"] == {0: 8}
    assert found["truncated"] == {0: 1}
    dense = places(GroupContent({0: seen(0, 1, 2)}, {0: 0}, {0: 3}))
    assert not {"behind_hole", "in_hole", "truncated"} & set(dense)


def test_table_has_a_line_per_group_and_a_column_per_tool() -> None:
    rows = [
        {"fixture": "plain", "group": "g", "tool": "mm2", "reread": 1200, "skipped": 0, "unread": 5},
        {"fixture": "plain", "group": "g", "tool": "ours", "reread": 0, "skipped": 0, "unread": 5},
    ]
    lines = table(rows).splitlines()
    assert lines[0] == "| fixture | group | unread | ours: re-read / skipped | mm2: re-read / skipped |"
    assert lines[2:] == ["| plain | g | 5 | 0 / 0 | 1,200 / 0 |"]
