"""There and back by the command line on real brokers: after the switch clients write to the target, and then return."""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import ConfigResource, ConfigSource, NewPartitions
from nacl.signing import SigningKey

from harness.brokers import KafkaCluster
from harness.clients import LiveProducer, commit_offsets, committed_offsets, lost_records, positions
from harness.compare import Record, compare, read_records
from harness.load import Kind, TopicLoad, load, tiny_topics
from tests.integration.test_cli_migration import Command

#: Whole migrations, one after the other, each command a process of its own: minutes on a busy machine.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

_KEY = SigningKey(bytes(range(32)))
_SEED = 15
Place = tuple[str, int]


@dataclass
class Trip:
    """Two clusters, the spec of the first migration, and what applications have committed where."""

    command: Command
    spec: Path
    folder: Path
    old: KafkaCluster
    new: KafkaCluster
    prefix: str
    topics: list[TopicLoad]
    random: random.Random

    @property
    def names(self) -> list[str]:
        """All topics that exist on the new cluster."""
        return sorted(name for name in self.new.admin().list_topics(timeout=60).topics if name.startswith(self.prefix))

    @property
    def compacted(self) -> list[str]:
        return [topic.name for topic in self.topics if topic.kind is Kind.COMPACTED]

    def topic(self, name: str) -> str:
        return f"{self.prefix}{name}"

    def forward(self) -> None:
        """The first migration, to its end."""
        asked = self.command("run", self.spec, status=10)
        switch = self.command("resume", self.spec, "--approve", asked["waiting"]["code"], status=10)
        done = self.command("resume", self.spec, "--approve", switch["waiting"]["code"], status=0)
        assert done["state"] == "finalized"

    def back(self, *arguments: str | Path, status: int, of: Path | None = None) -> dict[str, Any]:
        return self.command("way-back", arguments[0], of or self.spec, *arguments[1:], status=status)

    def return_clients(self, of: Path | None = None) -> None:
        """The whole way back, once it was begun: the question is answered with *back*."""
        asked = self.back("run", status=10, of=of)
        ready = self.back("return", "--approve", asked["waiting"]["code"], status=10, of=of)
        done = self.back("return", "--approve", ready["waiting"]["code"], status=0, of=of)
        assert done["state"] == "finalized"

    def live(self, cluster: KafkaCluster, label: str) -> int:
        """Applications write: plain records, transactions of which a third is aborted, keys and tombstones."""
        config = {**cluster.client_config(), "linger.ms": 5}
        producer = Producer({**config, "enable.idempotence": True})
        sent = 0
        widths = {name: len(item.partitions) for name, item in cluster.admin().list_topics(timeout=60).topics.items()}
        for topic in (self.topic("orders"), self.topic("customers"), self.topic("balances"), self.topic("metrics")):
            for number in range(120):
                key = b"key-%d" % self.random.randrange(40)
                value = None if self.random.random() < 0.1 else f"{label}-{number}".encode() * 5
                producer.produce(topic, value, key, self.random.randrange(widths[topic]), headers=[("life", label)])
                sent += 1
        assert producer.flush(120) == 0
        writer = Producer({**config, "transactional.id": f"{self.prefix}{label}"})
        writer.init_transactions()
        for transaction in range(9):
            writer.begin_transaction()
            for number in range(7):
                writer.produce(self.topic("payments"), f"{label}-{transaction}-{number}".encode(), b"paid", number % 3)
            if transaction % 3 == 2:
                writer.abort_transaction()
            else:
                writer.commit_transaction()
                sent += 7
        return sent

    def group(self, name: str, cluster: KafkaCluster, share: float, topics: list[str]) -> str:
        """A group that stands at a share of these topics."""
        group = self.topic(name)
        commit_offsets(cluster.client_config(), group, positions(cluster.client_config(), topics, share))
        return group

    def check_equal(self, source: KafkaCluster, target: KafkaCluster, leave_out: str = "") -> None:
        names = [name for name in self.names if name != leave_out]
        compare(source.client_config(), target.client_config(), names, compacted=self.compacted, fenced=True).check()


@pytest.fixture
def trip(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_name: Callable[[str], str], tmp_path: Path
) -> Trip:
    """A source with topics of all kinds, and a spec."""
    return make_trip(source_cluster, target_cluster, f"{unique_name('wb')}.", tmp_path)


def make_trip(
    old: KafkaCluster, new: KafkaCluster, prefix: str, folder: Path, seed: int = _SEED, **sections: Any
) -> Trip:
    """Fill an old cluster with topics of all kinds, and write a spec.

    :param sections: laid over the spec.
    """
    topics = tiny_topics(prefix)
    load(old, topics)
    spec = folder / "migration.yaml"
    pattern = prefix.replace(".", r"\.") + ".*"
    content: dict[str, Any] = {
        "migration_id": prefix.strip(".").lower().replace("_", "-"),
        "source": {"conn_id": "env:CLI_SOURCE", "name": "the old one"},
        "target": {"conn_id": "env:CLI_TARGET", "name": "the new one"},
        "storage": {"journal": f"file://{folder}/journal", "evidence": f"file://{folder}/evidence"},
        "topics": {"include": [pattern]},
        "groups": {"include": [pattern]},
        "acls": {"policy": "skip", "quotas": "skip"},
        "tail": {"drain_stable_window": "2s", "slice_seconds": 2},
        "cutover": {"freeze": "manual", "freeze_stable_window": "1s", "max_producer_freeze": "5m"},
        "evidence": {"signing_key": "env:CLI_KEY"},
        "way_back": {"keep_for": "1d", "sync_interval": "1s"},
    }
    for name, section in sections.items():
        content[name] = {**content.get(name, {}), **section}
    spec.write_text(yaml.safe_dump(content), encoding="utf-8")
    environment = {
        "CLI_SOURCE": json.dumps(old.client_config()),
        "CLI_TARGET": json.dumps(new.client_config()),
        "CLI_KEY": _KEY.encode().hex(),
    }
    print(f"seed {seed}")
    return Trip(Command(environment), spec, folder, old, new, prefix, topics, random.Random(seed))


def _grow(trip: Trip) -> None:
    """On the new cluster a topic appears, and another one gets a partition."""
    trip.new.create_topics({trip.topic("born"): (2, {"retention.ms": "86400000"})})
    admin = trip.new.admin()
    [future] = admin.create_partitions([NewPartitions(trip.topic("orders"), 5)]).values()
    future.result()
    producer = Producer(trip.new.client_config())
    for number in range(60):
        producer.produce(trip.topic("born"), b"born-%d" % number, b"b", number % 2)
        producer.produce(trip.topic("orders"), b"wide-%d" % number, b"w", 4)
    assert producer.flush(120) == 0


def read_on(config: Mapping[str, Any], group: str, offsets: Mapping[Place, int]) -> dict[Place, list[Record]]:
    """What a consumer of a group reads that goes on where it has committed, on whatever cluster."""
    consumer = Consumer(
        {**config, "group.id": group, "isolation.level": "read_committed", "enable.auto.commit": False,
         "auto.offset.reset": "error", "enable.partition.eof": True}
    )  # fmt: skip
    found: dict[Place, list[Record]] = {place: [] for place in offsets}
    try:
        places = [TopicPartition(topic, number) for topic, number in offsets]
        committed = consumer.committed(places)
        consumer.assign([TopicPartition(item.topic, item.partition, item.offset) for item in committed])
        waiting = set(offsets)
        while waiting:
            message = consumer.poll(30)
            assert message is not None, f"{group} hangs at {sorted(waiting)}"
            if message.error() is not None:
                assert message.error().code() == -191, message.error()  # the end of a partition
                waiting.discard((message.topic(), message.partition()))
            else:
                found[message.topic(), message.partition()].append(Record.of(message))
    finally:
        consumer.close()
    return found


def test_there_and_back_again(trip: Trip) -> None:
    before = _overrides(trip.old, trip)
    trip.forward()
    lagging = trip.group("lagging", trip.new, 0.3, [trip.topic("orders"), trip.topic("payments")])

    written = trip.live(trip.new, "second")
    _grow(trip)
    planned = trip.back("plan", status=0)
    assert planned["migration_id"].endswith(".back")
    assert (planned["new_topics"], planned["new_partitions"]) == ([trip.topic("born")], 3)
    assert planned["adopted_partitions"] == sum(topic.partitions for topic in trip.topics)

    asked = trip.back("run", status=10)
    assert asked["waiting"]["approval"] == "cutover"
    assert "way back" in asked["waiting"]["body"]
    written += trip.live(trip.new, "third")
    reading = trip.group("reading", trip.new, 0.9, [trip.topic("orders"), trip.topic("payments"), trip.topic("born")])
    asked = trip.back("run", status=10)
    assert trip.back("status", status=10)["state"] == "drain_ready"
    followed = _follows(trip, reading)
    # It is reset for a replay: the return ends there, too, although the old cluster has a later offset by now.
    reading_again = {place: offset // 2 for place, offset in followed.items() if place[0] == trip.topic("born")}
    commit_offsets(trip.new.client_config(), reading, reading_again)

    ready = trip.back("return", "--approve", asked["waiting"]["code"], status=10)
    assert ready["state"] == "awaiting_client_switch"
    assert "ready_for_client_return" in ready["waiting"]["body"]
    on_new = {name: committed_offsets(trip.new.client_config(), name, trip.names) for name in (lagging, reading)}
    assert all(on_new.values())
    for group, wanted in on_new.items():
        assert committed_offsets(trip.old.client_config(), group, trip.names) == wanted, group
    expected = {group: read_on(trip.new.client_config(), group, wanted) for group, wanted in on_new.items()}
    found = {group: read_on(trip.old.client_config(), group, wanted) for group, wanted in on_new.items()}
    assert found == expected, "0 read again, 0 skipped, the same records at the same offsets"
    assert sum(len(records) for places in found.values() for records in places.values()) > 100

    done = trip.back("return", "--approve", ready["waiting"]["code"], status=0)
    assert done["state"] == "finalized"
    trip.check_equal(trip.new, trip.old)
    assert written == 2 * (4 * 120 + 6 * 7)
    after = _overrides(trip.old, trip)
    assert {name: after[name] for name in before} == before, "the old topics have their own settings back"
    _check_evidence(trip)
    assert trip.back("run", status=0)["state"] == "finalized"


def _follows(trip: Trip, group: str) -> dict[Place, int]:
    """Wait until a group has the same offsets on the old cluster, while the way back copies; return them."""
    wanted = committed_offsets(trip.new.client_config(), group, trip.names)
    for _ in range(5):
        if committed_offsets(trip.old.client_config(), group, trip.names) == wanted:
            return wanted
        trip.back("run", status=10)
    raise AssertionError(f"{group} does not follow: {wanted}")


def _overrides(cluster: KafkaCluster, trip: Trip) -> dict[str, dict[str, str]]:
    admin = cluster.admin()  # futures of a client that is gone fail
    resources = [ConfigResource("topic", topic.name) for topic in trip.topics]
    return {
        resource.name: {
            name: entry.value
            for name, entry in future.result().items()
            if ConfigSource(entry.source) is ConfigSource.DYNAMIC_TOPIC_CONFIG
        }
        for resource, future in admin.describe_configs(resources).items()
    }


def _check_evidence(trip: Trip) -> None:
    """The way back has signed evidence of its own, which names that of the first migration by its digest."""
    key = trip.folder / "evidence.pub"
    key.write_bytes(bytes(_KEY.verify_key))
    first, back = sorted((trip.folder / "evidence").glob("*/evidence.json"))
    assert back.parent.name == f"{first.parent.name}.back"
    verified = trip.command("verify-evidence", back, "--public-key", key, status=0)
    assert (verified["trusted"], verified["outcome"]) == (True, "PASSED")
    bundle = json.loads(json.loads(back.read_text())["bundle_json"])
    assert bundle["way_back"]["reverses"] == first.parent.name
    assert bundle["way_back"]["evidence"]["sha256"] == hashlib.sha256(first.read_bytes()).hexdigest()
    assert bundle["way_back"]["ready_for_client_return"]["returns_to"] == first.parent.name


@pytest.mark.soak
def test_the_new_cluster_is_kept(trip: Trip) -> None:
    before = _overrides(trip.old, trip)
    early = trip.back("run", status=1)["error"]
    assert "no way back yet" in early["what"]
    trip.forward()
    assert trip.back("keep", status=1)["error"]["code"] == "ILLEGAL_TRANSITION", "nothing was begun"
    trip.live(trip.new, "second")
    group = trip.group("readers", trip.new, 0.9, [trip.topic("orders")])
    trip.back("run", status=10)
    assert _overrides(trip.old, trip) != before
    followed = _follows(trip, group)
    asked = trip.back("keep", status=10)["waiting"]
    assert asked["approval"] == "keep"
    refused = trip.back("keep", "--approve", "00000000", status=1)["error"]
    assert refused["code"] == "APPROVAL_REFUSED"
    kept = trip.back("keep", "--approve", asked["code"], "--reason", "all is well", status=0)
    assert "old_cluster_released" in kept["summary"]
    assert _overrides(trip.old, trip) == before
    assert committed_offsets(trip.old.client_config(), group, trip.names) == followed, "they stay, as the records do"
    [report] = (trip.folder / "evidence").glob("*/rollback-report.json")
    left = {
        (item["topic"], item["partition"]): item["offset"] for item in json.loads(report.read_text())["groups_left"]
    }
    assert left == followed
    key = trip.folder / "evidence.pub"
    key.write_bytes(bytes(_KEY.verify_key))
    verified = trip.command("verify-evidence", report.parent / "evidence.json", "--public-key", key, status=0)
    assert (verified["trusted"], verified["outcome"]) == (True, "KEPT")
    assert trip.back("keep", status=0)["already_done"] is True
    assert trip.back("status", status=0)["state"] == "rolled_back"


@pytest.mark.soak
def test_a_second_there_and_back_on_the_same_clusters(trip: Trip) -> None:
    """Each leg is the way back of the one before it; what all four lives have written is on both clusters."""
    trip.forward()
    specs = [trip.spec]
    ends = [(trip.new, trip.old), (trip.old, trip.new), (trip.new, trip.old)]
    for number, (source, target) in enumerate(ends):
        trip.live(source, f"life-{number}")
        group = trip.group(f"readers-{number}", source, 0.8, [trip.topic("orders"), trip.topic("balances")])
        file = trip.folder / f"leg-{number}.json"
        trip.back("plan", "--spec-output", file, status=0, of=specs[-1])
        trip.return_clients(specs[-1])
        specs.append(file)
        trip.check_equal(source, target)
        wanted = committed_offsets(source.client_config(), group, trip.names)
        assert wanted
        assert committed_offsets(target.client_config(), group, trip.names) == wanted
    names = sorted(path.parent.name for path in (trip.folder / "evidence").glob("*/evidence.json"))
    assert [name.count(".back") for name in names] == [0, 1, 2, 3]


@pytest.mark.soak
def test_killed_again_and_again_while_applications_write(trip: Trip) -> None:
    """The command is killed at random moments, and a broker of the old cluster once: nothing is lost or doubled."""
    trip.forward()
    places = {trip.topic("orders"): [0, 1, 2, 3], trip.topic("balances"): [0, 1]}
    kills = 0
    with LiveProducer(trip.new.client_config(), places, records_per_second=400) as producer:
        for round_number in range(8):
            trip.live(trip.new, f"round-{round_number}")
            process = trip.command.start("way-back", "run", trip.spec)
            time.sleep(trip.random.uniform(1.0, 9.0))
            if process.poll() is None:
                kills += 1
            process.kill()
            process.communicate(timeout=240)
            if round_number == 4:
                trip.old.kill(0)
                trip.old.restart(0)
                trip.old.wait_ready()
        producer.freeze()
        trip.return_clients()
    assert kills >= 4
    acknowledged = sum(map(len, producer.acknowledged.values()))
    print(f"seed {_SEED}: {kills} kills, {acknowledged} live records")
    assert lost_records(trip.old.client_config(), producer.acknowledged) == []
    # A broker that is killed may forget a log start that DeleteRecords has moved a moment ago.
    trip.check_equal(trip.new, trip.old, leave_out=trip.topic("clicks"))


@pytest.mark.soak
def test_a_foreign_record_on_the_old_side_stops_its_partition_and_is_named(trip: Trip) -> None:
    trip.forward()
    trip.live(trip.new, "second")
    trip.back("run", status=10)
    foreign = Producer(trip.old.client_config())
    foreign.produce(trip.topic("orders"), b"a stranger's", partition=1)
    assert foreign.flush(30) == 0
    before = read_records(trip.old.client_config(), trip.topic("orders"))[1]
    trip.live(trip.new, "third")
    stopped = trip.back("run", status=1)["error"]
    assert f"{trip.topic('orders')}-1" in json.dumps(stopped), stopped
    assert "FOREIGN" in json.dumps(stopped), stopped
    assert f"way-back leave-out FILE {trip.topic('orders')}" in stopped["next_step"], "what only a person can decide"
    assert read_records(trip.old.client_config(), trip.topic("orders"))[1] == before, "nothing is overwritten"
    assert any(record.value == b"a stranger's" for record in before)
    _leave_out(trip, trip.topic("orders"))
    trip.return_clients()
    trip.check_equal(trip.new, trip.old, leave_out=trip.topic("orders"))
    assert read_records(trip.old.client_config(), trip.topic("orders"))[1] == before, (
        "nothing is written there any more"
    )
    [back] = (trip.folder / "evidence").glob("*.back/evidence.json")
    bundle = json.loads(json.loads(back.read_text())["bundle_json"])
    assert list(bundle["way_back"]["left_out"]) == [trip.topic("orders")]
    assert trip.topic("orders") in [item["name"] for item in bundle["not_copied"] if item["kind"] == "topic"]


def _leave_out(trip: Trip, topic: str) -> None:
    """Take a topic out of the way back, by the code over what is known of it."""
    asked = trip.back("leave-out", topic, status=10)["waiting"]
    assert asked["approval"] == "leave_out"
    [shown] = asked["topics"]
    assert shown["partitions"][1]["error"]["code"] == "FOREIGN_DATA"
    assert trip.back("leave-out", topic, "--approve", "00000000", status=1)["error"]["code"] == "APPROVAL_REFUSED"
    assert topic in trip.back("leave-out", topic, "--approve", asked["code"], status=0)["left_out"]


@pytest.mark.soak
def test_a_boundary_that_does_not_hold_any_more_is_refused(trip: Trip) -> None:
    """Somebody wrote to the old cluster after the switch: the way back does not begin on that partition."""
    trip.forward()
    foreign = Producer(trip.old.client_config())
    foreign.produce(trip.topic("customers"), b"a stranger's", partition=2)
    assert foreign.flush(30) == 0
    refused = trip.back("run", status=1)["error"]
    assert refused["code"] == "PRECHECK_BLOCKED"
    assert f"{trip.topic('customers')}-2" in json.dumps(refused), refused


def _may_write(cluster: KafkaCluster, topic: str) -> bool:
    """Whether a user with a right on the topic gets a record in; it is written to a partition that nobody compares."""
    told: list[Any] = []
    producer = Producer({**cluster.client_config("alice"), "message.timeout.ms": 20_000})
    producer.produce(topic, b"from alice", partition=0, on_delivery=lambda error, _message: told.append(error))
    assert producer.flush(120) == 0
    assert told[0] is None or told[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, told
    return told[0] is None


@pytest.mark.parametrize("end", [pytest.param("keep", marks=pytest.mark.soak), "back"])
def test_producers_of_the_old_cluster_are_denied_until_the_end(trip: Trip, end: str) -> None:
    trip.old.forget_rights("alice")
    trip.old.allow("alice", "topic", trip.prefix, ["write", "describe"], prefixed=True)
    content = yaml.safe_load(trip.spec.read_text(encoding="utf-8"))
    content["way_back"]["freeze_old"] = "acl"
    # Its connection has no user name, so only the spec tells whom a DENY must spare.
    content["source"]["principal"] = "User:ANONYMOUS"
    trip.spec.write_text(yaml.safe_dump(content), encoding="utf-8")
    trip.forward()
    trip.live(trip.new, "second")
    asked = trip.back("run", status=10)
    topic = trip.topic("orders")
    assert not _may_write(trip.old, topic)
    if end == "keep":
        code = trip.back("keep", status=10)["waiting"]["code"]
        trip.back("keep", "--approve", code, status=0)
    else:
        ready = trip.back("return", "--approve", asked["waiting"]["code"], status=10)
        assert ready["state"] == "awaiting_client_switch"
    time.sleep(1.0)  # the broker forgets a removed binding a moment later
    assert _may_write(trip.old, topic), "its clients are let in again"
    trip.old.forget_rights("alice")


def test_a_return_that_is_killed_is_completed(trip: Trip) -> None:
    """The cutover in the other direction is killed in its steps; each next call continues, or asks again."""
    trip.forward()
    trip.live(trip.new, "second")
    asked = trip.back("run", status=10)
    kills = 0
    for pause in (3.5, 5.0, 6.5, 8.0, 9.5):
        waiting = asked["waiting"]
        if waiting is None or waiting["approval"] != "cutover":
            break
        process = trip.command.start("way-back", "return", trip.spec, "--approve", waiting["code"])
        time.sleep(pause + trip.random.uniform(0.0, 1.0))
        kills += process.poll() is None
        process.kill()
        process.communicate(timeout=240)
        asked = trip.back("resume", status=10)
    while asked["waiting"]["approval"] == "cutover":
        asked = trip.back("return", "--approve", asked["waiting"]["code"], status=10)
    done = trip.back("return", "--approve", asked["waiting"]["code"], status=0)
    assert done["state"] == "finalized"
    assert kills >= 1
    print(f"seed {_SEED}: {kills} kills of the return")
    trip.check_equal(trip.new, trip.old)
