"""The log of one partition as its leader keeps it: batches, producer states, transactions, leader epochs.

The rules are those of Apache Kafka's ``UnifiedLog``, ``ProducerStateManager`` and ``LeaderEpochFileCache``.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from crc32c import crc32c

from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch, Record, encode_batch, read_batches, records

#: A broker recognizes a repetition of each of the last five batches of a producer.
REMEMBERED_BATCHES = 5
NO_EPOCH = -1
NO_SEQUENCE = -1


class Refused(Exception):
    """The log refuses a request with this error code."""

    def __init__(self, code: int) -> None:
        super().__init__(error_codes.name(code))
        self.code = code


@dataclass
class ProducerState:
    """What a leader knows of one producer id in one partition."""

    epoch: int = NO_EPOCH
    #: (first sequence, last sequence, base offset) of the last batches of this epoch
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))
    coordinator_epoch: int = -1
    last_timestamp: int = -1
    #: first offset of its open transaction
    transaction_offset: int | None = None

    @property
    def last_sequence(self) -> int:
        """The sequence of its last record; -1 if it has none in this epoch."""
        return self.batches[-1][1] if self.batches else NO_SEQUENCE

    def enter(self, epoch: int) -> None:
        """Note an epoch; a new one forgets the sequences of the former."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()


@dataclass
class PartitionLog:
    """A log. ``batches`` are whole record batches with their offsets, ascending.

    :param max_batch_bytes: larger batches are refused.
    :param unreplicated: the last offsets that no follower has: the high watermark lies that far below the log end.
    :param local_start: the first offset on the leader's own disks; None: the log start.
    """

    max_batch_bytes: int = 1024 * 1024
    unreplicated: int = 0
    local_start: int | None = None
    log_start: int = 0
    log_end: int = 0
    leader_epoch: int = 0
    batches: list[bytes] = field(default_factory=list)
    producers: dict[int, ProducerState] = field(default_factory=dict)
    #: (producer id, first offset, offset of the marker)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    #: (leader epoch, its first offset), ascending
    epochs: list[tuple[int, int]] = field(default_factory=list)

    # -- ends --------------------------------------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        """Exclusive end of what is replicated."""
        return max(self.log_start, self.log_end - self.unreplicated)

    @property
    def last_stable_offset(self) -> int:
        """Exclusive end for read_committed readers."""
        open_ones = [s.transaction_offset for s in self.producers.values() if s.transaction_offset is not None]
        return min([self.high_watermark, *open_ones])

    def views(self) -> list[RawBatch]:
        """The batches, parsed."""
        return [RawBatch(memoryview(data)) for data in self.batches]

    # -- appends -----------------------------------------------------------------------------------------------------

    def append(self, data: bytes | memoryview, *, transactional: bool = False) -> int:
        """Append a client's batch and return its base offset; a repeated batch is not written again.

        :raises Refused: with the code that a leader answers.
        """
        batches, used = read_batches(memoryview(bytes(data)))
        if len(batches) != 1 or used != len(data) or not isinstance(batches[0], RawBatch):
            raise Refused(error_codes.INVALID_RECORD)
        batch = batches[0]
        if batch.is_transactional and not transactional:
            raise Refused(error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if len(data) > self.max_batch_bytes:
            raise Refused(error_codes.MESSAGE_TOO_LARGE)
        if batch.is_control or batch.base_offset or batch.last_offset_delta + 1 != batch.record_count:
            raise Refused(error_codes.INVALID_RECORD)
        return self._append_data(batch, bytes(data))

    def remembers(self, data: bytes | memoryview) -> RawBatch | None:
        """Return a client's batch if it was appended before, so that it would not be written again; else None."""
        batch = read_batches(memoryview(bytes(data)))[0][0]
        if not isinstance(batch, RawBatch) or batch.producer_id < 0:
            return None
        state = self.producers.get(batch.producer_id, ProducerState())
        ends = (batch.base_sequence, (batch.base_sequence + batch.last_offset_delta) % 2**31)
        is_repeated = batch.producer_epoch == state.epoch and any(item[:2] == ends for item in state.batches)
        return batch if is_repeated else None

    def _append_data(self, batch: RawBatch, data: bytes) -> int:
        base = self.log_end
        if batch.producer_id >= 0:
            state = self.producers.get(batch.producer_id, ProducerState())
            first, last = batch.base_sequence, (batch.base_sequence + batch.last_offset_delta) % 2**31
            if batch.producer_epoch < state.epoch:
                raise Refused(error_codes.INVALID_PRODUCER_EPOCH)
            if batch.producer_epoch == state.epoch:
                repeated = next((b for f, la, b in state.batches if (f, la) == (first, last)), None)
                if repeated is not None:
                    return repeated
            self._check_sequence(state, batch.producer_epoch, first)
            self.producers[batch.producer_id] = state
            state.enter(batch.producer_epoch)
            state.batches.append((first, last, base))
            state.last_timestamp = batch.max_timestamp
            if batch.is_transactional and state.transaction_offset is None:
                state.transaction_offset = base
        self._store(data, base + batch.last_offset_delta + 1)
        return base

    @staticmethod
    def _check_sequence(state: ProducerState, epoch: int, first: int) -> None:
        if state.epoch == NO_EPOCH:
            return  # a producer that is unknown may begin with any sequence
        if epoch != state.epoch:
            is_next = first == 0
        else:
            is_next = first == (state.last_sequence + 1) % 2**31
        if not is_next:
            raise Refused(error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER)

    def write_marker(self, producer_id: int, epoch: int, *, commit: bool, coordinator_epoch: int = 0) -> None:
        """Append a control batch that ends the producer's transaction, if it has one.

        :raises Refused: the epoch, or that of the coordinator, is older than the last one.
        """
        state = self.producers.get(producer_id, ProducerState())
        if epoch < state.epoch:
            raise Refused(error_codes.INVALID_PRODUCER_EPOCH)
        if coordinator_epoch < state.coordinator_epoch:
            raise Refused(error_codes.TRANSACTION_COORDINATOR_FENCED)
        self.producers[producer_id] = state
        state.enter(epoch)
        state.coordinator_epoch = coordinator_epoch
        if state.transaction_offset is not None and not commit:
            self.aborted.append((producer_id, state.transaction_offset, self.log_end))
        state.transaction_offset = None
        key = struct.pack(">hh", 0, int(commit))
        value = struct.pack(">hi", 0, coordinator_epoch)
        data = encode_batch(
            [Record(self.log_end, int(time.time() * 1000), key, value, [])],
            base_offset=self.log_end,
            producer_id=producer_id,
            producer_epoch=epoch,
            transactional=True,
            control=True,
        )
        self._store(bytes(data), self.log_end + 1)

    def _store(self, data: bytes, log_end: int) -> None:
        """Store a batch at the log end, with its offset and the leader's epoch: both lie outside of its checksum."""
        if not self.epochs or self.epochs[-1][0] != self.leader_epoch:
            self.epochs.append((self.leader_epoch, self.log_end))
        self.batches.append(
            struct.pack(">q", self.log_end) + data[8:12] + struct.pack(">i", self.leader_epoch) + data[16:]
        )
        self.log_end = log_end

    # -- what makes logs special -------------------------------------------------------------------------------------

    def put(self, data: bytes) -> None:
        """Store a batch with its own offsets at or above the log end, as replication does (also with holes)."""
        batch = RawBatch(memoryview(data))
        assert batch.base_offset >= self.log_end, "offsets go up"
        self.log_end = batch.base_offset
        self._store(data, batch.next_offset)

    def compact(self, removed: Iterable[int]) -> None:
        """Remove the records at these offsets; a batch that loses all of its records is removed, too.

        Of a producer that is remembered, the header of the last batch stays, as with Apache Kafka's cleaner.
        """
        gone = set(removed)
        last = {number: state.batches[-1][2] for number, state in self.producers.items() if state.batches}
        kept: list[bytes] = []
        for data in self.batches:
            batch = RawBatch(memoryview(data))
            if batch.is_control or not gone & set(range(batch.base_offset, batch.next_offset)):
                kept.append(data)
                continue
            left = [record for record in records(batch) if record.offset not in gone]
            if left:
                kept.append(_with_records(batch, left))
            elif last.get(batch.producer_id) == batch.base_offset:
                kept.append(_without_records(batch))
        self.batches = kept

    def compact_keys(self, until: int, *, tombstones: bool = False) -> set[int]:
        """Remove what a later record of its key below ``until`` supersedes, and tombstones; return the offsets."""
        found = [record for batch in self.views() if not batch.is_control for record in records(batch)]
        found = [record for record in found if record.offset < until]
        latest = {record.key: record.offset for record in found}
        gone = {
            record.offset
            for record in found
            if latest[record.key] != record.offset or (tombstones and record.value is None)
        }
        self.compact(gone)
        return gone

    def remove_markers(self) -> None:
        """Remove all markers, as the cleaner does some time after their transactions have gone."""
        self.batches = [data for data, batch in zip(self.batches, self.views(), strict=True) if not batch.is_control]

    def forget_producers(self) -> None:
        """Forget all producers, as a broker does after ``producer.id.expiration.ms``."""
        self.producers.clear()

    def delete_until(self, offset: int) -> None:
        """Move the log start up (DeleteRecords, retention)."""
        if offset > self.high_watermark:
            raise Refused(error_codes.OFFSET_OUT_OF_RANGE)
        self.log_start = max(self.log_start, offset)
        self.batches = [data for data in self.batches if RawBatch(memoryview(data)).next_offset > self.log_start]

    def truncate(self, offset: int) -> None:
        """Cut the log as an unclean election does, before the batch that contains ``offset``.

        The new leader begins another epoch there.
        """
        self.batches = [data for data in self.batches if RawBatch(memoryview(data)).next_offset <= offset]
        self.log_end = self.views()[-1].next_offset if self.batches else self.log_start
        self.aborted = [item for item in self.aborted if item[2] < self.log_end]
        self.epochs = [item for item in self.epochs if item[1] < self.log_end]
        self.leader_epoch += 1
        self._load_producers()

    def _load_producers(self) -> None:
        """Build the producer states again from the log, as a broker does when it starts without a snapshot."""
        self.producers = {}
        for batch in self.views():
            if batch.producer_id < 0:
                continue
            state = self.producers.setdefault(batch.producer_id, ProducerState())
            state.enter(batch.producer_epoch)
            if batch.is_control:
                state.transaction_offset = None
                continue
            last = (batch.base_sequence + batch.last_offset_delta) % 2**31
            state.batches.append((batch.base_sequence, last, batch.base_offset))
            if batch.is_transactional and state.transaction_offset is None:
                state.transaction_offset = batch.base_offset

    # -- reads -------------------------------------------------------------------------------------------------------

    def check_epoch(self, expected: int) -> None:
        """Refuse a request that names another leader epoch; -1 names none."""
        if expected < 0 or expected == self.leader_epoch:
            return
        older = expected < self.leader_epoch
        raise Refused(error_codes.FENCED_LEADER_EPOCH if older else error_codes.UNKNOWN_LEADER_EPOCH)

    def read(self, offset: int, max_bytes: int, *, committed: bool, at_least_one: bool) -> bytes:
        """Return batches from the one that contains ``offset`` on; the last one may be cut off.

        :param at_least_one: return the first batch whole, however large it is.
        :raises Refused: the offset is outside of the log.
        """
        if not self.log_start <= offset <= self.log_end:
            raise Refused(error_codes.OFFSET_OUT_OF_RANGE)
        limit = self.last_stable_offset if committed else self.high_watermark
        found = [
            data
            for data, batch in zip(self.batches, self.views(), strict=True)
            if batch.next_offset > offset and batch.base_offset < limit
        ]
        if not found:
            return b""
        if at_least_one:
            max_bytes = max(max_bytes, len(found[0]))
        elif max_bytes < len(found[0]):
            return b""
        return b"".join(found)[:max_bytes]

    def aborted_from(self, offset: int) -> list[tuple[int, int]]:
        """Return (producer id, first offset) of the aborted transactions that end at or above an offset.

        A broker returns no fewer than those that overlap what it returns; up to where depends on its index.
        """
        found = [(producer_id, first) for producer_id, first, marker in self.aborted if marker >= offset]
        return sorted(found, key=lambda item: item[1])

    def offset_at(self, timestamp: int) -> tuple[int, int]:
        """Return (timestamp, offset) of the first record at or after a time; (-1, -1): there is none."""
        for batch in self.views():
            for record in records(batch):
                if record.timestamp >= timestamp and record.offset >= self.log_start:
                    return record.timestamp, record.offset
        return -1, -1

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Return (the newest epoch not above this one, its exclusive end); (-1, -1): a leader of it is not known."""
        if epoch == self.leader_epoch:
            return epoch, self.log_end
        higher = next((first for known, first in self.epochs if known > epoch), None)
        if higher is None:
            # The present leader has begun its epoch at the log end, but has written nothing yet.
            higher = self.log_end if epoch < self.leader_epoch else None
        if higher is None:
            return -1, -1
        return max((known for known, _ in self.epochs if known <= epoch), default=epoch), higher

    def content(self) -> dict[int, Record]:
        """What a read_committed consumer sees, by offset."""
        spans = [(pid, first, marker) for pid, first, marker in self.aborted]
        found: dict[int, Record] = {}
        for batch in self.views():
            if batch.is_control or batch.base_offset >= self.last_stable_offset:
                continue
            if batch.is_transactional and any(
                pid == batch.producer_id and first <= batch.base_offset < marker for pid, first, marker in spans
            ):
                continue
            found.update({record.offset: record for record in records(batch) if record.offset >= self.log_start})
        return found


def _without_records(batch: RawBatch) -> bytes:
    """The header that is left of a batch: its offsets and its sequence, and no records."""
    data = bytearray(bytes(batch.data)[:61])
    struct.pack_into(">i", data, 8, 61 - 12)
    struct.pack_into(">i", data, 57, 0)
    data[22] &= 0xF8  # nothing is compressed
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)


def _with_records(batch: RawBatch, left: list[Record]) -> bytes:
    data = encode_batch(
        left,
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        transactional=batch.is_transactional,
    )
    return bytes(data[:12]) + struct.pack(">i", batch.leader_epoch) + bytes(data[16:])
