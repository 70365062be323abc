"""Copies through an S3 that misbehaves, and a source that is read once."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from airflow_provider_kafka_migration.copy.archive import build_manifest
from airflow_provider_kafka_migration.errors import CopyFailed, CopyStalled
from airflow_provider_kafka_migration.lanes import job_progress
from harness.brokers import KafkaCluster
from harness.faults.s3_faults import Fault, FaultyS3
from harness.load import load, tiny_topics
from harness.s3 import S3Server
from tests.integration.copy.conftest import MakeCopying
from tests.integration.copy.copying import Copying

pytestmark = pytest.mark.integration

PASSING = (Fault.SLOW_DOWN, Fault.INTERNAL_ERROR, Fault.DROPPED, Fault.ANSWER_LOST, Fault.ANSWER_TORN)


@pytest.fixture
def front(s3_server: S3Server) -> Iterator[FaultyS3]:
    """A front before the S3 server with clear sky; the seed of its dice is printed."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    with FaultyS3(s3_server.endpoint_url, s3_server.config(), seed=seed) as found:
        yield found


@pytest.fixture
def through_s3(
    copying: MakeCopying, source_cluster: KafkaCluster, target_cluster: KafkaCluster, front: FaultyS3
) -> Callable[[list[str]], Copying]:
    """Makes a copy whose journal and archive are in S3, behind the front."""

    def make(topics: list[str], **fields: object) -> Copying:
        references = {
            "source": {"bootstrap.servers": source_cluster.bootstrap},
            "target": {"bootstrap.servers": target_cluster.bootstrap},
            "storage": front.config(),
        }
        job_fields = {"segment_max_bytes": 5_000, **fields}
        bucket = f"s3://migration/{topics[0].lower()}"
        return copying(topics, via="s3", references=references, location=bucket, lanes=2, job_fields=job_fields)

    return make


@pytest.mark.parametrize(
    ("rate", "faults"),
    [
        pytest.param(0.3, (Fault.SLOW_DOWN,), id="throttled", marks=pytest.mark.soak),
        pytest.param(0.15, PASSING, id="any"),
    ],
)
def test_a_copy_in_bad_weather_ends_equal(
    through_s3: Callable[..., Copying],
    source_cluster: KafkaCluster,
    front: FaultyS3,
    unique_name: Callable[[str], str],
    rate: float,
    faults: tuple[Fault, ...],
) -> None:
    topics = tiny_topics(unique_name("k") + ".")
    load(source_cluster, topics, seed=21)
    copy = through_s3([topic.name for topic in topics])
    front.weather(*faults, rate=rate)
    progress = copy.run()
    assert progress["partitions_done"] == sum(topic.partitions for topic in topics)
    assert front.counts.faults.total() > 8
    front.weather()
    copy.compare().check()
    # What counts is whole, and covers everything once.
    manifest = build_manifest(copy.clients.store(copy.archive), copy.migration_id)
    ends = copy.stable_ends()
    assert {(p.topic, p.partition): p.until_offset for p in manifest.partitions} == {
        key: end for key, end in ends.items() if end > copy.partitions[key].source_start_offset
    }
    assert all(not partition.gaps for partition in manifest.partitions)


def test_a_throttled_copy_stops_as_transient_and_goes_on_later(
    through_s3: Callable[..., Copying],
    source_cluster: KafkaCluster,
    front: FaultyS3,
    unique_name: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_progress, "MAX_TRANSIENT_ROUNDS", 1)
    monkeypatch.setattr("airflow_provider_kafka_migration.copy.recovery.PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr("airflow_provider_kafka_migration.storage.s3.MAX_ATTEMPTS", 3)
    topics = tiny_topics(unique_name("k") + ".")[:2]
    load(source_cluster, topics, seed=22)
    copy = through_s3([topic.name for topic in topics])
    front.weather(Fault.SLOW_DOWN, path="/segments/", methods=frozenset({"PUT"}))
    with pytest.raises(CopyStalled, match=r"SlowDown") as caught:
        copy.run()
    assert "ask less of the bucket" in caught.value.next_step
    assert copy.clients.wire("target").list_offsets(list(copy.partitions), "log_end") == {
        key: item.target_start_offset for key, item in copy.partitions.items()
    }, "nothing reaches the target before it is durable"
    front.weather(Fault.REFUSED, path="/segments/", methods=frozenset({"PUT"}))
    with pytest.raises(CopyFailed, match=r"AccessDenied"):
        copy.run()
    front.weather()
    copy.run()
    copy.compare().check()


def test_a_resumed_seed_reads_segments_and_the_source_once(
    through_s3: Callable[..., Copying], source_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    """All is archived, the target has lost its copy: nothing of it is read from the source again."""
    topic = tiny_topics(unique_name("k") + ".")[0]
    load(source_cluster, [topic], seed=23)
    copy = through_s3([topic.name])
    first = copy.run()
    sizes = {
        (p.topic, p.partition): p.size_bytes
        for p in build_manifest(copy.clients.store(copy.archive), copy.migration_id).partitions
    }
    assert int(first["source_bytes"]) >= sum(sizes.values()) > 0
    # The target's topic is made anew, and with it all that was copied is gone.
    copy.target.delete_topics([topic.name])
    again = Copying(
        copy.source, copy.target, copy.folder, copy.topics, copy.migration_id, lanes=2, via="s3",
        references=copy.references, location=copy.location, job_fields=copy.job_fields,
    )  # fmt: skip
    second = again.run()
    assert second["records"] == first["records"]
    assert second["source_bytes"] == 0
    again.compare().check()
