"""The plan of one topic: replication factor and configs of topics that are there, and of those that are not."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_kafka_migration.documents.plan import ClusterFacts, TopicPlan
from airflow_provider_kafka_migration.kafka.admin.topics import (
    Configs,
    ConfigSource,
    ConfigValue,
    PartitionFacts,
    TopicFacts,
)
from airflow_provider_kafka_migration.planning.source_snapshot import SourceSnapshot
from airflow_provider_kafka_migration.planning.verdicts import TargetTopics, topic_plan
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.topics.configs import TargetRules

NAME = "orders"
THREE = (1, 2, 3)


def _facts(brokers: list[int]) -> ClusterFacts:
    return ClusterFacts(cluster_id="c", kafka_version="4.1", mode="kraft", brokers=brokers)


def _plan(overrides: dict[str, str], target: TargetTopics, **topology: Any) -> TopicPlan:
    spec = parse_spec(
        {
            "migration_id": "m",
            "source": {"conn_id": "a"},
            "target": {"conn_id": "b"},
            "storage": {"journal": "s3://bucket/j"},
            "topology": topology,
        }
    )
    facts = TopicFacts(NAME, "id", False, (PartitionFacts(0, 1, THREE, THREE),))
    values = {name: ConfigValue(name, value, ConfigSource.DYNAMIC_TOPIC) for name, value in overrides.items()}
    found = SourceSnapshot(_facts([1, 2, 3]), {NAME: facts}, {}, [], configs={NAME: Configs(NAME, values)})
    key = (NAME, 0)
    found.starts, found.stable, found.high_watermarks = {key: 0}, {key: 5}, {key: 5}
    return topic_plan(spec, facts, found, target)


@pytest.mark.parametrize(
    ("brokers", "topology", "factor"),
    [
        ([1, 2, 3], {}, 3),
        ([1], {}, 1),
        ([1, 2, 3], {"replication_factor": 2}, 2),
        ([1, 2], {"replication_factor": 5}, 2),
        ([1, 2, 3], {"replication_factor": "target_default"}, -1),
    ],
)
def test_the_factor_of_a_new_topic_goes_by_policy_and_brokers(
    brokers: list[int], topology: dict[str, Any], factor: int
) -> None:
    planned = _plan({}, TargetTopics(TargetRules(_facts(brokers))), **topology)
    assert (planned.replication_factor, planned.source_replication_factor) == (factor, 3)


def test_a_topic_that_is_there_keeps_its_factor_and_can_still_be_written() -> None:
    """Three brokers, but one replica: the source's min.insync.replicas would stop it dead."""
    target = TargetTopics(TargetRules(_facts([1, 2, 3])), present={NAME: {}}, factors={NAME: 1})
    planned = _plan({"min.insync.replicas": "2"}, target)
    assert planned.replication_factor == 1
    assert planned.target_configs == {"min.insync.replicas": "1"}
    assert "above the replication factor 1" in planned.dropped_configs["min.insync.replicas"]


def test_drift_leaves_excluded_configs_out() -> None:
    present = {NAME: {"delete.retention.ms": "7", "segment.ms": "5"}}
    target = TargetTopics(TargetRules(_facts([1])), present=present, factors={NAME: 1})
    planned = _plan({"delete.retention.ms": "2"}, target, config_exclude=[r"delete\..*"])
    assert planned.target_configs == {"delete.retention.ms": "7"}
    assert [item["config"] for item in planned.drift] == ["segment.ms"]
    kept = _plan({"flush.ms": "2"}, target, on_config_drift="note")
    assert kept.target_configs == present[NAME]
    assert {item["config"]: item["planned"] for item in kept.drift}["flush.ms"] is None
