"""Several flows side by side on real clusters, with producers on all of them: no cycle, and equal offsets."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from harness.brokers import KafkaCluster
from harness.clients import LiveProducer
from harness.compare import bounds, compare
from tests.integration.mirrors.mirror_support import Flow, KeptMirror, eventually
from tests.integration.mirrors.topologies.mesh import Mesh
from tests.soak_support import LONG_SLICES, Route, kill_each, wait_written

pytestmark = pytest.mark.integration


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


class _ActiveActive(Mesh):
    """A -> B and B -> A of a topic that both have, and C -> A of C's: three clusters with producers.

    What comes from C is handed on to B, and nothing ever comes back.
    """

    def __init__(
        self, opened: ExitStack, clusters: dict[str, KafkaCluster], folder: Path, name: str, **sections: Any
    ) -> None:
        super().__init__(opened, clusters, folder, name)
        self.topic = f"{self.prefix}orders"
        for source, target in (("A", "B"), ("B", "A"), ("C", "A")):
            own = {"two_way": source != "C", "known_aliases": list(clusters)}
            self.mirror(source, target, mirror=own, **sections)
        self.routes = [
            self.route("A", "B", {self.topic: f"A.{self.topic}"}),
            self.route("B", "A", {self.topic: f"B.{self.topic}"}),
            self.route("C", "A", {self.topic: f"C.{self.topic}"}),
            self.route("A", "B", {f"C.{self.topic}": f"A.C.{self.topic}"}, of="C"),
        ]

    def route(self, source: str, target: str, names: dict[str, str], of: str = "") -> Route:
        """:param of: whose group reads these topics; empty: that of the source."""
        return Route(self.sites[source], self.sites[target], names, self.sites[of or source].group)


@pytest.fixture
def active(
    clusters: dict[str, KafkaCluster],
    request: pytest.FixtureRequest,
    unique_name: Callable[[str], str],
    tmp_path: Path,
) -> Iterator[_ActiveActive]:
    with ExitStack() as opened:
        sections = LONG_SLICES if request.node.get_closest_marker("soak") else {}
        yield _ActiveActive(opened, clusters, tmp_path, unique_name("active"), **sections)


@pytest.mark.timeout(1500)
def test_active_active(active: _ActiveActive) -> None:
    """Each side gets the other's records once, and nothing comes back; each mirror is killed once under load."""
    kill_each(active.soak, active.all_mirrors, active.all_sites, active.routes)
    # A topic that appears later is taken up, and its copy is not copied back either.
    late, first = f"{active.prefix}late", active.sites["A"]
    first.cluster.create_topics({late: (1, {})})
    with LiveProducer(first.cluster.client_config(), {late: [0]}, records_per_second=50) as writer:
        eventually(lambda: writer.count() > 50, "the late topic has records")
        writer.freeze()
    first.topics, first.producers = [*first.topics, late], [*first.producers, writer]
    active.routes[0] = active.route("A", "B", {name: f"A.{name}" for name in (active.topic, late)})
    wait_written(active.all_sites, 100)
    active.end()
    back = active.mirrors["BA"].flow
    assert active.mirrors["AB"].flow("hops")["topics"] != []
    refused = {row["topic"]: row["left_out"] for row in back("topics")["topics"]}
    assert "cycle" in refused[f"A.{active.topic}"]
    assert "cycle" in refused[f"A.C.{active.topic}"]


@pytest.mark.timeout(1800)
@pytest.mark.soak
def test_active_active_under_random_faults(active: _ActiveActive) -> None:
    """Mirrors and brokers of all three clusters are killed, brokers are frozen, groups move."""
    active.run_random_faults()
    active.end()


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


@pytest.mark.timeout(1500)
@pytest.mark.soak
def test_a_chain_with_producers_everywhere_that_is_killed_and_healed(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    third_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    """A -> B -> C while A, B and C are written to: mirrors and brokers are killed, and every record is there once."""
    seed = int(os.environ.get("CHAIN_SEED", "0")) or random.SystemRandom().randrange(2**31)
    print(f"CHAIN_SEED={seed}")
    chance = random.Random(seed)
    name = unique_name("killed")
    topic = f"{name}.orders"
    clusters = {"A": source_cluster, "B": target_cluster, "C": third_cluster}
    plain = name.lower().replace("_", "-")
    mirrors = {
        "".join(pair): KeptMirror(
            Flow(
                clusters[pair[0]],
                clusters[pair[1]],
                tmp_path,
                f"{plain}-{''.join(pair).lower()}",
                f"{name}.",
                pair,
                {"mirror": {"known_aliases": list(clusters)}},
            )
        )
        for pair in (("A", "B"), ("B", "C"))
    }
    with ExitStack() as opened:
        producers = []
        for number, cluster in enumerate(clusters.values()):
            cluster.create_topics({topic: (2, {})})
            config = cluster.client_config()
            producers.append(
                opened.enter_context(LiveProducer(config, {topic: [0, 1]}, records_per_second=60, seed=number))
            )
        for mirror in mirrors.values():
            opened.callback(mirror.kill)
        copied = {("B", f"A.{topic}"): "A", ("C", f"B.A.{topic}"): "A", ("C", f"B.{topic}"): "B"}
        for step in range(8):
            before = [producer.count() for producer in producers]
            victim = chance.choice([*mirrors, *clusters])
            print(f"step {step}: SIGKILL of {victim}")
            if victim in mirrors:
                mirrors[victim].kill()
            else:
                clusters[victim].kill(0)
                for mirror in mirrors.values():
                    mirror.look()
                clusters[victim].restart(0)

            def written(before: list[int] = before) -> bool:
                for mirror in mirrors.values():
                    mirror.look()
                return all(now.count() > count + 200 for now, count in zip(producers, before, strict=True))

            eventually(written, "all producers write on")
        for producer in producers:
            producer.freeze()
        ends = {alias: _ends(cluster, topic) for alias, cluster in clusters.items()}

        def arrived() -> bool:
            for mirror in mirrors.values():
                mirror.look()
            return all(_have_ends(clusters[there], {remote: ends[alias]}) for (there, remote), alias in copied.items())

        eventually(arrived, "all clusters have everything")
    for (there, remote), alias in copied.items():
        compare(clusters[alias].client_config(), clusters[there].client_config(), {topic: remote}).check()
    for producer, (alias, cluster) in zip(producers, clusters.items(), strict=True):
        assert sum(_ends(cluster, topic).values()) >= producer.count(), f"what {alias} has acknowledged is there"
    assert _topics(source_cluster, name) == {topic}, "no cycle"
    assert _topics(target_cluster, name) == {topic, f"A.{topic}"}
    assert _topics(third_cluster, name) == {topic, f"B.{topic}", f"B.A.{topic}"}
