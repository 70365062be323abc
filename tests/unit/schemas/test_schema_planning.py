"""What a plan decides from two registries: id mode, versions, names, levels, conflicts."""

from __future__ import annotations

from typing import Any

import pytest
from schema_snapshots import avro, plan_of, registered, snapshot

from airflow_provider_kafka_migration.documents.schemas import PlannedSubject, PlannedVersion, SchemaPlan
from airflow_provider_kafka_migration.errors import SchemaReferenceLoop, SchemaTopicRefused
from airflow_provider_kafka_migration.schemas.levels import is_stricter
from airflow_provider_kafka_migration.schemas.plan_schemas import (
    PlanSettings,
    plan_schemas,
)
from airflow_provider_kafka_migration.schemas.plan_topic import plan_topic
from airflow_provider_kafka_migration.schemas.references import registration_order, schema_for_target
from airflow_provider_kafka_migration.schemas.selection import Selection, topics_of

RULES = {"domainRules": [{"name": "r", "kind": "CONDITION", "mode": "WRITE", "type": "CEL", "expr": "true"}]}
A, B, C = avro("A", "x"), avro("B", "x"), avro("C", "x")


def subject(plan: SchemaPlan, name: str) -> PlannedSubject:
    return next(item for item in plan.subjects if item.subject == name)


def version(plan: SchemaPlan, name: str, number: int) -> PlannedVersion:
    return next(item for item in subject(plan, name).versions if item.version == number)


def actions(plan: SchemaPlan) -> dict[tuple[str, int], str]:
    return {(item.subject, each.version): each.action for item in plan.subjects for each in item.versions}


def kinds(plan: SchemaPlan) -> list[str]:
    return [item.kind for item in plan.conflicts]


class TestIdMode:
    def test_an_empty_confluent_target_keeps_ids_versions_and_gaps(self) -> None:
        plan = plan_of(snapshot(registered("a-value", 3, 100, A), registered("a-value", 5, 107, B)))
        assert (plan.id_mode, plan.import_scope, plan.conflicts) == ("keep", "subject", [])
        assert [(item.target_version, item.target_id) for item in subject(plan, "a-value").versions] == [
            (3, 100),
            (5, 107),
        ]

    @pytest.mark.parametrize(
        ("kind", "mode", "scope"),
        [
            ("confluent", "keep", "subject"),
            ("redpanda", "keep", "subject"),
            ("apicurio", "keep", "apicurio"),
            ("karapace", "translate", ""),
            ("unknown", "translate", ""),
        ],
    )
    def test_the_kind_of_target_decides_whether_ids_can_be_imported(self, kind: str, mode: str, scope: str) -> None:
        plan = plan_of(snapshot(registered("a", 1, 1, A)), snapshot(kind=kind))
        assert (plan.id_mode, plan.import_scope) == (mode, scope)

    def test_an_unknown_product_imports_by_order_only(self) -> None:
        source = snapshot(registered("a", 1, 1, A))
        by_itself = plan_of(source, snapshot(kind="unknown"))
        assert (by_itself.id_mode, by_itself.conflicts) == ("translate", [])
        assert "it is not known which product" in by_itself.reason
        by_order = plan_of(source, snapshot(kind="unknown"), ids="keep")
        assert (by_order.id_mode, by_order.import_scope, by_order.conflicts) == ("keep", "subject", [])

    def test_a_release_without_modes_cannot_import(self) -> None:
        target = snapshot(kind="redpanda")
        target.global_mode = None
        source = snapshot(registered("a", 1, 1, A))
        assert plan_of(source, target).id_mode == "translate"
        target.unread["mode of the registry"] = "timeout"
        assert plan_of(source, target).id_mode == "keep"

    def test_no_import_is_needed_where_everything_is_there(self) -> None:
        items = [registered("a", 1, 1, A), registered("a", 2, 5, B)]
        plan = plan_of(snapshot(*items), snapshot(*items, kind="karapace"))
        assert (plan.id_mode, plan.import_scope) == ("keep", "")
        assert set(actions(plan).values()) == {"exists"}

    def test_modes_that_are_already_import_are_used(self) -> None:
        source = snapshot(registered(":.p:a", 1, 1, A), contexts=[".", ".p"])
        assert plan_of(source, snapshot(modes={"": "IMPORT"})).import_scope == "registry"
        assert plan_of(source, snapshot(modes={":.p:": "IMPORT"}, contexts=[".", ".p"])).import_scope == "context"
        assert plan_of(source, snapshot(modes={":.q:": "IMPORT"}, contexts=[".", ".q"])).import_scope == "subject"

    def test_keep_by_order_names_a_registry_that_cannot(self) -> None:
        plan = plan_of(snapshot(registered("a", 1, 1, A)), snapshot(kind="karapace"), ids="keep")
        assert (plan.id_mode, kinds(plan)) == ("keep", ["unsupported"])

    def test_translate_by_order_leaves_numbers_to_the_target(self) -> None:
        plan = plan_of(snapshot(registered("a", 3, 100, A)), ids="translate")
        assert (plan.id_mode, plan.import_scope) == ("translate", "")
        assert (version(plan, "a", 3).target_version, version(plan, "a", 3).target_id) == (0, 0)


class TestConflictsOfIds:
    def test_a_foreign_schema_under_a_used_id(self) -> None:
        source, target = snapshot(registered("a", 1, 7, A)), snapshot()
        target.ids[(".", 7)] = registered("x", 1, 7, B).schema
        plan = plan_of(source, target, ids="keep")
        assert (kinds(plan), version(plan, "a", 1).action) == (["id"], "conflict")
        assert "7" in plan.conflicts[0].what
        assert plan_of(source, target).id_mode == "translate"

    def test_the_same_schema_under_a_used_id_is_no_conflict(self) -> None:
        target = snapshot()
        target.ids[(".", 7)] = registered("x", 1, 7, A).schema
        assert plan_of(snapshot(registered("a", 1, 7, A)), target).id_mode == "keep"

    def test_an_id_that_could_not_be_looked_up_is_not_free(self) -> None:
        target = snapshot(unread={"schema id 7 in context .": "timeout"})
        plan = plan_of(snapshot(registered("a", 1, 7, A)), target, ids="keep")
        assert kinds(plan) == ["id"]
        assert plan.unread == {"target: schema id 7 in context .": "timeout"}

    def test_an_id_that_nobody_asked_the_target_for_is_not_free(self) -> None:
        source = snapshot(registered("a", 1, 7, A))
        plan = plan_schemas("m", source, snapshot(), PlanSettings(Selection(), ids="keep"))
        assert kinds(plan) == ["id"]

    def test_a_version_number_taken_by_another_schema(self) -> None:
        plan = plan_of(snapshot(registered("a", 1, 7, A)), snapshot(registered("a", 1, 9, B)), ids="keep")
        assert kinds(plan) == ["version"]

    def test_the_same_version_under_another_id(self) -> None:
        plan = plan_of(snapshot(registered("a", 1, 7, A)), snapshot(registered("a", 1, 9, A)), ids="keep")
        assert kinds(plan) == ["id"]
        assert "has the id 9, not 7" in plan.conflicts[0].what

    def test_one_id_under_several_subjects_is_one_schema(self) -> None:
        plan = plan_of(snapshot(registered("a", 3, 100, A), registered("b", 1, 100, A)))
        assert (plan.id_mode, plan.conflicts) == ("keep", [])

    def test_two_ids_of_one_schema_are_kept_except_by_apicurio(self) -> None:
        source = snapshot(registered("a", 1, 100, A), registered("b", 1, 200, A))
        assert plan_of(source).id_mode == "keep"
        plan = plan_of(source, snapshot(kind="apicurio"))
        assert (plan.id_mode, plan.conflicts) == ("translate", [])
        assert "one id per content" in plan.reason
        assert kinds(plan_of(source, snapshot(kind="apicurio"), ids="keep")) == ["unsupported"]

    def test_apicurio_may_have_the_content_under_another_id(self) -> None:
        target = snapshot(registered("b", 1, 900, A), kind="apicurio")
        source = snapshot(registered("a", 1, 100, A), registered("b", 2, 300, B))
        assert kinds(plan_of(source, target, ids="keep")) == ["unsupported"]

    def test_ids_are_per_context(self) -> None:
        source = snapshot(registered("a", 1, 1, A), registered(":.p:a", 1, 1, B), contexts=[".", ".p"])
        assert plan_of(source).id_mode == "keep"
        assert kinds(plan_of(source, snapshot(kind="apicurio"), ids="keep")) == ["id"]
        merged = Selection(contexts={".": ".", ".p": "."}, renames={":.p:a": "b"})
        assert kinds(plan_of(source, ids="keep", selection=merged)) == ["id"]


class TestTranslate:
    def test_what_is_there_is_found_by_content(self) -> None:
        source = snapshot(registered("a", 3, 100, A), registered("a", 5, 107, B))
        target = snapshot(registered("a", 1, 1, A), registered("a", 2, 2, B))
        plan = plan_of(source, target, ids="translate")
        assert set(actions(plan).values()) == {"exists"}
        assert [(item.target_version, item.target_id) for item in subject(plan, "a").versions] == [(1, 1), (2, 2)]

    def test_a_live_version_is_not_there_if_the_target_has_it_deleted(self) -> None:
        deleted = snapshot(registered("a", 1, 1, A, deleted=True))
        plan = plan_of(snapshot(registered("a", 3, 100, A)), deleted, ids="translate")
        assert actions(plan) == {("a", 3): "register"}
        plan = plan_of(snapshot(registered("a", 3, 100, A, deleted=True)), deleted, ids="translate")
        assert actions(plan) == {("a", 3): "exists"}

    def test_one_schema_deleted_and_registered_again_takes_two_versions(self) -> None:
        source = snapshot(registered("a", 1, 7, A, deleted=True), registered("a", 2, 7, A))
        target = snapshot(registered("a", 4, 9, A, deleted=True), registered("a", 5, 9, A))
        plan = plan_of(source, target, ids="translate")
        assert [item.target_version for item in subject(plan, "a").versions] == [4, 5]

    def test_references_are_compared_with_the_numbers_of_the_target(self) -> None:
        source = snapshot(registered("o", 3, 7, A), registered("c", 1, 8, B, refs=[("A", "o", 3)]))
        target = snapshot(registered("o", 1, 1, A), registered("c", 1, 2, B, refs=[("A", "o", 1)]))
        assert set(actions(plan_of(source, target, ids="translate")).values()) == {"exists"}
        other = snapshot(registered("o", 1, 1, A), registered("c", 1, 2, B, refs=[("A", "o", 2)]))
        assert actions(plan_of(source, other, ids="translate"))[("c", 1)] == "register"

    def test_a_stricter_level_is_named_where_versions_would_be_checked(self) -> None:
        source = snapshot(
            registered("a", 1, 1, A), registered("a", 2, 2, B), configs={"": {"compatibilityLevel": "NONE"}}
        )
        assert kinds(plan_of(source, ids="translate")) == ["compatibility"]
        assert kinds(plan_of(source, ids="keep")) == []
        assert kinds(plan_of(source, ids="translate", global_config=True)) == []
        own = snapshot(
            registered("a", 1, 1, A), registered("a", 2, 2, B), configs={"a": {"compatibilityLevel": "NONE"}}
        )
        assert kinds(plan_of(own, ids="translate")) == []

    @pytest.mark.parametrize(
        ("level", "than", "expected"),
        [
            ("NONE", "FULL", False),
            ("BACKWARD", "NONE", True),
            ("BACKWARD", "BACKWARD", False),
            ("BACKWARD", "FULL", False),
            ("FULL", "BACKWARD", True),
            ("FORWARD", "BACKWARD", True),
            ("BACKWARD_TRANSITIVE", "BACKWARD", True),
            ("BACKWARD", "BACKWARD_TRANSITIVE", False),
            ("BACKWARD", "FULL_TRANSITIVE", False),
            ("WHATEVER", "BACKWARD", True),
        ],
    )
    def test_strictness_of_levels(self, level: str, than: str, expected: bool) -> None:
        assert is_stricter(level, than) is expected


class TestModes:
    @pytest.mark.parametrize("scope", ["", "a", ":.p:"])
    def test_a_read_only_target_is_a_conflict(self, scope: str) -> None:
        name = ":.p:a" if scope == ":.p:" else "a"
        target = snapshot(modes={scope: "READONLY"}, contexts=[".", ".p"])
        plan = plan_of(snapshot(registered(name, 1, 1, A), contexts=[".", ".p"]), target, ids="keep")
        assert kinds(plan) == ["mode"]

    def test_a_read_only_target_that_has_everything_is_none(self) -> None:
        item = registered("a", 1, 1, A)
        assert plan_of(snapshot(item), snapshot(item, modes={"": "READONLY"})).conflicts == []

    def test_the_mode_that_the_source_has_too_is_ours(self) -> None:
        source = snapshot(registered("a", 1, 1, A), registered("a", 2, 2, B), modes={"a": "READONLY"})
        target = snapshot(registered("a", 1, 1, A), modes={"a": "READONLY"})
        assert plan_of(source, target).conflicts == []

    def test_a_registry_in_import_mode_assigns_no_ids(self) -> None:
        target = snapshot(modes={"": "IMPORT"})
        assert kinds(plan_of(snapshot(registered("a", 1, 1, A)), target, ids="translate")) == ["mode"]

    def test_modes_that_the_migration_has_set_itself_are_not_copied(self) -> None:
        source = snapshot(registered("a", 1, 1, A), modes={"": "READONLY", "a": "READONLY", ":.p:": "READONLY"})
        before = source.with_modes({"": "READWRITE", "a": None, ":.p:": "IMPORT"})
        plan = plan_of(before, global_config=True)
        assert (plan.global_mode, subject(plan, "a").mode, plan.context_modes) == ("READWRITE", "", {".p": "IMPORT"})


class TestNames:
    def test_subjects_follow_renamed_topics(self) -> None:
        source = snapshot(registered("orders-value", 1, 1, A), registered("t.Order", 1, 2, B))
        topics = {"orders": "eu.orders"}
        plan = plan_of(source, selection=Selection(topics=topics), topics_of_migration=topics)
        assert subject(plan, "orders-value").target_subject == "eu.orders-value"
        assert subject(plan, "t.Order").target_subject == "t.Order"
        assert subject(plan, "orders-value").topics == ["orders"]

    def test_a_rename_of_the_spec_wins_over_the_topic(self) -> None:
        topics = {"orders": "eu.orders"}
        prefixed = Selection(prefix="x.", topics=topics)
        assert prefixed.target_subject("orders-value") == "x.orders-value"
        assert prefixed.target_subject(":.p:orders-value") == ":.p:x.orders-value"
        exact = Selection(prefix="x.", renames={"orders-value": ":.q:o"}, topics=topics)
        assert exact.target_subject("orders-value") == ":.q:o"

    def test_contexts_are_mapped(self) -> None:
        selection = Selection(contexts={".a": ".b", ".": ".c"})
        assert selection.target_subject(":.a:s") == ":.b:s"
        assert selection.target_subject("s") == ":.c:s"
        assert selection.why_left_out(":.z:s") == "schemas.contexts does not have the context .z"
        assert Selection(contexts="default").selects("s")
        assert not Selection(contexts="default").selects(":.a:s")

    def test_exclude_wins_and_patterns_match_qualified_names_in_full(self) -> None:
        selection = Selection(include=("orders.*", r":\.p:.*"), exclude=(".*-key",))
        assert selection.selects("orders-value")
        assert selection.selects(":.p:x")
        assert selection.why_left_out("orders-key") == "schemas.exclude: .*-key"
        assert selection.why_left_out("my-orders") == "not in schemas.include"

    def test_two_subjects_with_one_name_on_the_target(self) -> None:
        source = snapshot(registered("a", 1, 1, A), registered("b", 1, 2, B))
        plan = plan_of(source, selection=Selection(renames={"a": "b"}))
        assert kinds(plan) == ["content"]
        assert actions(plan)[("b", 1)] == "conflict"

    def test_a_rename_cannot_change_the_context(self) -> None:
        plan = plan_of(snapshot(registered("a", 1, 1, A)), selection=Selection(renames={"a": ":.q:a"}))
        assert kinds(plan) == ["unsupported"]
        assert actions(plan) == {("a", 1): "conflict"}

    def test_references_follow_names_and_versions(self) -> None:
        item = registered(":.p:c", 2, 8, B, refs=[("A", "o", 3), ("C", ":.:z", 1)])
        source = snapshot(registered(":.p:o", 3, 7, A), registered("z", 1, 5, C), item, contexts=[".", ".p"])
        places = {(":.p:o", 3): (":.q:new", 1), ("z", 1): ("z", 4)}
        schema = schema_for_target(item, source, ":.q:c", places)
        assert schema is not None
        assert [(each.subject, each.version) for each in schema.references] == [("new", 1), (":.:z", 4)]
        assert schema_for_target(item, source, ":.q:c", {}) is None

    def test_references_keep_their_form_and_name_contexts_where_the_target_has_none(self) -> None:
        item = registered(":.p:c", 2, 8, B, refs=[("A", "o", 3), ("C", ":.p:o", 3)])
        source = snapshot(registered(":.p:o", 3, 7, A), item, contexts=[".", ".p"])
        places = {(":.p:o", 3): (":.p:o", 3)}
        kept = schema_for_target(item, source, ":.p:c", places)
        assert kept == item.schema
        plain = schema_for_target(item, source, ":.p:c", places, contexts=False)
        assert plain is not None
        assert [each.subject for each in plain.references] == [":.p:o", ":.p:o"]
        assert any("has no contexts" in note for note in plan_of(source, snapshot(kind="apicurio")).notes)

    def test_topics_by_name(self) -> None:
        topics = ["orders", "orders-eu", "t"]
        assert topics_of("orders-value", topics) == ["orders"]
        assert topics_of(":.p:orders-eu-key", topics) == ["orders-eu"]
        assert topics_of("orders-t.Order", topics, ["t.Order"]) == ["orders"]
        assert topics_of("orders-t.Order", topics) == []
        assert topics_of("t.Order", topics, ["t.Order"]) == []

    def test_a_subject_named_after_a_renamed_topic_and_its_record_is_noted(self) -> None:
        topics = {"orders": "new"}
        source = snapshot(registered("orders-A", 1, 1, A))
        plan = plan_of(source, selection=Selection(topics=topics), topics_of_migration=topics)
        assert any("orders-A" in note for note in plan.notes)


class TestLevels:
    def test_explicit_levels_and_modes_are_planned_and_the_global_one_only_by_choice(self) -> None:
        source = snapshot(
            registered("a", 1, 1, A),
            configs={
                "": {"compatibilityLevel": "FULL"},
                "a": {"compatibilityLevel": "NONE"},
                ":.p:": {"normalize": True},
            },
            modes={"a": "READONLY", ":.p:": "IMPORT"},
            contexts=[".", ".p"],
        )
        plan = plan_of(source)
        assert (subject(plan, "a").config, subject(plan, "a").mode) == ({"compatibilityLevel": "NONE"}, "READONLY")
        assert (plan.context_configs, plan.context_modes) == ({".p": {"normalize": True}}, {".p": "IMPORT"})
        assert plan.global_config == {}
        assert any("FULL" in note for note in plan.notes)
        assert plan_of(source, global_config=True).global_config == {"compatibilityLevel": "FULL"}

    def test_versions_that_only_the_target_has_are_noted(self) -> None:
        own = snapshot(registered("a", 1, 1, A), registered("a", 9, 90, B))
        for mode in ("keep", "translate"):
            notes = plan_of(snapshot(registered("a", 1, 1, A)), own, ids=mode).notes
            assert any("the first is a" in note for note in notes)
            assert plan_of(own, own, ids=mode).notes == []

    def test_an_alias_follows_the_renamed_subject(self) -> None:
        source = snapshot(registered("a", 1, 1, A), registered("b", 1, 2, B), configs={"b": {"alias": "a"}})
        plan = plan_of(source, selection=Selection(prefix="x."))
        assert subject(plan, "b").config == {"alias": "x.a"}

    def test_an_alias_on_the_target_would_take_what_is_written(self) -> None:
        target = snapshot(configs={"a": {"alias": "other"}})
        plan = plan_of(snapshot(registered("a", 1, 1, A)), target)
        assert kinds(plan) == ["content"]
        assert actions(plan) == {("a", 1): "conflict"}

    def test_metadata_that_the_target_drops_is_noted_and_not_compared(self) -> None:
        item = registered("a", 1, 1, A, metadata={"properties": {"owner": "me"}})
        plan = plan_of(snapshot(item), snapshot(registered("a", 1, 1, A), kind="apicurio"))
        assert actions(plan) == {("a", 1): "exists"}
        assert any("metadata" in note for note in plan.notes)
        assert kinds(plan_of(snapshot(item), snapshot(registered("a", 1, 1, A)), ids="keep")) == ["version"]

    @pytest.mark.parametrize(("count", "named"), [(1, "1 subject (s00)"), (3, "3 subjects (s00, s01, s02)")])
    def test_subjects_whose_metadata_or_rule_sets_the_target_drops_are_named(self, count: int, named: str) -> None:
        items = [
            registered(f"s{number:02}", 1, number + 1, avro(f"S{number}"), **{part: {"a": {}}})
            for number, part in zip(range(count), ("metadata", "rule_set", "metadata"), strict=False)
        ]
        source = snapshot(*items, registered("plain", 1, 90, A))
        assert [note for note in plan_of(source, snapshot(kind="redpanda")).notes if named in note] != []
        assert "plain" not in " ".join(plan_of(source, snapshot(kind="redpanda")).notes)

    def test_of_many_subjects_the_first_ten_are_named(self) -> None:
        source = snapshot(*(registered(f"s{n:02}", 1, n + 1, avro(f"S{n}"), rule_set=RULES) for n in range(12)))
        (note,) = plan_of(source, snapshot(kind="apicurio")).notes
        assert "12 subjects (s00, s01, s02, s03, s04, s05, s06, s07, s08, s09, ...)" in note

    def test_whether_confluent_keeps_rule_sets_is_unknown_until_one_is_seen(self) -> None:
        source = snapshot(registered("a", 1, 1, A, rule_set=RULES), registered("b", 1, 2, B))
        (note,) = plan_of(source).notes
        assert "1 subject (a)" in note
        assert "does not show before" in note
        keeps = snapshot(registered("other", 1, 70, C, rule_set=RULES))
        assert plan_of(source, keeps).notes == []
        assert plan_of(snapshot(registered("b", 1, 2, B))).notes == []

    def test_schemas_that_are_on_the_target_without_their_rule_sets_are_named(self) -> None:
        source = snapshot(registered("a", 1, 1, A, rule_set=RULES), registered("b", 1, 2, B, rule_set=RULES))
        target = snapshot(registered("a", 1, 1, A), registered("b", 1, 2, B, rule_set=RULES))
        plan = plan_of(source, target, ids="keep")
        assert set(actions(plan).values()) == {"exists"}
        (note,) = plan.notes
        assert "has schemas of 1 subject (a) without their rule sets" in note

    def test_a_schema_without_its_rule_set_is_registered_with_it(self) -> None:
        """Unless the migration has done so: then the target drops rule sets."""
        source = snapshot(registered("a", 1, 1, A), registered("a", 2, 2, A, rule_set=RULES))
        target = snapshot(registered("a", 1, 41, A))
        plan = plan_of(source, target, ids="translate")
        assert actions(plan) == {("a", 1): "exists", ("a", 2): "register"}
        again = plan_of(source, target, ids="translate", copied_ids={(".", 1): 41, (".", 2): 41})
        assert actions(again) == {("a", 1): "exists", ("a", 2): "exists"}
        kept = snapshot(registered("a", 1, 41, A), registered("a", 2, 42, A, rule_set=RULES))
        assert version(plan_of(source, kept, ids="translate"), "a", 2).target_id == 42
        dropping = snapshot(registered("a", 1, 41, A), kind="karapace")
        assert actions(plan_of(source, dropping, ids="translate")) == {("a", 1): "exists", ("a", 2): "exists"}


class TestReferences:
    def test_order_puts_what_is_needed_first(self) -> None:
        source = snapshot(
            registered("a", 1, 1, A, refs=[("B", "b", 2)]),
            registered("b", 1, 2, B),
            registered("b", 2, 3, B, refs=[("C", "c", 1)]),
            registered("c", 1, 4, C),
        )
        assert registration_order(source) == [("b", 1), ("c", 1), ("b", 2), ("a", 1)]

    def test_a_diamond(self) -> None:
        source = snapshot(
            registered("a", 1, 1, A, refs=[("B", "b", 1), ("C", "c", 1)]),
            registered("b", 1, 2, B, refs=[("D", "d", 1)]),
            registered("c", 1, 3, C, refs=[("D", "d", 1)]),
            registered("d", 1, 4),
        )
        assert registration_order(source) == [("d", 1), ("b", 1), ("c", 1), ("a", 1)]

    def test_a_version_may_refer_to_an_earlier_one_of_its_subject(self) -> None:
        source = snapshot(registered("a", 1, 1, A), registered("a", 2, 2, B, refs=[("A", "a", 1)]))
        assert registration_order(source) == [("a", 1), ("a", 2)]

    def test_imported_versions_may_refer_against_their_order(self) -> None:
        source = snapshot(registered("a", 1, 1, A, refs=[("A", "a", 2)]), registered("a", 2, 2, B))
        assert registration_order(source) == [("a", 2), ("a", 1)]

    def test_a_circle_is_a_named_error(self) -> None:
        source = snapshot(
            registered("a", 1, 1, A, refs=[("B", "b", 1)]),
            registered("b", 1, 2, B, refs=[("C", "c", 1)]),
            registered("c", 1, 3, C, refs=[("A", "a", 1)]),
        )
        with pytest.raises(SchemaReferenceLoop, match="a version 1 -> b version 1 -> c version 1 -> a version 1"):
            plan_of(source)

    def test_a_schema_that_refers_to_itself_is_a_named_error(self) -> None:
        with pytest.raises(SchemaReferenceLoop):
            plan_of(snapshot(registered("a", 1, 1, A, refs=[("A", "a", 1)])))

    def test_a_chain_of_thousands_is_no_deep_recursion(self) -> None:
        items = [registered(f"s{i:05}", 1, i + 1, A, refs=[("n", f"s{i + 1:05}", 1)]) for i in range(5000)]
        order = registration_order(snapshot(*items, registered("s05000", 1, 5001)))
        assert order[0] == ("s05000", 1)
        assert order[-1] == ("s00000", 1)

    def test_what_the_source_does_not_have_blocks_all_that_need_it(self) -> None:
        source = snapshot(
            registered("a", 1, 1, A, refs=[("B", "b", 1)]),
            registered("b", 1, 2, B, refs=[("Z", "z", 9)]),
            registered("c", 1, 3, C),
            absent={("z", 9)},
        )
        plan = plan_of(source)
        assert kinds(plan) == ["reference"]
        assert actions(plan) == {("a", 1): "conflict", ("b", 1): "conflict", ("c", 1): "register"}

    def test_what_could_not_be_read_is_left_out_with_all_that_need_it(self) -> None:
        source = snapshot(
            registered("a", 1, 1, A, refs=[("B", "b", 1)]),
            registered("c", 1, 3, C),
            unread={"subject b, version 1": "timeout"},
        )
        plan = plan_of(source)
        assert actions(plan) == {("c", 1): "register"}
        assert "version 1 of b, which is not known" in plan.left_out["a"]
        assert plan.unread == {"source: subject b, version 1": "timeout"}

    @pytest.mark.parametrize("what", ["subject a", "subject a, version 4"])
    def test_a_subject_of_the_target_that_could_not_be_read_is_not_written(self, what: str) -> None:
        plan = plan_of(snapshot(registered("a", 1, 1, A)), snapshot(unread={what: "403"}))
        assert plan.subjects == []
        assert "could not be read" in plan.left_out["a"]


class TestDeleted:
    def test_deleted_versions_are_planned_as_such(self) -> None:
        source = snapshot(registered("a", 3, 100, A), registered("a", 4, 103, B, deleted=True))
        plan = plan_of(source)
        assert [(item.version, item.deleted, item.action) for item in subject(plan, "a").versions] == [
            (3, False, "register"),
            (4, True, "register"),
        ]

    def test_a_live_version_that_the_target_has_deleted_is_registered_again(self) -> None:
        plan = plan_of(snapshot(registered("a", 1, 7, A)), snapshot(registered("a", 1, 7, A, deleted=True)))
        assert actions(plan) == {("a", 1): "register"}

    def test_a_deleted_version_that_is_live_on_the_target_exists(self) -> None:
        plan = plan_of(snapshot(registered("a", 1, 7, A, deleted=True)), snapshot(registered("a", 1, 7, A)))
        assert actions(plan) == {("a", 1): "exists"}


class TestTopicMode:
    source = snapshot(registered("a", 1, 7, A), registered("orders-value", 1, 8, B))

    def plan(self, target: Any = None, **topics: str) -> SchemaPlan:
        return plan_topic("m", "_schemas", topics or {"_schemas": "_schemas", "orders": "orders"}, self.source, target)

    def test_everything_moves_with_the_topic(self) -> None:
        plan = self.plan()
        assert plan.id_mode == "topic"
        assert set(actions(plan).values()) == {"exists"}
        assert subject(plan, "orders-value").topics == ["orders"]

    def test_a_target_that_runs_on_the_copy_is_fine(self) -> None:
        assert self.plan(snapshot(registered("a", 1, 7, A))).id_mode == "topic"

    @pytest.mark.parametrize(
        "own", [registered("b", 1, 7, A), registered("a", 2, 9, A), registered("a", 1, 8, A), registered("a", 1, 7, B)]
    )
    def test_a_target_with_content_of_its_own_is_refused(self, own: Any) -> None:
        with pytest.raises(SchemaTopicRefused, match="content of its own"):
            self.plan(snapshot(own))

    def test_a_topic_that_does_not_move_is_refused(self) -> None:
        with pytest.raises(SchemaTopicRefused, match="not part of the migration"):
            self.plan(orders="orders")
