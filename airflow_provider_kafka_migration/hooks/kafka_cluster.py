"""A Kafka cluster behind an Airflow connection of type ``kafka_migration`` or ``kafka``."""

from __future__ import annotations

import re
from typing import Any

from airflow.sdk import BaseHook

from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.wire import Wire
from airflow_provider_kafka_migration.provider.connections import kafka_keys
from airflow_provider_kafka_migration.record.context import FIRST_CONTACT_SECONDS

#: Bound of one request of the connection test: somebody looks at a button.
_TEST_SECONDS = 10.0


def _without_task(text: str) -> str:
    """Advice for somebody who looks at a form: there is no task yet that could be cleared."""
    text = re.sub(r"(; then|, and) clear the task\b", "; then test again", text)
    return text.replace("clear the task when", "test again when")


class KafkaClusterHook(BaseHook):
    """One cluster of a migration, as the raw wire reaches it.

    ``extra`` of the connection holds librdkafka keys. A connection of the Apache Kafka provider (type ``kafka``) does
    as well; its *Test* button is that provider's. What a migration cannot honour is an error that says what to write
    instead.

    :param kafka_config_id: connection id.
    :param role: for messages: ``source`` or ``target`` where that is known.
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
        """The librdkafka keys of the connection, with ``msk`` where it is an MSK cluster with IAM. Holds secrets.

        :raises ConnectionInvalid: no such connection, another type, or no JSON object in ``extra``.
        """
        return kafka_keys(self.kafka_config_id)

    def client_config(self) -> ClientConfig:
        """Settings for both clients.

        :raises ConnectionInvalid: a missing, unknown or unsupported key.
        """
        return ClientConfig.from_librdkafka(self.keys(), self.role)

    def get_conn(self) -> Wire:
        """A new wire to the cluster, which the caller closes. Nothing is sent yet."""
        return Wire(self.client_config(), timeout_seconds=_TEST_SECONDS, first_contact_seconds=FIRST_CONTACT_SECONDS)

    def test_connection(self) -> tuple[bool, str]:
        """For the *Test* button of Airflow's connection form: asks the cluster as a migration does, once."""
        try:
            with self.get_conn() as wire:
                topics = wire.metadata(None)
                return True, f"cluster {wire.cluster_id}: {len(wire.brokers())} broker(s), {len(topics)} topic(s)"
        except MigrationError as error:
            return False, _without_task(str(error))
        except Exception as error:  # its text may quote what is secret
            return False, f"the cluster could not be asked: {type(error).__name__}"
