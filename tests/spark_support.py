"""Jobs, pointers and coordinators for tests of the drivers; nothing in here talks to a broker."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_kafka_migration.documents.copy import CopyJob, CopyLane, CopyPartition, ProducerIds
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.lanes.job_progress import JobProgress
from airflow_provider_kafka_migration.spark.worker import JobPointer, JobReferences
from airflow_provider_kafka_migration.storage.local import LocalStore

MIGRATION_ID = "orders-move"


@dataclass
class StoredJob:
    """A job document in a local store, and what points to it."""

    job: CopyJob
    pointer: JobPointer
    store: LocalStore
    folder: Path

    def coordinator(self) -> JobProgress:
        """A new coordinator."""
        return JobProgress(self.job, self.store)


def references_file(folder: Path, content: object) -> Path:
    """A references file that only its owner may read."""
    path = folder / "references.json"
    path.write_text(json.dumps(content))
    path.chmod(0o600)
    return path


def make_job(name: str, location: str, lanes: int, partitions: int, until_offset: int | None) -> CopyJob:
    """Lanes 0.. with ``partitions`` partitions each of the topic ``orders``."""
    return CopyJob.model_validate(
        {
            "migration_id": MIGRATION_ID,
            "name": name,
            "generation": 1,
            "journal_location": location,
            "archive_location": f"{location}/archive",
            "via": "direct",
            "producers": ProducerIds(
                data_producer_id=1, data_producer_epoch=0, filler_producer_id=2, filler_producer_epoch=0
            ),
            "lanes": [
                CopyLane(
                    lane=lane,
                    transactional_id=f"lane-{lane}",
                    partitions=[
                        CopyPartition(
                            topic="orders",
                            target_topic="orders",
                            partition=lane * partitions + number,
                            source_start_offset=0,
                            target_start_offset=0,
                            verdict=Verdict.EQUAL,
                            until_offset=until_offset,
                        )
                        for number in range(partitions)
                    ],
                )
                for lane in range(lanes)
            ],
            "stop_key": None if name == "seed" else f"{MIGRATION_ID}/control/tail-stop.json",
            "slice_seconds": 5,
        }
    )


def store_job(
    folder: Path, name: str = "seed", *, lanes: int = 3, partitions: int = 2, until_offset: int | None = 100
) -> StoredJob:
    """Write a job document and references, as a phase would."""
    store = LocalStore(folder / "store")
    job = make_job(name, store.uri, lanes, partitions, until_offset)
    key = f"{MIGRATION_ID}/jobs/{name}.json"
    store.put(key, job.canonical())
    references = references_file(folder, {"source": {"k": "source-secret"}, "target": {}, "storage": None})
    pointer = JobPointer(store.uri, key, JobReferences.open(str(references)))
    return StoredJob(job, pointer, store, folder)
