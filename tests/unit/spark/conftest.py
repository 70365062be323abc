"""A Spark session for the drivers' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from airflow_provider_kafka_migration.spark.session import build_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """local[2,4], built as the mains build theirs."""
    session = build_session(
        "kafka-migration tests",
        master="local[2,4]",
        conf={"spark.ui.enabled": "false", "spark.driver.memory": "512m", "spark.driver.bindAddress": "127.0.0.1"},
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
