"""Jobs on an engine whose jobs outlive their task: one runs, wherever the task dies, and its end is told by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from memory_engine import MemoryCluster, MemoryEngine, MemoryJob
from phase_world.jobs import MIGRATION
from phase_world.outside import Killed
from phase_world.world import World, Worlds

from airflow_provider_kafka_migration.documents.job_end import JobEnd
from airflow_provider_kafka_migration.engines import find
from airflow_provider_kafka_migration.engines.base import JobState, SparkJob
from airflow_provider_kafka_migration.engines.run import EngineRunner
from airflow_provider_kafka_migration.errors import (
    ClaimLost,
    CopyFailed,
    EngineForbidden,
    EngineUnreachable,
    ExecutorUnfit,
    Interrupted,
    SourceGap,
    SparkJobCancelled,
    SparkJobFailed,
    StorageUnavailable,
    Terminal,
)
from airflow_provider_kafka_migration.jobs.submissions import Submission, Submissions
from airflow_provider_kafka_migration.journal.entries import Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.migration import Migration
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import JobRef, PhaseResult
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.references import Resolver


class Lab:
    """A migration, and a cluster on which its jobs run.

    :param end: what a driver raises at its end; None: it has copied everything.
    :param tells: whether drivers write how they have ended.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.cluster = MemoryCluster(looks=self._drive)
        self.end: BaseException | None = None
        self.tells = True
        self.works = True

    def _drive(self, job: MemoryJob) -> None:
        """A look at a job finds that it has ended."""
        if not self.works or job.state.is_over:
            return
        arguments = job.job.arguments
        if self.end is None:
            self.world.copiers.submit(None, "", arguments[1], None)
        job.state = JobState.SUCCEEDED if self.end is None else JobState.FAILED
        if self.tells:
            self.tell(job.job.token, self.end)

    def tell(self, token: str, error: BaseException | None) -> None:
        """Write what a driver writes at its end."""
        end = JobEnd.of(token, error)
        self.world.journal_store.put(f"{MIGRATION}/jobs/ends/{token}.json", end.canonical())

    def runner(self, stop: Callable[[float], bool] = lambda _seconds: False) -> EngineRunner:
        """The runner of another process."""
        return EngineRunner(MemoryEngine(cluster=self.cluster), self._make_job, stop=stop)

    @contextmanager
    def _make_job(self, job: JobRef, token: str) -> Iterator[SparkJob]:
        yield SparkJob(
            migration_id=MIGRATION,
            name=job.name,
            token=token,
            main=None,  # type: ignore[arg-type]
            py_files=None,
            arguments=("--job-key", job.key, "--token", token),
        )

    def migration(self, runner: EngineRunner | None = None) -> Migration:
        """The migration as another process opens it."""
        self.world.restart()
        made = Migration.open(self.world.spec, "tester", Resolver(), actor="seed", runner=runner or self.runner())
        context = self.world.context()
        context.runner = made._runner
        made.__dict__["context"] = context
        return made

    def run(self, runner: EngineRunner | None = None) -> PhaseResult:
        """One attempt of a task that waits for the job."""
        return self.migration(runner).run("seed")

    @property
    def tokens(self) -> list[str]:
        """The journaled tokens."""
        return [str(entry.details["token"]) for entry in self.world.steps(steps.SPARK_JOB_SUBMITTING)]

    @property
    def ids(self) -> list[str]:
        """The journaled ids."""
        return [str(entry.details["job_id"]) for entry in self.world.steps(steps.SPARK_JOB_SUBMITTED)]

    def check_done(self, jobs: int) -> None:
        """The seed is done, and so many jobs were submitted for it."""
        assert self.world.steps("seed_done")
        assert len(self.cluster.jobs) == jobs
        assert not self.cluster.running


@pytest.fixture
def lab(worlds: Worlds) -> Lab:
    return Lab(worlds.at("seed"))


def dies(at: str) -> Callable[[str], None]:
    """The process dies at the first call of this name."""
    left = [at]

    def die(name: str) -> None:
        if name in left:
            left.remove(name)
            raise Killed

    return die


def test_a_job_is_journaled_before_and_after_it_is_submitted(lab: Lab) -> None:
    seen: list[tuple[str, list[str], list[str]]] = []
    lab.cluster.before = lambda name: seen.append((name, lab.tokens, lab.ids))
    assert lab.run().summary.startswith("seed complete")
    token = lab.tokens[0]
    assert seen[0] == ("submit", [token], [])
    assert seen[1] == ("status", [token], ["job-1"])
    assert lab.world.steps(steps.SPARK_JOB_ENDED)[0].details["token"] == token
    lab.check_done(jobs=1)
    assert lab.run().already_done
    lab.check_done(jobs=1)


def test_killed_between_the_token_and_the_submission(lab: Lab) -> None:
    lab.cluster.before = dies("submit")
    with pytest.raises(Killed):
        lab.run()
    assert (len(lab.tokens), lab.ids, lab.cluster.jobs) == (1, [], {})
    lab.run()
    assert len(lab.tokens) == 1
    lab.check_done(jobs=1)


def test_killed_between_the_submission_and_the_id(lab: Lab) -> None:
    lab.cluster.after = dies("submit")
    with pytest.raises(Killed):
        lab.run()
    assert (lab.ids, len(lab.cluster.running)) == ([], 1)
    lab.run()
    assert [job.job.token for job in lab.cluster.jobs.values()] == lab.tokens
    lab.check_done(jobs=1)


def test_killed_while_the_job_runs(lab: Lab) -> None:
    lab.works = False

    def die(_seconds: float) -> bool:
        raise Killed

    with pytest.raises(Killed):
        lab.run(lab.runner(die))
    before = lab.world.stored("jobs/seed.json")
    assert len(lab.cluster.running) == 1
    lab.works = True
    # A job that runs is not prepared again: a spec that was changed meanwhile counts from the next job on.
    lab.world.change_spec(seed={"max_bytes_per_second": 1234567})
    lab.run()
    assert lab.world.stored("jobs/seed.json") == before
    assert lab.cluster.calls.count("submit") == 1
    lab.check_done(jobs=1)


def test_ended_while_nobody_looked(lab: Lab) -> None:
    lab.cluster.before = dies("status")
    with pytest.raises(Killed):
        lab.run()
    lab.cluster.status("job-1")
    assert not lab.cluster.running
    lab.run()
    lab.check_done(jobs=1)


def test_at_most_one_job_runs_wherever_the_task_dies(lab: Lab) -> None:
    """The process dies after its n-th change; each time another one continues."""
    for changes in range(40):
        fork = Lab(lab.world.fork())
        fork.migration()
        fork.world.outside.dies_after = changes
        context = fork.world.context()
        context.runner = fork.runner()
        try:
            fork.world.run("seed")
        except Killed:
            assert len(fork.cluster.jobs) <= 1
            fork.run()
        else:
            assert changes > 5
            return
        fork.check_done(jobs=len(fork.cluster.jobs))
        # Killed after the job's end was taken up and before the seed's: a short job finds nothing to copy.
        assert len(fork.cluster.jobs) <= 2
        assert len(set(fork.tokens)) == len(fork.cluster.jobs)


def test_a_task_that_is_asked_to_stop_cancels_its_job(lab: Lab) -> None:
    lab.works = False
    with pytest.raises(Interrupted):
        lab.run(lab.runner(lambda _seconds: True))
    assert [job.state for job in lab.cluster.jobs.values()] == [JobState.CANCELLED]
    lab.works = True
    lab.run()
    lab.check_done(jobs=2)


def test_a_cleared_task_takes_up_the_job_before_it_is_cancelled(lab: Lab) -> None:
    """Airflow starts the next attempt before the trigger of the last one has cancelled its job."""
    lab.works = False
    started = lab.migration().start_job("seed")
    assert isinstance(started, Submission)
    found = lab.migration().start_job("seed")
    assert isinstance(found, Submission)
    assert (found.job_id, found.found) == ("job-1", True)
    lab.cluster.cancel("job-1")
    again = lab.migration().end_job("seed", found)
    assert isinstance(again, Submission)
    assert (again.job_id, again.found) == ("job-2", False)
    lab.works = True
    assert isinstance(lab.migration().end_job("seed", again), PhaseResult)
    lab.check_done(jobs=2)


def test_a_job_that_somebody_cancels_is_an_error(lab: Lab) -> None:
    lab.cluster.looks = lambda job: lab.cluster.cancel(job.job_id)
    with pytest.raises(SparkJobCancelled, match="the seed job job-1 was cancelled on memory"):
        lab.run()
    lab.cluster.looks = lab._drive
    lab.run()
    lab.check_done(jobs=2)


@pytest.mark.parametrize("has_told", [True, False])
def test_a_lost_job(lab: Lab, *, has_told: bool) -> None:
    """An engine that has forgotten a job proves nothing; its driver's word does."""

    def forget(job: MemoryJob) -> None:
        if not job.state.is_over:
            lab.tells = has_told
            lab._drive(job)
            job.state, job.reason = JobState.LOST, "no such job"

    lab.cluster.looks = forget
    if has_told:
        lab.run()
        lab.check_done(jobs=1)
        return
    with pytest.raises(SparkJobFailed, match="without saying why: no such job"):
        lab.run()
    assert "LOST" in str(lab.world.steps(steps.SPARK_JOB_ENDED)[0].details["how"]).upper()
    lab.cluster.looks, lab.tells = lab._drive, True
    lab.run()
    lab.check_done(jobs=2)


def test_an_engine_that_does_not_answer_for_a_while_is_asked_again(lab: Lab) -> None:
    lab.works = False
    lab.cluster.answers = [JobState.UNKNOWN, EngineUnreachable("busy"), JobState.PENDING, JobState.UNKNOWN]
    looks = 0

    def wait(_seconds: float) -> bool:
        nonlocal looks
        looks += 1
        lab.works = looks >= 5
        return False

    lab.run(lab.runner(wait))
    assert looks == 5
    lab.check_done(jobs=1)


def test_the_driver_s_word_ends_the_wait_for_a_silent_engine(lab: Lab) -> None:
    lab.cluster.answers = [JobState.UNKNOWN] * 100
    lab.run()
    lab.check_done(jobs=1)


def test_a_refused_question_ends_the_task_and_not_the_job(lab: Lab) -> None:
    lab.works = False
    lab.cluster.answers = [EngineForbidden("no right")]
    with pytest.raises(EngineForbidden):
        lab.run()
    assert len(lab.cluster.running) == 1
    lab.works = True
    lab.run()
    lab.check_done(jobs=1)


def test_an_error_of_the_driver_keeps_its_name_and_kind(lab: Lab) -> None:
    lab.end = ExecutorUnfit("an executor's Python lacks kafka", next_step="install it")
    with pytest.raises(ExecutorUnfit, match="lacks kafka") as caught:
        lab.run()
    assert isinstance(caught.value, Terminal)
    assert caught.value.next_step == "install it"
    lab.end = ValueError("a password")
    with pytest.raises(Exception, match="ValueError in the driver") as other:
        lab.run()
    assert "a password" not in str(other.value)
    assert not isinstance(other.value, Terminal)
    lab.end = None
    lab.run()
    lab.check_done(jobs=3)


def test_the_last_line_of_the_log_is_the_error_where_the_driver_could_write_none(lab: Lab) -> None:
    lab.end, lab.tells = RuntimeError(), False

    def fail(job: MemoryJob) -> None:
        lab._drive(job)
        job.log_tail = ("[SOURCE_GAP] 5 offsets are gone. Next: decide", "[PATH_NOT_FOUND] of Spark", "bye")

    lab.cluster.looks = fail
    with pytest.raises(SourceGap, match="5 offsets are gone") as caught:
        lab.run()
    assert caught.value.next_step == "decide"


def test_partitions_that_could_not_be_copied_are_listed(lab: Lab) -> None:
    error = SourceGap("gone", next_step="decide").as_dict()
    lab.world.copiers.fails["orders", 1] = error

    def fail(job: MemoryJob) -> None:
        with pytest.raises(RuntimeError):
            lab.world.copiers.submit(None, "", job.job.arguments[1], None)
        job.state = JobState.FAILED
        lab.tell(job.job.token, CopyFailed("1 of 3 partitions"))

    lab.cluster.looks = fail
    with pytest.raises(Terminal, match="the first is orders-1: gone") as caught:
        lab.run()
    assert [item["partition"] for item in caught.value.details["partitions"]] == [1]


def test_a_job_that_copied_too_little_is_not_taken_up_again(lab: Lab) -> None:
    """Else each attempt would find the job that has ended well, and fail in the same way."""
    lab.world.copiers.leaves["orders", 1] = 8
    started = lab.migration().start_job("seed")
    assert isinstance(started, Submission)
    with pytest.raises(CopyFailed, match="have not reached their stop offsets"):
        lab.migration().end_job("seed", started)
    lab.world.copiers.leaves.clear()
    lab.run()
    lab.check_done(jobs=2)


def test_a_job_of_a_former_owner_is_cancelled(lab: Lab) -> None:
    lab.works = False
    started = lab.migration().start_job("seed")
    assert isinstance(started, Submission)
    other = Journal(lab.world.journal_store, MIGRATION)
    other.claim(Owner("dag_run", "another", "another"), takeover=True)
    runner = lab.runner()
    record = _record_of(lab, other)
    assert runner.find(record, "seed") is None
    assert [job.state for job in lab.cluster.jobs.values()] == [JobState.CANCELLED]
    assert runner.start(record, JobRef("seed", "", f"{MIGRATION}/jobs/seed.json")).job_id == "job-2"


def _record_of(lab: Lab, journal: Journal) -> MigrationRecord:
    world = lab.world
    stores = (world.journal_store, world.archive_store, world.evidence_store)
    return MigrationRecord(world.spec, journal, *stores, now=world.clock.now)


def test_submissions_are_data(lab: Lab) -> None:
    started = lab.migration().start_job("seed")
    assert isinstance(started, Submission)
    assert Submission(**json.loads(json.dumps(started.as_dict()))) == started


# -- kills, lost claims, ends that are not this job's -----------------------------------------------------------------


def test_a_killed_task_does_not_submit_the_next_job(lab: Lab) -> None:
    """Airflow calls ``on_kill`` in a signal handler, and the task goes on for seconds until it is killed."""
    lab.works = False
    assert isinstance(lab.migration().start_job("seed"), Submission)
    runner = lab.runner()

    def killed(_seconds: float) -> bool:
        runner.cancel()
        return False

    runner._stop = killed
    with pytest.raises(Interrupted):
        lab.run(runner)
    assert [job.state for job in lab.cluster.jobs.values()] == [JobState.CANCELLED]


def test_a_killed_part_of_a_deferred_task_does_not_submit_the_next_job(lab: Lab) -> None:
    lab.works = False
    assert isinstance(lab.migration().start_job("seed"), Submission)
    found = lab.migration().start_job("seed")
    assert isinstance(found, Submission)
    runner = lab.runner()
    runner.watch(found)
    runner.cancel()
    with pytest.raises(Interrupted):
        lab.migration(runner).end_job("seed", found)
    assert [job.state for job in lab.cluster.jobs.values()] == [JobState.CANCELLED]


def test_a_task_that_is_killed_while_it_submits_cancels_what_it_has_submitted(lab: Lab) -> None:
    lab.works = False
    runner = lab.runner()
    lab.cluster.before = lambda name: runner.cancel() if name == "submit" else None
    with pytest.raises(Interrupted):
        lab.run(runner)
    assert [job.state for job in lab.cluster.jobs.values()] == [JobState.CANCELLED]
    lab.cluster.before, lab.works = (lambda _name: None), True
    lab.run()
    lab.check_done(jobs=2)


def test_a_task_that_is_killed_after_it_has_found_a_job_cancels_it(lab: Lab) -> None:
    lab.works = False
    lab.migration().start_job("seed")
    runner = lab.runner()
    found = lab.migration(runner).start_job("seed")
    assert isinstance(found, Submission)
    assert found.found
    runner.cancel()
    assert not lab.cluster.running


def test_a_claim_that_is_lost_while_a_job_is_submitted(lab: Lab) -> None:
    """The new owner cannot know a job without an id, so whoever has submitted it cancels it."""
    lab.works = False
    record = lab.migration().context.record
    runner = lab.runner()

    def take_over(name: str) -> None:
        if name == "submit":
            Journal(lab.world.journal_store, MIGRATION).claim(Owner("dag_run", "another", "another"), takeover=True)

    lab.cluster.after = take_over
    with pytest.raises(ClaimLost):
        runner.start(record, JobRef("seed", "", f"{MIGRATION}/jobs/seed.json"))
    assert [job.state for job in lab.cluster.jobs.values()] == [JobState.CANCELLED]


def test_a_driver_that_has_ended_is_not_submitted_again_with_its_token(lab: Lab) -> None:
    """Else the end of the first one would be taken for the second's, while that runs."""
    lab.cluster.after = dies("submit")
    with pytest.raises(Killed):
        lab.run()
    (token,) = lab.tokens
    lab.tell(token, ExecutorUnfit("an executor's Python lacks kafka", next_step="install it"))
    # The cluster forgets jobs that have ended.
    lab.cluster.jobs.clear()
    lab.cluster.answers = [JobState.UNKNOWN]
    lab.run()
    lab.check_done(jobs=1)
    assert [job.job.token for job in lab.cluster.jobs.values()] == lab.tokens[1:]


def test_the_end_of_another_submission_is_not_taken(lab: Lab) -> None:
    def fail(job: MemoryJob) -> None:
        other = JobEnd.of("seed-other", None)
        lab.world.journal_store.put(f"{MIGRATION}/jobs/ends/{job.job.token}.json", other.canonical())
        job.state = JobState.FAILED

    lab.cluster.looks = fail
    with pytest.raises(SparkJobFailed, match="without saying why"):
        lab.run()


def test_a_cancelled_driver_that_its_engine_has_forgotten(lab: Lab) -> None:
    """On Kubernetes a cancelled driver is a deleted one; it has still said that it was asked to stop."""
    lab.works = False
    lab.migration().start_job("seed")
    found = lab.migration().start_job("seed")
    assert isinstance(found, Submission)
    lab.tell(lab.tokens[0], SystemExit(143))
    lab.cluster.jobs["job-1"].state = JobState.LOST
    again = lab.migration().end_job("seed", found)
    assert isinstance(again, Submission)
    assert again.job_id == "job-2"


def test_a_storage_that_is_away_does_not_hide_why_a_job_has_failed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal error must not become one that is tried again."""
    lab.end = ExecutorUnfit("an executor's Python lacks kafka", next_step="install it")

    def away(*_: object) -> None:
        raise StorageUnavailable("gone")

    monkeypatch.setattr(Submissions, "ended", away)
    with pytest.raises(ExecutorUnfit):
        lab.run()


# -- another engine, another cluster, two attempts at once ------------------------------------------------------------


class OtherEngine(MemoryEngine):
    """The engine that the spec names later."""

    name = "other"


@pytest.fixture
def old(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    """The cluster of the room ``old``; an engine there can be made by name."""
    monkeypatch.setattr(find, "BUILT_IN", {**find.BUILT_IN, "memory": "memory_engine:MemoryEngine"})
    cluster = MemoryCluster()
    monkeypatch.setattr(MemoryEngine, "rooms", {"old": cluster, "new": lab.cluster})
    return cluster


def runner_on(lab: Lab, engine: MemoryEngine) -> EngineRunner:
    return EngineRunner(engine, lab._make_job, stop=lambda _seconds: False)


@pytest.mark.parametrize("kind", [MemoryEngine, OtherEngine])
def test_a_job_on_another_cluster_is_cancelled_there(lab: Lab, old: MemoryCluster, kind: type[MemoryEngine]) -> None:
    started = lab.migration(runner_on(lab, MemoryEngine(room="old"))).start_job("seed")
    assert isinstance(started, Submission)
    assert len(old.running) == 1
    lab.run(runner_on(lab, kind(cluster=lab.cluster, room="new")))
    assert [job.state for job in old.jobs.values()] == [JobState.CANCELLED]
    assert "job-1 was cancelled" in str(lab.world.steps(steps.SPARK_JOB_ENDED)[0].details["how"])
    lab.check_done(jobs=1)


def test_a_task_that_waits_in_its_slot_cancels_a_job_on_the_former_cluster(lab: Lab, old: MemoryCluster) -> None:
    """The spec names client mode now: its driver is a child of the task, and the former one runs on the cluster."""
    started = lab.migration(runner_on(lab, MemoryEngine(room="old"))).start_job("seed")
    assert isinstance(started, Submission)
    engine = MemoryEngine(cluster=lab.cluster, room="old")
    engine.detached = False
    lab.run(runner_on(lab, engine))
    assert [job.state for job in old.jobs.values()] == [JobState.CANCELLED]


def test_a_former_cluster_that_is_gone_does_not_hold_the_migration_up(
    lab: Lab, old: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    lab.migration(runner_on(lab, MemoryEngine(room="old"))).start_job("seed")

    def gone(name: str) -> None:
        raise EngineUnreachable(f"{name}: nobody there")

    old.before = gone
    lab.run(runner_on(lab, OtherEngine(cluster=lab.cluster, room="new")))
    assert "the seed job job-1 on memory could not be cancelled" in caplog.text
    assert "ENGINE_UNREACHABLE" in str(lab.world.steps(steps.SPARK_JOB_ENDED)[0].details["how"])
    lab.check_done(jobs=1)


def test_other_arguments_on_the_same_cluster_keep_the_job(lab: Lab, old: MemoryCluster) -> None:
    """As with any other change of the spec: it counts from the next job on."""
    first = MemoryEngine(room="old")
    first.arguments = {"room": "old", "memory": "1g"}
    lab.migration(runner_on(lab, first)).start_job("seed")
    old.looks = lab._drive
    second = MemoryEngine(room="old")
    second.arguments = {"room": "old", "memory": "2g"}
    lab.run(runner_on(lab, second))
    assert len(old.jobs) == 1


class TwiceEngine(MemoryEngine):
    """An engine that looks for the token and then submits: two attempts at once make two jobs."""

    def submit(self, job: SparkJob) -> str:
        def act() -> str:
            job_id = f"job-{len(self.cluster.jobs) + 1}"
            self.cluster.jobs[job_id] = MemoryJob(job_id, job)
            return job_id

        return str(self._call("submit", act))

    def cancel_doubles(self, token: str, job_id: str) -> None:
        for other in self.cluster.running:
            if other.job.token == token and other.job_id != job_id:
                self.cluster.cancel(other.job_id)


def test_two_attempts_that_submit_at_once_agree_on_one_job(lab: Lab) -> None:
    """The first id in the journal is the job. The attempt that comes later cancels its own."""
    lab.works = False
    other: list[Submission] = []

    def second(name: str) -> None:
        # While the first attempt's spark-submit runs, the next attempt begins and is done before it.
        if name == "submit" and not other:
            other.append(Submission("", "", "", 0))
            found = lab.migration(runner_on(lab, TwiceEngine(cluster=lab.cluster))).start_job("seed")
            assert isinstance(found, Submission)
            other[0] = found

    lab.cluster.before = second
    first = lab.migration(runner_on(lab, TwiceEngine(cluster=lab.cluster))).start_job("seed")
    assert isinstance(first, Submission)
    assert first.token == other[0].token
    assert first.job_id == other[0].job_id == "job-1"
    assert [job.state for job in lab.cluster.jobs.values()] == [JobState.RUNNING, JobState.CANCELLED]
    lab.works = True
    lab.run(runner_on(lab, TwiceEngine(cluster=lab.cluster)))
    assert len(lab.cluster.jobs) == 2
    assert lab.world.steps("seed_done")


def test_an_attempt_that_finds_a_job_cancels_its_double(lab: Lab) -> None:
    """An attempt that died between its submission and its entry in the journal has left one behind."""
    lab.works = False
    engine = TwiceEngine(cluster=lab.cluster)
    started = lab.migration(runner_on(lab, engine)).start_job("seed")
    assert isinstance(started, Submission)
    engine.submit(lab.cluster.jobs["job-1"].job)
    assert len(lab.cluster.running) == 2
    found = lab.migration(runner_on(lab, TwiceEngine(cluster=lab.cluster))).start_job("seed")
    assert isinstance(found, Submission)
    assert found.job_id == "job-1"
    assert [job.state for job in lab.cluster.jobs.values()] == [JobState.RUNNING, JobState.CANCELLED]
