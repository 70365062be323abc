"""What a Spark task is told: where the job document lies and how to get at the secrets. Small, and without secrets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from airflow_provider_kafka_migration.documents.base import Document
from airflow_provider_kafka_migration.errors import ConnectionInvalid, DocumentUnreadable, JobMissing, Where
from airflow_provider_kafka_migration.references import Resolver, split_reference
from airflow_provider_kafka_migration.storage.base import ObjectStore
from airflow_provider_kafka_migration.storage.open import open_store
from airflow_provider_kafka_migration.storage.s3_config import S3Config

_D = TypeVar("_D", bound=Document)

#: What the references file may hold: librdkafka keys of the clusters, and S3 settings.
ROLES = ("source", "target", "storage")

#: Schemes that a process without Airflow can resolve.
_SCHEMES = ("env", "file")


@dataclass(frozen=True)
class JobReferences:
    """How executors get connections. Never holds a secret, so Spark may ship, log and show it.

    The document behind it is JSON, ``{"source": ..., "target": ..., "storage": ...}``; each value is an object
    (librdkafka keys, S3 settings), a reference to one (``env:NAME``, ``file:PATH``), or null.

    :param document: reference to the document: ``file:PATH`` (mode 0600) or ``env:NAME``.
    :param inline: the document itself, if all its values are references: then executors on other machines need no
        copy of the file.
    """

    document: str
    inline: str | None = None

    @classmethod
    def open(cls, reference: str, resolver: Resolver | None = None) -> JobReferences:
        """Read the document once, on the driver, so that a mistake is seen before any task starts.

        :param reference: ``env:NAME``, ``file:PATH``, or the path of the file.
        :raises ConnectionInvalid: unreadable, readable by other users, or of a wrong shape.
        """
        document = reference if split_reference(reference)[0] in _SCHEMES else f"file:{reference}"
        values = _read(document, resolver or Resolver())
        if any(isinstance(value, dict) for value in values.values()):
            return cls(document)
        return cls(document, json.dumps(values, sort_keys=True))

    def resolve(self, resolver: Resolver | None = None) -> dict[str, Any]:
        """``{"source": {...} | None, "target": {...} | None, "storage": {...} | None}``, with secrets.

        :raises ConnectionInvalid: a reference that this machine cannot resolve.
        """
        resolver = resolver or Resolver()
        values = json.loads(self.inline) if self.inline else _read(self.document, resolver)
        return {
            role: resolver.mapping(value) if isinstance(value, str) else value
            for role, value in ((role, values.get(role)) for role in ROLES)
        }


def _read(document: str, resolver: Resolver) -> dict[str, Any]:
    values = resolver.mapping(document)
    unknown = sorted(set(values) - set(ROLES))
    wrong = sorted(role for role in ROLES if not isinstance(values.get(role), dict | str | None))
    if unknown or wrong:
        # Values are never quoted: they may be secrets.
        problems = [f"{key} is unknown" for key in unknown] + [
            f"{role} is no object and no reference" for role in wrong
        ]
        raise ConnectionInvalid(
            f"the references document has mistakes: {'; '.join(problems)}",
            where=Where(path=document),
            next_step='write {"source": {...}, "target": {...}, "storage": {...} or null}',
        )
    return values


@dataclass(frozen=True)
class JobPointer:
    """Where the job document lies, and the references it needs.

    :param location: ``s3://bucket/prefix`` or ``file:///folder``.
    :param key: key of the document below the location.
    """

    location: str
    key: str
    references: JobReferences

    def store(self, secrets: Mapping[str, Any]) -> ObjectStore:
        """The store that holds the document.

        :param secrets: what :meth:`JobReferences.resolve` gave.
        """
        settings = secrets.get("storage")
        return open_store(self.location, S3Config.from_dict(settings) if settings else None)

    def read(self, kind: type[_D], store: ObjectStore) -> _D:
        """The document.

        :raises JobMissing: it is not there.
        :raises DocumentUnreadable: it is not of this kind.
        """
        data = store.get(self.key)
        where = Where(path=f"{self.location}/{self.key}")
        if data is None:
            raise JobMissing(
                "there is no job document",
                where=where,
                next_step="run the phase that writes it first, and check --job-location and --job-key",
            )
        try:
            return kind.parse(data)
        except ValidationError as error:
            raise DocumentUnreadable(
                f"the job document has {error.error_count()} mistakes, the first: {error.errors()[0]['msg']}",
                where=where,
                next_step="write it again by clearing the phase; driver and executors must run the same version",
            ) from None
