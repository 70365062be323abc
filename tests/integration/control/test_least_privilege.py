"""permissions.md is enough, and nothing in it is for show: a principal with exactly these rights gets through."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from airflow_provider_kafka_migration.access import permissions
from airflow_provider_kafka_migration.documents.plan import Plan, Severity
from airflow_provider_kafka_migration.kafka.admin.access import Acl
from airflow_provider_kafka_migration.kafka.admin.groups import GroupOffset
from airflow_provider_kafka_migration.pages.plan import as_text, diff_plans
from airflow_provider_kafka_migration.phases import plan as plan_phase
from airflow_provider_kafka_migration.phases import precheck, topology_copy
from airflow_provider_kafka_migration.planning.make import make_plan
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.state import State
from harness.brokers import KafkaCluster
from harness.processes import wait_for
from tests.integration.control.control_support import Control

pytestmark = pytest.mark.integration

USER = "bob"


@pytest.fixture
def prepared(
    make_control: Callable[..., Control],
    unique_name: Callable[[str], str],
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
) -> Iterator[Control]:
    """A topic whose log starts above 0, a group, an ACL and a quota to copy; a migrator without any right."""
    for cluster in (source_cluster, target_cluster):
        cluster.forget_rights(USER)
    stem = unique_name("least").replace(".", "-")[-40:]
    topic, group = f"{stem}-orders", f"{stem}-readers"
    pattern = [f"{stem}-.*"]
    control = make_control(
        f"{stem}-",
        user=USER,
        topics={"include": pattern},
        groups={"include": pattern},
        acls={"exclude_principals": [f"User:(?!{stem}).*"]},
    )
    control.source_cluster.create_topic(topic, 2)
    control.produce(topic, 20)
    admin = control.context(user="admin").source.admin
    admin.wire.delete_records({(topic, 0): 5})
    assert set(admin.alter_group_offsets(group, {(topic, 0): GroupOffset(7)}).values()) == {None}
    binding = Acl("TOPIC", topic, "LITERAL", f"User:{stem}-app", "*", "READ", "ALLOW")
    assert admin.create_acls([binding]) == {binding: None}
    quota = (("user", f"{stem}-app"),)
    assert admin.alter_quotas({quota: {"producer_byte_rate": 1e6}}) == {quota: None}
    yield control
    for cluster in (source_cluster, target_cluster):
        cluster.forget_rights(USER)


def _bindings(control: Control, plan: Plan, side: str) -> list[Acl]:
    return [
        Acl(item.resource_type, item.name, item.pattern_type, f"User:{USER}", "*", operation, "ALLOW")
        for item in permissions.needed(control.spec, plan)
        for operation in item.operations
        if item.side == side
    ]


def _grant(cluster: Cluster, bindings: list[Acl]) -> None:
    """These and no others; brokers learn of them a moment later."""
    assert set(cluster.admin.create_acls(bindings).values()) == {None}

    def has() -> bool:
        return {acl for acl in cluster.admin.describe_acls().acls if acl.principal == f"User:{USER}"} == set(bindings)

    wait_for(f"rights of {USER}", has, 120)


def test_the_rights_of_permissions_md_are_enough(prepared: Control) -> None:
    control = prepared
    admin = control.context(user="admin")
    as_admin = make_plan(admin)
    for side, cluster in (("source", admin.source), ("target", admin.target)):
        _grant(cluster, _bindings(control, as_admin, side))
    context = control.context()
    plan_phase.run(context)
    # But for topics and groups of others, which brokers hide from it, it sees all that a super user sees.
    hidden: dict[str, object] = {"excluded_topics": {}, "excluded_groups": []}
    seen_by_admin = make_plan(control.context(user="admin")).model_copy(update=hidden)
    seen = context.record.plan().model_copy(update=hidden)
    assert all(item.unread for item in context.record.plan().excluded_groups), "never taken for groups without offsets"
    assert as_text(diff_plans(seen_by_admin, seen, moving=True)) == "the plans are equal"
    result = precheck.run(context)
    blockers = [item for item in result.details["findings"] if item["severity"] == Severity.BLOCKER]
    assert blockers == []
    codes = {item["code"] for item in result.details["findings"]}
    assert not {"W025", "W073"} & codes, "markers may be written, offsets may be read"
    for state in (State.PRECHECK, State.TOPOLOGY_COPY):
        context.journal.transition(state, "test")
    done = topology_copy.run(context)
    assert done.details["acls"]["created"] == 1
    assert len(done.details["acls"]["quotas_set"]) == 1
    assert done.details["topology"]["log_starts_filled"] == {"partitions": 1, "offsets": 5}
    assert topology_copy.run(control.context()).already_done
    (group,) = context.record.plan().groups
    offsets = {(control.spec.topics.target_name(group.topics_in_scope[0]), 0): GroupOffset(5)}
    assert set(context.target.admin.alter_group_offsets(group.group, offsets).values()) == {None}


@pytest.mark.parametrize(
    ("side", "resource", "operation"),
    [
        ("source", "CLUSTER", "DESCRIBE"),
        ("source", "CLUSTER", "DESCRIBE_CONFIGS"),
        ("source", "TOPIC", "READ"),
        ("source", "TOPIC", "WRITE"),
        ("target", "CLUSTER", "ALTER"),
        ("target", "CLUSTER", "ALTER_CONFIGS"),
        ("target", "TOPIC", "CREATE"),
        ("target", "GROUP", "READ"),
        ("target", "TRANSACTIONAL_ID", "WRITE"),
    ],
)
def test_each_right_that_is_taken_away_is_missed(prepared: Control, side: str, resource: str, operation: str) -> None:
    control = prepared
    admin = control.context(user="admin")
    as_admin = make_plan(admin)
    for which, cluster in (("source", admin.source), ("target", admin.target)):
        bindings = _bindings(control, as_admin, which)
        if which == side:
            kept = [acl for acl in bindings if (acl.resource_type, acl.operation) != (resource, operation)]
            assert len(kept) < len(bindings)
            bindings = kept
        _grant(cluster, bindings)
    context = control.context()
    plan_phase.run(context)
    findings = precheck.find_all(context, context.record.plan())
    named = [item for item in findings if item.severity is Severity.BLOCKER and item.code in ("B005", "B007")]
    assert named, [str(item) for item in findings]
    words = operation.title().replace("_", "")
    assert any(words.lower() in (item.seen + item.subject).lower().replace(" ", "") for item in named), named
