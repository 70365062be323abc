"""A Kafka cluster behind an Airflow connection of type ``kafka_migration`` or ``kafka``."""

from __future__ import annotations

import re
from typing import Any

from airflow.sdk import BaseHook

from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.kafka.admin.client import Admin
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.wire import Wire
from airflow_provider_kafka_migration.provider.connections import kafka_keys
from airflow_provider_kafka_migration.record.context import FIRST_CONTACT_SECONDS

#: Limit of one request in the connection test: a person waits after pressing a button.
_TEST_SECONDS = 10.0


def _without_task(text: str) -> str:
    """Adapt advice for a person at a connection form: there is no task yet to clear."""
    text = re.sub(r"(; then|, and) clear the task\b", "; then test again", text)
    return text.replace("clear the task when", "test again when")


class KafkaClusterHook(BaseHook):
    """One cluster of a migration, reached over the raw wire protocol.

    ``extra`` of the connection holds librdkafka keys. A connection of the Apache Kafka provider (type ``kafka``) also
    works; its *Test* button is that provider's. A key that a migration cannot support raises an error that names the
    alternative.

    :param kafka_config_id: connection id.
    :param role: for messages: ``source`` or ``target`` if known.
    """

    conn_name_attr = "kafka_config_id"
    default_conn_name = "kafka_default"
    conn_type = "kafka_migration"
    hook_name = "Kafka cluster (migration)"

    def __init__(self, kafka_config_id: str = default_conn_name, *, role: str = "Kafka") -> None:
        super().__init__()
        self.kafka_config_id = kafka_config_id
        self.role = role

    def keys(self) -> dict[str, Any]:
        """Return the librdkafka keys of the connection, with ``msk`` for an MSK cluster with IAM. They hold secrets.

        :raises ConnectionInvalid: no such connection, another type, or no JSON object in ``extra``.
        """
        return kafka_keys(self.kafka_config_id)

    def client_config(self) -> ClientConfig:
        """Return the settings for both clients.

        :raises ConnectionInvalid: a missing, unknown or unsupported key.
        """
        return ClientConfig.from_librdkafka(self.keys(), self.role)

    def get_conn(self) -> Wire:
        """Return a new wire to the cluster; the caller closes it. Nothing is sent yet."""
        return Wire(self.client_config(), timeout_seconds=_TEST_SECONDS, first_contact_seconds=FIRST_CONTACT_SECONDS)

    def test_connection(self) -> tuple[bool, str]:
        """Query the cluster once, as a migration does, for the *Test* button of Airflow's connection form."""
        try:
            with self.get_conn() as wire:
                topics = wire.metadata(None)
                with Admin(wire.config, wire) as admin:
                    admin.check_client()
                return True, f"cluster {wire.cluster_id}: {len(wire.brokers())} broker(s), {len(topics)} topic(s)"
        except MigrationError as error:
            return False, _without_task(str(error))
        except Exception as error:  # its text may quote a secret
            return False, f"the cluster could not be queried: {type(error).__name__}"
