"""The logs of one side, and a cursor over one: whole batches until their records are needed, then columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from airflow_provider_kafka_migration.compare.record_ids import Ids, RecordIds, WalkedBatch, gather
from airflow_provider_kafka_migration.copy.archive import SegmentIndex, committed_batches
from airflow_provider_kafka_migration.copy.provenance import ProvenanceMarker
from airflow_provider_kafka_migration.copy.transform import AbortedTransactions
from airflow_provider_kafka_migration.errors import (
    BatchMalformed,
    OutsideOfLog,
    RecordsWithheld,
    SegmentTampered,
    Where,
)
from airflow_provider_kafka_migration.kafka.batches import records
from airflow_provider_kafka_migration.kafka.batches.api import (
    AnyBatch,
    LegacyBatch,
    RawBatch,
    Record,
    Timestamps,
    decode_body,
    encode_body,
)
from airflow_provider_kafka_migration.kafka.batches.records import Columns
from airflow_provider_kafka_migration.kafka.logs import Span, fetch_span
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire
from airflow_provider_kafka_migration.offset_map.transactional import TransactionalMap
from airflow_provider_kafka_migration.schema_ids.found import FoundIds, IdKey

# -- content log ------------------------------------------------------------------------------------------------------
#
# What a consumer with isolation level read_committed sees of one partition, as batches.


#: Size of one fetch; a larger batch comes whole anyway. Two sides and some decoding stay well below 100 MiB.
FETCH_BYTES = 4 * 1024 * 1024


class CommittedLog(Protocol):
    """The committed log of one partition of one side."""

    @property
    def read_bytes(self) -> int:
        """Number of batch bytes that were read."""

    @property
    def skipped(self) -> list[tuple[int, int]]:
        """Requested ranges that lay below the log start when they were to be read, in the order of reading."""

    def batches(self, start_offset: int, stop_offset: int) -> Iterator[AnyBatch]:
        """Yield committed data batches that overlap ``[start_offset, stop_offset)``, ascending.

        Control batches, aborted and empty batches are left out. Begins at the log start if that is higher.

        :raises MigrationError: not everything in the range can be read.
        """

    def log_start_offset(self) -> int:
        """Read the current log start, which may move while the log is read."""

    def last_stable_offset(self) -> int:
        """Read the current end of what is committed."""


class KafkaLog:
    """A partition on a live cluster.

    :param wire: this log uses it only while it reads.
    """

    def __init__(self, wire: Wire, topic: str, partition: int) -> None:
        self._wire = wire
        self._key: TopicPartition = (topic, partition)
        self.read_bytes = 0
        self.skipped: list[tuple[int, int]] = []

    def batches(self, start_offset: int, stop_offset: int) -> Iterator[AnyBatch]:
        """See :class:`CommittedLog`."""
        position = max(start_offset, self.log_start_offset())
        if position > start_offset:
            self.skipped.append((start_offset, position))
        while position < stop_offset:
            span = self._fetch(position)
            if span is None:
                log_start = self.log_start_offset()
                if log_start <= position:
                    return  # the log ends below the stop offset: what the other side has there is a difference
                self.skipped.append((position, log_start))
                position = log_start  # retention or DeleteRecords moved the log start past us while we read
                continue
            if span.until_offset <= position:
                self._check_not_held_back(position, stop_offset)
                return
            self.read_bytes += len(span.records)
            aborted = AbortedTransactions(span.aborted)
            for batch in span.batches:
                dropped = not isinstance(batch, LegacyBatch) and aborted.drops(batch)
                if batch.next_offset <= position or dropped or batch.is_control:
                    continue
                if isinstance(batch, LegacyBatch) or batch.record_count:
                    yield batch
            position = max(position, span.until_offset)

    def _fetch(self, position: int) -> Span | None:
        """Fetch what is at an offset; None if it is outside the log."""
        try:
            return fetch_span(self._wire, self._key, position, max_bytes=FETCH_BYTES)
        except OutsideOfLog:
            return None

    def _check_not_held_back(self, position: int, stop_offset: int) -> None:
        """Check that the log ends where committed records end: what cannot be read is not compared, and not equal.

        :raises RecordsWithheld: an open transaction hides the rest.
        """
        high_watermark = self._wire.list_offsets([self._key], "latest")[self._key]
        if high_watermark <= position:
            return
        raise RecordsWithheld(
            f"committed records end at offset {position} and the log at {high_watermark}, but records up to "
            f"{stop_offset} must be compared",
            where=Where(cluster=self._wire.config.name, topic=self._key[0], partition=self._key[1], offset=position),
            next_step="find the open transaction (kafka-transactions.sh find-hanging) and wait until it ends; then "
            "clear validate",
            details={"offset": position, "end_offset": stop_offset},
        )

    def log_start_offset(self) -> int:
        """See :class:`CommittedLog`."""
        return self._wire.list_offsets([self._key], "earliest")[self._key]

    def last_stable_offset(self) -> int:
        """See :class:`CommittedLog`."""
        return self._wire.list_offsets([self._key], "stable")[self._key]


# -- archive log ------------------------------------------------------------------------------------------------------
#
# A partition in the archive, for the comparison of contents: nothing in it can be compacted or deleted.


class ArchiveLog:
    """See :class:`CommittedLog`.

    :param start_offset: where the archive begins.
    """

    def __init__(self, index: SegmentIndex, start_offset: int) -> None:
        self._index = index
        self._start_offset = start_offset
        self.read_bytes = 0
        #: always empty: nothing is deleted from an archive, and a gap in it is an error
        self.skipped: list[tuple[int, int]] = []

    def batches(self, start_offset: int, stop_offset: int) -> Iterator[AnyBatch]:
        """Yield committed data batches that overlap the range, ascending.

        :raises SegmentTampered: a segment is torn, altered or missing.
        """
        position = max(start_offset, self._start_offset)
        while position < stop_offset:
            entry = self._index.find(position)
            if entry is None:
                raise SegmentTampered(
                    f"no segment covers offset {position}, although the archive should reach {stop_offset}",
                    where=Where(topic=self._index.topic, partition=self._index.partition, offset=position),
                    next_step="restore the object from a version of the bucket, or run the backup again",
                )
            chunk = self._index.read(entry)
            self.read_bytes += len(chunk.batches)
            yield from (batch for batch in committed_batches(chunk) if batch.next_offset > position)
            position = chunk.until_offset

    def log_start_offset(self) -> int:
        """Return where the archive begins."""
        return self._start_offset

    def last_stable_offset(self) -> int:
        """Return how far the archive reaches without a gap."""
        return self._index.until_offset(self._start_offset)


# -- selections -------------------------------------------------------------------------------------------------------


class Selection:
    """A part of a committed log; see :class:`CommittedLog`. What is selected is for ``batches`` to say.

    :param log: everything that is committed.
    """

    def __init__(self, log: CommittedLog) -> None:
        self._log = log

    @property
    def everything(self) -> CommittedLog:
        """The whole log, with the records that are not selected."""
        return self._log

    @property
    def read_bytes(self) -> int:
        """Number of batch bytes that were read, including those of records that are not selected."""
        return self._log.read_bytes

    @property
    def skipped(self) -> list[tuple[int, int]]:
        """Ranges that lay below the log start when they were to be read."""
        return self._log.skipped

    def log_start_offset(self) -> int:
        """Read the current log start."""
        return self._log.log_start_offset()

    def last_stable_offset(self) -> int:
        """Read the current end of what is committed."""
        return self._log.last_stable_offset()


# -- content shared ---------------------------------------------------------------------------------------------------
#
# The content check on a partition that others write to: it selects the records that we wrote.
#
# A batch is checked if one of our producer ids wrote it, or if our records lie in it according to the map. This finds a
# second copy of one of our records outside the map, and a record of another producer in a place that the map claims.
# All other batches belong to other producers and are ignored.


class OurLog(Selection):
    """Our part of a committed log; see :class:`CommittedLog`.

    :param log: everything that is committed.
    :param offset_map: where our records are, and under which producer ids we wrote them.
    """

    def __init__(self, log: CommittedLog, offset_map: TransactionalMap) -> None:
        super().__init__(log)
        self._map = offset_map
        #: number of other producers' records that were skipped
        self.foreign_records = 0

    def batches(self, start_offset: int, stop_offset: int) -> Iterator[AnyBatch]:
        """Yield our committed batches that overlap the range, ascending."""
        for batch in self._log.batches(start_offset, stop_offset):
            if self._is_ours(batch):
                yield batch
            else:
                self.foreign_records += batch.record_count if isinstance(batch, RawBatch) else 1

    def _is_ours(self, batch: AnyBatch) -> bool:
        if not isinstance(batch, RawBatch):
            return self._map.covers(batch.last_offset)
        return batch.producer_id in self._map.producer_ids or self._map.overlaps(batch.base_offset, batch.next_offset)


# -- content marked ---------------------------------------------------------------------------------------------------
#
# The content check of topics that two flows copy in opposite directions.


class MarkedLog(Selection):
    """The source's log as a copy that marks records must have it; see :class:`CommittedLog`.

    :param log: everything that is committed on the source.
    :param marker: what the copy marks the records of this partition with. A mark depends on the record alone, so
        records are marked here as they were when they were copied.
    """

    def __init__(self, log: CommittedLog, marker: ProvenanceMarker) -> None:
        super().__init__(log)
        self._marker = marker

    def batches(self, start_offset: int, stop_offset: int) -> Iterator[AnyBatch]:
        """Yield marked batches with the records that are copied, ascending; damaged batches as they are."""
        for batch in self._log.batches(start_offset, stop_offset):
            marked: AnyBatch | None
            try:
                marked = self._marker.mark(batch)
            except BatchMalformed:
                marked = batch  # the cursor finds the damage, too, and reports it
            if marked is not None:
                yield marked


# -- logs -------------------------------------------------------------------------------------------------------------


def decode(columns: Columns, index: int) -> Record:
    """Decode one record of some columns.

    :raises BatchMalformed: its body cannot be read.
    """
    body = columns.bodies[index]
    try:
        key, value, headers = decode_body(body, 0, len(body))
    except IndexError:
        raise BatchMalformed("a record extends beyond its batch") from None
    return Record(columns.offsets[index], columns.times[index], key, value, headers)


def key_of_body(body: bytes) -> bytes | None:
    """Return the key of a record, without parsing the rest; None if it has no key."""
    shift = length = position = 0
    while True:
        byte = body[position]
        position += 1
        length |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
    size = length >> 1 ^ -(length & 1)
    return None if size < 0 else body[position : position + size]


def read_columns(batch: AnyBatch, timestamps: Timestamps) -> Columns:
    """Read all records of a batch.

    :raises BatchMalformed: damaged data, including a wrong CRC.
    """
    if isinstance(batch, RawBatch):
        return records.read_columns(batch, timestamps)
    batch.check_crc()
    found = list(batch.records(timestamps))
    return Columns(
        [record.offset for record in found],
        [record.timestamp for record in found],
        [encode_body(record.key, record.value, record.headers) for record in found],
    )


class Cursor:
    """Walks over batches and decodes a batch only when its records are requested. Holds one batch at a time.

    :param start_offset: records below it, and records at or above ``stop_offset``, are left out.
    :param timestamps: ``visible``: what readers see; ``raw``: what producers wrote.
    :param on_unreadable: called with a damaged batch, whose records are left out.
    :param ids: decoded records are returned under the id map, and the ids of records that were walked over are
        gathered.
    """

    def __init__(
        self,
        batches: Iterator[AnyBatch],
        start_offset: int,
        stop_offset: int,
        timestamps: Timestamps,
        on_unreadable: Callable[[AnyBatch, BatchMalformed], None],
        ids: RecordIds | None = None,
    ) -> None:
        self._batches = batches
        self._start = start_offset
        self._stop = stop_offset
        self._timestamps: Timestamps = timestamps
        self._on_unreadable = on_unreadable
        self._ids = ids
        #: ids of the records that were walked over
        self.gathered = FoundIds()
        #: ids of each of the next records, and those that the id map lacks by offset
        self._found: list[Ids] = []
        self._unmapped: dict[int, IdKey] = {}
        #: the next batch, until it is decoded
        self.batch: RawBatch | None = None
        #: the next records, once their batch was decoded; the first one is at ``at``
        self.columns: Columns | None = None
        self.at = 0
        #: number of records that were walked over
        self.record_count = 0
        #: number of batches that were decoded
        self.decoded_batches = 0
        self._load()

    def _load(self) -> None:
        """Take the next batch; decode it immediately if its header does not show where it begins."""
        self.batch, self.columns, self.at = None, None, 0
        self._found, self._unmapped = [], {}
        for batch in self._batches:
            if isinstance(batch, LegacyBatch):
                if self._decode(batch):
                    return
            elif batch.base_offset < self._stop and batch.next_offset > self._start:
                self.batch = batch
                return

    @property
    def low(self) -> int | None:
        """A lower bound for the offsets of the next records; None at the end."""
        if self.columns is not None:
            return self.columns.offsets[self.at]
        return None if self.batch is None else max(self.batch.base_offset, self._start)

    @property
    def is_whole(self) -> bool:
        """Whether the next batch lies in the range with all of its records."""
        batch = self.batch
        return batch is not None and batch.base_offset >= self._start and batch.last_offset < self._stop

    def skip_batch(self, walked: WalkedBatch | None = None) -> None:
        """Walk over the whole next batch.

        :param walked: what it holds; required if this cursor gathers ids.
        """
        assert self.batch is not None
        assert (walked is None) is (self._ids is None)
        if walked is not None:
            gather(self.gathered, walked.offsets, walked.found)
        self.record_count += self.batch.record_count
        self._load()

    def open(self) -> Columns | None:
        """Return the next records, from ``at`` on; None at the end, or after a batch without records in the range."""
        if self.batch is not None:
            batch, self.batch = self.batch, None
            if not self._decode(batch):
                self._load()
                return None
        return self.columns

    def skip(self, count: int = 1) -> None:
        """Walk over records that :meth:`open` returned."""
        assert self.columns is not None
        if self._ids is not None:
            stop = self.at + count
            gather(self.gathered, self.columns.offsets[self.at : stop], self._found[self.at : stop])
        self.record_count += count
        self.at += count
        if self.at >= len(self.columns.offsets):
            self._load()

    def _decode(self, batch: AnyBatch) -> bool:
        """Read the records of a batch; False if none of them lies in the range."""
        self.decoded_batches += 1
        try:
            columns = read_columns(batch, self._timestamps)
        except BatchMalformed as error:
            self._on_unreadable(batch, error)
            return False
        offsets = columns.offsets
        if not offsets:
            return False
        if offsets[0] < self._start or offsets[-1] >= self._stop:
            first = sum(offset < self._start for offset in offsets)
            columns = columns.slice(first, len(offsets) - sum(offset >= self._stop for offset in offsets))
        if not columns.offsets:
            return False
        if self._ids is not None:
            columns, self._found, self._unmapped = self._ids.under_map(columns)
        self.columns, self.at = columns, 0
        return True

    def unmapped(self, offset: int) -> IdKey | None:
        """Return an id of one of the next records that the id map lacks; None if it has them all."""
        return self._unmapped.get(offset)
