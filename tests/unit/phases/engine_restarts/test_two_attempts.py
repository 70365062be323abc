"""Two attempts at once may submit two jobs with one token: one of them is the job, the other is cancelled."""

from __future__ import annotations

import pytest
from engine_lab import Lab
from memory_engine import MemoryEngine, MemoryJob

from airflow_provider_kafka_migration.cli.runner import WithoutAirflow
from airflow_provider_kafka_migration.engines.base import JobState, SparkJob
from airflow_provider_kafka_migration.errors import (
    SparkJobFailed,
)
from airflow_provider_kafka_migration.jobs.submissions import Submission
from airflow_provider_kafka_migration.record.context import PhaseResult


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


class YarnEngine(MemoryEngine):
    """An engine whose ids are those of YARN."""

    def submit(self, job: SparkJob) -> str:
        def act() -> str:
            job_id = f"application_1_{len(self.cluster.jobs) + 1:04d}"
            self.cluster.jobs[job_id] = MemoryJob(job_id, job)
            return job_id

        return str(self._call("submit", act))


def test_two_attempts_that_submit_at_once_agree_on_one_job(lab: Lab) -> None:
    """The first id in the journal is the job. The attempt that comes later cancels its own."""
    lab.works = False
    other: list[Submission] = []

    def second(name: str) -> None:
        # While the first attempt's spark-submit runs, the next attempt begins and is done before it.
        if name == "submit" and not other:
            other.append(Submission("", "", "", 0))
            other[0] = lab.start(lab.runner(engine=TwiceEngine(cluster=lab.cluster)))

    lab.cluster.before = second
    first = lab.start(lab.runner(engine=TwiceEngine(cluster=lab.cluster)))
    assert first.token == other[0].token
    assert first.job_id == other[0].job_id == "job-1"
    assert lab.states == [JobState.RUNNING, JobState.CANCELLED]
    lab.works = True
    lab.run(lab.runner(engine=TwiceEngine(cluster=lab.cluster)))
    assert len(lab.cluster.jobs) == 2
    assert lab.world.steps("seed_done")


def test_an_attempt_that_finds_a_job_cancels_its_double(lab: Lab) -> None:
    """An attempt that died between its submission and its entry in the journal has left one behind."""
    lab.works = False
    engine = TwiceEngine(cluster=lab.cluster)
    lab.start(lab.runner(engine=engine))
    engine.submit(lab.cluster.jobs["job-1"].job)
    assert len(lab.cluster.running) == 2
    found = lab.start(lab.runner(engine=TwiceEngine(cluster=lab.cluster)))
    assert found.job_id == "job-1"
    assert lab.states == [JobState.RUNNING, JobState.CANCELLED]


def test_the_command_line_cancels_the_double_of_a_job(lab: Lab) -> None:
    lab.works = False
    engine = TwiceEngine(cluster=lab.cluster)
    lab.start(lab.runner(engine=WithoutAirflow(engine)))
    engine.submit(lab.cluster.jobs["job-1"].job)
    lab.start(lab.runner(engine=WithoutAirflow(TwiceEngine(cluster=lab.cluster))))
    assert lab.states == [JobState.RUNNING, JobState.CANCELLED]


@pytest.mark.parametrize("is_new_attempt", [False, True])
def test_the_end_of_a_cancelled_double_is_not_the_end_of_the_job(lab: Lab, *, is_new_attempt: bool) -> None:
    """Both drivers have one token, so the double's end is in the job's place while the engine does not answer."""
    lab.works = False
    engine = TwiceEngine(cluster=lab.cluster)
    started = lab.start(lab.runner(engine=engine))
    lab.tell(lab.tokens[0], SystemExit(143))
    wait = lab.works_from_wait(3)
    lab.cluster.answers = [JobState.UNKNOWN] * 2
    if is_new_attempt:
        lab.run(lab.runner(wait, engine=TwiceEngine(cluster=lab.cluster)))
    else:
        runner = lab.runner(wait, engine=engine)
        assert not runner.has_ended(lab.migration().context.record, started)
        assert isinstance(lab.migration(runner).end_job("seed", started), PhaseResult)
    assert lab.waits >= 1
    lab.check_done(jobs=1)


@pytest.mark.parametrize("error", [None, SparkJobFailed("its context was stopped"), SystemExit(143)])
@pytest.mark.parametrize("answer", [JobState.UNKNOWN, JobState.FAILED])
def test_the_end_of_a_double_is_not_that_of_the_job_whatever_it_says(
    lab: Lab, error: BaseException | None, answer: JobState
) -> None:
    """A driver that YARN kills may still say that its job has failed, or is done."""
    lab.works = False
    engine = YarnEngine(cluster=lab.cluster)
    started = lab.start(lab.runner(engine=engine))
    assert started.job_id == "application_1_0001"
    record = lab.migration().context.record
    runner = lab.runner(engine=engine)
    lab.tell(started.token, error, "application_1_0002")
    if answer is JobState.FAILED:
        lab.cluster.jobs[started.job_id].state = JobState.FAILED
        with pytest.raises(SparkJobFailed, match="without saying why"):
            runner.end(record, started)
        return
    lab.cluster.answers = [JobState.UNKNOWN] * 4
    assert not runner.has_ended(record, started)
    lab.tell(started.token, error, "application_1_0001")
    assert runner.has_ended(record, started) == (not isinstance(error, SystemExit))
