"""The phase that looks at Spark: when it asks, when it need not, and what the precheck makes of the answer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from phase_world.world import World, Worlds

from airflow_provider_kafka_migration import __version__
from airflow_provider_kafka_migration.checks.spark import check_spark
from airflow_provider_kafka_migration.checks.spark_probe import SparkSide
from airflow_provider_kafka_migration.cli.runner import InProcessRunner
from airflow_provider_kafka_migration.documents.spark_probe import MachineLook, ProbeJob, SparkProbe
from airflow_provider_kafka_migration.engines.run import EngineRunner
from airflow_provider_kafka_migration.engines.submit import SubmitEngine
from airflow_provider_kafka_migration.errors import PrecheckBlocked, SparkJobFailed, SparkSettingsRefused, Transient
from airflow_provider_kafka_migration.phases import precheck, spark_check
from airflow_provider_kafka_migration.record.context import JobRef

CHECK = "spark_check"
FAR = "spark://master:7077"


class Spark:
    """A runner on Spark. Its driver stores what ``driver`` returns."""

    def __init__(self, world: World, master: str = FAR) -> None:
        self.world, self.master = world, master
        self.jobs: list[ProbeJob] = []
        self.change: Callable[[SparkProbe], SparkProbe] = lambda probe: probe
        self.error: BaseException | None = None
        world.context().runner = self

    def spark_master(self, spec: Any) -> str:
        return self.master

    def submit(self, spec: Any, location: str, key: str, read_progress: Any) -> None:
        data = self.world.journal_store.get(key)
        assert data is not None
        job = ProbeJob.parse(data)
        self.jobs.append(job)
        if self.error is not None:
            raise self.error
        look = MachineLook(
            name="driver",
            host="h",
            python="3.12.3",
            package_version=__version__,
            began_at=time.time(),
            ended_at=time.time(),
        )
        probe = SparkProbe(
            migration_id=job.migration_id,
            kind="probed",
            token=job.token,
            master=self.master,
            driver=look,
            executors=[look.model_copy(update={"name": "0"})],
        )
        stored = self.change(probe).canonical()
        self.world.journal_store.put(f"{job.migration_id}/results/spark-probe.json", stored)


def stored(world: World) -> SparkProbe:
    data = world.stored("results/spark-probe.json")
    assert data is not None
    return SparkProbe.parse(data)


def change_stored(world: World, **changes: Any) -> None:
    key = f"{world.spec.migration_id}/results/spark-probe.json"
    world.journal_store.put(key, stored(world).model_copy(update=changes).canonical())


def codes(world: World) -> list[str]:
    context = world.context()
    return [item.code for item in check_spark(context, context.record.plan())]


@pytest.fixture
def world(worlds: Worlds) -> World:
    return worlds.at(CHECK)


def test_runners_say_where_they_run() -> None:
    """Without this method a runner counts as one that copies in its own process, and Spark would not be looked at."""
    runner = EngineRunner(SubmitEngine(master=FAR), None)  # type: ignore[arg-type]
    assert isinstance(runner, SparkSide)
    assert runner.spark_master(None) == FAR  # type: ignore[arg-type]
    assert not isinstance(InProcessRunner(None, None, None), SparkSide)  # type: ignore[arg-type]


def test_nothing_is_asked_where_this_process_copies(world: World) -> None:
    result = world.run(CHECK)
    assert result.details == {"kind": "in_process"}
    assert world.stored("results/spark-probe.json") is None
    assert codes(world) == []


@pytest.mark.parametrize(("master", "found"), [("local[2,4]", []), ("local[2]", ["B138"])])
def test_a_local_master_is_judged_without_a_job(world: World, master: str, found: list[str]) -> None:
    spark = Spark(world, master)
    result = world.run(CHECK)
    assert (result.details["kind"], spark.jobs) == ("local", [])
    assert codes(world) == found
    (entry,) = world.steps("spark_checked")
    assert entry.details["digest"] == stored(world).digest()


def test_a_probe_gets_the_brokers_that_this_side_sees_and_its_result_is_completed(world: World) -> None:
    spark = Spark(world)
    result = world.run(CHECK)
    assert spark.jobs[0].brokers == {"source": ["source-id.example:9092"], "target": ["target-id.example:9092"]}
    assert spark.jobs[0].archive_location == world.spec.storage.archive_location
    probe = stored(world)
    assert (probe.engine, probe.master, probe.airflow_package_version) == ("submit", FAR, __version__)
    assert probe.driver is not None
    assert probe.driver.clock is not None
    assert probe.driver.clock.least == 0.0
    assert result.details["executors"] == 1
    assert codes(world) == []


def test_a_recent_probe_that_found_nothing_is_not_made_again(world: World) -> None:
    spark = Spark(world)
    world.run(CHECK)
    assert world.run(CHECK).already_done
    assert len(spark.jobs) == 1


def test_after_a_finding_the_probe_is_made_again(world: World) -> None:
    spark = Spark(world)
    spark.change = lambda probe: probe.model_copy(update={"not_asked": ["7"]})
    world.run(CHECK)
    assert codes(world) == ["W141"]
    spark.change = lambda probe: probe
    assert not world.run(CHECK).already_done
    assert codes(world) == []


def _another_master(spark: Spark) -> None:
    spark.master = "spark://other:7077"


def _a_day_later(spark: Spark) -> None:
    spark.world.clock.at += timedelta(days=1, seconds=1)


def _another_conf(spark: Spark) -> None:
    spark.world.change_spec(spark={"conf": {"spark.executor.memory": "1g"}})
    spark.world.context().runner = spark


def _another_engine(spark: Spark) -> None:
    spark.world.change_spec(spark={"engine": "elsewhere"})
    spark.world.context().runner = spark


def _another_version(spark: Spark) -> None:
    change_stored(spark.world, airflow_package_version="0.0.1")


def _a_clock_that_went_back(spark: Spark) -> None:
    spark.world.clock.at -= timedelta(days=30)


CHANGES = [_another_master, _a_day_later, _a_clock_that_went_back, _another_conf, _another_engine, _another_version]


@pytest.mark.parametrize("change", CHANGES)
def test_what_has_changed_since_is_probed_again(world: World, change: Callable[[Spark], None]) -> None:
    spark = Spark(world)
    world.run(CHECK)
    change(spark)
    assert not world.run(CHECK).already_done
    assert len(spark.jobs) == 2


@pytest.mark.parametrize("change", CHANGES)
def test_an_outdated_probe_is_no_evidence(world: World, change: Callable[[Spark], None]) -> None:
    spark = Spark(world)
    world.run(CHECK)
    change(spark)
    assert codes(world) == ["B131"]


def test_a_probe_that_does_not_know_its_master_is_no_evidence_for_another_one(world: World) -> None:
    spark = Spark(world, master="")
    world.run(CHECK)
    assert codes(world) == []
    spark.master = FAR
    assert not world.run(CHECK).already_done
    assert len(spark.jobs) == 2


def test_a_spec_that_changes_while_the_probe_runs_makes_it_outdated(world: World) -> None:
    """Airflow may defer the task for minutes, and reads the spec again when it wakes."""
    spark = Spark(world)
    job = spark_check.prepare(world.context())
    assert isinstance(job, JobRef)
    spark.submit(world.spec, job.location, job.key, None)
    _another_conf(spark)
    spark_check.finish(world.context(), job)
    assert codes(world) == ["B131"]


def test_a_waiver_leaves_the_probe_valid(world: World) -> None:
    spark = Spark(world)
    world.run(CHECK)
    world.change_spec(waive=["W140"])
    world.context().runner = spark
    assert codes(world) == []


def test_airflow_s_precheck_has_no_runner_and_still_asks_for_the_probe(world: World) -> None:
    world.context().runner = None
    assert codes(world) == ["W130"]
    Spark(world)
    world.run(CHECK)
    world.context().runner = None
    assert codes(world) == []


def test_an_error_that_stays_is_a_finding_and_one_that_may_pass_is_raised(world: World) -> None:
    spark = Spark(world)
    spark.error = SparkSettingsRefused("no retries", next_step="allow them")
    assert world.run(CHECK).details["kind"] == "failed"
    assert codes(world) == ["B132"]
    for error in (SparkJobFailed("the cluster is away"), RuntimeError("spark-submit ended")):
        spark.error = error
        with pytest.raises(Transient):
            world.run(CHECK)


def test_the_result_of_an_earlier_run_is_not_taken_for_that_of_this_one(world: World) -> None:
    spark = Spark(world)
    spark.change = lambda probe: probe.model_copy(update={"token": "former"})
    with pytest.raises(Transient, match="its result is not in the storage"):
        world.run(CHECK)


def test_precheck_blocks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = Spark(world)
    spark.change = lambda probe: probe.model_copy(update={"unsafe_settings": ["spark.speculation is true"]})
    world.run(CHECK)
    monkeypatch.setattr(precheck, "CHECKS", {"Spark": check_spark})
    with pytest.raises(PrecheckBlocked, match="B138"):
        world.run("precheck")
    data = world.stored("results/precheck.json")
    assert data is not None
    assert [item["code"] for item in json.loads(data)["findings"]] == ["B138"]
