"""Settings of a schema registry that the migration changes for a while: the modes and levels that are still to go back.

A change is journaled before it is made, with the value that the scope had, and journaled again once that value is back.
What the journal has open after a kill is therefore all that the next run has to put back.

A scope is written as the registry's API names it: empty for the whole registry, ``:.payments:`` for a context, or the
qualified name of a subject. One entry may hold hundreds of scopes: an entry for each of 5,000 subjects would take
longer than copying them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from airflow_provider_kafka_migration.record import steps

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.documents.journal import JournalEntry
    from airflow_provider_kafka_migration.journal.journal import Journal

Role = Literal["source", "target"]
#: ``mode``: a string; ``config``: a mapping as GET /config returns it.
Kind = Literal["mode", "config"]

_STEPS: Mapping[Kind, tuple[str, str]] = {
    "mode": (steps.SCHEMA_MODE_SETTING, steps.SCHEMA_MODE_RESTORED),
    "config": (steps.SCHEMA_LEVEL_SETTING, steps.SCHEMA_LEVEL_RESTORED),
}
#: Scopes in one journal entry.
SCOPES_PER_ENTRY = 500


@dataclass(frozen=True)
class OpenSetting:
    """A setting that the migration has changed, or was about to change, and has not put back.

    :param former: the value that the scope had of its own; None: it had none.
    """

    kind: Kind
    scope: str
    former: Any
    wanted: Any


def open_settings(journal: Journal, role: Role, kind: Kind) -> dict[str, OpenSetting]:
    """Return what is to be put back on a registry, by scope, in the order in which it was changed.

    The entries known to the journal object count; refresh it first if other processes may have written.
    """
    setting, restored = _STEPS[kind]
    found: dict[str, OpenSetting] = {}
    for entry in journal.steps():
        if entry.step not in (setting, restored) or entry.details.get("registry") != role:
            continue
        if entry.step == restored:
            for scope in entry.details["scopes"]:
                found.pop(scope, None)
            continue
        for scope, former in entry.details["former"].items():
            # The first value counts: a second change of the same scope has read what the first one set.
            found.setdefault(scope, OpenSetting(kind, scope, former, entry.details["wanted"]))
    return found


def first_formers(journal: Journal, role: Role, kind: Kind) -> dict[str, Any]:
    """Return, by scope, the values that a registry had before the migration changed them for the first time."""
    found: dict[str, Any] = {}
    for entry in journal.steps(_STEPS[kind][0]):
        if entry.details.get("registry") == role:
            for scope, former in entry.details["former"].items():
                found.setdefault(scope, former)
    return found


def journal_setting(
    journal: Journal, role: Role, kind: Kind, former: Mapping[str, Any], wanted: Any, *, reason: str
) -> None:
    """Journal that scopes are about to get a setting.

    :param former: scope to the value that it has of its own, or None.
    :raises ClaimLost: this journal does not hold the migration; nothing may be set.
    """
    for scopes in _batches(former):
        details = {"registry": role, "wanted": wanted, "former": {scope: former[scope] for scope in scopes}}
        journal.step(_STEPS[kind][0], key=_key(scopes), details=details, reason=f"{reason}: {_names(scopes)}")


def journal_restored(
    journal: Journal, role: Role, kind: Kind, scopes: Iterable[str], left: Mapping[str, Any], *, reason: str
) -> None:
    """Journal that scopes have their former values again.

    :param left: scopes with a value that somebody else has set in the meantime; it stays.
    """
    for batch in _batches(scopes):
        details: dict[str, Any] = {"registry": role, "scopes": batch}
        others = {scope: left[scope] for scope in batch if scope in left}
        if others:
            details["left"] = others
        journal.step(_STEPS[kind][1], key=_key(batch), details=details, reason=f"{reason}: {_names(batch)}")


def changed_for_a_while(journal: Journal, role: Role) -> list[JournalEntry]:
    """Return all entries about modes and levels of a registry, for evidence."""
    names = {name for pair in _STEPS.values() for name in pair}
    return [entry for entry in journal.steps() if entry.step in names and entry.details.get("registry") == role]


def _batches(scopes: Iterable[str]) -> list[list[str]]:
    everything = sorted(scopes)
    return [everything[at : at + SCOPES_PER_ENTRY] for at in range(0, len(everything), SCOPES_PER_ENTRY)]


def _key(scopes: list[str]) -> str | None:
    """The scope itself; several in one entry have no key."""
    return scopes[0] if len(scopes) == 1 else None


def _names(scopes: list[str]) -> str:
    first = scope_name(scopes[0])
    return first if len(scopes) == 1 else f"{len(scopes)} scopes, the first is {first}"


def scope_name(scope: str) -> str:
    """Return a scope as people read it.

    >>> scope_name(""), scope_name(":.payments:"), scope_name("orders-value")
    ('the whole registry', 'context .payments', 'subject orders-value')
    """
    if not scope:
        return "the whole registry"
    if scope.startswith(":") and scope.endswith(":") and scope.count(":") == 2:
        return f"context {scope.strip(':')}"
    return f"subject {scope}"
