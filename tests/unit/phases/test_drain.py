"""Lag, the stable window, and what ends the wait."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from phase_support import Clock, make_context, make_plan

from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import DrainTimeout, ForeignData
from airflow_provider_kafka_migration.phases import drain
from airflow_provider_kafka_migration.phases.drain import PartitionLag

START = datetime(2026, 4, 24, 10, 40, tzinfo=UTC)


def lag(records: int, partition: int = 0) -> PartitionLag:
    return PartitionLag("orders", partition, 100, 100 - records, 100 - records)


def look(records: int, seconds: float, since: datetime | None) -> drain.DrainStatus:
    return drain.judge(
        [lag(0, 1), lag(records)],
        at=START + timedelta(seconds=seconds),
        stable_since=since,
        max_lag=5,
        window_seconds=10,
    )


def test_ready_only_after_the_whole_window() -> None:
    first = look(5, 0, None)
    assert (first.ready, first.stable_since) == (False, START)
    assert not look(0, 9.9, first.stable_since).ready
    assert look(5, 10, first.stable_since).ready


def test_one_lag_above_the_limit_starts_the_window_again() -> None:
    broken = look(6, 5, START)
    assert broken.stable_since is None
    again = look(0, 11, broken.stable_since)
    assert not again.ready
    assert again.stable_since == START + timedelta(seconds=11)


def test_a_window_from_the_future_is_not_believed() -> None:
    assert look(0, 0, START + timedelta(hours=1)).stable_since == START


def test_lag_of_shifted_partitions_takes_off_the_shift(tmp_path: Path) -> None:
    context = make_context(tmp_path, plan=make_plan({"orders": 1}, verdict=Verdict.SHIFTED, shift=1000))
    context.source.wire.offsets["stable"] = {("orders", 0): 1100}  # type: ignore[attr-defined]
    context.target.wire.offsets["log_end"] = {("orders", 0): 93}  # type: ignore[attr-defined]
    assert [item.lag for item in drain.measure(context)] == [7]


def test_the_target_is_asked_before_the_source(tmp_path: Path) -> None:
    """Between two looks the source grows: that must never look like a target that is ahead."""
    context = make_context(tmp_path)
    source, target = context.source.wire, context.target.wire
    source.offsets["latest"] = {("orders", 0): 10, ("orders", 1): 10}  # type: ignore[attr-defined]
    target.offsets["latest"] = {("orders", 0): 10, ("orders", 1): 10}  # type: ignore[attr-defined]

    def grow(wire: object, which: str) -> None:
        source.offsets["latest"] = {("orders", 0): 20, ("orders", 1): 20}  # type: ignore[attr-defined]
        if which == "log_end":
            return
        target.offsets["latest"] = {("orders", 0): 20, ("orders", 1): 20}  # type: ignore[attr-defined]

    target.on_look = source.on_look = grow  # type: ignore[attr-defined]
    assert all(item.lag >= 0 for item in drain.measure(context))


def test_a_target_that_is_ahead_is_named(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    context.source.wire.offsets["latest"] = {("orders", 0): 10, ("orders", 1): 10}  # type: ignore[attr-defined]
    context.target.wire.offsets["latest"] = {("orders", 0): 10, ("orders", 1): 12}  # type: ignore[attr-defined]
    with pytest.raises(ForeignData) as caught:
        drain.measure(context)
    assert (caught.value.where.topic, caught.value.where.partition) == ("orders", 1)


def test_run_waits_journals_and_is_answered_at_once_afterwards(tmp_path: Path) -> None:
    clock = Clock()
    context = make_context(tmp_path, clock=clock)
    source, target = context.source.wire, context.target.wire
    source.offsets["latest"] = {("orders", 0): 100, ("orders", 1): 50}  # type: ignore[attr-defined]
    target.offsets["latest"] = {("orders", 0): 80, ("orders", 1): 50}  # type: ignore[attr-defined]

    def copy(wire: object, which: str) -> None:
        target.offsets["latest"][("orders", 0)] = min(100, target.offsets["latest"][("orders", 0)] + 4)  # type: ignore[attr-defined]

    target.on_look = copy  # type: ignore[attr-defined]
    begun = clock.at
    result = drain.run(context, sleep=clock.sleep)
    assert clock.at - begun >= timedelta(seconds=10)
    assert context.journal.find_step("drain_ready") is not None
    assert not result.already_done
    from airflow_provider_kafka_migration.state import State

    context.journal.transition(State.DRAIN_READY, "ready")
    looks = target.looks  # type: ignore[attr-defined]
    assert drain.run_or_confirm(context).already_done
    assert target.looks == looks  # type: ignore[attr-defined]


def test_an_event_that_is_old_is_looked_at_again(tmp_path: Path) -> None:
    clock = Clock()
    context = make_context(tmp_path, clock=clock)
    context.source.wire.offsets["latest"] = {("orders", 0): 100}  # type: ignore[attr-defined]
    context.target.wire.offsets["latest"] = {("orders", 0): 100}  # type: ignore[attr-defined]
    event = drain.check(context).as_event()
    clock.sleep(11)
    context.target.wire.offsets["latest"] = {("orders", 0): 20}  # type: ignore[attr-defined]

    def catch_up(seconds: float) -> None:
        clock.sleep(seconds)
        context.target.wire.offsets["latest"] = {("orders", 0): 100}  # type: ignore[attr-defined]

    begun = clock.at
    drain.run_or_confirm(context, event=event, sleep=catch_up)
    assert clock.at - begun >= timedelta(seconds=10)


def test_giving_up_names_the_worst_partition(tmp_path: Path) -> None:
    clock = Clock()
    context = make_context(tmp_path, clock=clock, tail={"drain_ready_timeout": "20s"})
    context.source.wire.offsets["latest"] = {("orders", 1): 100}  # type: ignore[attr-defined]
    with pytest.raises(DrainTimeout) as caught:
        drain.run(context, sleep=clock.sleep)
    assert caught.value.where.partition == 1
    assert "100" in caught.value.what


def test_lag_by_topic() -> None:
    lags = [lag(3, 0), lag(4, 1), PartitionLag("a", 0, 9, 9, 9)]
    assert drain.lag_by_topic(lags) == {
        "a": {"partitions": 1, "total_lag": 0, "largest_lag": 0},
        "orders": {"partitions": 2, "total_lag": 7, "largest_lag": 4},
    }
