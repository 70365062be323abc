"""The trigger of jobs on engines, and the round trip of a task that waits with it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow_releases import TaskDeferred
from memory_engine import MemoryCluster, MemoryEngine, MemoryJob

from airflow_provider_kafka_migration import job_news
from airflow_provider_kafka_migration import migration as core
from airflow_provider_kafka_migration.engines import find
from airflow_provider_kafka_migration.engines.base import JobState, SparkJob
from airflow_provider_kafka_migration.engines.run import EngineRunner
from airflow_provider_kafka_migration.errors import BrokerUnreachable, ClaimLost, EngineForbidden, EngineUnreachable
from airflow_provider_kafka_migration.freeze import one_task
from airflow_provider_kafka_migration.jobs.submissions import Submission
from airflow_provider_kafka_migration.operators import spark_job as operators
from airflow_provider_kafka_migration.operators.migration import (
    KafkaMigrationSeedOperator,
    KafkaMigrationSparkCheckOperator,
    KafkaMigrationTailOperator,
)
from airflow_provider_kafka_migration.provider.progress import TROUBLE
from airflow_provider_kafka_migration.record.context import PhaseResult, Progress
from airflow_provider_kafka_migration.triggers import spark_job
from airflow_provider_kafka_migration.triggers.spark_job import SparkJobTrigger


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    """The cluster behind the engine ``memory``, with one job that runs."""
    found = MemoryCluster()
    monkeypatch.setattr(MemoryEngine, "shared", found)
    monkeypatch.setattr(find, "BUILT_IN", {**find.BUILT_IN, "memory": "memory_engine:MemoryEngine"})
    found.submit(SparkJob("m", "seed", "seed-1", None, None, ()))  # type: ignore[arg-type]
    return found


def trigger(**changes: Any) -> SparkJobTrigger:
    """As it comes out of Airflow's database."""
    given = {"engine": "memory", "arguments": {"room": "b"}, "job_id": "job-1", "poll_seconds": 0.001, **changes}
    path, arguments = SparkJobTrigger(**{"wake_seconds": 60.0, **given}).serialize()
    assert path == "airflow_provider_kafka_migration.triggers.spark_job.SparkJobTrigger"
    return SparkJobTrigger(**json.loads(json.dumps(arguments)))


def fire(one: SparkJobTrigger) -> dict[str, Any]:
    """Its event."""

    async def first() -> Any:
        return [event async for event in one.run()]

    (event,) = asyncio.run(first())
    payload: dict[str, Any] = json.loads(json.dumps(event.payload))
    return payload


@pytest.mark.parametrize("state", [state for state in JobState if state.is_over])
def test_it_fires_when_the_job_has_ended(cluster: MemoryCluster, state: JobState) -> None:
    looks = 0

    def end(job: MemoryJob) -> None:
        nonlocal looks
        looks += 1
        job.state = state if looks == 3 else JobState.RUNNING

    cluster.looks = end
    assert fire(trigger())["state"] == str(state)
    assert looks == 3


def test_it_wakes_the_task_while_the_job_runs(cluster: MemoryCluster) -> None:
    event = fire(trigger(wake_seconds=0.0))
    assert (event["status"], event["state"]) == ("wake", "running")
    assert cluster.running


@pytest.mark.parametrize(
    ("wake_seconds", "wake_at", "left"),
    [
        (900.0, 10_900.0, 900.0),
        (900.0, 10_100.0, 100.0),
        (900.0, 9_000.0, 60.0),
        (900.0, 99_000.0, 900.0),
        (20.0, 9_000.0, 20.0),
        (900.0, None, 900.0),
    ],
    ids=["new", "restarted", "overdue or ahead", "behind", "hurries", "of an earlier version"],
)
def test_a_triggerer_that_is_restarted_often_does_not_put_the_wake_up_off(
    wake_seconds: float, wake_at: float | None, left: float
) -> None:
    """Groups would not follow, and a run of a chain would not end."""
    assert spark_job.seconds_left(wake_seconds, wake_at, now=10_000.0) == left


def test_a_task_says_when_it_has_to_wake_up(task: Any) -> None:
    before = time.time()
    waiting, _ = waits(lambda: task.execute(context()))
    assert before + waiting.wake_seconds <= waiting.wake_at <= time.time() + waiting.wake_seconds


def test_an_engine_that_does_not_answer_does_not_end_the_wait(cluster: MemoryCluster) -> None:
    cluster.jobs["job-1"].state = JobState.SUCCEEDED
    cluster.answers = [EngineUnreachable("busy"), OSError("no route"), JobState.UNKNOWN, JobState.PENDING]
    assert fire(trigger())["state"] == "succeeded"
    assert cluster.answers == []


def test_a_refused_question_does(cluster: MemoryCluster) -> None:
    cluster.answers = [EngineForbidden("no right")]
    event = fire(trigger())
    assert (event["status"], event["error"]["code"]) == ("failed", "ENGINE_FORBIDDEN")
    assert cluster.running


def test_wrong_arguments_are_an_event_and_no_dead_trigger(cluster: MemoryCluster) -> None:
    assert fire(trigger(arguments={"chamber": 1}))["error"]["code"] == "SPEC_INVALID"
    assert fire(trigger(engine="nobody"))["error"]["code"] == "ENGINE_UNKNOWN"


def test_a_failing_trigger_of_the_engine_does_not_end_the_wait(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise EngineUnreachable("busy")

    monkeypatch.setattr(MemoryEngine, "trigger", away)
    cluster.jobs["job-1"].state = JobState.SUCCEEDED
    assert fire(trigger())["state"] == "succeeded"


def test_only_a_person_cancels_the_job(cluster: MemoryCluster) -> None:
    asyncio.run(trigger().cleanup())
    assert cluster.running
    asyncio.run(trigger().on_kill())
    assert not cluster.running


# -- news --


class News:
    """Stands for the watch: has these answers, the last one again and again."""

    def __init__(self, *answers: str | Exception) -> None:
        self.answers = list(answers)
        self.closed = 0
        self.is_open = False
        self.failure = ""

    def open(self, *_: object) -> None:
        self.is_open = True

    def check(self) -> str:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.closed += self.is_open
        self.is_open = False


def _with_news(
    monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any], *answers: str | Exception, **more: Any
) -> tuple[SparkJobTrigger, News]:
    async def no_connections(*_: Any, **__: Any) -> dict[str, Any]:
        return {}

    found = News(*answers)
    monkeypatch.setattr(spark_job, "prefetch", no_connections)
    monkeypatch.setattr(job_news, "JobNews", lambda *_, **__: found)
    return trigger(spec=spec, job="tail", **more), found


def test_news_wake_the_task_up_before_its_time(
    cluster: MemoryCluster, minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, news = _with_news(monkeypatch, minimal_spec, "", "", "1 partitions have failed")
    event = fire(one)
    assert (event["status"], event["news"]) == ("wake", "1 partitions have failed")
    assert news.closed == 1


def test_known_news_are_none_unless_they_come_again(
    cluster: MemoryCluster, minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = _with_news(monkeypatch, minimal_spec, "stuck", known_news="stuck", wake_seconds=0.05)
    assert fire(one)["news"] == "stuck"
    again, _ = _with_news(monkeypatch, minimal_spec, "stuck", "", "stuck", known_news="stuck")
    assert fire(again)["status"] == "wake"
    over, _ = _with_news(monkeypatch, minimal_spec, "", known_news="stuck", wake_seconds=0.05)
    assert fire(over)["news"] == "", "the next time they are news"


def test_what_cannot_be_looked_at_does_not_end_the_wait_and_is_opened_again(
    cluster: MemoryCluster, minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = BrokerUnreachable("gone"), KeyError("document")
    one, news = _with_news(monkeypatch, minimal_spec, *errors, "new topics")
    assert fire(one)["news"] == "new topics"
    assert news.closed == 3


def test_a_source_that_does_not_answer_holds_nothing_up(
    cluster: MemoryCluster, minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at it takes a minute then; the end of the job, and the request to promote without it, do not wait."""
    one, news = _with_news(monkeypatch, minimal_spec, "")
    answers, calls = threading.Event(), list[str]()

    def check() -> str:
        calls.append("asked")
        cluster.running[0].state = JobState.SUCCEEDED
        assert answers.wait(300)
        return ""

    monkeypatch.setattr(news, "check", check)

    async def first() -> Any:
        found = []
        async for event in one.run():
            found.append((event.payload["status"], news.closed))
            answers.set()
        return found

    assert asyncio.run(asyncio.wait_for(first(), 300)) == [("ended", 0)]
    assert (calls, news.closed) == (["asked"], 1), "connections are closed once nobody uses them"


def test_keys_that_expire_are_renewed_in_time(task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "_renews_keys", lambda _spec: True)
    waiting, _ = waits(lambda: task.execute(context()))
    assert waiting.wake_seconds == 300.0


# -- a task that waits ------------------------------------------------------------------------------------------------


class Core:
    """A migration whose phase has one job; notes what the task asks of it."""

    def __init__(self, spec: Any, cluster: MemoryCluster) -> None:
        self.spec, self.cluster = spec, cluster
        self.calls: list[str] = []
        self.runner: Any = None
        self.trouble: Exception | None = None
        self.context = SimpleNamespace(record=SimpleNamespace(journal_store=SimpleNamespace(get=lambda _key: None)))
        self.context.record.key = lambda name: name
        self.context.record.spec = spec

    def run(self, phase: str) -> PhaseResult:
        self.calls.append("run")
        return PhaseResult(phase, "ran")

    def start_job(self, phase: str) -> Submission:
        self.calls.append("start")
        return Submission(phase, "seed-1", "memory", 1, 7, "job-1")

    def follow_job(self, phase: str, submission: Submission, memory: dict[str, Any]) -> Progress:
        self.calls.append("follow")
        if self.trouble is not None:
            raise self.trouble
        memory["passes"] = memory.get("passes", 0) + 1
        return Progress(phase, f"pass {memory['passes']}", failed=1)

    def end_job(self, phase: str, submission: Submission) -> PhaseResult:
        assert submission == Submission(phase, "seed-1", "memory", 1, 7, "job-1")
        self.calls.append("end")
        return PhaseResult(phase, "done")


@pytest.fixture
def heard() -> list[Any]:
    return []


@pytest.fixture
def task(
    cluster: MemoryCluster, minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch, heard: list[Any]
) -> KafkaMigrationTailOperator:
    spec = {**minimal_spec, "spark": {"engine": "memory", "engine_args": {"room": "b"}}}
    operator = KafkaMigrationTailOperator(task_id="tail", spec=spec, deferrable=True, on_trouble=heard.append)
    made = Core(operator.migration_spec(context()), cluster)

    @contextmanager
    def open_migration(self: Any, *_: Any, runner: Any) -> Iterator[Any]:
        self.storage_uris = {"journal": "s3://bucket/orders"}
        # What renews connections while a job runs has tests of its own.
        runner.make_job = lambda *_: nullcontext()
        made.runner = runner
        yield made

    monkeypatch.setattr(KafkaMigrationTailOperator, "open_migration", open_migration)
    monkeypatch.setattr(operators, "_renews_keys", lambda _spec: False)
    # No freeze is lifted here.
    monkeypatch.setattr(one_task, "tail_goes_on", lambda _context, **_: False)
    operator.core = made  # type: ignore[attr-defined]
    return operator


def context() -> Any:
    ti = SimpleNamespace(dag_id="d", run_id="r", task_id="tail")
    return {"ti": ti, "params": {}}


def waits(part: Any) -> tuple[SparkJobTrigger, dict[str, Any]]:
    """Run a part of the task up to its deferral; return the trigger and the arguments, as the database has them."""
    with pytest.raises(TaskDeferred) as deferred:
        part()
    path, arguments = deferred.value.trigger.serialize()
    assert path.endswith("SparkJobTrigger")
    assert deferred.value.method_name == "resume"
    found = SparkJobTrigger(**json.loads(json.dumps(arguments)))
    assert (found.spec or {})["migration_id"] == "orders"
    # What it looks for has tests of its own.
    found.spec = None
    return found, json.loads(json.dumps(deferred.value.kwargs))


def test_a_deferrable_task_gives_its_slot_away_and_wakes_up(
    task: Any, cluster: MemoryCluster, heard: list[Any]
) -> None:
    waiting, arguments = waits(lambda: task.execute(context()))
    assert (waiting.engine, waiting.arguments, waiting.job_id) == ("memory", {"room": "b"}, "job-1")
    assert (waiting.wake_seconds, waiting.job, waiting.known_news) == (900.0, "tail", "")
    assert task.core.calls == ["start", "follow"]
    for passes in (2, 3):
        event = {"status": "wake", "state": "running"}
        waiting, arguments = waits(lambda event=event, given=arguments: task.resume(context(), event, **given))
        assert arguments["memory"]["passes"] == passes
    # Each part is a new process, but people are notified once.
    assert len(heard) == 1
    cluster.jobs["job-1"].state = JobState.SUCCEEDED
    waiting.poll_seconds = 0.001
    pointers = task.resume(context(), fire(waiting), **arguments)
    assert pointers["summary"] == "done"
    assert task.core.calls == ["start", "follow", "follow", "follow", "end"]


@pytest.mark.parametrize(("days", "told"), [(6, 0), (8, 1)])
def test_people_are_told_once_that_housekeeping_may_delete_an_old_run(
    task: Any, heard: list[Any], days: int, told: int
) -> None:
    given = context()
    given["dag_run"] = SimpleNamespace(start_date=datetime.now(UTC) - timedelta(days=days))
    _, arguments = waits(lambda: task.execute(given))
    waits(lambda: task.resume(given, {"status": "wake", "state": "running"}, **arguments))
    old = [item[TROUBLE] for item in heard if item[TROUBLE].startswith("RUN_IS_OLD")]
    assert len(old) == told
    assert all("--exclude-dag-ids d)" in text for text in old)


def test_clusters_that_are_away_do_not_end_the_wait(task: Any) -> None:
    task.core.trouble = BrokerUnreachable("gone")
    _, arguments = waits(lambda: task.execute(context()))
    waits(lambda: task.resume(context(), {"status": "wake", "state": "running"}, **arguments))
    assert task.core.calls == ["start", "follow", "follow"]


def test_an_error_that_nobody_expected_beside_the_job_does_not_end_the_wait(task: Any) -> None:
    """As in a task that waits itself, where threads log such errors and the job goes on."""
    task.core.trouble = KeyError("schema")
    _, arguments = waits(lambda: task.execute(context()))
    waits(lambda: task.resume(context(), {"status": "wake", "state": "running"}, **arguments))
    assert task.core.calls == ["start", "follow", "follow"]


def test_connections_that_cannot_be_renewed_do_not_keep_the_task_from_following(
    task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def renewed(*_: object) -> Any:
        raise BrokerUnreachable("the store of secrets is away")

    monkeypatch.setattr(EngineRunner, "renewed", renewed)
    waits(lambda: task.execute(context()))
    assert task.core.calls == ["start", "follow"]


def test_a_lost_claim_ends_the_wait(task: Any) -> None:
    task.core.trouble = ClaimLost("another run")
    with pytest.raises(ClaimLost):
        task.execute(context())


def test_an_end_that_comes_between_two_looks_is_taken_up_at_once(task: Any, cluster: MemoryCluster) -> None:
    _, arguments = waits(lambda: task.execute(context()))
    cluster.jobs["job-1"].state = JobState.FAILED
    task.resume(context(), {"status": "wake", "state": "running"}, **arguments)
    assert task.core.calls[-1] == "end"


def test_an_error_of_the_trigger_fails_the_task_and_leaves_the_job(task: Any, cluster: MemoryCluster) -> None:
    _, arguments = waits(lambda: task.execute(context()))
    cluster.answers = [EngineForbidden("no right")]
    with pytest.raises(EngineForbidden):
        task.resume(context(), fire(trigger()), **arguments)
    assert cluster.running


def test_a_task_that_is_killed_in_one_of_its_parts_cancels_the_job(task: Any, cluster: MemoryCluster) -> None:
    _, arguments = waits(lambda: task.execute(context()))
    waits(lambda: task.resume(context(), {"status": "wake", "state": "running"}, **arguments))
    task.on_kill()
    assert not cluster.running


@pytest.mark.parametrize("state", ["up_for_retry", "restarting", "failed", "running", None])
def test_a_job_is_left_to_the_attempt_that_airflow_starts_itself(
    task: Any, cluster: MemoryCluster, state: str | None
) -> None:
    """Only a person's clear, mark or stop cancels it: Airflow itself fails parts that a late report confuses."""

    def get_task_states(*, dag_id: str, task_ids: list[str], run_ids: list[str]) -> dict[str, dict[str, str]]:
        assert (dag_id, task_ids, run_ids) == ("d", ["tail"], ["r"])
        if state is None:
            raise ConnectionError("the API server is away")
        return {"r": {"tail": state}}

    given = context()
    given["ti"].get_task_states = get_task_states
    _, arguments = waits(lambda: task.execute(given))
    waits(lambda: task.resume(given, {"status": "wake", "state": "running"}, **arguments))
    task.on_kill()
    assert bool(cluster.running) == (state == "up_for_retry")


def test_a_killed_task_removes_its_connections_whatever_fails(
    task: Any, cluster: MemoryCluster, tmp_path: Path
) -> None:
    _, arguments = waits(lambda: task.execute(context()))
    waits(lambda: task.resume(context(), {"status": "wake", "state": "running"}, **arguments))
    (folder := tmp_path / "connections").mkdir()
    (folder / "references.json").touch()

    def kill() -> None:
        raise PermissionError("not mine")

    task._private_directory, task._started = folder, [SimpleNamespace(kill=kill)]
    with pytest.raises(PermissionError):
        task.on_kill()
    assert not folder.exists()
    assert not cluster.running


def test_the_probe_waits_because_an_error_of_its_job_is_a_finding(
    task: Any, minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KafkaMigrationSparkCheckOperator, "open_migration", type(task).open_migration)
    check = KafkaMigrationSparkCheckOperator(task_id="spark_check", spec=task.spec, deferrable=True)
    assert check.execute(context())["summary"] == "ran"
    assert task.core.calls == ["run"]


def test_tasks_are_deferrable_as_airflow_is_configured(minimal_spec: dict[str, Any]) -> None:
    assert not KafkaMigrationSeedOperator(task_id="seed", spec=minimal_spec).deferrable
    assert KafkaMigrationSeedOperator(task_id="seed", spec=minimal_spec, deferrable=True).deferrable


def test_the_core_has_what_the_task_asks_for() -> None:
    for name in ("start_job", "follow_job", "end_job"):
        assert callable(getattr(core.Migration, name))
