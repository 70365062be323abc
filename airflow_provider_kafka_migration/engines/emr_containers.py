"""EMR on EKS as an engine: job runs of a virtual cluster, which is a namespace of a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, StringConstraints

from airflow_provider_kafka_migration.engines.aws import PAGE_SIZE, Aws, AwsArguments, JobRun, ServiceId, VariableName
from airflow_provider_kafka_migration.engines.base import JobState, SparkJob
from airflow_provider_kafka_migration.engines.emr import EmrEngine, monitoring_of, text_in
from airflow_provider_kafka_migration.engines.service import one_line, place
from airflow_provider_kafka_migration.engines.staging import Staging
from airflow_provider_kafka_migration.errors import EngineRefused

#: What the service takes: the length of an entry point, of a job run's name, and of one argument.
MAX_ENTRY_POINT, MAX_NAME, MAX_ARGUMENT = 256, 64, 10280

KubernetesKey = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?:[A-Za-z0-9._-]+$")]
Image = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][A-Za-z0-9._/:@-]+$", max_length=512)]


class EmrContainersArguments(AwsArguments):
    """``spark.engine_args`` of ``emr_containers``."""

    virtual_cluster_id: ServiceId = Field(description="The virtual cluster.")
    release_label: Annotated[str, StringConstraints(pattern=r"^[.\-_/A-Za-z0-9]+$", max_length=64)] = Field(
        description="Release of EMR, for instance emr-spark-8.0.0-latest."
    )
    image: Image | None = Field(None, description="Image of driver and executors; null: the release's own.")
    kubernetes_secrets: dict[VariableName, KubernetesKey] = Field(
        default_factory=dict,
        description="Environment variables of driver and executors that come from a Kubernetes secret: secret:key.",
    )


class EmrContainersEngine(EmrEngine):
    """Runs jobs in a virtual cluster of EMR on EKS, through ``EmrContainerHook``."""

    name = "emr_containers"
    located_by = ("virtual_cluster_id", "region")
    service = "emr-containers"
    hook_name = "EmrContainerHook"
    arguments_class = EmrContainersArguments
    driver_variable = "spark.kubernetes.driverEnv."
    created_after = "createdAfter"
    active_states = ("PENDING", "SUBMITTED", "RUNNING", "CANCEL_PENDING")
    states: ClassVar[Mapping[str, JobState]] = {
        "PENDING": JobState.PENDING,
        "SUBMITTED": JobState.PENDING,
        "RUNNING": JobState.RUNNING,
        # The driver may still copy until the run is CANCELLED.
        "CANCEL_PENDING": JobState.RUNNING,
        "COMPLETED": JobState.SUCCEEDED,
        "FAILED": JobState.FAILED,
        "CANCELLED": JobState.CANCELLED,
    }

    def _read_arguments(self, arguments: EmrContainersArguments) -> None:
        self._arguments = arguments

    @property
    def _common(self) -> EmrContainersArguments:
        return self._arguments

    def _place(self) -> str:
        return f"virtual cluster {self._arguments.virtual_cluster_id}"

    def _runs(self, aws: Aws, job: SparkJob, filters: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        cluster = self._arguments.virtual_cluster_id
        request = {"virtualClusterId": cluster, "name": _run_name(job), "maxResults": PAGE_SIZE, **filters}
        for page in aws.pages(self.service, "list_job_runs", **request):
            yield from page.get("jobRuns") or ()

    def _is_of(self, run: Mapping[str, Any], job: SparkJob) -> bool:
        return run.get("clientToken") == job.token and run.get("name") == _run_name(job)

    def _own_properties(self) -> dict[str, str]:
        found = {"spark.kubernetes.container.image": self._arguments.image} if self._arguments.image else {}
        for name, key in self._arguments.kubernetes_secrets.items():
            found[f"spark.kubernetes.driver.secretKeyRef.{name}"] = key
            found[f"spark.kubernetes.executor.secretKeyRef.{name}"] = key
        return found

    def _provided_secrets(self) -> set[str]:
        return super()._provided_secrets() | set(self._arguments.kubernetes_secrets)

    def _request(self, job: SparkJob, properties: dict[str, str], staging: Staging) -> dict[str, Any]:
        arguments = self._arguments
        _check_arguments(job)
        submit: dict[str, Any] = {"entryPoint": staging.put(job.main), "entryPointArguments": list(job.arguments)}
        if job.py_files is not None:
            submit["sparkSubmitParameters"] = f"--py-files {staging.put(job.py_files)}"
        _check_entry_point(job, submit["entryPoint"])
        return {
            "virtualClusterId": arguments.virtual_cluster_id,
            "clientToken": job.token,
            "name": _run_name(job),
            "executionRoleArn": arguments.execution_role_arn,
            "releaseLabel": arguments.release_label,
            "jobDriver": {"sparkSubmitJobDriver": submit},
            "configurationOverrides": {
                "applicationConfiguration": [{"classification": "spark-defaults", "properties": properties}],
                "monitoringConfiguration": self._monitoring(job),
            },
            "retryPolicyConfiguration": {"maxAttempts": 1},
            "tags": self._tags(job),
        }

    def _monitoring(self, job: SparkJob) -> dict[str, Any]:
        arguments = self._arguments
        key = {"encryptionKeyArn": arguments.log_key_arn} if arguments.log_key_arn else {}
        found: dict[str, Any] = {"s3MonitoringConfiguration": {"logUri": self._log_uri(job.staging), **key}}
        if arguments.log_group:
            found["cloudWatchMonitoringConfiguration"] = {"logGroupName": arguments.log_group}
        return found

    def _describe(self, aws: Aws, run: JobRun) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = aws.call(self.service, "describe_job_run", virtualClusterId=run.place, id=run.run)
        return answer

    def _cancel(self, aws: Aws, run: JobRun) -> None:
        aws.call(self.service, "cancel_job_run", virtualClusterId=run.place, id=run.run)

    def _reason(self, described: Mapping[str, Any]) -> str:
        parts = (described.get("failureReason"), described.get("stateDetails"))
        return one_line(": ".join(str(part) for part in parts if part))

    def _log_places(self, described: Mapping[str, Any]) -> tuple[str, str]:
        monitoring = monitoring_of(described)
        return (
            text_in(monitoring, "s3MonitoringConfiguration", "logUri"),
            text_in(monitoring, "cloudWatchMonitoringConfiguration", "logGroupName"),
        )

    def _log_folder(self, run: JobRun) -> str:
        return f"{run.place}/jobs/{run.run}"

    def _driver_folders(self, run: JobRun) -> tuple[str, ...]:
        containers = f"{self._log_folder(run)}/containers"
        return f"{containers}/spark-{run.run}/spark-{run.run}-driver", containers


def _run_name(job: SparkJob) -> str:
    """Return the name of a job run: as much of the application's as fits, and the token, which makes it unique."""
    room = MAX_NAME - len(job.token) - 1
    return f"{job.application_name[:room]}.{job.token}"


def _check_arguments(job: SparkJob) -> None:
    """Refuse arguments that the service does not take. They are not quoted."""
    wrong = [index for index, text in enumerate(job.arguments) if not text.strip() or len(text) > MAX_ARGUMENT]
    if wrong:
        raise EngineRefused(
            f"arguments of the job are empty or longer than {MAX_ARGUMENT} characters: number {wrong[0] + 1}",
            where=place(job),
            next_step="give connections as references instead of sealed ones, or shorten their settings",
        )


def _check_entry_point(job: SparkJob, uri: str) -> None:
    if len(uri) > MAX_ENTRY_POINT:
        raise EngineRefused(
            f"the address of the Spark main has {len(uri)} characters, and EMR on EKS takes {MAX_ENTRY_POINT}",
            where=place(job),
            next_step="use a shorter staging location",
        )
