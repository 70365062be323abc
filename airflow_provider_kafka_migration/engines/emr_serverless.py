"""EMR Serverless as an engine: job runs of an application."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from airflow_provider_kafka_migration.engines.aws import PAGE_SIZE, Aws, AwsArguments, JobRun, ServiceId
from airflow_provider_kafka_migration.engines.base import JobState, SparkJob
from airflow_provider_kafka_migration.engines.emr import EmrEngine, monitoring_of, text_in
from airflow_provider_kafka_migration.engines.service import one_line
from airflow_provider_kafka_migration.engines.staging import Staging

#: The longest time that EMR Serverless lets a batch run last: 7 days. Without a value it is 12 hours.
MAX_BATCH_MINUTES = 10080

#: The job that lasts as long as the migration. Runs of mode STREAMING have no longest time.
_ENDLESS_JOB = "tail"


class EmrServerlessArguments(AwsArguments):
    """``spark.engine_args`` of ``emr_serverless``."""

    application_id: ServiceId = Field(description="The application, of type Spark; it starts by itself.")
    timeout_minutes: int = Field(
        MAX_BATCH_MINUTES, ge=5, le=MAX_BATCH_MINUTES, description="EMR ends a job that runs longer; not the tail."
    )
    tail_mode: Literal["STREAMING", "BATCH"] = Field(
        "STREAMING",
        description="Mode of the tail's job run. STREAMING has no time limit; BATCH ends after timeout_minutes.",
    )


class EmrServerlessEngine(EmrEngine):
    """Runs jobs in an application of EMR Serverless, through ``EmrServerlessHook``."""

    name = "emr_serverless"
    located_by = ("application_id", "region")
    service = "emr-serverless"
    hook_name = "EmrServerlessHook"
    arguments_class = EmrServerlessArguments
    driver_variable = "spark.emr-serverless.driverEnv."
    created_after = "createdAtAfter"
    active_states = ("SUBMITTED", "PENDING", "SCHEDULED", "QUEUED", "RUNNING", "CANCELLING")
    states: ClassVar[Mapping[str, JobState]] = {
        "SUBMITTED": JobState.PENDING,
        "PENDING": JobState.PENDING,
        "SCHEDULED": JobState.PENDING,
        "QUEUED": JobState.PENDING,
        "RUNNING": JobState.RUNNING,
        # The driver may still copy until the run is CANCELLED.
        "CANCELLING": JobState.RUNNING,
        "SUCCESS": JobState.SUCCEEDED,
        "FAILED": JobState.FAILED,
        "CANCELLED": JobState.CANCELLED,
    }

    def _read_arguments(self, arguments: EmrServerlessArguments) -> None:
        self._arguments = arguments

    @property
    def _common(self) -> EmrServerlessArguments:
        return self._arguments

    def _place(self) -> str:
        return f"application {self._arguments.application_id}"

    def _runs(self, aws: Aws, job: SparkJob, filters: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        request = {"applicationId": self._arguments.application_id, "maxResults": PAGE_SIZE, **filters}
        for page in aws.pages(self.service, "list_job_runs", **request):
            yield from page.get("jobRuns") or ()

    def _is_of(self, run: Mapping[str, Any], job: SparkJob) -> bool:
        # A listed run has neither tags nor the client token, so the token is in the name.
        return run.get("name") == _run_name(job)

    def _request(self, job: SparkJob, properties: dict[str, str], staging: Staging) -> dict[str, Any]:
        arguments = self._arguments
        submit: dict[str, Any] = {"entryPoint": staging.put(job.main), "entryPointArguments": list(job.arguments)}
        if job.py_files is not None:
            submit["sparkSubmitParameters"] = f"--conf spark.submit.pyFiles={staging.put(job.py_files)}"
        is_endless = job.name == _ENDLESS_JOB and arguments.tail_mode == "STREAMING"
        limits = (
            # One failed attempt in an hour means: do not try again.
            {"mode": "STREAMING", "retryPolicy": {"maxFailedAttemptsPerHour": 1}}
            if is_endless
            else {
                "mode": "BATCH",
                "retryPolicy": {"maxAttempts": 1},
                "executionTimeoutMinutes": arguments.timeout_minutes,
            }
        )
        return {
            "applicationId": arguments.application_id,
            "clientToken": job.token,
            "name": _run_name(job),
            "executionRoleArn": arguments.execution_role_arn,
            "jobDriver": {"sparkSubmit": submit},
            "configurationOverrides": {
                "applicationConfiguration": [{"classification": "spark-defaults", "properties": properties}],
                "monitoringConfiguration": self._monitoring(job),
            },
            "tags": self._tags(job),
            **limits,
        }

    def _monitoring(self, job: SparkJob) -> dict[str, Any]:
        arguments = self._arguments
        key = {"encryptionKeyArn": arguments.log_key_arn} if arguments.log_key_arn else {}
        found: dict[str, Any] = {"s3MonitoringConfiguration": {"logUri": self._log_uri(job.staging), **key}}
        if arguments.log_group:
            found["cloudWatchLoggingConfiguration"] = {
                "enabled": True,
                "logGroupName": arguments.log_group,
                "logTypes": {"SPARK_DRIVER": ["STDERR", "STDOUT"]},
            }
        return found

    def _describe(self, aws: Aws, run: JobRun) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = aws.call(self.service, "get_job_run", applicationId=run.place, jobRunId=run.run)
        return answer

    def _cancel(self, aws: Aws, run: JobRun) -> None:
        aws.call(self.service, "cancel_job_run", applicationId=run.place, jobRunId=run.run)

    def _reason(self, described: Mapping[str, Any]) -> str:
        return one_line(str(described.get("stateDetails") or ""))

    def _log_places(self, described: Mapping[str, Any]) -> tuple[str, str]:
        monitoring = monitoring_of(described)
        return (
            text_in(monitoring, "s3MonitoringConfiguration", "logUri"),
            text_in(monitoring, "cloudWatchLoggingConfiguration", "logGroupName"),
        )

    def _log_folder(self, run: JobRun) -> str:
        return f"applications/{run.place}/jobs/{run.run}"

    def _driver_folders(self, run: JobRun) -> tuple[str, ...]:
        # Runs of mode STREAMING, and those with retries, have a folder for each attempt.
        folder = self._log_folder(run)
        return f"{folder}/SPARK_DRIVER", f"{folder}/attempts/1/SPARK_DRIVER"


def _run_name(job: SparkJob) -> str:
    """Return the name of a job run; at most 256 characters, because a migration's id has at most 100."""
    return f"{job.application_name}.{job.token}"
