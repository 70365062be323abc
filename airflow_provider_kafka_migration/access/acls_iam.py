"""ACLs as IAM statements (``acls.target_auth: iam``), for people to apply: IAM is not changed through Kafka."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from airflow_provider_kafka_migration.access import iam
from airflow_provider_kafka_migration.access.mapping import target_acl
from airflow_provider_kafka_migration.documents.plan import AclPlan
from airflow_provider_kafka_migration.documents.target import AccessMap, IamStatement, Left
from airflow_provider_kafka_migration.kafka.admin.access import Acl

KEY = "access-map.json"


def access_map(migration_id: str, cluster_arn: str | None, plans: Sequence[AclPlan]) -> AccessMap:
    """The bindings of a plan that are to be on the target, by principal. Pure."""
    wanted = sorted({target_acl(plan) for plan in plans if plan.action in ("create", "deferred", "exists")})
    statements: dict[str, list[IamStatement]] = {}
    left: list[Left] = []
    for principal in sorted({acl.principal for acl in wanted}):
        mine = [acl for acl in wanted if acl.principal == principal]
        grouped: dict[tuple[str, str], list[Acl]] = defaultdict(list)
        for acl in mine:
            resource = iam.arn(cluster_arn, acl.resource_type, acl.resource_name, acl.pattern_type)
            reason = _no_equivalent(acl, resource)
            if reason:
                left.append(Left(name=str(acl), reason=reason))
            elif resource is not None:
                grouped[acl.permission, resource].append(acl)
        statements[principal] = _statements(grouped, cluster_arn)
    return AccessMap(
        migration_id=migration_id,
        cluster_arn=cluster_arn or iam.PLACEHOLDER_CLUSTER,
        principals={principal: found for principal, found in statements.items() if found},
        without_equivalent=left,
    )


def _no_equivalent(acl: Acl, resource: str | None) -> str:
    if resource is None:
        return f"IAM has no resource of the kind {acl.resource_type}"
    if acl.resource_type == "CLUSTER" and acl.operation == "CREATE":
        return "IAM has CreateTopic on topics, not on the cluster: grant it for the topics that are meant"
    if not iam.actions(acl.resource_type, acl.operation):
        return f"IAM has no action for {acl.operation} on {acl.resource_type}"
    if acl.host != "*":
        return f"the host {acl.host} would be a condition on aws:SourceIp: add the statement by hand"
    return ""


def _statements(grouped: dict[tuple[str, str], list[Acl]], cluster_arn: str | None) -> list[IamStatement]:
    found = [
        IamStatement(
            effect="Allow" if permission == "ALLOW" else "Deny",
            actions=sorted({action for acl in acls for action in iam.actions(acl.resource_type, acl.operation)}),
            resources=[resource],
            acls=[str(acl) for acl in acls],
        )
        for (permission, resource), acls in sorted(grouped.items())
    ]
    if any(statement.effect == "Allow" for statement in found):
        cluster = iam.arn(cluster_arn, "CLUSTER", "kafka-cluster")
        connect = IamStatement(effect="Allow", actions=[iam.CONNECT], resources=[str(cluster)], acls=[])
        found.insert(0, connect)
    return found
