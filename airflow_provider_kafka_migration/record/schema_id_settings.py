"""What copiers and the content comparison have to know about schema ids in records, from the schema plan."""

from __future__ import annotations

from airflow_provider_kafka_migration.documents.schemas import SchemaIdSettings, TopicIds, TopicIdSettings
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.record.record import MigrationRecord


def schema_id_settings(record: MigrationRecord) -> SchemaIdSettings | None:
    """Return the settings for jobs; None if no topic's records carry schema ids, or nothing is known about schemas.

    With kept ids nothing is rewritten, but the comparison gathers the ids that occur.

    :raises DocumentUnreadable: the schema plan is missing, or is not the one that the plan was made with.
    """
    plan = record.schema_plan()
    if plan is None:
        return None
    rewrite = plan.id_mode == "translate"
    topics = {item.topic: _of_topic(item, rewrite) for item in record.schema_topics() if item.parts != "none"}
    if not topics:
        return None
    return SchemaIdSettings(
        id_map_key=record.key(keys.SCHEMA_ID_MAP),
        strict=record.spec.schemas.strict,
        topics=dict(sorted(topics.items())),
    )


def _of_topic(item: TopicIds, rewrite: bool) -> TopicIdSettings:
    assert item.parts != "none", "the caller leaves these out"
    decoded = {part: found.ids for part, found in item.by_decoding.items() if found.carries} if rewrite else {}
    return TopicIdSettings(
        parts=item.parts,
        context=item.context,
        rewrite=rewrite,
        topic=item.topic if decoded else "",
        decoded=decoded,
    )
