"""Spark main; see airflow_provider_kafka_migration.spark.independent."""

from __future__ import annotations

import sys

from airflow_provider_kafka_migration.spark.independent import main

if __name__ == "__main__":
    sys.exit(main())
