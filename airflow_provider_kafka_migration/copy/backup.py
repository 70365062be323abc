"""The archive as the end of a lane: a backup knows only the source and the archive, and decides nothing.

The source reader makes chunks durable before it passes them on, so this end only takes note of them. The archive is the
checkpoint: the range that segments cover without a gap is done, and a backup that is killed anywhere continues from its
end. Batches, markers, aborted ranges and holes lie in the archive as the source has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_provider_kafka_migration.copy.archive import SegmentIndex, record_count
from airflow_provider_kafka_migration.copy.limits import SliceLimits
from airflow_provider_kafka_migration.copy.partition import CopyState, PartitionCopy, ResumePoint, Trouble
from airflow_provider_kafka_migration.copy.read_ahead import SourceReader
from airflow_provider_kafka_migration.copy.resuming.finder import Resumed
from airflow_provider_kafka_migration.copy.transform import Chunk
from airflow_provider_kafka_migration.documents.copy import CopyJob, PartitionResult
from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.kafka.batches.api import read_batches
from airflow_provider_kafka_migration.kafka.connection import BrokerConnection
from airflow_provider_kafka_migration.storage.base import ObjectStore

#: In this last part of a slice, a backup reads nothing more and archives what it has read.
FLUSH_SECONDS = 2.0
#: Segments that are not durable this long before the deadline are left to the next slice.
_GIVE_UP_SECONDS = 0.5


class ArchiveSink:
    """Ends a lane in the archive.

    There is no target: ``target_offset`` of the results is -1, and ``source_offset`` is how far the archive reaches.
    """

    buffer_bytes = 0
    #: What was read before a request to stop is still archived.
    drains_when_stopped = True
    connections: Sequence[BrokerConnection] = ()
    throttled_seconds = 0.0
    pending_bytes = 0

    def __init__(self, job: CopyJob, archive: ObjectStore, source: SourceReader, limits: SliceLimits) -> None:
        self._job = job
        self._archive = archive
        self._source = source
        self._limits = limits
        self.closing_seconds = min(FLUSH_SECONDS, job.slice_seconds / 4)

    def prepare(self, copies: Iterable[PartitionCopy]) -> None:
        """Do nothing: an archive needs no preparation."""

    def is_settling(self, copy: PartitionCopy) -> bool:
        """Return False: each resume reads the archive again."""
        return False

    def resume(self, copies: Sequence[PartitionCopy]) -> dict[PartitionCopy, Resumed]:
        """Return where the archive of each partition ends."""
        found: dict[PartitionCopy, Resumed] = {}
        for copy in copies:
            try:
                found[copy] = ResumePoint(self._archived_until(copy), -1, 0, 0)
            except MigrationError as error:
                found[copy] = error
        return found

    def _archived_until(self, copy: PartitionCopy) -> int:
        spec = copy.spec
        index = SegmentIndex(self._archive, self._job.migration_id, spec.topic, spec.partition, spec.topic_id)
        return index.until_offset(spec.source_start_offset)

    def begin(self, copy: PartitionCopy, point: ResumePoint) -> None:
        """Continue to read where the archive ends."""
        position = point.source_offset
        copy.go_back_to(position)
        if copy.read.before is not None and copy.read.before[0] >= position:
            # The epoch lets attach check, before the first fetch, whether the source has lost what was archived.
            # What was read beyond the archive counts as well, or a slice that ended with SOURCE_TRUNCATED there
            # would be forgotten. The epoch of a lower offset says nothing about this position.
            copy.read.leader_epoch = max(copy.read.leader_epoch, copy.read.before[1])
        copy.state = CopyState.RUNNING

    def detach(self, copy: PartitionCopy) -> None:
        """Do nothing: an archive has no leaders."""

    def take(self, copy: PartitionCopy, chunk: Chunk) -> None:
        """Take note of a chunk that the archive has."""
        copy.write.source_offset = chunk.until_offset
        copy.figures.records += sum(record_count(batch) for batch in read_batches(chunk.batches)[0])
        copy.figures.copied_bytes += len(chunk.batches)
        copy.note_progress()

    def poll(self) -> list[Trouble]:
        """Return no errors: those of puts come from the source reader."""
        return []

    def send(self, now: float) -> None:
        """Send nothing."""

    def next_due(self, now: float) -> float:
        """Return a moment far away: nothing is due here."""
        return now + 60.0

    def settle_end(self, copy: PartitionCopy) -> None:
        """Do nothing: an archive has no offsets of its own."""

    def is_drained(self, copies: Iterable[PartitionCopy]) -> bool:
        """Put what was gathered; return whether all puts have ended, or no time is left for them."""
        return not self._source.flush() or self._limits.ends_within(_GIVE_UP_SECONDS)

    def adapt(self, copy: PartitionCopy, error: MigrationError) -> None:
        """Do nothing: the archive takes everything."""

    def lose(self, connection: BrokerConnection, error: MigrationError) -> None:
        """Do nothing: there are no connections."""

    def close(self) -> None:
        """Do nothing: there are no connections."""

    def result(self, copy: PartitionCopy, *, done: bool) -> PartitionResult:
        """Return what happened with a partition in this slice."""
        return copy.result(done=done).model_copy(update={"target_offset": -1})
