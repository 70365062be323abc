"""A YAML file with mistakes, as an import error of its own.

Airflow keeps one import error per path and blocks every DAG of a path that has one. So the DAG file that reads all
YAML files must not fail, or one bad file would stop all migrations. Instead a bad file gives a DAG that claims to lie
at the YAML file's path and refuses to be serialised: the DAG processor records that as the import error of that path.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

from airflow.sdk import DAG


class BrokenMigration(DAG):
    """Stands for a YAML file that cannot become a DAG. Nothing ever runs in it.

    :param file: the YAML file.
    :param error: what is wrong with it.
    """

    def __init__(self, dag_id: str, file: Path, error: Exception) -> None:
        super().__init__(dag_id=dag_id, schedule=None)
        self.__dict__["broken_file"] = file
        self.__dict__["broken_error"] = error

    def __setattr__(self, name: str, value: Any) -> None:
        """The importer sets the path of the DAG file; it is the YAML file's here."""
        file: Path | None = self.__dict__.get("broken_file")
        if file is not None and name == "relative_fileloc":
            value = _relative(file, Path(self.fileloc), value)
        super().__setattr__(name, value)

    def get_serialized_fields(self) -> NoReturn:  # type: ignore[override]
        """Asked for by the serialisation.

        :raises Exception: what is wrong with the file.
        """
        raise self.__dict__["broken_error"]


def _relative(file: Path, dag_file: Path, relative_dag_file: str | None) -> str:
    """The YAML file relative to the DAG bundle, as the DAG file's own path is given; absolute outside of it."""
    if relative_dag_file is None:
        return str(file)
    depth = len(Path(relative_dag_file).parts)
    bundle = dag_file.resolve().parents[depth - 1]
    try:
        return str(file.resolve().relative_to(bundle))
    except ValueError:
        return str(file)
