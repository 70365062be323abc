"""ACLs, users and quotas that the migration itself has created on the target, according to the journal.

Only these may be removed again when the source loses them. All are journaled before they are set: a crash in between
leaves an intention, and its items did not exist before. What the brokers refuse is journaled, too: if it is there
later, others have made it. Users are also journaled after their creation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from airflow_provider_kafka_migration.kafka.admin.access import (
    Acl,
    NewScramCredential,
    QuotaEntity,
    ScramUser,
    acl_row,
)
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError, batches
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.record.record import MigrationRecord

_PER_ENTRY = 200

_K = TypeVar("_K")
#: Entity and key of a quota value.
QuotaKey = tuple[QuotaEntity, str]


def _step_while_open(record: MigrationRecord, name: str, *, details: Mapping[str, Any], reason: str) -> None:
    """Journal a change, unless the migration has ended: then its journal is closed, and things are only taken away."""
    if not record.journal.is_closed:
        record.journal.step(name, details=details, reason=reason)


def create_acls(record: MigrationRecord, target: Cluster, acls: Iterable[Acl]) -> dict[Acl, ItemError | None]:
    """Create bindings that the target does not have, journaled first; returns each binding's error, or ``None``."""
    results: dict[Acl, ItemError | None] = {}
    for batch in batches(sorted(set(acls)), _PER_ENTRY):
        _step_while_open(
            record,
            steps.ACLS_CREATING,
            details={"acls": [acl_row(acl) for acl in batch]},
            reason=f"{len(batch)} ACLs are created",
        )
        answers = target.admin.create_acls(batch)
        results |= answers
        if refused := _refused(answers):
            rows = [acl_row(acl) for acl in sorted(refused)]
            _step_while_open(
                record, steps.ACLS_REMOVED, details={"acls": rows}, reason=f"{len(rows)} ACLs were refused"
            )
    return results


def _refused(answers: Mapping[_K, ItemError | None]) -> list[_K]:
    """Return what was surely not made."""
    return [item for item, error in answers.items() if error is not None and not error.is_unclear]


def remove_acls(record: MigrationRecord, target: Cluster, acls: Iterable[Acl]) -> dict[Acl, ItemError | None]:
    """Remove bindings that this migration has created. Idempotent."""
    results: dict[Acl, ItemError | None] = {}
    for batch in batches(sorted(set(acls)), _PER_ENTRY):
        answers = target.admin.delete_acls(batch)
        done = [acl for acl in batch if answers[acl] is None]
        if done:
            rows = [acl_row(acl) for acl in done]
            _step_while_open(record, steps.ACLS_REMOVED, details={"acls": rows}, reason=f"{len(done)} ACLs removed")
        results |= answers
    return results


def created_acls(record: MigrationRecord) -> set[Acl]:
    """Bindings on the target that this migration has created."""
    found: set[Acl] = set()
    for entry in record.journal.steps():
        if entry.step == steps.ACLS_CREATING:
            found |= {Acl(*row) for row in entry.details["acls"]}
        elif entry.step == steps.ACLS_REMOVED:
            found -= {Acl(*row) for row in entry.details["acls"]}
    return found


def remove_users(record: MigrationRecord, target: Cluster, names: Iterable[str]) -> dict[str, ItemError | None]:
    """Remove users that this migration has created. Idempotent."""
    created = created_users(record)
    wanted = [(name, mechanism) for name in sorted(names) for mechanism in created[name]]
    answers = target.admin.delete_scram_credentials(wanted) if wanted else {}
    for name, error in sorted(answers.items()):
        if error is None and not record.journal.is_closed:
            record.journal.step(steps.USER_REMOVED, key=name)
    return answers


def created_users(record: MigrationRecord) -> dict[str, list[str]]:
    """SCRAM users on the target that this migration has created: name to mechanisms."""
    found: dict[str, list[str]] = {}
    for entry in record.journal.steps():
        if entry.step == steps.USER_CREATED and entry.step_key is not None:
            found[entry.step_key] = [str(name) for name in entry.details["mechanisms"]]
        elif entry.step == steps.USER_REMOVED and entry.step_key is not None:
            found.pop(entry.step_key, None)
    return found


def create_users(
    record: MigrationRecord, target: Cluster, credentials: Sequence[NewScramCredential]
) -> dict[str, ItemError | None]:
    """Create users that the target does not have, journaled before and after."""
    if not credentials:
        return {}
    wanted: dict[str, list[tuple[str, int]]] = {}
    for item in sorted(credentials, key=lambda item: (item.name, item.mechanism)):
        wanted.setdefault(item.name, []).append((item.mechanism, item.iterations))
    mechanisms = {name: [mechanism for mechanism, _ in parts] for name, parts in wanted.items()}
    record.journal.step(steps.USERS_CREATING, details={"users": mechanisms, "credentials": wanted})
    answers = target.admin.create_scram_credentials(credentials)
    refused = _refused(answers)
    for name, error in sorted(answers.items()):
        if error is None:
            record.journal.step(steps.USER_CREATED, key=name, details={"mechanisms": mechanisms[name]})
        elif name in refused:
            record.journal.step(steps.USER_REMOVED, key=name, reason=f"user {name} was refused: {error}")
    return answers


def adopt_users(record: MigrationRecord, there: Iterable[ScramUser]) -> list[str]:
    """Journal users that a run has created and died before it could journal that; return their names, ascending.

    A user with other credentials than those that were to be created is not the migration's.

    :param there: the users that the target has.
    """
    begun = _begun_users(record)
    found = []
    for user in sorted(there, key=lambda user: user.name):
        if user.name not in begun:
            continue
        mechanisms, credentials = begun[user.name]
        if credentials is None or credentials == sorted(user.credentials):
            record.journal.step(steps.USER_CREATED, key=user.name, details={"mechanisms": mechanisms})
            found.append(user.name)
    return found


def _begun_users(record: MigrationRecord) -> dict[str, tuple[list[str], list[tuple[str, int]] | None]]:
    """Users that the migration was about to create, with mechanisms and credentials; whether it has is not known.

    Journals of former releases do not have the credentials.
    """
    found: dict[str, tuple[list[str], list[tuple[str, int]] | None]] = {}
    for entry in record.journal.steps():
        if entry.step == steps.USERS_CREATING:
            known = entry.details.get("credentials", {})
            for name, mechanisms in entry.details["users"].items():
                parts = sorted((str(kind), int(count)) for kind, count in known[name]) if name in known else None
                found[str(name)] = ([str(item) for item in mechanisms], parts)
        elif entry.step in (steps.USER_CREATED, steps.USER_REMOVED) and entry.step_key is not None:
            found.pop(entry.step_key, None)
    return found


def set_quotas(
    record: MigrationRecord,
    target: Cluster,
    changes: Mapping[QuotaEntity, Mapping[str, float | None]],
    present: Mapping[QuotaEntity, Mapping[str, float]],
) -> dict[QuotaEntity, ItemError | None]:
    """Set quota values (``None`` removes one); the target's former values are journaled first.

    :param present: values that the target has now.
    """
    if not changes:
        return {}
    rows = [
        {
            "entity": [list(part) for part in entity],
            "values": dict(values),
            "before": {key: present.get(entity, {}).get(key) for key in values},
        }
        for entity, values in changes.items()
    ]
    ours = set_by_us(record)
    _step_while_open(
        record, steps.QUOTAS_SETTING, details={"quotas": rows}, reason=f"quotas of {len(rows)} entities are set"
    )
    answers = target.admin.alter_quotas(changes)
    refused = _refused(answers)
    back = [_set_back(row, ours) for row, entity in zip(rows, changes, strict=True) if entity in refused]
    if back:
        reason = f"quotas of {len(back)} entities were refused"
        _step_while_open(record, steps.QUOTAS_SETTING, details={"quotas": back}, reason=reason)
    return answers


def _set_back(row: Mapping[str, Any], ours: Mapping[QuotaKey, tuple[float, float | None]]) -> dict[str, Any]:
    """Return the row of a change that was refused: the target has the values that it had.

    :param ours: what the migration had set before the change.
    """
    entity = _entity(row["entity"])
    before = {key: ours[entity, key][1] if (entity, key) in ours else value for key, value in row["before"].items()}
    return {"entity": row["entity"], "values": row["before"], "before": before}


def set_by_us(record: MigrationRecord) -> dict[QuotaKey, tuple[float, float | None]]:
    """Quota values that this migration has set: (the value, what the target had before)."""
    found: dict[QuotaKey, tuple[float, float | None]] = {}
    for entry in record.journal.steps(steps.QUOTAS_SETTING):
        for row in entry.details["quotas"]:
            entity = _entity(row["entity"])
            for key, value in row["values"].items():
                before = found[entity, key][1] if (entity, key) in found else row["before"].get(key)
                if value is None or value == before:
                    found.pop((entity, key), None)
                else:
                    found[entity, key] = (float(value), before)
    return found


def _entity(parts: Sequence[Sequence[str | None]]) -> QuotaEntity:
    return tuple((str(kind), name) for kind, name in parts)
