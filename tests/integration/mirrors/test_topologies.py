"""Several flows side by side on real clusters, with producers on all of them: no cycle, and equal offsets."""

from __future__ import annotations

import os
import random
import subprocess
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


class _KeptRunning:
    """The mirror of a flow, which somebody starts again whenever it is dead."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._process: subprocess.Popen[str] | None = None

    def look(self) -> None:
        if self._process is None or self._process.poll() is not None:
            self._process, _ = self._flow.begin()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


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
        "".join(pair): _KeptRunning(
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
