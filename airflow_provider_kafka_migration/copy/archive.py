"""The archive: raw batches in object storage, in Kafka's own ``.log`` format with the source's offsets.

A segment is ``<migration_id>/segments/<topic>/<partition>/<from:020d>.<until:020d>.<sha256[:16]>.log`` and, written
after it, its entry: the same name with ``.json``. Both are create-only, and the name identifies the content, so a
second writer with the same bytes changes nothing. A segment without an entry was never finished and does not count.
``kafka-dump-log`` reads the first field of the name as the base offset.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c
from pydantic import ValidationError

from airflow_provider_kafka_migration.copy.transform import AbortedTransactions, Chunk
from airflow_provider_kafka_migration.documents.copy import (
    CopyPartition,
    Manifest,
    ManifestPartition,
    SegmentEntry,
    SourceGapRecord,
    TargetLossRecord,
    seal,
)
from airflow_provider_kafka_migration.errors import ObjectExists, SegmentTampered, TopicRecreated, Where
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, LegacyBatch, read_batches
from airflow_provider_kafka_migration.kafka.fetch import Aborted
from airflow_provider_kafka_migration.offset_map.runs import topic_key, topic_of_key
from airflow_provider_kafka_migration.storage.base import Bytes, ObjectStore

_NAME = re.compile(r"(?P<from>[0-9]{20})\.(?P<until>[0-9]{20})\.[0-9a-f]{16}\.json")
#: End of the entry's key for a segment without batches, which is a hole or a gap of the source.
_EMPTY = f".{hashlib.sha256(b'').hexdigest()[:16]}.json"
_RESTORE = "restore the object from a version of the bucket, or delete it and its entry and copy the partition again"


def segments_prefix(migration_id: str, topic: str, partition: int) -> str:
    """Return the key prefix of a partition's segments, with a slash at the end."""
    return f"{migration_id}/segments/{topic_key(topic)}/{partition}/"


class SegmentWriter:
    """Writes segments of one partition. Safe to repeat after any crash."""

    def __init__(self, store: ObjectStore, migration_id: str, topic: str, partition: int, topic_id: str = "") -> None:
        self.store = store
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.prefix = segments_prefix(migration_id, topic, partition)

    def put_chunk(self, chunk: Chunk) -> SegmentEntry:
        """Archive a chunk; see :meth:`put`."""
        return self.put(
            chunk.batches,
            chunk.aborted,
            chunk.from_offset,
            chunk.until_offset,
            log_start_offset=chunk.log_start_offset,
            last_stable_offset=chunk.last_stable_offset,
        )

    def put(
        self,
        batches: Bytes | memoryview,
        aborted: Sequence[Aborted],
        from_offset: int,
        until_offset: int,
        *,
        log_start_offset: int = -1,
        last_stable_offset: int = -1,
    ) -> SegmentEntry:
        """Make batches durable, then write the entry that makes them count.

        :param batches: as fetched; a truncated last one is left out.
        :param until_offset: everything below it, down to ``from_offset``, is covered.
        :returns: the entry, or that of an earlier writer if there is one.
        :raises BatchMalformed: a batch has a wrong CRC; damaged data are not archived.
        :raises SegmentTampered: the object exists with other content, although its entry counts.
        """
        parsed, consumed = read_batches(memoryview(batches))
        for batch in parsed:
            batch.check_crc()
        data = _whole(batches, consumed)
        sha256 = hashlib.sha256(data).hexdigest()
        stem = f"{self.prefix}{from_offset:020d}.{until_offset:020d}.{sha256[:16]}"
        entry = SegmentEntry(
            topic=self.topic,
            topic_id=self.topic_id,
            partition=self.partition,
            from_offset=from_offset,
            until_offset=until_offset,
            batch_count=len(parsed),
            record_count=sum(record_count(batch) for batch in parsed),
            size_bytes=len(data),
            sha256=sha256,
            crc32c=f"{int(crc32c(data)):08x}",
            aborted=sorted(set(aborted), key=lambda pair: (pair[1], pair[0])),
            last_stable_offset=last_stable_offset,
            log_start_offset=log_start_offset,
            key=f"{stem}.log",
        ).sealed()
        self._put_log(entry, data)
        return self._put_entry(entry)

    def _put_log(self, entry: SegmentEntry, data: Bytes) -> None:
        try:
            self.store.put_new(entry.key, data, sha256=entry.sha256)
        except ObjectExists:
            if self.store.get(entry.key) == data:
                return
            if self.store.get(_entry_key(entry.key)) is not None:
                raise _tampered(entry.key, "its content does not match its name", entry) from None
            # A store that isn't atomic left it torn, and it never counted.
            self.store.put(entry.key, data)

    def _put_entry(self, entry: SegmentEntry) -> SegmentEntry:
        key = _entry_key(entry.key)
        try:
            self.store.put_new(key, entry.canonical())
        except ObjectExists:
            # Another fetch of the same bytes: only the offsets that the broker returned with them may differ.
            return _read_entry(self.store, key)
        return entry


def _whole(batches: Bytes | memoryview, consumed: int) -> Bytes:
    """Return the whole batches as one bytes object, without a copy where they already are one."""
    owner = batches.obj if isinstance(batches, memoryview) else batches
    if isinstance(owner, bytes | bytearray) and len(owner) == len(batches) == consumed:
        return owner
    return bytes(memoryview(batches)[:consumed])


def record_count(batch: AnyBatch) -> int:
    """Return the number of records in a batch, including aborted ones, without markers."""
    if isinstance(batch, LegacyBatch):
        return sum(1 for _ in batch.records())
    return 0 if batch.is_control else batch.record_count


def is_gap(entry: SegmentEntry) -> bool:
    """Return whether the source had deleted all of a segment's offsets before any copier had read them."""
    return entry.batch_count == 0 and entry.log_start_offset >= entry.until_offset


def _entry_key(log_key: str) -> str:
    return f"{log_key.removesuffix('.log')}.json"


def _tampered(key: str, why: str, entry: SegmentEntry | None = None) -> SegmentTampered:
    where = Where(path=key) if entry is None else Where(path=key, topic=entry.topic, partition=entry.partition)
    return SegmentTampered(f"segment {key} cannot be used: {why}", where=where, next_step=_RESTORE)


def _read_entry(store: ObjectStore, key: str) -> SegmentEntry:
    data = store.get(key)
    if data is None:
        raise _tampered(key, "its entry is missing")
    try:
        entry = SegmentEntry.parse(data)
    except ValidationError as error:
        raise _tampered(key, f"{error.error_count()} fields of its entry are invalid") from None
    expected = f"{entry.from_offset:020d}.{entry.until_offset:020d}.{entry.sha256[:16]}.log"
    sealed = seal(json.loads(data)) == entry.entry_sha256
    if _entry_key(entry.key) != key or not entry.key.endswith(f"/{expected}") or not sealed:
        raise _tampered(key, "its entry was altered", entry)
    return entry


class _Name(NamedTuple):
    """The fields in the key of an entry; sorts by offset."""

    from_offset: int
    until_offset: int
    key: str


def _is_empty(name: _Name) -> bool:
    return name.key.endswith(_EMPTY)


def _parse_name(key: str) -> _Name | None:
    match = _NAME.fullmatch(key.rpartition("/")[2])
    return _Name(int(match["from"]), int(match["until"]), key) if match else None


class _Names:
    """The sorted names of one kind, indexed to find those that cover an offset."""

    def __init__(self) -> None:
        self._names: list[_Name] = []
        #: for each name, the largest end among it and those before it
        self._reach: list[int] = []

    def covering(self, position: int) -> _Name | None:
        """Return the name that covers an offset, the one with the largest end if there are several."""
        stop = bisect_right(self._names, position, key=lambda name: name.from_offset)
        if stop == 0 or self._reach[stop - 1] <= position:
            return None
        best: _Name | None = None
        for index in range(stop - 1, -1, -1):
            name = self._names[index]
            if name.until_offset > position and (best is None or name.until_offset > best.until_offset):
                best = name
            elif best is not None and name.from_offset < best.from_offset:
                break  # segments overlap only where writers raced from the same offset
        return best

    def first_from(self, position: int) -> int | None:
        """Return where the first segment above an offset begins."""
        index = bisect_right(self._names, position, key=lambda name: name.from_offset)
        return self._names[index].from_offset if index < len(self._names) else None

    def last_from(self, position: int) -> int | None:
        """Return the last segment begin that is not above an offset."""
        index = bisect_right(self._names, position, key=lambda name: name.from_offset)
        return self._names[index - 1].from_offset if index else None

    def replace(self, since: int, found: Iterable[_Name]) -> None:
        """Add names, sorting them in from an offset on."""
        first = bisect_left(self._names, since, key=lambda name: name.from_offset)
        self._names[first:] = sorted({*self._names[first:], *found})
        del self._reach[first:]
        reach = self._reach[-1] if self._reach else -1
        for name in self._names[first:]:
            reach = max(reach, name.until_offset)
            self._reach.append(reach)


class SegmentIndex:
    """Finds and reads the segments of one partition; follows an archive that grows.

    Segments with batches win over those without, wherever both cover an offset: a killed copier may still have been
    putting records into the archive while its successor, which could not know, recorded a gap of the source.

    :param topic_id: the planned topic id; an entry with another one raises :class:`TopicRecreated`.
    """

    #: After this many listings, all names are listed again, not only those of later offsets.
    FULL_LISTING_EVERY = 16

    def __init__(self, store: ObjectStore, migration_id: str, topic: str, partition: int, topic_id: str = "") -> None:
        self.store = store
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.prefix = segments_prefix(migration_id, topic, partition)
        self._full, self._empty = _Names(), _Names()
        self._is_listed = False
        self._misses = 0

    def find(self, position: int) -> SegmentEntry | None:
        """Return the entry that covers an offset, the one with the largest end if there are several; None: none yet.

        An entry without batches ends where one with batches begins, whatever its name says.
        """
        name = self._full.covering(position)
        if name is None:
            # Records may have come since a segment without any was found here.
            self._refresh(position)
            name = self._covering(position)
        return None if name is None else self._cut(name)

    def find_undisputed(self, position: int) -> SegmentEntry | None:
        """Find as :meth:`find` does, but treat a recorded source gap as a gap even if the archive has records there.

        For comparisons with a target, which may have been copied before these records came, or after.
        """
        if not self._is_listed:
            self._refresh(position)
        gap = self._gap(position)
        found = self.find(position) if gap is None else gap
        if found is None or found is gap:
            return found
        return found.model_copy(update={"until_offset": self._gap_from(position, found.until_offset)})

    def chain(self, position: int) -> Iterator[SegmentEntry]:
        """Yield the entries from an offset on, as far as they are contiguous."""
        while (entry := self.find(position)) is not None:
            yield entry
            position = entry.until_offset

    def until_offset(self, position: int) -> int:
        """Return how far the archive covers the partition without a gap from ``position`` on; reads only names."""
        self._refresh(position)
        while (name := self._covering(position)) is not None:
            position = name.until_offset
        return position

    def read_until_offset(self, position: int) -> int:
        """Return how far the archive has what the source had: as :meth:`until_offset`, but a source gap ends it.

        That includes a gap whose records came into the archive later: a copy may have passed it before.
        """
        self._refresh(position)
        while self._gap(position) is None and (name := self._covering(position)) is not None:
            # A gap may begin within a segment that has batches.
            position = self._gap_from(position, name.until_offset)
        return position

    def _gap(self, position: int) -> SegmentEntry | None:
        """Return the entry of the source gap that covers an offset, if one is known."""
        name = self._empty.covering(position)
        entry = None if name is None else self._entry(name.key)
        return entry if entry is not None and is_gap(entry) else None

    def _gap_from(self, position: int, until_offset: int) -> int:
        """Return where the first source gap in ``(position, until_offset)`` begins; without one, ``until_offset``."""
        begin = self._empty.first_from(position)
        while begin is not None and begin < until_offset:
            if self._gap(begin) is not None:
                return begin
            begin = self._empty.first_from(begin)
        return until_offset

    def gap_until(self, position: int, until_offset: int) -> int:
        """Return how far a gap at an offset may reach: not into records that the archive has."""
        self._refresh(position)
        begin = self._full.first_from(position)
        return until_offset if begin is None else min(begin, until_offset)

    def read(self, entry: SegmentEntry) -> Chunk:
        """Return the content of a segment.

        :raises SegmentTampered: the segment is torn, altered or missing.
        """
        data = self.store.get(entry.key)
        if data is None:
            raise _tampered(entry.key, "it is missing", entry)
        if len(data) != entry.size_bytes:
            raise _tampered(entry.key, f"it has {len(data)} bytes instead of {entry.size_bytes}", entry)
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise _tampered(entry.key, "its SHA-256 is not that of its entry", entry)
        return Chunk(
            topic=entry.topic,
            partition=entry.partition,
            from_offset=entry.from_offset,
            until_offset=entry.until_offset,
            batches=memoryview(data),
            aborted=list(entry.aborted),
            last_stable_offset=entry.last_stable_offset,
            log_start_offset=entry.log_start_offset,
            origin="segment",
        )

    def _covering(self, position: int) -> _Name | None:
        name = self._full.covering(position)
        if name is not None:
            return name
        name, begin = self._empty.covering(position), self._full.first_from(position)
        if name is None or begin is None or begin >= name.until_offset:
            return name
        return name._replace(until_offset=begin)

    def _cut(self, name: _Name) -> SegmentEntry:
        """Return the entry, cut to the part of the segment that is to be used."""
        entry = self._entry(name.key)
        if entry.until_offset == name.until_offset:
            return entry
        return entry.model_copy(update={"until_offset": name.until_offset})

    def _refresh(self, position: int) -> None:
        """List names again: those from the last known offset on, and periodically all."""
        self._misses += 1
        since: int | None = None
        if self._is_listed and self._misses % self.FULL_LISTING_EVERY:
            known = [names.last_from(position) for names in (self._full, self._empty)]
            since = max((begin for begin in known if begin is not None), default=None)
        # All names that begin with this offset sort after this key, because they continue with ".".
        found = _names(self.store, self.prefix, None if since is None else f"{self.prefix}{since:020d}")
        self._is_listed = True
        if since is None:
            self._full, self._empty = _Names(), _Names()
        by_kind: dict[bool, list[_Name]] = {True: [], False: []}
        for name in found:
            by_kind[_is_empty(name)].append(name)
        self._full.replace(since or 0, by_kind[False])
        self._empty.replace(since or 0, by_kind[True])

    def _entry(self, key: str) -> SegmentEntry:
        entry = _read_entry(self.store, key)
        if (entry.topic, entry.partition) != (self.topic, self.partition):
            raise _tampered(key, f"its entry belongs to {entry.topic}-{entry.partition}", entry)
        if self.topic_id and entry.topic_id and entry.topic_id != self.topic_id:
            raise TopicRecreated(
                f"segment {key} belongs to topic id {entry.topic_id}, but the plan has {self.topic_id}",
                where=Where(topic=self.topic, partition=self.partition, path=key),
                next_step="the topic was deleted and created again: start a new migration, or exclude the topic",
            )
        return entry


def _names(store: ObjectStore, prefix: str, start_after: str | None) -> list[_Name]:
    found = (_parse_name(info.key) for info in store.list(prefix, start_after=start_after))
    return [name for name in found if name is not None]


def build_manifest(store: ObjectStore, migration_id: str) -> Manifest:
    """Build the manifest of an archive from its entries; the same entries give the same bytes.

    :raises SegmentTampered: an entry cannot be read. Segments themselves are not read.
    """
    by_partition: dict[tuple[str, int], list[_Name]] = {}
    root = f"{migration_id}/segments/"
    for name in _names(store, root, None):
        part, partition, _ = name.key.removeprefix(root).split("/")
        by_partition.setdefault((topic_of_key(part), int(partition)), []).append(name)
    return Manifest(
        migration_id=migration_id,
        partitions=[_manifest_partition(store, *key, names) for key, names in sorted(by_partition.items())],
    )


def _manifest_partition(store: ObjectStore, topic: str, partition: int, names: list[_Name]) -> ManifestPartition:
    chosen, gaps = _without_overlap(names)
    entries = [_read_entry(store, name.key) for name in chosen]
    return ManifestPartition(
        topic=topic,
        topic_id=entries[0].topic_id,
        partition=partition,
        from_offset=entries[0].from_offset,
        until_offset=max(entry.until_offset for entry in entries),
        record_count=sum(entry.record_count for entry in entries),
        size_bytes=sum(entry.size_bytes for entry in entries),
        gaps=gaps,
        superseded=len(names) - len(chosen),
        segments=entries,
    )


def _without_overlap(names: Iterable[_Name]) -> tuple[list[_Name], list[tuple[int, int]]]:
    """Return (segments that cover everything, gaps between them).

    At each offset it takes the segment that reaches furthest, and one without batches only where there is no other.
    """
    by_kind: dict[bool, list[_Name]] = {True: [], False: []}
    for name in sorted(names):
        by_kind[_is_empty(name)].append(name)
    full = _furthest(by_kind[False])
    needed = [name for name in _furthest(by_kind[True]) if not _is_covered(name, full)]
    chosen = sorted([*full, *needed])
    gaps: list[tuple[int, int]] = []
    reach = chosen[0].from_offset
    for name in chosen:
        if name.from_offset > reach:
            gaps.append((reach, name.from_offset))
        reach = max(reach, name.until_offset)
    return chosen, gaps


def _furthest(names: Iterable[_Name]) -> list[_Name]:
    """Return the needed ones of sorted names: at each offset the one that reaches furthest."""
    chosen: list[_Name] = []
    for name in names:
        if not chosen or name.from_offset > chosen[-1].until_offset:
            chosen.append(name)
        elif name.until_offset > chosen[-1].until_offset:
            same_start = name.from_offset == chosen[-1].from_offset
            if same_start or (len(chosen) > 1 and name.from_offset <= chosen[-2].until_offset):
                chosen.pop()
            chosen.append(name)
    return chosen


def _is_covered(name: _Name, others: Sequence[_Name]) -> bool:
    """Return whether sorted names cover the whole range of another one."""
    position = name.from_offset
    for index in range(bisect_right(others, position, key=lambda item: item.until_offset), len(others)):
        if others[index].from_offset > position:
            break
        position = max(position, others[index].until_offset)
    return position >= name.until_offset


# -- records ----------------------------------------------------------------------------------------------------------


class ArchivedSpan(NamedTuple):
    """What a segment contributes to the records of its partition.

    :param key: of its entry.
    :param from_offset: its first offset that no earlier segment covers.
    :param until_offset: exclusive.
    """

    topic: str
    partition: int
    key: str
    from_offset: int
    until_offset: int


def archived_spans(store: ObjectStore, migration_id: str, topics: Iterable[str] = ()) -> list[ArchivedSpan]:
    """Return the segments that have records, each offset in one of them, ascending; reads only names.

    :param topics: empty: all.
    """
    root = f"{migration_id}/segments/"
    prefixes = [f"{root}{topic_key(topic)}/" for topic in topics] or [root]
    by_partition: dict[tuple[str, int], list[_Name]] = {}
    for prefix in prefixes:
        for name in _names(store, prefix, None):
            part, partition, _ = name.key.removeprefix(root).split("/")
            by_partition.setdefault((topic_of_key(part), int(partition)), []).append(name)
    found = []
    for key, names in sorted(by_partition.items()):
        reach = -1
        for name in _furthest(sorted(name for name in names if not _is_empty(name))):
            found.append(ArchivedSpan(*key, name.key, max(reach, name.from_offset), name.until_offset))
            reach = name.until_offset
    return found


def read_span(store: ObjectStore, migration_id: str, span: ArchivedSpan) -> Iterator[AnyBatch]:
    """Yield the committed data batches of a segment that reach into a span; some of their records may lie outside.

    :raises SegmentTampered: the segment is torn, altered or missing.
    """
    index = SegmentIndex(store, migration_id, span.topic, span.partition)
    for batch in committed_batches(index.read(_read_entry(store, span.key))):
        if batch.next_offset > span.from_offset:
            yield batch


def committed_batches(chunk: Chunk) -> Iterator[AnyBatch]:
    """Yield the batches of a segment that have records which a consumer with read_committed sees."""
    aborted = AbortedTransactions(chunk.aborted)
    for batch in read_batches(chunk.batches)[0]:
        dropped = not isinstance(batch, LegacyBatch) and aborted.drops(batch)
        if not dropped and not batch.is_control and (isinstance(batch, LegacyBatch) or batch.record_count):
            yield batch


# -- gap log ----------------------------------------------------------------------------------------------------------
#
# Source gaps in object storage, written ahead: a gap is recorded before the copy continues behind it.
#
# Create-only objects ``<migration_id>/source-gaps/<topic>/<partition>/<from_offset:020d>-<until_offset:020d>.json``. A
# copier that is killed between the two steps leaves a gap that the next one meets again, perhaps a longer one: readers
# join gaps that overlap. Without these objects only one process would know a gap, and a kill would hide it.


Gap = tuple[int, int]
_FOLDER = "source-gaps"
_GAP_NAME = re.compile(r"(?P<topic>[^/]+)/(?P<partition>[0-9]+)/(?P<from>[0-9]{20})-(?P<until>[0-9]{20})\.json")


def write_gap(store: ObjectStore, migration_id: str, spec: CopyPartition, gap: Gap) -> None:
    """Record a gap. Recording the same gap twice has no further effect.

    :param gap: (first offset that is missing, first offset that exists).
    :raises StorageUnavailable: the gap cannot be recorded, so the copy must not continue.
    """
    document = SourceGapRecord(
        migration_id=migration_id,
        topic=spec.topic,
        topic_id=spec.topic_id,
        partition=spec.partition,
        from_offset=gap[0],
        until_offset=gap[1],
    )
    key = f"{migration_id}/{_FOLDER}/{topic_key(spec.topic)}/{spec.partition}/{gap[0]:020d}-{gap[1]:020d}.json"
    try:
        store.put_new(key, document.canonical())
    except ObjectExists:
        return


def read_gaps(stores: Iterable[ObjectStore], migration_id: str) -> dict[tuple[str, int], list[Gap]]:
    """Return all gaps of a migration, ascending and joined where they overlap or touch; reads only names.

    :param stores: the stores of the journal and of the archive; they may be the same.
    """
    prefix = f"{migration_id}/{_FOLDER}/"
    found: dict[tuple[str, int], set[Gap]] = {}
    for store in stores:
        for info in store.list(prefix):
            match = _GAP_NAME.fullmatch(info.key.removeprefix(prefix))
            if match is not None:
                key = (topic_of_key(match["topic"]), int(match["partition"]))
                found.setdefault(key, set()).add((int(match["from"]), int(match["until"])))
    return {key: joined(gaps) for key, gaps in sorted(found.items())}


def joined(gaps: Iterable[Gap]) -> list[Gap]:
    """Return ranges in ascending order, joined where they overlap or touch."""
    found: list[Gap] = []
    for first, until in sorted(gaps):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], until))
        else:
            found.append((first, until))
    return found


# -- loss log ---------------------------------------------------------------------------------------------------------
#
# What the target has lost, in object storage, written ahead: before the copy continues at the lower log end.
#
# Create-only objects ``<migration_id>/target-losses/<topic>/<partition>/<to_offset:020d>-<from_offset:020d>.json``.
# After the copy has filled the log again, nothing else shows the loss.


_LOSSES = "target-losses"


def write_loss(store: ObjectStore, document: TargetLossRecord) -> None:
    """Record that the target's log end went back. Recording the same loss twice has no further effect.

    :raises StorageUnavailable: the loss cannot be recorded, so the copy must not continue.
    """
    name = f"{document.to_target_offset:020d}-{document.from_target_offset:020d}.json"
    prefix = f"{document.migration_id}/{_LOSSES}/{topic_key(document.topic)}/{document.partition}"
    try:
        store.put_new(f"{prefix}/{name}", document.canonical())
    except ObjectExists:
        return


def read_losses(store: ObjectStore, migration_id: str) -> list[TargetLossRecord]:
    """Return all losses of the target, ascending by partition and by when they were seen."""
    found = []
    for info in store.list(f"{migration_id}/{_LOSSES}/"):
        data = store.get(info.key)
        if data is not None:
            found.append(TargetLossRecord.parse(data))
    return sorted(found, key=lambda item: (item.topic, item.partition, item.seen_at, item.to_target_offset))
