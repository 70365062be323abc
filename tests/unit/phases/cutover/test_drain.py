"""Lag, the stable window, and what ends the wait."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from phase_support import Clock, make_context, make_plan

from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import BrokerUnreachable, DrainTimeout, ForeignData, TopicRecreated
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.phases import drain
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics import lags, topics_gone
from airflow_provider_kafka_migration.topics.lags import PartitionLag

START = datetime(2026, 4, 24, 10, 40, tzinfo=UTC)


def lag(records: int, partition: int = 0) -> PartitionLag:
    return PartitionLag("orders", partition, 100, 100 - records, 100 - records)


def look(records: int, seconds: float, since: datetime | None) -> lags.DrainStatus:
    return lags.judge(
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
    assert [item.lag for item in lags.measure(context.record, context.source, context.target)] == [7]


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
    assert all(item.lag >= 0 for item in lags.measure(context.record, context.source, context.target))


def test_a_target_that_is_ahead_is_named(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    context.source.wire.offsets["latest"] = {("orders", 0): 10, ("orders", 1): 10}  # type: ignore[attr-defined]
    context.target.wire.offsets["latest"] = {("orders", 0): 10, ("orders", 1): 12}  # type: ignore[attr-defined]
    with pytest.raises(ForeignData) as caught:
        lags.measure(context.record, context.source, context.target)
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
    context.journal.transition(State.DRAIN_READY, "ready")
    context.journal.transition(State.CUTOVER, "approved")
    looks = target.looks  # type: ignore[attr-defined]
    assert drain.run_or_confirm(context).already_done
    assert target.looks == looks  # type: ignore[attr-defined]


def test_an_event_that_is_old_is_looked_at_again(tmp_path: Path) -> None:
    clock = Clock()
    context = make_context(tmp_path, clock=clock)
    context.source.wire.offsets["latest"] = {("orders", 0): 100}  # type: ignore[attr-defined]
    context.target.wire.offsets["latest"] = {("orders", 0): 100}  # type: ignore[attr-defined]
    event = lags.check(context.record, context.source, context.target).as_event()
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
    found = [lag(3, 0), lag(4, 1), PartitionLag("a", 0, 9, 9, 9)]
    assert lags.lag_by_topic(found) == {
        "a": {"partitions": 1, "total_lag": 0, "largest_lag": 0},
        "orders": {"partitions": 2, "total_lag": 7, "largest_lag": 4},
    }


def test_who_waits_for_an_approval_is_caught_up_again(tmp_path: Path) -> None:
    """Nothing was copied since the last call: what was ready then is not ready now."""
    clock = Clock()
    context = make_context(tmp_path, clock=clock)
    drain.run(context, sleep=clock.sleep)
    context.journal.transition(State.DRAIN_READY, "ready")
    context.source.wire.offsets["latest"] = {("orders", 0): 10_000}  # type: ignore[attr-defined]

    def catch_up(seconds: float) -> None:
        clock.sleep(seconds)
        ends = context.target.wire.offsets["latest"]  # type: ignore[attr-defined]
        ends["orders", 0] = min(10_000, ends.get(("orders", 0), 0) + 100)

    begun = clock.at
    result = drain.run_or_confirm(context, sleep=catch_up)
    assert not result.already_done
    assert clock.at - begun >= timedelta(seconds=99 + 10), "until it is small, and then for the whole window"
    assert context.journal.tip_state is State.DRAIN_READY


def test_a_lag_that_shrinks_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(lags, "time", SimpleNamespace(monotonic=clock.seconds, sleep=clock.sleep))
    context = make_context(tmp_path, clock=clock)
    source, target = context.source.wire, context.target.wire
    source.offsets["latest"] = {("orders", 0): 10_000}  # type: ignore[attr-defined]
    target.offsets["latest"] = {("orders", 0): 0}  # type: ignore[attr-defined]

    def catch_up(seconds: float) -> None:
        clock.sleep(seconds)
        target.offsets["latest"]["orders", 0] += 50  # type: ignore[attr-defined]

    begun = clock.at
    assert lags.small_again(context, sleep=catch_up).is_small
    assert clock.at - begun > timedelta(seconds=150), "much longer than a lag that stands still"
    source.offsets["latest"] = {("orders", 0): 30_000}  # type: ignore[attr-defined]
    begun = clock.at
    assert not lags.small_again(context, sleep=clock.sleep).is_small
    assert clock.at - begun <= timedelta(seconds=lags.SMALL_AGAIN_SECONDS + 2)


def test_a_cluster_that_is_away_does_not_end_the_wait(tmp_path: Path) -> None:
    clock = Clock()
    context = make_context(tmp_path, clock=clock)
    told: list[str] = []
    context.progress = lambda progress: told.append(progress.message)
    back = clock.at + timedelta(minutes=30)

    def answer(wire: object, which: str) -> None:
        if clock.at < back:
            raise BrokerUnreachable("no broker of the target answers", next_step="start it")

    context.target.wire.on_look = answer  # type: ignore[attr-defined]
    result = drain.run(context, sleep=clock.sleep)
    assert result.details["ready"]
    assert clock.at - back >= timedelta(seconds=10), "the whole window begins when it is back"
    assert any("no broker of the target answers" in text for text in told)


def test_a_cluster_that_stays_away_ends_the_wait_with_its_own_error(tmp_path: Path) -> None:
    clock = Clock()
    context = make_context(tmp_path, clock=clock, tail={"drain_ready_timeout": "10m"})

    def never(wire: object, which: str) -> None:
        raise BrokerUnreachable("no broker of the target answers", next_step="start it")

    context.target.wire.on_look = never  # type: ignore[attr-defined]
    with pytest.raises(BrokerUnreachable, match="no broker of the target answers"):
        drain.run(context, sleep=clock.sleep)


# -- topics that are not the planned ones ----------------------------------------------------------------------------


def planned_with_ids(folder: Path, **sections: Any) -> PhaseContext:
    """The topics ``orders`` and ``users``, each with an id that the source still gives."""
    plan = make_plan({"orders": 1, "users": 1})
    topics = [topic.model_copy(update={"topic_id": f"id-of-{topic.name}"}) for topic in plan.topics]
    context = make_context(folder, plan=plan.model_copy(update={"topics": topics}), **sections)
    context.source.admin.topics = {topic.name: topic.topic_id for topic in topics}  # type: ignore[attr-defined]
    return context


def test_another_topic_is_named_before_its_offsets_are_looked_at(tmp_path: Path) -> None:
    """Right after it was created again the source ends below the target: that is no foreign data."""
    context = planned_with_ids(tmp_path)
    context.source.wire.offsets["latest"] = {("orders", 0): 10, ("users", 0): 1}  # type: ignore[attr-defined]
    context.target.wire.offsets["latest"] = {("orders", 0): 10, ("users", 0): 50}  # type: ignore[attr-defined]
    with pytest.raises(ForeignData):
        lags.measure(context.record, context.source, context.target)
    context.source.admin.topics["users"] = "another-id"  # type: ignore[attr-defined]
    with pytest.raises(TopicRecreated, match="another-id") as caught:
        lags.measure(context.record, context.source, context.target)
    assert caught.value.where.topic == "users"
    assert "on_topic_deleted: note" in caught.value.next_step


def test_a_deleted_topic_is_named_when_it_is_said_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = planned_with_ids(tmp_path)
    known = context.source.admin.topics  # type: ignore[attr-defined]
    pauses: list[float] = []

    def comes_back(seconds: float) -> None:
        pauses.append(seconds)
        known["users"] = "id-of-users"

    known["users"] = UNKNOWN_TOPIC
    monkeypatch.setattr(topics_gone, "time", SimpleNamespace(sleep=comes_back))
    assert len(lags.measure(context.record, context.source, context.target)) == 2, (
        "a broker that has just started does not know all topics"
    )
    assert len(pauses) == 1
    known["users"] = UNKNOWN_TOPIC
    monkeypatch.setattr(topics_gone, "time", SimpleNamespace(sleep=pauses.append))
    with pytest.raises(TopicRecreated, match="users: it was deleted on the source"):
        lags.measure(context.record, context.source, context.target)


UNKNOWN_TOPIC = ItemError(3, "UNKNOWN_TOPIC_OR_PARTITION", retriable=True)
FORBIDDEN_TOPIC = ItemError(29, "TOPIC_AUTHORIZATION_FAILED")


@pytest.mark.parametrize(
    "other",
    [
        {"users": "id-of-users"},
        {"users": FORBIDDEN_TOPIC},
        {"users": ItemError(5, "LEADER_NOT_AVAILABLE", retriable=True)},
        BrokerUnreachable("broker 2 does not answer", next_step="start it"),
    ],
    ids=["knows it", "may not tell", "does not know yet", "does not answer"],
)
@pytest.mark.parametrize("answer", [UNKNOWN_TOPIC, "another-id"], ids=["unknown", "another id"])
def test_a_topic_is_not_gone_as_long_as_one_broker_does_not_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any, other: Any, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(topics_gone, "time", SimpleNamespace(sleep=lambda *_: None))
    context = planned_with_ids(tmp_path)
    context.source.admin.topics["users"] = answer  # type: ignore[attr-defined]
    context.source.admin.other_brokers[2] = other  # type: ignore[attr-defined]
    assert len(lags.measure(context.record, context.source, context.target)) == 2
    assert "broker 2" in caplog.text
    context.source.admin.other_brokers[2] = {"users": UNKNOWN_TOPIC}  # type: ignore[attr-defined]
    with pytest.raises(TopicRecreated):
        lags.measure(context.record, context.source, context.target)


def test_a_topic_that_no_broker_describes_is_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics_gone, "time", SimpleNamespace(sleep=lambda *_: None))
    context = planned_with_ids(tmp_path)
    context.source.admin.topics["users"] = UNKNOWN_TOPIC  # type: ignore[attr-defined]
    admin = context.source.admin
    monkeypatch.setattr(admin, "describe_topics_by_broker", lambda _names: {1: {}})
    assert len(lags.measure(context.record, context.source, context.target)) == 2
    monkeypatch.setattr(admin, "describe_topics_by_broker", lambda _names: {})
    assert len(lags.measure(context.record, context.source, context.target)) == 2


def test_a_topic_that_is_dropped_by_policy_holds_nothing_up(tmp_path: Path) -> None:
    context = planned_with_ids(tmp_path, topology={"on_topic_deleted": "note"})
    context.source.admin.topics["users"] = "another-id"  # type: ignore[attr-defined]
    context.target.wire.offsets["latest"] = {("users", 0): 50}  # type: ignore[attr-defined]
    assert [item.topic for item in lags.measure(context.record, context.source, context.target)] == ["orders"]


def test_what_another_process_has_journaled_is_seen(tmp_path: Path) -> None:
    """The tail's follower names a topic that is gone; who waits in the meantime has an older view of the journal."""
    context = planned_with_ids(tmp_path)
    assert lags.measure(context.record, context.source, context.target)
    other = Journal.create_or_open(
        context.journal_store,
        "m1",
        Fingerprint("source-id", "target-id"),
        owner=Owner("cli", "tester", "tester"),
    )
    other.step(
        steps.SOURCE_TOPIC_GONE,
        key="users: gone",
        details={"topic": "users", "why": "it was deleted", "policy": "stop"},
    )
    with pytest.raises(TopicRecreated, match="users: it was deleted"):
        lags.measure(context.record, context.source, context.target)
