"""Precheck of topics: those that already exist on the target, and the target's verdict on those to be created."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping

from airflow_provider_kafka_migration.documents.plan import Finding, Plan, TopicPlan, Verdict
from airflow_provider_kafka_migration.groups.left_out import is_internal
from airflow_provider_kafka_migration.kafka.admin.topics import NewTopic
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.finding_codes import finding, some
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.topics import target_topics
from airflow_provider_kafka_migration.topics.configs import DECIDING, changes, stages
from airflow_provider_kafka_migration.topics.copy_settings import COPY_TIME_BATCH_BYTES
from airflow_provider_kafka_migration.topics.kept_records import Keeping, defaults_of, older_offsets
from airflow_provider_kafka_migration.topics.target_topics import Presence


def check_selection(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Report names in the spec that the source does not have, and every topic that is left out."""
    if plan.missing_topics:
        yield finding("B090", f"the source does not have or show {some(plan.missing_topics)}")
    excluded = dict(sorted(plan.excluded_topics.items()))
    internal = {name: why for name, why in excluded.items() if is_internal(why)}
    if internal:
        yield finding("I091", some(list(internal)), topics=internal)
    others = {name: why for name, why in excluded.items() if name not in internal}
    if others:
        yield finding("I092", some([f"{name} ({why})" for name, why in others.items()]), topics=others)


def check_present(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Report topics that already exist on the target."""
    present = target_topics.read_presence(context.record, context.target, plan)
    for topic in plan.topics:
        here = present[topic.target_name]
        if here.exists and not here.ours:
            yield from _one(context.spec, topic, here)


def _one(spec: MigrationSpec, topic: TopicPlan, here: Presence) -> Iterator[Finding]:
    name = topic.target_name
    if topic.merged:
        yield from _merged(spec, topic, here)
        return
    if topic.shared:
        yield from _shared(topic, here)
        return
    foreign = target_topics.foreign_ends(topic, here)
    if foreign:
        ends = list(foreign.values())
        seen = f"{sum(ends)} offsets in {len(ends)} partitions"
        yield finding("B010", seen, subject=name, fix=target_topics.fix_of_foreign(spec))
    wanted = len(topic.partitions)
    counts = f"{here.partitions} on the target, {wanted} on the source"
    if here.partitions > wanted:
        yield finding("B013", counts, subject=name, fix=target_topics.fix_of_wider(spec))
    elif here.partitions < wanted:
        yield finding("I014", counts, subject=name)
    if not topic.drift:
        return
    listing = [f"{item['config']} is {item['target']}, source {item['source']}" for item in topic.drift]
    if spec.topology.on_config_drift == "stop":
        yield finding("B011", some(listing), subject=name, drift=topic.drift)
        return
    policies = [item for item in topic.drift if item["config"] == "cleanup.policy"]
    if policies:
        seen = f"{policies[0]['target'] or 'the default'} on the target, {policies[0]['source']} on the source"
        yield finding("W015", seen, subject=name)
    yield finding("W016", some(listing), subject=name, drift=topic.drift)


def _shared(topic: TopicPlan, here: Presence) -> Iterator[Finding]:
    """Report a topic with data of others that the spec allows copying into."""
    seen = f"it already holds {sum(here.end_offsets.values())} offsets in {here.partitions} partitions"
    yield finding("W028", seen, subject=topic.target_name)
    if here.partitions < len(topic.partitions):
        counts = f"{here.partitions} on the target, {len(topic.partitions)} on the source"
        yield finding("B029", counts, subject=topic.target_name)


def _merged(spec: MigrationSpec, topic: TopicPlan, here: Presence) -> Iterator[Finding]:
    """Report a topic with data that the opposite flow will copy to the source."""
    if not here.empty:
        seen = (
            f"it already holds {sum(here.end_offsets.values())} offsets in {here.partitions} partitions: records "
            f"without the header {spec.mirror.provenance_header} count as first written there"
        )
        fix = "check that they are no copies of the source's records: the opposite flow would copy them to the source"
        yield finding("W028", seen, subject=topic.target_name, fix=fix)


def check_replication(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Report replication factors that cannot be kept."""
    lowered: dict[tuple[int, int], list[str]] = {}
    for topic in plan.topics:
        if 0 < topic.replication_factor < topic.source_replication_factor:
            key = (topic.source_replication_factor, topic.replication_factor)
            lowered.setdefault(key, []).append(topic.target_name)
    for (source, target), names in sorted(lowered.items()):
        seen = f"{target} on the target ({len(plan.target.brokers)} brokers), {source} on the source: {some(names)}"
        yield finding("W012", seen, topics=names)


def check_configs(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Report configs that are left out or changed, and defaults that differ."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for topic in plan.topics:
        for name, why in topic.dropped_configs.items():
            if not why.startswith("excluded by"):
                by_reason.setdefault((name, why), []).append(topic.name)
    for (name, why), topics in sorted(by_reason.items()):
        yield finding("W017", f"{name}: {why} ({some(topics)})", subject=name, topics=topics)
    left = [item for item in plan.defaults_drift if not _is_carried_over(item["config"], plan)]
    if left and context.spec.topology.use_defaults_from == "target":
        listing = [f"{item['config']}: {item['source']} -> {item['target']}" for item in left]
        yield finding("W018", some(listing, 20), defaults=left)


def _is_carried_over(config: str, plan: Plan) -> bool:
    """Whether each topic gets the source's default of a config that decides which records stay."""
    return config in DECIDING and all(config in topic.target_configs for topic in plan.topics)


def check_kept_records(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Report topics of which the target will delete records that the source keeps.

    Defaults of brokers are carried over, so this is what the spec asks for (``topology.config_exclude``,
    ``on_config_drift: note``) or what a shared topic already has.
    """
    if context.spec.kind == "mirror" and context.spec.mirror.target_retention == "own":
        return
    source = context.source.admin.topic_configs([topic.name for topic in plan.topics])
    defaults = defaults_of(context.record, context.target)
    now_ms = int(context.now().timestamp() * 1000)
    unknown = []
    for topic in plan.topics:
        here = Keeping.of(source[topic.name].get)
        there = Keeping.of(ChainMap(topic.target_configs, defaults).get)
        if here is None or there is None:
            unknown.append(topic.name)
            continue
        why = there.loses_more_than(here)
        if why:
            keys = [(topic.name, item.partition) for item in topic.partitions]
            gone = older_offsets(context.source.wire, keys, there.longest_ms, now_ms)
            count = "it is not known how many" if gone is None else f"up to {gone}"
            seen = f"{'; '.join(why)}; of the records that are there now, {count} go"
            yield finding("W049", seen, subject=topic.target_name, records=gone)
    if unknown:
        yield finding("W049", f"not known, because a config is not reported or is no number: {some(unknown)}")


def check_creatable(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Ask the target's controller whether it accepts each topic with every set of configs that the topic will get.

    Otherwise a refusal would show up in the middle of the cutover, with producers frozen.
    """
    by_topic = {
        topic.target_name: stages(topic, plan.target, max_batch_bytes=COPY_TIME_BATCH_BYTES) for topic in plan.topics
    }
    there = [topic.target_name for topic in plan.topics if topic.exists_on_target]
    present = context.target.admin.topic_configs(there) if there else {}
    unread = {name: item.error for name, item in present.items() if item.error is not None}
    yield from _refused(unread, "present")
    for stage in ("final", "copy-time", "producer-visible"):
        wanted = [
            NewTopic(
                topic.target_name, len(topic.partitions), topic.replication_factor, by_topic[topic.target_name][stage]
            )
            for topic in plan.topics
            if not topic.exists_on_target
        ]
        answers = context.target.admin.create_topics(wanted, validate_only=True)
        created = {name: answer.error for name, answer in answers.items() if answer.error is not None}
        todo = {
            name: changes(item.overrides, by_topic[name][stage]) for name, item in present.items() if name not in unread
        }
        results = context.target.admin.alter_topic_configs(todo, validate_only=True)
        altered = {name: error for name, error in results.items() if error is not None}
        yield from _refused(created, stage)
        yield from _refused(altered, stage, "AlterConfigs on Topic")
        if created or altered:
            return


def _refused(
    errors: Mapping[str, ItemError], stage: str, right: str = "Create on Topic or on Cluster"
) -> Iterator[Finding]:
    """Yield one finding per kind of refusal; a missing right is reported as B005."""
    refused: dict[str, list[str]] = {}
    for name, error in sorted(errors.items()):
        refused.setdefault(str(error), []).append(name)
    for text, names in sorted(refused.items()):
        if "AUTHORIZATION" in text:
            yield finding("B005", f"target: {right}, for {some(names)}", subject=names[0], topics=names)
        else:
            yield finding("B019", f"{text} ({stage} configs of {some(names)})", subject=names[0], topics=names)


def check_verdicts(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Report partitions whose offsets will not be equal, or that are costly to keep equal with ``mode: equal``."""
    changed = [
        f"{topic.name}-{item.partition} ({item.verdict})"
        for topic in plan.topics
        for item in topic.partitions
        if item.verdict is not Verdict.EQUAL
    ]
    if changed:
        yield finding("W024", some(changed), partitions=changed)
