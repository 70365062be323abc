"""Access on the target: ACLs by policy, SCRAM users, client quotas, group configs.

Partial failure is data: everything possible is done, and the phase fails at its end with all items that failed.
Idempotent: this module reads the target and creates what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_kafka_migration.access import created_access, iam
from airflow_provider_kafka_migration.access.mapping import (
    entity_text,
    name_of,
    plan_acls,
    plan_group_configs,
    plan_quotas,
    plan_users,
    refused_acls,
    refused_quotas,
    target_acl,
)
from airflow_provider_kafka_migration.documents.plan import AclPlan, QuotaPlan, UserPlan
from airflow_provider_kafka_migration.documents.target import AccessResult, Left
from airflow_provider_kafka_migration.errors import PermissionMissing, TopologyRefused
from airflow_provider_kafka_migration.kafka.admin.access import DEFAULT_ITERATIONS, Acl, NewScramCredential, QuotaEntity
from airflow_provider_kafka_migration.kafka.admin.topics import ConfigResource
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext, PhaseResult, Progress
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.spec import MigrationSpec

# -- access -----------------------------------------------------------------------------------------------------------
#
# SCRAM users, client quotas and group configs on the target. Secrets come from references and are never written down.


PHASE = "topology_copy"
#: Kafka refuses fewer iterations.
MIN_ITERATIONS = 4096
DEFAULT_MECHANISMS = ("SCRAM-SHA-512",)

Failures = list[dict[str, Any]]


def _note(failures: Failures, kind: str, name: str, error: ItemError) -> None:
    failures.append({"kind": kind, "name": name, "error": error.as_dict(), "unauthorized": error.unauthorized})


# -- users -----------------------------------------------------------------------------------------------------------


def create_users(context: PhaseContext, failures: Failures) -> dict[str, Any]:
    """Create users that have a secret, with the source's mechanisms and iterations; report the others.

    A user that this migration has created is not created again: its secret may have been changed since.
    """
    plans = plan_users(context.spec, context.source, context.target, {})
    done = created_access.created_users(context.record)
    wanted = [plan for plan in plans if plan.action == "create" and plan.name not in done]
    credentials = [item for plan in wanted for item in _credentials(context, plan)]
    context.journal.check_holds()
    created = []
    if any(plan.action == "exists" for plan in plans):
        created += created_access.adopt_users(context.record, context.target.admin.scram_users() or ())
    for name, error in sorted(created_access.create_users(context.record, context.target, credentials).items()):
        if error is not None:
            _note(failures, "user", name, error)
        else:
            created.append(name)
    left = [Left(name=plan.name, reason=plan.reason) for plan in plans if plan.action == "report"]
    return {"users_created": created, "users_left": left}


def _credentials(context: PhaseContext, plan: UserPlan) -> list[NewScramCredential]:
    secret = context.resolver.text(context.spec.acls.users[plan.name]).strip()
    wanted = plan.credentials or [(mechanism, DEFAULT_ITERATIONS) for mechanism in DEFAULT_MECHANISMS]
    return [
        NewScramCredential(plan.name, mechanism, secret, max(iterations, MIN_ITERATIONS))
        for mechanism, iterations in wanted
        if mechanism.startswith("SCRAM-")
    ]


# -- quotas ----------------------------------------------------------------------------------------------------------


def quota_plans(record: MigrationRecord, source: Cluster, target: Cluster) -> list[QuotaPlan]:
    """Read the current quotas on both sides."""
    unknown: dict[str, str] = {}
    plans = plan_quotas(record.spec, source, target, unknown)
    if unknown:
        what, why = next(iter(unknown.items()))
        raise TopologyRefused(
            f"{what} cannot be read: {why}",
            where=record.where(PHASE),
            next_step="grant DescribeConfigs on the cluster, or set acls.quotas: skip",
        )
    return plans


def refuse_quotas(record: MigrationRecord, plans: Sequence[QuotaPlan]) -> None:
    """Raise for differences under ``acls.quotas: refuse``."""
    different = [entity_text(plan) for plan in refused_quotas(record.spec, plans)]
    if different:
        raise TopologyRefused(
            f"client quotas of {len(different)} entities differ: {', '.join(different[:10])}",
            where=record.where(PHASE),
            next_step="make them equal, or set acls.quotas: copy or keep_target",
            details={"entities": different},
        )


def set_quotas(
    record: MigrationRecord, target: Cluster, plans: Sequence[QuotaPlan], failures: Failures
) -> dict[str, Any]:
    """Set quotas that are missing or, by policy, different. Keys that only the target has stay."""
    changes: dict[QuotaEntity, dict[str, float | None]] = {}
    texts: dict[QuotaEntity, str] = {}
    left = []
    for plan in plans:
        missing = {key: value for key, value in plan.values.items() if plan.target_values.get(key) != value}
        if plan.action == "kept_on_target":
            missing = {key: value for key, value in missing.items() if key not in plan.target_values}
            left.append(Left(name=entity_text(plan), reason="the target has other values (acls.quotas: keep_target)"))
        if plan.action == "target_only":
            left.append(Left(name=entity_text(plan), reason="only on the target; left in place"))
        elif missing and plan.action != "exists":
            entity: QuotaEntity = tuple((kind, name) for kind, name in plan.entity)
            changes[entity] = dict(missing)
            texts[entity] = entity_text(plan)
    done = []
    present = {tuple((kind, name) for kind, name in plan.entity): plan.target_values for plan in plans}
    for entity, error in created_access.set_quotas(record, target, changes, present).items():
        if error is not None:
            _note(failures, "quota", texts[entity], error)
        else:
            done.append(texts[entity])
    return {"quotas_set": sorted(done), "quotas_left": left}


# -- group configs ---------------------------------------------------------------------------------------------------


def set_group_configs(record: MigrationRecord, source: Cluster, target: Cluster, failures: Failures) -> dict[str, Any]:
    """Set configs of groups (4.1+) that the target does not have yet."""
    plans = plan_group_configs(source, target, record.plan().groups, {})
    wanted = {plan.group: dict(plan.configs) for plan in plans if plan.action == "create"}
    done = []
    for group, error in target.admin.alter_configs(ConfigResource.GROUP, wanted).items() if wanted else ():
        if error is not None:
            _note(failures, "group config", group, error)
        else:
            done.append(group)
    left = [Left(name=plan.group, reason=plan.reason) for plan in plans if plan.action == "unsupported"]
    return {"group_configs_set": sorted(done), "group_configs_left": left}


def run(context: PhaseContext) -> PhaseResult:
    """Apply ACLs, users, quotas and group configs.

    :raises TopologyRefused: the policy refuses differences (before anything is changed), or some items failed.
    :raises PermissionMissing: the principal may not read or change them.
    """
    record = context.record
    context.progress(Progress(PHASE, "ACLs, users, quotas, group configs"))
    plans = _plans(record, context.source, context.target)
    _refuse(record, plans)
    quotas = quota_plans(record, context.source, context.target)
    refuse_quotas(record, quotas)
    context.journal.check_holds()
    before = _made(record)
    details, failures = _acls(record, context.target, plans)
    users = create_users(context, failures)
    quota_parts = set_quotas(record, context.target, quotas, failures)
    configs = set_group_configs(record, context.source, context.target, failures)
    made = _made(record)
    users["users_created"] = sorted(made[1])
    quota_parts["quotas_set"] = sorted({*quota_parts["quotas_set"], *(name_of(entity) for entity, _ in made[2])})
    result = AccessResult(
        migration_id=context.migration_id,
        policy=context.spec.acls.policy,
        target_auth=context.spec.acls.target_auth,
        summary=_summary(context.spec, details, users, quota_parts),
        **details,
        **users,
        **quota_parts,
        **configs,
    )
    if failures:
        raise failure(
            record,
            failures,
            phase=PHASE,
            what="access settings could not be set on the target",
            after="then clear topology_copy: it continues",
        )
    return _finish(record, result, did=made != before or bool(result.group_configs_set))


def _made(record: MigrationRecord) -> tuple[Any, Any, Any]:
    """What all runs have made on the target: ACLs, users, and quota values."""
    return (
        created_access.created_acls(record),
        created_access.created_users(record),
        created_access.set_by_us(record),
    )


def _finish(record: MigrationRecord, result: AccessResult, *, did: bool) -> PhaseResult:
    former = record.journal.find_step(steps.ACLS_COPIED)
    if former is not None and not did:
        return PhaseResult(PHASE, str(former.details["summary"]), dict(former.details), already_done=True)
    record.put_result(keys.ACCESS, result)
    details: dict[str, Any] = {
        "policy": result.policy,
        "summary": result.summary,
        "digest": result.digest(),
        "created": len(result.created),
        "deferred": len(result.deferred),
        "existed": len(result.existed),
        "left": len(result.left),
        "target_only": len(result.target_only),
        "users_created": result.users_created,
        "quotas_set": result.quotas_set,
        "group_configs_set": result.group_configs_set,
    }
    record.journal.step(steps.ACLS_COPIED, details=details, reason=result.summary)
    return PhaseResult(PHASE, result.summary, details)


def _summary(spec: MigrationSpec, acls: Mapping[str, Any], users: Mapping[str, Any], quotas: Mapping[str, Any]) -> str:
    if spec.acls.policy == "skip":
        text = "ACLs are not copied (acls.policy: skip)"
    elif spec.acls.target_auth == "iam":
        text = "access-map.json written for IAM"
    else:
        text = (
            f"{len(acls['created'])} ACLs created, {len(acls['existed'])} already existed, {len(acls['left'])} left out"
        )
        text += f", {len(acls['deferred'])} {_held_text(spec)}" if acls["deferred"] else ""
    text += f"; {len(users['users_created'])} users created" if users["users_created"] else ""
    return text + (f"; {len(quotas['quotas_set'])} quotas set" if quotas["quotas_set"] else "")


def _held_text(spec: MigrationSpec) -> str:
    if spec.acls.write_grants == "never":
        return "not granted (acls.write_grants: never)"
    return f"held back until the {'promotion' if spec.kind == 'mirror' else 'cutover'}"


# -- ACLs ------------------------------------------------------------------------------------------------------------


def _plans(record: MigrationRecord, source: Cluster, target: Cluster) -> list[AclPlan]:
    return plan_acls(record, source, target, {topic.name for topic in record.plan().topics})


def _refuse(record: MigrationRecord, plans: list[AclPlan]) -> None:
    create, only = ([str(target_acl(plan)) for plan in part] for part in refused_acls(record.spec, plans))
    if create or only:
        raise TopologyRefused(
            f"ACLs differ: {len(create)} only on the source, {len(only)} only on the target",
            where=record.where(PHASE),
            next_step="make them equal, or set acls.policy: merge",
            details={"source_only": create, "target_only": only},
        )


def _acls(
    record: MigrationRecord, target: Cluster, plans: list[AclPlan]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Create what is missing; merge and replace never delete."""
    by_action: dict[str, list[Acl]] = {}
    for plan in plans:
        by_action.setdefault(plan.action, []).append(target_acl(plan))
    # A run that was killed, or that failed, has created some of those that exist now.
    ours = created_access.created_acls(record)
    details: dict[str, Any] = {
        "created": [str(acl) for acl in by_action.get("exists", []) if acl in ours],
        "existed": [str(acl) for acl in by_action.get("exists", []) if acl not in ours],
        "deferred": [str(acl) for acl in by_action.get("deferred", [])],
        "target_only": [str(acl) for acl in by_action.get("target_only", [])],
        "left": [
            Left(name=str(target_acl(plan)), reason=plan.reason)
            for plan in plans
            if plan.action in ("filtered", "unsupported")
        ],
        "renamed": [
            Left(name=str(target_acl(plan)), reason=plan.reason)
            for plan in plans
            if plan.action in ("create", "exists") and plan.reason
        ],
    }
    if record.spec.acls.target_auth == "iam":
        return details | {"access_map": _write_map(record, plans)}, []
    failures: list[dict[str, Any]] = []
    wanted = by_action.get("create", [])
    # DENY first: an ALLOW without the DENY that narrows it would open a door for a moment.
    for permission in ("DENY", "ALLOW"):
        batch = sorted({acl for acl in wanted if acl.permission == permission})
        for acl, error in sorted(created_access.create_acls(record, target, batch).items()):
            if error is None:
                details["created"].append(str(acl))
            else:
                failures.append(failed_item("acl", str(acl), error))
        if failures:
            break
    return details, failures


def _write_map(record: MigrationRecord, plans: list[AclPlan]) -> dict[str, Any]:
    document = iam.access_map(record.migration_id, record.spec.acls.target_cluster_arn, plans)
    key = record.key(iam.KEY)
    record.journal_store.put(key, document.canonical())
    record.evidence_store.put(key, document.canonical())
    return {"uri": f"{record.evidence_store.uri}/{key}", "digest": document.digest()}


def failed_item(kind: str, name: str, error: ItemError) -> dict[str, Any]:
    """One item that failed."""
    return {"kind": kind, "name": name, "error": error.as_dict(), "unauthorized": error.unauthorized}


def failure(
    record: MigrationRecord, failures: list[dict[str, Any]], *, phase: str, what: str, after: str
) -> TopologyRefused | PermissionMissing:
    """The error for access settings that could not be made on the target.

    :param what: what could not be made; follows the count.
    :param after: what happens once the cause is corrected.
    """
    first = failures[0]
    kind = PermissionMissing if all(item["unauthorized"] for item in failures) else TopologyRefused
    return kind(
        f"{len(failures)} {what}; the first: {first['kind']} {first['name']}: {first['error']['name']}",
        where=record.where(phase, cluster="target"),
        next_step="grant Alter (ACLs, users) and AlterConfigs (quotas) on the target cluster to the migration's "
        f"principal, or correct what the broker reports; {after}",
        details={"failures": failures},
    )
