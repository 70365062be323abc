"""Records that only the target has. Some of them are right because the source continued to compact and delete.

Such a record is right only if a later record of the source has its key (compacted), or if compaction on the source
drops it anyway: a tombstone after ``delete.retention.ms``, or a record without a key. A record below the source's
current log start is neither right nor wrong: it can no longer be compared with the source. Everything else is a
difference. (KIP-534 and ``Cleaner.shouldRetainRecord`` of Apache Kafka.)
"""

from __future__ import annotations

import hashlib
import struct
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from airflow_provider_kafka_migration.compare.logs import CommittedLog, Cursor, key_of_body
from airflow_provider_kafka_migration.compare.record_ids import UNMAPPED, RecordIds
from airflow_provider_kafka_migration.compare.spans import Spans
from airflow_provider_kafka_migration.documents.proof import ContentDifference, TopicRules
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, Record

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
    :param ids: where keys carry schema ids, the source's keys are compared as they are on the target.
    """

    def __init__(self, *, max_keys: int = MAX_KEYS, ids: RecordIds | None = None) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES)  # noqa: SIM115 - closed by close()
        self._max_keys = max_keys
        self._ids = ids if ids is not None and ids.rewrites_keys else None
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
            judge = _Judge(rules, log_start, now_ms, self._ids)
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

    def __init__(self, rules: TopicRules, log_start: int, now_ms: int, ids: RecordIds | None) -> None:
        self._rules = rules
        self._log_start = log_start
        self._now_ms = now_ms
        self._ids = ids
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
        cursor = Cursor(read(from_offset, end), from_offset, end, "raw", lambda _batch, _error: None, self._ids)
        known = self._last_on_source
        while cursor.low is not None:
            columns = cursor.open()
            if columns is None:
                continue
            for offset, body in zip(columns.offsets, columns.bodies, strict=True):
                # A key whose id the map lacks explains nothing: nobody knows what it is on the target.
                key = None if body == UNMAPPED else key_of_body(body)
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
