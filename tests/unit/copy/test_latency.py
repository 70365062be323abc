"""The histogram of latencies: buckets without gaps, percentiles that are never too low, merging without loss."""

from __future__ import annotations

import random

import pytest

from airflow_provider_kafka_migration.copy.latency import BOUND_MS, LatencyHistogram, upper_ms


def made_of(*ages_ms: int) -> LatencyHistogram:
    found = LatencyHistogram()
    for age_ms in ages_ms:
        found.add(age_ms, 1)
    return found


def test_every_age_has_a_bucket_and_bounds_ascend_without_gaps() -> None:
    last = 0
    for age_ms in range(BOUND_MS):
        ((index, count),) = made_of(age_ms).filled()
        assert count == 1
        assert index in (last, last + 1), age_ms
        last = index
        lower = upper_ms(index - 1) if index else 0
        assert lower <= age_ms < upper_ms(index), age_ms
        assert upper_ms(index) <= max(1.25 * age_ms + 1, 1), age_ms


@pytest.mark.parametrize("age_ms", [BOUND_MS, 10**12, -1, -(10**12)])
def test_what_waited_in_a_backlog_or_comes_from_the_future_is_no_latency(age_ms: int) -> None:
    found = LatencyHistogram()
    found.add(age_ms, 7)
    assert (found.count, found.untimed, found.sum_ms) == (0, 7, 0)
    assert found.percentile_seconds(0.99) is None


def test_percentiles() -> None:
    found = LatencyHistogram()
    found.add(3, 980)
    found.add(1000, 20)
    assert found.percentile_seconds(0.5) == 0.004
    assert found.percentile_seconds(0.98) == 0.004
    assert found.percentile_seconds(0.99) == 1.024
    assert found.sum_ms == 980 * 3 + 20_000


def test_merged_parts_are_the_whole() -> None:
    choice = random.Random(4)
    ages = [choice.randrange(-10, 2 * BOUND_MS) for _ in range(3000)]
    total = LatencyHistogram()
    for start in range(0, 3000, 500):
        total.merge(made_of(*ages[start : start + 500]).flat())
    assert total.flat() == made_of(*ages).flat()
    assert total.count + total.untimed == 3000


def test_what_was_added_since_an_earlier_state() -> None:
    earlier, now = made_of(5, 70_000), made_of(5, 70_000, 9, 9, -1)
    found = now.since(earlier)
    assert (found.count, found.untimed, found.sum_ms) == (2, 1, 18)
    assert earlier.since(now) is earlier, "another driver counts from 0"


@pytest.mark.parametrize("flat", [[], [1], [1, 2, 3], [0, 0, 10_000, 5], [0, 0, -1, 5]])
def test_a_form_that_nobody_wrote_adds_no_latency(flat: list[int]) -> None:
    found = LatencyHistogram()
    found.merge(flat)
    assert found.count == 0
