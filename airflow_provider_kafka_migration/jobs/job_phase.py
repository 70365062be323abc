"""Phases whose work is a job: what comes before the job, what runs beside it, and what comes after it.

A phase of this kind is a :class:`JobPhase`: ``prepare`` writes a job document and says where it is, or says that
nothing is left to do; ``finish`` verifies what the job has done. Between the two, a runner runs the job: in this
process (:meth:`JobPhase.run`), or on a Spark engine, for days and without a process of this package waiting for it.
Nothing is handed from ``prepare`` to ``finish`` but the name of the job: all facts are read from the record, because
another process on another machine may call ``finish``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from airflow_provider_kafka_migration.errors import MigrationError, SparkJobCancelled
from airflow_provider_kafka_migration.jobs.submissions import Submission
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.record.context import CopyRunner, JobRef, PhaseContext, PhaseResult, Progress
from airflow_provider_kafka_migration.record.record import MigrationRecord

log = logging.getLogger(__name__)

ReadProgress = Callable[[], Progress | None]

#: What a half of a phase returns: a job to run next, or the end of the phase.
Step = JobRef | PhaseResult


@runtime_checkable
class JobRunner(CopyRunner, Protocol):
    """A runner whose jobs may outlive the process that submits them."""

    def find(self, record: MigrationRecord, name: str) -> Submission | None:
        """Return the submission of an earlier process that runs, or has ended well and was not taken up; else None."""

    def start(self, record: MigrationRecord, job: JobRef) -> Submission:
        """Submit a job, or find the one that runs, and return at once."""

    def end(self, record: MigrationRecord, submission: Submission) -> None:
        """Return if the job has ended well; raise its error otherwise."""

    def taken_up(self, record: MigrationRecord, submission: Submission) -> None:
        """Note that a phase has verified what the job did: the next attempt need not look at it again."""

    def run(self, record: MigrationRecord, job: JobRef, read_progress: ReadProgress) -> None:
        """Submit a job, or find the one that runs, and wait for its end; raise its error."""


def _enters_nothing(_context: PhaseContext) -> None:
    return None


def _nothing_beside(_context: PhaseContext) -> AbstractContextManager[object]:
    return nullcontext()


def _nothing_to_follow(_context: PhaseContext, _memory: dict[str, Any]) -> None:
    return None


def _nothing_after(_context: PhaseContext, _error: MigrationError) -> None:
    return None


def _never_enough(_context: PhaseContext, _error: MigrationError) -> bool:
    return False


def _no_progress(_record: MigrationRecord, _job: JobRef) -> Progress | None:
    return None


@dataclass(frozen=True)
class JobPhase:
    """A phase whose work is a job.

    :param jobs: names of the job documents that the phase may write.
    :param prepare: checks, and writes a job document; a result if nothing is left to do.
    :param enter: moves the states that ``prepare`` would have moved, for a job of an earlier process that was found: it
        is not prepared again, and a failure of that process must not stay in the journal while the job works. Phases
        whose row in the table has a state need none.
    :param finish: verifies what a job has done that ended well; returns another job if there is more to do.
    :param run_job: runs a job through the context's runner and waits for it; raises its error.
    :param beside: runs what has to run while the job runs, in threads, until the ``with`` block ends.
    :param follow: the same once, in this thread, for a task that wakes up now and then. Its second argument is what it
        remembers from one time to the next, JSON-serializable; it is empty after a restart.
    :param read_progress: the newest progress of a job for people, None before the first one.
    :param is_enough: whether a job that has failed has done what is needed now, so that ``finish`` follows anyway.
    :param after_failure: what has to be done when a job that nobody waited for with ``beside`` has failed.
    """

    jobs: tuple[str, ...]
    prepare: Callable[..., Step]
    finish: Callable[[PhaseContext, JobRef], Step]
    run_job: Callable[[PhaseContext, JobRef], None]
    enter: Callable[[PhaseContext], None] = _enters_nothing
    beside: Callable[[PhaseContext], AbstractContextManager[object]] = _nothing_beside
    follow: Callable[[PhaseContext, dict[str, Any]], None] = _nothing_to_follow
    read_progress: Callable[[MigrationRecord, JobRef], Progress | None] = _no_progress
    is_enough: Callable[[PhaseContext, MigrationError], bool] = _never_enough
    after_failure: Callable[[PhaseContext, MigrationError], None] = _nothing_after

    def run(self, context: PhaseContext, **options: Any) -> PhaseResult:
        """Run the whole phase in this process: every job is waited for.

        :param options: arguments of ``prepare``.
        """
        found = self._found(context)
        step: Step = found or self.prepare(context, **options)
        while isinstance(step, JobRef):
            with self.beside(context):
                # A block that ends well waits for its threads: passes must not run twice once it begins again.
                is_done = self._runs_to_end(context, step, may_be_cancelled=step is found)
            if is_done:
                step = self.finish(context, step)
            else:
                # Whoever has cleared the task has cancelled the job of the attempt before; this attempt wants one, and
                # by the spec of now: the job document of the former one may be older.
                log.info("The %s job of the attempt before was cancelled; a new one is prepared", step.name)
                step = self.prepare(context, **options)
        return step

    def _runs_to_end(self, context: PhaseContext, step: JobRef, *, may_be_cancelled: bool) -> bool:
        """Run a job; False: somebody has cancelled it, which is an error if it may not be."""
        try:
            self.run_job(context, step)
        except SparkJobCancelled:
            if not may_be_cancelled:
                raise
            return False
        except MigrationError as error:
            self._check_enough(context, error)
        return True

    def wait_until_ended(self, context: PhaseContext, runner: JobRunner, submission: Submission) -> None:
        """Take up the end of a job that was submitted.

        :raises SparkJobCancelled: somebody has cancelled it.
        :raises MigrationError: the job has failed, and has not done what is needed.
        """
        try:
            runner.end(context.record, submission)
        except SparkJobCancelled:
            raise
        except MigrationError as error:
            self._check_enough(context, error, self.after_failure)

    def _check_enough(
        self,
        context: PhaseContext,
        error: MigrationError,
        after_failure: Callable[[PhaseContext, MigrationError], None] = _nothing_after,
    ) -> None:
        if not self.is_enough(context, error):
            after_failure(context, error)
            raise error
        log.warning("The job has failed, and what is asked for now needs no more of it: %s", error)

    def _found(self, context: PhaseContext) -> JobRef | None:
        """Return the job of an earlier process that still runs: it must not be prepared again meanwhile."""
        if not isinstance(context.runner, JobRunner):
            return None
        return self.take_up(context, context.runner)

    def take_up(self, context: PhaseContext, runner: JobRunner) -> JobRef | None:
        """Return the job of an earlier process, and enter the state that it works in; None: prepare one."""
        submission = found_submission(runner, context.record, self.jobs)
        if submission is None:
            return None
        self.enter(context)
        return submitted_ref(context.record, submission)


def found_submission(runner: JobRunner, record: MigrationRecord, names: tuple[str, ...]) -> Submission | None:
    """Return the first submission of these jobs that :meth:`JobRunner.find` finds."""
    return next((found for name in names if (found := runner.find(record, name)) is not None), None)


def job_ref(record: MigrationRecord, name: str) -> JobRef:
    """Return where the job document of a name is; the job begins now."""
    tip = record.journal.tip
    return JobRef(name, record.spec.storage.journal, record.key(keys.job(name)), -1 if tip is None else tip.seq)


def submitted_ref(record: MigrationRecord, submission: Submission) -> JobRef:
    """Return where the job document of a submission is."""
    return replace(job_ref(record, submission.name), since=submission.since)
