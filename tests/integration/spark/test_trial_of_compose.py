"""The trial of docker-compose.yaml without containers: its data, its spec, a standalone cluster, two registries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.brokers import KafkaCluster
from harness.clients import committed_offsets
from harness.compare import compare
from harness.registries import RegistryPair
from harness.s3 import S3Server
from harness.spark.spark_cluster import SparkCluster

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[3]
TOPICS = ["trial-events", "trial-orders", "trial-payments"]
_SECONDS = 1200


@pytest.fixture
def environment(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, registries: RegistryPair, s3_server: S3Server
) -> dict[str, str]:
    """The variables of the Compose file, with the addresses of this machine."""
    compose = yaml.safe_load((ROOT / "docker-compose.yaml").read_text(encoding="utf-8"))
    named = compose["services"]["spark-worker"]["environment"]
    here = {
        "KAFKA_SOURCE": source_cluster.client_config(),
        "KAFKA_TARGET": target_cluster.client_config(),
        "OBJECT_STORE": s3_server.config(),
        "REGISTRY_SOURCE": {"url": registries.source.url},
        "REGISTRY_TARGET": {"url": registries.target.url},
    }
    assert here.keys() <= named.keys()
    return {name: json.dumps(value) for name, value in here.items()}


@pytest.fixture
def cluster(tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkCluster]:
    """Master and one Worker with two slots, as in the Compose file. The Worker has the variables, too."""
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    with SparkCluster(tmp_path / "spark", workers=1, cores=2, worker_memory="2g") as made:
        yield made


def test_the_trial_ends_with_equal_clusters(
    cluster: SparkCluster,
    environment: dict[str, str],
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    tmp_path: Path,
) -> None:
    content = yaml.safe_load((ROOT / "docker" / "migrations" / "trial.yaml").read_text(encoding="utf-8"))
    # A key of Airflow's own; the buckets of the run exist already.
    content["evidence"]["signing_key"] = "env:TRIAL_KEY"
    spec = tmp_path / "trial.yaml"
    spec.write_text(yaml.safe_dump(content), encoding="utf-8")
    env = {**os.environ, **environment, "TRIAL_KEY": "6f" * 32}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, ROOT / "docker" / "trial_data.py"], env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    def command(*arguments: str | Path) -> dict[str, Any]:
        program = str(Path(sys.executable).with_name("kafka-migration"))
        done = subprocess.run(
            [program, *map(str, arguments), "--runner", "spark", "--master", cluster.url, "--json"],
            env=env,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        assert done.returncode in (0, 10), done.stdout + done.stderr + cluster.log_tail()
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    cutover = command("run", spec)
    switch = command("resume", spec, "--approve", cutover["waiting"]["code"])
    done = command("resume", spec, "--approve", switch["waiting"]["code"])
    assert done["state"] == "finalized"
    compare(source_cluster.client_config(), target_cluster.client_config(), TOPICS, fenced=True).check()
    on_source = committed_offsets(source_cluster.client_config(), "trial-billing", TOPICS[1:])
    assert on_source
    assert committed_offsets(target_cluster.client_config(), "trial-billing", TOPICS[1:]) == on_source
