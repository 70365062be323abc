"""A Kafka cluster behind an Airflow connection of type ``kafka``."""

from __future__ import annotations

from typing import Any

from airflow.providers.apache.kafka.hooks.base import KafkaBaseHook

from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.hooks.resolver import kafka_keys
from airflow_provider_kafka_migration.kafka.connection import ClientConfig


class KafkaClusterHook(KafkaBaseHook):
    """One cluster of a migration, as the raw wire and the admin client reach it.

    It takes the connection type of the Apache Kafka provider (``extra`` holds librdkafka keys), so one connection
    serves both. What a migration cannot honour is an error that says what to write instead.

    :param kafka_config_id: connection id.
    :param role: ``source`` or ``target``, for messages.
    """

    hook_name = "Kafka cluster (migration)"

    def __init__(self, kafka_config_id: str = KafkaBaseHook.default_conn_name, *, role: str = "source") -> None:
        super().__init__(kafka_config_id=kafka_config_id)  # type: ignore[no-untyped-call]
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

    def _build_config(self) -> dict[str, Any]:
        return self.client_config().librdkafka()

    def test_connection(self) -> tuple[bool, str]:
        """For the button in Airflow's connection form: whether the cluster answers within ten seconds."""
        try:
            metadata = self.get_conn.list_topics(timeout=10)
        except MigrationError as error:
            return False, str(error)
        except Exception as error:  # librdkafka's errors do not quote credentials
            return False, f"no answer from the cluster: {error}"
        return True, f"{len(metadata.brokers)} broker(s), {len(metadata.topics)} topic(s)"
