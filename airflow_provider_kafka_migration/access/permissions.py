"""The least rights that the migration's own principal needs on each side; for permissions.md and precheck."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from airflow_provider_kafka_migration.access import iam
from airflow_provider_kafka_migration.documents.plan import Plan, Verdict
from airflow_provider_kafka_migration.internal_topics import SCRATCH_PREFIX
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.mirror_maker.state_topics import StateTopics
from airflow_provider_kafka_migration.offset_map.transactional import group_name
from airflow_provider_kafka_migration.spec import MigrationSpec

CLUSTER_NAME = "kafka-cluster"
#: Beyond this number of topics or groups without a common prefix, the wildcard replaces the list of names.
MAX_LITERALS = 100

Side = Literal["source", "target"]


@dataclass(frozen=True, order=True)
class Needed:
    """Operations on one resource (pattern), and their purpose."""

    side: Side
    resource_type: str
    pattern_type: str
    name: str
    operations: tuple[str, ...]
    why: str


def needed(spec: MigrationSpec, plan: Plan) -> list[Needed]:
    """Return all needed operations, ascending."""
    return sorted([*_source(spec, plan), *_target(spec, plan), *state_topics(spec)])


def state_topics(spec: MigrationSpec) -> Iterator[Needed]:
    """Yield what a mirror needs on MirrorMaker 2's state topics, if it writes any (``mirror.state_topics``)."""
    section = spec.mirror.state_topics
    if spec.kind != "mirror" or not section.is_on:
        return
    topics = StateTopics.of(spec)
    written: set[tuple[Side, str]] = set()
    if section.checkpoints:
        written |= {("target", topics.checkpoints), (topics.syncs_on, topics.offset_syncs)}
    if section.heartbeats:
        written |= {("target", topics.heartbeats), ("target", topics.remote_heartbeats)}
        upstream = [topics.heartbeats, *_upstream_heartbeats(spec)]
        for name, remote in spec.mirror.names(spec.topics.rename).remote_heartbeats(upstream).items():
            written.add(("target", remote))
            yield Needed("source", "TOPIC", "LITERAL", name, ("DESCRIBE", "READ"), "mirror.state_topics.heartbeats")
        if section.heartbeats_on_source:
            written.add(("source", topics.heartbeats))
    for side, name in sorted(written):
        operations = ("CREATE", "DESCRIBE", "READ", "WRITE")
        yield Needed(side, "TOPIC", "LITERAL", name, operations, "mirror.state_topics")


def _upstream_heartbeats(spec: MigrationSpec) -> list[str]:
    """Heartbeats of the clusters that are one flow away from the source; those further away have longer names."""
    mirror = spec.mirror
    return [f"{alias}{mirror.separator}heartbeats" for alias in sorted(mirror.known_aliases)]


def patterns(regexes: list[str], names: list[str]) -> list[tuple[str, str]]:
    """ACL patterns that cover names, as narrow as possible: prefixes where the regular expressions are prefixes."""
    found = []
    for regex in regexes:
        match = re.fullmatch(r"((?:[A-Za-z0-9_-]|\\\.)+)\.\*", regex)
        if match is None:
            break
        found.append(("PREFIXED", match[1].replace(r"\.", ".")))
    else:
        return sorted(set(found))
    if len(names) > MAX_LITERALS:
        return [("LITERAL", "*")]
    return [("LITERAL", name) for name in sorted(names)]


def _source(spec: MigrationSpec, plan: Plan) -> Iterator[Needed]:
    yield Needed("source", "CLUSTER", "LITERAL", CLUSTER_NAME, ("DESCRIBE",), "partition sizes, ACLs, SCRAM users")
    if spec.quota_policy != "skip":
        yield Needed("source", "CLUSTER", "LITERAL", CLUSTER_NAME, ("DESCRIBE_CONFIGS",), "client quotas")
    if spec.cutover.freeze == "acl":
        yield Needed("source", "CLUSTER", "LITERAL", CLUSTER_NAME, ("ALTER",), "cutover.freeze: acl")
    operations: tuple[str, ...] = ("DESCRIBE", "DESCRIBE_CONFIGS", "READ")
    for pattern, name in patterns(spec.topics.include, [topic.name for topic in plan.topics]):
        yield Needed("source", "TOPIC", pattern, name, operations, "to plan, copy and compare")
        if spec.cutover.sentinel == "record":
            yield Needed("source", "TOPIC", pattern, name, ("WRITE",), "cutover.sentinel: record")
    for pattern, name in patterns(spec.groups.include, [group.group for group in plan.groups]):
        yield Needed("source", "GROUP", pattern, name, ("DESCRIBE",), "offsets and state of groups")
    if any("transactional" in topic.kinds for topic in plan.topics):
        yield Needed("source", "TRANSACTIONAL_ID", "LITERAL", "*", ("DESCRIBE",), "open transactions")


def _target(spec: MigrationSpec, plan: Plan) -> Iterator[Needed]:
    yield Needed("target", "CLUSTER", "LITERAL", CLUSTER_NAME, ("DESCRIBE",), "disk space, ACLs, SCRAM users")
    yield Needed(
        "target",
        "CLUSTER",
        "LITERAL",
        CLUSTER_NAME,
        ("ALTER",),
        "ACLs, SCRAM users, and control markers since Kafka 3.8 (before: ClusterAction)",
    )
    if spec.quota_policy != "skip":
        yield Needed("target", "CLUSTER", "LITERAL", CLUSTER_NAME, ("ALTER_CONFIGS",), "client quotas")
    yield Needed("target", "CLUSTER", "LITERAL", CLUSTER_NAME, ("DESCRIBE_CONFIGS",), "client quotas, limits")
    topic: tuple[str, ...] = (
        "ALTER",
        "ALTER_CONFIGS",
        "CREATE",
        "DELETE",
        "DESCRIBE",
        "DESCRIBE_CONFIGS",
        "READ",
        "WRITE",
    )
    why = "topics, records, log starts (Delete is DeleteRecords)"
    if spec.kind == "mirror" and spec.mirror.merges:
        # Nothing is ever set on topics with the records of both clusters, or deleted from them.
        topic, why = ("ALTER", "CREATE", "DESCRIBE", "DESCRIBE_CONFIGS", "READ", "WRITE"), "topics, records"
    scratch: tuple[str, ...] = ("CREATE", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS", "READ", "WRITE")
    for pattern, name in _target_topics(spec, plan):
        yield Needed("target", "TOPIC", pattern, name, topic, why)
    yield Needed("target", "TOPIC", "PREFIXED", SCRATCH_PREFIX, scratch, "the precheck's probe, removed afterwards")
    yield Needed(
        "target",
        "TRANSACTIONAL_ID",
        "PREFIXED",
        f"kafka-migration.{plan.migration_id}.",
        ("DESCRIBE", "WRITE"),
        "fencing tokens of markers, transactions",
    )
    if any(item.verdict is Verdict.TRANSACTIONAL for topic in plan.topics for item in topic.partitions):
        group = group_name(plan.migration_id)
        yield Needed("target", "GROUP", "LITERAL", group, ("DESCRIBE", "READ"), "positions of copies in transactions")
    for pattern, name in patterns(spec.groups.include, [group.group for group in plan.groups]):
        yield Needed("target", "GROUP", pattern, name, ("DESCRIBE", "READ"), "to commit offsets")
        if spec.groups.on_deleted == "repair":
            yield Needed("target", "GROUP", pattern, name, ("DELETE",), "groups.on_deleted: repair")
    for item in plan.group_configs:
        yield Needed("target", "GROUP", "LITERAL", item.group, ("ALTER_CONFIGS", "DESCRIBE_CONFIGS"), "group configs")


def _target_topics(spec: MigrationSpec, plan: Plan) -> list[tuple[str, str]]:
    """The source's patterns under the target's names; renamed topics with individual names one by one."""
    own = [(("LITERAL", topic.target_name)) for topic in plan.topics if topic.name in spec.topics.rename.topics]
    rest = [topic.name for topic in plan.topics if topic.name not in spec.topics.rename.topics]
    prefix = spec.topics.rename.prefix
    found = [
        (pattern, name if name == "*" else f"{prefix}{name}") for pattern, name in patterns(spec.topics.include, rest)
    ]
    return sorted({*found, *own})


def iam_policy(spec: MigrationSpec, items: list[Needed], cluster_arn: str | None) -> dict[str, Any]:
    """An IAM policy for one side; operations without an equivalent are left out (permissions.md names them)."""
    statements: list[dict[str, Any]] = [
        {"Effect": "Allow", "Action": [iam.CONNECT], "Resource": [iam.arn(cluster_arn, "CLUSTER", CLUSTER_NAME)]}
    ]
    by_resource: dict[str, set[str]] = {}
    for item in items:
        resource = iam.arn(cluster_arn, item.resource_type, item.name, item.pattern_type)
        if resource is not None:
            found = by_resource.setdefault(resource, set())
            found.update(
                action for operation in item.operations for action in iam.actions(item.resource_type, operation)
            )
    statements += [
        {"Effect": "Allow", "Action": sorted(found), "Resource": [resource]}
        for resource, found in sorted(by_resource.items())
        if found
    ]
    return {"Version": "2012-10-17", "Statement": statements}


def principal_of(config: ClientConfig | None) -> str:
    """The migration's own principal on a cluster, as ACLs name it; a placeholder if the connection does not show it."""
    return f"User:{config.username}" if config is not None and config.username else "User:MIGRATION"


def grant_markers(config: ClientConfig | None) -> str:
    """The command that grants the right to write control markers on the target."""
    item = Needed("target", "CLUSTER", "LITERAL", CLUSTER_NAME, ("ALTER",), "control markers")
    return command(principal_of(config), item)


def command(principal: str, item: Needed) -> str:
    """The command that grants operations to a principal."""
    option = {
        "CLUSTER": "--cluster",
        "TOPIC": f"--topic {_quoted(item.name)}",
        "GROUP": f"--group {_quoted(item.name)}",
        "TRANSACTIONAL_ID": f"--transactional-id {_quoted(item.name)}",
    }[item.resource_type]
    operations = " ".join(f"--operation {name.title().replace('_', '')}" for name in item.operations)
    pattern = " --resource-pattern-type prefixed" if item.pattern_type == "PREFIXED" else ""
    server = f"${item.side.upper()}_BOOTSTRAP"
    start = f"kafka-acls.sh --bootstrap-server {server} --add --allow-principal {_quoted(principal)}"
    return f"{start} {operations} {option}{pattern}"


def _quoted(name: str) -> str:
    """Return a name as one word of a shell command, whatever characters it has."""
    return "'" + name.replace("'", "'\\''") + "'"
