"""Which keys of a spec may still change in which state, and what advice may therefore say. Pure.

The guard of the journal, the renewal of copy jobs, docs/spec.md and the advice of errors read this one table. So an
error never advises a change that the guard then refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from airflow_provider_kafka_migration.spec.load import MigrationSpec
from airflow_provider_kafka_migration.state import FORWARD, ROLLBACK_FROM, State, position


@dataclass(frozen=True)
class Key:
    """How long a key of the spec, or all keys of a section, may change.

    :param until: the last state in which it may change.
    :param grows_until: the last state in which a list may still get longer, or an empty key get a value.
    :param job: the fields of a copy job that carry it: a job that is renewed takes them from the present spec.
    """

    until: State
    grows_until: State | None = None
    job: tuple[str, ...] = ()


def _key(until: State, *job: str) -> Key:
    return Key(until, job=job)


#: No cluster is written to before the end of this state: until then everything may change.
DEFAULT_UNTIL = State.PRECHECK

#: The longest matching path applies; all others have :data:`DEFAULT_UNTIL`.
KEYS: Mapping[str, Key] = {
    "description": _key(State.VALIDATING),
    # Other credentials for the same cluster; the fingerprint checks that it is the same one.
    "source": _key(State.VALIDATING),
    "target": _key(State.VALIDATING),
    "storage.conn_id": _key(State.VALIDATING),
    # Limits: they never decide what is copied, and have no effect after the seed.
    "seed.max_concurrent_partitions": _key(State.VALIDATING, "max_concurrent_partitions"),
    "seed.slice_seconds": _key(State.VALIDATING, "slice_seconds"),
    "seed.max_bytes_per_second": _key(State.VALIDATING, "max_bytes_per_second"),
    "seed.segment_max_bytes": _key(State.VALIDATING, "segment_max_bytes"),
    # The first task that creates anything on the target reads them, and stops before that if they refuse.
    "acls.policy": _key(State.TOPOLOGY_COPY),
    "acls.quotas": _key(State.TOPOLOGY_COPY),
    # Who is created, and who gets WRITE, is read again until the freeze.
    "acls.exclude_principals": _key(State.DRAIN_READY),
    "acls.users": _key(State.DRAIN_READY),
    # A person decides these when a partition has stopped because of them.
    "offsets.on_mismatch": _key(State.DRAIN_READY, "on_mismatch"),
    "offsets.max_markers": _key(State.DRAIN_READY, "max_markers"),
    "offsets.max_markers_per_record": _key(State.DRAIN_READY, "max_markers_per_record"),
    "offsets.max_fill_time": _key(State.DRAIN_READY, "max_fill_seconds"),
    "offsets.on_source_gap": _key(State.DRAIN_READY, "on_source_gap"),
    "offsets.on_overtaken_tombstones": _key(State.DRAIN_READY, "tombstones"),
    "offsets.on_source_truncation": _key(State.DRAIN_READY),
    "topology.follow_new": _key(State.DRAIN_READY),
    "topology.on_source_drift": _key(State.VALIDATING),
    "topology.on_topic_deleted": _key(State.DRAIN_READY),
    "topology.refresh_interval": _key(State.DRAIN_READY),
    # New groups come while the copy runs, and each one in migrated topics changes the codes of the approvals.
    "groups.exclude": Key(DEFAULT_UNTIL, grows_until=State.DRAIN_READY),
    "groups.early_sync": _key(State.DRAIN_READY),
    "groups.early_sync_interval": _key(State.DRAIN_READY),
    "groups.uncommitted": _key(State.VALIDATING),
    "groups.on_active_source": _key(State.VALIDATING),
    "groups.on_deleted": _key(State.VALIDATING),
    "groups.deleted_after": _key(State.VALIDATING),
    "groups.sync_interval": _key(State.VALIDATING),
    "schemas.interval": _key(State.VALIDATING),
    "schemas.max_parallel_requests": _key(State.VALIDATING),
    "schemas.on_conflict": _key(State.VALIDATING),
    "schemas.source_registry": _key(State.DRAIN_READY),
    "schemas.strict": _key(State.DRAIN_READY, "schema_ids"),
    "tail": _key(State.VALIDATING),
    "tail.slice_seconds": _key(State.VALIDATING, "slice_seconds"),
    "tail.max_bytes_per_second": _key(State.VALIDATING, "max_bytes_per_second"),
    "tail.segment_linger": _key(State.VALIDATING, "segment_linger_seconds"),
    "cutover": _key(State.VALIDATING),
    # A freeze has to be lifted the way it was made, and sentinels that were written are waited for.
    "cutover.freeze": _key(State.DRAIN_READY),
    # Where the address is missing, nothing was sent to another one.
    "cutover.producer_freeze_webhook": Key(State.DRAIN_READY, grows_until=State.VALIDATING),
    "cutover.sentinel": _key(State.DRAIN_READY),
    "approvals": _key(State.VALIDATING),
    "validation": _key(State.VALIDATING, "proof"),
    "evidence": _key(State.VALIDATING),
    "spark": _key(State.VALIDATING),
    "notifications": _key(State.VALIDATING),
    "metrics": _key(State.VALIDATING, "metrics"),
    # It says what may happen after the switch, and nothing of it happens in this migration.
    "way_back": _key(State.VALIDATING),
    "waive": _key(State.VALIDATING),
    "mirror.sync_groups": _key(State.VALIDATING),
    "mirror.sync_interval": _key(State.VALIDATING),
    "mirror.target_retention": _key(State.VALIDATING),
    "mirror.state_topics": _key(State.VALIDATING),
}

#: The fields of a copy job that a renewed one takes from the present spec.
JOB_FIELDS = frozenset(field for key in KEYS.values() for field in key.job)


def key_of(path: str) -> Key:
    """Return the row of a key: its own, or that of the section that holds it."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        found = KEYS.get(".".join(parts[:length]))
        if found is not None:
            return found
    return Key(DEFAULT_UNTIL)


def may_change(path: str, working: State) -> bool:
    """Return whether a key may still change in a state."""
    return _place(working) <= _place(key_of(path).until)


def may_grow(path: str, working: State) -> bool:
    """Return whether a list may still get longer, or an empty key get a value, where it may not change otherwise."""
    until = key_of(path).grows_until
    return until is not None and _place(working) <= _place(until)


def _place(state: State) -> int:
    """Return the index of a state on the path; a paused mirror is where it was, others are beyond the path's end."""
    found = position(State.TAIL if state is State.PAUSED else state)
    return len(FORWARD) if found is None else found


# -- words ------------------------------------------------------------------------------------------------------------


def begin_again(spec: MigrationSpec) -> str:
    """Say how a person begins again with a key that may no longer change; one clause, followed by ``with ...``."""
    return _begin_again(spec.kind)


def _begin_again(kind: str) -> str:
    if kind == "mirror":
        return "end this mirror (kafka-migration mirror end FILE), and start one under another migration_id"
    return "roll back, and start a new migration with another migration_id"


def refused_change(paths: Iterable[str], working: State, kind: str) -> str:
    """Say what to do about keys that changed too late; only what is possible in this state."""
    grown = "".join(
        f" ({path} may still grow until {key_of(path).grows_until}: keep what it had)"
        for path in paths
        if may_grow(path, working)
    )
    can_end = kind == "mirror" or working in ROLLBACK_FROM
    return "put the old values back" + (f", or {_begin_again(kind)}" if can_end else "") + grown


def as_markdown() -> str:
    """Return the table of docs/spec.md."""
    rows = ["| key | may change until | |", "|---|---|---|"]
    for path, key in KEYS.items():
        note = f"may get longer, or a first value, until `{key.grows_until}`" if key.grows_until else ""
        rows.append(f"| `{path}` | `{key.until}` | {note} |")
    return "\n".join(rows) + "\n"
