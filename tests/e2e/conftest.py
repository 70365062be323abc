"""One Airflow for all tests of the DAG: it takes half a minute to start."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.airflow import AirflowStandalone
from harness.brokers import KafkaCluster
from harness.s3 import S3Server
from tests.e2e.migration_lab import ROOT, SIGNING_KEY, WEBHOOK_SECRET, Lab


@pytest.fixture(scope="session")
def lab(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    s3_server: S3Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Lab]:
    """Airflow with the project's DAG files and connections to everything."""
    folder = tmp_path_factory.mktemp("lab")
    dags = folder / "dags"
    dags.mkdir()
    (dags / "kafka_migrations").mkdir()
    for file in sorted((ROOT / "dags").glob("*.py")):
        (dags / file.name).write_bytes(file.read_bytes())
    s3 = s3_server.config()
    connections = {
        "kafka_source": {"conn_type": "kafka", "extra": source_cluster.client_config("admin")},
        "kafka_target": {"conn_type": "kafka", "extra": target_cluster.client_config("admin")},
        "aws_e2e": {
            "conn_type": "aws",
            "login": s3["aws_access_key_id"],
            "password": s3["aws_secret_access_key"],
            "extra": {"endpoint_url": s3["endpoint_url"], "region_name": s3["region_name"]},
        },
        "spark_default": {"conn_type": "spark", "host": "local[2,4]"},
        "e2e_webhook": {"conn_type": "generic", "password": WEBHOOK_SECRET},
        "e2e_signing_key": {"conn_type": "generic", "password": SIGNING_KEY},
    }
    env = {
        "AIRFLOW__KAFKA_MIGRATION__PROGRESS_INTERVAL": "1",
        "AIRFLOW__KAFKA_MIGRATION__SECRETS_DIRECTORY": str(folder / "secrets"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with AirflowStandalone(folder / "airflow", dags, connections, env) as airflow:
        yield Lab(folder, source_cluster, target_cluster, s3_server, airflow, itertools.count(1))


@pytest.fixture
def prefix(lab: Lab) -> str:
    """Topics and groups of this test only."""
    return f"e2e{next(lab.numbers)}."


@pytest.fixture
def secrets_folder(lab: Lab) -> Path:
    """Where Spark's connections are written."""
    return lab.folder / "secrets"
