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
from airflow_provider_kafka_migration.documents.mirror import MirrorComparison, MirrorVerification

ALL_CASES = Path(__file__).resolve().parents[2] / "cases"
CASES = ALL_CASES / "independent" / "v1"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("independent/v1/job", IndependentJob),
        ("independent/v1/job-with-slices", IndependentJob),
        ("independent/v1/result", IndependentResult),
        ("independent/v1/result-under-way", IndependentResult),
        ("independent/v1/not-run", IndependentRefusal),
        ("independent/v1/not-run-never-started", IndependentRefusal),
        ("mirror/v1/comparison-job-independent", MirrorComparison),
        ("mirror/v1/verification-independent", MirrorVerification),
    ],
)
def test_the_first_version_is_read_and_written_alike(name: str, kind: type[Document]) -> None:
    """With the fields that came later, and without them."""
    data = (ALL_CASES / f"{name}.json").read_bytes().strip()
    assert kind.parse(data).canonical() == data


def test_results_belong_to_their_job() -> None:
    job = IndependentJob.parse((CASES / "job.json").read_bytes())
    result = IndependentResult.parse((CASES / "result.json").read_bytes())
    assert result.job_digest == job.digest()
    assert result.range == job.ranges[0]
    assert job.rules("orders").compacted
    assert job.rules("others").delete_retention_ms is None
