"""Records that only one side has. Some of them are right because the other side continued to compact and delete.

Such a record is right only if a later record of the other side has its key (compacted), or if compaction there drops it
anyway: a tombstone after ``delete.retention.ms``, or a record without a key. Compaction drops a tombstone only after
all earlier records of its key: if one of them is still there, the tombstone is lost, and the deleted key lives on. A
record below the current log start of the other side is neither right nor wrong: it can no longer be compared. Nor can
a tombstone with a timestamp in the future: brokers may drop it by their own clock. Everything else is a difference.
(KIP-534 and ``Cleaner.shouldRetainRecord`` of Apache Kafka.)
"""

from __future__ import annotations

import hashlib
import struct
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from airflow_provider_kafka_migration.compare.logs import CommittedLog, Cursor, key_of_body
from airflow_provider_kafka_migration.compare.record_ids import UNMAPPED, RecordIds
from airflow_provider_kafka_migration.compare.spans import Spans
from airflow_provider_kafka_migration.documents.proof import ContentDifference, TopicRules
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, Record

#: Reads the batches between two offsets.
Reader = Callable[[int, int], Iterator[AnyBatch]]

#: place on the other side, offset, timestamp, flags, digest of the key
_ENTRY = struct.Struct(">qqqB16s")
_HAS_KEY = 1
_TOMBSTONE = 2
#: The reason for a record below the current log start of the other side.
DELETED = "deleted"
#: The reason for a tombstone from the future, and for what it may have compacted.
UNDATED = "undated"
_SPOOL_BYTES = 8 * 1024 * 1024
#: Keys searched for in one pass over the other side: about 100 MB of memory.
MAX_KEYS = 400_000


class _Entry(NamedTuple):
    place: int
    offset: int
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
    """The findings about the records that only one side has.

    :param explained: number of records by the reason why the other side lacks them: compacted, expired, unkeyed.
    :param deleted: ranges of the other side that it has deleted: records there cannot be judged.
    :param deleted_records: number of those records.
    :param undated_records: number of records that cannot be judged because of a tombstone from the future; their ranges
        are in ``deleted``, too.
    :param extra: number of records that nothing explains; ``differences`` has the first of them.
    """

    explained: Counter[str]
    deleted: Spans
    deleted_records: int
    extra: int
    differences: list[ContentDifference]
    undated_records: int = 0


class OneSided:
    """Collects records that only one side has and judges them at the end. Memory is bounded; it spills to a file.

    :param side: the side that has these records.
    :param max_keys: with more records than this, the other side is read in several passes.
    :param ids: where keys carry schema ids, the keys of the other side (the source) are compared as they are here.
    """

    def __init__(
        self, side: Literal["source", "target"], *, max_keys: int = MAX_KEYS, ids: RecordIds | None = None
    ) -> None:
        self._side = side
        self._file = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES)  # noqa: SIM115 - closed by close()
        self._max_keys = max_keys
        self._ids = ids if ids is not None and ids.rewrites_keys else None
        self._first_place: int | None = None
        self.count = 0

    def __enter__(self) -> OneSided:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, record: Record, place: int) -> None:
        """Add a record for whose place the other side has no record.

        :param place: its offset on the other side, according to the offset map.
        """
        flags = (0 if record.key is None else _HAS_KEY) | (_TOMBSTONE if record.value is None else 0)
        key = bytes(16) if record.key is None else _key_digest(record.key)
        self._file.write(_ENTRY.pack(place, record.offset, record.timestamp, flags, key))
        if self._first_place is None:
            self._first_place = place
        self.count += 1

    def _entries(self) -> Iterator[_Entry]:
        self._file.seek(0)
        while True:
            data = self._file.read(_ENTRY.size * 4096)
            if not data:
                return
            for fields in _ENTRY.iter_unpack(data):
                yield _Entry(*fields)

    def judge(self, other: CommittedLog, rules: TopicRules, read: Reader, *, now_ms: int, keep: int) -> Judgement:
        """Determine why the other side does not have these records.

        :param other: the log of the other side.
        :param rules: what the other side may do to its records.
        :param read: reads the other side between two offsets; it applies the comparison's stop and pace.
        :param now_ms: milliseconds since 1970.
        :param keep: how many differences are kept.
        """
        explained: Counter[str] = Counter()
        deleted = Spans()
        differences: list[ContentDifference] = []
        if not self.count:
            return Judgement(explained, deleted, 0, 0, differences)
        # Read the log start now, not before the comparison: records deleted while we read count as deleted too.
        log_start = other.log_start_offset()
        passes = -(-self.count // self._max_keys) if rules.compacted else 1
        extra = 0
        for number in range(passes):
            judge = _Judge(rules, log_start, now_ms, self._ids)
            if rules.compacted:
                judge.learn(self._bucket(number, passes))
                # An earlier record of a key may be anywhere; later ones lie behind the first place.
                start = log_start if judge.has_tombstones else max(self._first_place or 0, log_start)
                judge.look_for_other_records(other, read, start)
            found: list[ContentDifference] = []
            for entry in self._bucket(number, passes):
                reason = judge.reason(entry)
                if reason in (DELETED, UNDATED):
                    deleted.add(entry.place, entry.place + 1)
                if reason:
                    explained[reason] += 1
                    continue
                extra += 1
                if len(found) < keep:
                    found.append(self._difference(entry))
            differences += found
        differences.sort(key=lambda item: (item.target_offset if self._side == "target" else item.source_offset) or 0)
        gone, undated = explained.pop(DELETED, 0), explained.pop(UNDATED, 0)
        return Judgement(explained, deleted, gone, extra, differences[:keep], undated)

    def _bucket(self, number: int, passes: int) -> Iterator[_Entry]:
        """Yield the entries whose keys belong to a pass."""
        return (entry for entry in self._entries() if int.from_bytes(entry.key[:4], "big") % passes == number)

    def _difference(self, entry: _Entry) -> ContentDifference:
        if self._side == "target":
            return ContentDifference(kind="extra", source_offset=entry.place, target_offset=entry.offset)
        return ContentDifference(kind="missing", source_offset=entry.offset, target_offset=entry.place)


class _Judge:
    """Judges the entries of one pass, whose keys it holds in memory."""

    def __init__(self, rules: TopicRules, log_start: int, now_ms: int, ids: RecordIds | None) -> None:
        self._rules = rules
        self._log_start = log_start
        self._now_ms = now_ms
        self._ids = ids
        #: key -> the last offset at which the other side has a record of it, -1 for none
        self._last_there: dict[bytes, int] = {}
        #: key -> the first such offset
        self._first_there: dict[bytes, int] = {}
        #: key -> the place of its last tombstone that the other side was free to drop
        self._last_expired: dict[bytes, int] = {}
        #: key -> the place of its last tombstone from the future
        self._last_undated: dict[bytes, int] = {}

    @property
    def has_tombstones(self) -> bool:
        """Whether there are tombstones that the other side was, or may have been, free to drop."""
        return bool(self._last_expired or self._last_undated)

    def learn(self, entries: Iterator[_Entry]) -> None:
        """Collect the relevant keys."""
        for entry in entries:
            if entry.has_key:
                self._last_there.setdefault(entry.key, -1)
                if self._is_expired(entry):
                    self._last_expired[entry.key] = entry.place
                elif self._is_undated(entry):
                    self._last_undated[entry.key] = entry.place

    def look_for_other_records(self, other: CommittedLog, read: Reader, from_offset: int) -> None:
        """Read the other side to its current end, beyond the compared range: those records cause compaction too."""
        if not self._last_there:
            return
        end = other.last_stable_offset()
        cursor = Cursor(read(from_offset, end), from_offset, end, "raw", lambda _batch, _error: None, self._ids)
        known = self._last_there
        while cursor.low is not None:
            columns = cursor.open()
            if columns is None:
                continue
            for offset, body in zip(columns.offsets, columns.bodies, strict=True):
                # A key whose id the map lacks explains nothing: nobody knows what it is on the target.
                key = None if body == UNMAPPED else key_of_body(body)
                if key is not None and (digest := _key_digest(key)) in known:
                    known[digest] = offset
                    self._first_there.setdefault(digest, offset)
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
        """Return why the other side no longer has this record; None: nothing explains it."""
        if entry.place < self._log_start:
            return DELETED
        if not self._rules.compacted:
            return None
        if not entry.has_key:
            return "unkeyed"
        if entry.place < self._last_there[entry.key]:
            return "compacted"
        tombstone = self._last_expired.get(entry.key, -1)
        if entry.place <= tombstone and not self._lives_on(entry.key, tombstone):
            return "expired" if self._is_expired(entry) else "compacted"
        tombstone = self._last_undated.get(entry.key, -1)
        if entry.place <= tombstone and not self._lives_on(entry.key, tombstone):
            return UNDATED
        return None

    def _lives_on(self, key: bytes, place: int) -> bool:
        """Whether the other side has a record of a key before the place of its tombstone."""
        first = self._first_there.get(key)
        return first is not None and first < place

    def _is_undated(self, entry: _Entry) -> bool:
        return self._rules.compacted and entry.is_tombstone and entry.timestamp > self._now_ms
