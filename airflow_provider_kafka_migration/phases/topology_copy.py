"""Task ``topology_copy``: topics with their configs and log starts, then ACLs, users and quotas."""

from __future__ import annotations

from airflow_provider_kafka_migration.access import apply
from airflow_provider_kafka_migration.planning import growth
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult
from airflow_provider_kafka_migration.topics import bring

PHASE = "topology_copy"


def run(context: PhaseContext) -> PhaseResult:
    """Both parts; each is idempotent. Partitions that appeared on the source since the plan amend it first.

    :raises IllegalTransition: the plan was made anew and not checked.
    :raises TopologyRefused: the policy refuses differences, or some topics could not be made; all are listed.
    :raises ForeignData: a target topic holds data that is not of this migration.
    :raises TopicRecreated: a source topic is not the planned one any more.
    """
    growth.check_is_of(context, context.load_plan())
    topics = copy_topics(context)
    access = apply.run(context)
    return PhaseResult(
        PHASE,
        f"{topics.summary}; {access.summary}",
        {"topology": topics.details, "acls": access.details},
        already_done=topics.already_done and access.already_done,
    )


def copy_topics(context: PhaseContext) -> PhaseResult:
    """The first part. Errors as of :func:`run`."""
    context.journal.check_holds()
    return bring.bring(context, growth.follow(context, context.load_plan()))
