"""Thousands of subjects: what a copy costs in requests, and that nothing is lost. The time is printed, not asserted."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import pytest
from registry_world import World, avro, world

from airflow_provider_kafka_migration.errors import SchemaConflicts
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.registry_settings import SCOPES_PER_ENTRY
from harness.fake_registry import Request


def fill(at: World, subjects: int) -> int:
    """Subjects with one version, each tenth with two; return the number of versions."""
    versions = 0
    for number in range(subjects):
        at.source.seed(f"topic-{number:05d}-value", avro(f"R{number}", "x"), id=2 * number + 1)
        versions += 1
        if number % 10 == 0:
            at.source.seed(f"topic-{number:05d}-value", avro(f"R{number}", "x", "y", y=0), id=2 * number + 2, version=2)
            versions += 1
    return versions


def kinds(requests: list[Request]) -> Counter[str]:
    """Requests by method and first part of the path."""
    return Counter(f"{item.method} {item.path.split('/')[1]}" for item in requests)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("id_mode", "subjects"),
    [("keep", 1000), ("translate", 1000), pytest.param("keep", 5000, marks=pytest.mark.soak)],
)
def test_thousands_of_subjects(tmp_path: Path, id_mode: str, subjects: int) -> None:
    with world(tmp_path, ids=id_mode) as at, at.pair() as pair:
        versions = fill(at, subjects)
        began = time.monotonic()
        result = at.synchronize("schemas", pair)
        seconds = time.monotonic() - began
        sent = kinds(at.target.requests)
        print(f"{id_mode}: {subjects} subjects, {versions} versions in {seconds:.1f} s; target: {dict(sent)}")
        assert (result.registered, result.failed, result.subjects) == (versions, [], subjects)
        assert len(at.ids()) == versions
        assert sum(len(found) for found in at.target_subjects().values()) == versions
        assert at.target.state()["modes"] == {"": "READWRITE"}
        assert sent["POST subjects"] == versions
        # The mode of the registry is set and put back once, and nothing else is asked for each subject.
        assert (sent["PUT mode"], sent["DELETE mode"]) == ((2, 0) if id_mode == "keep" else (0, 0))
        assert len(at.target.requests) <= versions + 30
        settings = [name for name, _ in at.steps() if name in (steps.SCHEMA_MODE_SETTING, steps.SCHEMA_MODE_RESTORED)]
        assert len(settings) == (2 if id_mode == "keep" else 0)
        lines = [line for line in at.lines if line.unit == "versions"]
        assert lines[-1].total == versions
        at.target.requests.clear()
        at.source.requests.clear()
        began = time.monotonic()
        assert at.synchronize("tail", pair) == result
        print(f"{id_mode}: a pass that finds nothing takes {time.monotonic() - began:.1f} s")
        assert at.target.requests == []
        assert len(at.source.requests) < subjects + 20


def foreign(at: World) -> None:
    at.target.seed("foreign-value", avro("F", "x"), id=90_000)


@pytest.mark.slow
def test_subjects_beside_those_of_others_get_their_modes_one_by_one(tmp_path: Path) -> None:
    """The mode of the whole registry would close it for others."""
    with world(tmp_path, ids="keep") as at:
        fill(at, 40)
        foreign(at)
        assert at.synchronize().failed == []
        sent = kinds(at.target.requests)
        assert (sent["PUT mode"], sent["DELETE mode"]) == (40, 40)
        assert not [item for item in at.target.writes if item.path == "/mode"]
        # Which ids are free shows in the list of all schemas.
        assert sent["GET schemas"] <= 2
        # A handful of entries, not one for each subject: each is an object in the journal store.
        settings = [name for name, _ in at.steps() if name in (steps.SCHEMA_MODE_SETTING, steps.SCHEMA_MODE_RESTORED)]
        assert len(settings) == 2 * -(-40 // SCOPES_PER_ENTRY)


@pytest.mark.slow
def test_a_vacant_context_beside_others(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep") as at:
        for number in range(30):
            at.source.seed(f":.new:topic-{number}-value", avro("R", "x"), id=number + 1)
        foreign(at)
        assert at.synchronize().failed == []
        assert [(item.method, unquote(item.path)) for item in at.target.writes if "/mode" in item.path] == [
            ("PUT", "/mode/:.new:"),
            ("DELETE", "/mode/:.new:"),
        ]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["READWRITE", "READONLY"])
def test_a_mode_that_was_set_in_advance(tmp_path: Path, mode: str) -> None:
    """It overrides that of the registry, and no list shows it."""
    with world(tmp_path, ids="keep") as at:
        fill(at, 30)
        at.target.store.modes["topic-00007-value"] = mode
        result = at.synchronize()
        failed = [(item.subject, item.error["code"]) for item in result.failed]
        assert failed == ([] if mode == "READWRITE" else [("topic-00007-value", "REGISTRY_READ_ONLY")])
        assert at.target.state()["modes"] == {"": "READWRITE", "topic-00007-value": mode}


@pytest.mark.slow
def test_somebody_registers_in_the_registry_that_was_empty_a_moment_ago(tmp_path: Path) -> None:
    """Then its mode is left alone, and each subject gets its own."""
    with world(tmp_path, ids="keep") as at:
        fill(at, 30)

        def arrive(request: Request) -> None:
            if request.method == "PUT" and request.path == "/mode" and "foreign-value" not in at.target.store.subjects:
                foreign(at)

        at.target.before = arrive
        assert at.synchronize().failed == []
        sent = kinds(at.target.requests)
        assert sent["DELETE mode"] == 30
        assert at.target.state()["modes"] == {"": "READWRITE"}


@pytest.mark.slow
def test_ids_that_others_have_show_in_the_list(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep") as at:
        fill(at, 30)
        at.target.seed("foreign-value", avro("F", "x"), id=7)
        with pytest.raises(SchemaConflicts, match="the id 7 belongs to another schema on the target"):
            at.synchronize()
        assert at.target.writes == []
        assert not [item for item in at.target.requests if item.path.startswith("/schemas/ids/")]
