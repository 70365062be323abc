"""The independent proof reads slices of partitions, stores each, and goes on where it was killed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kafka_migration.compare.independent import IndependentResults
from airflow_provider_kafka_migration.documents.independent import IndependentResult
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.documents.proof import ContentDifference, ContentRange, TopicRules
from airflow_provider_kafka_migration.errors import SparkJobFailed
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange, PartitionMap
from airflow_provider_kafka_migration.spark import independent
from airflow_provider_kafka_migration.spark.frames.groups import KEPT_DIFFERENCES, Found, Item
from airflow_provider_kafka_migration.spark.independent import Proof, Work
from airflow_provider_kafka_migration.storage.local import LocalStore


class Killed(BaseException):
    """The driver is gone."""


class Reader:
    """Finds each record of a slice equal, and notes what it was asked to read.

    :param dies_at: the number of the query in which the driver is killed.
    """

    def __init__(self, dies_at: int | None = None) -> None:
        self.read: list[list[tuple[str, int, int]]] = []
        self.dies_at = dies_at
        self.differs_at: set[int] = set()

    def __call__(self, *arguments: Any, **_: Any) -> list[Found]:
        if len(self.read) == self.dies_at:
            raise Killed
        items: Sequence[Item] = arguments[4]
        spans = [(item.range.topic, item.range.source_start_offset, item.range.source_end_offset) for item in items]
        self.read.append(spans)
        return [self._found(item.range) for item in items]

    def _found(self, compared: ContentRange) -> Found:
        start, end = compared.source_start_offset, compared.source_end_offset
        bad = sorted(offset for offset in self.differs_at if start <= offset < end)
        return Found(
            source_records=end - start,
            target_records=end - start,
            compared=end - start - len(bad),
            source_digest=f"s{start}",
            target_digest=f"t{start}" if bad else f"s{start}",
            explained={"compacted": 1},
            difference_count=len(bad),
            differences=[ContentDifference(kind="changed", source_offset=offset) for offset in bad],
        )


def partition(topic: str, offsets: int, *, compacted: bool = False) -> Item:
    compared = ContentRange(
        topic=topic,
        target_topic=topic,
        partition=0,
        verdict=Verdict.EQUAL,
        source_start_offset=0,
        source_end_offset=offsets,
        target_start_offset=0,
        target_end_offset=offsets,
    )
    return Item(compared, PartitionMap([OffsetRange(0, 0)]), TopicRules(compacted=compacted))


Run = Callable[..., list[IndependentResult]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the proof of some partitions; returns what it has told."""
    monkeypatch.setattr(independent, "reader_of", lambda _spark: "a reader")
    monkeypatch.setattr(independent, "_side", lambda *_: None)

    def go(reader: Reader, items: list[Item], digest: str = "d", **fields: Any) -> list[IndependentResult]:
        monkeypatch.setattr(independent, "compare_group", reader)
        store, told = LocalStore(tmp_path), []
        work = Work("m1", "file:///j", items, **fields)
        none: Any = None
        Proof(work, IndependentResults("m1", digest, store), store, none, none, 1, on_result=told.append).run()
        return told

    return go


def test_small_partitions_are_read_together_and_large_ones_in_slices(run: Run) -> None:
    reader = Reader()
    items = [partition("a", 4), partition("b", 4), partition("c", 25), partition("d", 5)]
    told = run(reader, items, slice_offsets=dict.fromkeys("abcd", 10))
    assert reader.read == [
        [("a", 0, 4), ("b", 0, 4)],
        [("c", 0, 10)],
        [("c", 10, 20)],
        [("c", 20, 25), ("d", 0, 5)],
    ]
    assert {result.range.topic: result.compared for result in told} == {"a": 4, "b": 4, "c": 25, "d": 5}


def test_topics_of_large_records_have_shorter_slices(run: Run) -> None:
    reader = Reader()
    run(reader, [partition("a", 4), partition("b", 4)], slice_offsets={"b": 2})
    assert reader.read == [[("a", 0, 4)], [("b", 0, 2)], [("b", 2, 4)]]


@pytest.mark.parametrize("dies_at", range(5))
def test_a_killed_job_goes_on_inside_a_partition(run: Run, dies_at: int) -> None:
    items, sizes = [partition("a", 35), partition("b", 5)], dict.fromkeys("ab", 10)
    reader = Reader(dies_at)
    reader.differs_at = {7, 31}
    if dies_at < 4:
        with pytest.raises(Killed):
            run(reader, items, slice_offsets=sizes)
    reader.dies_at = None
    told = run(reader, items, slice_offsets=sizes)
    queries = [[("a", 0, 10)], [("a", 10, 20)], [("a", 20, 30)], [("a", 30, 35), ("b", 0, 5)]]
    assert reader.read == queries, "nothing is read twice"
    by_topic = {result.range.topic: result for result in told}
    found = by_topic["a"]
    assert (found.source_records, found.compared, found.difference_count) == (35, 33, 2)
    assert [item.source_offset for item in found.differences] == [7, 31]
    assert found.explained == {"compacted": 4}
    assert found.reached_offset is None
    assert found.source_digest != found.target_digest
    assert by_topic["b"].source_digest == by_topic["b"].target_digest
    assert run(Reader(), items, slice_offsets=sizes) == sorted(told, key=lambda result: result.key), "it is told again"


def test_a_partition_under_way_has_no_result_yet(run: Run, tmp_path: Path) -> None:
    items = [partition("a", 35)]
    with pytest.raises(Killed):
        run(Reader(2), items, slice_offsets={"a": 10})
    results = IndependentResults("m1", "d", LocalStore(tmp_path))
    assert results.read(items[0].range) is None
    so_far = results.read_so_far(items[0].range)
    assert so_far is not None
    assert (so_far.reached_offset, so_far.compared) == (20, 20)


def test_another_attempt_begins_anew(run: Run) -> None:
    items = [partition("a", 35)]
    with pytest.raises(Killed):
        run(Reader(2), items, slice_offsets={"a": 10})
    reader = Reader()
    run(reader, items, digest="another", slice_offsets={"a": 10})
    assert reader.read[0] == [("a", 0, 10)]


def test_a_compacted_partition_is_not_cut_into_too_many_slices(run: Run) -> None:
    reader = Reader()
    run(reader, [partition("a", 1_000, compacted=True)], slice_offsets={"a": 10})
    assert len(reader.read) == 8


def test_the_first_differences_are_kept_and_all_are_counted(run: Run) -> None:
    reader = Reader()
    reader.differs_at = set(range(300))
    found = run(reader, [partition("a", 300)], slice_offsets={"a": 50})[0]
    assert found.difference_count == 300
    assert [item.source_offset for item in found.differences] == list(range(KEPT_DIFFERENCES))


def test_a_driver_that_was_taken_for_dead_counts_nothing_twice(run: Run, tmp_path: Path) -> None:
    items, sizes = [partition("a", 30)], {"a": 10}

    class WithAnother(Reader):
        """While it reads its second slice, another driver compares everything."""

        def __call__(self, *arguments: Any, **fields: Any) -> list[Found]:
            if len(self.read) == 1:
                run(Reader(), items, slice_offsets=sizes)
            return super().__call__(*arguments, **fields)

    run(WithAnother(), items, slice_offsets=sizes)
    found = IndependentResults("m1", "d", LocalStore(tmp_path)).read(items[0].range)
    assert found is not None
    assert (found.source_records, found.compared) == (30, 30)


def test_what_another_driver_has_taken_back_is_not_passed_over(run: Run, tmp_path: Path) -> None:
    items, sizes = [partition("a", 30)], {"a": 10}
    results = IndependentResults("m1", "d", LocalStore(tmp_path))

    class WithAnother(Reader):
        """While it reads its third slice, a late request of another driver is carried out."""

        former: IndependentResult | None = None

        def __call__(self, *arguments: Any, **fields: Any) -> list[Found]:
            if len(self.read) == 1:
                self.former = results.read_so_far(items[0].range)
            if len(self.read) == 2 and self.former is not None:
                results.write(self.former)
            return super().__call__(*arguments, **fields)

    with pytest.raises(SparkJobFailed, match="ends at source offset 10, and not at 20"):
        run(WithAnother(), items, slice_offsets=sizes)
    assert run(Reader(), items, slice_offsets=sizes)[0].compared == 30


def test_a_source_that_has_deleted_everything_leaves_the_target_to_compare() -> None:
    item = partition("a", 30)
    ends = {"source_start_offset": 30, "source_end_offset": 30}
    item = replace(item, range=item.range.model_copy(update=ends))
    piece = item.slice(30, 30).range
    assert (piece.target_start_offset, piece.target_end_offset) == (0, 30)
