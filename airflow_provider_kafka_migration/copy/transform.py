"""Decides for each source batch: forward it as it is, rebuild it, or treat it as a hole. Pure: no I/O, no clock.

docs/internals.md has the table: full committed batches are forwarded raw; batches with holes, a start below the wanted
offset, visible LogAppendTime, skewed offsets or too many bytes are rebuilt; consecutive small ones are joined; control
batches, empty ones and aborted transactions are holes; message formats 0 and 1 are converted.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from airflow_provider_kafka_migration.copy.provenance import ProvenanceMarker
from airflow_provider_kafka_migration.errors import (
    BatchMalformed,
    RecordTooLarge,
    SchemaIdUnknown,
    SchemaIdUnresolved,
    Where,
)
from airflow_provider_kafka_migration.kafka.batches.api import (
    AnyBatch,
    LegacyBatch,
    RawBatch,
    Record,
    Timestamps,
    encode_batch,
    inner_offsets_are_dense,
    join_batches,
    least_limit,
    pack_batches,
    read_batches,
    rebuild,
    records,
)
from airflow_provider_kafka_migration.kafka.fetch import Aborted
from airflow_provider_kafka_migration.kafka.logs import first_offset
from airflow_provider_kafka_migration.schema_ids.rewrite import IdRewriter

# -- chunk ------------------------------------------------------------------------------------------------------------
#
# A chunk: what one fetch, or one archived segment, holds about a range of one partition's offsets.


@dataclass(slots=True)
class Chunk:
    """Raw batches of one partition in offset order, and what is known about their surroundings.

    ``[from_offset, until_offset)`` is covered: the source has no committed record in it that isn't in ``batches``.
    The first batch may begin below ``from_offset``, and there may be no batch at all.
    """

    topic: str
    partition: int
    #: first offset that is covered
    from_offset: int
    #: every offset below it, down to ``from_offset``, is covered
    until_offset: int
    #: batches as the broker stores them; a truncated last one lies at or above ``until_offset``
    batches: memoryview
    #: aborted transactions that overlap the batches, in any order
    aborted: list[Aborted] = field(default_factory=list)
    #: as answered with the fetch; -1 if not known
    last_stable_offset: int = -1
    log_start_offset: int = -1
    origin: Literal["kafka", "segment"] = "kafka"
    #: bytes read from the source cluster for this chunk: 0 for segments
    source_bytes: int = 0
    #: the whole batches of ``batches``, if they have been parsed already
    parsed: list[AnyBatch] | None = field(default=None, compare=False, repr=False)


# -- small batches ----------------------------------------------------------------------------------------------------
#
# Joins small batches, so that each doesn't become a separate append.


#: Batches with more bytes or records than these are cheaper to forward than to read.
SMALL_BATCH_BYTES = 4 * 1024
SMALL_BATCH_RECORDS = 16
JOINED_BATCH_BYTES = 64 * 1024


class SmallBatches:
    """Batches with CreateTime that are to be joined into one.

    It joins only what one fetch has brought and never waits for more, so a record that arrives alone is sent alone.

    :param limit_bytes: the largest size of one batch on the target; None: no known limit.
    :param packs: also takes batches with holes, and batches that are not consecutive: the target keeps no holes.
    """

    __slots__ = ("_batches", "_bytes", "_codec", "_limit_bytes", "_next_offset", "_packs")

    def __init__(self, limit_bytes: int | None, *, packs: bool = False) -> None:
        self._limit_bytes = JOINED_BATCH_BYTES if limit_bytes is None else min(JOINED_BATCH_BYTES, limit_bytes)
        self._packs = packs
        self._batches: list[RawBatch] = []
        self._bytes = 0
        self._codec = 0
        self._next_offset = 0

    def takes(self, batch: RawBatch) -> bool:
        """Return whether a batch is better joined than sent alone."""
        if batch.size_bytes > self._limit_bytes or batch.is_log_append_time:
            return False
        if batch.record_count != batch.last_offset_delta + 1:
            return self._packs
        return batch.size_bytes <= SMALL_BATCH_BYTES and batch.record_count <= SMALL_BATCH_RECORDS

    def has_room_for(self, batch: RawBatch) -> bool:
        """Return whether a batch can be joined with the gathered ones."""
        return not self._batches or (
            (self._packs or self._next_offset == batch.base_offset)
            and self._codec == batch.codec
            and self._bytes + batch.size_bytes <= self._limit_bytes
        )

    def add(self, batch: RawBatch) -> None:
        """Take a batch for which there is room."""
        self._batches.append(batch)
        self._bytes += batch.size_bytes
        self._codec = batch.codec
        self._next_offset = batch.next_offset

    def take(self) -> list[RawBatch]:
        """Return the gathered batches, and forget them."""
        taken, self._batches, self._bytes = self._batches, [], 0
        return taken


# -- transform --------------------------------------------------------------------------------------------------------


#: Converted legacy records are gathered up to about this many bytes of keys and values.
_LEGACY_BATCH_BYTES = 512 * 1024


@dataclass(slots=True)
class Append:
    """Append this batch, which is full and has the source's base offset."""

    batch: RawBatch
    source_offset: int
    record_count: int
    #: False if the batch has the very bytes of a source batch
    rebuilt: bool = False
    #: if packed: (source offset, records before it) of each stretch of consecutive source offsets; else empty
    packed: Sequence[tuple[int, int]] = ()

    @property
    def runs(self) -> Sequence[tuple[int, int]]:
        """The (source offset, records before it) of each stretch of consecutive source offsets: at least one."""
        return self.packed or ((self.source_offset, 0),)

    @property
    def source_next_offset(self) -> int:
        """The first source offset behind this batch."""
        source_offset, number = self.runs[-1]
        return source_offset + self.record_count - number


@dataclass(slots=True)
class Hole:
    """A range of source offsets without committed records."""

    source_offset: int
    count: int


CopyOp = Append | Hole


class AbortedTransactions:
    """Finds the aborted transactional batches of one chunk, as the state machine of Java's ``CompletedFetch`` does.

    :param aborted: (producer id, first offset), duplicates allowed, in any order.
    """

    __slots__ = ("_open", "_pending")

    def __init__(self, aborted: Iterable[Aborted]) -> None:
        #: sorted by first offset, the next one last
        self._pending = sorted(((first, producer) for producer, first in set(aborted)), reverse=True)
        self._open: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._pending or self._open)

    def drops(self, batch: RawBatch) -> bool:
        """Return whether this batch belongs to an aborted transaction. Call it for each batch, in offset order."""
        if batch.producer_id < 0:
            if batch.producer_id < -1:
                raise BatchMalformed(
                    f"the batch at offset {batch.base_offset} has producer id {batch.producer_id}, so it is not known "
                    "whether its transaction was aborted",
                    next_step="leave the topic out, or copy it from the cluster that its records were written to: ids "
                    "below -1 are none of Apache Kafka's",
                )
            return False
        pending = self._pending
        while pending and pending[-1][0] <= batch.last_offset:
            self._open.add(pending.pop()[1])
        if batch.is_control:
            if batch.producer_id in self._open and _is_abort_marker(batch):
                self._open.discard(batch.producer_id)
            return False
        return batch.is_transactional and batch.producer_id in self._open


def _is_abort_marker(batch: RawBatch) -> bool:
    """Return whether a control batch is an abort marker.

    The key of a marker: version (int16), type (int16): 0 abort, 1 commit. The cleaner may have emptied the batch.
    """
    marker = next(records(batch), None)
    return marker is not None and marker.key is not None and marker.key[2:4] == b"\x00\x00"


class BatchTransformer:
    """Turns the batches of one partition into steps, contiguous from ``next_offset`` on.

    :param next_offset: first source offset that is wanted; advances with each step.
    :param timestamps: ``visible`` keeps what readers see, ``raw`` what producers have written.
    :param max_batch_bytes: ``max.message.bytes`` of the target topic; larger batches are split.
    :param split_bytes: batches of several records are also split at this size (the target makes them larger).
    :param packs: the target keeps no holes: records are sent without the holes between them, many runs in one batch.
    :param marker: leaves out records that have come through the target, and marks the others, before anything else;
        None: all records are copied, unmarked. It needs ``packs``.
    :param rewriter: replaces the schema ids of records that are copied; None: ids stay as they are.
    :param check_inner_offsets: look for skewed offsets in uncompressed batches (costs about 0.3 us per record).
    :param where: topic and partition, for errors.
    """

    def __init__(
        self,
        next_offset: int,
        timestamps: Timestamps = "visible",
        max_batch_bytes: int | None = None,
        *,
        split_bytes: int | None = None,
        packs: bool = False,
        marker: ProvenanceMarker | None = None,
        rewriter: IdRewriter | None = None,
        check_inner_offsets: bool = True,
        where: Where | None = None,
    ) -> None:
        self.next_offset = next_offset
        self.timestamps: Timestamps = timestamps
        self.max_batch_bytes = max_batch_bytes
        self.split_bytes = split_bytes
        self.packs = packs
        self.marker = marker
        self.rewriter = rewriter
        self.check_inner_offsets = check_inner_offsets
        self.where = where or Where()
        self._rebuilds_log_append_time = timestamps == "visible"
        #: batches whose inner offsets were skewed and had to be renumbered
        self.skewed_batches = 0
        #: producer id -> first offset of its records that were forwarded since its last marker, and everything below
        #: which was seen without a break
        self._unended: dict[int, int] = {}
        self._seen_until = next_offset

    def decide(
        self,
        batches: Iterable[AnyBatch],
        aborted: Sequence[Aborted] = (),
        covered_until_offset: int | None = None,
    ) -> Iterator[CopyOp]:
        """Yield the steps for the batches of one chunk, in order; adjacent holes become one.

        :param batches: in offset order; those below ``next_offset`` are only checked for markers.
        :param aborted: of this chunk; no state is kept from one chunk to the next.
        :param covered_until_offset: the source has nothing more below it, so a hole at the end reaches up to it.
        :raises BatchMalformed: the data are damaged; the error names the place.
        :raises RecordTooLarge: a single record does not fit the target; the steps before it were yielded.
        :raises SchemaIdUnknown, SchemaIdUnresolved: likewise for a record whose schema id is not known.
        """
        try:
            yield from self._decide(batches, AbortedTransactions(aborted), covered_until_offset)
        except (BatchMalformed, RecordTooLarge) as error:
            raise self._located(error) from error

    def decide_chunk(self, chunk: Chunk) -> Iterator[CopyOp]:
        """Return the steps for a chunk.

        :raises BatchMalformed: as :meth:`decide`, and if the batches end before the chunk claims to.
        """
        if chunk.parsed is not None:
            return self.decide(chunk.parsed, chunk.aborted, chunk.until_offset)
        batches, consumed = read_batches(chunk.batches)
        reached = batches[-1].next_offset if batches else chunk.from_offset
        if consumed < len(chunk.batches) and chunk.until_offset > reached:
            raise self._located(
                BatchMalformed(
                    f"a chunk that covers {chunk.from_offset}..{chunk.until_offset} is cut off at offset {reached}",
                    next_step="clear the task to read it again; if the error remains, the archived segment is torn",
                )
            )
        return self.decide(batches, chunk.aborted, chunk.until_offset)

    def _decide(
        self, batches: Iterable[AnyBatch], aborted: AbortedTransactions, covered_until_offset: int | None
    ) -> Iterator[CopyOp]:
        covered = self.next_offset if covered_until_offset is None else covered_until_offset
        legacy, small = _LegacyRecords(self), SmallBatches(self._limit_bytes, packs=self.packs)
        for batch in batches:
            covered = max(covered, batch.next_offset)
            self._note_seen(batch)
            wanted = self._wanted(batch, aborted)
            if wanted is None:
                continue
            batch = wanted
            if self.rewriter is not None:
                batch = yield from self._with_target_ids(batch, self.rewriter, small, legacy)
            if isinstance(batch, LegacyBatch):
                yield from self._joined(small)
                yield from legacy.add(batch)
                continue
            if legacy.pending:
                yield from legacy.flush()
            if batch.base_offset >= self.next_offset and small.takes(batch):
                if not small.has_room_for(batch):
                    yield from self._joined(small)
                small.add(batch)
                continue
            yield from self._joined(small)
            yield from self._forwarded(batch)
        yield from self._joined(small)
        yield from legacy.flush()
        self._note_covered(covered)
        if covered > self.next_offset:
            hole = Hole(self.next_offset, covered - self.next_offset)
            self.next_offset = covered
            yield hole

    def _note_seen(self, batch: AnyBatch) -> None:
        """Forget open transactions where offsets are missing: their markers may be among them."""
        if self._unended and first_offset(batch) > self._seen_until:
            self._unended.clear()
        self._seen_until = batch.next_offset

    def _note_covered(self, until_offset: int) -> None:
        """Do the same for what is missing at the end of a chunk."""
        if until_offset > self._seen_until:
            self._unended.clear()
            self._seen_until = until_offset

    def _wanted(self, batch: AnyBatch, aborted: AbortedTransactions) -> AnyBatch | None:
        """Return the batch with those of its records that are to be copied; None if there are none."""
        if not self._is_wanted(batch, aborted):
            return None
        return batch if self.marker is None else self.marker.mark(batch)

    def _is_wanted(self, batch: AnyBatch, aborted: AbortedTransactions) -> bool:
        """Return whether a batch has records to copy."""
        if isinstance(batch, LegacyBatch):
            return batch.next_offset > self.next_offset
        # Markers below next_offset count as well, so aborted transactions are checked first.
        if aborted and aborted.drops(batch):
            return False
        if batch.is_transactional:
            self._check_end(batch)
        return batch.next_offset > self.next_offset and batch.record_count > 0 and not batch.is_control

    def _check_end(self, batch: RawBatch) -> None:
        """Check a transaction's end against what was forwarded of it.

        :raises BatchMalformed: an abort marker ends records that the list of aborted transactions did not have.
        """
        if not batch.is_control:
            self._unended.setdefault(batch.producer_id, batch.base_offset)
            return
        first = self._unended.pop(batch.producer_id, None)
        if first is not None and _is_abort_marker(batch):
            raise BatchMalformed(
                f"the marker at offset {batch.base_offset} aborts a transaction of producer id {batch.producer_id}, "
                f"but the source did not list it as aborted: records from offset {first} on were taken for committed",
                next_step="compare the source's replicas (kafka-dump-log, and the .txnindex files of its brokers): its "
                "log contradicts its index of aborted transactions; then copy the topic again",
            )

    def _with_target_ids(
        self, batch: AnyBatch, rewriter: IdRewriter, small: SmallBatches, legacy: _LegacyRecords
    ) -> Generator[CopyOp, None, AnyBatch]:
        """Return the batch with the schema ids of the target; if an id is not known, yield all that comes before."""
        try:
            return rewriter.rewrite(batch)
        except (SchemaIdUnknown, SchemaIdUnresolved):
            yield from self._joined(small)
            yield from legacy.flush()
            if isinstance(batch, RawBatch):
                yield from self._hole_before(batch.base_offset)
            raise

    def _joined(self, small: SmallBatches) -> Iterator[CopyOp]:
        """Yield the steps for the small batches that were gathered."""
        batches = small.take()
        if len(batches) == 1:
            yield from self._forwarded(batches[0])
            return
        if self.packs:
            yield from self._packed(batches)
            return
        for batch in join_batches(batches) if batches else ():
            yield from self._steps(batch, rebuilt=batch not in batches)

    def _packed(self, batches: Sequence[RawBatch]) -> Iterator[CopyOp]:
        """Yield the steps for batches that are sent without the holes between their records."""
        if not batches:
            return
        packed = pack_batches(
            batches,
            self.next_offset,
            timestamps=self.timestamps,
            max_batch_bytes=self.max_batch_bytes,
            split_bytes=self.split_bytes,
        )
        try:
            for batch, runs in packed:
                yield from self._append(Append(batch, runs[0][0], batch.record_count, rebuilt=True, packed=runs))
        except RecordTooLarge as error:
            # The offsets before the record are known.
            yield from self._hole_before(error.where.offset or 0)
            raise

    def _forwarded(self, batch: RawBatch) -> Iterator[CopyOp]:
        """Yield the steps for a batch with committed records: as it is, or rebuilt."""
        if self._is_forwardable(batch) and self._is_dense(batch):
            yield from self._steps(batch, rebuilt=False)
            return
        if self.packs:
            yield from self._packed([batch])
            return
        try:
            parts = self._rebuild(batch)
        except RecordTooLarge:
            # Nothing of this batch can be sent, but the offsets before it are known.
            yield from self._hole_before(batch.base_offset)
            raise
        for part in parts:
            yield from self._steps(part, rebuilt=True)

    def _hole_before(self, source_offset: int) -> Iterator[CopyOp]:
        """Yield the hole between the last step and an offset, if there is one."""
        if source_offset > self.next_offset:
            hole = Hole(self.next_offset, source_offset - self.next_offset)
            self.next_offset = source_offset
            yield hole

    def _steps(self, batch: RawBatch, *, rebuilt: bool) -> Iterator[CopyOp]:
        """Yield the hole before a batch, if there is one, and the batch."""
        return self._append(Append(batch, batch.base_offset, batch.record_count, rebuilt))

    def _append(self, step: Append) -> Iterator[CopyOp]:
        yield from self._hole_before(step.source_offset)
        self.next_offset = step.source_next_offset
        yield step

    def _is_forwardable(self, batch: RawBatch) -> bool:
        """Return whether the batch's header and first offset allow forwarding it as it is."""
        return (
            batch.is_full
            and batch.base_offset >= self.next_offset
            and not self._is_too_large(batch)
            and not (self._rebuilds_log_append_time and batch.is_log_append_time)
        )

    def _is_dense(self, batch: RawBatch) -> bool:
        if self.check_inner_offsets and not batch.codec and not inner_offsets_are_dense(batch):
            self.skewed_batches += 1
            return False
        return True

    @property
    def _limit_bytes(self) -> int | None:
        """The size limit of a batch with several records."""
        return least_limit(self.max_batch_bytes, self.split_bytes)

    def _rebuild(self, batch: RawBatch) -> list[RawBatch]:
        # A batch damaged on the source would get a new, valid CRC, and the damage would never be noticed.
        batch.check_crc()
        return rebuild(
            batch,
            self.next_offset,
            timestamps=self.timestamps,
            max_batch_bytes=self.max_batch_bytes,
            split_bytes=self.split_bytes,
        )

    def _is_too_large(self, batch: RawBatch) -> bool:
        if self.max_batch_bytes is not None and batch.size_bytes > self.max_batch_bytes:
            return True
        return self.split_bytes is not None and batch.record_count > 1 and batch.size_bytes > self.split_bytes

    def _located(self, error: BatchMalformed | RecordTooLarge) -> BatchMalformed | RecordTooLarge:
        offset = self.next_offset if error.where.offset is None else error.where.offset
        return type(error)(
            error.what,
            where=replace(self.where, offset=offset),
            next_step=error.next_step,
            details=error.details,
        )


class _LegacyRecords:
    """Gathers records of message formats 0 and 1, so that each doesn't become a separate batch and request."""

    def __init__(self, decider: BatchTransformer) -> None:
        self.decider = decider
        self.pending: list[Record] = []
        self._codec = 0
        self._bytes = 0
        self._next_offset = 0

    def add(self, batch: LegacyBatch) -> Iterator[CopyOp]:
        """Take a batch; yield steps when enough records are gathered, the codec changes, or offsets jump."""
        if batch.next_offset <= self.decider.next_offset:
            return
        batch.check_crc()
        for record in batch.records(self.decider.timestamps):
            if record.offset < max(self._next_offset, self.decider.next_offset):
                continue
            jumps = record.offset != self._next_offset and not self.decider.packs
            if self.pending and (self._codec != batch.codec or jumps or self._bytes > _LEGACY_BATCH_BYTES):
                yield from self.flush()
            self.pending.append(record)
            self._codec = batch.codec
            self._next_offset = record.offset + 1
            self._bytes += len(record.key or b"") + len(record.value or b"")

    def flush(self) -> Iterator[CopyOp]:
        """Convert the gathered records."""
        if not self.pending:
            return
        batch = RawBatch(memoryview(encode_batch(self.pending, self._codec)))
        self.pending = []
        self._bytes = 0
        if self.decider.packs:
            yield from self.decider._packed([batch])
            return
        fitting = self.decider._rebuild(batch) if self.decider._is_too_large(batch) else [batch]
        for part in fitting:
            yield from self.decider._steps(part, rebuilt=True)
