"""Several flows side by side on real clusters, with producers on all of them: no cycle, and equal offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.brokers import KafkaCluster
from harness.clients import LiveProducer
from harness.compare import bounds, compare
from tests.integration.mirrors.mirror_support import Flow, eventually

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def third_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A cluster for chains."""
    with KafkaCluster(tmp_path_factory.mktemp("third"), "4.1.1", "kraft") as cluster:
        yield cluster


def _topics(cluster: KafkaCluster, part: str) -> set[str]:
    admin = cluster.admin()  # must outlive the call
    return {name for name in admin.list_topics(timeout=30).topics if part in name}


def _have_ends(cluster: KafkaCluster, names: dict[str, dict[int, int]]) -> bool:
    admin = cluster.admin()  # must outlive the call
    there = admin.list_topics(timeout=30).topics
    if any(name not in there for name in names):
        return False
    found = bounds(cluster.client_config(), list(names))
    return all(found[name][number].end == end for name, ends in names.items() for number, end in ends.items())


def _ends(cluster: KafkaCluster, topic: str) -> dict[int, int]:
    return {number: item.end for number, item in bounds(cluster.client_config(), [topic])[topic].items()}


@pytest.mark.timeout(900)
def test_active_active(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    """A -> B and B -> A of a topic that both have: each side gets the other's records once, and nothing comes back."""
    name = unique_name("active")
    topic = f"{name}.orders"
    for cluster in (source_cluster, target_cluster):
        cluster.create_topics({topic: (2, {})})
    plain = name.lower().replace("_", "-")
    two_way = {"mirror": {"two_way": True}}
    there = Flow(source_cluster, target_cluster, tmp_path, f"{plain}-ab", f"{name}.", ("A", "B"), dict(two_way))
    back = Flow(target_cluster, source_cluster, tmp_path, f"{plain}-ba", f"{name}.", ("B", "A"), dict(two_way))
    with ExitStack() as opened:
        producers = [
            opened.enter_context(
                LiveProducer(cluster.client_config(), {topic: [0, 1]}, records_per_second=100, seed=seed)
            )
            for seed, cluster in enumerate((source_cluster, target_cluster))
        ]
        killed = there.start()
        opened.enter_context(back.running())
        killed.kill()
        killed.wait()
        opened.enter_context(there.running())
        eventually(lambda: all(producer.count() > 500 for producer in producers), "both producers write")
        # A topic that appears later is taken up, and its copy is not copied back either.
        late = f"{name}.late"
        source_cluster.create_topics({late: (1, {})})
        with LiveProducer(source_cluster.client_config(), {late: [0]}, records_per_second=50) as writer:
            eventually(lambda: writer.count() > 50, "the late topic has records")
        for producer in producers:
            producer.freeze()
        ends_there = {f"A.{item}": _ends(source_cluster, item) for item in (topic, late)}
        ends_back = {f"B.{topic}": _ends(target_cluster, topic)}
        eventually(lambda: _have_ends(target_cluster, ends_there), "B has everything of A")
        eventually(lambda: _have_ends(source_cluster, ends_back), "A has everything of B")
        assert there("hops")["topics"] != []
        refused = {row["topic"]: row["left_out"] for row in back("topics")["topics"] if row["topic"] == f"A.{topic}"}
        assert "cycle" in refused[f"A.{topic}"]
    configs = source_cluster.client_config(), target_cluster.client_config()
    compare(configs[0], configs[1], {topic: f"A.{topic}", late: f"A.{late}"}).check()
    compare(configs[1], configs[0], {topic: f"B.{topic}"}).check()
    assert _topics(source_cluster, name) == {topic, late, f"B.{topic}"}, "no cycle"
    assert _topics(target_cluster, name) == {topic, f"A.{topic}", f"A.{late}"}


@pytest.mark.timeout(900)
@pytest.mark.soak
def test_a_chain(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    third_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    """A -> B -> C: the remote topic of B becomes a remote topic of two hops on C, with the offsets of A."""
    name = unique_name("chain")
    topic = f"{name}.orders"
    source_cluster.create_topics({topic: (2, {})})
    plain = name.lower().replace("_", "-")
    known = {"mirror": {"known_aliases": ["A", "B", "C"]}}
    first = Flow(source_cluster, target_cluster, tmp_path, f"{plain}-ab", f"{name}.", ("A", "B"), dict(known))
    second = Flow(target_cluster, third_cluster, tmp_path, f"{plain}-bc", f"{name}.", ("B", "C"), dict(known))
    with (
        LiveProducer(source_cluster.client_config(), {topic: [0, 1]}, records_per_second=100) as producer,
        first.running(),
        second.running(),
    ):
        eventually(lambda: producer.count() > 500, "the producer writes")
        producer.freeze()
        ends = _ends(source_cluster, topic)
        eventually(lambda: _have_ends(third_cluster, {f"B.A.{topic}": ends}), "C has everything of A")
        assert {row["topic"]: row["through"] for row in second("hops")["topics"] if name in row["topic"]} == {
            f"B.A.{topic}": ["B", "A"]
        }
    compare(source_cluster.client_config(), third_cluster.client_config(), {topic: f"B.A.{topic}"}).check()
