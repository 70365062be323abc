"""Partitions of migrated topics that appeared too late to be copied: never passed over by the parity check."""

from __future__ import annotations

from airflow_provider_kafka_migration.documents.proof import CheckResult, Outcome, worst
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.planning import follow
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.facts import partition_name


def with_late_partitions(context: PhaseContext, check: CheckResult) -> CheckResult:
    """The parity check with the partitions that the freeze has named as not part of the migration.

    An empty one is a warning: the source topic is wider than its copy, so keys go to other partitions. One that holds
    records is a difference that nothing explains, unless ``cutover.on_bypass: continue`` accepts such writes.
    """
    late = follow.born_late(context)
    if not late:
        return check
    topics = [topic.name for topic in context.load_plan().topics]
    keys: list[TopicPartition] = [
        (name, part.partition)
        for name, facts in sorted(context.source.admin.describe_topics(topics).items())
        for part in facts.partitions
        if partition_name((name, part.partition)) in late
    ]
    ends = context.source.wire.list_offsets(keys, "log_end") if keys else {}
    accepted = context.spec.cutover.on_bypass == "continue"
    findings = [f"{partition_name(key)} appeared in the freeze and was not copied: {_holds(ends[key])}" for key in keys]
    outcomes = [Outcome.FAILED if ends[key] and not accepted else Outcome.WARNING for key in keys]
    return check.model_copy(
        update={"outcome": worst([check.outcome, *outcomes]), "findings": [*check.findings, *findings]}
    )


def _holds(end_offset: int) -> str:
    return f"it holds {end_offset} offsets" if end_offset else "it is empty"
