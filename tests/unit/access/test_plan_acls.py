"""Which ACLs go to the target, under which names, and which do not and why."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_kafka_migration.access.iam import access_map
from airflow_provider_kafka_migration.access.mapping import make_plans, target_acl
from airflow_provider_kafka_migration.documents.plan import AclPlan
from airflow_provider_kafka_migration.kafka.admin.access import Acl, AclListing
from airflow_provider_kafka_migration.spec import MigrationSpec, parse_spec


def _spec(**sections: Any) -> MigrationSpec:
    data: dict[str, Any] = {
        "migration_id": "m",
        "source": {"conn_id": "env:SOURCE"},
        "target": {"conn_id": "env:TARGET"},
        "storage": {"journal": "file:///tmp/journal"},
    }
    return parse_spec({**data, **sections})


def _acl(kind: str, name: str, operation: str = "READ", pattern: str = "LITERAL", **more: str) -> Acl:
    return Acl(
        kind,
        name,
        pattern,
        more.get("principal", "User:app"),
        more.get("host", "*"),
        operation,
        more.get("allow", "ALLOW"),
    )


def _plans(
    bindings: list[Acl],
    *,
    target: list[Acl] | None = None,
    topics: str = "orders",
    enforced: bool = True,
    **options: Any,
) -> list[AclPlan]:
    granted = options.pop("writes_granted", True)
    listing = AclListing(enforced, tuple(target or ()))
    return make_plans(_spec(**options), bindings, listing, set(topics.split()), writes_granted=granted)


@pytest.mark.parametrize(
    ("acl", "why"),
    [
        (_acl("TOPIC", "orders", principal="User:ANONYMOUS"), "principal excluded"),
        (_acl("TOPIC", "__consumer_offsets"), "internal topic"),
        (_acl("TOPIC", "__", pattern="PREFIXED"), "internal topic"),
        (_acl("CLUSTER", "kafka-cluster", "CLUSTER_ACTION"), "belongs to the brokers"),
        (_acl("TOPIC", "payments"), "topic not migrated"),
        (_acl("TOPIC", "pay", pattern="PREFIXED"), "no topic of the migration"),
    ],
)
def test_what_is_left_out_says_why(acl: Acl, why: str) -> None:
    (plan,) = _plans([acl])
    assert plan.action == "filtered"
    assert why in plan.reason


@pytest.mark.parametrize(
    "acl",
    [
        _acl("TOPIC", "orders"),
        _acl("TOPIC", "ord", pattern="PREFIXED"),
        _acl("TOPIC", "*", "DESCRIBE"),
        _acl("TOPIC", "orders", "READ", allow="DENY"),
        _acl("GROUP", "any-group"),
        _acl("GROUP", "g-", pattern="PREFIXED"),
        _acl("TRANSACTIONAL_ID", "tx", "WRITE"),
        _acl("CLUSTER", "kafka-cluster", "ALTER"),
        _acl("DELEGATION_TOKEN", "token", "DESCRIBE"),
        _acl("TOPIC", "orders", host="10.0.0.1"),
    ],
)
def test_all_kinds_are_copied_as_they_are(acl: Acl) -> None:
    (plan,) = _plans([acl])
    assert (plan.action, target_acl(plan)) == ("create", acl)
    (there,) = _plans([acl], target=[acl])
    assert there.action == "exists"


def test_bindings_of_newer_brokers_and_targets_without_authorizer_are_named() -> None:
    (unknown,) = _plans([_acl("TOPIC", "orders", "UNKNOWN_99")])
    assert unknown.action == "unsupported"
    (open_target,) = _plans([_acl("TOPIC", "orders")], enforced=False)
    assert (open_target.action, open_target.reason) == ("unsupported", "the target has no authorizer")


def test_bindings_of_the_target_alone_are_reported_but_not_the_migration_s_own() -> None:
    own = _acl("CLUSTER", "kafka-cluster", "ALTER", principal="User:migrator")
    other = _acl("TOPIC", "orders", "WRITE", principal="User:other")
    elsewhere = _acl("TOPIC", "not-ours", "WRITE", principal="User:other")
    acls = {"exclude_principals": ["User:migrator"]}
    (plan,) = _plans([], target=[own, other, elsewhere], acls=acls)
    assert (plan.action, plan.principal, plan.resource_name) == ("target_only", "User:other", "orders")


def test_literal_bindings_follow_their_topics() -> None:
    rename = {"prefix": "old.", "topics": {"payments": "money"}}
    plans = make_plans(
        _spec(topics={"rename": rename}),
        [_acl("TOPIC", "orders"), _acl("TOPIC", "payments")],
        AclListing(True),
        {"orders", "payments"},
    )
    assert sorted(plan.target_resource_name for plan in plans) == ["money", "old.orders"]


def test_prefixed_bindings_are_renamed_where_that_is_sound() -> None:
    rename = {"prefix": "old.", "topics": {"shop.secret": "vault"}}
    plans = make_plans(
        _spec(topics={"rename": rename}),
        [_acl("TOPIC", "shop.", pattern="PREFIXED")],
        AclListing(True),
        {"shop.orders", "shop.secret"},
    )
    assert [(plan.pattern_type, plan.target_resource_name) for plan in plans] == [
        ("LITERAL", "vault"),
        ("PREFIXED", "old.shop."),
    ]
    assert "an individual name" in plans[0].reason


def test_write_is_deferred_and_all_becomes_read_until_then() -> None:
    section = {"write_grants": "at_cutover"}
    acls = [_acl("TOPIC", "orders", "WRITE"), _acl("TOPIC", "orders", "ALL", principal="User:owner")]
    plans = _plans(acls, acls=section, writes_granted=False)
    assert sorted((plan.operation, plan.action) for plan in plans) == [
        ("ALL", "deferred"),
        ("READ", "create"),
        ("WRITE", "deferred"),
    ]
    denied = _plans([_acl("TOPIC", "orders", "WRITE", allow="DENY")], acls=section, writes_granted=False)
    assert [plan.action for plan in denied] == ["create"]
    assert {plan.action for plan in _plans(acls, acls=section)} == {"create"}


def test_plans_do_not_depend_on_the_order_of_the_listing() -> None:
    acls = [_acl("TOPIC", "orders", operation) for operation in ("WRITE", "READ", "DESCRIBE")]
    assert _plans(acls) == _plans(acls[::-1])


def test_the_access_map_has_denials_prefixes_and_what_has_no_equivalent() -> None:
    plans = _plans(
        [
            _acl("TOPIC", "ord", "WRITE", "PREFIXED"),
            _acl("TOPIC", "orders", "DELETE", allow="DENY"),
            _acl("CLUSTER", "kafka-cluster", "CREATE"),
            _acl("DELEGATION_TOKEN", "token", "DESCRIBE"),
        ]
    )
    found = access_map("m", None, plans)
    statements = {
        (item.effect, item.resources[0].rsplit(":", 1)[1]): item.actions for item in found.principals["User:app"]
    }
    assert statements["Allow", "topic/CLUSTER/UUID/ord*"] == ["kafka-cluster:DescribeTopic", "kafka-cluster:WriteData"]
    assert statements["Deny", "topic/CLUSTER/UUID/orders"] == ["kafka-cluster:DeleteTopic"]
    assert statements["Allow", "cluster/CLUSTER/UUID"] == ["kafka-cluster:Connect"]
    assert len(found.without_equivalent) == 2


@pytest.mark.parametrize("two_way", [False, True])
def test_flows_in_both_directions_leave_other_acls_to_people(two_way: bool) -> None:
    mirror = {"source_alias": "A", "target_alias": "B", "two_way": two_way}
    bindings = [
        _acl("TOPIC", "orders"),
        _acl("TOPIC", "*"),
        _acl("GROUP", "billing"),
        _acl("TRANSACTIONAL_ID", "app", pattern="PREFIXED"),
    ]
    plans = _plans(bindings, target=[_acl("GROUP", "of-b")], kind="mirror", mirror=mirror)
    copied = {(plan.resource_type, plan.target_resource_name) for plan in plans if plan.action == "create"}
    others = {("TOPIC", "A."), ("GROUP", "billing"), ("TRANSACTIONAL_ID", "app")}
    assert copied == {("TOPIC", "A.orders")} | (set() if two_way else others)
    left = [plan for plan in plans if plan.action == "filtered"]
    assert all("mirror.two_way" in plan.reason for plan in left)
    assert len(left) == (3 if two_way else 0), "and what only the target has is not our business"
    assert {plan.action for plan in plans if plan.resource_name == "of-b"} == (set() if two_way else {"target_only"})


def test_flows_in_both_directions_copy_no_quotas() -> None:
    mirror = {"source_alias": "A", "target_alias": "B", "two_way": True}
    assert _spec(kind="mirror", mirror=mirror).quota_policy == "skip"
    assert _spec(kind="mirror", mirror={**mirror, "two_way": False}).quota_policy == "copy"
    assert _spec(acls={"quotas": "keep_target"}).quota_policy == "keep_target"


def _of_mirror(bindings: list[Acl], naming: str = "default", **acls: Any) -> list[AclPlan]:
    mirror = {"source_alias": "A", "target_alias": "B", "naming": naming}
    return _plans(bindings, kind="mirror", mirror=mirror, acls=acls, writes_granted=False)


def _created(plans: list[AclPlan]) -> set[tuple[str, str, str]]:
    """(pattern, name on the target, operation) of what is created."""
    return {(plan.pattern_type, plan.target_resource_name, plan.operation) for plan in plans if plan.action == "create"}


@pytest.mark.parametrize(("naming", "there"), [("default", ("PREFIXED", "A.")), ("identity", ("LITERAL", "*"))])
def test_a_right_to_all_topics_of_the_source_reaches_only_its_topics_where_names_tell(
    naming: str, there: tuple[str, str]
) -> None:
    bindings = [_acl("TOPIC", "*", "READ"), _acl("TOPIC", "*", "WRITE", principal="User:shop")]
    plans = _of_mirror(bindings, naming)
    assert _created(plans) == {(*there, "READ")}
    assert [target_acl(plan).operation for plan in plans if plan.action == "deferred"] == ["WRITE"]
    assert {(plan.pattern_type, plan.target_resource_name) for plan in plans} == {there}


def test_the_rules_of_mirror_maker() -> None:
    """Only ACLs of single topics; WRITE never, and READ instead of ALL; denials as they are."""
    bindings = [
        _acl("TOPIC", "orders", "DESCRIBE"),
        _acl("TOPIC", "orders", "ALL", principal="User:owner"),
        _acl("TOPIC", "orders", "WRITE", principal="User:shop"),
        _acl("TOPIC", "orders", "WRITE", principal="User:bad", allow="DENY"),
        _acl("TOPIC", "ord", pattern="PREFIXED"),
        _acl("TOPIC", "*"),
        _acl("GROUP", "billing"),
        _acl("CLUSTER", "kafka-cluster", "DESCRIBE"),
        _acl("TRANSACTIONAL_ID", "app", "WRITE"),
    ]
    plans = _of_mirror(bindings, policy="mirror_maker")
    created = {(plan.principal, plan.operation, plan.permission) for plan in plans if plan.action == "create"}
    assert created == {
        ("User:app", "DESCRIBE", "ALLOW"),
        ("User:owner", "READ", "ALLOW"),
        ("User:bad", "WRITE", "DENY"),
    }
    assert {plan.target_resource_name for plan in plans if plan.action == "create"} == {"A.orders"}
    left = [plan for plan in plans if plan.action == "filtered"]
    assert len(left) == 5
    assert all("mirror_maker" in plan.reason for plan in left)
    assert {plan.operation for plan in plans if plan.action == "deferred"} == {"ALL", "WRITE"}
