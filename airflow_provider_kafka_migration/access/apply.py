"""Access on the target: ACLs by policy, SCRAM users, client quotas, group configs.

Partial failure is data: whatever can be done is done, and the phase fails at its end with all that could not.
Idempotent: it looks at the target and creates what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_kafka_migration.access import access, acls_iam, created_access
from airflow_provider_kafka_migration.access.mapping import plan_acls, target_acl
from airflow_provider_kafka_migration.documents.plan import AclPlan
from airflow_provider_kafka_migration.documents.target import AccessResult, Left
from airflow_provider_kafka_migration.errors import PermissionMissing, TopologyRefused
from airflow_provider_kafka_migration.kafka.admin.access import Acl
from airflow_provider_kafka_migration.kafka.admin.base import ItemError
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult, Progress
from airflow_provider_kafka_migration.record.facts import put_result

PHASE = "topology_copy"
STEP = "acls_copied"
RESULT = "acls"


def run(context: PhaseContext) -> PhaseResult:
    """ACLs, users, quotas and group configs.

    :raises TopologyRefused: the policy refuses differences (before anything is changed), or some items failed.
    :raises PermissionMissing: the principal may not look at or change them.
    """
    context.progress(Progress(PHASE, "ACLs, users, quotas, group configs"))
    plans = _plans(context)
    _refuse(context, plans)
    quotas = access.quota_plans(context)
    access.refuse_quotas(context, quotas)
    context.journal.check_holds()
    details, failures = _acls(context, plans)
    users = access.create_users(context, failures)
    quota_parts = access.set_quotas(context, quotas, failures)
    configs = access.set_group_configs(context, failures)
    result = AccessResult(
        migration_id=context.migration_id,
        policy=context.spec.acls.policy,
        target_auth=context.spec.acls.target_auth,
        summary=_summary(context, details, users, quota_parts),
        **details,
        **users,
        **quota_parts,
        **configs,
    )
    if failures:
        raise _failure(context, failures)
    return _finish(context, result)


def _finish(context: PhaseContext, result: AccessResult) -> PhaseResult:
    did = [*result.created, *result.users_created, *result.quotas_set, *result.group_configs_set]
    former = context.journal.find_step(STEP)
    if former is not None and not did:
        return PhaseResult(PHASE, str(former.details["summary"]), dict(former.details), already_done=True)
    put_result(context, RESULT, result)
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
    context.journal.step(STEP, details=details, reason=result.summary)
    return PhaseResult(PHASE, result.summary, details)


def _summary(
    context: PhaseContext, acls: Mapping[str, Any], users: Mapping[str, Any], quotas: Mapping[str, Any]
) -> str:
    if context.spec.acls.policy == "skip":
        text = "ACLs are not copied (acls.policy: skip)"
    elif context.spec.acls.target_auth == "iam":
        text = "access-map.json written for IAM"
    else:
        text = f"{len(acls['created'])} ACLs created, {len(acls['existed'])} were there, {len(acls['left'])} left out"
        text += f", {len(acls['deferred'])} held back until the cutover" if acls["deferred"] else ""
    text += f"; {len(users['users_created'])} users created" if users["users_created"] else ""
    return text + (f"; {len(quotas['quotas_set'])} quotas set" if quotas["quotas_set"] else "")


# -- ACLs ------------------------------------------------------------------------------------------------------------


def _plans(context: PhaseContext) -> list[AclPlan]:
    return plan_acls(context, {topic.name for topic in context.load_plan().topics})


def _refuse(context: PhaseContext, plans: list[AclPlan]) -> None:
    if context.spec.acls.policy != "refuse":
        return
    create = [str(target_acl(plan)) for plan in plans if plan.action in ("create", "deferred")]
    only = [str(target_acl(plan)) for plan in plans if plan.action == "target_only"]
    if create or only:
        raise TopologyRefused(
            f"ACLs differ: {len(create)} only on the source, {len(only)} only on the target",
            where=context.where(PHASE),
            next_step="make them equal, or set acls.policy: merge",
            details={"source_only": create, "target_only": only},
        )


def _acls(context: PhaseContext, plans: list[AclPlan]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Create what is missing; merge and replace never delete (seed 001's table)."""
    by_action: dict[str, list[Acl]] = {}
    for plan in plans:
        by_action.setdefault(plan.action, []).append(target_acl(plan))
    details: dict[str, Any] = {
        "created": [],
        "existed": [str(acl) for acl in by_action.get("exists", [])],
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
    if context.spec.acls.target_auth == "iam":
        return details | {"access_map": _write_map(context, plans)}, []
    failures: list[dict[str, Any]] = []
    wanted = by_action.get("create", [])
    # DENY first: an ALLOW without the DENY that narrows it would open a door for a moment.
    for permission in ("DENY", "ALLOW"):
        batch = sorted({acl for acl in wanted if acl.permission == permission})
        for acl, error in sorted(created_access.create_acls(context, batch).items()):
            if error is None:
                details["created"].append(str(acl))
            else:
                failures.append(_item("acl", str(acl), error))
        if failures:
            break
    return details, failures


def _write_map(context: PhaseContext, plans: list[AclPlan]) -> dict[str, Any]:
    document = acls_iam.access_map(context.migration_id, context.spec.acls.target_cluster_arn, plans)
    key = context.key(acls_iam.KEY)
    context.journal_store.put(key, document.canonical())
    context.evidence_store.put(key, document.canonical())
    return {"uri": f"{context.evidence_store.uri}/{key}", "digest": document.digest()}


def _item(kind: str, name: str, error: ItemError) -> dict[str, Any]:
    """One item that could not be done."""
    return {"kind": kind, "name": name, "error": error.as_dict(), "unauthorized": error.unauthorized}


def _failure(context: PhaseContext, failures: list[dict[str, Any]]) -> TopologyRefused | PermissionMissing:
    first = failures[0]
    kind = PermissionMissing if all(item["unauthorized"] for item in failures) else TopologyRefused
    return kind(
        f"{len(failures)} items of access could not be set on the target; the first: {first['kind']} {first['name']}: "
        f"{first['error']['name']}",
        where=context.where(PHASE, cluster="target"),
        next_step="grant Alter (ACLs, users) and AlterConfigs (quotas) on the target cluster to the migration's "
        "principal, or correct what the broker says; then clear topology_copy: it goes on",
        details={"failures": failures},
    )
