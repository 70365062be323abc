"""What has changed on the source since the plan: topic configs, ACLs, SCRAM users, client quotas. Only reads.

The target is compared with the source's current state. What cannot be read raises or is named; it never means "nothing
has changed" (for ACLs see :mod:`~.access.source_listing`). The DENY bindings of the migration's own freeze
(``cutover.freeze: acl``) are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from airflow_provider_kafka_migration.access import apply, created_access, source_listing
from airflow_provider_kafka_migration.access.mapping import make_plans, plan_users, target_acl
from airflow_provider_kafka_migration.documents.plan import AclPlan, ConfigChange, Plan, TopicPlan, UserPlan
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.admin.access import Acl, AclListing, QuotaEntity
from airflow_provider_kafka_migration.kafka.admin.topics import Configs
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.topics import probe
from airflow_provider_kafka_migration.topics.configs import TargetRules, changes, final_configs, with_excluded

PHASE = "tail"
_UNGUARDED = (
    "the target no longer has an authorizer, so everybody may write to its topics, and no ACL follows: configure one "
    "again, and the next pass brings its ACLs up to date"
)
_NO_ANSWER = ItemError(-1, "NO_ANSWER", "the broker did not answer for this topic", retriable=True)


@dataclass(frozen=True)
class SourceDrift:
    """How the source differs from the plan (configs) and from the target (access).

    :param configs: by source topic.
    :param missing_acls: bindings that the source has and the target does not, under the target's names.
    :param surplus_acls: bindings that this migration created and that the source no longer has.
    :param absent_acls: those of which the target shows none, either: whoever removed them may have died before the
        journal knew. They are removed once more, so that the journal no longer counts them as the migration's own.
    :param quotas: values to set on the target, ``None`` to remove one; ``present_quotas`` holds the target's values.
    :param new_users: users to create; ``gone_users`` holds those that this migration created and the source has lost.
    :param named: changes that can only be named: what it is, and why or what to do.
    """

    configs: Mapping[str, ConfigChange] = field(default_factory=dict)
    missing_acls: tuple[Acl, ...] = ()
    surplus_acls: tuple[Acl, ...] = ()
    absent_acls: tuple[Acl, ...] = ()
    quotas: Mapping[QuotaEntity, Mapping[str, float | None]] = field(default_factory=dict)
    present_quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)
    new_users: tuple[str, ...] = ()
    gone_users: tuple[str, ...] = ()
    named: Mapping[str, str] = field(default_factory=dict)

    @property
    def config_lines(self) -> list[str]:
        """Changed topic configs for people."""
        return [
            f"topic {name}: {', '.join(_changed(change.former_configs, change.source_configs))}"
            for name, change in sorted(self.configs.items())
        ]

    @property
    def acl_lines(self) -> list[str]:
        """Changed ACLs for people."""
        lines = [f"ACL only on the source: {acl}" for acl in self.missing_acls]
        return lines + [f"ACL no longer on the source: {acl}" for acl in self.surplus_acls]

    @property
    def other_lines(self) -> list[str]:
        """Changed users and quotas for people."""
        lines = [f"user only on the source: {name}" for name in self.new_users]
        lines += [f"user no longer on the source: {name}" for name in self.gone_users]
        return lines + self.quota_lines

    @property
    def quota_lines(self) -> list[str]:
        """Changed quotas for people."""
        lines = []
        for entity, values in self.quotas.items():
            who = ", ".join(f"{kind} {name if name is not None else '(default)'}" for kind, name in entity)
            there = self.present_quotas.get(entity, {})
            lines += [
                f"quota of {who}: {key} is {_value(there.get(key))} on the target, and should be {_value(value)}"
                for key, value in sorted(values.items())
            ]
        return lines

    @property
    def lines(self) -> list[str]:
        """Everything that can be taken over, for people."""
        return [*self.config_lines, *self.acl_lines, *self.other_lines]


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [
        f"{name} {before.get(name, '(default)')} -> {value if value is not None else '(default)'}"
        for name, value in changes(before, now).items()
    ]


def _value(value: float | None) -> str:
    return "not set" if value is None else f"{value:g}"


def read_drift(record: MigrationRecord, source: Cluster, target: Cluster, plan: Plan) -> SourceDrift:
    """Compare the source with the plan and the target.

    :raises MigrationError: something cannot be read; the error names it and the missing right.
    """
    configs = _configs(record, source, target, plan)
    if not record.is_access_copied():
        return SourceDrift(configs=configs)
    acls = _acls(record, source, target, plan)
    quotas, present = _quotas(record, source, target)
    new_users, gone_users, named = _users(record, source, target, plan)
    return replace(
        acls,
        configs=configs,
        quotas=quotas,
        present_quotas=present,
        new_users=tuple(new_users),
        gone_users=tuple(gone_users),
        named={**acls.named, **named},
    )


# -- topic configs ---------------------------------------------------------------------------------------------------


def _configs(record: MigrationRecord, source: Cluster, target: Cluster, plan: Plan) -> dict[str, ConfigChange]:
    """Topics whose overrides on the source differ from the plan, except shared topics, which end as they were."""
    topics = {topic.name: topic for topic in plan.topics if not topic.shared}
    found = source.admin.topic_configs(sorted(topics)) if topics else {}
    changed: dict[str, Configs] = {}
    for name, topic in sorted(topics.items()):
        item = found.get(name, Configs(name, error=_NO_ANSWER))
        if item.error is not None:
            if item.error.code == error_codes.UNKNOWN_TOPIC_OR_PARTITION:
                continue  # it was deleted: another check reports that
            raise item.error.exception(
                "configs of a source topic cannot be read, so it is unknown whether they have changed",
                record.where(PHASE, cluster="source", topic=name),
                operation="DescribeConfigs on Topic",
            )
        if item.overrides != topic.source_configs:
            changed[name] = item
    if not changed:
        return {}
    rules = _rules(record, target, plan)
    return {name: _change(record, topics[name], item, rules) for name, item in changed.items()}


def _change(record: MigrationRecord, topic: TopicPlan, found: Configs, rules: TargetRules) -> ConfigChange:
    section = record.spec.topology
    wanted, dropped = final_configs(found, rules, section, topic.replication_factor)
    wanted = with_excluded(wanted, topic.target_configs, section.config_exclude)
    settings = record.copy_settings()
    known = settings.topics.get(topic.target_name) if settings is not None else None
    if section.on_config_drift == "note" and known is not None and known.before is not None:
        wanted, dropped = dict(topic.target_configs), dict(topic.dropped_configs)
    return ConfigChange(
        former_configs=dict(topic.source_configs),
        source_configs=dict(sorted(found.overrides.items())),
        target_configs=wanted,
        dropped_configs=dropped,
    )


def _rules(record: MigrationRecord, target: Cluster, plan: Plan) -> TargetRules:
    """What the target knows about topic configs; the request uses a name that no topic has."""
    admin = target.admin
    answer = admin.new_topic_configs(probe.scratch_topic(record, target))
    if answer.error is not None and answer.error.code != error_codes.UNSUPPORTED_VERSION:
        raise answer.error.exception(
            "defaults of new topics on the target cannot be read", record.where(PHASE, cluster="target")
        )
    defaults = None if answer.error else {name: item.value for name, item in answer.values.items()}
    broker = admin.broker_configs(plan.target.brokers[0])
    tiered = None if broker.error else broker.get("remote.log.storage.system.enable", "false") == "true"
    return TargetRules(plan.target, defaults, tiered)


# -- ACLs ------------------------------------------------------------------------------------------------------------


def _acls(record: MigrationRecord, source: Cluster, target: Cluster, plan: Plan) -> SourceDrift:
    """Return how the ACLs of both sides differ, and nothing else."""
    section = record.spec.acls
    if section.policy == "skip" or section.target_auth != "kafka":
        return SourceDrift()
    on_source = source_listing.read_acls(record, source)
    there, ours = target.admin.describe_acls(), created_access.created_acls(record)
    if not there.authorizer:
        return SourceDrift(named={"ACLs of the target": _UNGUARDED} if plan.target.authorizer or ours else {})
    missing = {target_acl(item) for item in _plans(record, on_source, there, _names(plan)) if item.action == "create"}
    gone = ours - _wanted(record, on_source, there) if ours else set()
    surplus, absent = gone & set(there.acls), gone - set(there.acls)
    if not on_source:
        if surplus:
            raise source_listing.none_at_all(record, "ACLs")
        # Nothing is left that an empty list would have to prove.
        return SourceDrift(missing_acls=tuple(sorted(missing)))
    if gone:
        kept = _wanted(record, source_listing.of_all_brokers(record, source), there)
        surplus, absent = surplus - kept, absent - kept
    return SourceDrift(
        missing_acls=tuple(sorted(missing)), surplus_acls=tuple(sorted(surplus)), absent_acls=tuple(sorted(absent))
    )


def _names(plan: Plan) -> set[str]:
    return {topic.name for topic in plan.topics}


def _plans(record: MigrationRecord, acls: tuple[Acl, ...], target: AclListing, topics: set[str]) -> list[AclPlan]:
    return make_plans(record.spec, acls, target, topics, writes_granted=record.are_writes_granted())


def _wanted(record: MigrationRecord, acls: tuple[Acl, ...], target: AclListing) -> set[Acl]:
    """All bindings that the source still has for topics that were ever part of the migration, held back or not."""
    topics = record.ever_planned()
    plans = make_plans(record.spec, acls, target, topics, writes_granted=True)
    if record.spec.acls.write_grants != "at_once":
        # READ that was given until ALL is granted stays next to ALL. Planned for a target that has neither, because a
        # target that has ALL no longer gets READ.
        plans += make_plans(record.spec, acls, AclListing(target.authorizer), topics, writes_granted=False)
    return {target_acl(item) for item in plans if item.action != "target_only"}


# -- quotas ----------------------------------------------------------------------------------------------------------


def _quotas(
    record: MigrationRecord, source: Cluster, target: Cluster
) -> tuple[dict[QuotaEntity, dict[str, float | None]], dict[QuotaEntity, dict[str, float]]]:
    """(values to set on the target, values that it has)."""
    policy = record.spec.quota_policy
    if policy == "skip":
        return {}, {}
    plans = apply.quota_plans(record, source, target)
    source_quotas = {_entity(plan.entity): dict(plan.values) for plan in plans}
    present = {_entity(plan.entity): dict(plan.target_values) for plan in plans}
    ours = created_access.set_by_us(record)
    found: dict[QuotaEntity, dict[str, float | None]] = {}
    for entity, values in source_quotas.items():
        there = present.get(entity, {})
        for key, value in values.items():
            is_ours = (entity, key) in ours and ours[entity, key][0] == there.get(key)
            if there.get(key) != value and (key not in there or policy != "keep_target" or is_ours):
                found.setdefault(entity, {})[key] = value
    gone = {
        (entity, key): before
        for (entity, key), (value, before) in ours.items()
        if key not in source_quotas.get(entity, {}) and present.get(entity, {}).get(key) == value
    }
    if gone and not any(source_quotas.values()):
        raise source_listing.none_at_all(record, "client quotas")
    return _agreed(source, found, gone, present), present


_Quotas = dict[QuotaEntity, dict[str, float | None]]


def _agreed(
    source: Cluster,
    found: _Quotas,
    gone: Mapping[tuple[QuotaEntity, str], float | None],
    present: Mapping[QuotaEntity, Mapping[str, float]],
) -> _Quotas:
    """Leave out changes of values that the target has, unless all brokers of the source show the same.

    A broker that lags behind shows what a quota was, or nothing.
    """
    replaces = any(key in present.get(entity, {}) for entity, values in found.items() for key in values)
    known = source_listing.quotas_of_all_brokers(source) if gone or replaces else {}

    def shown(entity: QuotaEntity, key: str) -> set[float]:
        return known.get(entity, {}).get(key, set())

    agreed: _Quotas = {}
    for entity, values in found.items():
        for key, value in values.items():
            if key not in present.get(entity, {}) or shown(entity, key) == {value}:
                agreed.setdefault(entity, {})[key] = value
    for (entity, key), before in gone.items():
        if not shown(entity, key):
            agreed.setdefault(entity, {})[key] = before
    return agreed


def _entity(parts: list[tuple[str, str | None]]) -> QuotaEntity:
    return tuple((kind, name) for kind, name in parts)


# -- users -----------------------------------------------------------------------------------------------------------


def _users(
    record: MigrationRecord, source: Cluster, target: Cluster, plan: Plan
) -> tuple[list[str], list[str], dict[str, str]]:
    """(to be created, to be removed, what can only be named)."""
    unread: dict[str, str] = {}
    now = {user.name: user for user in plan_users(record.spec, source, target, unread)}
    if unread:
        return [], [], {f"{what} cannot be read": why for what, why in sorted(unread.items())}
    created = created_access.created_users(record)
    new = [name for name, user in sorted(now.items()) if user.action == "create" and name not in created]
    listed = {name for name, user in now.items() if user.credentials}
    before = {user.name: user for user in plan.users if user.credentials}
    gone = sorted(name for name in created if name in before and name not in listed)
    if gone and not listed:
        raise source_listing.none_at_all(record, "SCRAM users")
    if gone:
        known = source_listing.users_of_all_brokers(source)
        gone = [name for name in gone if name not in known]
    return new, gone, _named_users(before, now, {*new, *gone})


def _named_users(before: Mapping[str, UserPlan], now: Mapping[str, UserPlan], handled: set[str]) -> dict[str, str]:
    named = {}
    for name in sorted((before.keys() | now.keys()) - handled):
        was, is_now = before.get(name), now.get(name)
        if is_now is None or not is_now.credentials:
            if was is not None:
                named[f"user {name}"] = (
                    "it was removed on the source; the target's user is not this migration's and stays"
                )
        elif was is None:
            if is_now.action == "report":
                named[f"user {name}"] = f"new on the source; {is_now.reason}"
        elif was.credentials != is_now.credentials:
            named[f"user {name}"] = "its credentials on the source have changed: set its secret on the target again"
    return named


# -- write withdrawals ------------------------------------------------------------------------------------------------
#
# Which changes of the source withdraw write access: an operator may use them to stop the producers for the cutover.
#
# On the target they would stop the same producers after the client switch, where nothing reverses them any more.


_WRITING = frozenset({"WRITE", "ALL", "IDEMPOTENT_WRITE"})
_WRITTEN = frozenset({"TOPIC", "TRANSACTIONAL_ID", "CLUSTER"})
#: Quotas that slow producers down.
_PRODUCING = frozenset({"producer_byte_rate", "request_percentage"})
_EVERYBODY = "User:*"


def split(drift: SourceDrift) -> tuple[SourceDrift, SourceDrift]:
    """(everything else, what withdraws write access: new DENY of writing, removed ALLOW of writing, removed users,
    lower quotas for producers)."""
    denied = tuple(acl for acl in drift.missing_acls if acl.permission == "DENY" and _is_writing(acl))
    revoked = tuple(acl for acl in drift.surplus_acls if acl.permission == "ALLOW" and _is_writing(acl))
    lower = {entity: _lower(values, drift.present_quotas.get(entity, {})) for entity, values in drift.quotas.items()}
    other = {
        entity: {key: value for key, value in values.items() if key not in lower[entity]}
        for entity, values in drift.quotas.items()
    }
    withdrawn = SourceDrift(
        missing_acls=denied,
        surplus_acls=revoked,
        quotas=_not_empty(lower),
        present_quotas=drift.present_quotas,
        gone_users=drift.gone_users,
    )
    rest = replace(
        drift,
        missing_acls=tuple(acl for acl in drift.missing_acls if acl not in denied),
        surplus_acls=tuple(acl for acl in drift.surplus_acls if acl not in revoked),
        # The target may have such a right after all: a broker that has just started shows fewer ACLs than there are.
        absent_acls=tuple(acl for acl in drift.absent_acls if acl.permission == "DENY" or not _is_writing(acl)),
        quotas=_not_empty(other),
        gone_users=(),
    )
    return rest, withdrawn


def _is_writing(acl: Acl) -> bool:
    return acl.resource_type in _WRITTEN and acl.operation in _WRITING


def _lower(values: Mapping[str, float | None], there: Mapping[str, float]) -> dict[str, float | None]:
    """Lower values; a value that the source has removed is no longer a limit, so it is not lower."""
    return {
        key: value
        for key, value in values.items()
        if key in _PRODUCING and value is not None and (key not in there or value < there[key])
    }


def _not_empty(
    quotas: Mapping[QuotaEntity, Mapping[str, float | None]],
) -> dict[QuotaEntity, Mapping[str, float | None]]:
    return {entity: values for entity, values in quotas.items() if values}


def without_open_doors(rest: SourceDrift, withdrawn: SourceDrift) -> tuple[SourceDrift, SourceDrift]:
    """(what may be taken over without the withdrawals, what may not).

    Creating an ALLOW whose DENY is held back, or removing a DENY whose ALLOW stays, would give the target's users more
    than the source gives them.
    """
    allows = tuple(
        acl
        for acl in rest.missing_acls
        if acl.permission == "ALLOW" and any(_meet(acl, deny) for deny in withdrawn.missing_acls)
    )
    denies = tuple(
        acl
        for acl in rest.surplus_acls
        if acl.permission == "DENY" and any(_meet(acl, allow) for allow in withdrawn.surplus_acls)
    )
    safe = replace(
        rest,
        missing_acls=tuple(acl for acl in rest.missing_acls if acl not in allows),
        surplus_acls=tuple(acl for acl in rest.surplus_acls if acl not in denies),
    )
    return safe, SourceDrift(missing_acls=allows, surplus_acls=denies)


def _meet(first: Acl, second: Acl) -> bool:
    """Whether two bindings may concern the same right; resource names are not compared, which errs toward "yes"."""
    principals, operations = {first.principal, second.principal}, {first.operation, second.operation}
    return (
        first.resource_type == second.resource_type
        and (len(principals) == 1 or _EVERYBODY in principals)
        and (len(operations) == 1 or "ALL" in operations)
    )
