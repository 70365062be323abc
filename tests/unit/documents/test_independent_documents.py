"""The documents of the independent proof: their first versions are read as they were written."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_kafka_migration.documents.base import Document
from airflow_provider_kafka_migration.documents.independent import (
    IndependentJob,
    IndependentRefusal,
    IndependentResult,
)

CASES = Path(__file__).resolve().parents[2] / "cases" / "independent" / "v1"


@pytest.mark.parametrize(
    ("name", "kind"), [("job", IndependentJob), ("result", IndependentResult), ("not-run", IndependentRefusal)]
)
def test_the_first_version_is_read_and_written_alike(name: str, kind: type[Document]) -> None:
    data = (CASES / f"{name}.json").read_bytes().strip()
    assert kind.parse(data).canonical() == data


def test_results_belong_to_their_job() -> None:
    job = IndependentJob.parse((CASES / "job.json").read_bytes())
    result = IndependentResult.parse((CASES / "result.json").read_bytes())
    assert result.job_digest == job.digest()
    assert result.range == job.ranges[0]
    assert job.rules("orders").compacted
    assert job.rules("others").delete_retention_ms is None
