"""A Spark session with Spark's Kafka source, and the independent proof of a copy."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from airflow_provider_kafka_migration.compare.independent import IndependentResults
from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.documents.independent import IndependentJob, IndependentResult
from airflow_provider_kafka_migration.documents.proof import TopicRules
from airflow_provider_kafka_migration.spark import independent
from harness.brokers import KafkaCluster
from harness.jars.spark_kafka_jars import jars
from tests.integration.content.test_content_on_brokers import content_job
from tests.integration.copy.copying import Copying

_OF_CONNECT = ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE", "SPARK_LOCAL_REMOTE")

Prove = Callable[..., list[IndependentResult]]


@pytest.fixture(scope="package")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Spark's event log: what its history server shows."""
    return tmp_path_factory.mktemp("events")


def _end_former_jvm() -> None:
    """End the JVM that another test of this process has started: its class path is fixed when it starts."""
    if SparkContext._active_spark_context is not None:
        SparkContext._active_spark_context.stop()
    gateway = SparkContext._gateway
    if gateway is None:
        return
    gateway.shutdown()
    # The JVM ends when its standard input does.
    gateway.proc.stdin.close()
    gateway.proc.wait()
    SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(scope="package")
def spark(events: Path) -> Iterator[SparkSession]:
    """A session with Spark's Kafka source."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _end_former_jvm()
    # A test of Spark Connect in the same process leaves this behind: functions would be those of a Connect session.
    of_connect = {name: value for name in _OF_CONNECT if (value := os.environ.pop(name, None)) is not None}
    builder = SparkSession.builder.master("local[2]").appName("independent").config("spark.ui.enabled", "false")
    # Other tests of this process may have been on networks of their own.
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    builder = builder.config("spark.jars", ",".join(str(jar) for jar in jars()))
    builder = builder.config("spark.eventLog.enabled", "true").config("spark.eventLog.dir", events.as_uri())
    builder = builder.config("spark.eventLog.compress", "false").config("spark.sql.shuffle.partitions", "4")
    session = builder.getOrCreate()
    yield session
    session.stop()
    os.environ.update(of_connect)


@pytest.fixture
def copying(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, tmp_path: Path, unique_name: Callable[[str], str]
) -> Callable[..., Copying]:
    """Makes a :class:`Copying` of topics that are on the source."""

    def make(topics: list[str], **options: Any) -> Copying:
        return Copying(source_cluster, target_cluster, tmp_path, topics, unique_name("m").lower(), **options)

    return make


def job_of(copy: Copying, rules: Mapping[str, TopicRules] | None = None, **fields: Any) -> IndependentJob:
    """Compare what the other proof compares."""
    ranges = content_job(copy).ranges
    return IndependentJob(
        **{"migration_id": copy.migration_id, "journal_location": copy.journal, "topics": rules or {}, "ranges": ranges}
        | fields
    )


@pytest.fixture
def prove(spark: SparkSession) -> Prove:
    """Runs the proof of a copy and returns its results."""

    def run(
        copy: Copying, job: IndependentJob | None = None, clients: Clients | None = None
    ) -> list[IndependentResult]:
        wanted = job or job_of(copy)
        store = copy.clients.store(copy.journal)
        independent.prove(wanted, store, clients or copy.clients, spark)
        return IndependentResults.of(wanted, store).read_all(wanted.ranges)

    return run
