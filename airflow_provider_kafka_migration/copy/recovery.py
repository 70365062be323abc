"""Error handling for one partition: retry from the target's log, work around the error, or stop with a specific error.

Errors are noted where they happen, also in socket callbacks, and settled between two rounds of the loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from airflow_provider_kafka_migration.copy.append_errors import OutOfOrder, TooLarge, UnexpectedEnd, UnexpectedOffset
from airflow_provider_kafka_migration.copy.partition import CopyState, PartitionCopy, another_topic
from airflow_provider_kafka_migration.copy.read_ahead import SourceReader
from airflow_provider_kafka_migration.copy.writers import Writers
from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.errors import (
    ForeignData,
    MigrationError,
    SliceExpired,
    SourceGap,
    TargetTopicMissing,
    Terminal,
    Where,
)
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch
from airflow_provider_kafka_migration.kafka.fetch import READ_UNCOMMITTED
from airflow_provider_kafka_migration.kafka.logs import MISSING_TOPIC, read_span
from airflow_provider_kafka_migration.kafka.wire import Wire

log = logging.getLogger(__name__)

#: A partition that makes no progress for this long stops with the last error; the next round tries again.
PATIENCE_SECONDS = 60.0
#: A topic counts as deleted when the cluster has answered so for this long: a broker that has just started may not know
#: the topic yet.
MISSING_SECONDS = 10.0
#: After this many accepted appends, batches may become twice as large again.
_RELAX_AFTER = 64
_RETRY_PAUSES = (0.0, 0.02, 0.1, 0.3, 1.0)


class RecoveryPolicy:
    """Settles the errors of a lane's partitions.

    :param resuming: receives the partitions whose log ends must be read again.
    :param on_gap: called with (copy, error) when retention was faster and the policy is to continue.
    """

    def __init__(
        self,
        job: CopyJob,
        target: Wire,
        appender: Writers,
        feed: SourceReader,
        *,
        resuming: dict[PartitionCopy, None],
        on_gap: Callable[[PartitionCopy, SourceGap], None],
    ) -> None:
        self._job = job
        self._target = target
        self._appender = appender
        self._feed = feed
        self._resuming = resuming
        self._on_gap = on_gap
        self._noted: list[tuple[PartitionCopy, int, MigrationError]] = []
        self._split_bytes: dict[PartitionCopy, int] = {}
        self._since_split: dict[PartitionCopy, int] = {}

    def split_bytes(self, copy: PartitionCopy) -> int | None:
        """Return the size limit for batches of several records; None unless the target lately refused larger ones."""
        return self._split_bytes.get(copy)

    def relax(self, copy: PartitionCopy) -> bool:
        """Count an accepted append; return whether batches may be larger again from now on."""
        if copy not in self._split_bytes:
            return False
        self._since_split[copy] += 1
        if self._since_split[copy] < _RELAX_AFTER:
            return False
        self._since_split[copy] = 0
        self._split_bytes[copy] *= 2
        return True

    def note(self, copy: PartitionCopy, error: MigrationError) -> None:
        """Note an error of a partition. Once a reset follows, later errors of the same incarnation are ignored."""
        self._noted.append((copy, copy.incarnation, error))

    def close(self) -> None:
        """Settle the errors noted last: otherwise an error that takes a whole slice to occur would be lost."""
        for copy, incarnation, error in self._noted:
            if copy.incarnation != incarnation or copy.state is CopyState.FAILED or isinstance(error, SliceExpired):
                continue
            if isinstance(error, Terminal) and not isinstance(error, SourceGap):
                copy.fail(error)
            else:
                note_trouble(copy, error)
        self._noted.clear()

    def settle(self) -> None:
        """Settle all noted errors."""
        while self._noted:
            copy, incarnation, error = self._noted.pop(0)
            if copy.incarnation != incarnation or copy.state is CopyState.FAILED:
                continue
            try:
                self._settle(copy, error)
            except MigrationError as second:
                self._stop(copy, second)

    def _settle(self, copy: PartitionCopy, error: MigrationError) -> None:
        log.info("%s-%s: %s", *copy.key, error.what)
        # Only records that the copy was about to read next can be a gap, so a partition that still resumes has none.
        is_reading = copy.state is CopyState.RUNNING
        if isinstance(error, SourceGap) and is_reading:
            # This comes first: if a put ends after it, the archive check below sees its segment.
            unfinished = self._feed.unfinished_put(copy)
            if self._feed.back_to_archive(copy):
                return
            error = unfinished or error
        if isinstance(error, SourceGap) and is_reading and (self._job.on_source_gap == "record" or copy.is_fresh):
            # Before the first record is copied nothing is lost: the source's log simply starts later than planned.
            self._on_gap(copy, error)
            return
        if isinstance(error, Terminal | SliceExpired):
            self._stop(copy, error)
            return
        if isinstance(error, TooLarge):
            self._split_from_now_on(copy, error)
        elif isinstance(error, UnexpectedOffset | UnexpectedEnd):
            self._look_for_others(copy, error)
        if self.is_patient(copy, error):
            self._retry(copy, error)

    def _stop(self, copy: PartitionCopy, error: MigrationError) -> None:
        copy.fail(error)
        self._feed.reset(copy)

    def is_patient(self, copy: PartitionCopy, error: MigrationError) -> bool:
        """Return whether to try again; stop a partition that has been stuck for too long."""
        now = note_trouble(copy, error)
        missing = is_missing(copy, error, now, self._job.slice_seconds)
        if missing:
            self._stop(copy, topic_gone(self._job, copy, error))
        elif copy.stuck_since is not None and now - copy.stuck_since > PATIENCE_SECONDS:
            self._stop(copy, error)
        return copy.state is not CopyState.FAILED

    def _retry(self, copy: PartitionCopy, error: MigrationError) -> None:
        if not isinstance(error, OutOfOrder):
            self._appender.detach(copy)
        pause = _RETRY_PAUSES[min(copy.retries, len(_RETRY_PAUSES) - 1)]
        copy.retries += 1
        copy.reset(resume_at=time.monotonic() + pause)
        self._resuming[copy] = None
        self._feed.reset(copy)

    def _split_from_now_on(self, copy: PartitionCopy, error: TooLarge) -> None:
        """Split batches from now on.

        The target's limit applies to what it writes itself: with another codec that may be more than what was sent.
        """
        size, known = int(error.details["size_bytes"]), self._split_bytes.get(copy)
        self._split_bytes[copy] = max(1, (size if known is None else min(size, known)) // 2)
        self._since_split[copy] = 0

    def _look_for_others(self, copy: PartitionCopy, error: UnexpectedOffset | UnexpectedEnd) -> None:
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
                    next_step="stop that producer, delete the target topic and start again, or leave the topic out",
                    details={"producer_id": producer_id, "target_offset": batch.last_offset},
                )


def note_trouble(copy: PartitionCopy, error: MigrationError) -> float:
    """Remember what keeps a partition from making progress; return the present moment of the monotonic clock."""
    now = time.monotonic()
    copy.trouble = error
    copy.stuck_since = now if copy.stuck_since is None else copy.stuck_since
    return now


def is_missing(copy: PartitionCopy, error: MigrationError, now: float, slice_seconds: float) -> bool:
    """Return whether the cluster has answered for long enough, without a break, that the topic does not exist."""
    if MISSING_TOPIC not in error.details:
        copy.missing_since = None
        return False
    copy.missing_since = now if copy.missing_since is None else copy.missing_since
    return now - copy.missing_since >= min(MISSING_SECONDS, slice_seconds / 2)


def topic_gone(job: CopyJob, copy: PartitionCopy, error: MigrationError) -> MigrationError:
    """Return the error of a topic that was deleted while it is copied, on the cluster that ``error`` names."""
    if error.where.cluster == "source":
        where = Where(
            migration_id=job.migration_id,
            phase=job.name,
            cluster="source",
            topic=copy.spec.topic,
            partition=copy.spec.partition,
        )
        return another_topic("was deleted", where)
    return TargetTopicMissing(
        "the target topic no longer exists: somebody has deleted it",
        where=Where(
            migration_id=job.migration_id,
            phase=job.name,
            cluster="target",
            topic=copy.spec.target_topic,
            partition=copy.spec.partition,
        ),
        next_step=f"to copy it again from the start, clear {job.name} (or kafka-migration resume FILE): the migration "
        "creates the topic again first; otherwise leave the topic out of the migration",
    )
