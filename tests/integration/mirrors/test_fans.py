"""Fan-in and fan-out: three clusters, three flows at a time, producers on two of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from harness.brokers import KafkaCluster
from harness.clients import LiveProducer, commit_offsets, committed_offsets
from harness.compare import bounds, compare
from harness.processes import wait_for
from tests.integration.mirrors.mirror_support import SECONDS, Flow
from tests.integration.mirrors.scenario_support import Mirror, topics_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def third_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Where the others are gathered."""
    with KafkaCluster(tmp_path_factory.mktemp("third"), "4.1.1", "kraft") as cluster:
        yield cluster


def test_fan_in_and_fan_out(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    third_cluster: KafkaCluster,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A -> C and B -> C gather a topic that both have, A -> B and A -> C hand one out: equal offsets everywhere."""
    folder = tmp_path_factory.mktemp("fans")
    prefix = f"{folder.name.replace('_', '-')}."
    topic, group = f"{prefix}orders", f"{prefix}group"
    clusters = {"A": source_cluster, "B": target_cluster, "C": third_cluster}
    writers = {alias: clusters[alias].client_config() for alias in ("A", "B")}
    mirrors: dict[str, Mirror] = {}
    with ExitStack() as opened:
        producers = {}
        for seed, (alias, config) in enumerate(writers.items()):
            clusters[alias].create_topics({topic: (2, {})})
            producers[alias] = opened.enter_context(
                LiveProducer(config, {topic: [0, 1]}, records_per_second=100, seed=seed)
            )
        for source, target in (("A", "C"), ("B", "C"), ("A", "B")):
            pair = source + target
            connections = {}
            for side, alias in (("source", source), ("target", target)):
                variable = f"FAN_{alias}"
                monkeypatch.setenv(variable, _json(clusters[alias]))
                connections[side] = {"conn_id": f"env:{variable}"}
            (folder / pair).mkdir()
            flow = Flow(
                clusters[source],
                clusters[target],
                folder / pair,
                f"{prefix}{pair}".lower(),
                prefix,
                (source, target),
                {
                    **connections,
                    "mirror": {"known_aliases": list(clusters)},
                    # A -> B -> C is not what is asked for: only topics of their own are gathered.
                    "topics": {"include": [f"{prefix}.*"]},
                },
            )
            mirrors[pair] = Mirror(flow)
            opened.callback(mirrors[pair].stop)
            mirrors[pair].begin()
        for mirror in mirrors.values():
            wait_for(f"{mirror.flow.name} mirrors", partial(_mirrors, mirror), SECONDS, 0.5)
        # One of them is stopped for a while; the others do not mind.
        mirrors["AC"].stop()
        before = {alias: producer.count() for alias, producer in producers.items()}
        wait_for(
            "more records",
            lambda: all(producers[alias].count() > count + 300 for alias, count in before.items()),
            SECONDS,
        )
        mirrors["AC"].start()
        for producer in producers.values():
            producer.freeze()
        ends = {alias: _ends(clusters[alias], topic) for alias in writers}
        for alias, config in writers.items():
            commit_offsets(config, f"{group}.{alias}", {(topic, number): end for number, end in ends[alias].items()})
        for pair in mirrors:
            source, target = pair[0], pair[1]
            remote, there = f"{source}.{topic}", clusters[target]

            def arrived(source: str = source, remote: str = remote, there: KafkaCluster = there) -> bool:
                if remote not in topics_of(there) or _ends(there, remote) != ends[source]:
                    return False
                found = committed_offsets(there.client_config(), f"{group}.{source}", [remote])
                return found == {(remote, number): end for number, end in ends[source].items()}

            wait_for(f"records and groups of {pair}", arrived, SECONDS, 0.5)
    for pair in mirrors:
        configs = [clusters[alias].client_config() for alias in (pair[0], pair[1])]
        compare(configs[0], configs[1], {topic: f"{pair[0]}.{topic}"}).check()
    assert topics_of(third_cluster, prefix) == {f"A.{topic}", f"B.{topic}"}
    assert topics_of(target_cluster, prefix) == {topic, f"A.{topic}"}
    assert topics_of(source_cluster, prefix) == {topic}


def _json(cluster: KafkaCluster) -> str:
    return json.dumps(cluster.client_config())


def _mirrors(mirror: Mirror) -> bool:
    if mirror.error is not None:
        raise mirror.error
    return str(mirror.state()) == "tail"


def _ends(cluster: KafkaCluster, topic: str) -> dict[int, int]:
    return {number: item.end for number, item in bounds(cluster.client_config(), [topic])[topic].items()}
