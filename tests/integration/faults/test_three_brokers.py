"""Replication factor 3, min.insync.replicas 2: leaders killed, stopped and moved; elections that lose records."""

from __future__ import annotations

import random

import pytest
from confluent_kafka import TopicPartition

from harness.copiers.copier_pool import Copier
from harness.faults.kinds import elect_preferred, reassign
from harness.faults.lab import FaultLab
from harness.faults.net_scenarios import Stage, unreplicated_markers
from harness.faults.random_faults import FaultRun
from harness.processes import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

LEADERS = ["kill_target_broker", "freeze_target_broker", "stop_target_broker", "move_leaders", "kill_copier"]


@pytest.mark.soak
def test_leaders_killed_stopped_and_moved(three_brokers: FaultLab) -> None:
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    result = FaultRun(three_brokers, seed, 12, kinds=LEADERS, points=False, max_seconds=200).run()
    print(result.line())
    assert result.faults >= 12
    assert not result.damage.named
    assert not result.damage.silent, result.damage.where


@pytest.mark.soak
def test_markers_on_the_leader_alone_are_waited_for(three_brokers: FaultLab) -> None:
    damage = unreplicated_markers(three_brokers, [])
    assert not damage.found, damage


@pytest.mark.soak
def test_without_the_wait_for_the_high_watermark_markers_are_too_many(three_brokers: FaultLab) -> None:
    damage = unreplicated_markers(three_brokers, ["high_watermark"])
    assert damage.found, damage


def on_two_brokers(stage: Stage) -> None:
    """Only brokers 2 and 3 have the partition, 2 leads; one replica is enough, and a shorter one may lead."""
    target = stage.lab.target
    target.alter_topic_configs({stage.topic: {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}})
    reassign(target, {(stage.topic, 0): [2, 3]})
    admin = target.admin()

    def moved() -> bool:
        elect_preferred(target, [(stage.topic, 0)])
        found = admin.list_topics(stage.topic, timeout=5).topics[stage.topic].partitions[0]
        return found.leader == 2 and sorted(found.isrs) == [2, 3]

    wait_for("replicas on brokers 2 and 3", moved, 60, every_seconds=0.5)


def isr(stage: Stage) -> list[int]:
    """Replicas in sync."""
    found = stage.lab.target.admin().list_topics(stage.topic, timeout=5).topics[stage.topic].partitions[0]
    return sorted(found.isrs)


def lose_records(stage: Stage, copier: Copier | None = None) -> int:
    """Broker 3 misses some records, and leads then: acknowledged records are gone. How many offsets."""
    target = stage.lab.target
    end = stage.copy.clients.wire("target").list_offsets([(stage.topic, 0)], "latest")[stage.topic, 0]
    target.kill(2)
    wait_for("broker 3 is out of sync", lambda: isr(stage) == [2], 120)
    stage.batches(10).hole(20).batches(5)
    if copier is None:
        stage.copied()
    goal = stage.copy.stable_ends()[stage.topic, 0]
    wire = stage.copy.clients.wire("target")
    wait_for("copied", lambda: wire.list_offsets([(stage.topic, 0)], "latest")[stage.topic, 0] >= goal, 120)
    target.kill(1)
    target.restart(2)

    def led_by_three() -> bool:
        found = target.admin().list_topics(stage.topic, timeout=5).topics[stage.topic].partitions[0]
        return int(found.leader) == 3

    wait_for("broker 3 leads", led_by_three, 120)
    return goal - end


@pytest.mark.soak
def test_an_unclean_election_is_named_and_healed_from_the_source(three_brokers: FaultLab) -> None:
    stage = Stage(three_brokers, []).batches(20).hole(30).batches(5)
    with three_brokers.healthy():
        stage.copied()
        on_two_brokers(stage)
        stage.copy.write_job("tail", slice_seconds=300)
        copier = three_brokers.copier(stage.copy, 0, "tail", "--slices", "1")
        lost = lose_records(stage, copier)
        assert lost > 50
        goal = stage.copy.stable_ends()[stage.topic, 0]
        said = f"the target's log end went back from {goal} to {goal - lost}"
        wait_for("the copier says what was lost", lambda: said in copier.text() or not copier.running, 100)
        assert said in copier.text(), copier.text()[-3000:]
        wire = stage.copy.clients.wire("target")
        wait_for("copied again", lambda: wire.list_offsets([(stage.topic, 0)], "latest")[stage.topic, 0] == goal, 120)
        copier.kill()
        three_brokers.target.restart(1)
        damage = stage.batches(5).copied().judge()
        assert not damage.found, damage


@pytest.mark.soak
def test_an_unclean_election_is_an_error_when_the_source_has_the_records_no_more(three_brokers: FaultLab) -> None:
    stage = Stage(three_brokers, []).batches(20)
    with three_brokers.healthy():
        stage.copied()
        on_two_brokers(stage)
        lost = lose_records(stage)
        end = stage.copy.stable_ends()[stage.topic, 0]
        admin = three_brokers.source.admin()
        for future in admin.delete_records([TopicPartition(stage.topic, 0, end)]).values():
            future.result()
        stage.batches(3)
        copier = stage.copier()
        assert copier.wait(240) == 1
        (result,) = copier.results()
        assert result.error is not None
        assert result.error["code"] == "SOURCE_GAP"
        assert result.target_offset == end - lost
