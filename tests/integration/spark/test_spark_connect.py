"""Spark Connect: a client without a JVM, a server that has none of our code."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from airflow_provider_kafka_migration.errors import SparkSettingsRefused
from airflow_provider_kafka_migration.spark.session import open_runner
from airflow_provider_kafka_migration.spark.tasks import ConnectRunner
from harness.brokers import KafkaCluster
from harness.spark.spark_connect import ConnectServer
from tests.integration.copy.copying import Copying
from tests.integration.spark.spark_runs import ConnectRun
from tests.integration.spark.three_mains import run_three_mains

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", autouse=True)
def _environment_of_others() -> Iterator[None]:
    """PySpark marks the process as a Connect client in its environment; drivers of later tests would inherit that."""
    before = {name: value for name, value in os.environ.items() if name.startswith("SPARK_")}
    yield
    for name in [name for name in os.environ if name.startswith("SPARK_")]:
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """local[2,4]; its tasks do not find this project's folder."""
    with ConnectServer(tmp_path_factory.mktemp("connect")) as made:
        yield made


@pytest.fixture
def runner(server: ConnectServer) -> Iterator[ConnectRunner]:
    """A session of this process."""
    made = open_runner("connect", master=server.url)
    assert isinstance(made, ConnectRunner)
    yield made
    made.stop()


@pytest.mark.soak
def test_seed_verify_and_tail_through_spark_connect(
    copying: Callable[..., Copying],
    connect: Callable[..., ConnectRun],
    source_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    server: ConnectServer,
) -> None:
    def make(topics: list[str]) -> tuple[Copying, Callable[[str, str], ConnectRun]]:
        copy = copying(topics, lanes=3)
        return copy, lambda main, job: connect(copy, main, job, server.url)

    run_three_mains(source_cluster, unique_name("c") + ".", make, seed=61)


def test_tasks_get_our_code_from_the_client(runner: ConnectRunner) -> None:
    def where(number: int) -> list[tuple[int, str]]:
        import airflow_provider_kafka_migration as package

        return [(number, str(package.__file__))]

    rows = runner.run(where, {"number": "bigint", "file": "string"}, [5, 3], group="g", description="d")
    assert [row["number"] for row in rows] == [5, 3]
    assert all(".zip" in row["file"] for row in rows), rows


def test_slots_are_those_of_the_server_as_it_is_now(runner: ConnectRunner, tmp_path: Path) -> None:
    """Asked while all slots are taken, too: the answer must not wait for a slot."""
    now = 0.0
    asking = ConnectRunner(runner.session, clock=lambda: now)
    assert asking.slots() == asking._counted() == 2
    # What Spark plans with; otherwise the cores of all executors, which this server cannot change.
    runner.session.conf.set("spark.sql.leafNodeDefaultParallelism", "7")
    try:
        assert asking.slots() == 2
        now = 60.0
        with _both_slots_taken(runner, tmp_path):
            assert asking.slots() == 7
    finally:
        runner.session.conf.unset("spark.sql.leafNodeDefaultParallelism")


@contextmanager
def _both_slots_taken(runner: ConnectRunner, folder: Path) -> Iterator[None]:
    release = folder / "release"

    def hold(number: int) -> list[tuple[int]]:
        (folder / f"held-{number}").touch()
        deadline = time.monotonic() + 600  # as long as any test: an answer that needs a slot never comes
        while not release.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        return [(number,)]

    thread = threading.Thread(
        target=lambda: runner.run(hold, {"number": "bigint"}, [0, 1], group="held", description="d")
    )
    thread.start()
    try:
        while not ((folder / "held-0").exists() and (folder / "held-1").exists()):
            time.sleep(0.1)
        yield
        assert thread.is_alive()
    finally:
        release.touch()
        thread.join()


def test_a_group_is_cancelled_and_others_are_not(runner: ConnectRunner, tmp_path: Path) -> None:
    folder = str(tmp_path)
    ended: list[str] = []

    def wait_for_end(number: int) -> list[tuple[int]]:
        here = Path(folder)
        (here / f"began-{number}").touch()
        while not (here / "end").exists():
            time.sleep(0.05)
        return [(number,)]

    def run(number: int) -> None:
        try:
            runner.run(wait_for_end, {"number": "bigint"}, [number], group=f"m/seed/lane-{number}", description="d")
            ended.append(f"{number} returned")
        except PySparkException:
            ended.append(f"{number} was cancelled")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("began-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    runner.cancel("m/seed/lane-0")
    threads[0].join(60)
    (tmp_path / "end").touch()
    threads[1].join(60)
    assert ended == ["0 was cancelled", "1 returned"]


@pytest.mark.soak
def test_a_server_that_never_retries_is_refused(tmp_path: Path) -> None:
    with (
        ConnectServer(tmp_path, master="local[2]") as unsafe,
        pytest.raises(SparkSettingsRefused, match=r"local\[2,4\]"),
    ):
        open_runner("refused", master=unsafe.url)
