"""The plan's view of the source: metadata, offsets, sizes, configs and a few batch headers. Only reads."""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from airflow_provider_kafka_migration.documents.copy import (
    BackupConfig,
    BackupPartition,
    BackupSource,
    BackupTopic,
)
from airflow_provider_kafka_migration.documents.plan import ClusterFacts, MeasuredRates, PartitionPlan, Plan
from airflow_provider_kafka_migration.errors import MigrationError, PermissionMissing, Terminal, Transient, Where
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.admin.topics import Configs, ConfigValue, PartitionFacts, TopicFacts
from airflow_provider_kafka_migration.kafka.batches.header import HEAD_BYTES, unpack_head
from airflow_provider_kafka_migration.kafka.fetch import READ_UNCOMMITTED, FetchedPartition, FetchRange
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext, Progress
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.spec import MigrationSpec

PHASE = "plan"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_CONTROL, _TRANSACTIONAL, _LOG_APPEND_TIME, _CODEC_MASK = 0x20, 0x10, 0x08, 0x07
_LOG_OVERHEAD = 12

#: Bytes fetched for one header, and for the density at one place of a compacted log. A broker returns nothing if the
#: first batch is larger (except for the first partition of a request), so larger sizes are tried then.
_HEADER_FETCH_BYTES = (512, 16 * 1024, 128 * 1024, 1100 * 1024)
_DENSITY_FETCH_BYTES = (32 * 1024, 128 * 1024, 1100 * 1024)
#: For all samples together; once it is spent, the remaining partitions stay unsampled, always the same ones.
_SAMPLE_BUDGET_BYTES = 256 * 1024 * 1024
_ANSWER_BYTES = 32 * 1024 * 1024
_RANGES_PER_FETCH = 250


#: (topic, partition, offset)
_Place = tuple[str, int, int]


@dataclass
class Sample:
    """What the headers of a partition show."""

    codecs: set[str] = field(default_factory=set)
    transactional: bool = False
    log_append_time: bool = False
    old_format: bool = False
    #: offsets and records of the batches seen; their ratio estimates the holes
    offsets: int = 0
    records: int = 0

    @property
    def density(self) -> float:
        """Records per offset in the batches seen; 1 if there were none."""
        return self.records / self.offsets if self.offsets else 1.0


@dataclass
class SourceSnapshot:
    """The source as the plan sees it. ``unknown`` names what could not be read, and why."""

    facts: ClusterFacts
    topics: dict[str, TopicFacts]
    excluded: dict[str, str]
    missing: list[str]
    configs: dict[str, Configs] = field(default_factory=dict)
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    stable: dict[TopicPartition, int] = field(default_factory=dict)
    high_watermarks: dict[TopicPartition, int] = field(default_factory=dict)
    sizes: dict[TopicPartition, int] = field(default_factory=dict)
    samples: dict[TopicPartition, Sample] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)

    @property
    def keys(self) -> list[TopicPartition]:
        """All selected partitions, ascending."""
        return [(name, item.partition) for name in sorted(self.topics) for item in self.topics[name].partitions]


def read_source(context: PhaseContext) -> SourceSnapshot:
    """Read the source.

    :raises Terminal: nothing is selected.
    :raises PermissionMissing: some topics may not be fully described; the error lists all.
    """
    admin = context.source.admin
    found = _select(context.record, ClusterFacts.model_validate(admin.facts()), admin.describe_topics())
    _fill(context, found)
    return found


def read_topics(context: PhaseContext, topics: Mapping[str, TopicFacts], facts: ClusterFacts) -> SourceSnapshot:
    """Read only some topics, with those of their partitions that are given; the cluster's other facts are known."""
    found = SourceSnapshot(facts, dict(sorted(topics.items())), {}, [])
    _fill(context, found)
    return found


def _fill(context: PhaseContext, found: SourceSnapshot) -> None:
    admin, wire = context.source.admin, context.source.wire
    keys = found.keys
    context.progress(Progress(PHASE, f"source: configs of {len(found.topics)} topics"))
    found.configs = admin.topic_configs(sorted(found.topics))
    _check_configs(context.record, found.configs)
    context.progress(Progress(PHASE, f"source: offsets and sizes of {len(keys)} partitions"))
    found.starts = wire.list_offsets(keys, "earliest")
    found.stable = wire.list_offsets(keys, "stable")
    found.high_watermarks = wire.list_offsets(keys, "latest")
    _sizes(context.source, found)
    context.progress(Progress(PHASE, "source: reading a few batch headers of each partition"))
    _Sampler(wire, found).run()
    _transactional_producers(context.source, found)


def _select(record: MigrationRecord, facts: ClusterFacts, described: dict[str, TopicFacts]) -> SourceSnapshot:
    section = record.spec.topics
    selected = {name: item for name, item in sorted(described.items()) if section.selects(name)}
    if not selected:
        raise Terminal(
            "no topic of the source is selected",
            where=record.where(PHASE, cluster="source"),
            next_step="check topics.include and topics.exclude, and that the source principal may describe the topics "
            f"({len(described)} topics are visible to it)",
        )
    broken = {name: item.error for name, item in selected.items() if item.error is not None}
    for name, error in broken.items():
        raise error.exception(
            "a topic cannot be described", record.where(PHASE, cluster="source", topic=name), operation="Describe"
        )
    excluded = {name: section.why_left_out(name) for name in sorted(described.keys() - selected.keys())}
    literal = [name for name in section.include if re.fullmatch(r"[A-Za-z0-9_-]+", name)]
    literal += [name.replace(r"\.", ".") for name in section.include if re.fullmatch(r"(?:[A-Za-z0-9_-]|\\\.)+", name)]
    missing = sorted({name for name in literal if name not in described})
    return SourceSnapshot(facts, selected, excluded, missing)


def _check_configs(record: MigrationRecord, configs: dict[str, Configs]) -> None:
    refused = {name: item.error for name, item in configs.items() if item.error is not None}
    if not refused:
        return
    name, error = next(iter(sorted(refused.items())))
    kind = error.exception(
        f"configs of {len(refused)} topics cannot be read; the first is {name}",
        record.where(PHASE, cluster="source", topic=name),
        operation="DescribeConfigs on Topic",
    )
    raise type(kind)(
        kind.what,
        where=kind.where,
        next_step=kind.next_step,
        details={"topics": {item: value.as_dict() for item, value in sorted(refused.items())}},
    )


def _sizes(source: Cluster, found: SourceSnapshot) -> None:
    """Read the size of each partition in bytes. The largest replica is the leader's, or close to it."""
    try:
        log_dirs = source.admin.log_dirs()
    except PermissionMissing as error:
        found.unknown["partition sizes on the source"] = error.what
        return
    for log_dir in log_dirs:
        for key, size in log_dir.sizes.items():
            found.sizes[key] = max(size, found.sizes.get(key, -1))


def _transactional_producers(source: Cluster, found: SourceSnapshot) -> None:
    """Mark a partition as transactional if a coordinator has ended transactions of one of its producers."""
    for key, item in source.admin.producers(found.keys).items():
        if item.error is not None:
            found.unknown.setdefault("producers on the source", item.error.name)
        elif any(state.coordinator_epoch >= 0 or state.transaction_start >= 0 for state in item.producers):
            found.samples.setdefault(key, Sample()).transactional = True


class _Sampler:
    """Reads headers at both ends of each partition, and at three places of compacted ones to estimate their holes."""

    def __init__(self, wire: Wire, found: SourceSnapshot) -> None:
        self._wire = wire
        self._found = found
        self._left_bytes = _SAMPLE_BUDGET_BYTES
        for key in found.keys:
            found.samples[key] = Sample()

    def run(self) -> None:
        ends: list[_Place] = []
        places: list[_Place] = []
        for topic, partition in self._found.keys:
            start = self._found.starts[topic, partition]
            end = self._found.stable[topic, partition]
            if end <= start:
                continue
            ends += [(topic, partition, offset) for offset in sorted({start, end - 1})]
            if "compact" in self._found.configs[topic].get("cleanup.policy"):
                third = (end - start) // 3
                offsets = sorted({start, start + third, start + 2 * third})
                places += [(topic, partition, offset) for offset in offsets]
        try:
            self._sample(ends, _HEADER_FETCH_BYTES, density=False)
            self._sample(places, _DENSITY_FETCH_BYTES, density=True)
        except MigrationError as error:
            self._found.unknown["batch headers on the source"] = error.what

    def _sample(self, places: Sequence[_Place], sizes: Sequence[int], *, density: bool) -> None:
        """Fetch each place with the smallest size that holds its batch, as long as the budget lasts."""
        left = list(places)
        for size in sizes:
            empty: list[_Place] = []
            for batch in _without_repeats(left, min(_RANGES_PER_FETCH, max(1, _ANSWER_BYTES // size))):
                if self._left_bytes <= 0:
                    return
                empty += self._fetch(batch, size, density=density)
            left = sorted(empty)

    def _fetch(self, places: Sequence[_Place], size: int, *, density: bool) -> list[_Place]:
        """Fetch some places and return those whose answer was empty."""
        offsets = {(topic, partition): offset for topic, partition, offset in places}
        empty: list[_Place] = []
        ranges = [FetchRange(*place, size) for place in places]
        answers = self._wire.fetch_once(ranges, isolation=READ_UNCOMMITTED)
        if (error := left_out(offsets, answers)) is not None:
            self._found.unknown["batch headers on the source"] = error.what
        for answer in answers:
            key = (answer.topic, answer.partition)
            if answer.error_code:
                self._found.unknown["batch headers on the source"] = error_codes.name(answer.error_code)
                continue
            self._left_bytes -= len(answer.records)
            if len(answer.records) < HEAD_BYTES:
                empty.append((*key, offsets[key]))
            else:
                _read_headers(answer.records, self._found.samples[key], density=density)
        return empty


def left_out(asked: Iterable[TopicPartition], answers: Iterable[FetchedPartition]) -> Transient | None:
    """The error for an answer to a fetch that omits some partitions; None if it has all of them."""
    wanted = set(asked)
    missing = sorted(wanted - {(item.topic, item.partition) for item in answers})
    if not missing:
        return None
    topic, partition = missing[0]
    return Transient(
        f"the answer to a fetch omits {len(missing)} of {len(wanted)} partitions; the first is {topic}-{partition}",
        where=Where(phase=PHASE, cluster="source", topic=topic, partition=partition),
        next_step="run plan again; if the error persists, check the log of that partition's leader",
    )


def _without_repeats(places: Iterable[_Place], limit: int) -> Iterable[list[_Place]]:
    """Split places into requests that name each partition once."""
    rounds: dict[int, list[_Place]] = defaultdict(list)
    seen: dict[TopicPartition, int] = defaultdict(int)
    for topic, partition, offset in places:
        rounds[seen[topic, partition]].append((topic, partition, offset))
        seen[topic, partition] += 1
    for number in sorted(rounds):
        items = rounds[number]
        for begin in range(0, len(items), limit):
            yield items[begin : begin + limit]


def _read_headers(records: memoryview, sample: Sample, *, density: bool) -> None:
    """Read all headers in a piece of a log; the last one may belong to a truncated batch."""
    position = 0
    next_offset: int | None = None
    while position + HEAD_BYTES <= len(records):
        if records[position + 16] != 2:
            sample.old_format = True
            return
        head = unpack_head(records, position)
        base_offset, length, attributes, last_delta, count = (head[index] for index in (0, 1, 5, 6, 12))
        sample.transactional = sample.transactional or bool(attributes & _TRANSACTIONAL)
        sample.log_append_time = sample.log_append_time or bool(attributes & _LOG_APPEND_TIME)
        if count and not attributes & _CONTROL:
            sample.codecs.add(CODECS[attributes & _CODEC_MASK])
        if not density:
            return
        # Whole batches may be missing, too: what counts is the distance from batch to batch.
        sample.offsets += base_offset + last_delta + 1 - (base_offset if next_offset is None else next_offset)
        next_offset = base_offset + last_delta + 1
        sample.records += count
        position += _LOG_OVERHEAD + length


# -- plan measure -----------------------------------------------------------------------------------------------------
#
# A short, bounded read from the source, for an estimate at the rate that this machine gets. Only reads, stores no data.
#
# It measures the path from the source's leaders to this process, over the log starts of the largest partitions. The
# path to the target is not measured, because plan writes to no cluster. So the rate used is the smaller of the measured
# one and the one in the spec.


NAME = "measured-rates.json"

MAX_PARTITIONS = 16
MAX_CONNECTIONS = 4
MAX_SECONDS = 5.0
MAX_BYTES = 512 * 1024 * 1024
_FETCH_BYTES = 8 * 1024 * 1024

#: (source topic, partition, first offset, end offset)
_Piece = tuple[str, int, int, int]


@dataclass
class _Meter:
    """State that all readers share."""

    deadline: float
    left_bytes: int = MAX_BYTES
    read_bytes: int = 0
    last_read: float = 0.0
    errors: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, size: int) -> None:
        with self.lock:
            self.read_bytes += size
            self.left_bytes -= size
            self.last_read = max(self.last_read, time.monotonic())

    def fail(self, place: str, why: str) -> None:
        with self.lock:
            self.errors.append(f"{place}: {why}")

    @property
    def over(self) -> bool:
        return self.left_bytes <= 0 or time.monotonic() >= self.deadline


def measure(context: PhaseContext, plan: Plan, *, seconds: float = MAX_SECONDS) -> MeasuredRates:
    """Read from the largest partitions for some seconds. A partition that cannot be read is named, but is no error."""
    pieces = _largest(plan)
    connections = max(1, min(MAX_CONNECTIONS, context.spec.seed.lanes, len(pieces)))
    context.progress(Progress("plan", f"measuring: reading {len(pieces)} partitions for at most {seconds:.0f} s"))
    begun = time.monotonic()
    meter = _Meter(begun + seconds)
    with ThreadPoolExecutor(connections, thread_name_prefix="measure") as pool:
        shares = [pieces[number::connections] for number in range(connections)]
        for done in [pool.submit(_read, context.source.clone(), share, meter) for share in shares if share]:
            done.result()
    return _result(context.spec, plan, pieces, connections, meter, max(meter.last_read - begun, 0.0))


def _largest(plan: Plan) -> list[_Piece]:
    """The largest non-empty partitions; ties and unknown sizes go by name, so the choice is always the same."""
    parts: list[tuple[str, PartitionPlan]] = [
        (topic.name, item)
        for topic in plan.topics
        for item in topic.partitions
        if item.end_offset > item.log_start_offset
    ]
    parts.sort(key=lambda pair: (-pair[1].size_bytes, pair[0], pair[1].partition))
    return [(topic, item.partition, item.log_start_offset, item.end_offset) for topic, item in parts[:MAX_PARTITIONS]]


def _read(source: Cluster, pieces: Sequence[_Piece], meter: _Meter) -> None:
    """Read one connection's share: each partition to its end, until time or bytes run out."""
    try:
        for topic, partition, start, end in pieces:
            if meter.over:
                break
            # A broker that is down must not delay a plan: wait for it no longer than the time that is left.
            source.wire.patience_seconds = max(meter.deadline - time.monotonic(), 0.1)
            try:
                _read_one(source, (topic, partition, start, end), meter)
            except MigrationError as error:
                meter.fail(f"{topic}-{partition}", error.what)
    finally:
        source.close()


def _read_one(source: Cluster, piece: _Piece, meter: _Meter) -> None:
    topic, partition, offset, end = piece
    while offset < end and not meter.over:
        answers = source.wire.fetch_once(
            [FetchRange(topic, partition, offset, _FETCH_BYTES)], isolation=READ_UNCOMMITTED, max_bytes=_FETCH_BYTES
        )
        if (error := left_out([(topic, partition)], answers)) is not None:
            raise error
        answer = answers[0]
        if answer.error_code:
            meter.fail(f"{topic}-{partition}", error_codes.name(answer.error_code))
            return
        meter.count(len(answer.records))
        after = next_offset(answer.records)
        if after <= offset:
            return
        offset = after


def next_offset(records: memoryview) -> int:
    """The offset after the last whole batch of a piece of a log, -1 if there is none. Old formats: their offset + 1."""
    position, found = 0, -1
    while position + HEAD_BYTES <= len(records):
        head = unpack_head(records, position)
        base_offset, length, last_delta = head[0], head[1], head[6]
        if position + _LOG_OVERHEAD + length > len(records):
            break
        found = base_offset + 1 + (last_delta if records[position + 16] == 2 else 0)
        position += _LOG_OVERHEAD + length
    return found


def _result(
    spec: MigrationSpec, plan: Plan, pieces: Sequence[_Piece], connections: int, meter: _Meter, seconds: float
) -> MeasuredRates:
    given = spec.estimate.copy_bytes_per_second
    measured = round(meter.read_bytes / seconds) if meter.read_bytes and seconds > 0 else 0
    used = min(given, measured) if measured else given
    copied = plan.estimate.copy_bytes if plan.estimate is not None else -1
    return MeasuredRates(
        migration_id=plan.migration_id,
        plan_digest=plan.digest(),
        partitions=sorted((topic, partition) for topic, partition, _, _ in pieces),
        connections=connections,
        read_bytes=meter.read_bytes,
        seconds=round(seconds, 3),
        read_bytes_per_second=measured,
        given_bytes_per_second=given,
        copy_bytes_per_second=used,
        limited_by="source" if used < given else "spec",
        copy_bytes=copied,
        copy_seconds=round(copied / used, 1) if copied >= 0 else -1,
        errors=sorted(meter.errors),
    )


def copy_seconds(record: MigrationRecord, plan: Plan) -> float:
    """Time of the copy: as measured for this very plan, else from the spec's rate; -1 if sizes are unknown."""
    measured = record.measured_rates()
    if measured is not None and measured.plan_digest == plan.digest():
        return measured.copy_seconds
    return plan.estimate.copy_seconds if plan.estimate is not None else -1


# -- backup source ----------------------------------------------------------------------------------------------------
#
# The snapshot of the source, archived and read back: a restore sees in the archive what plan sees of a live source.


BACKUP_SOURCE_PHASE: Final = "backup"


def archived(migration_id: str, found: SourceSnapshot) -> BackupSource:
    """Return the document of a snapshot."""
    return BackupSource(
        migration_id=migration_id,
        source=found.facts,
        topics=[_topic(found, found.topics[name]) for name in sorted(found.topics)],
        excluded_topics=found.excluded,
        missing_topics=found.missing,
        unknown=dict(sorted(found.unknown.items())),
    )


def _topic(found: SourceSnapshot, facts: TopicFacts) -> BackupTopic:
    values = found.configs[facts.name].values
    return BackupTopic(
        name=facts.name,
        topic_id=facts.topic_id,
        replication_factor=facts.replication_factor,
        configs=[
            BackupConfig(name=name, value=item.value, source=item.source, sensitive=item.sensitive)
            for name, item in sorted(values.items())
        ],
        partitions=[_partition(found, facts.name, item.partition) for item in facts.partitions],
    )


def _partition(found: SourceSnapshot, topic: str, partition: int) -> BackupPartition:
    key = (topic, partition)
    sample = found.samples.get(key, Sample())
    return BackupPartition(
        partition=partition,
        log_start_offset=found.starts[key],
        last_stable_offset=found.stable[key],
        high_watermark=found.high_watermarks[key],
        size_bytes=found.sizes.get(key, -1),
        codecs=sorted(sample.codecs),
        transactional=sample.transactional,
        log_append_time=sample.log_append_time,
        old_format=sample.old_format,
        sampled_offsets=sample.offsets,
        sampled_records=sample.records,
    )


def snapshot_of(document: BackupSource) -> SourceSnapshot:
    """Return the snapshot that a document holds."""
    found = SourceSnapshot(
        facts=document.source,
        topics={topic.name: _facts(topic) for topic in document.topics},
        excluded=dict(document.excluded_topics),
        missing=list(document.missing_topics),
        configs={topic.name: _configs(topic) for topic in document.topics},
        unknown=dict(document.unknown),
    )
    for topic in document.topics:
        for item in topic.partitions:
            key = (topic.name, item.partition)
            found.starts[key] = item.log_start_offset
            found.stable[key] = item.last_stable_offset
            found.high_watermarks[key] = item.high_watermark
            if item.size_bytes >= 0:
                found.sizes[key] = item.size_bytes
            found.samples[key] = Sample(
                codecs=set(item.codecs),
                transactional=item.transactional,
                log_append_time=item.log_append_time,
                old_format=item.old_format,
                offsets=item.sampled_offsets,
                records=item.sampled_records,
            )
    return found


def _facts(topic: BackupTopic) -> TopicFacts:
    # Brokers of the source mean nothing on the target; only the number of replicas counts.
    replicas = tuple(range(topic.replication_factor))
    return TopicFacts(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=tuple(PartitionFacts(item.partition, -1, replicas, replicas) for item in topic.partitions),
    )


def _configs(topic: BackupTopic) -> Configs:
    values = {
        item.name: ConfigValue(item.name, item.value, item.source, False, item.sensitive) for item in topic.configs
    }
    return Configs(topic.name, values)
