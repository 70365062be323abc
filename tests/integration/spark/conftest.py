"""A Spark session for the drivers' tests, and copies for those that run the mains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_kafka_migration.spark.session import build_session
from harness.brokers import KafkaCluster
from tests.integration.copy.copying import Copying
from tests.integration.spark.spark_runs import SparkRun


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """local[2,4], built as the mains build theirs."""
    session = build_session(
        "kafka-migration tests",
        master="local[2,4]",
        conf={"spark.ui.enabled": "false", "spark.driver.memory": "512m", "spark.driver.bindAddress": "127.0.0.1"},
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def copying(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, tmp_path: Path, unique_name: Callable[[str], str]
) -> Callable[..., Copying]:
    """Makes a :class:`Copying` of topics that are on the source."""

    def make(topics: list[str], **options: Any) -> Copying:
        return Copying(source_cluster, target_cluster, tmp_path, topics, unique_name("m").lower(), **options)

    return make


@pytest.fixture
def submit() -> Iterator[Callable[..., SparkRun]]:
    """Starts ``spark-submit``; what still runs when the test ends is killed."""
    runs: list[SparkRun] = []

    def start(*arguments: Any) -> SparkRun:
        runs.append(SparkRun(*arguments))
        return runs[-1]

    yield start
    for run in runs:
        run.end()
