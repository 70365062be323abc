"""Kafka's operations as IAM actions of Amazon MSK (service ``kafka-cluster``), and the ARNs of their resources.

Source: AWS, "Create authorization policies for the IAM role". An operation without an equivalent has no actions.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from airflow_provider_kafka_migration.access.mapping import target_acl
from airflow_provider_kafka_migration.documents.plan import AclPlan
from airflow_provider_kafka_migration.documents.target import AccessMap, IamStatement, Left
from airflow_provider_kafka_migration.kafka.admin.access import Acl

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
    """ARN of a resource; ``None`` for kinds that IAM does not have. A prefix becomes a wildcard."""
    kind = _KINDS.get(resource_type)
    if kind is None:
        return None
    base = cluster_arn or PLACEHOLDER_CLUSTER
    if kind == "cluster":
        return base
    resource = f"{name}*" if pattern_type == "PREFIXED" else name
    return f"{re.sub(r':cluster/', f':{kind}/', base)}/{resource}"


# -- acls iam ---------------------------------------------------------------------------------------------------------
#
# ACLs as IAM statements (``acls.target_auth: iam``), for people to apply: IAM is not changed through Kafka.


KEY = "access-map.json"


def access_map(migration_id: str, cluster_arn: str | None, plans: Sequence[AclPlan]) -> AccessMap:
    """The bindings of a plan that belong on the target, by principal. Pure."""
    wanted = sorted({target_acl(plan) for plan in plans if plan.action in ("create", "deferred", "exists")})
    statements: dict[str, list[IamStatement]] = {}
    left: list[Left] = []
    for principal in sorted({acl.principal for acl in wanted}):
        mine = [acl for acl in wanted if acl.principal == principal]
        grouped: dict[tuple[str, str], list[Acl]] = defaultdict(list)
        for acl in mine:
            resource = arn(cluster_arn, acl.resource_type, acl.resource_name, acl.pattern_type)
            reason = _no_equivalent(acl, resource)
            if reason:
                left.append(Left(name=str(acl), reason=reason))
            elif resource is not None:
                grouped[acl.permission, resource].append(acl)
        statements[principal] = _statements(grouped, cluster_arn)
    return AccessMap(
        migration_id=migration_id,
        cluster_arn=cluster_arn or PLACEHOLDER_CLUSTER,
        principals={principal: found for principal, found in statements.items() if found},
        without_equivalent=left,
    )


def _no_equivalent(acl: Acl, resource: str | None) -> str:
    if resource is None:
        return f"IAM has no resource of the kind {acl.resource_type}"
    if acl.resource_type == "CLUSTER" and acl.operation == "CREATE":
        return "IAM has CreateTopic on topics, not on the cluster: grant it for the intended topics"
    if not actions(acl.resource_type, acl.operation):
        return f"IAM has no action for {acl.operation} on {acl.resource_type}"
    if acl.host != "*":
        return f"the host {acl.host} would be a condition on aws:SourceIp: add the statement by hand"
    return ""


def _statements(grouped: dict[tuple[str, str], list[Acl]], cluster_arn: str | None) -> list[IamStatement]:
    found = [
        IamStatement(
            effect="Allow" if permission == "ALLOW" else "Deny",
            actions=sorted({action for acl in acls for action in actions(acl.resource_type, acl.operation)}),
            resources=[resource],
            acls=[str(acl) for acl in acls],
        )
        for (permission, resource), acls in sorted(grouped.items())
    ]
    if any(statement.effect == "Allow" for statement in found):
        cluster = arn(cluster_arn, "CLUSTER", "kafka-cluster")
        connect = IamStatement(effect="Allow", actions=[CONNECT], resources=[str(cluster)], acls=[])
        found.insert(0, connect)
    return found
