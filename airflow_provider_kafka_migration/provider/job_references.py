"""How Spark gets the connections of one job: the argument ``--references``, and what has to exist while the job runs.

Both the operators and the command line use this module, so it does not import Airflow.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_kafka_migration.errors import ConnectionInvalid, Where
from airflow_provider_kafka_migration.references import Resolver, split_reference
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.storage.s3_credentials import keys_kept_in, with_keys_file

#: Jobs that get only one of the clusters; all others get both.
ONE_SIDED: Mapping[str, tuple[str, ...]] = {
    "backup": ("source",),
    "restore": ("target",),
    "verify-archive": ("target",),
}

_LOOPBACK = re.compile(r"(?:localhost|127\.\d+\.\d+\.\d+|\[::1\])(?::\d+)?")


@dataclass(frozen=True)
class SparkPlace:
    """Where Spark's processes are, as far as it matters for connections.

    :param everything_here: driver and all executors are processes of this machine, and of this user.
    :param name: for messages: the engine, and Spark's master if it has one.
    """

    everything_here: bool
    name: str
    public_key: str = ""

    @classmethod
    def of_master(cls, master: str, public_key: str = "") -> SparkPlace:
        """Return the place that a master of ``spark-submit`` means."""
        return cls(is_this_machine(master), f"master {master}", public_key)


def is_this_machine(master: str) -> bool:
    """Return whether all processes of a Spark master run on this machine."""
    if re.match(r"local(?:\[|$)", master):
        return True
    hosts = master.removeprefix("spark://").split(",")
    return master.startswith("spark://") and all(_LOOPBACK.fullmatch(host) for host in hosts)


def references_of(spec: MigrationSpec, job: str = "") -> dict[str, str | None]:
    """Return the spec's references by role, without the sides that the job must not know."""
    known = {"source": spec.source.conn_id, "target": spec.target.conn_id}
    sides = ONE_SIDED.get(job, tuple(known))
    return {**{role: known[role] if role in sides else None for role in known}, "storage": spec.storage.conn_id}


@contextmanager
def job_references(
    spec: MigrationSpec, resolver: Resolver, *, place: SparkPlace, job: str, token: str, folder: Path
) -> Iterator[str]:
    """Yield the value of ``--references`` for a job. What it needs exists until the block ends.

    :param job: name of the job document.
    :param folder: a folder for this job alone, made anew with mode 0700 and removed at the end.
    :raises ConnectionInvalid: a connection is missing or cannot get to Spark, or the folder cannot be made private.
    """
    given = references_of(spec, job)
    wanted = spec.spark.executor_references
    if wanted == "file" and not place.everything_here:
        raise ConnectionInvalid(
            f"other machines cannot read a file of this one ({place.name}), so executors get no connections",
            where=Where(migration_id=spec.migration_id, path="spark.executor_references"),
            next_step="set spark.executor_references to env, and give driver and executors the variables "
            "KAFKA_MIGRATION_SOURCE, _TARGET and _STORAGE",
        )
    with ExitStack() as stack:
        document: dict[str, Any] = {}
        for role, reference in given.items():
            if reference is None:
                document[role] = None
            elif wanted == "file":
                document[role] = resolver.mapping(reference)
            else:
                scheme = split_reference(reference)[0]
                document[role] = reference if scheme in ("env", "file") else f"env:KAFKA_MIGRATION_{role.upper()}"
        stack.enter_context(_private(folder))
        storage = given["storage"]
        renew = resolver.renewal(storage) if storage and wanted == "file" else None
        if renew is not None:
            keys = folder / "storage-keys.json"
            document["storage"] = with_keys_file(document["storage"], keys)
            stack.enter_context(keys_kept_in(keys, renew))
        path = folder / "references.json"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(document, file)
        yield str(path)


@contextmanager
def _private(folder: Path) -> Iterator[None]:
    remove_directory(folder)
    try:
        folder.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise ConnectionInvalid(
            f"the folder for Spark's connections cannot be used: {error.strerror}",
            where=Where(path=str(folder)),
            next_step="set [kafka_migration] secrets_directory to a folder that only Airflow's user can write to",
        ) from None
    try:
        yield
    finally:
        remove_directory(folder)


def remove_directory(directory: Path) -> None:
    """Remove the folder if it belongs to this user; leave another user's alone (creating it then fails)."""
    try:
        if directory.is_symlink() or directory.stat().st_uid != os.getuid():
            return
    except FileNotFoundError:
        return
    shutil.rmtree(directory, ignore_errors=True)
