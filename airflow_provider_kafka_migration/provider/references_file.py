"""Connections for Spark, as a file that only this user may read and that lives as long as the job.

``{"source": {librdkafka keys}, "target": {...}, "storage": {S3 settings} | null}``. On machines where executors do
not see this file the values are references (``env:NAME``) that each executor resolves itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from airflow_provider_kafka_migration.errors import ConnectionInvalid, Where
from airflow_provider_kafka_migration.references import Resolver, split_reference
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.storage.s3_credentials import keys_kept_in, with_keys_file

_ROLES = ("source", "target", "storage")


def references(spec: MigrationSpec) -> dict[str, str | None]:
    """The spec's references by role."""
    return {"source": spec.source.conn_id, "target": spec.target.conn_id, "storage": spec.storage.conn_id}


def references_document(spec: MigrationSpec, resolver: Resolver) -> dict[str, Any]:
    """What Spark is given: the connections themselves, or references to them (``spark.executor_references``).

    :raises ConnectionInvalid: a connection is missing, or executors could not resolve it.
    """
    given = references(spec)
    if spec.spark.executor_references == "file":
        return {role: resolver.mapping(given[role]) if given[role] else None for role in _ROLES}  # type: ignore[arg-type]
    return {role: _executor_reference(role, given[role], spec) for role in _ROLES}


def _executor_reference(role: str, reference: str | None, spec: MigrationSpec) -> str | None:
    if reference is None:
        return None
    scheme, rest = split_reference(reference)
    if scheme in ("env", "file"):
        return reference
    if spec.spark.executor_references == "env":
        return f"env:{environment_name(role)}"
    raise ConnectionInvalid(
        f"executors have no Airflow, so they cannot read the connection {rest!r}",
        where=Where(migration_id=spec.migration_id, path=f"airflow:{rest}"),
        next_step=f"set spark.executor_references to file, or to env and give each executor {environment_name(role)}",
    )


def environment_name(role: str) -> str:
    """The environment variable from which executors take a connection (``executor_references: env``)."""
    return f"KAFKA_MIGRATION_{role.upper()}"


def private_directory(owner: str, task_id: str) -> Path:
    """A folder for one task of one run. Always the same, so that a new attempt removes what a killed one left."""
    from airflow.sdk.configuration import conf

    base = conf.get("kafka_migration", "secrets_directory", fallback="") or tempfile.gettempdir()
    name = hashlib.sha256(f"{owner}\n{task_id}".encode()).hexdigest()[:24]
    return Path(base) / f"kafka-migration-{os.getuid()}-{name}"


def storage_renewal(spec: MigrationSpec, resolver: Resolver) -> Callable[[], Any] | None:
    """Gives the storage keys that hold now, where Spark is given keys that end; else None."""
    reference = spec.storage.conn_id
    if reference is None or spec.spark.executor_references != "file":
        return None
    return resolver.renewal(reference)


@contextmanager
def references_file(
    document: dict[str, Any], directory: Path, *, renew: Callable[[], Any] | None = None
) -> Iterator[Path]:
    """The document as a file of mode 0600 in a folder of mode 0700, removed at the end.

    :param renew: gives the storage keys that hold now. They get a file of their own, which is replaced whenever they
        change, and which Spark's driver and workers read again.
    :raises ConnectionInvalid: the folder cannot be made private to this user.
    """
    remove_directory(directory)
    keys = directory / "storage-keys.json"
    if renew is not None:
        document = {**document, "storage": with_keys_file(document["storage"], keys)}
    with ExitStack() as stack:
        try:
            directory.mkdir(mode=0o700, parents=True)
            stack.callback(remove_directory, directory)
            path = directory / "references.json"
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(document, file)
        except OSError as error:
            raise ConnectionInvalid(
                f"the folder for Spark's connections cannot be used: {error.strerror}",
                where=Where(path=str(directory)),
                next_step="set [kafka_migration] secrets_directory to a folder that only Airflow's user can write to",
            ) from None
        if renew is not None:
            stack.enter_context(keys_kept_in(keys, renew))
        yield path


def remove_directory(directory: Path) -> None:
    """Remove the folder of this user; one of another user is left alone (making it again then fails)."""
    try:
        if directory.is_symlink() or directory.stat().st_uid != os.getuid():
            return
    except FileNotFoundError:
        return
    shutil.rmtree(directory, ignore_errors=True)
