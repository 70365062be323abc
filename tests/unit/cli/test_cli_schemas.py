"""``kafka-migration schemas``: on fake registries, with a migration in folders and no broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from airflow_provider_kafka_migration.cli import schemas
from airflow_provider_kafka_migration.documents.plan import ClusterFacts, Plan
from airflow_provider_kafka_migration.documents.schemas import (
    SchemaConflict,
    SchemaFailure,
    SchemaIdMap,
    SchemaPlan,
    SchemasResult,
)
from airflow_provider_kafka_migration.errors import MigrationError, SchemaInvalid
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.planning import schemas as planning_schemas
from airflow_provider_kafka_migration.record import context as cluster_module
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.record.context import PhaseResult
from airflow_provider_kafka_migration.registry.access import RegistryAccess
from airflow_provider_kafka_migration.registry.client import Registry
from airflow_provider_kafka_migration.registry.model import Schema
from airflow_provider_kafka_migration.storage.local import LocalStore
from harness.fake_registry import FakeRegistry, Reply

pytestmark = pytest.mark.slow

ORDER = Schema("AVRO", '{"type": "record", "name": "Order", "fields": []}')
MONEY = Schema("AVRO", '{"type": "record", "name": "Money", "fields": []}')


@pytest.fixture
def source() -> Iterator[FakeRegistry]:
    with FakeRegistry() as registry:
        register(registry, "orders-value", ORDER)
        register(registry, "money", MONEY)
        yield registry


@pytest.fixture
def target() -> Iterator[FakeRegistry]:
    with FakeRegistry() as registry:
        yield registry


def register(registry: FakeRegistry, subject: str, schema: Schema) -> None:
    with Registry(RegistryAccess.from_dict({"url": registry.url}), "source") as known:
        known.register(subject, schema)


@pytest.fixture
def with_registries(
    spec_file: Path, source: FakeRegistry, target: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The spec with both registries; the clusters exist in name only, which is soon noticed."""
    monkeypatch.setattr(cluster_module, "FIRST_CONTACT_SECONDS", 0.1)
    for name in ("SOURCE", "TARGET"):
        monkeypatch.setenv(name, '{"bootstrap.servers": "127.0.0.1:1"}')
    for name, registry in (("R_SOURCE", source), ("R_TARGET", target)):
        monkeypatch.setenv(name, json.dumps({"url": registry.url, "basic.auth.user.info": "ann:hunter2"}))
    change(spec_file, source="env:R_SOURCE", target="env:R_TARGET")
    return spec_file


@pytest.fixture
def planned(with_registries: Path, tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A migration whose plan has no topics; sampling their records would ask a broker all the same."""
    monkeypatch.setattr(planning_schemas, "topic_ids", lambda *_args: [])
    put(tmp_path, keys.PLAN, empty_plan())
    return with_registries


def empty_plan() -> Plan:
    facts = ClusterFacts(cluster_id="c", kafka_version="4.1", mode="kraft", brokers=[1])
    return Plan(migration_id="orders-1", source=facts, target=facts, topics=[], lanes=[])


def put(folder: Path, key: str, document: Any) -> None:
    LocalStore(str(folder / "journal")).put(f"orders-1/{key}", document.canonical())


def change(file: Path, **keys_of_schemas: Any) -> None:
    spec = yaml.safe_load(file.read_text(encoding="utf-8"))
    spec["schemas"] = {**spec.get("schemas", {}), **keys_of_schemas}
    file.write_text(yaml.safe_dump(spec), encoding="utf-8")


def objects(folder: Path) -> dict[str, bytes]:
    """Everything in the stores of the migration."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_plan_shows_what_would_move_and_writes_nothing(
    invoke: Any, planned: Path, tmp_path: Path, source: FakeRegistry, target: FakeRegistry
) -> None:
    before = objects(tmp_path)
    source.requests.clear()
    result = invoke("schemas", "plan", planned)
    assert result.exit_code == 0, result.output
    assert "ids: keep: the target registry gets the same ids and versions" in result.stdout
    assert "2 subjects, 2 versions (0 soft-deleted): 2 to register, 0 already on the target" in result.stdout
    assert "orders-value" in result.stdout
    assert objects(tmp_path) == before
    assert not [request for request in (*source.requests, *target.requests) if request.writes]
    assert "hunter2" not in result.output


def test_registries_can_be_compared_while_no_broker_answers(
    invoke: Any, with_registries: Path, tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning_schemas, "topic_ids", lambda *_args: [])
    put(tmp_path, keys.PLAN, empty_plan())
    result = invoke("schemas", "plan", with_registries)
    assert result.exit_code == 0, result.output
    assert "no broker of the source cluster answers" in result.stdout


def test_the_plan_as_json_and_markdown_and_file(invoke: Any, planned: Path, tmp_path: Path) -> None:
    file = tmp_path / "out" / "schema-plan.json"
    shown = json.loads(invoke("schemas", "plan", planned, "--format", "json", "-o", file).stdout)
    made = SchemaPlan.parse(file.read_bytes())
    assert shown == made.model_dump(mode="json")
    assert [item.subject for item in made.subjects] == ["money", "orders-value"]
    answer = json.loads(invoke("schemas", "plan", planned, "--json").stdout)
    assert answer["digest"] == made.digest()
    page = invoke("schemas", "plan", planned, "--format", "markdown").stdout
    assert page.startswith("## Schemas\n")
    assert "| orders-value |  | AVRO | 1 |" in page


def test_differences_are_an_exit_status(
    invoke: Any, planned: Path, target: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(planning_schemas, "topic_ids")  # no record is sampled for a comparison
    result = invoke("schemas", "diff", planned, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["equal"] is False
    assert [(item["what"], item["subject"]) for item in found["differences"]] == [
        ("missing", "money version 1"),
        ("missing", "orders-value version 1"),
    ]
    register(target, "orders-value", ORDER)
    register(target, "money", MONEY)
    result = invoke("schemas", "diff", planned)
    assert result.exit_code == 0, result.output
    assert "nothing to copy: 2 subjects, 2 versions are on the target" in result.stdout


def test_a_foreign_schema_under_a_used_id_is_a_conflict(invoke: Any, planned: Path, target: FakeRegistry) -> None:
    register(target, "foreign", Schema("AVRO", '"string"'))
    change(planned, ids="keep")
    result = invoke("schemas", "diff", planned)
    assert result.exit_code == 1
    assert "conflict (id)" in result.stdout
    assert "conflict" in invoke("schemas", "plan", planned).stdout


def test_a_soft_deleted_version_that_is_missing_is_named_as_such(
    invoke: Any, planned: Path, source: FakeRegistry
) -> None:
    with Registry(RegistryAccess.from_dict({"url": source.url}), "source") as known:
        known.delete_subject("money")
    differences = json.loads(invoke("schemas", "diff", planned, "--json").stdout)["differences"]
    assert "soft-deleted on the source" in differences[0]["why"]


def test_in_a_migration_the_recorded_id_mode_counts(
    invoke: Any, planned: Path, tmp_path: Path, target: FakeRegistry
) -> None:
    put(tmp_path, keys.SCHEMA_ID_MAP, SchemaIdMap(migration_id="orders-1", id_mode="translate"))
    answer = json.loads(invoke("schemas", "plan", planned, "--json").stdout)
    assert answer["plan"]["id_mode"] == "translate", "auto would keep ids of an empty target"


def test_without_registries_in_the_spec(invoke: Any, spec_file: Path) -> None:
    for command in ("plan", "diff", "copy", "verify"):
        result = invoke("schemas", command, spec_file, "--json")
        assert result.exit_code == 1
        error = json.loads(result.stdout)["error"]
        assert error["code"] == "SPEC_INVALID"
        assert "schemas.source" in error["next_step"]


def test_verify_compares_both_registries_and_the_ids_of_the_map(
    invoke: Any, planned: Path, tmp_path: Path, source: FakeRegistry, target: FakeRegistry
) -> None:
    register(target, "orders-value", ORDER)
    register(target, "money", MONEY)
    target.requests.clear()
    ids = [(".", 1, 1), (".", 2, 2)]
    put(tmp_path, keys.SCHEMA_ID_MAP, SchemaIdMap(migration_id="orders-1", id_mode="keep", ids=ids))
    result = invoke("schemas", "verify", planned)
    assert result.exit_code == 0, result.output
    assert "PASSED: 2 subjects, 2 versions (0 deleted), ids kept; 2 of 2 ids" in result.stdout
    assert not [request for request in target.requests if request.writes]
    with Registry(RegistryAccess.from_dict({"url": target.url}), "target") as known:
        known.set_config("orders-value", {"compatibilityLevel": "FULL"})
    result = invoke("schemas", "verify", planned, "--json")
    assert json.loads(result.stdout)["outcome"] == "WARNING", "the source has no level there"
    with Registry(RegistryAccess.from_dict({"url": source.url}), "source") as known:
        known.set_config("orders-value", {"compatibilityLevel": "NONE"})
    result = invoke("schemas", "verify", planned, "--json")
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert answer["outcome"] == "FAILED"
    assert [item["subject"] for item in answer["check"]["differences"]] == ["orders-value"]
    assert "FULL" in answer["findings"][0]["why"]


def test_what_only_the_target_has_is_a_warning(
    invoke: Any, planned: Path, tmp_path: Path, target: FakeRegistry
) -> None:
    register(target, "orders-value", ORDER)
    register(target, "money", MONEY)
    register(target, "money", Schema("AVRO", '{"type": "record", "name": "Money", "fields": [], "doc": "later"}'))
    ids = [(".", 1, 1), (".", 2, 2)]
    put(tmp_path, keys.SCHEMA_ID_MAP, SchemaIdMap(migration_id="orders-1", id_mode="keep", ids=ids))
    result = invoke("schemas", "verify", planned)
    assert result.exit_code == 0, result.output
    assert "WARNING: " in result.stdout
    assert "only on the target" in result.stdout


def test_verify_finds_an_id_that_is_another_schema_on_the_target(
    invoke: Any, planned: Path, tmp_path: Path, target: FakeRegistry
) -> None:
    register(target, "money", MONEY)
    register(target, "orders-value", ORDER)
    ids = [(".", 1, 1), (".", 2, 2)]
    put(tmp_path, keys.SCHEMA_ID_MAP, SchemaIdMap(migration_id="orders-1", id_mode="translate", ids=ids))
    result = invoke("schemas", "verify", planned)
    assert result.exit_code == 1
    assert "FAILED: " in result.stdout
    assert "0 of 2 ids in records resolve" in result.stdout


@pytest.mark.parametrize(
    ("status", "code", "exit_status"), [(401, "REGISTRY_FORBIDDEN", 1), (500, "REGISTRY_UNREACHABLE", 3)]
)
def test_a_registry_that_refuses_or_fails(
    invoke: Any, planned: Path, target: FakeRegistry, status: int, code: str, exit_status: int
) -> None:
    target.before = lambda _request: Reply.error(status, status, "no")
    result = invoke("schemas", "diff", planned, "--json")
    assert result.exit_code == exit_status
    assert json.loads(result.stdout)["error"]["code"] == code
    assert "hunter2" not in result.output


class OneRun:
    """A migration whose phase has this result."""

    def __init__(self, result: SchemasResult | None = None, error: MigrationError | None = None) -> None:
        self._result, self._error = result, error
        self.calls: list[str] = []

    def open(self) -> AbstractContextManager[OneRun]:
        return nullcontext(self)

    def run(self, phase: str) -> PhaseResult:
        self.calls.append(f"run {phase}")
        if self._error is not None:
            raise self._error
        return PhaseResult(phase, "2 versions registered")

    def release(self, _reason: str) -> None:
        self.calls.append("release")

    def reading(self) -> AbstractContextManager[Any]:
        return nullcontext(SimpleNamespace(record=SimpleNamespace(schemas_result=lambda: self._result)))


def result_of(**more: Any) -> SchemasResult:
    return SchemasResult(migration_id="orders-1", reason="cli", at="2026-01-01T00:00:00Z", id_mode="keep", **more)


def test_copy_runs_the_phase_and_releases_the_migration(
    invoke: Any, with_registries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migration = OneRun(result_of(subjects=2, versions=2, registered=2))
    monkeypatch.setattr(schemas, "MigrationOpener", lambda *_args, **_options: migration)
    answer = json.loads(invoke("schemas", "copy", with_registries, "--json").stdout)
    assert answer["summary"] == "2 versions registered"
    assert answer["result"]["registered"] == 2
    assert migration.calls == ["run schemas", "release"]


def test_copy_names_what_was_refused(invoke: Any, with_registries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = SchemaFailure(subject="money", version=3, error={"code": "SCHEMA_INVALID", "what": "no such type"})
    conflict = SchemaConflict(kind="id", subject="orders-value", what="id 1 is taken")
    migration = OneRun(result_of(failed=[failure], conflicts=[conflict], unread={"target: mode": "HTTP 500"}))
    monkeypatch.setattr(schemas, "MigrationOpener", lambda *_args, **_options: migration)
    result = invoke("schemas", "copy", with_registries)
    assert result.exit_code == 1
    for text in ("SCHEMA_INVALID", "money version 3", "no such type", "id 1 is taken", "HTTP 500"):
        assert text in result.stdout


def test_copy_releases_the_migration_after_an_error_too(
    invoke: Any, with_registries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migration = OneRun(error=SchemaInvalid("refused"))
    monkeypatch.setattr(schemas, "MigrationOpener", lambda *_args, **_options: migration)
    assert invoke("schemas", "copy", with_registries).exit_code == 1
    assert migration.calls == ["run schemas", "release"]


def test_every_command_says_what_it_does(invoke: Any) -> None:
    result = invoke("schemas", "--help")
    for command in ("plan", "copy", "diff", "verify"):
        assert command in result.stdout
        assert len(invoke("schemas", command, "--help").stdout) > 200
