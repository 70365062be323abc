"""Kafka's operations as IAM actions of Amazon MSK (service ``kafka-cluster``), and the ARNs of their resources.

Source: AWS, "Create authorization policies for the IAM role". What has no equivalent is answered with no actions.
"""

from __future__ import annotations

import re

_SERVICE = "kafka-cluster:"
CONNECT = f"{_SERVICE}Connect"
PLACEHOLDER_CLUSTER = "arn:aws:kafka:REGION:ACCOUNT:cluster/CLUSTER/UUID"

_ACTIONS: dict[tuple[str, str], tuple[str, ...]] = {
    ("CLUSTER", "DESCRIBE"): ("DescribeCluster",),
    ("CLUSTER", "ALTER"): ("AlterCluster",),
    ("CLUSTER", "DESCRIBE_CONFIGS"): ("DescribeClusterDynamicConfiguration",),
    ("CLUSTER", "ALTER_CONFIGS"): ("AlterClusterDynamicConfiguration",),
    ("CLUSTER", "IDEMPOTENT_WRITE"): ("WriteDataIdempotently",),
    ("TOPIC", "READ"): ("DescribeTopic", "ReadData"),
    ("TOPIC", "WRITE"): ("DescribeTopic", "WriteData"),
    ("TOPIC", "CREATE"): ("CreateTopic",),
    ("TOPIC", "DELETE"): ("DeleteTopic",),
    ("TOPIC", "ALTER"): ("AlterTopic",),
    ("TOPIC", "DESCRIBE"): ("DescribeTopic",),
    ("TOPIC", "DESCRIBE_CONFIGS"): ("DescribeTopicDynamicConfiguration",),
    ("TOPIC", "ALTER_CONFIGS"): ("AlterTopicDynamicConfiguration",),
    ("GROUP", "READ"): ("AlterGroup", "DescribeGroup"),
    ("GROUP", "DESCRIBE"): ("DescribeGroup",),
    ("GROUP", "DELETE"): ("DeleteGroup",),
    ("TRANSACTIONAL_ID", "WRITE"): ("AlterTransactionalId", "DescribeTransactionalId"),
    ("TRANSACTIONAL_ID", "DESCRIBE"): ("DescribeTransactionalId",),
}
_KINDS = {"CLUSTER": "cluster", "TOPIC": "topic", "GROUP": "group", "TRANSACTIONAL_ID": "transactional-id"}


def actions(resource_type: str, operation: str) -> list[str]:
    """IAM actions of an operation, ascending; empty where IAM has none."""
    if operation == "ALL":
        names = {name for (kind, _), found in _ACTIONS.items() if kind == resource_type for name in found}
    else:
        names = set(_ACTIONS.get((resource_type, operation), ()))
    return sorted(f"{_SERVICE}{name}" for name in names)


def arn(cluster_arn: str | None, resource_type: str, name: str, pattern_type: str = "LITERAL") -> str | None:
    """ARN of a resource; ``None`` for kinds that IAM does not know. A prefix becomes a wildcard."""
    kind = _KINDS.get(resource_type)
    if kind is None:
        return None
    base = cluster_arn or PLACEHOLDER_CLUSTER
    if kind == "cluster":
        return base
    resource = f"{name}*" if pattern_type == "PREFIXED" else name
    return f"{re.sub(r':cluster/', f':{kind}/', base)}/{resource}"
