"""Pairs of simulated clusters for one test."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from simulated.cluster import SimulatedCluster
from simulated.copying import SimulatedCopy


class Worlds:
    """Makes pairs of clusters, each with a folder of its own, and closes them at the end of the test."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._count = 0

    def close(self) -> None:
        """Close the clusters made so far; tests that make many keep only the last ones open."""
        self._stack.close()

    def clusters(self, **target: Any) -> tuple[SimulatedCluster, SimulatedCluster]:
        """A source as of Kafka 3 and a target as of Kafka 4; ``target`` are fields of the latter."""
        source = self._stack.enter_context(SimulatedCluster("source", transaction_version=1))
        return source, self._stack.enter_context(SimulatedCluster(**{"name": "target", **target}))

    def copy(
        self, fill: Callable[[SimulatedCluster], object], *, target: dict[str, Any] | None = None, **options: Any
    ) -> SimulatedCopy:
        """A copy of the topics that ``fill`` creates on the source; ``options`` are those of :class:`SimulatedCopy`."""
        source, other = self.clusters(**(target or {}))
        fill(source)
        return SimulatedCopy(self.folder(), source, other, **options)

    def folder(self) -> Path:
        """A folder that no other copy of the test has."""
        self._count += 1
        return self._folder / str(self._count)
