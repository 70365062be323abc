"""An Airflow home of this run's own, set before Airflow is imported for the first time by these tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

MINIMAL: dict[str, Any] = {
    "migration_id": "orders",
    "source": {"conn_id": "kafka_source"},
    "target": {"conn_id": "kafka_target"},
    "storage": {"conn_id": "aws_s3", "journal": "s3://bucket/migrations", "evidence": "s3://evidence/bundles"},
}


@pytest.fixture
def minimal_spec() -> dict[str, Any]:
    """The smallest useful spec."""
    return {key: dict(value) if isinstance(value, dict) else value for key, value in MINIMAL.items()}


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Defines an Airflow connection for this test: ``connection("id", conn_type="kafka", extra={...})``."""
    import json

    def define(conn_id: str, **fields: Any) -> None:
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(fields))

    return define
