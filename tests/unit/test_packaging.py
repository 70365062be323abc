"""The wheel and the source distribution: what is in them, and what is not."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = "airflow_provider_kafka_migration"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both distributions, built from a copy of the committed and new files."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode:
        pytest.skip("not a git clone")
    copy = tmp_path_factory.mktemp("tree")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    folder = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(folder)],
        cwd=copy,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    """The wheel."""
    return zipfile.ZipFile(next(built.glob("*.whl")))


def test_the_wheel_has_every_module_the_spark_mains_and_the_dags(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    modules = {
        str(path.relative_to(ROOT)) for path in (ROOT / PACKAGE).rglob("*.py") if "__pycache__" not in path.parts
    }
    assert modules <= names
    for path in (ROOT / "spark_jobs").glob("*.py"):
        assert f"{PACKAGE}/spark_jobs/{path.name}" in names
    for path in (ROOT / "dags").glob("*.py"):
        assert f"{PACKAGE}/example_dags/{path.name}" in names


def test_the_wheel_has_the_data_files_of_the_package(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    data = {
        str(path.relative_to(ROOT))
        for path in (ROOT / PACKAGE).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    assert data <= names


def test_the_wheel_has_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert tops == {PACKAGE, "airflow_provider_kafka_migration-0.1.0.dist-info"}
    assert not [name for name in wheel.namelist() if name.endswith(".pyc")]


def test_entry_points_and_metadata(wheel: zipfile.ZipFile) -> None:
    info = "airflow_provider_kafka_migration-0.1.0.dist-info"
    parser = configparser.ConfigParser()
    parser.read_string(wheel.read(f"{info}/entry_points.txt").decode())
    assert parser["console_scripts"]["kafka-migration"] == f"{PACKAGE}.cli:main"
    provider = f"{PACKAGE}.get_provider_info:get_provider_info"
    assert parser["apache_airflow_provider"]["provider_info"] == provider
    assert parser["airflow.plugins"]["kafka_migration"].startswith(f"{PACKAGE}.plugins.")
    metadata = wheel.read(f"{info}/METADATA").decode()
    assert "Name: airflow-provider-kafka-migration" in metadata
    assert "License-Expression: Apache-2.0" in metadata
    assert "Framework :: Apache Airflow :: Provider" in metadata
    assert "kafka-migration validate" in metadata or "# airflow-provider-kafka-migration" in metadata
    assert f"{info}/licenses/LICENSE" in wheel.namelist()


def test_the_source_distribution_can_run_tests_and_demo(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    for needed in ("Makefile", "requirements.lock", "scripts/bootstrap.sh", "demo/__main__.py", "harness/brokers.py"):
        assert needed in names
    assert any(name.startswith("tests/unit/") for name in names)
    assert not any(name.startswith((".venv", "build/", ".git/")) for name in names)
