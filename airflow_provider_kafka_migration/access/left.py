"""ACLs, users and quotas that a migration leaves on the target when it is rolled back, and how they are taken away.

Only what the journal says the migration has created counts, and only while it is unchanged: what was there before, or
what somebody has changed since, belongs to others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_kafka_migration.access import apply, created_access
from airflow_provider_kafka_migration.access.mapping import name_of
from airflow_provider_kafka_migration.errors import PermissionMissing, TopologyRefused
from airflow_provider_kafka_migration.kafka.admin.access import Acl, QuotaEntity, acl_row
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.record.record import MigrationRecord

PHASE = "rollback"
_AFTER = "then run the rollback again: it tries these again; the report has the commands, too"
_OPTIONS = {
    "TOPIC": "--topic '{}'",
    "GROUP": "--group '{}'",
    "CLUSTER": "--cluster",
    "TRANSACTIONAL_ID": "--transactional-id '{}'",
    "DELEGATION_TOKEN": "--delegation-token '{}'",
    "USER": "--user-principal '{}'",
}
_ENTITIES = {"user": "users", "client-id": "clients", "ip": "ips"}

#: Changes of quotas by entity; None removes a value.
_Changes = dict[QuotaEntity, dict[str, float | None]]


@dataclass(frozen=True)
class AccessLeft:
    """What the migration has created, and the target still has.

    :param users: name to mechanisms.
    :param quotas: values that the target did not have before.
    """

    acls: tuple[Acl, ...] = ()
    users: Mapping[str, tuple[str, ...]] | None = None
    quotas: Mapping[QuotaEntity, Mapping[str, float]] | None = None

    @property
    def acl_rows(self) -> list[list[str]]:
        """The bindings as documents store them."""
        return [acl_row(acl) for acl in self.acls]

    @property
    def user_rows(self) -> list[dict[str, Any]]:
        """The users as documents store them."""
        return [{"user": name, "mechanisms": list(names)} for name, names in sorted((self.users or {}).items())]

    @property
    def quota_rows(self) -> list[dict[str, Any]]:
        """The quotas as documents store them."""
        return [
            {"entity": [list(part) for part in entity], "values": dict(values)}
            for entity, values in (self.quotas or {}).items()
        ]

    @property
    def commands(self) -> list[str]:
        """The commands that remove all of it: ALLOW before the DENY that narrows it."""
        acls = sorted(self.acls, key=lambda acl: (acl.permission == "DENY", acl))
        return [
            *(_remove_acl(acl) for acl in acls),
            *(_remove_user(name, names) for name, names in sorted((self.users or {}).items())),
            *(_remove_quota(entity, values) for entity, values in (self.quotas or {}).items()),
        ]


def _remove_acl(acl: Acl) -> str:
    who = "allow" if acl.permission == "ALLOW" else "deny"
    words = acl.operation.split("_")
    operation = "".join(word.capitalize() for word in words)
    what = _OPTIONS.get(acl.resource_type, "--topic '{}'").format(acl.resource_name)
    return (
        f"kafka-acls.sh --bootstrap-server TARGET --remove --force --{who}-principal '{acl.principal}' "
        f"--{who}-host '{acl.host}' --operation {operation} {what} "
        f"--resource-pattern-type {acl.pattern_type.lower()}"
    )


def _remove_user(name: str, mechanisms: Iterable[str]) -> str:
    return (
        f"kafka-configs.sh --bootstrap-server TARGET --alter --delete-config '{','.join(mechanisms)}' "
        f"--entity-type users --entity-name '{name}'"
    )


def _remove_quota(entity: QuotaEntity, values: Iterable[str]) -> str:
    who = " ".join(
        f"--entity-type {_ENTITIES.get(kind, kind)} "
        + (f"--entity-name '{name}'" if name is not None else "--entity-default")
        for kind, name in entity
    )
    return f"kafka-configs.sh --bootstrap-server TARGET --alter --delete-config '{','.join(sorted(values))}' {who}"


def read_left(record: MigrationRecord, target: Cluster) -> AccessLeft:
    """Read what the target still has of what the migration has created.

    :raises MigrationError: the target does not answer; nothing is known then.
    """
    acls = created_access.created_acls(record)
    users = created_access.created_users(record)
    if acls:
        acls &= set(target.admin.describe_acls().acls)
    if users:
        there = {user.name for user in target.admin.scram_users() or () if user.credentials}
        users = {name: names for name, names in users.items() if name in there}
    added = _unchanged(record, target, lambda before: before is None)
    return AccessLeft(
        tuple(sorted(acls)),
        {name: tuple(names) for name, names in users.items()},
        {entity: {key: value for key, (value, _) in values.items()} for entity, values in added.items()},
    )


def known_left(record: MigrationRecord) -> AccessLeft:
    """Return all that the journal says the migration has created, for a target that does not answer."""
    quotas: dict[QuotaEntity, dict[str, float]] = {}
    for (entity, key), (value, before) in created_access.set_by_us(record).items():
        if before is None:
            quotas.setdefault(entity, {})[key] = value
    users = {name: tuple(names) for name, names in created_access.created_users(record).items()}
    return AccessLeft(tuple(sorted(created_access.created_acls(record))), users, quotas)


def _unchanged(
    record: MigrationRecord, target: Cluster, wanted: Callable[[float | None], bool]
) -> dict[QuotaEntity, dict[str, tuple[float, float | None]]]:
    """Quota values of the migration that the target still has, with what it had before.

    :param wanted: which of them, by the value before.
    """
    ours = {key: item for key, item in created_access.set_by_us(record).items() if wanted(item[1])}
    there = {quota.entity: quota.values for quota in target.admin.quotas() or ()} if ours else {}
    found: dict[QuotaEntity, dict[str, tuple[float, float | None]]] = {}
    for (entity, key), (value, before) in ours.items():
        if there.get(entity, {}).get(key) == value:
            found.setdefault(entity, {})[key] = (value, before)
    return found


def restore_quotas(record: MigrationRecord, target: Cluster) -> list[str]:
    """Give the target the quota values back that the migration has overwritten, unless somebody has changed them since.

    Idempotent; returns the entities, for people.

    :raises TopologyRefused: some could not be set; the error lists all.
    """
    overwritten = _unchanged(record, target, lambda before: before is not None)
    changes: _Changes = {
        entity: {key: before for key, (_, before) in values.items()} for entity, values in overwritten.items()
    }
    return _set(record, target, changes)


def _set(record: MigrationRecord, target: Cluster, changes: _Changes) -> list[str]:
    present = {quota.entity: quota.values for quota in target.admin.quotas() or ()} if changes else {}
    answers = created_access.set_quotas(record, target, changes, present)
    _raise(record, {("quota", name_of(entity)): error for entity, error in answers.items()})
    return sorted(name_of(entity) for entity in answers)


def withdraw(record: MigrationRecord, target: Cluster) -> dict[str, int]:
    """Remove the ACLs, users and quotas that the migration has created and the target still has. Idempotent.

    :returns: how many, by kind.
    :raises TopologyRefused: some could not be removed; the error lists all, and everything possible is done.
    """
    left = read_left(record, target)
    answers: dict[tuple[str, str], ItemError | None] = {}
    # ALLOW first: without the DENY that narrows it, it would open a door for a moment.
    for permission in ("ALLOW", "DENY"):
        batch = [acl for acl in left.acls if acl.permission == permission]
        answers |= {("acl", str(acl)): e for acl, e in created_access.remove_acls(record, target, batch).items()}
        if any(answers.values()):
            break
    users = created_access.remove_users(record, target, left.users or {})
    answers |= {("user", name): error for name, error in users.items()}
    removed: _Changes = {entity: dict.fromkeys(values) for entity, values in (left.quotas or {}).items()}
    for entity, error in created_access.set_quotas(record, target, removed, left.quotas or {}).items():
        answers["quota", name_of(entity)] = error
    _raise(record, answers)
    kinds = [kind for kind, _ in answers]
    return {f"{kind}s": kinds.count(kind) for kind in ("acl", "user", "quota") if kind in kinds}


def _raise(record: MigrationRecord, answers: Mapping[tuple[str, str], ItemError | None]) -> None:
    """Raise the error that names everything that failed.

    :raises TopologyRefused, PermissionMissing: something failed.
    """
    failures = [
        apply.failed_item(kind, name, error) for (kind, name), error in sorted(answers.items()) if error is not None
    ]
    if failures:
        error: TopologyRefused | PermissionMissing = apply.failure(
            record, failures, phase=PHASE, what="access settings could not be taken back on the target", after=_AFTER
        )
        raise error
