"""Copies topics between two test clusters with the data plane alone: hand-made jobs, no phases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from airflow_provider_kafka_migration.copy.clients import Clients, write_references
from airflow_provider_kafka_migration.copy.holes import fill_log_start
from airflow_provider_kafka_migration.documents.copy import (
    CopyJob,
    CopyLane,
    CopyPartition,
    PartitionResult,
    ProducerIds,
)
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.lanes.job_progress import LocalRunner
from harness.brokers import KafkaCluster
from harness.compare import Comparison, compare
from harness.copiers import copy_worker

LONG_MAX = str(2**63 - 1)
COPY_TIME_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.after.max.ms": LONG_MAX,
    "message.timestamp.before.max.ms": LONG_MAX,
    "max.message.bytes": "20000000",
}


class Worker(subprocess.Popen[str]):
    """A copier process whose output goes to files: a pipe without a reader fills up, and the copier hangs."""

    def __init__(self, arguments: list[str]) -> None:
        # Closed with the process object.
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        super().__init__(arguments, stdout=self._out, stderr=self._err, text=True, env=environment)

    @property
    def has_begun(self) -> bool:
        """Whether it has done its imports and copies."""
        return copy_worker.BEGUN in _whole(self._err)

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end; return its output on stdout and on stderr."""
        self.wait(timeout)
        return _whole(self._out), _whole(self._err)

    def tail(self) -> str:
        """The last part of its output on stderr so far."""
        return _whole(self._err)[-3000:]


def _whole(file: IO[bytes]) -> str:
    # The process writes at the position of the file description that both share, so reading must not move it.
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")


@dataclass
class Copying:
    """A copy of some topics: target topics, producer ids, a job document and its copiers."""

    source: KafkaCluster
    target: KafkaCluster
    folder: Path
    topics: list[str]
    migration_id: str
    lanes: int = 1
    via: Literal["s3", "direct"] = "direct"
    target_config: dict[str, str] = field(default_factory=dict)
    #: by topic; overrides ``target_config``
    topic_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    verdicts: dict[TopicPartition, Verdict] = field(default_factory=dict)
    job_fields: dict[str, Any] = field(default_factory=dict)
    references: dict[str, Any] | None = None
    #: of journal and archive; a new folder if None
    location: str | None = None
    replication_factor: int = 1
    #: begin behind what is on both clusters now, as a migration that adopts the end of another one
    adopted: bool = False

    def __post_init__(self) -> None:
        self.references = self.references or {
            "source": {"bootstrap.servers": self.source.bootstrap},
            "target": {"bootstrap.servers": self.target.bootstrap},
            "storage": None,
        }
        self.clients = Clients(self.references)
        root = self.location or f"file://{self.folder}"
        self.journal, self.archive = f"{root}/journal", f"{root}/archive"
        self.references_file = self.folder / "references.json"
        self.folder.mkdir(parents=True, exist_ok=True)
        write_references(str(self.references_file), self.references)
        if not self.adopted:
            self._create_topics()
        wire = self.clients.wire("target")
        data, filler = wire.init_producer_id(), wire.init_producer_id()
        self.producers = ProducerIds(
            data_producer_id=data[0],
            data_producer_epoch=data[1] + self.adopted,
            filler_producer_id=filler[0],
            filler_producer_epoch=filler[1],
        )
        self.partitions = self._partitions()
        self._fill_starts()

    def _create_topics(self) -> None:
        source = self.clients.wire("source")
        for name, item in source.metadata(self.topics).items():
            config = {**COPY_TIME_CONFIG, **self.target_config, **self.topic_configs.get(name, {})}
            self.target.create_topic(name, len(item.leaders), replication_factor=self.replication_factor, config=config)

    def _partitions(self) -> dict[TopicPartition, CopyPartition]:
        source = self.clients.wire("source")
        found = source.metadata(self.topics)
        keys = [(name, number) for name, item in found.items() for number in item.leaders]
        starts = source.list_offsets(keys, "earliest")
        if self.adopted:
            starts = source.list_offsets(keys, "log_end")
        ends = self.clients.wire("target").list_offsets(keys, "log_end")
        partitions = {}
        for key in sorted(keys):
            verdict = self.verdicts.get(key, Verdict.EQUAL)
            partitions[key] = CopyPartition(
                topic=key[0],
                target_topic=key[0],
                partition=key[1],
                topic_id=found[key[0]].topic_id,
                source_start_offset=starts[key],
                target_start_offset=ends[key] if self.adopted else (starts[key] if verdict is Verdict.EQUAL else 0),
                verdict=verdict,
                adopted=self.adopted,
            )
        return partitions

    def _fill_starts(self) -> None:
        wire = self.clients.wire("target")
        starts = {
            key: item.target_start_offset
            for key, item in self.partitions.items()
            if item.target_start_offset and not item.adopted
        }
        for key, start in starts.items():
            fill_log_start(wire, *key, start, self.producers)
        if starts:
            wire.delete_records(starts)

    def stable_ends(self) -> dict[TopicPartition, int]:
        """The source's current last stable offsets."""
        return self.clients.wire("source").list_offsets(list(self.partitions), "stable")

    def write_job(
        self,
        name: Literal["seed", "tail", "backup", "restore"] = "seed",
        *,
        until: Mapping[TopicPartition, int] | None = None,
        **fields: Any,
    ) -> CopyJob:
        """Write the job document, up to ``until`` or the source's current ends (seed), or without an end (tail)."""
        ends = until or (self.stable_ends() if name == "seed" else {})
        specs = [
            item.model_copy(update={"until_offset": ends.get(key)}) for key, item in sorted(self.partitions.items())
        ]
        lanes = [
            CopyLane(
                lane=lane, transactional_id=f"{self.migration_id}.lane-{lane}", partitions=specs[lane :: self.lanes]
            )
            for lane in range(self.lanes)
        ]
        values: dict[str, Any] = {
            "via": self.via,
            "slice_seconds": 20,
            "max_concurrent_partitions": 64,
            **self.job_fields,
            **fields,
        }
        job = CopyJob(
            migration_id=self.migration_id,
            name=name,
            generation=1,
            journal_location=self.journal,
            archive_location=self.archive,
            producers=self.producers,
            lanes=[lane for lane in lanes if lane.partitions],
            **values,
        )
        self.clients.store(self.journal).put(self.job_key(name), job.canonical())
        return job

    def job_key(self, name: str) -> str:
        """Key of a job document."""
        return f"{self.migration_id}/jobs/{name}.json"

    def run(self, **fields: Any) -> dict[str, Any]:
        """Copy up to the current ends in this process; return the progress document."""
        return LocalRunner(Clients(self.references or {}), threads=self.lanes).run(self.write_job(**fields))

    def one_sided(self, side: Literal["source", "target"]) -> dict[str, Any]:
        """References for a process with access to only one of the clusters, and to the storage."""
        references = self.references or {}
        return {side: references[side], "storage": references["storage"]}

    def worker(
        self, lane: int = 0, name: str = "seed", *options: str, side: Literal["source", "target"] | None = None
    ) -> Worker:
        """Start a separate copier process.

        :param side: the only cluster that it can access.
        """
        file = self.references_file
        if side is not None:
            file = self.folder / f"references-{side}.json"
            write_references(str(file), self.one_sided(side))
        arguments = [str(file), self.journal, self.job_key(name), str(lane), *options]
        return Worker([sys.executable, "-m", "harness.copiers.copy_worker", *arguments])

    def compare(self, **options: Any) -> Comparison:
        """Independent comparison, record by record and offset by offset."""
        return compare(
            {"bootstrap.servers": self.source.bootstrap},
            {"bootstrap.servers": self.target.bootstrap},
            self.topics,
            **options,
        )


def wait_begun(worker: Worker) -> None:
    """Wait until a worker copies: before that it only imports for about a second, and a fault would hit nothing."""

    def has_begun() -> bool:
        ended = worker.poll() is not None
        assert worker.has_begun or not ended, worker.communicate()[1]
        return worker.has_begun

    wait_for(has_begun, 120, "the copier begins")


def results_of(output: str) -> list[PartitionResult]:
    """The last results that a worker has printed."""
    lines = [line for line in output.splitlines() if line.startswith("[")]
    return [PartitionResult.model_validate(item) for item in json.loads(lines[-1])] if lines else []


def wait_for(condition: Any, seconds: float, what: str) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.02)
