"""Two fake registries, and a migration between them, for tests of what copies schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phase_support import make_context

from airflow_provider_kafka_migration.documents.schemas import SchemaIdMap, SchemasResult
from airflow_provider_kafka_migration.record.context import PhaseContext, Progress
from airflow_provider_kafka_migration.registry.access import RegistryAccess
from airflow_provider_kafka_migration.registry.client import Registry
from airflow_provider_kafka_migration.schemas.open import RegistryPair
from airflow_provider_kafka_migration.schemas.sync import Reason, synchronize
from harness.fake_registry import FakeRegistry


def avro(name: str, *fields: str, kind: str = "int", **defaults: Any) -> str:
    """The text of an Avro record; fields are of type ``kind`` or ``name:Type``, and have a default if one is given."""
    made = []
    for item in fields:
        field_name, _, type_ = item.partition(":")
        made.append({"name": field_name, "type": type_ or kind, **_default(field_name, defaults)})
    return json.dumps({"type": "record", "name": name, "fields": made}, separators=(",", ":"))


def _default(name: str, defaults: dict[str, Any]) -> dict[str, Any]:
    return {"default": defaults[name]} if name in defaults else {}


def reference(name: str, subject: str, version: int = 1) -> dict[str, Any]:
    return {"name": name, "subject": subject, "version": version}


def client(registry: FakeRegistry, role: Any) -> Registry:
    """A client with short waits."""
    return Registry(RegistryAccess.from_dict({"url": registry.url}, timeout_seconds=5, retry_seconds=1), role)


@dataclass
class World:
    """Both registries and the migration.

    :param lines: progress.
    """

    source: FakeRegistry
    target: FakeRegistry
    context: PhaseContext
    lines: list[Progress] = field(default_factory=list)

    def pair(self) -> RegistryPair:
        return RegistryPair(client(self.source, "source"), client(self.target, "target"))

    def synchronize(self, reason: Reason = "schemas", pair: RegistryPair | None = None) -> SchemasResult:
        """One pass, by default with clients and caches of its own, as another process would run it."""
        if pair is not None:
            return synchronize(self.context, pair, reason=reason, progress=self.lines.append)
        with self.pair() as own:
            return synchronize(self.context, own, reason=reason, progress=self.lines.append)

    def id_map(self) -> SchemaIdMap:
        found = self.context.record.schema_id_map()
        assert found is not None
        return found

    def ids(self, context: str = ".") -> dict[int, int]:
        """Source ids to target ids of one context."""
        return {source: target for name, source, target in self.id_map().ids if name == context}

    def target_subjects(self) -> dict[str, dict[int, Any]]:
        return dict(self.target.state()["subjects"])

    def text(self, subject: str, version: int) -> str:
        """The text of a version on the target."""
        return str(self.target.store.subjects[subject][version].content.text)

    def steps(self) -> list[tuple[str | None, str | None]]:
        """Names and keys of all steps of the journal."""
        self.context.journal.refresh()
        return [(entry.step, entry.step_key) for entry in self.context.journal.steps()]


@contextmanager
def world(folder: Path, *, source: Any = "confluent", target: Any = "confluent", **schemas: Any) -> Iterator[World]:
    """Two registries, and a migration whose section ``schemas`` has these settings."""
    with FakeRegistry(source) as one, FakeRegistry(target) as other:
        section = {"source": "env:SOURCE_REGISTRY", "target": "env:TARGET_REGISTRY", **schemas}
        context = make_context(folder, schemas=section)
        yield World(one, other, context)
