"""The schema plan: reads both registries and samples records. It changes nothing.

A registry that cannot be read makes the schemas *unknown*: the plan names it, precheck makes a finding of it, and the
task ``schemas`` refuses to run. It never means that there are no schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_kafka_migration.documents.plan import SchemaPlanSummary
from airflow_provider_kafka_migration.documents.schemas import SchemaPlan, TopicIds
from airflow_provider_kafka_migration.errors import (
    RegistryAnswerInvalid,
    RegistryForbidden,
    RegistryRefused,
    RegistryUnreachable,
    SchemaIdsUnsampled,
)
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.record.context import PhaseContext, Progress
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.registry_settings import Role
from airflow_provider_kafka_migration.schemas.id_map_document import copied_ids, wanted_ids
from airflow_provider_kafka_migration.schemas.payloads.detect import detect_topic_ids
from airflow_provider_kafka_migration.schemas.plan_schemas import (
    PlanSettings,
    ids_to_ask,
    plan_schemas,
    target_selection,
)
from airflow_provider_kafka_migration.schemas.plan_topic import plan_topic
from airflow_provider_kafka_migration.schemas.selection import Selection
from airflow_provider_kafka_migration.schemas.snapshot import RegistrySnapshot, ask_ids, read_snapshot
from airflow_provider_kafka_migration.schemas.sync import add_copied_for_records
from airflow_provider_kafka_migration.schemas.unlisted import find_unlisted
from airflow_provider_kafka_migration.schemas.written import Written

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.registry.client import Registry

PHASE = "plan"
#: What a registry that cannot be read raises. Anything else is a mistake in the spec or in this package.
_UNKNOWN = (RegistryUnreachable, RegistryForbidden, RegistryRefused, RegistryAnswerInvalid)


def make_schema_plan(
    context: PhaseContext, topics: Mapping[str, str], unknown: dict[str, str], *, sample: bool = True
) -> SchemaPlan | None:
    """Make the schema plan; None if the spec names no registry, or if one cannot be read, which ``unknown`` then names.

    :param topics: source topics to target topics of the migration.
    :param sample: False: ask no cluster where records carry ids; the plan then has no topics.
    :raises ConnectionInvalid: a registry's connection is missing, or has settings that cannot be used.
    :raises SchemaReferenceLoop: schemas of the source refer to each other in a circle.
    :raises SchemaTopicRefused: the registry cannot move with its topic.
    """
    section = context.spec.schemas
    if not section.configured:
        return None
    context.progress(Progress(PHASE, "schema registries"))
    with ExitStack() as stack:

        def open_registry(role: Role) -> Registry:
            return stack.enter_context(closing(context.registry(role)))

        try:
            if section.topic:
                return _topic_plan(context, topics, open_registry, sample=sample)
            return _plan_of_both(context, topics, open_registry("source"), open_registry("target"), sample=sample)
        except _UNKNOWN as error:
            unknown["schemas"] = error.what
            return None


def _plan_of_both(
    context: PhaseContext, topics: Mapping[str, str], source: Registry, target: Registry, *, sample: bool
) -> SchemaPlan:
    section, record = context.spec.schemas, context.record
    selection = Selection.from_spec(section, topics)
    parallel = section.max_parallel_requests
    unlisted = find_unlisted(lambda: context.source.wire, source, selection)
    selection = replace(selection, asked=unlisted.names)
    here = _as_before(record, "source", read_snapshot(source, selection, parallel=parallel, progress=_shown(context)))
    add_copied_for_records(record, source, here, wanted_ids(record), parallel=parallel)
    names = target_selection(here, selection)
    there = _as_before(record, "target", read_snapshot(target, names, parallel=parallel, progress=_shown(context)))
    ask_ids(target, there, ids_to_ask(here, there, selection), parallel=parallel, progress=_shown(context))
    settings = PlanSettings(
        selection=selection,
        ids=section.ids,
        global_config=section.global_config,
        normalize=section.normalize,
        topics_of_migration=dict(topics),
        topic_ids=topic_ids(context, source, topics, here) if sample else [],
        written=Written(record),
        copied_ids=copied_ids(record.schema_id_map()),
        unlisted=unlisted.note,
    )
    return plan_schemas(context.migration_id, here, there, settings)


def _as_before(record: MigrationRecord, role: Role, snapshot: RegistrySnapshot) -> RegistrySnapshot:
    """Return a snapshot with the modes from before the migration changed them for a while."""
    changed = record.open_registry_settings(role)
    return snapshot.with_modes({scope: item.former for scope, item in changed.items()})


def _shown(context: PhaseContext) -> Callable[[str], None]:
    return lambda line: context.progress(Progress(PHASE, line))


def _topic_plan(
    context: PhaseContext, topics: Mapping[str, str], open_registry: Callable[[Role], Registry], *, sample: bool
) -> SchemaPlan:
    """Return the plan of a registry that moves with its own topic: nothing is written to a registry."""
    section = context.spec.schemas
    assert section.topic is not None, "the caller has checked it"
    everything = Selection(topics=dict(topics))

    def read(role: Role) -> RegistrySnapshot:
        return read_snapshot(
            open_registry(role), everything, parallel=section.max_parallel_requests, progress=_shown(context)
        )

    here = read("source") if section.source else None
    try:
        there = read("target") if section.target else None
    except RegistryUnreachable:
        # It should not run before its topic has been copied.
        there = None
    found = [] if here is None or not sample else topic_ids(context, open_registry("source"), topics, here)
    return plan_topic(context.migration_id, section.topic, topics, here, there, topic_ids=found)


def topic_ids(
    context: PhaseContext, source: Registry, topics: Iterable[str], known: RegistrySnapshot
) -> list[TopicIds]:
    """Sample records of source topics, and return where they carry schema ids.

    :param known: the snapshot of the source registry.
    """
    section = context.spec.schemas
    return detect_topic_ids(context.source.wire, source, section, topics, known, progress=_shown(context))


def ids_of_new_topics(context: PhaseContext, topics: Iterable[str]) -> list[TopicIds]:
    """Return where the records of topics carry schema ids that appeared after the plan; nothing without a schema plan.

    :raises MigrationError: the source registry does not answer; until it does, nobody knows what these topics carry.
    """
    if not context.spec.schemas.source or context.record.schema_plan() is None:
        return []
    found = ids_of_topics(context, topics)
    plan = context.record.schema_plan()
    return check_clear(context, found) if plan is not None and plan.id_mode == "translate" else found


def check_clear(context: PhaseContext, found: list[TopicIds]) -> list[TopicIds]:
    """Return decisions about topics whose ids are to be translated, unless one of them is a guess.

    :raises SchemaIdsUnsampled: their records do not show where they carry ids, or of which context.
    """
    unclear = {item.topic: item.unclear for item in found if item.unclear}
    if unclear:
        first = min(unclear)
        raise SchemaIdsUnsampled(
            f"ids are translated, and the records of {len(unclear)} topics do not show surely where they carry ids; "
            f"{first}: {unclear[first]}",
            where=context.where("schemas", topic=first),
            next_step="move these topics by a migration of their own, with another migration_id and with where they "
            "carry ids in schemas.by_topic; a migration that has copied nothing yet leaves them out by topics.exclude",
            details={"topics": dict(sorted(unclear.items())[:100])},
        )
    return found


def ids_of_topics(context: PhaseContext, topics: Iterable[str]) -> list[TopicIds]:
    """Sample topics and return where their records carry schema ids, by what the source registry has now.

    :raises MigrationError: the source registry does not answer.
    """
    names = sorted(topics)
    if not names:
        return []
    with closing(context.registry("source")) as source:
        # The whole registry, as for the plan: GUIDs in headers cannot be looked up one by one.
        everything = Selection(topics={name: name for name in names})
        parallel = context.spec.schemas.max_parallel_requests
        known = read_snapshot(source, everything, parallel=parallel, progress=_shown(context))
        return topic_ids(context, source, names, known)


def summary_of(plan: SchemaPlan) -> SchemaPlanSummary:
    """Return the figures of a schema plan, with the digest that the plan refers to it by."""
    digest = plan.digest()
    versions = [version for subject in plan.subjects for version in subject.versions]
    return SchemaPlanSummary(
        document=keys.schema_plan(digest),
        digest=digest,
        id_mode=plan.id_mode,
        subjects=len(plan.subjects),
        versions=len(versions),
        deleted_versions=sum(version.deleted for version in versions),
        conflicts=len(plan.conflicts),
        topics_with_ids=sum(item.parts != "none" for item in plan.topics),
        unread=len(plan.unread),
    )


def put_schema_plan(record: MigrationRecord, plan: SchemaPlan) -> None:
    """Write a schema plan, before the plan that refers to it."""
    record.journal_store.put(record.key(keys.schema_plan(plan.digest())), plan.canonical())
