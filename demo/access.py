"""Permissions on the two clusters: the least that the migration and the applications need."""

from __future__ import annotations

import secrets

from harness.brokers import KafkaCluster

#: The migration's own principal, on both sides.
MIGRATOR = "migrator"
#: The applications' principals. The migration copies their permissions from the source to the target.
PRODUCER = "shop"
CONSUMER = "backoffice"

PREFIX = "shop."
GROUP_PREFIX = "shop-"
_CLUSTER = "kafka-cluster"


def users() -> dict[str, str]:
    """Name -> password, for both clusters: a migration does not copy SASL users without their passwords."""
    return {name: secrets.token_urlsafe(18) for name in (MIGRATOR, PRODUCER, CONSUMER)}


def grant_on_source(source: KafkaCluster) -> None:
    """The applications' permissions, and those that the migration needs to read the source and mark its end."""
    source.allow(PRODUCER, "topic", PREFIX, ["write", "describe"], prefixed=True)
    source.allow(CONSUMER, "topic", PREFIX, ["read", "describe"], prefixed=True)
    source.allow(CONSUMER, "group", GROUP_PREFIX, ["read", "describe"], prefixed=True)
    source.allow(MIGRATOR, "broker", _CLUSTER, ["describe", "describe_configs"])
    source.allow(MIGRATOR, "topic", PREFIX, ["read", "describe", "describe_configs"], prefixed=True)
    # For the sentinel records.
    source.allow(MIGRATOR, "topic", PREFIX, ["write"], prefixed=True)
    source.allow(MIGRATOR, "group", GROUP_PREFIX, ["describe"], prefixed=True)


def grant_on_target(target: KafkaCluster) -> None:
    """The permissions that the migration needs to write topics, ACLs, offsets and data on the target."""
    target.allow(
        MIGRATOR,
        "broker",
        _CLUSTER,
        # alter: ACLs, and markers since Kafka 3.8; idempotent_write: implied by a topic's write since Kafka 3.0
        ["describe", "describe_configs", "create", "alter", "alter_configs"],
    )
    topic_rights = ["create", "read", "write", "describe", "describe_configs", "alter", "alter_configs", "delete"]
    target.allow(MIGRATOR, "topic", PREFIX, topic_rights, prefixed=True)
    # The probe's scratch topic.
    target.allow(MIGRATOR, "topic", "kafka-migration-probe", topic_rights, prefixed=True)
    target.allow(MIGRATOR, "transactional_id", "kafka-migration", ["write", "describe"], prefixed=True)
    target.allow(MIGRATOR, "group", GROUP_PREFIX, ["read", "describe"], prefixed=True)
