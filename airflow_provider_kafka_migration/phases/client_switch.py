"""Task ``client_switch``: when a person acknowledges the client switch, consumer groups are synced a last time."""

from __future__ import annotations

from airflow_provider_kafka_migration.approvals.answers import switch_clients
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult


def run(context: PhaseContext) -> PhaseResult:
    """Acknowledge the switch. The answer to the approval has usually done so already; then this only reports it.

    :raises ApprovalRefused: nobody has approved the switch.
    :raises WaitsForOperator: groups still read the source and the policy does not allow it, or the source has records
        beyond the boundary.
    :raises GroupsIncomplete: groups failed in the last sync.
    """
    return switch_clients(context)
