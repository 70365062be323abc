"""Create the target's topics with copy-time settings and move them to the source's log starts.

Idempotent: this module compares the target with the journal and does what is missing, so the process may be killed
anywhere and run again. It never shrinks or deletes a topic, and it refuses topics that hold another party's data.

The order, and what a crash after each step leaves:

1. Intentions and copy-time settings are journaled (:mod:`~.copy_settings`): nothing has changed yet.
2. Topics are created or adopted and journaled with their ids. A topic that was created but not journaled is known
   by its intention, and is empty.
3. Producer ids are allocated and journaled. Ids that were allocated but not journaled are never used.
4. Log starts: fillers are compare-and-append, and the log starts themselves show which partitions are done.
"""

from __future__ import annotations

from typing import Any

from airflow_provider_kafka_migration.documents.plan import Plan
from airflow_provider_kafka_migration.documents.target import TopologyResult
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult, Progress
from airflow_provider_kafka_migration.record.producer_ids import take_producer_ids
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.topics import copy_settings, target_topics
from airflow_provider_kafka_migration.topics.copy_settings import apply_configs
from airflow_provider_kafka_migration.topics.log_starts import set_log_starts
from airflow_provider_kafka_migration.topics.target_topics import Made

PHASE = "topology_copy"


def bring(context: PhaseContext, plan: Plan) -> PhaseResult:
    """Bring the target's topics to the state of a plan; the source is not queried.

    :raises TopologyRefused: the policy refuses differences, or some topics could not be created; the error lists all.
    :raises ForeignData: a target topic holds data that is not from this migration.
    """
    record = context.record
    context.progress(Progress(PHASE, f"checking {len(plan.topics)} topics on the target", 0, len(plan.topics)))
    present = target_topics.read_presence(record, context.target, plan)
    target_topics.refuse(record, plan, present)
    settings = copy_settings.save(record, plan, present)
    made = target_topics.make(context, plan, present, settings)
    target_topics.check_permissions(record, context.target, plan)
    changed = apply_configs(record, context.target, {name: item.copy_time for name, item in settings.topics.items()})
    producers = take_producer_ids(record, context.target)
    filled = set_log_starts(context, plan, producers)
    did_something = made.anything or bool(changed) or filled["partitions"] > 0
    former = context.journal.find_step(steps.TOPOLOGY_COPIED)
    if former is not None and not did_something:
        return PhaseResult(PHASE, str(former.details["summary"]), dict(former.details), already_done=True)
    return _finish(record, plan, made, filled)


def _finish(record: MigrationRecord, plan: Plan, made: Made, filled: dict[str, int]) -> PhaseResult:
    summary = (
        f"{len(plan.topics)} topics on the target: {len(made.created)} created, {len(made.adopted)} adopted, "
        f"{len(made.widened)} widened; {filled['partitions']} log starts set"
    )
    entry = record.journal.find_step(steps.COPY_SETTINGS)
    result = TopologyResult(
        migration_id=record.migration_id,
        summary=summary,
        topics=len(plan.topics),
        created=made.created,
        adopted=made.adopted,
        widened=made.widened,
        log_starts_filled=filled,
        dropped_configs={topic.target_name: topic.dropped_configs for topic in plan.topics if topic.dropped_configs},
        replication_factors={
            topic.target_name: [topic.source_replication_factor, topic.replication_factor]
            for topic in plan.topics
            if topic.replication_factor != topic.source_replication_factor
        },
        copy_settings=dict(entry.details) if entry is not None else {},
    )
    key = record.put_result(keys.TOPOLOGY, result)
    details: dict[str, Any] = {
        "summary": summary,
        "result": key,
        "digest": result.digest(),
        "topics": len(plan.topics),
        "created": len(made.created),
        "adopted": len(made.adopted),
        "widened": len(made.widened),
        "log_starts_filled": filled,
    }
    record.journal.step(steps.TOPOLOGY_COPIED, details=details, reason=summary)
    return PhaseResult(PHASE, summary, details)


def make_new_partitions(context: PhaseContext, plan: Plan, missing: set[TopicPartition]) -> None:
    """Create topics, configs and log starts on the target for new partitions; idempotent, as topology_copy is."""
    record = context.record
    names = {topic for topic, _ in missing}
    part = plan.model_copy(update={"topics": [topic for topic in plan.topics if topic.name in names]})
    present = target_topics.read_presence(record, context.target, part)
    target_topics.refuse(record, part, present)
    settings = copy_settings.save(record, part, present)
    target_topics.make(context, part, present, settings)
    target_topics.check_permissions(record, context.target, part)
    names = {topic.target_name for topic in part.topics if not topic.merged}
    wanted = copy_settings.in_force(record, context.target, settings, names)
    copy_settings.apply_configs(record, context.target, wanted)
    only_new = [
        topic.model_copy(
            update={"partitions": [item for item in topic.partitions if (topic.name, item.partition) in missing]}
        )
        for topic in part.topics
    ]
    set_log_starts(context, part.model_copy(update={"topics": only_new}), record.producer_ids())
