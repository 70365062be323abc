"""Counts damage after a run of faults: compares what plain consumers read on both sides with the offset map."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from airflow_provider_kafka_migration.documents.copy import CopyPartition
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import MigrationError, Terminal
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange, PartitionMap
from airflow_provider_kafka_migration.offset_map.store import LaneMaps, base_run
from airflow_provider_kafka_migration.offset_map.transactional import MapPages, group_name, read_positions
from harness.compare import PartitionContent, read
from harness.copiers.copying import Copying

_EMPTY = PartitionContent(0, 0)


@dataclass
class Damage:
    """Differences after a run. Records that the source has since compacted away are not damage.

    ``downgraded``: partitions that are ``mapped`` instead of equal: reported, and their map is exact,
    unless ``wrong_offsets`` says otherwise. ``named``: errors that stopped partitions.
    """

    records: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    wrong_offsets: int = 0
    downgraded: int = 0
    named: list[str] = field(default_factory=list)
    where: list[str] = field(default_factory=list)

    @property
    def silent(self) -> bool:
        """Whether content or offsets differ from what the copy reports."""
        return bool(self.lost or self.duplicated or self.reordered or self.wrong_offsets)

    @property
    def found(self) -> bool:
        """Whether anything has happened that the nets should prevent."""
        return bool(self.silent or self.downgraded or self.named)

    def add(self, other: Damage) -> None:
        """Sum up."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))


def judge(copy: Copying, compacted: Collection[str] = ()) -> Damage:
    """Compare all partitions of a copy.

    :param compacted: topics that the source keeps compacting.
    """
    source = read({"bootstrap.servers": copy.source.bootstrap}, copy.topics, with_keys=compacted)
    target = read({"bootstrap.servers": copy.target.bootstrap}, copy.topics, with_keys=compacted)
    maps = LaneMaps(copy.clients.store(copy.journal), copy.migration_id)
    total = Damage()
    for key, spec in sorted(copy.partitions.items()):
        ours, theirs = target[key[0]][key[1]], source[key[0]][key[1]]
        problem: list[str] = []
        try:
            offset_map = _map_of(copy, key, theirs.end, ours) if _is_shared(spec) else None
            offset_map = offset_map or maps.load(spec, ours.end).closed(theirs.end, ours.end)
        except MigrationError as error:
            problem = [error.what]
            offset_map = PartitionMap([base_run(spec)]).closed(theirs.end, ours.end)
        if spec.adopted:
            offset_map = _from_the_start(offset_map)
        found = _judge_partition(theirs, ours, offset_map, key[0] in compacted)
        found.named += problem
        if offset_map.verdict is Verdict.MAPPED and not _is_shared(spec):
            found.downgraded = 1
        if found.found:
            found.where.append(f"{key[0]}-{key[1]}: {_counts(found)}")
        total.add(found)
    return total


def judge_equal(source: Mapping[str, Any], target: Mapping[str, Any], names: Mapping[str, str]) -> Damage:
    """Compare topics of which the target must have the same records at the same offsets.

    :param source: librdkafka keys of the source; ``target`` likewise.
    :param names: topic on the source -> topic on the target.
    """
    ours, theirs = read(target, names.values()), read(source, names)
    total = Damage()
    for topic, remote in sorted(names.items()):
        for number in sorted(theirs[topic].keys() | ours[remote].keys()):
            found = _judge_equal(theirs[topic].get(number, _EMPTY), ours[remote].get(number, _EMPTY))
            if found.found:
                found.where.append(f"{topic}-{number}: {_counts(found)}")
            total.add(found)
    return total


def _judge_equal(source: PartitionContent, target: PartitionContent) -> Damage:
    offset_map = PartitionMap([OffsetRange(0, 0)]).closed(source.end, target.end)
    return _judge_partition(source, target, offset_map, compacted=False)


def _from_the_start(offset_map: PartitionMap) -> PartitionMap:
    """The map of an adopted partition that begins where the copy before it began: at equal offsets from 0 on."""
    runs = [OffsetRange(0, 0), *(OffsetRange(run.source_start, run.target_start) for run in offset_map.runs())]
    return PartitionMap(
        runs, source_end_offset=offset_map.source_end_offset, target_end_offset=offset_map.target_end_offset
    )


def _is_shared(spec: CopyPartition) -> bool:
    """Copied in transactions."""
    return spec.verdict is Verdict.TRANSACTIONAL


def _map_of(copy: Copying, key: TopicPartition, source_end_offset: int, target: PartitionContent) -> PartitionMap:
    """The map of a partition that is copied in transactions, read from the target's commit and the map's pages.

    :raises MigrationError: there is no position, or the map is broken.
    """
    wire = copy.clients.wire("target")
    position = read_positions(wire, group_name(copy.migration_id), [key])[key]
    if isinstance(position, MigrationError):
        raise position
    if position is None:
        raise Terminal("the target has no position of this partition")
    found = MapPages(copy.clients.store(copy.journal), copy.migration_id, *key).load(position)
    return found.closed(source_end_offset, target.offsets[-1] + 1 if target.offsets else found.target_start_offset or 0)


def _counts(damage: Damage) -> Mapping[str, int]:
    return {
        item.name: getattr(damage, item.name)
        for item in fields(damage)
        if isinstance(getattr(damage, item.name), int) and getattr(damage, item.name)
    }


def _judge_partition(
    source: PartitionContent, target: PartitionContent, offset_map: PartitionMap, compacted: bool
) -> Damage:
    damage = Damage(records=len(source.offsets))
    source_offset = {source.digest(index): offset for index, offset in enumerate(source.offsets)}
    latest = _latest_keys(source) if compacted else {}
    placed: list[tuple[int, int]] = []  # (source offset, target offset), in the target's order
    seen: set[bytes] = set()
    highest = -1
    for index, offset in enumerate(target.offsets):
        digest = target.digest(index)
        if digest in seen:
            damage.duplicated += 1
            continue
        seen.add(digest)
        known = source_offset.get(digest)
        if known is None:
            # The source has since compacted it away: correct if a later record there has its key.
            if latest.get(target.key_digest(index) if compacted else b"", -1) <= offset_map.source_of(offset):
                damage.duplicated += 1
            continue
        damage.reordered += known < highest
        highest = max(highest, known)
        damage.wrong_offsets += offset_map.source_of(offset) != known
        placed.append((known, offset))
    damage.lost = sum(digest not in seen for digest in source_offset)
    if not damage.reordered:
        damage.wrong_offsets += _wrong_translations(source, offset_map, placed)
    if offset_map.verdict is Verdict.EQUAL and (source.log_start, source.end) != (target.log_start, target.end):
        damage.wrong_offsets += 1
    return damage


def _latest_keys(content: PartitionContent) -> dict[bytes, int]:
    return {content.key_digest(index): offset for index, offset in enumerate(content.offsets)}


def _wrong_translations(source: PartitionContent, offset_map: PartitionMap, placed: list[tuple[int, int]]) -> int:
    """For each source offset, by brute force: does a consumer at its translation read the right record next?"""
    source_offsets = [item[0] for item in placed]
    target_offsets = [item[1] for item in placed]
    wrong = 0
    for offset in range(source.log_start, source.end + 1):
        translated = offset_map.translate(offset).target_offset
        if translated is None:
            wrong += 1
            continue
        wrong += bisect_left(target_offsets, translated) != bisect_left(source_offsets, offset)
    return wrong
