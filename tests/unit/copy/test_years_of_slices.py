"""A mirror in fast motion: after many slices there are as many objects as after a few, and no more memory is in use."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections import Counter
from functools import partial

import pytest
from simulated.cluster import SimulatedCluster
from simulated.copying import MIGRATION, SimulatedCopy
from simulated.worlds import Worlds

from airflow_provider_kafka_migration.copy import transactions
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.lanes.slices import KEPT_LEASES
from airflow_provider_kafka_migration.offset_map.recent import KeptMaps, RecentMap
from airflow_provider_kafka_migration.offset_map.transactional import MapPages, group_name, read_position

TOPICS = ("quiet", "busy", "compacted")
#: A tenth of a second for each slice on a quiet machine.
LONG = [pytest.mark.soak, pytest.mark.timeout(7200)]


def _fill(source: SimulatedCluster) -> None:
    for topic in TOPICS:
        source.create(topic)
        source.produce(topic, [b"%d" % number for number in range(10)])


def mirror(worlds: Worlds) -> SimulatedCopy:
    tombstones = {"on_overtaken": "note", "retention_ms": {"compacted": 10**9}}
    fields = {"target_deletes": True, "target_compacts": ["compacted"], "tombstones": tombstones}
    return worlds.copy(_fill, job_fields=fields)


def _copy_all(copy: SimulatedCopy) -> None:
    """One slice; on a machine that is so busy that its time is over before all is copied, the next ones go on."""
    for _ in range(10):
        results = copy.slice()
        assert not any(result.error for result in results.values())
        if all(result.done for result in results.values()):
            return
    raise AssertionError("ten slices have not copied a handful of records")


def live(copy: SimulatedCopy, slices: int, chance: random.Random) -> None:
    """So many slices, between which both sides get records, delete and compact."""
    for number in range(slices):
        for topic in TOPICS[1:]:
            copy.source.produce(topic, [b"%d" % number, None][: chance.randint(1, 2)])
        if chance.random() < 0.3:
            copy.source.transaction("busy", [b"one"], commit=chance.random() < 0.5)
        _copy_all(copy)
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


class Group:
    """A group of the source, as the passes of a mirror's group sync translate it: ``lag`` records behind, or dead."""

    def __init__(self, copy: SimulatedCopy, kept: KeptMaps, *, lag: int | None) -> None:
        self._copy, self._kept, self._lag = copy, kept, lag
        self.reads = 0

    def _fetch(self, key: str) -> bytes | None:
        self.reads += 1
        return self._copy.store.get(key)

    def translate(self) -> int:
        """Run one pass; return how many objects it has read. The answer is that of the whole map."""
        self.reads = 0
        found = self._copy.target.coordinators.offsets[(group_name(MIGRATION), ("merged", 0))]
        position = read_position(found.offset, found.metadata)
        offset = 4 if self._lag is None else max(position.source_offset - self._lag, 0)
        get = partial(self._kept.page, fetch=self._fetch)
        pages = MapPages(self._copy.store, MIGRATION, "merged", 0, get=get)
        answer = RecentMap(pages, position, self._kept, "id").translate(offset)
        assert answer == self._copy.offset_map("merged").translate(offset)
        return self.reads


@pytest.mark.slow
@pytest.mark.no_cover
@pytest.mark.parametrize("slices", [50, pytest.param(2_000, marks=LONG, id="weeks of slices")])
def test_passes_over_a_map_that_grows_for_years_read_no_more(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, slices: int
) -> None:
    """A flow in transactions. Its map grows with each of them, and with that only the objects of the map."""
    monkeypatch.setattr(transactions, "MAX_METADATA_BYTES", 150)
    chance = random.Random(17)

    def fill(source: SimulatedCluster) -> None:
        source.create("merged")
        source.produce("merged", [b"%d" % number for number in range(10)])

    copy = worlds.copy(fill, verdicts={"merged": Verdict.TRANSACTIONAL}, job_fields={"target_deletes": True})
    kept = KeptMaps(max_bytes=4_000, max_answers=100)
    groups = [Group(copy, kept, lag=lag) for lag in (0, 60, None)]
    most: Counter[int] = Counter()
    few: Counter[str] = Counter()
    for number in range(12 + slices):
        copy.source.produce("merged", [b"%d" % number] * chance.randint(1, 3))
        copy.target.produce("merged", [b"of others"])
        _copy_all(copy)
        copy.target.coordinators.settle()
        reads = [group.translate() for group in groups]
        if number == 12:
            few = objects(copy)
        elif number > 12:
            most |= Counter(dict(enumerate(reads)))
        copy.source.requests.clear()
        copy.target.requests.clear()
    many = objects(copy)
    print(few, many, most)
    assert many.pop("transactional-map") > few.pop("transactional-map"), "pages were written"
    assert many == few
    assert most[0] <= 1, "the newest page, when the position has just moved its runs there"
    assert most[1] <= 1, "it comes upon one more page at most, and the others are known"
    assert not most[2], "a dead group was looked for once"


@pytest.mark.slow
@pytest.mark.no_cover
@pytest.mark.parametrize("slices", [50, pytest.param(5_000, marks=LONG, id="a month of slices")])
def test_objects_and_memory_do_not_grow(worlds: Worlds, slices: int) -> None:
    chance = random.Random(16)
    copy = mirror(worlds)
    live(copy, 12, chance)
    few, size = objects(copy), sum(info.size_bytes for info in copy.store.list())
    gc.collect()
    tracemalloc.start()
    live(copy, slices // 2, chance)
    gc.collect()
    # Not earlier: caches of libraries, which have a limit, fill in the first half.
    before = tracemalloc.get_traced_memory()[0]
    live(copy, slices // 2, chance)
    after = []
    for _ in range(5):
        # What slices keep stays; what a thread is just busy with does not.
        live(copy, 3, chance)
        gc.collect()
        after.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    print(few, objects(copy), size, sum(info.size_bytes for info in copy.store.list()), before, after)
    assert objects(copy) == few
    assert set(few) == {"leases", "progress", "reading"}, "a slice writes no journal entry"
    assert few["leases"] <= 2 * (KEPT_LEASES + 1)
    assert sum(info.size_bytes for info in copy.store.list()) < 2 * size
    assert min(after) - before < 400_000, "slices keep no memory"
