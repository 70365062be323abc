"""A Spark session for the drivers' tests, and copies for those that run the mains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kafka_migration.spark.session import open_runner
from airflow_provider_kafka_migration.spark.tasks import ContextRunner
from harness.brokers import KafkaCluster
from tests.integration.copy.copying import Copying
from tests.integration.spark.spark_runs import ConnectRun, MainRun, SparkRun


@pytest.fixture(scope="module")
def spark() -> Iterator[ContextRunner]:
    """local[2,4], started as the mains start theirs."""
    runner = open_runner(
        "kafka-migration tests",
        master="local[2,4]",
        conf={"spark.ui.enabled": "false", "spark.driver.memory": "512m", "spark.driver.bindAddress": "127.0.0.1"},
    )
    assert isinstance(runner, ContextRunner)
    runner.context.setLogLevel("OFF")
    yield runner
    runner.stop()


@pytest.fixture
def copying(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, tmp_path: Path, unique_name: Callable[[str], str]
) -> Callable[..., Copying]:
    """Makes a :class:`Copying` of topics that are on the source."""

    def make(topics: list[str], **options: Any) -> Copying:
        return Copying(source_cluster, target_cluster, tmp_path, topics, unique_name("m").lower(), **options)

    return make


@pytest.fixture
def runs() -> Iterator[list[MainRun]]:
    """Runs of mains; what still runs when the test ends is killed."""
    started: list[MainRun] = []
    yield started
    for run in started:
        run.end()


@pytest.fixture
def submit(runs: list[MainRun]) -> Callable[..., SparkRun]:
    """Starts ``spark-submit``."""

    def start(*arguments: Any, **options: Any) -> SparkRun:
        run = SparkRun(*arguments, **options)
        runs.append(run)
        return run

    return start


@pytest.fixture
def connect(runs: list[MainRun]) -> Callable[..., ConnectRun]:
    """Starts a main as a client of Spark Connect."""

    def start(*arguments: Any, **options: Any) -> ConnectRun:
        run = ConnectRun(*arguments, **options)
        runs.append(run)
        return run

    return start
