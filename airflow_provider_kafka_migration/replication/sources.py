"""Where chunks come from: the source cluster's leaders, without blocking; archived segments are in ``archive``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from airflow_provider_kafka_migration.errors import (
    BrokerUnreachable,
    MigrationError,
    SourceGap,
    Terminal,
    Transient,
    Where,
)
from airflow_provider_kafka_migration.kafka import error_codes, fetch
from airflow_provider_kafka_migration.kafka.batches import read_batches
from airflow_provider_kafka_migration.kafka.broker_connection import BrokerConnection
from airflow_provider_kafka_migration.kafka.wire import Wire, api_version
from airflow_provider_kafka_migration.replication.chunk import Chunk
from airflow_provider_kafka_migration.replication.partition_copy import PartitionCopy

#: 1 MB per partition was as fast as 8 MB, and keeps many partitions' buffers small.
PARTITION_FETCH_BYTES = 1024 * 1024
RESPONSE_FETCH_BYTES = 16 * 1024 * 1024
MAX_PARTITION_FETCH_BYTES = 256 * 1024 * 1024
LONG_POLL_MS = 500
SHORT_POLL_MS = 5


@dataclass(eq=False)
class Reader:
    """One connection to one source leader, with at most one fetch on its way."""

    broker_id: int
    connection: BrokerConnection
    busy: bool = False
    muted_until: float = 0.0
    copies: set[PartitionCopy] = field(default_factory=set)


class KafkaSource:
    """The source side of a lane: one fetch per leader on its way, long-polling, read_committed.

    :param on_chunk: called with (copy, chunk) for each partition that has something new.
    :param on_trouble: called with (copy, error).
    :param wants: whether a partition may be fetched now (room in its queues, stop offset not reached).
    """

    def __init__(
        self,
        source: Wire,
        *,
        on_chunk: Callable[[PartitionCopy, Chunk], None],
        on_trouble: Callable[[PartitionCopy, MigrationError], None],
        wants: Callable[[PartitionCopy], bool],
        partition_fetch_bytes: int = PARTITION_FETCH_BYTES,
    ) -> None:
        self._source = source
        self._on_chunk = on_chunk
        self._on_trouble = on_trouble
        self._wants = wants
        self._partition_fetch_bytes = partition_fetch_bytes
        self._readers: dict[int, Reader] = {}
        self._reader_of: dict[PartitionCopy, Reader] = {}
        self._fetch_bytes: dict[PartitionCopy, int] = {}
        #: Partitions that must be asked for alone: a batch did not fit, or an empty answer needs to be confirmed.
        self._alone: dict[PartitionCopy, None] = {}
        self.throttled_seconds = 0.0

    @property
    def readers(self) -> list[Reader]:
        """All open readers."""
        return list(self._readers.values())

    def attach(self, copies: Iterable[PartitionCopy]) -> None:
        """Give each partition a reader at its present leader."""
        todo = [copy for copy in copies if copy not in self._reader_of]
        if not todo:
            return
        leaders = self._source.leaders([copy.key for copy in todo])
        for copy in todo:
            reader = self._reader(leaders[copy.key])
            reader.copies.add(copy)
            self._reader_of[copy] = reader

    def _reader(self, broker_id: int) -> Reader:
        reader = self._readers.get(broker_id)
        if reader is None or reader.connection.closed:
            reader = Reader(broker_id, self._source.open_connection(broker_id))
            self._readers[broker_id] = reader
        return reader

    def detach(self, copy: PartitionCopy) -> None:
        """Take a partition off its reader; its leader is asked for again."""
        reader = self._reader_of.pop(copy, None)
        if reader is not None:
            reader.copies.discard(copy)
        self._alone.pop(copy, None)
        self._source.forget_leaders([copy.key])

    def lose(self, reader: Reader, error: MigrationError) -> None:
        """A connection broke."""
        reader.connection.close()
        self._readers.pop(reader.broker_id, None)
        for copy in list(reader.copies):
            self.detach(copy)
            self._on_trouble(copy, error)

    def close(self) -> None:
        """Close all connections."""
        for reader in self._readers.values():
            reader.connection.close()
        self._readers.clear()
        self._reader_of.clear()

    # -- fetching ----------------------------------------------------------------------------------------------------

    def pump(self, now: float) -> None:
        """Send a fetch to each leader that has none on its way."""
        for reader in list(self._readers.values()):
            if reader.busy or now < reader.muted_until:
                continue
            try:
                self._send(reader)
            except Transient as error:
                self.lose(reader, error)

    def _send(self, reader: Reader) -> None:
        alone = next((copy for copy in self._alone if copy in reader.copies and self._wants(copy)), None)
        chosen = [alone] if alone is not None else [copy for copy in reader.copies if self._wants(copy)]
        if not chosen:
            return
        # Rotate: a broker fills an answer in the request's order, and the last ones may get nothing.
        chosen.sort(key=lambda copy: copy.source_bytes)
        size = {copy: self._fetch_bytes.get(copy, self._partition_fetch_bytes) for copy in chosen}
        ranges = [fetch.FetchRange(*copy.key, copy.fetch_offset, size[copy]) for copy in chosen]
        asked = {copy.key: (copy, copy.incarnation, copy.fetch_offset) for copy in chosen}
        waits = alone is None and len(chosen) == len(reader.copies)
        version = api_version(reader.connection, fetch.API_KEY, fetch.MAX_VERSION)
        body = fetch.encode(
            ranges,
            version,
            # With partitions left out for want of room the answer must not keep them waiting.
            max_wait_ms=LONG_POLL_MS if waits else SHORT_POLL_MS,
            max_bytes=max(RESPONSE_FETCH_BYTES, max(size.values())),
        )
        reader.busy = True
        reader.connection.submit(
            fetch.API_KEY,
            version,
            [body],
            lambda frame: self._on_fetched(reader, version, asked, alone is not None, frame),
        )

    def _on_fetched(
        self,
        reader: Reader,
        version: int,
        asked: dict[tuple[str, int], tuple[PartitionCopy, int, int]],
        alone: bool,
        frame: memoryview,
    ) -> None:
        reader.busy = False
        answer = fetch.decode(frame[4:], version)
        if answer.throttle_time_ms > 0:
            reader.muted_until = time.monotonic() + answer.throttle_time_ms / 1000
            self.throttled_seconds += answer.throttle_time_ms / 1000
        for item in answer.partitions:
            copy, incarnation, offset = asked[(item.topic, item.partition)]
            if copy.incarnation != incarnation or copy.fetch_offset != offset:
                continue
            try:
                if item.error_code:
                    self._on_error(copy, item)
                else:
                    self._on_partition(copy, item, alone)
            except BrokerUnreachable:
                raise
            except MigrationError as error:
                # Bytes that are no batches, or a broker that does not say where its log begins: this partition's.
                self._on_trouble(copy, error)

    def _on_error(self, copy: PartitionCopy, item: fetch.FetchedPartition) -> None:
        where = Where(cluster="source", topic=item.topic, partition=item.partition, offset=copy.fetch_offset)
        if item.error_code in error_codes.STALE_METADATA:
            self.detach(copy)
        if item.error_code == error_codes.OFFSET_OUT_OF_RANGE:
            self._on_trouble(copy, self._out_of_range(copy, where))
        else:
            self._on_trouble(
                copy, error_codes.error_for(item.error_code, "records cannot be read", where=where, needs="Read")
            )

    def _out_of_range(self, copy: PartitionCopy, where: Where) -> MigrationError:
        """Retention has overtaken the copy, or the log is another one."""
        log_start = self._source.list_offsets([copy.key], "earliest")[copy.key]
        log_end = self._source.list_offsets([copy.key], "latest")[copy.key]
        details = {"from_offset": copy.fetch_offset, "log_start_offset": log_start, "log_end_offset": log_end}
        if log_start > copy.fetch_offset:
            return SourceGap(
                f"records {copy.fetch_offset}..{log_start - 1} were deleted on the source before they were copied",
                where=where,
                next_step="raise the retention of the source topic; set offsets.on_source_gap: record to go on without "
                "them, named in the evidence",
                details=details,
            )
        return Terminal(
            f"the source's log ends at {log_end}, below the offset {copy.fetch_offset} that was to be read next",
            where=where,
            next_step="the source lost records or the topic was created anew; compare its topic id with the plan",
            details=details,
        )

    def _on_partition(self, copy: PartitionCopy, item: fetch.FetchedPartition, alone: bool) -> None:
        copy.source_end_offset = item.last_stable_offset
        copy.source_high_watermark = item.high_watermark
        batches, consumed = read_batches(item.records)
        if batches:
            until = batches[-1].next_offset
            self._alone.pop(copy, None)
            self._fetch_bytes.pop(copy, None)
        elif len(item.records):
            # A batch larger than what was asked for, and not the first in the answer.
            size = self._fetch_bytes.get(copy, self._partition_fetch_bytes) * 4
            self._fetch_bytes[copy] = min(size, MAX_PARTITION_FETCH_BYTES)
            self._alone[copy] = None
            return
        elif item.last_stable_offset > copy.fetch_offset:
            # Empty though there is more below the last stable offset: other partitions have used up the answer's
            # bytes, or all of it was compacted away. Only an answer for this partition alone can tell.
            if not alone:
                self._alone[copy] = None
                return
            self._alone.pop(copy, None)
            until = item.last_stable_offset
        else:
            self._alone.pop(copy, None)
            return
        size = len(item.records)
        copy.source_bytes += size
        self._on_chunk(
            copy,
            Chunk(
                topic=item.topic,
                partition=item.partition,
                from_offset=copy.fetch_offset,
                until_offset=until,
                batches=item.records[:consumed],
                aborted=item.aborted,
                last_stable_offset=item.last_stable_offset,
                log_start_offset=item.log_start_offset,
                origin="kafka",
                source_bytes=size,
            ),
        )
