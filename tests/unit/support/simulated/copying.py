"""Copies topics from one simulated cluster to another with whole slices of a lane, as the data plane runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.copy.holes import fill_log_start
from airflow_provider_kafka_migration.documents.copy import (
    CopyJob,
    CopyLane,
    CopyPartition,
    PartitionResult,
    ProducerIds,
)
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.kafka.batches.api import Record
from airflow_provider_kafka_migration.lanes.slices import run_slice
from airflow_provider_kafka_migration.offset_map.runs import PartitionMap
from airflow_provider_kafka_migration.offset_map.store import RunLog, base_run
from airflow_provider_kafka_migration.offset_map.transactional import MapPages, group_name, read_position
from airflow_provider_kafka_migration.storage.base import ObjectStore
from simulated.cluster import SimulatedCluster
from simulated.partition_log import PartitionLog

MIGRATION = "simulated"
JobName = Literal["seed", "tail", "backup", "restore"]


@dataclass
class SimulatedCopy:
    """One lane that copies all topics of the source.

    :param verdicts: by topic; default: equal.
    :param target_starts: by topic: where a shifted copy begins on the target; default: its log end.
    :param adopted: by topic: (source offset, target offset) of the boundary behind which the copy begins.
    :param adopted_fields: laid over each adopted partition.
    :param job_fields: laid over the job document.
    """

    folder: Path
    source: SimulatedCluster
    target: SimulatedCluster
    via: Literal["s3", "direct"] = "direct"
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    target_starts: dict[str, int] = field(default_factory=dict)
    adopted: dict[str, tuple[int, int]] = field(default_factory=dict)
    adopted_fields: dict[str, Any] = field(default_factory=dict)
    job_fields: dict[str, Any] = field(default_factory=dict)
    target_limits: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.references = {"source": self.source.settings, "target": self.target.settings, "storage": None}
        for name, topic in self.source.topics.items():
            if name not in self.target.topics:
                limit = self.target_limits.get(name, 20_000_000)
                self.target.create(name, len(topic.logs), max_batch_bytes=limit)
        ids = self.target.coordinators
        data, filler = ids.init(None), ids.init(None)
        self.producers = ProducerIds(
            data_producer_id=data[0],
            data_producer_epoch=data[1] + bool(self.adopted),
            filler_producer_id=filler[0],
            filler_producer_epoch=filler[1],
        )
        self.partitions = [
            self._partition(name, number, log)
            for name, topic in sorted(self.source.topics.items())
            for number, log in enumerate(topic.logs)
        ]
        with self.clients() as clients:
            wire = clients.wire("target")
            for spec in self.partitions:
                if spec.verdict is Verdict.EQUAL and spec.target_start_offset and not spec.adopted:
                    fill_log_start(wire, spec.target_topic, spec.partition, spec.target_start_offset, self.producers)
                    wire.delete_records({(spec.target_topic, spec.partition): spec.target_start_offset})

    def _partition(self, name: str, number: int, log: PartitionLog) -> CopyPartition:
        verdict = self.verdicts.get(name, Verdict.EQUAL)
        there = self.target.log((name, number))
        start = log.log_start if verdict is Verdict.EQUAL else self.target_starts.get(name, there.log_end)
        source_start = log.log_start
        if name in self.adopted:
            source_start, start = self.adopted[name]
        return CopyPartition(
            topic=name,
            target_topic=name,
            partition=number,
            topic_id=str(self.source.topics[name].topic_id),
            source_start_offset=source_start,
            target_start_offset=start,
            verdict=verdict,
            **({"adopted": True, **self.adopted_fields} if name in self.adopted else {}),
        )

    def clients(self) -> Clients:
        """New clients, as a copier process opens them."""
        return Clients(self.references)

    @property
    def store(self) -> ObjectStore:
        """The store of journal, map and leases."""
        return self.clients().store(f"file://{self.folder}/journal")

    @property
    def archive(self) -> ObjectStore:
        """The store of segments."""
        return self.clients().store(f"file://{self.folder}/archive")

    def job(self, name: JobName = "seed", *, until: Mapping[str, int] | None = None, **fields: Any) -> CopyJob:
        """A job up to the source's last stable offsets, or up to ``until`` by topic."""
        ends = until or {}
        specs = [
            spec.model_copy(update={"until_offset": ends.get(spec.topic, self.source.log(spec.key).last_stable_offset)})
            for spec in self.partitions
        ]
        return CopyJob(
            **{
                "migration_id": MIGRATION,
                "name": name,
                "generation": 1,
                "journal_location": f"file://{self.folder}/journal",
                "archive_location": f"file://{self.folder}/archive",
                "via": self.via,
                "producers": self.producers,
                "lanes": [CopyLane(lane=0, transactional_id=f"{MIGRATION}.lane-0", partitions=specs)],
                "slice_seconds": 8,
                **self.job_fields,
                **fields,
            }
        )

    def slice(
        self,
        job: CopyJob | None = None,
        *,
        stop: Callable[[], bool] | None = None,
        seconds: float | None = None,
        clients: Clients | None = None,
    ) -> dict[str, PartitionResult]:
        """Run one slice of the lane as a new process would; return the results of partition 0 by topic."""
        job = job or self.job()
        with clients or self.clients() as opened:
            results = run_slice(job, job.lanes[0], clients=opened, stop=stop, slice_seconds=seconds)
        return {result.topic: result for result in results if result.partition == 0}

    # -- what was copied ---------------------------------------------------------------------------------------------

    def assert_equal(self, topic: str, *, until: int | None = None) -> None:
        """Assert that consumers see on the target, at each offset, what they see on the source."""
        source, target = self.source.log((topic, 0)), self.target.log((topic, 0))
        end = source.last_stable_offset if until is None else until
        assert visible(target) == {offset: record for offset, record in visible(source).items() if offset < end}
        assert target.log_end == end

    def assert_in_order(self, topic: str) -> None:
        """Assert that the target has the source's records in order, each once, at whatever offsets."""
        ours = [record._replace(offset=0) for record in visible(self.target.log((topic, 0))).values()]
        theirs = [record._replace(offset=0) for record in visible(self.source.log((topic, 0))).values()]
        assert ours == theirs

    def assert_mapped(self, topic: str) -> None:
        """Assert that the stored map leads each record of the target to its record of the source."""
        source, target = visible(self.source.log((topic, 0))), visible(self.target.log((topic, 0)))
        offset_map = self.offset_map(topic)
        assert {offset_map.source_of(offset): record._replace(offset=0) for offset, record in target.items()} == {
            offset: record._replace(offset=0) for offset, record in source.items()
        }

    def offset_map(self, topic: str) -> PartitionMap:
        """The map of partition 0 as readers find it."""
        spec = next(spec for spec in self.partitions if spec.key == (topic, 0))
        if spec.verdict is not Verdict.TRANSACTIONAL:
            return RunLog(self.store, MIGRATION, *spec.key, base_run(spec), topic_id=spec.topic_id).load()
        found = self.target.coordinators.offsets[(group_name(MIGRATION), (topic, 0))]
        return MapPages(self.store, MIGRATION, topic, 0).load(read_position(found.offset, found.metadata))


def visible(log: PartitionLog) -> dict[int, Record]:
    """What a read_committed consumer sees of a log, by offset."""
    return log.content()
