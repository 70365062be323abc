"""MirrorMaker 2's ``testReplicateFromLatest``: only what is written after the start is copied, at equal offsets.

The mirror is killed in its seed and started again, and transactions are open at its start. Clients fail back at the
end.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewPartitions

from airflow_provider_kafka_migration.cli.frame import ExitCode
from harness.brokers import KafkaCluster
from harness.clients import commit_offsets, committed_offsets
from harness.compare import Record, bounds, read_records
from harness.processes import wait_for
from tests.integration.mirrors.mirror_support import SECONDS, Flow, eventually, flow_name, log_ends
from tests.integration.mirrors.scenario_support import make_scene

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1500)]


def _write(cluster: KafkaCluster, topic: str, partition: int, label: str, count: int, size: int = 0) -> None:
    producer = Producer({**cluster.client_config(), "linger.ms": 20})
    for number in range(count):
        producer.produce(topic, f"{label} {number} ".encode() + b"." * size, b"key", partition)
    assert producer.flush(60) == 0


def _delete(cluster: KafkaCluster, topic: str, until: int) -> None:
    """Delete the first records of partition 0, as retention does."""
    admin = cluster.admin()  # must outlive the call
    for future in admin.delete_records([TopicPartition(topic, 0, until)], request_timeout=20).values():
        future.result()


def _transactional(cluster: KafkaCluster, name: str) -> Producer:
    producer = Producer({**cluster.client_config(), "transactional.id": name})
    producer.init_transactions(30)
    return producer


def _produce(producer: Producer, topic: str, partition: int, *values: bytes) -> None:
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(120) == 0


def _entries(flow: Flow) -> list[dict[str, Any]]:
    """The journal's entries, without a command that would take its time."""
    folder = flow.folder / flow.name / flow.name / "journal"
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def _starts(flow: Flow) -> list[dict[str, Any]]:
    return [item["details"]["topics"] for item in _entries(flow) if item.get("step") == "mirror_starts"]


def _plain(records: list[Record], first: int = 0) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(item.offset, item.key, item.value) for item in records if item.offset >= first]


def _has_all(flow: Flow, first: Mapping[tuple[str, int], int]) -> bool:
    """Whether the target has all records of these partitions from their first offset on."""
    topics = {topic for topic, _ in first}
    ends = log_ends(flow.source, sorted(topics))
    try:
        there = log_ends(flow.target, list(flow.remote(sorted(topics)).values()))
    except Exception:
        return False  # a topic that is not there yet
    return all(there.get((flow.remote([topic])[topic], number), -1) >= ends[topic, number] for topic, number in first)


def _compare(flow: Flow, first: Mapping[tuple[str, int], int]) -> None:
    """The target has exactly the source's committed records from the first offsets on, at the same offsets."""
    for topic in sorted({topic for topic, _ in first}):
        remote = flow.remote([topic])[topic]
        here = read_records(flow.source.client_config(), topic)
        there = read_records(flow.target.client_config(), remote)
        starts = bounds(flow.target.client_config(), [remote])[remote]
        for number in sorted(number for name, number in first if name == topic):
            begin = first[topic, number]
            assert _plain(there.get(number, [])) == _plain(here.get(number, []), begin), (topic, number)
            assert starts[number].log_start == begin, (topic, number)


def test_replicate_from_latest(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    prefix = f"{unique_name('latest')}."
    flow = Flow(
        source_cluster,
        target_cluster,
        tmp_path,
        flow_name(prefix),
        prefix,
        ("A", "B"),
        {
            "mirror": {"start": "latest"},
            "seed": {"via": "direct", "slice_seconds": 5, "max_bytes_per_second": "200KB"},
        },
    )
    orders, payments, mixed = f"{prefix}orders", f"{prefix}payments", f"{prefix}mixed"
    source_cluster.create_topics({orders: (2, {}), payments: (2, {}), mixed: (1, {})})
    for number in (0, 1):
        _write(source_cluster, orders, number, "before", 100)
    names = ("writer", "other", "ended", "late")
    writer, other, ended, late = (_transactional(source_cluster, f"{prefix}{name}") for name in names)
    writer.begin_transaction()
    for number in (0, 1):
        _produce(writer, payments, number, b"before")
    writer.commit_transaction(30)
    # Open at the start: one transaction will be committed, the other one aborted.
    for producer, number in ((writer, 0), (other, 1)):
        producer.begin_transaction()
        _produce(producer, payments, number, *(b"open %d" % item for item in range(5)))
    # The one that has ended began before the open one, and wrote after it.
    _write(source_cluster, mixed, 0, "before", 1)
    for producer in (ended, late):
        producer.begin_transaction()
    _produce(ended, mixed, 0, b"ended 1")
    _produce(late, mixed, 0, b"open")
    _produce(ended, mixed, 0, b"ended 2")
    ended.commit_transaction(30)
    readers, idle = f"{prefix}readers", f"{prefix}idle"
    commit_offsets(source_cluster.client_config(), readers, {(orders, 0): 40, (orders, 1): 100})
    commit_offsets(source_cluster.client_config(), idle, {(orders, 0): 100})

    process, log = flow.begin()
    wait_for("the start is journaled", lambda: process.poll() is not None or _starts(flow), SECONDS, 0.05)
    assert process.poll() is None, log.read_text(encoding="utf-8")
    # 4 MB behind the start take 20 s in the seed.
    _write(source_cluster, orders, 0, "after", 400, 10_000)
    _write(source_cluster, orders, 1, "after", 10)
    remote = flow.remote([orders, payments, mixed])

    def is_seeding() -> bool:
        assert process.poll() is None, log.read_text(encoding="utf-8")
        if not any(item["to"] == "seed" for item in _entries(flow)):
            return False
        end = log_ends(target_cluster, [remote[orders]])[remote[orders], 0]
        return 100 < end < 500

    wait_for("the seed has copied something", is_seeding, SECONDS, 0.1)
    process.kill()
    process.wait()
    assert log_ends(target_cluster, [remote[orders]])[remote[orders], 0] < 500, "it was killed in the middle"
    _write(source_cluster, orders, 1, "while it is down", 10)
    writer.commit_transaction(30)
    other.abort_transaction(30)
    late.commit_transaction(30)

    process = flow.start()
    (starts,) = _starts(flow)
    assert {name: topic["offsets"] for name, topic in starts.items()} == {
        orders: [100, 100],
        payments: [2, 2],
        mixed: [1],
    }
    first = {(orders, 0): 100, (orders, 1): 100, (payments, 0): 2, (payments, 1): 2, (mixed, 0): 1}
    eventually(lambda: _has_all(flow, first), "everything behind the start is there")
    _compare(flow, first)
    committed = read_records(target_cluster.client_config(), remote[payments])
    assert [item.value for item in committed[0]] == [b"open %d" % number for number in range(5)], "all of it"
    assert not committed.get(1), "nothing of what was aborted"
    whole = read_records(target_cluster.client_config(), remote[mixed])[0]
    assert [item.value for item in whole] == [b"ended 1", b"open", b"ended 2"], "both transactions, each as a whole"

    # Later topics and partitions: from their beginning.
    later = f"{prefix}later"
    source_cluster.create_topics({later: (1, {})})
    _write(source_cluster, later, 0, "later", 20)
    admin = source_cluster.admin()
    admin.create_partitions([NewPartitions(orders, 3)])[orders].result()
    wait_for("the new partition", lambda: len(admin.list_topics(orders).topics[orders].partitions) == 3, 120)
    _write(source_cluster, orders, 2, "grown", 20)
    first |= {(later, 0): 0, (orders, 2): 0}
    eventually(lambda: _has_all(flow, first), "what came later is there")
    _compare(flow, first)

    # Groups: below the start they get the start, at or behind it their offset.
    commit_offsets(source_cluster.client_config(), idle, {(orders, 0): 300})
    wanted = {readers: {(remote[orders], 0): 100, (remote[orders], 1): 100}, idle: {(remote[orders], 0): 300}}
    for group, offsets in wanted.items():
        eventually(
            lambda group=group, offsets=offsets: (  # type: ignore[misc]
                committed_offsets(target_cluster.client_config(), group, [remote[orders]]) == offsets
            ),
            f"{group} on the target",
        )
    verified = flow("verify")
    assert verified["state"] == "mirroring"

    # The source deletes below the start: nothing happens. Above it: the target follows.
    _delete(source_cluster, orders, 50)
    time.sleep(5)
    assert bounds(target_cluster.client_config(), [remote[orders]])[remote[orders]][0].log_start == 100
    _delete(source_cluster, orders, 150)
    eventually(
        lambda: bounds(target_cluster.client_config(), [remote[orders]])[remote[orders]][0].log_start > 100,
        "the target's log start follows",
    )

    assert flow("promote")["details"]["problems"] == []
    assert process.wait(240) == ExitCode.OK
    back = copy.copy(flow)
    back.source, back.target = flow.target, flow.source
    back.spec, back.name = flow.folder / "back.json", f"{flow.name}.back"
    flow("fail-back", "--spec-output", str(back.spec))
    end = log_ends(target_cluster, [remote[orders]])[remote[orders], 1]
    _write(target_cluster, remote[orders], 1, "on B", 10)
    with back.running():
        eventually(
            lambda: log_ends(source_cluster, [orders])[orders, 1] >= end + 10,
            "what clients wrote to the target is back",
        )
    home = read_records(source_cluster.client_config(), orders)[1]
    assert [item.value for item in home if item.offset >= end] == [b"on B %d " % number for number in range(10)]
    assert [item.value for item in home if item.offset < 100] == [b"before %d " % number for number in range(100)]


@pytest.mark.soak
def test_a_later_start_where_offsets_are_not_equal(
    request: pytest.FixtureRequest,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Shifted, mapped, and in transactions: only what is written after the start; groups are translated exactly."""
    folder = tmp_path_factory.mktemp("late-offsets")
    names = {mode: f"{folder.name.replace('_', '-')}.{mode}" for mode in ("shifted", "mapped", "transactional")}
    modes = [{"topics": [topic], "mode": mode} for mode, topic in names.items()]
    scene = make_scene(
        request,
        folder,
        (source_cluster, target_cluster),
        mirror={"start": "latest"},
        offsets={"by_topic": modes},
    )
    source_cluster.create_topics({topic: (1, {}) for topic in names.values()})
    for topic in names.values():
        scene.write(topic, [0], 30)
    scene.mirror.start()
    scene.transactional = True
    for topic in names.values():
        scene.write(topic, [0], 40)
    scene.mirror.stop()
    for topic in names.values():
        scene.write(topic, [0], 20)
    scene.mirror.start()
    config = source_cluster.client_config()
    below, behind = scene.name("below"), scene.name("behind")
    for group, offset in ((below, 10), (behind, 50)):
        commit_offsets(config, group, {(topic, 0): offset for topic in names.values()})
    with scene.mirror.reading() as context:
        plan = context.record.plan()
        verdicts = {topic.name: topic.partitions[0].verdict.value for topic in plan.topics}
        starts = {topic.name: topic.partitions[0].source_start_offset for topic in plan.topics}
    assert verdicts == {topic: mode for mode, topic in names.items()}
    assert set(starts.values()) == {30}

    def values(cluster: KafkaCluster, topic: str, first: int) -> list[bytes | None]:
        return [item.value for item in read_records(cluster.client_config(), topic)[0] if item.offset >= first]

    for topic in names.values():
        remote = scene.remote(topic)
        eventually(
            lambda topic=topic, remote=remote: (  # type: ignore[misc]
                values(target_cluster, remote, 0) == values(source_cluster, topic, 30)
            ),
            f"{topic} from its start on",
        )
        for group, first in ((below, 30), (behind, 50)):

            def reads_the_rest(
                group: str = group, first: int = first, topic: str = topic, remote: str = remote
            ) -> bool:
                at = committed_offsets(target_cluster.client_config(), group, [remote]).get((remote, 0))
                return at is not None and values(target_cluster, remote, at) == values(source_cluster, topic, first)

            eventually(reads_the_rest, f"{group} of {topic}")
