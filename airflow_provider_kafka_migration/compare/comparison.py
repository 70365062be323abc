"""Compares the content of a partition on both sides, all records, in bounded memory.

Where both sides have a batch with the same bytes, the digests of its payload are compared and nothing is decoded: this
covers everything that was forwarded raw. Where batches differ (rebuilt, split, compacted since), records are compared
one by one at the offsets that the map gives. Each side yields a chain of digests over the same pieces; the chains are
equal exactly if nothing differs. Where a topic's schema ids are other ones on the target, the source's records are
compared as they must be there: equal then means equal under the id map.
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from airflow_provider_kafka_migration.compare.differences import Differences, changed_fields
from airflow_provider_kafka_migration.compare.logs import CommittedLog, Cursor, MarkedLog, OurLog, decode
from airflow_provider_kafka_migration.compare.one_sided import MAX_KEYS, Judgement, OneSided
from airflow_provider_kafka_migration.compare.record_ids import RecordIds, WalkedBatch, id_fields
from airflow_provider_kafka_migration.compare.spans import Spans
from airflow_provider_kafka_migration.documents.proof import ContentRange, PartitionContent, TopicRules
from airflow_provider_kafka_migration.errors import BatchMalformed, Interrupted, Where
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, RawBatch, Record, Timestamps
from airflow_provider_kafka_migration.kafka.batches.header import decompress
from airflow_provider_kafka_migration.kafka.batches.records import Columns
from airflow_provider_kafka_migration.offset_map.runs import How, OffsetRange, PartitionMap
from airflow_provider_kafka_migration.offset_map.transactional import TransactionalMap
from airflow_provider_kafka_migration.schema_ids.found import IdKey

KEPT_DIFFERENCES = 100

#: tag, source offset, records, base timestamp, codec, digest of the payload
_BATCH_PIECE = struct.Struct(">cqiqb32s")


def range_map(compared: ContentRange) -> PartitionMap:
    """Return the map of a partition with one run: equal or shifted offsets."""
    return PartitionMap(
        [OffsetRange(compared.source_start_offset, compared.target_start_offset)],
        source_end_offset=compared.source_end_offset,
        target_end_offset=compared.target_end_offset,
    )


@dataclass(frozen=True)
class ContentOptions:
    """How to compare.

    :param timestamps: as in the copy job: ``visible`` compares what readers see, ``raw`` what producers wrote.
    :param keep: how many differences are kept.
    :param now_ms: milliseconds since 1970, to judge expired tombstones; None: the clock's time.
    :param stop: called before each batch; True ends the comparison with :class:`Interrupted`.
    :param enough: called regularly by :func:`compare_stretch`; True ends it with what was compared so far.
    :param pace: called with the bytes of each batch that was read; may wait, to limit the load on the clusters.
    :param ids: for a topic whose records carry schema ids: they are gathered, and compared under the id map.
    :param target_rules: what the target may do to its records in the meantime, where it deletes and compacts already;
        None: it may lose nothing.
    """

    timestamps: Timestamps = "visible"
    keep: int = KEPT_DIFFERENCES
    max_keys: int = MAX_KEYS
    now_ms: int | None = None
    stop: Callable[[], bool] = lambda: False
    enough: Callable[[], bool] = lambda: False
    pace: Callable[[int], None] = lambda size_bytes: None
    ids: RecordIds | None = None
    target_rules: TopicRules | None = None


class Stretch(NamedTuple):
    """The range that was compared, and the result.

    :param source_only: the judgement about records that only the source has; None without ``target_rules``.
    """

    compared: ContentRange
    content: PartitionContent
    source_only: Judgement | None = None


def compare_content(
    compared: ContentRange,
    offset_map: PartitionMap,
    rules: TopicRules,
    source: CommittedLog,
    target: CommittedLog,
    options: ContentOptions | None = None,
) -> PartitionContent:
    """Compare one partition.

    :param offset_map: maps source to target offsets, closed at the range's end.
    :param rules: what the source may do to its records in the meantime.
    :raises MigrationError: one side cannot be read.
    """
    whole = replace(options or ContentOptions(), enough=lambda: False)
    return compare_stretch(compared, offset_map, rules, source, target, whole).content


def compare_stretch(
    compared: ContentRange,
    offset_map: PartitionMap,
    rules: TopicRules,
    source: CommittedLog,
    target: CommittedLog,
    options: ContentOptions,
) -> Stretch:
    """Compare a partition from its start until ``options.enough`` ends it; return the compared range with the result.

    :raises MigrationError: one side cannot be read.
    """
    with (
        OneSided("target", max_keys=options.max_keys, ids=options.ids) as target_only,
        OneSided("source", max_keys=options.max_keys) as source_only,
    ):
        both = (target_only, source_only)
        return _Comparison(compared, offset_map, rules, source, target, options, both).run()


class _Chains:
    """One digest per side. Both are the same object until the first difference."""

    def __init__(self) -> None:
        self._source = hashlib.sha256()
        self._target = self._source

    def both(self, *parts: bytes) -> None:
        """Add bytes that are equal on both sides."""
        joined = b"".join(parts)
        self._source.update(joined)
        if self._target is not self._source:
            self._target.update(joined)

    def only(self, side: Literal["source", "target"], *parts: bytes) -> None:
        """Add bytes of one side."""
        if self._target is self._source:
            self._target = self._source.copy()
        for part in parts:
            (self._source if side == "source" else self._target).update(part)

    def digests(self) -> tuple[str, str]:
        """(source, target), hex."""
        return self._source.hexdigest(), self._target.hexdigest()


class _Comparison:
    def __init__(
        self,
        compared: ContentRange,
        offset_map: PartitionMap,
        rules: TopicRules,
        source: CommittedLog,
        target: CommittedLog,
        options: ContentOptions,
        one_sided: tuple[OneSided, OneSided],
    ) -> None:
        self._compared = compared
        self._map = offset_map
        #: with one run, translating an offset only takes an addition
        self._shift = next(offset_map.runs()).shift if len(offset_map) == 1 else None
        self._rules = rules
        self._options = options
        self._source_log = source
        self._target_log = target
        self._target_only, self._source_only = one_sided
        self._differences = Differences(options.keep)
        self._chains = _Chains()
        self._equal_records = 0
        #: (source, target) offsets after the last records that were the same, and whether nothing was seen since
        self._matched_end = (compared.source_start_offset, compared.target_start_offset)
        self._is_just_matched = False
        #: source ranges that were deleted before they were read
        self._deleted = Spans()
        self._source = Cursor(
            self._read_source(source, compared.source_start_offset, compared.source_end_offset),
            compared.source_start_offset,
            compared.source_end_offset,
            options.timestamps,
            lambda batch, error: self._unreadable("source", batch, error),
            options.ids,
        )
        self._target = Cursor(
            self._read(target, compared.target_start_offset, compared.target_end_offset),
            # A broker returns whole batches even if their first records lie below the log start and are unreadable.
            max(compared.target_start_offset, target.log_start_offset()),
            compared.target_end_offset,
            # The copier writes CreateTime: what readers see.
            "visible",
            lambda batch, error: self._unreadable("target", batch, error),
        )

    def _read(self, log: CommittedLog, start_offset: int, stop_offset: int) -> Iterator[AnyBatch]:
        for batch in log.batches(start_offset, stop_offset):
            if self._options.stop():
                raise Interrupted(
                    "the comparison was stopped on request",
                    where=Where(topic=self._compared.topic, partition=self._compared.partition),
                    next_step="clear the task",
                )
            self._options.pace(batch.size_bytes)
            yield batch

    def _read_again(self, start_offset: int, stop_offset: int) -> Iterator[AnyBatch]:
        """Read the source again for later records of keys. As this may be all of it, stop and pace apply here too.

        Records that are not copied back have keys, too.
        """
        log = self._source_log
        return self._read(log.everything if isinstance(log, MarkedLog) else log, start_offset, stop_offset)

    def _read_target_again(self, start_offset: int, stop_offset: int) -> Iterator[AnyBatch]:
        """Likewise on the target; the records of others have keys, too."""
        log = self._target_log
        return self._read(log.everything if isinstance(log, OurLog) else log, start_offset, stop_offset)

    def _read_source(self, log: CommittedLog, start_offset: int, stop_offset: int) -> Iterator[AnyBatch]:
        """Yield the source's batches and note what it had deleted. A batch that contains the log start comes whole."""
        seen = len(log.skipped)
        for batch in self._read(log, start_offset, stop_offset):
            first = batch.base_offset if isinstance(batch, RawBatch) else stop_offset
            for skipped_from, skipped_until in log.skipped[seen:]:
                self._deleted.add(skipped_from, min(skipped_until, first, stop_offset))
            seen = len(log.skipped)
            yield batch
        for skipped_from, skipped_until in log.skipped[seen:]:
            self._deleted.add(skipped_from, min(skipped_until, stop_offset))

    def _unreadable(self, side: Literal["source", "target"], batch: AnyBatch, error: BatchMalformed) -> None:
        offset = batch.base_offset if isinstance(batch, RawBatch) else batch.last_offset
        at_source = offset if side == "source" else None
        at_target = offset if side == "target" else None
        self._differences.note("unreadable", at_source, at_target, f"on the {side}: {error.what}")
        self._chains.only(side, b"unreadable", struct.pack(">q", offset))

    # -- the walk ----------------------------------------------------------------------------------------------------

    def run(self) -> Stretch:
        source, target = self._source, self._target
        compared = self._compared
        while source.low is not None or target.low is not None:
            if self._options.enough() and (cut := self._cut()) is not None:
                compared = compared.model_copy(update={"source_end_offset": cut[0], "target_end_offset": cut[1]})
                break
            if self._take_batch():
                continue
            source_low = None if source.low is None else self._lowest_place(source.low)
            if target.low is not None and (source_low is None or target.low < source_low):
                self._step_target(source_low)
            elif target.low is None or (source_low is not None and source_low < target.low):
                self._step_source(target.low)
            else:
                self._step_both()
        source_only = self._judge_source_only()
        return Stretch(compared, self._result(source_only), source_only)

    def _cut(self) -> tuple[int, int] | None:
        """(source end, target end) of what was walked over: all records below were seen, and none from there on.

        None where that is unknown: with several runs in the map, it is known only right after two equal records.
        """
        source, target = self._source.low, self._target.low
        if self._shift is None:
            return self._matched_end if self._is_just_matched else None
        ends = [source] if source is not None else []
        ends += [target + self._shift] if target is not None else []
        end = min(ends)
        return (end, end - self._shift) if end > self._compared.source_start_offset else None

    def _take_batch(self) -> bool:
        """If both sides have the same batch, walk over it without decoding it."""
        source, target = self._source.batch, self._target.batch
        if source is None or target is None or not self._may_be_same(source, target):
            return False
        walked: WalkedBatch | None = None
        if self._options.ids is not None:
            walked = self._options.ids.walk(source)
            if walked is None:
                return False
        found = _equal_payload(source, target, None if walked is None else walked.payload)
        if found is None:
            return False
        tag, digest = found
        self._chains.both(
            _BATCH_PIECE.pack(tag, source.base_offset, source.record_count, source.base_timestamp, source.codec, digest)
        )
        self._equal_records += source.record_count
        self._matched_end, self._is_just_matched = (source.next_offset, target.next_offset), True
        self._source.skip_batch(walked)
        self._target.skip_batch()
        return True

    def _may_be_same(self, source: RawBatch, target: RawBatch) -> bool:
        """Check the headers: wholly in the range, at the right offsets; equal payloads then mean the same records.

        With other ids in it, a payload may be compressed to another size.
        """
        ids = self._options.ids
        return (
            source.record_count == target.record_count
            and source.last_offset_delta == target.last_offset_delta
            and source.codec == target.codec
            and source.base_timestamp == target.base_timestamp
            and (source.size_bytes == target.size_bytes or (ids is not None and ids.rewrites))
            and (self._options.timestamps == "raw" or not source.is_log_append_time)
            and not target.is_log_append_time
            and self._source.is_whole
            and self._target.is_whole
            and self._place(source.base_offset) == target.base_offset
            and self._place(source.last_offset) == target.last_offset
        )

    def _step_target(self, source_low: int | None) -> None:
        """Take the target's next record if it comes before the source's next one."""
        columns = self._target.open()
        if columns is None:
            return
        index = self._target.at
        offset = columns.offsets[index]
        if isinstance(self._map, TransactionalMap) and not self._map.covers(offset):
            # Written under one of our producer ids, but unknown to the map: no compaction explains that.
            self._differences.note("extra", None, offset, "outside the offset map")
            self._chains.only("target", b"extra", struct.pack(">q", offset))
            self._is_just_matched = False
            self._target.skip()
        elif source_low is None or offset < source_low:
            self._is_just_matched = False
            self._target_only.add(decode_or_bare(columns, index), self._map.source_position(offset + 1) - 1)
            self._target.skip()

    def _step_source(self, target_low: int | None) -> None:
        """Take the source's next record if its place comes before the target's next one."""
        columns = self._source.open()
        if columns is None:
            return
        place = self._place(columns.offsets[self._source.at])
        if place is None or target_low is None or place < target_low:
            self._missing(columns, place)

    def _step_both(self) -> None:
        """Compare the next records of both sides; take as many equal ones as possible in one step."""
        source, target = self._source.open(), self._target.open()
        if source is None or target is None:
            return
        first, other = self._source.at, self._target.at
        place = self._place(source.offsets[first])
        if place is None:
            self._missing(source, None)
            return
        if place != target.offsets[other]:
            return  # decoding has shown that one of them comes later; the next round takes that into account
        # Where everything differs, nothing is gained by comparing more than one record at a time.
        alike = source.bodies[first] == target.bodies[other]
        count = min(len(source.offsets) - first, len(target.offsets) - other) if alike else 1
        while count > 1 and not self._all_same(source, first, target, other, count):
            count //= 2
        mine, theirs = source.slice(first, first + count), target.slice(other, other + count)
        self._matched_end, self._is_just_matched = (mine.offsets[-1] + 1, theirs.offsets[-1] + 1), True
        if count == 1:
            self._compare(mine, theirs)
        else:
            self._equal(mine)
        self._source.skip(count)
        self._target.skip(count)

    def _all_same(self, source: Columns, first: int, target: Columns, other: int, count: int) -> bool:
        mine, theirs = source.slice(first, first + count), target.slice(other, other + count)
        return (
            mine.bodies == theirs.bodies
            and mine.times == theirs.times
            and list(map(self._place, mine.offsets)) == theirs.offsets
        )

    def _equal(self, source: Columns) -> None:
        self._equal_records += len(source.offsets)
        self._chains.both(*_piece(source, source.offsets[0]))
        self._differences.remember(source, matched=True)

    def _missing(self, columns: Columns, place: int | None) -> None:
        record = columns.slice(self._source.at, self._source.at + 1)
        self._is_just_matched = False
        if self._options.target_rules is not None and place is not None:
            self._differences.remember(record, matched=False)
            self._source_only.add(decode_or_bare(columns, self._source.at), place)
        else:
            self._differences.missing(record, place)
            self._chains.only("source", *_piece(record, record.offsets[0]))
        self._source.skip()

    def _compare(self, source: Columns, target: Columns) -> None:
        """Compare two records at the same place."""
        if source.times == target.times and source.bodies == target.bodies:
            self._equal(source)
            return
        unmapped = self._source.unmapped(source.offsets[0])
        if unmapped is not None:
            fields = f"the id map has no answer for schema {_id_text(unmapped)}, so the record cannot be compared"
        else:
            fields = changed_fields(source, target)
        if not fields:  # they differ only in numbers encoded in a longer form than needed
            self._equal(source)
            return
        self._chains.only("source", *_piece(source, source.offsets[0]))
        self._chains.only("target", *_piece(target, source.offsets[0]))
        self._differences.changed(source, target, fields)

    # -- offsets -----------------------------------------------------------------------------------------------------

    def _place(self, source_offset: int) -> int | None:
        """Return where a source record must be on the target; None if the map has no such record."""
        if self._shift is not None:
            return source_offset - self._shift
        found = self._map.translate(source_offset)
        return found.target_offset if found.how in (How.EQUAL, How.EXACT) else None

    def _lowest_place(self, source_offset: int) -> int | None:
        """Return a lower bound for the target places of all source records from this offset on."""
        if self._shift is not None:
            return source_offset - self._shift
        return self._map.translate(source_offset).target_offset

    # -- the answer --------------------------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return int(time.time() * 1000) if self._options.now_ms is None else self._options.now_ms

    def _judge_source_only(self) -> Judgement | None:
        """Find out why the target lacks what only the source has; None where it may lack nothing."""
        rules = self._options.target_rules
        if rules is None:
            return None
        judged = self._source_only.judge(
            self._target_log, rules, self._read_target_again, now_ms=self._now_ms(), keep=self._options.keep
        )
        for difference in judged.differences:
            self._chains.only("source", b"missing", struct.pack(">q", difference.source_offset or 0))
        return judged

    def _result(self, source_only: Judgement | None) -> PartitionContent:
        options = self._options
        judged = self._target_only.judge(
            self._source_log, self._rules, self._read_again, now_ms=self._now_ms(), keep=options.keep
        )
        missing = 0 if source_only is None else source_only.extra
        unexplained = judged.differences + ([] if source_only is None else source_only.differences)
        self._deleted.update(judged.deleted)
        for difference in judged.differences:
            self._chains.only("target", b"extra", struct.pack(">q", difference.target_offset or 0))
        source_digest, target_digest = self._chains.digests()
        decoded = self._source.decoded_batches + self._target.decoded_batches
        return PartitionContent(
            topic=self._compared.topic,
            partition=self._compared.partition,
            source_records=self._source.record_count,
            target_records=self._target.record_count,
            compared=self._equal_records,
            source_digest=source_digest,
            target_digest=target_digest,
            method="decoded" if decoded else "payload",
            explained=dict(sorted(judged.explained.items())),
            uncompared=self._deleted.ranges(),
            uncompared_records=judged.deleted_records + judged.undated_records,
            difference_count=self._differences.count + judged.extra + missing,
            differences=self._differences.first(unexplained),
            **self._schema_ids(),
        )

    def _schema_ids(self) -> dict[str, Any]:
        if self._options.ids is None:
            return {}
        gathered = self._source.gathered
        return {"schema_id_rule": self._options.ids.rule, **id_fields(gathered)}


def _equal_payload(source: RawBatch, target: RawBatch, rewritten: bytes | None) -> tuple[bytes, bytes] | None:
    """Return a tag and the digest of what both batches hold; None if they do not have the same bytes.

    :param rewritten: the source's records, unpacked, as they must be on the target; None: as they are. These bytes have
        no checksum from a producer, so the target's is checked, and they are compared unpacked: other versions of a
        codec's library compress them differently.
    """
    if rewritten is None:
        digest = hashlib.sha256(source.payload).digest()
        return (b"B", digest) if hashlib.sha256(target.payload).digest() == digest else None
    try:
        target.check_crc()
        held = decompress(target.codec, target.payload)
    except BatchMalformed:
        return None  # decoding its records reports it
    return (b"U", hashlib.sha256(rewritten).digest()) if held == rewritten else None


def _id_text(key: IdKey) -> str:
    return f"{'GUID' if key.kind == 'guid' else 'id'} {key.value} ({key.part})"


def _piece(columns: Columns, first_source_offset: int) -> list[bytes]:
    """Return records as a piece of a chain; it includes every length, so no two pieces have the same bytes."""
    numbers = [len(columns.offsets), *(offset - columns.offsets[0] for offset in columns.offsets), *columns.times]
    numbers += map(len, columns.bodies)
    return [struct.pack(f">cq{len(numbers)}q", b"R", first_source_offset, *numbers), *columns.bodies]


def decode_or_bare(columns: Columns, index: int) -> Record:
    """Return a record; with empty key and value if its body cannot be read: then nothing can explain it."""
    try:
        return decode(columns, index)
    except BatchMalformed:
        return Record(columns.offsets[index], columns.times[index], b"", b"", [])
