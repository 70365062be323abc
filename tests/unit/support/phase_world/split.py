"""A split migration in memory: a backup that knows only the source, a restore that knows only the target."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

from airflow_provider_kafka_migration.compare.runner import ContentResults
from airflow_provider_kafka_migration.copy.archive import SegmentIndex, SegmentWriter
from airflow_provider_kafka_migration.documents.copy import CopyJob, CopyPartition, StopAt
from airflow_provider_kafka_migration.documents.proof import (
    ContentDifference,
    ContentJob,
    ContentRange,
    PartitionContent,
)
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch, read_batches
from airflow_provider_kafka_migration.phases import backup, restore
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.split import AbsentCluster
from phase_world.cluster import SimCluster
from phase_world.jobs import MIGRATION
from phase_world.world import World


class Split:
    """The two halves of a split migration of a world's source and target."""

    def __init__(self, world: World) -> None:
        self.world = world
        #: partitions that are archived or restored only up to an offset
        self.leaves: dict[tuple[str, int], int] = {}
        #: called before a job runs
        self.before: Callable[[], None] = lambda: None
        self.runs: list[str] = []

    def backup(self, **options: Any) -> PhaseResult:
        """Run the backup in a new process."""
        return backup.run(self._context("source", Journal(self.world.journal_store, MIGRATION)), **options)

    def restore(self, **options: Any) -> PhaseResult:
        """Run the restore in a new process."""
        owner = Owner("cli", "tester", "tester")
        ids = Fingerprint("source-id", "target-id")
        store, clock = self.world.journal_store, self.world.clock
        journal = Journal.create_or_open(store, MIGRATION, ids, owner=owner, clock=clock.now)
        return restore.run(self._context("target", journal), **options)

    def _context(self, side: str, journal: Journal) -> PhaseContext:
        world = self.world
        known: dict[str, Any] = {"source": AbsentCluster("source"), "target": AbsentCluster("target")}
        state = world.source if side == "source" else world.target
        known[side] = SimCluster(cast(Any, side), state, world.outside)
        return PhaseContext(
            spec=world.spec,
            journal=journal,
            source=known["source"],
            target=known["target"],
            journal_store=world.journal_store,
            archive_store=world.archive_store,
            evidence_store=world.evidence_store,
            resolver=Resolver(),
            runner=self,
            now=world.clock.now,
        )

    # -- what Spark does ----------------------------------------------------------------------------------------------

    def submit(self, _spec: Any, _location: str, key: str, _read_progress: Any) -> None:
        """Run a job to its end. See ``CopyRunner``."""
        name = key.rpartition("/")[2].removesuffix(".json")
        self.before()
        data = self.world.journal_store.get(key)
        assert data is not None
        self.world.outside.call(f"copiers.{name}", lambda: None)
        self.runs.append(name)
        if name == "verify-archive":
            self._compare(ContentJob.parse(data))
            return
        job = CopyJob.parse(data)
        stop = StopAt.in_force(self.world.journal_store.get(job.stop_key)) if job.stop_key else None
        for item in job.partitions:
            until = item.until_offset if stop is None else stop.offset(*item.key)
            (self._archive if name == "backup" else self._restore)(item, until)
        report = {"generation": job.generation, "records": 15, "copied_bytes": 150, "finished": True, "partitions": []}
        self.world.journal_store.put(f"{MIGRATION}/progress/{name}.json", json.dumps(report).encode())

    def _index(self, item: CopyPartition | ContentRange) -> SegmentIndex:
        return SegmentIndex(self.world.archive_store, MIGRATION, item.topic, item.partition)

    def _archive(self, item: CopyPartition, until: int | None) -> None:
        log = self.world.source.log(*item.key)
        end = min(self.leaves.get(item.key, log.end), log.offset("stable") if until is None else until)
        writer = SegmentWriter(self.world.archive_store, MIGRATION, *item.key, item.topic_id)
        position = self._index(item).until_offset(item.source_start_offset)
        for data in log.batches:
            batch = RawBatch(memoryview(data))
            if position <= batch.base_offset and batch.next_offset <= end:
                writer.put(data, [], batch.base_offset, batch.next_offset)

    def _restore(self, item: CopyPartition, until: int | None) -> None:
        target = self.world.target.log(item.target_topic, item.partition)
        end = self.leaves.get(item.key, 10**9 if until is None else until)
        index = self._index(item)
        for entry in index.chain(item.source_start_offset):
            for batch in read_batches(index.read(entry).batches)[0]:
                if isinstance(batch, RawBatch) and target.end <= batch.base_offset < end:
                    target.put(bytes(batch.data), batch.base_offset)

    def _compare(self, job: ContentJob) -> None:
        results = ContentResults(job, self.world.journal_store)
        for item in job.ranges:
            results.write(item, self._compared(item))

    def _compared(self, item: ContentRange) -> PartitionContent:
        index = self._index(item)
        data = [index.read(entry).batches for entry in index.chain(item.source_start_offset)]
        archived = b"".join(bytes(part) for part in data)
        there = b"".join(self.world.target.log(item.target_topic, item.partition).batches)
        wanted = archived[: len(there)]
        differences = [] if wanted == there else [ContentDifference(kind="changed", source_offset=0, detail="value")]
        return PartitionContent(
            topic=item.topic,
            partition=item.partition,
            source_records=5,
            target_records=5,
            compared=5 - len(differences),
            difference_count=len(differences),
            differences=differences,
        )
