"""When the source stands still, and what the limit of a freeze means before and after clients may switch."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from phase_support import Clock, make_context

from airflow_provider_kafka_migration.errors import FreezeFailed
from airflow_provider_kafka_migration.freeze import stops
from airflow_provider_kafka_migration.freeze.stand_still import SourceEnds, StillWatch, check_not_bypassed
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.freeze_attempt import FreezeAttempt
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.state import State

A, B = ("orders", 0), ("orders", 1)


def watch() -> StillWatch:
    return StillWatch(window_seconds=2.0, started=100.0)


def test_the_whole_window_has_to_be_still() -> None:
    still = watch()
    assert not still.see({A: 5}, 100.0, settled=True)
    assert not still.see({A: 5}, 101.9, settled=True)
    assert still.see({A: 5}, 102.0, settled=True)
    assert still.moved() == []


def test_one_record_begins_the_window_again() -> None:
    still = watch()
    still.see({A: 5, B: 9}, 100.0, settled=True)
    assert not still.see({A: 6, B: 9}, 101.9, settled=True)
    assert not still.see({A: 6, B: 9}, 103.8, settled=True)
    assert still.see({A: 6, B: 9}, 103.9, settled=True)
    assert still.moved() == [A]


def test_ends_that_are_not_settled_are_not_still_however_long_they_stay() -> None:
    """An open transaction, or records that no replica has: the window begins when they are settled."""
    still = watch()
    assert not still.see({A: 5}, 100.0, settled=False)
    assert not still.see({A: 5}, 200.0, settled=False)
    assert not still.see({A: 5}, 201.0, settled=True)
    assert not still.see({A: 5}, 202.0, settled=False)
    assert not still.see({A: 5}, 203.5, settled=True)
    assert still.see({A: 5}, 205.5, settled=True)


def test_a_single_offset_is_enough_to_be_unsettled() -> None:
    ends = SourceEnds(log_end={A: 10, B: 10}, high_watermark={A: 9, B: 10}, stable={A: 9, B: 9})
    assert (ends.unreplicated, ends.open_transactions) == ([A], [B])
    settled = SourceEnds(log_end={A: 10}, high_watermark={A: 10}, stable={A: 10})
    assert (settled.unreplicated, settled.open_transactions) == ([], [])


def frozen_context(folder: Path, clock: Clock, on_bypass: str = "stop") -> tuple[PhaseContext, FreezeAttempt]:
    """A freeze that began now, and may last a minute."""
    cutover = {"freeze": "manual", "on_bypass": on_bypass, "max_producer_freeze": "60s"}
    context = make_context(folder, state=State.CUTOVER, clock=clock, cutover=cutover)
    now = context.now()
    details = {"method": "manual", "requested_at": iso(now), "deadline": iso(now + timedelta(seconds=60))}
    context.journal.step(steps.FREEZE_REQUESTED, key="1", details=details)
    attempt = context.record.freeze()
    assert attempt is not None
    return context, replace(attempt, requested_at=now, deadline=now + timedelta(seconds=60))


def test_at_its_limit_a_freeze_holds_and_behind_it_it_does_not(tmp_path: Path) -> None:
    clock = Clock()
    context, attempt = frozen_context(tmp_path, clock)
    clock.at = attempt.deadline
    stops.check_deadline(context.record, attempt)
    clock.at = attempt.deadline + timedelta(milliseconds=1)
    with pytest.raises(FreezeFailed, match="longer than max_producer_freeze"):
        stops.check_deadline(context.record, attempt)


def test_once_clients_may_switch_there_is_no_limit_any_more(tmp_path: Path) -> None:
    """A task that is cleared an hour later must not fail as overdue: nobody is to free producers then."""
    clock = Clock()
    context, attempt = frozen_context(tmp_path, clock)
    context.journal.step(steps.READY, key="1")
    clock.at = attempt.deadline + timedelta(hours=1)
    ready = context.record.freeze()
    assert ready is not None
    assert ready.ready
    stops.check_deadline(context.record, ready)


@pytest.mark.parametrize("on_bypass", ["stop", "note"])
def test_one_record_behind_the_freeze_is_noticed(tmp_path: Path, on_bypass: str) -> None:
    context, attempt = frozen_context(tmp_path, Clock(), on_bypass)
    ends = context.source.wire.offsets["log_end"] = {A: 5, B: 9}  # type: ignore[attr-defined]
    assert check_not_bypassed(context.record, context.source, attempt, {A: 5, B: 9}) == []
    assert check_not_bypassed(context.record, context.source, attempt, {A: 6, B: 9}) == [], "sentinels are expected"
    ends[B] = 10
    if on_bypass == "note":
        (found,) = check_not_bypassed(context.record, context.source, attempt, {A: 5, B: 9})
        assert ((found.topic, found.partition), found.from_offset, found.to_offset) == (B, 9, 10)
        return
    with pytest.raises(FreezeFailed, match="orders-1 got offsets 9 to 9"):
        check_not_bypassed(context.record, context.source, attempt, {A: 5, B: 9})
