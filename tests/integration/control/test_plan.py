"""Plans of real clusters: complete, read-only, equal when nothing changed, clear where something may not be read."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner, Result

from airflow_provider_kafka_migration.cli.app import app
from airflow_provider_kafka_migration.documents.plan import MeasuredRates, Plan, Verdict
from airflow_provider_kafka_migration.errors import PermissionMissing, Terminal
from airflow_provider_kafka_migration.kafka.admin.access import Acl
from airflow_provider_kafka_migration.kafka.admin.groups import GroupOffset
from airflow_provider_kafka_migration.phases import plan as plan_phase
from airflow_provider_kafka_migration.phases import precheck
from airflow_provider_kafka_migration.planning.make import make_plan
from harness.brokers import KafkaCluster
from tests.integration.control.control_support import Control

pytestmark = pytest.mark.integration


def _transactional(cluster: KafkaCluster, topic: str) -> None:
    producer = Producer({**cluster.client_config(), "transactional.id": f"tx-{topic}", "compression.type": "lz4"})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b"value" * 200, b"key")
    producer.commit_transaction(20)


def test_two_plans_of_an_unchanged_cluster_are_byte_equal(control: Control) -> None:
    prefix = control.prefix
    control.source_cluster.create_topics({f"{prefix}b": (3, {}), f"{prefix}a": (2, {"retention.ms": "3600000"})})
    control.produce(f"{prefix}b", 20, 1)
    _transactional(control.source_cluster, f"{prefix}a")
    first = make_plan(control.context())
    second = make_plan(control.context())
    assert first.canonical() == second.canonical()
    assert [topic.name for topic in first.topics] == [f"{prefix}a", f"{prefix}b"]
    assert Plan.parse(first.canonical()) == first


def test_kinds_codecs_holes_and_offsets_are_seen(control: Control) -> None:
    prefix = control.prefix
    configs = {
        "plain": {},
        "compacted": {"cleanup.policy": "compact"},
        "appended": {"message.timestamp.type": "LogAppendTime"},
        "tx": {},
    }
    control.source_cluster.create_topics({f"{prefix}{name}": (1, value) for name, value in configs.items()})
    producer = Producer({**control.source_cluster.client_config(), "compression.type": "zstd"})
    for name in ("plain", "compacted", "appended"):
        producer.produce(f"{prefix}{name}", b"value" * 100, b"key")
    assert producer.flush(120) == 0
    _transactional(control.source_cluster, f"{prefix}tx")
    context = control.context()
    plan = make_plan(context)
    kinds = {topic.name.removeprefix(prefix): topic.kinds for topic in plan.topics}
    assert kinds == {
        "plain": [],
        "compacted": ["compacted"],
        "appended": ["log_append_time"],
        "tx": ["transactional"],
    }
    assert plan.topic(f"{prefix}plain").codecs == ["zstd"]
    assert plan.topic(f"{prefix}tx").codecs == ["lz4"]
    transaction = plan.topic(f"{prefix}tx").partitions[0]
    assert (transaction.log_start_offset, transaction.end_offset, transaction.high_watermark) == (0, 2, 2)
    assert transaction.size_bytes > 0
    assert (
        plan.topic(f"{prefix}plain").topic_id
        == context.source.wire.metadata([f"{prefix}plain"])[f"{prefix}plain"].topic_id
    )
    assert plan.estimate is not None
    assert plan.estimate.copy_bytes == plan.total_bytes
    assert plan.total_bytes > 0


def test_large_batches_are_sampled_too(control: Control) -> None:
    names = [f"{control.prefix}{stem}" for stem in ("a", "b", "c")]
    control.source_cluster.create_topics({name: (3, {"cleanup.policy": "compact"}) for name in names})
    config = {**control.source_cluster.client_config(), "compression.type": "lz4", "linger.ms": 200}
    producer = Producer({**config, "batch.size": 900_000})
    for name in names:
        for partition in range(3):
            for number in range(60):
                # Random bytes: no codec makes these batches small.
                producer.produce(name, random.Random(number).randbytes(8_000), b"key-%d" % number, partition)
    assert producer.flush(120) == 0
    plan = make_plan(control.context())
    assert all(topic.codecs for topic in plan.topics)
    assert {item.estimated_records for topic in plan.topics for item in topic.partitions} == {60}


def test_verdicts_follow_the_budget(make_control: Callable[..., Control]) -> None:
    control = make_control(offsets={"max_filler_offsets": 10})
    name = f"{control.prefix}cut"
    control.source_cluster.create_topic(name, 3)
    for partition in range(3):
        control.produce(name, 30, partition)
    context = control.context()
    context.source.wire.delete_records({(name, 0): 10, (name, 1): 11})
    partitions = make_plan(context).topic(name).partitions
    assert [item.verdict for item in partitions] == [Verdict.EQUAL, Verdict.SHIFTED, Verdict.EQUAL]
    assert [item.target_start_offset for item in partitions] == [10, 0, 0]
    assert "max_filler_offsets" in partitions[1].reason
    equal = make_plan(control.context(offsets={"mode": "equal", "max_filler_offsets": 10})).topic(name).partitions
    assert {item.verdict for item in equal} == {Verdict.EQUAL}


def test_selection_exclusion_and_missing_names(
    make_control: Callable[..., Control], unique_name: Callable[[str], str]
) -> None:
    stem = unique_name("sel").replace(".", "-")
    control = make_control(topics={"include": [f"{stem}-a.*", f"{stem}-missing"], "exclude": [f"{stem}-a2"]})
    control.source_cluster.create_topics({f"{stem}-{name}": (1, {}) for name in ("a1", "a2", "b")})
    plan = make_plan(control.context())
    assert [topic.name for topic in plan.topics] == [f"{stem}-a1"]
    assert plan.excluded_topics[f"{stem}-a2"] == f"topics.exclude: {stem}-a2"
    assert plan.excluded_topics[f"{stem}-b"] == "not in topics.include"
    assert plan.missing_topics == [f"{stem}-missing"]
    with pytest.raises(Terminal, match="no topic"):
        make_plan(control.context(topics={"include": ["nothing-has-this-name"]}))


def test_renames_and_their_collisions(make_control: Callable[..., Control], unique_name: Callable[[str], str]) -> None:
    stem = unique_name("ren").replace(".", "-")
    control = make_control(topics={"include": [f"{stem}-.*"], "rename": {"prefix": "old."}})
    names = [f"{stem}-a", f"{stem}-b"]
    control.source_cluster.create_topics({name: (1, {}) for name in names})
    assert [topic.target_name for topic in make_plan(control.context()).topics] == [f"old.{name}" for name in names]
    rename = {"topics": {names[0]: names[1]}}
    with pytest.raises(Terminal, match=f"{names[1]} from {names[0]}, {names[1]}"):
        make_plan(control.context(topics={"include": [f"{stem}-.*"], "rename": rename}))
    metric = {"topics": {names[0]: "x.y", names[1]: "x_y"}}
    with pytest.raises(Terminal, match=r"x\.y, x_y"):
        make_plan(control.context(topics={"include": [f"{stem}-.*"], "rename": metric}))


def test_configs_that_the_target_does_not_know_are_named(make_control: Callable[..., Control]) -> None:
    control = make_control(topology={"config_exclude": ["segment.ms"]})
    name = f"{control.prefix}configs"
    control.source_cluster.create_topic(
        name,
        1,
        {
            "message.timestamp.difference.max.ms": "1000000",
            "message.downconversion.enable": "false",
            "segment.bytes": "100000",
            "segment.ms": "600000",
            "min.insync.replicas": "3",
            "flush.ms": "5000",
        },
    )
    topic = make_plan(control.context()).topic(name)
    assert topic.target_configs == {
        "flush.ms": "5000",
        "message.timestamp.after.max.ms": "1000000",
        "message.timestamp.before.max.ms": "1000000",
        "min.insync.replicas": "1",
        "segment.bytes": "1048576",
    }
    assert sorted(topic.dropped_configs) == [
        "message.downconversion.enable",
        "message.timestamp.difference.max.ms",
        "min.insync.replicas",
        "segment.bytes",
        "segment.ms",
    ]
    assert topic.dropped_configs["segment.ms"] == "excluded by topology.config_exclude"


def test_defaults_are_told_apart_from_overrides(make_control: Callable[..., Control]) -> None:
    control = make_control()
    name = f"{control.prefix}defaults"
    control.source_cluster.create_topic(name, 1, {"retention.ms": "3600000"})
    plan = make_plan(control.context())
    assert plan.topic(name).source_configs == {"retention.ms": "3600000"}
    assert {"config": "message.timestamp.after.max.ms", "source": str(2**63 - 1), "target": "3600000"} in (
        plan.defaults_drift
    )
    with_source = make_plan(control.context(topology={"use_defaults_from": "source"})).topic(name)
    assert with_source.target_configs["message.timestamp.after.max.ms"] == str(2**63 - 1)
    assert "cleanup.policy" not in with_source.target_configs


def test_what_is_left_out_is_listed_and_naming_an_internal_topic_takes_it(
    make_control: Callable[..., Control], unique_name: Callable[[str], str]
) -> None:
    stem = unique_name("left").replace(".", "-")
    taken, internal, named = f"{stem}-orders", f"__{stem}-other", f"__{stem}-heartbeat"
    control = make_control(
        topics={"include": [f"{stem}-.*", f".*{stem}-other", f"__{stem}-heartbeat.*"]},
        groups={"include": [f"connect-{stem}.*"]},
        acls={"exclude_principals": [f"User:(?!{stem}).*"]},
    )
    control.source_cluster.create_topics({name: (1, {}) for name in (taken, internal, named)})
    admin = control.context().source.admin
    for group in (f"connect-{stem}", f"{stem}-left", f"console-consumer-{stem}"):
        assert set(admin.alter_group_offsets(group, {(taken, 0): GroupOffset(0)}).values()) == {None}
    rights = [
        Acl("TOPIC", name, "LITERAL", f"User:{stem}", "*", "READ", "ALLOW")
        for name in (internal, named, "__consumer_offsets")
    ]
    assert set(admin.create_acls(rights).values()) == {None}
    context = control.context()
    plan_phase.run(context)
    plan = context.record.plan()
    assert [topic.name for topic in plan.topics] == sorted([named, taken])
    assert "name it in topics.include" in plan.excluded_topics[internal]
    assert plan.excluded_topics["__consumer_offsets"].startswith("internal topic of the brokers")
    assert [group.group for group in plan.groups] == [f"connect-{stem}"], "sink connectors are moved"
    left = {item.group: item for item in plan.excluded_groups}
    assert left[f"{stem}-left"].topics_in_scope == [taken]
    assert left[f"{stem}-left"].reason == "not in groups.include"
    actions = {acl.resource_name: acl.action for acl in plan.acls if acl.principal == f"User:{stem}"}
    assert actions == {internal: "filtered", named: "create", "__consumer_offsets": "filtered"}
    page = str(context.journal_store.get(context.key("plan/plan.md")))
    assert all(name in page for name in (f"{stem}-left", f"console-consumer-{stem}", internal))
    findings = {(item.code, item.subject): item for item in precheck.find_all(context, plan)}
    assert taken in findings["W074", f"{stem}-left"].seen
    assert f"console-consumer-{stem}" in findings["I075", ""].details["groups"]
    assert internal in findings["I091", ""].details["topics"]


def test_drift_policies(make_control: Callable[..., Control]) -> None:
    control = make_control()
    name = f"{control.prefix}drift"
    control.source_cluster.create_topic(name, 1, {"retention.ms": "7200000", "flush.ms": "1000"})
    control.target_cluster.create_topic(name, 1, {"retention.ms": "1000000", "segment.ms": "900000"})
    topic = make_plan(control.context()).topic(name)
    assert topic.exists_on_target
    assert topic.target_configs == {"retention.ms": "7200000", "flush.ms": "1000"}
    assert [(item["config"], item["target"], item["planned"]) for item in topic.drift] == [
        ("flush.ms", None, "1000"),
        ("retention.ms", "1000000", "7200000"),
        ("segment.ms", "900000", None),
    ]
    kept = make_plan(control.context(topology={"on_config_drift": "note"})).topic(name)
    assert kept.target_configs == {"retention.ms": "1000000", "segment.ms": "900000"}
    assert {item["config"] for item in kept.drift} == {"flush.ms", "retention.ms", "segment.ms"}


def test_groups_with_lag_and_topics_outside(control: Control, unique_name: Callable[[str], str]) -> None:
    inside, outside = f"{control.prefix}in", unique_name("outside")
    control.source_cluster.create_topics({inside: (2, {}), outside: (1, {})})
    control.produce(inside, 10, 0)
    control.produce(inside, 10, 1)
    context = control.context()
    group = f"{control.prefix}readers"
    offsets = {(inside, 0): GroupOffset(4), (inside, 1): GroupOffset(10), (outside, 0): GroupOffset(0)}
    assert set(context.source.admin.alter_group_offsets(group, offsets).values()) == {None}
    (plan,) = [item for item in make_plan(context).groups if item.group == group]
    assert (plan.type, plan.state, plan.lag) == ("simple", "Empty", 6)
    assert plan.topics_in_scope == [inside]
    assert plan.topics_out_of_scope == [outside]


def test_plan_works_with_read_only_rights_and_names_what_it_may_not_see(
    make_control: Callable[..., Control], source_cluster: KafkaCluster, target_cluster: KafkaCluster
) -> None:
    control = make_control(user="bob")
    name = f"{control.prefix}orders"
    source_cluster.create_topic(name, 1)
    control.produce(name, 5)
    with pytest.raises(Terminal, match="0 topics are visible"):
        make_plan(control.context())
    source_cluster.allow("bob", "topic", control.prefix, ["describe"], prefixed=True)
    with pytest.raises(PermissionMissing, match="configs of 1 topics") as caught:
        make_plan(control.context())
    assert list(caught.value.details["topics"]) == [name]
    source_cluster.allow("bob", "topic", control.prefix, ["read", "describe_configs"], prefixed=True)
    target_cluster.allow("bob", "topic", control.prefix, ["describe"], prefixed=True)
    plan = make_plan(control.context())
    assert plan.topic(name).partitions[0].end_offset == 5
    assert plan.topic(name).partitions[0].size_bytes == -1
    assert plan.source.authorizer
    assert {
        "ACLs on the source",
        "SCRAM users on the source",
        "client quotas on the source",
        "defaults of new topics on the target",
        "partition sizes on the source",
    } <= set(plan.unknown)
    assert plan.acls == []


def test_the_plan_is_journaled_with_its_documents(control: Control) -> None:
    name = f"{control.prefix}orders"
    control.source_cluster.create_topic(name, 2)
    control.produce(name, 5)
    context = control.context()
    result = plan_phase.run(context)
    plan = context.record.plan()
    assert result.details["digest"] == plan.digest()
    entries = len(context.journal.entries())
    plan_phase.run(control.context())
    context.journal.refresh()
    assert len(context.journal.entries()) == entries
    texts = {
        name: (context.journal_store.get(context.key(f"plan/{name}")) or b"").decode()
        for name in ("plan.md", "runbook.md", "permissions.md", "cost-estimate.json")
    }
    assert plan.digest() in texts["plan.md"]
    assert name in texts["plan.md"]
    assert control.migration_id in texts["runbook.md"]
    assert "kafka-acls.sh" in texts["permissions.md"]
    assert '"total_usd"' in texts["cost-estimate.json"]
    assert context.journal_store.get(context.key(f"plans/{plan.digest()[:16]}.json")) == plan.canonical()


def test_the_command_line_writes_the_folder_and_tells_what_has_changed(
    control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{control.prefix}orders"
    control.source_cluster.create_topic(name, 2)
    control.produce(name, 200)
    monkeypatch.setenv("SOURCE", json.dumps(control.source_cluster.client_config()))
    monkeypatch.setenv("TARGET", json.dumps(control.target_cluster.client_config()))
    spec = tmp_path / "spec.json"
    spec.write_text(control.spec.model_dump_json())

    def plan(*arguments: object) -> Result:
        result = CliRunner().invoke(app, ["plan", str(spec), *map(str, arguments)], env={"COLUMNS": "200"})
        assert result.exit_code == 0, result.output
        return result

    folder = tmp_path / "documents"
    plan("--documents", folder, "--measure")
    assert {path.name for path in folder.iterdir()} == {
        *("cost-estimate.json", "measured-rates.json", "permissions.md", "plan.json", "plan.md", "runbook.md"),
    }
    earlier = folder / "plan.json"
    measured = MeasuredRates.parse((folder / "measured-rates.json").read_bytes())
    assert measured.plan_digest == Plan.parse(earlier.read_bytes()).digest()
    assert measured.read_bytes > 1000
    assert (name, 0) in measured.partitions
    # What was measured is not in the plan: measuring again gives the same plan, byte for byte.
    plan("--output", tmp_path / "again.json", "--measure")
    assert (tmp_path / "again.json").read_bytes() == earlier.read_bytes()
    assert plan("--format", "markdown").stdout == (folder / "plan.md").read_text()
    assert "the plans are equal" in plan("--diff", earlier).stdout
    control.source_cluster.alter_topic_configs({name: {"retention.ms": "1234567"}})
    changes = json.loads(plan("--diff", earlier, "--format", "json").stdout)["changes"]
    assert {change["path"]: change["after"] for change in changes} == {
        f"topics[{name}].source_configs.retention.ms": "1234567",
        f"topics[{name}].target_configs.retention.ms": "1234567",
    }


def test_a_measured_rate_is_used_by_the_precheck_and_stays_out_of_the_plan(
    make_control: Callable[..., Control],
) -> None:
    control = make_control(estimate={"measure": True, "copy_bytes_per_second": "1KB"})
    name = f"{control.prefix}orders"
    control.source_cluster.create_topic(name, 1, {"retention.ms": "3600000"})
    control.produce(name, 500)
    context = control.context()
    plan_phase.run(context)
    data = context.journal_store.get(context.key("plan/measured-rates.json"))
    assert data is not None
    measured = MeasuredRates.parse(data)
    assert measured.limited_by == "spec"
    digest = context.record.plan().digest()
    plan_phase.run(control.context())
    assert context.record.plan().digest() == digest
    assert any("measured" in str(line) for line in control.progress)
    slow = measured.model_copy(update={"copy_seconds": 7200.0})
    context.journal_store.put(context.key("plan/measured-rates.json"), slow.canonical())
    seen = {item.code: item.seen for item in precheck.find_all(context, context.record.plan())}
    assert "7200 s" in seen["W063"]
