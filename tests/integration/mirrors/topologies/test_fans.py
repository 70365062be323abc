"""Fan-in and fan-out: three clusters, three flows at a time, producers on all of them, and SIGKILLs under load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from harness.brokers import KafkaCluster
from tests.integration.mirrors.mirror_support import SECONDS, Flow, KeptMirror
from tests.soak_support import (
    LONG_SLICES,
    Route,
    Site,
    Soak,
    check_settled,
    kill_each,
    mirror_fault,
    settle,
    wait_written,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def third_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Where the others are gathered."""
    with KafkaCluster(tmp_path_factory.mktemp("third"), "4.1.1", "kraft") as cluster:
        yield cluster


class Fans:
    """A -> C and B -> C gather a topic that all have, A -> B and A -> C hand one out."""

    def __init__(
        self, opened: ExitStack, clusters: dict[str, KafkaCluster], folder: Path, name: str, **sections: Any
    ) -> None:
        self.soak = Soak.from_environment(120)
        self.prefix = f"{name}."
        self.sites = {
            alias: Site.open(opened, self.soak, alias, cluster, self.prefix) for alias, cluster in clusters.items()
        }
        self.mirrors, self.routes = [], []
        for pair in (("A", "C"), ("B", "C"), ("A", "B")):
            source, target = (self.sites[alias] for alias in pair)
            flow = Flow(
                source.cluster,
                target.cluster,
                folder,
                f"{name}-{''.join(pair)}".lower().replace(".", "-").replace("_", "-"),
                self.prefix,
                pair,
                {
                    "mirror": {"known_aliases": list(clusters)},
                    # A -> B -> C is not what is asked for: only topics of their own are gathered.
                    "topics": {"include": [f"{self.prefix}.*"]},
                    **sections,
                },
            )
            self.routes.append(Route(source, target, flow.remote(source.topics), source.group))
            self.mirrors.append(KeptMirror(flow))
            opened.callback(self.mirrors[-1].kill)
            self.mirrors[-1].look()

    @property
    def all_sites(self) -> list[Site]:
        return list(self.sites.values())

    def check(self) -> None:
        for mirror in self.mirrors:
            mirror.check()

    def end(self) -> None:
        """Contents, offsets and groups are equal, record by record, and no topic has come by another way."""
        settle(self.soak, self.all_sites, self.routes, SECONDS, self.check)
        damage = check_settled(self.all_sites, self.routes, self.prefix)
        print(f"{self.soak}, {sum(site.count() for site in self.all_sites)} records, {damage}", flush=True)


@pytest.fixture
def fans(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    third_cluster: KafkaCluster,
    request: pytest.FixtureRequest,
    unique_name: Callable[[str], str],
    tmp_path: Path,
) -> Iterator[Fans]:
    clusters = {"A": source_cluster, "B": target_cluster, "C": third_cluster}
    with ExitStack() as opened:
        sections = LONG_SLICES if request.node.get_closest_marker("soak") else {}
        yield Fans(opened, clusters, tmp_path, unique_name("fans"), **sections)


def test_fan_in_and_fan_out(fans: Fans) -> None:
    """Each copier is killed once under load; the others do not mind."""
    kill_each(fans.soak, fans.mirrors, fans.all_sites, fans.routes)
    wait_written(fans.all_sites, 100)
    fans.end()


@pytest.mark.soak
def test_fans_under_random_faults(fans: Fans) -> None:
    """Copiers and brokers of all three clusters are killed, brokers are frozen, groups move."""
    faults = {
        **mirror_fault(fans.soak, fans.mirrors),
        **fans.soak.broker_faults([site.cluster for site in fans.all_sites]),
        **fans.soak.group_fault(fans.all_sites),
    }
    fans.soak.run(faults, fans.check, (0.5, 6))
    fans.end()
