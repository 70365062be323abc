"""Every supported series of Spark runs the three mains, with this package shipped as a zip.

Driver and executors run in an environment that has neither this project nor another Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_kafka_migration.spark.launch import build_py_files
from harness.brokers import KafkaCluster
from harness.spark.spark_connect import ConnectServer
from harness.spark.spark_versions import CONNECT_SERIES, SERIES, Offline, python_of
from tests.integration.copy.copying import Copying
from tests.integration.spark.spark_runs import ConnectRun, SparkRun
from tests.integration.spark.three_mains import run_three_mains

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(2400)]


@pytest.mark.parametrize("series", sorted(SERIES))
def test_seed_verify_and_tail_on_each_series(
    copying: Callable[..., Copying],
    submit: Callable[..., SparkRun],
    source_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    series: str,
) -> None:
    python = _python_or_skip(series)

    def make(topics: list[str]) -> tuple[Copying, Callable[[str, str], SparkRun]]:
        copy = copying(topics, lanes=3)
        package = str(build_py_files(copy.folder))

        def start(main: str, job: str) -> SparkRun:
            env = {"PYTHONPATH": ""}
            return submit(copy, main, job, "local[2,4]", "--py-files", package, python=python, env=env)

        return copy, start

    run_three_mains(source_cluster, unique_name("v") + ".", make, seed=71)


@pytest.mark.parametrize("series", CONNECT_SERIES)
def test_seed_verify_and_tail_through_spark_connect_of_each_series(
    copying: Callable[..., Copying],
    connect: Callable[..., ConnectRun],
    source_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    tmp_path: Path,
    series: str,
) -> None:
    python = _python_or_skip(series, connect=True)
    with ConnectServer(tmp_path / "server", python=python) as server:

        def make(topics: list[str]) -> tuple[Copying, Callable[[str, str], ConnectRun]]:
            copy = copying(topics, lanes=3)
            return copy, lambda main, job: connect(copy, main, job, server.url, python=python)

        run_three_mains(source_cluster, unique_name("vc") + ".", make, seed=72)


def _python_or_skip(series: str, *, connect: bool = False) -> str:
    try:
        return str(python_of(series, connect=connect))
    except Offline as error:
        pytest.skip(f"Spark {series} is not in the cache and cannot be fetched: {error}")
