"""The target end of a lane: transform, layout, and one of two writers, as the verdict of each partition says.

``chunk -> BatchTransformer -> OffsetLayout -> Appender | TransactionalAppender``
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

from airflow_provider_kafka_migration.copy.append import Appender
from airflow_provider_kafka_migration.copy.append_errors import TooLarge, UnexpectedEnd, UnexpectedOffset
from airflow_provider_kafka_migration.copy.archive import write_loss
from airflow_provider_kafka_migration.copy.layout import OffsetLayout
from airflow_provider_kafka_migration.copy.limits import SliceLimits
from airflow_provider_kafka_migration.copy.partition import PartitionCopy, ResumePoint, Trouble
from airflow_provider_kafka_migration.copy.provenance import ProvenanceMarker
from airflow_provider_kafka_migration.copy.resuming.agreement import ReadChunk, committed_batches
from airflow_provider_kafka_migration.copy.resuming.finder import Resumed, ResumeFinder
from airflow_provider_kafka_migration.copy.resuming.in_transactions import TransactionalResumer
from airflow_provider_kafka_migration.copy.rewriting import LaneSchemaIds
from airflow_provider_kafka_migration.copy.transactions import TransactionalAppender
from airflow_provider_kafka_migration.copy.transform import BatchTransformer, Chunk, CopyOp
from airflow_provider_kafka_migration.documents.copy import CopyJob, CopyLane, PartitionResult, TargetLossRecord
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import (
    ForeignData,
    MigrationError,
    RecordTooLarge,
    SchemaIdUnknown,
    SchemaIdUnresolved,
    Terminal,
    Where,
)
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch
from airflow_provider_kafka_migration.kafka.connection import BrokerConnection
from airflow_provider_kafka_migration.kafka.fetch import READ_UNCOMMITTED
from airflow_provider_kafka_migration.kafka.logs import read_span
from airflow_provider_kafka_migration.kafka.wire import Wire
from airflow_provider_kafka_migration.offset_map.store import LaneMaps
from airflow_provider_kafka_migration.offset_map.transactional import MapPages, group_name
from airflow_provider_kafka_migration.storage.base import ObjectStore

log = logging.getLogger(__name__)

#: After this many accepted appends, batches may become twice as large again.
_RELAX_AFTER = 64


def is_transactional(copy: PartitionCopy) -> bool:
    """Return whether a partition is copied in transactions."""
    return copy.spec.verdict is Verdict.TRANSACTIONAL


class TargetSink:
    """Writes what a lane reads to the target cluster.

    :param source: finds out what the source still has when a partition resumes; None for a restore.
    :param map_store: holds the offset maps, the map pages of transactional partitions, and the map of schema ids.
    :param archive: returns a reader of what the archive has of a partition.
    :param wake: ends the lane's wait. Thread-safe.
    """

    #: Limit for decided but unsent bytes of a lane; beyond it nothing more is read.
    buffer_bytes = 48 * 1024 * 1024
    #: In this last part of a slice, the lane reads nothing more and only waits for confirmations.
    closing_seconds = 0.5
    #: A request to stop ends the lane immediately: the target's log determines where the copy resumes.
    drains_when_stopped = False

    def __init__(
        self,
        job: CopyJob,
        lane: CopyLane,
        target: Wire,
        *,
        source: Wire | None,
        map_store: ObjectStore,
        archive: Callable[[PartitionCopy], ReadChunk | None],
        limits: SliceLimits,
        wake: Callable[[], object],
    ) -> None:
        self._job = job
        self._limits = limits
        self._target = target
        self._map_store = map_store
        self._maps = LaneMaps(map_store, job.migration_id, limits.check, forgets=job.target_deletes)
        self._layout = OffsetLayout(job, self._maps)
        self._transformers: dict[PartitionCopy, BatchTransformer] = {}
        self._schema_ids = LaneSchemaIds(job, map_store)
        self._resumer = ResumeFinder(job, source, target, archive=archive, as_on_target=self._schema_ids.reader)
        #: partitions with something to send: a lane may have thousands of others, which must not add cost to each round
        self._busy: dict[PartitionCopy, None] = {}
        #: size limits for batches of several records, where the target lately refused larger ones, and how many appends
        #: it has accepted since
        self._split_bytes: dict[PartitionCopy, int] = {}
        self._since_split: dict[PartitionCopy, int] = {}
        self._append = Appender(
            target,
            job.producers,
            busy=self._busy,
            limits=limits,
            transactional_id=lane.transactional_id,
            wake=wake,
        )

        def pages(copy: PartitionCopy) -> MapPages:
            return MapPages(map_store, job.migration_id, *copy.key)

        merges = job.provenance is not None
        self._transactional = TransactionalAppender(
            target, group_name(job.migration_id), pages=pages, limits=limits, wake=wake, merges=merges
        )
        self._transactional_resumer = TransactionalResumer(
            job.migration_id,
            target,
            pages=pages,
            on_session=self._transactional.begin,
            merges=merges,
        )

    def _writer(self, copy: PartitionCopy) -> Appender | TransactionalAppender:
        return self._transactional if is_transactional(copy) else self._append

    @property
    def _writers(self) -> tuple[Appender, TransactionalAppender]:
        return self._append, self._transactional

    @property
    def connections(self) -> list[BrokerConnection]:
        """All open connections."""
        return [connection for writer in self._writers for connection in writer.connections]

    @property
    def throttled_seconds(self) -> float:
        """For how long the target's quotas have delayed this lane."""
        return sum(writer.throttling.seconds for writer in self._writers)

    def prepare(self, copies: Iterable[PartitionCopy]) -> None:
        """See :meth:`Appender.prepare`."""
        if any(copy.write.fills_holes for copy in copies):
            self._append.prepare()

    def lose(self, connection: BrokerConnection, error: MigrationError) -> None:
        """Drop a broken connection, if it is one to the target."""
        for writer in self._writers:
            writer.lose(connection, error)

    def close(self) -> None:
        """Close all connections; unanswered requests have an unknown outcome."""
        for writer in self._writers:
            writer.close()

    # -- a partition resumes -----------------------------------------------------------------------------------------

    def is_settling(self, copy: PartitionCopy) -> bool:
        """Return whether unanswered requests may still change the position, or the partition waits for a schema."""
        # What lies behind the stop offset is not copied, so nothing has to be known about it.
        waits = not self._is_at_stop(copy) and self._schema_ids.holds(copy)
        return waits or self._writer(copy).is_settling(copy)

    def resume(self, copies: Sequence[PartitionCopy]) -> dict[PartitionCopy, Resumed]:
        """Return the resume points of all partitions, each found according to its verdict.

        :raises Transient: no broker of a cluster answers, or the storage does not.
        """
        in_transactions = [copy for copy in copies if is_transactional(copy)]
        found: dict[PartitionCopy, Resumed] = {}
        if in_transactions:
            try:
                found.update(self._transactional_resumer.resume(in_transactions))
            except Terminal as error:
                # A right on the group or the ids is missing: compare-and-append partitions need neither.
                found.update(dict.fromkeys(in_transactions, error))
        others = [copy for copy in copies if not is_transactional(copy)]
        if others:
            found.update(self._resumer.resume(others, self._maps))
        return found

    def begin(self, copy: PartitionCopy, point: ResumePoint) -> None:
        """Continue a partition at its resume point.

        :raises MigrationError: the leader cannot be found or reached.
        """
        self._record_loss(copy, point)
        copy.resume(point)
        self._writer(copy).attach([copy])
        self._transformers[copy] = BatchTransformer(
            point.source_offset,
            self._job.timestamps,
            copy.spec.max_batch_bytes,
            split_bytes=self._split_bytes.get(copy),
            marker=self._marker(copy),
            rewriter=self._schema_ids.rewriter(copy),
            where=Where(migration_id=self._job.migration_id, topic=copy.spec.topic, partition=copy.spec.partition),
        )

    def _record_loss(self, copy: PartitionCopy, point: ResumePoint) -> None:
        """Record that the target has lost records, before the log grows again and hides it.

        :raises StorageUnavailable: it cannot be recorded.
        """
        back = copy.went_back(point)
        if back is None:
            return
        log.warning(
            "%s-%s: the target's log end went back from %s to %s (unclean election, lost disk?); copying again from "
            "the source",
            *copy.key,
            *back,
        )
        spec = copy.spec
        write_loss(
            self._map_store,
            TargetLossRecord(
                migration_id=self._job.migration_id,
                topic=spec.topic,
                topic_id=spec.topic_id,
                target_topic=spec.target_topic,
                partition=spec.partition,
                from_target_offset=back[0],
                to_target_offset=back[1],
                source_offset=-1 if point.lost is None else point.lost.source_offset,
                seen_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            ),
        )

    def _marker(self, copy: PartitionCopy) -> ProvenanceMarker | None:
        """Return what marks the records of a partition; None if nobody copies them back."""
        settings = self._job.provenance
        if settings is None:
            return None
        if not is_transactional(copy):
            raise Terminal(
                "the records of this partition cannot be marked: it is not copied in transactions",
                where=copy.where(self._job),
                next_step="set offsets.mode: transactional, and begin again with another migration_id",
            )
        return ProvenanceMarker(
            settings, copy.spec.target_topic, copy.spec.partition, on_skipped=copy.figures.add_skipped
        )

    def detach(self, copy: PartitionCopy) -> None:
        """Take a partition off its connections; when it begins again, its leader is looked up."""
        self._writer(copy).detach(copy)

    # -- chunks ------------------------------------------------------------------------------------------------------

    def take(self, copy: PartitionCopy, chunk: Chunk) -> None:
        """Transform a chunk, lay it out, and queue it for the writer.

        :raises MigrationError: the partition must be reset or stopped.
        """
        steps: list[CopyOp] = []
        transformer = self._transformers[copy]
        # Once a partition leaves out its holes, it does so for as long as this transformer lives.
        transformer.packs = not copy.write.fills_holes
        try:
            # Steps decided before a record that is too large, or whose schema is not known, stay in the list.
            steps.extend(transformer.decide_chunk(chunk))
        except (RecordTooLarge, SchemaIdUnknown, SchemaIdUnresolved) as error:
            copy.stopping = error
            if isinstance(error, SchemaIdUnknown):
                committed = (batch for batch, is_committed in committed_batches(chunk) if is_committed)
                self._schema_ids.ask_ahead(copy, committed, int(error.details["offset"]))
        self._busy[copy] = None
        self._layout.place(copy, steps)
        if self._stops_now(copy):
            assert copy.stopping is not None
            raise copy.stopping

    def _stops_now(self, copy: PartitionCopy) -> bool:
        """Return whether a partition stops: all that was decided before its error is sent, so nothing overtakes it.

        An error behind the stop offset stops nothing.
        """
        return copy.stopping is not None and copy.write.is_idle and not self._is_at_stop(copy)

    def _is_at_stop(self, copy: PartitionCopy) -> bool:
        """Return whether everything up to the stop offset is decided."""
        until = self._limits.until(copy)
        return until is not None and copy.write.source_offset >= until

    def poll(self) -> list[Trouble]:
        """Take note of what the target has confirmed; return the errors of partitions since the last poll."""
        troubles: list[Trouble] = []
        for event in [event for writer in self._writers for event in writer.poll()]:
            if isinstance(event, Trouble):
                troubles.append(event)
                continue
            self._relax(event.copy)
            if self._stops_now(event.copy):
                assert event.copy.stopping is not None
                troubles.append(Trouble.of(event.copy, event.copy.stopping))
        return troubles

    def send(self, now: float) -> None:
        """Send what can be sent now.

        :raises SliceExpired: the deadline has passed.
        """
        for copy in [copy for copy in self._busy if not copy.write.pending]:
            del self._busy[copy]
        for writer in self._writers:
            writer.send(now)

    def next_due(self, now: float) -> float:
        """Return when to poll or to send next even if no answer comes before (monotonic clock)."""
        return min(writer.next_due(now) for writer in self._writers)

    @property
    def pending_bytes(self) -> int:
        """Memory that decided but unsent steps take."""
        return sum(copy.write.pending_bytes for copy in self._busy)

    # -- the end -----------------------------------------------------------------------------------------------------

    def settle_end(self, copy: PartitionCopy) -> None:
        """See :meth:`OffsetLayout.settle_end`."""
        self._layout.settle_end(copy)

    def is_drained(self, copies: Iterable[PartitionCopy]) -> bool:
        """Return whether nothing is left to send or to be answered."""
        return all(copy.write.is_idle for copy in copies)

    def result(self, copy: PartitionCopy, *, done: bool) -> PartitionResult:
        """Return what happened with a partition in this slice."""
        return copy.result(done=done)

    # -- errors ------------------------------------------------------------------------------------------------------

    def adapt(self, copy: PartitionCopy, error: MigrationError) -> None:
        """Draw the consequences of an error that is to be retried, beyond reading the target's log again.

        :raises ForeignData: another producer writes to the target partition.
        """
        if isinstance(error, SchemaIdUnknown):
            self._schema_ids.hold(copy, error)
        elif isinstance(error, TooLarge):
            self._split_from_now_on(copy, error)
        elif isinstance(error, UnexpectedOffset | UnexpectedEnd):
            self._find_other_writers(copy, error)

    def _relax(self, copy: PartitionCopy) -> None:
        """Count an accepted append; after many of them, batches may be larger again."""
        if copy not in self._split_bytes:
            return
        self._since_split[copy] += 1
        if self._since_split[copy] >= _RELAX_AFTER:
            self._since_split[copy] = 0
            self._split_bytes[copy] *= 2
            if copy in self._transformers:
                self._transformers[copy].split_bytes = self._split_bytes[copy]

    def _split_from_now_on(self, copy: PartitionCopy, error: TooLarge) -> None:
        """Split batches from now on.

        The target's limit applies to what it writes itself: with another codec that may be more than what was sent.
        """
        size, known = int(error.details["size_bytes"]), self._split_bytes.get(copy)
        self._split_bytes[copy] = max(1, (size if known is None else min(size, known)) // 2)
        self._since_split[copy] = 0

    def _find_other_writers(self, copy: PartitionCopy, error: UnexpectedOffset | UnexpectedEnd) -> None:
        """Check which producer wrote between the expected offset and the actual one.

        The resume places the migration's own markers and records again; records of another producer stop the partition.
        """
        expected = int(error.details["expected_offset"])
        if isinstance(error, UnexpectedEnd):
            until = int(error.details["log_end_offset"])
        else:
            until = int(error.details["base_offset"])
        for batch in read_span(self._target, copy.target_key, expected, until, isolation=READ_UNCOMMITTED):
            producer_id = batch.producer_id if isinstance(batch, RawBatch) else -1
            if isinstance(batch, RawBatch) and (batch.is_control or batch.base_offset >= until):
                continue
            if producer_id != self._job.producers.data_producer_id:
                raise ForeignData(
                    f"another producer writes to the target partition while it is copied (producer id {producer_id})",
                    where=Where(
                        migration_id=self._job.migration_id,
                        cluster="target",
                        topic=copy.spec.target_topic,
                        partition=copy.spec.partition,
                        offset=batch.last_offset,
                    ),
                    next_step=self._job.after_foreign_data(
                        copy.spec.topic,
                        "stop that producer, delete the target topic and start again, or leave the topic out",
                    ),
                    details={"producer_id": producer_id, "target_offset": batch.last_offset},
                )
