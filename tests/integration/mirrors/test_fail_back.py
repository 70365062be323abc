"""Failing back on real brokers: from a promoted mirror's end on, exactly once, and around records nobody mirrored."""

from __future__ import annotations

import atexit
import copy
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from airflow_provider_kafka_migration.cli.frame import ExitCode
from harness.brokers import KafkaCluster
from harness.clients import LiveProducer, commit_offsets, committed_offsets, lost_records, positions
from harness.compare import compare, read_records
from harness.load import Kind, load, tiny_topics
from tests.integration.mirrors.mirror_support import (
    Flow,
    eventually,
    flow_name,
    flow_of_doomed_source,
    log_ends,
    promote_without_source,
)

#: Two mirrors one after the other, each command a process of its own.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]


def _started(flow: Flow) -> subprocess.Popen[str]:
    """Start a mirror. One that a failed test leaves would run until the machine stops."""
    process = flow.start()
    atexit.register(process.kill)
    return process


def _back(flow: Flow, *options: str, name: str = "back.json") -> Flow:
    """Derive the mirror back, as a person does."""
    back = copy.copy(flow)
    back.source, back.target = flow.target, flow.source
    back.spec, back.name = flow.folder / name, f"{flow.name}.back"
    flow("fail-back", "--spec-output", str(back.spec), *options)
    return back


def _transactions(cluster: KafkaCluster, topic: str, label: str) -> None:
    """Seven records in each of nine transactions; every third one is aborted."""
    writer = Producer({**cluster.client_config(), "transactional.id": f"{topic}.{label}"})
    writer.init_transactions()
    for transaction in range(9):
        writer.begin_transaction()
        for number in range(7):
            writer.produce(topic, f"{label}-{transaction}-{number}".encode(), b"paid", number % 2)
        if transaction % 3 == 2:
            writer.abort_transaction()
        else:
            writer.commit_transaction()


def test_clients_fail_back_after_a_planned_promotion(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    prefix = f"{unique_name('failback')}."
    flow = Flow(source_cluster, target_cluster, tmp_path, flow_name(prefix), prefix, ("A", "B"))
    loads = tiny_topics(prefix)
    load(source_cluster, loads)
    names = [item.name for item in loads]
    remote = flow.remote(names)
    orders, payments = f"{prefix}orders", f"{prefix}payments"
    numbers = sorted(number for _, number in log_ends(source_cluster, [orders]))
    old, new = source_cluster.client_config(), target_cluster.client_config()

    with LiveProducer(old, {orders: numbers}, records_per_second=300, seed=16) as before:
        process = _started(flow)
        eventually(lambda: before.count() > 500, "the producer writes")
        _transactions(source_cluster, payments, "before")
    flow("promote")
    assert process.wait(240) == ExitCode.OK
    boundary = log_ends(source_cluster, names)

    with LiveProducer(new, {remote[orders]: numbers}, records_per_second=300, seed=17) as after:
        eventually(lambda: after.count() > 300, "clients write to B")
        _transactions(target_cluster, remote[payments], "after")
        back = _back(flow)
        process = _started(back)
        written = after.count()
        eventually(lambda: after.count() > written + 500, "clients write while the mirror goes back")
        process.kill()
        process.wait()
        process = _started(back)
    group = f"{prefix}readers"
    # One behind the boundary's place, one in what clients wrote, one at the end.
    places = positions(new, [remote[orders]], 1.0)
    places[remote[orders], 0] = boundary[orders, 0] - 5
    places[remote[orders], 1] = boundary[orders, 1] + 20
    commit_offsets(new, group, places)
    assert flow("fail-back", status=ExitCode.FAILED)["error"]["code"] == "ILLEGAL_TRANSITION", "it has begun"
    promoted = back("promote")
    assert promoted["details"]["problems"] == []
    assert process.wait(240) == ExitCode.OK

    compacted = [remote[item.name] for item in loads if item.kind is Kind.COMPACTED]
    home = {there: here for here, there in remote.items()}
    compare(new, old, home, compacted=compacted, fenced=True).check()
    acknowledged = {(home[topic], number): found for (topic, number), found in after.acknowledged.items()}
    assert after.count() > 800
    assert lost_records(old, acknowledged) == []
    assert lost_records(old, before.acknowledged) == []
    assert committed_offsets(old, group, [orders]) == {
        (home[topic], number): at for (topic, number), at in places.items()
    }
    admin = source_cluster.admin()
    assert not [
        name for name in admin.list_topics(timeout=30).topics if name.startswith(("A.", "B.")) and prefix in name
    ]


@pytest.mark.soak
@pytest.mark.parametrize("policy", ["note", "repair"])
def test_a_source_returns_with_records_that_nobody_mirrored(
    policy: str,
    target_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The mirror dies, one partition gets more records, and then its source is killed."""
    prefix = f"{unique_name('returned')}."
    orders = f"{prefix}orders"
    folder = tmp_path_factory.mktemp("returned")
    with flow_of_doomed_source(folder, target_cluster, tmp_path, prefix, partitions=3) as flow:
        source, remote = flow.source, flow.remote([orders])[orders]
        old, new = source.client_config(), target_cluster.client_config()
        with LiveProducer(old, {orders: [0, 1, 2]}, records_per_second=200) as producer:
            process = _started(flow)
            eventually(lambda: producer.count() > 500, "the producer writes")
            producer.freeze()
            ends = {(remote, number): end for (_, number), end in log_ends(source, [orders]).items()}
            eventually(lambda: log_ends(target_cluster, [remote]) == ends, "B has everything")
        process.kill()
        process.wait()
        with LiveProducer(old, {orders: [1]}, records_per_second=200, seed=2) as lost:
            eventually(lambda: lost.count() > 50, "records that nobody mirrors")
            lost.freeze()
        tail = log_ends(source, [orders])
        source.kill(0)
        promote_without_source(flow)
        with LiveProducer(new, {remote: [0, 1, 2]}, records_per_second=200, seed=3) as after:
            eventually(lambda: after.count() > 300, "clients write to B")
            after.freeze()
        source.restart(0)
        assert log_ends(source, [orders]) == tail

        refused = flow("fail-back", status=ExitCode.FAILED)["refused"]
        assert [(item["topic"], item["partition"]) for item in refused] == [(remote, 1)]
        first, last = ends[remote, 1], tail[orders, 1] - 1
        assert f"offsets {first} to {last} of {orders}-1 were never mirrored" in refused[0]["reason"]

        back = _back(flow, "--on-diverged", policy)
        with back.running():
            wanted = {key: end for key, end in log_ends(target_cluster, [remote]).items() if key[1] != 1}
            eventually(
                lambda: all(log_ends(source, [orders])[orders, number] == end for (_, number), end in wanted.items()),
                "A has what clients wrote to the other partitions",
            )
        kept = {("orders", 1): lost.acknowledged[orders, 1]}
        assert lost_records(old, {(orders, 1): kept["orders", 1]}) == [], "what was there is there"
        here, there = read_records(old, orders), read_records(new, remote)
        for number in (0, 2):
            assert [item.short() for item in here[number]] == [item.short() for item in there[number]]
            assert [item.offset for item in here[number]] == [item.offset for item in there[number]]
        if policy == "note":
            assert log_ends(source, [orders])[orders, 1] == tail[orders, 1], "nothing is appended to it"
            return
        shift = tail[orders, 1] - ends[remote, 1]
        came = [item for item in there[1] if item.offset > ends[remote, 1]]
        assert [item.offset + shift for item in came] == [
            item.offset for item in here[1] if item.offset > tail[orders, 1]
        ]
