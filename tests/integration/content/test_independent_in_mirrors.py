"""The independent proof of mirrors: marked records, what both sides delete and compact, and mistakes in shared code."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_kafka_migration.compare.independent import IndependentResults
from airflow_provider_kafka_migration.compare.mirrored import MirrorChecker, MirrorResults
from airflow_provider_kafka_migration.documents.copy import ProvenanceSettings
from airflow_provider_kafka_migration.documents.mirror import MirrorComparison, MirroredRange, VerifiedPartition
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.documents.proof import ContentRange, TopicRules
from airflow_provider_kafka_migration.spark.compare_mirror import verify_independently
from harness.brokers import KafkaCluster
from harness.load import Record, wait_cleaned, write
from tests.integration.content.test_independent_on_brokers import BUGS, Bug, write_batches
from tests.integration.copy.copying import Copying
from tests.integration.transactional.transactional_support import map_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

_MARKS = ProvenanceSettings(header="origin", source_cluster_id="A", target_cluster_id="B", max_hops=2)


class Mirror:
    """A copy that goes on, as a mirror makes it, and both comparisons of it.

    :param marked: two flows copy the topic, in opposite directions.
    """

    def __init__(self, copy: Copying, spark: SparkSession, *, marked: bool, compacted: bool = False) -> None:
        self.copy = copy
        self.spark = spark
        self.marked = marked
        self.rules = TopicRules(compacted=compacted)
        self._runs = 0

    def job(self, independent: bool, **fields: Any) -> MirrorComparison:
        self._runs += 1
        letter = "i" if independent else "0"
        return MirrorComparison(
            migration_id=self.copy.migration_id,
            name=f"compare-{letter}{self._runs:06d}",
            run="d/r/verify",
            spec_digest="0" * 64,
            journal_location=self.copy.journal,
            state="mirroring",
            started_at="2026-04-24T10:40:00Z",
            provenance=_MARKS if self.marked else None,
            independent=independent,
            ranges=[self._range(key) for key in sorted(self.copy.partitions)],
            **fields,
        )

    def _range(self, key: tuple[str, int]) -> MirroredRange:
        spec = self.copy.partitions[key]
        first = (spec.source_start_offset, spec.target_start_offset)
        end = self.copy.stable_ends()[key]
        start_target, end_target = first[1], end - first[0] + first[1]
        if spec.verdict is Verdict.TRANSACTIONAL:
            found = map_of(self.copy, key)
            end, end_target = found.copied_ends
            start_target = found.translate(first[0]).target_offset or 0
        compared = ContentRange(
            topic=key[0],
            target_topic=spec.target_topic,
            partition=key[1],
            verdict=spec.verdict,
            source_start_offset=first[0],
            source_end_offset=end,
            target_start_offset=start_target,
            target_end_offset=end_target,
        )
        return MirroredRange(
            range=compared,
            first_source_offset=first[0],
            first_target_offset=first[1],
            source_rules=self.rules,
            target_rules=self.rules,
        )

    def verify(self, job: MirrorComparison | None = None) -> VerifiedPartition:
        """Compare with Spark's own Kafka source."""
        job, store = job or self.job(True), self.copy.clients.store(self.copy.journal)
        verify_independently(job, store, self.copy.clients, self.spark)
        result = MirrorResults(job, store).read(job.ranges[0])
        assert result is not None
        assert result.reader.startswith("Kafka source of Spark")
        return result.found

    def verify_as_it_copies(self) -> VerifiedPartition:
        """Compare with the code that copies."""
        job = self.job(False)
        with MirrorChecker(job, self.copy.clients, self.copy.clients.store(self.copy.journal)) as checker:
            return checker.check(job.ranges[0]).found


@pytest.fixture
def merged(
    copying: Callable[..., Copying],
    spark: SparkSession,
    source_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
) -> Callable[[], Mirror]:
    """A topic with batches of each kind that is to be copied, marked, beside other producers."""
    name = unique_name("i")
    source_cluster.create_topic(name, 1)
    write_batches({"bootstrap.servers": source_cluster.bootstrap}, name)

    def make() -> Mirror:
        verdicts = {(name, 0): Verdict.TRANSACTIONAL}
        return Mirror(copying([name], verdicts=verdicts, job_fields={"provenance": _MARKS}), spark, marked=True)

    return make


def place(cluster: str, topic: str, offset: int, partition: int = 0) -> tuple[str, bytes]:
    return "origin", f"{cluster}/{topic}/{partition}/{offset}".encode()


def test_merged_topics_are_equal(merged: Callable[[], Mirror], target_cluster: KafkaCluster) -> None:
    mirror = merged()
    copy = mirror.copy
    name = copy.topics[0]
    now = int(time.time() * 1000)

    def record(*headers: tuple[str, bytes | None]) -> tuple[int, Record]:
        return 0, Record(-1, now, b"k", b"v", headers)

    write(
        {"bootstrap.servers": copy.source.bootstrap},
        name,
        [
            record(place("B", name, 3)),  # came from there
            record(("h", b"1"), place("C", name, 3)),  # one hop
            record(place("C", name, 3), place("D", name, 4)),  # too many
            record(place("A", name, 3), place("C", name, 4)),  # written again by an application
            record(place("B", "other", 3)),  # an application's own: it names another topic
            record(place("B", name, 3, 1)),  # and another partition
            record(("origin", None), ("origin", b"no place")),
        ],
    )
    there = {"bootstrap.servers": target_cluster.bootstrap}
    write(there, name, [record(), record(("h", b"theirs"))])
    progress = copy.run()
    write(there, name, [record()])
    found, known = mirror.verify(), mirror.verify_as_it_copies()
    assert (found.outcome, found.differences, known.outcome) == ("equal", [], "equal")
    assert found.compared == known.compared == progress["records"] == 20 + 5


@pytest.mark.parametrize("bug", BUGS)
def test_mistakes_in_shared_code_are_found_in_merged_topics(
    bug: Bug, merged: Callable[[], Mirror], monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = merged()
    with monkeypatch.context() as patched:
        bug(patched)
        mirror.copy.run()
    found = mirror.verify()
    assert found.outcome == "different"
    assert found.difference_count > 0


def test_what_says_that_it_was_copied_and_is_in_no_map_is_named(merged: Callable[[], Mirror]) -> None:
    """A copy that was made twice looks like a record that an application has written again."""
    mirror = merged()
    copy = mirror.copy
    copy.run()
    name = copy.topics[0]
    now = int(time.time() * 1000)
    again = Record(-1, now, b"0", b"plain", (place("A", name, 0),))
    write({"bootstrap.servers": copy.target.bootstrap}, name, [(0, again), (0, Record(-1, now, b"k", b"theirs"))])
    # The next run makes the range reach beyond them.
    write({"bootstrap.servers": copy.source.bootstrap}, name, [(0, Record(-1, now, b"k", b"last"))])
    copy.run()
    found = mirror.verify()
    assert (found.outcome, found.differences) == ("unchecked", [])
    assert found.reason.startswith("1 records outside the offset map say that they were copied from the source")


def test_both_sides_may_compact_and_delete(
    copying: Callable[..., Copying],
    spark: SparkSession,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
) -> None:
    name = unique_name("i")
    config = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    source_cluster.create_topic(name, 1, config={"retention.ms": "-1"})
    now = int(time.time() * 1000)

    def values(prefix: bytes, count: int, after_ms: int = 0) -> list[tuple[int, Record]]:
        at = now + after_ms
        return [(0, Record(-1, at + n, b"k%d" % (n % 7), prefix + b"%d" % n)) for n in range(count)]

    write({"bootstrap.servers": source_cluster.bootstrap}, name, values(b"v", 200))
    copy = copying([name], target_config=config)
    copy.run()
    mirror = Mirror(copy, spark, marked=False, compacted=True)
    job = mirror.job(True)
    # The target gets later values of the keys, and compacts; the source loses its first records.
    write({"bootstrap.servers": target_cluster.bootstrap}, name, values(b"w", 20, after_ms=1_000))
    wait_cleaned(target_cluster, [name])
    found = mirror.verify(job)
    assert (found.outcome, found.differences) == ("equal" if found.compared else "unchecked", [])
    assert found.only_on_source["compacted"] + found.compared == 200
    assert found.only_on_source["compacted"] > 0
    strict = Mirror(copy, spark, marked=False)
    strict._runs = 10
    wrong = strict.verify(strict.job(True).model_copy(update={"ranges": _without_rules(job.ranges)}))
    assert (wrong.outcome, wrong.difference_count) == ("different", found.only_on_source["compacted"])
    assert {item.kind for item in wrong.differences} == {"missing"}
    assert wrong.differences[0].target_offset is not None
    copy.clients.wire("source").delete_records({(name, 0): 195})
    late = mirror.verify(mirror.job(True).model_copy(update={"ranges": job.ranges}))
    assert late.difference_count == 0
    assert late.deleted_meanwhile + late.compared + sum(late.only_on_source.values()) >= 5


def _without_rules(ranges: list[MirroredRange]) -> list[MirroredRange]:
    nothing = TopicRules(compacted=False)
    return [item.model_copy(update={"source_rules": nothing, "target_rules": nothing}) for item in ranges]


def test_a_killed_comparison_goes_on_inside_a_partition(
    copying: Callable[..., Copying],
    spark: SparkSession,
    source_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = unique_name("i")
    source_cluster.create_topic(name, 1)
    now = int(time.time() * 1000)
    write({"bootstrap.servers": source_cluster.bootstrap}, name, [(0, Record(-1, now, b"k", b"v"))] * 50)
    copy = copying([name])
    copy.run()
    mirror = Mirror(copy, spark, marked=False)
    job = mirror.job(True, slice_offsets={name: 20})
    write_result = IndependentResults.write
    written: list[int | None] = []

    def dies(results: IndependentResults, result: Any) -> None:
        write_result(results, result)
        written.append(result.reached_offset)
        if len(written) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(IndependentResults, "write", dies)
        with pytest.raises(KeyboardInterrupt):
            mirror.verify(job)
    assert written == [20, 40]
    # What was compared is not read again: it is gone by now.
    for side in ("source", "target"):
        copy.clients.wire(side).delete_records({(name, 0): 40})
    found = mirror.verify(job)
    assert (found.outcome, found.compared, found.deleted_meanwhile) == ("equal", 50, 0)
