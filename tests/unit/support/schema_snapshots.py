"""Snapshots of registries from a few words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_provider_kafka_migration.registry.model import Reference, RegisteredSchema, Schema, SchemaType
from airflow_provider_kafka_migration.schemas.plan_schemas import (
    PlanSettings,
    ids_to_ask,
    plan_schemas,
    target_names,
)
from airflow_provider_kafka_migration.schemas.selection import Selection
from airflow_provider_kafka_migration.schemas.snapshot import RegistrySnapshot, SubjectSnapshot, unread_id


def avro(name: str, *fields: str) -> str:
    """The text of an Avro record with int fields that have defaults."""
    return json.dumps(
        {"type": "record", "name": name, "fields": [{"name": each, "type": "int", "default": 0} for each in fields]}
    )


def registered(
    subject: str,
    version: int,
    id: int,
    text: str = '"string"',
    *,
    refs: Iterable[tuple[str, str, int]] = (),
    type: SchemaType = "AVRO",
    deleted: bool = False,
    metadata: Mapping[str, Any] | None = None,
    rule_set: Mapping[str, Any] | None = None,
) -> RegisteredSchema:
    """A version of a subject."""
    schema = Schema(type, text, tuple(Reference(*item) for item in refs), dict(metadata or {}), dict(rule_set or {}))
    return RegisteredSchema(subject, version, id, schema, deleted=deleted)


def snapshot(
    *items: RegisteredSchema,
    kind: str = "confluent",
    configs: Mapping[str, dict[str, Any]] | None = None,
    modes: Mapping[str, str] | None = None,
    references: Iterable[str] = (),
    contexts: Iterable[str] = (".",),
    **others: Any,
) -> RegistrySnapshot:
    """A snapshot; levels and modes by scope, as the registry's API names scopes."""
    configs, modes = dict(configs or {}), dict(modes or {})
    names = {item.subject for item in items} | {
        scope for scope in {*configs, *modes} if scope and not (scope.startswith(":") and scope.endswith(":"))
    }
    versions: dict[str, list[RegisteredSchema]] = {name: [] for name in sorted(names)}
    for item in sorted(items, key=lambda item: item.version):
        versions[item.subject].append(item)
    subjects = {
        name: SubjectSnapshot(
            name,
            tuple(found),
            configs.get(name),
            modes.get(name),
            name in references,
        )
        for name, found in versions.items()
    }
    return RegistrySnapshot(
        kind=kind,
        contexts=list(contexts),
        subjects=subjects,
        global_config=configs.get("", {"compatibilityLevel": "BACKWARD"}),
        global_mode=modes.get("", "READWRITE"),
        context_configs={scope.strip(":"): value for scope, value in configs.items() if scope.endswith(":")},
        context_modes={scope.strip(":"): value for scope, value in modes.items() if scope.endswith(":")},
        **others,
    )


def answered(source: RegistrySnapshot, target: RegistrySnapshot, selection: Selection) -> RegistrySnapshot:
    """The target, as if it had been asked for all ids of a plan: it has none of those that it does not show."""
    shown = target.by_id()
    for pair in ids_to_ask(source, target, selection):
        if pair not in shown and unread_id(*pair) not in target.unread:
            target.ids.setdefault(pair, None)
    return target


def plan_of(source: RegistrySnapshot, target: RegistrySnapshot | None = None, **settings: Any) -> Any:
    """The plan of two snapshots."""
    selection = settings.pop("selection", Selection())
    there = answered(source, target or snapshot(), selection)
    assert target_names(source, selection) is not None
    return plan_schemas("m", source, there, PlanSettings(selection, **settings))
