"""Clusters with producers on each, and mirrors between them that are killed and started again."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from harness.brokers import KafkaCluster
from tests.integration.mirrors.mirror_support import SECONDS, Flow, KeptMirror
from tests.soak_support import Route, Site, Soak, check_settled, mirror_fault, settle


class Mesh:
    """Sites by alias, mirrors by their two aliases, and what has to arrive where."""

    def __init__(self, opened: ExitStack, clusters: dict[str, KafkaCluster], folder: Path, name: str) -> None:
        self.soak = Soak.from_environment(120)
        self.prefix = f"{name}."
        self.sites = {
            alias: Site.open(opened, self.soak, alias, cluster, self.prefix) for alias, cluster in clusters.items()
        }
        self.mirrors: dict[str, KeptMirror] = {}
        self.routes: list[Route] = []
        self._opened, self._folder, self._name = opened, folder, name

    def mirror(self, source: str, target: str, **sections: Any) -> Flow:
        """Start the mirror of a flow; it is killed when the test ends."""
        flow = Flow(
            self.sites[source].cluster,
            self.sites[target].cluster,
            self._folder,
            f"{self._name}-{source}{target}".lower().replace(".", "-").replace("_", "-"),
            self.prefix,
            (source, target),
            sections,
        )
        self.mirrors[source + target] = kept = KeptMirror(flow)
        self._opened.callback(kept.kill)
        kept.look()
        return flow

    @property
    def all_sites(self) -> list[Site]:
        return list(self.sites.values())

    @property
    def all_mirrors(self) -> list[KeptMirror]:
        return list(self.mirrors.values())

    def check(self) -> None:
        for mirror in self.all_mirrors:
            mirror.check()

    def run_random_faults(self) -> None:
        """Copiers and brokers of all clusters are killed, brokers are frozen, groups move."""
        faults = {
            **mirror_fault(self.soak, self.all_mirrors),
            **self.soak.broker_faults([site.cluster for site in self.all_sites]),
            **self.soak.group_fault(self.all_sites),
        }
        self.soak.run(faults, self.check, (0.5, 6))

    def end(self) -> None:
        """Contents, offsets and groups are equal, record by record, and no topic has come by another way."""
        settle(self.soak, self.all_sites, self.routes, SECONDS, self.check)
        damage = check_settled(self.all_sites, self.routes, self.prefix)
        print(f"{self.soak}, {sum(site.count() for site in self.all_sites)} records, {damage}", flush=True)
