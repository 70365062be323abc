"""Without the right to write markers holes are filled by empty transactions; offsets end equal all the same."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kafka_migration.copy import append, holes
from airflow_provider_kafka_migration.copy.holes import EmptyTransactions, Fill, Filled, markers_are_refused
from airflow_provider_kafka_migration.errors import PermissionMissing, SliceExpired
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire
from harness.brokers import KafkaCluster
from harness.load import Kind, TopicLoad, load
from tests.integration.copy.copying import Copying, wait_for
from tests.integration.security.support import feature, grant_copying, set_feature, wire_of

pytestmark = pytest.mark.integration


def scram(cluster: KafkaCluster, user: str = "alice") -> dict[str, str]:
    return cluster.client_config(user, "SCRAM-SHA-512")


def copy_without_cluster_rights(
    source: KafkaCluster, target: KafkaCluster, folder: Path, topics: list[TopicLoad], migration_id: str, **options: Any
) -> Copying:
    prefix = topics[0].name.rpartition(".")[0]
    grant_copying(target, "alice", prefix, migration_id)
    references = {"source": {"bootstrap.servers": source.bootstrap}, "target": scram(target), "storage": None}
    return Copying(
        source, target, folder, [topic.name for topic in topics], migration_id, references=references, **options
    )


def logs_with_holes(prefix: str, records: int = 600) -> list[TopicLoad]:
    """Compacted, transactional with commits and aborts, and one that does not start at 0."""
    return [
        TopicLoad(f"{prefix}.balances", Kind.COMPACTED, 2, records, 100, "zstd"),
        TopicLoad(f"{prefix}.payments", Kind.TRANSACTIONAL, 2, records, 100),
        TopicLoad(f"{prefix}.clicks", Kind.HEAD_DELETED, 1, records, 100, "lz4"),
    ]


def check_equal(copy: Copying, topics: list[TopicLoad]) -> None:
    comparison = copy.compare(compacted=[topic.name for topic in topics if topic.kind is Kind.COMPACTED])
    comparison.check()
    assert all(item.content_equal and item.offsets_equal for item in comparison.topics.values())


@pytest.mark.parametrize("versions", ["3.9.1 to 4.1.1", "4.1.1 to 3.9.1", "3.9.1 to 4.1.1 with TV1"])
def test_a_copy_without_cluster_rights_ends_equal(
    request: pytest.FixtureRequest,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    versions: str,
) -> None:
    source, target = source_cluster, target_cluster
    if versions == "4.1.1 to 3.9.1":
        source, target = target_cluster, source_cluster
    if versions.endswith("TV1"):
        target = request.getfixturevalue("tls_cluster")
        set_feature(target, "transaction.version", 1)
        request.addfinalizer(lambda: set_feature(target, "transaction.version", 2))
        assert feature(target, "transaction.version") == 1
    topics = logs_with_holes(unique_name("k"))
    load(source, topics, seed=11)
    append._said.clear()
    with caplog.at_level(logging.WARNING):
        copy = copy_without_cluster_rights(source, target, tmp_path, topics, unique_name("m").lower(), lanes=2)
        progress = copy.run()
    assert progress["partitions_done"] == sum(topic.partitions for topic in topics)
    assert int(progress["holes"]) > 100  # compaction, commits and aborts are in there
    assert progress["transaction_holes"] == progress["holes"]
    assert caplog.text.count("filled by empty transactions") == 1
    check_equal(copy, topics)


def test_killed_copiers_leave_no_open_transaction_behind(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    topics = logs_with_holes(unique_name("k"), records=2_000)
    load(source_cluster, topics, seed=12)
    copy = copy_without_cluster_rights(source_cluster, target_cluster, tmp_path, topics, unique_name("m").lower())
    copy.write_job()
    dice = random.Random(5)
    kills = 0
    wire = copy.clients.wire("target")

    def copied() -> int:
        return sum(wire.list_offsets(list(copy.partitions), "log_end").values())

    while kills < 5:
        before = copied()
        worker = copy.worker(0, "seed", "--slice-seconds", "8")
        wait_for(lambda worker=worker, before=before: worker.poll() is not None or copied() > before, 200, "progress")
        time.sleep(dice.uniform(0, 0.1))
        if worker.poll() is not None:
            break
        worker.kill()
        worker.communicate()
        kills += 1
    worker = copy.worker(0, "seed", "--slice-seconds", "8")
    _, errors = worker.communicate(timeout=240)
    assert worker.returncode == 0, errors[-2000:]
    assert kills >= 2
    check_equal(copy, topics)


# -- the module by itself ---------------------------------------------------------------------------------------------


@pytest.fixture
def wire(target_cluster: KafkaCluster) -> Iterator[Wire]:
    """The super user's."""
    with wire_of({"bootstrap.servers": target_cluster.bootstrap}) as wire:
        yield wire


class Filler:
    """Empty transactions of one lane, as user alice."""

    def __init__(self, cluster: KafkaCluster, transactional_id: str, seconds: float = 60) -> None:
        config = ClientConfig.from_librdkafka(scram(cluster), "target")
        self.transactions = EmptyTransactions(
            config, transactional_id, deadline=time.monotonic() + seconds, wake=lambda: None
        )

    def fill(self, fills: dict[TopicPartition, Fill]) -> dict[TopicPartition, Filled]:
        self.transactions.submit(fills)
        found: dict[TopicPartition, Filled] = {}

        def answered() -> bool:
            found.update({item.key: item for item in self.transactions.collect()})
            return len(found) == len(fills)

        wait_for(answered, 30, "fills")
        return found


@pytest.fixture
def filler(target_cluster: KafkaCluster) -> Iterator[Callable[..., Filler]]:
    """Makes fillers that have begun, and closes them."""
    made: list[Filler] = []

    def make(transactional_id: str, **options: Any) -> Filler:
        made.append(Filler(target_cluster, transactional_id, **options))
        made[-1].transactions.begin()
        return made[-1]

    yield make
    for item in made:
        item.transactions.close()


def test_each_partition_gets_as_many_offsets_as_wanted(
    target_cluster: KafkaCluster, wire: Wire, filler: Callable[..., Filler], topic: str
) -> None:
    target_cluster.create_topic(topic, 30)
    grant_copying(target_cluster, "alice", topic, topic)
    wanted = {(topic, number): Fill(1 + number * 2 % 64, 0, number) for number in range(30)}
    mine = filler(topic)
    found = mine.fill(wanted)
    assert {key: item.log_end_offset for key, item in found.items()} == {
        key: fill.offsets for key, fill in wanted.items()
    }
    assert all(item.error is None and item.token == item.key[1] for item in found.values())
    assert wire.list_offsets(wanted, "stable") == {key: fill.offsets for key, fill in wanted.items()}
    # Nobody reads them.
    batches = target_cluster.dump_log(topic)
    assert all(batch["isControl"] == "true" for partition in batches.values() for batch in partition)
    # Again, from where the first one ended.
    more = mine.fill({key: Fill(3, fill.offsets, "again") for key, fill in wanted.items()})
    assert {key: item.log_end_offset for key, item in more.items()} == {
        key: fill.offsets + 3 for key, fill in wanted.items()
    }


def test_a_new_incarnation_ends_open_transactions_and_fences_the_old_one(
    target_cluster: KafkaCluster,
    wire: Wire,
    filler: Callable[..., Filler],
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target_cluster.create_topic(topic)
    grant_copying(target_cluster, "alice", topic, topic)
    key = (topic, 0)
    old = filler(topic)
    # The old one "dies" after the partition was added and before the transaction was ended.
    monkeypatch.setattr(holes.EmptyTransactions, "_on_added", lambda *_: None)
    monkeypatch.setattr(holes, "CLOSE_SECONDS", 0.0)
    old.transactions.submit({key: Fill(1, 0, None)})
    time.sleep(0.3)
    assert wire.list_offsets([key], "log_end")[key] == 0
    monkeypatch.undo()
    new = filler(topic)
    # It has ended what was open, which took an offset, before anybody looks at the log end.
    assert wire.list_offsets([key], "log_end")[key] == 1
    assert new.fill({key: Fill(2, 1, None)})[key].log_end_offset == 3
    # What the old one sends now is refused for good.
    other = (topic, 0)
    late = Filler(target_cluster, topic)
    late.transactions._ids = list(old.transactions._ids)
    for item in late.transactions._ids:
        item.connection, item.asked_at, item.keys = None, None, []
    late.transactions._thread = None
    answers = late.transactions._answer({other: Fill(1, 3, None)})
    assert isinstance(answers[0].error, SliceExpired)
    assert wire.list_offsets([key], "log_end")[key] == 3


def test_missing_rights_are_named(target_cluster: KafkaCluster, filler: Callable[..., Filler], topic: str) -> None:
    target_cluster.create_topic(topic)
    target_cluster.allow("bob", "topic", topic, ["write"])
    without = EmptyTransactions(
        ClientConfig.from_librdkafka(scram(target_cluster, "bob"), "target"),
        topic,
        deadline=time.monotonic() + 3600,
        wake=lambda: None,
    )
    # It waits for nothing: the deadline lies behind the end of any test.
    with pytest.raises(PermissionMissing, match=f"TransactionalId {topic}") as caught:
        without.begin()
    without.close()
    assert "on the target cluster" in caught.value.next_step
    # The ids, but not the topic.
    target_cluster.allow("alice", "transactional_id", topic, ["write", "describe"], prefixed=True)
    target_cluster.allow("alice", "topic", topic, ["describe"])
    found = filler(topic).fill({(topic, 0): Fill(1, 0, None)})
    error = found[topic, 0].error
    assert isinstance(error, PermissionMissing)
    assert f"Write on Topic {topic}" in error.what


def test_the_question_for_the_right_touches_nothing(target_cluster: KafkaCluster, wire: Wire) -> None:
    before = wire.metadata(None)
    assert not markers_are_refused(wire)
    with wire_of(scram(target_cluster)) as alice:
        assert markers_are_refused(alice)
    assert wire.metadata(None).keys() == before.keys()


def test_the_slice_ends_without_an_open_transaction(
    target_cluster: KafkaCluster, wire: Wire, filler: Callable[..., Filler], topic: str
) -> None:
    target_cluster.create_topic(topic)
    grant_copying(target_cluster, "alice", topic, topic)
    position = 0
    # The first transaction of a busy broker alone may take longer than the shortest slice.
    for seconds in (1.0, 5.0, 30.0):
        short = filler(topic, seconds=seconds)
        while True:
            answer = short.fill({(topic, 0): Fill(64, position, None)})[topic, 0]
            if answer.error is not None:
                break
            position = answer.log_end_offset
        assert isinstance(answer.error, SliceExpired)
        if position > 0:
            break
        short.transactions.close()
        position = wire.list_offsets([(topic, 0)], "log_end")[topic, 0]
    assert position > 0
    short.transactions.close()
    end = wire.list_offsets([(topic, 0)], "log_end")[topic, 0]
    assert end < position + 64
    # Taken over, the ids have nothing left to end.
    filler(topic)
    assert wire.list_offsets([(topic, 0)], "log_end")[topic, 0] == end
