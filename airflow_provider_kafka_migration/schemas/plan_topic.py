"""Plans a registry that moves with its own Kafka topic: ``schemas.topic``.

Confluent's and Karapace's registries keep everything they know in one topic, usually ``_schemas``. If that topic is
migrated, the target registry is started on the copy and has all subjects, ids, levels and modes. Nothing is written by
its API. This only works while the target registry has no content of its own: a registry reads one topic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_provider_kafka_migration.documents.schemas import PlannedSubject, PlannedVersion, SchemaPlan, TopicIds
from airflow_provider_kafka_migration.errors import SchemaTopicRefused
from airflow_provider_kafka_migration.registry.model import Subject
from airflow_provider_kafka_migration.schemas.content import record_names, same_schema, schema_digest
from airflow_provider_kafka_migration.schemas.selection import topics_of
from airflow_provider_kafka_migration.schemas.snapshot import RegistrySnapshot, SubjectSnapshot

_NAMED = 5


def plan_topic(
    migration_id: str,
    topic: str,
    topics_of_migration: Mapping[str, str],
    source: RegistrySnapshot | None,
    target: RegistrySnapshot | None,
    *,
    topic_ids: Sequence[TopicIds] = (),
) -> SchemaPlan:
    """Plan to move the registry with its topic.

    :param topics_of_migration: source topics to target topics.
    :param source: all subjects; None: no source registry is configured, so the plan can name none.
    :param target: all subjects; None: no target registry is configured or it does not run yet, as it should be.
    :raises SchemaTopicRefused: the topic is not migrated, or the target registry has content that the source lacks.
    """
    if topic not in topics_of_migration:
        raise SchemaTopicRefused(
            f"schemas.topic is {topic}, but this topic is not part of the migration",
            next_step=f"select it in topics.include with a pattern that names it, for instance {topic}",
        )
    own = [] if target is None else own_content(source, target)
    if own:
        named = ", ".join(own[:_NAMED]) + (f" and {len(own) - _NAMED} more" if len(own) > _NAMED else "")
        raise SchemaTopicRefused(
            f"the target registry already runs with content of its own, which a copied {topic} would not have: {named}",
            next_step="stop it and start it on the copied topic with nothing of its own, or leave schemas.topic out "
            "and let schemas be copied from registry to registry",
            details={"subjects": own},
        )
    renamed = topics_of_migration[topic]
    notes = [
        f"start the target registry on the copied topic {renamed} after the cutover, not before it has all records"
    ]
    if renamed != topic:
        notes.append(f"the topic is called {renamed} on the target: set kafkastore.topic (Confluent) or topic_name")
    if target is None:
        notes.append("no target registry is configured, or it does not run yet: its content could not be checked")
    subjects = [] if source is None else [_subject(item, topics_of_migration) for item in source.subjects.values()]
    unread = {} if source is None else {f"source: {key}": why for key, why in source.unread.items()}
    unread |= {} if target is None else {f"target: {key}": why for key, why in target.unread.items()}
    return SchemaPlan(
        migration_id=migration_id,
        id_mode="topic",
        reason=f"schemas.topic: the registry's own topic {topic} is migrated, with all ids",
        source_kind="" if source is None else source.kind,
        target_kind="" if target is None else target.kind,
        subjects=sorted(subjects, key=lambda item: item.subject),
        topics=sorted(topic_ids, key=lambda item: item.topic),
        notes=notes,
        unread=dict(sorted(unread.items())),
    )


def own_content(source: RegistrySnapshot | None, target: RegistrySnapshot) -> list[str]:
    """Return what the target has and the source lacks: subjects, or ``subject version n``. Both run on one content."""
    found: list[str] = []
    for name, there in sorted(target.subjects.items()):
        if source is None or name not in source.subjects:
            found.append(name)
            continue
        context = Subject.parse(name).context
        for item in there.versions:
            here = source.version(name, item.version)
            same = here is not None and here.id == item.id
            if not same or not same_schema(
                here.schema if here else item.schema, item.schema, first_context=context, second_context=context
            ):
                found.append(f"{name} version {item.version}")
    return found


def _subject(found: SubjectSnapshot, topics: Mapping[str, str]) -> PlannedSubject:
    names = frozenset[str]().union(*(record_names(item.schema) for item in found.versions))
    return PlannedSubject(
        subject=found.subject,
        target_subject=found.subject,
        type=found.versions[-1].schema.type if found.versions else "",
        versions=[
            PlannedVersion(
                version=item.version,
                id=item.id,
                deleted=item.deleted,
                digest=schema_digest(item.schema),
                action="exists",
                target_version=item.version,
                target_id=item.id,
            )
            for item in found.versions
        ],
        config=dict(found.config or {}),
        mode=found.mode or "",
        topics=topics_of(found.subject, topics, names),
    )
