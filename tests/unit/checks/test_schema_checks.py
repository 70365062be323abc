"""Findings about schemas: registries that answer as the case needs, and schema plans made for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from phase_support import make_context, make_plan

from airflow_provider_kafka_migration.checks import schemas as checks
from airflow_provider_kafka_migration.documents.plan import Finding, Plan, SchemaPlanSummary, Severity
from airflow_provider_kafka_migration.documents.schemas import (
    DecodedPart,
    PlannedSubject,
    PlannedVersion,
    SchemaConflict,
    SchemaPlan,
    TopicIds,
)
from airflow_provider_kafka_migration.errors import RegistryRefused
from airflow_provider_kafka_migration.phases import precheck
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.registry.access import RegistryAccess
from airflow_provider_kafka_migration.registry.client import Registry
from airflow_provider_kafka_migration.registry.model import Schema
from harness.fake_registry import FakeRegistry, Reply, Request

SCHEMA = Schema("AVRO", '{"type": "record", "name": "Order", "fields": []}')
BOTH = {"source": "env:SOURCE_REGISTRY", "target": "env:TARGET_REGISTRY"}


@pytest.fixture
def source() -> Iterator[FakeRegistry]:
    with FakeRegistry() as registry:
        yield registry


@pytest.fixture
def target() -> Iterator[FakeRegistry]:
    with FakeRegistry() as registry:
        yield registry


def client(registry: FakeRegistry, role: Any) -> Registry:
    return Registry(RegistryAccess.from_dict({"url": registry.url}, retry_seconds=0.5, timeout_seconds=20), role)


@pytest.fixture
def make(
    tmp_path: Path, source: FakeRegistry, target: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., PhaseContext]:
    """A context whose registries are the two fakes."""
    for name, registry in (("SOURCE_REGISTRY", source), ("TARGET_REGISTRY", target)):
        monkeypatch.setenv(name, f'{{"url": "{registry.url}"}}')

    def made(found: SchemaPlan | None = None, /, plan: Plan | None = None, **sections: Any) -> PhaseContext:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        context = make_context(folder, plan=plan, **{"schemas": BOTH, **sections})
        context.open_registry = lambda role: client(source if role == "source" else target, role)
        if found is not None:
            document = keys.schema_plan(found.digest())
            summary = SchemaPlanSummary(document=document, digest=found.digest(), id_mode=found.id_mode)
            context.journal_store.put(context.key(document), found.canonical())
            with_schemas = context.record.plan().model_copy(update={"schemas": summary})
            context.journal_store.put(context.key(keys.PLAN), with_schemas.canonical())
        return context

    return made


def schema_plan(**fields: Any) -> SchemaPlan:
    return SchemaPlan(migration_id="m1", **{"id_mode": "keep", "reason": "for a test", **fields})


def subject(name: str, action: Any = "register", **fields: Any) -> PlannedSubject:
    version = PlannedVersion(version=1, id=1, digest="d", action=action)
    return PlannedSubject(subject=name, target_subject=name, versions=[version], **fields)


def conflict(kind: Any, what: str = "it differs") -> SchemaConflict:
    return SchemaConflict(kind=kind, subject="orders-value", what=what)


def live(context: PhaseContext) -> list[Finding]:
    return list(checks.check_registries(context, context.record.plan()))


def planned(context: PhaseContext) -> list[Finding]:
    return list(checks.check_schemas(context, context.record.plan()))


def codes(findings: list[Finding]) -> list[str]:
    assert all(item.fix and item.title for item in findings)
    return [item.code for item in findings]


def refuse(status: int, path: str, method: str = "POST") -> Callable[[Request], Reply | None]:
    """A hook that refuses requests whose path contains a text."""

    def before(request: Request) -> Reply | None:
        if request.method == method and path in request.path:
            return Reply.error(status, status * 100 + 1, "User is denied operation")
        return None

    return before


# -- registries -------------------------------------------------------------------------------------------------------


def test_two_registries_that_work_give_no_finding_and_keep_no_trace(
    make: Callable[..., PhaseContext], source: FakeRegistry, target: FakeRegistry
) -> None:
    with client(target, "target") as known:
        known.register("orders-value", SCHEMA)
    target.requests.clear()
    assert live(make(schema_plan(subjects=[subject("orders-value")]))) == []
    tried = [request.path for request in target.requests if request.writes]
    assert tried == ["/subjects/orders-value-kafka-migration-probe/versions"], "it was tried, beside the subject itself"
    with client(target, "target") as known:
        assert known.subjects(deleted=True) == ["orders-value"]
        assert known.versions("orders-value") == [1]
    assert not [request for request in source.requests if request.writes], "the source is only read"


def test_a_registry_that_stores_what_it_cannot_parse_is_cleaned_up(make: Callable[..., PhaseContext]) -> None:
    with FakeRegistry() as careless:
        accepted: list[str] = []

        def before(request: Request) -> Reply | None:
            if request.method == "POST" and request.path.endswith("-probe/versions"):
                accepted.append(request.path)
                return Reply.json({"id": 7, "version": 1, "schemaType": "AVRO", "schema": "{}", "subject": "x"})
            if request.method == "DELETE":
                accepted.append(f"{request.method} {request.query.get('permanent', '')}")
                return Reply.json(1)
            return None

        careless.before = before
        context = make(schema_plan(subjects=[subject("a")]))
        context.open_registry = lambda role: client(careless, role)
        assert live(context) == []
        assert accepted == ["/subjects/a-kafka-migration-probe/versions", "DELETE ", "DELETE true"]


def test_without_a_schema_plan_the_right_to_write_is_tried_all_the_same(
    make: Callable[..., PhaseContext], target: FakeRegistry
) -> None:
    assert live(make()) == []
    assert [request.path for request in target.requests if request.writes] == [
        "/subjects/kafka-migration-probe/versions"
    ]


def test_nothing_is_tried_where_nothing_is_written(make: Callable[..., PhaseContext], target: FakeRegistry) -> None:
    assert live(make(schema_plan(subjects=[subject("a", "exists")]))) == []
    assert not [request for request in target.requests if request.writes]


def test_unreachable_registries_are_named_each(
    make: Callable[..., PhaseContext], source: FakeRegistry, target: FakeRegistry
) -> None:
    source.stop()
    target.stop()
    found = live(make())
    assert codes(found) == ["B100", "B100"]
    assert [item.subject for item in found] == ["source", "target"]


def test_a_user_without_rights(make: Callable[..., PhaseContext], source: FakeRegistry, target: FakeRegistry) -> None:
    source.before = refuse(403, "/config", "GET")
    target.before = refuse(403, "/versions")
    found = live(make(schema_plan(subjects=[subject("a")])))
    assert codes(found) == ["B101", "B101"]
    assert [item.subject for item in found] == ["source", "target"]


def test_a_right_may_be_limited_to_the_subject_itself(make: Callable[..., PhaseContext], target: FakeRegistry) -> None:
    target.before = refuse(403, "-kafka-migration-probe")
    assert live(make(schema_plan(subjects=[subject("a")]))) == []
    with client(target, "target") as known:
        assert known.subjects(deleted=True) == []


@pytest.mark.parametrize("mode", ["READONLY", "FORWARD"])
def test_a_read_only_target(make: Callable[..., PhaseContext], target: FakeRegistry, mode: str) -> None:
    with client(target, "target") as known:
        known.set_mode(None, mode)
    found = live(make(schema_plan(subjects=[subject("a")])))
    assert codes(found) == ["B102"]
    assert mode in found[0].seen


def test_a_context_that_is_read_only(make: Callable[..., PhaseContext], target: FakeRegistry) -> None:
    def before(request: Request) -> Reply | None:
        if request.method == "POST":
            return Reply.error(422, 42205, "Subject :.pay:a is in read-only mode")
        return None

    target.before = before
    assert codes(live(make(schema_plan(subjects=[subject(":.pay:a")])))) == ["B102"]


@pytest.mark.parametrize(("id_mode", "expected"), [("keep", []), ("translate", ["B102"])])
def test_a_target_in_mode_import_takes_only_fixed_ids(
    make: Callable[..., PhaseContext], target: FakeRegistry, id_mode: str, expected: list[str]
) -> None:
    with client(target, "target") as known:
        known.set_mode(None, "IMPORT")
    assert codes(live(make(schema_plan(id_mode=id_mode, subjects=[subject("a")])))) == expected


@pytest.mark.parametrize(
    "registry", ["glue:my-registry", '{"url": "https://glue.eu-central-1.amazonaws.com/registry/x"}']
)
def test_glue_is_named_as_not_built(
    make: Callable[..., PhaseContext], monkeypatch: pytest.MonkeyPatch, registry: str
) -> None:
    monkeypatch.setenv("GLUE", registry)
    reference = registry if registry.startswith("glue:") else "env:GLUE"
    found = live(make(schemas={**BOTH, "target": reference}))
    assert codes(found) == ["B110"]
    assert found[0].severity is Severity.BLOCKER
    context = make(schemas={**BOTH, "target": reference})
    context.open_registry = None
    with pytest.raises(RegistryRefused, match="Glue"):
        context.registry("target")


def test_with_its_topic_the_target_registry_must_not_have_content(
    make: Callable[..., PhaseContext], source: FakeRegistry, target: FakeRegistry
) -> None:
    topic = {"schemas": {**BOTH, "topic": "_schemas"}}
    assert codes(live(make(**topic))) == ["W113"]
    with client(target, "target") as known:
        known.register("orders-value", SCHEMA)
        known.delete_subject("orders-value")
    found = live(make(**topic))
    assert codes(found) == ["B112"]
    assert "orders-value" in found[0].seen, "a deleted subject is content, too"
    with client(source, "source") as known:
        known.register("orders-value", SCHEMA)
    assert codes(live(make(**topic))) == ["W113"], "it may have been started on the copy"
    target.stop()
    assert live(make(**topic)) == [], "it is started on the copied topic later"


@pytest.mark.parametrize("kind", ["karapace", "apicurio", "redpanda"])
def test_the_probe_works_with_other_registries(make: Callable[..., PhaseContext], kind: str) -> None:
    with FakeRegistry(kind) as other:
        context = make(schema_plan(subjects=[subject("a")]))
        context.open_registry = lambda role: client(other, role)
        assert live(context) == []
        with client(other, "target") as known:
            assert known.subjects(deleted=True) == []


# -- the plan ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("id", "B104"),
        ("version", "B104"),
        ("content", "B104"),
        ("reference", "B104"),
        ("compatibility", "W106"),
        ("mode", "B102"),
        ("unsupported", "B103"),
    ],
)
def test_conflicts_stop_the_migration_or_are_reported(make: Callable[..., PhaseContext], kind: str, code: str) -> None:
    schemas = schema_plan(conflicts=[conflict(kind), conflict(kind, "it differs, too")])
    found = planned(make(schemas))
    assert codes(found) == [code]
    assert found[0].seen == "2: it differs, it differs, too"
    assert len(found[0].details["conflicts"]) == 2


def test_reported_conflicts_are_one_warning(make: Callable[..., PhaseContext]) -> None:
    schemas = schema_plan(conflicts=[conflict("id"), conflict("mode"), conflict("compatibility")])
    assert codes(planned(make(schemas, schemas={**BOTH, "on_conflict": "note"}))) == ["W105", "W106"]


def test_what_could_not_be_read_stops_the_migration(make: Callable[..., PhaseContext]) -> None:
    found = planned(make(schema_plan(unread={"source: subject a": "HTTP 500", "target: mode b": "HTTP 502"})))
    assert codes(found) == ["B114", "B114"]
    assert found[0].seen == "source: subject a: HTTP 500"


def test_unused_and_left_out_subjects_are_information(make: Callable[..., PhaseContext]) -> None:
    subjects = [subject("a-value", topics=["a"]), subject("lost-value"), subject("money", as_reference=True)]
    found = planned(make(schema_plan(subjects=subjects, left_out={"tmp": "schemas.exclude: tmp"})))
    assert [(item.code, item.seen) for item in found] == [
        ("I108", "lost-value"),
        ("I118", "tmp (schemas.exclude: tmp)"),
    ]


def test_a_finding_about_thousands_of_subjects_stays_small(make: Callable[..., PhaseContext]) -> None:
    names = [f"s{number:04}" for number in range(3000)]
    schemas = schema_plan(
        subjects=[subject(name) for name in names],
        left_out=dict.fromkeys(names, "not in schemas.include"),
        conflicts=[conflict("id", name) for name in names],
        unread=dict.fromkeys(names, "HTTP 500"),
    )
    found = planned(make(schemas))
    assert [len(item.details["subjects"]) for item in found if item.code in ("I108", "I118")] == [100, 100]
    assert next(item for item in found if item.code == "B104").seen.startswith("3000: s0000, ")
    assert sum(item.code == "B114" for item in found) == 100
    assert sum(len(item.model_dump_json()) for item in found) < 100_000


def test_unknown_ids_and_topics_without_a_sample(make: Callable[..., PhaseContext]) -> None:
    topics = [
        TopicIds(topic="orders", parts="value", unknown_ids=[7, 8]),
        TopicIds(topic="logs", parts="none", unread="TOPIC_AUTHORIZATION_FAILED"),
        TopicIds(topic="by-spec", parts="key", decided_by="spec", unread="not read"),
        TopicIds(topic="users", parts="none", note="no sampled key has a known id"),
    ]
    found = planned(make(schema_plan(topics=topics)))
    assert [(item.code, item.seen) for item in found] == [
        ("W109", "orders: 7, 8"),
        ("W119", "users: no sampled key has a known id"),
        ("W117", "logs: TOPIC_AUTHORIZATION_FAILED"),
    ]


def test_a_topic_without_a_sample_stops_a_migration_that_translates(make: Callable[..., PhaseContext]) -> None:
    topics = [
        TopicIds(topic="logs", parts="none", unread="TOPIC_AUTHORIZATION_FAILED"),
        TopicIds(topic="orders", parts="value", unread="no records of partition 3 came back from offset 7"),
    ]
    found = planned(make(schema_plan(id_mode="translate", topics=topics)))
    assert [(item.code, item.details["topics"]) for item in found] == [
        ("B117", {"logs": "TOPIC_AUTHORIZATION_FAILED"}),
        ("W117", {"orders": "no records of partition 3 came back from offset 7"}),
    ]


@pytest.mark.parametrize(("id_mode", "expected"), [("translate", ["W121"]), ("keep", []), ("topic", [])])
def test_a_topic_without_records_is_a_warning_if_ids_are_translated(
    make: Callable[..., PhaseContext], id_mode: str, expected: list[str]
) -> None:
    topics = [
        TopicIds(topic="by-spec", parts="none", decided_by="spec"),
        TopicIds(topic="empty", parts="none"),
        TopicIds(topic="named", parts="value", decided_by="name"),
        TopicIds(topic="plain", parts="none", sampled_records=3),
    ]
    found = planned(make(schema_plan(id_mode=id_mode, topics=topics)))
    assert codes(found) == expected
    assert [item.details["topics"] for item in found] == [["empty"]] * len(expected)
    assert all("schemas.by_topic" in item.fix for item in found)


@pytest.mark.parametrize(("id_mode", "code"), [("keep", "B114"), ("translate", "B114"), ("topic", "W114")])
def test_what_cannot_be_read_stops_no_registry_that_moves_with_its_topic(
    make: Callable[..., PhaseContext], id_mode: str, code: str
) -> None:
    unread = {"source: compatibility level of ..": "HTTP 400"}
    assert codes(planned(make(schema_plan(id_mode=id_mode, unread=unread)))) == [code]


UNCLEAR = TopicIds(topic="eu", parts="value", unclear="its ids may be those of any of the contexts ., .eu")
DECODED = TopicIds(
    topic="clicks",
    parts="value",
    by_decoding={
        "key": DecodedPart(carries=False, tried_records=200),
        "value": DecodedPart(carries=True, tried_records=200, decoded_records=199, ids=[12]),
    },
)


def test_what_nothing_decides_stops_a_migration_that_translates(make: Callable[..., PhaseContext]) -> None:
    found = planned(make(schema_plan(id_mode="translate", topics=[UNCLEAR])))
    assert [(item.code, item.details["topics"]) for item in found] == [("B107", {"eu": UNCLEAR.unclear})]


def test_parts_that_were_decided_without_a_subject_are_named(make: Callable[..., PhaseContext]) -> None:
    (found,) = planned(make(schema_plan(id_mode="translate", topics=[DECODED])))
    assert found.code == "W120"
    assert found.details["parts"] == [
        "no subject is named clicks-key: 0 of 200 sampled keys decode with the schema of their id, so nothing is "
        "rewritten there",
        "no subject is named clicks-value: 199 of 200 sampled values decode with the schema of their id, so they carry "
        "ids",
    ]


@pytest.mark.parametrize("id_mode", ["keep", "topic"])
def test_records_that_are_not_rewritten_need_no_decision(make: Callable[..., PhaseContext], id_mode: str) -> None:
    assert planned(make(schema_plan(id_mode=id_mode, topics=[UNCLEAR, DECODED]))) == []


def test_auto_that_became_translate_does_not_fit_a_split_seed(make: Callable[..., PhaseContext]) -> None:
    schemas = schema_plan(id_mode="translate", reason="ids cannot be kept")
    assert codes(planned(make(schemas, seed={"via": "split"}))) == ["B115"]
    assert planned(make(schemas)) == []


@pytest.mark.parametrize(
    ("topic", "schemas", "expected"),
    [
        ("_schemas", {}, ["I111"]),
        ("_schemas_eu", {}, ["I111"]),
        ("kafkasql-journal", {}, ["I111"]),
        ("_schemas", {"topic": "_schemas"}, []),
        ("_schemas", BOTH, ["W116"]),
        ("my_schemas", {}, []),
    ],
)
def test_the_topic_of_a_registry_is_recognized(
    make: Callable[..., PhaseContext], topic: str, schemas: dict[str, str], expected: list[str]
) -> None:
    found = codes(planned(make(plan=make_plan({topic: 1}), schemas=schemas)))
    assert [code for code in found if code != "B114"] == expected


def test_without_schemas_nothing_is_asked(make: Callable[..., PhaseContext], source: FakeRegistry) -> None:
    context = make(schemas={})
    assert live(context) == planned(context) == []
    assert not source.requests


def test_a_plan_without_schemas_is_unknown_and_not_empty(make: Callable[..., PhaseContext]) -> None:
    found = planned(make())
    assert codes(found) == ["B114"]
    assert "before the spec named a registry" in found[0].seen
    plan = make_plan().model_copy(update={"unknown": {"schemas": "the source registry did not answer"}})
    assert planned(make(plan=plan))[0].seen == "the registries: the source registry did not answer"


def test_the_precheck_has_both_checks() -> None:
    assert precheck.CHECKS["schema registries"] is checks.check_registries
    assert precheck.CHECKS["schemas"] is checks.check_schemas


def test_a_registry_that_lies_is_a_finding_and_no_crash(
    make: Callable[..., PhaseContext], target: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.before = lambda request: Reply(200, b"<html>login</html>", {"Content-Type": "text/html"})
    monkeypatch.setattr(precheck, "CHECKS", {"schema registries": checks.check_registries})
    context = make()
    assert codes(precheck.find_all(context, context.record.plan())) == ["B001"]
