"""Texts that only the registry can tell to be one schema: it is asked, and its answer counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from schema_snapshots import plan_of, registered, snapshot

from airflow_provider_kafka_migration.errors import RegistryUnreachable, SchemaInvalid
from airflow_provider_kafka_migration.registry.model import RegisteredSchema, Schema
from airflow_provider_kafka_migration.schemas.equality import Equality
from airflow_provider_kafka_migration.schemas.selection import Selection
from airflow_provider_kafka_migration.schemas.snapshot import RegistrySnapshot
from airflow_provider_kafka_migration.schemas.verify import FoundInRecords, verify

SENT = 'syntax = "proto3"; package t; message A {} message M { .t.A a = 1; }'
PRINTED = 'syntax = "proto3"; package t; message A {} message M { A a = 1; }'
OTHER = 'syntax = "proto3"; package t; message A {} message M { A b = 1; }'
HERE = registered("m", 1, 7, SENT, type="PROTOBUF")
THERE = registered("m", 1, 7, PRINTED, type="PROTOBUF")


def answering(target: RegistrySnapshot, answer: RegisteredSchema | Exception | None) -> list[tuple[str, str]]:
    """Let a snapshot ask a registry that gives one answer; return what it is asked."""
    asked: list[tuple[str, str]] = []

    def look_up(subject: str, schema: Schema) -> RegisteredSchema | None:
        asked.append((subject, schema.text))
        if isinstance(answer, Exception):
            raise answer
        return answer

    target.look_up = look_up
    return asked


@pytest.mark.parametrize("mode", ["keep", "translate"])
def test_the_registry_tells_that_it_has_printed_a_schema_in_another_form(mode: str) -> None:
    target = snapshot(THERE)
    asked = answering(target, THERE)
    target.ids[(".", 7)] = THERE.schema
    plan = plan_of(snapshot(HERE), target, ids=mode)
    assert [item.action for item in plan.subjects[0].versions] == ["exists"]
    assert plan.conflicts == []
    assert set(asked) == {("m", SENT)}


def test_a_new_version_of_a_subject_that_is_there_is_not_asked_about() -> None:
    target = snapshot(THERE)
    asked = answering(target, None)
    source = snapshot(registered("m", 1, 7, PRINTED, type="PROTOBUF"), registered("m", 2, 8, OTHER, type="PROTOBUF"))
    plan = plan_of(source, target, ids="translate")
    assert [item.action for item in plan.subjects[0].versions] == ["exists", "register"]
    assert asked == []


def test_the_comparison_asks_too() -> None:
    target = snapshot(THERE)
    answering(target, THERE)
    target.ids[(".", 7)] = THERE.schema
    source = snapshot(HERE)
    plan = plan_of(source, target, ids="keep")
    found = FoundInRecords({(".", 7): "records"})
    result = verify(source, target, plan, None, found, selection=Selection(), at="now")
    assert (result.differences, result.ids_resolved) == ([], 1)


@pytest.mark.parametrize(
    "text",
    [
        'syntax = "proto3"; package t; message M { .t.A a = 1; } message A {}',
        'syntax = "proto3"; package t; message A {} message M { .t.A a = 1; message X {} }',
    ],
)
def test_another_order_of_messages_is_another_schema_whatever_the_registry_says(text: str) -> None:
    """Message indexes in records count them in their order."""
    target = snapshot(replace(THERE, schema=Schema("PROTOBUF", text)))
    answering(target, THERE)
    assert [item.kind for item in plan_of(snapshot(HERE), target, ids="keep").conflicts] == ["version"]
    assert [item.action for item in plan_of(snapshot(HERE), target, ids="translate").subjects[0].versions] == [
        "register"
    ]


@pytest.mark.parametrize("answer", [None, SchemaInvalid("cannot be parsed"), replace(THERE, version=2)])
def test_no_answer_but_this_version_makes_them_equal(answer: RegisteredSchema | Exception | None) -> None:
    target = snapshot(replace(THERE, schema=Schema("PROTOBUF", OTHER)))
    answering(target, answer)
    assert [item.kind for item in plan_of(snapshot(HERE), target, ids="keep").conflicts] == ["version"]


def test_a_registry_that_does_not_answer_is_not_a_no() -> None:
    target = snapshot(replace(THERE, schema=Schema("PROTOBUF", OTHER)))
    answering(target, RegistryUnreachable("no answer"))
    with pytest.raises(RegistryUnreachable):
        plan_of(snapshot(HERE), target, ids="keep")


def test_the_registry_is_only_asked_about_texts() -> None:
    target = snapshot(THERE)
    asked = answering(target, THERE)
    equality = Equality(target)
    assert equality.holds(Schema("PROTOBUF", f"{PRINTED} // comment"), THERE)
    assert not equality.holds(Schema("AVRO", '"int"'), THERE)
    assert not equality.holds(replace(HERE.schema, metadata={"owner": "me"}), THERE)
    assert asked == []
