"""Records how far a lane's copiers were, and when, to detect lost tombstones and lost records.

Two facts outlive a slice because no log has them: where the source's log ended when a partition was first read, and
the last position with nothing under way. A partition without a record on the target looks new, but it may have been
followed for months, or the target may have lost everything: these facts tell the cases apart.

A broker keeps a tombstone for ``delete.retention.ms`` after its cleaner has first passed it, and the cleaner passes
only what lies below the last stable offset. So a copy that has everything written before a moment ``caught_up_at``
misses no tombstone until ``caught_up_at + delete.retention.ms``: values that it has copied since were there then. (In
the first pass, for tombstones that are older than it, this holds only as long as the leader stays: each replica has its
own cleaner.) If the copy reads on later, the cleaner may have removed a tombstone together with the value that it
deleted, and the copied value lives on forever.

It is impossible to see whether a tombstone was removed, but possible to see whether anything was: where offsets are
consecutive, nothing was removed. So a partition is reported only where reading continued too late **and** an offset is
missing.

How ``caught_up_at`` advances: the end of the log that a fetch returns becomes the mark. When everything below the mark
is on the target (or in the archive), the moment at which that fetch was sent is the new ``caught_up_at``. That also
works for copies that are never quite at the end.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from airflow_provider_kafka_migration.copy.partition import (
    SEQUENCE_MODULUS,
    CopyState,
    NotedPosition,
    PartitionCopy,
)
from airflow_provider_kafka_migration.documents.copy import CopyJob, CopyPartition, LaneReading, PartitionReading
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.documents.proof import OvertakenTombstones
from airflow_provider_kafka_migration.errors import (
    MigrationError,
    ObjectExists,
    SourceTruncated,
    TombstonesOvertaken,
    Where,
)
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, LegacyBatch
from airflow_provider_kafka_migration.kafka.batches.header import NONE
from airflow_provider_kafka_migration.offset_map.runs import topic_key, topic_of_key
from airflow_provider_kafka_migration.storage.base import ObjectStore

# -- overtaken log ----------------------------------------------------------------------------------------------------
#
# Stretches of compacted partitions that were read too late for their tombstones, in object storage, written ahead.
#
# Create-only objects
# ``<migration_id>/overtaken-tombstones/<topic>/<partition>/<from:020d>-<until:020d>-<event>.json``. Their number in a
# partition shows whether a comparison is older than the newest of them.


_FOLDER = "overtaken-tombstones"
_NAME = re.compile(r"(?P<topic>[^/]+)/(?P<partition>[0-9]+)/(?P<from>[0-9]{20})-(?P<until>[0-9]{20})-[a-z]+\.json")

log = logging.getLogger(__name__)


def write_overtaken(store: ObjectStore, document: OvertakenTombstones) -> None:
    """Record a stretch, or that the copy has passed it. Recording the same event twice has no further effect.

    :raises StorageUnavailable: it cannot be recorded, so the copy must not continue.
    """
    name = f"{document.from_offset:020d}-{document.until_offset:020d}-{document.event}.json"
    prefix = f"{document.migration_id}/{_FOLDER}/{topic_key(document.topic)}/{document.partition}"
    try:
        store.put_new(f"{prefix}/{name}", document.canonical())
    except ObjectExists:
        return


def times_overtaken(store: ObjectStore, migration_id: str, topic: str, partition: int) -> int:
    """Return how many objects a partition has."""
    return sum(1 for _ in store.list(f"{migration_id}/{_FOLDER}/{topic_key(topic)}/{partition}/"))


def all_times_overtaken(store: ObjectStore, migration_id: str) -> Counter[tuple[str, int]]:
    """Return how many objects each partition has, by (source topic, partition)."""
    prefix = f"{migration_id}/{_FOLDER}/"
    found: Counter[tuple[str, int]] = Counter()
    for info in store.list(prefix):
        match = _NAME.fullmatch(info.key.removeprefix(prefix))
        if match is not None:
            found[topic_of_key(match["topic"]), int(match["partition"])] += 1
    return found


def read_overtaken(stores: Iterable[ObjectStore], migration_id: str) -> list[OvertakenTombstones]:
    """Return all recorded stretches, ascending by partition and offset.

    :param stores: the stores of the journal and of the archive; they may be the same.
    """
    found: dict[str, OvertakenTombstones] = {}
    for store in stores:
        for info in store.list(f"{migration_id}/{_FOLDER}/"):
            data = store.get(info.key) if info.key.endswith("-met.json") else None
            if data is None:
                continue
            item = _parse(data, info.key)
            if item is not None:
                found[info.key] = item
    return sorted(found.values(), key=lambda item: (item.topic, item.partition, item.from_offset, item.until_offset))


def _parse(data: bytes, key: str) -> OvertakenTombstones | None:
    """Parse an object; if it cannot be read, take what its name gives."""
    try:
        return OvertakenTombstones.parse(data)
    except ValidationError as error:
        log.warning("%s cannot be read: %s", key, error)
    migration_id, _, rest = key.partition(f"/{_FOLDER}/")
    match = _NAME.fullmatch(rest)
    if match is None:
        return None
    return OvertakenTombstones(
        migration_id=migration_id,
        topic=topic_of_key(match["topic"]),
        partition=int(match["partition"]),
        event="met",
        from_offset=int(match["from"]),
        until_offset=int(match["until"]),
        read_at="",
        retention_ms=-1,
    )


# -- read watch -------------------------------------------------------------------------------------------------------


#: A time from an earlier slice may lie this far in the future, because machines' clocks differ. Beyond that, one of the
#: clocks is wrong.
CLOCK_TOLERANCE_SECONDS = 60.0
#: What is seen of a partition for the first time is stored this much later, for all of a lane that were seen by then.
_FIRST_ENDS_SECONDS = 2.0
#: Jobs that write to the target, and name positions there in their progress.
_WRITING_JOBS = ("seed", "tail")


class Answered(NamedTuple):
    """A fetch answer for a partition, at its ``fetch_offset``.

    :param until_offset: everything below it is read; ``fetch_offset`` if the answer was empty.
    :param sent_at: when the fetch was sent, seconds since 1970.
    """

    batches: Sequence[AnyBatch]
    until_offset: int
    last_stable_offset: int
    sent_at: float


def first_missing(from_offset: int, batches: Sequence[AnyBatch], until_offset: int) -> int | None:
    """Return the first offset at which something is missing from what was read; None: all offsets are there."""
    expected = from_offset
    for batch in batches:
        if isinstance(batch, LegacyBatch):
            # Only uncompressed messages show their offsets without decompression.
            is_whole = batch.codec == NONE and batch.last_offset == expected
        else:
            is_whole = batch.base_offset <= expected and batch.is_full
        if not is_whole:
            return expected
        expected = batch.next_offset
    return expected if expected < until_offset else None


def forget_positions(store: ObjectStore, migration_id: str, partitions: Iterable[CopyPartition]) -> None:
    """Forget what was noted of partitions whose target topics are created again: they are copied from the start.

    No copier of these partitions may run.
    """
    specs = {spec.key: spec for spec in partitions}
    for info in store.list(f"{migration_id}/reading/"):
        data = store.get(info.key)
        document = None if data is None else LaneReading.parse(data)
        if document is not None and any(item.key in specs for item in document.partitions):
            items = [_begun_again(item, specs[item.key]) if item.key in specs else item for item in document.partitions]
            store.put(info.key, document.model_copy(update={"partitions": items}).canonical())


def _begun_again(known: PartitionReading, spec: CopyPartition) -> PartitionReading:
    """Return what is known of a partition that is copied from its start again, to an empty topic."""
    return known.model_copy(
        update={
            "source_offset": -1,
            "source_epoch": -1,
            "noted_source_offset": spec.source_start_offset,
            "noted_target_offset": spec.target_start_offset,
            "noted_sequence": 0,
            "first_end_offset": -1,
            "target_topic_id": "",
        }
    )


def _recall(copy: PartitionCopy, known: PartitionReading) -> None:
    """Give a copy what earlier slices have noted of it."""
    read = copy.read
    if known.source_epoch >= 0:
        read.before = (known.source_offset, known.source_epoch)
    if known.noted_target_offset >= 0:
        read.noted = NotedPosition(known.noted_source_offset, known.noted_target_offset, known.noted_sequence)
    read.target_topic_id, read.first_end_offset = known.target_topic_id, known.first_end_offset


class ReadWatch:
    """The reading positions of a lane, for one slice.

    A lane has one owner. A late owner may still write too late, but its times and positions are older, which is safe.

    :param store: the store of the journal location; in a backup, that of the archive.
    :param now: returns the seconds since 1970.
    :param check: raises when this owner's time is over: others may have read in time what it reads too late.
    """

    def __init__(
        self,
        job: CopyJob,
        lane: int,
        store: ObjectStore,
        copies: Sequence[PartitionCopy],
        *,
        now: Callable[[], float] = time.time,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._job = job
        self._lane = lane
        self._store = store
        self._copies = copies
        self._now = now
        self._check = check
        self._prefix = f"{job.migration_id}/reading/"
        self._known: dict[tuple[str, int], PartitionReading] = {}
        self._stored: bytes | None = None
        #: partitions that this slice has read from the source already
        self._begun: set[PartitionCopy] = set()
        #: partitions of which an answer came in this slice
        self._answered: set[PartitionCopy] = set()
        #: when what was seen for the first time has to be stored (monotonic clock); inf: nothing was
        self._store_at = float("inf")

    # -- storage -----------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Load what earlier slices have stored.

        :raises StorageUnavailable: it cannot be read, and guessing is not safe.
        """
        wanted = {copy.key for copy in self._copies}
        self._take(self._read(self._key), wanted)
        if wanted - self._known.keys():
            # Partitions that belonged to another lane before.
            for info in self._store.list(self._prefix):
                if info.key != self._key:
                    self._take(self._read(info.key), wanted)
        self._take_progress()
        for copy in self._copies:
            known = self._known.get(copy.key)
            if known is not None:
                _recall(copy, known)

    def _take(self, document: LaneReading | None, wanted: set[tuple[str, int]]) -> None:
        ids = {copy.key: copy.spec.topic_id for copy in self._copies} if document is not None else {}
        for item in document.partitions if document is not None else ():
            # What was noted of a topic says nothing about another one that got its name.
            if item.key in wanted and (not item.topic_id or item.topic_id == ids[item.key]):
                self._known.setdefault(item.key, item)

    def _take_progress(self) -> None:
        """Take positions from the progress documents for partitions of which no slice has noted one yet.

        Earlier versions noted positions only in mirrors.
        """
        wanted = {
            copy.key: copy
            for copy in self._copies
            if (copy.spec.verdict is Verdict.TRANSACTIONAL or not self._job.target_deletes)
            and not self._is_noted(copy.key)
        }
        for name in _WRITING_JOBS if wanted and self._job.name in _WRITING_JOBS else ():
            data = self._store.get(f"{self._job.migration_id}/progress/{name}.json")
            for row in json.loads(data).get("partitions", ()) if data else ():
                copy = wanted.get((row["topic"], row["partition"]))
                if copy is not None and row.get("topic_id", "") in ("", copy.spec.topic_id):
                    self._take_row(copy, row)

    def _is_noted(self, key: tuple[str, int]) -> bool:
        """Return whether a slice of this version has noted anything of a partition."""
        known = self._known.get(key)
        return known is not None and max(known.noted_target_offset, known.first_end_offset) >= 0

    def _take_row(self, copy: PartitionCopy, row: Mapping[str, Any]) -> None:
        """Take the position of a row of a progress document, if it is known and later than the one known so far."""
        known = self._known.get(copy.key)
        in_transactions = copy.spec.verdict is Verdict.TRANSACTIONAL
        source_offset, target_offset, records = (
            int(row.get(name, -1))
            for name in ("source_offset", "target_offset", "records" if in_transactions else "total_records")
        )
        if records <= 0 or (known is not None and known.noted_target_offset >= target_offset):
            return
        self._change(
            copy,
            noted_source_offset=source_offset,
            noted_target_offset=target_offset,
            noted_sequence=0 if in_transactions else records % SEQUENCE_MODULUS,
        )

    @property
    def _key(self) -> str:
        return f"{self._prefix}lane-{self._lane:06d}.json"

    def _read(self, key: str) -> LaneReading | None:
        data = self._store.get(key)
        try:
            return None if data is None else LaneReading.parse(data)
        except ValidationError as error:
            log.warning("%s cannot be read, so it is unknown when the copy was at the end: %s", key, error)
            return None

    def save(self) -> None:
        """Store what is known at the end of a slice. If that fails, the stored times stay older but correct."""
        try:
            for copy in self._copies:
                # Also partitions of which nothing is known: the next slice then need not search other lanes for them.
                self._change(copy)
                self._note_epoch(copy)
                self._note_planned_end(copy)
                self._note_position(copy)
                if copy in self._begun:
                    self._advance(copy)
            self._put()
        except MigrationError as error:
            log.warning("Lane %s could not store when it was at the end of its logs: %s", self._lane, error)

    def save_first_ends(self, now: float) -> None:
        """Store where logs ended that were read for the first time, soon: a killed slice stores nothing at its end.

        :param now: monotonic clock.
        """
        if now < self._store_at:
            return
        self._store_at = float("inf")
        try:
            self._put()
        except MigrationError as error:
            self._store_at = now + _FIRST_ENDS_SECONDS
            log.warning("Lane %s could not store where its logs ended: %s", self._lane, error)

    def _put(self) -> None:
        document = LaneReading(
            migration_id=self._job.migration_id,
            lane=self._lane,
            partitions=[self._known[key] for key in sorted(self._known)],
        )
        data = document.canonical()
        if data != self._stored and self._known:
            self._store.put(self._key, data)
            self._stored = data

    def _note_epoch(self, copy: PartitionCopy) -> None:
        """Note the leader epoch of an idle copy: only then does the last epoch read belong to the safe position."""
        if copy.spec.verdict is Verdict.TRANSACTIONAL or copy.read.leader_epoch < 0:
            return  # the position committed on the target includes the epoch
        if isinstance(copy.error, SourceTruncated):
            # The next slice has to find the same truncation.
            details = copy.error.details
            self._change(copy, source_offset=details["source_offset"], source_epoch=details["read_epoch"])
        if copy.state is CopyState.RUNNING and copy.write.is_idle and copy.read.next_offset == copy.write.source_offset:
            self._change(copy, source_offset=copy.write.source_offset, source_epoch=copy.read.leader_epoch)

    def _note_position(self, copy: PartitionCopy) -> None:
        """Note a position at which nothing is under way: after it, a log end below it shows that records were lost.

        In a mirror, it also proves where the copy stands when the target has deleted its last records.
        """
        write, noted = copy.write, copy.read.noted
        is_known = copy.state in (CopyState.RUNNING, CopyState.DONE)
        if not is_known or write.in_flight or write.filling:
            return
        if copy.spec.verdict is Verdict.TRANSACTIONAL and not copy.figures.records:
            return  # without a record, the log end of the others is not a position of the copy
        if noted is not None and write.confirmed_offset < noted.target_offset and copy.is_fresh:
            return  # what was lost is still to be judged
        self._change(
            copy,
            noted_source_offset=write.confirmed_source_offset,
            noted_target_offset=write.confirmed_offset,
            noted_sequence=write.next_sequence,
            topic_id=copy.spec.topic_id,
            target_topic_id=copy.read.target_topic_id,
        )

    def _change(self, copy: PartitionCopy, **values: float | str) -> PartitionReading:
        known = self._known.get(copy.key) or PartitionReading(topic=copy.spec.topic, partition=copy.spec.partition)
        self._known[copy.key] = changed = known.model_copy(update=values)
        return changed

    # -- reading -----------------------------------------------------------------------------------------------------

    def note(self, copy: PartitionCopy, answered: Answered) -> None:
        """Note a fetch answer, before any of it is passed on.

        :raises TombstonesOvertaken: tombstones may have been removed before they were read, and the policy is to fail.
        :raises StorageUnavailable: what must be recorded about it cannot be stored.
        """
        if copy not in self._answered:
            self._forget_former_epoch(copy)
            self._note_first_end(copy, answered.last_stable_offset)
            self._answered.add(copy)
            copy.read.had_backlog = answered.last_stable_offset > copy.read.next_offset
        retention_ms = self._retention_ms(copy)
        if retention_ms is None:
            return
        if copy not in self._begun:
            self._begin(copy, answered, retention_ms)
        self._advance(copy)
        if answered.until_offset > copy.read.next_offset:
            self._look_for_overtaking(copy, answered)
        if self._known[copy.key].mark_at < 0:
            self._set_mark(copy, answered, retention_ms)
            self._advance(copy)

    def _forget_former_epoch(self, copy: PartitionCopy) -> None:
        """Forget the stored epoch of a copy that starts again from the source: it has read nothing there.

        Through S3 the epoch stays: what went into the archive was read, and the copy reads it from there. The position
        stays until records are copied again: it shows what the target has lost.
        """
        known = self._known.get(copy.key)
        if known is None or self._job.via != "direct" or not copy.is_fresh:
            return
        # A position that was noted on a former target topic says nothing about the present one.
        is_former = known.noted_target_offset > copy.spec.target_start_offset and copy.read.noted is None
        if known.source_epoch >= 0 or is_former:
            self._change(copy, source_offset=-1, source_epoch=-1)
            if is_former:
                self._known[copy.key] = _begun_again(self._known[copy.key], copy.spec)
            copy.read.before = None
            self._put()

    def _note_first_end(self, copy: PartitionCopy, log_end_offset: int) -> None:
        """Note where the source's log ended when the partition was first read."""
        if copy.read.first_end_offset < 0:
            copy.read.first_end_offset = log_end_offset
            self._change(copy, first_end_offset=log_end_offset, topic_id=copy.spec.topic_id)
            self._store_at = min(self._store_at, time.monotonic() + _FIRST_ENDS_SECONDS)

    def _note_planned_end(self, copy: PartitionCopy) -> None:
        """Note the planned end of a partition that has it already, and so is not read: the log ended there."""
        until = copy.spec.until_offset
        is_known = copy.state in (CopyState.RUNNING, CopyState.DONE)
        if is_known and until is not None and copy.write.source_offset >= until:
            self._note_first_end(copy, until)

    def _retention_ms(self, copy: PartitionCopy) -> int | None:
        settings = self._job.tombstones
        return None if settings is None else settings.retention_ms.get(copy.spec.topic)

    def _begin(self, copy: PartitionCopy, answered: Answered, retention_ms: int) -> None:
        """Handle the first answer of this slice. A copy that reads from the start does not depend on earlier slices."""
        known = self._known.get(copy.key)
        has_times = known is not None and known.caught_up_at >= 0
        # An adopted partition continues a copy that has begun before, at a time that may be unknown.
        is_known = not copy.spec.adopted or copy.spec.caught_up_at >= 0
        starts = copy.read.next_offset == copy.read.start_offset and is_known
        if starts and (not has_times or (copy.is_fresh and self._job.via == "direct")):
            # Stored before the first record is copied: a kill must not make the beginning unknown. What was read
            # into the archive before counts as read, however empty the target is.
            is_later = copy.read.start_offset > copy.spec.source_start_offset
            must_store = known is None or known.mark_offset > copy.read.next_offset or not has_times or is_later
            self._start_anew(copy, answered, retention_ms)
            if must_store:
                self._start_others(copy, answered)
                self._put()
        elif not has_times:
            self._start_anew(copy, answered, retention_ms)
            self._name_unknown(copy, answered, retention_ms)
        else:
            assert known is not None
            self._go_on(copy, known, answered, retention_ms)
        self._begun.add(copy)

    def _go_on(self, copy: PartitionCopy, known: PartitionReading, answered: Answered, retention_ms: int) -> None:
        if known.caught_up_at > answered.sent_at + CLOCK_TOLERANCE_SECONDS:
            # Some machine's clock is or was wrong, so the time since then is unknown.
            self._start_anew(copy, answered, retention_ms)
            self._name_unknown(copy, answered, retention_ms)
            return
        self._change(
            copy,
            retention_ms=_lowest(known.retention_ms, retention_ms),
            mark_retention_ms=_lowest(known.mark_retention_ms, retention_ms),
            mark_at=-1.0 if known.mark_at > answered.sent_at else known.mark_at,
        )

    def _start_anew(self, copy: PartitionCopy, answered: Answered, retention_ms: int) -> None:
        is_begun_before = copy.spec.adopted and copy.read.next_offset == copy.read.start_offset
        self._change(
            copy,
            caught_up_at=copy.spec.caught_up_at
            if is_begun_before and copy.spec.caught_up_at >= 0
            else answered.sent_at,
            caught_up_offset=copy.read.next_offset,
            retention_ms=retention_ms,
            mark_at=-1.0,
            mark_offset=-1,
            mark_retention_ms=-1,
            overtaken_from=-1,
            overtaken_until=-1,
        )

    def _start_others(self, copy: PartitionCopy, answered: Answered) -> None:
        """Start the other partitions of a tail too: all begin in one slice, so one write serves all of them."""
        if self._job.stop_key is None:
            return
        for other in self._copies:
            retention_ms = self._retention_ms(other)
            known = self._known.get(other.key)
            if retention_ms is None or other in self._begun or (known is not None and known.caught_up_at >= 0):
                continue
            is_known = not other.spec.adopted or other.spec.caught_up_at >= 0
            if other.state is CopyState.RUNNING and other.read.next_offset == other.read.start_offset and is_known:
                self._start_anew(other, answered, retention_ms)

    def _set_mark(self, copy: PartitionCopy, answered: Answered, retention_ms: int) -> None:
        self._change(
            copy, mark_at=answered.sent_at, mark_offset=answered.last_stable_offset, mark_retention_ms=retention_ms
        )

    def _advance(self, copy: PartitionCopy) -> None:
        """Advance ``caught_up_at`` once everything below the mark is safe.

        The copy then has everything that was written before the mark was set.
        """
        known = self._known[copy.key]
        if (
            known.mark_at < 0
            or copy.state is not CopyState.RUNNING
            or copy.write.confirmed_source_offset < known.mark_offset
        ):
            return
        if 0 <= known.overtaken_until <= copy.write.confirmed_source_offset:
            self._write(copy, known, "passed")
            known = known.model_copy(update={"overtaken_from": -1, "overtaken_until": -1})
        self._known[copy.key] = known.model_copy(
            update={
                "caught_up_at": known.mark_at,
                "caught_up_offset": known.mark_offset,
                "retention_ms": known.mark_retention_ms,
                "mark_at": -1.0,
            }
        )

    # -- too late ----------------------------------------------------------------------------------------------------

    def _look_for_overtaking(self, copy: PartitionCopy, answered: Answered) -> None:
        known = self._known[copy.key]
        gap_seconds = self._now() - known.caught_up_at
        if known.overtaken_until >= 0 or gap_seconds * 1000 <= known.retention_ms:
            return
        missing = first_missing(copy.read.next_offset, answered.batches, answered.until_offset)
        if missing is None:
            return
        until = max(answered.last_stable_offset, answered.until_offset)
        stretch = known.model_copy(update={"overtaken_from": copy.read.next_offset, "overtaken_until": until})
        # Written ahead: a copier that continues behind the stretch can no longer see it.
        document = self._write(copy, stretch, "met")
        copy.figures.overtaken.append(document.from_offset)
        if self._job.tombstones is not None and self._job.tombstones.on_overtaken == "stop":
            raise overtaken_error(self._job.migration_id, document)
        log.warning("%s-%s: %s", *copy.key, describe(document))
        self._known[copy.key] = stretch
        # An older mark would make the copy look late again once the stretch is passed.
        self._set_mark(copy, answered, self._retention_ms(copy) or 0)

    def _name_unknown(self, copy: PartitionCopy, answered: Answered, retention_ms: int) -> None:
        """Record that it is unknown when the copy was at the end. That proves no gap, so the copy continues."""
        unknown = PartitionReading(
            topic=copy.spec.topic,
            partition=copy.spec.partition,
            retention_ms=retention_ms,
            overtaken_from=copy.read.next_offset,
            overtaken_until=max(answered.last_stable_offset, copy.read.next_offset),
        )
        document = self._write(copy, unknown, "met")
        copy.figures.overtaken.append(document.from_offset)
        self._change(copy, overtaken_from=document.from_offset, overtaken_until=document.until_offset)
        log.warning("%s-%s: %s", *copy.key, describe(document))

    def _write(
        self, copy: PartitionCopy, known: PartitionReading, event: Literal["met", "passed"]
    ) -> OvertakenTombstones:
        if event == "met":
            self._check()
        now = self._now()
        is_known = known.caught_up_at >= 0
        document = OvertakenTombstones(
            migration_id=self._job.migration_id,
            topic=copy.spec.topic,
            topic_id=copy.spec.topic_id,
            partition=copy.spec.partition,
            event=event,
            from_offset=known.overtaken_from,
            until_offset=known.overtaken_until,
            caught_up_at=_iso(known.caught_up_at) if is_known else "",
            caught_up_offset=known.caught_up_offset,
            read_at=_iso(now),
            gap_seconds=round(now - known.caught_up_at, 3) if is_known else -1.0,
            retention_ms=known.retention_ms,
        )
        write_overtaken(self._store, document)
        return document


def describe(document: OvertakenTombstones) -> str:
    """Describe a stretch for people."""
    until = max(document.until_offset - 1, document.from_offset)
    if document.gap_seconds < 0:
        return (
            f"it is not known when the copy was last at the source's end, so compaction may have removed tombstones at "
            f"offsets {document.from_offset}..{until} before they were read"
        )
    return (
        f"the copy has everything written before {document.caught_up_at} (offset {document.caught_up_offset}), and "
        f"continued to read {document.gap_seconds:.0f} s later, after more than delete.retention.ms "
        f"({document.retention_ms / 1000:g} s): compaction may have removed tombstones at offsets "
        f"{document.from_offset}..{until} before they were read, and keys that they deleted may live on on the target"
    )


def overtaken_error(migration_id: str, document: OvertakenTombstones) -> TombstonesOvertaken:
    """Return the error of a partition that stops at a stretch."""
    return TombstonesOvertaken(
        describe(document),
        where=Where(
            migration_id=migration_id,
            cluster="source",
            topic=document.topic,
            partition=document.partition,
            offset=document.from_offset,
        ),
        next_step="first raise delete.retention.ms on the source until the cutover; then set "
        "offsets.on_overtaken_tombstones to note (the migration then compares the whole partition again, and a key "
        "that lives on is a difference) or to repair (it deletes the target topic, creates it again, and copies it "
        "from the source's log start; not in a seed through S3); then clear the task. A mirror never deletes a topic "
        "by itself: delete it on the target once its consumers agree, then pause and resume the mirror",
        details={
            "from_offset": document.from_offset,
            "until_offset": document.until_offset,
            "caught_up_at": document.caught_up_at,
            "caught_up_offset": document.caught_up_offset,
            "gap_seconds": document.gap_seconds,
            "retention_ms": document.retention_ms,
        },
    )


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _lowest(known_ms: int, present_ms: int) -> int:
    return present_ms if known_ms < 0 else min(known_ms, present_ms)
