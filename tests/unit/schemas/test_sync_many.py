"""Thousands of subjects: what a copy costs in requests, and that nothing is lost. The time is printed, not asserted."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
from registry_world import World, avro, world

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
        # Set and removed once for each subject, where ids are kept; read before, before it is put back, and after.
        modes = subjects if id_mode == "keep" else 0
        assert (sent["PUT mode"], sent["DELETE mode"]) == (modes, modes)
        assert sent["GET mode"] <= 3 * modes + 5
        # A handful of entries, not one for each subject: each is an object in the journal store.
        settings = [name for name, _ in at.steps() if name in (steps.SCHEMA_MODE_SETTING, steps.SCHEMA_MODE_RESTORED)]
        assert len(settings) == (2 * subjects // SCOPES_PER_ENTRY if modes else 0)
        lines = [line for line in at.lines if line.unit == "versions"]
        assert lines[-1].total == versions
        at.target.requests.clear()
        at.source.requests.clear()
        began = time.monotonic()
        assert at.synchronize("tail", pair) == result
        print(f"{id_mode}: a pass that finds nothing takes {time.monotonic() - began:.1f} s")
        assert at.target.requests == []
        assert len(at.source.requests) < subjects + 20
