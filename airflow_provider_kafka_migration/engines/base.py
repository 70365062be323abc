"""The protocol of a Spark engine: what it is given, what it answers, and what it must guarantee."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from pydantic import BaseModel

if TYPE_CHECKING:
    from airflow.triggers.base import BaseTrigger

#: Entry point group in which other packages offer engines: ``name = "package.module:EngineClass"``.
ENTRY_POINT_GROUP = "airflow_provider_kafka_migration.spark_engines"


class JobState(StrEnum):
    """How a submitted job is. ``LOST`` and ``UNKNOWN`` differ: a lost job certainly does not run any more."""

    #: Accepted, but the driver does not run yet.
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    #: The engine has no such job, or its process has ended without a status: it does not run any more.
    LOST = "lost"
    #: The engine did not answer, or answered something unexpected. It may still run.
    UNKNOWN = "unknown"

    @property
    def is_over(self) -> bool:
        """Whether the job certainly does not run any more."""
        return self not in (JobState.PENDING, JobState.RUNNING, JobState.UNKNOWN)


@dataclass(frozen=True)
class JobStatus:
    """An engine's answer about a job.

    :param reason: one sentence of the engine, for people; empty if it gives none.
    :param log_tail: the last lines of the driver's log, as far as the engine gives them (at most 40).
    """

    state: JobState
    reason: str = ""
    log_tail: tuple[str, ...] = ()


@dataclass(frozen=True)
class SparkJob:
    """Everything that an engine needs in order to submit a job. Contains no secret except in ``secret_environment``.

    :param migration_id: the migration.
    :param name: name of the job document: ``seed``, ``tail``, ``verify``, ``backup``, ``restore`` ...
    :param token: identifies this submission. It is journaled before :meth:`SparkEngine.submit` is called; submitting
        the same token twice must give the same job. At most 36 characters of ``[a-z0-9-]``, beginning with a letter.
    :param main: the Spark main, a local file.
    :param py_files: this package as a zip, a local file; None if it is installed wherever the job runs.
    :param arguments: arguments of the main: pointers, never secrets.
    :param conf: Spark conf, complete (what a copy needs is already in it).
    :param environment: environment variables of the driver; no secrets.
    :param secret_environment: environment variables of the driver that are secret. An engine that cannot pass them
        without writing them into a conf, an argument list or a job document that others can read must refuse the job.
    :param staging: ``s3://bucket/prefix``, ``gs://...`` or ``file:///folder``: where an engine may put ``main`` and
        ``py_files`` for machines that cannot read this one's files.
    """

    migration_id: str
    name: str
    token: str
    main: Path
    py_files: Path | None
    arguments: tuple[str, ...]
    conf: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    secret_environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    staging: str = ""

    @property
    def application_name(self) -> str:
        """The name that Spark's UI shows."""
        return f"kafka-migration-{self.migration_id}-{self.name}"


@runtime_checkable
class SparkEngine(Protocol):
    """Submits Spark jobs. One instance serves one task; engines keep no state between processes.

    Engines are created with ``spark.engine_args`` of the spec as keyword arguments, and check them at once.

    :raises SpecInvalid: an argument is unknown, missing or malformed (from the constructor).

    Errors of all methods are ``Terminal`` (a person must act: no right, quota, wrong argument) or ``Transient`` (the
    service did not answer). Every wait is bounded.
    """

    #: The value of ``spark.engine`` in a spec.
    name: ClassVar[str]

    # Optional, because engines of other packages may lack them:
    #
    # * ``arguments``: the arguments as plain data, if they are not those of the spec;
    # * ``located_by``: names of the arguments that say on which cluster jobs run. A job that was submitted with other
    #   values is cancelled there, not looked for here;
    # * ``find(token)``: the id of the job with this token, None if there is none;
    # * ``cancel_doubles(token, job_id)``: cancel all jobs with this token but one. Only for engines that cannot make
    #   sure that there is one, however many submit it at the same time.

    #: Whether a job outlives the task that has submitted it, and any machine can ask for it by its id. If not, a job
    #: dies with its task, and the task cannot be deferred.
    detached: bool

    def submit(self, job: SparkJob) -> str:
        """Submit a job, or find the one that was submitted with the same token. Returns its id (a string)."""
        ...

    def status(self, job_id: str) -> JobStatus:
        """Say how a job is. Never raises for a job that does not exist: that is ``LOST``."""
        ...

    def cancel(self, job_id: str) -> None:
        """Ask the job to end. Does nothing if it is over. Returns once the engine has accepted this."""
        ...

    def trigger(self, job_id: str) -> BaseTrigger | None:
        """Return a trigger of the engine's own that waits for the end; None: :meth:`status` is polled."""
        ...

    def links(self, job_id: str) -> dict[str, str]:
        """Return pages about the job for people: label to URL."""
        ...


def arguments_of(engine: SparkEngine, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with which another process can make an engine that reaches the same jobs: plain data.

    :param given: ``spark.engine_args`` of the spec, for engines that keep none of their own.
    """
    own = getattr(engine, "arguments", given)
    return own.model_dump(mode="json") if isinstance(own, BaseModel) else dict(own)


def is_elsewhere(engine: SparkEngine, now: Mapping[str, Any], then: Mapping[str, Any]) -> bool:
    """Whether jobs that were submitted with other arguments run where this engine does not look for them."""
    names = getattr(engine, "located_by", ())
    return bool(then) and any(now.get(name) != then.get(name) for name in names)
