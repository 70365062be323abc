"""The independent proof as a Spark job: what was copied is read again by Spark's own Kafka source and compared.

Nothing here, and nothing below it, reads records through the code that has copied them. What it takes from the product
is where to read (ranges, offset map, id map), and, from the brokers, where logs begin.

Partitions are read in slices, and results stored after each: a job that was killed continues with what is left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from airflow_provider_kafka_migration.compare.independent import IndependentResults
from airflow_provider_kafka_migration.compare.runner import stored_map
from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.documents.copy import ProvenanceSettings
from airflow_provider_kafka_migration.documents.independent import (
    SLICE_OFFSETS,
    IndependentJob,
    IndependentResult,
)
from airflow_provider_kafka_migration.documents.proof import ContentRange
from airflow_provider_kafka_migration.documents.schemas import SchemaIdMap, SchemaIdSettings, TopicIdSettings
from airflow_provider_kafka_migration.errors import (
    DocumentUnreadable,
    SparkConnectorMissing,
    SparkJobFailed,
    SparkReaderUnfit,
    Where,
)
from airflow_provider_kafka_migration.jobs.independent_jobs import note_begun
from airflow_provider_kafka_migration.spark.frames.groups import Found, Item, Kind, Side, compare_group
from airflow_provider_kafka_migration.spark.frames.java_client import java_settings
from airflow_provider_kafka_migration.spark.main import JobArguments, run_main, spark_errors
from airflow_provider_kafka_migration.spark.session import job_and_runner
from airflow_provider_kafka_migration.spark.tasks import ConnectRunner, ContextRunner, TaskRunner
from airflow_provider_kafka_migration.storage.base import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

#: How many Spark partitions a slot works through, of what is read and of what is joined.
_PARTITIONS_PER_SLOT = 4
#: A compacted partition has no more slices: each may have to look for its keys in all of the log.
_COMPACTED_SLICES = 8
#: What Spark says if it cannot hold a record's timestamp: it counts microseconds.
_TIME_OVERFLOW = "long overflow"


def prove(job: IndependentJob, store: ObjectStore, clients: Clients, spark: SparkSession, *, slots: int = 2) -> None:
    """Compare all partitions of a job that have no result yet, and store their results.

    :param store: of the journal.
    :param slots: how many Spark tasks run in parallel.
    :raises SparkConnectorMissing: Spark has no Kafka source.
    :raises ConnectionInvalid: a connection has something that the Java client cannot do.
    :raises SparkJobFailed: Spark could not read a cluster.
    """
    work = Work(
        migration_id=job.migration_id,
        journal_location=job.journal_location,
        items=[Item(item, stored_map(store, job.migration_id, item), job.rules(item.topic)) for item in job.ranges],
        without_timestamps=job.without_timestamps,
        schema_ids=job.schema_ids,
        slice_offsets=job.slice_offsets,
    )
    Proof(work, IndependentResults.of(job, store), store, clients, spark, slots).run()


@dataclass(frozen=True)
class Work:
    """What is compared, and how: as an :class:`IndependentJob` has it, but for the maps and rules.

    :param items: whole partitions, ascending.
    :param marks: how the copy has marked its records, if it has.
    """

    migration_id: str
    journal_location: str
    items: Sequence[Item]
    without_timestamps: Sequence[str] = ()
    schema_ids: SchemaIdSettings | None = None
    slice_offsets: Mapping[str, int] = field(default_factory=dict)
    marks: ProvenanceSettings | None = None

    def kind(self, item: Item) -> Kind:
        """Return how a partition is read."""
        topic = item.range.topic
        return Kind(item.has_one_run, topic not in self.without_timestamps, self._ids(topic), self.marks)

    def _ids(self, topic: str) -> TopicIdSettings | None:
        found = None if self.schema_ids is None else self.schema_ids.topics.get(topic)
        return found if found is not None and found.rewrite else None

    def slice_of(self, item: Item) -> int:
        """Return how many offsets of a partition are read at a time."""
        wanted = min(self.slice_offsets.get(item.range.topic, SLICE_OFFSETS), SLICE_OFFSETS)
        is_compacted = item.rules.compacted or item.target_rules.compacted
        return max(wanted, -(-_offsets(item.range) // _COMPACTED_SLICES)) if is_compacted else wanted


class _Slice(NamedTuple):
    """A piece of a partition, of the whole partition and how far it is compared before.

    :param weight: 1: as much as is read at a time.
    """

    item: Item
    piece: Item
    weight: float


class Proof:
    """Compares partitions, slice by slice.

    :param results: where they are stored.
    :param store: of the journal.
    :param on_result: called with each partition that is compared to its end, by this process or by an earlier one.
    """

    def __init__(
        self,
        work: Work,
        results: IndependentResults,
        store: ObjectStore,
        clients: Clients,
        spark: SparkSession,
        slots: int,
        *,
        on_result: Callable[[IndependentResult], None] = lambda _result: None,
    ) -> None:
        self._work = work
        self._results = results
        self._store = store
        self._spark = spark
        self._source, self._target = _side(clients, "source"), _side(clients, "target")
        self._reader = reader_of(spark)
        self._slots = slots
        self._on_result = on_result
        self._has_read = False

    def run(self) -> None:
        """Compare all partitions that have no result yet, and store their results.

        :raises SparkJobFailed: Spark could not read a cluster.
        """
        left = []
        for item in self._work.items:
            known = self._results.read(item.range)
            if known is None:
                left.append(item)
            else:
                self._on_result(known)
        log.info("%d of %d partitions are to be read by %s", len(left), len(self._work.items), self._reader)
        for kind, group in self._groups(left):
            self._compare(kind, group)

    def _groups(self, items: Iterable[Item]) -> Iterator[tuple[Kind, list[_Slice]]]:
        """Yield what is read at a time; the slices of one partition follow each other, each in a group of its own."""
        pairs = [(self._work.kind(item), item) for item in items]
        pairs.sort(key=lambda pair: (repr(pair[0]), pair[1].range.key))
        for kind, same in groupby(pairs, key=lambda pair: pair[0]):
            group: list[_Slice] = []
            for _, item in same:
                for piece in self._slices(item):
                    if group and (sum(other.weight for other in group) + piece.weight > 1 or group[-1].item is item):
                        yield kind, group
                        group = []
                    group.append(piece)
            if group:
                yield kind, group

    def _slices(self, item: Item) -> Iterator[_Slice]:
        """Yield the slices of a partition from where a former run has stopped."""
        known = self._results.read_so_far(item.range)
        at = item.range.source_start_offset
        if known is not None and known.reached_offset is not None:
            at = known.reached_offset
            log.info("%s-%d is compared up to source offset %d", *item.range.key, at)
        size, end = self._work.slice_of(item), item.range.source_end_offset
        while True:
            until = min(at + size, end)
            yield _Slice(item, item.slice(at, until), (until - at) / size)
            if until >= end:
                return
            at = until

    def _id_map(self, kind: Kind) -> SchemaIdMap | None:
        """Return the id map for topics whose ids are rewritten.

        :raises DocumentUnreadable: it is missing, or cannot be read.
        """
        settings = self._work.schema_ids
        if kind.ids is None or settings is None:
            return None
        key = settings.id_map_key
        try:
            return SchemaIdMap.parse(self._store.get(key) or b"")
        except ValidationError:
            raise DocumentUnreadable(
                "the map of schema ids is missing or cannot be read, so rewritten ids cannot be compared",
                where=Where(migration_id=self._work.migration_id, path=f"{self._work.journal_location}/{key}"),
                next_step="restore the object from a version of the bucket; then compare again",
            ) from None

    def _compare(self, kind: Kind, group: Sequence[_Slice]) -> None:
        id_map = self._id_map(kind)
        names = ", ".join(f"{item.range.topic}-{item.range.partition}" for item, _, _ in group[:3])
        with (
            _advised(may_be_unfit=not self._has_read),
            spark_errors(f"independent proof of {len(group)} partitions, the first: {names}"),
        ):
            try:
                found = compare_group(
                    self._spark,
                    self._source,
                    self._target,
                    kind,
                    [piece for _, piece, _ in group],
                    id_map=id_map,
                    splits=_PARTITIONS_PER_SLOT * self._slots,
                )
            except Exception as error:
                if _TIME_OVERFLOW not in str(error):
                    raise
                self._alone(kind, group)
                return
        self._has_read = True
        for compared, result in zip(group, found, strict=True):
            self._add(compared, result)
        log.info("%s: %s records are equal", names, f"{sum(result.compared for result in found):,}")

    def _alone(self, kind: Kind, group: Sequence[_Slice]) -> None:
        """Find the partitions with timestamps that Spark cannot hold: they end the query of their whole group."""
        if len(group) > 1:
            for item in group:
                self._compare(kind, [item])
            return
        self._add(group[0], Found(), "it has timestamps that Spark cannot hold (beyond the year 294247)")

    def _add(self, compared: _Slice, found: Found, reason: str = "") -> None:
        """Store what is known of a partition with one more slice."""
        whole, piece = compared.item.range, compared.piece.range
        until = piece.source_end_offset
        so_far = self._results.read_so_far(whole)
        if not self._follows(piece, so_far, whole):
            return
        if so_far is not None:
            names = [each.name for each in fields(Found)]
            found = Found(**{name: getattr(so_far, name) for name in names}).followed_by(found)
            reason = so_far.not_compared or reason
        result = IndependentResult(
            migration_id=self._work.migration_id,
            job_digest=self._results.digest,
            range=whole,
            reader=self._reader,
            not_compared=reason,
            reached_offset=until if until < whole.source_end_offset else None,
            **vars(found),
        )
        self._results.write(result)
        if result.reached_offset is not None:
            log.info("%s-%d is compared up to source offset %d", *whole.key, until)
            return
        if result.difference_count:
            log.warning("%s-%d has %d differences", *result.key, result.difference_count)
        self._on_result(result)

    def _follows(self, piece: ContentRange, so_far: IndependentResult | None, whole: ContentRange) -> bool:
        """Whether a slice begins where the stored result ends; False: another driver has stored this slice, too.

        A driver that everybody takes for dead may go on beside its successor.

        :raises SparkJobFailed: something before the slice is missing.
        """
        reached = whole.source_start_offset if so_far is None else so_far.reached_offset
        if reached is None or reached > piece.source_start_offset:
            log.warning("%s-%d is compared by another driver, too", *whole.key)
            if so_far is not None and reached is None:
                self._on_result(so_far)
            return False
        if reached < piece.source_start_offset:
            raise SparkJobFailed(
                f"the stored result ends at source offset {reached}, and not at {piece.source_start_offset}: another "
                "driver has written it",
                where=Where(migration_id=self._work.migration_id, topic=whole.topic, partition=whole.partition),
                next_step="end former drivers of this comparison, then clear the task: it goes on from there",
            )
        return True


#: What Java's client says where it cannot begin to read. The brokers have just answered this process's own client.
_UNFIT = (
    *("SslAuthenticationException", "SaslAuthenticationException", "LoginException", "UnsupportedVersionException"),
    *("Timed out waiting for a node assignment", "Timeout expired while fetching topic metadata"),
    *("No resolvable bootstrap urls", "UnknownHostException", "ConfigException"),
    *("Failed to create new KafkaAdminClient", "Failed to construct kafka consumer", "Failed to construct Kafka"),
)


@contextmanager
def _advised(*, may_be_unfit: bool = False) -> Iterator[None]:
    """Say how to go on where Spark cannot read a cluster: nothing of the migration itself has failed.

    :param may_be_unfit: nothing was read yet.
    """
    try:
        yield
    except SparkJobFailed as error:
        said = str(error.__cause__ or error.what)
        if may_be_unfit and any(mark in said for mark in _UNFIT):
            causes = [line.strip() for line in said.splitlines() if line.strip().startswith("Caused by:")]
            raise SparkReaderUnfit(
                f"Spark's Kafka source cannot read a cluster from where it runs: {(causes or [error.what])[-1][:500]}",
                where=error.where,
                next_step="see docs/spark.md: the network of Spark's machines, the authorities that Java trusts, jars "
                "for the login (aws-msk-iam-auth), krb5.conf and keytabs there; then compare again",
            ) from error
        raise SparkJobFailed(
            error.what,
            where=error.where,
            next_step="see the failed stage in the Spark UI or its log (can its machines reach both clusters, and does "
            "Java trust their certificates?), then clear the task: what was compared is not compared again. To go on "
            "without this reader, set validation.independent: off, or leave --independent out",
            details=error.details,
        ) from error


def _offsets(compared: ContentRange) -> int:
    return compared.source_end_offset - compared.source_start_offset


# -- session ----------------------------------------------------------------------------------------------------------


def session_of(runner: TaskRunner) -> SparkSession:
    """Return a runner's session for DataFrames.

    A Spark Connect server writes queries with the options of their sources into its event log and its pages. These
    options have the secrets of connections, so it must write no text of queries of this session.
    """
    if isinstance(runner, ConnectRunner):
        runner.session.conf.set("spark.sql.redaction.string.regex", "(?s).+")
        return runner.session
    from pyspark.sql import SparkSession

    assert isinstance(runner, ContextRunner)
    return SparkSession(runner.context)


def reader_of(spark: SparkSession) -> str:
    """Return the name and the versions of what reads.

    :raises SparkConnectorMissing: Spark has no Kafka source.
    """
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "none"}
    try:
        # Spark Connect looks for the source only when it has to say something of it. No broker is asked.
        _ = spark.read.format("kafka").options(**options).load().schema
    except Exception as error:
        if "kafka" not in str(error).lower() or "find" not in str(error).lower():
            raise
        raise SparkConnectorMissing(
            "Spark has no Kafka source here: the connector spark-sql-kafka-0-10 is not on its class path",
            next_step="set spark.kafka_connector in the spec to its jars, or validation.independent: off",
        ) from error
    client = ""
    jvm = getattr(spark, "_jvm", None) if not _is_remote(spark) else None
    if jvm is not None:
        client = f", kafka-clients {jvm.org.apache.kafka.common.utils.AppInfoParser.getVersion()}"
    return f"Kafka source of Spark {spark.version}{client}"


def _is_remote(spark: SparkSession) -> bool:
    return "connect" in type(spark).__module__


def _side(clients: Clients, name: str) -> Side:
    wire: list[Any] = []

    def log_starts(keys: Sequence[tuple[str, int]]) -> Mapping[tuple[str, int], int]:
        if not wire:
            wire.append(clients.wire(name, read_only=True))
        found: Mapping[tuple[str, int], int] = wire[0].list_offsets(list(keys), "earliest")
        return found

    return Side(java_settings(clients.client_config(name)), log_starts)


def run_job(arguments: JobArguments) -> None:
    """Run the independent proof: the function of its Spark main.

    Differences are results, not a failure of this job.

    :raises SparkConnectorMissing: Spark has no Kafka source.
    :raises ConnectionInvalid: a connection has something that the Java client cannot do.
    :raises SparkJobFailed: Spark could not read a cluster.
    """
    with job_and_runner(IndependentJob, arguments) as (job, store, runner), Clients(arguments.secrets) as clients:
        note_begun(store, job)
        prove(job, store, clients, session_of(runner), slots=runner.slots())


def main() -> int:
    """Run ``spark_jobs/independent.py``."""
    return run_main(run_job, "Compares both clusters record by record with Spark's own Kafka source.")
