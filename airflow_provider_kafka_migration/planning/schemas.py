"""The schema plan: reads both registries and samples records. It changes nothing.

A registry that cannot be read makes the schemas *unknown*: the plan names it, precheck makes a finding of it, and the
task ``schemas`` refuses to run. It never means that there are no schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from airflow_provider_kafka_migration.documents.plan import SchemaPlanSummary
from airflow_provider_kafka_migration.documents.schemas import SchemaConflict, SchemaPlan, TopicIds
from airflow_provider_kafka_migration.errors import (
    RegistryAnswerInvalid,
    RegistryForbidden,
    RegistryRefused,
    RegistryUnreachable,
)
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.record.context import PhaseContext, Progress
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.registry_settings import Role
from airflow_provider_kafka_migration.schemas.plan_schemas import PlanSettings, ids_to_ask, plan_schemas, target_names
from airflow_provider_kafka_migration.schemas.selection import Selection
from airflow_provider_kafka_migration.schemas.snapshot import RegistrySnapshot, ask_ids, read_snapshot

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.registry.client import Registry

PHASE = "plan"
#: What a registry that cannot be read raises. Anything else is a mistake in the spec or in this package.
_UNKNOWN = (RegistryUnreachable, RegistryForbidden, RegistryRefused, RegistryAnswerInvalid)


def make_schema_plan(context: PhaseContext, topics: Mapping[str, str], unknown: dict[str, str]) -> SchemaPlan | None:
    """Make the schema plan; None if the spec names no registry, or if one cannot be read, which ``unknown`` then names.

    :param topics: source topics to target topics of the migration.
    :raises ConnectionInvalid: a registry's connection is missing, or has settings that cannot be used.
    :raises SchemaReferenceLoop: schemas of the source refer to each other in a circle.
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
                return _topic_plan(context, topics, open_registry)
            return _plan_of_both(context, topics, open_registry("source"), open_registry("target"))
        except _UNKNOWN as error:
            unknown["schemas"] = error.what
            return None


def _plan_of_both(context: PhaseContext, topics: Mapping[str, str], source: Registry, target: Registry) -> SchemaPlan:
    section, record = context.spec.schemas, context.record
    selection = Selection.from_spec(section, topics)
    parallel = section.max_parallel_requests
    here = _as_before(record, "source", read_snapshot(source, selection, parallel=parallel, progress=_shown(context)))
    names = Selection.exactly(target_names(here, selection))
    there = _as_before(record, "target", read_snapshot(target, names, parallel=parallel, progress=_shown(context)))
    ask_ids(target, there, ids_to_ask(here, there, selection), parallel=parallel, progress=_shown(context))
    settings = PlanSettings(
        selection=selection,
        ids=section.ids,
        global_config=section.global_config,
        normalize=section.normalize,
        topics_of_migration=dict(topics),
        topic_ids=topic_ids(context, source, topics, here),
    )
    return plan_schemas(context.migration_id, here, there, settings)


def _as_before(record: MigrationRecord, role: Role, snapshot: RegistrySnapshot) -> RegistrySnapshot:
    """Return a snapshot with the modes from before the migration changed them for a while."""
    changed = record.open_registry_settings(role)
    return snapshot.with_modes({scope: item.former for scope, item in changed.items()})


def _shown(context: PhaseContext) -> Callable[[str], None]:
    return lambda line: context.progress(Progress(PHASE, line))


def _topic_plan(
    context: PhaseContext, topics: Mapping[str, str], open_registry: Callable[[Role], Registry]
) -> SchemaPlan:
    """The plan of a registry that moves with its own topic: nothing is written to a registry."""
    section = context.spec.schemas
    conflicts = []
    if section.target:
        registry = open_registry("target")
        names = registry.subjects(deleted=True)
        if names:
            conflicts.append(
                SchemaConflict(
                    kind="unsupported",
                    subject="",
                    target_subject=names[0],
                    what=f"the target registry runs already, with {len(names)} subjects on a topic of its own, the "
                    f"first is {names[0]}: it does not read the copy of {section.topic}. Start it on the copied topic, "
                    "or copy the schemas between the registries instead (schemas.source, without schemas.topic)",
                )
            )
    found = topic_ids(context, open_registry("source"), topics, None) if section.source else []
    return SchemaPlan(
        migration_id=context.migration_id,
        id_mode="topic",
        reason=f"the registry moves with its topic {section.topic}",
        conflicts=conflicts,
        topics=found,
        notes=[
            f"all schemas are in the topic {section.topic}, which moves like any topic; start the target registry on "
            f"its copy, {topics.get(str(section.topic), section.topic)}, once clients may switch"
        ],
    )


def topic_ids(
    context: PhaseContext, source: Registry, topics: Mapping[str, str], known: RegistrySnapshot | None
) -> list[TopicIds]:
    """Return where the records of each topic carry schema ids."""
    return []


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
