"""The precheck's probe and the commands ``schemas diff`` and ``verify`` on real registries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from phase_support import make_context, make_plan
from registry_world import client
from typer.testing import CliRunner, Result

from airflow_provider_kafka_migration.checks.schemas import check_registries
from airflow_provider_kafka_migration.cli.app import app
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.registry.client import Registry
from airflow_provider_kafka_migration.schemas.open import RegistryPair as OpenPair
from airflow_provider_kafka_migration.schemas.sync import synchronize
from harness.registries import RegistryPair, SeedVersion

pytestmark = [pytest.mark.integration, pytest.mark.soak]

RECORD = '{"type":"record","name":"A","fields":[{"name":"x","type":"int"}]}'
SECTION = {"source": "env:R_SOURCE", "target": "env:R_TARGET"}


@pytest.fixture(scope="module")
def pair(registries: RegistryPair) -> RegistryPair:
    registries.source.seed(
        [SeedVersion("a-value", 3, 100, RECORD), SeedVersion("a-value", 6, 107, '"int"', deleted=True)]
    )
    return registries


def opened(pair: RegistryPair, role: Any) -> Registry:
    return client(pair.source if role == "source" else pair.target, role)  # type: ignore[arg-type]


def test_the_probe_of_the_right_to_write_leaves_no_trace(pair: RegistryPair, tmp_path: Path) -> None:
    context = make_context(tmp_path, schemas=SECTION)
    context.open_registry = lambda role: opened(pair, role)
    assert list(check_registries(context, context.record.plan())) == []
    with opened(pair, "target") as target:
        assert target.subjects(deleted=True) == []


def test_the_commands_see_what_is_missing_and_then_that_both_are_equal(
    pair: RegistryPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = make_context(tmp_path, schemas=SECTION, plan=make_plan({}))
    for name in ("S", "T"):
        monkeypatch.setenv(name, '{"bootstrap.servers": "127.0.0.1:1"}')
    monkeypatch.setenv("R_SOURCE", json.dumps({"url": pair.source.url}))
    monkeypatch.setenv("R_TARGET", json.dumps({"url": pair.target.url}))
    file = tmp_path / "m1.yaml"
    file.write_text(yaml.safe_dump(context.spec.model_dump(mode="json")), encoding="utf-8")

    def command(name: str) -> Result:
        return CliRunner().invoke(app, ["schemas", name, str(file), "--json"])

    missing = command("diff")
    assert missing.exit_code == 1, missing.output
    found = [(item["what"], item["subject"]) for item in json.loads(missing.stdout)["differences"]]
    assert found == [("missing", "a-value version 3"), ("missing", "a-value version 6")]

    with OpenPair(opened(pair, "source"), opened(pair, "target")) as both:
        assert synchronize(context, both, reason="schemas").registered == 2
    assert context.journal_store.get(context.key(keys.SCHEMA_ID_MAP)) is not None

    for name, key, value in (("diff", "equal", True), ("verify", "outcome", "PASSED")):
        result = command(name)
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)[key] == value
    check = json.loads(command("verify").stdout)["check"]
    assert (check["subjects"], check["versions"], check["deleted_versions"]) == (1, 2, 1)
    assert check["ids_resolved"] == check["ids_in_records"] == 2
