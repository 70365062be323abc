"""Throttle times of answers overlap; a lane is held up no longer than the clock says."""

from __future__ import annotations

import pytest

from airflow_provider_kafka_migration.copy.limits import Throttling


def test_overlapping_throttle_times_count_once() -> None:
    throttling = Throttling()
    assert throttling.note(4_000, 100.0) == 104.0
    assert throttling.note(3_000, 100.5) == 103.5
    assert throttling.seconds == pytest.approx(4.0)
    assert throttling.note(4_000, 102.0) == 106.0
    assert throttling.seconds == pytest.approx(6.0)
    assert throttling.note(1_000, 200.0) == 201.0
    assert throttling.seconds == pytest.approx(7.0)
