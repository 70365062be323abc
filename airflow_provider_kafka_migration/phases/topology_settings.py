"""Copy-time settings, written down before anything is set; see :mod:`~.documents.topology`."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_kafka_migration.documents.plan import Plan
from airflow_provider_kafka_migration.documents.topology import CopySettings, TopicSettings
from airflow_provider_kafka_migration.phases.context import PhaseContext
from airflow_provider_kafka_migration.phases.topology_configs import copy_time_configs
from airflow_provider_kafka_migration.phases.topology_topics import Presence

#: While a topic is copied it takes batches of this size; a source batch may be larger than the source's own limit now.
COPY_TIME_BATCH_BYTES = 16 * 1024 * 1024
STEP = "copy_settings"
KEY = "topology/copy-settings-{}.json"


def load(context: PhaseContext) -> CopySettings | None:
    """The settings that the journal points to, or ``None`` before the first topic was touched."""
    entry = context.journal.find_step(STEP)
    if entry is None:
        return None
    data = context.journal_store.get(context.key(str(entry.details["document"])))
    return None if data is None else CopySettings.parse(data)


def save(context: PhaseContext, plan: Plan, present: Mapping[str, Presence]) -> CopySettings:
    """Write and journal the settings of all topics of the plan. What was written down before stays as it was:
    the second look at an adopted topic sees our own settings, not what it had."""
    former = load(context)
    known = dict(former.topics) if former is not None else {}
    for topic in plan.topics:
        here = present[topic.target_name]
        before = known[topic.target_name].before if topic.target_name in known else here.before
        known[topic.target_name] = TopicSettings(
            before=before,
            copy_time=copy_time_configs(topic, plan.target, max_batch_bytes=COPY_TIME_BATCH_BYTES),
            final=dict(topic.target_configs),
        )
    settings = CopySettings(migration_id=context.migration_id, topics=dict(sorted(known.items())))
    if former is not None and former.digest() == settings.digest():
        return settings
    digest = settings.digest()
    name = KEY.format(digest[:16])
    context.journal_store.put(context.key(name), settings.canonical())
    context.journal.step(STEP, details={"document": name, "digest": digest, "topics": len(settings.topics)})
    return settings
