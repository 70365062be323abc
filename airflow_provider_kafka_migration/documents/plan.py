"""plan.json: what a migration will do, made from the spec and the live clusters without writing to them.

Two plans of the same clusters are byte-equal, so everything in here is sorted and nothing in here is a time.
Producer ids are not in it: taking one is a write on the target, so topology_copy takes and journals them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document, Part


class Verdict(StrEnum):
    """How target offsets of a partition relate to source offsets."""

    EQUAL = "equal"
    SHIFTED = "shifted"
    MAPPED = "mapped"
    TRANSACTIONAL = "transactional"


class ClusterFacts(Part):
    """What a cluster says of itself."""

    cluster_id: str
    kafka_version: str = Field(description="Best guess from api versions, for people")
    mode: Literal["zookeeper", "kraft", "unknown"]
    brokers: list[int] = Field(description="broker ids, ascending")
    features: dict[str, int] = Field(default_factory=dict, description="finalized features and their level")
    authorizer: bool = True


class PartitionPlan(Part):
    """One partition: where its log stands and what becomes of its offsets."""

    partition: int
    log_start_offset: int
    end_offset: int = Field(description="last stable offset when the plan was made")
    high_watermark: int
    size_bytes: int = Field(-1, description="bytes on the leader's disk; -1 where the broker does not tell")
    verdict: Verdict
    reason: str = Field("", description="why this verdict, for people")
    source_start_offset: int = Field(description="first source offset that is copied (= log_start_offset)")
    target_start_offset: int = Field(description="target offset of source_start_offset: equal for verdict equal")
    estimated_holes: int = 0
    estimated_records: int = -1

    @property
    def filler_offsets(self) -> int:
        """Offsets to fill and delete before the first record (verdict equal and a log start above 0)."""
        return self.target_start_offset


class TopicPlan(Part):
    """One topic of the migration."""

    name: str
    target_name: str
    topic_id: str = Field("", description="source topic id (KIP-516); empty before 2.8")
    partitions: list[PartitionPlan]
    replication_factor: int = Field(description="of the target topic, policy applied")
    source_replication_factor: int
    source_configs: dict[str, str] = Field(description="dynamic configs of the source topic")
    target_configs: dict[str, str] = Field(description="what the target topic ends with, policy applied")
    dropped_configs: dict[str, str] = Field(default_factory=dict, description="config name to why it is not copied")
    kinds: list[str] = Field(default_factory=list, description="compacted, transactional, log_append_time")
    exists_on_target: bool = False
    drift: list[dict[str, Any]] = Field(default_factory=list, description="config differences of an existing topic")


class GroupPlan(Part):
    """One consumer group of the migration."""

    group: str
    type: Literal["classic", "consumer", "simple", "share", "streams", "unknown"]
    state: str
    topics_in_scope: list[str]
    topics_out_of_scope: list[str] = Field(default_factory=list)
    lag: int = Field(-1, description="records over the partitions in scope; -1 unknown")


class AclPlan(Part):
    """One ACL binding of the source and what becomes of it."""

    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str
    action: Literal["create", "exists", "filtered", "target_only", "deferred", "unsupported"]
    target_resource_name: str = ""
    reason: str = ""


class LanePlan(Part):
    """A unit of parallel work: a stable, size-balanced set of partitions."""

    lane: int
    partitions: list[tuple[str, int]] = Field(description="(source topic, partition), ascending")
    size_bytes: int = 0


class Plan(Document):
    """The plan and its digest (:meth:`Document.digest`) are what an approval refers to."""

    version: int = 1
    migration_id: str
    source: ClusterFacts
    target: ClusterFacts
    topics: list[TopicPlan]
    groups: list[GroupPlan] = Field(default_factory=list)
    acls: list[AclPlan] = Field(default_factory=list)
    users: list[dict[str, Any]] = Field(default_factory=list)
    quotas: list[dict[str, Any]] = Field(default_factory=list)
    lanes: list[LanePlan]
    excluded_topics: dict[str, str] = Field(default_factory=dict, description="source topic to why it is not taken")
    notes: list[str] = Field(default_factory=list, description="what is not copied and why, for people")
    spec_digest: str = ""

    def topic(self, name: str) -> TopicPlan:
        """The plan of a source topic; raises ``KeyError``."""
        for topic in self.topics:
            if topic.name == name:
                return topic
        raise KeyError(name)

    @property
    def total_bytes(self) -> int:
        """Bytes on the source's leaders, as far as known."""
        return sum(max(p.size_bytes, 0) for topic in self.topics for p in topic.partitions)
