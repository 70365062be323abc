"""Two flows copy the same topics in opposite directions: each record is once on each side, whoever dies when."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from simulated.cluster import SimulatedCluster
from simulated.copying import MIGRATION, SimulatedCopy, visible
from simulated.kill import KillSwitch
from simulated.worlds import Worlds

from airflow_provider_kafka_migration.compare.comparison import ContentOptions, compare_stretch
from airflow_provider_kafka_migration.compare.logs import KafkaLog, MarkedLog, OurLog
from airflow_provider_kafka_migration.copy.provenance import ProvenanceMarker
from airflow_provider_kafka_migration.documents.copy import ProvenanceSettings
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.documents.proof import ContentRange, PartitionContent, TopicRules
from airflow_provider_kafka_migration.kafka.batches.api import Record, encode_batch
from airflow_provider_kafka_migration.offset_map.transactional import group_name

_HEADER = "kafka-migration.provenance"
_TOPICS = ("t", "u")


class _Pair:
    """Two clusters with the same topics, and a flow in each direction.

    :param topics: what each cluster has before the flows begin.
    """

    def __init__(self, worlds: Worlds, *, topics: tuple[str, ...] = ("t",), **versions: Any) -> None:
        self.a, self.b = worlds.clusters(**versions)
        self.topics = topics
        for cluster in (self.a, self.b):
            for topic in topics:
                cluster.create(topic, max_batch_bytes=20_000_000)
        self.there = _flow(worlds, self.a, self.b, topics, ("A", "B"))
        self.back = _flow(worlds, self.b, self.a, topics, ("B", "A"))
        #: values that were written to each cluster, in order, by topic
        self.written: dict[str, dict[str, list[bytes]]] = {name: {topic: [] for topic in topics} for name in ("A", "B")}
        self._count = 0

    def cluster(self, name: str) -> SimulatedCluster:
        return self.a if name == "A" else self.b

    def _values(self, name: str, topic: str, count: int) -> list[bytes | None]:
        found = [b"%s %s %d" % (name.encode(), topic.encode(), self._count + number) for number in range(count)]
        self._count += count
        return list(found)

    def write(self, name: str, topic: str = "t", count: int = 3, batch: int = 5) -> None:
        values = self._values(name, topic, count)
        self.written[name][topic] += [value for value in values if value is not None]
        self.cluster(name).produce(topic, values, batch=batch)

    def transact(self, name: str, topic: str = "t", count: int = 3, *, commit: bool = True) -> None:
        """A transaction of an application."""
        values = self._values(name, topic, count)
        if commit:
            self.written[name][topic] += [value for value in values if value is not None]
        self.cluster(name).transaction(topic, values, commit=commit)

    def settle(self) -> None:
        """Run both flows until both have read to the end: what one writes, the other reads."""
        for copy in (self.there, self.back, self.there, self.back):
            assert all(result.done and not result.error for result in copy.slice().values())
            copy.target.coordinators.settle()

    def check(self) -> None:
        """Each record once on each side, in the order of the cluster that it was first written to."""
        for topic in self.topics:
            for side in ("A", "B"):
                found = list(visible(self.cluster(side).log((topic, 0))).values())
                by_origin: dict[str, list[bytes]] = {"A": [], "B": []}
                for record in found:
                    assert record.value is not None
                    by_origin[record.value.decode()[0]].append(record.value)
                    assert len(_places(record)) == (record.value.decode()[0] != side), record
                for name in ("A", "B"):
                    assert by_origin[name] == self.written[name][topic], (topic, side, name)
        self.check_places()

    def check_places(self) -> None:
        """The header of each copy leads to its original."""
        for topic in self.topics:
            for side, other in (("A", "B"), ("B", "A")):
                originals = visible(self.cluster(other).log((topic, 0)))
                for record in visible(self.cluster(side).log((topic, 0))).values():
                    for place in _places(record):
                        cluster, named, partition, offset = place.split("/")
                        assert (cluster, named, partition) == (other, topic, "0")
                        assert originals[int(offset)].value == record.value
                        assert originals[int(offset)].headers == record.headers[:-1]

    def ends(self) -> list[int]:
        return [self.cluster(name).log((topic, 0)).log_end for name in ("A", "B") for topic in self.topics]


def _places(record: Record) -> list[str]:
    return [value.decode() for name, value in record.headers if name == _HEADER.encode() and value is not None]


def _flow(
    worlds: Worlds, source: SimulatedCluster, target: SimulatedCluster, topics: tuple[str, ...], ids: tuple[str, str]
) -> SimulatedCopy:
    settings = ProvenanceSettings(header=_HEADER, source_cluster_id=ids[0], target_cluster_id=ids[1])
    verdicts = dict.fromkeys(topics, Verdict.TRANSACTIONAL)
    fields = {"provenance": settings, "segment_max_bytes": 400}
    return SimulatedCopy(worlds.folder(), source, target, verdicts=verdicts, job_fields=fields)


@pytest.mark.parametrize("version", [1, 2])
def test_producers_on_both_sides(worlds: Worlds, version: int) -> None:
    pair = _Pair(
        worlds, topics=_TOPICS, source={"transaction_version": version}, target={"transaction_version": version}
    )
    for count in (7, 1, 13):
        pair.write("A", "t", count)
        pair.write("B", "t", count + 2, batch=1)
        pair.write("B", "u", 4)
        pair.settle()
        pair.check()


def test_logs_stand_still_when_nobody_writes(worlds: Worlds) -> None:
    """The markers of one flow are nothing new for the other: no transaction calls for the next one."""
    pair = _Pair(worlds)
    pair.write("A")
    pair.write("B")
    pair.settle()
    ends = pair.ends()
    for _ in range(3):
        pair.settle()
    assert pair.ends() == ends


def test_what_both_sides_had_before_comes_together(worlds: Worlds) -> None:
    pair = _Pair(worlds)
    pair.write("A", count=20)
    pair.a.log(("t", 0)).delete_until(5)
    del pair.written["A"]["t"][:5]
    pair.write("B", count=11)
    pair.settle()
    pair.check()


def test_transactions_of_applications_on_either_side(worlds: Worlds) -> None:
    pair = _Pair(worlds)
    for name in ("A", "B", "A"):
        pair.transact(name)
        pair.transact(name, commit=False)
        pair.write(name, count=2)
        pair.settle()
    pair.check()


def test_compaction_on_both_sides(worlds: Worlds) -> None:
    """What the cleaner leaves is copied once, also where records of both sides are in one batch."""
    pair = _Pair(worlds)
    pair.write("A", count=12, batch=4)
    pair.write("B", count=12, batch=4)
    pair.a.log(("t", 0)).compact({1, 5, 6})
    for offset in sorted({1, 5, 6}, reverse=True):
        del pair.written["A"]["t"][offset]
    pair.settle()
    pair.check()
    log = pair.b.log(("t", 0))
    gone = [offset for offset, record in visible(log).items() if not _places(record)][:3]
    log.compact(set(gone))
    pair.write("B", count=2)
    pair.write("A", count=2)
    pair.settle()
    counts = Counter(record.value for record in visible(pair.a.log(("t", 0))).values())
    assert set(counts.values()) == {1}
    assert set(counts) == {*pair.written["A"]["t"], *pair.written["B"]["t"]}


@pytest.mark.parametrize("version", [1, 2])
def test_the_last_copy_is_compacted_away(worlds: Worlds, version: int) -> None:
    """A local producer writes its key again, and the cleaner removes the record that the position names."""
    pair = _Pair(worlds, source={"transaction_version": version}, target={"transaction_version": version})
    for number in range(3):
        pair.a.log(("t", 0)).append(encode_batch([Record(0, 1, b"k", b"A %d" % number, [])]))
        pair.settle()
        pair.b.log(("t", 0)).append(encode_batch([Record(0, 1, b"k", b"B %d" % number, [])]))
        pair.settle()
        log = pair.b.log(("t", 0))
        log.forget_producers()
        log.compact_keys(log.log_end)
        assert [record.value for record in visible(log).values()] == [b"B %d" % number]
    pair.a.log(("t", 0)).append(encode_batch([Record(0, 1, b"other", b"A last", [])]))
    pair.settle()
    assert [record.value for record in visible(pair.b.log(("t", 0))).values()] == [b"B 2", b"A last"]


def test_lost_records_are_noticed_in_merged_topics(worlds: Worlds) -> None:
    """An unclean election: the target's log ends below the position, or has a record of others in its place."""
    for written in (0, 20):
        pair = _Pair(worlds)
        pair.write("A", count=4)
        pair.settle()
        pair.b.log(("t", 0)).truncate(2)
        pair.b.produce("t", [b"x %d" % number for number in range(written)])
        pair.write("A", count=1)
        error = pair.there.slice()["t"].error
        assert error is not None
        assert error["code"] == "POSITION_LOST"
        _check_advice(error["next_step"])


def _check_advice(text: str) -> None:
    """Nobody is told to delete what exists only there, or to copy again without a word about duplicates."""
    assert "delete nothing" in text
    assert "remove what" not in text
    assert "twice" in text[text.index("nother migration_id") :]


def test_a_position_that_has_expired(worlds: Worlds) -> None:
    pair = _Pair(worlds)
    pair.write("A", count=4)
    pair.settle()
    del pair.b.coordinators.offsets[group_name(MIGRATION), ("t", 0)]
    pair.write("A", count=1)
    error = pair.there.slice()["t"].error
    assert error is not None
    assert error["code"] == "POSITION_LOST"
    _check_advice(error["next_step"])


def test_the_map_leads_each_copy_to_its_original(worlds: Worlds) -> None:
    pair = _Pair(worlds)
    for _ in range(3):
        pair.write("A", count=4)
        pair.write("B", count=3)
        pair.settle()
    for copy in (pair.there, pair.back):
        source, target = visible(copy.source.log(("t", 0))), visible(copy.target.log(("t", 0)))
        offset_map = copy.offset_map("t")
        copies = {offset: record for offset, record in target.items() if _places(record)}
        assert {offset: source[offset_map.source_of(offset)].value for offset in copies} == {
            offset: record.value for offset, record in copies.items()
        }
        for offset, record in target.items():
            assert offset_map.covers(offset) == bool(_places(record))  # type: ignore[attr-defined]


def test_records_that_an_application_writes_again_with_their_headers(worlds: Worlds) -> None:
    """Streams hands headers on: in another topic they say nothing about the record."""
    pair = _Pair(worlds, topics=_TOPICS)
    pair.write("A", "t", 2)
    pair.settle()
    read = list(visible(pair.b.log(("t", 0))).values())
    log = pair.b.log(("u", 0))
    log.append(encode_batch([record._replace(offset=number) for number, record in enumerate(read)]))
    pair.settle()
    assert [record.value for record in visible(pair.a.log(("u", 0))).values()] == [record.value for record in read]


# -- comparing --------------------------------------------------------------------------------------------------------


def _compared(copy: SimulatedCopy, *, compacted: bool = False) -> PartitionContent:
    """Compare what a flow has copied, as ``mirror verify`` does."""
    offset_map = copy.offset_map("t")
    source_end, target_end = offset_map.copied_ends  # type: ignore[attr-defined]
    compared = ContentRange(
        topic="t",
        target_topic="t",
        partition=0,
        verdict=Verdict.TRANSACTIONAL,
        source_start_offset=0,
        source_end_offset=source_end,
        target_start_offset=offset_map.translate(0).target_offset or 0,
        target_end_offset=target_end,
    )
    rules = TopicRules(compacted=compacted, delete_retention_ms=86_400_000)
    settings = copy.job_fields["provenance"]
    assert isinstance(settings, ProvenanceSettings)
    with copy.clients() as clients:
        source = MarkedLog(KafkaLog(clients.wire("source"), "t", 0), ProvenanceMarker(settings, "t", 0))
        target = OurLog(KafkaLog(clients.wire("target"), "t", 0), offset_map)  # type: ignore[arg-type]
        options = ContentOptions(target_rules=rules)
        return compare_stretch(compared, offset_map, rules, source, target, options).content


def test_each_flow_has_copied_what_is_to_be_copied(worlds: Worlds) -> None:
    pair = _Pair(worlds)
    for _ in range(2):
        pair.write("A", count=5)
        pair.write("B", count=4)
        pair.settle()
    found = [_compared(copy) for copy in (pair.there, pair.back)]
    assert [(item.difference_count, item.compared) for item in found] == [(0, 10), (0, 8)]


def test_a_flow_that_has_lost_a_record_differs(worlds: Worlds) -> None:
    pair = _Pair(worlds)
    pair.write("B", count=2)
    pair.write("A", count=5)
    pair.settle()
    log = pair.b.log(("t", 0))
    lost = [offset for offset, record in visible(log).items() if _places(record)][2]
    log.compact({lost})
    found = _compared(pair.there)
    assert (found.difference_count, found.compared) == (1, 4)
    assert _compared(pair.back).difference_count == 0


def test_a_copy_whose_original_was_compacted_away_by_a_copy_of_the_other_side(worlds: Worlds) -> None:
    pair = _Pair(worlds)
    pair.a.log(("t", 0)).append(encode_batch([Record(0, 1, b"k", b"old, from A", [])]))
    pair.settle()
    pair.b.log(("t", 0)).append(encode_batch([Record(0, 1, b"k", b"new, from B", [])]))
    pair.settle()
    pair.a.produce("t", [b"the last one"])
    pair.settle()
    log = pair.a.log(("t", 0))
    assert log.compact_keys(log.log_end)
    found = _compared(pair.there, compacted=True)
    assert (found.difference_count, found.compared) == (0, 1)


# -- kills ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_a_copier_is_killed_at_each_step(worlds: Worlds, version: int) -> None:
    stride = 3 if version == 2 else 5
    for at in range(1, 400, stride):
        for after in (False, True):
            pair = _Pair(worlds, source={"transaction_version": version}, target={"transaction_version": version})
            pair.write("B", count=9)
            assert pair.back.slice()["t"].done
            pair.back.target.coordinators.settle()
            pair.write("A", count=9)
            switch = KillSwitch(pair.a, pair.b, at=at, after=after)
            switch.run(pair.there.slice)
            if not switch.is_dead:
                assert at > 10, "the copy has hardly any steps"
                return
            print(f"killed {'after' if after else 'before'} step {at}")
            pair.write("B", count=2)
            pair.settle()
            pair.check()
            worlds.close()
    raise AssertionError("more than 400 steps")


@pytest.mark.parametrize("seed", range(6))
def test_copiers_of_both_flows_are_killed_one_after_the_other(worlds: Worlds, seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    pair = _Pair(worlds, topics=_TOPICS)
    for _ in range(16):
        copy = chance.choice((pair.there, pair.back))
        switch = KillSwitch(pair.a, pair.b, at=chance.randint(1, 45), after=chance.random() < 0.5)
        switch.run(copy.slice)
        for name in ("A", "B"):
            topic = chance.choice(_TOPICS)
            pair.write(name, topic, chance.randint(0, 6), batch=chance.randint(1, 4))
            pair.transact(name, topic, chance.randint(1, 3), commit=chance.random() < 0.6)
    pair.settle()
    pair.check()
