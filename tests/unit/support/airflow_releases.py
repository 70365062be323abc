"""What has another name in another release of Airflow, for tests that run with each supported one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.serialization import serialized_objects

from airflow_provider_kafka_migration.provider import compat

try:
    from airflow.sdk.exceptions import DagRunTriggerException, DownstreamTasksSkipped, TaskDeferred
except ImportError:
    from airflow.exceptions import DagRunTriggerException, DownstreamTasksSkipped, TaskDeferred

try:
    from airflow.sdk.exceptions import TaskAwaitingInput as Waits
except ImportError:
    Waits = TaskDeferred  # type: ignore[assignment, misc]

try:
    from airflow.sdk.definitions.callback import AsyncCallback, SyncCallback
except ImportError:
    from airflow.sdk.definitions.deadline import AsyncCallback, SyncCallback  # type: ignore[attr-defined]

__all__ = [
    "AsyncCallback",
    "DagRunTriggerException",
    "DagSerialization",
    "DownstreamTasksSkipped",
    "SyncCallback",
    "TaskDeferred",
    "Waits",
]

DagSerialization: Any = getattr(serialized_objects, "DagSerialization", None) or serialized_objects.SerializedDAG

#: Whether the arguments of a deferral are encoded as they are in Airflow 3.2 and newer.
HAS_SERDE = hasattr(serialized_objects, "DagSerialization")

#: For tests of what only newer releases have.
needs_policies = pytest.mark.skipif(not compat.HAS_RETRY_POLICIES, reason="this Airflow has no retry policies")


def waits() -> BaseException:
    """Return what an approval raises to wait for its answer."""
    if Waits is TaskDeferred:
        return TaskDeferred(trigger=None, method_name="execute_complete")
    return Waits(method_name="execute_complete")


def allowed_seconds(waiting: Any) -> float:
    """Return for how long an approval waits for its answer: its trigger has the end of it, a parked task the time."""
    ends = getattr(getattr(waiting, "trigger", None), "timeout_datetime", None)
    return float((ends - datetime.now(UTC) if ends else waiting.timeout).total_seconds())
