"""Which ACL bindings of the source are copied, under which names, and which are not and why (seed 001's rules)."""

from __future__ import annotations

import re

from airflow_provider_kafka_migration.documents.plan import AclPlan
from airflow_provider_kafka_migration.kafka.admin_acls import Acl
from airflow_provider_kafka_migration.phases.context import PhaseContext
from airflow_provider_kafka_migration.spec import INTERNAL_TOPICS


def plan_acls(context: PhaseContext, topics: set[str]) -> list[AclPlan]:
    """One entry per binding of either side, ascending.

    :raises PermissionMissing: ACLs may not be described; never "no ACLs" instead.
    """
    if context.spec.acls.policy == "skip":
        return []
    source = context.source.admin.describe_acls()
    if not source.authorizer:
        return []
    target = set(context.target.admin.describe_acls().acls)
    plans = [_plan(context, acl, topics, target) for acl in source.acls]
    mapped = {(plan.resource_type, plan.target_resource_name, plan.pattern_type, *_who(plan)) for plan in plans}
    plans += [
        _entry(acl, "target_only", acl.resource_name, "the source has no such binding")
        for acl in sorted(target)
        if (acl.resource_type, acl.resource_name, acl.pattern_type, *_who(acl)) not in mapped
    ]
    return sorted(plans, key=lambda plan: tuple(str(value) for value in plan.model_dump().values()))


def _who(item: Acl | AclPlan) -> tuple[str, str, str, str]:
    return (item.principal, item.host, item.operation, item.permission)


def _entry(acl: Acl, action: str, target_name: str, reason: str) -> AclPlan:
    return AclPlan(
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission=acl.permission,
        action=action,
        target_resource_name=target_name,
        reason=reason,
    )


def _plan(context: PhaseContext, acl: Acl, topics: set[str], target: set[Acl]) -> AclPlan:
    reason = _filtered(context, acl, topics)
    if reason:
        return _entry(acl, "filtered", acl.resource_name, reason)
    name = acl.resource_name
    if acl.resource_type == "TOPIC" and acl.pattern_type == "LITERAL" and name != "*":
        name = context.spec.topics.target_name(name)
    wanted = Acl(acl.resource_type, name, acl.pattern_type, acl.principal, acl.host, acl.operation, acl.permission)
    if wanted in target:
        return _entry(acl, "exists", name, "")
    return _entry(acl, "create", name, "")


def _filtered(context: PhaseContext, acl: Acl, topics: set[str]) -> str:
    if any(re.fullmatch(pattern, acl.principal) for pattern in context.spec.acls.exclude_principals):
        return "principal excluded by acls.exclude_principals"
    if acl.resource_type == "CLUSTER" and acl.operation == "CLUSTER_ACTION":
        return "ClusterAction belongs to the brokers"
    if acl.resource_type == "TOPIC" and acl.pattern_type == "LITERAL" and acl.resource_name != "*":
        if any(re.fullmatch(pattern, acl.resource_name) for pattern in INTERNAL_TOPICS):
            return "internal topic"
        if acl.resource_name not in topics:
            return "the topic is not part of the migration"
    return ""


def target_acl(plan: AclPlan) -> Acl:
    """The binding as it is to be on the target."""
    return Acl(
        plan.resource_type,
        plan.target_resource_name,
        plan.pattern_type,
        plan.principal,
        plan.host,
        plan.operation,
        plan.permission,
    )
