"""Give the target the compatibility levels and modes that the source has set explicitly: they stay there for good.

Former values are journaled before they are replaced. A level or mode that only the target has set stays, and so does
one that the plan has named as a conflict.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_kafka_migration.documents.schemas import SchemaPlan
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.registry_settings import SCOPES_PER_ENTRY, Kind
from airflow_provider_kafka_migration.registry.model import DEFAULT_CONTEXT
from airflow_provider_kafka_migration.schemas.apply import Applied
from airflow_provider_kafka_migration.schemas.modes import REGISTRY, has_values
from airflow_provider_kafka_migration.schemas.parallel import collect
from airflow_provider_kafka_migration.schemas.selection import Selection
from airflow_provider_kafka_migration.schemas.snapshot import RegistrySnapshot

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.registry.client import Registry


def copy_levels(
    record: MigrationRecord,
    target: Registry,
    plan: SchemaPlan,
    present: RegistrySnapshot,
    selection: Selection,
    applied: Applied,
    *,
    parallel: int,
) -> None:
    """Set what differs; note what was set, and what the registry refused, in ``applied``.

    :raises ClaimLost: another owner has taken over; nothing is set.
    """
    kinds: list[tuple[Kind, dict[str, Any], dict[str, Any]]] = [
        ("config", _configs(plan, selection), _present_configs(present)),
        ("mode", _modes(plan, selection), _present_modes(present)),
    ]
    for kind, wanted, found in kinds:
        kept = plan.kept_configs if kind == "config" else plan.kept_modes
        todo = {
            scope: value
            for scope, value in wanted.items()
            if scope not in kept and not has_values(kind, found.get(scope), value)
        }
        if not todo:
            continue
        _journal(record, kind, todo, found)

        def write(item: tuple[str, Any], kind: Kind = kind) -> None:
            scope, value = item
            if kind == "config":
                target.set_config(scope or None, value)
            else:
                target.set_mode(scope or None, value, force=value == "IMPORT")

        done, failed = collect(write, {scope: (scope, value) for scope, value in todo.items()}, parallel)
        applied.configs += len(done) if kind == "config" else 0
        applied.modes += len(done) if kind == "mode" else 0
        for scope, error in sorted(failed.items()):
            applied.fail(scope, 0, error)


def _journal(record: MigrationRecord, kind: Kind, todo: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    record.journal.check_holds()
    scopes = sorted(todo)
    for at in range(0, len(scopes), SCOPES_PER_ENTRY):
        batch = scopes[at : at + SCOPES_PER_ENTRY]
        details = {
            "kind": kind,
            "former": {scope: found.get(scope) for scope in batch},
            "wanted": {scope: todo[scope] for scope in batch},
        }
        noun = "compatibility levels" if kind == "config" else "modes"
        record.journal.step(
            steps.SCHEMA_LEVELS_COPIED, details=details, reason=f"target registry: {len(batch)} {noun} of the source"
        )


def _configs(plan: SchemaPlan, selection: Selection) -> dict[str, Any]:
    wanted: dict[str, Any] = {
        item.target_subject: item.config for item in plan.subjects if item.config and _is_there(item)
    }
    for context, config in plan.context_configs.items():
        wanted[_scope(selection.target_context(context))] = config
    if plan.global_config:
        wanted[REGISTRY] = plan.global_config
    return wanted


def _modes(plan: SchemaPlan, selection: Selection) -> dict[str, Any]:
    wanted: dict[str, Any] = {item.target_subject: item.mode for item in plan.subjects if item.mode and _is_there(item)}
    for context, mode in plan.context_modes.items():
        wanted[_scope(selection.target_context(context))] = mode
    if plan.global_mode:
        wanted[REGISTRY] = plan.global_mode
    return wanted


def _is_there(item: Any) -> bool:
    """Whether a subject is on the target: not if a conflict keeps all of its versions away."""
    return any(version.action != "conflict" for version in item.versions)


def _scope(context: str) -> str:
    return REGISTRY if context == DEFAULT_CONTEXT else f":{context}:"


def _present_configs(present: RegistrySnapshot) -> dict[str, Any]:
    found: dict[str, Any] = {name: item.config for name, item in present.subjects.items()}
    found |= {f":{context}:": config for context, config in present.context_configs.items()}
    return {**found, REGISTRY: present.global_config}


def _present_modes(present: RegistrySnapshot) -> dict[str, Any]:
    found: dict[str, Any] = {name: item.mode for name, item in present.subjects.items()}
    found |= {f":{context}:": mode for context, mode in present.context_modes.items()}
    return {**found, REGISTRY: present.global_mode}
