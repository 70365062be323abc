"""One flow by the command line: killed, paused, resumed, promoted, under a live producer."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_kafka_migration.cli.frame import ExitCode
from airflow_provider_kafka_migration.documents.mirror import Promotion
from harness.brokers import KafkaCluster
from harness.clients import LiveProducer, commit_offsets, committed_offsets, lost_records, positions
from harness.compare import compare
from harness.load import Kind, load, tiny_topics
from tests.integration.mirrors.mirror_support import (
    Flow,
    eventually,
    flow_name,
    flow_of_doomed_source,
    log_ends,
    promote_without_source,
)

pytestmark = pytest.mark.integration


@pytest.fixture
def flow(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_name: Callable[[str], str], tmp_path: Path
) -> Flow:
    prefix = f"{unique_name('mirror')}."
    return Flow(source_cluster, target_cluster, tmp_path, flow_name(prefix), prefix, ("A", "B"))


@pytest.mark.timeout(900)
def test_a_flow_is_killed_paused_resumed_and_promoted(flow: Flow) -> None:
    loads = tiny_topics(flow.prefix)
    load(flow.source, loads)
    names = [item.name for item in loads]
    remote = flow.remote(names)
    orders = f"{flow.prefix}orders"
    partitions = sorted(number for topic, number in log_ends(flow.source, [orders]))
    group = f"{flow.prefix}readers"
    commit_offsets(flow.source.client_config(), group, positions(flow.source.client_config(), [orders], 0.5))

    refused = flow("pause", status=ExitCode.FAILED)
    assert refused["error"]["code"] == "DOCUMENT_UNREADABLE", "there is no mirror yet"
    assert {row["remote_topic"] for row in flow("topics")["topics"] if row["remote_topic"]} >= set(remote.values())

    with LiveProducer(flow.source.client_config(), {orders: partitions}, records_per_second=300) as producer:
        process = flow.start()
        eventually(lambda: producer.count() > 300, "the producer writes")
        process.kill()
        process.wait()
        process = flow.start()

        # A group follows while the mirror runs.
        group_offsets = positions(flow.source.client_config(), [orders], 0.9)
        commit_offsets(flow.source.client_config(), group, group_offsets)
        on_target = {(remote[topic], number): offset for (topic, number), offset in group_offsets.items()}
        eventually(
            lambda: committed_offsets(flow.target.client_config(), group, [remote[orders]]) == on_target,
            "the group's offsets are on the target",
        )

        paused = flow("pause", "--reason", "window")
        assert paused["state"] == "paused"
        assert paused["details"]["reason"] == "window"
        assert process.wait(240) == ExitCode.WAITS
        assert flow.state() == "paused"
        before = log_ends(flow.target, list(remote.values()))
        time.sleep(3)
        assert log_ends(flow.target, list(remote.values())) == before, "nothing is copied while it is paused"
        flow("run", status=ExitCode.WAITS)

        process = flow.start("resume")
        still = flow("promote", status=ExitCode.FAILED)
        assert still["error"]["code"] == "REQUEST_REFUSED"
        # One of the producers may have a transaction open at that moment.
        reasons = ("producers still write", "open transactions hold back")
        assert any(reason in still["error"]["what"] for reason in reasons), still
        assert flow.state() == "mirroring"
        process.send_signal(signal.SIGKILL)
        process.wait()
        flow("pause")
        process = flow.start("resume")

    commit_offsets(flow.source.client_config(), group, positions(flow.source.client_config(), [orders], 1.0))
    promoted = flow("promote", "--reason", "moved")
    assert promoted["state"] == "promoted"
    assert promoted["details"]["problems"] == []
    assert promoted["details"]["possibly_lost"] == 0
    assert process.wait(240) == ExitCode.OK

    compacted = [item.name for item in loads if item.kind is Kind.COMPACTED]
    source, target = flow.source.client_config(), flow.target.client_config()
    compare(source, target, remote, compacted=compacted, fenced=True).check()
    acknowledged = {(remote[topic], number): found for (topic, number), found in producer.acknowledged.items()}
    assert producer.count() > 1000
    assert lost_records(target, acknowledged) == []
    ends = {(remote[topic], number): end for (topic, number), end in log_ends(flow.source, [orders]).items()}
    assert committed_offsets(target, group, [remote[orders]]) == ends
    assert flow("run")["state"] == "promoted", "nothing is copied any more"
    assert flow("resume", status=ExitCode.FAILED)["error"]["code"] == "ILLEGAL_TRANSITION"


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_source_is_gone(
    target_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The source dies for good right after a write: what is on the target is known by partition, and is right."""
    prefix = f"{unique_name('gone')}."
    orders = f"{prefix}orders"
    folder = tmp_path_factory.mktemp("doomed")
    with (
        flow_of_doomed_source(folder, target_cluster, tmp_path, prefix, partitions=2) as flow,
        LiveProducer(flow.source.client_config(), {orders: [0, 1]}, records_per_second=200) as producer,
    ):
        process = flow.start()
        eventually(lambda: producer.count() > 500, "the producer writes")
        before = producer.count()
        eventually(lambda: producer.count() > before + 1000, "slices end")
        # The producer could not end with answers outstanding. What it has just written may not be mirrored yet.
        producer.freeze()
        flow.source.stop(graceful=False)
        promote_without_source(flow, "--reason", "fire")
    assert process.wait(240) == ExitCode.OK
    found = Promotion.parse((tmp_path / flow.name / flow.name / "results" / "promotion.json").read_bytes())
    until = {(item.topic, item.partition): item.mirrored_until for item in found.partitions}
    assert set(until) == {(orders, 0), (orders, 1)}
    assert all(offset > 0 for offset in until.values())
    assert found.source_seen_at
    for item in found.partitions:
        assert item.source_end_offset >= 0
        assert item.target_end_offset == item.mirrored_until, "equal offsets"
    acknowledged = {
        (flow.remote([topic])[topic], number): [record for record in records if record.offset < until[topic, number]]
        for (topic, number), records in producer.acknowledged.items()
    }
    assert sum(map(len, acknowledged.values())) > 500
    assert lost_records(target_cluster.client_config(), acknowledged) == []
