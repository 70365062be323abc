"""Access settings of the source, read so that an answer that is missing is never taken for something that was removed.

An ACL, a user or a quota counts as removed only if all brokers of the source agree, and an entirely empty list never
proves a removal: a broker that has just started may return one, and a cluster whose authorizer was switched off has
none to show.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_kafka_migration.errors import TopologyRefused
from airflow_provider_kafka_migration.freeze import deny_acls
from airflow_provider_kafka_migration.kafka.admin.access import Acl, QuotaEntity
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.record.record import MigrationRecord

PHASE = "tail"


def read_acls(record: MigrationRecord, source: Cluster) -> tuple[Acl, ...]:
    """Return the source's bindings, without those that the migration itself has put there to stop producers.

    :raises TopologyRefused: the source had an authorizer when it was planned, and has none now.
    :raises PermissionMissing: Describe on the cluster is missing.
    """
    listing = source.admin.describe_acls()
    if record.plan().source.authorizer and not listing.authorizer:
        raise none_at_all(record, "ACLs")
    return _without_freeze(record, listing.acls)


def of_all_brokers(record: MigrationRecord, source: Cluster) -> tuple[Acl, ...]:
    """Return bindings that any source broker knows: one that has just started may know fewer than the others."""
    admin = source.admin
    found: set[Acl] = set()
    for broker in admin.facts().brokers:
        found |= set(admin.describe_acls(broker_id=broker).acls)
    return _without_freeze(record, found)


def users_of_all_brokers(source: Cluster) -> set[str]:
    """Return the SCRAM users that any source broker knows."""
    admin = source.admin
    listings = [admin.scram_users(broker_id=broker) or () for broker in admin.facts().brokers]
    return {user.name for users in listings for user in users if user.credentials}


def quotas_of_all_brokers(source: Cluster) -> dict[QuotaEntity, dict[str, set[float]]]:
    """Return all values of quotas that any source broker knows."""
    admin = source.admin
    found: dict[QuotaEntity, dict[str, set[float]]] = {}
    for broker in admin.facts().brokers:
        for quota in admin.quotas(broker_id=broker) or ():
            for key, value in quota.values.items():
                found.setdefault(quota.entity, {}).setdefault(key, set()).add(value)
    return found


def _without_freeze(record: MigrationRecord, acls: Iterable[Acl]) -> tuple[Acl, ...]:
    """All bindings except the DENY ones that the migration itself created to stop producers; they stay after READY."""
    # They are journaled before they are created, so a journal read after the brokers knows all that the brokers listed.
    record.journal.refresh()
    own = deny_acls.all_planned_acls(record)
    return tuple(sorted(acl for acl in acls if acl not in own))


def none_at_all(record: MigrationRecord, what: str) -> TopologyRefused:
    """The error for a source that shows nothing at all any more, though some of it is on the target."""
    proof = "add any ACL to the source, such as one for an administrator, so that its list proves that, or "
    next_step = f"check the source's brokers; if all {what} are really gone, {proof if what == 'ACLs' else ''}"
    return TopologyRefused(
        f"the source no longer lists any {what}, though this migration has copied some; an empty list is not taken as "
        "proof of their removal",
        where=record.where(PHASE, cluster="source"),
        next_step=f"{next_step}remove the copies on the target by hand and set topology.on_source_drift: note",
    )
