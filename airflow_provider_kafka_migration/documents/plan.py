"""plan.json: what a migration will do, made from the spec and the live clusters without writing to them.

Two plans of the same clusters are byte-equal, so everything in here is sorted and nothing in here is a time.
Producer ids are not in it: taking one is a write on the target, so topology_copy takes and journals them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import ConfigDict, Field

from airflow_provider_kafka_migration.documents.base import Document, Part
from airflow_provider_kafka_migration.documents.left_out import LeftOutGroup


class Verdict(StrEnum):
    """How target offsets of a partition relate to source offsets."""

    EQUAL = "equal"
    SHIFTED = "shifted"
    MAPPED = "mapped"
    TRANSACTIONAL = "transactional"


#: Among the kinds of a topic: others write to it on the target.
SHARED_KIND = "shared"


class ClusterFacts(Part):
    """What a cluster says of itself."""

    model_config = ConfigDict(from_attributes=True)

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
    kinds: list[str] = Field(
        default_factory=list,
        description="compacted, log_append_time, old_format, tiered, transactional; shared: others write to the target "
        "topic, and it is copied into beside them",
    )
    codecs: list[str] = Field(default_factory=list, description="of the batches sampled at both ends of each partition")
    exists_on_target: bool = False
    drift: list[dict[str, Any]] = Field(default_factory=list, description="config differences of an existing topic")

    @property
    def shared(self) -> bool:
        """Others write to it on the target; it is copied into beside them, and ends with the configs it had."""
        return SHARED_KIND in self.kinds


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


class UserPlan(Part):
    """One SCRAM user of the source. Its secret cannot be read, so it needs a secret reference to be created."""

    name: str
    credentials: list[tuple[str, int]] = Field(description="(mechanism, iterations), ascending")
    action: Literal["create", "exists", "report"]
    reason: str = ""


class QuotaPlan(Part):
    """The client quotas of one entity, key to value; what the target has of them, and what becomes of them."""

    entity: list[tuple[str, str | None]] = Field(description="(type, name) ascending; name null: the default")
    values: dict[str, float]
    target_values: dict[str, float] = Field(default_factory=dict)
    action: Literal["create", "overwrite", "exists", "kept_on_target", "target_only"]


class GroupConfigPlan(Part):
    """Configs of a group of the source (4.1+), and what becomes of them."""

    group: str
    configs: dict[str, str]
    action: Literal["create", "exists", "unsupported"]
    reason: str = ""


class EstimatePlan(Part):
    """Time and bytes, from the rates in the spec."""

    copy_bytes: int = Field(description="bytes on the source's leaders, -1 where brokers do not tell")
    copy_seconds: float = Field(description="-1 where the bytes are not known")
    filler_offsets: int = 0
    marker_offsets: int = 0
    fill_seconds: float = 0.0


class LanePlan(Part):
    """A unit of parallel work: a stable, size-balanced set of partitions."""

    lane: int
    partitions: list[tuple[str, int]] = Field(description="(source topic, partition), ascending")
    size_bytes: int = 0


class Plan(Document):
    """The plan and its digest (:meth:`Document.digest`) are what an approval refers to."""

    LATER_FIELDS = ("excluded_groups",)

    version: int = 1
    migration_id: str
    source: ClusterFacts
    target: ClusterFacts
    topics: list[TopicPlan]
    groups: list[GroupPlan] = Field(default_factory=list)
    acls: list[AclPlan] = Field(default_factory=list)
    users: list[UserPlan] = Field(default_factory=list)
    quotas: list[QuotaPlan] = Field(default_factory=list)
    group_configs: list[GroupConfigPlan] = Field(default_factory=list)
    lanes: list[LanePlan]
    excluded_topics: dict[str, str] = Field(default_factory=dict, description="source topic to why it is not taken")
    excluded_groups: list[LeftOutGroup] = Field(default_factory=list, description="groups that are not taken, and why")
    notes: list[str] = Field(default_factory=list, description="what is not copied and why, for people")
    defaults_drift: list[dict[str, str]] = Field(
        default_factory=list, description="topic configs whose defaults differ: config, source, target"
    )
    unknown: dict[str, str] = Field(
        default_factory=dict, description="what could not be looked at, and why; never read as 'there is none'"
    )
    missing_topics: list[str] = Field(
        default_factory=list, description="names in topics.include that the source does not have or show"
    )
    estimate: EstimatePlan | None = None
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
