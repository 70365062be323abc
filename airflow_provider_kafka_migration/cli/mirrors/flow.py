"""What all commands of a mirror share: its spec, the words for its state, the time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from airflow_provider_kafka_migration.cli.frame import speak_of_mirror
from airflow_provider_kafka_migration.cli.session import read_spec
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.state import State, mirror_name

if TYPE_CHECKING:
    from pathlib import Path

ReasonOption = Annotated[str, typer.Option("--reason", help="Reason, for the journal.")]


def load_mirror(file: Path) -> MigrationSpec:
    """Return the spec of a mirror, and let all texts of the command name those of ``mirror``.

    :raises SpecInvalid: with every mistake, or because it is one of a migration.
    """
    speak_of_mirror()
    return read_spec(file).check_kind("mirror", path=str(file))


def state_name(state: State | None) -> str:
    """Return what people call a mirror's state; None: there is no journal yet."""
    return "not started" if state is None else mirror_name(state)


def now() -> str:
    """Return the time as requests and approvals carry it: ISO 8601, seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")
