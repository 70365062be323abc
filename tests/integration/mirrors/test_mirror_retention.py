"""A mirror whose two clusters delete and compact all the time, killed again and again, under a live producer."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from harness.brokers import KafkaCluster
from harness.clients import LiveProducer
from harness.compare import Record, bounds, read_records
from harness.processes import wait_for
from tests.integration.mirrors.mirror_support import SECONDS, Flow, eventually

pytestmark = pytest.mark.integration

#: Brokers delete within a second or two what may go.
_EAGER = {
    "log.retention.check.interval.ms": 1000,
    "log.segment.delete.delay.ms": 100,
    "log.cleaner.backoff.ms": 300,
    "log.retention.ms": 5000,
}
#: Longer than a copier is down here, however busy the machine: what is not copied yet must not be deleted.
_SOURCE_RETENTION_MS = 3_600_000


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    """Two clusters that are quick to delete and to compact."""
    with (
        KafkaCluster(tmp_path_factory.mktemp("eager-a"), "3.9.1", "kraft", config=_EAGER) as source,
        KafkaCluster(tmp_path_factory.mktemp("eager-b"), "4.1.1", "kraft", config=_EAGER) as target,
    ):
        yield source, target


def _content(topic: str, number: int) -> tuple[bytes, bytes | None]:
    value = b"%d " % number + b"x" * 100
    return b"key-%d" % (number % 40), None if topic.endswith("state") and number % 9 == 0 else value


def _bounds(cluster: KafkaCluster, topic: str) -> dict[int, tuple[int, int]]:
    found = bounds(cluster.client_config(), [topic])[topic]
    return {number: (item.log_start, item.end) for number, item in found.items()}


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("policy", [pytest.param("own", marks=pytest.mark.soak), "source"])
def test_both_sides_delete_and_compact(eager: tuple[KafkaCluster, KafkaCluster], policy: str, tmp_path: Path) -> None:
    source, target = eager
    # A second try on the same clusters has topics and groups of its own.
    name = f"retention-{policy}-{uuid.uuid4().hex[:6]}"
    prefix = f"{name}."
    events, quiet, state = (f"{prefix}{suffix}" for suffix in ("events", "quiet", "state"))
    short = {"segment.ms": "2000", "retention.ms": str(_SOURCE_RETENTION_MS)}
    compacted = {
        "cleanup.policy": "compact",
        "segment.ms": "1000",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "1000",
    }
    source.create_topics({events: (2, short), quiet: (1, short), state: (1, compacted)})
    sections: dict[str, Any] = {
        "mirror": {"target_retention": policy},
        "offsets": {"on_overtaken_tombstones": "note"},
        # Where logs are compacted all the time, a copier has much to read before it can go on: on a busy machine it
        # would get nowhere in shorter slices.
        "tail": {"slice_seconds": 6},
    }
    if policy == "own":
        # The target then has its brokers' retention, which is much shorter than the source's.
        sections["topology"] = {"refresh_interval": "1s", "config_exclude": [r"retention\.ms"]}
    flow = Flow(source, target, tmp_path, name, prefix, ("A", "B"), sections)
    remote = flow.remote([events, quiet, state])
    config = source.client_config()
    # In two batches at least: the last one of a partition stays, and all that waits for a slow broker becomes one.
    acknowledged: dict[tuple[str, int], list[Record]] = {(quiet, 0): []}
    for count in (150, 20):
        with LiveProducer(config, {quiet: [0]}, records_per_second=100, content=_content) as early:
            eventually(lambda early=early, count=count: early.count() > count, "the quiet topic has records")  # type: ignore[misc]
        acknowledged[quiet, 0] += early.acknowledged[quiet, 0]

    def quiet_start() -> tuple[int, int]:
        return _bounds(target, remote[quiet])[0]

    with LiveProducer(config, {events: [0, 1], state: [0]}, records_per_second=200, content=_content) as live:
        for number in range(3):
            process = flow.start()
            goal = live.count() + 400
            eventually(lambda goal=goal: live.count() > goal, "the producer writes")  # type: ignore[misc]
            if not number:
                wait_for("topics delete and compact", lambda: _begun(flow, remote.values()), SECONDS, 0.5)
            process.kill()
            process.wait()
            if policy == "source":
                _delete_on_source(source, target, remote, [events, quiet])
            if policy == "own":
                # Everything is deleted while no copier runs, and the source goes on.
                end = quiet_start()[1]
                wait_for("the quiet partition is empty", lambda end=end: quiet_start() == (end, end), SECONDS, 0.5)  # type: ignore[misc]
                wait_for("the busy ones, too", lambda: _is_empty(target, remote[events]), SECONDS, 0.5)
                with LiveProducer(config, {quiet: [0]}, records_per_second=50, content=_content) as more:
                    eventually(lambda: more.count() > 20, "the quiet topic gets more")
                acknowledged[quiet, 0] += more.acknowledged[quiet, 0]
        process = flow.start()
        live.freeze()
    acknowledged |= {key: list(records) for key, records in live.acknowledged.items()}
    ends = {topic: {number: end for number, (_, end) in _bounds(source, topic).items()} for topic in remote}

    def has_all() -> bool:
        assert process.poll() is None
        return all(
            {number: end for number, (_, end) in _bounds(target, remote[topic]).items()} == ends[topic]
            for topic in remote
        )

    eventually(has_all, "everything is copied, and both logs end alike")
    if policy == "source":

        def follows() -> bool:
            there, here = _bounds(target, remote[events]), _bounds(source, events)
            return all(0 < there[number][0] <= here[number][0] for number in here) and quiet_start()[0] > 0

        wait_for("the log starts follow the source's", follows, SECONDS, 0.5)
    time.sleep(2)
    _check(source, target, remote, acknowledged, state, policy)
    promoted = flow("promote", "--reason", "checked")
    assert promoted["state"] == "promoted"
    assert promoted["details"]["problems"] == []
    assert process.wait(240) == 0


def _delete_on_source(source: KafkaCluster, target: KafkaCluster, remote: dict[str, str], topics: list[str]) -> None:
    """Delete on the source what is copied, as its retention would after a while, while no copier runs."""
    copied = {
        TopicPartition(topic, number, end)
        for topic in topics
        for number, (_, end) in _bounds(target, remote[topic]).items()
    }
    admin = source.admin()
    for future in admin.delete_records(list(copied), request_timeout=30).values():
        future.result(60)


def _begun(flow: Flow, topics: Collection[str]) -> bool:
    entries = [
        json.loads(path.read_bytes()) for path in (flow.folder / flow.name / flow.name / "journal").glob("*.json")
    ]
    found = {name for entry in entries if entry["step"] == "target_retention" for name in entry["details"]["topics"]}
    return found >= set(topics)


def _is_empty(cluster: KafkaCluster, topic: str) -> bool:
    return all(start == end for start, end in _bounds(cluster, topic).values())


def _check(
    source: KafkaCluster,
    target: KafkaCluster,
    remote: dict[str, str],
    acknowledged: dict[tuple[str, int], list[Record]],
    state: str,
    policy: str,
) -> None:
    """Each record of the target is that of the source, at its offset; and the target has all that it should."""
    for topic, name in remote.items():
        before = _bounds(source, topic)
        there = read_records(target.client_config(), name)
        starts = _bounds(target, name)
        for number, records in there.items():
            written = {item.offset: item for item in acknowledged[topic, number]}
            if topic == state:
                _check_compacted(records, acknowledged[topic, number])
                continue
            assert all(written[item.offset] == item for item in records), f"{topic}-{number}"
            # Brokers may have deleted more between the two looks.
            start = starts[number][0]
            has = {item.offset for item in records if item.offset >= start}
            assert has == {offset for offset in written if offset >= start}, f"{topic}-{number}: none is missing"
            if policy == "source":
                assert start <= before[number][0], "nothing is deleted that the source still had"


def _check_compacted(records: list[Record], written: list[Record]) -> None:
    """The latest record of each key is there, in order, and nothing twice.

    Where the source was compacted before the copy, and a copier was killed while it filled such a hole, offsets may
    have moved from there on (``mapped``): contents are compared, not offsets.
    """
    contents = [(item.timestamp, item.key, item.value, item.headers) for item in written]
    places = [contents.index((item.timestamp, item.key, item.value, item.headers)) for item in records]
    assert places == sorted(set(places)), "in order, and each once"
    latest = {item.key: (item.timestamp, item.key, item.value, item.headers) for item in written}
    kept = {contents.index(item) for item in latest.values() if item[2] is not None}
    assert kept <= set(places), "the latest record of each key is there"
    assert len(records) < len(written) / 2, "the target was compacted"
