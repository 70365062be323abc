"""Records that tell where they come from, so that two flows can copy the same topics in opposite directions.

Each copied record gets one more header, ``<cluster id>/<topic>/<partition>/<offset>``: the place that it was copied
from. A record whose headers name the target, for this very topic and partition, has come through there and is left
out. The first such header of a record names the cluster that it was first written to.

Applications often hand the headers of what they read to what they write. So a header counts only in the topic and
partition that it names; elsewhere the record is one of the application's own.

Records are left out by what they are, not by who wrote them: the decision is the same after any restart.
"""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_kafka_migration.documents.copy import ProvenanceSettings
from airflow_provider_kafka_migration.errors import BatchMalformed, Where
from airflow_provider_kafka_migration.kafka.batches import header
from airflow_provider_kafka_migration.kafka.batches.api import (
    AnyBatch,
    LegacyBatch,
    RawBatch,
    Record,
    build_batch,
    decode_body,
    encode_batch,
    index_records,
)
from airflow_provider_kafka_migration.kafka.batches.records import (
    append_record,
    encode_varint,
    read_varint,
    stored_deltas,
)

_CUT = "a record extends beyond its batch"


class ProvenanceMarker:
    """Marks the records of one partition, and leaves out those that must not be copied.

    :param topic: name of the topic, the same on both clusters.
    :param on_skipped: told how many records of a batch are not copied, if there are any.
    """

    def __init__(
        self,
        settings: ProvenanceSettings,
        topic: str,
        partition: int,
        *,
        on_skipped: Callable[[int], None] = lambda _count: None,
    ) -> None:
        self._on_skipped = on_skipped
        self._header = settings.header.encode()
        self._name = encode_varint(len(self._header)) + self._header
        self._place = f"/{topic}/{partition}/".encode()
        self._source = settings.source_cluster_id.encode() + self._place
        self._target = settings.target_cluster_id.encode() + self._place
        self._max_hops = settings.max_hops

    def mark(self, batch: AnyBatch) -> AnyBatch | None:
        """Return the batch with the records that are to be copied, at their offsets, marked; None if there are none.

        The batch covers the same offsets as before. One of message format 0 or 1 becomes one of format 2, because only
        that has headers.

        :raises BatchMalformed: damaged data: under a new CRC the damage would be undetectable.
        """
        batch.check_crc()
        if isinstance(batch, LegacyBatch):
            return self._mark_legacy(batch)
        index = index_records(batch)
        deltas = stored_deltas(batch, index)
        buffer, bodies, ends, times = index.buffer, index.bodies, index.ends, index.time_deltas
        # Most batches were first written here: without the header's name nothing in them has to be looked at.
        may_have_come = self._header in buffer
        parts: list[bytes] = []
        kept_times: list[int] = []
        try:
            for number, delta in enumerate(deltas):
                if may_have_come and not self._is_wanted(buffer, bodies[number], ends[number]):
                    continue
                body = self._marked(buffer, bodies[number], ends[number], batch.base_offset + delta)
                append_record(parts, encode_varint(times[number]), delta, body)
                kept_times.append(times[number])
        except (IndexError, BatchMalformed) as error:
            raise BatchMalformed(
                error.what if isinstance(error, BatchMalformed) else _CUT,
                where=Where(offset=batch.base_offset),
                next_step="inspect the batch on the source with kafka-dump-log --deep-iteration",
            ) from None
        if len(kept_times) < len(deltas):
            self._on_skipped(len(deltas) - len(kept_times))
        return _built(batch, parts, kept_times) if parts else None

    def last_from_source(self, batch: AnyBatch) -> int | None:
        """Return the last offset in a batch *of the target* whose record was copied from the source; None: no record.

        :raises BatchMalformed: damaged data.
        """
        if isinstance(batch, LegacyBatch) or not batch.record_count:
            return None
        index = index_records(batch)
        found = None
        if self._header in index.buffer:
            for number, delta in enumerate(stored_deltas(batch, index)):
                headers = decode_body(index.buffer, index.bodies[number], index.ends[number])[2]
                if any(name == self._header and (value or b"").startswith(self._source) for name, value in headers):
                    found = batch.base_offset + delta
        return found

    def _mark_legacy(self, batch: LegacyBatch) -> RawBatch:
        marked: list[Record] = [
            record._replace(headers=[(self._header, self._source + str(record.offset).encode())])
            for record in batch.records("raw")
        ]
        append_time = batch.timestamp if batch.is_log_append_time else None
        return RawBatch(memoryview(encode_batch(marked, batch.codec, log_append_time=append_time)))

    def _marked(self, buffer: bytes, position: int, end: int, offset: int) -> bytes:
        """Return the body of a record (key, value, headers) with the header behind all others."""
        counted = _skip_field(buffer, _skip_field(buffer, position))
        count, headers = read_varint(buffer, counted)
        if count < 0 or headers > end:
            raise BatchMalformed(_CUT)
        value = self._source + str(offset).encode()
        more = (encode_varint(count + 1), buffer[headers:end], self._name, encode_varint(len(value)), value)
        return buffer[position:counted] + b"".join(more)

    def _is_wanted(self, buffer: bytes, position: int, end: int) -> bool:
        """Return whether a record has not come through the target, and not over too many hops."""
        hops = 0
        for name, value in decode_body(buffer, position, end)[2]:
            if name != self._header or value is None or not value[value.find(b"/") :].startswith(self._place):
                continue
            if value.startswith(self._target):
                return False
            # No flow brings a record back to the place that it names: an application has written it again there.
            hops += not value.startswith(self._source)
        return self._max_hops is None or hops + 1 <= self._max_hops


def _skip_field(buffer: bytes, position: int) -> int:
    """Return the position behind a key or a value."""
    length, start = read_varint(buffer, position)
    return start + max(length, 0)


def _built(batch: RawBatch, parts: list[bytes], times: list[int]) -> RawBatch:
    """Return a batch with other records at the same offsets; all else is as before."""
    latest = batch.max_timestamp if batch.is_log_append_time else batch.base_timestamp + max(times)
    built = build_batch(
        header.compress(batch.codec, b"".join(parts)),
        base_offset=batch.base_offset,
        last_offset_delta=batch.last_offset_delta,
        record_count=len(times),
        attributes=batch.attributes,
        base_timestamp=batch.base_timestamp,
        max_timestamp=latest,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        leader_epoch=batch.leader_epoch,
    )
    return RawBatch(memoryview(built))
