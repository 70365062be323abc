"""What executors get: a wheel of the data plane that works with exactly the declared libraries, and without Airflow."""

from __future__ import annotations

import email
import importlib.metadata
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from airflow_provider_kafka_migration import __version__
from airflow_provider_kafka_migration.errors import Terminal
from airflow_provider_kafka_migration.lanes.libraries import LIBRARIES, SHIPPED_LIBRARIES
from airflow_provider_kafka_migration.spark import executor_package
from airflow_provider_kafka_migration.spark.executor_package import build_archive, build_wheel, dockerfile

pytestmark = pytest.mark.slow

#: What tasks and drivers import.
MODULES = (
    "airflow_provider_kafka_migration.spark.worker",
    "airflow_provider_kafka_migration.spark.seed",
    "airflow_provider_kafka_migration.spark.tail",
    "airflow_provider_kafka_migration.spark.compare",
    "airflow_provider_kafka_migration.spark.probe",
    "airflow_provider_kafka_migration.lanes.slices",
    "airflow_provider_kafka_migration.lanes.reach",
)
#: The environment of the image.
VENV = "/opt/kafka-migration/venv"
#: Spark brings these to its machines itself.
SPARK = ("pyspark",)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        return email.message_from_bytes(archive.read(name))


def needed_by(names: list[str]) -> set[str]:
    """Distributions that others need, with all that those need."""
    found: set[str] = set()
    left = list(names)
    while left:
        name = left.pop().lower().replace("_", "-")
        if name in found:
            continue
        try:
            texts = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found.add(name)
        for text in texts:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                left.append(requirement.name)
    return found


def link_distributions(folder: Path, names: set[str]) -> None:
    """Make a folder of modules that has these distributions and nothing else, as a clean environment would."""
    for name in sorted(names):
        for file in importlib.metadata.files(name) or ():
            top = file.parts[0]
            if top in ("..", "__pycache__") or (folder / top).exists():
                continue
            (folder / top).symlink_to(Path(str(file.locate())).parents[len(file.parts) - 1] / top)


def test_the_wheel_requires_exactly_what_copiers_import(wheel: Path) -> None:
    found = metadata(wheel)
    required = [Requirement(text) for text in found.get_all("Requires-Dist") or []]
    assert {item.name for item in required if item.marker is None} == set(SHIPPED_LIBRARIES.values())
    assert {item.name for item in required if item.marker is not None} == {
        *("aws-msk-iam-sasl-signer-python", "prometheus-client", "pyarrow"),
    }
    assert found["Version"] == __version__
    assert (
        found["Requires-Python"] == importlib.metadata.metadata("airflow-provider-kafka-migration")["Requires-Python"]
    )


def test_the_wheel_works_with_these_libraries_alone_and_never_imports_airflow(wheel: Path, tmp_path: Path) -> None:
    """The folder has the declared libraries with what they need, PySpark, and nothing else: also no Airflow."""
    link_distributions(tmp_path, needed_by([*LIBRARIES.values(), *SPARK]))
    code = (
        "import sys\n"
        f"sys.path[:0] = [{str(wheel)!r}, {str(tmp_path)!r}]\n"
        "import importlib, importlib.util\n"
        "assert importlib.util.find_spec('airflow') is None, 'the environment is not clean'\n"
        f"for name in {MODULES!r}:\n"
        "    module = importlib.import_module(name)\n"
        f"    assert module.__file__.startswith({str(wheel)!r}), module.__file__\n"
        "assert not [name for name in sys.modules if name.split('.')[0] == 'airflow']\n"
        "from airflow_provider_kafka_migration.spark.probe_task import look_around\n"
        f"seen = look_around({dict(LIBRARIES)!r}, b'', 'driver')\n"
        "assert all(seen['packages'].values()), seen['packages']\n"
    )
    # -I and -S: no site-packages, no environment variables, no checkout.
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_without_one_of_the_libraries_the_import_fails(wheel: Path, tmp_path: Path) -> None:
    """The environment of the test above is really limited to what it is given."""
    link_distributions(tmp_path, needed_by([*LIBRARIES.values(), *SPARK]) - {"cramjam"})
    code = f"import sys; sys.path[:0] = [{str(wheel)!r}, {str(tmp_path)!r}]; import {MODULES[5]}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert "No module named 'cramjam'" in done.stderr


def test_the_wheel_has_no_part_for_airflow_or_the_command_line(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        code = "\n".join(archive.read(name).decode() for name in names if name.endswith(".py"))
    tops = {name.split("/")[1] for name in names}
    assert not tops & {
        "operators",
        "hooks",
        "sensors",
        "triggers",
        "provider",
        "cli",
        "plugins",
        "dag.py",
        "dag_parts",
        "engines",
        "mirror_dag.py",
        "watch_dag.py",
    }
    assert "\nimport airflow\n" not in code
    assert "\nfrom airflow." not in code
    assert not [name for name in names if name.endswith(".pyc")]


def test_the_same_code_gives_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    assert build_wheel(tmp_path).read_bytes() == wheel.read_bytes()


def test_the_dockerfile_installs_the_wheel_into_a_python_that_is_new_enough(wheel: Path) -> None:
    """Spark's image has Python 3.10, and the wheel refuses it."""
    lines = dockerfile(wheel).replace("\\\n", "").splitlines()
    arguments = dict(line.removeprefix("ARG ").split("=") for line in lines if line.startswith("ARG "))
    (run,) = [line for line in lines if line.startswith("RUN ")]
    assert SpecifierSet(metadata(wheel)["Requires-Python"]).contains(arguments["PYTHON"])
    assert f"uv venv --managed-python --python ${{PYTHON}} {VENV} " in run
    assert f"uv pip install --no-cache --python {VENV}/bin/python /tmp/{wheel.name} " in run
    assert f"ENV PYSPARK_PYTHON={VENV}/bin/python PYSPARK_DRIVER_PYTHON={VENV}/bin/python" in lines
    assert f"COPY {wheel.name} /tmp/" in lines


def test_a_step_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(Terminal, match="the step that failed is: install the libraries"):
        build_archive(tmp_path / "env.tar.gz")
    assert not (tmp_path / "env.tar.gz").exists()


def test_a_package_that_is_not_installed_has_no_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(executor_package, "requirements", absent)
    with pytest.raises(Terminal, match="is not installed here"):
        build_wheel(tmp_path)


@pytest.mark.soak
def test_an_archive_is_an_environment_that_can_be_moved(tmp_path: Path) -> None:
    """Downloads the libraries. The unpacked environment, elsewhere, has them and this package, but neither Airflow."""
    archive = build_archive(tmp_path / "built" / "env.tar.gz")
    moved = tmp_path / "moved"
    moved.mkdir()
    subprocess.run(["tar", "-xzf", str(archive), "-C", str(moved)], check=True)
    code = (
        "import importlib.metadata as m, airflow_provider_kafka_migration as p\n"
        "import airflow_provider_kafka_migration.lanes.slices, airflow_provider_kafka_migration.lanes.reach\n"
        f"assert p.__file__.startswith({str(moved)!r}), p.__file__\n"
        "print(' '.join(sorted(d.metadata['Name'].lower() for d in m.distributions())))\n"
    )
    done = subprocess.run(
        [str(moved / "bin" / "python"), "-I", "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    names = set(done.stdout.split())
    assert set(SHIPPED_LIBRARIES.values()) <= names
    assert not {name for name in names if name.startswith("apache-airflow")}
    for name in SHIPPED_LIBRARIES.values():
        assert importlib.metadata.version(name)
