"""Topics on the target: created with copy-time settings, taken to the source's log starts, put back in two steps.

Idempotent: it looks at the target and the journal and does what is missing, so it may be killed anywhere and run
again. It never shrinks, never deletes a topic, and refuses topics that hold data of somebody else.

Order, with what a crash in between leaves:

0. partitions that appeared on the source since the plan amend it (:mod:`~.plan_growth`): a new plan, journaled;
1. intentions and copy-time settings are journaled (:mod:`~.topology_settings`): nothing has changed yet;
2. topics are created or adopted (journaled with their ids): one that was created but not journaled is known by
   the intention, and is empty;
3. producer ids are taken and journaled: ids that were taken but not journaled are never used;
4. log starts: fillers are compare-and-append, and what is done shows in the log starts themselves.
"""

from __future__ import annotations

from typing import Any

from airflow_provider_kafka_migration.documents.copy_job import ProducerIds
from airflow_provider_kafka_migration.documents.plan import Plan
from airflow_provider_kafka_migration.documents.topology import TopologyResult
from airflow_provider_kafka_migration.errors import MigrationError, TopologyRefused, Transient
from airflow_provider_kafka_migration.kafka.admin_base import ItemError
from airflow_provider_kafka_migration.kafka.admin_configs import ConfigChange
from airflow_provider_kafka_migration.phases import fence_id, plan_growth, topology_settings, topology_topics
from airflow_provider_kafka_migration.phases.context import PhaseContext, PhaseResult, Progress
from airflow_provider_kafka_migration.phases.migrated import put_result
from airflow_provider_kafka_migration.phases.topology_configs import changes, producer_visible
from airflow_provider_kafka_migration.phases.topology_log_starts import set_log_starts
from airflow_provider_kafka_migration.phases.topology_topics import Made

PHASE = "topology_copy"
DONE = "topology_copied"
PRODUCER_IDS = fence_id.PRODUCER_IDS
VISIBLE_RESTORED = "producer_visible_restored"
DELETING_RESTORED = "deleting_restored"


def run(context: PhaseContext) -> PhaseResult:
    """Bring the target's topics to where copying can begin.

    :raises TopologyRefused: the policy refuses differences, or some topics could not be made; all are listed.
    :raises ForeignData: a target topic holds data that is not of this migration.
    :raises TopicRecreated: a source topic is not the planned one any more.
    """
    context.journal.check_holds()
    return bring(context, plan_growth.follow(context, context.load_plan()))


def bring(context: PhaseContext, plan: Plan) -> PhaseResult:
    """Bring the target's topics to what a plan says; the source is not asked. Errors as of :func:`run`."""
    context.progress(Progress(PHASE, f"looking at {len(plan.topics)} topics on the target", 0, len(plan.topics)))
    present = topology_topics.look(context, plan)
    topology_topics.refuse(context, plan, present)
    settings = topology_settings.save(context, plan, present)
    made = topology_topics.make(context, plan, present, settings)
    topology_topics.check_permissions(context, plan)
    changed = apply_configs(context, {name: item.copy_time for name, item in settings.topics.items()})
    producers = take_producer_ids(context)
    filled = set_log_starts(context, plan, producers)
    did_something = made.anything or bool(changed) or filled["partitions"] > 0
    former = context.journal.find_step(DONE)
    if former is not None and not did_something:
        return PhaseResult(PHASE, str(former.details["summary"]), dict(former.details), already_done=True)
    return _finish(context, plan, made, filled)


def _finish(context: PhaseContext, plan: Plan, made: Made, filled: dict[str, int]) -> PhaseResult:
    summary = (
        f"{len(plan.topics)} topics on the target: {len(made.created)} created, {len(made.adopted)} adopted, "
        f"{len(made.widened)} widened; {filled['partitions']} log starts set"
    )
    entry = context.journal.find_step(topology_settings.STEP)
    result = TopologyResult(
        migration_id=context.migration_id,
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
    key = put_result(context, "topology", result)
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
    context.journal.step(DONE, details=details, reason=summary)
    return PhaseResult(PHASE, summary, details)


def take_producer_ids(context: PhaseContext) -> ProducerIds:
    """The two producer ids of the migration, taken once on the target; their epochs are never bumped."""
    entry = context.journal.find_step(PRODUCER_IDS)
    if entry is None:
        context.journal.check_holds()
        name, data = fence_id.take_data_id(context)
        filler = context.target.wire.init_producer_id()
        taken = ProducerIds(
            data_producer_id=data[0],
            data_producer_epoch=data[1],
            filler_producer_id=filler[0],
            filler_producer_epoch=filler[1],
        )
        details = {**taken.model_dump(mode="json"), fence_id.NAME_DETAIL: name}
        entry = context.journal.step_once(PRODUCER_IDS, details=details)
    return ProducerIds.model_validate(dict(entry.details))


# -- the two steps back ----------------------------------------------------------------------------------------------


def expected_configs(context: PhaseContext) -> dict[str, dict[str, str]]:
    """What each target topic ends with, for the parity check."""
    return {topic.target_name: dict(topic.target_configs) for topic in context.load_plan().topics}


def restore_producer_visible(context: PhaseContext) -> PhaseResult:
    """First step back, before clients may switch: all that a producer can notice. Nothing is deleted yet.

    :raises TopologyRefused: some topics refused; all are listed.
    """
    if context.journal.find_step(DELETING_RESTORED) is not None:
        return PhaseResult(PHASE, "the final configs are in force", {"topics": 0}, already_done=True)
    plan = context.load_plan()
    wanted = {topic.target_name: producer_visible(topic) for topic in plan.topics}
    return _restore(context, wanted, VISIBLE_RESTORED, "configs that producers notice are put back")


def restore_deleting(context: PhaseContext) -> PhaseResult:
    """Second step back, after the content is proven: retention and compaction, all as planned.

    :raises TopologyRefused: some topics refused; all are listed.
    """
    return _restore(context, expected_configs(context), DELETING_RESTORED, "final configs are put back")


def restore_for_rollback(context: PhaseContext) -> PhaseResult:
    """Created topics get what the plan says, topics that were there before get what they had. Data stays."""
    settings = topology_settings.load(context)
    if settings is None:
        return PhaseResult("rollback", "no topic was touched", {"topics": 0}, already_done=True)
    facts = context.target.admin.describe_topics(sorted(settings.topics))
    there = {name for name, item in facts.items() if item.error is None}
    wanted = {
        name: dict(item.final if item.before is None else item.before)
        for name, item in settings.topics.items()
        if name in there
    }
    return _restore(context, wanted, "rollback_configs_restored", "topic configs are put back")


def _restore(context: PhaseContext, wanted: dict[str, dict[str, str]], step: str, text: str) -> PhaseResult:
    context.journal.check_holds()
    changed = apply_configs(context, wanted)
    done = context.journal.find_step(step) is not None
    details = {"topics": len(wanted), "changed": len(changed)}
    if changed or not done:
        context.journal.step(step, details=details, reason=f"{text}: {len(wanted)} topics")
    return PhaseResult(PHASE, f"{text}: {len(wanted)} topics", details, already_done=done and not changed)


def apply_configs(context: PhaseContext, wanted: dict[str, dict[str, str]]) -> list[str]:
    """Make the overrides of topics exactly these. Names of those that had others.

    :raises TopologyRefused: some refused for good; all are listed. A retriable refusal raises ``Transient``.
    """
    admin = context.target.admin
    present = admin.topic_configs(sorted(wanted))
    failures = {name: item.error for name, item in present.items() if item.error is not None}
    todo: dict[str, ConfigChange] = {}
    for name, item in present.items():
        change = changes(item.overrides, wanted[name]) if item.error is None else {}
        if change:
            todo[name] = change
    results = admin.alter_topic_configs(todo)
    failures.update({name: error for name, error in results.items() if error is not None})
    if failures:
        raise config_failure(context, failures)
    return sorted(todo)


def config_failure(context: PhaseContext, failures: dict[str, ItemError]) -> MigrationError:
    """The error for topics whose configs could not be read or changed: permission, busy or refused."""
    final = {name: error for name, error in sorted(failures.items()) if not error.retriable}
    name, error = next(iter((final or dict(sorted(failures.items()))).items()))
    what = f"configs of {len(failures)} target topics could not be set; {name}"
    kind = error.exception(
        what, context.where(PHASE, cluster="target", topic=name), operation="DescribeConfigs and AlterConfigs on Topic"
    )
    details = {"topics": {item: value.as_dict() for item, value in sorted(failures.items())}}
    if isinstance(kind, Transient) or error.unauthorized:
        return type(kind)(kind.what, where=kind.where, next_step=kind.next_step, details=details)
    return TopologyRefused(
        kind.what,
        where=kind.where,
        next_step="correct these configs on the source, or exclude them (topology.config_exclude) in a new plan",
        details=details,
    )
