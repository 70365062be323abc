"""Task ``topology_copy``: create topics with their configs and log starts, then ACLs, users and quotas."""

from __future__ import annotations

from airflow_provider_kafka_migration.access import apply
from airflow_provider_kafka_migration.planning import growth
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult
from airflow_provider_kafka_migration.topics import bring
from airflow_provider_kafka_migration.way_back import guard

PHASE = "topology_copy"


def run(context: PhaseContext) -> PhaseResult:
    """Run both parts; each is idempotent. Partitions that appeared on the source since the plan are added to it first.

    :raises IllegalTransition: the plan was made again and has not been checked.
    :raises TopologyRefused: the policy refuses differences, or some topics could not be created; all are listed.
    :raises ForeignData: a target topic holds data that this migration did not write.
    :raises TopicRecreated: a source topic is no longer the planned one.
    """
    plan = context.record.plan()
    growth.check_is_of(context.record, plan)
    guard.check_settings(context.record, context.target, plan)
    context.journal.check_holds()
    plan = growth.follow(context, plan)
    # Before the first append to the old cluster: what its own producers write there would be in the way.
    guarded = guard.put(context, plan)
    topics = bring.bring(context, plan)
    access = apply.run(context)
    return PhaseResult(
        PHASE,
        f"{topics.summary}; {access.summary}",
        {
            "topology": topics.details,
            "acls": access.details,
            **({"guard": guarded} if guarded["deny_acls"] else {}),
        },
        already_done=topics.already_done and access.already_done,
    )
