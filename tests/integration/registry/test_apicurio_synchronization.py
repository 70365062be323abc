"""Schemas move between real registries with their ids, gaps and deletions, again when one changes; records decode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from phase_support import make_context
from registry_world import client

from airflow_provider_kafka_migration.documents.schemas import SchemasResult
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.schemas import open as opened
from airflow_provider_kafka_migration.schemas.sync import Reason, synchronize
from demo.schemas import INVOICES, SHIPMENTS, Decoded, Reader, Writer, expected, judge_schemas, seeds, stored
from harness.registries import RegistryPair

pytestmark = [pytest.mark.integration, pytest.mark.soak]


def synchronized(context: PhaseContext, registries: RegistryPair, reason: Reason) -> SchemasResult:
    source: Any = registries.source
    target: Any = registries.target
    with opened.RegistryPair(client(source, "source"), client(target, "target")) as pair:
        return synchronize(context, pair, reason=reason, progress=lambda _: None)


@pytest.fixture(scope="module")
def pair(registries: RegistryPair) -> RegistryPair:
    """The registries, of which the source is seeded."""
    registries.source.seed(seeds())
    return registries


def test_schemas_move_with_their_ids_and_follow_a_change(pair: RegistryPair, tmp_path: Path) -> None:
    section = {"source": "env:SOURCE_REGISTRY", "target": "env:TARGET_REGISTRY"}
    context = make_context(tmp_path, schemas=section)
    writer = Writer(pair.source.url)
    records = [(topic, *writer.record(topic, number)) for topic in (INVOICES, SHIPMENTS) for number in range(3)]

    result = synchronized(context, pair, "schemas")
    assert (result.id_mode, result.conflicts, result.failed) == ("keep", [], [])
    assert stored(pair.target) == stored(pair.source)

    again = synchronized(context, pair, "schemas")
    assert (again.registered, again.deleted, again.configs) == (0, 0, 0)

    writer.change()
    records.append((INVOICES, *writer.record(INVOICES, 3)))
    assert synchronized(context, pair, "tail").registered == 1
    verdict = judge_schemas(stored(pair.source), stored(pair.target), Decoded(7, 1, 4), 11)
    assert verdict.problems == []
    assert verdict.ids_kept

    reader = Reader(pair.target.url)
    read = [reader.read(*record) for record in records]
    assert read[-1] == (3, expected(INVOICES, 3, changed=True))
    assert read[3] == (0, expected(SHIPMENTS, 0, changed=False))
