"""Topics of the plan: names, replication factor, configs, kinds and the offset verdict of each partition. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from airflow_provider_kafka_migration.documents.plan import (
    MERGED_KIND,
    SHARED_KIND,
    EstimatePlan,
    PartitionPlan,
    TopicPlan,
    Verdict,
)
from airflow_provider_kafka_migration.errors import Terminal, Where
from airflow_provider_kafka_migration.kafka.admin.topics import Configs, TopicFacts
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.planning.source_snapshot import Sample, SourceSnapshot
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.topics.configs import TargetRules, drift_of, final_configs, with_excluded

#: Measured on one broker (see docs/topology.md): offsets per second of fillers and of markers, and what each hole costs
#: costs in addition to its markers: the records before it must be acknowledged. Replicas multiply the cost.
FILLERS_PER_SECOND = 5_000_000
MARKERS_PER_SECOND = 30_000
SECONDS_PER_HOLE = 0.002

#: Topic configs whose defaults differ between releases without any effect.
_MEANINGLESS_DEFAULTS = frozenset({"message.format.version", "message.downconversion.enable"})


@dataclass(frozen=True)
class TargetTopics:
    """The target's topics as the plan sees them.

    :param rules: what is known about its topic configs.
    :param present: overrides by target topic, of existing topics.
    :param ours: target topics that this migration has created (journal).
    :param shared: target topics with data of others that may be copied into next to that data.
    :param no_compare: why the target's brokers do not accept appends by sequence (the precheck's probe); empty if they
        do, or if that was not tried.
    :param factors: replication factor by target topic, of existing topics.
    """

    rules: TargetRules
    present: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    ours: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()
    no_compare: str = ""
    factors: Mapping[str, int] = field(default_factory=dict)

    def why_transactional(self, name: str) -> str:
        """Why partitions of a target topic must be copied in transactions; empty if they need not be."""
        if name in self.shared:
            return "the target topic holds data of others (offsets.on_foreign_writer: note)"
        return f"the target does not compare sequences: {self.no_compare}" if self.no_compare else ""


def check_names(spec: MigrationSpec, names: list[str], *, migration_id: str) -> None:
    """Raise for target names that collide or that brokers refuse.

    In metrics, brokers treat ``a.b`` and ``a_b`` as the same name, and they refuse the second of them.

    :raises Terminal: the error lists all such names with their source names.
    """
    by_metric: dict[str, dict[str, list[str]]] = {}
    long = []
    for name in sorted(names):
        target = spec.topics.target_name(name)
        by_metric.setdefault(target.replace(".", "_"), {}).setdefault(target, []).append(name)
        if len(target) > 249:
            long.append(target)
    problems = {
        ", ".join(sorted(targets)): sorted(name for sources in targets.values() for name in sources)
        for targets in by_metric.values()
        if _collide(spec, targets)
    }
    # A way back names all topics of what it reverses; some may have been deleted on the new cluster since.
    is_way_back = spec.adopt is not None and spec.adopt.from_ in ("way_back", "mirror")
    unused = [] if is_way_back else sorted(set(spec.topics.rename.topics) - set(names))
    if not problems and not long and not unused:
        return
    parts = [f"{target} from {', '.join(sources)}" for target, sources in sorted(problems.items())]
    parts += [f"{target} is longer than 249 characters" for target in long]
    parts += [f"topics.rename.topics has {name}, which is not selected" for name in unused]
    raise Terminal(
        f"{len(parts)} problems with names on the target: {'; '.join(parts)}",
        where=Where(migration_id=migration_id, phase="plan"),
        next_step="change topics.rename, or the selection",
        details={"collisions": problems, "too_long": long, "unused_renames": unused},
    )


def _collide(spec: MigrationSpec, targets: Mapping[str, list[str]]) -> bool:
    """Whether several topics share one name, or a rename makes names that brokers treat as equal."""
    if any(len(sources) > 1 for sources in targets.values()):
        return True
    renamed = any(spec.topics.target_name(name) != name for sources in targets.values() for name in sources)
    return len(targets) > 1 and renamed


def topic_plan(
    spec: MigrationSpec,
    facts: TopicFacts,
    found: SourceSnapshot,
    target: TargetTopics,
    first_offsets: Mapping[TopicPartition, int] = MappingProxyType({}),
) -> TopicPlan:
    """Make the plan of one topic.

    :param first_offsets: where partitions begin that do not begin at their log's start (``mirror.start: latest``).
    """
    configs = found.configs[facts.name]
    name = spec.topics.target_name(facts.name)
    # The factor of an existing topic stays, and min.insync.replicas must fit it.
    factor = target.factors.get(name) or replication_factor(spec, facts, len(target.rules.facts.brokers))
    wanted, dropped = final_configs(configs, target.rules, spec.topology, factor)
    merged = spec.kind == "mirror" and spec.mirror.merges
    there, ours, shared = name in target.present, name in target.ours, merged or name in target.shared
    drift = []
    if shared and there:
        # Not ours to change: the topic ends as it was.
        wanted = dict(sorted(target.present[name].items()))
    elif there and not ours:
        policy = spec.topology.on_config_drift
        wanted = with_excluded(wanted, target.present[name], spec.topology.config_exclude)
        drift = drift_of(target.present[name], wanted, policy)
        if policy == "note":
            wanted = dict(sorted(target.present[name].items()))
    samples = [found.samples.get((facts.name, item.partition), Sample()) for item in facts.partitions]
    return TopicPlan(
        name=facts.name,
        target_name=name,
        topic_id=facts.topic_id,
        partitions=[
            _partition(spec, (facts.name, item.partition), found, target.why_transactional(name), first_offsets)
            for item in facts.partitions
        ],
        replication_factor=factor,
        source_replication_factor=facts.replication_factor,
        source_configs=dict(sorted(configs.overrides.items())),
        target_configs=wanted,
        dropped_configs=dropped,
        kinds=sorted(
            [*_kinds(configs, samples), *([SHARED_KIND] if shared else []), *([MERGED_KIND] if merged else [])]
        ),
        codecs=sorted({codec for sample in samples for codec in sample.codecs}),
        exists_on_target=there,
        drift=[dict(item) for item in drift],
    )


def replication_factor(spec: MigrationSpec, facts: TopicFacts, target_brokers: int) -> int:
    """The factor by policy, capped by the number of target brokers; -1 is the target's own default."""
    wanted = spec.topology.replication_factor
    if wanted == "target_default":
        return -1
    return min(facts.replication_factor if wanted == "source" else int(wanted), target_brokers)


def _kinds(configs: Configs, samples: list[Sample]) -> list[str]:
    kinds = {
        "compacted": "compact" in configs.get("cleanup.policy"),
        "log_append_time": configs.get("message.timestamp.type") == "LogAppendTime"
        or any(sample.log_append_time for sample in samples),
        "old_format": any(sample.old_format for sample in samples),
        "tiered": configs.get("remote.storage.enable") == "true",
        "transactional": any(sample.transactional for sample in samples),
    }
    return sorted(name for name, has in kinds.items() if has)


def _partition(
    spec: MigrationSpec,
    key: TopicPartition,
    found: SourceSnapshot,
    why_transactional: str,
    first_offsets: Mapping[TopicPartition, int],
) -> PartitionPlan:
    log_start, stable = found.starts[key], found.stable[key]
    start = max(first_offsets.get(key, log_start), log_start)
    holes, records = _estimate(found, key, start)
    what = "the mirror" if key in first_offsets else "the log"
    verdict, reason = verdict_of(spec, start, holes, records, why_transactional, topic=key[0], what=what)
    return PartitionPlan(
        partition=key[1],
        log_start_offset=log_start,
        end_offset=stable,
        high_watermark=found.high_watermarks[key],
        size_bytes=_size(found, key, start),
        verdict=verdict,
        reason=reason,
        source_start_offset=start,
        target_start_offset=start if verdict is Verdict.EQUAL else 0,
        estimated_holes=holes,
        estimated_records=records,
    )


def _size(found: SourceSnapshot, key: TopicPartition, start: int) -> int:
    """Bytes on the leader's disk from an offset on, as if all records had one size; -1 if it does not report them."""
    size, log_start, stable = found.sizes.get(key, -1), found.starts[key], found.stable[key]
    if size < 0 or start <= log_start:
        return size
    return 0 if start >= stable else size * (stable - start) // (stable - log_start)


def _estimate(found: SourceSnapshot, key: TopicPartition, start: int) -> tuple[int, int]:
    """(holes, records) of a partition from an offset on; records are -1 where nothing was sampled."""
    offsets = max(found.stable[key] - start, 0)
    sample = found.samples.get(key, Sample())
    if offsets == 0:
        return 0, 0
    if not sample.offsets:
        return 0, -1
    records = min(offsets, round(offsets * sample.density))
    return offsets - records, records


def hole_seconds(holes: int, records: int) -> float:
    """Estimate how long it takes to fill the holes of a partition whose records lie between them at random.

    :param holes: offsets without records.
    :param records: -1 if unknown.
    """
    apart = holes * records / (holes + records) if holes and records > 0 else 0
    return holes / MARKERS_PER_SECOND + apart * SECONDS_PER_HOLE


def verdict_of(
    spec: MigrationSpec,
    start: int,
    holes: int,
    records: int,
    why_transactional: str = "",
    *,
    topic: str = "",
    what: str = "the log",
) -> tuple[Verdict, str]:
    """Offset verdict by mode and budgets, with the reason for people. ``holes`` is an estimate.

    :param topic: source topic, for ``offsets.by_topic``.
    :param what: what starts at ``start``, for the reason.
    :param why_transactional: what rules out compare-and-append in any mode; empty if nothing does.
    """
    section = spec.offsets
    mode = section.mode_of(topic)
    key = "offsets.mode" if mode == section.mode else "offsets.by_topic"
    if why_transactional:
        return Verdict.TRANSACTIONAL, why_transactional
    if mode == "transactional":
        return Verdict.TRANSACTIONAL, f"{key}: transactional"
    if mode == "mapped":
        return Verdict.MAPPED, f"{key}: mapped"
    if mode == "shifted" and start:
        return Verdict.SHIFTED, f"{key}: shifted; {what} starts at {start}"
    reason = f"{what} starts at {start}, which is filled" if start else f"{what} starts at 0"
    if mode == "equal":
        return Verdict.EQUAL, reason
    if holes > section.max_markers:
        return Verdict.MAPPED, f"about {holes} holes, more than offsets.max_markers"
    if records > 0 and holes > max(records * section.max_markers_per_record, 1_000_000):
        return Verdict.MAPPED, f"about {holes} holes for {records} records, more than offsets.max_markers_per_record"
    seconds = hole_seconds(holes, records)
    if seconds > section.max_fill_time.total_seconds():
        return Verdict.MAPPED, f"about {holes} holes take {seconds:.0f} s to fill, more than offsets.max_fill_time"
    if mode == "auto" and start > section.max_filler_offsets:
        return Verdict.SHIFTED, f"{what} starts at {start}, more than offsets.max_filler_offsets"
    return Verdict.EQUAL, f"{reason}; about {holes} holes are filled" if holes else reason


def defaults_drift(found: SourceSnapshot, rules: TargetRules) -> list[dict[str, str]]:
    """Topic configs whose defaults on the target differ from those of the source's topics."""
    if rules.defaults is None:
        return []
    source: dict[str, str] = {}
    for name in sorted(found.configs):
        for config, item in found.configs[name].values.items():
            if not item.is_override and item.value is not None and config not in source:
                source[config] = item.value
    return [
        {"config": config, "source": value, "target": str(rules.defaults[config])}
        for config, value in sorted(source.items())
        if config in rules.defaults and rules.defaults[config] != value and config not in _MEANINGLESS_DEFAULTS
    ]


def estimate(spec: MigrationSpec, topics: list[TopicPlan]) -> EstimatePlan:
    """Time and bytes of all topics, from the rates in the spec."""
    partitions = [item for topic in topics for item in topic.partitions]
    known = all(item.size_bytes >= 0 for item in partitions)
    copied = sum(item.size_bytes for item in partitions) if known else -1
    fillers = sum(item.filler_offsets for item in partitions)
    filled = [item for item in partitions if item.verdict in (Verdict.EQUAL, Verdict.SHIFTED)]
    seconds = [hole_seconds(item.estimated_holes, item.estimated_records) for item in filled]
    side_by_side = spec.seed.lanes * spec.seed.max_concurrent_partitions
    rate = spec.estimate.copy_bytes_per_second
    return EstimatePlan(
        copy_bytes=copied,
        copy_seconds=round(copied / rate, 1) if known else -1,
        filler_offsets=fillers,
        marker_offsets=sum(item.estimated_holes for item in filled),
        fill_seconds=round(
            fillers / FILLERS_PER_SECOND + max(sum(seconds) / side_by_side, max(seconds, default=0.0)), 1
        ),
    )
