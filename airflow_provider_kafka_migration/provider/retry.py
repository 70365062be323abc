"""Which failures are worth another attempt."""

from __future__ import annotations

from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule

from airflow_provider_kafka_migration.errors import Terminal


def migration_retry_policy() -> ExceptionRetryPolicy:
    """Terminal errors fail at once, whatever ``retries`` says; all others follow the task's own settings."""
    return ExceptionRetryPolicy(
        rules=[
            RetryRule(
                exception=f"{Terminal.__module__}.{Terminal.__qualname__}",
                action=RetryAction.FAIL,
                reason="a person has to change something first; the error says what",
            )
        ]
    )
