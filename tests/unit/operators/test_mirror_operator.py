"""The task of a mirror between simulated clusters: what it waits for, and what it does after each request and death."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from airflow_releases import TaskDeferred
from memory_engine import MemoryCluster, MemoryEngine, MemoryJob
from phase_world.jobs import MIGRATION
from phase_world.outside import Killed
from phase_world.state_records import beats, checkpoints, use_sim_senders
from phase_world.world import World, Worlds, without_probes

from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.documents.job_end import JobEnd
from airflow_provider_kafka_migration.documents.mirror import MirrorRequest
from airflow_provider_kafka_migration.engines import find
from airflow_provider_kafka_migration.engines.base import JobState, SparkJob
from airflow_provider_kafka_migration.engines.run import EngineRunner
from airflow_provider_kafka_migration.errors import (
    BrokerUnreachable,
    CopyFailed,
    EngineUnreachable,
    SpecInvalid,
    StorageRefused,
    StorageUnavailable,
)
from airflow_provider_kafka_migration.job_news import JobNews
from airflow_provider_kafka_migration.migration import Migration
from airflow_provider_kafka_migration.mirror_dag import build_mirror_dag
from airflow_provider_kafka_migration.mirrors import promotion_freeze, requests, watch
from airflow_provider_kafka_migration.operators import mirror as mirror_module
from airflow_provider_kafka_migration.operators import spark_job as operators
from airflow_provider_kafka_migration.operators.mirror import (
    KafkaMirrorFreezeLimitOperator,
    KafkaMirrorOperator,
    KafkaMirrorPlanOperator,
    MirrorTask,
)
from airflow_provider_kafka_migration.planning import follow
from airflow_provider_kafka_migration.record.context import JobRef, Progress
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.triggers import mirror as triggers
from airflow_provider_kafka_migration.triggers import spark_job
from airflow_provider_kafka_migration.triggers.mirror import MirrorJobTrigger, MirrorPausedTrigger

SECTIONS: dict[str, Any] = {
    "kind": "mirror",
    "mirror": {"source_alias": "A", "target_alias": "B", "naming": "rename"},
    "spark": {"engine": "memory"},
}
ORDERS = ("orders", 0)
DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def worlds() -> Worlds:
    return Worlds()


class Airflow:
    """Runs the parts of the task, each in another process, and the triggers between them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cluster = MemoryCluster()
        self.detached = True
        #: States of the tasks of the run, and ids of the runs of the DAG.
        self.states: dict[str, str] = {}
        self.runs = ["r"]
        self.context: Any = self.run("r", hours=0.0)

    def run(self, run_id: str, *, hours: float) -> Any:
        """The context of a task of a run that began so many hours ago, as did the task."""
        began = datetime.now(UTC) - timedelta(hours=hours)
        instance = SimpleNamespace(
            dag_id="d",
            run_id=run_id,
            task_id="mirror",
            start_date=began,
            get_task_states=lambda **_: {run_id: self.states},
            get_dr_count=lambda *, dag_id, run_ids: len({dag_id + name for name in self.runs} & {"d" + run_ids[0]}),
        )
        return {"ti": instance, "params": {}, "dag_run": SimpleNamespace(start_date=began)}

    # -- people

    def ask(self, want: Any, **more: Any) -> MirrorRequest:
        return requests.write(self.world.journal_store, MIGRATION, want, by="ann", at="2026-04-24T10:40:00Z", **more)

    # -- Spark

    def drive(self, job: MemoryJob | None = None) -> None:
        """Copiers copy up to their stop; if they have one, the job ends."""
        job = job or self.cluster.running[0]
        data = self.world.journal_store.get(job.job.arguments[1])
        assert data is not None
        self.world.copiers.copy(CopyJob.parse(data))
        stop = self.world.context().record.tail_stop()
        if stop is not None and stop.offsets:
            self.world.copiers.submit(None, "", job.job.arguments[1], None)
            job.state = JobState.SUCCEEDED
            end = JobEnd.of(job.job.token, None)
            self.world.journal_store.put(f"{MIGRATION}/jobs/ends/{job.job.token}.json", end.canonical())

    def runner(self, task: Any, context: Any) -> EngineRunner:
        engine = MemoryEngine(cluster=self.cluster)
        engine.detached = self.detached
        return EngineRunner(engine, self._make_job, stop=partial(task._pause, context), poll_seconds=0.001)

    @contextmanager
    def _make_job(self, job: JobRef, token: str) -> Iterator[SparkJob]:
        yield SparkJob(MIGRATION, job.name, token, None, None, ("--job-key", job.key))  # type: ignore[arg-type]

    # -- the task

    def task(self, **arguments: Any) -> KafkaMirrorOperator:
        arguments = {"run_for": DAY, "deferrable": True, **arguments}
        spec = self.world.spec.model_dump(mode="json", exclude_unset=True)
        return KafkaMirrorOperator(task_id="mirror", spec=spec, poll_seconds=0.001, **arguments)

    @contextmanager
    def open_migration(self, _task: Any, _context: Any, runner: Any = None) -> Iterator[Migration]:
        self.world.restart()
        _task.storage_uris = {"journal": "s3://bucket/orders"}
        made = Migration.open(self.world.spec, "tester", Resolver(), actor="mirror", runner=runner)
        made.__dict__["journal_store"] = self.world.journal_store
        made.__dict__["context"] = self.world.context()
        made.__dict__["context"].runner = runner
        yield made

    def until_it_waits(self, part: Any) -> tuple[Any, dict[str, Any], str]:
        """Run a part; return the trigger and what is called with its event, as Airflow's database has them."""
        with pytest.raises(TaskDeferred) as deferred:
            part()
        path, arguments = deferred.value.trigger.serialize()
        found = {"MirrorJobTrigger": MirrorJobTrigger, "MirrorPausedTrigger": MirrorPausedTrigger}
        trigger = found[path.rpartition(".")[2]](**json.loads(json.dumps(arguments)))
        trigger.poll_seconds = 0.001
        return trigger, json.loads(json.dumps(deferred.value.kwargs or {})), deferred.value.method_name

    def fire(self, trigger: Any, wake_seconds: float = 600.0) -> dict[str, Any]:
        # By default only a reason of its own wakes the task up here.
        trigger.wake_seconds = wake_seconds

        async def first() -> Any:
            return [event async for event in trigger.run()]

        (event,) = asyncio.run(asyncio.wait_for(first(), 30))
        payload: dict[str, Any] = json.loads(json.dumps(event.payload))
        return payload

    def go_on(self, waiting: tuple[Any, dict[str, Any], str], wake_seconds: float = 600.0) -> Any:
        """The trigger fires, and another process calls the task."""
        trigger, arguments, method = waiting
        event = self.fire(trigger, wake_seconds)
        return getattr(self.task(), method)(self.context, event, **arguments)


@pytest.fixture
def airflow(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> Airflow:
    """A mirror that is seeded."""
    without_probes(monkeypatch)
    monkeypatch.setattr(find, "BUILT_IN", {**find.BUILT_IN, "memory": "memory_engine:MemoryEngine"})
    found = Airflow(worlds.at("tail", **SECTIONS))
    monkeypatch.setattr(MemoryEngine, "shared", found.cluster)
    monkeypatch.setattr(MirrorTask, "open_migration", lambda *given, **more: found.open_migration(*given, **more))
    monkeypatch.setattr(KafkaMirrorOperator, "make_runner", lambda task, context, _spec: found.runner(task, context))
    monkeypatch.setattr(watch, "open_store", lambda *_: found.world.journal_store)

    async def no_connections(*_: Any, **__: Any) -> dict[str, Any]:
        return {}

    def news(watch: Any, *_: object) -> None:
        watch._migration = SimpleNamespace(spec=found.world.spec, close=lambda: None)
        watch._migration.reading = lambda: nullcontext(found.world.context())

    monkeypatch.setattr(JobNews, "open", news)
    monkeypatch.setattr(triggers, "prefetch", no_connections)
    monkeypatch.setattr(spark_job, "prefetch", no_connections)
    monkeypatch.setattr(operators, "_renews_keys", lambda _spec: False)
    monkeypatch.setattr("airflow_provider_kafka_migration.triggers.drain.prefetch", no_connections)
    return found


def test_requests_reach_a_task_that_has_no_slot(airflow: Airflow) -> None:
    """Each part is another process: pause, resume and promote, without a clear; one job at a time."""
    waiting = airflow.until_it_waits(lambda: airflow.task().execute(airflow.context))
    assert isinstance(waiting[0], MirrorJobTrigger)
    assert waiting[0].wake_seconds == 900.0, "nothing to do until somebody asks, or the source has new topics"
    airflow.drive()
    assert len(airflow.cluster.running) == 1

    # A request wakes the task up at once; it stops the copiers, and waits for their end.
    airflow.ask("paused", reason="window")
    waiting = airflow.until_it_waits(lambda: airflow.go_on(waiting))
    assert isinstance(waiting[0], MirrorJobTrigger)
    assert waiting[0].known_request == 1
    assert waiting[0].wake_seconds == 20.0, "while it is carried out"
    airflow.drive()
    waiting = airflow.until_it_waits(lambda: airflow.go_on(waiting))
    assert isinstance(waiting[0], MirrorPausedTrigger)
    assert airflow.world.state is State.PAUSED
    assert airflow.cluster.running == []

    # It goes on by itself.
    airflow.world.source.log(*ORDERS).write(b"new")
    airflow.ask("run")
    waiting = airflow.until_it_waits(lambda: airflow.go_on(waiting))
    assert airflow.world.state is State.TAIL
    airflow.drive()
    assert airflow.world.target.log(*ORDERS).end == 6
    assert len(airflow.cluster.jobs) == 2

    airflow.ask("promoted")
    waiting = airflow.until_it_waits(lambda: airflow.go_on(waiting))
    airflow.drive()
    pointers = airflow.go_on(waiting)
    assert airflow.world.state is State.PROMOTED
    assert pointers == {
        "migration_id": MIGRATION,
        "phase": "mirror",
        "journal": "s3://bucket/orders",
        "summary": "promoted by ann: 3 partitions; copiers are fenced on 3 partitions; 1 write grants",
        "already_done": False,
        "state": "promoted",
    }
    assert len(airflow.cluster.jobs) == 2, "no job was submitted for the promotion"
    again = airflow.task().execute(airflow.context)
    assert (again["state"], again["already_done"]) == ("promoted", True)


@pytest.mark.parametrize("is_over", [False, True])
def test_producers_are_stopped_before_a_promotion_and_freed_after_its_limit(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    """The task has no slot; where it does not come back in time, the task beside it lifts the freeze and goes on."""
    world = airflow.world
    world.change_spec(cutover={"freeze": "acl"})
    clock = SimpleNamespace(sleep=world.clock.sleep, monotonic=world.clock.seconds)
    monkeypatch.setattr(promotion_freeze, "time", clock)
    waiting = airflow.until_it_waits(lambda: airflow.task().execute(airflow.context))
    airflow.drive()
    airflow.ask("promoted")
    waiting = airflow.until_it_waits(lambda: airflow.go_on(waiting))
    assert world.denied == {"User:shop"}
    monkeypatch.setattr(
        KafkaMirrorFreezeLimitOperator, "open_migration", lambda *given, **more: airflow.open_migration(*given, **more)
    )
    spec = world.spec.model_dump(mode="json", exclude_unset=True)
    guard = KafkaMirrorFreezeLimitOperator(task_id="freeze_limit", spec=spec)
    if is_over:
        world.clock.sleep(66)
        with pytest.raises(TaskDeferred):
            guard.execute(airflow.context)
        assert world.denied == set()
        assert "max_producer_freeze has passed" in requests.read(world.journal_store, MIGRATION).refused
    airflow.drive()
    if is_over:
        assert airflow.until_it_waits(lambda: airflow.go_on(waiting)), "it mirrors on"
        assert world.state is State.TAIL
        return
    assert airflow.go_on(waiting)["state"] == "promoted"
    assert world.denied == {"User:shop"}
    assert guard.execute(airflow.context)["already_done"]


def test_a_task_that_dies_finds_its_job_again(airflow: Airflow) -> None:
    airflow.until_it_waits(lambda: airflow.task().execute(airflow.context))
    airflow.until_it_waits(lambda: airflow.task().execute(airflow.context))
    assert len(airflow.cluster.jobs) == 1


def test_a_task_that_was_away_carries_out_the_last_request(airflow: Airflow) -> None:
    waiting = airflow.until_it_waits(lambda: airflow.task().execute(airflow.context))
    airflow.ask("paused")
    waiting = airflow.until_it_waits(lambda: airflow.go_on(waiting))
    airflow.drive()
    waiting = airflow.until_it_waits(lambda: airflow.go_on(waiting))
    # Cleared while it is paused: it waits again, and contacts no engine.
    calls = list(airflow.cluster.calls)
    again = airflow.until_it_waits(lambda: airflow.task().execute(airflow.context))
    assert isinstance(again[0], MirrorPausedTrigger)
    assert airflow.cluster.calls == calls
    airflow.ask("ended")
    assert airflow.go_on(again)["state"] == "ended"
    assert airflow.world.state is State.ENDED


def test_without_a_triggerer_it_waits_in_the_worker(airflow: Airflow, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            airflow.ask("ended")

    monkeypatch.setattr(mirror_module.time, "sleep", sleep)
    airflow.ask("paused")
    pointers = airflow.task(waits_deferred=False).execute(airflow.context)
    assert (pointers["state"], slept) == ("ended", [0.001] * 3)


def test_a_driver_of_the_task_is_waited_for_and_a_pause_gives_the_slot_away(airflow: Airflow) -> None:
    """``spark-submit`` in client mode."""
    airflow.detached = False
    looks: list[str] = []

    def look(job: MemoryJob) -> None:
        looks.append(job.job_id)
        if len(looks) == 2:
            airflow.ask("paused")
            requests.stop_if_asked(airflow.world.context().record, airflow.world.context().source)
        if not job.state.is_over:
            airflow.drive(job)

    airflow.cluster.looks = look
    waiting = airflow.until_it_waits(lambda: airflow.task().execute(airflow.context))
    assert isinstance(waiting[0], MirrorPausedTrigger)
    assert airflow.world.state is State.PAUSED
    assert len(looks) >= 2


def test_a_short_outage_is_survived_in_the_task_and_a_long_one_by_airflow(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow keeps a log for each of its attempts: some minutes of outage must not make hundreds of them."""
    now, slept = [1000.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(mirror_module.time, "sleep", sleep)
    monkeypatch.setattr(mirror_module.time, "monotonic", lambda: now[0])
    errors = [StorageUnavailable("away"), EngineUnreachable("away"), EngineUnreachable("away")]

    def away(name: str) -> None:
        if name == "submit" and errors:
            raise errors.pop()

    airflow.cluster.before = away
    airflow.until_it_waits(lambda: airflow.task().execute(airflow.context))
    assert slept == [1.0, 2.0, 4.0]
    # The last attempt has found the token of the ones before: the mirror copies, so it has not failed any more.
    assert airflow.world.state is State.TAIL

    airflow.cluster.jobs.clear()
    errors += [EngineUnreachable("away") for _ in range(1000)]
    began = now[0]
    with pytest.raises(EngineUnreachable):
        airflow.task(patience_seconds=120).execute(airflow.context)
    assert 60 < now[0] - began <= 120


@pytest.fixture
def answers_late(airflow: Airflow, monkeypatch: pytest.MonkeyPatch) -> Airflow:
    """Its engine was away at the first submission, so that the journal says ``failed``; the second one succeeds."""
    monkeypatch.setattr(mirror_module.time, "sleep", lambda _seconds: None)
    errors = [EngineUnreachable("away")]

    def away(name: str) -> None:
        if name == "submit" and errors:
            raise errors.pop()

    airflow.cluster.before = away
    return airflow


def test_new_partitions_are_followed_after_an_outage(answers_late: Airflow) -> None:
    world = answers_late.world
    answers_late.until_it_waits(lambda: answers_late.task().execute(answers_late.context))
    assert State.FAILED in world.context().journal.history, "the outage was journaled"
    answers_late.drive()
    logs = world.source.topics["orders"].logs
    logs.append(type(logs[0])(0, 0))
    world.source.log("orders", 2).write(b"grown")
    follow.follow(world.context())
    answers_late.drive()
    assert world.target.log("orders", 2).end == 1


def test_a_task_that_waits_itself_leaves_an_outage_behind(answers_late: Airflow) -> None:
    """As the command line does with an engine whose jobs outlive it."""
    airflow, states = answers_late, list[State | None]()

    def look(job: MemoryJob) -> None:
        states.append(airflow.world.state)
        if len(states) == 1:
            airflow.ask("paused")
            requests.stop_if_asked(airflow.world.context().record, airflow.world.context().source)
        if not job.state.is_over:
            airflow.drive(job)

    airflow.cluster.looks = look
    waiting = airflow.until_it_waits(lambda: airflow.task(deferrable=False).execute(airflow.context))
    assert isinstance(waiting[0], MirrorPausedTrigger)
    assert states[0] is State.TAIL, "while its job works"


def test_it_is_paused_after_an_outage(answers_late: Airflow) -> None:
    airflow = answers_late
    waiting = airflow.until_it_waits(lambda: airflow.task().execute(airflow.context))
    airflow.ask("paused")
    waiting = airflow.until_it_waits(lambda: airflow.go_on(waiting))
    airflow.drive()
    waiting = airflow.until_it_waits(lambda: airflow.go_on(waiting))
    assert isinstance(waiting[0], MirrorPausedTrigger)
    assert airflow.world.state is State.PAUSED


def test_a_task_killed_before_its_pause_was_taken_up_goes_on_in_the_right_state(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = airflow.until_it_waits(lambda: airflow.task().execute(airflow.context))
    airflow.drive()
    airflow.ask("paused")
    waiting = airflow.until_it_waits(lambda: airflow.go_on(waiting))
    airflow.drive()

    def dies(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as killing:
        killing.setattr(EngineRunner, "taken_up", dies)
        with pytest.raises(Killed):
            airflow.go_on(waiting)
    assert airflow.world.state is State.PAUSED
    waiting = airflow.until_it_waits(lambda: airflow.task().execute(airflow.context))
    assert isinstance(waiting[0], MirrorPausedTrigger)
    airflow.world.source.log(*ORDERS).write(b"new")
    airflow.ask("run")
    # It finds the job whose end nobody took up, and then starts another one.
    waiting = airflow.until_it_waits(partial(airflow.go_on, waiting))
    if not airflow.cluster.running:
        airflow.until_it_waits(partial(airflow.go_on, waiting))
    airflow.drive()
    assert airflow.world.target.log(*ORDERS).end == 6
    assert airflow.world.state is State.TAIL, "it copies, so it is not paused"


def test_what_does_not_pass_is_an_error_at_once(airflow: Airflow, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(mirror_module.time, "sleep", slept.append)

    def fails(name: str) -> None:
        if name == "submit":
            raise CopyFailed("3 partitions could not be copied")

    airflow.cluster.before = fails
    with pytest.raises(CopyFailed):
        airflow.task().execute(airflow.context)
    assert slept == []


def test_requests_that_cannot_be_read_do_not_end_the_wait_for_the_job(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = airflow.until_it_waits(lambda: airflow.task().execute(airflow.context))
    asked: list[int] = []

    def away(*_: object) -> Any:
        asked.append(1)
        if len(asked) == 3:
            airflow.cluster.running[0].state = JobState.FAILED
        raise StorageUnavailable("away")

    monkeypatch.setattr(watch.requests, "read", away)
    assert airflow.fire(waiting[0])["status"] == "ended"
    assert len(asked) == 3


def test_a_task_before_it_ends_a_mirror_that_shall_end(airflow: Airflow) -> None:
    """A mirror whose seed never ends can be ended by a request and a clear, and then needs no source."""
    airflow.ask("ended")
    spec = airflow.world.spec.model_dump(mode="json", exclude_unset=True)
    pointers = KafkaMirrorPlanOperator(task_id="plan", spec=spec).execute(airflow.context)
    assert (pointers["phase"], pointers["state"], pointers["already_done"]) == ("plan", "ended", False)
    again = KafkaMirrorPlanOperator(task_id="plan", spec=spec).execute(airflow.context)
    assert (again["summary"], again["already_done"]) == ("the mirror is ended", True)


def test_a_migration_is_no_mirror(minimal_spec: dict[str, Any]) -> None:
    context: Any = {"ti": None, "params": {}}
    with pytest.raises(SpecInvalid, match="spec of a migration, not of a mirror"):
        KafkaMirrorOperator(task_id="mirror", spec=minimal_spec).migration_spec(context)


def test_the_form_of_a_mirror_needs_no_kind() -> None:
    params = {
        "migration_id": "a-to-b",
        "source": "kafka_a",
        "target": "kafka_b",
        "source_alias": "A",
        "target_alias": "B",
        "journal": "s3://bucket/x",
    }
    context: Any = {"ti": None, "params": params}
    spec = KafkaMirrorPlanOperator(task_id="plan").migration_spec(context)
    assert (spec.kind, spec.mirror.source_alias) == ("mirror", "A")


@pytest.mark.parametrize("phase", ["tail", "cutover", "mirror"])
def test_people_know_the_copy_by_its_task(airflow: Airflow, phase: str) -> None:
    stored: dict[str, Any] = {}
    store = SimpleNamespace(set=lambda _key, value: stored.update(value))
    sink = airflow.task().progress_sink({**airflow.context, "task_state_store": store})
    sink(Progress(phase, "3 of 3 partitions"))
    assert stored["phase"] == "mirror"


def test_a_task_that_wakes_up_writes_the_state_topics(airflow: Airflow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wake-up is another process: it goes on from what the topics hold. Nothing is written while it is paused."""
    use_sim_senders(monkeypatch)
    state = {"checkpoints": True, "heartbeats": True, "heartbeats_interval": "1s", "checkpoints_interval": "1s"}
    airflow.world.change_spec(mirror={**SECTIONS["mirror"], "state_topics": state})
    waiting = airflow.until_it_waits(lambda: airflow.task().execute(airflow.context))
    airflow.drive()
    target = airflow.world.target
    counts = []
    for _ in range(3):
        airflow.world.clock.sleep(20)
        waiting = airflow.until_it_waits(lambda found=waiting: airflow.go_on(found, 0.01))
        counts.append((len(beats(target, "A.heartbeats")), target.log("A.checkpoints.internal").end))
    assert [count for count, _ in counts] == [2, 3, 4], "one when the job begins, and one with each wake-up"
    assert len({end for _, end in counts}) == 1, "positions that have not changed are written once"
    assert ("billing", "orders", 0) in checkpoints(target, "A.checkpoints.internal")
    airflow.ask("paused")
    waiting = airflow.until_it_waits(lambda: airflow.go_on(waiting))
    airflow.drive()
    before = len(beats(target, "A.heartbeats"))
    waiting = airflow.until_it_waits(lambda: airflow.go_on(waiting))
    assert isinstance(waiting[0], MirrorPausedTrigger)
    assert len(beats(target, "A.heartbeats")) == before


def test_new_topics_of_the_source_wake_the_task_up_once(airflow: Airflow) -> None:
    """The triggerer sees them; the task makes them on the target. What it cannot make does not wake it up again."""
    airflow.world.change_spec(topology={"follow_new": True})
    waiting = airflow.until_it_waits(lambda: airflow.task().execute(airflow.context))
    airflow.world.source.create("refunds", 2)
    event = airflow.fire(waiting[0])
    assert event["status"] == "wake"
    assert event["news"] == "topics of the source differ from the plan (new: refunds)"
    waiting = airflow.until_it_waits(lambda: airflow.task().resume(airflow.context, event, **waiting[1]))
    assert ("refunds", 1) in airflow.world.context().record.partitions()
    assert waiting[0].known_news == event["news"]


def test_a_request_that_cannot_be_read_keeps_the_task_close(airflow: Airflow, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a promotion, whose freeze has a limit."""
    waiting = airflow.until_it_waits(lambda: airflow.task().execute(airflow.context))

    def away(*_: object) -> None:
        raise StorageUnavailable("away")

    monkeypatch.setattr(requests, "read", away)
    event = {"status": "wake", "state": "running"}
    waiting = airflow.until_it_waits(lambda: airflow.task().resume(airflow.context, event, **waiting[1]))
    assert (waiting[0].wake_seconds, waiting[0].known_request) == (20.0, None)


# -- a chain of runs ---------------------------------------------------------------------------------------------------


def _steps(airflow: Airflow) -> list[Any]:
    return [(entry.step, entry.to_state) for entry in airflow.world.context().journal.entries()]


def test_a_run_whose_time_is_over_ends_well_and_the_next_one_finds_the_job(airflow: Airflow) -> None:
    first, second = airflow.run("r", hours=25), airflow.run("next-2__r", hours=0)
    waiting = airflow.until_it_waits(lambda: airflow.task().execute(airflow.context))
    before = _steps(airflow)
    airflow.context = first
    pointers = airflow.go_on(waiting, wake_seconds=0.0)
    assert (pointers["state"], pointers["run_is_over"]) == ("tail", True)
    assert len(airflow.cluster.running) == 1, "the job copies on"
    airflow.context = second
    airflow.until_it_waits(lambda: airflow.task().execute(second))
    assert len(airflow.cluster.jobs) == 1
    assert _steps(airflow) == before, "the journal has nothing to say about it"


def test_the_task_wakes_up_in_time_for_the_next_run(airflow: Airflow) -> None:
    airflow.context = airflow.run("r", hours=23.999)
    trigger, *_ = airflow.until_it_waits(lambda: airflow.task().execute(airflow.context))
    assert 0 < trigger.wake_seconds <= 3.6
    airflow.context = airflow.run("r", hours=1)
    trigger, *_ = airflow.until_it_waits(lambda: airflow.task().execute(airflow.context))
    assert trigger.wake_seconds > 3.6


def test_a_run_is_not_left_while_producers_are_stopped(airflow: Airflow, monkeypatch: pytest.MonkeyPatch) -> None:
    world = airflow.world
    world.change_spec(cutover={"freeze": "acl"})
    clock = SimpleNamespace(sleep=world.clock.sleep, monotonic=world.clock.seconds)
    monkeypatch.setattr(promotion_freeze, "time", clock)
    waiting = airflow.until_it_waits(lambda: airflow.task().execute(airflow.context))
    airflow.drive()
    airflow.ask("promoted")
    waiting = airflow.until_it_waits(lambda: airflow.go_on(waiting))
    assert world.denied == {"User:shop"}
    airflow.context = airflow.run("r", hours=25)
    waiting = airflow.until_it_waits(lambda: airflow.go_on(waiting, wake_seconds=0.0))
    airflow.drive()
    pointers = airflow.go_on(waiting)
    assert pointers["state"] == "promoted"
    assert "run_is_over" not in pointers


@pytest.mark.parametrize("detached", [True, False])
def test_a_task_that_stays_leaves_a_detached_job_and_ends_its_own_driver(airflow: Airflow, detached: bool) -> None:
    airflow.detached = detached
    airflow.context = airflow.run("r", hours=25)
    pointers = airflow.task(deferrable=False).execute(airflow.context)
    assert (pointers["state"], pointers["run_is_over"]) == ("tail", True)
    assert len(airflow.cluster.running) == detached
    assert airflow.world.state is State.TAIL, "nothing has failed"


@pytest.mark.parametrize("error", [StorageUnavailable("away"), StorageRefused("keys were replaced")])
def test_a_run_is_not_left_while_its_journal_cannot_be_read(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Nobody knows then whether producers are stopped; and the mirror itself does not end of it."""
    waiting = airflow.until_it_waits(lambda: airflow.task().execute(airflow.context))
    airflow.context = airflow.run("r", hours=25)

    def away(_migration: Migration) -> None:
        raise error

    monkeypatch.setattr(Migration, "status", away)
    again = airflow.until_it_waits(lambda: airflow.go_on(waiting, wake_seconds=0.0))
    assert isinstance(again[0], MirrorJobTrigger)
    assert len(airflow.cluster.running) == 1


@pytest.mark.parametrize("waits_deferred", [True, False])
def test_a_paused_mirror_passes_on_as_well(airflow: Airflow, waits_deferred: bool) -> None:
    airflow.ask("paused")
    waiting = airflow.until_it_waits(lambda: airflow.task().execute(airflow.context))
    assert isinstance(waiting[0], MirrorPausedTrigger)
    airflow.context = airflow.run("r", hours=25)
    if waits_deferred:
        waiting[0].look_at = datetime.now(UTC).isoformat()
        pointers = airflow.go_on(waiting)
    else:
        pointers = airflow.task(waits_deferred=False).execute(airflow.context)
    assert (pointers["state"], pointers["run_is_over"]) == ("paused", True)
    airflow.context = airflow.run("next-2__r", hours=0)
    trigger, *_ = airflow.until_it_waits(lambda: airflow.task().execute(airflow.context))
    assert isinstance(trigger, MirrorPausedTrigger)
    assert datetime.fromisoformat(trigger.look_at) - datetime.now(UTC) > timedelta(hours=23)


def test_a_promotion_that_stops_producers_while_the_run_is_left_keeps_it(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that carries out requests runs until the job is left, and may begin a freeze in between."""
    airflow.world.change_spec(cutover={"freeze": "acl"})
    airflow.context = airflow.run("r", hours=25)
    freezes: list[Any] = [None, "a freeze", None]
    status = Migration.status
    monkeypatch.setattr(Migration, "status", lambda self: replace(status(self), freeze=freezes.pop(0)))
    monkeypatch.setattr(mirror_module, "_present", lambda _migration: (State.TAIL, "mirror"))
    monkeypatch.setattr(mirror_module, "_LOOK_SECONDS", 0.0)
    freezes.append(None)
    pointers = airflow.task(deferrable=False).execute(airflow.context)
    assert pointers["run_is_over"]
    assert freezes == [], "it has looked again after it had left the job, and again in its second attempt"
    assert len(airflow.cluster.jobs) == 1


@pytest.mark.parametrize("operator", [*mirror_module.OPERATORS.values()][:6], ids=lambda kind: kind.phase)
def test_clusters_that_are_away_when_runs_change_keep_no_run_from_its_mirror(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch, operator: Any
) -> None:
    """``mirror`` outlives an outage of days, and so the tasks before it may not need what is away."""

    airflow.until_it_waits(lambda: airflow.task().execute(airflow.context))

    def away(*_: object) -> None:
        raise BrokerUnreachable("gone")

    monkeypatch.setattr(Migration, "_phase_context", away)
    spec = airflow.world.spec.model_dump(mode="json", exclude_unset=True)
    done = operator(task_id=operator.phase, spec=spec).execute(airflow.run("next-2__r", hours=0))
    assert (done["phase"], done["already_done"]) == (operator.phase, True)


def test_a_run_that_follows_one_that_was_never_done_does_all_steps(airflow: Airflow, worlds: Worlds) -> None:
    airflow.world = worlds.at("plan", **SECTIONS)
    plan = KafkaMirrorPlanOperator(task_id="plan", spec=airflow.task().spec)
    assert plan._without_clusters(airflow.run("next-2__r", hours=0)) is None


def test_next_run_can_read_what_mirror_has_returned(minimal_spec: dict[str, Any]) -> None:
    """Without it the chain would end after a day, without a word."""
    mirror = {"kind": "mirror", "mirror": {"source_alias": "A", "target_alias": "B"}}
    dag = build_mirror_dag({**minimal_spec, **mirror}, default_args={"do_xcom_push": False})
    assert dag.get_task("mirror").do_xcom_push
    with pytest.raises(ValueError, match="do_xcom_push"):
        build_mirror_dag({**minimal_spec, **mirror}, task_args={"mirror": {"do_xcom_push": False}})


def test_a_cleared_task_of_an_earlier_run_leaves_the_mirror_to_the_later_one(airflow: Airflow) -> None:
    airflow.runs.append("next-2__r")
    pointers = airflow.task().execute(airflow.context)
    assert pointers["already_done"]
    assert "run_is_over" not in pointers, "no second run is started"
    assert airflow.cluster.jobs == {}


def test_a_run_that_follows_takes_a_spec_that_an_earlier_version_accepted(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The strict tasks are for a new mirror: an upgrade must not end one that has run for a year."""
    asked: list[bool] = []
    monkeypatch.setattr(mirror_module, "run_spec", lambda *_, recorded, kind: asked.append(recorded))
    for run_id in ("r", "next-2__r"):
        plan = KafkaMirrorPlanOperator(task_id="plan", spec=airflow.task().spec)
        plan.migration_spec(airflow.run(run_id, hours=0))
    assert asked == [False, True]


def _guard(airflow: Airflow, monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> KafkaMirrorFreezeLimitOperator:
    airflow.world.change_spec(cutover={"freeze": "acl"})
    monkeypatch.setattr(
        KafkaMirrorFreezeLimitOperator, "open_migration", lambda *given, **more: airflow.open_migration(*given, **more)
    )
    spec = airflow.world.spec.model_dump(mode="json", exclude_unset=True)
    return KafkaMirrorFreezeLimitOperator(task_id="freeze_limit", spec=spec, **{"run_for": DAY, **arguments})


@pytest.mark.parametrize(
    ("hours", "mirror", "looks_after"),
    [
        (0.0, "running", 86_420),
        (25, "running", 60),
        (25, "deferred", 60),
        (25, "up_for_retry", 60),
        (25, "failed", 900),
        (25, "success", None),
    ],
)
def test_the_watch_of_a_freeze_ends_after_the_mirrors_task(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch, hours: float, mirror: str, looks_after: float | None
) -> None:
    """The run would not end without it; and nobody would watch if it ended before."""
    guard = _guard(airflow, monkeypatch)
    airflow.states["mirror"] = mirror
    context = airflow.run("r", hours=hours)
    if looks_after is None:
        assert guard.execute(context)["already_done"]
        return
    with pytest.raises(TaskDeferred) as deferred:
        guard.execute(context)
    trigger: Any = deferred.value.trigger
    left = datetime.fromisoformat(trigger.look_at) - datetime.now(UTC)
    assert looks_after - 60 < left.total_seconds() <= looks_after


@pytest.mark.parametrize("freeze", ["a freeze", StorageUnavailable("away")])
def test_a_freeze_is_watched_also_in_a_run_that_was_left(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch, freeze: Any
) -> None:
    guard, status = _guard(airflow, monkeypatch), Migration.status
    airflow.states["mirror"] = "success"
    airflow.runs.append("next-2__r")

    def found(migration: Migration) -> Any:
        if isinstance(freeze, Exception):
            raise freeze
        return replace(status(migration), freeze=freeze)

    monkeypatch.setattr(Migration, "status", found)
    with pytest.raises(TaskDeferred):
        guard.execute(airflow.run("r", hours=25))


def test_the_watch_of_an_earlier_run_is_over_and_that_of_an_endless_run_never(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow.runs.append("next-2__r")
    assert _guard(airflow, monkeypatch).execute(airflow.context)["already_done"]
    with pytest.raises(TaskDeferred) as deferred:
        _guard(airflow, monkeypatch, run_for=None).execute(airflow.run("r", hours=1000))
    assert deferred.value.trigger.look_at is None  # type: ignore[attr-defined]
