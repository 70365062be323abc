"""Topic configs: what the target ends with, what it has while copied, and the two steps back."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from airflow_provider_kafka_migration.documents.plan import ClusterFacts, TopicPlan
from airflow_provider_kafka_migration.kafka.admin.topics import Configs, ConfigSource, ConfigValue
from airflow_provider_kafka_migration.spec import TopologySection
from airflow_provider_kafka_migration.topics.configs import (
    COPY_TIME,
    LONG_MAX,
    TargetRules,
    changes,
    copy_time_configs,
    drift_of,
    final_configs,
    producer_visible,
    with_excluded,
)

KAFKA_4 = ClusterFacts(cluster_id="t", kafka_version="4.1", mode="kraft", brokers=[1])
KAFKA_3 = ClusterFacts(cluster_id="t", kafka_version="3.5", mode="zookeeper", brokers=[1])


def _configs(overrides: dict[str, str], defaults: dict[str, str] | None = None) -> Configs:
    values = {name: ConfigValue(name, value, ConfigSource.DEFAULT) for name, value in (defaults or {}).items()} | {
        name: ConfigValue(name, value, ConfigSource.DYNAMIC_TOPIC) for name, value in overrides.items()
    }
    return Configs("t", values)


def _topic(target_configs: dict[str, str]) -> TopicPlan:
    return TopicPlan(
        name="t",
        target_name="t",
        partitions=[],
        replication_factor=1,
        source_replication_factor=1,
        source_configs={},
        target_configs=target_configs,
    )


@pytest.mark.parametrize(
    "source", [ConfigSource.STATIC_BROKER, ConfigSource.DYNAMIC_DEFAULT_BROKER, ConfigSource.DEFAULT]
)
def test_broker_defaults_of_all_kinds_are_no_overrides(source: ConfigSource) -> None:
    configs = Configs("t", {"flush.ms": ConfigValue("flush.ms", "5", source)})
    assert final_configs(configs, TargetRules(KAFKA_4), TopologySection()) == ({}, {})
    assert final_configs(configs, TargetRules(KAFKA_4, {"flush.ms": "7"}), TopologySection()) == ({}, {})


@pytest.mark.parametrize(
    ("name", "source", "target"),
    [
        ("retention.ms", "2592000000", "604800000"),
        ("retention.bytes", "-1", "1000"),
        ("cleanup.policy", "compact", "delete"),
        ("delete.retention.ms", "864000000", "86400000"),
        ("max.compaction.lag.ms", "9223372036854775807", "60000"),
        ("min.compaction.lag.ms", "60000", "0"),
        ("message.timestamp.type", "CreateTime", "LogAppendTime"),
        ("max.message.bytes", "8388608", "1048588"),
    ],
)
def test_broker_defaults_that_decide_which_records_stay_are_carried_over(name: str, source: str, target: str) -> None:
    configs = _configs({}, {name: source, "flush.ms": "5"})
    rules = TargetRules(KAFKA_4, {name: target, "flush.ms": "9"})
    assert final_configs(configs, rules, TopologySection())[0] == {name: source}
    same = TargetRules(KAFKA_4, {name: source, "flush.ms": "9"})
    assert final_configs(configs, same, TopologySection())[0] == {}
    assert final_configs(configs, TargetRules(KAFKA_4), TopologySection())[0] == {name: source}, "nobody reports it"
    excluded = TopologySection(config_exclude=[name.replace(".", r"\.")])
    assert final_configs(configs, rules, excluded)[0] == {}


def test_the_limit_of_kafka_4_4_for_decompressed_records_stops_no_copy() -> None:
    """It may be lower than records that are stored already; sources before 4.4 have no such limit."""
    name, none = "max.decompressed.message.bytes", "2147483639"
    kafka_44 = ClusterFacts(cluster_id="t", kafka_version="4.4", mode="kraft", brokers=[1])
    assert copy_time_configs(_topic({name: "100"}), kafka_44, max_batch_bytes=1)[name] == none
    assert producer_visible(_topic({name: "100"}))[name] == "100"
    assert name not in copy_time_configs(_topic({}), KAFKA_4, max_batch_bytes=1)
    low = TargetRules(kafka_44, {name: "100"})
    assert final_configs(_configs({}), low, TopologySection())[0] == {name: none}
    assert final_configs(_configs({}, {name: "500"}), low, TopologySection())[0] == {name: "500"}
    assert final_configs(_configs({}), TargetRules(kafka_44, {name: none}), TopologySection())[0] == {}
    kept, dropped = final_configs(_configs({name: "100"}), TargetRules(KAFKA_4, {"flush.ms": "1"}), TopologySection())
    assert (kept, dropped) == ({}, {name: "the target does not know this config"})


def test_unknown_configs_go_by_what_the_target_says_and_else_by_the_table() -> None:
    source = _configs({"message.format.version": "2.8", "brand.new": "1", "retention.ms": "5"})
    told = TargetRules(KAFKA_4, {"retention.ms": "7"})
    kept, dropped = final_configs(source, told, TopologySection())
    assert kept == {"retention.ms": "5"}
    assert sorted(dropped) == ["brand.new", "message.format.version"]
    kept, dropped = final_configs(source, TargetRules(KAFKA_4), TopologySection())
    assert (sorted(kept), sorted(dropped)) == (["brand.new", "retention.ms"], ["message.format.version"])
    kept, _ = final_configs(source, TargetRules(KAFKA_3), TopologySection())
    assert sorted(kept) == ["brand.new", "message.format.version", "retention.ms"]


def test_tiered_storage_is_left_out_where_brokers_have_none() -> None:
    source = _configs({"remote.storage.enable": "true", "local.retention.ms": "1000", "retention.ms": "5000"})
    kept, dropped = final_configs(source, TargetRules(KAFKA_4, tiered_storage=False), TopologySection())
    assert kept == {"retention.ms": "5000"}
    assert sorted(dropped) == ["local.retention.ms", "remote.storage.enable"]
    kept, _ = final_configs(source, TargetRules(KAFKA_4, tiered_storage=True), TopologySection())
    assert kept["remote.storage.enable"] == "true"
    assert not {"remote.storage.enable", "local.retention.ms"} & set(
        copy_time_configs(_topic(kept), KAFKA_4, max_batch_bytes=1)
    )
    assert "remote.storage.enable" not in producer_visible(_topic(kept))


def test_min_insync_replicas_never_stops_a_topic_dead() -> None:
    source = _configs({"min.insync.replicas": "3"})
    kept, dropped = final_configs(source, TargetRules(KAFKA_4), TopologySection(), replication_factor=2)
    assert kept == {"min.insync.replicas": "2"}
    assert "above the replication factor 2" in dropped["min.insync.replicas"]
    assert final_configs(source, TargetRules(KAFKA_4), TopologySection(), 3)[0] == {"min.insync.replicas": "3"}
    assert final_configs(source, TargetRules(KAFKA_4), TopologySection())[0] == {"min.insync.replicas": "3"}
    # Nobody has set it on the topic, but the target's brokers have a default that one replica can never reach.
    strict = TargetRules(KAFKA_4, {"min.insync.replicas": "2"})
    kept, dropped = final_configs(_configs({}), strict, TopologySection(), replication_factor=1)
    assert kept == {"min.insync.replicas": "1"}
    assert "2 by default on the target" in dropped["min.insync.replicas"]
    assert final_configs(_configs({}), strict, TopologySection(), replication_factor=2) == ({}, {})


def test_defaults_of_the_source_are_set_only_where_the_target_differs() -> None:
    source = _configs({"flush.ms": "5"}, {"retention.ms": "100", "segment.ms": "7", "not.known": "1"})
    rules = TargetRules(KAFKA_4, {"flush.ms": "9", "retention.ms": "200", "segment.ms": "7"})
    section = TopologySection(use_defaults_from="source")
    assert final_configs(source, rules, section)[0] == {"flush.ms": "5", "retention.ms": "100"}
    excluded = TopologySection(use_defaults_from="source", config_exclude=["retention.*"])
    assert final_configs(source, rules, excluded)[0] == {"flush.ms": "5"}


def test_an_explicit_new_timestamp_limit_is_not_overwritten_by_the_old_one() -> None:
    source = _configs({"message.timestamp.difference.max.ms": "10", "message.timestamp.after.max.ms": "20"})
    known = dict.fromkeys(("message.timestamp.after.max.ms", "message.timestamp.before.max.ms"), "0")
    kept, _ = final_configs(source, TargetRules(KAFKA_4, known), TopologySection())
    assert kept == {"message.timestamp.after.max.ms": "20", "message.timestamp.before.max.ms": "10"}


def test_copy_time_settings_keep_everything_and_the_first_step_back_too() -> None:
    final = {
        "cleanup.policy": "compact,delete",
        "retention.ms": "1000",
        "retention.bytes": "5",
        "min.compaction.lag.ms": "10",
        "max.compaction.lag.ms": "20",
        "segment.ms": "60000",
        "max.message.bytes": "99",
        "min.insync.replicas": "2",
    }
    copying = copy_time_configs(_topic(final), KAFKA_4, max_batch_bytes=1000)
    assert copying.items() >= COPY_TIME.items()
    assert copying["max.message.bytes"] == "1000"
    assert int(copying["segment.ms"]) > 60000
    assert copying["min.insync.replicas"] == "2"
    assert not {"min.compaction.lag.ms", "max.compaction.lag.ms"} & set(copying)
    visible = producer_visible(_topic(final))
    assert (visible["cleanup.policy"], visible["retention.ms"], visible["retention.bytes"]) == (
        "compact,delete",
        "-1",
        "-1",
    )
    assert visible["min.compaction.lag.ms"] == LONG_MAX
    assert visible["max.compaction.lag.ms"] == LONG_MAX, "the broker's own limit may be lower"
    assert visible["max.message.bytes"] == "99"


def test_old_brokers_get_the_old_name_of_the_timestamp_limit() -> None:
    copying = copy_time_configs(_topic({}), KAFKA_3, max_batch_bytes=1)
    assert copying["message.timestamp.difference.max.ms"] == LONG_MAX
    assert "message.timestamp.after.max.ms" not in copying


@pytest.mark.parametrize("mode", ["zookeeper", "kraft"])
def test_brokers_that_know_both_names_get_limits_that_lift_both(mode: Literal["zookeeper", "kraft"]) -> None:
    """Long.MAX is the default of ``before.max.ms`` there, so ``difference.max.ms`` would still count."""
    facts = ClusterFacts(cluster_id="t", kafka_version="3.9", mode=mode, brokers=[1])
    copying = copy_time_configs(_topic({"message.timestamp.before.max.ms": "1000"}), facts, max_batch_bytes=1)
    assert copying["message.timestamp.before.max.ms"] == copying["message.timestamp.after.max.ms"] == str(2**63 - 2)
    assert copying["message.timestamp.difference.max.ms"] == LONG_MAX


@pytest.mark.parametrize(
    ("present", "wanted", "expected"),
    [
        ({}, {}, {}),
        ({"a": "1"}, {"a": "1"}, {}),
        ({"a": "1", "b": "2"}, {"a": "3", "c": "4"}, {"a": "3", "b": None, "c": "4"}),
    ],
)
def test_changes_make_one_the_other(present: dict[str, str], wanted: dict[str, str], expected: dict[str, Any]) -> None:
    assert changes(present, wanted) == expected


def test_drift_says_what_will_be() -> None:
    present, wanted = {"a": "1", "b": "2"}, {"a": "3"}
    overwritten = {item["config"]: item["planned"] for item in drift_of(present, wanted, "repair")}
    assert overwritten == {"a": "3", "b": None}
    kept = {item["config"]: item["planned"] for item in drift_of(present, wanted, "note")}
    assert kept == present


def test_what_is_excluded_belongs_to_the_target() -> None:
    """MirrorMaker 2: an excluded config keeps the target's override; the others follow the source."""
    exclude = [r"delete\.retention\..*"]
    section = TopologySection(config_exclude=exclude)
    source = _configs({"delete.retention.ms": "2000", "retention.bytes": "1000"})
    wanted, dropped = final_configs(source, TargetRules(KAFKA_4), section)
    assert wanted == {"retention.bytes": "1000"}
    assert dropped == {"delete.retention.ms": "excluded by topology.config_exclude"}
    present = {"delete.retention.ms": "7000", "segment.ms": "5"}
    planned = with_excluded(wanted, present, exclude)
    assert planned == {"delete.retention.ms": "7000", "retention.bytes": "1000"}
    # Not set on the source any more: reset on the target.
    assert changes(present, planned) == {"retention.bytes": "1000", "segment.ms": None}
