"""DAGs from the YAML files of a folder. One with mistakes hides no other: it becomes an import error of its own."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any, NoReturn

from airflow.sdk import DAG, get_parsing_context

from airflow_provider_kafka_migration.errors import SpecInvalid, Where
from airflow_provider_kafka_migration.spec import MigrationSpec

#: Yields the specs in a file, and instead of a spec that has mistakes its error; a file of another kind has none.
ReadSpecs = Callable[[Path], Iterator[MigrationSpec | Exception]]


def load_dags(
    namespace: MutableMapping[str, Any],
    folder: str | Path,
    *,
    prefix: str,
    read: ReadSpecs,
    build: Callable[[MigrationSpec, str], DAG],
) -> None:
    """Put the DAGs of all files of a folder into a DAG file's ``globals()``.

    :param prefix: beginning of the DAG ids; ``_<migration_id>`` follows.
    :param build: makes the DAG of a spec and an id.
    """
    wanted = get_parsing_context().dag_id
    seen: dict[str, str] = {}
    for file in _files_for(wanted, prefix, folder):
        errors: list[Exception] = []
        for found in _read(read, file):
            try:
                if isinstance(found, Exception):
                    raise found
                _check_unique(found.migration_id, file, seen)
                dag_id = f"{prefix}_{found.migration_id}"
                if wanted in (None, dag_id):
                    namespace[dag_id] = build(found, dag_id)
                if wanted == dag_id:
                    return
            except Exception as error:
                errors.append(error)
        if errors:
            wrong = errors[0] if len(errors) == 1 else SpecInvalid("; ".join(map(str, errors)))
            warnings.warn(f"{file}: {wrong}", stacklevel=4)
            if wanted is None:
                broken_id = re.sub(r"[^A-Za-z0-9._-]", "_", f"broken.{file.name}")
                namespace[broken_id] = BrokenFile(broken_id, file, wrong)


def _files_for(wanted: str | None, prefix: str, folder: str | Path) -> list[Path]:
    """Return the files to read, in order: all of a folder, or for one DAG first those that mention its id.

    The start of a task needs one DAG, and reading a spec takes milliseconds. The ids of a file of flows follow from its
    aliases, so files that do not mention the id come after the others.
    """
    files = spec_files(folder)
    if wanted is None:
        return files
    name = wanted.removeprefix(f"{prefix}_")
    return [] if name == wanted else sorted(files, key=lambda file: name.encode() not in file.read_bytes())


def _read(read: ReadSpecs, file: Path) -> Iterator[MigrationSpec | Exception]:
    try:
        yield from read(file)
    except Exception as error:
        yield error


def _check_unique(migration_id: str, file: Path, seen: dict[str, str]) -> None:
    if migration_id in seen:
        raise SpecInvalid(
            f"the migration_id {migration_id!r} is also used in {seen[migration_id]}",
            where=Where(path=str(file)),
            next_step="give each of them its own id",
        )
    seen[migration_id] = file.name


def spec_files(folder: str | Path) -> list[Path]:
    """Return the YAML files of a folder in ascending order, without hidden ones. Empty if the folder does not exist."""
    found = [path for suffix in ("*.yaml", "*.yml") for path in Path(folder).glob(suffix)]
    return sorted(path for path in found if path.is_file() and not path.name.startswith("."))


# -- a broken file -----------------------------------------------------------------------------------------------------
#
# A YAML file with mistakes, as a separate import error.
#
# Airflow keeps one import error per path and blocks every DAG of a path that has one. So the DAG file that reads all
# YAML files must not fail, or one bad file would stop all migrations. Instead a bad file yields a DAG that claims the
# YAML file's path as its own and refuses to be serialized: the DAG processor records that as the import error of that
# path.


class BrokenFile(DAG):
    """Placeholder for a YAML file that cannot become a DAG. It never runs anything.

    :param file: the YAML file.
    :param error: what is wrong with it.
    """

    def __init__(self, dag_id: str, file: Path, error: Exception) -> None:
        super().__init__(dag_id=dag_id, schedule=None)
        self.__dict__["broken_file"] = file
        self.__dict__["broken_error"] = error

    def __setattr__(self, name: str, value: Any) -> None:
        """Replace the path of the DAG file, which the importer sets, with the YAML file's path."""
        file: Path | None = self.__dict__.get("broken_file")
        if file is not None and name == "relative_fileloc":
            value = _relative(file, Path(self.fileloc), value)
        super().__setattr__(name, value)

    def get_serialized_fields(self) -> NoReturn:  # type: ignore[override]
        """Fail the serialization, which calls this method.

        :raises Exception: what is wrong with the file.
        """
        raise self.__dict__["broken_error"]


def _relative(file: Path, dag_file: Path, relative_dag_file: str | None) -> str:
    """Return the YAML file's path relative to the DAG bundle, like the DAG file's own; absolute outside the bundle."""
    if relative_dag_file is None:
        return str(file)
    depth = len(Path(relative_dag_file).parts)
    bundle = dag_file.resolve().parents[depth - 1]
    try:
        return str(file.resolve().relative_to(bundle))
    except ValueError:
        return str(file)
