"""What of a spec may change while its migration is under way, and the journal's record of it.

The fingerprint speaks for clusters and buckets. This is about all other fields: limits and time-outs may change at any
time, what decides *what* is migrated and *how offsets are kept* only as long as no cluster was touched.
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
from airflow_provider_kafka_migration.state import FORWARD, State

#: Until the end of which state a field, or all fields of a section, may change. The longest path that fits counts;
#: for all others it is :data:`DEFAULT_UNTIL`.
MAY_CHANGE_UNTIL: Mapping[str, State] = {
    "description": State.VALIDATING,
    # Other credentials for the same cluster; that it is the same one is the fingerprint's business.
    "source": State.VALIDATING,
    "target": State.VALIDATING,
    "storage.conn_id": State.VALIDATING,
    # Limits: they never decide what is copied, and after the seed they mean nothing any more.
    "seed.max_concurrent_partitions": State.VALIDATING,
    "seed.slice_seconds": State.VALIDATING,
    "seed.max_bytes_per_second": State.VALIDATING,
    # What a person decides when a partition has stopped for it.
    "offsets.on_source_gap": State.DRAIN_READY,
    "offsets.on_overtaken_tombstones": State.DRAIN_READY,
    "offsets.on_source_truncation": State.DRAIN_READY,
    "topology.follow_new": State.DRAIN_READY,
    "topology.on_source_drift": State.VALIDATING,
    "topology.on_topic_deleted": State.DRAIN_READY,
    "topology.refresh_interval": State.DRAIN_READY,
    "tail": State.VALIDATING,
    "cutover": State.VALIDATING,
    # What was frozen has to be unfrozen the same way, and sentinels that were written are waited for.
    "cutover.freeze": State.DRAIN_READY,
    "cutover.producer_freeze_webhook": State.DRAIN_READY,
    "cutover.sentinel": State.DRAIN_READY,
    "approvals": State.VALIDATING,
    "validation": State.VALIDATING,
    "evidence": State.VALIDATING,
    "spark": State.VALIDATING,
    "notifications": State.VALIDATING,
    "waive": State.VALIDATING,
}

#: No cluster is written to before the end of this state.
DEFAULT_UNTIL = State.PRECHECK

#: Fields that are mappings with free keys: compared as a whole.
MAPPINGS = frozenset({"acls.users", "notifications.kwargs", "spark.conf", "topics.rename.topics", "waive"})

#: Fields that hold no secret by rule, but may by mistake: their values are compared, never kept.
_HASHED = frozenset({"notifications.kwargs", "spark.conf"})
_URL_WITH_MORE = re.compile(r"(?i)^[a-z][a-z0-9+.-]*://(?:[^/@]*@|[^?#]*[?#])")
_HASH = "sha256:"

#: Given as a reference from now on where it had to be given in plain: the same address, as far as anybody can tell.
_MAY_BECOME_REFERENCES = frozenset({"cutover.producer_freeze_webhook"})

_ATTEMPTS = 20


def guard_spec(journal: Journal, spec: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Compare a spec with the last one that the journal knows, and record it if it differs.

    To be called by whoever holds the migration, at its start. In an ended migration nothing happens.

    :param spec: the spec as JSON data, all defaults applied.
    :returns: what changed, as ``{path: {"old": ..., "new": ...}}``; empty the first time.
    :raises FingerprintChanged: a field changed that may not any more; all such fields are named, nothing is written.
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
            _refuse_late_changes(journal, changes)
            details = {"sha256": digest, "fields": fields, "changes": changes}
            # Keyed by what it replaces: of several tasks that bring the same change, one records it.
            entry = journal.step_once(SPEC_CHANGED, str(last.seq), details, reason=f"changed: {', '.join(changes)}")
        if entry.details["sha256"] == digest:
            return changes
    raise JournalConflict(
        "several tasks of this run bring different specs",
        where=Where(migration_id=journal.migration_id),
        next_step="make sure that all tasks use the same spec, then clear them",
    )


def last_spec(journal: Journal) -> JournalEntry | None:
    """The entry that has the spec in force in ``details["fields"]``, flat."""
    return journal.find_step(SPEC_CHANGED) or journal.find_step(SPEC_RECORDED)


def may_change_until(path: str) -> State:
    """The last state in which a field of the spec may change."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        until = MAY_CHANGE_UNTIL.get(".".join(parts[:length]))
        if until is not None:
            return until
    return DEFAULT_UNTIL


def flatten(spec: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """``{"tail": {"slice_seconds": 20}}`` -> ``{"tail.slice_seconds": 20}``; lists and :data:`MAPPINGS` stay whole."""
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
    """Fields that differ.

    All fields are always there, with their defaults. So one that only one of them has came or went with a release of
    ours: nobody has changed it, and an upgrade must not stop a migration. Nor does one that hashes more than before:
    what an earlier one kept in plain is hashed here, so that no error, log or new entry repeats it.
    """
    kept = {path: _hashed_now(path, old[path]) for path in old.keys() & new.keys()}
    return {path: {"old": kept[path], "new": new[path]} for path in sorted(kept) if new[path] != kept[path]}


def _kept(path: str, value: Any) -> Any:
    """The value as it is journaled: a hash in place of what may hold a secret."""
    is_risky = path in _HASHED or (isinstance(value, str) and _is_risky_address(value))
    return f"{_HASH}{canonical_digest(value)[:16]}" if is_risky and value is not None else value


def _hashed_now(path: str, recorded: Any) -> Any:
    """A value of the journal as this version keeps it; a hash stays the one that it is."""
    is_hash = isinstance(recorded, str) and recorded.startswith(_HASH)
    return recorded if is_hash else _kept(path, recorded)


def _is_risky_address(text: str) -> bool:
    if _URL_WITH_MORE.match(text):
        return True
    return plain_secrets.is_address(text) and bool(plain_secrets.why_no_plain_address(text))


def _became_reference(path: str, change: Mapping[str, Any]) -> bool:
    """An address that an earlier version took in plain, and that is refused now: only a reference is left for it."""
    return (
        path in _MAY_BECOME_REFERENCES
        and str(change["old"]).startswith(_HASH)
        and plain_secrets.is_reference(str(change["new"]))
    )


def _refuse_late_changes(journal: Journal, changes: Mapping[str, Mapping[str, Any]]) -> None:
    working = journal.working_state or State.PLANNED
    late = {
        path: change
        for path, change in changes.items()
        if FORWARD.index(working) > FORWARD.index(may_change_until(path)) and not _became_reference(path, change)
    }
    if not late:
        return
    listing = "; ".join(f"{path}: {change['old']!r} -> {change['new']!r}" for path, change in late.items())
    raise FingerprintChanged(
        f"the spec has changed where it may not any more: {listing}",
        where=Where(migration_id=journal.migration_id, phase=working.value),
        next_step="put the old values back, or roll back and start a new migration with another migration_id",
        details={"changes": {path: dict(change) for path, change in late.items()}},
    )


# -- recorded spec ----------------------------------------------------------------------------------------------------
#
# The spec in force as the journal has it: for who has no file and no form, and must act all the same.


#: A rollback calls it: an older address would be the wrong one.
_MUST_BE_KNOWN = frozenset({"cutover.producer_freeze_webhook"})


def spec_to_record(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec as the journal's first entry keeps it: without Spark's conf, which no reader of a journal needs.

    All other fields are there: a rollback without the spec's file calls the webhook and the notifier. In them the spec
    has references where a secret is needed.

    :param spec: the spec as JSON data, all defaults applied.
    """
    kept: dict[str, Any] = copy.deepcopy(dict(spec))
    if kept.get("spark", {}).get("conf"):
        kept["spark"]["conf"] = {}
    return kept


def recorded_spec(journal: Journal) -> dict[str, Any]:
    """The spec as JSON data: as the migration was started, with all changes since.

    Of values that may hold a secret by mistake the journal keeps only a hash after a change. Such a change is left
    out, except where it would matter. Spark's conf is never there.

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
    for path, value in sorted((last.details["fields"] if last is not None else {}).items()):
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
            f"{path} was changed, and the journal keeps only a hash of it ({value})",
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
