"""What EMR Serverless and EMR on EKS share as engines: looking a job up by its token, its state, its end."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_kafka_migration.engines.aws import (
    REQUEST_ERRORS,
    TAG_JOB,
    TAG_MIGRATION,
    TAG_TOKEN,
    Aws,
    AwsArguments,
    JobRun,
    StoredLogs,
    arn_of,
    as_ours,
    cloudwatch_console,
    code_of,
    first_tail,
    is_absent,
    s3_console,
    wait,
)
from airflow_provider_kafka_migration.engines.base import JobState, JobStatus, SparkJob
from airflow_provider_kafka_migration.engines.service import (
    check_arguments,
    one_line,
    place,
    service_conf,
    service_environment,
)
from airflow_provider_kafka_migration.engines.staging import Staging
from airflow_provider_kafka_migration.errors import EngineRefused, EngineSecretsUnsafe, MigrationError, Transient

if TYPE_CHECKING:
    from airflow.triggers.base import BaseTrigger

log = logging.getLogger(__name__)

#: How far back a job run that has ended is looked up by its token. A batch run of EMR Serverless ends after 7 days.
LOOK_BACK = timedelta(days=8)

#: Seconds between two questions about a run that seems not to exist.
ABSENT_WAITS = (2.0, 5.0)

#: What the services allow in one ``spark-defaults`` classification.
MAX_PROPERTIES, MAX_PROPERTY_LENGTH = 100, 1024

#: Both services configure these, so a job must not.
_RESERVED_VARIABLES = frozenset({"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"})


class EmrEngine:
    """Base of both EMR engines. The id of a job is the ARN of its job run.

    :param arguments: ``spark.engine_args``.
    :raises SpecInvalid: they have mistakes.
    """

    name: ClassVar[str]
    located_by: ClassVar[tuple[str, ...]]
    #: The service's name at AWS, and the hook that knows it.
    service: ClassVar[str]
    hook_name: ClassVar[str]
    arguments_class: ClassVar[type[AwsArguments]]
    #: Spark conf that sets an environment variable of the driver, and of executors.
    driver_variable: ClassVar[str]
    executor_variable: ClassVar[str] = "spark.executorEnv."
    #: States of a job run that may still run, and what all states mean.
    active_states: ClassVar[tuple[str, ...]]
    states: ClassVar[Mapping[str, JobState]]

    detached = True

    def __init__(self, **arguments: Any) -> None:
        self._regions: dict[str | None, Aws] = {}
        self._read_arguments(
            check_arguments(
                self.arguments_class, self.name, arguments, references=frozenset({"secrets", "kubernetes_secrets"})
            )
        )

    @abstractmethod
    def _read_arguments(self, arguments: Any) -> None:
        """Keep the checked arguments."""

    @property
    @abstractmethod
    def _common(self) -> AwsArguments:
        """The arguments that both engines have."""

    def _aws(self, region: str | None = None) -> Aws:
        """Return the clients for a region; None: that of the arguments, or of the connection."""
        if region not in self._regions:
            # Imported here, and not with this module, because it takes a second.
            hooks = import_module("airflow.providers.amazon.aws.hooks.emr")
            self._regions[region] = Aws(self._common, getattr(hooks, self.hook_name), region=region)
        return self._regions[region]

    # -- submit -------------------------------------------------------------------------------------------------------

    def submit(self, job: SparkJob) -> str:
        """Start a job run, or find the one of this token. Returns its ARN.

        AWS does not document for how long EMR remembers a client token, so the job runs of the place are searched for
        the token first: a job that was accepted long ago, or whose answer was lost, is not started again.

        :raises EngineSecretsUnsafe: the job has secret variables that the arguments do not provide.
        :raises EngineRefused: the job's settings exceed what the service takes, or the service refused them.
        """
        properties = self._properties(job)
        aws = self._aws()
        try:
            found = self._find(aws, job)
        except REQUEST_ERRORS as error:
            if not is_absent(error):
                raise self._failure(error, f"list the job runs of {self._place()}", job) from None
            found = None  # the request that starts the job says with certainty whether the place exists
        if found is not None:
            log.info("The job %s was already submitted as %s", job.token, found)
            return str(found)
        request = self._request(job, properties, Staging(job.staging, opener=aws.store))
        try:
            return str(arn_of(aws.call(self.service, "start_job_run", **request), self.service))
        except REQUEST_ERRORS as error:
            # The token may be in use with other settings, after a new release or a change of the spec.
            if code_of(error) == "ConflictException" and (found := self._found_again(aws, job)) is not None:
                return str(found)
            raise self._failure(error, f"start a job run in {self._place()}", job) from None

    def _found_again(self, aws: Aws, job: SparkJob) -> JobRun | None:
        """Look for the job of a token that the service says is taken."""
        try:
            return self._find(aws, job)
        except REQUEST_ERRORS as error:
            raise self._failure(error, f"list the job runs of {self._place()}", job) from None

    def _find(self, aws: Aws, job: SparkJob) -> JobRun | None:
        """Return the job run of a token: one that may still run, else the newest; None if there is none."""
        for run in self._runs(aws, job, {"states": list(self.active_states)}):
            if self._is_of(run, job):
                return arn_of(run, self.service)
        ended = [run for run in self._runs(aws, job, self._since(LOOK_BACK)) if self._is_of(run, job)]
        newest = max(ended, key=lambda run: str(run.get("createdAt") or ""), default=None)
        return None if newest is None else arn_of(newest, self.service)

    def _since(self, age: timedelta) -> dict[str, Any]:
        return {self.created_after: datetime.now(UTC) - age}

    #: Name of the list's argument for the earliest creation time.
    created_after: ClassVar[str]

    @abstractmethod
    def _runs(self, aws: Aws, job: SparkJob, filters: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield the job runs that may be the job's."""

    @abstractmethod
    def _is_of(self, run: Mapping[str, Any], job: SparkJob) -> bool:
        """Return whether a listed job run is the job's."""

    @abstractmethod
    def _request(self, job: SparkJob, properties: dict[str, str], staging: Staging) -> dict[str, Any]:
        """Upload the job's files and return the whole request that starts it."""

    @abstractmethod
    def _place(self) -> str:
        """Return where jobs run, for messages."""

    def _properties(self, job: SparkJob) -> dict[str, str]:
        """Return the job's ``spark-defaults``.

        :raises EngineSecretsUnsafe: see :meth:`submit`.
        :raises EngineRefused: too many properties, or a value that is too long.
        """
        arguments = self._common
        missing = sorted(set(job.secret_environment) - self._provided_secrets())
        if missing:
            raise EngineSecretsUnsafe(
                f"{self.name} shows the environment of a job to everybody who may read job runs, so it cannot pass "
                f"{', '.join(missing)}",
                where=place(job),
                next_step="store each in Secrets Manager and name it in spark.engine_args.secrets; "
                "docs/spark-engines.md has an example",
            )
        variables = service_environment(job)
        reserved = sorted(_RESERVED_VARIABLES & set(variables))
        if reserved:
            raise EngineSecretsUnsafe(
                f"the job's environment has {', '.join(reserved)}, which are credentials",
                where=place(job),
                next_step="leave them out: driver and executors have the execution role",
            )
        if arguments.python:
            variables |= {"PYSPARK_PYTHON": arguments.python, "PYSPARK_DRIVER_PYTHON": arguments.python}
        variables |= arguments.secrets
        conf = {**service_conf(job), "spark.app.name": job.application_name}
        if arguments.archives:
            conf["spark.archives"] = ",".join(filter(None, [conf.get("spark.archives", ""), *arguments.archives]))
        for name in sorted(variables):
            conf[f"{self.driver_variable}{name}"] = variables[name]
            if name != "PYSPARK_DRIVER_PYTHON":
                conf[f"{self.executor_variable}{name}"] = variables[name]
        conf |= self._own_properties()
        _check_properties(job, conf)
        return dict(sorted(conf.items()))

    def _provided_secrets(self) -> set[str]:
        """Return the names of secret variables that the platform gives to the job."""
        return set(self._common.secrets)

    def _own_properties(self) -> dict[str, str]:
        """Return properties of this engine alone."""
        return {}

    def _tags(self, job: SparkJob) -> dict[str, str]:
        own = {TAG_MIGRATION: job.migration_id, TAG_JOB: job.name, TAG_TOKEN: job.token}
        return {**self._common.tags, **own}

    def _log_uri(self, staging: str) -> str:
        return self._common.log_uri or f"{staging.rstrip('/')}/logs/"

    def _failure(self, error: BaseException, doing: str, job: SparkJob) -> MigrationError:
        return as_ours(error, doing, where=place(job))

    # -- the rest -----------------------------------------------------------------------------------------------------

    def status(self, job_id: str) -> JobStatus:
        """Say how a job run is; after a failure with the end of the driver's log.

        A run is lost only if the service says that it does not exist, to the account that the run belongs to.

        :raises EngineJobUnknown: the id is not of this engine.
        :raises EngineForbidden: the identity may not read job runs.
        """
        run = JobRun.parse(job_id, self.service)
        aws = self._aws(run.region)
        try:
            answer = self._described(aws, run)
        except REQUEST_ERRORS as error:
            if is_absent(error):
                return self._absent(aws, run)
            failure = as_ours(error, f"read the job run {run.run}")
            if isinstance(failure, Transient):
                return JobStatus(JobState.UNKNOWN, failure.what)
            raise failure from None
        described = answer.get("jobRun") if isinstance(answer, Mapping) else None
        given = described.get("state") if isinstance(described, Mapping) else None
        if not isinstance(described, Mapping) or not isinstance(given, str):
            return JobStatus(JobState.UNKNOWN, f"{self.service} answered without a state of the job run {run.run}")
        state = self.states.get(given)
        if state is None:
            return JobStatus(JobState.UNKNOWN, f"this version does not know the state {one_line(given)}")
        tail = self._tail(aws, run, described) if state is JobState.FAILED else ()
        return JobStatus(state, self._reason(described), tail)

    def _described(self, aws: Aws, run: JobRun) -> Mapping[str, Any]:
        """Ask for a run, again while it seems not to exist: a service may not show yet what it has just accepted."""
        for seconds in ABSENT_WAITS:
            try:
                return self._describe(aws, run)
            except REQUEST_ERRORS as error:
                if not is_absent(error):
                    raise
            wait(seconds)
        return self._describe(aws, run)

    def _absent(self, aws: Aws, run: JobRun) -> JobStatus:
        """Decide what it means that the service has no such run: another account does not have it either."""
        try:
            account = aws.account()
        except REQUEST_ERRORS as error:
            return JobStatus(JobState.UNKNOWN, f"the run was not found, and the account is not known: {code_of(error)}")
        if account != run.account:
            return JobStatus(
                JobState.UNKNOWN,
                f"the job runs in account {run.account}, but the connection is one of account {one_line(account)}",
            )
        return JobStatus(JobState.LOST, f"{self.service} has no job run {run.run} in {run.place}")

    def cancel(self, job_id: str) -> None:
        """Ask a job run to end; does nothing if it is over.

        :raises EngineJobUnknown: the id is not of this engine.
        """
        run = JobRun.parse(job_id, self.service)
        aws = self._aws(run.region)
        try:
            self._cancel(aws, run)
        except REQUEST_ERRORS as error:
            # A run that is over cannot be cancelled, and the services say so with errors that have other causes, too.
            if is_absent(error) or code_of(error) in ("ValidationException", "ConflictException"):
                status = self.status(job_id)
                if status.state.is_over or self._is_ending(aws, run):
                    return
            raise as_ours(error, f"cancel the job run {run.run}") from None

    def _is_ending(self, aws: Aws, run: JobRun) -> bool:
        """Return whether the service is already ending the run."""
        try:
            answer = self._describe(aws, run)
        except REQUEST_ERRORS:
            return False
        described = answer.get("jobRun")
        return isinstance(described, Mapping) and described.get("state") in ("CANCELLING", "CANCEL_PENDING")

    def trigger(self, job_id: str) -> BaseTrigger | None:
        """Return None: the Amazon provider's triggers do not wake up before the end, and a tail needs that."""
        return None

    def links(self, job_id: str) -> dict[str, str]:
        """Return the console's pages about a job run. The Spark UI is not among them: its address is a credential."""
        run = JobRun.parse(job_id, self.service)
        pages = {"EMR": f"{run.console}/emr/home?region={run.region}"}
        try:
            described = self._describe(self._aws(run.region), run).get("jobRun")
        except REQUEST_ERRORS:
            return pages
        uri, group = self._log_places(described if isinstance(described, Mapping) else {})
        if uri.startswith("s3://"):
            pages["Logs on S3"] = s3_console(run, uri, self._log_folder(run))
        if group:
            pages["Logs in CloudWatch"] = cloudwatch_console(run, group, self._log_folder(run))
        return pages

    @abstractmethod
    def _describe(self, aws: Aws, run: JobRun) -> Mapping[str, Any]:
        """Ask the service for a job run."""

    @abstractmethod
    def _cancel(self, aws: Aws, run: JobRun) -> None:
        """Ask the service to end a job run."""

    @abstractmethod
    def _reason(self, described: Mapping[str, Any]) -> str:
        """Return what the service says about the state."""

    @abstractmethod
    def _log_places(self, described: Mapping[str, Any]) -> tuple[str, str]:
        """Return the S3 location and the CloudWatch group of a run's logs; empty where it has none."""

    @abstractmethod
    def _log_folder(self, run: JobRun) -> str:
        """Return the folder of a run's logs."""

    @abstractmethod
    def _driver_folders(self, run: JobRun) -> tuple[str, ...]:
        """Return the folders in which the driver's logs may be, the usual one first."""

    def _tail(self, aws: Aws, run: JobRun, described: Mapping[str, Any]) -> tuple[str, ...]:
        uri, group = self._log_places(described)
        logs = StoredLogs(aws)

        def on_s3(folder: str) -> tuple[str, ...]:
            return logs.on_s3(uri, folder, lambda key: key.endswith((".gz",)) and "driver" in key.lower())

        def in_cloudwatch(prefix: str) -> tuple[str, ...]:
            return logs.in_cloudwatch(group, prefix, lambda name: "driver" in name.lower())

        sources = [lambda folder=folder: on_s3(folder) for folder in self._driver_folders(run) if uri]
        streams = (self._log_folder(run), f"/{self._log_folder(run)}")
        sources += [lambda prefix=prefix: in_cloudwatch(prefix) for prefix in streams if group]
        return first_tail(*sources)


def monitoring_of(described: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the monitoring configuration of a described job run; empty if the answer has none."""
    overrides = described.get("configurationOverrides")
    found = overrides.get("monitoringConfiguration") if isinstance(overrides, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def text_in(data: Mapping[str, Any], section: str, key: str) -> str:
    """Return a text of a section of an answer; empty if it has none."""
    found = data.get(section)
    value = found.get(key) if isinstance(found, Mapping) else None
    return value if isinstance(value, str) else ""


def _check_properties(job: SparkJob, properties: Mapping[str, str]) -> None:
    """Refuse what the service would refuse with an error that names nothing. Values are not quoted."""
    long = sorted(
        key for key in properties if len(key) > MAX_PROPERTY_LENGTH or len(properties[key]) > MAX_PROPERTY_LENGTH
    )
    empty = sorted(key for key in properties if not properties[key].strip())
    wrong = []
    if len(properties) > MAX_PROPERTIES:
        wrong.append(f"the job has {len(properties)} Spark settings, and EMR takes {MAX_PROPERTIES}")
    if long:
        wrong.append(f"settings longer than {MAX_PROPERTY_LENGTH} characters: {', '.join(long)}")
    if empty:
        wrong.append(f"settings without a value: {', '.join(empty)}")
    if wrong:
        raise EngineRefused(
            "; ".join(wrong),
            where=place(job),
            next_step="shorten or remove settings in spark.conf, or set them as defaults of the application",
        )
