"""Random graphs of schemas: the order is right, every reference resolves, and a carried out plan needs nothing more."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st
from schema_snapshots import answered, avro, registered, snapshot

from airflow_provider_kafka_migration.documents.schemas import SchemaIdMap, SchemaPlan
from airflow_provider_kafka_migration.registry.model import RegisteredSchema, Schema, Subject
from airflow_provider_kafka_migration.schemas.content import qualified_reference, schema_digest
from airflow_provider_kafka_migration.schemas.plan_schemas import PlanSettings, plan_schemas
from airflow_provider_kafka_migration.schemas.references import (
    VersionKey,
    reference_keys,
    registration_order,
    schema_for_target,
)
from airflow_provider_kafka_migration.schemas.selection import Selection
from airflow_provider_kafka_migration.schemas.snapshot import RegistrySnapshot
from airflow_provider_kafka_migration.schemas.verify import FoundInRecords, target_ids, verify

CONTEXTS = (".", ".p")


@st.composite
def registries(draw: st.DrawFn) -> RegistrySnapshot:
    """A registry as it can have come about: each version refers to earlier ones, also in other contexts.

    Version numbers have gaps, some versions are deleted, and equal content has one id per context.
    """
    items: list[RegisteredSchema] = []
    ids: dict[tuple[str, str], int] = {}
    next_version: dict[str, int] = {}
    for number in range(draw(st.integers(1, 14))):
        context = draw(st.sampled_from(CONTEXTS))
        subject = Subject(context, draw(st.sampled_from("abcd"))).qualified
        version = next_version.get(subject, 0) + draw(st.integers(1, 3))
        next_version[subject] = version
        used = (
            draw(st.lists(st.sampled_from(items), max_size=3, unique_by=lambda item: (item.subject, item.version)))
            if items
            else []
        )
        refs = []
        for index, other in enumerate(used):
            to = Subject.parse(other.subject)
            name = to.name if to.context == context and draw(st.booleans()) else f":{to.context}:{to.name}"
            refs.append((f"r{index}", name, other.version))
        # Few different texts, so that some contents occur twice.
        text = avro(f"R{draw(st.integers(0, 3))}", f"f{number % 3}")
        item = registered(subject, version, 0, text, refs=refs)
        if any(other.subject == subject and _content(other) == _content(item) for other in items):
            continue
        # A registry takes references as they are written for a part of the content.
        key = (context, schema_digest(item.schema))
        ids.setdefault(key, 10 * len(ids) + 5)
        items.append(replace(item, id=ids[key]))
    needed = {key for item in items for key in _needs(item)}
    deleted = {
        (item.subject, item.version)
        for item in items
        if (item.subject, item.version) not in needed and draw(st.integers(0, 3)) == 0
    }
    return snapshot(
        *(replace(item, deleted=(item.subject, item.version) in deleted) for item in items), contexts=CONTEXTS
    )


def _content(item: RegisteredSchema) -> str:
    context = Subject.parse(item.subject).context
    references = tuple(replace(each, subject=qualified_reference(each, context)) for each in item.schema.references)
    return schema_digest(replace(item.schema, references=references))


def _needs(item: RegisteredSchema) -> list[VersionKey]:
    context = Subject.parse(item.subject).context
    return [(qualified_reference(each, context), each.version) for each in item.schema.references]


selections = st.builds(
    Selection,
    prefix=st.sampled_from(["", "x."]),
    contexts=st.sampled_from(["all", {".": ".", ".p": ".q"}]),
    renames=st.sampled_from([{}, {"a": "renamed"}, {"a": ":.z:a"}]),
)


class Target:
    """A registry that accepts what a registry may accept, and fails the test otherwise."""

    def __init__(self) -> None:
        self.items: dict[VersionKey, RegisteredSchema] = {}
        self.next_ids: dict[str, int] = {}

    def register(self, subject: str, schema: Schema, *, id: int = 0, version: int = 0) -> RegisteredSchema:
        context = Subject.parse(subject).context
        for reference in schema.references:
            assert (qualified_reference(reference, context), reference.version) in self.items
        same = [item for item in self.items.values() if Subject.parse(item.subject).context == context]
        same = [item for item in same if item.schema == schema]
        if not id:
            self.next_ids[context] = self.next_ids.get(context, 1000) + 1
            id = same[0].id if same else self.next_ids[context]
            version = version or 1 + max((key[1] for key in self.items if key[0] == subject), default=0)
        for item in self.items.values():
            if item.id == id and Subject.parse(item.subject).context == context:
                assert item.schema == schema
        assert (subject, version) not in self.items
        self.items[(subject, version)] = RegisteredSchema(subject, version, id, schema)
        return self.items[(subject, version)]

    def snapshot(self) -> RegistrySnapshot:
        return snapshot(*self.items.values(), contexts=(*CONTEXTS, ".q", ".z"))


def carry_out(plan: SchemaPlan, source: RegistrySnapshot, target: Target) -> dict[VersionKey, VersionKey]:
    """Do with the target what the plan says."""
    planned = {(each.subject, item.version): (each, item) for each in plan.subjects for item in each.versions}
    places: dict[VersionKey, VersionKey] = {}
    for key in registration_order(source):
        subject, version = planned[key]
        item = source.version(*key)
        assert item is not None
        schema = schema_for_target(item, source, subject.target_subject, places)
        assert schema is not None, "a reference is registered before what refers to it"
        assert version.action == "register"
        done = target.register(subject.target_subject, schema, id=version.target_id, version=version.target_version)
        target.items[(done.subject, done.version)] = replace(done, deleted=version.deleted)
        places[key] = (done.subject, done.version)
    return places


@given(registries(), selections, st.sampled_from(["keep", "translate"]))
def test_a_plan_can_be_carried_out_and_leaves_nothing_to_do(
    source: RegistrySnapshot, selection: Selection, mode: Literal["keep", "translate"]
) -> None:
    wanted = PlanSettings(selection, ids=mode)
    empty = answered(source, snapshot(contexts=(*CONTEXTS, ".q", ".z")), selection)
    plan = plan_schemas("m", source, empty, wanted)
    # Two contexts may meet in one: then one id can mean two schemas. That is a conflict, and no copy.
    moved = selection.renames.get("a") == ":.z:a" and "a" in source.subjects
    assert any(item.kind == "unsupported" for item in plan.conflicts) is moved
    if moved or any(item.kind == "id" for item in plan.conflicts):
        return
    assert [item for item in plan.conflicts if item.kind != "compatibility"] == []
    target = Target()
    places = carry_out(plan, source, target)

    after = answered(source, target.snapshot(), selection)
    again = plan_schemas("m", source, after, wanted)
    assert {item.action for each in again.subjects for item in each.versions} <= {"exists"}
    assert again.conflicts == []

    ids = {}
    for item in source.all_versions():
        done = target.items[places[(item.subject, item.version)]]
        ids[(Subject.parse(item.subject).context, item.id)] = done.id
        if mode == "keep":
            assert (done.id, done.version) == (item.id, item.version)
    id_map = SchemaIdMap(
        migration_id="m", id_mode=mode, ids=[(context, number, to) for (context, number), to in sorted(ids.items())]
    )
    found = FoundInRecords(dict.fromkeys(ids, "records"))
    for pair in target_ids(ids, mode, id_map, selection):
        after.ids[pair] = next((item[0].schema for key, item in after.by_id().items() if key == pair), None)
    result = verify(source, after, again, id_map, found, selection=selection, at="now")
    assert (result.differences, result.unread) == ([], {})
    assert result.ids_resolved == len(ids)


@given(registries())
def test_the_order_has_each_version_once_and_behind_what_it_needs(source: RegistrySnapshot) -> None:
    order = registration_order(source)
    assert sorted(order) == sorted((item.subject, item.version) for item in source.all_versions())
    place = {key: number for number, key in enumerate(order)}
    for item in source.all_versions():
        for needed in reference_keys(item, source):
            assert place[needed] < place[(item.subject, item.version)]
    for subject in source.subjects.values():
        assert [key for key in order if key[0] == subject.subject] == [
            (subject.subject, item.version) for item in subject.versions
        ]
