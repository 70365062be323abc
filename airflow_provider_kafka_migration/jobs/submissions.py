"""Jobs that were submitted to a Spark engine, as the journal knows them: so that a restart finds a running job.

A submission has a token, which is journaled before the engine is called, and an id of the engine, which is journaled
before anything waits for it. A process that dies at any point in between is followed by one that reads the journal:

* token, no id: the engine may have the job or not. The same token is submitted again, and gives the same job.
* token and id: the engine is asked for the job.
* several ids: two attempts have submitted the token at the same time, and the engine has two jobs. The first id in the
  journal is the job, for both; the other job is cancelled.
* ended: nothing runs, and the next attempt submits a new job.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_kafka_migration.documents.journal import JournalEntry
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import JobRef
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.state import State

#: No entry may follow in these states.
_ENDED_STATES = (State.ROLLED_BACK, State.FINALIZED)


@dataclass(frozen=True)
class Submission:
    """One submission of a job document.

    :param name: name of the job document: ``seed``, ``tail``, ``verify`` ...
    :param engine: name of the engine that has the job.
    :param arguments: of that engine, so that a later one can be made that reaches the job; empty in old journals.
    :param generation: generation of the claim under which it was submitted. Copiers of an earlier one are refused.
    :param since: number of the journal's last entry before the job was submitted.
    :param job_id: the engine's id; empty before the engine has answered.
    :param found: this process did not submit the job, it found it in the journal.
    """

    name: str
    token: str
    engine: str
    generation: int
    since: int = -1
    job_id: str = ""
    found: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the submission as JSON-serializable data, without secrets."""
        return {
            "name": self.name,
            "token": self.token,
            "engine": self.engine,
            "generation": self.generation,
            "since": self.since,
            "job_id": self.job_id,
            "found": self.found,
            "arguments": dict(self.arguments),
        }


def new_token(name: str) -> str:
    """Return a token: a letter, then at most 35 characters of ``[a-z0-9-]``, as engines need it."""
    return f"{name[:15]}-{uuid.uuid4().hex[:20]}"


class Submissions:
    """The submissions of one job document. Without a claim (a backup has none) nothing is kept.

    :param name: name of the job document.
    """

    def __init__(self, record: MigrationRecord, name: str) -> None:
        self._record = record
        self._name = name

    @property
    def are_kept(self) -> bool:
        """Whether submissions are journaled."""
        return self._record.journal.generation > 0

    def last(self) -> Submission | None:
        """Return the last submission that has not ended; None if there is none. Reads the journal again."""
        if not self.are_kept:
            return None
        journal = self._record.journal
        journal.refresh()
        entry = journal.find_step(steps.SPARK_JOB_SUBMITTING, self._name)
        if entry is None:
            return None
        token = str(entry.details.get("token", ""))
        if self._of(steps.SPARK_JOB_ENDED, token) is not None:
            return None
        return Submission(
            name=self._name,
            token=token,
            engine=str(entry.details.get("engine", "")),
            generation=entry.generation,
            since=entry.seq,
            job_id=self._job_id(token),
            found=True,
            arguments=dict(entry.details.get("arguments") or {}),
        )

    def begin(self, engine: str, job: JobRef, arguments: Mapping[str, Any]) -> Submission:
        """Journal a new token. Call this before the engine is called.

        :param arguments: of the engine, JSON-serializable, without secrets.
        """
        generation = self._record.journal.generation
        token = new_token(self._name)
        submission = Submission(self._name, token, engine, generation, job.since, arguments=dict(arguments))
        if self.are_kept:
            details = {"token": token, "engine": engine, "arguments": dict(arguments)}
            self._record.journal.step(steps.SPARK_JOB_SUBMITTING, key=self._name, details=details)
        return submission

    def submitted(self, submission: Submission, job_id: str) -> Submission:
        """Journal the engine's id. Call this before anything waits for the job.

        :returns: the submission with the first id that was journaled for its token: this one, or that of an attempt
            which has submitted the same token at the same time.
        """
        if self.are_kept:
            details = {"token": submission.token, "engine": submission.engine, "job_id": job_id}
            self._record.journal.step(steps.SPARK_JOB_SUBMITTED, key=self._name, details=details)
            job_id = self._job_id(submission.token)
        return replace(submission, job_id=job_id)

    def _job_id(self, token: str) -> str:
        """Return the first id of a token; all processes agree on it, because the journal has an order."""
        entries = self._record.journal.steps(steps.SPARK_JOB_SUBMITTED, self._name)
        ids = (str(entry.details.get("job_id", "")) for entry in entries if entry.details.get("token") == token)
        return next(ids, "")

    def ended(self, submission: Submission, how: str) -> None:
        """Journal that the job has ended and its end was taken up; a migration that is over takes no more entries.

        :param how: one word or sentence for people.
        """
        journal = self._record.journal
        if not self.are_kept or journal.tip_state in _ENDED_STATES:
            return
        if self._of(steps.SPARK_JOB_ENDED, submission.token) is None:
            details = {"token": submission.token, "engine": submission.engine, "how": how}
            journal.step(steps.SPARK_JOB_ENDED, key=self._name, details=details)

    def _of(self, step: str, token: str) -> JournalEntry | None:
        entries = self._record.journal.steps(step, self._name)
        return next((entry for entry in reversed(entries) if entry.details.get("token") == token), None)
