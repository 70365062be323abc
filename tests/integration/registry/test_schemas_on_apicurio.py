"""Schemas are copied between real registries: ids kept or translated, runs killed before each write to the target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from phase_support import make_context
from registry_world import Gate, Killed, client

from airflow_provider_kafka_migration.documents.schemas import SchemasResult
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.schemas.open import RegistryPair as Pair
from airflow_provider_kafka_migration.schemas.sync import synchronize
from airflow_provider_kafka_migration.state import FORWARD
from demo.schemas import Stored, stored
from harness.registries import RegistryPair, SeedVersion

pytestmark = pytest.mark.integration


def avro(name: str, *fields: str) -> str:
    made = [{"name": item, "type": "int", "default": 0} for item in fields]
    return json.dumps({"type": "record", "name": name, "namespace": "t", "fields": made}, separators=(",", ":"))


def rows(prefix: str, first_id: int) -> list[SeedVersion]:
    """A gap, soft-deleted versions, a soft-deleted subject, references to a version that is not the latest."""
    message = f'syntax = "proto3";\npackage {prefix};\nmessage M {{ string c = 1; }}\n'
    outer = f'syntax = "proto3";\npackage {prefix};\nimport "m.proto";\nmessage N {{ M m = 1; }}\n'
    return [
        SeedVersion(f"{prefix}-a-value", 2, first_id + 5, avro(f"{prefix}A", "x")),
        SeedVersion(f"{prefix}-a-value", 3, first_id + 2, avro(f"{prefix}A", "x", "y"), deleted=True),
        SeedVersion(f"{prefix}-a-value", 5, first_id + 9, avro(f"{prefix}A", "x", "z")),
        SeedVersion(f"{prefix}-b-value", 1, first_id + 5, avro(f"{prefix}A", "x")),
        SeedVersion(f"{prefix}-gone", 1, first_id + 1, avro(f"{prefix}Gone", "x"), deleted=True),
        SeedVersion(f"{prefix}-m", 1, first_id + 20, message, "PROTOBUF"),
        SeedVersion(f"{prefix}-n", 4, first_id + 11, outer, "PROTOBUF", (("m.proto", f"{prefix}-m", 1),)),
    ]


#: More than a run has writes.
KILLS = 40


Content = dict[tuple[str, int], Stored]


@pytest.fixture(scope="module")
def everything(registries: RegistryPair) -> Content:
    """What the source holds: the subjects of all tests, because it can be seeded while it is empty only."""
    found = rows("keep", 1000) + rows("fresh", 2000)
    for number in range(KILLS):
        found += rows(f"kkill{number}", 10_000 + 100 * number) + rows(f"tkill{number}", 50_000 + 100 * number)
    registries.source.seed(found)
    return stored(registries.source)


def part(content: Content, prefix: str) -> Content:
    return {key: value for key, value in content.items() if key[0].startswith(f"{prefix}-")}


def section(prefix: str, ids: str) -> dict[str, Any]:
    return {"source": "env:S", "target": "env:T", "ids": ids, "include": [f"{prefix}-.*"], "max_parallel_requests": 2}


def copy(context: PhaseContext, registries: RegistryPair, gate: Gate | None = None) -> SchemasResult:
    """One pass by a process of its own; the gate counts its writes, and all requests to the target that may write."""
    source: Any = registries.source
    target: Any = registries.target
    with Pair(client(source, "source"), client(target, "target")) as pair:
        if gate is not None:
            gate.guard_requests(pair.target)
            gate.guard(context.journal_store, ("put", "put_new"))
        return synchronize(context, pair, reason="schemas")


def test_ids_are_kept_and_a_second_run_writes_nothing(
    registries: RegistryPair, everything: Content, tmp_path: Path
) -> None:
    registries.source.request("PUT", f"{registries.source.url}/config/keep-a-value", {"compatibility": "FULL"})
    context = make_context(tmp_path, schemas=section("keep", "keep"))
    result = copy(context, registries)
    assert (result.id_mode, result.registered, result.failed, result.conflicts) == ("keep", 7, [], [])
    assert part(stored(registries.target), "keep") == part(everything, "keep")
    target = registries.target
    assert target.request("GET", f"{target.url}/config/keep-a-value") == {"compatibilityLevel": "FULL"}
    gate = Gate(None)
    again = copy(context, registries, gate)
    assert (again.registered, again.deleted, again.configs, again.failed) == (0, 0, 0, [])
    assert not [line for line in gate.log if not line.startswith("StoreWithTail")]


def test_ids_are_translated(registries: RegistryPair, everything: Content, tmp_path: Path) -> None:
    context = make_context(tmp_path, schemas=section("fresh", "translate"))
    result = copy(context, registries)
    assert (result.id_mode, result.registered, result.failed) == ("translate", 7, [])
    source, target = part(everything, "fresh"), part(stored(registries.target), "fresh")
    document = context.record.schema_id_map()
    assert document is not None
    ids = {old: new for _, old, new in document.ids}
    assert sorted(ids) == sorted({item.id for item in source.values()})
    texts = {item.id: item.text for item in target.values()}
    for item in source.values():
        assert texts[ids[item.id]] == item.text
    # The gap closes, so the versions are 1, 2 and 3; the second one is deleted again.
    assert [target["fresh-a-value", number].deleted for number in (1, 2, 3)] == [False, True, False]
    assert target["fresh-n", 1].references == (("m.proto", "fresh-m", "1"),)
    again = copy(context, registries)
    assert (again.registered, again.deleted, again.failed) == (0, 0, [])
    assert part(stored(registries.target), "fresh") == target


@pytest.mark.soak
@pytest.mark.parametrize("ids", ["keep", "translate"])
def test_killed_before_each_write(registries: RegistryPair, everything: Content, tmp_path: Path, ids: str) -> None:
    """Each kill has subjects of its own, which the next run copies to the end."""
    killed = []
    for number in range(KILLS):
        prefix = f"{ids[0]}kill{number}"
        folder = tmp_path / prefix
        try:
            copy(make_context(folder, schemas=section(prefix, ids)), registries, Gate(number))
            break
        except Killed:
            resumed = make_context(folder, state=FORWARD[0], schemas=section(prefix, ids))
            result = copy(resumed, registries)
            assert (result.failed, result.conflicts) == ([], []), f"killed before write {number}"
            killed.append(prefix)
    assert (3 if ids == "keep" else 10) < len(killed) < KILLS
    found = stored(registries.target)
    for prefix in killed:
        source, target = part(everything, prefix), part(found, prefix)
        if ids == "keep":
            assert target == source, prefix
        assert shape(target) == shape(source), prefix


def shape(content: Content) -> list[tuple[str, str, bool]]:
    """Subjects, texts and deleted states, in the order of the versions."""
    return [(key[0], item.text, item.deleted) for key, item in sorted(content.items())]
