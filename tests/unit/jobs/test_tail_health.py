"""What the tail says of itself, and what the drain makes of it."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from phase_support import Clock, make_context

from airflow_provider_kafka_migration.approvals import check, request
from airflow_provider_kafka_migration.errors import ApprovalRefused, CopyFailed, DrainTimeout
from airflow_provider_kafka_migration.jobs import copy_jobs, tail_health
from airflow_provider_kafka_migration.phases import drain
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.storage.local import LocalStore
from airflow_provider_kafka_migration.topics import lags

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
    with pytest.raises(CopyFailed, match=r"1 partition FAILED.*orders-1: \[FOREIGN_DATA\]") as caught:
        drain.run(context, sleep=goes_on)
    assert clock.at - begun < timedelta(seconds=10)
    assert (caught.value.where.topic, caught.value.where.partition) == ("orders", 1)
    assert caught.value.next_step.startswith("stop it; then clear tail and drain_ready")


def test_a_failed_partition_of_a_topic_that_was_dropped_is_waited_for(tmp_path: Path) -> None:
    """The tail reads its job again some seconds after the plan has left the topic out."""
    clock = Clock()
    context = make_context(tmp_path, clock=clock)
    seconds = iter(range(1000))
    dropped = {**FAILED, "topic": "dropped", "partition": 0}

    def goes_on(pause: float) -> None:
        clock.sleep(pause)
        number = next(seconds)
        says(context, *([dropped] if number < 5 else []), seconds=float(number))

    assert drain.run(context, sleep=goes_on)
    assert next(seconds) > 5, "not ready as long as the tail says that it does not copy all"


def test_what_an_earlier_tail_has_left_counts_when_no_other_one_comes(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    says(context, FAILED)
    now = [0.0]
    watch = tail_health.HealthWatch(clock=lambda: now[0])
    tail_health.check_none_failed(context.record, watch.check(context.record))
    says(context, seconds=0.0, run="b")
    found = watch.check(context.record)
    assert found.is_well, "the tail that runs now has none"
    tail_health.check_none_failed(context.record, found)

    says(context, FAILED)
    watch = tail_health.HealthWatch(clock=lambda: now[0])
    tail_health.check_none_failed(context.record, watch.check(context.record))
    now[0] = tail_health.STALE_SECONDS
    found = watch.check(context.record)
    assert "the tail has not been heard from (for 180 s or longer)" in found.text
    with pytest.raises(CopyFailed):
        tail_health.check_none_failed(context.record, found)


def test_a_tail_of_another_owner_says_nothing(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    for seconds in (1.0, 2.0):
        says(context, FAILED, generation=99, seconds=seconds, at="2026-04-24T10:00:00.000Z")
        found = tail_health.HealthWatch().check(context.record)
        assert (found.failed, found.is_heard, found.is_well) == (0, False, False)
        assert "not been heard from under the migration's present owner" in found.text
        assert "2026-04-24T10:00:00.000Z" in found.text


class Watched:
    """A context with a watch whose clock is moved by hand, and a tail that writes when told."""

    def __init__(self, folder: Path, **sections: Any) -> None:
        self.clock = Clock()
        self.context = make_context(folder, clock=self.clock, tail={"slice_seconds": 20}, **sections)
        self.seconds = 0.0
        self.watch = tail_health.HealthWatch(clock=lambda: self.seconds)
        self.beats = 0

    def writes(self, at: str = "2026-04-24T10:40:00.000Z", **fields: Any) -> None:
        self.beats += 1
        says(self.context, seconds=float(self.beats), at=at, **fields)

    def check(self, later: float = 0.0) -> tail_health.TailHealth:
        self.seconds += later
        return self.watch.check(self.context.record)


def test_a_dead_tail_of_a_quiet_source_is_not_well(tmp_path: Path) -> None:
    tail = Watched(tmp_path)
    tail.writes()
    first = tail.check()
    assert (first.is_heard, first.is_well, first.is_silent, first.text) == (False, False, False, "")
    assert not tail.check(49).is_silent
    found = tail.check(1)
    assert found.is_silent
    assert "not been heard from since 2026-04-24T10:40:00.000Z by its own clock (for 50 s or longer)" in found.text


def test_a_tail_that_writes_is_heard_until_it_has_been_silent_for_too_long(tmp_path: Path) -> None:
    tail = Watched(tmp_path)
    for _ in range(3):
        tail.writes()
        found = tail.check(2)
    assert found.is_well
    assert found.text == ""
    # Dead right after the look before the last one: so long ago it lived for certain.
    assert tail.check(47).is_well
    found = tail.check(1)
    assert (found.is_well, found.is_silent) == (False, True)
    tail.writes(run="the next driver")
    assert not tail.check(1).is_silent
    tail.writes(run="the next driver")
    assert tail.check(2).is_well


@pytest.mark.parametrize("at", ["1999-01-01T00:00:00.000Z", "2999-01-01T00:00:00.000Z"])
def test_the_writer_s_clock_may_be_wrong(tmp_path: Path, at: str) -> None:
    tail = Watched(tmp_path)
    tail.writes(at)
    tail.check()
    tail.writes(at)
    assert tail.check(2).is_well
    assert not tail.check(50).is_well


def test_a_change_since_a_look_long_ago_says_nothing_of_now(tmp_path: Path) -> None:
    tail = Watched(tmp_path)
    tail.writes()
    tail.check()
    tail.writes()
    found = tail.check(600)
    assert not found.is_heard
    tail.writes()
    assert tail.check(2).is_well


def test_no_progress_at_all_is_no_tail(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    context.journal_store = LocalStore(tmp_path / "store")
    found = tail_health.HealthWatch().check(context.record)
    assert not found.is_well
    assert found.text == "the tail has not reported yet: check that it runs"


def test_watches_of_one_process_share_what_they_have_seen(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    says(context, seconds=1.0)
    tail_health.HealthWatch().check(context.record)
    says(context, seconds=2.0)
    assert tail_health.HealthWatch().check(context.record).is_well


def test_the_drain_waits_for_a_tail_that_is_heard_from(tmp_path: Path) -> None:
    tail = Watched(tmp_path)
    tail.context.spec = tail.context.spec.model_copy(
        update={"tail": tail.context.spec.tail.model_copy(update={"drain_ready_timeout": timedelta(seconds=300)})}
    )
    tail.writes()

    def pause(seconds: float) -> None:
        tail.clock.sleep(seconds)
        tail.seconds += seconds

    since = None
    for _ in range(100):
        status = lags.check(tail.context.record, tail.context.source, tail.context.target, since, health=tail.watch)
        since = status.stable_since
        assert not status.ready
        assert not status.is_small
        pause(1)
    assert since is None
    assert "not been heard from since 2026-04-24T10:40:00.000Z" in status.summary()

    for _ in range(14):
        tail.writes()
        pause(1)
        status = lags.check(tail.context.record, tail.context.source, tail.context.target, since, health=tail.watch)
        since = status.stable_since
    assert status.ready
    assert "heard" not in status.summary()


def test_a_cutover_is_refused_when_nobody_hears_the_tail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lags, "SMALL_AGAIN_SECONDS", 0.0)
    context = make_context(tmp_path)
    says(context, generation=99, at="2026-04-24T10:00:00.000Z")
    with pytest.raises(ApprovalRefused, match=r"the tail has not been heard from: .*present owner"):
        check._check_lag(context)
    assert "The tail may not run: the tail has not been heard" in request.make_facts(context, "cutover").body


def test_a_stuck_partition_is_not_ready_however_small_its_lag(tmp_path: Path) -> None:
    clock = Clock()
    context = make_context(tmp_path, clock=clock, tail={"drain_ready_timeout": "60s"})
    says(context, STUCK)
    status = lags.check(context.record, context.source, context.target)
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
    monkeypatch.setattr(lags, "SMALL_AGAIN_SECONDS", 0.0)
    context = make_context(tmp_path)
    says(context, STUCK)
    facts = request.make_facts(context, "cutover")
    assert "does not copy all partitions" in facts.body
    assert "BROKER" in facts.body
    with pytest.raises(ApprovalRefused, match="does not copy all partitions"):
        check._check_lag(context)
    says(context)
    assert "does not copy all partitions" not in request.make_facts(context, "cutover").body
    check._check_lag(context)


def test_progress_lines_name_who_is_not_copied(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    says(context, FAILED, STUCK)
    progress = copy_jobs.read_progress(context.record, "tail")
    assert progress is not None
    assert str(progress).startswith(
        "tail: the lag is not known yet, 5 records, 0.0 MB; 1 partition FAILED, 1 partition stuck for up to 70 s "
        "(tried again), orders-1: [FOREIGN_DATA] another producer writes there"
    )
    assert (progress.failed, progress.stuck, progress.stuck_seconds) == (1, 1, 70.0)


def test_the_progress_of_a_tail_is_its_lag_and_no_share_of_what_there_was(tmp_path: Path) -> None:
    context = make_context(tmp_path)

    def shown(*lags: int) -> str:
        rows = [{"topic": "orders", "partition": number, "lag": lag} for number, lag in enumerate(lags)]
        says(context, partitions=rows, total_bytes=4000)
        progress = copy_jobs.read_progress(context.record, "tail")
        assert progress is not None
        assert "%" not in str(progress)
        return progress.message.partition(", 5 records")[0]

    assert shown(0, 330) == "lag 330 records in 1 of 2 partitions, the largest 330 at orders-1"
    assert shown(12, 330) == "lag 342 records in 2 of 2 partitions, the largest 330 at orders-1"
    assert shown(0, 0) == "all 2 partitions are up to date"
    assert shown(0, -1) == "1 of 2 partitions are up to date, the lag of the others is not known yet"
    assert shown(5, -1) == "lag 5 records in 1 of 2 partitions, the largest 5 at orders-0, that of 1 is not known yet"
    assert shown(-1, -1) == "the lag is not known yet"


def _silence(context: PhaseContext, meanwhile: Any = None) -> tuple[str, list[float]]:
    """What one look says, and how long it has waited for."""
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if meanwhile is not None:
            meanwhile()

    tail_health._KNOWN.clear()
    return tail_health.silence(context.record, sleep=sleep), waited


def test_one_look_tells_a_dead_tail_from_a_wrong_clock(tmp_path: Path) -> None:
    clock = Clock()
    context = make_context(tmp_path, clock=clock)
    says(context, at=iso(clock.now() - timedelta(seconds=3)))
    assert _silence(context) == ("", [])
    for at in (iso(clock.now() - timedelta(hours=1)), iso(clock.now() + timedelta(hours=1)), None):
        says(context, at=at)
        text, waited = _silence(context)
        assert "the tail has not been heard from" in text
        assert str(at or "(for 5 s") in text
        assert waited == [5.0]
        says(context, at=at)
        assert _silence(context, meanwhile=lambda: says(context, seconds=7.0)) == ("", [5.0])
    says(context, generation=99)
    assert "present owner" in _silence(context)[0]


def test_nobody_misses_a_tail_that_need_not_run(tmp_path: Path) -> None:
    context = make_context(tmp_path, state=State.SEED)
    says(context, at="2026-01-01T00:00:00Z")
    assert _silence(context) == ("", [])
    context = make_context(tmp_path / "later", state=State.CUTOVER)
    says(context, at="2026-01-01T00:00:00Z")
    assert _silence(context)[0]
    context.journal.step(steps.TAIL_DONE)
    assert _silence(context) == ("", [])
