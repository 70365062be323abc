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

from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.spark.launch import build_py_files
from harness.brokers import KafkaCluster
from harness.load import load, standard_topics
from harness.spark.spark_cluster import SparkCluster
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
    topics = standard_topics(unique_name("w") + ".", records=60_000, total_bytes=24_000_000)[:2]
    load(source_cluster, topics, seed=seed)
    copy = copying([topic.name for topic in topics], lanes=2)
    # About half a minute for each lane: a fault that lands on a lane that is ready proves nothing.
    copy.write_job("seed", max_bytes_per_second=80_000, segment_max_bytes=30_000, slice_seconds=5)
    return copy


def start(submit: Callable[..., SparkRun], copy: Copying, cluster: SparkCluster) -> SparkRun:
    options = [
        *("--py-files", str(build_py_files(copy.folder))),
        *("--conf", "spark.executor.memory=512m"),
        *("--conf", "spark.executor.cores=1"),
        # Lost executors are noticed in seconds, not in two minutes.
        *("--conf", "spark.network.timeout=20s"),
        *("--conf", "spark.network.timeoutInterval=5s"),
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


def wait_until_both_copy(run: SparkRun, copy: Copying, cluster: SparkCluster) -> None:
    """A Python worker below each Spark Worker, and each lane in the middle of its records.

    Fails at once when Spark has ended, or when a lane has nothing left: a fault would prove nothing.
    """
    job = CopyJob.parse(copy.clients.store(copy.journal).get(copy.job_key("seed")) or b"")
    lanes = [[item.key for item in lane.partitions] for lane in job.lanes]
    target, ends = copy.clients.wire("target"), copy.stable_ends()

    def shares() -> list[float]:
        copied = target.list_offsets(list(ends), "latest")
        return [sum(copied[key] for key in keys) / sum(ends[key] for key in keys) for keys in lanes]

    def both_copy() -> bool:
        assert run.process.poll() is None, run.text()[-4000:]
        return all(python_workers(cluster, number) for number in range(2)) and min(shares()) > 0.05

    wait_for(both_copy, 200, "both Workers copy")
    found = shares()
    print(f"copied by then: {found} of {sum(ends.values())} records")
    assert max(found) < 0.8


def test_a_worker_killed_in_the_middle_costs_no_record(
    copying: Callable[..., Copying],
    submit: Callable[..., SparkRun],
    source_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    cluster: SparkCluster,
) -> None:
    copy = seed_job(copying, source_cluster, unique_name, 41)
    run = start(submit, copy, cluster)
    wait_until_both_copy(run, copy, cluster)
    cluster.kill_worker(0)
    assert run.wait() == 0, run.text()[-4000:] + cluster.log_tail()
    copy.compare().check()


def test_a_worker_stopped_beyond_its_slice_is_no_second_owner(
    copying: Callable[..., Copying],
    submit: Callable[..., SparkRun],
    source_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    cluster: SparkCluster,
) -> None:
    copy = seed_job(copying, source_cluster, unique_name, 42)
    run = start(submit, copy, cluster)
    wait_until_both_copy(run, copy, cluster)
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
        "    from airflow_provider_kafka_migration.lanes import slices\n"
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
