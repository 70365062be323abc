"""Copy-time settings, saved before any config is set; see :mod:`~.documents.topology`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from airflow_provider_kafka_migration.documents.plan import Plan
from airflow_provider_kafka_migration.documents.target import CopySettings, TopicSettings
from airflow_provider_kafka_migration.errors import MigrationError, TopologyRefused, Transient
from airflow_provider_kafka_migration.kafka.admin.topics import ConfigChange
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import Cluster, PhaseResult
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.spec.advice import begin_again
from airflow_provider_kafka_migration.topics.configs import (
    RETENTION,
    changes,
    copy_time_configs,
    is_left_alone,
    producer_visible,
    while_mirrored,
)
from airflow_provider_kafka_migration.topics.target_topics import Presence
from airflow_provider_kafka_migration.topics.topics_gone import find_gone

PHASE = "topology_copy"

#: Largest batch accepted during the copy: old source batches may be larger than the source's current limit.
COPY_TIME_BATCH_BYTES = 16 * 1024 * 1024


def largest_batch_bytes(record: MigrationRecord, topic: str) -> int:
    """Return the largest batch that a target topic accepts during the copy, as far as the migration raises it."""
    found = [int(entry.details["batch_bytes"].get(topic, 0)) for entry in record.journal.steps(steps.LARGE_BATCHES)]
    return max([COPY_TIME_BATCH_BYTES, *found])


def save(record: MigrationRecord, plan: Plan, present: Mapping[str, Presence]) -> CopySettings:
    """Write and journal the settings of all topics of the plan, except merged ones: nothing is ever set on those.

    Settings that were saved before stay unchanged: a second read of an adopted topic returns the settings that the
    migration has set, not the original ones.
    """
    former = record.copy_settings()
    known = dict(former.topics) if former is not None else {}
    for topic in plan.topics:
        if topic.merged:
            continue
        here = present[topic.target_name]
        before = known[topic.target_name].before if topic.target_name in known else here.before
        known[topic.target_name] = TopicSettings(
            before=before,
            copy_time=copy_time_configs(
                topic, plan.target, max_batch_bytes=largest_batch_bytes(record, topic.target_name)
            ),
            final=dict(topic.target_configs),
        )
    settings = CopySettings(migration_id=record.migration_id, topics=dict(sorted(known.items())))
    if former is not None and former.digest() == settings.digest():
        return settings
    digest = settings.digest()
    name = keys.copy_settings(digest)
    record.journal_store.put(record.key(name), settings.canonical())
    record.journal.step(
        steps.COPY_SETTINGS, details={"document": name, "digest": digest, "topics": len(settings.topics)}
    )
    return settings


def mirrored_topics(record: MigrationRecord) -> dict[str, str]:
    """Return the target topics that are copied once, so that a mirror deletes and compacts there, with their ids."""
    return {
        str(name): str(topic_id)
        for entry in record.journal.steps(steps.TARGET_RETENTION)
        for name, topic_id in entry.details["topics"].items()
    }


def in_force(
    record: MigrationRecord, target: Cluster, settings: CopySettings, names: Collection[str]
) -> dict[str, dict[str, str]]:
    """Return what the configs of topics are to be while records are copied to them.

    A topic that was created again since, to be copied again, has the copy-time settings until it is copied. A topic
    with content that the mirror has taken over (``adopt``) deletes by its own retention, also with ``source``: there
    the mirror moves no log start.
    """
    retention, begun = record.spec.mirror.target_retention, mirrored_topics(record)
    wanted = {name: dict(settings.topics[name].copy_time) for name in names}
    known = sorted(begun.keys() & wanted.keys())
    if retention == "keep" or not known:
        return wanted
    facts = target.admin.describe_topics(known)
    adopted = {item.target_topic for item in record.partitions().values() if item.adopted}
    own = set()
    for name in known:
        if facts[name].error is None and facts[name].topic_id == begun[name]:
            item, policy = settings.topics[name], "own" if name in adopted else retention
            wanted[name] = while_mirrored(item.copy_time, item.final, policy)
            own |= {name} if policy == "own" else set()
    return _with_excluded_retention(record, target, wanted, own)


def _with_excluded_retention(
    record: MigrationRecord, target: Cluster, wanted: dict[str, dict[str, str]], names: Collection[str]
) -> dict[str, dict[str, str]]:
    """Keep the retention that operators have set on these topics, where it is not copied (``topology.config_exclude``).

    -1 is what the copy has set, and does not count.
    """
    exclude = record.spec.topology.config_exclude
    excluded = [name for name in RETENTION if any(re.fullmatch(item, name) for item in exclude)]
    present = target.admin.topic_configs(sorted(names)) if excluded and names else {}
    for name, item in present.items():
        kept = {key: item.overrides[key] for key in excluded if item.overrides.get(key, "-1") != "-1"}
        wanted[name] |= kept if item.error is None else {}
    return wanted


def expected_configs(record: MigrationRecord) -> dict[str, dict[str, str]]:
    """The final configs of each target topic that gets any, for the parity check."""
    return {topic.target_name: dict(topic.target_configs) for topic in record.plan().topics if not topic.merged}


def restore_producer_visible(record: MigrationRecord, target: Cluster) -> PhaseResult:
    """Restore, before clients may switch, all configs that a producer can notice. Nothing is deleted yet.

    :raises TopologyRefused: the target refused some topics; the error lists all.
    """
    if record.is_retention_restored():
        return PhaseResult(PHASE, "the final configs are in force", {"topics": 0}, already_done=True)
    plan = record.plan()
    topics = [topic for topic in plan.topics if not topic.merged]
    wanted = {topic.target_name: producer_visible(topic) for topic in topics} | _no_longer_copied(record, target)
    return _restore(
        record, target, wanted, steps.PRODUCER_VISIBLE_RESTORED, "configs that producers notice are restored"
    )


def set_copy_time_again(record: MigrationRecord, target: Cluster) -> list[str]:
    """Set the copy-time settings of all topics, because copying goes on after :func:`restore_producer_visible`.

    The topics are compared, whatever the journal says: a process may have died between the restore and its step.

    :returns: the names of the topics that changed.
    :raises TopologyRefused: the target refused some topics; the error lists all.
    """
    settings = record.copy_settings()
    if settings is None:
        return []
    there = _not_gone(target, settings.topics)
    record.journal.check_holds()
    return apply_configs(record, target, {name: item.copy_time for name, item in there.items()})


def restore_deleting(record: MigrationRecord, target: Cluster) -> PhaseResult:
    """Restore retention and compaction as planned, after the content is proven: the second restore step.

    :raises TopologyRefused: the target refused some topics; the error lists all.
    """
    wanted = expected_configs(record) | _no_longer_copied(record, target)
    return _restore(record, target, wanted, steps.DELETING_RESTORED, "final configs are restored")


def _no_longer_copied(record: MigrationRecord, target: Cluster) -> dict[str, dict[str, str]]:
    """The settings of topics that have left the plan since theirs were saved, with which nobody copies them."""
    settings = record.copy_settings()
    left = {} if settings is None else dict(settings.topics)
    for topic in record.plan().topics:
        left.pop(topic.target_name, None)
    if not left or settings is None:
        return {}
    return {name: _own(item) for name, item in _not_gone(target, left).items()}


def _own(item: TopicSettings) -> dict[str, str]:
    """What a topic is to have when it is no longer copied: what it had before, or what is planned."""
    return dict(item.final if item.before is None else item.before)


def restore_for_rollback(record: MigrationRecord, target: Cluster) -> PhaseResult:
    """Give created topics their planned configs, and topics that existed before their former ones. Data stays."""
    settings = record.copy_settings()
    if settings is None:
        return PhaseResult("rollback", "no topic was touched", {"topics": 0}, already_done=True)
    wanted = {name: _own(item) for name, item in _not_gone(target, settings.topics).items()}
    return _restore(record, target, wanted, steps.ROLLBACK_CONFIGS_RESTORED, "topic configs are restored")


def restore_after_end(record: MigrationRecord, target: Cluster, failed: Collection[str]) -> list[str]:
    """Try again what a rollback could not put back, since the journal of an ended migration takes no more entries.

    Only a topic that still has all that the copy has set is changed, because its owner may have changed it since; and
    only what the copy has changed, because its owner may have set more.

    :param failed: the topics to try again.
    :returns: the names of the topics that changed.
    :raises TopologyRefused: the target refused some topics again; the error lists all.
    """
    settings = record.copy_settings()
    if settings is None:
        return []
    there = _not_gone(target, {name: settings.topics[name] for name in sorted(failed) if name in settings.topics})
    present = target.admin.topic_configs(sorted(there))
    failures = {name: item.error for name, item in present.items() if item.error is not None}
    exclude = record.spec.topology.config_exclude
    todo = {
        name: change
        for name, item in there.items()
        if name not in failures and (change := _to_put_back(present[name].overrides, item, exclude))
    }
    results = target.admin.alter_topic_configs(todo)
    failures.update({name: error for name, error in results.items() if error is not None})
    if failures:
        raise config_failure(record, failures)
    return sorted(todo)


def _to_put_back(present: Mapping[str, str], item: TopicSettings, exclude: Sequence[str]) -> ConfigChange:
    """The settings that the copy has changed, as they were before; none if one of them has changed since.

    All other settings stay as they are: somebody else has set them.
    """
    change = {
        key: value for key, value in changes(item.copy_time, _own(item)).items() if not is_left_alone(key, exclude)
    }
    return change if all(present.get(key) == item.copy_time.get(key) for key in change) else {}


def _not_gone(target: Cluster, settings: Mapping[str, TopicSettings]) -> dict[str, TopicSettings]:
    """Leave out the topics that somebody has deleted.

    A topic that cannot be described is not one that is gone: its configs are tried, and the error is reported.
    """
    gone = find_gone(target.admin, dict.fromkeys(settings, ""))
    return {name: item for name, item in settings.items() if name not in gone}


def _restore(
    record: MigrationRecord, target: Cluster, wanted: dict[str, dict[str, str]], step: str, text: str
) -> PhaseResult:
    record.journal.check_holds()
    changed = apply_configs(record, target, wanted)
    done = record.journal.find_step(step) is not None
    details = {"topics": len(wanted), "changed": len(changed)}
    if changed or not done:
        record.journal.step(step, details=details, reason=f"{text}: {len(wanted)} topics")
    return PhaseResult(PHASE, f"{text}: {len(wanted)} topics", details, already_done=done and not changed)


def apply_configs(record: MigrationRecord, target: Cluster, wanted: dict[str, dict[str, str]]) -> list[str]:
    """Set the overrides of topics to exactly these, and return the names of the topics that changed.

    Excluded configs that the copy does not need stay as they are on the target.

    :raises TopologyRefused: the target refused some for good; the error lists all. A retriable refusal raises
        ``Transient``.
    """
    admin, exclude = target.admin, record.spec.topology.config_exclude
    present = admin.topic_configs(sorted(wanted))
    failures = {name: item.error for name, item in present.items() if item.error is not None}
    todo: dict[str, ConfigChange] = {}
    for name, item in present.items():
        change = changes(item.overrides, wanted[name]) if item.error is None else {}
        change = {key: value for key, value in change.items() if not is_left_alone(key, exclude)}
        if change:
            todo[name] = change
    results = admin.alter_topic_configs(todo)
    failures.update({name: error for name, error in results.items() if error is not None})
    if failures:
        raise config_failure(record, failures)
    return sorted(todo)


def config_failure(record: MigrationRecord, failures: dict[str, ItemError]) -> MigrationError:
    """Build the error for topics whose configs could not be read or changed: no permission, broker busy or refused."""
    final = {name: error for name, error in sorted(failures.items()) if not error.retriable}
    name, error = next(iter((final or dict(sorted(failures.items()))).items()))
    what = f"configs of {len(failures)} target topics could not be set; {name}"
    kind = error.exception(
        what, record.where(PHASE, cluster="target", topic=name), operation="DescribeConfigs and AlterConfigs on Topic"
    )
    details = {"topics": {item: value.as_dict() for item, value in sorted(failures.items())}}
    if isinstance(kind, Transient) or error.unauthorized:
        return type(kind)(kind.what, where=kind.where, next_step=kind.next_step, details=details)
    return TopologyRefused(
        kind.what,
        where=kind.where,
        next_step="correct these configs on the source, then clear the task; to leave them out, "
        f"{begin_again(record.spec)} and topology.config_exclude",
        details=details,
    )
