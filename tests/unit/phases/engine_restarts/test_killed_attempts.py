"""A task dies, is killed, cleared or loses its claim: one job runs, and the next attempt takes it up."""

from __future__ import annotations

import json

import pytest
from airflow.providers.common.compat.sdk import AirflowTaskTimeout
from engine_lab import Lab, dies
from memory_engine import MemoryEngine
from phase_world.jobs import MIGRATION
from phase_world.outside import Killed

from airflow_provider_kafka_migration.engines.base import JobState
from airflow_provider_kafka_migration.errors import (
    ClaimLost,
    EngineUnreachable,
    Interrupted,
)
from airflow_provider_kafka_migration.jobs.submissions import Submission
from airflow_provider_kafka_migration.journal.entries import Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import JobRef, PhaseResult


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
    assert lab.states == [JobState.CANCELLED]
    lab.works = True
    lab.run()
    lab.check_done(jobs=2)


def test_a_cleared_task_takes_up_the_job_before_it_is_cancelled(lab: Lab) -> None:
    """Airflow starts the next attempt before the trigger of the last one has cancelled its job."""
    lab.works = False
    lab.start()
    found = lab.start()
    assert (found.job_id, found.found) == ("job-1", True)
    lab.cluster.cancel("job-1")
    again = lab.migration().end_job("seed", found)
    assert isinstance(again, Submission)
    assert (again.job_id, again.found) == ("job-2", False)
    lab.works = True
    assert isinstance(lab.migration().end_job("seed", again), PhaseResult)
    lab.check_done(jobs=2)


def test_a_cleared_task_that_waits_prepares_its_new_job_by_the_spec_of_now(lab: Lab) -> None:
    """The same without deferral: a spec that was changed meanwhile counts from the next job on."""
    lab.works = False
    lab.start()
    before = lab.world.stored("jobs/seed.json")
    lab.world.change_spec(seed={"max_bytes_per_second": 1234567})
    looks = 0

    def wait(_seconds: float) -> bool:
        nonlocal looks
        looks += 1
        if looks == 1:
            assert lab.world.stored("jobs/seed.json") == before
            lab.cluster.cancel("job-1")
        lab.works = looks > 1
        return False

    lab.run(lab.runner(wait))
    assert b"1234567" in (lab.world.stored("jobs/seed.json") or b"")
    assert lab.states == [JobState.CANCELLED, JobState.SUCCEEDED]
    lab.check_done(jobs=2)


def test_a_killed_task_does_not_submit_the_next_job(lab: Lab) -> None:
    """Airflow calls ``on_kill`` in a signal handler, and the task goes on for seconds until it is killed."""
    lab.works = False
    lab.start()
    runner = lab.runner()

    def killed(_seconds: float) -> bool:
        runner.cancel()
        return False

    runner._stop = killed
    with pytest.raises(Interrupted):
        lab.run(runner)
    assert lab.states == [JobState.CANCELLED]


def test_a_killed_part_of_a_deferred_task_does_not_submit_the_next_job(lab: Lab) -> None:
    lab.works = False
    lab.start()
    found = lab.start()
    runner = lab.runner()
    runner.watch(found)
    runner.cancel()
    with pytest.raises(Interrupted):
        lab.migration(runner).end_job("seed", found)
    assert lab.states == [JobState.CANCELLED]


def test_a_task_that_is_killed_while_it_submits_cancels_what_it_has_submitted(lab: Lab) -> None:
    lab.works = False
    runner = lab.runner()
    lab.cluster.before = lambda name: runner.cancel() if name == "submit" else None
    with pytest.raises(Interrupted):
        lab.run(runner)
    assert lab.states == [JobState.CANCELLED]
    lab.cluster.before, lab.works = (lambda _name: None), True
    lab.run()
    lab.check_done(jobs=2)


def test_a_task_that_takes_too_long_cancels_its_job(lab: Lab) -> None:
    """Airflow raises its ``execution_timeout`` in the wait, and calls ``on_kill`` only when the task was left."""
    lab.works = False

    def time_out(_seconds: float) -> bool:
        raise AirflowTaskTimeout

    runner = lab.runner(time_out)
    with pytest.raises(AirflowTaskTimeout):
        lab.run(runner)
    runner.cancel()
    assert lab.states == [JobState.CANCELLED]


def test_a_cancellation_that_the_engine_did_not_hear_is_repeated(lab: Lab) -> None:
    """A signal handler must not raise into whatever it has interrupted; the task that still waits tries again."""
    lab.works = False
    runner = lab.runner()
    left = 3

    def away(name: str) -> None:
        nonlocal left
        if name == "cancel" and left:
            left -= 1
            raise EngineUnreachable("nobody there")

    lab.cluster.before = away

    def killed(_seconds: float) -> bool:
        if not runner._is_cancelled:
            runner.cancel()
        return False

    runner._stop = killed
    with pytest.raises(Interrupted):
        lab.run(runner)
    assert lab.states == [JobState.CANCELLED]
    assert lab.cluster.calls.count("cancel") == 4


@pytest.mark.parametrize("at", ["before", "submit"])
def test_a_killed_task_starts_no_driver_of_its_own(lab: Lab, at: str) -> None:
    """In client mode, where the driver is a child of the task."""
    lab.works = False
    engine = MemoryEngine(cluster=lab.cluster)
    engine.detached = False

    def wait(_seconds: float) -> bool:
        raise AssertionError("it waits for a driver")

    runner = lab.runner(wait, engine=engine)
    if at == "before":
        runner.cancel()
    else:
        lab.cluster.before = lambda name: runner.cancel() if name == "submit" else None
    with pytest.raises(Interrupted):
        lab.run(runner)
    assert lab.states == ([] if at == "before" else [JobState.CANCELLED])


def test_a_task_that_is_killed_after_it_has_found_a_job_cancels_it(lab: Lab) -> None:
    lab.works = False
    lab.start()
    runner = lab.runner()
    found = lab.start(runner)
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
    assert lab.states == [JobState.CANCELLED]


def test_a_job_of_a_former_owner_is_cancelled(lab: Lab) -> None:
    lab.works = False
    lab.start()
    other = Journal(lab.world.journal_store, MIGRATION)
    other.claim(Owner("dag_run", "another", "another"), takeover=True)
    runner, record = lab.runner(), lab.record(other)
    assert runner.find(record, "seed") is None
    assert lab.states == [JobState.CANCELLED]
    assert runner.start(record, JobRef("seed", "", f"{MIGRATION}/jobs/seed.json")).job_id == "job-2"


def test_submissions_are_data(lab: Lab) -> None:
    started = lab.start()
    assert Submission(**json.loads(json.dumps(started.as_dict()))) == started
