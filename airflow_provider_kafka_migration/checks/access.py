"""Precheck of access: the migration's own permissions; ACLs, users, quotas and groups that need attention."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from airflow_provider_kafka_migration.access import permissions
from airflow_provider_kafka_migration.access.mapping import entity_text, refused_acls, refused_quotas, target_acl
from airflow_provider_kafka_migration.approvals.request import DENIALS_PER_SECOND
from airflow_provider_kafka_migration.documents.plan import AclPlan, Finding, Plan
from airflow_provider_kafka_migration.errors import FreezeFailed, MigrationError
from airflow_provider_kafka_migration.freeze.deny_acls import (
    EVERYBODY,
    OwnPrincipal,
    all_planned_acls,
    deny_bindings,
    writing_principals,
)
from airflow_provider_kafka_migration.freeze.without_acls import check_closed, matches
from airflow_provider_kafka_migration.groups.left_out import group_reason
from airflow_provider_kafka_migration.groups.offsets import MOVED, target_states
from airflow_provider_kafka_migration.internal_topics import is_internal
from airflow_provider_kafka_migration.kafka.admin.access import Acl, with_implied
from airflow_provider_kafka_migration.kafka.admin.topics import TopicFacts
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext
from airflow_provider_kafka_migration.record.finding_codes import finding, some
from airflow_provider_kafka_migration.spec import GroupsSection, MigrationSpec
from airflow_provider_kafka_migration.way_back import guard
from airflow_provider_kafka_migration.way_back.derived_spec import section_of

#: The creation of DENY ACLs may take this part of ``max_producer_freeze``.
_PART_FOR_DENIALS = 0.05
#: Parts of the plan that must be readable unless the spec leaves them out.
_REQUIRED = ("ACLs", "client quotas", "groups", "batch headers")


def check_unknown(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Report what plan could not read; unreadable never means "there is none"."""
    for what, why in sorted(plan.unknown.items()):
        if what.startswith(_REQUIRED):
            yield finding("B007", f"{what}: {why}", subject=what)
        elif what.startswith("offsets of group"):
            yield finding("W073", f"{what}: {why}", subject=what.removeprefix("offsets of group "))


def check_permissions(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Check each operation that permissions.md names with the brokers (KIP-430); one finding per operation."""
    items = permissions.needed(context.spec, plan)
    for side, cluster in (("source", context.source), ("target", context.target)):
        mine = [item for item in items if item.side == side]
        on_cluster = [item for item in mine if item.resource_type == "CLUSTER"]
        yield from _cluster_permissions(context.spec, cluster, on_cluster, plan)
    yield from _source_topics(context.spec, context.source, plan)
    yield from _target_topics(context.spec, context.target, plan)
    yield from _groups(context.target, plan, context.spec)


def check_state_topics(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Check that a mirror can write MirrorMaker 2's state topics, if it is to do so."""
    for cluster in (context.source, context.target):
        items = [item for item in permissions.state_topics(context.spec) if item.side == cluster.role]
        if not items:
            continue
        names = sorted({item.name for item in items})
        facts = cluster.admin.describe_topics(names, operations=True)
        present = [item for item in items if facts[item.name].error is None]
        for item in present:
            yield from _state_topic(cluster, item, facts[item.name])
        if absent := sorted({item.name for item in items if item not in present and "CREATE" in item.operations}):
            seen = f"the allowed operations on state topics that do not exist yet: {some(absent)}"
            yield finding("I006", seen, subject=f"{cluster.role} state topics")


def _state_topic(cluster: Cluster, item: permissions.Needed, facts: TopicFacts) -> Iterator[Finding]:
    if "WRITE" in item.operations and len(facts.partitions) != 1:
        seen = f"{cluster.role}: {item.name} has {len(facts.partitions)} partitions; clients read only one"
        yield finding("B043", seen, subject=f"{cluster.role} {item.name}")
    if facts.operations is None:
        return
    # One that exists need not be created.
    for operation in sorted(set(item.operations) - {"CREATE"} - with_implied(facts.operations)):
        yield _missing(cluster.role, operation, "Topic", item.why, [item.name])


def check_denials(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Check that ACLs can stop producers where the spec wants that, as long as nobody waits for them to be stopped."""
    spec = context.spec
    if spec.cutover.freeze == "acl" and (spec.kind == "migration" or spec.freezes_promotion):
        names, without = sorted(topic.name for topic in plan.topics), "use cutover.freeze: webhook or manual"
        ours = all_planned_acls(context.record)
        yield from _denials(spec, context.source, names, names, without, lambda error: error.next_step, ours)
    if spec.is_way_back and section_of(spec).freeze_old == "acl":
        names = sorted(topic.target_name for topic in plan.topics)
        old, without = guard.old_topics(plan), "set way_back.freeze_old: none"
        ours = guard.known_denials(context.record)
        yield from _denials(spec, context.target, names, old, without, guard.old_cluster_advice, ours)


def _denials(
    spec: MigrationSpec,
    cluster: Cluster,
    topics: list[str],
    there: list[str],
    without: str,
    advice: Callable[[FreezeFailed], str],
    ours: Collection[Acl],
) -> Iterator[Finding]:
    """Report why producers could not be denied, and who is denied already.

    :param there: those of ``topics`` that clients of this cluster may know.
    :param without: what to do where ACLs cannot be used.
    :param ours: bindings that the migration, or the one that it reverses, has created.
    """
    listing = cluster.admin.describe_acls()
    if not listing.authorizer:
        seen = f"the {cluster.role} has no authorizer"
        yield finding("B042", seen, subject=cluster.role, fix=f"configure one, or {without}")
        return
    try:
        check_closed(cluster, listing.acls, there)
        missing = deny_bindings(listing.acls, topics, OwnPrincipal.of(spec, cluster))
    except FreezeFailed as error:
        yield finding("B042", error.what, subject=cluster.role, fix=advice(error))
    else:
        yield from _many_denials(spec, cluster, missing)
    already = [str(acl) for acl in listing.acls if acl not in ours and _stops_a_producer(acl, listing.acls, topics)]
    if already:
        yield finding("I093", some(already), subject=cluster.role, acls=already)


def _many_denials(spec: MigrationSpec, cluster: Cluster, missing: Sequence[Acl]) -> Iterator[Finding]:
    """Report so many bindings that they take a considerable part of the time that producers may be stopped."""
    seconds, limit = len(missing) / DENIALS_PER_SECOND, spec.cutover.max_producer_freeze.total_seconds()
    if seconds < limit * _PART_FOR_DENIALS:
        return
    principals = len({acl.principal for acl in missing})
    seen = (
        f"{len(missing)} DENY ACLs for {principals} principals: about {seconds:.0f} s until all exist, and as long or "
        f"several times as long until they are gone again; max_producer_freeze is {limit:g} s"
    )
    yield finding("W094", seen, subject=cluster.role)


def _stops_a_producer(acl: Acl, acls: tuple[Acl, ...], topics: Sequence[str]) -> bool:
    if acl.permission != "DENY" or acl.operation not in ("WRITE", "ALL"):
        return False
    hit = (writing_principals(acls, topic) for topic in topics if matches(acl, topic))
    return any(acl.principal in writers or (writers and acl.principal == EVERYBODY) for writers in hit)


def check_target_denials(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Name DENY bindings that only the target has, and that hit clients of what is migrated once they are there."""
    only_there = [target_acl(acl) for acl in plan.acls if acl.action == "target_only" and acl.permission == "DENY"]
    if not only_there or context.spec.acls.target_auth != "kafka":
        return
    copied = [target_acl(acl) for acl in plan.acls if acl.action in ("create", "exists", "deferred")]
    clients = {acl.principal for acl in copied if acl.permission == "ALLOW"}
    are_all = EVERYBODY in clients or not plan.source.authorizer
    ours = guard.known_denials(context.record)
    groups = {group.group for group in plan.groups}
    hits = [
        str(acl)
        for acl in only_there
        if acl not in ours
        and (are_all or acl.principal in clients or acl.principal == EVERYBODY)
        and (acl.resource_type != "GROUP" or _names_one_of(acl, groups))
    ]
    if hits:
        yield finding("W077", some(hits), acls=hits)


def _names_one_of(acl: Acl, names: Collection[str]) -> bool:
    if acl.pattern_type == "PREFIXED":
        return any(name.startswith(acl.resource_name) for name in names)
    return acl.resource_name == "*" or acl.resource_name in names


def check_remote_writers(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Name those who may write to the remote topics by what the target already has, if a mirror grants no WRITE."""
    spec, target = context.spec, context.target
    if spec.kind != "mirror" or spec.acls.write_grants == "at_once" or not plan.target.authorizer:
        return
    acls, topics = target.admin.describe_acls().acls, sorted(topic.target_name for topic in plan.topics)
    own, writers = OwnPrincipal.of(spec, target).name, dict[str, list[str]]()
    for topic in topics:
        for principal in writing_principals(acls, topic) - {own}:
            writers.setdefault(principal, []).append(topic)
    for principal, named in sorted(writers.items()):
        yield finding("W079", f"{principal} by ACLs of the target: {some(named)}", subject=principal, topics=named)
    try:
        check_closed(target, acls, topics)
    except FreezeFailed as error:
        yield finding("W079", error.what, subject="topics without ACLs")


#: Operations on a cluster that change nothing of others.
_HARMLESS = frozenset({"IDEMPOTENT_WRITE", "DESCRIBE", "DESCRIBE_CONFIGS"})


def check_reach(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Name bindings that would reach topics, groups or settings of others on a target that the migration shares."""
    wanted = [target_acl(acl) for acl in plan.acls if acl.action in ("create", "deferred")]
    if not wanted or context.spec.acls.target_auth != "kafka" or not plan.target.authorizer:
        return
    admin = context.target.admin
    own = {topic.target_name for topic in plan.topics}
    topics = sorted(name for name in admin.describe_topics() if name not in own and not is_internal(name))
    if not topics:
        return
    groups = sorted(set(admin.list_groups()) - {group.group for group in plan.groups})
    wide = [str(acl) for acl in wanted if _reaches(acl, topics, groups)]
    if wide:
        seen = f"{some(wide)}; {len(topics)} topics of the target are not of this migration: {some(topics)}"
        yield finding("W078", seen, acls=wide)


def _reaches(acl: Acl, topics: Sequence[str], groups: Sequence[str]) -> bool:
    """Whether a binding is about more than what is migrated."""
    if acl.resource_type == "CLUSTER":
        return acl.operation not in _HARMLESS
    if acl.pattern_type == "LITERAL":
        return acl.resource_name == "*"
    others = {"TOPIC": topics, "GROUP": groups}.get(acl.resource_type, ())
    return any(name.startswith(acl.resource_name) for name in others)


def _cluster_permissions(
    spec: MigrationSpec, cluster: Cluster, items: list[permissions.Needed], plan: Plan
) -> Iterator[Finding]:
    operations = cluster.admin.cluster_operations()
    if operations is None:
        yield finding("I006", "the brokers do not report the allowed operations on the cluster", subject=cluster.role)
        return
    have = with_implied(operations)
    for item in items:
        for operation in item.operations:
            if operation in have or (cluster.role == "target" and not _target_needs(operation, spec, plan)):
                continue
            yield _missing(cluster.role, operation, "Cluster", item.why)


def _target_needs(operation: str, spec: MigrationSpec, plan: Plan) -> bool:
    """Whether this plan does anything that needs this operation on the target cluster."""
    if operation == "ALTER":
        # Markers alone do not need it: the probe tests them, and empty transactions can replace them.
        return _changes_access(spec, plan)
    if operation == "ALTER_CONFIGS":
        return _unknown(plan, "client quotas") or any(quota.action in ("create", "overwrite") for quota in plan.quotas)
    return True


def _changes_access(spec: MigrationSpec, plan: Plan) -> bool:
    """Whether ACLs or users are created on the target. ACLs that may not be listed do not mean "no ACLs"."""
    copies = spec.acls.policy != "skip" and spec.acls.target_auth == "kafka"
    if copies and (_unknown(plan, "ACLs") or any(acl.action in ("create", "deferred") for acl in plan.acls)):
        return True
    return any(user.action == "create" for user in plan.users)


def _unknown(plan: Plan, what: str) -> bool:
    return any(name.startswith(what) for name in plan.unknown)


def _missing(side: str, operation: str, resource: str, why: str, names: list[str] | None = None) -> Finding:
    place = f" for {some(names)}" if names else ""
    title = operation.title().replace("_", "")
    return finding(
        "B005",
        f"{side}: {title} on {resource}{place} ({why})",
        subject=f"{side} {resource} {title}",
        topics=names or [],
    )


def _source_topics(spec: MigrationSpec, source: Cluster, plan: Plan) -> Iterator[Finding]:
    wanted = {"READ": "to copy and compare", "DESCRIBE_CONFIGS": "to plan"}
    if spec.cutover.sentinel == "record" and spec.kind == "migration":
        wanted["WRITE"] = "cutover.sentinel: record"
    names = [topic.name for topic in plan.topics]
    yield from _topics(source, names, wanted)


def _target_topics(spec: MigrationSpec, target: Cluster, plan: Plan) -> Iterator[Finding]:
    there = [topic for topic in plan.topics if topic.exists_on_target]
    names = [topic.target_name for topic in there if not topic.merged]
    wanted = dict.fromkeys(("ALTER_CONFIGS", "DELETE", "DESCRIBE_CONFIGS", "READ", "WRITE"), "to copy into it")
    yield from _topics(target, names, wanted)
    merged = [topic.target_name for topic in there if topic.merged]
    yield from _topics(target, merged, dict.fromkeys(("DESCRIBE_CONFIGS", "READ", "WRITE"), "to copy into it"))
    absent = len(plan.topics) - len(there)
    if absent:
        yield finding(
            "I006", f"the allowed operations on {absent} topics that do not exist on the target yet", subject="target"
        )


def _topics(cluster: Cluster, names: list[str], wanted: dict[str, str]) -> Iterator[Finding]:
    missing: dict[str, list[str]] = {}
    facts = cluster.admin.describe_topics(names, operations=True) if names else {}
    for name, topic in sorted(facts.items()):
        if topic.operations is None:
            continue
        for operation in sorted(set(wanted) - with_implied(topic.operations)):
            missing.setdefault(operation, []).append(name)
    for operation, topics in sorted(missing.items()):
        yield _missing(cluster.role, operation, "Topic", wanted[operation], topics)


def _groups(target: Cluster, plan: Plan, spec: MigrationSpec) -> Iterator[Finding]:
    names = [group.group for group in plan.groups if group.type in MOVED]
    if not names:
        return
    wanted = {"READ": "to commit offsets"}
    if spec.groups.on_deleted == "repair":
        wanted["DELETE"] = "groups.on_deleted: repair"
    found = {name: item for name, item in target.admin.group_operations(names).items() if item is not None}
    for operation, why in wanted.items():
        refused = [name for name, operations in found.items() if operation not in with_implied(operations)]
        if refused:
            yield _missing("target", operation, "Group", why, refused)


def check_groups(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Groups that are active on the target, are of other kinds, or also read other topics."""
    others = [group for group in plan.groups if group.type not in MOVED]
    for group in others:
        yield finding("W071", f"its type is {group.type}", subject=group.group)
    newer = {group.group: group.type for group in plan.groups if group.type in ("share", "streams")}
    for name, state in target_states(context.target, newer).items():
        if state.cannot:
            yield finding("W071", state.cannot, subject=name)
    for group in plan.groups:
        if group.topics_in_scope and group.topics_out_of_scope:
            yield finding("W072", some(group.topics_out_of_scope), subject=group.group)
    names = [group.group for group in plan.groups if group not in others]
    described = context.target.admin.describe_groups(names) if names else {}
    for name, description in described.items():
        if description.error is None and not description.is_empty:
            seen = f"state {description.state}, {len(description.members)} members"
            yield finding("W070", seen, subject=name)


def check_left_out_groups(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Report every group that is left out; those that read migrated topics by name, except console consumers."""
    quiet = {f"groups.exclude: {pattern}" for pattern in GroupsSection().exclude}
    reading = [item for item in plan.excluded_groups if item.topics_in_scope and item.reason not in quiet]
    for item in reading:
        yield finding("W074", group_reason(item), subject=item.group)
    others = {item.group: group_reason(item) for item in plan.excluded_groups if item not in reading}
    if others:
        yield finding("I075", some([f"{name} ({why})" for name, why in others.items()]), groups=others)


def check_acls(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Report ACLs that the policy refuses, that have no equivalent, or that only the target has."""
    section = context.spec.acls
    if section.policy == "skip":
        return
    if not plan.source.authorizer:
        yield finding("I081", "SECURITY_DISABLED")
    elif not plan.target.authorizer and section.target_auth == "kafka":
        yield finding("W080", f"SECURITY_DISABLED; the source has {len(plan.acls)} bindings")
    by_action: dict[str, list[str]] = {}
    for acl in plan.acls:
        by_action.setdefault(acl.action, []).append(_acl_text(acl))
    missing, only_there = refused_acls(context.spec, plan.acls)
    different = [f"{_acl_text(acl)} (missing on the target)" for acl in missing]
    different += [f"{_acl_text(acl)} (only on the target)" for acl in only_there]
    if different:
        yield finding("B082", some(different), acls=different)
    if "unsupported" in by_action and plan.target.authorizer:
        yield finding("W083", some(by_action["unsupported"]), acls=by_action["unsupported"])
    if section.policy == "replace" and "target_only" in by_action:
        yield finding("W084", some(by_action["target_only"]), acls=by_action["target_only"])


def _acl_text(acl: AclPlan) -> str:
    return f"{acl.permission} {acl.principal} {acl.operation} {acl.resource_type} {acl.resource_name}"


def check_users(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Report users that cannot be created, and secrets that cannot be found."""
    report = [user.name for user in plan.users if user.action == "report"]
    if report:
        yield finding("W085", some(report), users=report)
    for user in plan.users:
        if user.action != "create":
            continue
        try:
            empty = not context.resolver.text(context.spec.acls.users[user.name]).strip()
        except MigrationError as error:
            yield finding("B086", error.what, subject=user.name)
            continue
        if empty:
            yield finding("B086", "the secret is empty", subject=user.name)


def check_quotas(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Report quotas with other values on the target, and group configs that the target cannot have."""
    refused = [entity_text(quota) for quota in refused_quotas(context.spec, plan.quotas)]
    if refused:
        yield finding("B088", some(refused), quotas=refused)
    changed = [entity_text(quota) for quota in plan.quotas if quota.action == "overwrite"]
    if changed and not refused:
        yield finding("W087", some(changed), quotas=changed)
    unsupported = [item.group for item in plan.group_configs if item.action == "unsupported"]
    if unsupported:
        yield finding("W089", some(unsupported), groups=unsupported)
