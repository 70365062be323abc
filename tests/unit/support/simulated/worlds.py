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

    def clusters(
        self, *, source: dict[str, Any] | None = None, target: dict[str, Any] | None = None
    ) -> tuple[SimulatedCluster, SimulatedCluster]:
        """A source as of Kafka 3 and a target as of Kafka 4, each with its own fields."""
        first = SimulatedCluster(**{"name": "source", "transaction_version": 1, **(source or {})})
        second = SimulatedCluster(**{"name": "target", **(target or {})})
        return self._stack.enter_context(first), self._stack.enter_context(second)

    def copy(
        self,
        fill: Callable[[SimulatedCluster], object],
        *,
        source: dict[str, Any] | None = None,
        target: dict[str, Any] | None = None,
        **options: Any,
    ) -> SimulatedCopy:
        """A copy of the topics that ``fill`` creates on the source; ``options`` are those of :class:`SimulatedCopy`."""
        first, second = self.clusters(source=source, target=target)
        fill(first)
        return SimulatedCopy(self.folder(), first, second, **options)

    def folder(self) -> Path:
        """A folder that no other copy of the test has."""
        self._count += 1
        return self._folder / str(self._count)
