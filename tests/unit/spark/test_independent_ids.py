"""Which ids the independent proof expects to be rewritten."""

from __future__ import annotations

from airflow_provider_kafka_migration.documents.schemas import SchemaIdMap, TopicIdSettings
from airflow_provider_kafka_migration.spark.frames.columns import _decoded_ids

DOCUMENT = SchemaIdMap(
    migration_id="m",
    id_mode="translate",
    decided=[("t", "key", 3, True), ("t", "key", 4, False), ("t", "value", 5, True), ("other", "key", 6, True)],
)


def test_only_ids_that_decoded_in_this_part_of_this_topic() -> None:
    settings = TopicIdSettings(parts="both", topic="t", decoded={"key": [1, 2]})
    assert _decoded_ids(settings, DOCUMENT, "key") == {1, 2, 3}
    assert _decoded_ids(settings, DOCUMENT, "value") is None, "a part with a subject: any id"


def test_a_topic_whose_parts_have_subjects() -> None:
    assert _decoded_ids(TopicIdSettings(parts="key"), DOCUMENT, "key") is None
