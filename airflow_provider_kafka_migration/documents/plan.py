"""plan.json: what a migration will do, built from the spec and the live clusters without writing to them.

Two plans of the same clusters are byte-equal, so a plan is sorted and contains no times.
It has no producer ids: taking one is a write on the target, so topology_copy takes and journals them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Literal

from pydantic import ConfigDict, Field

from airflow_provider_kafka_migration.documents.adoption import AdoptedStart
from airflow_provider_kafka_migration.documents.base import Document, GrownPart, Part
from airflow_provider_kafka_migration.documents.schemas import TopicIds

# -- measured rates ---------------------------------------------------------------------------------------------------
#
# The rate that a short read from the source measured, and the time that the copy takes at that rate. Stored next to the
# plan, not in it: two plans of unchanged clusters are byte-equal, two measurements never are.


class MeasuredRates(Document):
    """``plan/measured-rates.json``. A rate of 0 means that there was nothing to read."""

    version: int = 1
    migration_id: str
    plan_digest: str
    partitions: list[tuple[str, int]] = Field(description="(source topic, partition) pairs that were read, ascending")
    connections: int = Field(description="concurrent reading connections")
    read_bytes: int
    seconds: float
    read_bytes_per_second: int = Field(description="all connections together")
    given_bytes_per_second: int = Field(description="estimate.copy_bytes_per_second of the spec")
    copy_bytes_per_second: int = Field(description="the smaller of the two; the estimate uses it")
    limited_by: Literal["source", "spec"]
    copy_bytes: int = Field(description="bytes on the source's leaders; -1 where brokers do not report them")
    copy_seconds: float = Field(description="-1 where the bytes are unknown")
    errors: list[str] = Field(default_factory=list, description="partitions that could not be read, and why")

    def summary(self) -> str:
        """Return one line for people."""
        if not self.read_bytes:
            return "measured: nothing could be read; the given rate is used"
        time = "unknown time (the source does not report its sizes)"
        if self.copy_seconds >= 0:
            time = f"about {self.copy_seconds:.0f} s"
        return (
            f"measured: {self.read_bytes_per_second / 1e6:,.1f} MB/s read from the source by {self.connections} "
            f"connections in {self.seconds:.1f} s; at {self.copy_bytes_per_second / 1e6:,.1f} MB/s "
            f"(limited by the {self.limited_by}) the copy takes {time}"
        )


# -- findings ---------------------------------------------------------------------------------------------------------
#
# Findings of precheck and of later checks: a stable code, the severity, the observation, the fix.


class Severity(StrEnum):
    """Blockers stop the migration; warnings may be waived by code; infos are for the reader."""

    BLOCKER = "Blocker"
    WARNING = "Warning"
    INFO = "Info"


class Finding(Part):
    """One finding."""

    code: str = Field(pattern=r"^[BWI]\d{3}$", description="stable, listed in docs/precheck.md")
    severity: Severity
    title: str
    seen: str = Field(description="what was seen, with names")
    fix: str = Field(description="what to do")
    subject: str = Field("", description="what the finding is about: topic, group, principal, bucket ...")
    details: dict[str, Any] = Field(default_factory=dict)
    waived: bool = False


class PrecheckResult(Document):
    """``results/precheck.json``."""

    version: int = 1
    migration_id: str
    plan_digest: str = ""
    findings: list[Finding] = Field(default_factory=list)


# -- left out ---------------------------------------------------------------------------------------------------------
#
# Topics and groups of the source that are not part of the migration, each with its reason.


class LeftOutGroup(Part):
    """A consumer group that is not migrated. Its consumers start at ``auto.offset.reset`` on the target."""

    group: str
    type: str
    reason: str
    topics_in_scope: list[str] = Field(default_factory=list, description="migrated topics for which it has offsets")
    unread: str = Field("", description="why its offsets could not be read; empty: they were read")


class LeftOut(Document):
    """``results/left-out.json``: what the source had outside the migration at the client switch's acknowledgement."""

    version: int = 1
    migration_id: str
    at: str
    topics: dict[str, str] = Field(default_factory=dict, description="source topic to why it is not migrated")
    groups: list[LeftOutGroup] = Field(default_factory=list)
    unread: dict[str, str] = Field(default_factory=dict, description="what could not be read, and why")


# -- plan -------------------------------------------------------------------------------------------------------------


class Verdict(StrEnum):
    """How target offsets of a partition relate to source offsets."""

    EQUAL = "equal"
    SHIFTED = "shifted"
    MAPPED = "mapped"
    TRANSACTIONAL = "transactional"


#: A kind of topic: producers outside the migration write to it on the target.
SHARED_KIND = "shared"
#: A kind of topic: the opposite flow copies it back under the same name, so each cluster has the records of both.
MERGED_KIND = "merged"


class ClusterFacts(Part):
    """What a cluster reports about itself."""

    model_config = ConfigDict(from_attributes=True)

    cluster_id: str
    kafka_version: str = Field(description="Best guess from api versions, for people")
    mode: Literal["zookeeper", "kraft", "unknown"]
    brokers: list[int] = Field(description="broker ids, ascending")
    features: dict[str, int] = Field(default_factory=dict, description="finalized features and their level")
    authorizer: bool = True


class PartitionPlan(GrownPart):
    """One partition: the bounds of its log, and how its offsets are kept."""

    LATER_FIELDS = ("adopted", "left_out")

    partition: int
    log_start_offset: int
    end_offset: int = Field(description="last stable offset when the plan was made")
    high_watermark: int
    size_bytes: int = Field(-1, description="bytes on the leader's disk; -1 where the broker does not report them")
    verdict: Verdict
    reason: str = Field("", description="reason for this verdict, for people")
    source_start_offset: int = Field(
        description="first copied source offset: log_start_offset, or that of an adopted partition"
    )
    target_start_offset: int = Field(description="target offset of source_start_offset; the same for verdict equal")
    estimated_holes: int = 0
    estimated_records: int = -1
    adopted: AdoptedStart | None = Field(
        None, description="the partition begins behind content that is on both clusters; null: on an empty partition"
    )
    left_out: str = Field(
        "", description="why nothing is copied to the partition, although its topic is part of the plan; empty: it is"
    )

    @property
    def filler_offsets(self) -> int:
        """Offsets to fill and delete before the first record (verdict equal and a log start above 0)."""
        return 0 if self.adopted or self.left_out else self.target_start_offset


class TopicPlan(Part):
    """One topic of the migration."""

    name: str
    target_name: str
    topic_id: str = Field("", description="source topic id (KIP-516); empty before 2.8")
    partitions: list[PartitionPlan]
    replication_factor: int = Field(description="of the target topic, with the policy applied")
    source_replication_factor: int
    source_configs: dict[str, str] = Field(description="dynamic configs of the source topic")
    target_configs: dict[str, str] = Field(description="final configs of the target topic, with the policy applied")
    dropped_configs: dict[str, str] = Field(default_factory=dict, description="config name to why it is not copied")
    kinds: list[str] = Field(
        default_factory=list,
        description="compacted, log_append_time, old_format, tiered, transactional; shared: other producers write to "
        "the target topic, and the copy writes alongside them",
    )
    codecs: list[str] = Field(default_factory=list, description="of the batches sampled at both ends of each partition")
    exists_on_target: bool = False
    drift: list[dict[str, Any]] = Field(default_factory=list, description="config differences of an existing topic")

    @property
    def shared(self) -> bool:
        """Whether other producers write to it on the target: the copy writes alongside, and its configs stay."""
        return SHARED_KIND in self.kinds

    @property
    def merged(self) -> bool:
        """Whether it has the records of both clusters; then it is shared, too, and no flow ever sets its configs."""
        return MERGED_KIND in self.kinds


class GroupPlan(Part):
    """One consumer group of the migration."""

    group: str
    type: Literal["classic", "consumer", "simple", "share", "streams", "unknown"]
    state: str
    topics_in_scope: list[str]
    topics_out_of_scope: list[str] = Field(default_factory=list)
    lag: int = Field(-1, description="records over the partitions in scope; -1: unknown")


class AclPlan(Part):
    """One ACL binding of the source, and what the migration does with it."""

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
    """One SCRAM user of the source. Its secret cannot be read, so creating it needs a secret reference."""

    name: str
    credentials: list[tuple[str, int]] = Field(description="(mechanism, iterations), ascending")
    action: Literal["create", "exists", "report"]
    reason: str = ""


class QuotaPlan(Part):
    """The client quotas of one entity, key to value, those of the target, and what the migration does with them."""

    entity: list[tuple[str, str | None]] = Field(description="(type, name), ascending; name null: the default")
    values: dict[str, float]
    target_values: dict[str, float] = Field(default_factory=dict)
    action: Literal["create", "overwrite", "exists", "kept_on_target", "target_only"]


class GroupConfigPlan(Part):
    """Configs of a source group (4.1+), and what the migration does with them."""

    group: str
    configs: dict[str, str]
    action: Literal["create", "exists", "unsupported"]
    reason: str = ""


class EstimatePlan(Part):
    """Time and bytes, from the rates in the spec."""

    copy_bytes: int = Field(description="bytes on the source's leaders; -1 where brokers do not report them")
    copy_seconds: float = Field(description="-1 where the bytes are unknown")
    filler_offsets: int = 0
    marker_offsets: int = 0
    fill_seconds: float = 0.0


class LanePlan(Part):
    """A unit of parallel work: a stable, size-balanced set of partitions."""

    lane: int
    partitions: list[tuple[str, int]] = Field(description="(source topic, partition), ascending")
    size_bytes: int = 0


class SchemaPlanSummary(Part):
    """The schema plan in figures. Its digest is part of the plan, so an approval of the plan covers the schema plan."""

    document: str = Field(description="key of the schema plan, relative to the migration")
    digest: str = Field(description="SHA-256 of the schema plan")
    id_mode: Literal["keep", "translate", "topic"]
    subjects: int = 0
    versions: int = Field(0, description="all versions, including deleted ones")
    deleted_versions: int = 0
    conflicts: int = Field(0, description="what keeps a schema, level or mode from being written as planned")
    topics_with_ids: int = Field(0, description="topics whose records carry schema ids")
    unread: int = Field(0, description="what could not be read; the schema plan names it")


class AdoptionSummary(Part):
    """Which partitions are adopted, in figures. Its digest is part of the plan, so an approval covers the starts."""

    document: str = Field(description="key of the document, relative to the migration")
    digest: str = Field(description="SHA-256 of the document")
    adopted_from: str = Field(description="adopt.from of the spec")
    boundary_of: str = Field("", description="migration whose end is the boundary; empty: none")
    partitions: int = 0
    refused: int = Field(0, description="partitions that cannot be adopted; the document and precheck name them")


class Plan(Document):
    """The plan. An approval refers to it and its digest (:meth:`Document.digest`)."""

    LATER_FIELDS = ("excluded_groups", "schemas", "adoption")

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
    excluded_topics: dict[str, str] = Field(default_factory=dict, description="source topic to why it is excluded")
    excluded_groups: list[LeftOutGroup] = Field(default_factory=list, description="excluded groups, and why")
    notes: list[str] = Field(default_factory=list, description="what is not copied and why, for people")
    defaults_drift: list[dict[str, str]] = Field(
        default_factory=list, description="topic configs whose defaults differ: config, source, target"
    )
    unknown: dict[str, str] = Field(
        default_factory=dict, description="what could not be read, and why; never taken as 'there is none'"
    )
    missing_topics: list[str] = Field(
        default_factory=list, description="names in topics.include that the source does not have or show"
    )
    estimate: EstimatePlan | None = None
    schemas: SchemaPlanSummary | None = Field(
        None, description="null: no schema registry is configured, or it is unknown"
    )
    adoption: AdoptionSummary | None = Field(None, description="null: the spec adopts nothing")
    spec_digest: str = ""

    def topic(self, name: str) -> TopicPlan:
        """Return the plan of a source topic; raise ``KeyError`` if there is none."""
        for topic in self.topics:
            if topic.name == name:
                return topic
        raise KeyError(name)

    @property
    def total_bytes(self) -> int:
        """Bytes on the source's leaders, as far as known."""
        return sum(max(p.size_bytes, 0) for topic in self.topics for p in topic.partitions)


class ConfigChange(Part):
    """A change in the configs of a source topic since the plan, and its effect on the target."""

    former_configs: dict[str, str] = Field(description="dynamic configs of the source topic as planned before")
    source_configs: dict[str, str] = Field(description="dynamic configs of the source topic now")
    target_configs: dict[str, str] = Field(description="final configs of the target topic, with the policy applied")
    dropped_configs: dict[str, str] = Field(default_factory=dict, description="config name to why it is not copied")


class PlanSupplement(Document):
    """``plan-supplements/<number>-<digest>.json``."""

    LATER_FIELDS = ("configs", "schema_topics")

    version: int = 1
    migration_id: str
    number: int = Field(description="1, 2, 3: applied in this order")
    topics: list[TopicPlan] = Field(
        default_factory=list, description="new topics; for topics that have grown: only their new partitions"
    )
    dropped: dict[str, str] = Field(
        default_factory=dict, description="source topic to why it is no longer part of the migration"
    )
    configs: dict[str, ConfigChange] = Field(default_factory=dict, description="by source topic")
    schema_topics: list[TopicIds] = Field(
        default_factory=list, description="where the records of new topics carry schema ids, ascending by topic"
    )

    def apply(self, plan: Plan) -> Plan:
        """Return the plan with this supplement applied."""
        topics = {topic.name: topic for topic in plan.topics if topic.name not in self.dropped}
        for topic in self.topics:
            known = topics.get(topic.name)
            topics[topic.name] = topic if known is None else _widened(known, topic)
        for name, change in self.configs.items():
            if name in topics:
                update = change.model_dump(include={"source_configs", "target_configs", "dropped_configs"})
                topics[name] = topics[name].model_copy(update=update)
        kept = {(name, item.partition) for name, topic in topics.items() for item in topic.partitions}
        lanes = [
            lane.model_copy(update={"partitions": [key for key in lane.partitions if tuple(key) in kept]})
            for lane in plan.lanes
        ]
        return plan.model_copy(
            update={
                "topics": [topics[name] for name in sorted(topics)],
                "lanes": lanes,
                "excluded_topics": {
                    name: why
                    for name, why in sorted({**plan.excluded_topics, **self.dropped}.items())
                    if name in self.dropped or name not in topics
                },
            }
        )


def _widened(known: TopicPlan, added: TopicPlan) -> TopicPlan:
    partitions = {item.partition: item for item in (*added.partitions, *known.partitions)}
    return known.model_copy(update={"partitions": [partitions[number] for number in sorted(partitions)]})


def supplemented(plan: Plan, supplements: Iterable[PlanSupplement]) -> Plan:
    """Return the plan with all supplements applied, in the order of their numbers."""
    for supplement in sorted(supplements, key=lambda item: item.number):
        plan = supplement.apply(plan)
    return plan
