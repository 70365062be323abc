"""Runs the jobs of phases on a Spark engine: submitted once, found again after a restart, ended by name.

Tasks of Airflow and the command line use the same runner. It keeps nothing in memory that the next process would
need: the journal has the token and the id of a submission (:mod:`~..jobs.submissions`), and the storage has how the
driver has ended (:class:`~..documents.job_end.JobEnd`).

A job whose engine is not *detached* dies with this process. There is nothing to find again, so nothing is journaled.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from pydantic import ValidationError

from airflow_provider_kafka_migration.documents.job_end import JobEnd
from airflow_provider_kafka_migration.engines import service
from airflow_provider_kafka_migration.engines.base import (
    JobState,
    JobStatus,
    SparkEngine,
    SparkJob,
    arguments_of,
    is_elsewhere,
)
from airflow_provider_kafka_migration.engines.find import make_engine
from airflow_provider_kafka_migration.errors import (
    ClaimLost,
    CopyFailed,
    CopyStalled,
    Interrupted,
    MigrationError,
    SparkJobCancelled,
    SparkJobFailed,
    Terminal,
    Transient,
    error_from_dict,
)
from airflow_provider_kafka_migration.jobs import copy_jobs
from airflow_provider_kafka_migration.jobs.job_phase import ReadProgress
from airflow_provider_kafka_migration.jobs.submissions import Submission, Submissions, new_token
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.record.context import JobRef
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.spec import MigrationSpec

log = logging.getLogger(__name__)

#: Builds what an engine needs for a job document and a token. What the job needs of this machine (a file with
#: connections, the package as a zip) exists until the block ends.
MakeJob = Callable[[JobRef, str], AbstractContextManager[SparkJob]]

#: Seconds between two looks at a job: of this machine, and of a service.
_BOUND_SECONDS, _DETACHED_SECONDS = 0.2, 5.0
#: A warning about an engine that does not answer is repeated after this many looks.
_WARN_EVERY = 12

_LAST_WORD = re.compile(r"\[(?P<code>[A-Z][A-Z_]+)\] (?P<text>.+)$")
#: Jobs that compare; all others copy, and their progress document lists the partitions that failed.
_CONTENT_JOBS = ("verify", "verify-archive", "independent")


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _no_pump(_read: ReadProgress) -> AbstractContextManager[object]:
    return nullcontext()


class EngineRunner:
    """A runner of job documents (``jobs.job_phase.JobRunner``) on a Spark engine.

    :param make_job: builds what the engine needs.
    :param pump: shows progress until the block ends.
    :param stop: waits so many seconds; returns True at once when the job has to be cancelled. What it raises ends the
        wait, and a detached job runs on.
    """

    def __init__(
        self,
        engine: SparkEngine,
        make_job: MakeJob,
        *,
        pump: Callable[[ReadProgress], AbstractContextManager[object]] = _no_pump,
        stop: Callable[[float], bool] = _sleep,
        poll_seconds: float | None = None,
    ) -> None:
        self.engine = engine
        self.make_job = make_job
        self._pump = pump
        self._stop = stop
        self._poll_seconds = poll_seconds or (_DETACHED_SECONDS if engine.detached else _BOUND_SECONDS)
        #: The job that this runner waits for: what :meth:`cancel` cancels. Kept until the job's end is known: Airflow
        #: raises its ``execution_timeout`` in here, and calls ``on_kill`` only when this runner was left.
        self._running_id = ""
        #: A killed task goes on for some seconds, and must not submit anything in them.
        self._is_cancelled = False
        #: Whether the engine has accepted the last cancellation.
        self._has_accepted = False

    def spark_master(self, _spec: MigrationSpec) -> str:
        """Return Spark's master; empty where a service chooses it."""
        return str(getattr(self.engine, "master", ""))

    # -- as a JobRunner ----------------------------------------------------------------------------------------------

    def submit(self, spec: MigrationSpec, job_location: str, job_key: str, read_progress: ReadProgress) -> None:
        """Refuse: a job of an engine needs the record, see :meth:`run`."""
        raise Terminal("an engine runs jobs of a record only", next_step="report this as a bug")

    def find(self, record: MigrationRecord, name: str) -> Submission | None:
        """Return the submission of an earlier process, if its job runs, or has ended well and was not taken up."""
        submissions = Submissions(record, name)
        last = submissions.last()
        if last is None:
            return None
        why_not = self._why_not(record, last)
        if not why_not:
            log.info("The %s job of an earlier attempt is taken up: %s on %s", name, last.job_id, last.engine)
            return last
        submissions.ended(last, why_not)
        return None

    def _why_not(self, record: MigrationRecord, last: Submission) -> str:
        """Return why a submission is of no use any more; empty: it runs, or it has ended well."""
        if not self.engine.detached or last.engine != self.engine.name or self._is_elsewhere(record, last):
            return self._cancel_elsewhere(last)
        if last.generation != record.journal.generation:
            # Its copiers belong to the former owner, so they are refused anyway.
            if last.job_id:
                self._try_to_cancel(last.job_id)
                self._cancel_doubles(last)
            return "another owner"
        if not last.job_id:
            # A second driver with the token of one that has ended would be judged by the end of the first one.
            return "" if read_end(record, last) is None else "its driver has ended"
        self._cancel_doubles(last)
        status = self.engine.status(last.job_id)
        if not _is_over(status, read_end(record, last)):
            return ""
        error = job_error(record, last, status)
        return "" if error is None else f"{status.state}: {error.code}"

    def _is_elsewhere(self, record: MigrationRecord, last: Submission) -> bool:
        return is_elsewhere(self.engine, self._arguments(record), last.arguments)

    def _arguments(self, record: MigrationRecord) -> dict[str, object]:
        return arguments_of(self.engine, record.spec.spark.engine_args)

    def _cancel_elsewhere(self, last: Submission) -> str:
        """Cancel a job of the engine that the spec named before; return what became of it, for the journal.

        Slices keep the two drivers apart, so a cluster that cannot be reached any more, perhaps the reason for the
        change, must not hold the migration up. The log names the job, so that the cluster's owner can end it.
        """
        shown = f"the {last.name} job {last.job_id or f'with the token {last.token}'} on {last.engine}"
        try:
            former = make_engine(last.engine, last.arguments)
            if not former.detached:
                return "another engine: the driver has ended with its task"
            # Without an id it may have been submitted or not. Not every engine can be asked.
            job_id = last.job_id or getattr(former, "find", lambda _token: None)(last.token)
            if job_id is None:
                log.warning("The spec names another engine or cluster now. If %s runs, end it there", shown)
                return "another engine: not known there"
            former.cancel(job_id)
        except Exception as error:
            # On the command line a former engine may raise what only Airflow has; its text may quote a connection.
            kind = type(error).__name__
            said, code = (error, error.code) if isinstance(error, MigrationError) else (kind, kind)
            log.warning(
                "The spec names another engine or cluster now, and %s could not be cancelled: %s. End it there; until "
                "then it competes with its successor, which costs time and no record",
                shown,
                said,
            )
            return f"another engine: not cancelled, {code}"
        log.warning("The spec names another engine or cluster now: %s was cancelled", shown)
        return f"another engine: {job_id} was cancelled"

    def _cancel_doubles(self, submission: Submission) -> None:
        """Cancel the other jobs of a token, on engines where two attempts at the same time can make two."""
        cancel = getattr(self.engine, "cancel_doubles", None)
        if cancel is None or not submission.job_id:
            return
        try:
            cancel(submission.token, submission.job_id)
        except MigrationError as error:
            # The next attempt tries again, and slices keep the drivers apart.
            log.warning("Whether %s runs twice on %s is not known: %s", submission.name, submission.engine, error)

    def start(self, record: MigrationRecord, job: JobRef) -> Submission:
        """Submit a job, or find the one that runs, and return at once.

        :raises Interrupted: :meth:`cancel` was called. Nothing runs then.
        """
        self._check_not_cancelled(record, job.name)
        submissions = Submissions(record, job.name)
        submission = self.find(record, job.name)
        if submission is not None and submission.job_id:
            self._running_id = submission.job_id
            self._check_not_cancelled(record, job.name)
            return submission
        # A token without an id: the engine may have the job, and then gives its id again.
        submission = submission or submissions.begin(self.engine.name, job, self._arguments(record))
        with self.make_job(job, submission.token) as described:
            job_id = self._running_id = self.engine.submit(described)
        log.info("The %s job is %s on %s", job.name, job_id, self.engine.name)
        try:
            submission = submissions.submitted(submission, job_id)
        except ClaimLost:
            # The next owner does not know the id, so it could neither find the job nor cancel it.
            self._try_to_cancel(job_id)
            raise
        if submission.job_id != job_id:
            log.warning("Another attempt has submitted %s as %s; this one is cancelled", job_id, submission.job_id)
            self._try_to_cancel(job_id)
            self._running_id = submission.job_id
        self._cancel_doubles(submission)
        self._check_not_cancelled(record, job.name)
        return submission

    def _check_not_cancelled(self, record: MigrationRecord, name: str) -> None:
        if self._is_cancelled:
            # While the engine accepted the job, ``cancel`` did not know its id yet.
            if self._running_id:
                self._try_to_cancel(self._running_id)
            raise interrupted(record, name)

    def end(self, record: MigrationRecord, submission: Submission) -> None:
        """Wait for the end of a job, and return if it has ended well.

        :raises MigrationError: the job's own error, or that of the engine.
        """
        self._raise(record, submission, self._wait(record, submission))

    def taken_up(self, record: MigrationRecord, submission: Submission) -> None:
        """Journal that the end of a job was taken up."""
        Submissions(record, submission.name).ended(submission, "taken up")

    def run(self, record: MigrationRecord, job: JobRef, read_progress: ReadProgress) -> None:
        """Run a job to its end.

        :raises Interrupted: this runner has cancelled the job.
        :raises MigrationError: the job's own error, or that of the engine.
        """
        if not self.engine.detached:
            self._run_bound(record, job, read_progress)
            return
        submission = self.start(record, job)
        try:
            self._run_detached(record, job, submission, read_progress)
        except SparkJobCancelled:
            if self._is_cancelled:
                raise interrupted(record, job.name) from None
            raise

    def _run_bound(self, record: MigrationRecord, job: JobRef, read_progress: ReadProgress) -> None:
        self._check_not_cancelled(record, job.name)
        submission = Submission(job.name, new_token(job.name), self.engine.name, record.journal.generation, job.since)
        with self.make_job(job, submission.token) as described, self._pump(read_progress):
            job_id = self._running_id = self.engine.submit(described)
            try:
                # ``cancel`` did not know the id while the driver was started.
                self._check_not_cancelled(record, job.name)
                status = self._wait(record, replace(submission, job_id=job_id))
            finally:
                self.engine.cancel(job_id)
        self._raise(record, submission, status)

    def _run_detached(
        self, record: MigrationRecord, job: JobRef, submission: Submission, read_progress: ReadProgress
    ) -> None:
        self._running_id = submission.job_id
        # Entered for a job that was found as well: it renews what would expire while the job runs.
        with self.make_job(job, submission.token), self._pump(read_progress):
            status = self._wait(record, submission)
        self._raise(record, submission, status)
        self.taken_up(record, submission)

    def renewed(self, record: MigrationRecord, submission: Submission) -> AbstractContextManager[SparkJob]:
        """Renew what expires while the job of another process runs, until the block ends."""
        return self.make_job(JobRef(submission.name, record.spec.storage.journal, ""), submission.token)

    def watch(self, submission: Submission) -> None:
        """Make :meth:`cancel` cancel the job of an earlier part of this task."""
        self._running_id = submission.job_id

    def has_ended(self, record: MigrationRecord, submission: Submission) -> bool:
        """Whether a job has ended, by its engine or, if that does not answer, by what its driver has written."""
        status = self._look(submission.job_id)
        return _is_over(status, None) or _is_over(status, read_end(record, submission))

    def cancel(self) -> None:
        """Cancel the job that this runner waits for, and submit no other one.

        May be called in a signal handler, and from another thread. An engine that does not answer now raises nothing
        here; whoever still waits for the job asks it again.
        """
        self._is_cancelled = True
        if self._running_id:
            self._has_accepted = self._try_to_cancel(self._running_id)

    # -- waiting -----------------------------------------------------------------------------------------------------

    def _wait(self, record: MigrationRecord, submission: Submission) -> JobStatus:
        status = self._wait_for_end(record, submission)
        self._running_id = ""
        return status

    def _wait_for_end(self, record: MigrationRecord, submission: Submission) -> JobStatus:
        silent = 0
        while True:
            status = self._look(submission.job_id)
            if _is_over(status, None):
                return status
            if self._is_cancelled and not self._has_accepted:
                self._has_accepted = self._try_to_cancel(submission.job_id)
            if status.state is JobState.UNKNOWN:
                if _is_over(status, read_end(record, submission)):
                    return status
                if silent % _WARN_EVERY == 0:
                    log.warning("%s does not tell how %s is: %s", self.engine.name, submission.job_id, status.reason)
                silent += 1
            else:
                silent = 0
            if self._stop(self._poll_seconds):
                self._try_to_cancel(submission.job_id)
                raise interrupted(record, submission.name)

    def _look(self, job_id: str) -> JobStatus:
        try:
            return self.engine.status(job_id)
        except Transient as error:
            return JobStatus(JobState.UNKNOWN, str(error))

    def _try_to_cancel(self, job_id: str) -> bool:
        """Return whether the engine has accepted that the job ends."""
        try:
            self.engine.cancel(job_id)
        except MigrationError as error:
            log.warning("The job %s could not be cancelled: %s", job_id, error)
            return False
        return True

    def _raise(self, record: MigrationRecord, submission: Submission, status: JobStatus) -> None:
        error = job_error(record, submission, status)
        if error is not None:
            if self.engine.detached:
                self._journal_end(record, submission, f"{status.state}: {error.code}")
            raise error

    @staticmethod
    def _journal_end(record: MigrationRecord, submission: Submission, how: str) -> None:
        try:
            Submissions(record, submission.name).ended(submission, how)
        except Transient as error:
            # It must not take the place of the job's own error. The next attempt sees the end and journals it.
            log.warning("The end of the job %s could not be journaled: %s", submission.job_id, error)


# -- how a job has ended ----------------------------------------------------------------------------------------------


def read_end(record: MigrationRecord, submission: Submission) -> JobEnd | None:
    """Return what the driver of a submission has said about its end; None if it has said nothing.

    On YARN a token may have two drivers, and the one that is cancelled writes to the same place. So an end of another
    application than that of the submission is nobody's word about this job.
    """
    token = submission.token
    data = record.journal_store.get(record.key(keys.job_end(token)))
    if data is None:
        return None
    try:
        end = JobEnd.parse(data)
    except ValidationError:
        log.warning("The document about the end of %s cannot be read", token)
        return None
    if end.token != token:
        log.warning("The document about the end of %s is about another submission, so it is not used", token)
        return None
    if end.application_id and submission.job_id.startswith("application_") and end.application_id != submission.job_id:
        log.info("The document about the end of %s is that of its double %s", submission.job_id, end.application_id)
        return None
    return end


def _is_over(status: JobStatus, end: JobEnd | None) -> bool:
    """Whether a job has ended; an end that its driver has written counts where the engine does not answer.

    A driver that was asked to stop may be a double, which has the same token and so writes the same document: then the
    job itself runs on, and a second one must not be submitted. Documents of earlier versions do not name their driver.
    """
    if status.state is not JobState.UNKNOWN:
        return status.state.is_over
    return end is not None and end.status != "terminated"


def job_error(record: MigrationRecord, submission: Submission, status: JobStatus) -> MigrationError | None:
    """Return the error of a job that has ended; None if it has ended well.

    The driver knows best: an engine forgets jobs after a while, and may call one failed whose driver was done.
    """
    end = read_end(record, submission)
    if end is not None and end.status == "succeeded":
        return None
    # Some engines forget a job that is cancelled, or call it failed; its driver was asked to stop nevertheless.
    was_stopped = end is not None and end.status == "terminated" and status.state is not JobState.SUCCEEDED
    if status.state is JobState.CANCELLED or was_stopped:
        return SparkJobCancelled(
            f"the {submission.name} job {submission.job_id} was cancelled on {submission.engine}",
            where=record.where(submission.name),
            next_step="clear the task to submit it again: it continues where it stopped",
        )
    if end is not None and end.error is not None and end.status == "failed":
        return _detailed(record, submission.name, end.error)
    if status.state is JobState.SUCCEEDED:
        return None
    said = last_word(status.log_tail)
    return _detailed(record, submission.name, said or _engine_error(record, submission, status))


def _engine_error(record: MigrationRecord, submission: Submission, status: JobStatus) -> SparkJobFailed:
    lost = "it does not exist any more" if status.state is JobState.LOST else f"it is {status.state}"
    reason = status.reason or service.last_words(status.log_tail) or lost
    was_killed = _KILLED.search(reason) is not None
    return SparkJobFailed(
        f"the {submission.name} job ended on {submission.engine} without saying why: {reason[:500]}",
        where=record.where(submission.name),
        next_step=f"{_LOOK_FOR_MEMORY if was_killed else ''}see the driver's log; then clear the task, or resume: it "
        "continues from the target's log ends",
        details={"log": list(status.log_tail[-40:]), "job_id": submission.job_id},
    )


#: The end of a driver that something outside of it has ended.
_KILLED = re.compile(
    rf"SIG(?:KILL|TERM|INT|HUP)\b|OOMKilled|OutOfMemory|(?:code|status)\D{{0,9}}(?:137|143)\b|{service.WITHOUT_AN_ERROR}"
)
_LOOK_FOR_MEMORY = (
    "look for a lack of memory first (`dmesg -T | grep -i 'out of memory'` on the driver's machine; for a pod or "
    "container, its last state, OOMKilled): then give the driver more memory, or run fewer lanes at a time; "
    "else find who has ended the process; "
)


def _detailed(record: MigrationRecord, name: str, error: MigrationError) -> MigrationError:
    """Return the error of a copy with all failed partitions: the progress document lists them."""
    if not _compares(name) and isinstance(error, CopyFailed | CopyStalled | SparkJobFailed):
        return copy_jobs.job_failed(record, name, error)
    return error


def _compares(name: str) -> bool:
    return name in _CONTENT_JOBS or keys.is_comparison_job(name)


def last_word(lines: tuple[str, ...]) -> MigrationError | None:
    """Return our error in a driver's last message, one line ``[CODE] what. Next: step``; None if there is none."""
    for line in reversed(lines):
        found = _LAST_WORD.search(line)
        if found:
            what, _, next_step = found["text"].partition(". Next: ")
            error = error_from_dict({"code": found["code"], "what": what, "next_step": next_step})
            # Spark's own messages look the same, but this package has no errors with their codes.
            if type(error) not in (Terminal, Transient):
                return error
    return None


def interrupted(record: MigrationRecord, name: str) -> Interrupted:
    """Return the error of a job that was asked to stop."""
    return Interrupted(
        f"{name} was asked to stop",
        where=record.where(name),
        next_step="run the same command again, or resume the migration: it continues where it stopped",
    )
