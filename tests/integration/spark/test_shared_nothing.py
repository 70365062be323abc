"""Driver, Workers, brokers and storage share nothing but a network: seed, tail, check; machines lost and cut off.

Workers have no code of this package but what Spark ships, and no file with secrets.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_kafka_migration.compare.runner import ContentResults
from airflow_provider_kafka_migration.documents.proof import ContentJob
from airflow_provider_kafka_migration.errors import ReferencesUnfit
from airflow_provider_kafka_migration.provider.job_references import SparkPlace, travel
from airflow_provider_kafka_migration.references.argument import inline_argument
from harness.clients import LiveProducer
from harness.hosts import PACKAGE, why_not
from harness.processes import Process, tail_of
from harness.spark.spark_cluster import SparkCluster
from tests.integration.content.test_content_on_brokers import content_job
from tests.integration.copy.copying import Copying, wait_for
from tests.integration.spark.lab_world import IMPATIENT, Run, SeenLease, World, lab_world
from tests.integration.spark.test_spark_copies import lags, stop_tail

# A Spark application takes seconds to start, and minutes on a busy machine.
pytestmark = [
    pytest.mark.integration,
    pytest.mark.soak,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(900),
]

#: References that mean something only where they are resolved.
FROM_ENVIRONMENT = inline_argument({role: f"env:LAB_{role.upper()}" for role in ("source", "target", "storage")})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with lab_world(tmp_path_factory.mktemp("lab")) as made:
        yield made


@pytest.fixture(scope="module")
def spark(world: World) -> Iterator[SparkCluster]:
    """A Master, and a Worker with one slot on each of two hosts."""
    master = world.lab.host("spark-master")
    with SparkCluster(world.lab.folder / "spark", host=master, worker_hosts=world.workers) as cluster:
        yield cluster


def wait_for_owner(world: World, copy: Copying, run: Run, job: str) -> SeenLease:
    """Wait until the owner of a lane copies in the middle of its records, early in its slice; return its lease.

    Fails at once when Spark has ended: a fault would prove nothing.
    """
    before: set[SeenLease] = set()
    #: fresh lease -> the share of its lane that was copied when it was first seen
    fresh: dict[SeenLease, float] = {}
    found: list[SeenLease] = []

    def copies() -> bool:
        assert run.running, tail_of(run.log, 60)
        now = world.current_leases(copy)
        shares = world.shares(copy, job)
        fresh.update({lease: shares[lease.lane] for lease in now if lease not in before})
        before.update(now)
        found[:] = [lease for lease in now if max(fresh[lease], 0.02) < shares[lease.lane] < 0.7]
        return bool(found)

    wait_for(copies, 300, "the owner of a lane in the middle of its records")
    return found[0]


def wait_for_successor(world: World, copy: Copying, run: Process, lost: SeenLease) -> SeenLease:
    """Wait until another host owns the lane of a lease, and return its first lease."""
    found: list[SeenLease] = []

    def taken_over() -> bool:
        assert run.running, tail_of(run.log, 60)
        found[:] = [
            lease
            for lease in world.leases(copy)
            if lease.lane == lost.lane and lease.generation > lost.generation and lease.host != lost.host
        ]
        return bool(found)

    wait_for(taken_over, 300, f"another owner of lane {lost.lane} than {lost.host}")
    return found[0]


def test_workers_have_no_code_of_this_package(world: World) -> None:
    for worker in world.workers:
        done = worker.run([sys.executable, "-c", f"import {PACKAGE}.spark.worker"], check=False)
        assert f"No module named '{PACKAGE}" in done.stderr


def test_a_machine_lost_in_the_middle_of_a_seed_costs_no_record(
    world: World, spark: SparkCluster, tmp_path: Path
) -> None:
    copy = world.copying("lost", tmp_path)
    # Slow enough that a lane is still in its middle when the machine is lost.
    copy.write_job("seed", max_bytes_per_second=40_000, segment_max_bytes=30_000, slice_seconds=5)
    with world.sealed(copy, "seed", spark.url) as references:
        run = world.submit(copy, "seed", references, spark.url, conf=IMPATIENT)
        lost = wait_for_owner(world, copy, run, "seed")
        host = world.lab.hosts[lost.host]
        host.kill()
        killed = time.monotonic()
        try:
            wait_for_successor(world, copy, run, lost)
            print(f"lane {lost.lane} stood still for {time.monotonic() - killed:.0f} s after its machine was lost")
            assert world.wait(run) == 0, tail_of(run.log, 60)
        finally:
            host.boot()
            spark.restart_worker(world.workers.index(host))
    copy.compare().check()
    world.check_leases(copy)
    following = [lease for lease in world.leases(copy) if lease.lane == lost.lane]
    assert following[lost.generation - 1] == lost, "a lost machine cannot say that it has ended"
    assert following[lost.generation].host != lost.host

    job = content_job(copy)
    store = copy.clients.store(copy.journal)
    store.put(copy.job_key("verify"), job.canonical())
    verify = world.submit(copy, "verify", FROM_ENVIRONMENT, spark.url)
    assert world.wait(verify) == 0, tail_of(verify.log, 60)
    found = ContentResults(ContentJob.parse(job.canonical()), store).read_all()
    assert len(found) == len(copy.partitions)
    assert all(content.is_equal for content in found)
    world.check_no_secret_leaked()


def test_a_machine_cut_off_beyond_its_slice_is_no_second_owner_when_it_is_back(
    world: World, spark: SparkCluster, tmp_path: Path
) -> None:
    copy = world.copying("zombie", tmp_path)
    stop_key = f"{copy.migration_id}/control/tail-stop.json"
    copy.write_job("tail", stop_key=stop_key, slice_seconds=4, max_bytes_per_second=60_000, segment_max_bytes=30_000)
    places = {topic: [0, 1, 2] for topic in copy.topics[:2]}
    with (
        LiveProducer(world.source.client_config(), places, records_per_second=50) as producer,
        world.sealed(copy, "tail", spark.url) as references,
    ):
        run = world.submit(copy, "tail", references, spark.url, conf=IMPATIENT)
        cut = wait_for_owner(world, copy, run, "tail")
        host = world.lab.hosts[cut.host]
        host.cut()
        began = time.monotonic()
        try:
            successor = wait_for_successor(world, copy, run, cut)
            print(f"lane {cut.lane} stood still for {time.monotonic() - began:.0f} s after its machine was cut off")
        finally:
            host.join()
        # What the zombie still holds, its own and in its kernel's send buffers, goes out now.
        target = copy.clients.wire("target")
        wait_for(lambda: lags(copy, target) < 20 or not run.running, 300, "the tail catches up")
        producer.freeze()
        stop_tail(copy)
        assert world.wait(run) == 0, tail_of(run.log, 60)
    copy.compare().check()
    world.check_leases(copy)
    assert successor.generation == cut.generation + 1
    world.check_no_secret_leaked()


def test_a_file_that_only_the_driver_has_is_refused_and_missed_by_name(
    world: World, spark: SparkCluster, tmp_path: Path
) -> None:
    copy = world.copying("file", tmp_path, records=400)
    copy.write_job("seed")
    with pytest.raises(ReferencesUnfit, match="other machines, which cannot read a file of this one"):
        travel(world.spec(copy, executor_references="file"), SparkPlace.of_master(spark.url), "seed")

    # Who submits by hand is not asked by anybody: the executors' own message has to say it.
    document = world.references(world.connections, "with-secrets.json")
    try:
        run = world.submit(copy, "seed", str(document), spark.url)
        assert world.wait(run) == 1, tail_of(run.log, 60)
    finally:
        document.unlink()
    last = tail_of(run.log, 1)
    assert "COPY_FAILED" in last, last
    assert re.search(r"the file cannot be read: No such file or directory, on worker-[12]\b", last), last
    world.check_no_secret_leaked()
