"""The offset maps of all partitions, as phases need them: for lag, for groups, and as ``offset-map.json``."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from airflow_provider_kafka_migration.copy.transform import Append, BatchTransformer
from airflow_provider_kafka_migration.documents.copy import CopiedRecords, CopyJob, CopyPartition, OffsetMapDocument
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import MigrationError, OffsetMapInvalid, Terminal
from airflow_provider_kafka_migration.kafka.logs import fetch_span
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.offset_map.recent import KeptMaps, RecentMap
from airflow_provider_kafka_migration.offset_map.runs import (
    MapEntry,
    OffsetRange,
    OffsetTranslator,
    PartitionMap,
    build_offset_map_document,
    topic_of_key,
)
from airflow_provider_kafka_migration.offset_map.store import RunLog
from airflow_provider_kafka_migration.offset_map.transactional import (
    MapPages,
    Position,
    TransactionalMap,
    group_name,
    read_map,
    read_positions,
    settled_positions,
)
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.record.background import BackgroundPasses
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.record.partition_names import partition_name, target_key
from airflow_provider_kafka_migration.record.record import MigrationRecord


def partitions_with_runs(record: MigrationRecord) -> set[TopicPartition]:
    """Return partitions that have more than their base run; one listing, because almost all have only that."""
    prefix = record.key("offset-map/")
    found: set[TopicPartition] = set()
    for info in record.journal_store.list(prefix):
        topic, partition, *rest = info.key.removeprefix(prefix).split("/")
        if len(rest) == 1 and partition.isdigit():
            found.add((topic_of_key(topic), int(partition)))
    return found


def load_maps(
    record: MigrationRecord,
    target: Cluster,
    partitions: Mapping[TopicPartition, CopyPartition] | None = None,
    *,
    unread: dict[TopicPartition, MigrationError] | None = None,
) -> dict[TopicPartition, PartitionMap]:
    """Load the map of every partition, open at its end.

    :param unread: receives the partitions that are copied in transactions and whose map cannot be read, with the
        reason, and they are missing in the answer; None: the first one is an error.
    """
    partitions = record.partitions() if partitions is None else partitions
    with_runs = partitions_with_runs(record)
    maps = _load_transactional(record, target, partitions, unread)
    for key, item in partitions.items():
        if key in maps or key in (unread or {}):
            continue
        base = OffsetRange(item.source_start_offset, item.target_start_offset)
        if key in with_runs:
            log = RunLog(record.journal_store, record.migration_id, *key, base, topic_id=item.topic_id)
            maps[key] = log.load()
        else:
            maps[key] = PartitionMap([base])
    return maps


def _load_transactional(
    record: MigrationRecord,
    target: Cluster,
    partitions: Mapping[TopicPartition, CopyPartition],
    unread: dict[TopicPartition, MigrationError] | None = None,
) -> dict[TopicPartition, PartitionMap]:
    """Load the maps of partitions that are copied in transactions, as their committed positions refer to them."""
    maps: dict[TopicPartition, PartitionMap] = {}
    for key, position in committed_positions(record, target, partitions, unread).items():
        if position is None:
            maps[key] = TransactionalMap(OffsetRange(partitions[key].source_start_offset, 0))
            continue
        try:
            maps[key] = MapPages(record.journal_store, record.migration_id, *key).load(position)
        except OffsetMapInvalid as error:
            if unread is None:
                raise
            unread[key] = error
    return maps


def live_translators(
    record: MigrationRecord,
    target: Cluster,
    positions: Mapping[TopicPartition, Position | None],
    kept: KeptMaps | None = None,
) -> dict[TopicPartition, OffsetTranslator]:
    """Return what translates offsets while the copy goes on; of a copy in transactions as little as possible is read.

    :param positions: the :func:`committed_positions`.
    :param kept: what an earlier look has read.
    """
    partitions = record.partitions()
    store, kept = record.journal_store, kept or KeptMaps()
    others = {key: item for key, item in partitions.items() if key not in positions}
    found: dict[TopicPartition, OffsetTranslator] = {**load_maps(record, target, others)}
    for key, position in positions.items():
        item = partitions[key]
        if position is None:
            found[key] = TransactionalMap(OffsetRange(item.source_start_offset, 0))
        else:
            pages = MapPages(store, record.migration_id, *key, get=partial(kept.page, fetch=store.get))
            found[key] = RecentMap(pages, position, kept, item.topic_id)
    return found


def committed_positions(
    record: MigrationRecord,
    target: Cluster,
    partitions: Mapping[TopicPartition, CopyPartition],
    unread: dict[TopicPartition, MigrationError] | None = None,
) -> dict[TopicPartition, Position | None]:
    """Read the target's positions of partitions that are copied in transactions; None: nothing was committed yet.

    :param unread: receives the partitions whose position could not be read, with the reason, and they are missing in
        the answer; None: the first one is an error.
    :raises Transient: transactions are constantly being ended.
    :raises OffsetMapInvalid: a position was not written by this package.
    """
    keys_of = {target_key(item): key for key, item in partitions.items() if item.verdict is Verdict.TRANSACTIONAL}
    group = group_name(record.migration_id)
    problems: dict[TopicPartition, MigrationError] | None = None if unread is None else {}
    found = settled_positions(lambda places: read_positions(target.wire, group, places), keys_of, problems)
    if unread is not None and problems:
        unread.update({keys_of[place]: error for place, error in problems.items()})
    return {keys_of[place]: position for place, position in found.items()}


@dataclass(frozen=True)
class SourcePositions:
    """The source offset that a target's log end corresponds to; in transactions, the position committed with them."""

    maps: dict[TopicPartition, PartitionMap] = field(default_factory=dict)
    committed: dict[TopicPartition, Position | None] = field(default_factory=dict)

    @classmethod
    def load(cls, record: MigrationRecord, target: Cluster) -> SourcePositions:
        """Load from the journal's bases, the run log and the target."""
        partitions = record.partitions()
        others = {key: item for key, item in partitions.items() if item.verdict is not Verdict.TRANSACTIONAL}
        return cls(load_maps(record, target, others), committed_positions(record, target, partitions))

    def of(self, partition: CopyPartition, target_end: int) -> int:
        """Return the next source offset to copy for this log end of the target."""
        if partition.key in self.committed:
            position = self.committed[partition.key]
            return partition.source_start_offset if position is None else position.source_offset
        return self.maps[partition.key].source_position(target_end)

    def target_end(self, partition: CopyPartition, log_end: int) -> int:
        """Return where the copy ends on the target: its log end, or our last record where others write, too."""
        if partition.key in self.committed:
            position = self.committed[partition.key]
            return 0 if position is None else position.target_offset
        return log_end

    def verdict(self, partition: CopyPartition) -> str:
        """Return what kind of offsets the partition has by now."""
        found = self.maps.get(partition.key)
        return str((found.verdict if found is not None else None) or partition.verdict)

    def is_mapped(self, key: TopicPartition) -> bool:
        """Whether a partition's holes are not filled, so that its end tells less."""
        return key in self.maps and len(self.maps[key]) > 1


def only_holes(source: Cluster, key: TopicPartition, from_offset: int, until_offset: int) -> bool:
    """Whether the source has no committed record in ``[from_offset, until_offset)``: markers, aborted data, nothing.

    For ``mapped`` partitions: holes at the end leave no trace on the target.

    :returns: False also if the source's committed records end before ``until_offset``: what will follow is unknown.
    :raises RecordsWithheld: the source does not answer that.
    """
    decider = BatchTransformer(from_offset, check_inner_offsets=False)
    position = from_offset
    while position < until_offset:
        span = fetch_span(source.wire, key, position)
        if span.until_offset <= position:
            return False
        for step in decider.decide(span.batches, span.aborted):
            if isinstance(step, Append) and step.source_offset < until_offset:
                return False
        position = span.until_offset
    return True


def build_document(
    record: MigrationRecord,
    target: Cluster,
    source_ends: Mapping[TopicPartition, int],
    target_ends: Mapping[TopicPartition, int],
    *,
    without: Collection[str] = (),
) -> OffsetMapDocument:
    """Build ``offset-map.json`` of the finished copy.

    :param source_ends: exclusive end of the source, by (source topic, partition).
    :param target_ends: log end of the target, by (source topic, partition).
    :param without: target topics that do not exist any more: nothing of them can be mapped.
    """
    partitions = {key: item for key, item in record.partitions().items() if item.target_topic not in without}
    maps = load_maps(record, target, partitions)
    entries: Iterable[MapEntry] = (
        MapEntry(
            item.topic,
            item.partition,
            maps[key].closed(source_ends[key], target_ends[key]),
            target_topic=item.target_topic,
            topic_id=item.topic_id,
        )
        for key, item in partitions.items()
    )
    return build_offset_map_document(record.migration_id, entries)


def _of_open_map(record: MigrationRecord) -> dict[TopicPartition, CopyPartition]:
    partitions = record.partitions()
    if record.spec.kind != "mirror":
        return partitions
    return {key: item for key, item in partitions.items() if item.verdict is not Verdict.TRANSACTIONAL}


def open_document(record: MigrationRecord, target: Cluster) -> OffsetMapDocument:
    """Build ``offset-map.json`` while the copy continues: all runs so far, without ends.

    Without partitions that a mirror copies in transactions: their maps grow for years, and each look would read all of
    them. The end of the mirror writes theirs.
    """
    partitions = _of_open_map(record)
    maps = load_maps(record, target, partitions)
    entries = (
        MapEntry(item.topic, item.partition, maps[key], target_topic=item.target_topic, topic_id=item.topic_id)
        for key, item in partitions.items()
    )
    return build_offset_map_document(record.migration_id, entries).model_copy(update={"complete": False})


def store_final(record: MigrationRecord, document: OffsetMapDocument) -> str:
    """Store the finished map and a copy that no late update of the tail replaces; return the map's address."""
    data, key = document.canonical(), record.key(keys.OFFSET_MAP)
    record.put_result(keys.FINAL_OFFSET_MAP, document)
    if record.evidence_store.get(key) != data:
        record.evidence_store.put(key, data)
    return f"{record.evidence_store.uri}/{key}"


def keep_final_maps(record: MigrationRecord, target: Cluster, document: OffsetMapDocument) -> None:
    """Store the maps of partitions that were copied in transactions, for the comparison of contents."""
    wanted = {(item.topic, item.partition): item for item in document.partitions}
    partitions = {key: item for key, item in record.partitions().items() if key in wanted}
    for key, found in _load_transactional(record, target, partitions).items():
        if isinstance(found, TransactionalMap):
            MapPages(record.journal_store, record.migration_id, *key).finish(found, wanted[key])


def closed_maps(document: OffsetMapDocument) -> dict[TopicPartition, PartitionMap]:
    """The maps of a document by (source topic, partition)."""
    return {(item.topic, item.partition): read_map(item) for item in document.partitions}


# -- live offset map --------------------------------------------------------------------------------------------------
#
# ``offset-map.json`` while the copy continues: written from the end of the seed on, and kept up to date by the tail.
#
# It serves people and other tools, and a migration that ends before its cutover. Nothing is decided by it: groups are
# translated with the runs in the journal store, and after the final drain with the finished map.


#: How often the tail checks for new runs.
UPDATE_SECONDS = 30.0

log = logging.getLogger(__name__)


def write_open_map(record: MigrationRecord, target: Cluster) -> bool:
    """Write the current map and return whether it was written. A finished map is never replaced.

    From the freeze on, only the final drain writes it, or the end of a mirror.
    """
    record.journal.refresh()
    if record.is_frozen():
        return False
    # After a lifted freeze, a migration replaces the map of that cutover. That of a mirror counts only after its end.
    is_final = record.freeze() is None or record.spec.kind == "mirror"
    if is_final and record.offset_map() is not None:
        return False
    if not _of_open_map(record):
        return False
    key = record.key(keys.OFFSET_MAP)
    data = open_document(record, target).canonical()
    if record.evidence_store.get(key) == data:
        return False
    record.evidence_store.put(key, data)
    return True


class MapWriter(BackgroundPasses[Cluster]):
    """Updates the map in a thread with its own connections until the ``with`` block ends."""

    thread_name = "offset-map"
    failed_text = "offset-map.json could not be updated"
    ended_text = "offset-map.json is no longer updated"
    final = (Terminal,)

    def __init__(self, record: MigrationRecord, target: Cluster) -> None:
        super().__init__(UPDATE_SECONDS)
        self._record = record
        self._target = target

    def _open(self) -> AbstractContextManager[Cluster]:
        return closing(self._target.clone())

    def _pass(self, own: Cluster) -> None:
        write_open_map(self._record, own)


def update_map(record: MigrationRecord, target: Cluster) -> None:
    """Update the map once. A failure is only logged: the next update follows."""
    try:
        write_open_map(record, target)
    except MigrationError as error:
        log.warning("offset-map.json could not be updated; the next attempt follows: %s", error)


# -- copy totals ------------------------------------------------------------------------------------------------------
#
# What a copy job has moved, over all its runs: for its journal entry, for the evidence and for people.
#
# Records and holes are exact even if processes were killed: they follow from the sequence numbers in the target's log,
# or from the map of a copy in transactions. Bytes are what the drivers counted: a driver that was killed could not
# report its last ones.


ALL_RUNS = "all runs"
AS_COUNTED = "all runs, as far as their drivers have counted"


def job_figures(
    record: MigrationRecord, target: Cluster, job: CopyJob, progress: Mapping[str, Any], *, after: str | None = None
) -> dict[str, Any]:
    """Return the figures of a finished job.

    :param progress: its last progress document.
    :param after: the previous job, whose records do not count for this one.
    """
    counted = progress.get("all_runs") or progress
    figures: dict[str, Any] = {
        "records": int(counted.get("records", 0)),
        "copied_bytes": int(counted.get("copied_bytes", 0)),
        "source_bytes": int(counted.get("source_bytes", 0)),
        "holes": int(counted.get("holes", 0)),
        "seconds": counted.get("seconds", -1),
        "runs": int(counted.get("runs", 1)),
        "figures_of": AS_COUNTED,
    }
    copied = _copied(record, target, job, progress)
    if copied is None:
        return figures
    record.put_result(keys.copied_records(job.name), copied)
    before = _read(record, after) if after else None
    if after and before is None:
        return figures
    figures["records"] = _difference(copied.records, {} if before is None else before.records)
    if len(copied.holes) == len(copied.records):
        figures["holes"] = _difference(copied.holes, {} if before is None else before.holes)
    return {**figures, "figures_of": ALL_RUNS}


def _difference(now: Mapping[str, int], before: Mapping[str, int]) -> int:
    """Subtract former totals. An added partition counts from zero, a dropped one does not count."""
    return sum(now[name] - before.get(name, 0) for name in sorted(now))


def _read(record: MigrationRecord, job_name: str) -> CopiedRecords | None:
    data = record.result(keys.copied_records(job_name))
    return None if data is None else CopiedRecords.parse(data)


def _copied(
    record: MigrationRecord, target: Cluster, job: CopyJob, progress: Mapping[str, Any]
) -> CopiedRecords | None:
    """Totals of all partitions; None if one is unknown, or if the last driver was killed before its end."""
    if not progress.get("finished"):
        return None
    told = {(item["topic"], item["partition"]): item for item in progress.get("partitions", [])}
    transactional = {item.key: item for item in job.partitions if item.verdict is Verdict.TRANSACTIONAL}
    maps = load_maps(record, target, transactional) if transactional else {}
    records, holes = {}, {}
    for item in job.partitions:
        name = partition_name(item.key)
        if item.key in maps:
            records[name] = sum(run.count or 0 for run in maps[item.key].runs())
            continue
        total = int(told.get(item.key, {}).get("total_records", -1))
        if total < 0:
            return None
        records[name], holes[name] = total, int(told[item.key]["total_holes"])
    return CopiedRecords(migration_id=record.migration_id, job=job.name, records=records, holes=holes)
