"""Seed, content check and tail of some small topics, however a runtime starts the mains."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_kafka_migration.compare.runner import ContentResults
from airflow_provider_kafka_migration.documents.copy import StopAt
from airflow_provider_kafka_migration.documents.proof import ContentJob
from harness.brokers import KafkaCluster
from harness.clients import LiveProducer
from harness.load import load, tiny_topics
from tests.integration.content.test_content_on_brokers import content_job
from tests.integration.copy.copying import Copying, wait_for
from tests.integration.spark.spark_runs import MainRun

#: (main, name of its job) -> its run
Start = Callable[[str, str], MainRun]


def run_three_mains(
    source: KafkaCluster, prefix: str, make: Callable[[list[str]], tuple[Copying, Start]], *, seed: int
) -> None:
    """Load topics, seed them, compare what was copied, follow a live producer until it stops, and compare again.

    :param make: topics -> their copy, and how to start a main for it.
    """
    topics = tiny_topics(prefix)
    load(source, topics, seed=seed)
    copy, start = make([topic.name for topic in topics])
    _seed(copy, start)
    _verify(copy, start)
    _tail(source, copy, start, {topic.name: list(range(topic.partitions)) for topic in topics[:2]})


def _ends_well(run: MainRun) -> None:
    assert run.wait() == 0, run.text()[-6000:]


def _seed(copy: Copying, start: Start) -> None:
    copy.write_job("seed")
    _ends_well(start("seed", "seed"))
    copy.compare().check()


def _verify(copy: Copying, start: Start) -> None:
    job = content_job(copy)
    store = copy.clients.store(copy.journal)
    store.put(copy.job_key("verify"), job.canonical())
    _ends_well(start("verify", "verify"))
    found = ContentResults(ContentJob.parse(job.canonical()), store).read_all()
    assert len(found) == len(copy.partitions)
    assert all(content.is_equal for content in found)


def _tail(source: KafkaCluster, copy: Copying, start: Start, places: dict[str, list[int]]) -> None:
    stop_key = f"{copy.migration_id}/control/tail-stop.json"
    with LiveProducer({"bootstrap.servers": source.bootstrap}, places, records_per_second=50) as producer:
        copy.write_job("tail", stop_key=stop_key, slice_seconds=3)
        run = start("tail", "tail")
        target = copy.clients.wire("target")

        def follows() -> bool:
            assert run.process.poll() is None, run.text()[-6000:]
            ends = target.list_offsets(list(copy.partitions), "latest")
            return max(end - ends[key] for key, end in copy.stable_ends().items()) < 20

        wait_for(follows, 200, "the tail follows")
        producer.freeze()
        offsets = {f"{topic}-{partition}": end for (topic, partition), end in copy.stable_ends().items()}
        stop = StopAt(migration_id=copy.migration_id, offsets=offsets)
        copy.clients.store(copy.journal).put(stop_key, stop.canonical())
        _ends_well(run)
    copy.compare().check()
