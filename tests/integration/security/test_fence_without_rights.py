"""The migration's producer is fenced without the right to write control markers, on both kinds of brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from kafka.protocol.producer.transaction import AddPartitionsToTxnRequest

from airflow_provider_kafka_migration.copy.holes import Fill, fill_and_wait, markers_are_refused
from airflow_provider_kafka_migration.errors import PermissionMissing, Terminal
from airflow_provider_kafka_migration.freeze.fence import Fenced, TransactionFence, fence_producer
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch, encode_batch
from airflow_provider_kafka_migration.kafka.fetch import READ_UNCOMMITTED
from airflow_provider_kafka_migration.kafka.logs import read_span
from airflow_provider_kafka_migration.kafka.wire import TRANSACTION_COORDINATOR, TopicPartition, Wire
from harness.brokers import KafkaCluster
from harness.raw_writer import RawWriter, plain
from tests.integration.security.support import grant_copying, wire_of

pytestmark = pytest.mark.integration

INVALID_PRODUCER_EPOCH = 47
COPIED = 10


@dataclass
class Scene:
    """Two copied partitions to which applications have written, and a principal that may not write markers."""

    writer: RawWriter
    wire: Wire
    topic: str
    migration: str

    def __post_init__(self) -> None:
        self.data_name = f"{self.migration}.data"
        self.keys = [(self.topic, 0), (self.topic, 1)]
        self.producer_id, self.epoch = self.wire.init_producer_id(self.data_name)
        for key in self.keys:
            assert self.append(key, 0, COPIED) == 0
        self.ends = dict.fromkeys(self.keys, COPIED)
        for key in self.keys:
            self.writer.write(*key, plain(b"from an application"))

    def append(self, key: TopicPartition, sequence: int, count: int = 1) -> int:
        """As a copier does, outside of any transaction; the broker's error code."""
        data = encode_batch(
            plain(*(b"copied" for _ in range(count))),
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
        )
        return self.writer.try_append(*key, data)[0]

    def zombies(self, sequence: int = COPIED) -> list[int]:
        """What becomes of a copier that wakes up with the right next sequence, in each partition."""
        return [self.append(key, sequence) for key in self.keys]

    def fence(self, transactional_id: str = "") -> Fenced:
        return fence_producer(
            self.wire, self.ends, self.producer_id, self.epoch, transactional_id=transactional_id, patience_seconds=30
        )

    def markers(self, key: TopicPartition) -> list[int]:
        end = self.wire.list_offsets([key], "log_end")[key]
        return [
            batch.base_offset
            for batch in read_span(self.wire, key, 0, end, isolation=READ_UNCOMMITTED)
            if isinstance(batch, RawBatch) and batch.is_control and batch.producer_id == self.producer_id
        ]


@pytest.fixture(params=["source", "target"], ids=["3.9.1", "4.1.1"])
def scene(
    request: pytest.FixtureRequest,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
) -> Iterator[Scene]:
    cluster = source_cluster if request.param == "source" else target_cluster
    prefix, migration = unique_name("f"), unique_name("m").lower()
    cluster.create_topic(f"{prefix}.t", partitions=2)
    grant_copying(cluster, "alice", prefix, migration)
    with RawWriter(cluster.bootstrap) as writer, wire_of(cluster.client_config("alice", "SCRAM-SHA-512")) as wire:
        assert markers_are_refused(wire)
        yield Scene(writer, wire, f"{prefix}.t", migration)


def test_the_coordinator_fences_where_markers_are_refused(scene: Scene) -> None:
    found = scene.fence(scene.data_name)
    assert found.problems == {}
    # Behind the copy and what the application has written.
    assert found.markers == dict.fromkeys(scene.keys, COPIED + 1)
    assert scene.zombies() == [INVALID_PRODUCER_EPOCH] * 2
    assert scene.zombies(0) == [INVALID_PRODUCER_EPOCH] * 2
    scene.writer.write(*scene.keys[0], plain(b"applications go on"))
    assert scene.wire.list_offsets(scene.keys, "stable") == {scene.keys[0]: COPIED + 3, scene.keys[1]: COPIED + 2}
    # Once more: the log tells that it is done.
    assert scene.fence(scene.data_name) == found
    assert [scene.markers(key) for key in scene.keys] == [[COPIED + 1], [COPIED + 1]]


def test_a_process_that_died_in_the_middle_of_the_transaction(scene: Scene) -> None:
    dead = TransactionFence(scene.wire, scene.data_name, scene.producer_id, deadline=float("inf"))
    dead.begin()
    assert dead._add(scene.keys[:1]) == {}
    found = scene.fence(scene.data_name)
    assert (found.problems, sorted(found.markers)) == ({}, scene.keys)
    assert scene.zombies() == [INVALID_PRODUCER_EPOCH] * 2
    assert [len(scene.markers(key)) for key in scene.keys] == [1, 1]


def test_an_id_that_was_renewed_meanwhile_is_taken_over_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver of seed or tail that lives on somewhere renews the id between the two steps of the fence."""
    begin = TransactionFence.begin
    renewed: list[int] = []

    def renewed_once(fence: TransactionFence) -> None:
        begin(fence)
        if not renewed:
            renewed.append(scene.wire.init_producer_id(scene.data_name)[1])

    monkeypatch.setattr(TransactionFence, "begin", renewed_once)
    found = scene.fence(scene.data_name)
    assert renewed
    assert (found.problems, sorted(found.markers)) == ({}, scene.keys)
    assert scene.zombies() == [INVALID_PRODUCER_EPOCH] * 2


def test_what_does_not_fence(scene: Scene) -> None:
    """The counter-proofs: each leaves a copier with the right sequence accepted."""
    found = scene.fence()
    assert found.markers == {}
    assert {type(error) for error in found.problems.values()} == {PermissionMissing}
    assert scene.zombies(COPIED) == [0, 0]
    # An empty aborted transaction of another transactional id: its marker is of its own producer id.
    fills = {key: Fill(1, end, None) for key, end in scene.wire.list_offsets(scene.keys, "log_end").items()}
    filled = fill_and_wait(scene.wire.config, f"{scene.migration}.other", fills, seconds=30)
    assert [item.error for item in filled.values()] == [None, None]
    assert [scene.markers(key) for key in scene.keys] == [[], []]
    assert scene.zombies(COPIED + 1) == [0, 0]
    # A new epoch of the own transactional id, without a marker: no leader of a partition hears of it.
    assert scene.wire.init_producer_id(scene.data_name) == (scene.producer_id, scene.epoch + 1)
    assert scene.zombies(COPIED + 2) == [0, 0]
    # The coordinator of another id refuses to write markers of the data id.
    other, epoch = scene.wire.init_producer_id(f"{scene.migration}.another")
    assert other != scene.producer_id
    with pytest.raises(Terminal, match="forgotten"):
        TransactionFence(scene.wire, f"{scene.migration}.another", scene.producer_id, deadline=float("inf")).begin()
    assert _add_as(scene, f"{scene.migration}.another", scene.producer_id, epoch) == {INVALID_PRODUCER_ID_MAPPING}
    # And an id that was forgotten is named for each partition.
    forgotten = scene.fence(f"{scene.migration}.another")
    assert sorted(forgotten.problems) == scene.keys
    assert "forgotten" in forgotten.problems[scene.keys[0]].what


INVALID_PRODUCER_ID_MAPPING = 49


def _add_as(scene: Scene, transactional_id: str, producer_id: int, epoch: int) -> set[int]:
    """Error codes of a transaction that claims a producer id which is not the one of its transactional id."""
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    answer = scene.wire.request(
        AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[topic(name=scene.topic, partitions=[0, 1])],
        ),
        scene.wire.coordinator(transactional_id, TRANSACTION_COORDINATOR),
        version=2,
    )
    return {
        part.partition_error_code for item in answer.results_by_topic_v3_and_below for part in item.results_by_partition
    }


def test_a_topic_that_may_not_be_written_does_not_hold_the_others_up(scene: Scene) -> None:
    scene.ends = {**scene.ends, ("not-granted-to-alice", 0): 0}
    refusals = TransactionFence(scene.wire, scene.data_name, scene.producer_id, deadline=float("inf"))
    refusals.begin()
    refused = refusals.write(list(scene.ends))
    assert list(refused) == [("not-granted-to-alice", 0)]
    refusals.begin()
    assert scene.zombies() == [INVALID_PRODUCER_EPOCH] * 2
