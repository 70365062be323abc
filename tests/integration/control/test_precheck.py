"""Findings of the precheck on real brokers: each with its code, all at once, waived only where that is allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from airflow_provider_kafka_migration.documents.plan import Finding, Severity
from airflow_provider_kafka_migration.errors import PrecheckBlocked
from airflow_provider_kafka_migration.kafka.admin.groups import GroupOffset
from airflow_provider_kafka_migration.phases import plan as plan_phase
from airflow_provider_kafka_migration.phases import precheck
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.topics import configs, copy_settings
from airflow_provider_kafka_migration.topics.probe import scratch_topic
from harness.brokers import KafkaCluster
from harness.processes import wait_for
from tests.integration.control.control_support import Control, copy_topics

pytestmark = pytest.mark.integration


def _look(context: PhaseContext) -> list[Finding]:
    plan_phase.run(context)
    return precheck.find_all(context, context.record.plan())


def _codes(findings: list[Finding]) -> set[str]:
    return {item.code for item in findings}


def test_a_clean_migration_passes_and_the_probe_leaves_nothing(control: Control) -> None:
    name = f"{control.prefix}orders"
    control.source_cluster.create_topic(name, 2)
    control.produce(name, 5)
    context = control.context()
    plan_phase.run(context)
    result = precheck.run(context)
    assert result.details["counts"]["Blocker"] == 0
    assert "W033" in {item["code"] for item in result.details["findings"]}
    assert context.record.stored_result("precheck")["plan_digest"] == context.record.plan().digest()
    scratch = scratch_topic(context.record, context.target)
    assert context.target.admin.describe_topics([scratch])[scratch].error is not None
    assert context.target.admin.describe_topics([name])[name].error is not None


def test_all_findings_come_at_once_and_block(control: Control) -> None:
    prefix = control.prefix
    names = {stem: f"{prefix}{stem}" for stem in ("foreign", "wide", "narrow", "policy")}
    control.source_cluster.create_topics(
        {
            names["foreign"]: (1, {}),
            names["wide"]: (1, {}),
            names["narrow"]: (3, {}),
            names["policy"]: (1, {"cleanup.policy": "compact", "message.downconversion.enable": "false"}),
        }
    )
    control.target_cluster.create_topics(
        {names["foreign"]: (1, {}), names["wide"]: (2, {}), names["narrow"]: (1, {}), names["policy"]: (1, {})}
    )
    control.produce(names["foreign"], 3, cluster=control.target_cluster)
    context = control.context(
        evidence={"signing_key": "env:THIS_IS_NOT_SET"}, waive={"W015": "agreed with its owner", "B010": ""}
    )
    plan_phase.run(context)
    with pytest.raises(PrecheckBlocked) as caught:
        precheck.run(context)
    found = {(item["code"], item["subject"]): item for item in caught.value.details["findings"]}
    for key in (("B010", names["foreign"]), ("B013", names["wide"]), ("I014", names["narrow"])):
        assert key in found
    assert found["B010", names["foreign"]]["waived"] is False
    assert found["W015", names["policy"]]["waived"] is True
    assert ("W017", "message.downconversion.enable") in found
    assert ("B040", "") in found
    assert ("B001", "waive") in found
    waived = context.journal.find_step(steps.FINDINGS_WAIVED)
    assert waived is not None
    assert "W015 (agreed with its owner)" in waived.reason
    assert waived.details["why"]["W015"] == "agreed with its owner"
    assert waived.actor == "test"


def test_missing_permissions_are_named_one_by_one(
    make_control: Callable[..., Control], source_cluster: KafkaCluster, target_cluster: KafkaCluster
) -> None:
    for cluster in (source_cluster, target_cluster):
        cluster.forget_rights("alice")
    control = make_control(user="alice")
    name = f"{control.prefix}orders"
    group = f"{control.prefix}readers"
    source_cluster.create_topic(name)
    source_cluster.allow("alice", "topic", control.prefix, ["describe", "describe_configs"], prefixed=True)
    source_cluster.allow("alice", "group", control.prefix, ["describe"], prefixed=True)
    target_cluster.allow("alice", "topic", control.prefix, ["describe"], prefixed=True)
    target_cluster.allow("alice", "group", control.prefix, ["describe"], prefixed=True)
    admin = control.context(user="admin").source.admin
    assert set(admin.alter_group_offsets(group, {(name, 0): GroupOffset(0)}).values()) == {None}
    weak = control.context()

    def known() -> bool:
        listed = group in weak.source.admin.list_groups()
        return listed and weak.target.admin.group_operations([group])[group] is not None

    wait_for("the brokers to know alice's rights", known, 120)
    findings = _look(control.context())
    missing = {item.subject for item in findings if item.code == "B005"}
    assert {
        "source Topic Read",
        "source Topic Write",
        "source Cluster Describe",
        "target Cluster Alter",
        "target Cluster DescribeConfigs",
        "target Group Read",
        name,  # Create, asked by a validate-only request
    } <= missing
    assert "source Topic DescribeConfigs" not in missing
    hidden = {item.subject for item in findings if item.code == "B007"}
    assert {"ACLs on the source", "client quotas on the source"} <= hidden
    assert all(item.severity is Severity.BLOCKER for item in findings if item.code in ("B005", "B007"))


def test_groups_that_read_elsewhere_and_users_without_a_secret(
    control: Control, unique_name: Callable[[str], str]
) -> None:
    inside, outside = f"{control.prefix}in", unique_name("outside")
    control.source_cluster.create_topics({inside: (1, {}), outside: (1, {})})
    context = control.context()
    group = f"{control.prefix}readers"
    offsets = {(inside, 0): GroupOffset(0), (outside, 0): GroupOffset(0)}
    assert set(context.source.admin.alter_group_offsets(group, offsets).values()) == {None}
    findings = _look(control.context(acls={"users": {"nobody-yet": "env:THIS_IS_NOT_SET"}}))
    (spanning,) = [item for item in findings if item.code == "W072" and item.subject == group]
    assert outside in spanning.seen
    assert ("B086", "nobody-yet") in {(item.code, item.subject) for item in findings}


def test_topics_that_the_target_refuses_are_found_before_anything_is_made(control: Control) -> None:
    name = f"{control.prefix}orders"
    control.source_cluster.create_topic(name)
    context = control.context()
    plan_phase.run(context)
    plan = context.record.plan()
    bad = plan.topics[0].model_copy(update={"target_configs": {"retention.ms": "not-a-number"}})
    findings = precheck.find_all(context, plan.model_copy(update={"topics": [bad]}))
    (refused,) = [item for item in findings if item.code == "B019"]
    assert "retention.ms" in refused.seen
    assert context.target.admin.describe_topics([name])[name].error is not None


@contextmanager
def longest_compaction_lag(cluster: KafkaCluster, milliseconds: int) -> Iterator[None]:
    """All brokers of a cluster limit how long a record may stay uncompacted, as long as the block runs."""
    name = "log.cleaner.max.compaction.lag.ms"
    command = ("kafka.admin.ConfigCommand", "--alter", "--entity-type", "brokers", "--entity-default")
    cluster.tool(*command, "--add-config", f"{name}={milliseconds}")
    try:
        yield
    finally:
        cluster.tool(*command, "--delete-config", name)


@pytest.mark.soak
@pytest.mark.parametrize("exists", [False, True], ids=["created", "adopted"])
def test_every_set_of_configs_is_taken_where_brokers_limit_the_compaction_lag(control: Control, exists: bool) -> None:
    """The cleaner is held back between the two steps back, whatever limit the brokers have set."""
    name = f"{control.prefix}compacted"
    control.source_cluster.create_topic(name, 1, {"cleanup.policy": "compact"})
    if exists:
        control.target_cluster.create_topic(name, 1, {"cleanup.policy": "compact"})
    with longest_compaction_lag(control.target_cluster, 3_600_000):
        admin = control.context().target.admin

        def limited() -> bool:
            found = admin.new_topic_configs(control.on_target(scratch_topic)).get("max.compaction.lag.ms")
            return found == "3600000"

        wait_for("the limit in force", limited, 120)
        context, plan = control.planned()
        refused = [item for item in precheck.find_all(context, plan) if item.code == "B019"]
        assert refused == []
        copy_topics(context)
        copy_settings.restore_producer_visible(context.record, context.target)
        copy_settings.restore_deleting(context.record, context.target)
        # The source's own default: the limit of the target's brokers would decide which of its records stay.
        assert control.overrides(name) == {"cleanup.policy": "compact", "max.compaction.lag.ms": str(2**63 - 1)}


@pytest.mark.parametrize("exists", [False, True], ids=["created", "adopted"])
def test_configs_that_would_be_refused_at_the_cutover_are_found_by_the_precheck(
    control: Control, exists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was before both limits were set: the broker refuses the first step back, and only that one."""
    name = f"{control.prefix}compacted"
    control.source_cluster.create_topic(name, 1, {"cleanup.policy": "compact", "max.compaction.lag.ms": "3600000"})
    if exists:
        control.target_cluster.create_topic(name, 1)
    context = control.context()
    plan_phase.run(context)
    held = {"min.compaction.lag.ms": "7200000", "max.compaction.lag.ms": "3600000"}
    monkeypatch.setattr(configs, "HELD_BACK", held)
    (found,) = [item for item in precheck.find_all(context, context.record.plan()) if item.code == "B019"]
    assert "producer-visible configs" in found.seen
    assert found.subject == name


def test_every_finding_has_a_known_code(control: Control) -> None:
    name = f"{control.prefix}orders"
    control.source_cluster.create_topic(name, 1, {"retention.ms": "1000", "segment.bytes": "100000"})
    findings = _look(control.context())
    assert _codes(findings) <= set(precheck.CODES)
    assert findings == sorted(findings, key=lambda item: ["Blocker", "Warning", "Info"].index(item.severity))
