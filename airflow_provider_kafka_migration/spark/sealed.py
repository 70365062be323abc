"""Opens sealed references where they are used: in the driver, and in each executor's Python processes."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from airflow_provider_kafka_migration.errors import (
    JobMissing,
    MigrationError,
    SealedReferencesAltered,
    Where,
)
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.references.argument import ROLES, SEALED
from airflow_provider_kafka_migration.references.local import this_machine
from airflow_provider_kafka_migration.references.sealing import Binding, Opened, PrivateKey, open_sealed, private_keys
from airflow_provider_kafka_migration.storage.base import ObjectStore
from airflow_provider_kafka_migration.storage.open import open_store
from airflow_provider_kafka_migration.storage.s3 import S3Config
from airflow_provider_kafka_migration.storage.s3_credentials import RENEW_SECONDS, S3Keys

log = logging.getLogger(__name__)


class _Renewals:
    """The newest renewal of each job that this process has read. Python workers of Spark serve many slices."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: dict[str, tuple[float, str | None]] = {}

    def kept(self, job: str) -> str | None:
        """Return the newest renewal that was read."""
        with self._lock:
            return self._read.get(job, (0.0, None))[1]

    def is_due(self, job: str) -> bool:
        """Return whether the store should be asked again."""
        with self._lock:
            return job not in self._read or time.monotonic() - self._read[job][0] >= RENEW_SECONDS

    def keep(self, job: str, text: str | None) -> None:
        """Remember what the store has answered."""
        with self._lock:
            self._read[job] = (time.monotonic(), text or self._read.get(job, (0.0, None))[1])


_RENEWALS = _Renewals()


@dataclass(frozen=True)
class SealedReferences:
    """Ciphertext, and where its renewals are. Spark may ship, log and show it.

    :param argument: the argument ``--references``.
    :param location: the store of the job document.
    :param facts: the ciphertext of the connections, where it was too long for an argument.
    :param renewal: the newest renewal that the driver had when it shipped this.
    """

    argument: str = field(repr=False)
    location: str
    binding: Binding
    facts: str | None = field(default=None, repr=False)
    renewal: str | None = field(default=None, repr=False)

    @classmethod
    def open(cls, argument: str, location: str, binding: Binding, resolver: Resolver | None = None) -> SealedReferences:
        """Read the argument once, on the driver, and all that it names.

        :raises MigrationError: see :meth:`resolve`.
        :raises JobMissing: the object with the connections does not exist.
        """
        sealed = cls(argument, location, binding)
        keys = private_keys(resolver=resolver)
        content = sealed._argument(keys).content
        document = content.get("document")
        if document is None:
            return sealed
        data = sealed._store(content.get("storage")).get(str(document["key"]))
        if data is None:
            raise JobMissing(
                "the object with the sealed references does not exist",
                where=Where(migration_id=binding.migration_id, path=f"{location}/{document['key']}"),
                next_step=f"clear the task {binding.job}: it writes them again",
            )
        if hashlib.sha256(data).hexdigest() != document["sha256"]:
            raise SealedReferencesAltered(
                f"the object with the sealed references is not the one that the task wrote, seen from {this_machine()}",
                where=Where(migration_id=binding.migration_id, path=f"{location}/{document['key']}"),
                next_step=f"find out who writes to this place; then clear the task {binding.job}",
            )
        return replace(sealed, facts=data.decode("ascii"))

    def resolve(self, resolver: Resolver | None = None, now: datetime | None = None) -> dict[str, Any]:
        """Return the connections, with secrets. Storage whose keys expire comes as an ``S3Config`` that renews them.

        :raises SealingKeyMissing: this machine has no private key. :raises SealingKeyWrong: it has another one.
        :raises SealedReferencesAltered: :raises SealedReferencesForeign: :raises SealedReferencesExpired: as named.
        """
        keys = private_keys(resolver=resolver)
        opened = self._argument(keys)
        facts = opened if self.facts is None else open_sealed(self.facts, keys, opened.binding)
        connections = facts.content.get("connections")
        if not isinstance(connections, Mapping):
            raise self._incomplete()
        found: dict[str, Any] = {role: connections.get(role) for role in ROLES}
        key = opened.content.get("renewal")
        newest = self._newest(opened, found["storage"], keys, str(key)) if key else None
        (newest or opened).check_expiry(now or datetime.now(UTC))
        renewed = newest.content.get("storage_keys") if newest else None
        if renewed is not None and key:
            found["storage"] = replace(
                S3Config.from_dict({**(found["storage"] or {}), **renewed}),
                read_keys=_LiveKeys(self, resolver),
            )
        return found

    def refreshed(self, resolver: Resolver | None = None) -> SealedReferences:
        """Return the same with the newest renewal: an executor that starts late has only what the driver ships."""
        keys = private_keys(resolver=resolver)
        opened = self._argument(keys)
        key = opened.content.get("renewal")
        if not key:
            return self
        facts = opened if self.facts is None else open_sealed(self.facts, keys, opened.binding)
        storage = (facts.content.get("connections") or {}).get("storage")
        newest = self._newest(opened, storage, keys, str(key))
        return replace(self, renewal=newest.text) if newest else self

    def _argument(self, keys: list[PrivateKey]) -> Opened:
        return open_sealed(self.argument.removeprefix(SEALED), keys, self.binding)

    def _newest(
        self, opened: Opened, storage: Mapping[str, Any] | None, keys: list[PrivateKey], key: str
    ) -> Opened | None:
        """Return the newest renewal; None if there is none yet."""
        job = hashlib.sha256(self.argument.encode()).hexdigest()
        known = self._newer(self.renewal, _RENEWALS.kept(job), opened, keys)
        if not _RENEWALS.is_due(job):
            return known
        renewed = (known.content.get("storage_keys") if known else None) or {}
        try:
            data = self._store({**(storage or {}), **renewed} or None).get(key)
        except MigrationError as error:
            # What is known may still be valid; if it is not, its own error says so.
            log.warning("The renewal of the sealed references could not be read: %s", error)
            return known
        text = data.decode("ascii", "replace") if data is not None else None
        found = self._newer(text, None, opened, keys)
        _RENEWALS.keep(job, text)
        return max((one for one in (found, known) if one), key=lambda one: one.sealed_at, default=None)

    def _newer(self, one: str | None, other: str | None, opened: Opened, keys: list[PrivateKey]) -> Opened | None:
        found = [self._renewal(text, opened, keys) for text in (one, other) if text]
        return max(found, key=lambda renewal: renewal.sealed_at, default=None)

    def _renewal(self, text: str, opened: Opened, keys: list[PrivateKey]) -> Opened:
        found = open_sealed(text, keys, opened.binding)
        if found.content.get("renews") is not True:
            raise self._incomplete()
        return found

    def _store(self, storage: Mapping[str, Any] | None) -> ObjectStore:
        return open_store(self.location, S3Config.from_dict(storage) if storage else None)

    def _incomplete(self) -> SealedReferencesAltered:
        return SealedReferencesAltered(
            f"the sealed references that reached {this_machine()} are not those that were sealed: they hold something "
            "else than connections",
            where=Where(migration_id=self.binding.migration_id, phase=self.binding.job),
            next_step=f"clear the task {self.binding.job}: it seals them again",
        )


class _LiveKeys:
    """Reads the newest storage keys for each request; asks the store at most every minute."""

    def __init__(self, sealed: SealedReferences, resolver: Resolver | None) -> None:
        self._sealed = sealed
        self._resolver = resolver
        self._lock = threading.Lock()
        self._read_at: float | None = None
        self._keys: S3Keys | None = None

    def __call__(self) -> S3Keys:
        with self._lock:
            if self._keys is None or self._read_at is None or time.monotonic() - self._read_at >= RENEW_SECONDS:
                settings = self._sealed.resolve(self._resolver)["storage"]
                self._keys = S3Keys.of_settings(settings.to_dict())
                self._read_at = time.monotonic()
            return self._keys
