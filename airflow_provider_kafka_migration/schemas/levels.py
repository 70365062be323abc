"""Give the target the compatibility levels and modes that the source has set explicitly: they stay there for good.

Former values are journaled before they are replaced. A level or mode that only the target has set stays, and so does
one that the plan has named as a conflict.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_kafka_migration.documents.schemas import SchemaConflict, SchemaPlan
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.registry_settings import SCOPES_PER_ENTRY, Kind, scope_name
from airflow_provider_kafka_migration.registry.model import DEFAULT_CONTEXT, Reference, Subject
from airflow_provider_kafka_migration.schemas.apply import Applied
from airflow_provider_kafka_migration.schemas.content import qualified_reference, reference_subject
from airflow_provider_kafka_migration.schemas.modes import REGISTRY, has_values
from airflow_provider_kafka_migration.schemas.parallel import collect
from airflow_provider_kafka_migration.schemas.selection import Selection
from airflow_provider_kafka_migration.schemas.snapshot import (
    RegistrySnapshot,
    SubjectSnapshot,
    unread_config,
    unread_mode,
)
from airflow_provider_kafka_migration.schemas.written import Written

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.registry.client import Registry


def planned_config(found: SubjectSnapshot, selection: Selection) -> dict[str, Any]:
    """Return the explicit level that the target gets; an alias follows the renamed subject. Empty: none."""
    config = dict(found.config or {})
    alias = config.get("alias")
    if isinstance(alias, str) and alias:
        qualified = qualified_reference(Reference("", alias, 0), Subject.parse(found.subject).context)
        target = selection.target_subject(qualified)
        config["alias"] = reference_subject(target, selection.target_subject(found.subject))
    return config


def has_own_scope(context: str, selection: Selection) -> bool:
    """Whether a context of the source has a level and mode of its own on the target: the default one has none."""
    return selection.target_context(context) != DEFAULT_CONTEXT


# -- what others have set ---------------------------------------------------------------------------------------------


_BASIC_LEVELS = ("BACKWARD", "FORWARD", "FULL")


class OwnLevels(NamedTuple):
    """Levels and modes of the target that are not the migration's to replace.

    :param configs: scopes of the target whose level is not to be written.
    :param modes: likewise for modes.
    """

    conflicts: list[SchemaConflict]
    configs: list[str]
    modes: list[str]


class _Wanted(NamedTuple):
    """A level or mode of the source, and what the target has in its place; None: nothing of its own."""

    kind: Kind
    source_scope: str
    scope: str
    value: Any
    found: Any


def own_levels(
    source: RegistrySnapshot,
    target: RegistrySnapshot,
    selection: Selection,
    targets: Mapping[str, str],
    placed: Container[tuple[str, int]],
    written: Written | None,
) -> OwnLevels:
    """Find levels and modes whose copy would replace those of others.

    A context must have no other subjects on the target, and no other value except one that this migration has set.
    A subject that has versions of its own there must have no such value. What could not be read is not written.

    :param targets: source subjects to target subjects.
    :param placed: target (subject, version) of all versions that are there or get there.
    :param written: what the target has from this migration; None: nothing yet.
    """
    own = OwnLevels([], [], [])
    for item in _wanted_levels(source, target, selection, targets):
        kept, unread = (own.configs, unread_config) if item.kind == "config" else (own.modes, unread_mode)
        if unread(item.scope) in target.unread:
            kept.append(item.scope)
            continue
        if has_values(item.kind, item.found, item.value):
            continue
        ours = written is not None and written.has_set(item.kind, item.scope, item.found)
        foreign = item.found is not None and not ours
        others: list[str] = []
        if Subject.parse(item.scope).name:
            has_versions = bool(source.subjects[item.source_scope].versions)
            foreign = foreign and (not has_versions or _has_more_versions(target, item.scope, placed))
        else:
            others = _others_in(target, Subject.parse(item.scope).context, targets, written)
        if foreign or others:
            kept.append(item.scope)
            own.conflicts.append(_conflict(item, others))
    return OwnLevels(own.conflicts, sorted(own.configs), sorted(own.modes))


def _wanted_levels(
    source: RegistrySnapshot, target: RegistrySnapshot, selection: Selection, targets: Mapping[str, str]
) -> Iterator[_Wanted]:
    for name, scope in sorted(targets.items()):
        here, there = source.subjects[name], target.subjects.get(scope)
        if config := planned_config(here, selection):
            yield _Wanted("config", name, scope, config, there.config if there else None)
        if here.mode:
            yield _Wanted("mode", name, scope, here.mode, there.mode if there else None)
    kinds: list[tuple[Kind, Mapping[str, Any], Mapping[str, Any]]] = [
        ("config", source.context_configs, target.context_configs),
        ("mode", source.context_modes, target.context_modes),
    ]
    for kind, values, present in kinds:
        for name, value in sorted(values.items()):
            context = selection.target_context(name)
            if has_own_scope(name, selection):
                yield _Wanted(kind, f":{name}:", f":{context}:", value, present.get(context))


def _has_more_versions(target: RegistrySnapshot, subject: str, placed: Container[tuple[str, int]]) -> bool:
    """Whether a subject of the target has live versions that the source does not have."""
    there = target.subjects.get(subject)
    return there is not None and any(
        not item.deleted and (subject, item.version) not in placed for item in there.versions
    )


def _others_in(
    target: RegistrySnapshot, context: str, targets: Mapping[str, str], written: Written | None
) -> list[str]:
    """Return the subjects of a context of the target that have nothing to do with this migration."""
    left_out = target.left_out.keys() - targets.values()
    names = [name for name in left_out if Subject.parse(name).context == context]
    if names and written is not None:
        names = [name for name in names if name not in written.subjects]
    return sorted(names)


def _conflict(item: _Wanted, others: Sequence[str]) -> SchemaConflict:
    here, there = _shown(item.kind, item.value), _shown(item.kind, item.found)
    if here == there:
        here, there = str(item.value), str(item.found)
    noun = "compatibility level" if item.kind == "config" else "mode"
    what = f"the {noun} of {scope_name(item.scope)} is {there} on the target, and the source has {here}; it stays"
    if others:
        what += f", because the target has {len(others)} other subjects there, the first is {others[0]}"
    return SchemaConflict(
        kind="level",
        subject=item.source_scope,
        target_subject=item.scope,
        what=f"{what}; give it the source's value if that is wanted",
    )


def _shown(kind: Kind, value: Any) -> str:
    return str((value or {}).get("compatibilityLevel") or "unset") if kind == "config" else str(value or "unset")


# -- copy -------------------------------------------------------------------------------------------------------------


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
    return not item.versions or any(version.action != "conflict" for version in item.versions)


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


# -- what applies -----------------------------------------------------------------------------------------------------


def effective_mode(snapshot: RegistrySnapshot, subject: str) -> tuple[str, str]:
    """Return the scope that decides the mode of a subject, and the mode."""
    if snapshot.global_mode == "READONLY_OVERRIDE":
        return "", snapshot.global_mode
    found = snapshot.subjects.get(subject)
    if found is not None and found.mode:
        return subject, found.mode
    context = Subject.parse(subject).context
    if context in snapshot.context_modes:
        return f":{context}:", snapshot.context_modes[context]
    return "", snapshot.global_mode or "READWRITE"


def level_of(snapshot: RegistrySnapshot, subject: str, explicit: Mapping[str, Any] | None) -> str:
    """Return the compatibility level that applies to a subject; ``explicit`` is one that it is going to get."""
    found = snapshot.subjects.get(subject)
    context = Subject.parse(subject).context
    for config in (explicit, found.config if found else None, snapshot.context_configs.get(context)):
        level = (config or {}).get("compatibilityLevel")
        if level:
            return str(level)
    return str((snapshot.global_config or {}).get("compatibilityLevel") or "BACKWARD")


def is_stricter(level: str, than: str) -> bool:
    """Whether a registry with ``level`` may refuse schemas that one with the level ``than`` accepts."""
    if level == "NONE" or level == than:
        return False
    kind, transitive = level.removesuffix("_TRANSITIVE"), level.endswith("_TRANSITIVE")
    other, other_transitive = than.removesuffix("_TRANSITIVE"), than.endswith("_TRANSITIVE")
    if other == "NONE" or kind not in _BASIC_LEVELS or other not in _BASIC_LEVELS:
        return True
    return (transitive and not other_transitive) or other not in (kind, "FULL")
