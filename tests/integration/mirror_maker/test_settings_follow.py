"""Settings of topics while a mirror runs and at its end: defaults of either side, deleted configs, LogAppendTime."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource, ResourceType

from harness.brokers import KafkaCluster
from harness.clients import LiveProducer
from harness.compare import compare, read_records
from tests.integration.mirrors.mirror_support import Flow, eventually, log_ends

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

#: The defaults of a new topic on either side. None of them has another value while a mirror runs.
_SOURCE_DEFAULTS = {"index.interval.bytes": "2048", "segment.index.bytes": "2097152"}
_TARGET_DEFAULTS = {"index.interval.bytes": "16384", "segment.index.bytes": "4194304"}
_BROKER_NAMES = {"index.interval.bytes": "log.index.interval.bytes", "segment.index.bytes": "log.index.size.max.bytes"}
_TYPE = "message.timestamp.type"
_EXCLUDED = "flush.messages"


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    """A source and a target with other defaults."""
    folders = [tmp_path_factory.mktemp(name) for name in ("source", "target")]
    configs = [
        {_BROKER_NAMES[name]: value for name, value in defaults.items()}
        for defaults in (_SOURCE_DEFAULTS, _TARGET_DEFAULTS)
    ]
    with (
        KafkaCluster(folders[0], "3.9.1", config=configs[0]) as source,
        KafkaCluster(folders[1], "4.1.1", "kraft", config=configs[1]) as target,
    ):
        yield source, target


def _flow(clusters: tuple[KafkaCluster, KafkaCluster], folder: Path, name: str, **topology: Any) -> Flow:
    sections = {"topology": {"refresh_interval": "1s", "config_exclude": [_EXCLUDED], **topology}}
    return Flow(*clusters, folder, name, f"{name}.", ("A", "B"), sections)


def _alter(cluster: KafkaCluster, topic: str, **values: str | None) -> None:
    """Set configs of a topic; None deletes one. The names have underscores for dots."""
    entries = [
        ConfigEntry(
            name.replace("_", "."),
            value,
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for name, value in values.items()
    ]
    admin = cluster.admin()
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource], request_timeout=20).values():
        future.result()


def _configs(cluster: KafkaCluster, topic: str) -> tuple[dict[str, str], dict[str, str]]:
    """(all values in force, those that the topic itself has)."""
    admin = cluster.admin()
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = admin.describe_configs([resource])[resource].result(20)
    own = {name: item.value for name, item in found.items() if item.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value}
    return {name: item.value for name, item in found.items()}, own


def _wait_for(cluster: KafkaCluster, topic: str, name: str, in_force: str, own: str | None) -> None:
    def is_so() -> bool:
        values, overrides = _configs(cluster, topic)
        return (values[name], overrides.get(name)) == (in_force, own)

    eventually(is_so, f"{name}={in_force} on {topic}, {'as its default' if own is None else 'set on the topic'}")


@pytest.mark.parametrize("side", [pytest.param("source", marks=pytest.mark.soak), "target"])
def test_a_config_that_is_deleted_on_the_source_falls_back_to_the_default_of_the_chosen_side(
    side: str, clusters: tuple[KafkaCluster, KafkaCluster], tmp_path: Path
) -> None:
    """MirrorMaker 2's use.defaults.from (KIP-894), with changes while the mirror runs, and its promotion."""
    source, target = clusters
    flow = _flow(clusters, tmp_path, f"defaults-{side}", use_defaults_from=side)
    plain, set_one, deleted = (f"{flow.prefix}{stem}" for stem in ("plain", "set", "deleted"))
    source.create_topics(
        {
            plain: (1, {}),
            set_one: (1, {}),
            deleted: (1, {"index.interval.bytes": "8192", "retention.ms": "7200000", _EXCLUDED: "7"}),
        }
    )
    remote = flow.remote([plain, set_one, deleted])
    # What a topic without a config of its own has on the target, and whether it is set there.
    fallback = {
        name: (_SOURCE_DEFAULTS[name], _SOURCE_DEFAULTS[name]) if side == "source" else (_TARGET_DEFAULTS[name], None)
        for name in _SOURCE_DEFAULTS
    }
    with LiveProducer(source.client_config(), {name: [0] for name in remote}, records_per_second=100) as producer:
        process = flow.start()
        for name, expected in fallback.items():
            _wait_for(target, remote[plain], name, *expected)
        _wait_for(target, remote[deleted], "index.interval.bytes", "8192", "8192")
        # A person has set this one on the target; config_exclude keeps it apart from the source's.
        _alter(target, remote[deleted], flush_messages="9")

        _alter(source, set_one, index_interval_bytes="4096")
        _alter(source, deleted, index_interval_bytes=None, retention_ms=None, flush_messages=None)
        _wait_for(target, remote[set_one], "index.interval.bytes", "4096", "4096")
        _wait_for(target, remote[deleted], "index.interval.bytes", *fallback["index.interval.bytes"])
        # The mirror dies, and the source changes meanwhile.
        process.kill()
        process.wait()
        _alter(source, set_one, index_interval_bytes=None, segment_index_bytes="8388608")
        process = flow.start()
        _wait_for(target, remote[set_one], "index.interval.bytes", *fallback["index.interval.bytes"])
        _wait_for(target, remote[set_one], "segment.index.bytes", "8388608", "8388608")
        written = producer.count()
        eventually(lambda: producer.count() > written + 100, "clients write on")
    promoted = flow("promote")
    assert promoted["details"]["problems"] == []
    process.wait(240)
    values, own = _configs(target, remote[deleted])
    assert "retention.ms" not in own, "it was deleted on the source while the mirror held it back"
    assert values["retention.ms"] == _configs(source, deleted)[0]["retention.ms"]
    assert own[_EXCLUDED] == "9"
    for topic in (plain, deleted):
        values, own = _configs(target, remote[topic])
        assert {name: (values[name], own.get(name)) for name in fallback} == fallback, topic
    if side == "source":
        # What differs between the releases comes from the source, too.
        after = {topic: _configs(cluster, topic)[0] for cluster, topic in ((source, plain), (target, remote[plain]))}
        names = sorted(after[plain].keys() & after[remote[plain]].keys() - {"leader.replication.throttled.replicas"})
        assert {name: after[plain][name] for name in names} == {name: after[remote[plain]][name] for name in names}
    compare(source.client_config(), target.client_config(), remote, fenced=True).check()


def _write(cluster: KafkaCluster, topic: str, records: int, timestamp_ms: int) -> None:
    producer = Producer(cluster.client_config())
    for number in range(records):
        producer.produce(topic, b"%d" % number, b"key", 0, timestamp=timestamp_ms + number)
    assert producer.flush(60) == 0


def _types(cluster: KafkaCluster, topic: str, offsets: list[int]) -> list[int]:
    """The kinds of the timestamps of some records."""
    consumer = Consumer({**cluster.client_config(), "group.id": "none", "enable.auto.commit": False})
    found = []
    for offset in offsets:
        consumer.assign([TopicPartition(topic, 0, offset)])
        message = consumer.poll(30)
        assert message is not None
        assert message.offset() == offset
        found.append(message.timestamp()[0])
    consumer.close()
    return found


@pytest.mark.parametrize("ending", ["promote", pytest.param("end", marks=pytest.mark.soak)])
def test_log_append_time_keeps_the_times_of_the_source_and_is_set_at_the_end(
    ending: str, clusters: tuple[KafkaCluster, KafkaCluster], tmp_path: Path
) -> None:
    """A topic that has it, one that gets it while it is mirrored, and one that loses it."""
    source, target = clusters
    flow = _flow(clusters, tmp_path, f"appended-{ending}")
    always, gets, loses = (f"{flow.prefix}{stem}" for stem in ("always", "gets", "loses"))
    source.create_topics({always: (1, {_TYPE: "LogAppendTime"}), gets: (1, {}), loses: (1, {_TYPE: "LogAppendTime"})})
    remote = flow.remote([always, gets, loses])
    long_ago_ms = int(time.time() * 1000) - 3_600_000
    for topic in remote:
        _write(source, topic, 50, long_ago_ms)
    process = flow.start()
    eventually(lambda: _lag(flow) == 0, "the first records are mirrored")
    assert _configs(target, remote[always])[0][_TYPE] == "CreateTime", "brokers of the target must not stamp records"
    _alter(source, gets, message_timestamp_type="LogAppendTime")
    _alter(source, loses, message_timestamp_type=None)
    eventually(lambda: _followed(flow) == 2, "the changes are noticed")
    for topic in remote:
        _write(source, topic, 50, long_ago_ms)
    eventually(lambda: _lag(flow) == 0, "the later records are mirrored")
    assert {_configs(target, name)[0][_TYPE] for name in remote.values()} == {"CreateTime"}
    asked = flow(ending)
    assert asked["details"]["problems"] == []
    process.wait(240)

    compare(source.client_config(), target.client_config(), remote, fenced=ending == "promote").check()
    stamped = [
        item.timestamp - long_ago_ms > 3_000_000 for item in read_records(target.client_config(), remote[gets])[0]
    ]
    assert stamped == [False] * 50 + [True] * 50, "times of clients before the change, of the source's broker after it"
    assert _types(source, always, [0, 99]) == [TIMESTAMP_LOG_APPEND_TIME] * 2
    expected = {always: "LogAppendTime", gets: "LogAppendTime", loses: "CreateTime"}
    for topic, kind in expected.items():
        values, own = _configs(target, remote[topic])
        assert values[_TYPE] == kind, topic
        assert own.get(_TYPE) == _configs(source, topic)[1].get(_TYPE), topic
        # What clients write to the target from now on has the time that this setting says.
        end = log_ends(target, [remote[topic]])[remote[topic], 0]
        _write(target, remote[topic], 1, long_ago_ms)
        last = read_records(target.client_config(), remote[topic])[0][-1]
        assert last.offset == end
        assert (last.timestamp == long_ago_ms) is (kind == "CreateTime"), topic
        wanted = TIMESTAMP_CREATE_TIME if kind == "CreateTime" else TIMESTAMP_LOG_APPEND_TIME
        assert _types(target, remote[topic], [end]) == [wanted], topic


def _lag(flow: Flow) -> int | None:
    lag = flow("status")["lag"]
    return None if lag is None or lag["partitions_unknown"] else int(lag["total"])


def _followed(flow: Flow) -> int:
    """How many changed topics the mirror has taken over into its plan, by its journal."""
    text = (flow.folder / flow.name / flow.name / "journal.jsonl").read_text(encoding="utf-8")
    return sum(int(count) for count in re.findall(r"configs of (\d+) topics have changed on the source", text))
