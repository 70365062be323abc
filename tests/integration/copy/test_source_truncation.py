"""The source loses records that were copied already: an unclean election, and a log that grows past our position."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from harness.brokers import KafkaCluster
from harness.copying import results_of, wait_begun
from harness.processes import wait_for
from harness.raw_writer import RawWriter, plain
from tests.integration.copy.conftest import MakeCopying

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def three_sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers of 3.9.1; a replica that is out of sync may lead."""
    config = {"unclean.leader.election.enable": "true", "auto.leader.rebalance.enable": "false"}
    folder = tmp_path_factory.mktemp("three-sources")
    with KafkaCluster(folder, "3.9.1", "zookeeper", brokers=3, config=config, sasl=False, authorizer=False) as cluster:
        yield cluster


class Replicas:
    """A partition with two replicas on a cluster of three brokers."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        self.cluster = cluster
        self.topic = topic
        admin = cluster.admin()
        found = admin.list_topics(timeout=20)
        #: the controller stays, so that it can elect
        self.leader, self.follower = [node for node in sorted(found.brokers) if node != found.controller_id]
        config = {"retention.ms": "-1", "min.insync.replicas": "1"}
        new = NewTopic(topic, 1, replica_assignment=[[self.leader, self.follower]], config=config)
        for future in admin.create_topics([new], request_timeout=20).values():
            future.result()
        self.wait(leader=self.leader, isr=[self.leader, self.follower])

    def wait(self, *, leader: int, isr: list[int]) -> None:
        """Until this broker leads and these are in sync."""
        admin = self.cluster.admin()

        def is_so() -> bool:
            found = admin.list_topics(self.topic, timeout=5).topics[self.topic].partitions.get(0)
            return found is not None and found.leader == leader and sorted(found.isrs) == sorted(isr)

        wait_for(f"broker {leader} leads, in sync {isr}", is_so, 90)

    def index(self, node_id: int) -> int:
        """Place of a broker in its cluster."""
        return next(index for index in range(self.cluster.brokers) if self.cluster.node_id(index) == node_id)

    def lose(self, write: Callable[[], None]) -> None:
        """What is written is on the leader alone, and that one dies: the other replica leads without it."""
        self.cluster.kill(self.index(self.follower))
        self.wait(leader=self.leader, isr=[self.leader])
        write()
        self.cluster.kill(self.index(self.leader))
        self.cluster.restart(self.index(self.follower))
        self.wait(leader=self.follower, isr=[self.follower])


def write(cluster: KafkaCluster, topic: str, text: bytes, batches: int) -> None:
    """Batches of ten records."""
    with RawWriter(cluster.bootstrap) as writer:
        for number in range(batches):
            writer.write(topic, 0, plain(*[b"%s %d" % (text, number)] * 10))


def test_an_unclean_election_that_regrows_past_our_position_is_named(
    copying: MakeCopying, three_sources: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    """The copier sleeps while the source loses 50..99 and grows to 150, so no fetch is ever out of range."""
    replicas = Replicas(three_sources, topic)
    write(three_sources, topic, b"kept", 5)
    copy = copying([topic], source=three_sources)
    copy.write_job("tail", slice_seconds=300)
    worker = copy.worker(0, "tail", "--slices", "1")
    try:
        wait_begun(worker)
        target = copy.clients.wire("target")

        def lose() -> None:
            write(three_sources, topic, b"lost", 5)
            wait_for("copied", lambda: target.list_offsets([(topic, 0)], "latest")[topic, 0] == 100, 60)
            worker.send_signal(signal.SIGSTOP)

        replicas.lose(lose)
        write(three_sources, topic, b"new", 10)
        assert copy.stable_ends()[topic, 0] == 150
        worker.send_signal(signal.SIGCONT)
        out, err = worker.communicate(timeout=120)
    finally:
        worker.kill()
    (result,) = results_of(out)
    assert result.error is not None, err[-3000:]
    assert result.error["code"] == "SOURCE_TRUNCATED", result.error
    details = result.error["details"]
    assert isinstance(details, dict)
    assert (details["truncated_offset"], details["source_offset"]) == (50, 100)
    # Nothing of the new log was put behind what the source has lost.
    assert result.target_offset == 100
    assert target.list_offsets([(topic, 0)], "log_end")[topic, 0] == 100
