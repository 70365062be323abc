"""What the tail says of itself, and what the drain makes of it."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from phase_support import Clock, make_context

from airflow_provider_kafka_migration.errors import ApprovalRefused, CopyFailed, DrainTimeout
from airflow_provider_kafka_migration.phases import approvals, copy_jobs, drain, tail_health
from airflow_provider_kafka_migration.phases.context import PhaseContext

FAILED = {
    "topic": "orders",
    "partition": 1,
    "state": "failed",
    "seconds": 4.0,
    "code": "FOREIGN_DATA",
    "what": "another producer writes there",
    "next_step": "stop it",
}
STUCK = {**FAILED, "partition": 0, "state": "stuck", "seconds": 70.0, "code": "BROKER_UNREACHABLE", "what": "away"}


def says(context: PhaseContext, *troubles: dict[str, Any], seconds: float = 1.0, **fields: Any) -> None:
    """What a driver of the tail writes."""
    states = [item["state"] for item in troubles]
    claim = context.journal.current_claim
    document = {
        "generation": 0 if claim is None else claim.generation,
        "run": "a",
        "seconds": seconds,
        "partitions_done": 0,
        "partitions_total": 2,
        "partitions_failed": states.count("failed"),
        "partitions_stuck": states.count("stuck"),
        "stuck_seconds": max((item["seconds"] for item in troubles if item["state"] == "stuck"), default=0.0),
        "troubles": list(troubles),
        "records": 5,
        "records_per_second": 1.0,
        "copied_bytes": 10,
        "total_bytes": 0,
        **fields,
    }
    context.journal_store.put(context.key("progress/tail.json"), json.dumps(document).encode())


def test_a_failed_partition_fails_the_drain_though_no_lag_shows_it(tmp_path: Path) -> None:
    clock = Clock()
    context = make_context(tmp_path, clock=clock)
    seconds = iter(range(1000))

    def goes_on(pause: float) -> None:
        clock.sleep(pause)
        says(context, FAILED, seconds=float(next(seconds)))

    begun = clock.at
    with pytest.raises(CopyFailed, match=r"any more: 1 partition FAILED.*orders-1: \[FOREIGN_DATA\]") as caught:
        drain.run(context, sleep=goes_on)
    assert clock.at - begun < timedelta(seconds=10)
    assert (caught.value.where.topic, caught.value.where.partition) == ("orders", 1)
    assert caught.value.next_step.startswith("stop it; then clear tail and drain_ready")


def test_what_an_earlier_tail_has_left_counts_when_no_other_one_comes(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    says(context, FAILED)
    now = [0.0]
    watch = tail_health.HealthWatch(clock=lambda: now[0])
    tail_health.check_none_failed(context, watch.look(context))
    says(context, seconds=0.0, run="b")
    found = watch.look(context)
    assert found.is_well, "the tail that runs now has none"
    tail_health.check_none_failed(context, found)

    says(context, FAILED)
    watch = tail_health.HealthWatch(clock=lambda: now[0])
    tail_health.check_none_failed(context, watch.look(context))
    now[0] = tail_health.STALE_SECONDS
    found = watch.look(context)
    assert "the tail has not reported for 180 s" in found.text
    with pytest.raises(CopyFailed):
        tail_health.check_none_failed(context, found)


def test_a_tail_of_another_owner_says_nothing(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    says(context, FAILED, generation=99)
    assert tail_health.HealthWatch().look(context) == tail_health.TailHealth()


def test_a_stuck_partition_is_not_ready_however_small_its_lag(tmp_path: Path) -> None:
    clock = Clock()
    context = make_context(tmp_path, clock=clock, tail={"drain_ready_timeout": "60s"})
    says(context, STUCK)
    status = drain.check(context)
    assert (status.ready, status.stable_since, status.is_small) == (False, None, False)
    assert "1 partition stuck for up to 70 s (tried again), orders-0: [BROKER_UNREACHABLE] away" in status.summary()
    assert status.as_event()["partitions_stuck"] == 1
    with pytest.raises(DrainTimeout, match="stuck for up to 70 s"):
        drain.run(context, sleep=clock.sleep)

    def heals(pause: float) -> None:
        clock.sleep(pause)
        says(context)

    begun = clock.at
    drain.run(context, sleep=heals)
    assert clock.at - begun >= timedelta(seconds=10), "the window begins when all are copied again"


def test_an_approval_shows_and_refuses_a_tail_that_does_not_copy_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "SMALL_AGAIN_SECONDS", 0.0)
    context = make_context(tmp_path)
    says(context, STUCK)
    facts = approvals.make_facts(context, "cutover")
    assert "does not copy all partitions" in facts.body
    assert "BROKER" in facts.body
    with pytest.raises(ApprovalRefused, match="does not copy all partitions"):
        approvals._check_lag(context)
    says(context)
    assert "does not copy all partitions" not in approvals.make_facts(context, "cutover").body
    approvals._check_lag(context)


def test_progress_lines_name_who_is_not_copied(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    says(context, FAILED, STUCK)
    progress = copy_jobs.read_progress(context, "tail")
    assert progress is not None
    assert str(progress).startswith(
        "tail: 0 of 2 partitions, 5 records, 0.0 MB; 1 partition FAILED, 1 partition stuck for up to 70 s "
        "(tried again), orders-1: [FOREIGN_DATA] another producer writes there"
    )
    assert (progress.failed, progress.stuck, progress.stuck_seconds) == (1, 1, 70.0)
