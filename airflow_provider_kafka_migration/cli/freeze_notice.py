"""The notice of a command that leaves a freeze open: people must not find out from stopped producers.

A command may end inside a freeze by an error, a signal, or ``--until``. From then on it no longer enforces the limit.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_kafka_migration.cli.frame import Notice, say_last
from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.spec import MigrationSpec

if TYPE_CHECKING:
    from datetime import datetime


def end_with_open_freeze(spec: MigrationSpec, file: Path) -> None:
    """Make the command's last lines report, however it ends, whether producers are frozen and what to do."""
    from airflow_provider_kafka_migration.journal.entries import utc_now

    began = utc_now()
    say_last(
        lambda: read_notice(spec, file, began),
        when_killed=f"ended immediately: `{_status(spec, file)}` shows whether producers are frozen",
    )


def read_notice(spec: MigrationSpec, file: Path, began: datetime) -> Notice | None:
    """Return a notice of a freeze according to the journal; None: there is none, and none was lifted.

    :param began: freezes that were lifted since this time are reported as well.
    """
    try:
        return _read(spec, str(file), began)
    except KeyboardInterrupt:
        return _unknown(spec, file, "interrupted while the journal was read")
    except MigrationError as error:
        return _unknown(spec, file, error.what)
    except Exception as error:  # it must not hide the error that ended the command
        return _unknown(spec, file, f"unexpected {type(error).__name__}")


def _read(spec: MigrationSpec, file: str, began: datetime) -> Notice | None:
    from airflow_provider_kafka_migration.cli.session import identity, resolver
    from airflow_provider_kafka_migration.freeze import open_freeze
    from airflow_provider_kafka_migration.migration import Migration

    # A new instance that opens only the storage: what the command had open may be the reason why it ends.
    migration = Migration.open(spec, identity(), resolver(), actor="last words", kind="cli")
    with migration, migration.reading() as context:
        found = open_freeze.read(context)
        if found is not None:
            return Notice({"freeze": found.as_dict(file)}, found.lines(file))
        lifted = open_freeze.lifted_since(context.record, began)
        return Notice({"freeze_lifted": lifted}, [lifted]) if lifted else None


def _status(spec: MigrationSpec, file: Path) -> str:
    return f"kafka-migration mirror status {file}" if spec.kind == "mirror" else f"kafka-migration status {file}"


def _unknown(spec: MigrationSpec, file: Path, why: str) -> Notice:
    lines = [
        f"it is unknown whether producers are frozen, because the journal cannot be read: {why}",
        f"as soon as its storage answers, run `{_status(spec, file)}`",
    ]
    data: dict[str, Any] = {"standing": "unknown", "text": lines}
    return Notice({"freeze": data}, lines)
