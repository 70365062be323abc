"""A tail whose clusters go away, whose target others write to, whose topics are deleted: it goes on, or says so."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from cutover_support import Lab

from airflow_provider_kafka_migration.copy import recovery
from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.documents.copy import ProducerIds
from airflow_provider_kafka_migration.documents.plan import Plan
from airflow_provider_kafka_migration.errors import CopyFailed, DrainTimeout, TopicRecreated
from airflow_provider_kafka_migration.jobs import tail_health
from airflow_provider_kafka_migration.kafka.wire import Wire
from airflow_provider_kafka_migration.lanes import job_progress
from airflow_provider_kafka_migration.phases import drain, seed
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.topics import bring
from airflow_provider_kafka_migration.topics.log_starts import set_log_starts
from harness.brokers import KafkaCluster
from harness.processes import wait_for

pytestmark = pytest.mark.integration

Fill = Callable[[Mapping[str, int], int], None]
_SECONDS = 120


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """All budgets are used up after a moment, so that a broker that is away for seconds outlasts them."""
    monkeypatch.setattr(job_progress, "MAX_TRANSIENT_ROUNDS", 1)
    monkeypatch.setattr(recovery, "PATIENCE_SECONDS", 0.2)
    original = Clients.wire

    def wire(self: Clients, name: str, **options: Any) -> Wire:
        made = original(self, name, **options)
        made.patience_seconds = made.first_contact_seconds = 0.3
        return made

    monkeypatch.setattr(Clients, "wire", wire)


def write(cluster: KafkaCluster, topic: str, partitions: int, count: int, value: bytes = b"later") -> None:
    producer = Producer({**cluster.client_config(), "linger.ms": 5})
    for number in range(count * partitions):
        producer.produce(topic, value, b"key-%d" % number, number % partitions)
    assert producer.flush(60) == 0


def progress(context: PhaseContext) -> dict[str, Any]:
    data = context.journal_store.get(context.key("progress/tail.json"))
    return json.loads(data) if data else {}


def is_copied(context: PhaseContext, topic: str, partitions: int) -> bool:
    keys = [(topic, number) for number in range(partitions)]
    ends = context.source.wire.list_offsets(keys, "latest")
    return context.target.wire.list_offsets(keys, "log_end") == ends


@contextmanager
def away(cluster: KafkaCluster) -> Iterator[None]:
    """The only broker of a cluster is killed, and started again at the end."""
    cluster.kill(0)
    try:
        yield
    finally:
        cluster.restart(0)
        cluster.wait_ready()


@pytest.mark.parametrize(
    ("side", "via"),
    [
        pytest.param("target", "direct", marks=pytest.mark.soak),
        pytest.param("target", "split", marks=pytest.mark.soak),
        pytest.param("source", "direct", marks=pytest.mark.soak),
    ],
)
def test_a_cluster_that_is_away_for_longer_than_all_budgets(
    make_lab: Callable[..., Lab],
    unique_name: Callable[[str], str],
    fill: Fill,
    impatient: None,
    side: str,
    via: str,
) -> None:
    topic = unique_name("away")
    fill({topic: 4}, 10)
    lab = make_lab([topic], seed={"via": via}, tail={"slice_seconds": 2, "segment_linger": "100ms"})
    context = lab.begin()
    lab.start_tail()
    write(lab.source_cluster, topic, 4, 10)
    wait_for("the tail to copy", lambda: is_copied(context, topic, 4), _SECONDS)
    with away(lab.target_cluster if side == "target" else lab.source_cluster):
        if side == "target":
            write(lab.source_cluster, topic, 4, 10)
        wait_for("all to be stuck", lambda: progress(context).get("partitions_stuck") == 4, _SECONDS)
        wait_for("it to last", lambda: progress(context)["stuck_seconds"] > 3, _SECONDS)
        found = progress(context)
        assert (found["partitions_failed"], found["finished"]) == (0, False)
        assert all(item["what"] and item["next_step"] for item in found["troubles"])
    write(lab.source_cluster, topic, 4, 10)
    wait_for("the tail to go on", lambda: is_copied(context, topic, 4), _SECONDS)
    wait_for("nobody to be stuck", lambda: progress(context)["partitions_stuck"] == 0, _SECONDS)
    assert lab.tail_error is None
    lab.check_equal()


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seconds", [8, 150])
def test_a_target_that_is_away_for_seconds_and_for_minutes(
    make_lab: Callable[..., Lab], unique_name: Callable[[str], str], fill: Fill, seconds: int
) -> None:
    """With the real budgets. Three of four partitions were dead after that, in silence, while one lived."""
    topic = unique_name("minutes")
    fill({topic: 4}, 10)
    lab = make_lab([topic], tail={"slice_seconds": 10})
    context = lab.begin()
    lab.start_tail()
    write(lab.source_cluster, topic, 4, 10)
    wait_for("the tail to copy", lambda: is_copied(context, topic, 4), _SECONDS)
    with away(lab.target_cluster):
        write(lab.source_cluster, topic, 4, 10)
        if seconds < 60:
            threading.Event().wait(seconds)
        else:
            wait_for("it to last", lambda: progress(context).get("stuck_seconds", 0) >= seconds, 2 * seconds + _SECONDS)
            assert progress(context)["partitions_stuck"] == 4
    for _ in range(10):
        write(lab.source_cluster, topic, 4, 10)
    wait_for("the tail to go on", lambda: is_copied(context, topic, 4), _SECONDS)
    wait_for("nobody to be stuck", lambda: progress(context)["partitions_stuck"] == 0, _SECONDS)
    assert progress(context)["partitions_failed"] == 0
    assert lab.tail_error is None
    lab.check_equal()


def test_a_foreign_record_fails_the_drain_by_name_and_stops_nobody_else(
    make_lab: Callable[..., Lab], unique_name: Callable[[str], str], fill: Fill
) -> None:
    topic = unique_name("foreign")
    fill({topic: 3}, 10)
    lab = make_lab([topic], tail={"slice_seconds": 2})
    context = lab.begin()
    lab.start_tail()
    write(lab.source_cluster, topic, 3, 5)
    wait_for("the tail to copy", lambda: is_copied(context, topic, 3), _SECONDS)
    write(lab.target_cluster, topic, 1, 1, b"not ours")
    write(lab.source_cluster, topic, 3, 1)
    wait_for("the tail to meet it", lambda: progress(context)["partitions_failed"] == 1, _SECONDS)
    # The source goes on, so the target's end is not beyond it, and no lag gives the record away.
    write(lab.source_cluster, topic, 3, 50)
    with pytest.raises(CopyFailed, match="FOREIGN_DATA") as caught:
        drain.run(context, poll_seconds=0.2)
    assert (caught.value.where.topic, caught.value.where.partition) == (topic, 0)
    assert "then clear tail and drain_ready" in caught.value.next_step
    found = progress(context)
    assert found["partitions_failed"] == 1
    assert [(item["partition"], item["state"], item["code"]) for item in found["troubles"]] == [
        (0, "failed", "FOREIGN_DATA")
    ]
    write(lab.source_cluster, topic, 3, 10)
    others = [(topic, 1), (topic, 2)]

    def others_are_copied() -> bool:
        ends = context.source.wire.list_offsets(others, "latest")
        return context.target.wire.list_offsets(others, "log_end") == ends

    wait_for("the others to be copied", others_are_copied, _SECONDS)
    assert lab.tail_error is None


def test_a_dead_tail_of_a_quiet_source_is_not_ready(
    make_lab: Callable[..., Lab], unique_name: Callable[[str], str], fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No lag shows it: nothing comes from the source. Each look is that of a task of its own."""
    monkeypatch.setattr(tail_health, "_QUIET_SECONDS", 0.2)
    topic = unique_name("quiet")
    fill({topic: 2}, 10)
    lab = make_lab([topic], tail={"slice_seconds": 2, "drain_stable_window": "100ms"})
    context, impatient = lab.begin(), lab.context()
    section = context.spec.tail.model_copy(update={"drain_ready_timeout": timedelta(seconds=2)})
    impatient.spec = context.spec.model_copy(update={"tail": section})
    with pytest.raises(DrainTimeout, match=r"lag 0 in 2 partitions.*the tail has not reported yet"):
        drain.run(impatient, poll_seconds=0.1)
    lab.start_tail()
    drain.run(context, poll_seconds=0.1)
    first = progress(context)["at"]
    lab.kill_tail()
    tail_health._KNOWN.clear()
    with pytest.raises(DrainTimeout, match=r"lag 0 in 2 partitions.*the tail has not been heard from since 2"):
        drain.run(impatient, poll_seconds=0.1)
    lab.start_tail()
    drain.run(context, poll_seconds=0.1)
    assert progress(context)["at"] > first


def test_a_target_topic_that_was_deleted_is_named_and_made_again(
    make_lab: Callable[..., Lab], unique_name: Callable[[str], str], fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [unique_name("kept"), unique_name("deleted")]
    kept, deleted = names
    fill({kept: 2, deleted: 2}, 30)
    lab = make_lab(names, seed={"slice_seconds": 5})
    submit = lab.runner.submit

    def delete_first(*arguments: Any) -> None:
        lab.target_cluster.delete_topics([deleted])
        submit(*arguments)

    monkeypatch.setattr(lab.runner, "submit", delete_first)
    with pytest.raises(CopyFailed, match=r"2 of 4 .*\[TARGET_TOPIC_MISSING\]") as caught:
        lab.begin()
    assert {item["topic"] for item in caught.value.details["partitions"]} == {deleted}
    assert "the migration creates the topic again" in caught.value.next_step
    monkeypatch.undo()
    context = lab.context()
    seed.run(context)
    lab.check_equal()
    assert [entry.details["topics"] for entry in context.journal.steps(steps.TOPICS_MADE_AGAIN)] == [[deleted]]
    entries = len(context.journal.entries())
    assert seed.run(context).already_done
    assert len(context.journal.entries()) == entries


def test_a_topic_that_is_made_again_by_halves_is_completed(
    make_lab: Callable[..., Lab], unique_name: Callable[[str], str], fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the topic and its log starts: the next run does not take the topic for complete."""
    topic = unique_name("halves")
    fill({topic: 1}, 40)
    lab = make_lab([topic])
    context = lab.begin()
    done: list[str] = []

    class Killed(BaseException):
        pass

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    def noted(given: PhaseContext, plan: Plan, producers: ProducerIds) -> dict[str, int]:
        done.extend(item.target_name for item in plan.topics)
        return set_log_starts(given, plan, producers)

    lab.target_cluster.delete_topics([topic])
    monkeypatch.setattr(bring, "set_log_starts", killed)
    with pytest.raises(Killed):
        seed.run(context)
    monkeypatch.setattr(bring, "set_log_starts", noted)
    context = lab.context()
    seed.run(context)
    assert done == [topic]
    assert (
        len(context.journal.steps(steps.TOPICS_MADE_AGAIN))
        == len(context.journal.steps(steps.TOPICS_MADE_AGAIN_DONE))
        == 1
    )
    lab.check_equal()


def test_a_topic_created_again_is_named_by_who_waits_already(
    make_lab: Callable[..., Lab], unique_name: Callable[[str], str], fill: Fill
) -> None:
    """Without a word of the tail, and before its offsets look like somebody else's data."""
    names = [unique_name("keep"), unique_name("again")]
    fill(dict.fromkeys(names, 1), 20)
    lab = make_lab(names, tail={"slice_seconds": 2, "drain_stable_window": "10m"})
    context = lab.begin()
    looks: list[float] = []

    def create_again() -> bool:
        try:
            lab.source_cluster.create_topic(names[1], 1)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            return False
        return True

    def meanwhile(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            lab.source_cluster.delete_topics([names[1]])
            wait_for("the topic to be created again", create_again, _SECONDS)
            write(lab.source_cluster, names[1], 1, 3)

    with pytest.raises(TopicRecreated, match="deleted and created again") as caught:
        drain.run(context, sleep=meanwhile)
    assert caught.value.where.topic == names[1]
    assert len(looks) >= 2
