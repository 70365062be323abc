"""What a fetch answer without records means: the one rule for all who read logs.

A broker answers NONE, no records and a last stable offset (or high watermark) above the asked offset when

* other partitions of the request have used up its size limits. Not if a partition is asked for alone: then its first
  batch comes whole, however large it is (fetch version 3 and later);
* the offset is in remote storage (KIP-405), and the read timed out, the quota of such reads is used up, or another
  partition of the request came first. Any stretch of records may hide behind it;
* it names another replica to read from (KIP-392). ``kafka.fetch`` speaks a version in which it cannot;
* nothing is there: a hole.

So an empty answer is no evidence of a hole. What is:

1. *A later batch.* A leader reads its log upwards from the asked offset, so if the first batch of an answer begins
   above that offset, nothing is between them. All holes inside of a log show themselves like that. Asked for with
   read_uncommitted the leader shows batches behind the last stable offset as well, which covers a log whose last
   records before an open transaction were compacted away.
2. *Nothing at all up to the high watermark*, from a leader that was asked for this partition alone, with
   read_uncommitted, and has waited the full time; and afterwards its local log begins at or below the offset
   (ListOffsets EARLIEST_LOCAL, Kafka 3.4 and later): local log starts only move up, so the offset was on its own disks
   when it was asked. A local read has no time-out and no quota: it finds every batch that there is. Both requests name
   one leader epoch, so that one leader answers both: another one's local log may begin further down.

Holes of the second kind hardly exist. The active segment is never compacted, control batches and aborted records come
with every isolation level, DeleteRecords and retention move the log start (OFFSET_OUT_OF_RANGE, no empty answer), and
batches that keep producer state are kept empty. It takes an active segment that was emptied by a truncation behind a
segment whose last batches were compacted away (KAFKA-17076, mended in 4.0). Followers, who advance by batches, could
not copy such an end either. Therefore a broker that cannot tell what is local (before 3.4, and others than Apache's,
which may have storage tiers of their own) gets no benefit of the doubt: one more record makes the hole visible.

Everything else is :class:`RecordsWithheld`: transient, tried again with pauses, and a named error when it stays so.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from airflow_provider_kafka_migration.errors import RecordsWithheld, Where
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, RawBatch
from airflow_provider_kafka_migration.kafka.fetch import READ_COMMITTED, FetchedPartition

#: The full wait of a fetch that is to be evidence. Remote reads of Kafka 3.6 and 3.7 are given up after the wait of the
#: request, later ones after ``remote.fetch.max.wait.ms`` (500 ms).
FULL_WAIT_MS = 1000
#: No batch is larger.
MAX_FETCH_BYTES = 256 * 1024 * 1024
#: Length and offset at the head of each batch, of any format.
_OVERHEAD_BYTES = 12


class Says(Enum):
    """What an answer says of the asked offset."""

    #: whole batches are there
    BATCHES = "batches"
    #: the log ends here, for readers of this isolation level
    END = "end"
    #: only a piece of a batch came
    PIECE = "piece"
    #: nothing came, though the log goes on: no evidence of anything
    NOTHING = "nothing"


def end_of(found: FetchedPartition, isolation: int) -> int:
    """Where the log ends for readers of this isolation level."""
    return found.last_stable_offset if isolation == READ_COMMITTED else found.high_watermark


def says(found: FetchedPartition, batches: Sequence[AnyBatch], offset: int, isolation: int) -> Says:
    """What an answer without an error says of the offset that was asked for."""
    if batches:
        return Says.BATCHES
    if len(found.records):
        return Says.PIECE
    return Says.NOTHING if end_of(found, isolation) > offset else Says.END


def enough_bytes(piece: memoryview, asked_bytes: int) -> int | None:
    """How much to ask for to get the batch whole that begins a piece of an answer; None: it was asked for enough."""
    if len(piece) < _OVERHEAD_BYTES:
        size_bytes = asked_bytes * 4
    else:
        size_bytes = int.from_bytes(piece[8:12], "big", signed=True) + _OVERHEAD_BYTES
    return size_bytes if asked_bytes < size_bytes <= MAX_FETCH_BYTES else None


def first_offset(batch: AnyBatch) -> int:
    """The lowest offset of a batch. Old formats: of its first record."""
    if isinstance(batch, RawBatch):
        return batch.base_offset
    return next(batch.records()).offset


def proven_hole(
    offset: int,
    promised_end: int,
    probe: FetchedPartition,
    batches: Sequence[AnyBatch],
    local_start: int | None,
    where: Where,
) -> int:
    """Exclusive end of the hole that begins at an offset, at most ``promised_end``.

    :param promised_end: up to there the log was said to go on.
    :param probe: answer of a fetch of this partition alone, at this offset, with read_uncommitted and a full wait.
    :param batches: whole batches of the probe.
    :param local_start: :func:`~.ends.local_log_start`, of the probe's leader, asked for after it; None: not known.
    :raises RecordsWithheld: nothing proves a hole.
    """
    if batches:
        first = first_offset(batches[0])
        if first > offset:
            return min(first, promised_end)
        raise withheld(offset, promised_end, "now it has a batch there", where)
    if len(probe.records):
        raise cut_short(offset, len(probe.records), where)
    if probe.preferred_read_replica >= 0:
        raise withheld(offset, promised_end, f"it names broker {probe.preferred_read_replica} to read from", where)
    end = min(promised_end, probe.high_watermark)
    if end <= offset:  # truncated since
        raise withheld(offset, promised_end, f"now its log ends at {probe.high_watermark}", where)
    if local_start is None:
        raise withheld(offset, promised_end, "it cannot tell whether they are in remote storage", where)
    if local_start > offset:
        raise withheld(offset, promised_end, f"they are in remote storage (local from {local_start} on)", where)
    return end


def withheld(offset: int, end: int, reason: str, where: Where) -> RecordsWithheld:
    """The error of an answer that proves nothing."""
    return RecordsWithheld(
        f"the broker gives no records from offset {offset} on, though its log goes on to {end}: {reason}",
        where=where,
        next_step="it is asked again with pauses. If it stays so, look at the broker's reads of remote storage "
        "(time-outs, remote.log.manager.fetch.max.bytes.per.second) and at its log; if nothing but a hole is there, a "
        "further record in this partition proves it; then clear the task",
        details={"offset": offset, "end_offset": end},
    )


def cut_short(offset: int, size_bytes: int, where: Where) -> RecordsWithheld:
    """The error of an answer that ends within its first batch, however much is asked for."""
    return RecordsWithheld(
        f"the broker gives {size_bytes} bytes of the batch at offset {offset}, and not the whole batch",
        where=where,
        next_step="it is asked again with pauses. If it stays so, look at the partition with kafka-dump-log, and at "
        "what is between here and the broker; then clear the task",
        details={"offset": offset},
    )
