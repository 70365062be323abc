"""The command line. ``main`` is the console script ``kafka-migration``."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line and exit with its status.

    :param arguments: without the program's name; None: those of this process.
    """
    from airflow_provider_kafka_migration.cli.app import app

    app(args=None if arguments is None else list(arguments), prog_name="kafka-migration")
