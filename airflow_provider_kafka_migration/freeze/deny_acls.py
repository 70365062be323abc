"""The DENY ACLs that stop producers: which ones are missing, and which ones the journal says are the migration's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from airflow_provider_kafka_migration.errors import (
    FreezeFailed,
    PermissionMissing,
)
from airflow_provider_kafka_migration.freeze import words
from airflow_provider_kafka_migration.freeze.without_acls import matches
from airflow_provider_kafka_migration.kafka.admin.access import Acl
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.spec import MigrationSpec

_WRITING = frozenset({"WRITE", "ALL"})
EVERYBODY = "User:*"


def writing_principals(acls: tuple[Acl, ...], topic: str) -> set[str]:
    """Return the principals that some ACL allows to write to a topic."""
    return {
        acl.principal for acl in acls if acl.permission == "ALLOW" and acl.operation in _WRITING and matches(acl, topic)
    }


def deny_bindings(acls: tuple[Acl, ...], topics: list[str], own: OwnPrincipal) -> list[Acl]:
    """Return the missing DENY WRITE bindings for each principal that may write to these topics, except the migration's.

    One binding per principal and topic: a DENY for ``User:*`` would override the migration's own ALLOW, too.

    :raises FreezeFailed: everyone may write to a topic, and no list of principals can stop that; or one of the
        principals may be the migration's own, which has to write there.
    """
    wanted: set[Acl] = set()
    open_topics: list[str] = []
    for topic in topics:
        for principal in writing_principals(acls, topic) - {own.name}:
            if principal == EVERYBODY:
                open_topics.append(topic)
            else:
                wanted.add(Acl("TOPIC", topic, "LITERAL", principal, "*", "WRITE", "DENY"))
    if open_topics:
        raise FreezeFailed(
            f"{EVERYBODY} may write to {len(open_topics)} topics, among them {open_topics[0]}: ACLs cannot stop all "
            "principals and still let the migration write its sentinels",
            next_step="use cutover.freeze: webhook or manual, or name the producers in the source's ACLs",
            details={"topics": open_topics},
        )
    missing = sorted(wanted - set(acls))
    if missing and own.name is None and own.writes:
        raise FreezeFailed(
            f"the migration's own principal on the {own.role} is not known, so that a DENY could stop the migration "
            f"itself; {missing[0].principal} would be denied on {missing[0].resource_name}",
            next_step=f"set {own.setting} to the principal of the migration as the ACLs name it "
            "(DENY overrides ALLOW; for a super user, any name that no ACL has)",
            details={"principals": sorted({acl.principal for acl in missing})},
        )
    return missing


_OPPOSITE = {"source": "target", "target": "source"}


@dataclass(frozen=True)
class OwnPrincipal:
    """The migration's own principal on a cluster.

    :param name: as ACLs name it; None: neither the spec nor the connection tells it.
    :param writes: whether the migration writes to topics of the cluster while producers are stopped there.
    :param setting: where people set the name. The spec of a way back is derived from that of the first migration, in
        which the clusters have the opposite roles.
    """

    role: Literal["source", "target"]
    name: str | None
    writes: bool
    setting: str

    @classmethod
    def of(cls, spec: MigrationSpec, cluster: Cluster) -> OwnPrincipal:
        """Return that of a cluster, by the spec or else by the connection's user name."""
        section, username = getattr(spec, cluster.role), cluster.config.username
        name = section.principal or (f"User:{username}" if username else None)
        setting = f"{cluster.role}.principal in the spec"
        if spec.is_way_back:
            setting = f"{_OPPOSITE[cluster.role]}.principal in the first migration's spec"
        # A mirror that fails back writes to the former source, whose producers are still stopped.
        writes = cluster.role == "target" or spec.cutover.sentinel == "record" or spec.kind == "mirror"
        return cls(cluster.role, name, writes, setting)


def count_denials(record: MigrationRecord, source: Cluster) -> int:
    """Return how many DENY bindings a freeze would create now; none unless ACLs stop the producers.

    What keeps a freeze from being made at all is for the precheck and the freeze to say.
    """
    if record.spec.cutover.freeze != "acl":
        return 0
    topics = sorted({topic for topic, _ in record.partitions()})
    try:
        return len(missing_denials(record, source, source.admin.describe_acls().acls, topics))
    except FreezeFailed:
        return 0


def missing_denials(record: MigrationRecord, source: Cluster, acls: Sequence[Acl], topics: list[str]) -> list[Acl]:
    # What an earlier attempt has added, and could not remove, is this one's to remove, too.
    others = tuple(acl for acl in acls if acl not in all_planned_acls(record))
    return deny_bindings(others, topics, OwnPrincipal.of(record.spec, source))


def planned_acls(record: MigrationRecord, attempt: str) -> list[Acl]:
    """Return the DENY bindings of an attempt, from the journal as last read; the source is not asked."""
    entry = record.journal.find_step(steps.FREEZE_ACLS, attempt)
    return [Acl(*fields) for fields in entry.details["acls"]] if entry else []


def all_planned_acls(record: MigrationRecord) -> set[Acl]:
    """Return the DENY bindings of all attempts, from the journal as last read."""
    return {Acl(*fields) for entry in record.journal.steps(steps.FREEZE_ACLS) for fields in entry.details["acls"]}


def remove(record: MigrationRecord, source: Cluster) -> dict[str, Any]:
    """Remove the bindings of all attempts: a late request of an earlier one may have added some after its lift."""
    bindings = sorted(all_planned_acls(record))
    if bindings:
        raise_failures(record, source.admin.delete_acls(bindings), "removed")
    return {"deny_acls_removed": len(bindings)}


def raise_failures(record: MigrationRecord, results: dict[Acl, ItemError | None], verb: str) -> None:
    failed = {acl: error for acl, error in results.items() if error is not None}
    if not failed:
        return
    acl, error = next(iter(sorted(failed.items())))
    if error.unauthorized:
        raise PermissionMissing(
            f"ACLs cannot be {verb} on the source",
            where=record.where(words.phase_of(record.spec), cluster="source"),
            next_step="grant the migration's principal Alter on the source cluster, or set cutover.freeze: webhook or "
            "manual",
        )
    raise FreezeFailed(
        f"{len(failed)} of {len(results)} ACLs could not be {verb}; the first: {acl}: {error}",
        where=record.where(words.phase_of(record.spec), cluster="source"),
        next_step="fix the cause in the broker's message, then clear the task: it retries only what failed",
        details={"failed": [{"acl": str(item), "error": str(problem)} for item, problem in sorted(failed.items())]},
    )
