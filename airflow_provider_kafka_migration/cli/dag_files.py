"""``kafka-migration dags``: the DAG files of this package, for a DAGs folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import airflow_provider_kafka_migration
from airflow_provider_kafka_migration.cli.frame import Answer, answering
from airflow_provider_kafka_migration.errors import SpecInvalid, Where


@answering
def dags(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The DAGs folder; it is made if it is missing.")],
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Name of one file, as kafka_migration; may be repeated. All by default."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that differ.")] = False,
) -> Answer:
    """Write the DAG files of this package into a folder: generic DAGs, and DAGs per YAML file.

    Each is a few lines that call a builder; change them as you like. Files that are there and differ are kept.
    """
    files = {path.stem: path for path in _files()}
    unknown = sorted(set(only or ()) - set(files))
    if unknown:
        raise SpecInvalid(
            f"there is no DAG file {', '.join(unknown)}",
            next_step=f"choose from {', '.join(files)}, or leave out --only",
        )
    wanted = [files[name] for name in sorted(set(only or files))]
    differing = [path.name for path in wanted if _differs(path, folder / path.name)]
    if differing and not overwrite:
        raise SpecInvalid(
            f"{len(differing)} of the files are there already and differ: {', '.join(differing)}; nothing was written",
            where=Where(path=str(folder)),
            next_step="give --overwrite to replace them, or --only for others",
        )
    folder.mkdir(parents=True, exist_ok=True)
    for path in wanted:
        (folder / path.name).write_bytes(path.read_bytes())
    written = [str(folder / path.name) for path in wanted]
    return Answer(data={"written": written}, text=[f"written: {path}" for path in written])


def _files() -> list[Path]:
    """Return the files: in the package where it is installed, beside it in a checkout."""
    root = Path(airflow_provider_kafka_migration.__file__).parent
    found = [sorted(place.glob("kafka_*.py")) for place in (root / "example_dags", root.parent / "dags")]
    return next(filter(None, found), [])


def _differs(ours: Path, there: Path) -> bool:
    return there.exists() and (not there.is_file() or there.read_bytes() != ours.read_bytes())


COMMANDS = (dags,)
