"""The source loses records that were copied already: an unclean election, and a log that grows past our position."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence

import pytest
from confluent_kafka.admin import NewTopic

from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.offset_map.transactional import Position, group_name, read_positions
from harness.brokers import KafkaCluster
from harness.copiers.copying import results_of, wait_begun
from harness.processes import wait_for
from harness.raw_writer import RawWriter, plain
from tests.integration.copy.conftest import MakeCopying

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def three_sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers of 3.9.1; a replica that is out of sync may lead."""
    config = {"unclean.leader.election.enable": "true", "auto.leader.rebalance.enable": "false"}
    folder = tmp_path_factory.mktemp("three-sources")
    with KafkaCluster(folder, "3.9.1", "zookeeper", brokers=3, config=config, sasl=False, authorizer=False) as cluster:
        yield cluster


class Replicas:
    """Topics of one partition, with the same two replicas on a cluster of three brokers."""

    def __init__(self, cluster: KafkaCluster, topics: Sequence[str]) -> None:
        self.cluster = cluster
        self.topics = topics
        for index in range(cluster.brokers):
            if not cluster.is_running(index):  # an earlier try of this test has failed while the broker was down
                cluster.restart(index)
        admin = cluster.admin()
        found = admin.list_topics(timeout=20)
        #: the controller stays, so that it can elect
        self.leader, self.follower = [node for node in sorted(found.brokers) if node != found.controller_id]
        config = {"retention.ms": "-1", "min.insync.replicas": "1"}
        replicas = [[self.leader, self.follower]]
        new = [NewTopic(topic, 1, replica_assignment=replicas, config=config) for topic in topics]
        for future in admin.create_topics(new, request_timeout=20).values():
            future.result()
        self.wait(leader=self.leader, isr=[self.leader, self.follower])

    def wait(self, *, leader: int, isr: list[int]) -> None:
        """Until this broker leads and these are in sync."""
        admin = self.cluster.admin()

        def is_so() -> bool:
            topics = admin.list_topics(timeout=5).topics
            found = [topics[topic].partitions.get(0) for topic in self.topics if topic in topics]
            return len(found) == len(self.topics) and all(
                item is not None and item.leader == leader and sorted(item.isrs) == sorted(isr) for item in found
            )

        wait_for(f"broker {leader} leads, in sync {isr}", is_so, 120)

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


def write(cluster: KafkaCluster, topics: Sequence[str], text: bytes, batches: int) -> None:
    """Batches of ten records to each topic."""
    with RawWriter(cluster.bootstrap) as writer:
        for topic in topics:
            for number in range(batches):
                writer.write(topic, 0, plain(*[b"%s %d" % (text, number)] * 10))


def test_an_unclean_election_that_regrows_past_our_position_is_named(
    copying: MakeCopying, three_sources: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    """The copier sleeps while the source loses 50..99 and grows to 150, so no fetch is ever out of range. Of another
    topic nobody copies anything meanwhile."""
    plainly, in_transactions, between = unique_name("a"), unique_name("b"), unique_name("c")
    topics = [plainly, in_transactions, between]
    replicas = Replicas(three_sources, topics)
    write(three_sources, topics, b"kept", 5)
    verdicts = {(in_transactions, 0): Verdict.TRANSACTIONAL}
    slices = copying([between], source=three_sources)
    copy = copying([plainly, in_transactions], source=three_sources, verdicts=verdicts)
    copy.write_job("tail", slice_seconds=300)
    target = copy.clients.wire("target")

    def copied() -> bool:
        key = (in_transactions, 0)
        position = read_positions(target, group_name(copy.migration_id), [key])[key]
        end = target.list_offsets([(plainly, 0)], "latest")[plainly, 0]
        return end == 100 and isinstance(position, Position) and position.source_offset == 100

    worker = copy.worker(0, "tail", "--slices", "1")
    try:
        wait_begun(worker)

        def lose() -> None:
            write(three_sources, topics, b"lost", 5)
            wait_for("copied", copied, 120)
            worker.send_signal(signal.SIGSTOP)
            assert slices.run()["records"] == 100

        replicas.lose(lose)
        write(three_sources, topics, b"new", 10)
        assert {*copy.stable_ends().values(), *slices.stable_ends().values()} == {150}
        ends = target.list_offsets([(topic, 0) for topic in topics], "log_end")
        worker.send_signal(signal.SIGCONT)
        out, err = worker.communicate(timeout=240)
    finally:
        worker.kill()
    for result in results_of(out):
        assert result.error is not None, err[-3000:]
        assert result.error["code"] == "SOURCE_TRUNCATED", result.error
        details = result.error["details"]
        assert isinstance(details, dict)
        assert (details["truncated_offset"], details["source_offset"]) == (50, 100)
    # The next slice knows it from what the one before has stored, or, in transactions, from the epoch beside the
    # position.
    out, err = copy.worker(0, "tail", "--slices", "1").communicate(timeout=240)
    assert [item.error and item.error["code"] for item in results_of(out)] == ["SOURCE_TRUNCATED"] * 2, err
    slices.write_job("tail")
    out, err = slices.worker(0, "tail", "--slices", "1").communicate(timeout=240)
    (result,) = results_of(out)
    assert result.error is not None, err[-3000:]
    assert result.error["code"] == "SOURCE_TRUNCATED", result.error
    assert result.error["details"] == {**details, "leader_epoch": result.error["details"]["leader_epoch"]}
    # Nothing of the new log was put behind what the source has lost.
    assert target.list_offsets([(topic, 0) for topic in topics], "log_end") == ends
