"""The content check of many partitions: one call per partition, stored results, and a runner for one process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace

from pydantic import ValidationError

from airflow_provider_kafka_migration.compare.archive import compare_deleted, is_final
from airflow_provider_kafka_migration.compare.comparison import ContentOptions, compare_content, range_map
from airflow_provider_kafka_migration.compare.connections import OwnConnections
from airflow_provider_kafka_migration.compare.logs import ArchiveLog, CommittedLog, KafkaLog, OurLog
from airflow_provider_kafka_migration.compare.proven import (
    Anchor,
    differing,
    fits,
    grown,
    joined,
    load_proven,
    rest_of,
    still_holds,
    store_proven,
)
from airflow_provider_kafka_migration.compare.record_ids import record_ids
from airflow_provider_kafka_migration.copy.archive import SegmentIndex
from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.documents.proof import (
    ContentJob,
    ContentRange,
    ContentResult,
    PartitionContent,
    ProvenRange,
)
from airflow_provider_kafka_migration.documents.schemas import id_rule
from airflow_provider_kafka_migration.errors import Interrupted, JobMissing, MigrationError, Transient, Where
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange, PartitionMap, topic_key
from airflow_provider_kafka_migration.offset_map.store import RunLog
from airflow_provider_kafka_migration.offset_map.transactional import MapPages, TransactionalMap
from airflow_provider_kafka_migration.storage.base import ObjectStore

log = logging.getLogger(__name__)

Progress = Callable[[PartitionContent, int, int], None]


def result_key(migration_id: str, topic: str, partition: int) -> str:
    """Return the key of a partition's result below the journal location."""
    return f"{migration_id}/results/content/{topic_key(topic)}-{partition}.json"


class ContentResults:
    """Stored results of one content job. Results of another job (an earlier attempt) are ignored."""

    def __init__(self, job: ContentJob, store: ObjectStore) -> None:
        self._job = job
        self._store = store
        self._digest = job.digest()

    def read(self, compared: ContentRange) -> PartitionContent | None:
        """Read the result of a range, if this job has one."""
        data = self._store.get(result_key(self._job.migration_id, *compared.key))
        if data is None:
            return None
        try:
            found = ContentResult.parse(data)
        except ValidationError:
            return None
        mine = found.job_digest == self._digest and found.range == compared
        return found.content if mine else None

    def write(self, compared: ContentRange, content: PartitionContent) -> None:
        """Store the result of a range."""
        document = ContentResult(
            migration_id=self._job.migration_id, job_digest=self._digest, range=compared, content=content
        )
        self._store.put(result_key(self._job.migration_id, *compared.key), document.canonical())

    def read_all(self) -> list[PartitionContent]:
        """Read the results of all ranges, for a caller that ran the job in another process.

        :raises Transient: some results are missing: the job did not end successfully.
        """
        found = [(compared, self.read(compared)) for compared in self._job.ranges]
        missing = [compared for compared, content in found if content is None]
        if missing:
            raise Transient(
                f"{len(missing)} of {len(found)} partitions were not compared; the first is "
                f"{missing[0].topic}-{missing[0].partition}",
                where=Where(migration_id=self._job.migration_id, phase="validate"),
                next_step="check the log of the Spark job, then clear validate",
            )
        return [content for _, content in found if content is not None]


class ContentChecker(OwnConnections):
    """Compares partitions of one job over its own connections. Not thread-safe: one owner.

    :param stop: called before each batch; True ends the check with :class:`Interrupted`.
    """

    def __init__(
        self, job: ContentJob, clients: Clients, store: ObjectStore, *, stop: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__(clients)
        self._job = job
        self._store = store
        self._results = ContentResults(job, store)
        self._options = ContentOptions(timestamps=job.timestamps, stop=stop)

    def check(self, compared: ContentRange) -> PartitionContent:
        """Compare a partition and store the result; what was already found equal is not read again.

        With proven ranges, each range is used only after its anchor was checked: a job's result says nothing about
        what happened to the target's log since. A partition that cannot be compared gives a result with ``error``.

        :raises Interrupted: a stop was requested.
        :raises StorageUnavailable: the result cannot be stored.
        """
        known = None if self._job.start_from_proven else self._results.read(compared)
        if known is not None and known.is_equal:
            return known
        try:
            content = self._check_rest(compared) if self._job.start_from_proven else self._compare_all(compared)
        except Interrupted:
            raise
        except MigrationError as error:
            self.close()  # a broken connection must not affect the next partition
            content = _not_compared(compared, error)
        if self._job.archive_location is not None:
            content = content.model_copy(update={"method": "archive"})
        self._results.write(compared, content)
        return content

    def _compare_all(self, compared: ContentRange) -> PartitionContent:
        offset_map = stored_map(self._store, self._job.migration_id, compared)
        return self._compare(compared, offset_map, self._target_log(compared, offset_map))

    def _check_rest(self, compared: ContentRange) -> PartitionContent:
        """Compare what is not proven yet; store what is found equal as proven."""
        offset_map = stored_map(self._store, self._job.migration_id, compared)
        document = load_proven(self._store, self._job.migration_id, compared)
        target_key = (compared.target_topic, compared.partition)
        anchor = Anchor.below(self.wire("target"), target_key, compared.target_end_offset)
        former = self._usable(document.proven, compared, offset_map)
        piece = rest_of(compared, former)
        if piece is None:
            assert former is not None
            return former.content
        target, source = self._target_log(compared, offset_map), self._source_log(compared)
        content = self._compare(piece, offset_map, target, source)
        if content.is_equal and not is_final(content):
            return content if former is None else joined(former.content, content)
        update: dict[str, object]
        if content.is_equal:
            log_starts = (source.log_start_offset(), target.log_start_offset())
            proven = grown(former, piece, content, anchor, log_starts)
            update = {"proven": proven, "differing": None, "differed_times": 0, "verdict": compared.verdict}
        else:
            update = differing(document, content)
        store_proven(self._store, document.model_copy(update=update))
        return content if former is None else joined(former.content, content)

    def _usable(
        self, proven: ProvenRange | None, compared: ContentRange, offset_map: PartitionMap
    ) -> ProvenRange | None:
        """Return what was proven before, if it still holds for these logs."""
        if proven is None or not fits(proven, compared, offset_map, id_rule(self._job.schema_ids, compared.topic)):
            return None
        if not still_holds(self.wire("target"), proven, compared.target_topic, compared.partition):
            log.warning("%s-%d: the target's log was rewritten, so it is compared again", *compared.key)
            return None
        return proven

    def _compare(
        self,
        piece: ContentRange,
        offset_map: PartitionMap,
        target: CommittedLog,
        source: CommittedLog | None = None,
    ) -> PartitionContent:
        """Compare a piece with the source, and what the source has deleted of it with the archive."""
        source = source or self._source_log(piece)
        ids = record_ids(self._job.schema_ids, piece.topic, self._store, self._job.migration_id)
        options = replace(self._options, ids=ids)
        content = compare_content(piece, offset_map, self._job.rules(piece.topic), source, target, options)
        if content.uncompared and self._job.archive_of_deleted is not None:
            index = self._segments(self._job.archive_of_deleted, piece)
            content = compare_deleted(content, piece, offset_map, index, target, options)
        return content

    def _target_log(self, compared: ContentRange, offset_map: PartitionMap) -> CommittedLog:
        target = KafkaLog(self.wire("target"), compared.target_topic, compared.partition)
        if not isinstance(offset_map, TransactionalMap):
            return target
        ours = OurLog(target, offset_map)
        _check_stable(compared, ours)
        return ours

    def _source_log(self, compared: ContentRange) -> CommittedLog:
        """Return the source's side: the cluster, or the archive where the job does not know the cluster."""
        if self._job.archive_location is None:
            return KafkaLog(self.wire("source"), compared.topic, compared.partition)
        return ArchiveLog(self._segments(self._job.archive_location, compared), compared.source_start_offset)

    def _segments(self, location: str, compared: ContentRange) -> SegmentIndex:
        archive = self._clients.store(location)
        return SegmentIndex(archive, self._job.migration_id, compared.topic, compared.partition)


def stored_map(store: ObjectStore, migration_id: str, compared: ContentRange) -> PartitionMap:
    """Return the offset map of a range's partition, closed at the range's end.

    :param store: of the journal.
    :raises OffsetMapInvalid: it does not exist, or cannot be read.
    """
    key = (migration_id, compared.topic, compared.partition)
    if compared.verdict is Verdict.TRANSACTIONAL:
        return MapPages(store, *key).load_final()
    if compared.verdict is not Verdict.MAPPED:
        return range_map(compared)
    base = OffsetRange(compared.source_start_offset, compared.target_start_offset)
    runs = RunLog(store, *key, base).load()
    return runs.closed(compared.source_end_offset, compared.target_end_offset)


def _check_stable(compared: ContentRange, target: CommittedLog) -> None:
    """Check that no other producer's open transaction hides our records: it hides all that follows its first record.

    :raises Transient: our last record cannot be read yet.
    """
    stable = target.last_stable_offset()
    if stable < compared.target_end_offset:
        raise Transient(
            f"an open transaction on the target hides all records from offset {stable} on",
            where=Where(cluster="target", topic=compared.target_topic, partition=compared.partition, offset=stable),
            next_step="find it (kafka-transactions.sh find-hanging) and wait until it ends; then clear validate",
        )


def _not_compared(compared: ContentRange, error: MigrationError) -> PartitionContent:
    return PartitionContent(
        topic=compared.topic,
        partition=compared.partition,
        source_records=0,
        target_records=0,
        compared=0,
        error=error.as_dict(),
    )


class LocalContentRunner:
    """Runs content jobs in this process, a few partitions at a time.

    :param threads: how many partitions are compared in parallel.
    :param stop: called before each batch; True ends the job with :class:`Interrupted`.
    """

    def __init__(self, clients: Clients, *, threads: int = 4, stop: Callable[[], bool] = lambda: False) -> None:
        self._clients = clients
        self._threads = threads
        self._stop = stop

    def run(self, job: ContentJob, *, progress: Progress | None = None) -> list[PartitionContent]:
        """Return one result per range, ascending by topic and partition, and store the results.

        :param progress: called with (result, partitions done, total partitions).
        :raises Interrupted: a stop was requested.
        """
        store = self._clients.store(job.journal_location)
        found: list[PartitionContent] = []
        for content in self._check_all(job, store):
            found.append(content)
            if progress is not None:
                progress(content, len(found), len(job.ranges))
        return sorted(found, key=lambda content: content.key)

    def submit(self, spec: object, job_location: str, job_key: str, read_progress: object) -> None:
        """Run a stored job; the interface that phases expect of a runner (``record.context.CopyRunner``).

        :raises JobMissing: the job does not exist.
        """
        data = self._clients.store(job_location).get(job_key)
        if data is None:
            raise JobMissing(
                "the content job does not exist",
                where=Where(path=f"{job_location}/{job_key}"),
                next_step="clear the task that writes it (validate)",
            )
        self.run(ContentJob.parse(data))

    def _check_all(self, job: ContentJob, store: ObjectStore) -> Iterator[PartitionContent]:
        failed = threading.Event()

        def stop() -> bool:
            return failed.is_set() or self._stop()

        def run(group: Sequence[ContentRange]) -> list[PartitionContent]:
            with ContentChecker(job, self._clients, store, stop=stop) as checker:
                return [checker.check(compared) for compared in group]

        with _pool(self._threads) as pool:
            try:
                for future in as_completed(
                    [pool.submit(run, group) for group in balanced(job.ranges, 4 * self._threads)]
                ):
                    yield from future.result()
            except BaseException:
                failed.set()
                raise


@contextmanager
def _pool(threads: int) -> Iterator[ThreadPoolExecutor]:
    """Open a thread pool that cancels what has not begun when an exception leaves the block."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix="content")
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    pool.shutdown()


def balanced(ranges: Iterable[ContentRange], groups: int) -> list[list[ContentRange]]:
    """Divide ranges into at most ``groups`` groups with about equal numbers of offsets, the largest groups first."""
    ordered = sorted(ranges, key=lambda item: (item.source_start_offset - item.source_end_offset, item.key))
    count = max(1, min(groups, len(ordered)))
    found: list[list[ContentRange]] = [[] for _ in range(count)]
    loads = [0] * count
    for item in ordered:
        lightest = loads.index(min(loads))
        found[lightest].append(item)
        # Opening a partition has a cost, however small the partition is.
        loads[lightest] += item.source_end_offset - item.source_start_offset + 1_000
    return [group for _, group in sorted(zip(loads, found, strict=True), key=lambda pair: -pair[0]) if group]
