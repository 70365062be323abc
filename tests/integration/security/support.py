"""Rights and features, as the super user of a test cluster grants and sets them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka.protocol.admin import UpdateFeaturesRequest

from airflow_provider_kafka_migration.kafka.connection import ClientConfig
from airflow_provider_kafka_migration.kafka.wire import Wire
from harness.brokers import KafkaCluster

#: What copiers need on target topics.
TARGET_TOPIC = ("read", "write", "describe", "describe_configs", "delete")
SOURCE_TOPIC = ("read", "describe", "describe_configs")


def wire_of(keys: Mapping[str, Any], name: str = "target") -> Wire:
    """A wire with librdkafka keys."""
    return Wire(ClientConfig.from_librdkafka(keys, name), timeout_seconds=10, patience_seconds=5)


def grant_copying(target: KafkaCluster, user: str, topics: str, transactional_ids: str) -> None:
    """What a copier needs on the target but a right on the cluster; both arguments are prefixes."""
    target.allow(user, "topic", topics, TARGET_TOPIC, prefixed=True)
    target.allow(user, "transactional_id", transactional_ids, ["write", "describe"], prefixed=True)


def set_feature(cluster: KafkaCluster, name: str, level: int) -> None:
    """Finalize a feature of a KRaft cluster at a level, up or down."""
    upgrade, safe_downgrade = 1, 2
    kind = upgrade if level > feature(cluster, name) else safe_downgrade
    update = UpdateFeaturesRequest.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
    with wire_of({"bootstrap.servers": cluster.bootstrap}) as wire:
        answer = wire.request(UpdateFeaturesRequest(timeout_ms=10_000, feature_updates=[update], validate_only=False))
        assert answer.error_code == 0, answer


def feature(cluster: KafkaCluster, name: str) -> int:
    """The finalized level of a feature, as a new connection sees it."""
    with wire_of({"bootstrap.servers": cluster.bootstrap}) as wire:
        return wire.connection().finalized_features[name]
