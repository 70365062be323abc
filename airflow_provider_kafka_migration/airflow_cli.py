"""``airflow kafka-migration ...``: the commands of ``kafka-migration`` through Airflow's CLI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from argparse import Namespace


def get_kafka_migration_cli_commands() -> list[Any]:
    """Return the commands for Airflow's CLI. This must be cheap: it runs for every ``airflow`` command."""
    from airflow.cli.cli_config import ActionCommand, Arg

    arguments = Arg(("arguments",), nargs="...", help="command and its arguments, as for kafka-migration")
    return [
        ActionCommand(
            name="kafka-migration",
            help="Move a live Kafka cluster to another one, keeping the offsets",
            description="The commands of `kafka-migration`, with Airflow's connections. "
            "`airflow kafka-migration COMMAND --help` describes each.",
            func=run,
            args=(arguments,),
        )
    ]


def run(args: Namespace) -> None:
    """Run the command, and exit with its exit status."""
    from airflow_provider_kafka_migration.cli import main
    from airflow_provider_kafka_migration.provider.compat import find_connections_of_the_database

    find_connections_of_the_database()
    main(args.arguments or ["--help"])
