"""Looks again and again for what people ask of a mirror, for triggers. It holds no claim and contacts no cluster."""

from __future__ import annotations

from typing import Any

from airflow_provider_kafka_migration.mirrors import requests
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.storage.open import open_store
from airflow_provider_kafka_migration.storage.s3 import S3Config


class MirrorWatch:
    """Waits for a request.

    :param known: number of the last request that is known; None waits until a paused mirror shall not stay paused.
    """

    def __init__(self, spec: MigrationSpec, resolver: Resolver, known: int | None) -> None:
        reference = spec.storage.conn_id
        self._migration_id = spec.migration_id
        self._store = open_store(spec.storage.journal, S3Config.of(resolver, reference) if reference else None)
        self._known = known

    def check(self) -> dict[str, Any]:
        """Check once and return ``{"ready", "summary"}``."""
        request = requests.read(self._store, self._migration_id)
        is_new = request.want != "paused" if self._known is None else request.number != self._known
        by = f" by {request.requested_by}" if request.requested_by else ""
        return {"ready": is_new, "summary": f"the last request is {request.want}{by}"}

    def close(self) -> None:
        """Nothing is open between two checks."""
