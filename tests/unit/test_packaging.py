"""The wheel and the source distribution: what is in them, and what is not."""

from __future__ import annotations

import ast
import configparser
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

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


def test_the_wheel_says_that_it_has_types(wheel: zipfile.ZipFile) -> None:
    assert f"{PACKAGE}/py.typed" in wheel.namelist()


def test_the_wheel_claims_no_address_that_is_not_this_projects(wheel: zipfile.ZipFile) -> None:
    """A name on a host of documentation belongs to whoever registers it first: CONTRIBUTING.md says when to add it."""
    metadata = wheel.read(next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))).decode()
    assert "Project-URL" not in metadata
    assert "kafka-migration.readthedocs" not in metadata


def test_links_of_the_readme_lead_to_pages() -> None:
    targets = re.findall(r"\]\(([^)\s]+)", (ROOT / "README.md").read_text())
    assert len(targets) > 10
    for target in targets:
        assert target.startswith("https://") or (ROOT / target.partition("#")[0]).is_file(), target


def test_airflow_has_no_upper_bound() -> None:
    """An installer would refuse a newer Airflow to somebody whose mirror runs for years."""
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (airflow,) = [line for line in lines if re.match(r"apache-airflow\W", line) and "providers" not in line]
    assert "<" not in airflow


def test_the_wheel_has_the_data_files_of_the_package(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    data = {
        str(path.relative_to(ROOT))
        for path in (ROOT / PACKAGE).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    assert data <= names


def test_every_template_of_the_wheel_loads(wheel: zipfile.ZipFile) -> None:
    """The pages are rendered from an installed wheel, so their templates are package resources."""
    folder = f"{PACKAGE}/pages/templates/"
    names = sorted(name.removeprefix(folder) for name in wheel.namelist() if name.startswith(folder))
    assert {"plan.md.j2", "runbook.md.j2", "permissions.md.j2", "report.html.j2"} <= set(names)
    code = (
        "import sys\n"
        f"sys.path.insert(0, {wheel.filename!r})\n"
        f"from {PACKAGE}.pages import rendering\n"
        f"assert rendering.__file__.startswith({wheel.filename!r}), rendering.__file__\n"
        "for name in sys.argv[1:]:\n"
        "    rendering._environment(name.split('.')[-2]).get_template(name)\n"
    )
    subprocess.run([sys.executable, "-c", code, *names], check=True, timeout=60)


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


# ---- what is declared, demanded and used

#: Import name -> distribution, where they differ. Parts of a declared one count as it.
DISTRIBUTIONS = {
    "aws_msk_iam_sasl_signer": "aws-msk-iam-sasl-signer-python",
    "botocore": "boto3",
    "google": "google-cloud-secret-manager",
    # Client libraries of these providers, whose exceptions the engines translate.
    "kubernetes": "apache-airflow-providers-cncf-kubernetes",
    "tenacity": "apache-airflow-providers-databricks",
    "kafka": "kafka-python",
    "mypy_boto3_s3": "boto3-stubs",
    "nacl": "pynacl",
    "py4j": "pyspark",
    "openlineage": "apache-airflow-providers-openlineage",
    "pydantic_core": "pydantic",
    "yaml": "pyyaml",
}
#: Used as what Airflow brings: without an import of our own, or by the Spark mains alone.
_USED_BY_SPARK = {"pandas", "pyspark-client"}
#: Its connection type ``kafka`` and that one's form.
_CONNECTION_TYPES = {"apache-airflow-providers-apache-kafka"}
NOT_IMPORTED = _USED_BY_SPARK | _CONNECTION_TYPES


def _declared(*extras: str) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(text for extra in extras for text in project["optional-dependencies"][extra])]
    return {re.split(r"[\[<>=!~ ;]", text, maxsplit=1)[0] for text in texts}


def _imported(folder: Path) -> set[str]:
    """Distributions of everything that is imported, at the top or inside of a function."""
    found = set()
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found |= {_distribution(name) for name in names}
    return found - {"", PACKAGE.replace("_", "-")}


def _distribution(module: str) -> str:
    parts = module.split(".")
    if parts[0] in sys.stdlib_module_names or parts[0] == PACKAGE:
        return ""
    if parts[:2] == ["airflow", "providers"]:
        size = 4 if parts[2] in ("apache", "cncf", "common") else 3
        return "-".join(["apache", *parts[:size]]).replace("_", "-")
    return "apache-airflow" if parts[0] == "airflow" else DISTRIBUTIONS.get(parts[0], parts[0].replace("_", "-"))


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    imported = _imported(ROOT / PACKAGE)
    declared = _declared(
        *("spark", "msk", "kerberos", "openlineage", "prometheus", "gcp-secrets", "vault"),
        *("kubernetes", "databricks", "google"),
    )
    assert imported - declared == {"boto3-stubs"}
    assert declared - imported == NOT_IMPORTED


def test_executors_are_asked_for_what_a_copier_imports() -> None:
    """In a process of its own, as on an executor: a package that is demanded and never used shuts clusters out."""
    from airflow_provider_kafka_migration.spark.tasks import EXECUTOR_PACKAGES

    code = (
        "import sys\n"
        "import airflow_provider_kafka_migration.spark.worker\n"
        "import airflow_provider_kafka_migration.spark.compare\n"
        "import airflow_provider_kafka_migration.lanes.slices\n"
        f"missing = [name for name in {EXECUTOR_PACKAGES!r} if name not in sys.modules]\n"
        "assert not missing, missing\n"
        "assert 'airflow' not in sys.modules\n"
        "print(' '.join(sorted({name.partition('.')[0] for name in sys.modules})))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    used = {_distribution(name) for name in done.stdout.split() if not name.startswith("_")}
    demanded = {_distribution(name) for name in EXECUTOR_PACKAGES}
    assert used & _declared() - demanded == set()


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_every_supported_python_is_named_everywhere(version: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11,<3.15"
    assert f"Programming Language :: Python :: {version}" in project["classifiers"]
    assert f"python{version}" in (ROOT / "scripts" / "bootstrap.sh").read_text()
    assert version in (ROOT / "docs" / "compatibility.md").read_text()
