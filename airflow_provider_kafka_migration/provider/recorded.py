"""A DAG run's Params -> the spec that the migration's journal has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_kafka_migration.errors import IllegalTransition, SpecInvalid, Where
from airflow_provider_kafka_migration.provider.connections import airflow_resolver
from airflow_provider_kafka_migration.provider.params import CONNECTION_FIELDS, spec_data
from airflow_provider_kafka_migration.spec import parse_spec

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.references import Resolver
    from airflow_provider_kafka_migration.spec import MigrationSpec


def recorded_run_spec(params: Mapping[str, Any], resolver: Resolver | None = None) -> MigrationSpec:
    """The spec of the migration that the Params name, from its journal; connections in the Params replace its own.

    :raises SpecInvalid: the Params do not say where the journal is.
    :raises IllegalTransition: there is no such migration.
    """
    from airflow_provider_kafka_migration.journal.journal import Journal
    from airflow_provider_kafka_migration.journal.recorded_spec import recorded_spec
    from airflow_provider_kafka_migration.storage.open import open_store
    from airflow_provider_kafka_migration.storage.s3_config import S3Config

    given = spec_data(params)
    storage = given.get("storage") or {}
    migration_id, location, reference = given.get("migration_id"), storage.get("journal"), storage.get("conn_id")
    if not migration_id or not location:
        raise SpecInvalid(
            "migration_id and the journal's location are needed, to read the spec from the journal",
            next_step="fill in both fields of the form",
        )
    known = resolver or airflow_resolver()
    store = open_store(location, S3Config.from_dict(known.mapping(reference)) if reference else None)
    journal = Journal(store, migration_id)
    if not journal.exists:
        raise IllegalTransition(
            "there is no such migration",
            where=Where(migration_id=migration_id, path=store.uri),
            next_step="check the migration id and the journal's location",
        )
    spec = recorded_spec(journal)
    if reference:
        spec.setdefault("storage", {})["conn_id"] = reference
    for side in CONNECTION_FIELDS:
        connection = (given.get(side) or {}).get("conn_id")
        if connection:
            spec.setdefault(side, {})["conn_id"] = connection
    return parse_spec(spec, recorded=True)
