"""Mirrors that run while the scenarios of a file do: under both policies, transactions, TLS, and exactly once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.brokers import KafkaCluster
from harness.processes import free_port
from tests.conftest import USERS
from tests.integration.mirrors.mirror_support import STARTED
from tests.integration.mirrors.scenario_support import Scene, make_scene

#: As MirrorMaker 2's own tests have it: this config is kept apart.
EXCLUDED = r"delete\.retention\.ms"
#: A topic that has records before the mirror begins.
EARLY = "early"
PARTITIONS = range(10)
#: The second one is excluded. Some configs have other values while a mirror runs (docs/mirrors.md), this one has not.
EARLY_CONFIG = {"index.interval.bytes": "8192", "delete.retention.ms": "12345678"}


@pytest.fixture(autouse=True)
def _no_mirror_is_left() -> Iterator[None]:
    """End what a failed test has left running: it would take part in the tests behind it, and in its second try."""
    before = len(STARTED)
    yield
    for process in STARTED[before:]:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def tls_clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    """Two clusters with TLS listeners."""
    with (
        KafkaCluster(tmp_path_factory.mktemp("tls-source"), "4.1.1", "kraft", users=USERS, tls=True) as source,
        KafkaCluster(tmp_path_factory.mktemp("tls-target"), "4.1.1", "kraft", users=USERS, tls=True) as target,
    ):
        yield source, target


@pytest.fixture(scope="module")
def scene(
    request: pytest.FixtureRequest,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> Scene:
    """A mirror of the variant that the test asks for by an indirect parameter; ``default`` without one."""
    variant = str(getattr(request, "param", "default"))
    clusters, configs = (source_cluster, target_cluster), None
    if variant == "tls":
        clusters = request.getfixturevalue("tls_clusters")
        source, target = (cluster.client_config("admin", "SCRAM-SHA-512", tls=True) for cluster in clusters)
        configs = source, target
    made = make_scene(
        request,
        tmp_path_factory.mktemp(variant),
        clusters,
        configs,
        transactional=variant in ("transactions", "exactly_once_transactions"),
        exactly_once=variant in ("exactly_once", "exactly_once_transactions"),
        mirror={"naming": "identity"} if variant == "identity" else {},
        topology={"refresh_interval": "1s", "config_exclude": [EXCLUDED]},
        metrics={"prometheus": {"enabled": True, "port": free_port()}},
    )
    early = f"{made.flow.prefix}{EARLY}"
    made.source.create_topics({early: (len(PARTITIONS), EARLY_CONFIG)})
    made.write(early, PARTITIONS)
    made.mirror.start()
    return made
