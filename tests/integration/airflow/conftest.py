"""What the tests of real Airflow processes share. They need no brokers."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def minimal_spec() -> dict[str, Any]:
    """The smallest useful spec; tests make their own from it."""
    return {
        "migration_id": "orders",
        "source": {"conn_id": "kafka_source"},
        "target": {"conn_id": "kafka_target"},
        "storage": {"conn_id": "aws_s3", "journal": "s3://bucket/migrations", "evidence": "s3://evidence/bundles"},
    }
