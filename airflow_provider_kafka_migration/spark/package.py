"""This package as a zip for ``--py-files``: what executors need of ours when it is not installed there."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import airflow_provider_kafka_migration

#: Folders that only Airflow uses; executors never import them.
_AIRFLOW_ONLY = frozenset({"hooks", "operators", "sensors", "triggers", "links", "plugins", "notifications"})
_NOT_CODE = frozenset({"__pycache__", "spark_jobs", "example_dags"})
#: The same bytes for the same files: zip entries carry a time.
_TIME = (1980, 1, 1, 0, 0, 0)


def build_py_files(folder: Path | str) -> Path:
    """Write ``airflow_provider_kafka_migration-<digest>.zip`` into a folder; the same code gives the same file.

    ``spark-submit --py-files FILE`` ships it to driver and executors. The Python packages that it imports (see
    ``session.EXECUTOR_PACKAGES``) must be installed there.
    """
    root = Path(airflow_provider_kafka_migration.__file__).parent
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and _is_shipped(path.relative_to(root))]
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


def _is_shipped(path: Path) -> bool:
    parts = path.parts
    return not (parts[0] in _AIRFLOW_ONLY or _NOT_CODE & set(parts) or path.suffix in (".pyc", ".so"))
