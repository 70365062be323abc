"""What has another name in another release of Airflow, for tests that run with each supported one."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.serialization import serialized_objects

from airflow_provider_kafka_migration.provider import compat

try:
    from airflow.sdk.exceptions import DagRunTriggerException, TaskDeferred
except ImportError:
    from airflow.exceptions import DagRunTriggerException, TaskDeferred

try:
    from airflow.sdk.exceptions import TaskAwaitingInput as Waits
except ImportError:
    Waits = TaskDeferred  # type: ignore[assignment, misc]

try:
    from airflow.sdk.definitions.callback import AsyncCallback, SyncCallback
except ImportError:
    from airflow.sdk.definitions.deadline import AsyncCallback, SyncCallback  # type: ignore[attr-defined]

__all__ = ["AsyncCallback", "DagRunTriggerException", "DagSerialization", "SyncCallback", "TaskDeferred", "Waits"]

DagSerialization: Any = getattr(serialized_objects, "DagSerialization", None) or serialized_objects.SerializedDAG

#: For tests of what only newer releases have.
needs_policies = pytest.mark.skipif(not compat.HAS_RETRY_POLICIES, reason="this Airflow has no retry policies")


def waits() -> BaseException:
    """Return what an approval raises to wait for its answer."""
    if Waits is TaskDeferred:
        return TaskDeferred(trigger=None, method_name="execute_complete")
    return Waits(method_name="execute_complete")
