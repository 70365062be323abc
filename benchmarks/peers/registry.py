"""All peers by name. A new one: a class with ``start``, ``stop`` and ``measure``, an entry here, and its name in a
scenario (or after ``--peers``)."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.peers.base import Peer
from benchmarks.peers.confluent_loop import ConfluentLoop
from benchmarks.peers.mirror_maker import Defaults, Tuned
from benchmarks.peers.ours import (
    Archive,
    Ours,
    OursMapped,
    OursRewritten,
    OursS3,
    OursSpark,
    OursTransactional,
)
from benchmarks.peers.raw_limit import RawLimit


def peers(archive: Archive) -> dict[str, Callable[[], Peer]]:
    """Name -> how to make one.

    :param archive: where ours puts segments.
    """
    return {
        RawLimit.name: RawLimit,
        Ours.name: Ours,
        OursMapped.name: OursMapped,
        OursRewritten.name: OursRewritten,
        OursS3.name: lambda: OursS3(archive),
        OursTransactional.name: OursTransactional,
        OursSpark.name: OursSpark,
        ConfluentLoop.name: ConfluentLoop,
        Tuned.name: Tuned,
        Defaults.name: Defaults,
    }
