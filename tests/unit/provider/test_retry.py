"""Terminal errors are never tried again, all others as the task says."""

from __future__ import annotations

import pytest
from airflow_releases import needs_policies

from airflow_provider_kafka_migration import errors
from airflow_provider_kafka_migration.provider.compat import migration_retry_policy

pytestmark = needs_policies


@pytest.mark.parametrize(
    ("error", "action"),
    [
        (errors.AuthenticationFailed("x"), "fail"),
        (errors.ApprovalRefused("x"), "fail"),
        (errors.Terminal("x"), "fail"),
        (errors.BrokerUnreachable("x"), "default"),
        (errors.DrainTimeout("x"), "default"),
        (RuntimeError("x"), "default"),
    ],
)
def test_decision(error: Exception, action: str) -> None:
    assert migration_retry_policy().evaluate(error, 1, 4).action.value == action


def test_policy_serialises() -> None:
    policy = migration_retry_policy()
    assert type(policy).deserialize(policy.serialize()).evaluate(errors.Terminal("x"), 1, 4).action.value == "fail"
