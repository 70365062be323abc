"""The engine ``dataproc``: a PySpark batch of Dataproc Serverless (Serverless for Apache Spark) per job.

The batch's id is the job's token, and so is the request's id: Google answers a second request with the first batch.
A batch has no environment variables that only its processes see, so this engine passes no secrets, only references
(``gcp-sm:``) to them, which driver and executors resolve as the batch's service account.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, field_validator

from airflow_provider_kafka_migration.engines import service
from airflow_provider_kafka_migration.engines.base import JobState, JobStatus, SparkJob
from airflow_provider_kafka_migration.errors import (
    ConnectionInvalid,
    EngineAnswerInvalid,
    EngineForbidden,
    EngineJobConflict,
    EngineNotFound,
    EngineQuotaExceeded,
    EngineRefused,
    EngineSecretsUnsafe,
    EngineThrottled,
    EngineUnreachable,
    MigrationError,
    StagingRefused,
)
from airflow_provider_kafka_migration.spec.types import Duration

if TYPE_CHECKING:
    from airflow.providers.google.cloud.hooks.dataproc import DataprocHook
    from airflow.providers.google.cloud.hooks.gcs import GCSHook
    from airflow.triggers.base import BaseTrigger
    from google.cloud.dataproc_v1 import Batch

log = logging.getLogger(__name__)

_SERVICE = "Dataproc"
_PROVIDER = "apache-airflow-providers-google"
_PREFIX = "kafka-migration-"
_RIGHTS = "check the login of the connection, and that it has the rights of docs/spark-engines.md; then clear the task"

_PROJECT = r"[a-z][a-z0-9.:-]{4,61}[a-z0-9]"
_REGION = r"[a-z]+-[a-z]+[0-9]+"
_BATCH = r"[a-z][a-z0-9-]{2,61}[a-z0-9]"
_JOB_ID = re.compile(rf"projects/(?P<project>{_PROJECT})/locations/(?P<region>{_REGION})/batches/(?P<batch>{_BATCH})")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFERENCE = re.compile(r"(?:gcp-sm|vault):[^\s/]\S*")
_BUCKET_URI = re.compile(r"gs://(?P<bucket>[a-z0-9][a-z0-9._-]{1,220}[a-z0-9])(?:/(?P<prefix>[A-Za-z0-9._=+@/-]*))?")

#: The longest time that Dataproc lets a batch run. Its own default is 4 hours, which would end every tail.
_LONGEST = timedelta(days=14)

_STATES = {
    "PENDING": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "CANCELLING": JobState.RUNNING,
    "CANCELLED": JobState.CANCELLED,
    "SUCCEEDED": JobState.SUCCEEDED,
    "FAILED": JobState.FAILED,
}


class DataprocArguments(service.EngineArguments):
    """``spark.engine_args`` of the engine ``dataproc``."""

    conn_id: str = Field("google_cloud_default", min_length=1, description="Airflow connection to Google Cloud.")
    project: str | None = Field(None, pattern=f"^{_PROJECT}$", description="Project; default: the connection's.")
    region: str = Field(pattern=f"^{_REGION}$", description="Region of the batches, for instance europe-west1.")
    runtime_version: str = Field("3.0", description="Runtime of Dataproc Serverless, at least 2.2 (Spark 3.5).")
    container_image: str | None = Field(None, description="Image with Python and the packages that executors need.")
    archives: list[str] = Field(
        default_factory=list,
        description="gs:// archives that are unpacked: gs://bucket/environment.tar.gz#environment.",
    )
    python: str | None = Field(None, description="Python of driver and executors: ./environment/bin/python.")
    service_account: str | None = Field(None, description="Service account of driver and executors.")
    subnetwork: str | None = Field(None, description="Subnetwork with a route to both Kafka clusters.")
    network_tags: list[str] = Field(default_factory=list, description="Network tags, for firewall rules.")
    kms_key: str | None = Field(None, description="Key that encrypts the batch's data on disks.")
    staging_bucket: str | None = Field(None, description="Bucket for the batch's own files and the driver's log.")
    code: str | None = Field(
        None, description="gs://bucket/prefix to which the engine uploads the code; default: next to the journal."
    )
    secrets: dict[str, str] = Field(
        default_factory=dict,
        description="Environment variables of driver and executors whose value is a reference to a secret: "
        "KAFKA_MIGRATION_SEALING_KEY: gcp-sm:PROJECT/SECRET.",
    )
    labels: dict[str, str] = Field(default_factory=dict, description="More labels of the batch.")
    timeout: Duration = Field("14d", description="Dataproc ends a batch after this time: 10m to 14d.")  # type: ignore[assignment]

    @field_validator("runtime_version")
    @classmethod
    def _has_spark_3_5(cls, value: str) -> str:
        if not re.fullmatch(r"(?:2\.(?:[2-9]|[1-9]\d)|(?:[3-9]|[1-9]\d)\.\d+)(?:\.\d+)?", value):
            raise ValueError("write 2.2 or later: jobs need Spark 3.5 or later")
        return value

    @field_validator("timeout")
    @classmethod
    def _is_possible(cls, value: timedelta) -> timedelta:
        if not timedelta(minutes=10) <= value <= _LONGEST:
            raise ValueError("Dataproc takes 10m to 14d")
        return value

    @field_validator("code")
    @classmethod
    def _is_bucket(cls, value: str | None) -> str | None:
        if value is not None and not _BUCKET_URI.fullmatch(value):
            raise ValueError("write gs://bucket/prefix")
        return value

    @field_validator("secrets")
    @classmethod
    def _are_references(cls, value: dict[str, str]) -> dict[str, str]:
        for variable, reference in value.items():
            if not _VARIABLE.fullmatch(variable) or not _REFERENCE.fullmatch(reference):
                raise ValueError("write VARIABLE: gcp-sm:PROJECT/SECRET (or vault:...), never the secret itself")
        return value

    @field_validator("archives")
    @classmethod
    def _are_on_google(cls, value: list[str]) -> list[str]:
        if any(not archive.startswith("gs://") for archive in value):
            raise ValueError("write gs://bucket/file.tar.gz#folder")
        return value


class DataprocEngine:
    """Submits a job as a batch. Its id is ``projects/PROJECT/locations/REGION/batches/TOKEN``."""

    name: ClassVar[str] = "dataproc"
    located_by: ClassVar[tuple[str, ...]] = ("conn_id", "project", "region")
    detached = True

    def __init__(self, **arguments: Any) -> None:
        self.arguments = service.check_arguments(
            DataprocArguments, self.name, arguments, references=frozenset({"secrets"})
        )

    # -- the protocol ---------------------------------------------------------------------------------------------

    def submit(self, job: SparkJob) -> str:
        """Create the batch, or find the one with the same token. Returns the batch's full name."""
        if missing := sorted(set(job.secret_environment) - set(self.arguments.secrets)):
            raise EngineSecretsUnsafe(
                f"the job needs the secret variables {', '.join(missing)}, and Dataproc shows a batch's variables to "
                "everybody who may see the batch",
                where=service.place(job),
                next_step="store each in Secret Manager and name it in spark.engine_args.secrets as "
                "gcp-sm:PROJECT/SECRET; driver and executors read it as the batch's service account",
            )
        batch_id, project, region = job.token, self._project, self.arguments.region
        if not re.fullmatch(_BATCH, batch_id):
            raise service.not_an_id(batch_id, self.name, "a token of 4 to 36 characters")
        document = self.document(job, *self._code(job))
        name = f"projects/{project}/locations/{region}/batches/{batch_id}"
        try:
            self._call(
                "submit the job",
                lambda: self._hook.create_batch(
                    region=region,
                    project_id=project,
                    batch=document,
                    batch_id=batch_id,
                    request_id=job.token,
                    retry=None,
                    timeout=service.REQUEST_SECONDS,
                ),
            )
        except EngineJobConflict:
            self._check_is_ours(name, job)
        return name

    def status(self, job_id: str) -> JobStatus:
        """Say how a job is; see :class:`~airflow_provider_kafka_migration.engines.base.SparkEngine`."""
        try:
            batch = self._batch(job_id, "say how the job is")
        except (EngineUnreachable, EngineAnswerInvalid, EngineRefused) as error:
            return JobStatus(JobState.UNKNOWN, error.what)
        if batch is None:
            return JobStatus(JobState.LOST, f"Dataproc has no batch {job_id} (any more)")
        state, reason = _state_of(batch)
        if state is not JobState.FAILED:
            return JobStatus(state, reason)
        tail, trouble = self._tail(batch)
        return JobStatus(state, "; ".join(text for text in (reason, trouble) if text), tail)

    def cancel(self, job_id: str) -> None:
        """Cancel the batch's operation; does nothing if the batch is over."""
        batch = self._batch(job_id, "cancel the job")
        if batch is None or _state_of(batch)[0].is_over:
            return
        operation = batch.operation
        if not re.fullmatch(rf"projects/{_PROJECT}/(?:regions|locations)/{_REGION}/operations/[\w.-]+", operation):
            raise service.invalid_answer(_SERVICE, "cancel the job", "the batch names no operation")
        region = _parts(job_id)[1]
        try:
            self._call(
                "cancel the job",
                lambda: self._hook.get_operations_client(region).cancel_operation(
                    operation, retry=None, timeout=service.REQUEST_SECONDS
                ),
            )
        except EngineNotFound:
            # The operation is over; the next look at the batch says how it ended.
            log.info("The operation of the batch %s is over already", job_id)

    def trigger(self, job_id: str) -> BaseTrigger | None:
        """None: :meth:`status` is polled."""
        return None

    def links(self, job_id: str) -> dict[str, str]:
        """Return the batch's page in Google's console."""
        project, region, batch = _parts(job_id)
        page = f"https://console.cloud.google.com/dataproc/batches/{region}/{batch}/monitoring?project={project}"
        return {"Dataproc batch": page}

    # -- the document ---------------------------------------------------------------------------------------------

    def document(self, job: SparkJob, main_uri: str, zip_uri: str | None) -> dict[str, Any]:
        """Return the whole batch. It contains no secret."""
        arguments = self.arguments
        properties = {"spark.app.name": job.application_name, **service.service_conf(job)}
        variables = service.service_environment(job)
        if arguments.python:
            variables["PYSPARK_PYTHON"] = arguments.python
        variables |= dict(sorted(arguments.secrets.items()))
        for variable, value in variables.items():
            properties[f"spark.dataproc.driverEnv.{variable}"] = value
            properties[f"spark.executorEnv.{variable}"] = value
        runtime = {
            "version": arguments.runtime_version,
            "container_image": arguments.container_image,
            "properties": properties,
        }
        execution = {
            "service_account": arguments.service_account,
            "subnetwork_uri": arguments.subnetwork,
            "network_tags": arguments.network_tags,
            "kms_key": arguments.kms_key,
            "staging_bucket": arguments.staging_bucket,
            # A batch is not repeated by Dataproc; Airflow tries again, with a look at the journal first.
            "ttl": {"seconds": int(arguments.timeout.total_seconds())},
        }
        spark = {
            "main_python_file_uri": main_uri,
            "python_file_uris": [zip_uri] if zip_uri else [],
            "archive_uris": arguments.archives,
            "args": list(job.arguments),
        }
        return {
            "labels": {**arguments.labels, **service.labels(job, prefix=_PREFIX)},
            "pyspark_batch": _filled(spark),
            "runtime_config": _filled(runtime),
            "environment_config": {"execution_config": _filled(execution)},
        }

    # -- code and logs --------------------------------------------------------------------------------------------

    def _code(self, job: SparkJob) -> tuple[str, str | None]:
        """Upload the main and this package to Cloud Storage and return where they are."""
        found = _BUCKET_URI.fullmatch(self.arguments.code or job.staging)
        if found is None:
            raise StagingRefused(
                "the job has no staging location that Dataproc can read",
                where=service.place(job),
                next_step="set spark.engine_args.code to gs://bucket/prefix",
            )
        main_uri = self._upload(found["bucket"], found["prefix"] or "", job.main)
        return main_uri, self._upload(found["bucket"], found["prefix"] or "", job.py_files) if job.py_files else None

    def _upload(self, bucket: str, prefix: str, path: Path) -> str:
        """Upload a file below the digest of its content, unless it is there, and return its URI."""
        content = path.read_bytes()
        key = "/".join(
            part for part in (prefix.strip("/"), hashlib.sha256(content).hexdigest()[:16], path.name) if part
        )
        doing = "upload the job's code"
        if not self._call(doing, lambda: self._storage.exists(bucket, key, retry=None)):
            self._call(
                doing,
                lambda: self._storage.upload(bucket, key, data=content, timeout=service.REQUEST_SECONDS),
            )
        return f"gs://{bucket}/{key}"

    def _tail(self, batch: Batch) -> tuple[tuple[str, ...], str]:
        """Return the end of the driver's output, and why there is none."""
        found = _BUCKET_URI.fullmatch(batch.runtime_info.output_uri)
        if found is None or not found["prefix"]:
            return (), "the batch names no output of its driver"
        try:
            text = self._call("read the driver's log", lambda: self._read_end(found["bucket"], found["prefix"]))
        except MigrationError as error:
            return (), f"the driver's log cannot be read: {error.what}"
        return service.log_tail(text), "" if text else "the driver has written no log"

    def _read_end(self, bucket: str, prefix: str) -> str:
        """Return the end of the driver's output, which Dataproc writes in numbered parts."""
        client = self._storage.get_conn()
        options = {"retry": None, "timeout": service.REQUEST_SECONDS}
        parts = list(client.list_blobs(bucket, prefix=prefix, max_results=1000, **options))
        text = b""
        for part in sorted(parts, key=lambda part: str(part.name), reverse=True):
            if len(text) >= service.TAIL_BYTES or not part.size:
                continue
            start = max(0, int(part.size) - service.TAIL_BYTES)
            text = part.download_as_bytes(start=start, **options) + text
        return text[-service.TAIL_BYTES :].decode("utf-8", "replace")

    # -- requests -------------------------------------------------------------------------------------------------

    @cached_property
    def _hook(self) -> DataprocHook:
        kind = service.load("airflow.providers.google.cloud.hooks.dataproc", "DataprocHook", _PROVIDER, "google")
        hook: DataprocHook = self._call("read its connection", lambda: kind(gcp_conn_id=self.arguments.conn_id))
        return hook

    @cached_property
    def _storage(self) -> GCSHook:
        kind = service.load("airflow.providers.google.cloud.hooks.gcs", "GCSHook", _PROVIDER, "google")
        hook: GCSHook = self._call("read its connection", lambda: kind(gcp_conn_id=self.arguments.conn_id))
        return hook

    @cached_property
    def _project(self) -> str:
        project = self.arguments.project or self._call("read its connection", lambda: self._hook.project_id)
        if not isinstance(project, str) or not re.fullmatch(_PROJECT, project):
            raise ConnectionInvalid(
                "the connection to Google Cloud names no project",
                next_step="set spark.engine_args.project, or the project of the connection that conn_id names",
            )
        return project

    def _call(self, doing: str, request: Callable[[], Any]) -> Any:
        return service.call(request, lambda error: _explain(error, doing))

    def _batch(self, job_id: str, doing: str) -> Batch | None:
        """Return a batch; None if Dataproc says that this batch does not exist."""
        project, region, batch_id = _parts(job_id)
        try:
            batch: Batch = self._call(
                doing,
                lambda: self._hook.get_batch(
                    batch_id=batch_id,
                    region=region,
                    project_id=project,
                    retry=None,
                    timeout=service.REQUEST_SECONDS,
                ),
            )
        except EngineNotFound as error:
            # A missing project or a wrong address is "not found" as well; only the batch's name is an answer.
            if batch_id in str(error.details.get("message")):
                return None
            raise
        if not batch.name.endswith(f"/batches/{batch_id}"):
            raise service.invalid_answer(_SERVICE, doing, "it is not the batch that was asked for")
        return batch

    def _check_is_ours(self, name: str, job: SparkJob) -> None:
        """Raise unless the batch with this job's id is this job's."""
        batch = self._batch(name, "look for the job")
        if batch is None:
            raise service.invalid_answer(_SERVICE, "submit the job", f"{job.token} both exists and does not")
        if dict(batch.labels).get(f"{_PREFIX}token") != job.token:
            raise EngineJobConflict(
                f"a batch {job.token} exists and is not this job's: it lacks the label {_PREFIX}token",
                where=service.place(job),
                next_step="delete that batch, then clear the task",
            )


def _state_of(batch: Batch) -> tuple[JobState, str]:
    state = getattr(batch.state, "name", str(batch.state))
    words = service.one_line(batch.state_message)
    found = _STATES.get(state, JobState.UNKNOWN)
    return found, words if found is not JobState.UNKNOWN else f"Dataproc says {service.one_line(state, 40)}. {words}"


def _filled(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value}


def _parts(job_id: str) -> tuple[str, str, str]:
    found = _JOB_ID.fullmatch(job_id)
    if found is None:
        raise service.not_an_id(job_id, DataprocEngine.name, "projects/PROJECT/locations/REGION/batches/TOKEN")
    return found["project"], found["region"], found["batch"]


def _explain(error: Exception, doing: str) -> MigrationError:
    """Return the error of this package for an exception of the hook."""
    from airflow.providers.common.compat.sdk import AirflowException
    from google.api_core import exceptions as google
    from google.auth.exceptions import GoogleAuthError, TransportError

    text = service.one_line(str(getattr(error, "message", "") or ""))
    what = f"{_SERVICE} could not {doing} ({type(error).__name__}): {text}"
    again = "clear the task later; a job that already runs is found, not started twice"
    if isinstance(error, google.AlreadyExists | google.Conflict):
        return EngineJobConflict(what, next_step="clear the task: it looks at the batch again")
    if isinstance(error, google.NotFound):
        return EngineNotFound(
            what, next_step="check project, region and bucket; then clear the task", details={"message": text}
        )
    if isinstance(error, google.Unauthorized | google.Forbidden):
        return EngineForbidden(what, next_step=_RIGHTS)
    if isinstance(error, google.ResourceExhausted | google.TooManyRequests):
        if "quota" in text.lower() and "per minute" not in text.lower():
            return EngineQuotaExceeded(what, next_step="raise the quota or end other batches; then clear the task")
        return EngineThrottled(what, next_step=again)
    if isinstance(error, google.ServerError | google.RetryError | TransportError | OSError):
        return service.unreachable(_SERVICE, doing, error)
    if isinstance(error, google.ClientError):
        return EngineRefused(what, next_step="correct what the message names in spark.engine_args; then clear the task")
    if isinstance(error, GoogleAuthError | AirflowException):
        return ConnectionInvalid(
            f"the connection to Google Cloud cannot be used: {service.one_line(str(error))}",
            next_step="correct the connection that spark.engine_args.conn_id names",
        )
    return service.invalid_answer(_SERVICE, doing, f"{type(error).__name__}: {error}")
