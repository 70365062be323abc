"""Topics of each kind, as real clusters have them, made from a seed."""

from __future__ import annotations

import random

from simulated.cluster import SimulatedCluster

KINDS = ("plain", "compacted", "transactional", "holey")


def fill_source(cluster: SimulatedCluster, seed: int, *, kinds: tuple[str, ...] = KINDS) -> None:
    """Create one topic of each kind and fill it."""
    chance = random.Random(seed)
    makers = {"plain": _plain, "compacted": _compacted, "transactional": _transactional, "holey": _holey}
    for kind in kinds:
        cluster.create(kind)
        makers[kind](cluster, kind, chance)


def _values(chance: random.Random, count: int) -> list[bytes | None]:
    return [None if chance.random() < 0.1 else chance.randbytes(chance.randint(1, 60)) for _ in range(count)]


def _plain(cluster: SimulatedCluster, topic: str, chance: random.Random) -> None:
    cluster.produce(topic, _values(chance, chance.randint(15, 40)), batch=chance.randint(2, 9))


def _compacted(cluster: SimulatedCluster, topic: str, chance: random.Random) -> None:
    """Single records, stretches and whole batches are gone; the head of the log as well."""
    cluster.produce(topic, _values(chance, 40), batch=4)
    log = cluster.log((topic, 0))
    log.compact({0, 1, *range(12, 20), *chance.sample(range(20, 36), 8)})
    cluster.produce(topic, _values(chance, 3))


def _transactional(cluster: SimulatedCluster, topic: str, chance: random.Random) -> None:
    """Committed and aborted transactions of two producers, plain records between them."""
    for number in range(5):
        producer = 70 + number % 2
        cluster.transaction(topic, _values(chance, chance.randint(1, 4)), commit=None, producer_id=producer)
        if chance.random() < 0.5:
            cluster.produce(topic, _values(chance, 2))
        cluster.transaction(topic, _values(chance, 1), commit=number % 3 != 1, producer_id=producer)
    cluster.produce(topic, _values(chance, 4))


def _holey(cluster: SimulatedCluster, topic: str, chance: random.Random) -> None:
    """The log begins above 0, in the middle of a batch, and ends with a marker."""
    cluster.produce(topic, _values(chance, 30), batch=6)
    cluster.log((topic, 0)).delete_until(9)
    cluster.transaction(topic, _values(chance, 2), commit=False)
    cluster.produce(topic, _values(chance, 5))
    cluster.transaction(topic, _values(chance, 2), commit=True)
