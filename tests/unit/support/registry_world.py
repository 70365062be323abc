"""Two fake registries, and a migration between them, for tests of what copies schemas."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
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
from airflow_provider_kafka_migration.state import FORWARD, State
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
    return Registry(RegistryAccess.from_dict({"url": registry.url}, timeout_seconds=20, retry_seconds=1), role)


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
def world(
    folder: Path,
    *,
    kind: Any = "confluent",
    source_kind: Any = "confluent",
    state: State = State.TAIL,
    **schemas: Any,
) -> Iterator[World]:
    """Two registries, and a migration whose section ``schemas`` has these settings.

    :param kind: of the target registry.
    """
    with FakeRegistry(source_kind) as one, FakeRegistry(kind) as other:
        section = {"source": "env:SOURCE_REGISTRY", "target": "env:TARGET_REGISTRY", **schemas}
        context = make_context(folder, state=state, schemas=section)
        yield World(one, other, context)


# -- kills ------------------------------------------------------------------------------------------------------------

_WRITES = ("register", "delete_version", "delete_subject", "set_config", "delete_config", "set_mode", "delete_mode")
_STORE_WRITES = ("put", "put_new", "put_locked")


class Killed(BaseException):
    """Nothing that a killed process would not do either may follow it."""


class Gate:
    """Lets a process write to the target registry and the journal store until it is killed before a certain write.

    :param kill_before: number of the write, from 0; None: never.
    :param kill: what happens then; afterwards nothing is written any more.
    """

    def __init__(self, kill_before: int | None, kill: Callable[[], None] | None = None) -> None:
        self.writes = 0
        self.log: list[str] = []
        self._kill_before = kill_before
        self._kill = kill
        self._dead = False

    def guard(self, target: object, names: tuple[str, ...]) -> None:
        """Count and guard methods of one object."""
        for name in names:
            setattr(target, name, self._guarded(f"{type(target).__name__}.{name}", getattr(target, name)))

    def guard_requests(self, registry: Registry) -> None:
        """Count and guard all requests of a client that may write, lookups included."""
        rest: Any = registry._rest
        ask = rest._until_answered

        def until_answered(addresses: list[str], request: Any) -> Any:
            if request.method == "GET":
                return ask(addresses, request)
            return self._guarded(f"{request.method}", lambda url: ask(addresses, request))(addresses[0])

        rest._until_answered = until_answered

    def _guarded(self, label: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **options: Any) -> Any:
            if self.writes == self._kill_before:
                self._dead = True
                if self._kill is not None:
                    self._kill()
            if self._dead:
                raise Killed(label)
            self.writes += 1
            self.log.append(f"{label} {args[:2] if label.startswith('Registry') else args[0]}")
            return call(*args, **options)

        return guarded


def run_gated(folder: Path, source: Registry, target: Registry, gate: Gate, schemas: dict[str, Any]) -> SchemasResult:
    """One pass of a process of its own: it opens the journal afresh, and the gate counts its writes."""
    context = make_context(folder, state=FORWARD[0], schemas=schemas)
    gate.guard(target, _WRITES)
    gate.guard(context.journal_store, _STORE_WRITES)
    with RegistryPair(source, target) as pair:
        return synchronize(context, pair, reason="schemas")
