"""Topology: topics, partitions, configs and log starts on the target; copy-time settings and the two steps back.

Copy-time settings are journaled before they are set, so a crash in between loses nothing: what a topic is to end with
is in the plan, and that it is being copied is in the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_kafka_migration.documents.copy_job import ProducerIds
from airflow_provider_kafka_migration.documents.plan import Plan, TopicPlan
from airflow_provider_kafka_migration.errors import ForeignData, Terminal, TopologyRefused
from airflow_provider_kafka_migration.kafka.admin_base import ItemError
from airflow_provider_kafka_migration.kafka.admin_topics import NewTopic, TopicFacts
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.phases.context import PhaseContext, PhaseResult, Progress
from airflow_provider_kafka_migration.phases.topology_configs import changes, copy_time_configs, producer_visible
from airflow_provider_kafka_migration.replication.holes import fill_log_start

PHASE = "topology_copy"
STEP = "topology_copied"
CREATED = "topic_created"
SETTINGS = "copy_settings"
PRODUCER_IDS = "producer_ids"

#: While a topic is copied it takes batches of this size; a source batch may be larger than the source's own limit now.
COPY_TIME_BATCH_BYTES = 16 * 1024 * 1024


def run(context: PhaseContext) -> PhaseResult:
    """Bring the target's topics to where copying can begin. Idempotent.

    :raises ForeignData: a target topic holds data that this migration did not write.
    :raises TopologyRefused: topics that cannot be made as planned; all of them are named.
    """
    plan = context.load_plan()
    producers = take_producer_ids(context)
    present = context.target.admin.describe_topics([topic.target_name for topic in plan.topics])
    present = {name: facts for name, facts in present.items() if facts.error is None}
    _check_ours(context, plan, present)
    wanted = {
        topic.target_name: copy_time_configs(topic, plan.target, max_batch_bytes=COPY_TIME_BATCH_BYTES)
        for topic in plan.topics
    }
    context.journal.check_holds()
    context.journal.step_once(SETTINGS, details={"topics": {topic.target_name: topic.name for topic in plan.topics}})
    created = _create(context, plan, present, wanted)
    _grow(context, plan, present)
    _set_configs(context, {name: wanted[name] for name in present}, "copy-time settings")
    filled = _fill_log_starts(context, plan, producers)
    summary = f"{len(created)} topics created, {len(present)} were there, {filled} log starts filled"
    details: dict[str, Any] = {
        "created": created,
        "existed": sorted(present),
        "log_starts_filled": filled,
        "dropped_configs": {topic.name: topic.dropped_configs for topic in plan.topics if topic.dropped_configs},
        "configs": {topic.target_name: topic.target_configs for topic in plan.topics},
        "summary": summary,
    }
    context.journal.step_once(STEP, details=details)
    return PhaseResult(PHASE, summary, details, already_done=not created and not filled)


def take_producer_ids(context: PhaseContext) -> ProducerIds:
    """The producer ids that all copiers share: taken once, then from the journal."""
    entry = context.journal.find_step(PRODUCER_IDS)
    if entry is None:
        data, filler = context.target.wire.init_producer_id(), context.target.wire.init_producer_id()
        taken = ProducerIds(
            data_producer_id=data[0],
            data_producer_epoch=data[1],
            filler_producer_id=filler[0],
            filler_producer_epoch=filler[1],
        )
        # Two processes may take ids at once; the journal keeps the first ones, and all use those.
        entry = context.journal.step_once(PRODUCER_IDS, details=taken.model_dump(mode="json"))
    return ProducerIds.model_validate(dict(entry.details))


def _check_ours(context: PhaseContext, plan: Plan, present: Mapping[str, TopicFacts]) -> None:
    """A topic that is there must be ours (journal, topic id) or empty."""
    foreign = []
    for topic in plan.topics:
        facts = present.get(topic.target_name)
        if facts is None:
            continue
        entry = context.journal.find_step(CREATED, topic.target_name)
        if entry is not None and entry.details.get("topic_id") in ("", facts.topic_id):
            continue
        keys = [(topic.target_name, item.partition) for item in facts.partitions]
        if any(context.target.wire.list_offsets(keys, "log_end").values()):
            foreign.append(topic.target_name)
    if foreign:
        raise ForeignData(
            f"{len(foreign)} target topics hold data that this migration did not write: {', '.join(foreign[:20])}",
            where=context.where(PHASE, cluster="target", topic=foreign[0]),
            next_step="delete these topics on the target, leave them out (topics.exclude), or rename (topics.rename)",
            details={"topics": foreign},
        )


def _create(
    context: PhaseContext, plan: Plan, present: Mapping[str, TopicFacts], wanted: Mapping[str, Mapping[str, str]]
) -> list[str]:
    missing = [topic for topic in plan.topics if topic.target_name not in present]
    if not missing:
        return []
    context.progress(Progress(PHASE, f"creating {len(missing)} topics", 0, len(missing), "topics"))
    results = context.target.admin.create_topics(
        [
            NewTopic(topic.target_name, len(topic.partitions), topic.replication_factor, wanted[topic.target_name])
            for topic in missing
        ]
    )
    _raise_failures(context, {name: result.error for name, result in results.items()}, "topics could not be created")
    facts = context.target.admin.describe_topics(sorted(results))
    for name in sorted(results):
        context.journal.step_once(CREATED, key=name, details={"topic_id": facts[name].topic_id})
    return sorted(results)


def _grow(context: PhaseContext, plan: Plan, present: Mapping[str, TopicFacts]) -> None:
    counts = {}
    refused = []
    for topic in plan.topics:
        facts = present.get(topic.target_name)
        if facts is None or len(facts.partitions) == len(topic.partitions):
            continue
        if len(facts.partitions) > len(topic.partitions):
            refused.append(f"{topic.target_name} has {len(facts.partitions)}, the source {len(topic.partitions)}")
        counts[topic.target_name] = len(topic.partitions)
    if refused:
        raise TopologyRefused(
            f"target topics have more partitions than the source: {'; '.join(refused)}",
            where=context.where(PHASE, cluster="target"),
            next_step="delete these topics on the target, or rename (topics.rename)",
        )
    if counts:
        _raise_failures(context, context.target.admin.create_partitions(counts), "topics could not be grown")


def _set_configs(context: PhaseContext, wanted: Mapping[str, Mapping[str, str]], what: str) -> list[str]:
    """Make the overrides of topics exactly what is wanted; names of those that were changed."""
    if not wanted:
        return []
    present = context.target.admin.topic_configs(sorted(wanted))
    _raise_failures(context, {name: item.error for name, item in present.items()}, f"{what} cannot be looked at")
    altered = {name: changes(present[name].overrides, wanted[name]) for name in sorted(wanted)}
    altered = {name: change for name, change in altered.items() if change}
    if altered:
        context.journal.check_holds()
        _raise_failures(context, context.target.admin.alter_topic_configs(altered), f"{what} could not be set")
    return sorted(altered)


def _raise_failures(context: PhaseContext, errors: Mapping[str, ItemError | None], what: str) -> None:
    failed = {name: error for name, error in sorted(errors.items()) if error is not None}
    if failed:
        name, error = next(iter(failed.items()))
        kind = Terminal if error.unauthorized else TopologyRefused
        raise kind(
            f"{len(failed)} {what}; the first is {name}: {error}",
            where=context.where(PHASE, cluster="target", topic=name),
            next_step="correct what the broker says; then clear topology_copy",
            details={"failures": {key: value.as_dict() for key, value in failed.items()}},
        )


def _fill_log_starts(context: PhaseContext, plan: Plan, producers: ProducerIds) -> int:
    """Fill and delete up to the planned log starts, partition by partition."""
    starts: dict[TopicPartition, int] = {
        (topic.target_name, item.partition): item.target_start_offset
        for topic in plan.topics
        for item in topic.partitions
        if item.target_start_offset > 0
    }
    if not starts:
        return 0
    wire = context.target.wire
    present = wire.list_offsets(list(starts), "earliest")
    todo = {key: start for key, start in sorted(starts.items()) if present[key] < start}
    for number, (key, start) in enumerate(todo.items()):
        context.journal.check_holds()
        report = _filling(context, key, number, len(todo))
        fill_log_start(wire, *key, start, producers, on_progress=report)
        wire.delete_records({key: start})
    return len(todo)


def _filling(context: PhaseContext, key: TopicPartition, number: int, total: int) -> Callable[[int, int], None]:
    def report(offset: int, wanted: int) -> None:
        message = f"log start of {key[0]}-{key[1]}: {offset} of {wanted} filled"
        context.progress(Progress(PHASE, message, number, total, "log starts"))

    return report


# -- the two steps back ----------------------------------------------------------------------------------------------


def restore_producer_visible(context: PhaseContext) -> PhaseResult:
    """Before READY_FOR_CLIENT_SWITCH: all that a producer can notice. Retention and compaction are still held back."""
    return _restore(context, "restored_producer_visible", producer_visible)


def restore_deleting(context: PhaseContext) -> PhaseResult:
    """After the content is proven: what deletes data. The topics have their final configs then."""
    return _restore(context, "restored_deleting", lambda topic: topic.target_configs)


def restore_for_rollback(context: PhaseContext) -> PhaseResult:
    """The plan's configs, on the topics that this migration has made or changed."""
    if context.journal.find_step(SETTINGS) is None:
        return PhaseResult(PHASE, "no topic was changed", {}, already_done=True)
    return _restore(context, "restored_for_rollback", lambda topic: topic.target_configs)


def expected_configs(context: PhaseContext) -> dict[str, dict[str, str]]:
    """What each target topic ends with, for the topic parity check."""
    return {topic.target_name: dict(topic.target_configs) for topic in context.load_plan().topics}


def _restore(context: PhaseContext, step: str, configs: Callable[[TopicPlan], dict[str, str]]) -> PhaseResult:
    plan = context.load_plan()
    present = context.target.admin.describe_topics([topic.target_name for topic in plan.topics])
    wanted = {topic.target_name: configs(topic) for topic in plan.topics if present[topic.target_name].error is None}
    altered = _set_configs(context, wanted, "final settings")
    summary = f"settings of {len(altered)} topics put back"
    context.journal.step_once(step, details={"topics": altered, "summary": summary})
    return PhaseResult(PHASE, summary, {"topics": altered}, already_done=not altered)
