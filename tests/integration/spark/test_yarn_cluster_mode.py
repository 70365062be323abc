"""Cluster deploy mode on a real YARN: the driver runs on a machine that Airflow never sees, and machines share nothing.

The machine that submits has the package; nodes have neither code nor files of it, but the key of sealed references, in
a file that only the user of the containers may read. It must not come from the environment of the NodeManager:
`yarn.nodemanager.env-whitelist` writes values into a script in the containers' log folder, and mangles JSON.
"""

from __future__ import annotations

import socket
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest

from airflow_provider_kafka_migration.compare.runner import ContentResults
from airflow_provider_kafka_migration.documents.job_end import JobEnd
from airflow_provider_kafka_migration.documents.proof import ContentJob
from airflow_provider_kafka_migration.engines.base import JobState, JobStatus, SparkJob
from airflow_provider_kafka_migration.engines.bound_process import bound_command
from airflow_provider_kafka_migration.engines.run import last_word
from airflow_provider_kafka_migration.engines.submit import SubmitEngine
from airflow_provider_kafka_migration.errors import JobMissing, ReferencesUnfit
from airflow_provider_kafka_migration.provider.engine_jobs import JobMaker
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.record.context import JobRef
from airflow_provider_kafka_migration.references import Resolver
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
_CONF = {
    "spark.yarn.jars": f"local:{Path(pyspark.__file__).parent}/jars/*",
    "spark.pyspark.python": sys.executable,
    "spark.executor.instances": "2",
    f"spark.yarn.appMasterEnv.{KEY_VARIABLE}": f"file:{_KEY_FILE}",
    f"spark.executorEnv.{KEY_VARIABLE}": f"file:{_KEY_FILE}",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
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


@dataclass
class SparkSubmit:
    """``spark-submit`` on the host that submits, as :class:`SubmitEngine` wants to see it."""

    process: Process

    def poll(self) -> int | None:
        return None if self.process.running else self.process.returncode

    def lines(self) -> tuple[str, ...]:
        return tuple(self.process.log.read_text(errors="replace").splitlines())

    def kill(self) -> None:
        self.process.kill()


@dataclass
class Application:
    """A job that the engine has submitted."""

    engine: SubmitEngine
    id: str
    token: str
    #: what spark-submit has written
    log: Path

    @property
    def running(self) -> bool:
        return not self.engine.status(self.id).state.is_over


def engine_of(world: World, yarn: YarnCluster) -> SubmitEngine:
    """The engine of the product; only ``spark-submit`` itself runs on a host of the lab, which knows names."""
    engine = SubmitEngine(master="yarn", deploy_mode="cluster", resource_manager=yarn.rest_address)

    def start(job: SparkJob, more_conf: Mapping[str, str]) -> SparkSubmit:
        bound = len(bound_command("spark-submit"))
        command = ["spark-submit", *engine.command(job, more_conf)[bound:]]
        environment = {"HADOOP_CONF_DIR": str(yarn.conf(world.driver))}
        process = world.driver.start(f"submission-{len(world.submissions)}-{job.name}", command, env=environment)
        world.submissions.append(process)
        return SparkSubmit(process)

    return engine.started_by(start)


@contextmanager
def made(world: World, copy: Copying, engine: SubmitEngine, name: str, token: str) -> Iterator[SparkJob]:
    """Make a job as tasks do: references sealed for this submission, the package shipped."""
    folder = world.driver.disk / f"job-{token}"
    key = world.key.public.text
    maker = JobMaker(world.spec(copy), world.resolver, engine, folder, conf=_CONF, public_key=key)
    with maker(JobRef(name, copy.journal, copy.job_key(name)), token) as job:
        yield job


def submit(world: World, yarn: YarnCluster, copy: Copying, name: str) -> Application:
    engine, token = engine_of(world, yarn), f"{name}-{uuid.uuid4().hex[:8]}"
    with made(world, copy, engine, name, token) as job:
        job_id = engine.submit(job)
    return Application(engine, job_id, token, world.submissions[-1].log)


def end_of(world: World, yarn: YarnCluster, run: Application) -> JobStatus:
    """Wait for the end of a job."""
    wait_for(lambda: not run.running, 900, f"the end of {run.id}")
    return run.engine.status(run.id)


def what_containers_said(world: World, yarn: YarnCluster) -> str:
    """The ends of what drivers and executors have written, for a failure's message."""
    logs = [path for worker in world.workers for path in yarn.container_logs(worker)]
    return "\n".join(f"== {path.parent.name}/{path.name}\n{tail_of(path, 12)}" for path in logs[-8:])


def check_success(world: World, yarn: YarnCluster, copy: Copying, run: Application) -> None:
    status = end_of(world, yarn, run)
    assert status.state is JobState.SUCCEEDED, f"{status}\n{tail_of(run.log, 30)}{what_containers_said(world, yarn)}"
    end = JobEnd.parse(copy.clients.store(copy.journal).get(f"{copy.migration_id}/{keys.job_end(run.token)}") or b"")
    assert (end.token, end.status, end.application_id) == (run.token, "succeeded", run.id)


def test_seed_tail_and_content_check_with_the_driver_on_a_node(world: World, yarn: YarnCluster, tmp_path: Path) -> None:
    copy = world.copying("yarn", tmp_path, records=4_000)
    copy.write_job("seed")
    began = time.monotonic()
    check_success(world, yarn, copy, submit(world, yarn, copy, "seed"))
    print(f"seed in cluster mode: {time.monotonic() - began:.0f} s")
    copy.compare().check()

    job = content_job(copy)
    store = copy.clients.store(copy.journal)
    store.put(copy.job_key("verify"), job.canonical())
    check_success(world, yarn, copy, submit(world, yarn, copy, "verify"))
    found = ContentResults(ContentJob.parse(job.canonical()), store).read_all()
    assert len(found) == len(copy.partitions)
    assert all(content.is_equal for content in found)

    places = {topic: [0, 1, 2] for topic in copy.topics[:2]}
    with LiveProducer(world.source.client_config(), places, records_per_second=50) as producer:
        copy.write_job("tail", stop_key=f"{copy.migration_id}/control/tail-stop.json", slice_seconds=4)
        run = submit(world, yarn, copy, "tail")
        target = copy.clients.wire("target")
        before = sum(target.list_offsets(list(copy.partitions), "latest").values())

        def follows() -> bool:
            assert run.running, tail_of(run.log, 30) + what_containers_said(world, yarn)
            now = sum(target.list_offsets(list(copy.partitions), "latest").values())
            return now > before and lags(copy, target) < 20

        wait_for(follows, 600, "the tail follows")
        producer.freeze()
        stop_tail(copy)
        check_success(world, yarn, copy, run)
    copy.compare().check()
    world.check_leases(copy)
    assert {lease.host for lease in world.leases(copy)} <= {worker.name for worker in world.workers}
    world.check_no_secret_leaked(but=_KEY_FILE.name)


def test_the_machine_of_the_driver_is_lost_and_the_next_attempt_takes_the_job_up(
    world: World, yarn: YarnCluster, tmp_path: Path
) -> None:
    copy = world.copying("driverless", tmp_path)
    copy.write_job("seed", max_bytes_per_second=40_000, segment_max_bytes=30_000, slice_seconds=5)
    _lose_the_driver(world, yarn, copy)
    copy.compare().check()
    world.check_leases(copy)
    world.check_no_secret_leaked(but=_KEY_FILE.name)


def _lose_the_driver(world: World, yarn: YarnCluster, copy: Copying) -> None:
    run = submit(world, yarn, copy, "seed")
    lost = wait_for_owner(world, copy, run, "seed")
    driver_host = yarn.driver_host(run.id)
    assert driver_host is not None, yarn.log_tail()
    host = world.lab.hosts[driver_host]
    host.kill()
    killed = time.monotonic()
    try:
        # YARN misses the driver, and says so to whoever waits for it.
        assert end_of(world, yarn, run).state is JobState.FAILED, tail_of(run.log, 30)
        print(f"the loss of the driver was noticed after {time.monotonic() - killed:.0f} s (lease of {lost.host})")
        with pytest.raises(AssertionError):
            copy.compare().check()
        check_success(world, yarn, copy, submit(world, yarn, copy, "seed"))
        print(f"and all was copied {time.monotonic() - killed:.0f} s after it")
    finally:
        host.boot()
        give_key(world, host)
        yarn.nodes[host.name].kill()
        yarn.start_node(host)


def test_a_token_is_submitted_once_and_a_cancelled_job_goes_on_with_another(
    world: World, yarn: YarnCluster, tmp_path: Path
) -> None:
    copy = world.copying("twice", tmp_path)
    copy.write_job("seed", max_bytes_per_second=40_000, segment_max_bytes=30_000, slice_seconds=5)
    first = submit(world, yarn, copy, "seed")
    wait_for_owner(world, copy, first, "seed")
    # A task that was killed between its submission and the journal's entry submits the same token again.
    engine = engine_of(world, yarn)
    known = len(yarn.applications())
    with made(world, copy, engine, "seed", first.token) as job:
        assert engine.submit(job) == first.id
    assert len(yarn.applications()) == known
    assert engine.status(first.id).state is JobState.RUNNING
    engine.cancel(first.id)
    assert end_of(world, yarn, first).state is JobState.CANCELLED
    engine.cancel(first.id)
    with pytest.raises(AssertionError):
        copy.compare().check()
    copy.write_job("seed")
    check_success(world, yarn, copy, submit(world, yarn, copy, "seed"))
    copy.compare().check()
    world.check_leases(copy)


def test_a_driver_that_fails_shows_the_end_of_its_log(
    world: World, yarn: YarnCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its NodeManager has the log, under a name that only the hosts of the lab can look up."""
    look_up = socket.getaddrinfo

    def known(host: str, *given: Any, **more: Any) -> Any:
        return look_up(world.lab.hosts[host].address if host in world.lab.hosts else host, *given, **more)

    monkeypatch.setattr(socket, "getaddrinfo", known)
    copy = world.copying("missing", tmp_path, records=400)
    run = submit(world, yarn, copy, "seed")  # its job document was never written
    status = end_of(world, yarn, run)
    assert status.state is JobState.FAILED
    said = last_word(status.log_tail)
    assert isinstance(said, JobMissing), f"{status}\n{what_containers_said(world, yarn)}"


def test_an_application_that_nobody_knows_is_lost(world: World, yarn: YarnCluster) -> None:
    assert engine_of(world, yarn).status("application_1_0001").state is JobState.LOST


def test_references_in_a_file_are_refused_before_anything_is_submitted(
    world: World, yarn: YarnCluster, tmp_path: Path
) -> None:
    copy = world.copying("filed", tmp_path, records=400)
    spec = world.spec(copy, executor_references="file")
    engine, known = engine_of(world, yarn), len(yarn.applications())
    maker = JobMaker(spec, Resolver({}), engine, world.driver.disk / "filed", conf=_CONF)
    with (
        pytest.raises(ReferencesUnfit, match="cannot read a file of this one"),
        maker(JobRef("seed", copy.journal, copy.job_key("seed")), "seed-filed"),
    ):
        raise AssertionError("a job was made")
    assert len(yarn.applications()) == known
