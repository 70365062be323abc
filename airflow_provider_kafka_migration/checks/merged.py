"""Precheck of topics with the records of both clusters: the same names in both directions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow_provider_kafka_migration.copy.provenance import ProvenanceMarker
from airflow_provider_kafka_migration.documents.copy import ProvenanceSettings
from airflow_provider_kafka_migration.documents.plan import Finding, Plan, TopicPlan
from airflow_provider_kafka_migration.errors import MigrationError, OutsideOfLog
from airflow_provider_kafka_migration.jobs.copy_jobs import provenance_settings
from airflow_provider_kafka_migration.kafka.admin.topics import Configs
from airflow_provider_kafka_migration.kafka.fetch import READ_UNCOMMITTED
from airflow_provider_kafka_migration.kafka.logs import fetch_span
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire
from airflow_provider_kafka_migration.offset_map.transactional import group_name, read_positions
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.finding_codes import finding, some

#: So many of a partition's last offsets are looked at, the last ones first: others may have written there since.
_WINDOWS = (50, 1000)
_FETCH_BYTES = 1024 * 1024
#: After this many bytes, no more of a partition is looked at.
_PARTITION_BYTES = 8 * 1024 * 1024
#: What a copy into the other cluster meets: no flow brings these into line.
_COMPARED = ("cleanup.policy", "max.message.bytes", "message.timestamp.type")


def check_merged(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Report what prevents marked copies of topics with the records of both clusters, and what is never aligned."""
    spec = context.spec
    if spec.kind != "mirror" or not spec.mirror.merges:
        return
    nameless = [name for name, facts in (("source", plan.source), ("target", plan.target)) if not facts.cluster_id]
    for name in nameless:
        yield finding("B038", f"records cannot be marked with where they come from: the {name} has no id", subject=name)
    topics = [topic for topic in plan.topics if topic.merged]
    settings = None if nameless else provenance_settings(spec, plan)
    if settings is not None:
        yield from _copies(context, topics, settings)
    yield from _configs(context, topics)


# -- copies of an earlier mirror ---------------------------------------------------------------------------------------


def _copies(context: PhaseContext, topics: list[TopicPlan], settings: ProvenanceSettings) -> Iterator[Finding]:
    """Report partitions with records that were copied from this source, although this mirror has copied none."""
    keys = [
        (topic.target_name, item.partition) for topic in topics if topic.exists_on_target for item in topic.partitions
    ]
    there = context.target.admin.describe_topics(sorted({topic for topic, _ in keys})) if keys else {}
    keys = [key for key in keys if key[1] < len(there[key[0]].partitions)]
    if not keys:
        return
    wire = context.target.wire
    starts, ends = wire.list_offsets(keys, "earliest"), wire.list_offsets(keys, "latest")
    seen: dict[TopicPartition, int] = {}
    for key in keys:
        offset = _last_copy(context.target.wire, ProvenanceMarker(settings, *key), key, starts[key], ends[key])
        if offset is not None:
            seen[key] = offset
    if not seen:
        return
    positions = read_positions(wire, group_name(context.migration_id), sorted(seen))
    for name in sorted({topic for topic, _ in seen}):
        lost = [
            f"partition {partition} at offset {offset}"
            for (topic, partition), offset in sorted(seen.items())
            if topic == name and not _has_position(positions[topic, partition])
        ]
        if lost:
            yield finding("B037", some(lost), subject=name)


def _has_position(position: object) -> bool:
    """Whether this mirror has copied the partition before.

    :raises MigrationError: that cannot be read.
    """
    if isinstance(position, MigrationError):
        raise position
    return position is not None


def _last_copy(wire: Wire, marker: ProvenanceMarker, key: TopicPartition, start: int, end: int) -> int | None:
    """Return the offset of a record, among the last ones of the target, whose header names the source; None: none seen.

    :raises MigrationError: the partition cannot be read.
    """
    budget, until = _PARTITION_BYTES, end
    for window in _WINDOWS:
        position, found = max(start, end - window), None
        below = position
        while position < until and budget > 0:
            try:
                span = fetch_span(wire, key, position, isolation=READ_UNCOMMITTED, max_bytes=_FETCH_BYTES)
            except OutsideOfLog:
                break  # retention was faster
            budget -= len(span.records)
            for batch in span.batches:
                offset = None if batch.is_control else marker.last_from_source(batch)
                found = found if offset is None else offset
            if span.until_offset <= position:
                break
            position = span.until_offset
        if found is not None:
            return found
        until = below
    return None


# -- configs -----------------------------------------------------------------------------------------------------------


def _configs(context: PhaseContext, topics: list[TopicPlan]) -> Iterator[Finding]:
    if not topics:
        return
    here = context.source.admin.topic_configs([topic.name for topic in topics])
    names = [topic.target_name for topic in topics if topic.exists_on_target]
    there = context.target.admin.topic_configs(names) if names else {}
    compacted = []
    for topic in topics:
        source, target = here[topic.name], there.get(topic.target_name)
        policies = [item.get("cleanup.policy") or "" for item in (source, target) if item is not None]
        if any("compact" in policy for policy in policies):
            compacted.append(topic.name)
        if target is not None and (drift := _drift(source, target)):
            listing = [
                f"{name} is {theirs} on the target, {mine} on the source" for name, (mine, theirs) in drift.items()
            ]
            fix = "bring them into line on both clusters yourself, or accept it: no flow changes configs of this topic"
            yield finding("W016", some(listing), subject=topic.target_name, fix=fix)
    if compacted:
        yield finding("W039", f"compacted topics: {some(compacted)}", topics=compacted)


def _drift(source: Configs, target: Configs) -> Mapping[str, tuple[str, str]]:
    """Return (source, target) of the values in force that differ; those that brokers do not tell are left out."""
    if source.error is not None or target.error is not None:
        return {}
    values = {name: (source.get(name), target.get(name)) for name in _COMPARED}
    return {name: (mine, theirs) for name, (mine, theirs) in values.items() if mine and theirs and mine != theirs}
