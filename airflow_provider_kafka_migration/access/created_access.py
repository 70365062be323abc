"""ACLs, users and quotas that the migration itself has created on the target, according to the journal.

Only these may be removed again when the source loses them. All are journaled before they are set: a crash in between
leaves an intention, and its items did not exist before. Users are journaled after their creation, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_provider_kafka_migration.kafka.admin.access import Acl, QuotaEntity, acl_row
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError, batches
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.record.record import MigrationRecord

_PER_ENTRY = 200

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
        results |= target.admin.create_acls(batch)
    return results


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


def creating_users(record: MigrationRecord) -> dict[str, list[str]]:
    """Users that the migration was about to create, with their mechanisms; whether it has is not known."""
    found: dict[str, list[str]] = {}
    for entry in record.journal.steps(steps.USERS_CREATING):
        found |= {str(name): [str(item) for item in names] for name, names in entry.details["users"].items()}
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
    _step_while_open(
        record, steps.QUOTAS_SETTING, details={"quotas": rows}, reason=f"quotas of {len(rows)} entities are set"
    )
    return target.admin.alter_quotas(changes)


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
