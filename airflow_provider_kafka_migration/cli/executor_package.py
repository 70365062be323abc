"""``kafka-migration executor-package``: what Spark's machines need, without Airflow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from airflow_provider_kafka_migration.cli.frame import Answer, answering
from airflow_provider_kafka_migration.errors import SpecInvalid


@answering
def executor_package(
    wheel: Annotated[
        Path | None, typer.Option("--wheel", help="Write the wheel into this folder.", show_default=False)
    ] = None,
    archive: Annotated[
        Path | None,
        typer.Option(
            "--archive", help="Write an environment for --archives to this file (.tar.gz).", show_default=False
        ),
    ] = None,
    dockerfile: Annotated[
        Path | None,
        typer.Option("--dockerfile", help="Write a Dockerfile and the wheel into this folder.", show_default=False),
    ] = None,
    python_prefix: Annotated[
        str,
        typer.Option(
            "--python-prefix",
            help="With --archive: the folder on Spark's machines whose bin has the same version of Python as this "
            "command; by default the one that it has here.",
            show_default=False,
        ),
    ] = "",
    msk: Annotated[bool, typer.Option("--msk", help="With --archive: include the login to MSK by IAM.")] = False,
    connect: Annotated[
        bool, typer.Option("--connect", help="With --archive: include what tasks of Spark Connect need (pyarrow).")
    ] = False,
) -> Answer:
    """Build what Spark's machines need to run copies: this package without Airflow, with the libraries of copiers.

    The wheel requires those libraries within this version's bounds. The archive is an environment with exactly the
    versions that this command runs with, for spark-submit's --archives FILE#env and
    spark.pyspark.python=./env/bin/python; it is built with pip, so it needs a package index.
    """
    from airflow_provider_kafka_migration.spark import executor_package as package

    if wheel is None and archive is None and dockerfile is None:
        raise SpecInvalid(
            "nothing to build", next_step="give --wheel FOLDER, --archive FILE, --dockerfile FOLDER, or several of them"
        )
    written: dict[str, str] = {}
    if wheel is not None:
        written["wheel"] = str(package.build_wheel(wheel))
    if dockerfile is not None:
        built = package.build_wheel(dockerfile)
        (dockerfile / "Dockerfile").write_text(package.dockerfile(built), encoding="utf-8")
        written["dockerfile"] = str(dockerfile / "Dockerfile")
    if archive is not None:
        extras = tuple(name for name, wanted in (("msk", msk), ("connect", connect)) if wanted)
        written["archive"] = str(package.build_archive(archive, python_prefix=python_prefix, extras=extras))
    return Answer(data={"written": written}, text=[f"written: {path}" for path in written.values()])
