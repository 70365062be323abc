"""The sections of the spec, their keys and defaults."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from airflow_provider_kafka_migration.internal_topics import why_internal
from airflow_provider_kafka_migration.naming.policies import FlowNames
from airflow_provider_kafka_migration.spec.types import ByteSize, Duration, Location, Regex
from airflow_provider_kafka_migration.verbs import AnyVerb, NoteOrRepair, StopOrNote, StopOrRepair, on

QuotaPolicy = Literal["copy", "keep_target", "refuse", "skip"]

#: MirrorMaker 2 leaves these out, too: configs that belong to a cluster rather than to a topic's meaning.
DEFAULT_CONFIG_EXCLUDE = (
    r"follower\.replication\.throttled\.replicas",
    r"leader\.replication\.throttled\.replicas",
)


class _Anything:
    def __contains__(self, value: object) -> bool:
        return True


@dataclass(frozen=True)
class Retired:
    """A key that earlier versions had.

    :param harmless: values that change nothing today. They are ignored in new specs, too; in recorded ones all are.
    :param why: why there is no such key, and what to do instead.
    """

    harmless: Container[Any]
    why: str


class Section(BaseModel):
    """A part of the spec. Unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    #: Keys that this section had in earlier versions.
    retired: ClassVar[Mapping[str, Retired]] = MappingProxyType({})

    @model_validator(mode="before")
    @classmethod
    def _without_retired_keys(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, Mapping):
            return data
        # Whoever frees producers, after an update in the middle of a freeze too, must be able to read the spec.
        known = {} if (info.context or {}).get("recorded") else cls.retired
        return {
            key: data[key]
            for key in data
            if key not in cls.retired or (key in known and data[key] not in known[key].harmless)
        }


def why_not_selected(section: str, name: str, include: list[str], exclude: list[str]) -> str:
    """Return the rule that leaves a name out; empty if none does."""
    for pattern in exclude:
        if re.fullmatch(pattern, name):
            return f"{section}.exclude: {pattern}"
    if any(re.fullmatch(pattern, name) for pattern in include):
        return ""
    return f"not in {section}.include"


class ClusterSection(Section):
    """One of the two clusters."""

    retired = MappingProxyType(
        {
            "admin_class": Retired(
                (None,), "the brokers themselves change topics and ACLs: give the migration's principal the rights"
            ),
            "admin_wait": Retired(_Anything(), ""),
        }
    )

    conn_id: str = Field(
        min_length=1,
        description="Airflow connection of type kafka (its extra holds librdkafka keys); without Airflow, env:NAME "
        "or file:PATH with the same JSON.",
    )
    name: str | None = Field(None, description="Name shown to people; default: the connection's id.")
    principal: str | None = Field(
        None,
        pattern=r"^[A-Za-z]+:.+$",
        description="The migration's own principal as the cluster's ACLs name it, for instance `User:CN=migrator`; "
        "default: `User:` and the connection's sasl.username. It is not denied where ACLs stop producers.",
    )


class StorageSection(Section):
    """Where the journal, archive and evidence are stored."""

    conn_id: str | None = Field(
        None, description="Airflow aws connection, or env:NAME / file:PATH; empty: the machine's own AWS identity."
    )
    journal: Location = Field(description="Journal, plan and jobs: s3://bucket/prefix (or file:///folder for trials).")
    archive: Location | None = Field(None, description="Seed segments; default: the journal's location + /archive.")
    evidence: Location | None = Field(
        None, description="Evidence and offset map, ideally in a bucket with Object Lock; default: journal + /evidence."
    )

    @property
    def archive_location(self) -> str:
        """Location of the archive, with the default applied."""
        return self.archive or f"{self.journal}/archive"

    @property
    def evidence_location(self) -> str:
        """Location of the evidence, with the default applied."""
        return self.evidence or f"{self.journal}/evidence"


class RenameSection(Section):
    """Names of the topics on the target. Default: unchanged."""

    prefix: str = Field("", pattern=r"^[a-zA-Z0-9._-]*$", description="Prepended to each topic name.")
    topics: dict[str, str] = Field(default_factory=dict, description="Exact renames, source name to target name.")


class TopicsSection(Section):
    """Which topics are migrated."""

    include: list[Regex] = Field(
        [".*"],
        min_length=1,
        description="Names or regular expressions, full match. Internal topics (`__*`, `*.replica` and others) need a "
        "pattern that names them, for instance `__debezium-heartbeat.*`; the brokers' own topics never match.",
    )
    exclude: list[Regex] = Field(default_factory=list, description="Names or regular expressions; exclude wins.")
    rename: RenameSection = Field(default_factory=lambda: RenameSection())
    #: the names of a mirror's flow; None in a migration
    _flow: FlowNames | None = PrivateAttr(None)

    def of_flow(self, rename: RenameSection, flow: FlowNames) -> TopicsSection:
        """Return the same selection under the names of a mirror's flow."""
        found = self.model_copy(update={"rename": rename})
        found._flow = flow
        return found

    def selects(self, topic: str) -> bool:
        """Whether a source topic is part of the migration."""
        return not self.why_left_out(topic)

    def why_left_out(self, topic: str) -> str:
        """Return why a source topic is not part of the migration; empty if it is."""
        if why := why_internal(topic, self.include):
            return why
        if why := why_not_selected("topics", topic, self.include, self.exclude):
            return why
        return "" if self._flow is None else self._flow.why_not(topic)

    def target_name(self, topic: str) -> str:
        """Return the name of a source topic on the target."""
        if self._flow is not None:
            return self._flow.remote(topic)
        return self.rename.topics.get(topic, f"{self.rename.prefix}{topic}")


class TopologySection(Section):
    """How topics and their configs are created."""

    replication_factor: Literal["source", "target_default"] | Annotated[int, Field(ge=1)] = Field(
        "source",
        description="source, target_default (MirrorMaker 2's -1) or a number from 1 on; capped at the target's broker "
        "count, with a finding.",
    )
    config_exclude: list[Regex] = Field(
        list(DEFAULT_CONFIG_EXCLUDE), description="Topic configs that are not copied (full match)."
    )
    use_defaults_from: Literal["source", "target"] = Field(
        "target",
        description="Configs at their default on the source: keep the target's default, or set the source's. What "
        "decides which records stay, and what a record is, is always the source's: cleanup.policy, retention.*, "
        "compaction lags, delete.retention.ms, message.timestamp.type, max.message.bytes; topology.config_exclude "
        "leaves it to the target.",
    )
    on_config_drift: AnyVerb = on("topology.on_config_drift", "repair")
    follow_new: bool = Field(
        True,
        description="Include what appears on the source after the plan: partitions before topology_copy (false: they "
        "are an error), and selected topics and partitions while the tail runs.",
    )
    on_source_drift: AnyVerb = on("topology.on_source_drift", "repair")
    on_topic_deleted: AnyVerb = on("topology.on_topic_deleted", "stop")
    refresh_interval: Duration = Field("30s", description="How often the tail checks for new topics and partitions.")  # type: ignore[assignment]


class AclsSection(Section):
    """How ACLs are copied."""

    policy: Literal["merge", "replace", "refuse", "skip", "mirror_maker"] = Field(
        "merge",
        description="merge creates what is missing; replace also reports what only the target has; refuse stops at any "
        "difference; skip copies none and records that in the evidence; mirror_maker, only in mirrors, is "
        "MirrorMaker 2's rule: ACLs that name one topic and no others, and write_grants: never.",
    )
    write_grants: Literal["at_once", "at_cutover", "never"] = Field(
        "at_once",
        description="When producers get WRITE on the target: immediately; when clients may switch, which is the "
        "promotion of a mirror; or never, as with MirrorMaker 2 (ALL becomes READ). Default in a mirror that copies "
        "ACLs: at_cutover.",
    )
    exclude_principals: list[Regex] = Field(["User:ANONYMOUS"], description="Principals that are not copied.")
    target_auth: Literal["kafka", "iam"] = Field("kafka", description="iam writes access-map.json instead of ACLs.")
    target_cluster_arn: str | None = Field(
        None,
        pattern=r"^arn:[a-z-]+:kafka:[a-z0-9-]+:\d{12}:cluster/[^/]+/[^/]+$",
        description="MSK cluster ARN for the resource ARNs of access-map.json and permissions.md; empty: placeholders.",
    )
    users: dict[str, str] = Field(
        default_factory=dict, description="SCRAM users to create on the target: name to a secret reference."
    )
    quotas: QuotaPolicy = Field("copy", description="Client quotas; never copied with mirror.two_way.")


class EstimateSection(Section):
    """Assumptions of the plan's time and cost estimates. Nothing else depends on them."""

    measure: bool = Field(
        False,
        description="Read from the source for a few seconds at plan time, and estimate with that rate where it is "
        "lower; stored next to the plan, never in it.",
    )
    copy_bytes_per_second: ByteSize = Field("100MB", ge=1, description="Rate of the copy, all lanes together.")  # type: ignore[assignment]
    usd_per_gb_transfer: float = Field(0.02, ge=0, description="Network transfer between source, workers and target.")
    usd_per_1000_puts: float = Field(0.005, ge=0, description="S3 write and list requests.")
    usd_per_1000_gets: float = Field(0.0004, ge=0, description="S3 read requests.")
    usd_per_gb_month: float = Field(0.023, ge=0, description="S3 storage of segments.")
    keep_segments: Duration = Field("30d", description="How long segments are kept after the seed.")  # type: ignore[assignment]


class GroupsSection(Section):
    """Which consumer groups are moved."""

    include: list[Regex] = Field([".*"], description="Group ids or regular expressions, full match.")
    exclude: list[Regex] = Field(
        ["console-consumer-.*", "__.*"],
        description="Exclude wins. Every excluded group is listed with its reason.",
    )
    on_active_source: StopOrNote = on("groups.on_active_source", "note")
    sync_interval: Duration = Field("5s", description="How often translations are refreshed until the switch.")  # type: ignore[assignment]
    early_sync: bool = Field(
        False,
        description="Write the offsets of groups that are idle on the target from the moment that a partition is "
        "copied, forward only and never beyond the copy. false: not before cutover.commit_groups, which is exact "
        "either way.",
    )
    early_sync_interval: Duration = Field("30s", description="How often early_sync brings them up to date.")  # type: ignore[assignment]

    uncommitted: Literal["leave", "boundary"] = Field(
        "leave",
        description="Partitions that members of a group read on the source without having committed an offset. leave: "
        "they begin by auto.offset.reset on the target; boundary: they begin at the cutover's boundary, once the group "
        "has left the source, so that consumers with auto.offset.reset: latest skip nothing that is written after it.",
    )

    on_deleted: NoteOrRepair = on("groups.on_deleted", "note")
    deleted_after: Duration = Field(  # type: ignore[assignment]
        "10m",
        description="on_deleted: repair: all brokers of the source must say that a group is gone, and say so once more "
        "after this time.",
    )

    def selects(self, group: str) -> bool:
        """Whether a group is part of the migration."""
        return not self.why_left_out(group)

    def why_left_out(self, group: str) -> str:
        """Return why a group is not part of the migration; empty if it is."""
        if not group:
            return "the empty group id, which Kafka 4 refuses: its tools fail on a cluster that has such a group"
        return why_not_selected("groups", group, self.include, self.exclude)


OffsetsMode = Literal["auto", "equal", "shifted", "mapped", "transactional"]


class TopicOffsetsSection(Section):
    """A different offsets mode for some topics."""

    topics: list[Regex] = Field(min_length=1, description="Names or regular expressions of source topics, full match.")
    mode: OffsetsMode = Field(description="Like offsets.mode, for these topics.")


class OffsetsSection(Section):
    """How target offsets relate to source offsets."""

    mode: OffsetsMode = Field(
        "auto",
        description="auto decides per partition by budget, and uses transactional where the target does not compare "
        "sequences; equal fails where the budget is too small; shifted never fills a log start; mapped never fills "
        "holes; transactional copies all partitions in transactions.",
    )
    by_topic: list[TopicOffsetsSection] = Field(
        default_factory=list,
        description="Different modes for some topics; the first entry that matches a topic applies. For instance "
        "mapped for a topic whose holes should not become control markers.",
    )
    on_mismatch: StopOrNote = on("offsets.on_mismatch", "note")
    max_filler_offsets: int = Field(
        1_000_000_000, ge=0, description="Largest log start that is filled; beyond it the partition is shifted."
    )
    max_markers_per_record: float = Field(
        10.0, ge=0, description="Most holes filled per record of a partition; beyond it the partition is mapped."
    )
    max_markers: int = Field(50_000_000, ge=0, description="Most holes filled per partition.")
    max_fill_time: Duration = Field(  # type: ignore[assignment]
        "1h",
        description="Longest time for filling the holes of a partition: if the remaining holes would take longer "
        "(estimated by the plan or measured while copying), the partition is mapped from there on.",
    )
    on_foreign_writer: StopOrNote = on("offsets.on_foreign_writer", "stop")
    on_source_gap: StopOrNote = on("offsets.on_source_gap", "stop")
    on_overtaken_tombstones: AnyVerb = on("offsets.on_overtaken_tombstones", "stop")
    on_source_truncation: StopOrRepair = on("offsets.on_source_truncation", "stop")
    timestamps: Literal["visible", "raw"] = Field(
        "visible", description="LogAppendTime topics: keep the time that consumers see, or the producer's."
    )

    def mode_of(self, topic: str) -> OffsetsMode:
        """Return the mode of a source topic."""
        for item in self.by_topic:
            if any(re.fullmatch(pattern, topic) for pattern in item.topics):
                return item.mode
        return self.mode

    def on_mismatch_of(self, topic: str) -> Literal["stop", "note"]:
        """Return what a topic's partitions do when their offsets cannot be kept; ``equal`` always stops."""
        return "stop" if self.mode_of(topic) == "equal" else self.on_mismatch


class SeedSection(Section):
    """The bulk copy."""

    via: Literal["s3", "direct", "split"] = Field(
        "s3",
        description="s3: each segment is durable in S3 before the target sees it; direct: no S3; split: seed "
        "and tail through S3, by copiers that know only the source or only the target.",
    )
    max_concurrent_partitions: int = Field(
        4, ge=1, description="Partitions that one lane copies at the same time; in total, times seed.lanes."
    )
    segment_max_bytes: ByteSize = Field("32MiB", ge=1024, description="Largest segment object.")  # type: ignore[assignment]
    lanes: int = Field(4, ge=1, description="Units of parallel work; one Spark task drives one lane.")
    slice_seconds: int = Field(60, ge=5, description="Longest time a copier owns a lane before it must ask again.")
    max_bytes_per_second: ByteSize | None = Field(None, description="Limit per lane; empty: none.")


class TailSection(Section):
    """The bridge from the seed to the cutover."""

    drain_max_partition_lag: int = Field(100, ge=0, description="Records; ready when all lags are at or below it.")
    drain_stable_window: Duration = Field("30s", description="How long all lags must stay there.")  # type: ignore[assignment]
    drain_ready_timeout: Duration = Field("7d", description="The drain sensor gives up after this time.")  # type: ignore[assignment]
    slice_seconds: int = Field(20, ge=2, description="Length of a slice; p99 pays for the seam between two.")
    max_bytes_per_second: ByteSize | None = Field(None, description="Limit per lane; empty: none.")
    segment_linger: Duration = Field(  # type: ignore[assignment]
        "1s", description="How long a backup that follows the source gathers records before it writes a small segment."
    )


class CutoverSection(Section):
    """Freeze, sentinels, drain, groups."""

    freeze: Literal["webhook", "manual", "acl"] = Field(
        "manual",
        description="How producers are stopped: for the cutover, or before a mirror is promoted. manual: people do it.",
    )
    producer_freeze_webhook: str | None = Field(
        None,
        pattern=r"^(https?://|((env|airflow|secretsmanager|gcp-sm|vault):[^\s/]|(file|ssm):/?[^\s/])\S*$)",
        description="Receives a POST at the freeze and at the unfreeze (freeze: webhook): a plain address, or "
        "env:NAME, file:PATH or airflow:CONN_ID if it holds a secret (login, query, fragment, a token in its path).",
    )
    webhook_secret: str | None = Field(
        None, description="Secret reference, for instance airflow:CONN_ID; signs the webhook's body (HMAC-SHA256)."
    )
    max_producer_freeze: Duration = Field("60s", description="A longer freeze is lifted; a mirror then goes on.")  # type: ignore[assignment]
    freeze_stable_window: Duration = Field("2s", description="How long end offsets must not move.")  # type: ignore[assignment]
    drain_timeout: Duration = Field("30m", description="Longest wait for the final drain.")  # type: ignore[assignment]
    sentinel: Literal["record", "end_offsets"] = Field(
        "record", description="record writes a sentinel record to each source partition; end_offsets writes nothing."
    )
    on_bypass: StopOrNote = on("cutover.on_bypass", "stop")
    max_open_transaction_wait: Duration = Field("30s", description="Longest wait for open transactions.")  # type: ignore[assignment]
    in_one_task: bool = Field(
        False,
        description="The task cutover.freeze runs all steps of the cutover in its own process: for executors that "
        "start a task slowly (one pod each) while producers wait. The other tasks of the group confirm its work.",
    )
    fence_copiers: bool = Field(
        True,
        description="Before clients switch, a control marker on each target partition fences the migration's producer: "
        "no stalled copier can write after the applications' records. It takes one offset per partition.",
    )


class ApprovalsSection(Section):
    """Who may approve, and how long an approval is valid."""

    assigned_users: list[str] = Field(default_factory=list, description="Auth manager user ids; empty: anyone allowed.")
    second_users: list[str] = Field(
        default_factory=list, description="If set, each approval asks two different people."
    )
    response_timeout: Duration | None = Field(None, description="The approval fails after this time without an answer.")
    max_age: Duration = Field("15m", description="An answer older than this is refused at the cutover.")  # type: ignore[assignment]


class ValidationSection(Section):
    """The checks at the end."""

    retired = MappingProxyType(
        {
            "content": Retired(("all",), "all records of all partitions are always compared"),
            "count_tolerance": Retired((0,), "the offset map knows all holes, so the numbers of records must be equal"),
        }
    )

    before_cutover: bool = Field(
        True,
        description="From the tail on, copied records are compared in the background during the copy; the approval of "
        "the cutover shows how much is proven equal. Not for seed.via: split and transactional partitions: validate "
        "compares those.",
    )
    on_difference: StopOrNote = on("validation.on_difference", "stop")
    max_bytes_per_second: ByteSize | None = Field(
        "32MiB",  # type: ignore[assignment]
        description="How fast the comparison before the cutover reads, per lane, both sides together; empty: no limit.",
    )
    independent: Literal["all", "sample", "off"] | None = Field(
        None,
        description="A second comparison of all records, by code that has copied none of them: Spark's own Kafka "
        "source reads both clusters. sample: whole partitions, drawn at random, up to independent_sample; empty: all "
        "up to that size, else sample.",
    )
    independent_sample: ByteSize = Field(  # type: ignore[assignment]
        "100GiB",
        description="How much of the source the sample of validation.independent reads, at least one partition.",
    )
    on_late_writes: StopOrNote = on("validation.on_late_writes", "stop")


class EvidenceSection(Section):
    """The signed proof."""

    retention: Duration = Field("7y", description="COMPLIANCE Object Lock, if the bucket supports it.")  # type: ignore[assignment]
    signing_key: str | None = Field(
        None,
        description="Secret reference to an Ed25519 seed (64 hex digits or base64), for instance airflow:CONN_ID or "
        "file:PATH; required to sign. The seed itself is refused here.",
    )
    public_key: str | None = Field(
        None, description="Expected public key (64 hex digits): signing with any other key is refused."
    )


class SparkSection(Section):
    """How the data plane's Spark jobs are submitted."""

    conn_id: str = Field("spark_default", description="Airflow connection of type spark.")
    engine: str = Field(
        "submit",
        description="Where Spark jobs run: submit (spark-submit), or the name of another engine, see docs/spark.md.",
    )
    engine_args: dict[str, Any] = Field(
        default_factory=dict, description="Arguments of the engine, without secrets; see docs/spark.md."
    )
    conf: dict[str, str] = Field(default_factory=dict, description="Additional Spark conf; secrets are refused.")
    kafka_connector: str = Field(
        "packages",
        pattern=r"^(packages|provided|\S+\.jar(,\S+\.jar)*)$",
        description="Where Spark finds its Kafka source for validation.independent. packages: Spark fetches the "
        "connector of the installed pyspark's version from its repositories (spark.jars.packages). provided: the "
        "cluster has it. Otherwise paths or addresses of jars, separated by commas.",
    )
    executor_references: Literal["auto", "file", "env", "sealed"] = Field(
        "auto",
        description="How Spark's driver and executors get connections. file: a file of mode 0600, where they are "
        "processes of this machine. env: KAFKA_MIGRATION_SOURCE, _TARGET and _STORAGE of their environment; references "
        "that they can resolve themselves (env:, file:, secretsmanager:, ssm:, gcp-sm:, vault:) are passed on. sealed: "
        "encrypted for them with sealing_key. auto: file, references, or sealed, whichever works; see docs/spark.md.",
    )
    sealing_key: str | None = Field(
        None,
        pattern=r"^kmpub1_[\w-]{43}$",
        description="Public key for sealed references (kafka-migration sealing-key); default: that of the "
        "configuration, [kafka_migration] sealing_key.",
    )
    sealed_for: Duration = Field(  # type: ignore[assignment]
        "7d",
        description="How long sealed references are valid without being renewed; a waiting task renews them.",
    )

    @field_validator("executor_references", mode="before")
    @classmethod
    def _is_not_airflow(cls, value: Any) -> Any:
        if value == "airflow":
            raise ValueError(
                "Spark's executors have no Airflow, so they cannot read its connections: remove this key (auto), or "
                "write sealed and configure a sealing key"
            )
        return value


class NotificationsSection(Section):
    """An Airflow notifier, by dotted path with its arguments, that runs at events of the migration."""

    notifier: str | None = Field(None, description="Dotted path of a notifier class.")
    kwargs: dict[str, Any] = Field(
        default_factory=dict,
        description="Its arguments; secrets as env:NAME, file:PATH, airflow:CONN_ID, or templates.",
    )
    events: list[Literal["drain_ready", "approval_wanted", "trouble", "freeze", "failed", "finalized"]] = Field(
        ["drain_ready", "approval_wanted", "trouble", "freeze", "failed", "finalized"],
        description="When the notifier is called. trouble: seed or tail cannot copy some partitions. freeze: producers "
        "are stopped, with the commands that free them by hand; and how that has ended. The command line runs the "
        "notifier at freeze only.",
    )


class PrometheusSection(Section):
    """An endpoint with the metrics of a running copy job, for Prometheus to scrape. It has no login and no TLS."""

    enabled: bool = Field(False, description="Serve /metrics in the process that drives seed or tail.")
    host: str = Field(
        "127.0.0.1", min_length=1, description="Address to listen on; by default only this machine can scrape it."
    )
    port: int = Field(9464, ge=0, le=65535, description="Port; 0: any free one, which the log names.")


class MetricsSection(Section):
    """Metrics of seed and tail: how many series they may have, and where they are offered beside Airflow's metrics."""

    max_topics: int = Field(
        50, ge=0, description="Topics with series of their own, worst lag first; others are summed."
    )
    max_partitions: int = Field(
        100, ge=0, description="Partitions with series of their own, worst lag first; others are summed."
    )
    prometheus: PrometheusSection = Field(default_factory=lambda: PrometheusSection())
