"""The independent proof's session: whether it has Spark's Kafka source, and what it may write of queries."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock, PropertyMock

import pytest
from pyspark.errors import PySparkException

from airflow_provider_kafka_migration.errors import SparkConnectorMissing, SparkJobFailed, SparkReaderUnfit
from airflow_provider_kafka_migration.spark.independent import _advised, reader_of, session_of
from airflow_provider_kafka_migration.spark.main import spark_errors
from airflow_provider_kafka_migration.spark.tasks import ConnectRunner


class LazySession(MagicMock):
    """As Spark Connect: ``load`` asks nobody, and the schema asks the server."""


def lazy(error: Exception) -> Any:
    session = LazySession()
    frame = session.read.format.return_value.options.return_value.load.return_value
    type(frame).schema = PropertyMock(side_effect=error)
    return session


def test_a_source_that_is_missing_is_noticed_where_load_asks_nobody() -> None:
    error = RuntimeError("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: kafka.")
    with pytest.raises(SparkConnectorMissing):
        reader_of(lazy(error))


def test_another_error_is_not_taken_for_a_missing_source() -> None:
    with pytest.raises(RuntimeError, match="gone"):
        reader_of(lazy(RuntimeError("the server is gone")))


def test_a_server_of_spark_connect_writes_no_text_of_queries() -> None:
    runner = MagicMock(spec=ConnectRunner)
    runner.session = MagicMock()
    assert session_of(runner) is runner.session
    runner.session.conf.set.assert_called_once_with("spark.sql.redaction.string.regex", "(?s).+")


def test_a_cluster_that_spark_cannot_read_does_not_leave_people_without_a_way_on() -> None:
    with pytest.raises(SparkJobFailed) as failed, _advised(), spark_errors("independent proof"):
        raise PySparkException("org.apache.kafka.common.errors.SslAuthenticationException: SSL handshake failed")
    assert "SSL handshake failed" in failed.value.what
    assert failed.value.next_step.endswith("set validation.independent: off, or leave --independent out")


JAVA = """An error occurred while calling o67.collectToPython.
: org.apache.kafka.common.KafkaException: Failed to create new KafkaAdminClient
\tat org.apache.kafka.clients.admin.KafkaAdminClient.createInternal(KafkaAdminClient.java:553)
Caused by: org.apache.kafka.common.config.ConfigException: Invalid value software.amazon.msk.auth.Handler
\tat org.apache.kafka.common.config.ConfigDef.parseType(ConfigDef.java:778)
"""


def test_where_javas_client_cannot_begin_the_cause_is_named() -> None:
    with (
        pytest.raises(SparkReaderUnfit, match=r"Invalid value software\.amazon\.msk\.auth") as failed,
        _advised(may_be_unfit=True),
        spark_errors("independent proof"),
    ):
        raise PySparkException(JAVA)
    assert "aws-msk-iam-auth" in failed.value.next_step


def test_once_something_was_read_the_same_error_may_pass() -> None:
    with pytest.raises(SparkJobFailed), _advised(), spark_errors("independent proof"):
        raise PySparkException(JAVA)
