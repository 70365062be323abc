"""Compares partitions of both clusters as DataFrames: blocks first, then the records of blocks that differ.

A *group* is some partitions, or slices of them, that are read the same way. Each side of it is read once and folded
into one row per block; the rows are compared here. Only where they differ, both sides are read again and joined record
by record, and what only one side has is judged by what the other one may do to its records (compaction, expired
tombstones, deletion).
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses
from pyspark.sql.window import Window

from airflow_provider_kafka_migration.documents.copy import ProvenanceSettings
from airflow_provider_kafka_migration.documents.independent import MARKED, UNDATED
from airflow_provider_kafka_migration.documents.proof import ContentDifference, ContentRange, TopicRules
from airflow_provider_kafka_migration.documents.schemas import SchemaIdMap, TopicIdSettings
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange, PartitionMap
from airflow_provider_kafka_migration.offset_map.transactional import TransactionalMap
from airflow_provider_kafka_migration.spark.frames.columns import (
    BLOCK_OFFSETS,
    NO_BLOCK,
    facts,
    fold,
    has_mark,
    marked,
    with_target_ids,
)
from airflow_provider_kafka_migration.spark.frames.topics import OffsetSpan, read_spans

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEPT_DIFFERENCES: Final = 100
_LATEST: Final = -1
#: How often rows are judged again because a log start has moved meanwhile.
_MOST_ROUNDS: Final = 5
_OUTSIDE: Final = "outside the offset map"
_DELETED: Final = "deleted"
_NOTHING_MAY_GO: Final = TopicRules(compacted=False, delete_retention_ms=None)

#: (block, records, digest)
Blocks = Mapping[int, tuple[int, str]]


class Side(NamedTuple):
    """One cluster.

    :param settings: of the Java client.
    :param log_starts: asks the brokers for the log starts of some partitions.
    """

    settings: Mapping[str, str]
    log_starts: Callable[[Sequence[tuple[str, int]]], Mapping[tuple[str, int], int]]


@dataclass(frozen=True)
class Item:
    """A partition of a group, or a slice of one.

    :param map: of the whole partition.
    :param rules: what the source may do to its records.
    :param target_rules: what the target may do to them, besides deleting.
    """

    range: ContentRange
    map: PartitionMap
    rules: TopicRules
    target_rules: TopicRules = _NOTHING_MAY_GO

    @property
    def target_key(self) -> tuple[str, int]:
        """(target topic, partition)."""
        return (self.range.target_topic, self.range.partition)

    @property
    def has_one_run(self) -> bool:
        """Whether places are offsets plus one constant."""
        return len(self.map) == 1 and not isinstance(self.map, TransactionalMap)

    def slice(self, source_start_offset: int, source_end_offset: int) -> Item:
        """Return a part of it; neighbouring slices meet on the target, too."""
        whole = self.range

        def place(offset: int) -> int:
            found = self.map.translate(offset).target_offset
            assert found is not None
            return max(whole.target_start_offset, min(found, whole.target_end_offset))

        # A source that has deleted everything leaves a range without offsets: all of the target's belong to it.
        is_first, is_last = (
            source_start_offset <= whole.source_start_offset,
            source_end_offset >= whole.source_end_offset,
        )
        ends = {
            "source_start_offset": source_start_offset,
            "source_end_offset": source_end_offset,
            "target_start_offset": whole.target_start_offset if is_first else place(source_start_offset),
            "target_end_offset": whole.target_end_offset if is_last else place(source_end_offset),
        }
        return replace(self, range=whole.model_copy(update=ends))

    def runs(self) -> Iterator[OffsetRange]:
        """Yield the runs that reach into the range, cut at its ends; each has a count."""
        compared = self.range
        for run in self.map.runs():
            first = max(run.target_start, compared.target_start_offset)
            open_count = compared.target_end_offset - run.target_start
            past = min(run.target_start + (open_count if run.count is None else run.count), compared.target_end_offset)
            if past > first:
                yield OffsetRange(first + run.shift, first, past - first)


@dataclass(frozen=True)
class Kind:
    """What the partitions of a group have in common.

    :param ids: of the topic, where the target's records carry other schema ids.
    :param marks: how the copy has marked its records, if it has.
    """

    has_one_run: bool
    with_timestamp: bool = True
    ids: TopicIdSettings | None = None
    marks: ProvenanceSettings | None = None


@dataclass
class Found:
    """What was found in one partition."""

    source_records: int = 0
    target_records: int = 0
    compared: int = 0
    source_digest: str = ""
    target_digest: str = ""
    explained: dict[str, int] = field(default_factory=dict)
    deleted_records: int = 0
    target_deleted_records: int = 0
    source_only: dict[str, int] = field(default_factory=dict)
    difference_count: int = 0
    differences: list[ContentDifference] = field(default_factory=list)

    def followed_by(self, later: Found) -> Found:
        """Return both: of a slice, and of the one behind it."""
        return Found(
            source_records=self.source_records + later.source_records,
            target_records=self.target_records + later.target_records,
            compared=self.compared + later.compared,
            source_digest=hashlib.sha256(f"{self.source_digest}{later.source_digest}".encode()).hexdigest(),
            target_digest=hashlib.sha256(f"{self.target_digest}{later.target_digest}".encode()).hexdigest(),
            explained=dict(sorted((Counter(self.explained) + Counter(later.explained)).items())),
            deleted_records=self.deleted_records + later.deleted_records,
            target_deleted_records=self.target_deleted_records + later.target_deleted_records,
            source_only=dict(sorted((Counter(self.source_only) + Counter(later.source_only)).items())),
            difference_count=self.difference_count + later.difference_count,
            differences=[*self.differences, *later.differences][:KEPT_DIFFERENCES],
        )


def compare_group(
    spark: SparkSession,
    source: Side,
    target: Side,
    kind: Kind,
    items: Sequence[Item],
    *,
    id_map: SchemaIdMap | None = None,
    splits: int = 0,
) -> list[Found]:
    """Compare some partitions; return one result per item, in their order.

    :param splits: Spark partitions to read each side with.
    """
    return _Group(spark, source, target, kind, items, id_map, splits).compare()


@dataclass(frozen=True)
class _Group:
    spark: SparkSession
    source: Side
    target: Side
    kind: Kind
    items: Sequence[Item]
    id_map: SchemaIdMap | None
    splits: int

    def compare(self) -> list[Found]:
        all_items = range(len(self.items))
        source = self._blocks(self._source_records(dict.fromkeys(all_items)))
        target = self._blocks(self._target_records(all_items))
        founds = [_found(source.get(number, {}), target.get(number, {})) for number in all_items]
        differing = {
            number: blocks
            for number in all_items
            if (blocks := _differing(source.get(number, {}), target.get(number, {})))
        }
        if differing:
            _Records(self, differing).judge(founds)
        return founds

    def _blocks(self, records: DataFrame) -> dict[int, dict[int, tuple[int, str]]]:
        found: dict[int, dict[int, tuple[int, str]]] = defaultdict(dict)
        for row in fold(records, with_timestamp=self.kind.with_timestamp).collect():
            found[row["number"]][row["block"]] = (row["records"], row["digest"])
        return found

    # -- reading -----------------------------------------------------------------------------------------------------

    def _source_records(self, wanted: Mapping[int, set[int] | None]) -> DataFrame:
        """Read the source's side.

        :param wanted: by number of the item, the blocks to read; None: all.
        """
        spans = [self._source_span(number, blocks) for number, blocks in sorted(wanted.items())]
        records = self._of_source(spans, sorted(wanted))
        if self.kind.marks is not None:
            records = marked(records, self.kind.marks)
        return records.withColumn("place", F.col("offset"))

    def _of_source(self, spans: Sequence[OffsetSpan], numbers: Sequence[int]) -> DataFrame:
        records = read_spans(self.spark, self.source.settings, _readable(self.source, spans), splits=self.splits)
        keys = [(self.items[number].range.topic, self.items[number].range.partition, number) for number in numbers]
        records = self._numbered(records, keys)
        if self.kind.ids is None or self.id_map is None:
            return records
        return with_target_ids(self.spark, records, self.kind.ids, self.id_map)

    def _source_span(self, number: int, blocks: set[int] | None) -> OffsetSpan:
        wanted = self.items[number].range
        start, end = wanted.source_start_offset, wanted.source_end_offset
        if blocks is not None and NO_BLOCK not in blocks:
            start = max(start, min(blocks) * BLOCK_OFFSETS)
            end = max(start, min(end, (max(blocks) + 1) * BLOCK_OFFSETS))
        return OffsetSpan(wanted.topic, wanted.partition, start, end)

    def source_now(self, starts: Mapping[int, int]) -> DataFrame:
        """Read the source from some offsets to its present end, with what a copy leaves out.

        :param starts: by number of the item.
        """
        spans = [OffsetSpan(*self.items[number].range.key, start, _LATEST) for number, start in sorted(starts.items())]
        return self._of_source(spans, sorted(starts)).withColumn("place", F.col("offset"))

    def target_now(self, starts: Mapping[int, int]) -> DataFrame:
        """Read the target from some offsets to its present end, with what others have written there.

        :param starts: by number of the item.
        """
        spans = [OffsetSpan(*self.items[number].target_key, start, _LATEST) for number, start in sorted(starts.items())]
        return self._of_target(spans, sorted(starts)).withColumn("place", F.col("offset"))

    def _target_records(self, numbers: Iterable[int]) -> DataFrame:
        wanted = sorted(numbers)
        spans = [
            OffsetSpan(item.target_topic, item.partition, item.target_start_offset, item.target_end_offset)
            for item in (self.items[number].range for number in wanted)
        ]
        places = self._through_map(self._of_target(spans, wanted), "offset", "place", to_source=True)
        if not self.foreign:
            return places
        # Beside other producers, whatever no run covers is theirs, unless it carries our mark.
        is_ours = F.lit(False) if self.kind.marks is None else has_mark(self.kind.marks)
        return places.where(F.col("place").isNotNull() | ~F.col("number").isin(*self.foreign) | is_ours)

    def _of_target(self, spans: Sequence[OffsetSpan], numbers: Sequence[int]) -> DataFrame:
        records = read_spans(self.spark, self.target.settings, _readable(self.target, spans), splits=self.splits)
        return self._numbered(records, [(*self.items[number].target_key, number) for number in numbers])

    @cached_property
    def foreign(self) -> list[int]:
        """The numbers of the items on whose targets others write, too."""
        return [number for number, item in enumerate(self.items) if isinstance(item.map, TransactionalMap)]

    def with_spots(self, rows: DataFrame) -> DataFrame:
        """Add ``spot``: the target offsets of places; null: the offset map does not know them."""
        return self._through_map(rows, "place", "spot", to_source=False)

    def _through_map(self, rows: DataFrame, column: str, into: str, *, to_source: bool) -> DataFrame:
        """Add the offsets of the other side by the offset map, a DataFrame; null: it does not know them."""
        sign = 1 if to_source else -1
        if self.kind.has_one_run:
            shifts = [(number, sign * next(item.map.runs()).shift) for number, item in enumerate(self.items)]
            frame = self.spark.createDataFrame(shifts, "number int, shift bigint")
            moved = rows.join(F.broadcast(frame), "number")
            return moved.withColumn(into, F.col(column) + F.col("shift")).drop("shift")
        # A row for each block of offsets that a run reaches, so that it is a join of equal values.
        schema = "number int, bucket bigint, first bigint, past bigint, shift bigint"
        frame = self.spark.createDataFrame(self._run_rows(to_source=to_source), schema)
        found = (
            rows.withColumn("bucket", F.floor(F.col(column) / F.lit(BLOCK_OFFSETS)).cast("long"))
            .alias("r")
            .join(
                frame.alias("m"),
                (F.col("r.number") == F.col("m.number"))
                & (F.col("r.bucket") == F.col("m.bucket"))
                & (F.col(f"r.{column}") >= F.col("m.first"))
                & (F.col(f"r.{column}") < F.col("m.past")),
                "left",
            )
        )
        return found.select("r.*", (F.col(f"r.{column}") + F.col("m.shift")).alias(into)).drop("bucket")

    def _run_rows(self, *, to_source: bool) -> list[tuple[int, int, int, int, int]]:
        sign = 1 if to_source else -1
        return [
            (number, bucket, first, first + (run.count or 0), sign * run.shift)
            for number, item in enumerate(self.items)
            for run in item.runs()
            for first in [run.target_start if to_source else run.source_start]
            for bucket in range(first // BLOCK_OFFSETS, (first + (run.count or 0) - 1) // BLOCK_OFFSETS + 1)
        ]

    def _numbered(self, records: DataFrame, keys: Sequence[tuple[str, int, int]]) -> DataFrame:
        frame = self.spark.createDataFrame(list(keys), "topic string, partition int, number int")
        return records.join(F.broadcast(frame), ["topic", "partition"])


def _found(source: Blocks, target: Blocks) -> Found:
    return Found(
        source_records=sum(count for count, _ in source.values()),
        target_records=sum(count for count, _ in target.values()),
        compared=sum(count for block, (count, digest) in source.items() if target.get(block) == (count, digest)),
        source_digest=_digest(source),
        target_digest=_digest(target),
    )


def _digest(blocks: Blocks) -> str:
    """SHA-256 over the blocks, ascending."""
    text = "".join(f"{block}:{count}:{digest}\n" for block, (count, digest) in sorted(blocks.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def _differing(source: Blocks, target: Blocks) -> set[int]:
    return {block for block in source.keys() | target.keys() if source.get(block) != target.get(block)}


# -- records ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Records:
    """Compares the records of blocks that differ.

    :param differing: by number of the item, its blocks.
    """

    group: _Group
    differing: Mapping[int, set[int]]

    def judge(self, founds: Sequence[Found]) -> None:
        """Add what the records show to the results."""
        joined = self._joined()
        seen = set()
        for row in joined.groupBy("number", "status").count().collect():
            found = founds[row["number"]]
            seen.add(row["status"])
            if row["status"] == "equal":
                found.compared += row["count"]
            elif row["status"] == "changed":
                found.difference_count += row["count"]
        of_status = {status: joined.where(F.col("status") == status) for status in seen}
        if "changed" in seen:
            self._name(of_status["changed"], founds)
        if "missing" in seen:
            self._judge_missing(of_status["missing"], founds)
        if "extra" in seen:
            self._judge_extra(of_status["extra"], founds)
        for found in founds:
            found.differences.sort(key=lambda item: item.source_offset if item.source_offset is not None else -1)
            del found.differences[KEPT_DIFFERENCES:]

    def _name(self, rows: DataFrame, founds: Sequence[Found]) -> None:
        for row in self._first(rows):
            founds[row["number"]].differences.append(_difference(row))

    def _joined(self) -> DataFrame:
        group = self.group
        wanted = [(number, block) for number, blocks in sorted(self.differing.items()) for block in sorted(blocks)]
        frame = F.broadcast(group.spark.createDataFrame(wanted, "number int, block bigint"))
        source = facts(group._source_records(dict(self.differing)), with_timestamp=group.kind.with_timestamp)
        target = facts(group._target_records(self.differing), with_timestamp=group.kind.with_timestamp)
        source = source.join(frame, ["number", "block"], "left_semi").select(
            "number",
            "place",
            F.col("digest").alias("source_digest"),
            F.struct("key_digest", "is_tombstone", "timestamp_ms").alias("of_source"),
        )
        target = target.join(frame, ["number", "block"], "left_semi").drop("block")
        status = (
            F.when(F.col("digest").isNull(), "missing")
            .when(F.col("source_digest").isNull(), "extra")
            .when(F.col("source_digest") == F.col("digest"), "equal")
            .otherwise("changed")
        )
        return source.join(target, ["number", "place"], "full_outer").withColumn("status", status)

    def _first(self, rows: DataFrame) -> Iterator[Any]:
        """Return the first rows of each item."""
        order = Window.partitionBy("number").orderBy("place", "offset")
        first = rows.withColumn("rank", F.row_number().over(order)).where(F.col("rank") <= KEPT_DIFFERENCES)
        yield from first.select("number", "status", "place", "offset").collect()

    def _judge_missing(self, missing: DataFrame, founds: Sequence[Found]) -> None:
        """Judge what only the source has: applications delete records on the target, too, once they have read them."""
        rows = self.group.with_spots(missing.select("number", "status", "place", "of_source.*"))
        # Where it would have to be.
        rows = rows.withColumn("offset", F.col("spot"))
        for row in self._explained(self._there_is_target(), rows, founds):
            found, reason = founds[row["number"]], row["reason"]
            if reason == _DELETED:
                found.target_deleted_records += row["count"]
            else:
                found.source_only[reason] = found.source_only.get(reason, 0) + row["count"]

    def _judge_extra(self, extra: DataFrame, founds: Sequence[Found]) -> None:
        """Judge what only the target has."""
        rows = extra.drop("of_source", "source_digest").withColumn("spot", F.col("place"))
        for row in self._explained(self._there_is_source(), rows, founds):
            found, reason, count = founds[row["number"]], row["reason"], row["count"]
            if reason in (_DELETED, UNDATED):
                found.deleted_records += count
            else:
                found.explained[reason] = count

    def _there_is_source(self) -> _There:
        group = self.group
        keys, rules = [item.range.key for item in group.items], [item.rules for item in group.items]
        return _There(group.source, keys, rules, group.source_now, group.foreign)

    def _there_is_target(self) -> _There:
        group = self.group
        keys, rules = [item.target_key for item in group.items], [item.target_rules for item in group.items]
        return _There(group.target, keys, rules, group.target_now)

    def _explained(self, there: _There, rows: DataFrame, founds: Sequence[Found]) -> list[Any]:
        """Return counts by ``number, reason`` of the rows that have a reason; note the others as differences.

        A log start that has moved while Spark read explains what was read too late: rows without a reason are judged
        again by the present one.

        :param there: the side that lacks these records.
        """
        wanted = sorted(self.differing)
        starts = _starts(there.side, there.keys, wanted)
        for _ in range(_MOST_ROUNDS):
            judged = self._reasons(there, rows, starts)
            counts = judged.groupBy("number", "reason").count().collect()
            now = _starts(there.side, there.keys, wanted)
            bad = [row for row in counts if row["reason"] is None]
            if all(now[row["number"]] == starts[row["number"]] for row in bad):
                break
            starts = now
        for row in bad:
            founds[row["number"]].difference_count += row["count"]
        if bad:
            self._name(judged.where(F.col("reason").isNull()), founds)
        return [row for row in counts if row["reason"] is not None]

    def _reasons(self, there: _There, rows: DataFrame, starts: Mapping[int, int]) -> DataFrame:
        """Add the reason why the other side does not have these records; null: nothing explains it.

        :param rows: with ``spot``, the place on the other side.
        """
        rules = [_rule_row(number, there.rules[number], starts[number]) for number in sorted(starts)]
        schema = "number int, log_start bigint, is_compacted boolean, expired_before_ms bigint, now_ms bigint"
        ruled = rows.join(F.broadcast(self.group.spark.createDataFrame(rules, schema)), "number")
        spot = F.col("spot")
        is_deleted = spot.isNotNull() & (spot < F.col("log_start"))
        # Only those that carry our mark are here at all.
        is_marked = spot.isNull() & F.col("number").isin(*there.marked) if there.marked else F.lit(False)
        reason = F.when(is_deleted, _DELETED).when(is_marked, MARKED)
        if not any(row[2] for row in rules):
            return ruled.withColumn("reason", reason)
        compacted = {number: starts[number] for number in starts if there.rules[number].compacted}
        keyed = self._with_other_records(there, ruled, compacted)

        def is_dropped_by(tombstone: str) -> Any:
            # Not where an earlier record of the key is still there: then the tombstone is lost.
            lives_on = F.coalesce(F.col("first_there") < F.col(tombstone), F.lit(False))
            return (spot <= F.col(tombstone)) & ~lives_on

        reason = (
            reason.when(~F.col("is_compacted") | spot.isNull(), F.lit(None))
            .when(F.col("key_digest").isNull(), "unkeyed")
            .when(spot < F.col("last_there"), "compacted")
            .when(is_dropped_by("expired_spot"), F.when(_is_expired(), "expired").otherwise("compacted"))
            # By a tombstone from the future: brokers may drop it by their own clock.
            .when(is_dropped_by("undated_spot"), UNDATED)
        )
        return keyed.withColumn("reason", reason)

    def _with_other_records(self, there: _There, ruled: DataFrame, starts: Mapping[int, int]) -> DataFrame:
        """Add where the other side has the keys of these records now, and the last tombstones it may have dropped."""
        keys = ruled.where(F.col("is_compacted") & F.col("key_digest").isNotNull()).select("number", "key_digest")
        found = facts(there.now(starts), with_timestamp=self.group.kind.with_timestamp)
        found = found.join(keys.distinct(), ["number", "key_digest"], "left_semi")
        found = found.groupBy("number", "key_digest").agg(
            F.min("place").alias("first_there"), F.max("place").alias("last_there")
        )
        is_undated = F.col("is_tombstone") & (F.col("timestamp_ms") > F.col("now_ms"))
        tombstones = ruled.where(F.col("is_compacted") & F.col("key_digest").isNotNull()).groupBy(
            "number", "key_digest"
        )
        dropped = tombstones.agg(
            F.max(F.when(_is_expired(), F.col("spot"))).alias("expired_spot"),
            F.max(F.when(is_undated, F.col("spot"))).alias("undated_spot"),
        )
        return ruled.join(found, ["number", "key_digest"], "left").join(dropped, ["number", "key_digest"], "left")


@dataclass(frozen=True)
class _There:
    """The side that lacks some records.

    :param keys: partitions there, by number of the item.
    :param rules: what it may do to its records, by number of the item.
    :param now: reads it from some offsets to its present end.
    :param marked: numbers of the items whose records without a spot carry the copy's mark.
    """

    side: Side
    keys: Sequence[tuple[str, int]]
    rules: Sequence[TopicRules]
    now: Callable[[Mapping[int, int]], DataFrame]
    marked: Sequence[int] = ()


def _rule_row(number: int, rules: TopicRules, log_start: int) -> tuple[int, int, bool, int | None, int]:
    now_ms, retention_ms = int(time.time() * 1000), rules.delete_retention_ms
    return number, log_start, rules.compacted, None if retention_ms is None else now_ms - retention_ms, now_ms


def _is_expired() -> Any:
    return F.col("is_tombstone") & F.coalesce(F.col("timestamp_ms") <= F.col("expired_before_ms"), F.lit(False))


def _starts(side: Side, keys: Sequence[tuple[str, int]], numbers: Iterable[int]) -> dict[int, int]:
    wanted = {number: keys[number] for number in numbers}
    now = side.log_starts(sorted(wanted.values()))
    return {number: now[key] for number, key in wanted.items()}


def _readable(side: Side, spans: Sequence[OffsetSpan]) -> list[OffsetSpan]:
    """Return the spans from where their logs begin now.

    Whoever asks Spark's Kafka source for less makes it give its consumer back while it goes on reading with it, so that
    tasks that read the same partition fail.
    """
    starts = side.log_starts([(span.topic, span.partition) for span in spans])
    found = []
    for span in spans:
        start = max(span.start_offset, starts[span.topic, span.partition])
        end = span.end_offset if span.end_offset == _LATEST else max(start, span.end_offset)
        found.append(span._replace(start_offset=start, end_offset=end))
    return found


def _difference(row: Any) -> ContentDifference:
    is_outside = row["place"] is None
    return ContentDifference(
        kind=row["status"],
        source_offset=row["place"],
        target_offset=row["offset"],
        detail=_OUTSIDE if is_outside else "",
    )
