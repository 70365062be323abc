"""The spec of one migration, as YAML or DAG Params. One error reports all its mistakes."""

from __future__ import annotations

import contextlib
import copy
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from airflow_provider_kafka_migration import plain_secrets
from airflow_provider_kafka_migration.errors import SpecInvalid, Where
from airflow_provider_kafka_migration.internal_topics import why_internal

# -- spec types -------------------------------------------------------------------------------------------------------
#
# Field types of the spec: durations, sizes, regular expressions, object storage addresses.


_UNIT_SECONDS = {
    "ms": 0.001,
    "s": 1,
    "m": 60,
    "h": 3600,
    "d": 86400,
    "w": 7 * 86400,
    "y": 365 * 86400,
}
_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w|y)?\s*$")
_UNIT_BYTES = {"": 1, "B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "KIB": 1024, "MIB": 1024**2, "GIB": 1024**3}
_SIZE = re.compile(r"^\s*(\d+)\s*([A-Za-z]*)\s*$")


def parse_duration(value: Any) -> timedelta:
    """Parse ``30s``, ``5m``, ``2h``, ``7d``, ``7y`` or a number of seconds."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return _seconds(value)
    match = _DURATION.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("a duration is a number with a unit ms, s, m, h, d, w or y, for instance 30s or 7y")
    return _seconds(float(match[1]) * _UNIT_SECONDS[match[2] or "s"])


def _seconds(value: float) -> timedelta:
    try:
        return timedelta(seconds=value)
    except OverflowError:
        raise ValueError("this duration is too long") from None


def format_duration(value: timedelta) -> str:
    """Return the shortest text that :func:`parse_duration` reads back as the same value."""
    seconds = value.total_seconds()
    for unit in ("y", "w", "d", "h", "m"):
        if seconds and seconds % _UNIT_SECONDS[unit] == 0:
            return f"{int(seconds // _UNIT_SECONDS[unit])}{unit}"
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + "s"


def parse_bytes(value: Any) -> int:
    """Parse ``32MiB``, ``1GB`` or a number of bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.match(value) if isinstance(value, str) else None
    if match is None or match[2].upper() not in _UNIT_BYTES:
        raise ValueError("a size is a whole number with a unit B, KB, MB, GB, KiB, MiB or GiB, for instance 32MiB")
    return int(match[1]) * _UNIT_BYTES[match[2].upper()]


def check_regex(value: str) -> str:
    """Check that a regular expression compiles."""
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return value


def check_location(value: str) -> str:
    """Check for ``s3://bucket/prefix`` or ``file:///folder``, and strip trailing slashes."""
    if not re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]+(/.*)?|file:///.+", value):
        raise ValueError("a location is s3://bucket/prefix or file:///folder")
    return value.rstrip("/")


Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": _DURATION.pattern}, {"type": "number"}]}),
]
ByteSize = Annotated[
    int,
    BeforeValidator(parse_bytes),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": _SIZE.pattern}, {"type": "integer"}]}),
]
Regex = Annotated[str, AfterValidator(check_regex)]
Location = Annotated[str, AfterValidator(check_location)]


# -- spec conflicts ---------------------------------------------------------------------------------------------------
#
# Conflicts between two keys of a spec, each of which is valid alone. Pure functions; paths as people write them.
#
# They check all keys that are valid by themselves, even next to wrong keys in the same section, so that one error
# reports these conflicts together with all other mistakes.


#: Topic names that brokers accept (``org.apache.kafka.common.internals.Topic``).
TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")

#: (path in the spec, reason)
Mistake = tuple[str, str]


class KeyUnknownError(Exception):
    """A rule needs a key that is itself wrong, so it cannot be checked."""


class ValidKeys:
    """The valid keys of a section that also has wrong keys.

    :param section: the section, with its wrong keys replaced by their defaults.
    :param wrong: dotted paths of the wrong keys inside the section.
    """

    def __init__(self, section: Any, wrong: Collection[str]) -> None:
        self._section = section
        self._wrong = frozenset(wrong)

    def __getattr__(self, name: str) -> Any:
        if name in self._wrong:
            raise KeyUnknownError(name)
        value = getattr(self._section, name)
        below = {path.partition(".")[2] for path in self._wrong if path.startswith(f"{name}.")}
        return ValidKeys(value, below) if below else value


def conflicts(sections: Mapping[str, Any], *, recorded: bool = False) -> list[Mistake]:
    """Return all conflicts, in the order of the spec.

    :param sections: sections (models of :mod:`~.spec`, or :class:`ValidKeys`) by name, without unreadable sections.
    :param recorded: the spec was accepted by an earlier version and can no longer be corrected: plain-text secrets
        are not mistakes.
    """
    found: list[Mistake] = []
    rules = (_connections, _selection, _renames, _grants_without_acls, _grants_with_iam, _users, _webhook)
    for rule in (*rules, *(() if recorded else (_webhook_secret, _spark_secrets, _notifier_secrets))):
        with contextlib.suppress(KeyUnknownError):
            for mistake in rule(sections):
                found.append(mistake)  # noqa: PERF402 - keep the mistakes found before the unknown key
    return found


def _section(sections: Mapping[str, Any], name: str) -> Any:
    if name not in sections:
        raise KeyUnknownError(name)
    return sections[name]


def _connections(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find one connection used for both roles."""
    if _section(sections, "source").conn_id == _section(sections, "target").conn_id:
        yield "target.conn_id", "source and target use the same connection"


def _selection(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find an exclude list that removes everything that is included."""
    topics = _section(sections, "topics")
    if ".*" in topics.exclude:
        yield f"topics.exclude[{topics.exclude.index('.*')}]", "'.*' excludes every topic: nothing is left to migrate"
    elif set(topics.include) <= set(topics.exclude):
        yield "topics.exclude", "it contains everything in topics.include: nothing is left to migrate"


def _renames(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find names that brokers refuse, one name for two topics, and renames of topics that are not selected."""
    topics = _section(sections, "topics")
    sources: dict[str, list[str]] = defaultdict(list)
    for source, target in sorted(topics.rename.topics.items()):
        path = f"topics.rename.topics.{source}"
        sources[target].append(source)
        if not TOPIC_NAME.fullmatch(target) or target in (".", ".."):
            yield path, f"{target!r} is not a valid topic name: at most 249 letters, digits and . _ -"
        if not topics.selects(source):
            yield path, "this topic is not selected by topics.include and topics.exclude"
    for target, names in sorted(sources.items()):
        if len(names) > 1:
            yield "topics.rename.topics", f"{' and '.join(names)} would both become {target}"


def _grants_without_acls(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find a write_grants policy that has no ACLs to hold back."""
    acls = _section(sections, "acls")
    if acls.write_grants == "at_cutover" and acls.policy == "skip":
        yield "acls.write_grants", "at_cutover holds back copied ACLs, but acls.policy: skip copies none"


def _grants_with_iam(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find a write_grants policy that only a person could enforce."""
    acls = _section(sections, "acls")
    if acls.write_grants == "at_cutover" and acls.target_auth == "iam":
        yield "acls.write_grants", "at_cutover cannot hold back what acls.target_auth: iam leaves to a person"


def _users(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find texts that are not secret references."""
    for user, reference in sorted(_section(sections, "acls").users.items()):
        scheme, separator, rest = reference.partition(":")
        if not separator or not scheme.isidentifier() or not rest:
            # The value may be the secret itself, so the message does not repeat it.
            yield f"acls.users.{user}", "not a secret reference: write env:NAME, file:PATH or airflow:CONN_ID"


def _webhook(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find a webhook freeze without an address."""
    cutover = _section(sections, "cutover")
    if cutover.freeze == "webhook" and not cutover.producer_freeze_webhook:
        yield "cutover.producer_freeze_webhook", "freeze: webhook needs the address to call"


def _webhook_secret(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    address = _section(sections, "cutover").producer_freeze_webhook
    yield from plain_secrets.in_webhook("cutover.producer_freeze_webhook", address)


def _spark_secrets(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    yield from plain_secrets.in_spark_conf("spark.conf", _section(sections, "spark").conf)


def _notifier_secrets(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    yield from plain_secrets.in_arguments("notifications.kwargs", _section(sections, "notifications").kwargs)


# -- spec -------------------------------------------------------------------------------------------------------------


MIGRATION_ID_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,99}$"

#: MirrorMaker 2 leaves these out, too: configs that belong to a cluster rather than to a topic's meaning.
DEFAULT_CONFIG_EXCLUDE = (
    r"follower\.replication\.throttled\.replicas",
    r"leader\.replication\.throttled\.replicas",
)


class Section(BaseModel):
    """A part of the spec. Unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


def _why_not_selected(section: str, name: str, include: list[str], exclude: list[str]) -> str:
    """Return the rule that leaves a name out; empty if none does."""
    for pattern in exclude:
        if re.fullmatch(pattern, name):
            return f"{section}.exclude: {pattern}"
    if any(re.fullmatch(pattern, name) for pattern in include):
        return ""
    return f"not in {section}.include"


class ClusterSection(Section):
    """One of the two clusters."""

    conn_id: str = Field(
        min_length=1,
        description="Airflow connection of type kafka (its extra holds librdkafka keys); without Airflow, env:NAME "
        "or file:PATH with the same JSON.",
    )
    name: str | None = Field(None, description="Name shown to people; default: the connection's id.")


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

    def selects(self, topic: str) -> bool:
        """Whether a source topic is part of the migration."""
        return not self.why_left_out(topic)

    def why_left_out(self, topic: str) -> str:
        """Return why a source topic is not part of the migration; empty if it is."""
        if why := why_internal(topic, self.include):
            return why
        return _why_not_selected("topics", topic, self.include, self.exclude)

    def target_name(self, topic: str) -> str:
        """Return the name of a source topic on the target."""
        return self.rename.topics.get(topic, f"{self.rename.prefix}{topic}")


class TopologySection(Section):
    """How topics and their configs are created."""

    replication_factor: Literal["source", "target_default"] | Annotated[int, Field(ge=1)] = Field(
        "source", description="source, target_default or a number; capped at the target's broker count, with a finding."
    )
    config_exclude: list[Regex] = Field(
        list(DEFAULT_CONFIG_EXCLUDE), description="Topic configs that are not copied (full match)."
    )
    use_defaults_from: Literal["source", "target"] = Field(
        "target", description="Configs at their default on the source: keep the target's default, or set the source's."
    )
    on_config_drift: Literal["overwrite_with_source", "keep_target", "refuse"] = Field(
        "overwrite_with_source", description="What happens when a target topic exists with different configs."
    )
    follow_new: bool = Field(
        True,
        description="Include what appears on the source after the plan: partitions before topology_copy (false: they "
        "are an error), and selected topics and partitions while the tail runs.",
    )
    on_source_drift: Literal["follow", "refuse", "ignore"] = Field(
        "follow",
        description="Topic configs, ACLs, SCRAM users and quotas that change on the source after the plan: the tail "
        "applies them to the target, or they stop the cutover, or they are only reported (approval, validation, "
        "evidence).",
    )
    on_topic_deleted: Literal["fail", "drop"] = Field(
        "fail",
        description="A topic that is deleted or recreated on the source while the tail runs: stop before the "
        "cutover, or continue without it (its copy stays; the evidence names it).",
    )
    refresh_interval: Duration = Field("30s", description="How often the tail checks for new topics and partitions.")  # type: ignore[assignment]


class AclsSection(Section):
    """How ACLs are copied."""

    policy: Literal["merge", "replace", "refuse", "skip"] = Field(
        "merge",
        description="merge creates what is missing; replace also reports what only the target has; refuse stops at any "
        "difference; skip copies none and records that in the evidence.",
    )
    write_grants: Literal["at_once", "at_cutover"] = Field(
        "at_once", description="When producers get WRITE on the target: immediately, or when clients may switch."
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
    quotas: Literal["copy", "keep_target", "refuse", "skip"] = Field("copy", description="Client quotas.")


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
    on_active_source: Literal["warn", "wait", "fail"] = Field(
        "warn", description="Groups that still have members on the source at the acknowledgement of the client switch."
    )
    sync_interval: Duration = Field("5s", description="How often translations are refreshed until the switch.")  # type: ignore[assignment]

    def selects(self, group: str) -> bool:
        """Whether a group is part of the migration."""
        return not self.why_left_out(group)

    def why_left_out(self, group: str) -> str:
        """Return why a group is not part of the migration; empty if it is."""
        return _why_not_selected("groups", group, self.include, self.exclude)


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
    on_mismatch: Literal["mapped", "fail"] = Field(
        "mapped", description="When a hole was filled twice: continue as mapped, or fail the partition."
    )
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
    on_foreign_writer: Literal["fail", "transactional"] = Field(
        "fail",
        description="A target topic that holds foreign data or has a foreign producer: fail, or copy into it in "
        "transactions alongside (planned; a foreign producer that appears while copying stops the partition).",
    )
    on_source_gap: Literal["fail", "record"] = Field(
        "fail", description="When source retention overtook the copy: fail, or record the gap (the evidence names it)."
    )
    on_overtaken_tombstones: Literal["fail", "warn", "recopy"] = Field(
        "fail",
        description="A compacted partition was read so late (delete.retention.ms) that tombstones may already be "
        "removed, and deleted keys may survive on the target: fail the partition; or continue, name it in approvals "
        "and evidence, and compare all of it again; or fail it, and copy its topic again at the task's next run.",
    )
    on_source_truncation: Literal["fail", "recopy"] = Field(
        "fail",
        description="The source has lost records that were already copied (unclean election): fail the partition; or "
        "fail it, and copy its topic again at the task's next run (the target topic is deleted and recreated).",
    )
    timestamps: Literal["visible", "raw"] = Field(
        "visible", description="LogAppendTime topics: keep the time that consumers see, or the producer's."
    )

    def mode_of(self, topic: str) -> OffsetsMode:
        """Return the mode of a source topic."""
        for item in self.by_topic:
            if any(re.fullmatch(pattern, topic) for pattern in item.topics):
                return item.mode
        return self.mode

    def on_mismatch_of(self, topic: str) -> Literal["mapped", "fail"]:
        """Return what a topic's partitions do when their offsets cannot be kept; ``equal`` always fails."""
        return "fail" if self.mode_of(topic) == "equal" else self.on_mismatch


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

    freeze: Literal["webhook", "manual", "acl"] = Field("manual", description="How producers are stopped.")
    producer_freeze_webhook: str | None = Field(
        None,
        pattern=r"^(https?://|((env|airflow):[^\s/]|file:/?[^\s/])\S*$)",
        description="Receives a POST at the freeze and at the unfreeze (freeze: webhook): a plain address, or "
        "env:NAME, file:PATH or airflow:CONN_ID if it holds a secret (login, query, fragment, a token in its path).",
    )
    webhook_secret: str | None = Field(None, description="Secret reference; signs the webhook's body (HMAC-SHA256).")
    max_producer_freeze: Duration = Field("60s", description="A longer freeze is lifted.")  # type: ignore[assignment]
    freeze_stable_window: Duration = Field("2s", description="How long end offsets must not move.")  # type: ignore[assignment]
    drain_timeout: Duration = Field("30m", description="Longest wait for the final drain.")  # type: ignore[assignment]
    sentinel: Literal["record", "end_offsets"] = Field(
        "record", description="record writes a sentinel record to each source partition; end_offsets writes nothing."
    )
    on_bypass: Literal["fail", "wait", "continue"] = Field(
        "fail", description="A producer that continues to write after the freeze, until clients have switched."
    )
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

    content: Literal["all"] = Field("all", description="All records of all partitions are compared.")
    count_tolerance: int = Field(0, ge=0, description="Records; 0 because the offset map knows all holes.")
    before_cutover: bool = Field(
        True,
        description="From the tail on, copied records are compared in the background during the copy; the approval of "
        "the cutover shows how much is proven equal. Not for seed.via: split and transactional partitions: validate "
        "compares those.",
    )
    on_difference: Literal["block", "warn"] = Field(
        "block", description="A difference found before the cutover: the approval is refused, or only shows it."
    )
    max_bytes_per_second: ByteSize | None = Field(
        "32MiB",  # type: ignore[assignment]
        description="How fast the comparison before the cutover reads, per lane, both sides together; empty: no limit.",
    )
    on_late_writes: Literal["fail", "warn"] = Field(
        "fail",
        description="Records written to the source after the cutover are not on the target: the validation "
        "fails, or warns and names them. With cutover.on_bypass: continue it always warns.",
    )


class EvidenceSection(Section):
    """The signed proof."""

    retention: Duration = Field("7y", description="COMPLIANCE Object Lock, if the bucket supports it.")  # type: ignore[assignment]
    signing_key: str | None = Field(
        None, description="Secret reference to an Ed25519 seed (64 hex digits or base64); required to sign."
    )
    public_key: str | None = Field(
        None, description="Expected public key (64 hex digits): signing with any other key is refused."
    )


class SparkSection(Section):
    """How the data plane's Spark jobs are submitted."""

    conn_id: str = Field("spark_default", description="Airflow connection of type spark.")
    conf: dict[str, str] = Field(default_factory=dict, description="Additional Spark conf; secrets are refused.")
    executor_references: Literal["file", "env", "airflow"] = Field(
        "file",
        description="How Spark gets connections: a file of mode 0600 next to the driver (local, or standalone on one "
        "machine), or env / airflow references that each executor resolves itself.",
    )


class NotificationsSection(Section):
    """An Airflow notifier, by dotted path with its arguments, that runs at events of the migration."""

    notifier: str | None = Field(None, description="Dotted path of a notifier class.")
    kwargs: dict[str, Any] = Field(
        default_factory=dict,
        description="Its arguments; secrets as env:NAME, file:PATH, airflow:CONN_ID, or templates.",
    )
    events: list[Literal["drain_ready", "approval_wanted", "trouble", "failed", "finalized"]] = Field(
        ["drain_ready", "approval_wanted", "trouble", "failed", "finalized"],
        description="When the notifier is called. trouble: seed or tail cannot copy some partitions.",
    )


class MigrationSpec(Section):
    """One migration. ``kafka-migration validate FILE`` checks a file against this model."""

    version: Literal[1] = Field(1, description="Version of this format.")
    migration_id: str = Field(
        pattern=MIGRATION_ID_PATTERN, description="Name of the migration: lower case letters, digits and . _ -"
    )
    description: str = Field("", description="For people.")
    source: ClusterSection
    target: ClusterSection
    storage: StorageSection
    topics: TopicsSection = Field(default_factory=lambda: TopicsSection())
    topology: TopologySection = Field(default_factory=lambda: TopologySection())
    acls: AclsSection = Field(default_factory=lambda: AclsSection())
    groups: GroupsSection = Field(default_factory=lambda: GroupsSection())
    offsets: OffsetsSection = Field(default_factory=lambda: OffsetsSection())
    estimate: EstimateSection = Field(default_factory=lambda: EstimateSection())
    seed: SeedSection = Field(default_factory=lambda: SeedSection())
    tail: TailSection = Field(default_factory=lambda: TailSection())
    cutover: CutoverSection = Field(default_factory=lambda: CutoverSection())
    approvals: ApprovalsSection = Field(default_factory=lambda: ApprovalsSection())
    validation: ValidationSection = Field(default_factory=lambda: ValidationSection())
    evidence: EvidenceSection = Field(default_factory=lambda: EvidenceSection())
    spark: SparkSection = Field(default_factory=lambda: SparkSection())
    notifications: NotificationsSection = Field(default_factory=lambda: NotificationsSection())
    waive: list[str] | dict[str, str] = Field(
        default_factory=list,
        description="Codes of accepted precheck warnings; or a mapping of code to reason, which is journaled.",
    )

    @model_validator(mode="after")
    def _keys_go_together(self, info: ValidationInfo) -> MigrationSpec:
        sections = {name: getattr(self, name) for name in type(self).model_fields}
        recorded = bool((info.context or {}).get("recorded"))
        found = conflicts(
            {name: item for name, item in sections.items() if isinstance(item, Section)}, recorded=recorded
        )
        if found:
            raise _ConflictsError(found)
        return self


class _ConflictsError(ValueError):
    """Several mistakes in one pydantic error; :func:`parse_spec` separates them again."""

    def __init__(self, found: list[Mistake]) -> None:
        super().__init__("; ".join(f"{path}: {reason}" for path, reason in found))


def _mistake_path(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else str(part))
    return text or "(whole spec)"


def parse_spec(data: Any, *, path: str | None = None, recorded: bool = False) -> MigrationSpec:
    """Parse the spec in a mapping and apply all defaults.

    :param recorded: the spec was accepted before, perhaps by an earlier version: secrets in plain text, which are
        mistakes in a new spec, are tolerated.
    :raises SpecInvalid: with every mistake as ``{"path", "reason", "value"}`` in ``details["mistakes"]``.
    """
    where = Where(path=path)
    if not isinstance(data, Mapping):
        raise SpecInvalid(
            "the spec is not a mapping",
            where=where,
            next_step="start from the example in docs/spec.md",
            details={"mistakes": [{"path": "(whole spec)", "reason": "not a mapping"}]},
        )
    try:
        return MigrationSpec.model_validate(dict(data), context={"recorded": recorded})
    except ValidationError as error:
        mistakes = _mistakes(error, dict(data), recorded=recorded)
        listing = "; ".join(f"{mistake['path']}: {mistake['reason']}" for mistake in mistakes)
        raise SpecInvalid(
            f"{len(mistakes)} mistake{'s' if len(mistakes) > 1 else ''} in the spec: {listing}",
            where=where,
            next_step="correct all of them; `kafka-migration validate FILE` checks a spec file",
            details={"mistakes": mistakes},
        ) from None


def _mistakes(error: ValidationError, data: dict[str, Any], *, recorded: bool) -> list[dict[str, str]]:
    """Collect the mistakes that pydantic found, and the conflicts between valid keys."""
    mistakes = [
        {"path": _mistake_path(item["loc"]), "reason": item["msg"].removeprefix("Value error, ")}
        for item in error.errors(include_url=False, include_input=False)
        if not isinstance(item.get("ctx", {}).get("error"), _ConflictsError)
    ]
    found = conflicts(_valid_sections(data), recorded=recorded)
    mistakes += [{"path": path, "reason": reason} for path, reason in found]
    return mistakes


def _valid_sections(data: Mapping[str, Any]) -> dict[str, Section | ValidKeys]:
    """Return all sections, with only the valid keys of a section with mistakes; leave out unreadable sections."""
    sections: dict[str, Section | ValidKeys] = {}
    for name, field in MigrationSpec.model_fields.items():
        kind = field.annotation
        content = data.get(name, {})
        if isinstance(kind, type) and issubclass(kind, Section) and isinstance(content, Mapping):
            with contextlib.suppress(ValidationError):
                sections[name] = _valid_keys(kind, content)
    return sections


def _valid_keys(kind: type[Section], content: Mapping[str, Any]) -> Section | ValidKeys:
    try:
        return kind.model_validate(dict(content))
    except ValidationError as error:
        rest: dict[str, Any] = copy.deepcopy(dict(content))
        wrong = {_take_out(rest, item["loc"]) for item in error.errors(include_url=False, include_input=False)}
        return ValidKeys(kind.model_validate(rest), wrong)


def _take_out(content: dict[str, Any], location: tuple[int | str, ...]) -> str:
    """Remove a wrong key, or the list that has a wrong item, from a section, and return its path."""
    path: list[str] = []
    place: Any = content
    for part in location:
        path.append(str(part))
        if not isinstance(place.get(part), dict) or len(path) == len(location):
            place.pop(part, None)
            break
        place = place[part]
    return ".".join(path)


def load_spec(path: str | Path, *, recorded: bool = False) -> MigrationSpec:
    """Load the spec from a YAML (or JSON) file.

    :param recorded: as in :func:`parse_spec`.
    :raises SpecInvalid: unreadable file, bad YAML, duplicate keys, or mistakes in the spec.
    """
    file = Path(path)
    try:
        data = yaml.load(file.read_text(encoding="utf-8"), Loader=_UniqueKeyLoader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise SpecInvalid(
            f"the file cannot be read: {error.strerror}", where=Where(path=str(file)), next_step="check the path"
        ) from None
    except UnicodeDecodeError:
        raise SpecInvalid(
            "the file is not UTF-8 text", where=Where(path=str(file)), next_step="give the path of a YAML or JSON file"
        ) from None
    except RecursionError:
        raise SpecInvalid(
            "not valid YAML: nested too deeply", where=Where(path=str(file)), next_step="correct the file"
        ) from None
    except yaml.YAMLError as error:
        raise SpecInvalid(
            f"not valid YAML: {error}", where=Where(path=str(file)), next_step="correct the YAML at that line"
        ) from None
    return parse_spec(data, path=str(file), recorded=recorded)


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses duplicate keys: plain YAML silently keeps the last one, a spec must not."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be plain text", key_node.start_mark)
            key = key_node.value
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} appears twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of the spec, for editors."""
    schema = MigrationSpec.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema
