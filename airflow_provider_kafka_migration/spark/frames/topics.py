"""Reads topics of both clusters with Spark's own Kafka source, as DataFrames of their records.

The source needs Spark's Kafka connector (``spark-sql-kafka-0-10``) and its Java client; pip's pyspark has neither. See
``spark.kafka_connector`` of the spec.

Example::

    from airflow_provider_kafka_migration.spark.frames.java_client import java_settings
    from airflow_provider_kafka_migration.spark.frames.topics import read_topic

    source = java_settings(ClientConfig.from_librdkafka(connection, "source"))
    orders = read_topic(spark, source, "orders")
    orders.selectExpr("sum(cast(get_json_object(cast(value AS string), '$.amount') AS decimal(18, 2)))").show()
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class OffsetSpan(NamedTuple):
    """Offsets of one partition to read; the end is exclusive."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int


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
