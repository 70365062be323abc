"""``kafka-migration``: the command line on the same core as the Airflow operators."""

from __future__ import annotations

from typing import Annotated

import typer

from airflow_provider_kafka_migration import __version__
from airflow_provider_kafka_migration.cli import (
    abandon,
    dag_files,
    executor_package,
    freeze_receiver,
    inspect,
    migrate,
    mirror,
    plan,
    schemas,
    sealing_key,
    translate,
    way_back,
)
from airflow_provider_kafka_migration.cli.frame import MEANINGS

_EPILOG = "Exit status: " + "; ".join(f"{int(code)} {meaning}" for code, meaning in MEANINGS.items()) + "."

app = typer.Typer(
    name="kafka-migration",
    help="Move a live Kafka cluster to another one, keeping the offsets, with signed proof. Begin with validate, plan "
    "and precheck; then run, resume and status.",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"kafka-migration {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Move a live Kafka cluster to another one, keeping the offsets, with signed proof.

    Begin with validate, plan and precheck; then run, resume and status.
    """


for command in (*plan.COMMANDS, *migrate.COMMANDS, abandon.abandon, *sealing_key.COMMANDS, *dag_files.COMMANDS):
    app.command()(command)
app.add_typer(schemas.schemas_app, name="schemas")
app.add_typer(way_back.way_back_app, name="way-back")
app.add_typer(inspect.journal_app, name="journal")
app.add_typer(inspect.offset_map_app, name="offset-map")
app.add_typer(mirror.mirror_app, name="mirror")
app.add_typer(translate.translate_app, name="translate")
app.command()(executor_package.executor_package)
app.command()(freeze_receiver.freeze_receiver)
inspect.register(app)
