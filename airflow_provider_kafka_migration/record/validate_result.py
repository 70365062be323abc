"""The stored result of a validation, and whether it still holds."""

from __future__ import annotations

from airflow_provider_kafka_migration.documents.proof import Outcome, ValidationResult
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.facts import get_result

STEP = "validated"
RESULT = "validation"


def passed_result(context: PhaseContext) -> ValidationResult | None:
    """The stored result, if the last validation did not fail and the document is the one that was journaled."""
    entry = context.journal.find_step(STEP)
    result = load_result(context)
    if entry is None or result is None or result.outcome is Outcome.FAILED:
        return None
    return result if entry.details.get("digest") == result.digest() else None


def load_result(context: PhaseContext) -> ValidationResult | None:
    """``results/validation.json``, or ``None``."""
    data = get_result(context, RESULT)
    return ValidationResult.parse(data) if data is not None else None
