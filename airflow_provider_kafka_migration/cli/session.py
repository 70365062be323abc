"""Shared by all commands: the spec, a resolver that knows Airflow's connections, stores, documents by path or URI."""

from __future__ import annotations

import functools
import json
import os
import pwd
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from airflow_provider_kafka_migration.errors import DocumentUnreadable, SpecInvalid, Where
from airflow_provider_kafka_migration.references import DEFAULT_SCHEME, Resolver
from airflow_provider_kafka_migration.spec import MigrationSpec, load_spec

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.journal.journal import Journal
    from airflow_provider_kafka_migration.storage.base import ObjectStore

SpecArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="The migration's spec: YAML or JSON.", show_default=False)
]
StorageOption = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="REFERENCE",
        help="For s3:// addresses: Airflow aws connection, env:NAME or file:PATH. Default: the machine's identity.",
        show_default=False,
    ),
]


def resolver() -> Resolver:
    """Return a resolver for ``env:``, ``file:`` and connection ids, for which it imports Airflow on demand."""
    airflow = functools.cache(_airflow_resolver)
    return Resolver(
        {DEFAULT_SCHEME: lambda conn_id: airflow().text(conn_id)},
        {DEFAULT_SCHEME: lambda conn_id: airflow().renewal(conn_id)},
        {DEFAULT_SCHEME: lambda conn_id: json.dumps(airflow().registry(conn_id))},
    )


def _airflow_resolver() -> Resolver:
    # Airflow takes seconds to import, and a spec with only env: and file: references does not need it.
    from airflow_provider_kafka_migration.provider.compat import find_connections_of_the_database
    from airflow_provider_kafka_migration.provider.connections import airflow_resolver

    # Without this Airflow searches only the environment and secrets backends, not where `connections add` writes.
    find_connections_of_the_database()
    return airflow_resolver()


def read_spec(file: Path) -> MigrationSpec:
    """Return the spec in a file, or that of one flow in a file of several: ``mirrors.yaml#east->west``.

    :raises SpecInvalid: the file cannot be read, has mistakes, or has no such flow.
    """
    from airflow_provider_kafka_migration.spec.mirrors_file import load_mirrors

    path, separator, name = str(file).partition("#")
    if not separator or file.exists():
        return load_spec(file)
    flows = load_mirrors(path)
    if name not in flows:
        raise SpecInvalid(
            f"the file has no enabled flow {name!r}",
            where=Where(path=path),
            next_step=f"choose one of: {', '.join(flows)}",
        )
    return flows[name]


def person() -> str:
    """Return the machine user who runs the command: this user approves, and is named in the journal.

    The process's own user id decides. Variables such as ``LOGNAME`` would let one person answer as another.
    """
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user id without a name
        return f"uid-{os.getuid()}"


def identity() -> str:
    """Return the identity of the claim's owner, without the process: it stays the same from call to call."""
    return f"{person()}@{socket.gethostname()}"


def open_location(location: str, reference: str | None) -> ObjectStore:
    """Open the store at a location.

    :param reference: reference to S3 settings; None: the machine's own identity.
    :raises ConnectionInvalid: the reference cannot be resolved.
    """
    from airflow_provider_kafka_migration.storage.open import open_store
    from airflow_provider_kafka_migration.storage.s3 import S3Config

    s3_config = None
    if reference and location.startswith("s3://"):
        s3_config = S3Config.of(resolver(), reference)
    return open_store(location, s3_config)


def journal_store(spec: MigrationSpec) -> ObjectStore:
    """Open the store of a migration's journal, plan and jobs."""
    return open_location(spec.storage.journal, spec.storage.conn_id)


def evidence_store(spec: MigrationSpec) -> ObjectStore:
    """Open the store of a migration's evidence and offset map."""
    return open_location(spec.storage.evidence_location, spec.storage.conn_id)


def open_journal(spec: MigrationSpec) -> Journal:
    """Open the journal for reading, without a claim.

    :raises DocumentUnreadable: there is no journal.
    """
    from airflow_provider_kafka_migration.journal.journal import Journal

    store = journal_store(spec)
    journal = Journal(store, spec.migration_id)
    if not journal.exists:
        raise DocumentUnreadable(
            "there is no journal for this migration",
            where=Where(migration_id=spec.migration_id, path=store.uri),
            next_step="check storage.journal in the spec; `kafka-migration run FILE` starts a migration",
        )
    return journal


def read_document(place: str, reference: str | None) -> bytes:
    """Return the bytes at a path, a file:// or an s3:// address.

    :raises DocumentUnreadable: it does not exist or cannot be read.
    """
    where = Where(path=place)
    if place.startswith("s3://"):
        prefix, _, key = place.rpartition("/")
        data = open_location(prefix, reference).get(key) if prefix.count("/") >= 2 else None
        if data is None:
            raise DocumentUnreadable("the object does not exist", where=where, next_step="check bucket and key")
        return data
    try:
        return Path(place.removeprefix("file://")).read_bytes()
    except OSError as error:
        raise DocumentUnreadable(
            f"the file cannot be read: {error.strerror}", where=where, next_step="check the path"
        ) from None
