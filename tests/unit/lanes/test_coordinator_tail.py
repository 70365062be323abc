"""A job that follows its source: nothing that may pass fails a partition, and whoever is not copied is told by name."""

from __future__ import annotations

import json
import logging
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from job_documents import job, lane, partition, result

from airflow_provider_kafka_migration.documents.copy import CopyLane, StopAt, halves
from airflow_provider_kafka_migration.errors import (
    BrokerUnreachable,
    CopyFailed,
    CopyStalled,
    ForeignData,
    SchemaIdUnknown,
    SourceGap,
)
from airflow_provider_kafka_migration.lanes import figures
from airflow_provider_kafka_migration.lanes import job_progress as module
from airflow_provider_kafka_migration.lanes.assignment import LanePauses
from airflow_provider_kafka_migration.lanes.job_progress import JobProgress
from airflow_provider_kafka_migration.storage.local import LocalStore

AWAY = BrokerUnreachable("no broker answers", next_step="start it").as_dict()
FOREIGN = ForeignData("somebody else writes there", next_step="stop that producer").as_dict()
STOP_KEY = "m1/control/tail-stop.json"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(figures.TroubleLines.__init__, "__kwdefaults__", {"clock": clock})
    return clock


def tail(store: LocalStore, *lanes: CopyLane) -> JobProgress:
    return JobProgress(job(list(lanes), stop_key=STOP_KEY), store)


@pytest.mark.parametrize("field", ["error", "trouble"], ids=["rounds that failed", "slices that ended meanwhile"])
def test_a_tail_never_gives_up_what_may_pass(local_store: LocalStore, clock: Clock, field: str) -> None:
    """A broker is away for seconds, for minutes, for longer than any budget; another partition lives all the time."""
    both = lane(0, partition("a", 0), partition("a", 1))
    driver = tail(local_store, both)
    for round_number in range(60):
        clock.now += 200
        away: dict[str, Any] = {field: AWAY}
        driver.record([result(both, "a", 0, **away), result(both, "a", 1, records=7)])
        left = [spec.key for item in driver.remaining_lanes() for spec in item.partitions]
        assert left == [("a", 0), ("a", 1)], f"given up after {round_number + 1} rounds"
        assert not driver.finished
    progress = driver.progress()
    assert (progress["partitions_failed"], progress["partitions_stuck"]) == (0, 1)
    assert progress["stuck_seconds"] == pytest.approx(59 * 200)
    assert progress["troubles"] == [
        {
            "topic": "a",
            "partition": 0,
            "state": "stuck",
            "seconds": pytest.approx(59 * 200),
            "code": "BROKER_UNREACHABLE",
            "what": "no broker answers",
            "next_step": "start it",
        }
    ]
    driver.record([result(both, "a", 0, records=1), result(both, "a", 1)])
    progress = driver.progress()
    assert (progress["partitions_stuck"], progress["stuck_seconds"], progress["troubles"]) == (0, 0.0, [])
    driver.record([result(both, "a", 0, done=True), result(both, "a", 1, done=True)])
    assert driver.finished
    driver.check()


def test_the_same_in_both_halves_of_a_split_tail(local_store: LocalStore, clock: Clock) -> None:
    lanes = halves([lane(0, partition("a", 0))])
    driver = tail(local_store, *lanes)
    for _ in range(50):
        clock.now += 80
        driver.record([result(lanes[0], "a", 0, error=AWAY), result(lanes[1], "a", 0)])
    assert [item.half for item in driver.remaining_lanes()] == ["backup", "restore"]
    assert driver.progress()["partitions_stuck"] == 1, "a restore that waits for its backup is stuck with it"
    driver.record([result(lanes[0], "a", 0, done=True), result(lanes[1], "a", 0, error=AWAY)])
    assert [item.half for item in driver.remaining_lanes()] == ["restore"]


@pytest.mark.parametrize("name", ["backup", "restore"])
def test_the_same_in_a_backup_and_a_restore_that_follow(local_store: LocalStore, clock: Clock, name: str) -> None:
    only = lane(0, partition("a", 0))
    driver = JobProgress(job([only], name, stop_key=STOP_KEY), local_store)
    for _ in range(50):
        clock.now += 80
        driver.record([result(only, "a", 0, error=AWAY)])
    assert driver.remaining_lanes()
    once = JobProgress(job([only], name), local_store)
    for _ in range(50):
        clock.now += 80
        once.record([result(only, "a", 0, error=AWAY)])
    assert not once.remaining_lanes(), "who runs it once hears of it, and runs it again"


def test_a_job_that_ends_by_itself_does_not_hang_without_an_error(local_store: LocalStore, clock: Clock) -> None:
    """Slices that end while something is tried again are no failed rounds, but they do not go on for ever, either."""
    only = lane(0, partition("a", 0), partition("a", 1))
    driver = JobProgress(job([only], "seed"), local_store)
    began = clock.now
    while not driver.finished:
        clock.now += 10
        assert clock.now - began <= module.MAX_STUCK_SECONDS + 20
        driver.record([result(only, "a", 0, trouble=AWAY), result(only, "a", 1, done=True)])
    assert clock.now - began > 100, "a broker that is restarted is waited for"
    with pytest.raises(CopyStalled, match=r"1 of 2 .*\[BROKER_UNREACHABLE\] no broker answers"):
        driver.check()


@pytest.mark.parametrize("field", ["error", "trouble"])
def test_a_partition_waits_for_a_schema_for_as_long_as_it_takes(
    local_store: LocalStore, clock: Clock, field: str
) -> None:
    waits: dict[str, Any] = {field: SchemaIdUnknown("the schema id 7 is not on the target yet").as_dict()}
    both = lane(0, partition("a", 0), partition("a", 1))
    driver = JobProgress(job([both], "seed"), local_store)
    for _ in range(20):
        clock.now += module.MAX_STUCK_SECONDS
        driver.record([result(both, "a", 0, **waits), result(both, "a", 1, done=True)])
    assert [spec.key for item in driver.remaining_lanes() for spec in item.partitions] == [("a", 0)]
    progress = driver.progress()
    assert (progress["partitions_stuck"], progress["partitions_failed"]) == (1, 0)
    troubles: Any = progress["troubles"]
    assert (troubles[0]["state"], troubles[0]["code"]) == ("stuck", "SCHEMA_ID_UNKNOWN")
    driver.record([result(both, "a", 0, done=True)])
    driver.check()


def test_what_a_person_has_to_heal_fails_alone_and_is_named(local_store: LocalStore, clock: Clock) -> None:
    both = lane(0, partition("a", 0), partition("a", 1))
    driver = tail(local_store, both)
    driver.record([result(both, "a", 0, error=FOREIGN), result(both, "a", 1, trouble=AWAY)])
    assert [spec.key for item in driver.remaining_lanes() for spec in item.partitions] == [("a", 1)]
    progress = driver.progress()
    assert (progress["partitions_failed"], progress["partitions_stuck"]) == (1, 1)
    troubles: Any = progress["troubles"]
    assert [(item["state"], item["code"]) for item in troubles] == [
        ("failed", "FOREIGN_DATA"),
        ("stuck", "BROKER_UNREACHABLE"),
    ]
    driver.record([result(both, "a", 1, done=True)])
    assert driver.finished
    with pytest.raises(CopyFailed, match=r"1 of 2 .*FOREIGN_DATA"):
        driver.check()


def test_a_partition_that_was_healed_is_no_failure_any_more(local_store: LocalStore, clock: Clock) -> None:
    """Slices of Spark's stream drive all partitions of a lane, those that have failed included."""
    only = lane(0, partition("a", 0))
    driver = tail(local_store, only)
    gap = SourceGap("deleted", next_step="set offsets.on_source_gap").as_dict()
    driver.record([result(only, "a", 0, error=gap)])
    assert driver.progress()["partitions_failed"] == 1
    driver.record([result(only, "a", 0, records=5)])
    assert driver.progress()["partitions_failed"] == 0
    driver.record([result(only, "a", 0, done=True)])
    driver.check()


def test_a_rollback_ends_a_tail_whose_cluster_is_away(local_store: LocalStore, clock: Clock) -> None:
    only = lane(0, partition("a", 0), partition("a", 1))
    driver = tail(local_store, only)
    both_away = [result(only, "a", number, error=AWAY) for number in range(2)]
    local_store.put(STOP_KEY, StopAt(migration_id="m1", offsets={"a-0": 40, "a-1": 0}).canonical())
    clock.now += 10
    driver.record(both_away)
    assert [spec.key for item in driver.remaining_lanes() for spec in item.partitions] == [("a", 0)]
    # A freeze that is lifted takes its stop back.
    local_store.put(STOP_KEY, StopAt(migration_id="m1", offsets={}).canonical())
    clock.now += 10
    driver.record(both_away)
    assert len(driver.remaining_lanes()[0].partitions) == 2
    local_store.put(STOP_KEY, StopAt(migration_id="m1", offsets={"a-0": 0, "a-1": 0}).canonical())
    clock.now += 10
    driver.record(both_away)
    assert driver.finished
    driver.check()


def test_a_new_driver_takes_back_what_the_one_before_it_has_said(local_store: LocalStore, clock: Clock) -> None:
    only = lane(0, partition("a", 0))
    before = tail(local_store, only)
    before.record([result(only, "a", 0, error=FOREIGN, target_offset=70, resumed_offset=3)])
    with pytest.raises(CopyFailed):
        before.check()
    written = json.loads(local_store.get("m1/progress/tail.json") or b"")
    assert written["partitions_failed"] == 1
    tail(local_store, only).begin()
    now = json.loads(local_store.get("m1/progress/tail.json") or b"")
    assert (now["partitions_failed"], now["troubles"]) == (0, [])
    assert now["run"] != written["run"]
    assert now["partitions"][0]["target_offset"] == 70, "a log that went back is noticed by the one after it, too"


@pytest.mark.parametrize(("topic_id", "end"), [("first", 70), ("second", -1), ("", 70)])
def test_a_new_topic_with_the_old_name_has_lost_nothing(
    local_store: LocalStore, clock: Clock, topic_id: str, end: int
) -> None:
    """A log that ends below what was reported has gone back only if it is the same topic's."""
    only = lane(0, partition("a", 0, "first"))
    before = tail(local_store, only)
    before.record([result(only, "a", 0, target_offset=70)])
    before.begin()
    assert json.loads(local_store.get("m1/progress/tail.json") or b"")["partitions"][0]["topic_id"] == "first"
    after = tail(local_store, lane(0, partition("a", 0, topic_id)))
    assert after.progress()["partitions"][0]["target_offset"] == end


def test_a_running_driver_forgets_the_topic_that_was_deleted(local_store: LocalStore, clock: Clock) -> None:
    only, again = lane(0, partition("a", 0, "first")), lane(0, partition("a", 0, "second"))
    driver = tail(local_store, only)
    driver.record([result(only, "a", 0, target_offset=70)])
    local_store.put("m1/jobs/tail.json", job([again], stop_key=STOP_KEY).canonical())
    clock.now += 1_000
    driver.refresh_job()
    [row] = driver.progress()["partitions"]
    assert (row["topic_id"], row["source_offset"], row["target_offset"]) == ("second", -1, -1)


def test_a_tail_with_nothing_to_copy_writes_again_and_again(local_store: LocalStore, clock: Clock) -> None:
    """Whoever reads its progress sees a new time, and so that it lives."""
    only = lane(0, partition("a", 0))
    driver = tail(local_store, only)
    driver.begin()
    seen = set()
    for _ in range(3):
        document = json.loads(local_store.get("m1/progress/tail.json") or b"")
        assert datetime.fromisoformat(document["at"]).tzinfo is not None
        seen.add((document["seconds"], document["at"]))
        clock.now += 2.5
        driver.tick({0: clock.now})
    assert len(seen) == 3


def test_lines_are_written_soon_and_then_now_and_then(
    local_store: LocalStore, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    many = lane(0, *(partition("a", number) for number in range(30)))
    driver = tail(local_store, many)
    away = [result(many, "a", number, trouble=AWAY) for number in range(30)]
    with caplog.at_level(logging.WARNING):
        driver.record(away)
        assert not caplog.messages, "a change of leaders wakes nobody up"
        clock.now += 10
        driver.record(away)
        assert len(caplog.messages) == 1, "a dead broker has one line"
        assert caplog.messages[0] == (
            "tail: 30 partitions could not be copied for 10 s, and are being retried (the first is a-0): "
            "[BROKER_UNREACHABLE] no broker answers. Next: start it"
        )
        for _ in range(11):
            clock.now += 5
            driver.record(away)
        assert len(caplog.messages) == 1
        for _ in range(120):
            clock.now += 5
            driver.record(away)
        assert 10 <= len(caplog.messages) <= 12
        driver.record([result(many, "a", 0, error=FOREIGN)])
        assert caplog.records[-1].levelno == logging.ERROR
        assert "1 partition cannot be copied, and will not be retried" in caplog.messages[-1]
        driver.record([result(many, "a", number) for number in range(30)])
        assert "all partitions are being copied again" in caplog.messages[-1]


def test_a_slice_that_hangs_is_no_silence(
    local_store: LocalStore, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """It brings no results; the driver, which is well, must not look as if all was well."""
    lanes = [lane(0, partition("a", 0)), lane(1, partition("a", 1))]
    driver = tail(local_store, *lanes)
    driver.record([result(lanes[0], "a", 0, records=5), result(lanes[1], "a", 1, records=5)])
    began = clock.now
    while clock.now < began + 170:
        clock.now += 10
        driver.tick({0: began, 1: clock.now})
        assert driver.progress()["partitions_stuck"] == 0
    clock.now += 20
    with caplog.at_level(logging.WARNING):
        driver.tick({0: began, 1: clock.now})
    written = json.loads(local_store.get("m1/progress/tail.json") or b"")
    assert [(item["partition"], item["state"], item["seconds"]) for item in written["troubles"]] == [(0, "stuck", 190)]
    assert "the slice of lane 0 has not ended after 190 s; it should end after 60 s" in caplog.text
    driver.record([result(lanes[0], "a", 0, records=5)])
    assert driver.progress()["partitions_stuck"] == 0


def test_pauses_of_a_job_that_follows_stay_short() -> None:
    """Producers may be stopped while a lane rests."""
    pauses = LanePauses(follows=True)
    found = [pauses.after([1], [1]) for _ in range(3000)]
    assert found[:4] == [0.5, 1.0, 2.0, 4.0]
    assert set(found[4:]) == {5.0}
