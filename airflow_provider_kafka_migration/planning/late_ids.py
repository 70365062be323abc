"""Judges again where the records of topics carry schema ids: a topic may get its first ids after it was planned.

The plan decides it from a sample, and the tail does for a topic that appears later. An empty topic shows nothing, and
one that had only plain records may get serialized ones. So the same sample is taken again

* before the first record is copied (translated ids): what it shows is taken up;
* before a target topic that was deleted is created and copied again (translated ids): likewise;
* before producers are stopped (translated ids): records that were copied with the source's ids stop the cutover;
* by the validation: with translated ids such records fail it. With kept ids they are right, and are gathered from now
  on.

The parts of a topic never change after its first record was copied with them, unless its ids are kept: then copiers do
not look at them. A decision for ids is never taken back, and decisions of the spec are never judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.documents.schemas import IdParts, SchemaTopics, TopicIds
from airflow_provider_kafka_migration.errors import SchemaIdsAppeared, SchemaIdsUnsampled
from airflow_provider_kafka_migration.freeze import words
from airflow_provider_kafka_migration.jobs import copy_jobs
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.planning.schemas import check_clear, ids_of_topics
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import PhaseContext, Progress
from airflow_provider_kafka_migration.record.schema_id_settings import schema_id_settings
from airflow_provider_kafka_migration.topics.recopy import STATES

_SHOWN = 5
_PARTS: Mapping[IdParts, frozenset[str]] = {
    "none": frozenset(),
    "key": frozenset({"key"}),
    "value": frozenset({"value"}),
    "both": frozenset({"key", "value"}),
}
_NAMES: Mapping[frozenset[str], IdParts] = {parts: name for name, parts in _PARTS.items()}


@dataclass(frozen=True)
class LateIds:
    """What a second sample shows, for people, by source topic.

    :param missed: topics with ids that were copied as they are, although ids are translated.
    :param unread: topics with a part without ids so far, whose records could not be sampled again, with the reason.
    """

    missed: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)


# -- after records were copied ----------------------------------------------------------------------------------------


def judge_again(context: PhaseContext) -> LateIds:
    """Sample the migrated topics again. Kept ids that have appeared are taken up, so that they are gathered.

    :raises MigrationError: the source registry does not answer.
    """
    mode = _id_mode(context)
    if mode is None:
        return LateIds()
    before = _decided(context)
    later = _sampled(context, (topic.name for topic in context.record.plan().topics), before)
    late = {item.topic: item for item in later if _late_parts(before.get(item.topic), item)}
    unread = {
        item.topic: item.unread or item.unclear
        for item in later
        if (item.unread or item.unclear) and _may_have_more(before.get(item.topic))
    }
    if mode == "translate":
        return LateIds({name: _sentence(before.get(name), item) for name, item in late.items()}, unread)
    _take_up(context, {name: _together(before.get(name), item) for name, item in late.items()})
    return LateIds(unread=unread)


def check_before_freeze(context: PhaseContext) -> None:
    """Check, before producers are stopped, that no topic has ids that its copy needs and does not have.

    With kept ids nothing can be wrong: the records are the same on both sides.

    :raises SchemaIdsAppeared: topics were copied as they are, and their records have ids now.
    :raises SchemaIdsUnsampled: the records of such topics could not be read, so nobody knows.
    :raises MigrationError: the source registry does not answer.
    """
    if _id_mode(context) != "translate":
        return
    found = judge_again(context)
    if not found.missed and found.unread:
        # Retention may have deleted a place between the question for it and its reading.
        found = judge_again(context)
    if found.missed:
        raise _appeared(context, found.missed)
    if found.unread:
        raise _unsampled(context, found.unread)


def _appeared(context: PhaseContext, missed: Mapping[str, str]) -> SchemaIdsAppeared:
    lines = [f"{name}: {why}" for name, why in sorted(missed.items())]
    first = min(missed)
    return SchemaIdsAppeared(
        f"ids are translated, but {len(lines)} topics were copied with the source's ids: {_shown(lines)}",
        where=context.where("cutover", topic=first),
        next_step="delete these topics on the target, then clear tail (or kafka-migration resume FILE): it samples "
        "them again, creates them, and copies them from the source's log start with translated ids; then "
        f"{words.again(context.spec)}. To decide by hand instead (schemas.by_topic), roll back, delete the target "
        "topics (clean_up in rollback-report.json), and start a new migration with another migration_id",
        details={"topics": dict(sorted(missed.items())[:100])},
    )


def _unsampled(context: PhaseContext, unread: Mapping[str, str]) -> SchemaIdsUnsampled:
    lines = [f"{name}: {why}" for name, why in sorted(unread.items())]
    return SchemaIdsUnsampled(
        f"ids are translated, and {len(lines)} topics, in whose keys or values no ids were looked for so far, "
        f"could not be sampled again: {_shown(lines)}",
        where=context.where("cutover", topic=min(unread)),
        next_step="no producer was stopped: correct what keeps the source or its registry from answering, then "
        f"{words.again(context.spec)}",
        details={"topics": dict(sorted(unread.items())[:100])},
    )


def _shown(lines: list[str]) -> str:
    more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return f"{'; '.join(lines[:_SHOWN])}{more}"


# -- before records are copied ----------------------------------------------------------------------------------------


def before_first_copy(context: PhaseContext) -> None:
    """Judge the topics of the plan again, if no copier has run yet: there may be days between plan and seed.

    :raises MigrationError: the source registry does not answer.
    """
    if _id_mode(context) == "translate" and context.spec.seed.via != "split":
        _decide_again(context, (topic.name for topic in context.record.plan().topics))


def before_copied_again(context: PhaseContext, phase: str, job: CopyJob) -> None:
    """Judge topics again whose target topics are missing, if ids are translated; the caller creates them afterwards.

    The job has the new decision before the topic exists, and every slice that began with the former one is over.

    :raises StorageUnavailable: the leases of the lanes cannot be read or written.
    :raises MigrationError: the source registry does not answer.
    """
    if _id_mode(context) != "translate" or context.journal.working_state not in STATES or not _missing(context, job):
        return
    with copy_jobs.lanes_kept(context, phase, job):
        context.journal.refresh()
        if context.record.is_frozen():
            return
        _decide_again(context, _missing(context, job))
        settings = schema_id_settings(context.record)
        if settings != job.schema_ids:
            context.journal.check_holds()
            changed = job.model_copy(update={"schema_ids": settings})
            context.journal_store.put(copy_jobs.job_key(context.record, phase), changed.canonical())


def _missing(context: PhaseContext, job: CopyJob) -> list[str]:
    """Return the source topics of a job whose target topics do not exist."""
    by_target = {item.target_topic: item.topic for item in job.partitions}
    described = context.target.admin.describe_topics(sorted(by_target))
    return sorted(
        by_target[name]
        for name, facts in described.items()
        if facts.error is not None and facts.error.code == error_codes.UNKNOWN_TOPIC_OR_PARTITION
    )


def _decide_again(context: PhaseContext, topics: Iterable[str]) -> bool:
    """Take up what a new sample adds to the decisions about topics without copied records; return whether it did."""
    before = _decided(context)
    sampled = _sampled(context, topics, before)
    check_clear(context, [item for item in sampled if _may_have_more(before.get(item.topic))])
    found = {item.topic: _together(before.get(item.topic), item) for item in sampled}
    return _take_up(context, {name: item for name, item in found.items() if _adds(before.get(name), item)})


# -- decisions --------------------------------------------------------------------------------------------------------


def _id_mode(context: PhaseContext) -> str | None:
    """Return the id mode; None if no id is ever resolved: the spec does not name both registries, or no schema plan."""
    section = context.spec.schemas
    plan = context.record.schema_plan() if section.source and section.target else None
    return None if plan is None else plan.id_mode


def _decided(context: PhaseContext) -> dict[str, TopicIds]:
    return {item.topic: item for item in context.record.schema_topics()}


def _sampled(context: PhaseContext, topics: Iterable[str], before: Mapping[str, TopicIds]) -> list[TopicIds]:
    open_topics = [name for name in topics if name not in before or before[name].decided_by != "spec"]
    return [item for item in ids_of_topics(context, open_topics) if item.decided_by != "spec"]


def _has_none(before: TopicIds | None) -> bool:
    return before is None or before.parts == "none"


def _may_have_more(before: TopicIds | None) -> bool:
    """Whether a topic has a part in which nobody has looked for ids so far."""
    return before is None or before.parts != "both"


def _late_parts(before: TopicIds | None, later: TopicIds) -> frozenset[str]:
    """Return the parts in which records show known ids that nobody has looked for so far."""
    known = {"key": later.key_known_ids, "value": later.value_known_ids}
    shown = frozenset(part for part in _PARTS[later.parts] if known[part])
    if before is None or _is_elsewhere(before, later):
        return shown
    return shown - _PARTS[before.parts]


def _is_elsewhere(before: TopicIds, later: TopicIds) -> bool:
    """Whether a subject's name has decided, without any record, on another context than that of the ids."""
    return before.decided_by == "name" and before.context != later.context


def _together(before: TopicIds | None, later: TopicIds) -> TopicIds:
    if before is None or before.parts == "none" or (_is_elsewhere(before, later) and _late_parts(before, later)):
        return later
    return later.model_copy(
        update={
            "parts": _NAMES[_PARTS[before.parts] | _PARTS[later.parts]],
            "context": before.context,
            "by_decoding": {**later.by_decoding, **before.by_decoding},
        }
    )


def _adds(before: TopicIds | None, found: TopicIds) -> bool:
    if before is None or before.parts == "none":
        return found.parts != "none"
    return (before.parts, before.context) != (found.parts, found.context)


def _sentence(before: TopicIds | None, later: TopicIds) -> str:
    parts = _late_parts(before, later)
    counts = {"key": (later.key_known_ids, later.key_ids), "value": (later.value_known_ids, later.value_ids)}
    shown = " and ".join(f"{counts[part][0]} of {counts[part][1]} sampled {part}s with an id" for part in sorted(parts))
    was = "nothing" if _has_none(before) or before is None else f"{before.parts} in context {before.context}"
    return f"{shown} have one that the source registry knows (context {later.context}); {was} was translated so far"


def _take_up(context: PhaseContext, found: Mapping[str, TopicIds]) -> bool:
    """Write and journal new decisions; :meth:`MigrationRecord.schema_topics` has them from now on."""
    if not found:
        return False
    document = SchemaTopics(migration_id=context.migration_id, topics=[found[name] for name in sorted(found)])
    digest = document.digest()
    name = keys.schema_topics(digest)
    context.journal.check_holds()
    context.journal_store.put(context.key(name), document.canonical())
    parts = {item.topic: item.parts for item in document.topics}
    reason = f"schema ids have appeared in {len(parts)} topics; the first is {min(parts)} ({parts[min(parts)]})"
    details = {"document": name, "digest": digest, "topics": dict(list(parts.items())[:100])}
    context.journal.step(steps.SCHEMA_TOPICS_JUDGED, details=details, reason=reason)
    context.progress(Progress("schemas", reason))
    return True
