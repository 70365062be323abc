"""The probe on a standalone cluster: executors that reach one cluster, and a broker that answers nothing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from airflow_provider_kafka_migration import __version__
from airflow_provider_kafka_migration.checks.spark import judge
from airflow_provider_kafka_migration.documents.spark_probe import MachineLook, ProbeJob, SparkProbe
from airflow_provider_kafka_migration.lanes.libraries import LIBRARIES
from airflow_provider_kafka_migration.spark.launch import build_py_files
from airflow_provider_kafka_migration.storage.local import LocalStore
from harness.brokers import KafkaCluster
from harness.spark.spark_cluster import SparkCluster
from harness.spark.spark_connect import ConnectServer

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
PASSWORD = "never-to-be-seen-4711"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    """Master and two Workers with a slot each."""
    with SparkCluster(tmp_path / "spark") as made:
        yield made


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that accepts connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def run_probe(folder: Path, master: str, references: Path, *options: str) -> tuple[int, str]:
    """``spark-submit`` of the main: its exit status, and what it has printed."""
    command = [
        *(str(Path(sys.executable).with_name("spark-submit")), "--master", master),
        *("--conf", "spark.ui.enabled=false", "--conf", "spark.driver.bindAddress=127.0.0.1"),
        *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.executor.memory=512m"),
        *("--conf", "spark.driver.memory=512m", *options),
        *("--py-files", str(build_py_files(folder)), str(ROOT / "spark_jobs" / "probe.py")),
        *("--job-location", (folder / "journal").as_uri(), "--job-key", "m/jobs/probe.json"),
        *("--references", str(references)),
    ]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_broker_that_answers_nothing_is_found_by_driver_and_executors(
    cluster: SparkCluster, source_cluster: KafkaCluster, silent: str, tmp_path: Path
) -> None:
    source = source_cluster.bootstrap
    references = tmp_path / "references.json"
    silent_target = {
        "bootstrap.servers": silent,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ann",
        "sasl.password": PASSWORD,
    }
    content = {"source": {"bootstrap.servers": source}, "target": silent_target, "storage": None}
    references.write_text(json.dumps(content))
    references.chmod(0o600)
    store = LocalStore(tmp_path / "journal")
    job = ProbeJob(
        migration_id="m",
        generation=1,
        token="this-run",
        journal_location=store.uri,
        brokers={"target": [silent]},
        packages=dict(LIBRARIES),
    )
    store.put("m/jobs/probe.json", job.canonical())
    began = time.time()
    status, text = run_probe(tmp_path, cluster.url, references, "--conf", "spark.executor.instances=3")
    assert status == 0, text[-3000:] + cluster.log_tail()[-2000:]

    stored = store.get("m/results/spark-probe.json")
    assert stored is not None
    assert PASSWORD not in stored.decode() + text + cluster.log_tail()
    seen = SparkProbe.parse(stored)
    assert (seen.token, seen.master, seen.not_asked, seen.executors_asked) == ("this-run", cluster.url, [], 3)
    assert seen.spark_version
    assert seen.java_version
    assert [machine.name for machine in seen.machines] == ["driver", "0", "1"]
    for machine in seen.machines:
        check_machine(machine, source, silent, began)
    assert [item.key for item in store.list()] == ["m/jobs/probe.json", "m/results/spark-probe.json"]

    completed = seen.model_copy(update={"airflow_package_version": __version__})
    found = judge(completed, datetime.now(UTC))
    assert [(item.code, item.subject) for item in found] == [
        ("B135", f"target {silent}"),
        ("W143", cluster.url),
    ]
    assert "driver" in found[0].seen
    assert "executor 1" in found[0].seen


def test_through_spark_connect_the_tasks_of_the_server_answer(silent: str, tmp_path: Path) -> None:
    """Spark Connect names no executors and has no context; the server has only the code that the client sends."""
    references = tmp_path / "references.json"
    keys = {"bootstrap.servers": silent}
    references.write_text(json.dumps({"source": keys, "target": keys, "storage": None}))
    references.chmod(0o600)
    store = LocalStore(tmp_path / "journal")
    job = ProbeJob(migration_id="m", generation=1, journal_location=store.uri, packages=dict(LIBRARIES))
    store.put("m/jobs/probe.json", job.canonical())
    with ConnectServer(tmp_path / "connect", master="local[2]") as server:
        command = [
            *(sys.executable, str(ROOT / "spark_jobs" / "probe.py"), "--master", server.url),
            *("--job-location", store.uri, "--job-key", "m/jobs/probe.json", "--references", str(references)),
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=400, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:] + server.log_tail()[-2000:]
    stored = store.get("m/results/spark-probe.json")
    assert stored is not None
    seen = SparkProbe.parse(stored)
    assert seen.executors
    assert all(machine.package_version == __version__ for machine in seen.executors)
    assert all("pyarrow" in machine.packages for machine in seen.executors)
    assert {(look.cluster, look.error is None) for look in seen.executors[0].addresses} == {
        ("source", False),
        ("target", False),
    }
    assert seen.not_asked == []
    assert "local[2,4]" in seen.unsafe_settings[0], "settings that copies refuse are what the probe is to report"


def check_machine(machine: MachineLook, source: str, silent: str, began: float) -> None:
    assert machine.package_version == __version__, machine.package_error
    assert all(machine.packages.values())
    assert machine.began_at >= began
    looks = {(look.cluster, look.role, look.address): look.error for look in machine.addresses}
    assert {key for key, error in looks.items() if error is None} == {
        *(("source", "bootstrap", address) for address in source.split(",")),
        *(("source", "advertised", address) for address in source.split(",")),
    }
    for role in ("bootstrap", "advertised"):
        error = looks[("target", role, silent)]
        assert error is not None
        assert error["code"] == "BROKER_UNREACHABLE"
    assert [(look.error, look.left_behind) for look in machine.stores] == [(None, "")]
    if machine.name != "driver":
        assert machine.clock is not None
        assert machine.clock.least == 0.0, "all run on this machine"
