"""A Spark engine in memory: a cluster that outlives the processes which use it, and runs jobs when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from airflow_provider_kafka_migration.engines.base import JobState, JobStatus, SparkJob


@dataclass
class MemoryJob:
    """A job of the cluster."""

    job_id: str
    job: SparkJob
    state: JobState = JobState.RUNNING
    reason: str = ""
    log_tail: tuple[str, ...] = ()


@dataclass
class MemoryCluster:
    """All jobs that were ever submitted, and every call, in order.

    :param before, after: called with the name of each call, before it has an effect and after it.
    :param looks: called at each status, before the answer is made: what happens on the cluster meanwhile.
    """

    jobs: dict[str, MemoryJob] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    before: Callable[[str], None] = lambda _name: None
    after: Callable[[str], None] = lambda _name: None
    looks: Callable[[MemoryJob], None] = lambda _job: None
    #: states that are answered first, whatever is true
    answers: list[JobState | Exception] = field(default_factory=list)

    @property
    def running(self) -> list[MemoryJob]:
        """The jobs that run."""
        return [job for job in self.jobs.values() if not job.state.is_over]

    def submit(self, job: SparkJob) -> str:
        """The same token gives the same job."""
        for known in self.jobs.values():
            if known.job.token == job.token:
                return known.job_id
        job_id = f"job-{len(self.jobs) + 1}"
        self.jobs[job_id] = MemoryJob(job_id, job)
        return job_id

    def status(self, job_id: str) -> JobStatus:
        """As an engine answers."""
        found = self.jobs.get(job_id)
        if found is None:
            return JobStatus(JobState.LOST)
        self.looks(found)
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return JobStatus(answer)
        return JobStatus(found.state, found.reason, found.log_tail)

    def cancel(self, job_id: str) -> None:
        """End a job that runs."""
        if not self.jobs[job_id].state.is_over:
            self.jobs[job_id].state = JobState.CANCELLED


class MemoryEngine:
    """See ``SparkEngine``. Each instance is the engine of another process."""

    name: ClassVar[str] = "memory"
    located_by: ClassVar[tuple[str, ...]] = ("room",)
    #: The cluster of engines that are made by name.
    shared: ClassVar[MemoryCluster] = MemoryCluster()
    #: Other clusters, by room.
    rooms: ClassVar[dict[str, MemoryCluster]] = {}

    def __init__(self, *, cluster: MemoryCluster | None = None, room: str = "") -> None:
        self.cluster = cluster or type(self).rooms.get(room) or type(self).shared
        self.room = room
        self.arguments = {"room": room} if room else {}
        self.detached = True

    def _call(self, name: str, act: Callable[[], Any]) -> Any:
        self.cluster.calls.append(name)
        self.cluster.before(name)
        answer = act()
        self.cluster.after(name)
        return answer

    def submit(self, job: SparkJob) -> str:
        """Accept a job."""
        return str(self._call("submit", lambda: self.cluster.submit(job)))

    def status(self, job_id: str) -> JobStatus:
        """Say how a job is."""
        found: JobStatus = self._call("status", lambda: self.cluster.status(job_id))
        return found

    def cancel(self, job_id: str) -> None:
        """Cancel a job."""
        self._call("cancel", lambda: self.cluster.cancel(job_id))

    def trigger(self, _job_id: str) -> None:
        """None: the status is polled."""

    def links(self, job_id: str) -> dict[str, str]:
        """A page about the job."""
        return {"job": f"https://memory.example/{job_id}"}
