"""Cluster deploy mode on a real YARN: the driver runs on a machine that Airflow never sees, and machines share nothing.

The machine that submits has the package; nodes have neither code nor files of it, but the key of sealed references, in
a file that only the user of the containers may read. It must not come from the environment of the NodeManager:
`yarn.nodemanager.env-whitelist` writes values into a script in the containers' log folder, and mangles JSON.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from airflow_provider_kafka_migration.compare.runner import ContentResults
from airflow_provider_kafka_migration.documents.proof import ContentJob
from airflow_provider_kafka_migration.references.sealing import KEY_VARIABLE
from harness.clients import LiveProducer
from harness.hosts import Host, why_not
from harness.processes import Process, tail_of
from harness.spark.yarn import VERSION, YarnCluster, sets
from tests.integration.content.test_content_on_brokers import content_job
from tests.integration.copy.copying import Copying, wait_for
from tests.integration.spark.lab_world import World, lab_world
from tests.integration.spark.test_shared_nothing import wait_for_owner
from tests.integration.spark.test_spark_copies import lags, stop_tail

pytestmark = [
    pytest.mark.integration,
    pytest.mark.soak,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(1800),
]

#: The same path on all nodes, each of which has a HOME of its own.
_KEY_FILE = Path.home() / "kafka-migration.key"
_APPLICATION = re.compile(r"Submitted application (application_\d+_\d+)")
_CONF = {
    "spark.yarn.jars": f"local:{Path(pyspark.__file__).parent}/jars/*",
    "spark.pyspark.python": sys.executable,
    "spark.executor.instances": "2",
    f"spark.yarn.appMasterEnv.{KEY_VARIABLE}": f"file:{_KEY_FILE}",
    f"spark.executorEnv.{KEY_VARIABLE}": f"file:{_KEY_FILE}",
    # The caller starts a lost job again: two drivers of one job must not be started by two parties.
    "spark.yarn.maxAppAttempts": "1",
    "spark.yarn.submit.waitAppCompletion": "true",
    "spark.network.timeout": "20s",
    "spark.network.timeoutInterval": "5s",
    "spark.executor.heartbeatInterval": "2s",
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    sets().ensure(VERSION)  # before there is no way out
    # The nodes' own environment has no secret: a NodeManager may hand it on.
    with lab_world(tmp_path_factory.mktemp("lab"), secrets_in_workers=False) as made:
        yield made


@pytest.fixture(scope="module")
def yarn(world: World) -> Iterator[YarnCluster]:
    master = world.lab.host("hadoop-master")
    for worker in world.workers:
        give_key(world, worker)
    with YarnCluster(master, world.workers, [world.driver]) as cluster:
        yield cluster


def give_key(world: World, host: Host) -> None:
    """Write the key of sealed references onto a node, as its administrator does."""
    command = ["bash", "-c", f'umask 077; printf %s "${KEY_VARIABLE}" > {_KEY_FILE}']
    host.run(command, env={KEY_VARIABLE: world.key.text})


def submit(world: World, yarn: YarnCluster, copy: Copying, main: str, references: str) -> Process:
    return world.submit(
        copy,
        main,
        references,
        "yarn",
        conf=_CONF,
        options=["--deploy-mode", "cluster"],
        env={"HADOOP_CONF_DIR": str(yarn.conf(world.driver))},
    )


def application_of(run: Process) -> str:
    """The id that YARN has given to a submission."""

    def found() -> bool:
        assert run.running, tail_of(run.log, 60)
        return _APPLICATION.search(run.log.read_text(errors="replace")) is not None

    wait_for(found, 300, "YARN to accept the application")
    match = _APPLICATION.search(run.log.read_text(errors="replace"))
    assert match is not None
    return match[1]


def what_containers_said(world: World, yarn: YarnCluster) -> str:
    """The ends of what drivers and executors have written, for a failure's message."""
    logs = [path for worker in world.workers for path in yarn.container_logs(worker)]
    return "\n".join(f"== {path.parent.name}/{path.name}\n{tail_of(path, 12)}" for path in logs[-8:])


def check_success(world: World, yarn: YarnCluster, run: Process) -> None:
    assert world.wait(run, 900) == 0, tail_of(run.log, 30) + what_containers_said(world, yarn)


def test_seed_tail_and_content_check_with_the_driver_on_a_node(world: World, yarn: YarnCluster, tmp_path: Path) -> None:
    copy = world.copying("yarn", tmp_path, records=4_000)
    copy.write_job("seed")
    began = time.monotonic()
    with world.sealed(copy, "seed", "yarn") as references:
        check_success(world, yarn, submit(world, yarn, copy, "seed", references))
    print(f"seed in cluster mode: {time.monotonic() - began:.0f} s")
    copy.compare().check()

    job = content_job(copy)
    store = copy.clients.store(copy.journal)
    store.put(copy.job_key("verify"), job.canonical())
    with world.sealed(copy, "verify", "yarn") as references:
        check_success(world, yarn, submit(world, yarn, copy, "verify", references))
    found = ContentResults(ContentJob.parse(job.canonical()), store).read_all()
    assert len(found) == len(copy.partitions)
    assert all(content.is_equal for content in found)

    places = {topic: [0, 1, 2] for topic in copy.topics[:2]}
    with (
        LiveProducer(world.source.client_config(), places, records_per_second=50) as producer,
        world.sealed(copy, "tail", "yarn") as references,
    ):
        copy.write_job("tail", stop_key=f"{copy.migration_id}/control/tail-stop.json", slice_seconds=4)
        run = submit(world, yarn, copy, "tail", references)
        target = copy.clients.wire("target")
        before = sum(target.list_offsets(list(copy.partitions), "latest").values())

        def follows() -> bool:
            assert run.running, tail_of(run.log, 30) + what_containers_said(world, yarn)
            now = sum(target.list_offsets(list(copy.partitions), "latest").values())
            return now > before and lags(copy, target) < 20

        wait_for(follows, 600, "the tail follows")
        producer.freeze()
        stop_tail(copy)
        check_success(world, yarn, run)
    copy.compare().check()
    world.check_leases(copy)
    assert {lease.host for lease in world.leases(copy)} <= {worker.name for worker in world.workers}
    world.check_no_secret_leaked(but=_KEY_FILE.name)


def test_the_machine_of_the_driver_is_lost_and_the_next_attempt_takes_the_job_up(
    world: World, yarn: YarnCluster, tmp_path: Path
) -> None:
    copy = world.copying("driverless", tmp_path)
    copy.write_job("seed", max_bytes_per_second=40_000, segment_max_bytes=30_000, slice_seconds=5)
    with world.sealed(copy, "seed", "yarn") as references:
        _lose_the_driver(world, yarn, copy, references)
    copy.compare().check()
    world.check_leases(copy)
    world.check_no_secret_leaked(but=_KEY_FILE.name)


def _lose_the_driver(world: World, yarn: YarnCluster, copy: Copying, references: str) -> None:
    run = submit(world, yarn, copy, "seed", references)
    application = application_of(run)
    lost = wait_for_owner(world, copy, run, "seed")
    driver_host = yarn.driver_host(application)
    assert driver_host is not None, yarn.log_tail()
    host = world.lab.hosts[driver_host]
    host.kill()
    killed = time.monotonic()
    try:
        # YARN misses the driver, and says so to whoever waits for it.
        assert world.wait(run, 900) != 0, tail_of(run.log, 30)
        print(f"the loss of the driver was noticed after {time.monotonic() - killed:.0f} s (lease of {lost.host})")
        with pytest.raises(AssertionError):
            copy.compare().check()
        check_success(world, yarn, submit(world, yarn, copy, "seed", references))
        print(f"and all was copied {time.monotonic() - killed:.0f} s after it")
    finally:
        host.boot()
        give_key(world, host)
        yarn.nodes[host.name].kill()
        yarn.start_node(host)


def test_a_file_of_references_that_the_driver_host_lacks_is_named(
    world: World, yarn: YarnCluster, tmp_path: Path
) -> None:
    copy = world.copying("filed", tmp_path, records=400)
    copy.write_job("seed")
    document = world.references(world.connections, "with-secrets.json")
    try:
        run = submit(world, yarn, copy, "seed", str(document))
        assert world.wait(run, 900) != 0, tail_of(run.log, 30)
    finally:
        document.unlink()
    said = "".join(path.read_text(errors="replace") for worker in world.workers for path in yarn.container_logs(worker))
    assert re.search(r"the file cannot be read on worker-[12]\b.*: No such file or directory", said), said[-2000:]
