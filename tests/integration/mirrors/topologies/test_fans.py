"""Fan-in and fan-out: three clusters, three flows at a time, producers on all of them, and SIGKILLs under load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from harness.brokers import KafkaCluster
from tests.integration.mirrors.topologies.mesh import Mesh
from tests.soak_support import LONG_SLICES, Route, kill_each, wait_written

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(1800)]


class Fans(Mesh):
    """A -> C and B -> C gather a topic that all have, A -> B and A -> C hand one out."""

    def __init__(
        self, opened: ExitStack, clusters: dict[str, KafkaCluster], folder: Path, name: str, **sections: Any
    ) -> None:
        super().__init__(opened, clusters, folder, name)
        # A -> B -> C is not what is asked for: only topics of their own are gathered.
        sections = {
            "mirror": {"known_aliases": list(clusters)},
            "topics": {"include": [f"{self.prefix}.*"]},
            **sections,
        }
        for source, target in (("A", "C"), ("B", "C"), ("A", "B")):
            flow, site = self.mirror(source, target, **sections), self.sites[source]
            self.routes.append(Route(site, self.sites[target], flow.remote(site.topics), site.group))


@pytest.fixture
def fans(
    clusters: dict[str, KafkaCluster],
    request: pytest.FixtureRequest,
    unique_name: Callable[[str], str],
    tmp_path: Path,
) -> Iterator[Fans]:
    with ExitStack() as opened:
        sections = LONG_SLICES if request.node.name == "test_fans_under_random_faults" else {}
        yield Fans(opened, clusters, tmp_path, unique_name("fans"), **sections)


def test_fan_in_and_fan_out(fans: Fans) -> None:
    """Each copier is killed once under load; the others do not mind."""
    kill_each(fans.soak, fans.all_mirrors, fans.all_sites, fans.routes)
    wait_written(fans.all_sites, 100)
    fans.end()


def test_fans_under_random_faults(fans: Fans) -> None:
    """Copiers and brokers of all three clusters are killed, brokers are frozen, groups move."""
    fans.run_random_faults()
    fans.end()
