"""What one log contains, as a digest for each record: small enough to keep, exact enough to find it on the other side.

A record takes 25 bytes of memory, whatever its size.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from hashlib import blake2b

from airflow_provider_kafka_migration.compare.logs import key_of_body, read_columns
from airflow_provider_kafka_migration.copy.transform import AbortedTransactions
from airflow_provider_kafka_migration.errors import RecordsWithheld, Where
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, LegacyBatch, RawBatch, decode_body
from airflow_provider_kafka_migration.kafka.fetch import READ_COMMITTED
from airflow_provider_kafka_migration.kafka.logs import fetch_span
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire

#: Key digest of a record without a key.
NO_KEY = 0
_TOMBSTONE, _ABORTED = 1, 2
_FETCH_BYTES = 4 * 1024 * 1024


class Contents:
    """The records of a part of a log, ascending by offset.

    Two records are taken as equal if the 64-bit digests of their key, value, headers and timestamp are. A position is
    decided by runs of records, so one collision changes nothing.
    """

    __slots__ = ("_flags", "bodies", "keys", "offsets")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.bodies = array("Q")
        self.keys = array("Q")
        self._flags = bytearray()

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, offset: int, body: int, key: int = NO_KEY, *, tombstone: bool = False, aborted: bool = False) -> None:
        """Append one record. ``body`` is a digest of all that is compared, ``key`` one of its key."""
        self.offsets.append(offset)
        self.bodies.append(body)
        self.keys.append(key)
        self._flags.append((_TOMBSTONE if tombstone else 0) | (_ABORTED if aborted else 0))

    def followed_by(self, newer: Contents) -> Contents:
        """Return these records and then newer ones."""
        found = Contents()
        found.offsets = self.offsets + newer.offsets
        found.bodies = self.bodies + newer.bodies
        found.keys = self.keys + newer.keys
        found._flags = self._flags + newer._flags
        return found

    def is_tombstone(self, index: int) -> bool:
        """Whether a record has a key and no value: the cleaner removes it without a later record of its key."""
        return bool(self._flags[index] & _TOMBSTONE)

    def is_aborted(self, index: int) -> bool:
        """Whether a record belongs to an aborted transaction."""
        return bool(self._flags[index] & _ABORTED)

    def index_of(self, offset: int) -> int:
        """Return the index of the first record at or above an offset."""
        return bisect_left(self.offsets, offset)


def digest_of(data: bytes) -> int:
    """A 64-bit digest; never :data:`NO_KEY`."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big") or 1


def read_contents(
    wire: Wire, key: TopicPartition, start_offset: int, stop_offset: int, *, with_aborted: bool, with_times: bool
) -> Contents:
    """Read the records of ``[start_offset, stop_offset)`` of a live partition.

    :param stop_offset: at most the last stable offset.
    :param with_aborted: keep records of aborted transactions, marked as such: a reader with read_uncommitted saw them.
    :param with_times: include timestamps in the digests.
    :raises OutsideOfLog: the log starts above ``start_offset``.
    :raises RecordsWithheld: the log ends below ``stop_offset`` for readers of committed records.
    """
    found = Contents()
    position = start_offset
    while position < stop_offset:
        span = fetch_span(wire, key, position, isolation=READ_COMMITTED, max_bytes=_FETCH_BYTES)
        if span.until_offset <= position:
            raise RecordsWithheld(
                f"committed records end at offset {position}, but those up to {stop_offset} must be compared",
                where=Where(cluster=wire.config.name, topic=key[0], partition=key[1], offset=position),
                next_step="find the open transaction (kafka-transactions.sh find-hanging) and wait until it ends; then "
                "clear plan",
            )
        aborted = AbortedTransactions(span.aborted)
        for batch in span.batches:
            dropped = isinstance(batch, RawBatch) and aborted.drops(batch)
            if batch.next_offset > position and not batch.is_control and (with_aborted or not dropped):
                _add_batch(found, batch, position, stop_offset, aborted=dropped, with_times=with_times)
        position = max(position, span.until_offset)
    return found


def _add_batch(
    found: Contents, batch: AnyBatch, start_offset: int, stop_offset: int, *, aborted: bool, with_times: bool
) -> None:
    if not isinstance(batch, LegacyBatch) and not batch.record_count:
        return
    columns = read_columns(batch, "visible")
    for offset, time, body in zip(columns.offsets, columns.times, columns.bodies, strict=True):
        if not start_offset <= offset < stop_offset:
            continue
        name = key_of_body(body)
        compared = body + time.to_bytes(8, "big", signed=True) if with_times else body
        found.add(
            offset,
            digest_of(compared),
            NO_KEY if name is None else digest_of(name),
            tombstone=name is not None and _is_tombstone(body),
            aborted=aborted,
        )


def _is_tombstone(body: bytes) -> bool:
    return decode_body(body, 0, len(body))[1] is None
