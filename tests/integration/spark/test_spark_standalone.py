"""A standalone cluster: two Workers, the code shipped as a zip; one Worker killed, one stopped beyond its slice."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from airflow_provider_kafka_migration.spark.package import build_py_files
from harness.brokers import KafkaCluster
from harness.load import load, standard_topics
from harness.spark_cluster import SparkCluster
from tests.integration.copy.copying import Copying, wait_for
from tests.integration.spark.spark_runs import SparkRun

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(900)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    """Master and two Workers with a slot each."""
    with SparkCluster(tmp_path / "spark") as made:
        yield made


def seed_job(
    copying: Callable[..., Copying], source_cluster: KafkaCluster, unique_name: Callable[[str], str], seed: int
) -> Copying:
    topics = standard_topics(unique_name("w") + ".", records=20_000, total_bytes=8_000_000)[:2]
    load(source_cluster, topics, seed=seed)
    copy = copying([topic.name for topic in topics], lanes=2)
    copy.write_job("seed", max_bytes_per_second=300_000, slice_seconds=5)
    return copy


def start(submit: Callable[..., SparkRun], copy: Copying, cluster: SparkCluster) -> SparkRun:
    options = [
        *("--py-files", str(build_py_files(copy.folder))),
        *("--conf", "spark.executor.memory=512m"),
        *("--conf", "spark.executor.cores=1"),
        # Lost executors are noticed in seconds, not in two minutes.
        *("--conf", "spark.network.timeout=20s"),
        *("--conf", "spark.executor.heartbeatInterval=2s"),
    ]
    return submit(copy, "seed", "seed", cluster.url, *options)


def python_workers(cluster: SparkCluster, number: int) -> list[psutil.Process]:
    """Python workers below a Spark Worker."""
    found = []
    for process in cluster.executors(number):
        try:
            parent = process.parent()
            if "pyspark.daemon" in " ".join(process.cmdline()) and parent is not None:
                found += [process] if "pyspark.daemon" in " ".join(parent.cmdline()) else []
        except psutil.NoSuchProcess:
            continue
    return found


def test_a_worker_killed_in_the_middle_costs_no_record(
    copying: Callable[..., Copying],
    submit: Callable[..., SparkRun],
    source_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    cluster: SparkCluster,
) -> None:
    copy = seed_job(copying, source_cluster, unique_name, 41)
    target = copy.clients.wire("target")
    run = start(submit, copy, cluster)
    wait_for(
        lambda: all(python_workers(cluster, number) for number in range(2)) and copied(copy, target) > 1_000,
        200,
        "both Workers copy",
    )
    cluster.kill_worker(0)
    assert run.wait() == 0, run.text()[-4000:] + cluster.log_tail()
    copy.compare().check()


def copied(copy: Copying, target: object) -> int:
    return sum(target.list_offsets(list(copy.partitions), "latest").values())  # type: ignore[attr-defined]


def test_a_worker_stopped_beyond_its_slice_is_no_second_owner(
    copying: Callable[..., Copying],
    submit: Callable[..., SparkRun],
    source_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    cluster: SparkCluster,
) -> None:
    copy = seed_job(copying, source_cluster, unique_name, 42)
    target = copy.clients.wire("target")
    run = start(submit, copy, cluster)
    wait_for(
        lambda: all(python_workers(cluster, number) for number in range(2)) and copied(copy, target) > 1_000,
        200,
        "both Workers copy",
    )
    frozen = [process for process in cluster.executors(0) if process.is_running()]
    for process in frozen:
        process.send_signal(signal.SIGSTOP)
    try:
        # The stopped copiers' slices pass, Spark gives their executor up, and others go far ahead.
        status = run.wait()
    finally:
        for process in frozen:
            try:
                process.send_signal(signal.SIGCONT)
            except psutil.NoSuchProcess:
                continue
    assert status == 0, run.text()[-4000:] + cluster.log_tail()
    time.sleep(1.0)  # what the woken ones would still send, they would send now
    copy.compare().check()


def test_the_code_of_executors_comes_from_the_zip(tmp_path: Path, cluster: SparkCluster) -> None:
    script = tmp_path / "where.py"
    script.write_text(
        "from pyspark.sql import SparkSession\n"
        "def where(_):\n"
        "    import airflow_provider_kafka_migration as package\n"
        "    from airflow_provider_kafka_migration.replication import slices\n"
        "    return package.__file__\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        "print('FROM', spark.sparkContext.parallelize([0], 1).map(where).first())\n"
        "spark.stop()\n"
    )
    package = build_py_files(tmp_path)
    submit = Path(sys.executable).with_name("spark-submit")
    command = [str(submit), "--master", cluster.url, "--conf", "spark.executor.memory=512m", "--py-files", str(package)]
    done = subprocess.run([*command, str(script)], capture_output=True, text=True, timeout=200, check=False)
    found = [line for line in done.stdout.splitlines() if line.startswith("FROM")]
    assert found, done.stderr[-3000:]
    assert package.name in found[0]
