"""Copies in transactions are killed, frozen and raced, beside foreign writers: exactly once, and an exact map."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial

import pytest
from confluent_kafka import Producer

from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire
from airflow_provider_kafka_migration.offset_map.transactional import group_name
from harness.brokers import KafkaCluster
from harness.copiers.copying import Copying, results_of, wait_begun, wait_for
from harness.load import load, tiny_topics
from tests.integration.copy.test_copy_kills import writing
from tests.integration.transactional.conftest import MakeCopying
from tests.integration.transactional.transactional_support import (
    check_copy,
    committed_positions,
    foreign_writers,
    have_moved,
    position_of,
    rival_job,
)

pytestmark = pytest.mark.integration


def finish(worker: subprocess.Popen[str], seconds: float = 90) -> str:
    """Wait for a worker to end well; its output."""
    out, err = worker.communicate(timeout=seconds)
    assert worker.returncode == 0, err[-4000:]
    return out


def kill_in_a_loop(
    copying: MakeCopying, source: KafkaCluster, target: KafkaCluster, name: str, *, kills: int, seed: int
) -> Copying:
    """Workers are killed while all kinds of topics are copied beside a foreign writer; the copy, when it is done."""
    rng = random.Random(seed)
    topics = tiny_topics(f"{name}.")
    load(source, topics, seed=seed)
    live = f"{name}.live"
    source.create_topic(live, 2)
    # Whoever comes after a killed copier waits for the end of its slice: with long ones the others are killed waiting.
    copy = copying([*(topic.name for topic in topics), live], target=target, job_fields={"slice_seconds": 2})
    killed, in_work = 0, 0
    before: dict[TopicPartition, int] = {}
    with writing(source, live, seed), foreign_writers(target, live, 2):
        while killed < kills:
            copy.write_job("tail")
            worker = copy.worker(0, "tail")
            wait_begun(worker)
            if killed % 2:
                wait_for(partial(have_moved, copy, before), 60, "the copier commits")
            time.sleep(rng.random() * (0.3 if killed % 2 else 2.0))
            if worker.poll() is None:
                worker.send_signal(signal.SIGKILL)
                killed += 1
            _, err = worker.communicate()
            assert "Traceback" not in err, err
            in_work += have_moved(copy, before)
            before.update(committed_positions(copy))
    copy.write_job("seed")
    results = results_of(finish(copy.worker()))
    assert all(item.done for item in results)
    foreign = check_copy(copy)
    assert foreign > 0
    ends = sum(copy.stable_ends().values())
    print(f"seed {seed}: {killed} kills, {in_work} of copiers that had committed, {ends} offsets, {foreign} foreign")
    assert in_work >= killed // 2 - 1, "too few of them hit a copier that was at work"
    return copy


def test_killed_at_random_moments(
    copying: MakeCopying, source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    kill_in_a_loop(copying, source_cluster, target_cluster, unique_name("k"), kills=5, seed=seed)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("which", ["first", "second"])
def test_killed_many_times(
    copying: MakeCopying,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    first_version_target: KafkaCluster,
    unique_name: Callable[[str], str],
    which: str,
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    target = target_cluster if which == "second" else first_version_target
    kill_in_a_loop(copying, source_cluster, target, unique_name("k"), kills=60, seed=seed)


@pytest.mark.soak
def test_uncoordinated_copiers_fence_each_other(
    copying: MakeCopying, source_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    """Three copiers with leases of their own on the same partitions: a transaction of one of them, or of none."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    topic = unique_name("race")
    source_cluster.create_topic(topic, 2)
    producer = Producer({"bootstrap.servers": source_cluster.bootstrap, "batch.size": 2000, "linger.ms": 1})
    for number in range(8_000):
        producer.produce(topic, b"%d" % number, partition=number % 2)
        if number % 100 == 0:
            producer.poll(0)
    producer.flush()
    copy = copying([topic])
    names = {lane: rival_job(copy, lane) for lane in (1, 2, 3)}
    workers = [copy.worker(lane, name) for lane, name in names.items()]
    outputs = [finish(worker) for worker in workers]
    assert all(item.done for output in outputs for item in results_of(output))
    assert check_copy(copy) == 0


def test_a_zombie_is_fenced_and_writes_nothing(
    copying: MakeCopying,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
) -> None:
    """Stopped in the middle of its transactions, overtaken by a copier that does not wait, and woken within its slice:
    nothing but the broker's fencing stands in its way."""
    for slice_seconds in (30, 90, 270):
        topic = unique_name("zombie")
        source_cluster.create_topic(topic, 2)
        copy = copying([topic], job_fields={"slice_seconds": slice_seconds})
        copy.write_job("tail")
        with writing(source_cluster, topic, 5), foreign_writers(target_cluster, topic, 2):
            if _a_zombie_wakes_in_its_slice(copy, slice_seconds):
                break
    else:
        pytest.fail("this machine is too busy: no copier was overtaken within a slice of 270 s")
    copy.write_job("seed")
    finish(copy.worker())
    assert check_copy(copy) > 0


def _a_zombie_wakes_in_its_slice(copy: Copying, slice_seconds: float) -> bool:
    """False: its slice was over when it woke, so it had no reason to write, and fencing was not tried."""
    began = time.monotonic()
    zombie = copy.worker(0, "tail", "--slices", "1")
    wait_for(lambda: _has_positions(copy), 120, "the first copier commits")
    os.kill(zombie.pid, signal.SIGSTOP)
    # Another lane has another lease, so the newcomer takes over at once.
    assert all(item.done for item in results_of(finish(copy.worker(1, rival_job(copy, 1)))))
    before = {key: position_of(copy, key) for key in copy.partitions}
    left_seconds = slice_seconds - (time.monotonic() - began)
    os.kill(zombie.pid, signal.SIGCONT)
    out, err = zombie.communicate(timeout=slice_seconds + 120)
    assert {key: position_of(copy, key) for key in copy.partitions} == before
    if left_seconds < 10:
        return False
    assert {(item.error or {}).get("code") for item in results_of(out)} == {"SLICE_EXPIRED"}, err[-3000:]
    return True


def _has_positions(copy: Copying) -> bool:
    try:
        return all(position_of(copy, key).runs for key in copy.partitions)
    except AssertionError:
        return False


def test_a_position_that_was_lost_is_named(
    copying: MakeCopying, source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    """Without its position nobody knows what was copied: the partition stops, and nothing is copied twice."""
    topic = unique_name("lost")
    source_cluster.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": source_cluster.bootstrap})
    for number in range(50):
        producer.produce(topic, b"%d" % number)
    producer.flush()
    copy = copying([topic])
    copy.run()
    ends = _log_ends(copy, topic)
    admin, group = target_cluster.admin(), group_name(copy.migration_id)
    admin.delete_consumer_groups([group])[group].result(timeout=30)
    copy.write_job("seed")
    out, _ = copy.worker().communicate(timeout=240)
    (result,) = results_of(out)
    assert result.error is not None
    assert result.error["code"] == "POSITION_LOST"
    assert _log_ends(copy, topic) == ends


def _log_ends(copy: Copying, topic: str) -> int:
    wire: Wire = copy.clients.wire("target")
    return wire.list_offsets([(topic, 0)], "log_end")[topic, 0]
