"""Translates positions between the clusters of a migration inside a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import BaseHook

from airflow_provider_kafka_migration.provider.connections import airflow_resolver
from airflow_provider_kafka_migration.spec import MigrationSpec, parse_spec
from airflow_provider_kafka_migration.translate import Translator


class OffsetTranslationHook(BaseHook):
    """Opens a :class:`~airflow_provider_kafka_migration.translate.Translator` with Airflow's connections.

    It only reads, so it can be used beside a running migration and after its end::

        with OffsetTranslationHook(spec).get_conn() as translator:
            for position in translator.group("billing"):
                print(position.to_topic, position.partition, position.to_offset)

    :param spec: spec of the migration, as a document or as the parsed spec.
    """

    def __init__(self, spec: MigrationSpec | Mapping[str, Any]) -> None:
        super().__init__()
        self.spec = spec if isinstance(spec, MigrationSpec) else parse_spec(dict(spec))

    def get_conn(self) -> Translator:
        """Open the translator; the caller closes it.

        :raises Terminal: the migration has no plan yet.
        :raises ConnectionInvalid: a connection of the spec is missing or unusable.
        """
        return Translator.open(self.spec, airflow_resolver())
