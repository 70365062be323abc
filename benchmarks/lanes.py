"""``python -m benchmarks.lanes``: planning and lanes for 10,000 partitions, with simulated metadata.

The product's own plan phase looks at clusters that are made up: topics with configs, sizes, offsets, batch headers,
groups. Prints seconds and peak memory of each step; ``build/bench-lanes/summary.json``.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from airflow_provider_kafka_migration.documents.copy import (
    CopyJob,
    CopyLane,
    CopyPartition,
    PartitionResult,
    ProducerIds,
)
from airflow_provider_kafka_migration.documents.plan import ClusterFacts, Plan
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.kafka.admin.access import AclListing
from airflow_provider_kafka_migration.kafka.admin.cluster import LogDir
from airflow_provider_kafka_migration.kafka.admin.groups import GroupListing, GroupOffset, GroupOffsets
from airflow_provider_kafka_migration.kafka.admin.topics import (
    UNKNOWN_TOPIC_OR_PARTITION,
    Configs,
    ConfigSource,
    ConfigValue,
    PartitionFacts,
    TopicFacts,
)
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.kafka.batches.header import HEAD
from airflow_provider_kafka_migration.kafka.fetch import FetchedPartition, FetchRange
from airflow_provider_kafka_migration.lanes.assignment import add_to_lanes
from airflow_provider_kafka_migration.lanes.job_progress import JobProgress
from airflow_provider_kafka_migration.planning.make import make_plan
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.storage.local import LocalStore
from benchmarks.peers.base import ROOT
from benchmarks.run import write_json

TopicPartition = tuple[str, int]
T = TypeVar("T")

PARTITIONS_PER_TOPIC = 20
GROUPS = 200
BROKERS = (1, 2, 3)
AIM_SECONDS, AIM_MIB = 60.0, 1024.0


@dataclass
class FakeWire:
    """Offsets and batch headers of made-up logs."""

    sizes: dict[TopicPartition, int]

    def list_offsets(self, keys: Iterable[TopicPartition], which: str) -> dict[TopicPartition, int]:
        return {key: 0 if which == "earliest" else self.sizes[key] // 300 for key in keys}

    def fetch_once(self, ranges: Sequence[FetchRange], **_: Any) -> Iterator[FetchedPartition]:
        for item in ranges:
            end = self.sizes[item.topic, item.partition] // 300
            header = HEAD.pack(item.offset, 500, 0, 2, 0, 3, 9, 0, 0, -1, -1, -1, 10)
            yield FetchedPartition(item.topic, item.partition, 0, end, end, 0, [], memoryview(header))


@dataclass
class FakeAdmin:
    """A cluster that has only what it is told."""

    topics: dict[str, TopicFacts]
    sizes: dict[TopicPartition, int]
    version: str

    def facts(self) -> ClusterFacts:
        mode: Any = "zookeeper" if self.version.startswith("3") else "kraft"
        return ClusterFacts(
            cluster_id=f"id-{self.version}", kafka_version=self.version, mode=mode, brokers=list(BROKERS)
        )

    def describe_topics(self, names: Sequence[str] | None = None, **_: Any) -> dict[str, TopicFacts]:
        error = ItemError(UNKNOWN_TOPIC_OR_PARTITION, "not there")
        wanted = sorted(self.topics) if names is None else names
        return {name: self.topics.get(name, TopicFacts(name, error=error)) for name in wanted}

    def topic_configs(self, names: Sequence[str]) -> dict[str, Configs]:
        return {name: _configs(name) for name in names}

    def new_topic_configs(self, name: str) -> Configs:
        return _configs(name)

    def broker_configs(self, broker: int) -> Configs:
        return Configs(str(broker))

    def log_dirs(self, **_: Any) -> list[LogDir]:
        return [LogDir(1, "/data", -1, -1, dict(self.sizes))]

    def producers(self, keys: Iterable[TopicPartition]) -> dict[TopicPartition, Any]:
        return {}

    def list_groups(self) -> dict[str, GroupListing]:
        return {
            f"group-{n:03d}": GroupListing(f"group-{n:03d}", "classic", "Empty", "consumer", 1) for n in range(GROUPS)
        }

    def groups_offsets(self, names: Sequence[str], **_: Any) -> dict[str, GroupOffsets]:
        keys = sorted(self.sizes)
        each = max(1, len(keys) // GROUPS)
        return {
            name: GroupOffsets(name, {key: GroupOffset(5) for key in keys[index * each : (index + 1) * each]})
            for index, name in enumerate(names)
        }

    def describe_acls(self) -> AclListing:
        return AclListing(authorizer=True)

    def scram_users(self) -> list[Any]:
        return []

    def quotas(self) -> list[Any]:
        return []

    def groups_with_configs(self) -> list[str]:
        return []


@dataclass
class FakeCluster:
    """Both together."""

    admin: FakeAdmin
    wire: FakeWire
    cluster_id: str = ""


def _configs(name: str) -> Configs:
    """As many as a broker tells of a topic, three of them the topic's own."""
    values = {f"some.config.{n:02d}": ConfigValue(f"some.config.{n:02d}", "1", ConfigSource.DEFAULT) for n in range(28)}
    own = {"cleanup.policy": "delete", "retention.ms": "86400000", "max.message.bytes": "1048588"}
    values |= {key: ConfigValue(key, value, ConfigSource.DYNAMIC_TOPIC) for key, value in own.items()}
    return Configs(name, values)


def simulated(partitions: int, seed: int = 3) -> tuple[FakeCluster, FakeCluster]:
    """A source with so many partitions, of very different sizes, and an empty target."""
    rng = random.Random(seed)
    topics: dict[str, TopicFacts] = {}
    sizes: dict[TopicPartition, int] = {}
    for number in range(-(-partitions // PARTITIONS_PER_TOPIC)):
        name = f"topic-{number:04d}"
        count = min(PARTITIONS_PER_TOPIC, partitions - number * PARTITIONS_PER_TOPIC)
        parts = tuple(PartitionFacts(n, 1 + n % 3, BROKERS, BROKERS) for n in range(count))
        topics[name] = TopicFacts(name, f"00000000-0000-0000-0000-{number:012d}", False, parts)
        sizes |= {(name, n): int(rng.paretovariate(0.8) * 1_000_000) for n in range(count)}
    source = FakeCluster(FakeAdmin(topics, sizes, "3.9.1"), FakeWire(sizes))
    return source, FakeCluster(FakeAdmin({}, {}, "4.1.1"), FakeWire({}))


def context_of(folder: Path, partitions: int, lanes: int) -> PhaseContext:
    """A migration of all of it."""
    spec = parse_spec(
        {
            "migration_id": "bench-lanes",
            "source": {"conn_id": "env:S"},
            "target": {"conn_id": "env:T"},
            "storage": {"journal": (folder / "store").as_uri()},
            "topics": {"include": ["topic-.*"]},
            "seed": {"lanes": lanes},
            "evidence": {"signing_key": "env:K"},
        }
    )
    source, target = simulated(partitions)
    store = LocalStore(folder / "store")
    owner = Owner("cli", "bench", "bench")
    journal = Journal.create_or_open(store, spec.migration_id, Fingerprint("source", "target"), owner=owner)
    return PhaseContext(
        spec=spec,
        journal=journal,
        source=source,  # type: ignore[arg-type]
        target=target,  # type: ignore[arg-type]
        journal_store=store,
        archive_store=store,
        evidence_store=store,
        resolver=Resolver(),
    )


def job_of(plan: Plan) -> CopyJob:
    """The seed's job document for a plan."""
    specs = {
        (topic.name, item.partition): CopyPartition.of_plan(topic, item)
        for topic in plan.topics
        for item in topic.partitions
    }
    lanes = [
        CopyLane(
            lane=lane.lane, transactional_id=f"lane-{lane.lane}", partitions=[specs[key] for key in lane.partitions]
        )
        for lane in plan.lanes
    ]
    ids = ProducerIds(data_producer_id=1, data_producer_epoch=0, filler_producer_id=2, filler_producer_epoch=0)
    return CopyJob(
        migration_id=plan.migration_id,
        name="seed",
        generation=1,
        journal_location="file:///j",
        archive_location="file:///a",
        via="direct",
        producers=ids,
        lanes=lanes,
    )


def coordinate(job: CopyJob, folder: Path) -> dict[str, object]:
    """Results of a slice of every lane go through the driver's coordinator; the progress document."""
    coordinator = JobProgress(job, LocalStore(folder))
    for lane in job.lanes:
        coordinator.record(
            PartitionResult(
                lane=lane.lane,
                topic=spec.topic,
                partition=spec.partition,
                source_offset=1,
                target_offset=1,
                records=1,
                done=True,
                verdict=spec.verdict,
            )
            for spec in lane.partitions
        )
    return coordinator.check()


def balance(plan: Plan) -> float:
    """The heaviest lane by the average one; one huge partition cannot be shared out."""
    sizes = [lane.size_bytes for lane in plan.lanes]
    return max(sizes) / (sum(sizes) / len(sizes))


class Steps:
    """Times steps, and looks at the peak of this process' memory after each."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def __call__(self, name: str, work: Callable[[], T]) -> T:
        begun = time.perf_counter()
        found = work()
        seconds = time.perf_counter() - begun
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        self.rows.append({"step": name, "seconds": round(seconds, 3), "peak_mib": round(peak_mib, 1)})
        print(f"{name:<44} {seconds:7.2f} s   peak {peak_mib:6.0f} MiB", flush=True)
        return found


def run(partitions: int, lanes: int, folder: Path) -> dict[str, Any]:
    """All steps; the summary."""
    step = Steps()
    context = step("simulate the clusters", lambda: context_of(folder, partitions, lanes))
    plan = step("plan", lambda: make_plan(context))
    again = step("plan again", lambda: make_plan(context))
    data = step("plan.json", plan.canonical)
    step("read plan.json", lambda: Plan.parse(data))
    added = {(f"new-{number}", 0): 1_000_000 for number in range(partitions // 20)}
    step("new partitions join lanes", lambda: add_to_lanes(plan.lanes, added))
    job = step("job of the seed", lambda: job_of(plan))
    text = step("job.json", job.canonical)
    step("read job.json", lambda: CopyJob.parse(text))
    step("results of all partitions", lambda: coordinate(job, folder / "progress"))
    return {
        "version": 1,
        "partitions": sum(len(topic.partitions) for topic in plan.topics),
        "lanes": len(plan.lanes),
        "equal_plans": plan.canonical() == again.canonical(),
        "heaviest_lane_vs_average": round(balance(plan), 3),
        "plan_bytes": len(data),
        "seconds": round(sum(row["seconds"] for row in step.rows), 2),
        "peak_mib": max(row["peak_mib"] for row in step.rows),
        "steps": step.rows,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 1 if an aim is missed, or two plans differ."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lanes", description=__doc__)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--lanes", type=int, default=32)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="kafka-migration-lanes-") as name:
        summary = run(options.partitions, options.lanes, Path(name))
    write_json(ROOT / "build" / "bench-lanes" / "summary.json", summary)
    print(
        f"{summary['partitions']:,} partitions: {summary['seconds']} s (aim {AIM_SECONDS:g}), "
        f"{summary['peak_mib']:.0f} MiB (aim {AIM_MIB:g})"
    )
    met = summary["seconds"] < AIM_SECONDS and summary["peak_mib"] < AIM_MIB and summary["equal_plans"]
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
