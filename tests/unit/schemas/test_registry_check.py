"""Both registries are read and compared: what is asked, and what the comparison makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from schema_snapshots import avro

from airflow_provider_kafka_migration.documents.schemas import SchemaCheck, SchemaPlan
from airflow_provider_kafka_migration.registry.access import RegistryAccess
from airflow_provider_kafka_migration.registry.client import Registry
from airflow_provider_kafka_migration.schemas.plan_schemas import (
    PlanSettings,
    ids_to_ask,
    plan_schemas,
    target_names,
)
from airflow_provider_kafka_migration.schemas.selection import Selection
from airflow_provider_kafka_migration.schemas.snapshot import ask_ids, read_snapshot
from airflow_provider_kafka_migration.schemas.verify import FoundInRecords, compare_registries
from harness.fake_registry import FakeRegistry

A, B, C = avro("A", "x"), avro("B", "x"), avro("C", "x")
TOPIC_ONLY = Selection(include=("orders-value",))


class Pair:
    """Two fakes with clients."""

    def __init__(self, source: FakeRegistry, target: FakeRegistry) -> None:
        self.source, self.target = source, target
        self.here = Registry(RegistryAccess.from_dict({"url": source.url}), "source")
        self.there = Registry(RegistryAccess.from_dict({"url": target.url}), "target")

    def seed(self, *arguments: Any, **options: Any) -> None:
        for fake in (self.source, self.target):
            fake.seed(*arguments, **options)

    def plan(self, selection: Selection) -> SchemaPlan:
        here = read_snapshot(self.here, selection)
        there = read_snapshot(self.there, Selection.exactly(target_names(here, selection)))
        ask_ids(self.there, there, ids_to_ask(here, there, selection))
        return plan_schemas("m", here, there, PlanSettings(selection, ids="keep"))

    def check(self, plan: SchemaPlan, selection: Selection, *ids: tuple[str, int], **options: Any) -> SchemaCheck:
        found = FoundInRecords(dict.fromkeys(ids, "records"))
        return compare_registries(self.here, self.there, plan, None, found, selection=selection, at="now", **options)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with FakeRegistry() as source, FakeRegistry() as target:
        found = Pair(source, target)
        with found.here, found.there:
            yield found


def test_equal_registries(pair: Pair) -> None:
    pair.seed("orders-value", A, id=7, version=3)
    pair.seed("orders-value", B, id=9, version=5, deleted=True)
    pair.seed(":.p:x", C, id=7)
    result = pair.check(pair.plan(Selection()), Selection(), (".", 7), (".p", 7), (".", 12345))
    assert (result.differences, result.unread) == ([], {})
    assert (result.subjects, result.versions, result.ids_resolved, result.ids_unknown_to_source) == (2, 3, 2, [12345])
    assert not pair.source.writes
    assert not pair.target.writes


def test_ids_are_resolved_by_asking_the_target_for_each(pair: Pair) -> None:
    pair.seed("orders-value", A, id=7)
    pair.target.requests.clear()
    plan = pair.plan(Selection())
    pair.target.requests.clear()
    pair.check(plan, Selection(), (".", 7), (".", 12345))
    asked = [request.path for request in pair.target.requests if request.path.startswith("/schemas/ids/")]
    # The source does not have the second one, so the target must not have it either.
    assert sorted(asked) == ["/schemas/ids/12345", "/schemas/ids/7"]


def test_what_was_copied_for_the_sake_of_records_is_compared_too(pair: Pair) -> None:
    pair.seed("orders-value", A, id=7)
    pair.seed("other", B, id=8)
    plan = pair.plan(Selection())
    result = pair.check(plan, TOPIC_ONLY, (".", 8))
    assert (result.differences, result.unread, result.ids_resolved) == ([], {}, 1)
    pair.there.delete_subject("other")
    result = pair.check(plan, TOPIC_ONLY, (".", 8))
    assert [item.subject for item in result.differences] == ["other"]
    assert "soft-deleted on the target" in result.differences[0].what


def test_a_subject_that_left_the_source_is_a_difference(pair: Pair) -> None:
    pair.seed("orders-value", A, id=7)
    pair.seed("other", B, id=8)
    plan = pair.plan(Selection())
    pair.here.delete_subject("other")
    pair.here.delete_subject("other", permanent=True)
    result = pair.check(plan, Selection())
    (difference,) = result.differences
    assert difference.only_on_target
    assert difference.what.startswith("it was copied, and then permanently deleted on the source; version 1 of other")


def test_a_version_that_was_the_latest_is_compared_too(pair: Pair) -> None:
    latest = Selection(versions="latest")
    pair.seed("orders-value", A, id=7)
    plan = pair.plan(latest)
    pair.seed("orders-value", B, id=8, version=2)
    assert pair.check(plan, latest).versions == 2


def test_the_mode_that_the_freeze_has_set_is_no_difference(pair: Pair) -> None:
    pair.seed("orders-value", A, id=7)
    plan = pair.plan(Selection())
    pair.here.set_mode("orders-value", "READONLY")
    assert "the mode of orders-value" in pair.check(plan, Selection()).differences[0].what
    assert pair.check(plan, Selection(), former_source_modes={"orders-value": None}).differences == []
