"""Starts a Spark job: what ``spark-submit`` is given, from Airflow's tasks and from the command line.

Airflow imports this module when it parses a DAG, so it imports neither pyspark nor anything of the data plane.
"""

from __future__ import annotations

import hashlib
import sys
import zipfile
from pathlib import Path

import airflow_provider_kafka_migration
from airflow_provider_kafka_migration.errors import Terminal, Where
from airflow_provider_kafka_migration.record.keys import is_comparison_job

#: Two copiers of one lane would only stop each other, so Spark must not start a second copy of a slow task.
FORCED_CONF = {"spark.speculation": "false"}


def application_name(migration_id: str, job: str) -> str:
    """Return the name that Spark's UI shows."""
    return f"kafka-migration-{migration_id}-{job}"


#: Spark mains of jobs that share one. The tail's main also ends by itself, and follows if needed.
_MAINS = {"backup": "tail", "restore": "tail", "verify-archive": "verify"}


def main_name(job: str) -> str:
    """Return the file name of the Spark main that runs a job document of this name."""
    if is_comparison_job(job):
        return "compare_mirror.py"
    return f"{_MAINS.get(job, job)}.py"


def job_arguments(job_location: str, job_key: str, references: str, token: str | None = None) -> list[str]:
    """Return the arguments of a Spark main: pointers only.

    :param references: how the job gets its connections (:mod:`..references.argument`).
    :param token: the submission, under whose name the driver writes how it has ended.
    """
    arguments = ["--job-location", job_location, "--job-key", job_key, "--references", references]
    return [*arguments, "--token", token] if token else arguments


def python_environment() -> dict[str, str]:
    """Return the environment in which driver and executors of this machine run this process's Python."""
    return {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}


def main_file(name: str, folder: str = "") -> Path:
    """Return the path of a Spark main.

    :param folder: where to search; empty: inside the package (installed), or next to it (in the repository).
    :raises Terminal: it is not there.
    """
    package = Path(airflow_provider_kafka_migration.__file__).parent
    folders = [Path(folder)] if folder else [package / "spark_jobs", package.parent / "spark_jobs"]
    for place in folders:
        if (place / name).is_file():
            return place / name
    raise Terminal(
        f"the Spark main {name} was not found",
        where=Where(path=", ".join(str(place) for place in folders)),
        next_step="correct [kafka_migration] spark_jobs_folder" if folder else "reinstall the package",
    )


# -- package ----------------------------------------------------------------------------------------------------------
#
# Builds this package as a zip for ``--py-files``, for executors on which it is not installed.


#: Folders that only Airflow uses; executors never import them.
_AIRFLOW_ONLY = frozenset({"hooks", "operators", "sensors", "triggers", "links", "plugins", "notifications"})
_NOT_CODE = frozenset({"__pycache__", "spark_jobs", "example_dags"})
#: A fixed time: zip entries carry one, and the same files must give the same bytes.
_TIME = (1980, 1, 1, 0, 0, 0)


def build_py_files(folder: Path | str) -> Path:
    """Write ``airflow_provider_kafka_migration-<digest>.zip`` to a folder; the same code gives the same file.

    ``spark-submit --py-files FILE`` ships it to driver and executors. The Python packages that it imports (see
    ``session.EXECUTOR_PACKAGES``) must be installed there.
    """
    root = Path(airflow_provider_kafka_migration.__file__).parent
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and is_shipped(path.relative_to(root))]
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(root)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    target = Path(folder) / f"{root.name}-{digest.hexdigest()[:16]}.zip"
    if target.exists():
        return target
    partial = target.with_suffix(".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in files:
            entry = zipfile.ZipInfo(f"{root.name}/{path.relative_to(root).as_posix()}", _TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
    partial.replace(target)
    return target


def is_shipped(path: Path) -> bool:
    """Return whether executors may need a file of this package.

    :param path: relative to the package.
    """
    parts = path.parts
    return not (parts[0] in _AIRFLOW_ONLY or _NOT_CODE & set(parts) or path.suffix in (".pyc", ".so"))
