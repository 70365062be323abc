"""One Airflow for all tests of the DAG, which takes half a minute to start; and one for each file whose tasks die."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.brokers import KafkaCluster
from harness.s3 import S3Server
from tests.e2e.migration_lab import ROOT, Lab, lab_airflow


@pytest.fixture(scope="session")
def lab(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    s3_server: S3Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Lab]:
    """Airflow with the project's DAG files, the one of the approvals' tests, and connections to everything."""
    folder = tmp_path_factory.mktemp("lab")
    dags = folder / "dags"
    dags.mkdir()
    (dags / "kafka_migrations").mkdir()
    for file in sorted((ROOT / "dags").glob("*.py")):
        (dags / file.name).write_bytes(file.read_bytes())
    (dags / "approvals.py").symlink_to(Path(__file__).parent / "dags" / "approvals.py")
    env = {
        # Each task saves 1.6 s of processor time, and each parsing of the DAG files two thirds.
        "AIRFLOW__KAFKA_MIGRATION__PRELOAD": "True",
        "APPROVALS_FOLDER": str(folder / "approvals"),
    }
    (folder / "approvals").mkdir()
    clusters = {"kafka_source": source_cluster, "kafka_target": target_cluster}
    with lab_airflow(folder, dags, clusters, s3_server, env) as airflow:
        yield Lab(folder, source_cluster, target_cluster, s3_server, airflow, itertools.count(1))


@pytest.fixture(scope="module")
def kills(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file with the tasks that are to die; each death leaves a file beside it."""
    file = tmp_path_factory.mktemp("kills") / "tasks.json"
    file.write_text("[]")
    return file


@pytest.fixture(scope="module")
def killing_lab(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    s3_server: S3Server,
    kills: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Lab]:
    """An Airflow whose tasks kill themselves (``dags/killed_migration.py``)."""
    folder = tmp_path_factory.mktemp("killing-lab")
    dags = folder / "dags"
    dags.mkdir()
    file = dags / "killed_migration.py"
    file.write_bytes((Path(__file__).parent / "dags" / file.name).read_bytes())
    env = {"AIRFLOW__KAFKA_MIGRATION__PRELOAD": "True", "KILLS": str(kills)}
    clusters = {"kafka_source": source_cluster, "kafka_target": target_cluster}
    with lab_airflow(folder, dags, clusters, s3_server, env) as airflow:
        yield Lab(folder, source_cluster, target_cluster, s3_server, airflow, itertools.count(1))


@pytest.fixture
def prefix(lab: Lab) -> str:
    """Topics and groups of this test only."""
    return f"e2e{next(lab.numbers)}."


@pytest.fixture
def secrets_folder(lab: Lab) -> Path:
    """Where Spark's connections are written."""
    return lab.folder / "secrets"
