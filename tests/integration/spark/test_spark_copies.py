"""Seed, tail and content check as users run them: spark-submit, real brokers, kills at random moments."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable

import psutil
import pytest

from airflow_provider_kafka_migration.compare.proven import proven_prefix
from airflow_provider_kafka_migration.compare.runner import ContentResults
from airflow_provider_kafka_migration.copy.clients import write_references
from airflow_provider_kafka_migration.documents.copy import CopyJob, ProofSettings, StopAt, halves
from airflow_provider_kafka_migration.documents.proof import ContentJob, ProvenPartition
from harness.brokers import KafkaCluster
from harness.clients import LiveProducer
from harness.load import load, standard_topics, tiny_topics
from tests.integration.content.test_content_on_brokers import content_job
from tests.integration.copy.copying import Copying, wait_for
from tests.integration.spark.spark_runs import SparkRun, command_of

# A Spark application takes seconds to start, and a minute on a busy machine.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def slow(copy: Copying) -> dict[str, object]:
    """A limit that makes a seed last some seconds, so that there is something to kill."""
    return {"max_bytes_per_second": 60_000, "segment_max_bytes": 30_000, "slice_seconds": 4}


@pytest.mark.soak  # the whole migration of the e2e tests runs these three by spark-submit
def test_seed_tail_and_verify_by_spark_submit(
    copying: Callable[..., Copying],
    submit: Callable[..., SparkRun],
    source_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
) -> None:
    topics = tiny_topics(unique_name("s") + ".")
    load(source_cluster, topics, seed=31)
    copy = copying([topic.name for topic in topics], lanes=3)
    copy.write_job("seed")
    seed = submit(copy, "seed", "seed")
    assert seed.wait() == 0, seed.text()[-4000:]
    assert "source-secret" not in seed.text()
    copy.compare().check()

    job = content_job(copy)
    store = copy.clients.store(copy.journal)
    store.put(copy.job_key("verify"), job.canonical())
    verify = submit(copy, "verify", "verify")
    assert verify.wait() == 0, verify.text()[-4000:]
    found = ContentResults(ContentJob.parse(job.canonical()), store).read_all()
    assert len(found) == len(copy.partitions)
    assert all(content.is_equal for content in found)

    places = {topic.name: list(range(topic.partitions)) for topic in topics[:2]}
    with LiveProducer({"bootstrap.servers": source_cluster.bootstrap}, places, records_per_second=100) as producer:
        stop_key = f"{copy.migration_id}/control/tail-stop.json"
        proof = ProofSettings(topics={name: rules for name, rules in job.topics.items() if rules.compacted})
        copy.write_job("tail", stop_key=stop_key, slice_seconds=3, proof=proof.model_dump())
        tail = submit(copy, "tail", "tail")
        target = copy.clients.wire("target")
        wait_for(lambda: lags(copy, target) < 20, 200, "the tail follows")
        # Beside the copy, in the same tasks: what the seed has copied, and what comes while slices go by.
        wait_for(lambda: len(proven_pieces(copy)) >= 2, 200, "the tail compares")
        wait_for(lambda: max(proven_pieces(copy)) >= 2, 200, "a later slice goes on where the former one ended")
        producer.freeze()
        stop_tail(copy)
        assert tail.wait() == 0, tail.text()[-4000:]
    copy.compare().check()


def proven_pieces(copy: Copying) -> list[int]:
    """Pieces of which each proven range was made; a difference fails."""
    store = copy.clients.store(copy.journal)
    keys = [info.key for info in store.list(proven_prefix(copy.migration_id))]
    found = [ProvenPartition.parse(store.get(key) or b"") for key in keys]
    assert [item.differing for item in found if item.differing is not None] == []
    return [item.proven.pieces for item in found if item.proven is not None] or [0]


def lags(copy: Copying, target: object) -> int:
    """The largest difference between the ends of both sides (equal offsets)."""
    mine = target.list_offsets(list(copy.partitions), "latest")  # type: ignore[attr-defined]
    return max(end - mine[key] for key, end in copy.stable_ends().items())


def stop_tail(copy: Copying) -> None:
    """Tell the tail to stop at the source's present ends."""
    offsets = {f"{topic}-{partition}": end for (topic, partition), end in copy.stable_ends().items()}
    copy.clients.store(copy.journal).put(
        f"{copy.migration_id}/control/tail-stop.json",
        StopAt(migration_id=copy.migration_id, offsets=offsets).canonical(),
    )


def test_killed_workers_cost_no_record(
    copying: Callable[..., Copying],
    submit: Callable[..., SparkRun],
    source_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
) -> None:
    topics = standard_topics(unique_name("s") + ".", records=20_000, total_bytes=8_000_000)[:2]
    load(source_cluster, topics, seed=32)
    copy = copying([topic.name for topic in topics], lanes=2)
    copy.write_job("seed", **slow(copy))
    chance = random.Random(32)
    ends = target_ends(copy)
    reached, killed = ends(), 0
    run = submit(copy, "seed", "seed")
    while run.process.poll() is None and killed < 3:
        workers = run.workers()
        if workers and ends() > reached:
            time.sleep(chance.uniform(0.1, 0.5))
            try:
                chance.choice(workers).kill()
                killed += 1
                reached = ends()
            except psutil.NoSuchProcess:
                continue
        time.sleep(0.05)
    assert run.wait() == 0, run.text()[-4000:]
    assert killed == 3, "the copy was ready before all kills; make it slower"
    copy.compare().check()


def target_ends(copy: Copying) -> Callable[[], int]:
    """Tells the sum of the target's end offsets."""
    wire = copy.clients.wire("target")
    return lambda: sum(wire.list_offsets(list(copy.partitions), "latest").values())


@pytest.mark.soak  # the killed seed task of the e2e tests takes the whole tree of the driver down, too
@pytest.mark.parametrize("whom", ["jvm", "python driver", "spark-submit tree, softly"])
def test_a_killed_driver_leaves_nobody_behind_and_the_next_one_goes_on(
    copying: Callable[..., Copying],
    submit: Callable[..., SparkRun],
    source_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    whom: str,
) -> None:
    topics = standard_topics(unique_name("s") + ".", records=10_000, total_bytes=6_000_000)[:2]
    load(source_cluster, topics, seed=33)
    copy = copying([topic.name for topic in topics], lanes=2)
    copy.write_job("seed", **slow(copy))
    ends = target_ends(copy)
    before = ends()
    run = submit(copy, "seed", "seed")
    wait_for(lambda: run.workers() and ends() > before, 200, "the copy runs")
    below = run.below()
    drivers = [process for process in below if "spark_jobs/seed.py" in command_of(process)]
    victim = {"jvm": psutil.Process(run.process.pid), "python driver": drivers[0]}.get(whom)
    if victim is not None:
        victim.kill()
    else:
        run.process.terminate()
    _, alive = psutil.wait_procs(below, timeout=15)
    assert alive == [], [command_of(process) for process in alive]
    assert run.wait(20) != 0
    left = ends()
    assert left < sum(copy.stable_ends().values()), "it was killed in the middle"
    time.sleep(1.0)
    assert ends() == left
    if whom != "jvm":
        return
    copy.write_job("seed", slice_seconds=10)
    again = submit(copy, "seed", "seed")
    assert again.wait() == 0, again.text()[-4000:]
    copy.compare().check()


@pytest.mark.soak
def test_wrong_password_is_the_last_line(
    copying: Callable[..., Copying],
    submit: Callable[..., SparkRun],
    source_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
) -> None:
    name = unique_name("s")
    source_cluster.create_topic(name, 1)
    copy = copying([name])
    copy.write_job("seed")
    wrong = source_cluster.client_config("admin")
    wrong["sasl.password"] = "not-this-one"
    write_references(str(copy.references_file), {**(copy.references or {}), "source": wrong})
    run = submit(copy, "seed", "seed")
    assert run.wait() == 1, run.text()[-4000:]
    assert "not-this-one" not in run.text()
    lines = [line for line in run.text().splitlines() if line.startswith("[")]
    assert lines[-1].startswith("[COPY_FAILED]")
    assert "[AUTHENTICATION_FAILED]" in run.text()


@pytest.mark.soak
def test_two_drivers_at_once_take_turns(
    copying: Callable[..., Copying],
    submit: Callable[..., SparkRun],
    source_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
) -> None:
    topics = standard_topics(unique_name("s") + ".", records=10_000, total_bytes=4_000_000)[:2]
    load(source_cluster, topics, seed=34)
    copy = copying([topic.name for topic in topics], lanes=2)
    copy.write_job("seed", **slow(copy))
    runs = [submit(copy, "seed", "seed") for _ in range(2)]
    statuses: list[int] = []
    threads = [threading.Thread(target=lambda run=run: statuses.append(run.wait())) for run in runs]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [0, 0], "\n".join(run.text()[-2000:] for run in runs)
    copy.compare().check()


@pytest.mark.soak
def test_split_halves_and_a_tail_that_grows_by_spark_submit(
    copying: Callable[..., Copying],
    submit: Callable[..., SparkRun],
    source_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
) -> None:
    """Lanes that know one cluster each, in one job; partitions that are added to a tail's job while it runs."""
    topics = tiny_topics(unique_name("s") + ".")
    load(source_cluster, topics, seed=35)
    copy = copying([topic.name for topic in topics], lanes=2, via="s3", job_fields={"segment_max_bytes": 50_000})
    store = copy.clients.store(copy.journal)

    def put_halves(job: CopyJob, without: str = "") -> None:
        lanes = [
            lane.model_copy(update={"partitions": [item for item in lane.partitions if item.topic != without]})
            for lane in job.lanes
        ]
        store.put(copy.job_key(job.name), job.model_copy(update={"lanes": halves(lanes)}).canonical())

    late, others = topics[0], [topic.name for topic in topics[1:]]
    put_halves(copy.write_job("seed"), without=late.name)
    seed = submit(copy, "seed", "seed")
    assert seed.wait() == 0, seed.text()[-4000:]
    progress = json.loads(store.get(f"{copy.migration_id}/progress/seed.json") or b"")
    assert progress["partitions_done"] == sum(topic.partitions for topic in topics[1:])
    assert progress["source_bytes"] > 0

    places = {topics[1].name: list(range(topics[1].partitions))}
    with LiveProducer({"bootstrap.servers": source_cluster.bootstrap}, places, records_per_second=100) as producer:
        whole = copy.write_job(
            "tail",
            stop_key=f"{copy.migration_id}/control/tail-stop.json",
            slice_seconds=4,
            segment_linger_seconds=0.2,
        )
        put_halves(whole, without=late.name)
        tail = submit(copy, "tail", "tail")
        target = copy.clients.wire("target")
        keys = [key for key in copy.partitions if key[0] in others]

        def behind(wanted: list[tuple[str, int]]) -> int:
            ends, mine = copy.stable_ends(), target.list_offsets(wanted, "latest")
            return max(ends[key] - mine[key] for key in wanted)

        wait_for(lambda: behind(keys) < 100, 200, "the tail follows")
        assert tail.process.poll() is None
        put_halves(whole)
        wait_for(lambda: behind(list(copy.partitions)) < 100, 200, "the late topic is taken up")
        producer.freeze()
        stop_tail(copy)
        assert tail.wait() == 0, tail.text()[-4000:]
    copy.compare().check()
