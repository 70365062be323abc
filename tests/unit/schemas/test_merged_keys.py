"""Different ids of keys that become one id: compaction on the target takes such keys for equal."""

from __future__ import annotations

from typing import Any

import pytest
from schema_snapshots import plan_of, registered, snapshot

from airflow_provider_kafka_migration.documents.proof import CheckResult, Outcome, PartitionContent, SchemaIdUse
from airflow_provider_kafka_migration.documents.schemas import (
    IdParts,
    SchemaIdMap,
    SchemaIdSettings,
    TopicIds,
    TopicIdSettings,
)
from airflow_provider_kafka_migration.schemas.check import merged_keys, with_merged_keys

ID_MAP = SchemaIdMap(
    migration_id="m", id_mode="translate", ids=[(".", 5, 1), (".", 9, 1), (".", 7, 3)], absent=[(".", 3)]
)


def content(*ids: int, part: Any = "key") -> PartitionContent:
    uses = [SchemaIdUse(part=part, kind="id32", id=number, count=1, first_offset=0) for number in ids]
    return PartitionContent(
        topic="orders", partition=2, source_records=9, target_records=9, compared=9, schema_ids=uses
    )


def settings(*, rewrite: bool = True) -> SchemaIdSettings:
    return SchemaIdSettings(id_map_key="k", topics={"orders": TopicIdSettings(parts="both", rewrite=rewrite)})


def test_ids_of_keys_that_became_one_are_named() -> None:
    assert merged_keys([content(5, 7, 9)], settings(), ID_MAP) == {"orders-2": "5, 9 became 1"}


def test_an_absent_id_that_stays_may_be_the_target_id_of_another_one() -> None:
    assert merged_keys([content(3, 7)], settings(), ID_MAP) == {"orders-2": "3, 7 became 3"}


@pytest.mark.parametrize(
    ("found", "options"),
    [(content(5, 7), {}), (content(5, 9, part="value"), {}), (content(5, 9), {"rewrite": False}), (content(), {})],
)
def test_other_ids_are_not(found: PartitionContent, options: Any) -> None:
    assert merged_keys([found], settings(**options), ID_MAP) == {}


def test_the_validation_warns() -> None:
    passed = CheckResult(name="schemas", outcome=Outcome.PASSED, summary="s")
    assert with_merged_keys(passed, {}) == passed
    warned = with_merged_keys(passed, {"orders-2": "5, 9 became 1"})
    assert warned.outcome is Outcome.WARNING
    assert warned.findings[0].startswith("ids in keys of orders-2: 5, 9 became 1")


@pytest.mark.parametrize(("parts", "ids", "named"), [("key", (5, 9), 1), ("value", (5, 9), 0), ("both", (5, 5), 0)])
def test_the_plan_names_schemas_with_several_ids(parts: IdParts, ids: tuple[int, int], named: int) -> None:
    source = snapshot(registered("a", 1, ids[0]), registered("b", 1, ids[1]))
    plan = plan_of(source, ids="translate", topic_ids=(TopicIds(topic="orders", parts=parts),))
    assert len([note for note in plan.notes if "have several ids on the source" in note]) == named
