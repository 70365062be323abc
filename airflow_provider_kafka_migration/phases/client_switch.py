"""Task ``client_switch``: groups are taken over for the last time when a person acknowledges it."""

from __future__ import annotations

from airflow_provider_kafka_migration.approvals.answers import switch_clients
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult


def run(context: PhaseContext) -> PhaseResult:
    """Acknowledge the switch. The answer to the approval has done it already; run again, this says so.

    :raises ApprovalRefused: nobody has approved it.
    :raises WaitsForOperator: groups still read the source and the policy does not allow it, or the source has records
        behind the boundary.
    :raises GroupsIncomplete: groups failed in the last refresh.
    """
    return switch_clients(context)
