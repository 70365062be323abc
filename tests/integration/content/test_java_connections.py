"""Connections as Java's client gets them: Spark reads from brokers through each kind that can be run here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.spark.frames.java_client import java_settings
from airflow_provider_kafka_migration.spark.frames.topics import read_topic
from harness.brokers import KafkaCluster
from harness.identity_provider import IdentityProvider
from tests.integration.security.oauth_cluster import oauth_cluster, oauth_keys

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(1500)]

USER, RECORDS = "alice", 50


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaCluster, IdentityProvider]]:
    """Kafka 4.1.1 with TLS, client certificates, passwords and OAuth, and its identity provider."""
    with oauth_cluster(tmp_path_factory.mktemp("secured"), "4.1.1") as made:
        yield made


def fill(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic, 1)
    cluster.allow(USER, "topic", topic, ["read", "describe"])
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(120) == 0


def count(spark: SparkSession, connection: dict[str, Any], topic: str) -> int:
    return read_topic(spark, java_settings(ClientConfig.from_librdkafka(connection, "source")), topic).count()


@pytest.mark.parametrize("kind", ["PLAIN", "SCRAM-SHA-512", "mTLS", "OAUTHBEARER"])
def test_tls_and_logins(
    spark: SparkSession,
    secured: tuple[KafkaCluster, IdentityProvider],
    unique_name: Callable[[str], str],
    kind: Any,
) -> None:
    cluster, provider = secured
    topic = unique_name("j")
    fill(cluster, topic)
    if kind == "mTLS":
        connection: dict[str, Any] = cluster.client_config(certificate=USER)
    elif kind == "OAUTHBEARER":
        connection = oauth_keys(cluster, provider)
    else:
        connection = cluster.client_config(USER, kind, tls=True)
    assert count(spark, connection, topic) == RECORDS
