"""Copy jobs for our data plane made by hand: no phases, no Airflow; the topics are there already."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from airflow_provider_kafka_migration.copy.clients import Clients, write_references
from airflow_provider_kafka_migration.documents.copy import (
    CopyJob,
    CopyLane,
    CopyPartition,
    ProducerIds,
)
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.documents.schemas import SchemaIdMap, SchemaIdSettings, TopicIdSettings
from airflow_provider_kafka_migration.lanes.assignment import assign_lanes
from benchmarks.peers.base import Task

MIGRATION_ID = "bench"
_ID_MAP = f"{MIGRATION_ID}/schemas/id-map.json"
#: Each id of the source is this much higher on the target.
_ID_SHIFT = 100_000
_MAX_ID = 1000


@dataclass(frozen=True)
class JobFiles:
    """A job written to disk, as arguments for a process that runs it."""

    references: str
    journal: str
    key: str


def write_job(
    task: Task,
    *,
    via: Literal["s3", "direct"],
    lanes: int,
    verdict: Verdict = Verdict.EQUAL,
    archive: str | None = None,
    storage: dict[str, Any] | None = None,
    rewrites_ids: bool = False,
    **fields: Any,
) -> JobFiles:
    """Write a seed (or, for a task without an end, a tail) into ``task.folder``.

    :param archive: location of the segments; None: a folder beside the journal.
    :param storage: S3 settings, where ``archive`` is in S3.
    :param rewrites_ids: values begin with schema ids, which are others on the target.
    :param fields: of the job, in place of the product's defaults.
    """
    references = {
        "source": {"bootstrap.servers": task.source},
        "target": {"bootstrap.servers": task.target},
        "storage": storage,
    }
    name: Literal["seed", "tail"] = "tail" if task.is_tail else "seed"
    journal = f"file://{task.folder}/journal"
    if rewrites_ids:
        topics = {task.topic: TopicIdSettings(parts="value")}
        fields["schema_ids"] = SchemaIdSettings(id_map_key=_ID_MAP, topics=topics)
    with Clients(references) as clients:
        job = CopyJob(
            migration_id=MIGRATION_ID,
            name=name,
            generation=1,
            journal_location=journal,
            archive_location=archive or f"file://{task.folder}/archive",
            via=via,
            producers=_producers(clients),
            # All partitions at a time, as every other copier does; the product's default is gentle to the source (4).
            max_concurrent_partitions=max(4, task.partitions),
            lanes=_lanes(clients, task, lanes, verdict),
            **fields,
        )
        clients.store(journal).put(f"{MIGRATION_ID}/jobs/{name}.json", job.canonical())
        if rewrites_ids:
            ids = [(".", number, number + _ID_SHIFT) for number in range(1, _MAX_ID + 1)]
            document = SchemaIdMap(migration_id=MIGRATION_ID, id_mode="translate", ids=ids)
            clients.store(journal).put(_ID_MAP, document.canonical())
    path = task.folder / "references.json"
    write_references(str(path), references)
    return JobFiles(str(path), journal, f"{MIGRATION_ID}/jobs/{name}.json")


def _producers(clients: Clients) -> ProducerIds:
    wire = clients.wire("target")
    data, filler = wire.init_producer_id(), wire.init_producer_id()
    return ProducerIds(
        data_producer_id=data[0],
        data_producer_epoch=data[1],
        filler_producer_id=filler[0],
        filler_producer_epoch=filler[1],
    )


def _lanes(clients: Clients, task: Task, lanes: int, verdict: Verdict) -> list[CopyLane]:
    topic_id = clients.wire("source").metadata([task.topic])[task.topic].topic_id
    sizes = {(task.topic, number): task.until.get(number, 0) for number in range(task.partitions)}
    return [
        CopyLane(
            lane=lane.lane,
            transactional_id=f"{MIGRATION_ID}.{task.target_topic}.lane-{lane.lane}",
            partitions=[
                CopyPartition(
                    topic=topic,
                    target_topic=task.target_topic,
                    partition=number,
                    topic_id=topic_id,
                    source_start_offset=0,
                    target_start_offset=0,
                    verdict=verdict,
                    until_offset=task.until.get(number),
                )
                for topic, number in lane.partitions
            ],
        )
        for lane in assign_lanes(sizes, lanes)
    ]


def folder_of(location: str) -> Path:
    """The folder of a ``file://`` location."""
    return Path(location.removeprefix("file://"))
