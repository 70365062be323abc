"""The wheel in an environment of its own for each supported Airflow: it installs, and the tests of DAGs and tasks pass.

Once with what the constraints of a release allow, and once with the lowest versions that the package names. Airflow
publishes its constraints beside its source; where they cannot be had, what the newest packages were on the day of the
release stands in for them.
"""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]
CONSTRAINTS = "https://raw.githubusercontent.com/apache/airflow/constraints-{release}/constraints-{python}.txt"
#: The last release of each supported series, and the day after it.
RELEASES = {"3.1.8": "2026-03-12", "3.2.2": "2026-05-30", "3.3.2": "2026-09-18"}
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

TOOLS = (
    *("cryptography", "hypothesis", "jsonschema", "moto[server]", "pytest", "pytest-cov", "pytest-rerunfailures"),
    *("pytest-timeout", "pytest-xdist", "editables", "hatchling"),
)
#: What depends on Airflow and its providers.
TESTS = (
    *("links", "notifications", "operators", "provider", "registry", "triggers"),
    *("test_dag.py", "test_dag_way_back.py", "test_mirror_dag.py", "test_parse_cost.py", "test_provider_info.py"),
    *("test_task_groups.py", "test_watch_dag.py"),
)
#: For people who develop the package: with other releases these are red on purpose.
NOT_THERE = "not test_installed_version_was_tried"


def run(*command: str | Path, seconds: float = 1800) -> str:
    """Run a command in the checkout; return its output."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    return done.stdout


def uv(*arguments: str | Path) -> str:
    """Run uv, which the environment of developers has."""
    return run(Path(sys.executable).with_name("uv"), *arguments)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    return next(folder.glob("*.whl"))


def constraints(release: str, folder: Path) -> Path:
    """Return the file of constraints of a release: Airflow's, or its equal as of the day of the release."""
    found = folder / "constraints.txt"
    try:
        with urllib.request.urlopen(CONSTRAINTS.format(release=release, python=PYTHON), timeout=30) as answer:
            found.write_bytes(answer.read())
    except OSError:
        (folder / "all.in").write_text(f"apache-airflow[all]=={release}\n")
        given = ("--python-version", PYTHON, "--exclude-newer", RELEASES[release], "--no-annotate", "--no-header")
        uv("pip", "compile", "--quiet", *given, folder / "all.in", "-o", found)
    return found


def environment(folder: Path) -> Path:
    """Make an environment; return its Python."""
    uv("venv", "--quiet", "--python", sys.executable, folder / "venv")
    return folder / "venv" / "bin" / "python"


def check(python: Path) -> None:
    """Run the tests there, after a check that all that is installed fits together."""
    uv("pip", "check", "--python", python)
    given = ("-p", "no:cacheprovider", "--no-cov", "-n", "2", "--dist", "loadfile", "-k", NOT_THERE)
    print(run(python, "-m", "pytest", "-q", *given, *(ROOT / "tests" / "unit" / name for name in TESTS)))


@pytest.mark.parametrize("release", RELEASES)
def test_it_runs_with_what_the_constraints_of_a_release_allow(wheel: Path, tmp_path: Path, release: str) -> None:
    python = environment(tmp_path)
    allowed = constraints(release, tmp_path)
    wanted = (f"apache-airflow=={release}", f"{wheel}[openlineage]", *TOOLS)
    uv("pip", "install", "--quiet", "--python", python, *wanted, "--constraint", allowed)
    check(python)


def test_it_runs_with_the_lowest_versions_that_it_names(wheel: Path, tmp_path: Path) -> None:
    python = environment(tmp_path)
    lowest = tmp_path / "lowest.txt"
    given = ("--python-version", PYTHON, "--resolution", "lowest-direct", "--no-annotate", "--no-header")
    uv("pip", "compile", "--quiet", *given, "--extra", "openlineage", ROOT / "pyproject.toml", "-o", lowest)
    uv("pip", "install", "--quiet", "--python", python, "-r", lowest, wheel)
    uv("pip", "install", "--quiet", "--python", python, *TOOLS, "--constraint", lowest)
    check(python)
