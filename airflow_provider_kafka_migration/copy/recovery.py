"""Error handling for one partition: retry from the target's log, work around the error, or stop with a specific error.

Errors are noted where they happen, also in socket callbacks, and settled between two rounds of the loop.
"""

from __future__ import annotations

import logging
import time
from typing import Protocol

from airflow_provider_kafka_migration.copy.append_errors import OutOfOrder
from airflow_provider_kafka_migration.copy.archive import write_gap
from airflow_provider_kafka_migration.copy.limits import SliceLimits
from airflow_provider_kafka_migration.copy.partition import (
    MISSING_SECONDS,
    CopyState,
    PartitionCopy,
    Trouble,
    topic_gone,
)
from airflow_provider_kafka_migration.copy.read_ahead import SourceReader
from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.errors import (
    MigrationError,
    SchemaIdUnknown,
    SliceExpired,
    SourceGap,
    Terminal,
)
from airflow_provider_kafka_migration.kafka.logs import MISSING_TOPIC
from airflow_provider_kafka_migration.storage.base import ObjectStore

log = logging.getLogger(__name__)

#: A partition that makes no progress for this long stops with the last error; the next round tries again.
PATIENCE_SECONDS = 60.0
_RETRY_PAUSES = (0.0, 0.02, 0.1, 0.3, 1.0)


class Sink(Protocol):
    """What recovery needs of the end that a lane writes to."""

    def detach(self, copy: PartitionCopy) -> None:
        """Take a partition off its connections."""

    def adapt(self, copy: PartitionCopy, error: MigrationError) -> None:
        """Draw the consequences of an error that is to be retried."""


class RecoveryPolicy:
    """Settles the errors of a lane's partitions.

    :param resuming: receives the partitions whose position must be found again.
    :param gap_store: where gaps of the source are recorded.
    """

    def __init__(
        self,
        job: CopyJob,
        source: SourceReader,
        sink: Sink,
        *,
        limits: SliceLimits,
        resuming: dict[PartitionCopy, None],
        gap_store: ObjectStore,
    ) -> None:
        self._job = job
        self._source = source
        self._sink = sink
        self._limits = limits
        self._resuming = resuming
        self._gap_store = gap_store
        self._noted: list[Trouble] = []

    def note(self, trouble: Trouble) -> None:
        """Note an error of a partition. Once a reset follows, later errors of the same incarnation are ignored."""
        self._noted.append(trouble)

    def close(self) -> None:
        """Settle the errors noted last: otherwise an error that takes a whole slice to occur would be lost."""
        for trouble in self._noted:
            copy, error = trouble.copy, trouble.error
            if trouble.is_stale or isinstance(error, SliceExpired):
                continue
            if isinstance(error, Terminal) and not isinstance(error, SourceGap):
                copy.fail(error)
            else:
                note_trouble(copy, error)
        self._noted.clear()

    def settle(self) -> None:
        """Settle all noted errors."""
        while self._noted:
            trouble = self._noted.pop(0)
            if trouble.is_stale:
                continue
            try:
                self._settle(trouble.copy, trouble.error)
            except MigrationError as second:
                self._stop(trouble.copy, second)

    def _settle(self, copy: PartitionCopy, error: MigrationError) -> None:
        log.info("%s-%s: %s", *copy.key, error.what)
        # Only records that the copy was about to read next can be a gap, so a partition that still resumes has none.
        is_reading = copy.state is CopyState.RUNNING
        if isinstance(error, SourceGap) and is_reading:
            # This comes first: if a put ends after it, the archive check below sees its segment.
            unfinished = self._source.unfinished_put(copy)
            if self._source.back_to_archive(copy):
                self._note_resuming(copy)
                return
            error = unfinished or error
        if isinstance(error, SourceGap) and is_reading:
            if self._job.on_source_gap == "note" or not _lost(copy, error):
                self._record_gap(copy, error)
                return
            error = _named(copy, error)
        if isinstance(error, Terminal | SliceExpired):
            self._stop(copy, error)
            return
        self._sink.adapt(copy, error)
        if self.is_patient(copy, error):
            self._retry(copy, error)

    def _stop(self, copy: PartitionCopy, error: MigrationError) -> None:
        copy.fail(error)
        self._source.reset(copy)

    def is_patient(self, copy: PartitionCopy, error: MigrationError) -> bool:
        """Return whether to try again; stop a partition that has been stuck for too long.

        A partition that waits for a schema waits for as long as it takes.
        """
        now = note_trouble(copy, error)
        if isinstance(error, SchemaIdUnknown):
            return copy.state is not CopyState.FAILED
        missing = is_missing(copy, error, now, self._job.slice_seconds)
        if missing:
            self._stop(copy, topic_gone(self._job, copy.spec, error.where.cluster))
        elif copy.stuck_since is not None and now - copy.stuck_since > PATIENCE_SECONDS:
            self._stop(copy, error)
        return copy.state is not CopyState.FAILED

    def _retry(self, copy: PartitionCopy, error: MigrationError) -> None:
        if not isinstance(error, OutOfOrder):
            self._sink.detach(copy)
        pause = _RETRY_PAUSES[min(copy.retries, len(_RETRY_PAUSES) - 1)]
        copy.retries += 1
        copy.reset(resume_at=time.monotonic() + pause)
        self._note_resuming(copy)
        self._source.reset(copy)

    def _note_resuming(self, copy: PartitionCopy) -> None:
        if copy.state is CopyState.RESUMING:
            self._resuming[copy] = None

    def _record_gap(self, copy: PartitionCopy, error: SourceGap) -> None:
        """Record a gap when retention was faster than the copy and the policy is to continue.

        The gap becomes a hole that results and evidence name.
        """
        log_start_offset = int(error.details["log_start_offset"])
        until = self._source.gap_until(copy, log_start_offset)
        # A copier that wakes up late must not mark as a gap what others may have read before it was deleted.
        self._limits.check()
        lost = _lost(copy, error)
        if lost is None or until <= lost[0]:
            copy.read.start_offset = until
        else:
            # Written ahead: a copier that resumes behind the gap can no longer see it.
            gap = (lost[0], until)
            write_gap(self._gap_store, self._job.migration_id, copy.spec, gap)
            copy.figures.gaps.append(gap)
        self._source.pass_gap(copy, until, log_start_offset)


def _lost(copy: PartitionCopy, error: SourceGap) -> tuple[int, int] | None:
    """Return the deleted source offsets (from, until) that should have been copied; None: nothing is lost."""
    until = int(error.details["log_start_offset"])
    first = copy.late_until(int(error.details.get("log_end_offset", until)))
    if copy.spec.adopted and copy.is_fresh:
        # A hole at the boundary excuses only what lies within it.
        first = until if until <= first else copy.read.next_offset
    return (first, until) if first < until else None


def _named(copy: PartitionCopy, error: SourceGap) -> SourceGap:
    """Return the error with what is lost: without what was deleted before the copy began, and by whom."""
    lost = _lost(copy, error)
    assert lost is not None
    what = f"records {lost[0]}..{lost[1] - 1} were deleted on the source before they were copied"
    before = copy.read.lost
    if before is not None and copy.is_fresh and copy.had_copied(before):
        what = (
            f"records {lost[0]}..{lost[1] - 1} are on neither cluster: everything below source offset "
            f"{before.source_offset} had been copied, but the target's log went back from {before.target_offset} to "
            f"{copy.write.confirmed_offset}, and the source has deleted them since"
        )
    return SourceGap(
        what, where=error.where, next_step=error.next_step, details={**error.details, "from_offset": lost[0]}
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
