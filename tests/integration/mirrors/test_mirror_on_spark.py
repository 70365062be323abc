"""One flow whose seed and mirror run on Spark: driver, Python worker and command are killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from airflow_provider_kafka_migration.cli.frame import ExitCode
from harness.brokers import KafkaCluster
from harness.clients import LiveProducer, commit_offsets, committed_offsets, lost_records, positions
from harness.compare import bounds, compare
from harness.load import Kind, load, tiny_topics
from harness.processes import HarnessError, wait_for
from tests.integration.mirrors.mirror_support import Flow
from tests.integration.spark.spark_runs import command_of

# The DAG of a mirror runs its jobs on Spark in `make test` (tests/e2e/test_mirror_in_airflow.py).
pytestmark = [pytest.mark.integration, pytest.mark.soak]

_LAUNCHER = "org.apache.spark.launcher.Main"
_DAEMON = "pyspark.daemon"


@pytest.fixture
def flow(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_name: Callable[[str], str], tmp_path: Path
) -> Flow:
    prefix = f"{unique_name('onspark')}."
    name = prefix.strip(".").lower().replace("_", "-")
    sections = {
        # A dozen seconds in which the seed can be killed.
        "seed": {"via": "direct", "slice_seconds": 5, "max_bytes_per_second": "20KB"},
        # On a busy machine a Python worker needs seconds of each slice to begin.
        "tail": {"slice_seconds": 10},
        "spark": {"conf": {"spark.driver.memory": "512m", "spark.ui.enabled": "false"}},
    }
    plane = ("--runner", "spark", "--master", "local[2,4]")
    return Flow(source_cluster, target_cluster, tmp_path, name, prefix, ("A", "B"), sections, plane)


def eventually(check: Callable[[], bool], what: str) -> None:
    """Wait: on a busy machine Spark alone takes minutes to start."""
    wait_for(what, check, 600.0, 0.5)


def _below(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _driver(flow: Flow, pid: int, job: str, *, but: int = 0) -> psutil.Process:
    """The JVM of a job, below the command; not the one with this id."""
    name = f"kafka-migration-{flow.name}-{job}"
    found: list[psutil.Process] = []

    def runs() -> bool:
        for process in _below(pid):
            command = command_of(process)
            if name in command and "java" in command.split(" ")[0] and _LAUNCHER not in command and process.pid != but:
                found.append(process)
                return True
        return False

    eventually(runs, f"the driver of {job}")
    return found[0]


def _worker(pid: int) -> psutil.Process:
    """A Python worker: a child of PySpark's daemon."""
    found: list[psutil.Process] = []

    def runs() -> bool:
        for process in _below(pid):
            parent = process.parent()
            if _DAEMON in command_of(process) and parent is not None and _DAEMON in command_of(parent):
                found.append(process)
                return True
        return False

    eventually(runs, "a Python worker")
    return found[0]


def _count(cluster: KafkaCluster, topics: list[str]) -> int:
    """Records in these topics; 0 before they exist."""
    try:
        found = bounds(cluster.client_config(), topics)
    except HarnessError:
        return 0
    return sum(item.end for numbers in found.values() for item in numbers.values())


@pytest.mark.timeout(1500)
def test_a_flow_on_spark_is_killed_paused_resumed_and_promoted(flow: Flow) -> None:
    loads = tiny_topics(flow.prefix)
    load(flow.source, loads)
    remote = flow.remote([item.name for item in loads])
    orders, group = f"{flow.prefix}orders", f"{flow.prefix}readers"
    source, target = flow.source.client_config(), flow.target.client_config()
    numbers = sorted(bounds(source, [orders])[orders])
    commit_offsets(source, group, positions(source, [orders], 0.5))

    with LiveProducer(source, {orders: numbers}, records_per_second=100) as producer:
        command, log = flow.begin()
        # The seed's driver dies in the middle; the command submits another one.
        driver = _driver(flow, command.pid, "seed")
        eventually(lambda: _count(flow.target, list(remote.values())) > 0, "the seed copies")
        driver.kill()
        driver = _driver(flow, command.pid, "tail")
        assert "has stopped copying and goes on" in log.read_text(encoding="utf-8"), "the seed was not killed"

        def copies(what: str) -> None:
            before = _count(flow.target, [remote[orders]])
            eventually(lambda: _count(flow.target, [remote[orders]]) > before + 100, what)

        copies("it mirrors")
        _worker(command.pid).kill()
        copies("it mirrors after a worker was killed")
        driver.kill()
        driver = _driver(flow, command.pid, "tail", but=driver.pid)
        copies("it mirrors after the driver was killed")
        command.kill()
        command.wait()
        eventually(lambda: not command_of(driver), "the driver ends with its command")

        command = flow.start()
        copies("the next command goes on")
        assert flow("pause")["state"] == "paused"
        assert command.wait(240) == ExitCode.WAITS
        command = flow.start("resume")
        copies("it goes on after the pause")

    commit_offsets(source, group, positions(source, [orders], 1.0))
    promoted = flow("promote", "--reason", "moved")
    assert (promoted["state"], promoted["details"]["possibly_lost"]) == ("promoted", 0)
    assert command.wait(240) == ExitCode.OK

    compacted = [item.name for item in loads if item.kind is Kind.COMPACTED]
    compare(source, target, remote, compacted=compacted, fenced=True).check()
    acknowledged = {(remote[topic], number): found for (topic, number), found in producer.acknowledged.items()}
    assert producer.count() > 500
    assert lost_records(target, acknowledged) == []
    ends = {(remote[orders], number): item.end for number, item in bounds(source, [orders])[orders].items()}
    assert committed_offsets(target, group, [remote[orders]]) == ends
