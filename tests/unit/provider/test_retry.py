"""Terminal errors are never tried again, all others as the task says."""

from __future__ import annotations

import pytest
from airflow.sdk import RetryAction

from airflow_provider_kafka_migration import errors
from airflow_provider_kafka_migration.provider.compat import migration_retry_policy


@pytest.mark.parametrize(
    ("error", "action"),
    [
        (errors.AuthenticationFailed("x"), RetryAction.FAIL),
        (errors.ApprovalRefused("x"), RetryAction.FAIL),
        (errors.Terminal("x"), RetryAction.FAIL),
        (errors.BrokerUnreachable("x"), RetryAction.DEFAULT),
        (errors.DrainTimeout("x"), RetryAction.DEFAULT),
        (RuntimeError("x"), RetryAction.DEFAULT),
    ],
)
def test_decision(error: Exception, action: RetryAction) -> None:
    assert migration_retry_policy().evaluate(error, 1, 4).action is action


def test_policy_serialises() -> None:
    policy = migration_retry_policy()
    assert type(policy).deserialize(policy.serialize()).evaluate(errors.Terminal("x"), 1, 4).action is RetryAction.FAIL
