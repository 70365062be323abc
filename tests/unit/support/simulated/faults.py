"""Faults of a simulated cluster: what goes wrong with which requests, and how often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["drop_before", "drop_after", "code", "empty", "leave_out", "cut", "delay", "throttle", "act"]


@dataclass
class Fault:
    """One fault.

    ``drop_before`` and ``drop_after`` close the connection before or after the request has its effect. ``code`` answers
    an error for the partitions of ``topic`` (all without one) or for the whole request. ``empty``: a fetch returns no
    records although there are some; ``cut``: only the first bytes of a batch; ``leave_out``: it omits the partition.
    ``act``: something else happens to the cluster after the request: ``action``.
    ``delay``: the answer comes ``seconds`` later. ``throttle``: the answer names a throttle time of ``seconds``.

    :param api: api key of the requests.
    :param skip: this many matching requests pass first.
    :param times: then this many are hit.
    """

    kind: Kind
    api: int
    times: int = 1
    skip: int = 0
    topic: str | None = None
    code: int = 0
    seconds: float = 0.0
    action: Callable[[], object] = lambda: None
    #: how often it has happened
    hits: int = 0

    def hits_now(self, api: int) -> bool:
        """Count a request of this api; return whether the fault happens to it."""
        if api != self.api or self.hits >= self.times:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.hits += 1
        return True

    def concerns(self, topic: str) -> bool:
        """Return whether it happens to partitions of this topic."""
        return self.topic is None or self.topic == topic
