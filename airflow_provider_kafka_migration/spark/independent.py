"""The independent proof as a Spark job: what was copied is read again by Spark's own Kafka source and compared.

Nothing here, and nothing below it, reads records through the code that has copied them. What it takes from the product
is where to read (ranges, offset map, id map), and, from the brokers, where logs begin.

Results are stored partition by partition: a job that was killed continues with the partitions that are left.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from airflow_provider_kafka_migration.compare.independent import IndependentResults
from airflow_provider_kafka_migration.compare.runner import stored_map
from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.documents.independent import IndependentJob, IndependentResult
from airflow_provider_kafka_migration.documents.proof import ContentRange
from airflow_provider_kafka_migration.documents.schemas import SchemaIdMap, TopicIdSettings
from airflow_provider_kafka_migration.errors import DocumentUnreadable, SparkConnectorMissing, SparkJobFailed, Where
from airflow_provider_kafka_migration.spark.independent_compare import Found, Item, Kind, Side, compare_group
from airflow_provider_kafka_migration.spark.kafka_reader import java_settings
from airflow_provider_kafka_migration.spark.main import JobArguments, run_main, spark_errors
from airflow_provider_kafka_migration.spark.session import job_and_runner
from airflow_provider_kafka_migration.spark.tasks import ConnectRunner, ContextRunner, TaskRunner
from airflow_provider_kafka_migration.storage.base import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

#: Source offsets of one group: what a killed job may have to read again, if it is no single large partition.
GROUP_OFFSETS = 20_000_000
#: How many Spark partitions a slot works through, of what is read and of what is joined.
_PARTITIONS_PER_SLOT = 4
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
    source, target = _side(clients, "source"), _side(clients, "target")
    _Proof(job, store, spark, source, target, reader_of(spark), slots).run()


@dataclass(frozen=True)
class _Proof:
    """A job and what it needs."""

    job: IndependentJob
    store: ObjectStore
    spark: SparkSession
    source: Side
    target: Side
    reader: str
    slots: int

    @cached_property
    def _results(self) -> IndependentResults:
        return IndependentResults(self.job, self.store)

    def run(self) -> None:
        """Compare all partitions that have no result yet, and store their results."""
        left = [item for item in self.job.ranges if self._results.read(item) is None]
        log.info("%d of %d partitions are to be read by %s", len(left), len(self.job.ranges), self.reader)
        for kind, group in self._groups(left):
            self._compare(kind, group)

    def _groups(self, ranges: Sequence[ContentRange]) -> Iterator[tuple[Kind, list[Item]]]:
        items = [
            Item(item, stored_map(self.store, self.job.migration_id, item), self.job.rules(item.topic))
            for item in ranges
        ]
        pairs = sorted(
            ((self._kind(item), item) for item in items), key=lambda pair: (repr(pair[0]), pair[1].range.key)
        )
        for kind, same in groupby(pairs, key=lambda pair: pair[0]):
            group: list[Item] = []
            for _, item in same:
                if group and _offsets([*group, item]) > GROUP_OFFSETS:
                    yield kind, group
                    group = []
                group.append(item)
            yield kind, group

    def _kind(self, item: Item) -> Kind:
        topic = item.range.topic
        return Kind(item.has_one_run, topic not in self.job.without_timestamps, self._ids(topic))

    def _ids(self, topic: str) -> TopicIdSettings | None:
        found = None if self.job.schema_ids is None else self.job.schema_ids.topics.get(topic)
        return found if found is not None and found.rewrite else None

    def _id_map(self, kind: Kind) -> SchemaIdMap | None:
        """Return the id map for topics whose ids are rewritten.

        :raises DocumentUnreadable: it is missing, or cannot be read.
        """
        if kind.ids is None or self.job.schema_ids is None:
            return None
        key = self.job.schema_ids.id_map_key
        try:
            return SchemaIdMap.parse(self.store.get(key) or b"")
        except ValidationError:
            raise DocumentUnreadable(
                "the map of schema ids is missing or cannot be read, so rewritten ids cannot be compared",
                where=Where(migration_id=self.job.migration_id, path=f"{self.job.journal_location}/{key}"),
                next_step="restore the object from a version of the bucket; then clear validate",
            ) from None

    def _compare(self, kind: Kind, group: Sequence[Item]) -> None:
        id_map = self._id_map(kind)
        names = ", ".join(f"{item.range.topic}-{item.range.partition}" for item in group[:3])
        with _advised(), spark_errors(f"independent proof of {len(group)} partitions, the first: {names}"):
            try:
                found = compare_group(
                    self.spark,
                    self.source,
                    self.target,
                    kind,
                    group,
                    id_map=id_map,
                    splits=_PARTITIONS_PER_SLOT * self.slots,
                )
            except Exception as error:
                if _TIME_OVERFLOW not in str(error):
                    raise
                self._alone(kind, group)
                return
        for item, result in zip(group, found, strict=True):
            self._store(item.range, result)
        log.info("%s: %s records are equal", names, f"{sum(result.compared for result in found):,}")

    def _alone(self, kind: Kind, group: Sequence[Item]) -> None:
        """Find the partitions with timestamps that Spark cannot hold: they end the query of their whole group."""
        if len(group) > 1:
            for item in group:
                self._compare(kind, [item])
            return
        reason = "it has timestamps that Spark cannot hold (beyond the year 294247)"
        self._store(group[0].range, Found(), reason)

    def _store(self, compared: ContentRange, found: Found, reason: str = "") -> None:
        result = IndependentResult(
            migration_id=self.job.migration_id,
            job_digest=self.job.digest(),
            range=compared,
            reader=self.reader,
            not_compared=reason,
            **vars(found),
        )
        if result.difference_count:
            log.warning("%s-%d has %d differences", *compared.key, result.difference_count)
        self._results.write(result)


@contextmanager
def _advised() -> Iterator[None]:
    """Say how to go on where Spark cannot read a cluster: nothing of the migration itself has failed."""
    try:
        yield
    except SparkJobFailed as error:
        raise SparkJobFailed(
            error.what,
            where=error.where,
            next_step="see the failed stage in the Spark UI or its log (can its machines reach both clusters, and does "
            "Java trust their certificates?), then clear validate: partitions that were compared are not compared "
            "again. To go on without the independent proof, set validation.independent: off",
            details=error.details,
        ) from error


def _offsets(items: Iterable[Item]) -> int:
    return sum(item.range.source_end_offset - item.range.source_start_offset for item in items)


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
        prove(job, store, clients, session_of(runner), slots=runner.slots())


def main() -> int:
    """Run ``spark_jobs/independent.py``."""
    return run_main(run_job, "Compares both clusters record by record with Spark's own Kafka source.")
