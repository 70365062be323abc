"""SCRAM users, client quotas and group configs of the plan. Reads only; what may not be read is named, never empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from airflow_provider_kafka_migration.documents.plan import GroupConfigPlan, GroupPlan, QuotaPlan, UserPlan
from airflow_provider_kafka_migration.errors import PermissionMissing
from airflow_provider_kafka_migration.kafka.admin.admin_configs import Configs
from airflow_provider_kafka_migration.kafka.admin.admin_quotas import Quota, QuotaEntity
from airflow_provider_kafka_migration.kafka.admin.admin_users import ScramUser
from airflow_provider_kafka_migration.kafka.admin.client import Admin
from airflow_provider_kafka_migration.record.context import PhaseContext

API_INCREMENTAL_GROUP_CONFIGS = 74


def plan_users(context: PhaseContext, unknown: dict[str, str]) -> list[UserPlan]:
    """SCRAM users of the source, ascending, and users that the spec wants though the source does not have them."""
    source = _scram_users(context.source.admin, "SCRAM users on the source", unknown)
    target = _scram_users(context.target.admin, "SCRAM users on the target", unknown)
    if source is None and not context.spec.acls.users:
        return []
    there = {user.name for user in target or []}
    wanted = context.spec.acls.users
    plans = [_user(user, wanted, there) for user in source or []]
    listed = {user.name for user in source or []}
    plans += [
        UserPlan(
            name=name, credentials=[], action="exists" if name in there else "create", reason="named in acls.users"
        )
        for name in sorted(wanted.keys() - listed)
    ]
    return sorted(plans, key=lambda plan: plan.name)


def _user(user: ScramUser, wanted: Mapping[str, str], there: set[str]) -> UserPlan:
    action: Literal["create", "exists", "report"] = "report"
    reason = "its secret cannot be read: give a reference in acls.users, or create it yourself"
    if user.name in there:
        action, reason = "exists", "the target has this user; whether its secret is the same cannot be seen"
    elif user.name in wanted:
        action, reason = "create", "with the secret referred to in acls.users"
    return UserPlan(name=user.name, credentials=list(user.credentials), action=action, reason=reason)


def _scram_users(admin: Admin, what: str, unknown: dict[str, str]) -> list[ScramUser] | None:
    try:
        return admin.scram_users()
    except PermissionMissing as error:
        unknown[what] = error.what
        return None


def plan_quotas(context: PhaseContext, unknown: dict[str, str]) -> list[QuotaPlan]:
    """Client quotas of both sides by entity."""
    policy = context.spec.acls.quotas
    if policy == "skip":
        return []
    source = _quotas(context.source.admin, "client quotas on the source", unknown)
    target = _quotas(context.target.admin, "client quotas on the target", unknown)
    if source is None or target is None:
        return []
    plans = [
        QuotaPlan(
            entity=list(entity),
            values=values,
            target_values=target.get(entity, {}),
            action=_quota_action(values, target.get(entity, {}), policy),
        )
        for entity, values in source.items()
    ]
    plans += [
        QuotaPlan(entity=list(entity), values={}, target_values=values, action="target_only")
        for entity, values in target.items()
        if entity not in source
    ]
    return sorted(plans, key=lambda plan: [(kind, name is not None, name or "") for kind, name in plan.entity])


def _quota_action(
    values: Mapping[str, float], there: Mapping[str, float], policy: str
) -> Literal["create", "overwrite", "exists", "kept_on_target"]:
    if all(there.get(key) == value for key, value in values.items()):
        return "exists"
    if any(key in there and there[key] != value for key, value in values.items()):
        return "kept_on_target" if policy == "keep_target" else "overwrite"
    return "create"


def _quotas(admin: Admin, what: str, unknown: dict[str, str]) -> dict[QuotaEntity, dict[str, float]] | None:
    try:
        found: Sequence[Quota] | None = admin.quotas()
    except PermissionMissing as error:
        unknown[what] = error.what
        return None
    return {quota.entity: dict(quota.values) for quota in found or []}


def plan_group_configs(
    context: PhaseContext, groups: Sequence[GroupPlan], unknown: dict[str, str]
) -> list[GroupConfigPlan]:
    """Configs set on selected groups of the source (brokers before 4.1 cannot list them and have none or few)."""
    try:
        configured = context.source.admin.groups_with_configs()
    except PermissionMissing as error:
        unknown["group configs on the source"] = error.what
        return []
    selected = sorted({group.group for group in groups} & set(configured or []))
    if not selected:
        return []
    source = context.source.admin.group_configs(selected)
    # The nearest api that only brokers with configs of groups have; some have it without, and say so per group.
    supported = context.target.admin.api_version(API_INCREMENTAL_GROUP_CONFIGS) >= 0
    target = context.target.admin.group_configs(selected) if supported else {}
    plans = []
    for name in selected:
        unreadable = source[name].error
        if unreadable is not None:
            unknown[f"configs of group {name} on the source"] = unreadable.name
            continue
        wanted = dict(sorted(source[name].overrides.items()))
        if wanted:
            plans.append(_group_config(name, wanted, target.get(name), unknown))
    return plans


def _group_config(name: str, wanted: dict[str, str], there: Configs | None, unknown: dict[str, str]) -> GroupConfigPlan:
    """What becomes of one group's configs; ``there`` is ``None`` where the target has none at all."""
    error = there.error if there is not None else None
    if there is None or (error is not None and not error.unauthorized):
        reason = "the target has no group configs" + (f" ({error.name})" if error is not None else "")
        return GroupConfigPlan(group=name, configs=wanted, action="unsupported", reason=reason)
    if error is not None:
        unknown[f"configs of group {name} on the target"] = error.name
    done = all(there.overrides.get(key) == value for key, value in wanted.items())
    return GroupConfigPlan(group=name, configs=wanted, action="exists" if done else "create")
