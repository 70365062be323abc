"""What plan, plan diff, approvals, runbook and permissions show of schemas."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_kafka_migration.documents.plan import ClusterFacts, Plan, SchemaPlanSummary
from airflow_provider_kafka_migration.documents.schemas import (
    PlannedSubject,
    PlannedVersion,
    SchemaConflict,
    SchemaFailure,
    SchemaPlan,
    SchemasResult,
    TopicIds,
)
from airflow_provider_kafka_migration.pages import approval
from airflow_provider_kafka_migration.pages.plan import diff_plans, documents
from airflow_provider_kafka_migration.pages.schemas import approval_facts, ranges, share
from airflow_provider_kafka_migration.spec import MigrationSpec, parse_spec

BOTH = {"source": "registry_source", "target": "registry_target"}


def spec(**schemas: Any) -> MigrationSpec:
    return parse_spec(
        {
            "migration_id": "m1",
            "source": {"conn_id": "env:SOURCE"},
            "target": {"conn_id": "env:TARGET"},
            "storage": {"journal": "s3://bucket/journal"},
            "schemas": schemas,
        }
    )


def version(number: int, **more: Any) -> PlannedVersion:
    return PlannedVersion(version=number, id=100 + number, digest=f"d{number}", **more)


def schema_plan(**changes: Any) -> SchemaPlan:
    orders = PlannedSubject(
        subject="orders-value",
        target_subject="shop.orders-value",
        type="AVRO",
        versions=[version(1, action="exists"), version(2), version(3, deleted=True), version(7)],
        config={"compatibilityLevel": "FULL"},
        mode="READONLY",
        topics=["orders"],
    )
    money = PlannedSubject(
        subject="money", target_subject="money", type="AVRO", versions=[version(1)], as_reference=True
    )
    made = SchemaPlan(
        migration_id="m1",
        id_mode="translate",
        reason="the target registry cannot register fixed ids.",
        source_kind="confluent",
        target_kind="redpanda",
        subjects=[money, orders],
        conflicts=[SchemaConflict(kind="content", subject="orders-value", version=2, what="another schema is there")],
        left_out={"tmp-value": "schemas.exclude: tmp.*"},
        topics=[
            TopicIds(topic="orders", parts="value", sampled_records=200, value_ids=200, value_known_ids=199).model_copy(
                update={"unknown_ids": [4711]}
            ),
            TopicIds(topic="payments", parts="none", unread="TOPIC_AUTHORIZATION_FAILED"),
            TopicIds(topic="logs", parts="none"),
        ],
        notes=["rule sets are not copied"],
        unread={"subject broken": "HTTP 500"},
    )
    return made.model_copy(update=changes)


def plan(schemas: SchemaPlan | None) -> Plan:
    cluster = ClusterFacts(cluster_id="c", kafka_version="4.1", mode="kraft", brokers=[1])
    summary = None
    if schemas is not None:
        summary = SchemaPlanSummary(
            document="schemas/plan-1.json",
            digest=schemas.digest(),
            id_mode=schemas.id_mode,
            subjects=len(schemas.subjects),
        )
    return Plan(migration_id="m1", source=cluster, target=cluster, topics=[], lanes=[], schemas=summary)


def page(name: str, made: SchemaPlan | None, **schemas: Any) -> str:
    return documents(spec(**schemas), plan(made), schemas=made)[name]


def result(**more: Any) -> SchemasResult:
    return SchemasResult(
        migration_id="m1", reason="tail", at="2026-01-01T00:00:00Z", id_mode="translate", subjects=2, versions=5, **more
    )


def body(kind: Any, made: SchemaPlan | None, synchronized: SchemasResult | None = None, **section: Any) -> str:
    facts: dict[str, Any] = {
        **{
            name: []
            for name in ("groups", "findings", "source_drift", "overtaken_tombstones", "target_losses", "left_out")
        },
        **dict.fromkeys(("tail", "cannot_fit", "not_fenced", "signing_key"), ""),
        "lag": {},
        "total_lag": 0,
        "partitions": 1,
        "expected_freeze_seconds": 1.0,
        "active_on_source": [],
        "unfenced": [],
        "handover": {"changes": 0, "typical_seconds": 1.0},
        "frozen": {"frozen_seconds": 1.0},
        "behind_boundary": {"late": {}, "unchecked": {}, "partitions": 1},
        "proof": None,
        "schemas": None if made is None else approval_facts(made, synchronized),
    }
    return approval.render(spec(**BOTH, **section), kind, "0a1b2c3d", facts)[1]


def test_the_plan_shows_the_id_mode_with_its_reason_and_what_moves() -> None:
    shown = page("plan.md", schema_plan(), **BOTH)
    assert "- ids: **translate** (the target registry assigns ids, and the copiers write these into" in shown
    assert "- why: the target registry cannot register fixed ids.\n" in shown
    assert "- registries: confluent -> redpanda\n" in shown
    assert (
        "- 2 subjects (1 only because others refer to them), 5 versions (1 soft-deleted): 4 to register, "
        "1 already on the target, 1 conflicts" in shown
    )
    assert (
        "| orders-value | shop.orders-value | AVRO | 1-3, 7 (1 deleted) | compatibilityLevel=FULL, mode=READONLY "
        "| orders |" in shown
    )
    assert "| money |  | AVRO | 1 |  | (only a reference) |" in shown
    assert "| content | orders-value version 2 | another schema is there |" in shown
    assert "| tmp-value | schemas.exclude: tmp.\\* |" in shown
    assert "| subject broken | HTTP 500 |" in shown
    assert "- rule sets are not copied" in shown


def test_the_plan_shows_where_ids_are_and_how_many_are_known() -> None:
    shown = page("plan.md", schema_plan(), **BOTH)
    assert "| orders | value | sample of 200 records | . | none found | 199 of 200 (99 %) | 4711 |  |" in shown, (
        "99.5 % is not all of them"
    )
    assert "| payments | none | sample of 0 records | . | none found | none found |  | not read: TOPIC" in shown
    assert "| logs |" not in shown
    assert "1 other topics carry no schema ids." in shown


def test_a_plan_without_schemas_has_no_such_section() -> None:
    shown = page("plan.md", None)
    assert "Schema" not in shown
    assert "Schema registry" not in page("permissions.md", None)
    assert "schemas diff" not in page("runbook.md", None)


@pytest.mark.parametrize("kind", ["cutover", "client_switch"])
def test_approvals_show_conflicts_failures_and_what_could_not_be_read(kind: str) -> None:
    conflict = SchemaConflict(kind="id", subject="new-value", id=9, what="id 9 is taken")
    failure = SchemaFailure(subject="bad-value", version=3, error={"code": "SCHEMA_INVALID", "what": "no such type"})
    synchronized = result(ids=4, conflicts=[conflict], failed=[failure], unread={"subject x": "HTTP 500"})
    shown = body(kind, schema_plan(), synchronized)
    assert "- last synchronization: 2026-01-01T00:00:00Z: 2 subjects, 5 versions, 4 ids" in shown
    assert "**1 conflicts** (schemas.on_conflict: stop)" in shown
    assert "| id | new-value | id 9 is taken |" in shown
    assert "another schema is there" not in shown, "the plan's conflicts are those of a synchronization that is past"
    assert "| bad-value | 3 | SCHEMA_INVALID: no such type |" in shown
    assert "| subject x | HTTP 500 |" in shown
    assert "| orders | value | sample of 200 records |" in shown


def test_approvals_before_the_first_synchronization_say_so() -> None:
    shown = body("cutover", schema_plan())
    assert "**The registries have not been synchronized yet.**" in shown
    assert "| content | orders-value version 2 | another schema is there |" in shown
    assert "not been synchronized" not in body("cutover", schema_plan(id_mode="topic", subjects=[], conflicts=[]))
    assert "Schemas" not in body("cutover", None)


def test_a_registry_that_moves_with_its_topic_is_started_before_clients() -> None:
    orders = PlannedSubject(
        subject="orders-value", target_subject="orders-value", versions=[version(1, action="exists")]
    )
    made = schema_plan(id_mode="topic", subjects=[orders], conflicts=[])
    shown = body("client_switch", made, topic="_schemas")
    assert "3. Start the target's schema registry on the copy of its topic `_schemas`" in shown
    assert "\n4. Start consumers, then producers" in shown
    assert "- 1 subjects, 1 versions: all in the topic\n" in shown
    assert "already on the target" not in shown
    steps = page("runbook.md", made, **BOTH, topic="_schemas")
    assert "start the target's schema registry on its copied topic, then point clients to the target now" in steps
    for others in (schema_plan(), None):
        shown = body("client_switch", others)
        assert "\n3. Start consumers, then producers" in shown
        assert "schema registry on the copy" not in shown


def test_an_approval_lists_some_subjects_and_says_how_many_more() -> None:
    many = [PlannedSubject(subject=f"s{number:03}", target_subject="t") for number in range(53)]
    shown = body("cutover", schema_plan(subjects=many), result())
    assert "| s049 |" in shown
    assert "| s050 |" not in shown
    assert "\n\n... and 3 more\n" in shown


def test_the_plan_diff_names_subjects_versions_and_topics() -> None:
    before = schema_plan()
    orders = before.subjects[1]
    later = orders.model_copy(update={"versions": [*orders.versions, version(8)], "config": {}})
    moved = before.topics[0].model_copy(update={"value_ids": 100, "value_known_ids": 100, "sampled_records": 100})
    after = schema_plan(subjects=[later], topics=[moved, *before.topics[1:]], conflicts=[], id_mode="keep")
    changes = {str(item) for item in diff_plans(plan(before), plan(after), schemas=(before, after)).changes}
    assert changes == {
        "- schemas.conflicts[content orders-value 2 0]: another schema is there",
        "~ schemas.id_mode: translate -> keep",
        "- schemas.subjects[money]: money",
        "- schemas.subjects[orders-value].config.compatibilityLevel: FULL",
        "+ schemas.subjects[orders-value].versions[8]: register",
    }
    paths = {item.path for item in diff_plans(plan(before), plan(after), schemas=(before, after), moving=True).changes}
    assert "schemas.ids_in_topics[orders].value_ids" in paths
    assert not diff_plans(plan(before), plan(before), schemas=(before, before)).changes


def test_without_the_documents_only_figures_are_compared() -> None:
    before, after = schema_plan(), schema_plan(subjects=[])
    paths = {item.path for item in diff_plans(plan(before), plan(after)).changes}
    assert paths == {"schemas.digest", "schemas.subjects"}
    added = diff_plans(plan(None), plan(after), schemas=(None, after)).changes
    assert [(item.path, item.before) for item in added] == [("schemas", None)]


def test_permissions_name_the_requests_of_each_registry_user() -> None:
    shown = page("permissions.md", schema_plan(), **BOTH)
    assert "## Schema registry of the source: registry_source" in shown
    source, target = shown.split("## Schema registry of the ")[1:]
    assert "| GET |" in source
    assert "POST" not in source
    assert "| PUT, DELETE | /mode/SUBJECT |" in target
    assert "/apis/registry/v3/admin/import" in target
    translated = page("permissions.md", schema_plan(), **BOTH, ids="translate", include_deleted=False)
    assert "admin/import" not in translated
    assert "soft-deleted" not in translated
    assert "| PUT, DELETE | /mode |" in page("permissions.md", None, **BOTH, source_registry="readonly")
    assert "Schema registry of the target" not in page("permissions.md", None, **BOTH, topic="_schemas")


def test_the_runbook_tells_on_call_about_schemas() -> None:
    shown = page("runbook.md", schema_plan(), **BOTH)
    assert "kafka-migration schemas diff m1.yaml" in shown
    assert "Partitions held by an unknown schema id" in shown
    assert "mode IMPORT" not in shown
    assert (
        "**schemas**: 2 subjects with 0 versions are copied to the target's schema registry (ids: translate)" in shown
    )
    kept = page("runbook.md", schema_plan(id_mode="keep", import_scope="subject"), **BOTH)
    assert "may leave a scope of the target registry in mode IMPORT" in kept
    assert "unknown schema id" not in kept


def test_figures() -> None:
    assert share(3, 3) == "3 of 3 (100 %)"
    assert share(999, 1000) == "999 of 1000 (99 %)"
    assert share(0, 0) == "none found"
    assert ranges([]) == ""
    assert ranges([1, 2, 4, 6, 7, 8]) == "1-2, 4, 6-8"
