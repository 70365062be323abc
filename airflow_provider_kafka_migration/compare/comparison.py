"""Compares the content of a partition on both sides, all records, in bounded memory.

Where both sides have a batch with the same bytes, the digests of its payload are compared and nothing is decoded: this
covers everything that was forwarded raw. Where batches differ (rebuilt, split, compacted since), records are compared
one by one at the offsets that the map gives. Each side yields a chain of digests over the same pieces; the chains are
equal exactly if nothing differs.
"""

from __future__ import annotations

import hashlib
import struct
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from airflow_provider_kafka_migration.compare.logs import CommittedLog, Cursor, decode, key_of_body
from airflow_provider_kafka_migration.documents.proof import (
    ContentDifference,
    ContentRange,
    PartitionContent,
    TopicRules,
)
from airflow_provider_kafka_migration.errors import BatchMalformed, Interrupted, Where
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, RawBatch, Record, Timestamps
from airflow_provider_kafka_migration.kafka.batches.records import Columns
from airflow_provider_kafka_migration.offset_map.runs import How, OffsetRange, PartitionMap
from airflow_provider_kafka_migration.offset_map.transactional import TransactionalMap

# -- content differences ----------------------------------------------------------------------------------------------
#
# Differences between two logs, with a guess at the cause: a record changed, duplicated, misplaced, or out of order.


Kind = Literal["missing", "extra", "changed", "duplicate", "order", "offset", "unreadable"]

_FIELDS = ("timestamp", "key", "value", "headers")
_WINDOW_RECORDS = 2048
_WINDOW_BYTES = 4 * 1024 * 1024

#: time and body of a record, which identify it
_Content = tuple[int, bytes]


def changed_fields(source: Columns, target: Columns) -> str:
    """Return the names of the fields in which the first records differ; empty if only their encoding differs."""
    try:
        one, other = decode(source, 0), decode(target, 0)
    except BatchMalformed as error:
        return f"unreadable: {error.what}"
    return ", ".join(name for name in _FIELDS if getattr(one, name) != getattr(other, name))


class Differences:
    """Counts all differences and keeps the first ones.

    To classify differences it remembers a window of source records: a target record that is not the expected one, but
    equals one of the window, is a duplicate, out of order, or at a wrong offset. The classification is a guess for
    people; the count is exact.

    :param keep: how many differences are kept.
    """

    def __init__(self, keep: int) -> None:
        self.count = 0
        self._keep = keep
        self._kept: list[ContentDifference] = []
        #: source records that were walked over, whether they were found at their places, and their bytes
        self._recent: deque[tuple[Columns, bool, int]] = deque()
        self._recent_records = 0
        self._recent_bytes = 0
        #: target records that matched no source record when they were read -> their positions in the list
        self._unknown: dict[_Content, int] = {}
        #: highest source offset of the target records identified so far
        self._furthest = -1

    def remember(self, source: Columns, *, matched: bool) -> None:
        """Remember source records that were walked over."""
        if self._unknown:
            self._find_unknown(source, matched=matched)
        if matched:
            self._furthest = source.offsets[-1]
        size_bytes = sum(map(len, source.bodies))
        self._recent.append((source, matched, size_bytes))
        self._recent_records += len(source.offsets)
        self._recent_bytes += size_bytes
        while len(self._recent) > 1 and (self._recent_records > _WINDOW_RECORDS or self._recent_bytes > _WINDOW_BYTES):
            dropped, _, size_bytes = self._recent.popleft()
            self._recent_records -= len(dropped.offsets)
            self._recent_bytes -= size_bytes

    def _find_unknown(self, source: Columns, *, matched: bool) -> None:
        for offset, content in zip(source.offsets, zip(source.times, source.bodies, strict=True), strict=True):
            index = self._unknown.pop(content, None)
            if index is not None and not matched:
                self._relabel(index, "offset", f"holds the record of source offset {offset}")
                self._furthest = max(self._furthest, offset)

    def note(self, kind: Kind, source_offset: int | None, target_offset: int | None, detail: str = "") -> None:
        """Count one more difference."""
        self.count += 1
        if len(self._kept) < self._keep:
            self._kept.append(
                ContentDifference(kind=kind, source_offset=source_offset, target_offset=target_offset, detail=detail)
            )

    def missing(self, source: Columns, target_offset: int | None) -> None:
        """Note that the target has no record at the place of this source record."""
        self.remember(source, matched=False)
        self.note("missing", source.offsets[0], target_offset)

    def changed(self, source: Columns, target: Columns, fields: str) -> None:
        """Note that the target has a different record at the place of this source record."""
        self.remember(source, matched=False)
        source_offset, target_offset = source.offsets[0], target.offsets[0]
        content = (target.times[0], target.bodies[0])
        found = self._find(content) if len(self._kept) < self._keep else None
        if found is None:
            if len(self._kept) < self._keep:
                self._unknown[content] = len(self._kept)
            self.note("changed", source_offset, target_offset, fields)
            return
        offset, matched = found
        text = f"holds the record of source offset {offset}"
        if matched:
            self.note("duplicate", source_offset, target_offset, text)
        elif offset < self._furthest:
            self._relabel_source(offset, "order")
            self.note("order", source_offset, target_offset, text)
        else:
            self._furthest = offset
            self.note("offset", source_offset, target_offset, text)

    def _find(self, content: _Content) -> tuple[int, bool] | None:
        """(offset, matched) of the last source record in the window with this content."""
        time, body = content
        for columns, matched, _ in reversed(self._recent):
            for index in range(len(columns.offsets) - 1, -1, -1):
                if columns.times[index] == time and columns.bodies[index] == body:
                    return columns.offsets[index], matched
        return None

    def _relabel(self, index: int, kind: Kind, detail: str) -> None:
        self._kept[index] = self._kept[index].model_copy(update={"kind": kind, "detail": detail})

    def _relabel_source(self, source_offset: int, kind: Kind) -> None:
        for index, difference in enumerate(self._kept):
            if difference.source_offset == source_offset and difference.kind == "offset":
                self._relabel(index, kind, difference.detail)

    def first(self, more: list[ContentDifference]) -> list[ContentDifference]:
        """Return the first differences, including ``more``, ascending by offset."""

        def place(difference: ContentDifference) -> tuple[int, int]:
            offset = difference.target_offset if difference.source_offset is None else difference.source_offset
            return (offset or 0, difference.target_offset or 0)

        return sorted([*self._kept, *more], key=place)[: self._keep]


# -- content spans ----------------------------------------------------------------------------------------------------
#
# Ranges of offsets, joined where they touch.


#: With more ranges than this, the two closest ranges become one, including what lies between them.
MAX_RANGES = 100


class Spans:
    """A set of offsets stored as a few ranges. It may contain more offsets than were added, never fewer."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def add(self, from_offset: int, until_offset: int) -> None:
        """Add ``[from_offset, until_offset)``; an empty range adds nothing."""
        if until_offset <= from_offset:
            return
        last = self._ranges[-1] if self._ranges else None
        if last is not None and last[0] <= from_offset <= last[1]:
            self._ranges[-1] = (last[0], max(last[1], until_offset))
            return
        self._ranges.append((from_offset, until_offset))
        if len(self._ranges) > 2 * MAX_RANGES:
            self._ranges = self.ranges()

    def update(self, other: Spans) -> None:
        """Add all ranges of another set."""
        for from_offset, until_offset in other.ranges():
            self.add(from_offset, until_offset)

    def ranges(self) -> list[tuple[int, int]]:
        """Return at most :data:`MAX_RANGES` disjoint ranges, ascending; ends are exclusive."""
        joined: list[tuple[int, int]] = []
        for from_offset, until_offset in sorted(self._ranges):
            if joined and from_offset <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(joined[-1][1], until_offset))
            else:
                joined.append((from_offset, until_offset))
        while len(joined) > MAX_RANGES:
            at = min(range(len(joined) - 1), key=lambda index: joined[index + 1][0] - joined[index][1])
            joined[at : at + 2] = [(joined[at][0], joined[at + 1][1])]
        return joined


# -- content target only ----------------------------------------------------------------------------------------------
#
# Records that only the target has. Some of them are right because the source continued to compact and delete.
#
# Such a record is right only if a later record of the source has its key (compacted), or if compaction on the source
# drops it anyway: a tombstone after ``delete.retention.ms``, or a record without a key. A record below the source's
# current log start is neither right nor wrong: it can no longer be compared with the source. Everything else is a
# difference. (KIP-534 and ``Cleaner.shouldRetainRecord`` of Apache Kafka.)


#: Reads the batches between two offsets.
Reader = Callable[[int, int], Iterator[AnyBatch]]

#: source offset, target offset, timestamp, flags, digest of the key
_ENTRY = struct.Struct(">qqqB16s")
_HAS_KEY = 1
_TOMBSTONE = 2
#: The reason for a record below the source's current log start.
DELETED = "deleted"
_SPOOL_BYTES = 8 * 1024 * 1024
#: Keys searched for in one pass over the source: about 100 MB of memory.
MAX_KEYS = 400_000


class _Entry(NamedTuple):
    source_offset: int
    target_offset: int
    timestamp: int
    flags: int
    key: bytes

    @property
    def has_key(self) -> bool:
        return bool(self.flags & _HAS_KEY)

    @property
    def is_tombstone(self) -> bool:
        return bool(self.flags & _TOMBSTONE)


def _key_digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=16).digest()


class Judgement(NamedTuple):
    """The findings about the records that only the target has.

    :param explained: number of records by the reason why the source lacks them: compacted, expired, unkeyed.
    :param deleted: source ranges of records that the source has deleted and that therefore cannot be judged.
    :param deleted_records: number of those records.
    :param extra: number of records that nothing explains; ``differences`` has the first of them.
    """

    explained: Counter[str]
    deleted: Spans
    deleted_records: int
    extra: int
    differences: list[ContentDifference]


class TargetOnly:
    """Collects records that only the target has and judges them at the end. Memory is bounded; it spills to a file.

    :param max_keys: with more records than this, the source is read in several passes.
    """

    def __init__(self, *, max_keys: int = MAX_KEYS) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES)  # noqa: SIM115 - closed by close()
        self._max_keys = max_keys
        self._first_source_offset: int | None = None
        self.count = 0

    def __enter__(self) -> TargetOnly:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, record: Record, source_offset: int) -> None:
        """Add a target record for whose place the source has no record.

        :param source_offset: where it was on the source, according to the offset map.
        """
        flags = (0 if record.key is None else _HAS_KEY) | (_TOMBSTONE if record.value is None else 0)
        key = bytes(16) if record.key is None else _key_digest(record.key)
        self._file.write(_ENTRY.pack(source_offset, record.offset, record.timestamp, flags, key))
        if self._first_source_offset is None:
            self._first_source_offset = source_offset
        self.count += 1

    def _entries(self) -> Iterator[_Entry]:
        self._file.seek(0)
        while True:
            data = self._file.read(_ENTRY.size * 4096)
            if not data:
                return
            for fields in _ENTRY.iter_unpack(data):
                yield _Entry(*fields)

    def judge(self, source: CommittedLog, rules: TopicRules, read: Reader, *, now_ms: int, keep: int) -> Judgement:
        """Determine why the source does not have these records.

        :param read: reads the source between two offsets; it applies the comparison's stop and pace.
        :param now_ms: milliseconds since 1970.
        :param keep: how many differences are kept.
        """
        explained: Counter[str] = Counter()
        deleted = Spans()
        differences: list[ContentDifference] = []
        if not self.count:
            return Judgement(explained, deleted, 0, 0, differences)
        # Read the log start now, not before the comparison: records deleted while we read count as deleted too.
        log_start = source.log_start_offset()
        passes = -(-self.count // self._max_keys) if rules.compacted else 1
        extra = 0
        for number in range(passes):
            judge = _Judge(rules, log_start, now_ms)
            if rules.compacted:
                judge.learn(self._bucket(number, passes))
                judge.look_for_later_records(source, read, max(self._first_source_offset or 0, log_start))
            found: list[ContentDifference] = []
            for entry in self._bucket(number, passes):
                reason = judge.reason(entry)
                if reason == DELETED:
                    deleted.add(entry.source_offset, entry.source_offset + 1)
                if reason:
                    explained[reason] += 1
                    continue
                extra += 1
                if len(found) < keep:
                    found.append(_extra(entry))
            differences += found
        differences.sort(key=lambda difference: difference.target_offset or 0)
        return Judgement(explained, deleted, explained.pop(DELETED, 0), extra, differences[:keep])

    def _bucket(self, number: int, passes: int) -> Iterator[_Entry]:
        """Yield the entries whose keys belong to a pass."""
        return (entry for entry in self._entries() if int.from_bytes(entry.key[:4], "big") % passes == number)


def _extra(entry: _Entry) -> ContentDifference:
    return ContentDifference(kind="extra", source_offset=entry.source_offset, target_offset=entry.target_offset)


class _Judge:
    """Judges the entries of one pass, whose keys it holds in memory."""

    def __init__(self, rules: TopicRules, log_start: int, now_ms: int) -> None:
        self._rules = rules
        self._log_start = log_start
        self._now_ms = now_ms
        #: key -> the last offset at which the source has a record of it, -1 for none
        self._last_on_source: dict[bytes, int] = {}
        #: key -> the offset of its last tombstone that the source was free to drop
        self._last_expired: dict[bytes, int] = {}

    def learn(self, entries: Iterator[_Entry]) -> None:
        """Collect the relevant keys."""
        for entry in entries:
            if entry.has_key:
                self._last_on_source.setdefault(entry.key, -1)
                if self._is_expired(entry):
                    self._last_expired[entry.key] = entry.source_offset

    def look_for_later_records(self, source: CommittedLog, read: Reader, from_offset: int) -> None:
        """Read the source to its current end, beyond the compared range: those records cause compaction too."""
        if not self._last_on_source:
            return
        end = source.last_stable_offset()
        cursor = Cursor(read(from_offset, end), from_offset, end, "raw", lambda _batch, _error: None)
        known = self._last_on_source
        while cursor.low is not None:
            columns = cursor.open()
            if columns is None:
                continue
            for offset, body in zip(columns.offsets, columns.bodies, strict=True):
                key = key_of_body(body)
                if key is not None and (digest := _key_digest(key)) in known:
                    known[digest] = offset
            cursor.skip(len(columns.offsets))

    def _is_expired(self, entry: _Entry) -> bool:
        retention_ms = self._rules.delete_retention_ms
        return (
            self._rules.compacted
            and entry.is_tombstone
            and retention_ms is not None
            and entry.timestamp + retention_ms <= self._now_ms
        )

    def reason(self, entry: _Entry) -> str | None:
        """Return why the source no longer has this record; None: nothing explains it."""
        if entry.source_offset < self._log_start:
            return DELETED
        if not self._rules.compacted:
            return None
        if not entry.has_key:
            return "unkeyed"
        if entry.source_offset < self._last_on_source[entry.key]:
            return "compacted"
        if self._is_expired(entry):
            return "expired"
        if entry.source_offset < self._last_expired.get(entry.key, -1):
            return "compacted"
        return None


# -- comparison -------------------------------------------------------------------------------------------------------


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
    """

    timestamps: Timestamps = "visible"
    keep: int = KEPT_DIFFERENCES
    max_keys: int = MAX_KEYS
    now_ms: int | None = None
    stop: Callable[[], bool] = lambda: False
    enough: Callable[[], bool] = lambda: False
    pace: Callable[[int], None] = lambda size_bytes: None


class Stretch(NamedTuple):
    """The range that was compared, and the result."""

    compared: ContentRange
    content: PartitionContent


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
    with TargetOnly(max_keys=options.max_keys) as target_only:
        return _Comparison(compared, offset_map, rules, source, target, options, target_only).run()


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
        target_only: TargetOnly,
    ) -> None:
        self._compared = compared
        self._map = offset_map
        #: with one run, translating an offset only takes an addition
        self._shift = next(offset_map.runs()).shift if len(offset_map) == 1 else None
        self._rules = rules
        self._options = options
        self._source_log = source
        self._target_only = target_only
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
        """Read the source again for later records of keys. As this may be all of it, stop and pace apply here too."""
        return self._read(self._source_log, start_offset, stop_offset)

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
        return Stretch(compared, self._result())

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
        digest = hashlib.sha256(source.payload).digest()
        if hashlib.sha256(target.payload).digest() != digest:
            return False
        self._chains.both(
            _BATCH_PIECE.pack(
                b"B", source.base_offset, source.record_count, source.base_timestamp, source.codec, digest
            )
        )
        self._equal_records += source.record_count
        self._matched_end, self._is_just_matched = (source.next_offset, target.next_offset), True
        self._source.skip_batch()
        self._target.skip_batch()
        return True

    def _may_be_same(self, source: RawBatch, target: RawBatch) -> bool:
        """Check the headers: wholly in the range, at the right offsets; equal payloads then mean the same records."""
        return (
            source.record_count == target.record_count
            and source.last_offset_delta == target.last_offset_delta
            and source.codec == target.codec
            and source.base_timestamp == target.base_timestamp
            and source.size_bytes == target.size_bytes
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
        self._differences.missing(record, place)
        self._chains.only("source", *_piece(record, record.offsets[0]))
        self._source.skip()

    def _compare(self, source: Columns, target: Columns) -> None:
        """Compare two records at the same place."""
        if source.times == target.times and source.bodies == target.bodies:
            self._equal(source)
            return
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

    def _result(self) -> PartitionContent:
        options = self._options
        now_ms = int(time.time() * 1000) if options.now_ms is None else options.now_ms
        judged = self._target_only.judge(
            self._source_log, self._rules, self._read_again, now_ms=now_ms, keep=options.keep
        )
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
            uncompared_records=judged.deleted_records,
            difference_count=self._differences.count + judged.extra,
            differences=self._differences.first(judged.differences),
        )


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
