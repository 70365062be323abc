"""Mirrors that write MirrorMaker 2's state topics by themselves, as Kafka's own classes read them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from airflow_provider_kafka_migration.mirror_maker.formats import Checkpoint, Heartbeat, OffsetSync
from harness.brokers import KafkaCluster
from harness.clients import GroupReader, LiveProducer, commit_offsets, committed_offsets
from harness.compare import compare, read_records
from harness.mirror_client import MirrorClient, mirror_client
from tests.integration.mirrors.mirror_support import Flow, eventually, log_ends
from tests.integration.mirrors.scenario_support import topics_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1500)]

ON: dict[str, Any] = {
    "checkpoints": True,
    "heartbeats": True,
    "checkpoints_interval": "1s",
    "heartbeats_interval": "500ms",
}
#: Within this time a flow that works has certainly sent a heartbeat, also on a busy machine.
QUIET_SECONDS = 20.0


@pytest.fixture(scope="module")
def java(target_cluster: KafkaCluster) -> Iterator[MirrorClient]:
    """Kafka's own client of the cluster that is the first target."""
    with mirror_client({"bootstrap.servers": target_cluster.bootstrap}) as client:
        yield client


def write(cluster: KafkaCluster, topic: str, records: int) -> None:
    producer = Producer(cluster.client_config())
    for number in range(records):
        producer.produce(topic, b"%d" % number, b"key", number % 2)
    assert producer.flush(60) == 0


def newest(cluster: KafkaCluster, topic: str) -> dict[tuple[str, str], int]:
    """Times of the newest heartbeats of a topic in ms, by (source alias, target alias)."""
    if topic not in topics_of(cluster, topic):
        return {}
    found = [Heartbeat.decode(item.key, item.value) for item in read_records(cluster.client_config(), topic)[0]]
    return {(item.source_alias, item.target_alias): item.timestamp_ms for item in found}


class Beat:
    """The heartbeats with one key in one topic."""

    def __init__(self, cluster: KafkaCluster, topic: str, key: tuple[str, str]) -> None:
        self.cluster, self.topic, self.key = cluster, topic, key

    def at(self) -> int:
        return newest(self.cluster, self.topic).get(self.key, 0)

    def goes_on(self, since_ms: int) -> None:
        eventually(lambda: self.at() > since_ms, f"a heartbeat {self.key} in {self.topic} after {since_ms}")


def now_ms() -> int:
    return int(time.time() * 1000)


@pytest.mark.soak
def test_a_chain_whose_mirrors_and_first_source_die(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    java: MirrorClient,
    unique_name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    """A -> B -> C. A gets heartbeats and offset syncs, too; B is only read by the second flow."""
    name = unique_name("state")
    topic, group = f"{name}.orders", f"{name}.readers"
    stem = name.lower().replace("_", "-").replace(".", "-")
    a, b, c = (f"{stem}-{letter}" for letter in "abc")
    known = {"known_aliases": [a, b, c], "sync_groups": False}
    to_source = {**ON, "heartbeats_on_source": True, "offset_syncs": "source"}
    with KafkaCluster(tmp_path / "a", "4.1.1", "kraft") as first:
        first.create_topics({topic: (2, {})})
        write(first, topic, 200)
        there = Flow(
            first, target_cluster, tmp_path, f"{stem}-ab", f"{name}.", (a, b),
            {"mirror": {**known, "state_topics": to_source}},
        )  # fmt: skip
        onward = Flow(
            target_cluster, source_cluster, tmp_path, f"{stem}-bc", f"{name}.", (b, c),
            {"mirror": {**known, "state_topics": ON}},
        )  # fmt: skip
        at_b = Beat(target_cluster, f"{a}.heartbeats", (b, a))
        at_c = Beat(source_cluster, f"{b}.{a}.heartbeats", (b, a))
        own = Beat(target_cluster, "heartbeats", (a, b))
        at_a = Beat(first, "heartbeats", (b, a))
        process = there.start()
        with onward.running():
            # -- what Kafka's own classes answer
            commit_offsets(first.client_config(), group, {(topic, 0): 30, (topic, 1): 70})
            eventually(
                lambda: java.translate(a, group) == {(f"{a}.{topic}", 0): 30, (f"{a}.{topic}", 1): 70},
                "the checkpoints of the group",
            )
            for beat in (at_a, at_b, at_c, own):
                beat.goes_on(0)
            assert a in java.upstream_clusters()
            assert java.replication_hops(a) == 1
            last = java.about({"bootstrap.servers": source_cluster.bootstrap})
            assert {a, b} <= last.upstream_clusters()
            assert (last.replication_hops(b), last.replication_hops(a)) == (1, 2)
            assert {f"{b}.{a}.heartbeats", "heartbeats"} <= last.topics("heartbeatTopics")
            assert f"{a}.checkpoints.internal" in java.topics("checkpointTopics")
            syncs = read_records(first.client_config(), f"mm2-offset-syncs.{b}.internal")[0]
            assert {OffsetSync.decode(item.key, item.value).topic for item in syncs} == {topic}
            names = topics_of(target_cluster, stem)
            assert not {item for item in names if item.startswith(("mm2-offset-syncs", f"{c}."))}

            # -- the first mirror dies: its heartbeats end, and those of the second one do not
            process.kill()
            process.wait()
            killed_ms = now_ms()
            Beat(source_cluster, "heartbeats", (b, c)).goes_on(killed_ms + int(QUIET_SECONDS * 1000))
            assert max(at_a.at(), at_b.at(), at_c.at(), own.at()) <= killed_ms
            commit_offsets(first.client_config(), group, {(topic, 0): 80, (topic, 1): 5})
            process = there.start()
            for beat in (at_a, at_b, at_c, own):
                beat.goes_on(killed_ms)
            eventually(
                lambda: java.translate(a, group) == {(f"{a}.{topic}", 0): 80, (f"{a}.{topic}", 1): 5},
                "the checkpoints after the restart, one of them set back",
            )

            # -- its source dies: only the heartbeat of the flow itself goes on
            first.kill(0)
            gone_ms = now_ms()
            own.goes_on(gone_ms + int(QUIET_SECONDS * 1000))
            assert max(at_b.at(), at_c.at()) <= gone_ms, "nobody invents a heartbeat of the source"
            eventually(lambda: bool(there("status")["state_topics"]["heartbeats"]["problem"]), "the status names it")
            assert process.poll() is None
            first.restart(0)
            for beat in (at_a, at_b, at_c):
                beat.goes_on(gone_ms)
            eventually(lambda: not there("status")["state_topics"]["heartbeats"]["problem"], "the problem is over")

            # -- the copy has not noticed any of it
            write(first, topic, 50)
            eventually(lambda: there("status")["lag"]["total"] == 0, "everything is on B")
            compare(first.client_config(), target_cluster.client_config(), {topic: f"{a}.{topic}"}).check()

            # -- a pause ends all of them
            there("pause")
            process.wait(240)
            paused_ms = now_ms()
            Beat(source_cluster, "heartbeats", (b, c)).goes_on(paused_ms + int(QUIET_SECONDS * 1000))
            assert max(at_a.at(), at_b.at(), own.at()) <= paused_ms
            # While it is paused, one may write them by hand; while it runs, one may not.
            there.command("translate", "publish", there.spec, "--once", status=0)
        assert {item for item in topics_of(first) if "heartbeats" in item} == {"heartbeats"}


def test_a_group_at_the_end_of_its_topic_has_checkpoints(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    java: MirrorClient,
    unique_name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    """It commits what it reads, as fast as that is written: it is always ahead of what copiers have confirmed.

    Beside it, a remote topic is deleted by somebody: only that one has no checkpoint any more.
    """
    name = unique_name("tip")
    topic, other = f"{name}.orders", f"{name}.other"
    group, idle = f"{name}.readers", f"{name}.idle"
    stem = name.lower().replace("_", "-").replace(".", "-")
    a, b = f"{stem}-a", f"{stem}-b"
    source_cluster.create_topics({topic: (2, {}), other: (2, {})})
    write(source_cluster, other, 20)
    sections: dict[str, Any] = {
        "mirror": {"state_topics": {"checkpoints": True, "checkpoints_interval": "1s"}},
        # With the end of each slice, what copiers have confirmed is for a moment where the group is.
        "tail": {"slice_seconds": 20},
    }
    flow = Flow(source_cluster, target_cluster, tmp_path, f"{stem}-flow", f"{name}.", (a, b), sections)
    config = source_cluster.client_config()
    remote = [(f"{a}.{topic}", number) for number in range(2)]

    def written_at() -> str:
        return str(flow("status")["state_topics"].get("checkpoints", {}).get("written_at", ""))

    def follow() -> None:
        """The checkpoints are where the group sync was before the pass, and never beyond the group or the copy."""
        synced = committed_offsets(target_cluster.client_config(), group, [f"{a}.{topic}"])
        for _ in range(2):  # the pass of the second one has certainly begun after that
            before = written_at()
            eventually(lambda before=before: written_at() > before, "a pass over the checkpoints")  # type: ignore[misc]
        found = java.translate(a, group)
        there = committed_offsets(config, group, [topic])
        ends = log_ends(target_cluster, [f"{a}.{topic}"])
        for key in remote:
            assert synced[key] <= found.get(key, -1) <= min(ends[key], there[topic, key[1]])

    with (
        LiveProducer(config, {topic: range(2)}, records_per_second=200) as producer,
        GroupReader(config, group, [topic]),
        flow.running(),
    ):
        eventually(
            lambda: all(
                committed_offsets(target_cluster.client_config(), group, [f"{a}.{topic}"]).get(key, -1) > 0
                for key in remote
            ),
            "the group sync has written the group",
        )
        follow()
        target_cluster.delete_topics([f"{a}.{other}"])
        commit_offsets(config, idle, {(topic, 0): 7, (other, 1): 3})
        eventually(lambda: java.translate(a, idle) == {remote[0]: 7}, "the checkpoint of the topic that is there")
        eventually(
            lambda: committed_offsets(target_cluster.client_config(), idle, [f"{a}.{topic}"]) == {remote[0]: 7},
            "the offset of the group on the target",
        )
        found = flow("status")
        assert found["group_sync"] is None
        assert found["groups"]["failed"] == 1, "the idle group is not complete, and that is told"
        follow()
        producer.freeze()


@pytest.mark.soak
def test_a_source_that_is_only_read_and_a_promotion(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    java: MirrorClient,
    unique_name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    """With identity names. The last checkpoints are those of the promotion, and stay."""
    name = unique_name("readonly")
    topic, group = f"{name}.orders", f"{name}.readers"
    stem = name.lower().replace("_", "-").replace(".", "-")
    a, b = f"{stem}-a", f"{stem}-b"
    source_cluster.create_topics({topic: (2, {})})
    write(source_cluster, topic, 100)
    before = topics_of(source_cluster)
    flow = Flow(
        source_cluster, target_cluster, tmp_path, f"{stem}-flow", f"{name}.", (a, b),
        {"mirror": {"naming": "identity", "state_topics": {**ON, "checkpoints_interval": "1h"}}},
    )  # fmt: skip
    process = flow.start()
    Beat(target_cluster, f"{a}.heartbeats", (b, a)).goes_on(0)
    policy = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"
    client = java.about({"bootstrap.servers": target_cluster.bootstrap, "replication.policy.class": policy})
    assert client.replication_hops(a) == 1
    assert a in client.upstream_clusters()
    refused = flow.command("translate", "publish", flow.spec, "--once", status=1)
    assert "by itself" in str(refused)
    commit_offsets(source_cluster.client_config(), group, {(topic, 0): 50, (topic, 1): 20})
    eventually(lambda: flow("status")["lag"]["total"] == 0, "everything is mirrored")
    promoted = flow("promote")
    assert promoted["details"]["problems"] == []
    process.wait(240)
    assert client.translate(a, group) == {(topic, 0): 50, (topic, 1): 20}
    found = read_records(target_cluster.client_config(), f"{a}.checkpoints.internal")[0]
    assert {Checkpoint.decode(item.key, item.value).group for item in found} == {group}
    created = topics_of(source_cluster) - before
    assert not [item for item in created if stem in item or "internal" in item], "nothing was created on the source"
