"""How Spark gets the connections of one job: the argument ``--references``, and what has to exist while the job runs.

Both the operators and the command line use this module, so it does not import Airflow.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from airflow_provider_kafka_migration.errors import ConnectionInvalid, ReferencesUnfit, SealingKeyMissing, Where
from airflow_provider_kafka_migration.references import Resolver, is_self_contained
from airflow_provider_kafka_migration.references.argument import (
    MAX_SEALED_CHARS,
    SEALED,
    inline_argument,
)
from airflow_provider_kafka_migration.references.local import this_machine
from airflow_provider_kafka_migration.references.sealing import PUBLIC_KEY_VARIABLE, Binding, PublicKey, seal
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.storage.base import ObjectStore
from airflow_provider_kafka_migration.storage.open import open_store
from airflow_provider_kafka_migration.storage.s3 import S3Config
from airflow_provider_kafka_migration.storage.s3_credentials import (
    RENEW_SECONDS,
    KeysFile,
    S3Keys,
    keys_kept_in,
    with_keys_file,
)

log = logging.getLogger(__name__)

#: Jobs that get only one of the clusters; all others get both.
ONE_SIDED: Mapping[str, tuple[str, ...]] = {
    "backup": ("source",),
    "restore": ("target",),
    "verify-archive": ("target",),
}


class Travel(StrEnum):
    """How connections get to Spark's processes."""

    FILE = "file"
    #: As references that each machine resolves itself.
    REFERENCES = "references"
    SEALED = "sealed"


@dataclass(frozen=True)
class SparkPlace:
    """Where Spark's processes are, as far as it matters for connections.

    :param everything_here: driver and all executors are processes of this machine, and of this user.
    :param name: for messages: the engine, and Spark's master if it has one.
    :param public_key: the public sealing key of the configuration; empty: there is none. The spec's wins over it.
    """

    everything_here: bool
    name: str
    public_key: str = ""

    @classmethod
    def of_master(cls, master: str, public_key: str = "") -> SparkPlace:
        """Return the place that a master of ``spark-submit`` means."""
        return cls(is_this_machine(master), f"master {master}", public_key)


_LOOPBACK = re.compile(r"(?:localhost|127\.\d+\.\d+\.\d+|\[::1\])(?::\d+)?")


def is_this_machine(master: str) -> bool:
    """Return whether all processes of a Spark master run on this machine.

    A standalone master is known by one address only: what asks for another is refused. So where that is the loopback
    address, no worker of another machine can have registered.
    """
    if re.match(r"local(?:\[|$)", master):
        return True
    hosts = master.removeprefix("spark://").split(",")
    return master.startswith("spark://") and all(_LOOPBACK.fullmatch(host) for host in hosts)


def references_of(spec: MigrationSpec, job: str = "") -> dict[str, str | None]:
    """Return the spec's references by role, without the sides that the job must not know."""
    known = {"source": spec.source.conn_id, "target": spec.target.conn_id}
    sides = ONE_SIDED.get(job, tuple(known))
    return {**{role: known[role] for role in sides}, "storage": spec.storage.conn_id}


def environment_name(role: str) -> str:
    """Return the environment variable from which executors read a connection (``executor_references: env``)."""
    return f"KAFKA_MIGRATION_{role.upper()}"


# -- decision ---------------------------------------------------------------------------------------------------------


def travel(spec: MigrationSpec, place: SparkPlace, job: str = "") -> Travel:
    """Decide how the connections of a job get to Spark. Reads no secret, so ``plan`` and ``precheck`` call it, too.

    :raises ReferencesUnfit: they cannot, with the spec as it is.
    :raises SealingKeyMissing: the public key is missing or malformed.
    """
    wanted = spec.spark.executor_references
    if wanted == "env":
        return Travel.REFERENCES
    if wanted == "sealed":
        sealing_key(spec, place)
        return Travel.SEALED
    if place.everything_here:
        return Travel.FILE
    if wanted == "file":
        raise _unfit(
            spec,
            f"spark.executor_references is file, but Spark ({place.name}) runs on other machines, which cannot read a "
            "file of this one",
            "remove spark.executor_references (auto), or write sealed and configure a sealing key",
        )
    of_airflow = {role: name for role, name in references_of(spec, job).items() if name and not is_self_contained(name)}
    if not of_airflow:
        return Travel.REFERENCES
    if spec.spark.sealing_key or place.public_key:
        sealing_key(spec, place)
        return Travel.SEALED
    named = ", ".join(f"{role} ({name})" for role, name in sorted(of_airflow.items()))
    raise _unfit(
        spec,
        f"Spark ({place.name}) runs on other machines, which cannot read Airflow's connections: {named}",
        "make a sealing key (`kafka-migration sealing-key`), give its public part as spark.sealing_key and its private "
        "part to Spark's driver and executors; or name secrets that they can read themselves (secretsmanager:, ssm:, "
        "gcp-sm:, vault:); or set spark.executor_references to env",
    )


def _unfit(spec: MigrationSpec, what: str, next_step: str) -> ReferencesUnfit:
    return ReferencesUnfit(
        what, where=Where(migration_id=spec.migration_id, path="spark.executor_references"), next_step=next_step
    )


def sealing_key(spec: MigrationSpec, place: SparkPlace) -> PublicKey:
    """Return the public key with which connections are sealed.

    :raises SealingKeyMissing: there is none, or a text that is none.
    """
    text = spec.spark.sealing_key or place.public_key
    if not text:
        raise SealingKeyMissing(
            "spark.executor_references is sealed, but there is no public sealing key",
            where=Where(migration_id=spec.migration_id, path="spark.sealing_key"),
            next_step="run `kafka-migration sealing-key FILE` and write the public key that it prints into "
            f"spark.sealing_key, [kafka_migration] sealing_key, or {PUBLIC_KEY_VARIABLE} for the command line",
        )
    return PublicKey.parse(text)


# -- what Spark gets --------------------------------------------------------------------------------------------------


@contextmanager
def job_references(
    spec: MigrationSpec,
    resolver: Resolver,
    *,
    place: SparkPlace,
    job: str,
    token: str,
    folder: Path,
    renews: bool = False,
) -> Iterator[str]:
    """Yield the value of ``--references`` for a job. What it needs exists until the block ends.

    Enter it again, with the same token and ``renews``, while a job runs that another process has submitted: it renews
    what would expire, and its value is then of no use.

    :param job: name of the job document.
    :param token: identifies the submission.
    :param folder: a folder for this job alone. It is made anew, mode 0700, in all modes, and removed at the end.
    :param renews: the job runs already.
    :raises ConnectionInvalid: a connection is missing or cannot get to Spark, or the folder cannot be made private.
    """
    how = travel(spec, place, job)
    given = references_of(spec, job)
    with private_folder(folder), ExitStack() as stack:
        if how is Travel.FILE:
            yield stack.enter_context(_in_file(given, resolver, folder))
        elif how is Travel.SEALED:
            sealing = _Sealing(spec, resolver, sealing_key(spec, place), Binding(spec.migration_id, job, token))
            yield stack.enter_context(sealing.kept(renews=renews))
        else:
            yield inline_argument({role: _passed_on(role, name) for role, name in given.items()})


def _passed_on(role: str, reference: str | None) -> str | None:
    if reference is None or is_self_contained(reference):
        return reference
    return f"env:{environment_name(role)}"


@contextmanager
def private_folder(folder: Path) -> Iterator[Path]:
    """Make a folder that only this user may enter, without what a killed process left in it; remove it at the end.

    :raises ConnectionInvalid: it cannot be made private to this user.
    """
    remove_directory(folder)
    try:
        folder.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise ConnectionInvalid(
            f"the folder for Spark's connections cannot be used on {this_machine()}: {error.strerror}",
            where=Where(path=str(folder)),
            next_step="set [kafka_migration] secrets_directory to a folder that only Airflow's user can write to",
        ) from None
    try:
        yield folder
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


@contextmanager
def _in_file(given: Mapping[str, str | None], resolver: Resolver, folder: Path) -> Iterator[str]:
    """Write the connections as a file of mode 0600. Storage keys that expire are in a second one that is kept fresh."""
    document: dict[str, Any] = {role: resolver.mapping(name) if name else None for role, name in given.items()}
    storage = given["storage"]
    renew = resolver.renewal(storage) if storage else None
    with ExitStack() as stack:
        if renew is not None:
            keys = folder / "storage-keys.json"
            document["storage"] = with_keys_file(document["storage"], keys)
            stack.enter_context(keys_kept_in(keys, renew))
        path = folder / "references.json"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(document, file)
        yield str(path)


# -- sealed references ------------------------------------------------------------------------------------------------


#: Settings that name files of this machine and go together; their texts have the same names with ``pem``.
_FILES = (("ssl.ca.location",), ("ssl.certificate.location", "ssl.key.location"))
#: A renewal is written again after this part of its validity, so that one missed renewal is no failure.
_RENEWED_AFTER = 8


class _Sealing:
    """The sealed connections of one submission, and their renewals in the journal's store."""

    def __init__(self, spec: MigrationSpec, resolver: Resolver, key: PublicKey, binding: Binding) -> None:
        self._spec = spec
        self._resolver = resolver
        self._key = key
        self._binding = binding
        self._valid = spec.spark.sealed_for
        self._place = f"{spec.migration_id}/sealed/{binding.job}-{binding.token}"
        self._renew: Callable[[], Any] | None = None

    @contextmanager
    def kept(self, *, renews: bool) -> Iterator[str]:
        """Yield the argument, or nothing if the job has it already; renew until the block ends."""
        connections = self._connections()
        store = self._store()
        # Each argument is another ciphertext, and a long one another object, which nothing would ever read.
        argument = "" if renews else self._argument(connections, store)
        keys = self._storage_keys()
        self._write_renewal(store, keys)
        stop = threading.Event()
        thread = threading.Thread(
            target=self._renew_until, args=(store, keys, stop), name="sealed-references", daemon=True
        )
        thread.start()
        try:
            yield argument
        finally:
            stop.set()
            thread.join(timeout=10)

    def _connections(self) -> dict[str, Any]:
        given = references_of(self._spec, self._binding.job)
        found = {role: self._resolver.mapping(name) if name else None for role, name in given.items()}
        storage, name = found["storage"], given["storage"]
        if storage is not None and name is not None:
            self._renew = self._resolver.renewal(name)
            keys_file = storage.pop("credentials_file", None)
            if keys_file and Path(keys_file).exists():
                # Another program replaces the keys in a file of this machine; executors get them from here.
                self._renew = KeysFile(keys_file).check()
            elif keys_file:
                storage["credentials_file"] = keys_file
            storage.update(_as_settings(self._storage_keys()))
            found["storage"] = {key: value for key, value in storage.items() if value is not None}
        clusters = {role: _with_texts(value) for role, value in found.items() if value and role != "storage"}
        return {**found, **clusters}

    def _argument(self, connections: dict[str, Any], store: ObjectStore) -> str:
        renewal = {"renewal": f"{self._place}.renewal"}
        argument = self._sealed({"connections": connections, **renewal})
        if len(argument) <= MAX_SEALED_CHARS:
            return SEALED + argument
        # Too long for the arguments of some services: the argument has the digest, so nobody can replace the object.
        data = argument.encode("ascii")
        digest = hashlib.sha256(data).hexdigest()
        key = f"{self._place}-{digest[:16]}.connections"
        store.put(key, data)
        pointer = {"document": {"key": key, "sha256": digest}, "storage": connections["storage"], **renewal}
        return SEALED + self._sealed(pointer)

    def _sealed(self, content: Mapping[str, Any]) -> str:
        now = datetime.now(UTC)
        return seal(content, self._key, self._binding, now=now, expires_at=now + self._valid)

    def _store(self) -> ObjectStore:
        name = self._spec.storage.conn_id
        return open_store(self._spec.storage.journal, S3Config.of(self._resolver, name) if name else None)

    def _storage_keys(self) -> S3Keys | None:
        if self._renew is None:
            return None
        keys = self._renew()
        return S3Keys(keys.access_key, keys.secret_key, keys.token)

    def _write_renewal(self, store: ObjectStore, keys: S3Keys | None) -> None:
        content = {"renews": True, "storage_keys": _as_settings(keys) or None}
        store.put(f"{self._place}.renewal", self._sealed(content).encode("ascii"))

    def _renew_until(self, store: ObjectStore, last: S3Keys | None, stop: threading.Event) -> None:
        written_at = datetime.now(UTC)
        while not stop.wait(RENEW_SECONDS):
            try:
                keys, now = self._storage_keys(), datetime.now(UTC)
                if keys != last or now - written_at >= self._valid / _RENEWED_AFTER:
                    self._write_renewal(store, keys)
                    last, written_at = keys, now
            except Exception as error:  # the text may quote secrets
                log.warning("The sealed references could not be renewed: %s", type(error).__name__)


def _as_settings(keys: S3Keys | None) -> dict[str, str | None]:
    if keys is None:
        return {}
    return {
        "aws_access_key_id": keys.access_key,
        "aws_secret_access_key": keys.secret_key,
        "aws_session_token": keys.token,
    }


def _with_texts(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a cluster with the texts of files that other machines need not have.

    A path that does not exist here stays: it may be one of the executors' machines.
    """
    found = dict(settings)
    for group in _FILES:
        paths = [Path(str(found[name])) for name in group if found.get(name)]
        if len(paths) < len(group) or not all(path.is_file() for path in paths):
            continue
        for name, path in zip(group, paths, strict=True):
            found[name.replace(".location", ".pem")] = _text_of(path)
            del found[name]
    return found


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConnectionInvalid(
            f"a file that a connection names cannot be read on {this_machine()}: {type(error).__name__}",
            where=Where(path=str(path)),
            next_step="let the user of this process read the PEM file, or write its text into the connection (*.pem)",
        ) from None
