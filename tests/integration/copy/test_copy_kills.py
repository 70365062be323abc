"""Copiers are killed, frozen and raced; content, order and offsets stay equal, or the downgrade is reported."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import pytest
from confluent_kafka import Producer

from harness.brokers import KafkaCluster
from harness.compare import bounds, read_records
from harness.copiers.copying import Copying, results_of, wait_begun
from harness.load import load, tiny_topics

pytestmark = pytest.mark.integration


@contextmanager
def writing(cluster: KafkaCluster, topic: str, seed: int) -> Iterator[None]:
    """Writes to a topic all the time: plain records and small transactions, some of them aborted."""
    stop = threading.Event()

    def plain() -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 2, "compression.type": "lz4"})
        rng, number = random.Random(seed), 0
        while not stop.is_set():
            for _ in range(rng.randrange(1, 40)):
                producer.produce(topic, b"plain-%d" % number, partition=number % 2)
                number += 1
            producer.flush()
            time.sleep(0.005)

    def transactions() -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": f"w-{topic}"})
        producer.init_transactions()
        rng, number = random.Random(seed + 1), 0
        while not stop.is_set():
            producer.begin_transaction()
            for _ in range(rng.randrange(1, 6)):
                producer.produce(topic, b"tx-%d" % number, partition=number % 2)
                number += 1
            producer.flush()
            if rng.random() < 0.3:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
            # Each ends with markers, which cost a copier more than their writer: on a busy machine it must keep up.
            time.sleep(0.005)

    threads = [threading.Thread(target=plain), threading.Thread(target=transactions)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def finish(worker: subprocess.Popen[str], seconds: float = 150) -> str:
    """Wait for a worker to end well; its output."""
    out, err = worker.communicate(timeout=seconds)
    assert worker.returncode == 0, err[-4000:]
    return out


def kill_copiers(copy: Copying, name: Literal["seed", "tail"], rng: random.Random, *, kills: int) -> None:
    """Start a copier and SIGKILL it within two seconds, again and again; a third of them must have been at work."""
    wire, killed, at_work = copy.clients.wire("target"), 0, 0

    def ends() -> int:
        return sum(wire.list_offsets(list(copy.partitions), "latest").values())

    while killed < kills:
        copy.write_job(name)
        worker = copy.worker(0, name)
        wait_begun(worker)
        before = ends()
        time.sleep(rng.random() * 2)
        if worker.poll() is None:
            worker.send_signal(signal.SIGKILL)
            killed += 1
            at_work += ends() > before
        _, err = worker.communicate()
        assert "Traceback" not in err, err
    print(f"{killed} kills, {at_work} of copiers that had copied something")
    assert at_work >= kills // 3, "too few of them hit a copier that was at work"


@pytest.mark.parametrize("via", ["direct", pytest.param("s3", marks=pytest.mark.soak)])
def test_killed_at_random_moments(
    copying: Callable[..., Copying],
    source_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    via: str,
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    topics = tiny_topics(unique_name("k") + ".")
    load(source_cluster, topics, seed=seed)
    live = unique_name("live")
    source_cluster.create_topic(live, 2)
    # Short slices: whoever comes after a killed copier waits for the end of its slice.
    fields = {"segment_max_bytes": 30_000, "slice_seconds": 2}
    copy = copying([*(topic.name for topic in topics), live], via=via, job_fields=fields)
    with writing(source_cluster, live, seed):
        kill_copiers(copy, "tail" if via == "direct" else "seed", rng, kills=12)
    copy.write_job("seed")
    results = results_of(finish(copy.worker()))
    assert all(item.done for item in results)
    copy.compare().check()


@pytest.mark.soak
def test_uncoordinated_copiers_lose_and_duplicate_nothing_unnoticed(
    copying: Callable[..., Copying], source_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    """Three copiers with leases of their own race on the same partitions: the broker lets each batch in once."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    topic = unique_name("race")
    source_cluster.create_topic(topic, 2)
    producer = Producer({"bootstrap.servers": source_cluster.bootstrap, "batch.size": 2000, "linger.ms": 1})
    for number in range(20_000):
        producer.produce(topic, b"%d" % number, partition=number % 2)
        if number % 100 == 0:
            producer.poll(0)
    producer.flush()
    copy = copying([topic])
    job = copy.write_job("seed")
    # Different lanes give different leases: nobody waits for anybody.
    store = copy.clients.store(copy.journal)
    workers = []
    for lane in (1, 2, 3):
        lanes = [item.model_copy(update={"lane": lane}) for item in job.lanes]
        store.put(copy.job_key(f"rival-{lane}"), job.model_copy(update={"lanes": lanes}).canonical())
        workers.append(copy.worker(lane, f"rival-{lane}"))
    outputs = [finish(worker) for worker in workers]
    assert all(item.done for output in outputs for item in results_of(output))
    copy.compare().check()


def test_a_stopped_copier_that_wakes_up_later_changes_nothing(
    copying: Callable[..., Copying], source_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    topic = unique_name("zombie")
    source_cluster.create_topic(topic, 2)
    copy = copying([topic], job_fields={"slice_seconds": 5})
    copy.write_job("tail")
    with writing(source_cluster, topic, 5):
        zombie = copy.worker(0, "tail", "--slice-seconds", "3", "--slices", "1")
        time.sleep(2.0)
        os.kill(zombie.pid, signal.SIGSTOP)
        # The newcomer cannot know that the other one is stopped, so it waits for a whole slice.
        copy.write_job("seed")
        copy.write_job("tail")
        started = time.monotonic()
        second = copy.worker(0, "tail", "--slice-seconds", "3", "--slices", "1")
        out, err = second.communicate(timeout=240)
        assert results_of(out)[0].records > 0, err
        assert time.monotonic() - started > 3.0
        os.kill(zombie.pid, signal.SIGCONT)
        zombie.communicate(timeout=240)
    copy.write_job("seed")
    assert all(item.done for item in results_of(finish(copy.worker())))
    copy.compare().check()


@pytest.mark.soak
def test_a_copier_that_wakes_up_when_applications_write_to_the_target_changes_nothing(
    copying: Callable[..., Copying],
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
) -> None:
    """After the client switch the target's end is nobody's position any more: not one byte may come from a zombie."""
    topic = unique_name("zombie")
    source_cluster.create_topic(topic, 2)
    copy = copying([topic], job_fields={"slice_seconds": 5})
    copy.write_job("tail")
    with writing(source_cluster, topic, 3):
        zombie = copy.worker(0, "tail", "--slice-seconds", "3", "--slices", "1")
        time.sleep(2.0)
        os.kill(zombie.pid, signal.SIGSTOP)
    # The newcomer waits until the zombie's slice is over, and ends the copy; then the clients switch.
    copy.worker(0, "tail", "--slice-seconds", "3", "--slices", "1").communicate(timeout=240)
    copy.write_job("seed")
    assert all(item.done for item in results_of(finish(copy.worker())))
    copy.compare().check()
    copied = {key: item.end for key, item in bounds(target_cluster.client_config(), [topic])[topic].items()}
    producer = Producer(target_cluster.client_config())
    for number in range(100):
        producer.produce(topic, b"application %d" % number, partition=number % 2)
    assert producer.flush(120) == 0
    before = read_records(target_cluster.client_config(), topic)
    os.kill(zombie.pid, signal.SIGCONT)
    # Later records of the source, for which the zombie has a job without an end.
    late = Producer(source_cluster.client_config())
    for number in range(100):
        late.produce(topic, b"late %d" % number, partition=number % 2)
    assert late.flush(20) == 0
    zombie.communicate(timeout=240)
    after = read_records(target_cluster.client_config(), topic)
    assert after == before
    assert all(len(after[number]) >= 50 and copied[number] > 0 for number in (0, 1))
