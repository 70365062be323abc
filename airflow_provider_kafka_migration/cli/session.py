"""What commands share: the spec, a resolver that knows Airflow's connections, and the stores behind them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from airflow_provider_kafka_migration.references import DEFAULT_SCHEME, Resolver
from airflow_provider_kafka_migration.spec import MigrationSpec, load_spec

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.storage.base import ObjectStore

SpecArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="The migration's spec: YAML or JSON.", show_default=False)
]


def resolver() -> Resolver:
    """Knows ``env:``, ``file:`` and, through Airflow (imported when one is asked for), connection ids."""
    return Resolver({DEFAULT_SCHEME: _airflow_connection})


def _airflow_connection(conn_id: str) -> str:
    # Airflow takes seconds to import, and a spec with env: and file: references does without it.
    from airflow_provider_kafka_migration.hooks.resolver import connection_text

    return connection_text(conn_id)


def read_spec(file: Path) -> MigrationSpec:
    """The spec in a file.

    :raises SpecInvalid: with all mistakes.
    """
    return load_spec(file)
