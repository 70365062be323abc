"""The source's schema registry during a freeze: read-only if the spec says so, and its own modes once it is lifted.

``schemas.source_registry: readonly`` keeps anybody from registering a schema on the source that the target would never
get. After READY_FOR_CLIENT_SWITCH the registry stays read-only. A freeze that is lifted and a rollback give it back the
modes that it had, which are journaled before they are changed. A registry that cannot be reached then never keeps
producers stopped: the journal and the log name what a person has to do, and the tail tries again.
"""

from __future__ import annotations

import logging
from contextlib import closing
from typing import TYPE_CHECKING, Any

from airflow_provider_kafka_migration.errors import FreezeFailed, MigrationError
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.freeze_attempt import HANDS_OFF
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.registry_settings import (
    OpenSetting,
    journal_restored,
    journal_setting,
    scope_name,
)
from airflow_provider_kafka_migration.spec import MigrationSpec

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.registry.client import Registry

log = logging.getLogger(__name__)

PHASE = "cutover"
READONLY = "READONLY"
#: Modes in which nobody can register anything.
_CLOSED = frozenset({READONLY, "READONLY_OVERRIDE"})
#: A longer list of commands is truncated; the journal has all scopes.
_MAX_SCOPES = 20


def is_wanted(spec: MigrationSpec) -> bool:
    """Whether the source registry is to become read-only at the freeze."""
    return bool(spec.schemas.source) and spec.schemas.source_registry == "readonly"


def check_reachable(context: PhaseContext) -> None:
    """Check before producers are stopped that the source registry answers and has modes.

    :raises MigrationError: it does not, so a freeze could only fail.
    """
    if not is_wanted(context.spec):
        return
    with closing(context.registry("source")) as registry:
        registry.mode(None)


def make_readonly(context: PhaseContext) -> dict[str, Any]:
    """Make the source registry refuse new schemas, if the spec says so; return details for the journal. Idempotent.

    :raises FreezeFailed: the registry has accepted the mode, but does not have it.
    :raises MigrationError: the registry cannot be reached or refuses.
    """
    if not is_wanted(context.spec):
        return {}
    record = context.record
    with closing(context.registry("source")) as registry:
        open_settings = record.open_registry_settings("source")
        former = {
            scope: mode
            for scope in _scopes(record)
            if scope not in open_settings and (mode := registry.mode(scope or None)) not in _CLOSED
        }
        if former:
            reason = "the source registry becomes read-only for the freeze"
            journal_setting(context.journal, "source", "mode", former, READONLY, reason=reason)
        for scope in sorted({*open_settings, *former}):
            if registry.mode(scope or None) not in _CLOSED:
                registry.set_mode(scope or None, READONLY)
        mode = registry.mode(None)
    if mode not in _CLOSED:
        raise FreezeFailed(
            f"the source registry has accepted the mode {READONLY}, but reports {mode or 'none'}",
            where=context.where(PHASE, path="schemas.source_registry"),
            next_step="this registry does not enforce modes: set schemas.source_registry: leave, and keep people from "
            "registering schemas during the cutover",
        )
    return {"source_registry": {"mode": mode, "scopes": sorted({*open_settings, *former})}}


def _scopes(record: MigrationRecord) -> list[str]:
    """Return the whole registry, and what has a mode of its own, which takes precedence, as the plan has read it."""
    plan = record.schema_plan()
    if plan is None:
        return [""]
    contexts = [f":{name}:" for name, mode in sorted(plan.context_modes.items()) if mode and name != "."]
    subjects = [item.subject for item in plan.subjects if item.mode]
    return ["", *contexts, *subjects]


def put_back(context: PhaseContext) -> dict[str, Any]:
    """Give the source registry the modes that it had before the freeze; return details for the journal. Idempotent.

    :raises MigrationError: the registry cannot be reached or refuses; the error says what a person has to do.
    """
    changed = context.record.open_registry_settings("source")
    if not changed:
        return {}
    try:
        with closing(context.registry("source")) as registry:
            left = {
                scope: mode
                for scope, setting in changed.items()
                if (mode := _restored(registry, setting)) is not None
            }  # fmt: skip
    except HANDS_OFF:
        raise
    except MigrationError as error:
        error.add_next_step(by_hand(changed))
        raise
    reason = "the source registry accepts new schemas again"
    journal_restored(context.journal, "source", "mode", list(changed), left, reason=reason)
    return {"source_registry": {"restored": sorted(changed), **({"left": left} if left else {})}}


def _restored(registry: Registry, setting: OpenSetting) -> str | None:
    """Put one mode back; return the mode that somebody else has set in the meantime, which stays."""
    present = registry.mode(setting.scope or None)
    if present == setting.former:
        return None
    if present != setting.wanted:
        return present
    if setting.former is not None:
        registry.set_mode(setting.scope or None, setting.former)
    elif setting.scope:
        registry.delete_mode(setting.scope)
    else:
        # The whole registry always has a mode; without one of its own it accepts schemas.
        registry.set_mode(None, "READWRITE")
    return None


def put_back_or_name(context: PhaseContext, attempt_key: str) -> dict[str, Any]:
    """Call :func:`put_back` after producers are free; a failure is journaled and logged and stops nothing."""
    try:
        return put_back(context)
    except HANDS_OFF:
        raise
    except MigrationError as error:
        log.warning("The source registry stays read-only: %s", error)
        _journal_readonly(context, attempt_key, error)
        return {"source_registry": {"still_readonly": error.as_dict()}}


def _journal_readonly(context: PhaseContext, attempt_key: str, error: MigrationError) -> None:
    details = {"error": error.as_dict()}
    try:
        context.journal.step(steps.SOURCE_REGISTRY_READONLY, key=attempt_key, details=details, reason=error.what)
    except HANDS_OFF:
        raise
    except MigrationError as second:
        log.warning("That the source registry stays read-only could not be journaled: %s", second)


def by_hand(changed: dict[str, OpenSetting]) -> str:
    """Return a sentence for a person who has to give the source registry its modes again."""
    requests = [
        f"{scope_name(scope)}: " + (f"PUT mode {item.former}" if item.former or not scope else "DELETE its mode")
        for scope, item in sorted(changed.items())
    ]
    shown = "; ".join(request.replace("PUT mode None", "PUT mode READWRITE") for request in requests[:_MAX_SCOPES])
    more = f"; and {len(requests) - _MAX_SCOPES} more, in the journal" if len(requests) > _MAX_SCOPES else ""
    return (
        f"the source registry refuses new schemas (mode {READONLY}) until somebody puts its modes back: {shown}{more}. "
        "The tail and a rollback try it again by themselves"
    )
