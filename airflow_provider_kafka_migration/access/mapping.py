"""Which ACL bindings of the source are copied, under which names; which are not, and why.

Renamed topics: a literal binding follows its topic. A prefixed binding is correct only where the rename is a prefix for
all topics below it; topics with individual names also get a literal binding, and the plan states that reason.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from airflow_provider_kafka_migration.documents.plan import AclPlan, GroupConfigPlan, GroupPlan, QuotaPlan, UserPlan
from airflow_provider_kafka_migration.errors import PermissionMissing
from airflow_provider_kafka_migration.internal_topics import is_internal
from airflow_provider_kafka_migration.kafka.admin.access import Acl, AclListing, Quota, QuotaEntity, ScramUser
from airflow_provider_kafka_migration.kafka.admin.client import Admin
from airflow_provider_kafka_migration.kafka.admin.topics import Configs
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.spec import MigrationSpec

WRITING = frozenset({"WRITE", "ALL"})
_WILDCARD = "*"
_ONLY_TOPICS = "acls.policy: mirror_maker copies ACLs that name one topic, and no others"
#: Each flow would take what the other one has created for the cluster's own, and give back what is withdrawn.
_NOT_BOTH_WAYS = "mirror.two_way: only ACLs of mirrored topics follow; the opposite flow would restore what is removed"


def plan_acls(
    record: MigrationRecord,
    source: Cluster,
    target: Cluster,
    topics: Collection[str],
    unknown: dict[str, str] | None = None,
) -> list[AclPlan]:
    """Return one entry per binding of either side, and per binding derived from a rename; ascending.

    :param topics: source topics of the migration.
    :param unknown: receives what may not be read; without it the error is raised.
    :raises PermissionMissing: ACLs may not be described; this never counts as "no ACLs".
    """
    spec = record.spec
    if spec.acls.policy == "skip":
        return []
    source_listing = _listing(source.admin.describe_acls, "ACLs on the source", unknown)
    if source_listing is None or not source_listing.authorizer:
        return []
    target_listing: AclListing | None = AclListing(authorizer=True)
    if spec.acls.target_auth == "kafka":
        target_listing = _listing(target.admin.describe_acls, "ACLs on the target", unknown)
        if target_listing is None:
            return []
    assert target_listing is not None
    granted = record.are_writes_granted()
    return make_plans(spec, source_listing.acls, target_listing, set(topics), writes_granted=granted)


def _listing(describe: object, what: str, unknown: dict[str, str] | None) -> AclListing | None:
    assert callable(describe)
    try:
        listing = describe()
    except PermissionMissing as error:
        if unknown is None:
            raise
        unknown[what] = error.what
        return None
    assert isinstance(listing, AclListing)
    return listing


@dataclass(frozen=True)
class _Rules:
    spec: MigrationSpec
    topics: frozenset[str]
    present: frozenset[Acl]
    enforced: bool
    writes_granted: bool


def make_plans(
    spec: MigrationSpec,
    source: Sequence[Acl],
    target: AclListing,
    topics: set[str],
    *,
    writes_granted: bool = True,
) -> list[AclPlan]:
    """The pure part of :func:`plan_acls`."""
    rules = _Rules(spec, frozenset(topics), frozenset(target.acls), target.authorizer, writes_granted)
    plans = [plan for acl in sorted(source) for plan in _plans(rules, acl)]
    wanted = {target_acl(plan) for plan in plans if plan.action != "filtered"}
    for acl in sorted(rules.present - wanted):
        reason = _filtered(rules, acl, on_target=True)
        if not reason:
            plans.append(_entry(acl, "target_only", acl.resource_name, "the source has no such binding"))
    return sorted(set(plans), key=_order)


def _order(plan: AclPlan) -> tuple[str, ...]:
    return tuple(str(value) for value in plan.model_dump().values())


def target_acl(plan: AclPlan) -> Acl:
    """The binding in its form on the target."""
    return Acl(
        plan.resource_type,
        plan.target_resource_name,
        plan.pattern_type,
        plan.principal,
        plan.host,
        plan.operation,
        plan.permission,
    )


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


def _plans(rules: _Rules, acl: Acl) -> Iterator[AclPlan]:
    reason = _filtered(rules, acl)
    if reason:
        yield _entry(acl, "filtered", acl.resource_name, reason)
        return
    if not acl.supported:
        yield _entry(acl, "unsupported", acl.resource_name, "a newer broker's binding, unknown to this release")
        return
    if not rules.enforced:
        yield _entry(acl, "unsupported", acl.resource_name, "the target has no authorizer")
        return
    for wanted, why in _renamed(rules, acl):
        yield from _wanted(rules, acl, wanted, why)


def _wanted(rules: _Rules, acl: Acl, wanted: Acl, why: str) -> Iterator[AclPlan]:
    """Plan one binding for the target: it exists, is to be created, or is deferred with a substitute."""
    entry = replace(acl, resource_type=wanted.resource_type, pattern_type=wanted.pattern_type)
    if wanted in rules.present:
        yield _entry(entry, "exists", wanted.resource_name, why)
    elif not rules.writes_granted and grants_writing(wanted):
        yield _entry(entry, "deferred", wanted.resource_name, f"acls.write_grants: {rules.spec.acls.write_grants}")
        if wanted.operation == "ALL":
            # Until then a principal with ALL may read (ALL becomes READ).
            reading = replace(wanted, operation="READ")
            action = "exists" if reading in rules.present else "create"
            yield _entry(replace(entry, operation="READ"), action, wanted.resource_name, "until ALL is granted")
    else:
        yield _entry(entry, "create", wanted.resource_name, why)


def grants_writing(acl: Acl) -> bool:
    """Whether a binding is an ALLOW that lets a principal write to topics."""
    return acl.resource_type == "TOPIC" and acl.permission == "ALLOW" and acl.operation in WRITING


def _renamed(rules: _Rules, acl: Acl) -> Iterator[tuple[Acl, str]]:
    """The binding under the target's names."""
    section = rules.spec.topics
    if acl.resource_type == "TOPIC" and acl.resource_name == _WILDCARD and (prefix := _of_remote_topics(rules.spec)):
        yield replace(acl, resource_name=prefix, pattern_type="PREFIXED"), "all topics of the source, and no others"
        return
    if acl.resource_type != "TOPIC" or acl.resource_name == _WILDCARD:
        yield acl, ""
        return
    if acl.pattern_type == "LITERAL":
        name = section.target_name(acl.resource_name)
        yield replace(acl, resource_name=name), "" if name == acl.resource_name else "follows the renamed topic"
        return
    below = [name for name in sorted(rules.topics) if name.startswith(acl.resource_name)]
    own = [name for name in below if name in section.rename.topics]
    prefix = f"{section.rename.prefix}{acl.resource_name}"
    if len(own) < len(below):
        yield replace(acl, resource_name=prefix), "" if prefix == acl.resource_name else "prefix renamed"
    for name in own:
        target = section.target_name(name)
        if not target.startswith(prefix):
            literal = replace(acl, pattern_type="LITERAL", resource_name=target)
            yield literal, f"{name} was below the prefix {acl.resource_name} and now has an individual name"


def _of_remote_topics(spec: MigrationSpec) -> str:
    """Return what all topics of a mirror begin with on the target, and no topic of the target's own; else empty."""
    return spec.topics.rename.prefix if spec.kind == "mirror" and spec.mirror.naming == "default" else ""


def _filtered(rules: _Rules, acl: Acl, *, on_target: bool = False) -> str:
    """Why a binding is left out; empty if it is copied."""
    if any(re.fullmatch(pattern, acl.principal) for pattern in rules.spec.acls.exclude_principals):
        return "principal excluded by acls.exclude_principals"
    if acl.resource_type == "CLUSTER" and acl.operation == "CLUSTER_ACTION":
        return "ClusterAction belongs to the brokers"
    if rules.spec.acls.policy == "mirror_maker" and not _names_one_topic(acl):
        return _ONLY_TOPICS
    if acl.resource_type != "TOPIC" or acl.resource_name == _WILDCARD:
        return _NOT_BOTH_WAYS if rules.spec.is_two_way else ""
    names: Iterable[str] = rules.topics
    if on_target:
        names = [rules.spec.topics.target_name(name) for name in rules.topics]
    matches = acl.resource_name in set(names)
    if acl.pattern_type == "PREFIXED":
        matches = any(name.startswith(acl.resource_name) for name in names)
    if matches:
        return ""
    if _is_internal(acl):
        return "internal topic"
    return "no topic of the migration is below this prefix" if acl.pattern_type == "PREFIXED" else "topic not migrated"


def _names_one_topic(acl: Acl) -> bool:
    return acl.resource_type == "TOPIC" and acl.pattern_type == "LITERAL" and acl.resource_name != _WILDCARD


def _is_internal(acl: Acl) -> bool:
    if acl.pattern_type == "PREFIXED":
        return acl.resource_name.startswith("__")
    return is_internal(acl.resource_name)


# -- what a policy refuses --------------------------------------------------------------------------------------------
#
# The precheck and the task that would change the target ask the same functions, so no task refuses what it has passed.


def refused_acls(spec: MigrationSpec, plans: Iterable[AclPlan]) -> tuple[list[AclPlan], list[AclPlan]]:
    """Return the ACLs that ``acls.policy: refuse`` does not accept: only on the source, and only on the target."""
    if spec.acls.policy != "refuse":
        return [], []
    plans = list(plans)
    missing = [plan for plan in plans if plan.action in ("create", "deferred")]
    return missing, [plan for plan in plans if plan.action == "target_only"]


def refused_quotas(spec: MigrationSpec, plans: Iterable[QuotaPlan]) -> list[QuotaPlan]:
    """Return the client quotas that ``acls.quotas: refuse`` does not accept: all that differ."""
    if spec.quota_policy != "refuse":
        return []
    return [plan for plan in plans if plan.action in ("create", "overwrite", "target_only")]


def entity_text(plan: QuotaPlan) -> str:
    """``user alice, client-id (default)``."""
    return name_of(tuple(plan.entity))


def name_of(entity: QuotaEntity) -> str:
    """The same for an entity."""
    return ", ".join(f"{kind} {name if name is not None else '(default)'}" for kind, name in entity)


# -- plan access ------------------------------------------------------------------------------------------------------
#
# SCRAM users, client quotas and group configs of the plan. Only reads; what may not be read is named, never empty.


API_INCREMENTAL_GROUP_CONFIGS = 74


def plan_users(spec: MigrationSpec, source: Cluster, target: Cluster, unknown: dict[str, str]) -> list[UserPlan]:
    """SCRAM users of the source, ascending, and users that the spec names but the source does not have."""
    source_users = _scram_users(source.admin, "SCRAM users on the source", unknown)
    target_users = _scram_users(target.admin, "SCRAM users on the target", unknown)
    if source_users is None and not spec.acls.users:
        return []
    there = {user.name for user in target_users or []}
    wanted = spec.acls.users
    plans = [_user(user, wanted, there) for user in source_users or []]
    listed = {user.name for user in source_users or []}
    plans += [
        UserPlan(
            name=name, credentials=[], action="exists" if name in there else "create", reason="named in acls.users"
        )
        for name in sorted(wanted.keys() - listed)
    ]
    return sorted(plans, key=lambda plan: plan.name)


def _user(user: ScramUser, wanted: Mapping[str, str], there: set[str]) -> UserPlan:
    action: Literal["create", "exists", "report"] = "report"
    reason = "its secret cannot be read: add a reference to acls.users, or create the user yourself"
    if user.name in there:
        action, reason = "exists", "the target has this user; whether its secret is the same cannot be checked"
    elif user.name in wanted:
        action, reason = "create", "with the secret referred to in acls.users"
    return UserPlan(name=user.name, credentials=list(user.credentials), action=action, reason=reason)


def _scram_users(admin: Admin, what: str, unknown: dict[str, str]) -> list[ScramUser] | None:
    try:
        return admin.scram_users()
    except PermissionMissing as error:
        unknown[what] = error.what
        return None


def plan_quotas(spec: MigrationSpec, source: Cluster, target: Cluster, unknown: dict[str, str]) -> list[QuotaPlan]:
    """Client quotas of both sides by entity."""
    policy = spec.quota_policy
    if policy == "skip":
        return []
    source_quotas = _quotas(source.admin, "client quotas on the source", unknown)
    target_quotas = _quotas(target.admin, "client quotas on the target", unknown)
    if source_quotas is None or target_quotas is None:
        return []
    plans = [
        QuotaPlan(
            entity=list(entity),
            values=values,
            target_values=target_quotas.get(entity, {}),
            action=_quota_action(values, target_quotas.get(entity, {}), policy),
        )
        for entity, values in source_quotas.items()
    ]
    plans += [
        QuotaPlan(entity=list(entity), values={}, target_values=values, action="target_only")
        for entity, values in target_quotas.items()
        if entity not in source_quotas
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
    source: Cluster, target: Cluster, groups: Sequence[GroupPlan], unknown: dict[str, str]
) -> list[GroupConfigPlan]:
    """Configs set on selected groups of the source (brokers before 4.1 cannot list them and have few or none)."""
    try:
        configured = source.admin.groups_with_configs()
    except PermissionMissing as error:
        unknown["group configs on the source"] = error.what
        return []
    selected = sorted({group.group for group in groups} & set(configured or []))
    if not selected:
        return []
    source_configs = source.admin.group_configs(selected)
    # The closest API that only brokers with group configs have; some have it without them, and report that per group.
    supported = target.admin.api_version(API_INCREMENTAL_GROUP_CONFIGS) >= 0
    target_configs = target.admin.group_configs(selected) if supported else {}
    plans = []
    for name in selected:
        unreadable = source_configs[name].error
        if unreadable is not None:
            unknown[f"configs of group {name} on the source"] = unreadable.name
            continue
        wanted = dict(sorted(source_configs[name].overrides.items()))
        if wanted:
            plans.append(_group_config(name, wanted, target_configs.get(name), unknown))
    return plans


def _group_config(name: str, wanted: dict[str, str], there: Configs | None, unknown: dict[str, str]) -> GroupConfigPlan:
    """Plan one group's configs; ``there`` is ``None`` where the target has no group configs at all."""
    error = there.error if there is not None else None
    if there is None or (error is not None and not error.unauthorized):
        reason = "the target has no group configs" + (f" ({error.name})" if error is not None else "")
        return GroupConfigPlan(group=name, configs=wanted, action="unsupported", reason=reason)
    if error is not None:
        unknown[f"configs of group {name} on the target"] = error.name
    done = all(there.overrides.get(key) == value for key, value in wanted.items())
    return GroupConfigPlan(group=name, configs=wanted, action="exists" if done else "create")
