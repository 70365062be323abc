"""A partition with an offset layout and a map store, without brokers."""

from __future__ import annotations

from job_documents import job as job_document
from source_logs import record

from airflow_provider_kafka_migration.copy.layout import OffsetLayout
from airflow_provider_kafka_migration.copy.partition import PartitionCopy, ResumePoint
from airflow_provider_kafka_migration.copy.transform import BatchTransformer
from airflow_provider_kafka_migration.documents.copy import CopyPartition
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.kafka.batches.api import encode_batch, read_batches
from airflow_provider_kafka_migration.offset_map.store import LaneMaps
from airflow_provider_kafka_migration.storage.base import ObjectStore


class World:
    """A partition whose steps are placed and confirmed; no broker."""

    def __init__(self, store: ObjectStore, verdict: Verdict, **limits: object) -> None:
        job = job_document([], "seed", via="direct", **limits)
        spec = CopyPartition(
            topic="t",
            target_topic="t",
            partition=0,
            source_start_offset=0,
            target_start_offset=0,
            verdict=verdict,
        )
        self.copy = PartitionCopy(spec, 0)
        self.maps = LaneMaps(store, "m1")
        self.maps.load(spec, 0)
        self.copy.resume(ResumePoint(0, 0, 0, 0))
        self.placer = OffsetLayout(job, self.maps)
        self.decider = BatchTransformer(0, packs=not self.copy.write.fills_holes)

    def place(self, *batches: list[int]) -> None:
        """Batches of records with these source offsets."""
        data = b"".join(encode_batch([record(offset) for offset in offsets]) for offsets in batches)
        self.decider.packs = not self.copy.write.fills_holes
        self.placer.place(self.copy, list(self.decider.decide(read_batches(data)[0])))

    def runs(self) -> list[tuple[int, int]]:
        return [(run.source_start, run.target_start) for run in self.maps.maps["t", 0].runs()]
