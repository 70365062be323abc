"""Opens the clients of a copier from references: wires to both clusters, object stores. Secrets stay in memory."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.errors import ConnectionInvalid, Terminal, Where
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.wire import Wire
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.storage.base import ObjectStore
from airflow_provider_kafka_migration.storage.open import open_store
from airflow_provider_kafka_migration.storage.s3 import S3Config


class Clients:
    """Opens the clients of the data plane.

    :param references: ``{"source": ..., "target": ..., "storage": ...}``; each a mapping of settings, a reference
        (``env:NAME``, ``file:PATH``), or None (storage: the machine's own AWS identity). Storage may be an
        ``S3Config`` that renews its keys.
    """

    def __init__(
        self, references: Mapping[str, Any], job: CopyJob | None = None, resolver: Resolver | None = None
    ) -> None:
        self.job = job
        self._references = dict(references)
        self._resolver = resolver or Resolver()
        self._opened: list[Wire] = []

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every wire that was opened here."""
        while self._opened:
            self._opened.pop().close()

    @classmethod
    def from_file(cls, path: str, resolver: Resolver | None = None) -> Clients:
        """Read a references file: JSON, readable by its owner only."""
        found = (resolver or Resolver()).mapping(f"file:{path}")
        return cls(found, None, resolver)

    def __repr__(self) -> str:
        return f"Clients({sorted(self._references)})"

    def _settings(self, name: str) -> Mapping[str, Any] | None:
        value = self._references.get(name)
        if value is None:
            return None
        if isinstance(value, str):
            return self._resolver.mapping(value)
        if isinstance(value, Mapping):
            return self._resolver.settings(value)
        raise ConnectionInvalid(
            f"the value of {name!r} is neither settings nor a reference",
            where=Where(path=name),
            next_step="write librdkafka keys, env:NAME or file:PATH there",
        )

    def client_config(self, name: str) -> ClientConfig:
        """Return the settings of ``source`` or ``target``."""
        settings = self._settings(name)
        if settings is None:
            raise ConnectionInvalid(
                f"the references have no connection for the {name} cluster",
                where=Where(cluster=name),
                next_step=f"add a reference for {name}",
            )
        return ClientConfig.from_librdkafka(settings, name)

    def wire(self, name: str, *, timeout_seconds: float = 30.0, read_only: bool = False) -> Wire:
        """Open a new wire to ``source`` or ``target``.

        :param timeout_seconds: timeout of one request.
        :param read_only: refuse to send any request that could change something.
        """
        config = replace(self.client_config(name), read_only=read_only)
        wire = Wire(config, timeout_seconds=timeout_seconds)
        self._opened.append(wire)
        return wire

    def store(self, location: str) -> ObjectStore:
        """Open a store at a location, with the storage settings."""
        value = self._references.get("storage")
        if isinstance(value, str):
            return open_store(location, S3Config.of(self._resolver, value))
        if isinstance(value, S3Config):
            return open_store(location, value)
        settings = self._settings("storage")
        return open_store(location, S3Config.from_dict(dict(settings)) if settings is not None else None)

    def load_job(self, journal_location: str, job_key: str) -> CopyJob:
        """Read the job document that a phase has written.

        :raises Terminal: there is no such object.
        """
        data = self.store(journal_location).get(job_key)
        if data is None:
            raise Terminal(
                "the copy job does not exist",
                where=Where(path=f"{journal_location}/{job_key}"),
                next_step="clear the task that writes it (seed or tail)",
            )
        return CopyJob.parse(data)


def write_references(path: str, references: Mapping[str, Any]) -> None:
    """Write a references file that only this user may read."""
    descriptor = os.open(Path(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        json.dump(dict(references), stream)
