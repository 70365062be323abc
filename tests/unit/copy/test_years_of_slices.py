"""A mirror in fast motion: after many slices there are as many objects as after a few, and no more memory is in use."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections import Counter

import pytest
from simulated.cluster import SimulatedCluster
from simulated.copying import SimulatedCopy
from simulated.worlds import Worlds

from airflow_provider_kafka_migration.lanes.slices import KEPT_LEASES

TOPICS = ("quiet", "busy", "compacted")


def _fill(source: SimulatedCluster) -> None:
    for topic in TOPICS:
        source.create(topic)
        source.produce(topic, [b"%d" % number for number in range(10)])


def mirror(worlds: Worlds) -> SimulatedCopy:
    tombstones = {"on_overtaken": "warn", "retention_ms": {"compacted": 10**9}}
    fields = {"target_deletes": True, "target_compacts": ["compacted"], "tombstones": tombstones}
    return worlds.copy(_fill, job_fields=fields)


def live(copy: SimulatedCopy, slices: int, chance: random.Random) -> None:
    """So many slices, between which both sides get records, delete and compact."""
    for number in range(slices):
        for topic in TOPICS[1:]:
            copy.source.produce(topic, [b"%d" % number, None][: chance.randint(1, 2)])
        if chance.random() < 0.3:
            copy.source.transaction("busy", [b"one"], commit=chance.random() < 0.5)
        results = copy.slice()
        assert all(result.done and not result.error for result in results.values())
        for topic in ("busy", "quiet"):
            for cluster in (copy.source, copy.target):
                log = cluster.log((topic, 0))
                log.delete_until(max(log.log_start, copy.target.log((topic, 0)).log_end - 20 * (topic == "busy")))
                log.aborted = [item for item in log.aborted if item[2] >= log.log_start]
        for cluster in (copy.source, copy.target):
            log = cluster.log(("compacted", 0))
            log.compact_keys(log.log_end - 5, tombstones=True)
        copy.source.requests.clear()
        copy.target.requests.clear()


def objects(copy: SimulatedCopy) -> Counter[str]:
    """The number of objects by folder."""
    return Counter(info.key.split("/")[1] for info in copy.store.list())


@pytest.mark.slow
@pytest.mark.no_cover
@pytest.mark.parametrize("slices", [50, pytest.param(5_000, marks=pytest.mark.soak, id="a month of slices")])
def test_objects_and_memory_do_not_grow(worlds: Worlds, slices: int) -> None:
    chance = random.Random(16)
    copy = mirror(worlds)
    live(copy, 12, chance)
    few, size = objects(copy), sum(info.size_bytes for info in copy.store.list())
    gc.collect()
    tracemalloc.start()
    live(copy, 12, chance)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    live(copy, slices, chance)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    print(few, objects(copy), size, sum(info.size_bytes for info in copy.store.list()), before, after)
    assert objects(copy) == few
    assert few["leases"] <= 2 * (KEPT_LEASES + 1)
    assert sum(info.size_bytes for info in copy.store.list()) < 2 * size
    assert after - before < 400_000, "slices keep no memory"
