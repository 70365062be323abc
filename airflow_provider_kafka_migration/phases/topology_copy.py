"""Task ``topology_copy``: topics with their configs and log starts, then ACLs, users and quotas."""

from __future__ import annotations

from airflow_provider_kafka_migration.phases import acls, precheck, topology
from airflow_provider_kafka_migration.phases.context import PhaseContext, PhaseResult

PHASE = "topology_copy"


def run(context: PhaseContext) -> PhaseResult:
    """Both parts; each is idempotent.

    :raises IllegalTransition: the plan was made anew and not checked.
    :raises TopologyRefused: the target differs in a way that the policy refuses.
    """
    precheck.check_is_of(context, context.load_plan())
    topics = topology.run(context)
    access = acls.run(context)
    return PhaseResult(
        PHASE,
        f"{topics.summary}; {access.summary}",
        {"topology": topics.details, "acls": access.details},
        already_done=topics.already_done and access.already_done,
    )
