"""The source's schema registry during a freeze: read-only if the spec says so, and its own modes once it is lifted.

``schemas.source_registry: readonly`` keeps anybody from registering a schema on the source that the target would never
get. After READY_FOR_CLIENT_SWITCH the registry stays read-only. A freeze that is lifted and a rollback give it back the
modes that it had, which are journaled before they are changed. A registry that cannot be reached then never keeps
producers stopped: the journal and the log name what a person has to do, and the tail tries again.
"""

from __future__ import annotations

import logging
from contextlib import closing
from typing import Any

from airflow_provider_kafka_migration.errors import HANDS_OFF, FreezeFailed, MigrationError
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.changes import SENDING_SECONDS, Changes
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.registry_settings import OpenSetting, scope_name
from airflow_provider_kafka_migration.schemas.modes import (
    READONLY,
    TemporarySettings,
    make_source_readonly,
    restore_source,
)
from airflow_provider_kafka_migration.spec import MigrationSpec

log = logging.getLogger(__name__)

PHASE = "cutover"
#: Modes in which nobody can register anything.
_CLOSED = frozenset({READONLY, "READONLY_OVERRIDE"})
_LEAVE = "set schemas.source_registry: leave, and keep people from registering schemas on the source during the cutover"
#: A longer list of requests is truncated; the journal has all scopes.
_MAX_SCOPES = 20


def is_wanted(spec: MigrationSpec) -> bool:
    """Whether the source registry is to become read-only at the freeze."""
    return bool(spec.schemas.source) and spec.schemas.source_registry == "readonly"


def check_before_freeze(context: PhaseContext) -> None:
    """Check, before any producer is stopped, that the migration may set modes on the source registry, if it has to.

    The registry gets the mode that it has, which changes nothing.

    :raises FreezeFailed: the registry has no modes.
    :raises MigrationError: it cannot be reached, or refuses.
    """
    if not is_wanted(context.spec):
        return
    with closing(context.registry("source")) as registry:
        mode = registry.mode(None)
        if mode is None:
            raise FreezeFailed(
                "the source registry has no modes, so it cannot become read-only",
                where=context.where(PHASE, path="schemas.source_registry"),
                next_step=_LEAVE,
            )
        try:
            registry.set_mode(None, mode)
        except MigrationError as error:
            error.add_next_step(f"or: {_LEAVE}")
            raise


def make_readonly(context: PhaseContext, changes: Changes) -> dict[str, Any]:
    """Make the source registry refuse new schemas, if the spec says so; return details for the journal. Idempotent.

    :param changes: those of the attempt to freeze: a mode that is set too late is put back.
    :raises FreezeFailed: the registry has accepted the mode, but does not have it.
    :raises MigrationError: the registry cannot be reached or refuses.
    """
    if not is_wanted(context.spec):
        return {}
    record = context.record
    with closing(context.registry("source")) as registry:
        settings = TemporarySettings(record, registry, "source")
        seconds = SENDING_SECONDS + registry.timeout_seconds
        with changes.making("source registry", seconds, settings.take_back, registry):
            scopes = make_source_readonly(settings, _own_modes(record))
        mode = registry.mode(None)
    if mode not in _CLOSED:
        raise FreezeFailed(
            f"the source registry has accepted the mode {READONLY}, but reports {mode or 'none'}",
            where=context.where(PHASE, path="schemas.source_registry"),
            next_step=f"this registry does not enforce modes: {_LEAVE}",
        )
    return {"source_registry": {"mode": mode, "scopes": scopes}}


def _own_modes(record: MigrationRecord) -> dict[str, str | None]:
    """Return what has a mode of its own, which takes precedence over the registry's, as the plan has read it."""
    plan = record.schema_plan()
    if plan is None:
        return {}
    contexts = {f":{name}:": mode for name, mode in plan.context_modes.items() if name != "."}
    return {**contexts, **{item.subject: item.mode for item in plan.subjects if item.mode}}


def put_back(context: PhaseContext) -> dict[str, Any]:
    """Give the source registry the modes that it had before the freeze; return details for the journal. Idempotent.

    :raises MigrationError: the registry cannot be reached or refuses; the error says what a person has to do.
    """
    changed = context.record.open_registry_settings("source")
    if not changed:
        return {}
    try:
        with closing(context.registry("source")) as registry:
            restore_source(context.record, registry)
    except HANDS_OFF:
        raise
    except MigrationError as error:
        error.add_next_step(by_hand(changed))
        raise
    return {"source_registry": {"restored": sorted(changed)}}


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
    requests = [f"{scope_name(scope)}: {_request(scope, item)}" for scope, item in sorted(changed.items())]
    more = f"; and {len(requests) - _MAX_SCOPES} more, in the journal" if len(requests) > _MAX_SCOPES else ""
    return (
        f"the source registry refuses new schemas (mode {READONLY}) until its modes are back. The tail and a rollback "
        f"put them back by themselves once it answers; by hand: {'; '.join(requests[:_MAX_SCOPES])}{more}"
    )


def _request(scope: str, item: OpenSetting) -> str:
    if item.former is None and scope:
        return "DELETE its mode"
    return f"PUT mode {item.former or 'READWRITE'}"
