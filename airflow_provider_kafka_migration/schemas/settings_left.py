"""Put back, outside of a pass, what passes have changed on the target registry for a while; name what is not back.

A pass puts back what it has changed. But it may be killed as the last one, and a request of a process that was killed
or has lost the claim may reach the registry after everything was put back.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

from airflow_provider_kafka_migration.documents.schemas import SchemaPlan, SchemaSettingLeft
from airflow_provider_kafka_migration.errors import MigrationError, SchemaSettingsNotRestored, Transient
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.registry_settings import (
    Kind,
    Role,
    first_formers,
    open_settings,
)
from airflow_provider_kafka_migration.registry.model import Subject
from airflow_provider_kafka_migration.schemas.modes import IMPORT, REGISTRY, TemporarySettings, scope_of_context
from airflow_provider_kafka_migration.schemas.parallel import ENDS_RUN, collect
from airflow_provider_kafka_migration.schemas.sync import selection_of

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.registry.client import Registry

log = logging.getLogger(__name__)

_KINDS: Mapping[Kind, str] = {"mode": "mode", "config": "compatibility level"}
_CLEAR = "correct what the registry answers or set it by hand, then clear validate"


def has_open(record: MigrationRecord, role: Role) -> bool:
    """Whether the journal has modes or levels of a registry that are still to be put back, as far as it was read."""
    return any(open_settings(record.journal, role, kind) for kind in _KINDS)


def put_back_target(context: PhaseContext) -> int:
    """Put back what the journal has open for the target registry; return the number of scopes.

    :raises SchemaSettingsNotRestored: the registry does not return to a former value; the error lists the scopes.
    :raises ClaimLost: another owner has taken over, and puts these back itself.
    """
    record = context.record
    record.journal.refresh()
    if not has_open(record, "target"):
        return 0
    with closing(context.registry("target")) as registry:
        return TemporarySettings(record, registry, "target").restore_open()


def try_to_put_back_target(context: PhaseContext) -> None:
    """Call :func:`put_back_target`; a registry that does not answer is only logged, because the validation checks it.

    :raises ClaimLost: another owner has taken over.
    """
    try:
        put_back_target(context)
    except ENDS_RUN:
        raise
    except MigrationError as error:
        log.warning("Settings of the target registry are not back; a later task tries again: %s", error)


def find_settings_left(context: PhaseContext, target: Registry, plan: SchemaPlan) -> list[SchemaSettingLeft]:
    """Put back what is open on the target registry, and return what is not as it should be afterwards.

    That is what could not be put back, and mode IMPORT of the registry or of a context that the plan does not want.
    The comparison of the registries covers the modes and levels of subjects.

    :raises MigrationError: the registry does not answer.
    :raises ClaimLost: another owner has taken over.
    """
    record = context.record
    record.journal.refresh()
    why: Mapping[str, Any] = {}
    try:
        TemporarySettings(record, target, "target").restore_open()
    except SchemaSettingsNotRestored as error:
        why = error.details.get("scopes", {})
    found = [
        SchemaSettingLeft(
            scope=scope,
            what=f"its {name} was changed for a while and could not be put back: {why.get(scope, {}).get('what', '')}; "
            f"{_CLEAR}",
        )
        for kind, name in _KINDS.items()
        for scope in open_settings(record.journal, "target", kind)
    ]
    return found + _import_modes(record, target, plan, {item.scope for item in found})


def _import_modes(
    record: MigrationRecord, target: Registry, plan: SchemaPlan, known: set[str]
) -> list[SchemaSettingLeft]:
    contexts = {scope_of_context(Subject.parse(item.target_subject).context) for item in plan.subjects}
    formers = first_formers(record.journal, "target", "mode")
    wanted = _wanted(record, plan)
    scopes = {scope: scope for scope in sorted({REGISTRY, *contexts}) if wanted.get(scope) != IMPORT}
    modes, failed = collect(lambda scope: (target.mode(scope or None),), scopes, 4)
    for error in failed.values():
        # A mode that may not be read is a finding of the comparison.
        if isinstance(error, Transient):
            raise error
    found = []
    for scope, (mode,) in modes.items():
        if mode != IMPORT or scope in known:
            continue
        ours = scope in formers and formers[scope] != IMPORT
        who = "since the migration changed it for a while" if ours else "which the migration has not set"
        former = formers.get(scope) or ("none of its own" if scope else "READWRITE")
        found.append(
            SchemaSettingLeft(
                scope=scope,
                what=f"its mode is {IMPORT}, {who}: clients cannot register schemas there. Set it by hand"
                + (f" (before, it was {former}), then clear validate" if ours else ""),
                by_migration=ours,
            )
        )
    return found


def _wanted(record: MigrationRecord, plan: SchemaPlan) -> dict[str, str]:
    """The modes that the plan gives to contexts and to the registry, by scope."""
    selection = selection_of(record)
    found = {scope_of_context(selection.target_context(name)): mode for name, mode in plan.context_modes.items()}
    return {**found, REGISTRY: plan.global_mode} if plan.global_mode else found
