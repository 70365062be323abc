"""How a job has ended: by its engine, by what its driver wrote, and never by the end of another job."""

from __future__ import annotations

import pytest
from engine_lab import Lab, dies
from memory_engine import MemoryJob
from phase_world.jobs import MIGRATION
from phase_world.outside import Killed

from airflow_provider_kafka_migration.documents.job_end import JobEnd
from airflow_provider_kafka_migration.engines.base import JobState
from airflow_provider_kafka_migration.errors import (
    CopyFailed,
    EngineForbidden,
    EngineUnreachable,
    ExecutorUnfit,
    SourceGap,
    SparkJobCancelled,
    SparkJobFailed,
    StorageUnavailable,
    Terminal,
)
from airflow_provider_kafka_migration.jobs.submissions import Submission, Submissions
from airflow_provider_kafka_migration.record import steps


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
    lab.cluster.answers = [JobState.UNKNOWN, EngineUnreachable("busy"), JobState.PENDING, JobState.UNKNOWN]
    lab.run(lab.runner(lab.works_from_wait(5)))
    assert lab.waits == 5
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
    started = lab.start()
    with pytest.raises(CopyFailed, match="have not reached their stop offsets"):
        lab.migration().end_job("seed", started)
    lab.world.copiers.leaves.clear()
    lab.run()
    lab.check_done(jobs=2)


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
    lab.start()
    found = lab.start()
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
