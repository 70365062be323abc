"""Topics that no ACL names: whether everybody may write to them, which no DENY for single principals could stop.

With ``allow.everyone.if.no.acl.found=true`` an authorizer lets everybody do everything to a topic without any ACL. Any
ACL on the topic ends that, whatever it says and whoever has it. Brokers show this config only where nobody has set it
(then it is ``false``): once it is set, either way, they hide its value, as they do with all configs that they do not
know themselves.
"""

from __future__ import annotations

from airflow_provider_kafka_migration.errors import FreezeFailed, Where
from airflow_provider_kafka_migration.kafka.admin.access import Acl
from airflow_provider_kafka_migration.record.context import Cluster

CONFIG = "allow.everyone.if.no.acl.found"


def matches(acl: Acl, topic: str) -> bool:
    """Whether an ACL is one of this topic's, by name, prefix or wildcard."""
    if acl.resource_type != "TOPIC":
        return False
    if acl.pattern_type == "PREFIXED":
        return topic.startswith(acl.resource_name)
    return acl.resource_name in (topic, "*")


def check_closed(cluster: Cluster, acls: tuple[Acl, ...], topics: list[str]) -> None:
    """Check that nobody but super users may write to those topics that no ACL names.

    :raises FreezeFailed: everybody may, or brokers do not tell whether everybody may.
    :raises BrokerBusy: a broker does not answer now.
    """
    bare = [topic for topic in topics if not any(matches(acl, topic) for acl in acls)]
    why = _why_open(cluster) if bare else ""
    if why:
        raise FreezeFailed(
            f"no ACL names {len(bare)} topics, among them {bare[0]}, and {why}: ACLs for single principals cannot "
            "stop everybody. With any ACL on such a topic, even one for the migration's principal alone, nobody else "
            "has access to it any more",
            next_step="use cutover.freeze: webhook or manual, or give each of these topics ACLs for those who use it",
            details={"topics": bare},
        )


def _why_open(cluster: Cluster) -> str:
    """Return why everybody may have access to topics without ACLs; empty: nobody has."""
    for broker_id in cluster.admin.facts().brokers:
        configs = cluster.admin.broker_configs(broker_id)
        if configs.error is not None and configs.error.retriable:
            where = Where(cluster=cluster.role)
            raise configs.error.exception(f"configs of broker {broker_id} of the {cluster.role} cannot be read", where)
        if configs.error is not None:
            return f"the configs of broker {broker_id}, which tell who may use them, cannot be read ({configs.error})"
        item = configs.values.get(CONFIG)
        if item is None:
            continue
        if item.value is None:
            return f"broker {broker_id} has set {CONFIG}, whose value brokers do not show"
        if item.value.strip().lower() != "false":
            return f"broker {broker_id} has {CONFIG}={item.value}"
    return ""
