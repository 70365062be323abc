"""The wait for the tail inside a freeze: what may pass is waited on, what failed for good lifts the freeze."""

from __future__ import annotations

from pathlib import Path

import pytest
from phase_support import Clock, make_context

from airflow_provider_kafka_migration.errors import CopyFailed, StorageUnavailable
from airflow_provider_kafka_migration.journal.entries import Owner
from airflow_provider_kafka_migration.migration import Migration
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.state import State


def opened(folder: Path, clock: Clock) -> tuple[PhaseContext, Migration]:
    context = make_context(folder, state=State.CUTOVER, clock=clock, cutover={"freeze": "manual"})
    now = context.now()
    deadline = iso(now + context.spec.cutover.max_producer_freeze)
    context.journal.step(
        steps.FREEZE_REQUESTED, "1", {"method": "manual", "requested_at": iso(now), "deadline": deadline}
    )
    migration = Migration(context.spec, Owner("cli", "tester", "tester"), Resolver())
    migration.__dict__["context"] = context
    migration._now, migration._sleep = clock.now, clock.sleep  # type: ignore[method-assign]
    return context, migration


def test_a_tail_that_failed_for_good_lifts_the_freeze(tmp_path: Path) -> None:
    """Nobody else is left to do it: the command ends with this error."""
    context, migration = opened(tmp_path, Clock())

    def sleep(_: float) -> None:
        raise CopyFailed("two partitions")

    with pytest.raises(CopyFailed):
        migration.wait_for_tail(sleep=sleep)
    attempt = context.record.freeze()
    assert attempt is not None
    assert attempt.lifted


def test_what_may_pass_is_waited_on(tmp_path: Path) -> None:
    clock = Clock()
    context, migration = opened(tmp_path, clock)
    sleeps: list[float] = []

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        if len(sleeps) < 4:
            raise StorageUnavailable("SlowDown")
        context.journal.step(steps.TAIL_DONE, details={})

    assert migration.wait_for_tail(sleep=sleep).details == {"ended": True}
    attempt = context.record.freeze()
    assert attempt is not None
    assert attempt.is_open


def test_at_the_limit_the_freeze_is_lifted(tmp_path: Path) -> None:
    clock = Clock()
    context, migration = opened(tmp_path, clock)

    def sleep(_: float) -> None:
        raise StorageUnavailable("SlowDown")

    began = clock.now()
    with pytest.raises(StorageUnavailable):
        migration.wait_for_tail(sleep=sleep)
    assert clock.now() - began == context.spec.cutover.max_producer_freeze
    attempt = context.record.freeze()
    assert attempt is not None
    assert attempt.lifted
