"""Which fields of a spec may change during its migration, and the journal's record of the spec.

The fingerprint covers clusters and buckets. This module covers all other fields, by the table in
:mod:`~..spec.advice`: limits and timeouts may change at any time; fields that decide *what* is migrated and *how
offsets are kept* may change only before any cluster is touched.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

from airflow_provider_kafka_migration import plain_secrets
from airflow_provider_kafka_migration.documents.base import canonical_digest
from airflow_provider_kafka_migration.documents.journal import SPEC_CHANGED, SPEC_RECORDED, JournalEntry
from airflow_provider_kafka_migration.errors import DocumentUnreadable, FingerprintChanged, JournalConflict, Where
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.spec import OPTIONAL_SECTIONS
from airflow_provider_kafka_migration.spec.advice import may_change, may_grow, refused_change
from airflow_provider_kafka_migration.spec.conflicts import CONNECTIONS, SECRETS
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.verbs import verb_of

#: Fields that are mappings with free keys; they are compared as a whole.
MAPPINGS = frozenset(
    {"acls.users", "notifications.kwargs", "spark.conf", "spark.engine_args", "topics.rename.topics", "waive"}
    | {"schemas.contexts", "schemas.rename.subjects"}
)

#: Fields that must not hold a secret but may by mistake: their values are compared, but never stored.
_HASHED = frozenset({"notifications.kwargs", "spark.conf"})
_URL_WITH_MORE = re.compile(r"(?i)^[a-z][a-z0-9+.-]*://(?:[^/@]*@|[^?#]*[?#])")
_HASH = "sha256:"

#: Fields that may change from a plain value, once required, to a reference: presumably the same address.
_MAY_BECOME_REFERENCES = frozenset({"cutover.producer_freeze_webhook"})

_ATTEMPTS = 20


def guard_spec(journal: Journal, spec: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Compare a spec with the last one that the journal knows, and record it if it differs.

    The holder of the migration calls it at its start. In an ended migration it does nothing.

    :param spec: the spec as JSON data, all defaults applied.
    :returns: what changed, as ``{path: {"old": ..., "new": ...}}``; empty the first time.
    :raises FingerprintChanged: a field changed too late; the error names all such fields, and nothing is written.
    """
    journal.refresh()
    for _ in range(_ATTEMPTS):
        if journal.tip_state is None or journal.tip_state.is_terminal:
            return {}
        fields = flatten(spec)
        digest = canonical_digest(fields)
        last = last_spec(journal)
        changes = differences(last.details["fields"], fields) if last else {}
        if last is not None and not changes:
            return {}
        if last is None:
            entry = journal.step_once(SPEC_RECORDED, None, {"sha256": digest, "fields": fields}, reason="spec recorded")
        else:
            mattering = {path: changes[path] for path in changes if _matters(path, fields)}
            _refuse_late_changes(journal, mattering, fields, str(spec.get("kind", "migration")))
            details = {"sha256": digest, "fields": fields, "changes": changes}
            # Keyed by the entry it replaces: of several tasks with the same change, only one records it.
            entry = journal.step_once(SPEC_CHANGED, str(last.seq), details, reason=f"changed: {', '.join(changes)}")
        if entry.details["sha256"] == digest:
            return changes
    raise JournalConflict(
        "several tasks of this run use different specs",
        where=Where(migration_id=journal.migration_id),
        next_step="make sure that all tasks use the same spec, then clear them",
    )


def last_spec(journal: Journal) -> JournalEntry | None:
    """Return the entry that holds the spec in force, flat, in ``details["fields"]``."""
    return journal.find_step(SPEC_CHANGED) or journal.find_step(SPEC_RECORDED)


def flatten(spec: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Turn ``{"tail": {"slice_seconds": 20}}`` into ``{"tail.slice_seconds": 20}``; keep lists and :data:`MAPPINGS`."""
    flat: dict[str, Any] = {}
    for key in sorted(spec):
        path = f"{above}.{key}" if above else key
        value = spec[key]
        if isinstance(value, Mapping) and path not in MAPPINGS:
            flat |= flatten(value, path)
        else:
            flat[path] = _kept(path, value)
    return flat


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the fields that differ.

    All fields are always present, with their defaults. So a field that only one side has was added or removed by a
    release: nobody changed it, and an upgrade must not stop a migration. The same holds for a release that hashes more
    than before: values that an earlier one stored in plain are hashed here, so that no error, log or new entry repeats
    them. A former word of a verb is the verb.
    """
    kept = {path: _hashed_now(path, old[path]) for path in old.keys() & new.keys()}
    changed = {path: {"old": kept[path], "new": new[path]} for path in kept if new[path] != kept[path]}
    for section in OPTIONAL_SECTIONS:
        # Whole sections appear and vanish by a person's hand only: no release adds one by itself.
        before, after = _has_section(old, section), _has_section(new, section)
        if before != after:
            changed[section] = {"old": "present" if before else None, "new": "present" if after else None}
    return dict(sorted(changed.items()))


def _has_section(fields: Mapping[str, Any], section: str) -> bool:
    return any(path.startswith(f"{section}.") for path in fields)


def _kept(path: str, value: Any) -> Any:
    """Return the value as it is journaled: a hash replaces a value that may hold a secret."""
    is_risky = path in _HASHED or (isinstance(value, str) and (_is_risky_address(value) or _is_secret(path, value)))
    return f"{_HASH}{canonical_digest(value)[:16]}" if is_risky and value is not None else value


def _hashed_now(path: str, recorded: Any) -> Any:
    """Return a journaled value as this version would store it; a hash stays unchanged."""
    is_hash = isinstance(recorded, str) and recorded.startswith(_HASH)
    return recorded if is_hash else _kept(path, verb_of(path, recorded))


def _is_secret(path: str, value: str) -> bool:
    """Return whether a field for a reference holds what an earlier version accepted and may be the secret itself."""
    if path in SECRETS and any(plain_secrets.in_secret(path, value)):
        return True
    return path in CONNECTIONS and any(plain_secrets.in_connection(path, value))


def _is_risky_address(text: str) -> bool:
    if _URL_WITH_MORE.match(text):
        return True
    return plain_secrets.is_address(text) and bool(plain_secrets.why_no_plain_address(text))


def _is_demanded(path: str, change: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    """Return whether an earlier version accepted the old value, and this one refuses each spec that has it."""
    if path == "acls.policy":
        # With IAM it did pass where the source has no ACLs; then no value creates or removes any.
        return change["old"] == "refuse" and fields.get("acls.target_auth") == "iam"
    return _became_reference(path, change)


def _became_reference(path: str, change: Mapping[str, Any]) -> bool:
    """Return whether a plain address, accepted by an earlier version and refused now, was replaced by a reference."""
    return (
        path in _MAY_BECOME_REFERENCES
        and str(change["old"]).startswith(_HASH)
        and plain_secrets.is_reference(str(change["new"]))
    )


def _matters(path: str, fields: Mapping[str, Any]) -> bool:
    """Whether a field decides anything. An opposite flow that comes or goes changes ``two_way`` in ``mirrors.yaml``."""
    return path != "mirror.two_way" or fields.get("mirror.naming") == "identity"


def _only_grows(path: str, change: Mapping[str, Any], working: State) -> bool:
    """Return whether a list has only grown, or a value was added where none was, in a state in which it still may."""
    if not may_grow(path, working):
        return False
    old, new = change["old"], change["new"]
    return not old or (isinstance(old, list) and isinstance(new, list) and set(old) <= set(new))


_AGAIN = " (with mirror.naming: identity in both directions all records would then arrive twice: put them back)"

_GRANTS = " (a mirror that says nothing about acls.write_grants has at_cutover; earlier it had at_once)"


def _refuse_late_changes(
    journal: Journal, changes: Mapping[str, Mapping[str, Any]], fields: Mapping[str, Any], kind: str
) -> None:
    working = journal.working_state or State.PLANNED
    late = {
        path: change
        for path, change in changes.items()
        if not may_change(path, working)
        and not _is_demanded(path, change, fields)
        and not _only_grows(path, change, working)
    }
    if not late:
        return
    listing = "; ".join(f"{path}: {change['old']!r} -> {change['new']!r}" for path, change in late.items())
    raise FingerprintChanged(
        f"the spec has changed in fields that may no longer change: {listing}",
        where=Where(migration_id=journal.migration_id, phase=working.value),
        next_step=refused_change(late, working, kind)
        + (_AGAIN if any(path.startswith("mirror.") for path in late) else "")
        + (_GRANTS if "acls.write_grants" in late else ""),
        details={"changes": {path: dict(change) for path, change in late.items()}},
    )


# -- recorded spec ----------------------------------------------------------------------------------------------------
#
# The spec in force according to the journal: for callers that have neither a file nor a form but must act.


#: A rollback calls this address: an older one would be wrong.
_MUST_BE_KNOWN = frozenset({"cutover.producer_freeze_webhook"})


def spec_to_record(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec as the journal's first entry stores it: without Spark's conf, which no journal reader needs.

    It keeps all other fields: a rollback without the spec's file calls the webhook and the notifier. Where these need
    a secret, the spec has a reference.

    :param spec: the spec as JSON data, all defaults applied.
    """
    kept: dict[str, Any] = copy.deepcopy(dict(spec))
    if kept.get("spark", {}).get("conf"):
        kept["spark"]["conf"] = {}
    return kept


def recorded_spec(journal: Journal) -> dict[str, Any]:
    """Return the spec as JSON data: the one the migration was started with, with all later changes.

    After a change of a value that may hold a secret by mistake, the journal stores only a hash. Such a change is left
    out, except where it would matter. Spark's conf is never included.

    :raises DocumentUnreadable: the journal has no spec, or only the hash of an address that is needed.
    """
    entries = journal.entries()
    first = entries[0].details.get("spec") if entries else None
    if not isinstance(first, dict):
        raise DocumentUnreadable(
            "the journal does not have the spec of this migration",
            where=Where(migration_id=journal.migration_id, path=journal.store.uri),
            next_step="use the command line with the spec's file: kafka-migration rollback FILE",
        )
    spec: dict[str, Any] = copy.deepcopy(first)
    last = last_spec(journal)
    started = flatten(first)
    fields = last.details["fields"] if last is not None else started
    for section in OPTIONAL_SECTIONS:
        if not _has_section(fields, section):
            spec.pop(section, None)
    for path, value in sorted(fields.items()):
        if value == started.get(path):
            continue
        if isinstance(value, str) and value.startswith("sha256:"):
            _check_not_needed(journal, path, value)
            continue
        _put(spec, path, value)
    return spec


def _check_not_needed(journal: Journal, path: str, value: str) -> None:
    if path in _MUST_BE_KNOWN:
        raise DocumentUnreadable(
            f"{path} was changed, and the journal stores only a hash of it ({value})",
            where=Where(migration_id=journal.migration_id, path=path),
            next_step="use the command line with the spec's file: kafka-migration rollback FILE",
        )


def _put(spec: dict[str, Any], path: str, value: Any) -> None:
    *sections, last = path.split(".")
    for section in sections:
        child = spec.get(section)
        spec[section] = child if isinstance(child, dict) else {}
        spec = spec[section]
    spec[last] = value
