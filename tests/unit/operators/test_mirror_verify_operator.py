"""The task that compares a mirror: without a claim, deferred while Spark works, and what it leaves behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from airflow_releases import TaskDeferred
from memory_engine import MemoryCluster, MemoryEngine
from phase_world.jobs import MIGRATION, compare_ranges
from phase_world.outside import Killed
from phase_world.world import World, Worlds, without_probes

from airflow_provider_kafka_migration.documents.job_end import JobEnd
from airflow_provider_kafka_migration.engines import find
from airflow_provider_kafka_migration.engines.base import JobState, SparkJob
from airflow_provider_kafka_migration.engines.run import EngineRunner
from airflow_provider_kafka_migration.errors import (
    BrokerUnreachable,
    ContentsDiffer,
    FingerprintChanged,
    IllegalTransition,
    MigrationError,
    SparkJobFailed,
    SpecInvalid,
)
from airflow_provider_kafka_migration.migration import Migration
from airflow_provider_kafka_migration.mirrors import comparison_job, verification
from airflow_provider_kafka_migration.mirrors.verification import last_verification
from airflow_provider_kafka_migration.operators.mirror_verify import KafkaMirrorVerifyOperator
from airflow_provider_kafka_migration.phases.mirrors import mirror
from airflow_provider_kafka_migration.provider.task import MigrationTask
from airflow_provider_kafka_migration.record.context import JobRef
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.storage.local import LocalStore
from airflow_provider_kafka_migration.triggers.spark_job import SparkJobTrigger

SECTIONS: dict[str, Any] = {
    "kind": "mirror",
    "mirror": {"source_alias": "A", "target_alias": "B"},
    "spark": {"engine": "memory"},
}
NAME = comparison_job.job_name("d/r/verify")


@pytest.fixture(scope="module")
def worlds() -> Worlds:
    return Worlds()


class Airflow:
    """Runs the parts of the task, each in another process, and the trigger between them."""

    def __init__(self, world: World) -> None:
        self.world, self.cluster, self.detached = world, MemoryCluster(), True
        instance = SimpleNamespace(dag_id="d", run_id="r", task_id="verify")
        self.context: Any = {"ti": instance, "params": {}}

    def make_runner(self) -> EngineRunner:
        engine = MemoryEngine(cluster=self.cluster)
        engine.detached = self.detached
        return EngineRunner(engine, self._make_job, poll_seconds=0.001)

    @contextmanager
    def _make_job(self, job: JobRef, token: str) -> Iterator[SparkJob]:
        yield SparkJob(MIGRATION, job.name, token, None, None, ("--job-key", job.key))  # type: ignore[arg-type]

    def task(self, **arguments: Any) -> KafkaMirrorVerifyOperator:
        spec = self.world.spec.model_dump(mode="json", exclude_unset=True)
        return KafkaMirrorVerifyOperator(task_id="verify", spec=spec, **{"deferrable": True, **arguments})

    @contextmanager
    def open_migration(self, task: Any, _context: Any, runner: Any = None) -> Iterator[Migration]:
        task.storage_uris = {"journal": "s3://bucket/mirrors"}
        made = Migration.open(self.world.spec, "d/r", Resolver(), actor="verify", runner=runner)
        made.__dict__.update(
            {f"{name}_store": getattr(self.world, f"{name}_store") for name in ("journal", "archive", "evidence")}
        )
        yield made

    def drive(self, error: MigrationError | None = None) -> None:
        """The driver compares, and says how it has ended."""
        (job,) = self.cluster.running
        context = self.world.context()
        if error is None:
            compare_ranges(context, comparison_job.load(context.record, NAME))
        job.state = JobState.SUCCEEDED if error is None else JobState.FAILED
        end = JobEnd.of(job.job.token, error)
        self.world.journal_store.put(f"{MIGRATION}/jobs/ends/{job.job.token}.json", end.canonical())

    def until_it_waits(self, part: Any) -> tuple[SparkJobTrigger, dict[str, Any], str]:
        """Run a part; return the trigger and what is called with its event, as Airflow's database has them."""
        with pytest.raises(TaskDeferred) as deferred:
            part()
        path, arguments = deferred.value.trigger.serialize()
        assert path.endswith("SparkJobTrigger")
        trigger = SparkJobTrigger(**json.loads(json.dumps(arguments)))
        trigger.poll_seconds = 0.001
        # News have tests of their own.
        trigger.spec = None
        return trigger, json.loads(json.dumps(deferred.value.kwargs or {})), deferred.value.method_name

    def go_on(self, waiting: tuple[SparkJobTrigger, dict[str, Any], str]) -> Any:
        trigger, arguments, method = waiting

        async def first() -> Any:
            return [event async for event in trigger.run()]

        (event,) = asyncio.run(asyncio.wait_for(first(), 30))
        return getattr(self.task(), method)(self.context, json.loads(json.dumps(event.payload)), **arguments)

    def entries(self) -> int:
        self.world.context().journal.refresh()
        return len(self.world.context().journal.entries())


@pytest.fixture
def airflow(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> Airflow:
    """A mirror that another run holds, and that mirrors."""
    without_probes(monkeypatch)
    monkeypatch.setattr(verification, "_PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(find, "BUILT_IN", {**find.BUILT_IN, "memory": "memory_engine:MemoryEngine"})
    world = worlds.at("tail", **SECTIONS)

    def die() -> None:
        raise Killed

    world.copiers.reported = die
    with pytest.raises(Killed):
        mirror.run(world.context())
    world.restart()
    found = Airflow(world)
    monkeypatch.setattr(MemoryEngine, "shared", found.cluster)
    monkeypatch.setattr(MigrationTask, "open_migration", lambda *given, **more: found.open_migration(*given, **more))
    monkeypatch.setattr(KafkaMirrorVerifyOperator, "make_runner", lambda *_: found.make_runner())
    monkeypatch.setattr(Migration, "_known", lambda _self, role, *_: getattr(world.context(), role), raising=True)

    async def no_connections(*_: Any, **__: Any) -> dict[str, Any]:
        return {}

    monkeypatch.setattr("airflow_provider_kafka_migration.triggers.drain.prefetch", no_connections)
    return found


def test_it_is_deferred_while_spark_compares_and_makes_no_claim(airflow: Airflow) -> None:
    entries, generation = airflow.entries(), airflow.world.context().journal.generation
    waiting = airflow.until_it_waits(lambda: airflow.task().execute(airflow.context))
    (job,) = airflow.cluster.running
    assert job.job.arguments == ("--job-key", f"{MIGRATION}/jobs/{NAME}.json"), "pointers only"
    assert job.job.token.startswith(f"{NAME}-")
    airflow.drive()
    pointers = airflow.go_on(waiting)
    assert pointers["summary"] == "3 of 3 partitions are equal, 15 records compared"
    assert pointers["uri"].endswith("results/verification.json")
    assert "bootstrap" not in json.dumps(pointers)
    found = last_verification(airflow.world.context().record)
    assert found is not None
    assert found.is_equal
    assert airflow.entries() == entries
    assert airflow.world.context().journal.generation == generation, "the mirror is still held by its own run"
    assert not [key for key in airflow.world.journal_store.objects if NAME in key]


def test_a_failed_driver_fails_the_attempt_and_the_next_one_continues(airflow: Airflow) -> None:
    waiting = airflow.until_it_waits(lambda: airflow.task().execute(airflow.context))
    first = comparison_job.load(airflow.world.context().record, NAME)
    airflow.drive(SparkJobFailed("the driver was killed", next_step="again"))
    with pytest.raises(SparkJobFailed, match="the driver was killed"):
        airflow.go_on(waiting)
    waiting = airflow.until_it_waits(lambda: airflow.task().execute(airflow.context))
    assert comparison_job.load(airflow.world.context().record, NAME) == first
    airflow.drive()
    assert airflow.go_on(waiting)["summary"].startswith("3 of 3")


def test_a_bound_driver_is_waited_for(airflow: Airflow) -> None:
    airflow.detached = False
    airflow.cluster.looks = lambda _job: airflow.drive() if airflow.cluster.running else None
    target = airflow.world.target.log("A.orders", 0)
    assert airflow.task().execute(airflow.context)["summary"].startswith("3 of 3")
    target.batches.pop()
    target.end = 3
    with pytest.raises(ContentsDiffer, match="orders-0: 2 differences: missing at source offset 3"):
        airflow.task().execute(airflow.context)


def test_params_win_over_arguments(airflow: Airflow) -> None:
    task = airflow.task(topics=["a"], last=5)
    same = {"run": "d/r/verify", "independent": False}
    assert task.phase_options(airflow.context) == {**same, "topics": ["a"], "last": 5}
    airflow.context["params"] = {"compared_topics": ["b.*"], "compared_last": None}
    assert task.phase_options(airflow.context) == {**same, "topics": ["b.*"], "last": None}
    assert airflow.task(independent=True).phase_options(airflow.context)["independent"] is True


def test_instances_of_a_mapped_task_have_jobs_of_their_own(airflow: Airflow) -> None:
    airflow.context["ti"].map_index = 2
    assert airflow.task().phase_options(airflow.context)["run"] == "d/r/verify/2"


@pytest.mark.parametrize(
    ("params", "text"), [({"compared_topics": ["("]}, "no regular expression"), ({"compared_last": 0}, "no number")]
)
def test_params_that_mean_nothing_are_refused(airflow: Airflow, params: dict[str, Any], text: str) -> None:
    airflow.context["params"] = params
    with pytest.raises(SpecInvalid, match=text):
        airflow.task().execute(airflow.context)
    assert airflow.cluster.jobs == {}


def test_a_mirror_that_does_not_exist_is_not_compared(airflow: Airflow, tmp_path: Any) -> None:
    airflow.world.journal_store = LocalStore(tmp_path)  # type: ignore[assignment]
    with pytest.raises(IllegalTransition, match="does not exist"):
        airflow.task().execute(airflow.context)


def test_a_cluster_that_is_away_is_an_error_and_no_result(airflow: Airflow) -> None:
    airflow.world.outside.fail("source.admin.*", BrokerUnreachable("away", next_step="wait"))
    with pytest.raises(BrokerUnreachable):
        airflow.task().execute(airflow.context)
    assert last_verification(airflow.world.context().record) is None
    assert airflow.cluster.jobs == {}


def test_the_journal_of_a_migration_is_refused(airflow: Airflow, worlds: Worlds) -> None:
    airflow.world.journal_store.objects.clear()
    airflow.world.journal_store.objects.update(worlds.at("seed").journal_store.objects)
    with pytest.raises(FingerprintChanged, match="journal of a migration"):
        airflow.task().execute(airflow.context)
