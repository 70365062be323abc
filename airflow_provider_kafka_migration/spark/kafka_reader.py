"""Reads topics of both clusters with Spark's own Kafka source, as DataFrames of their records.

The source needs Spark's Kafka connector (``spark-sql-kafka-0-10``) and its Java client; pip's pyspark has neither. See
``spark.kafka_connector`` of the spec.

Example::

    from airflow_provider_kafka_migration.spark.kafka_reader import java_settings, read_topic

    source = java_settings(ClientConfig.from_librdkafka(connection, "source"))
    orders = read_topic(spark, source, "orders")
    orders.selectExpr("sum(cast(get_json_object(cast(value AS string), '$.amount') AS decimal(18, 2)))").show()
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider_kafka_migration.errors import ConnectionInvalid, Where
from airflow_provider_kafka_migration.kafka.config import ClientConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_PKCS8 = ("-----BEGIN PRIVATE KEY-----", "-----BEGIN ENCRYPTED PRIVATE KEY-----")


class OffsetSpan(NamedTuple):
    """Offsets of one partition to read; the end is exclusive."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int


# -- settings of the Java client --------------------------------------------------------------------------------------


def java_settings(config: ClientConfig) -> dict[str, str]:
    """Return the Java client's settings for a connection. They hold secrets: never log them, never put them in a conf.

    :param config: the connection, as librdkafka's keys describe it.
    :raises ConnectionInvalid: the connection uses something that this reader cannot express.
    """
    settings = {"bootstrap.servers": config.bootstrap_servers, "security.protocol": config.protocol}
    if config.mechanism:
        settings["sasl.mechanism"] = config.mechanism
        settings["sasl.jaas.config"] = _jaas(config)
    if config.uses_tls:
        settings.update(_tls(config))
    return settings


def _jaas(config: ClientConfig) -> str:
    module = _LOGIN_MODULES.get(config.mechanism or "")
    if module is None:
        raise _unfit(config, f"the mechanism {config.mechanism} has no settings for Spark's Kafka source")
    return f"{module} required username={_quoted(config.username)} password={_quoted(config.password)};"


def _quoted(text: str | None) -> str:
    """Quote a value as JAAS wants it."""
    escaped = (text or "").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _tls(config: ClientConfig) -> dict[str, str]:
    """Pass certificates as text: executors on other machines do not have the driver's files."""
    if not config.verify_certificate:
        raise _unfit(
            config, "the Java client cannot leave certificates unchecked (enable.ssl.certificate.verification)"
        )
    settings = {"ssl.endpoint.identification.algorithm": "https" if config.check_hostname else ""}
    authority = _pem(config.ca_pem, config.ca_location)
    if authority:
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authority}
    certificate, key = (
        _pem(config.certificate_pem, config.certificate_location),
        _pem(config.key_pem, config.key_location),
    )
    if certificate and key:
        if not any(mark in key for mark in _PKCS8):
            raise _unfit(config, "the Java client reads keys in PKCS #8 only (openssl pkcs8 -topk8 converts one)")
        settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": certificate, "ssl.keystore.key": key}
        if config.key_password:
            settings["ssl.key.password"] = config.key_password
    return settings


def _pem(text: str | None, location: str | None) -> str:
    return text or (Path(location).read_text(encoding="utf-8") if location else "")


def _unfit(config: ClientConfig, why: str) -> ConnectionInvalid:
    return ConnectionInvalid(
        f"Spark's Kafka source cannot use the {config.name} connection: {why}",
        where=Where(cluster=config.name),
        next_step="set validation.independent: off to go on without the independent proof",
    )


# -- reading ----------------------------------------------------------------------------------------------------------


def read_topic(
    spark: SparkSession, settings: Mapping[str, str], topic: str, spans: Iterable[OffsetSpan] | None = None
) -> DataFrame:
    """Return the committed records of a topic.

    :param settings: of the cluster (:func:`java_settings`).
    :param spans: what to read of which partitions; None: all partitions from their log starts to their present ends.
    :returns: ``topic, partition, offset, timestamp, timestampType, key, value, headers``; the last one is null for a
        record without headers.
    """
    if spans is not None:
        return read_spans(spark, settings, spans)
    return _load(spark, settings, {"subscribe": topic})


def read_spans(
    spark: SparkSession, settings: Mapping[str, str], spans: Iterable[OffsetSpan], *, splits: int = 0
) -> DataFrame:
    """Return the committed records of some offsets, of one or several topics.

    Offsets below a log start are passed over without an error (``failOnDataLoss`` is off, because retention goes on
    while Spark reads): whoever compares asks for the log starts afterwards.

    :param splits: into at least so many Spark partitions; 0: one for each partition of Kafka.
    """
    wanted = list(spans)
    assigned: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for span in wanted:
        assigned.setdefault(span.topic, []).append(span.partition)
        starts.setdefault(span.topic, {})[str(span.partition)] = span.start_offset
        ends.setdefault(span.topic, {})[str(span.partition)] = span.end_offset
    options = {
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
    }
    if splits > len(wanted):
        options["minPartitions"] = str(splits)
    return _load(spark, settings, options)


def _load(spark: SparkSession, settings: Mapping[str, str], options: Mapping[str, str]) -> DataFrame:
    reader = spark.read.format("kafka").option("includeHeaders", "true").option("failOnDataLoss", "false")
    reader = reader.option("kafka.isolation.level", "read_committed")
    for key, value in {**{f"kafka.{name}": value for name, value in settings.items()}, **options}.items():
        reader = reader.option(key, value)
    return reader.load()
