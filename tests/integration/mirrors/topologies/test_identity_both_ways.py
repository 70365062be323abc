"""Two flows under the same names on real clusters: each record is once on each side, and nothing comes round.

What Redpanda's migrator tests with its provenance header, with kills: it promises at least once, this exactly once.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import ConfigResource, ConfigSource

from harness.brokers import KafkaCluster
from harness.clients import LiveProducer
from harness.compare import Record, read_records
from harness.processes import HarnessError
from tests.integration.mirrors.mirror_support import Flow, eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

_HEADER = "kafka-migration.provenance"
#: Slices that a transaction fits into on a busy machine, too.
_SECTIONS: dict[str, Any] = {
    "offsets": {"mode": "transactional"},
    "seed": {"via": "direct", "slice_seconds": 20},
    "tail": {"slice_seconds": 15},
}
_MIRROR: dict[str, Any] = {"naming": "identity", "two_way": True, "sync_groups": False}


class _Pair:
    """Two clusters, a flow in each direction, and what the tests ask of both."""

    def __init__(self, a: KafkaCluster, b: KafkaCluster, folder: Path, name: str) -> None:
        self.clusters = {"A": a, "B": b}
        self.ids = {side: cluster.cluster_id() for side, cluster in self.clusters.items()}
        plain = name.lower().replace("_", "-")
        self.there = self._flow(folder, f"{plain}-ab", name, ("A", "B"))
        self.back = self._flow(folder, f"{plain}-ba", name, ("B", "A"))

    def _flow(self, folder: Path, flow: str, name: str, aliases: tuple[str, str]) -> Flow:
        clusters = self.clusters[aliases[0]], self.clusters[aliases[1]]
        return Flow(*clusters, folder, flow, f"{name}.", aliases, {**_SECTIONS, "mirror": dict(_MIRROR)})

    def content(self, topic: str) -> dict[str, dict[int, list[Record]]]:
        return {side: read_records(cluster.client_config(), topic) for side, cluster in self.clusters.items()}

    def differences(self, topic: str) -> list[str]:
        """Compare each copy with the original that its header names; empty: both sides have the same records.

        Each original has one copy on the other side, in the order of the originals, with the same time, key, value and
        headers, and no copy has another origin.
        """
        found: list[str] = []
        content = self.content(topic)
        for side, other in (("A", "B"), ("B", "A")):
            for number, records in content[side].items():
                prefix = f"{self.ids[other]}/{topic}/{number}/"
                copies = [(place, record) for record in records if (place := _place(record)) is not None]
                strange = [place for place, _ in copies if not place.startswith(prefix)]
                found += [f"{side} {topic}-{number}: a copy of {place}" for place in strange[:3]]
                wanted = [_without_offset(record) for record in content[other][number] if _place(record) is None]
                got = [(int(place.removeprefix(prefix)), record) for place, record in copies if place not in strange]
                originals = {record.offset: _without_offset(record) for record in content[other][number]}
                if [_unmarked(record) for _, record in got] != wanted:
                    found.append(f"{side} {topic}-{number}: {len(got)} copies of {len(wanted)} records")
                elif any(_unmarked(record) != originals.get(offset) for offset, record in got):
                    found.append(f"{side} {topic}-{number}: a header names another record")
        return found

    def are_equal(self, *topics: str) -> bool:
        try:
            return not any(self.differences(topic) for topic in topics)
        except HarnessError:
            return False  # a topic is not there yet

    def check(self, *topics: str) -> None:
        for topic in topics:
            assert self.differences(topic) == []

    def originals(self, topic: str) -> dict[str, list[tuple[bytes | None, bytes | None]]]:
        """Key and value of what was first written to each side."""
        return {
            side: [
                (record.key, record.value)
                for _, records in sorted(found.items())
                for record in records
                if _place(record) is None
            ]
            for side, found in self.content(topic).items()
        }


def _place(record: Record) -> str | None:
    places = [value for name, value in record.headers if name == _HEADER]
    assert len(places) <= 1, record
    return None if not places or places[0] is None else places[0].decode()


def _without_offset(record: Record) -> tuple[Any, ...]:
    return record.timestamp, record.key, record.value, record.headers


def _unmarked(record: Record) -> tuple[Any, ...]:
    assert record.headers[-1][0] == _HEADER
    return record.timestamp, record.key, record.value, record.headers[:-1]


@contextmanager
def _application(cluster: KafkaCluster, name: str) -> Iterator[Callable[..., None]]:
    """A transactional producer: call it with a topic, values, and whether to commit."""
    producer = Producer({**cluster.client_config(), "transactional.id": name, "transaction.timeout.ms": 60_000})
    producer.init_transactions(60)

    def transact(topic: str, *values: bytes, commit: bool) -> None:
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, b"t", 0)
        producer.flush(60)
        if commit:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)

    yield transact


def _overrides(cluster: KafkaCluster, topic: str) -> dict[str, str]:
    admin = cluster.admin()  # must outlive the call
    resource = ConfigResource("topic", topic)
    found = admin.describe_configs([resource])[resource].result(30)
    return {
        name: str(entry.value)
        for name, entry in found.items()
        if ConfigSource(entry.source) is ConfigSource.DYNAMIC_TOPIC_CONFIG
    }


def _has(cluster: KafkaCluster, topic: str) -> bool:
    admin = cluster.admin()  # must outlive the call
    return topic in admin.list_topics(timeout=30).topics


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


@pytest.fixture
def pair(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_name: Callable[[str], str], tmp_path: Path
) -> _Pair:
    return _Pair(source_cluster, target_cluster, tmp_path, unique_name("merged"))


def test_producers_on_both_sides_and_killed_copiers(pair: _Pair) -> None:
    topic, late = f"{pair.there.prefix}orders", f"{pair.there.prefix}late"
    a, b = pair.clusters["A"], pair.clusters["B"]
    a.create_topics({topic: (2, {"retention.ms": "86400000"})})
    b.create_topics({topic: (2, {"retention.ms": "43200000", "segment.bytes": "2000000"})})
    with ExitStack() as opened:
        producers = [
            opened.enter_context(
                LiveProducer(cluster.client_config(), {topic: [0, 1]}, records_per_second=150, seed=seed)
            )
            for seed, cluster in enumerate((a, b))
        ]
        applications = [
            opened.enter_context(_application(cluster, f"{pair.there.name}-{side}"))
            for side, cluster in pair.clusters.items()
        ]
        # Both sides have records before the flows begin.
        eventually(lambda: all(producer.count() > 100 for producer in producers), "both producers write")
        there, back = pair.there.start(), pair.back.start()
        for number in range(6):
            for transact in applications:
                transact(topic, b"committed %d" % number, b"and more", commit=True)
                transact(topic, b"aborted %d" % number, commit=False)
            before = [producer.count() for producer in producers]
            eventually(
                lambda before=before: all(  # type: ignore[misc]
                    producer.count() > count + 100 for producer, count in zip(producers, before, strict=True)
                ),
                "the producers write on",
            )
            if number == 1:
                _kill(there)
                there = pair.there.start()
            elif number == 3:
                _kill(back)
                _kill(there)
                back, there = pair.back.start(), pair.there.start()
            elif number == 4:
                a.create_topics({late: (1, {})})
        opened.callback(_kill, there)
        opened.callback(_kill, back)
        eventually(lambda: _has(b, late), "the late topic is on the other side")
        with LiveProducer(b.client_config(), {late: [0]}, records_per_second=50) as writer:
            eventually(lambda: writer.count() > 50, "the late topic gets records on the other side")
        for producer in producers:
            producer.freeze()
        eventually(lambda: pair.are_equal(topic, late), "both sides have everything")
        pair.check(topic, late)
        ends = [{number: found[-1].offset for number, found in read.items()} for read in pair.content(topic).values()]
        for flow in (pair.there, pair.back):
            eventually(lambda flow=flow: flow("status")["lag"]["skipped"] > 1000, "what came round is counted")
            flow("end")
        again = [{number: found[-1].offset for number, found in read.items()} for read in pair.content(topic).values()]
        assert again == ends, "nothing has come round"
    found = pair.originals(topic)
    for side, producer in zip("AB", producers, strict=True):
        written = [(r.key, r.value) for _, records in sorted(producer.acknowledged.items()) for r in records]
        of_applications = [(b"t", b"committed %d" % number) for number in range(6)] + [(b"t", b"and more")] * 6
        assert sorted(found[side], key=repr) == sorted([*written, *of_applications], key=repr)
    assert _overrides(a, topic) == {"retention.ms": "86400000"}
    assert _overrides(b, topic) == {"retention.ms": "43200000", "segment.bytes": "2000000"}
    assert _overrides(b, late) == {}
