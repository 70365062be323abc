"""The summary of a validation says why a check has not passed; it is what a screen and the journal show."""

from __future__ import annotations

import pytest

from airflow_provider_kafka_migration.documents.proof import CheckResult, Outcome, ValidationResult
from airflow_provider_kafka_migration.phases import validate


@pytest.mark.parametrize(
    ("findings", "shown"),
    [
        ([], "groups WARNING"),
        (["billing: left alone: active"], "groups WARNING (billing: left alone: active)"),
        (["a: x", "b: y", "c: z"], "groups WARNING (a: x; and 2 more)"),
    ],
)
def test_a_warning_gives_its_reason(findings: list[str], shown: str) -> None:
    checks = [
        CheckResult(name="content", outcome=Outcome.PASSED, summary="equal", findings=["not shown"]),
        CheckResult(name="groups", outcome=Outcome.WARNING, summary="2 groups", findings=findings),
    ]
    result = ValidationResult(
        migration_id="m1", outcome=Outcome.WARNING, checks=checks, started_at="a", finished_at="b"
    )
    assert validate._summary(result) == f"validation WARNING: content PASSED, {shown}"
