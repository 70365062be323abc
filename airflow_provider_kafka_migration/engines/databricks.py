"""The engine ``databricks``: a one-time run with one Spark Python task on a job cluster of its own.

Serverless compute and standard (shared) access mode do not fit: copiers open sockets to brokers from Spark's Python
workers, which Databricks does not let user code do there, and serverless compute has no environment variables.

The run's idempotency token is the job's token, so Databricks itself returns the existing run for a token. Secrets of a
job go into a secret scope, and the cluster's environment names them as ``{{secrets/scope/key}}``, which Databricks
resolves on the cluster and hides in the document of the run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from airflow_provider_kafka_migration.engines import service
from airflow_provider_kafka_migration.engines.base import JobState, JobStatus, SparkJob
from airflow_provider_kafka_migration.engines.staging import Staging
from airflow_provider_kafka_migration.errors import (
    ConnectionInvalid,
    EngineAnswerInvalid,
    EngineJobConflict,
    EngineRefused,
    EngineSecretsUnsafe,
    EngineUnreachable,
    MigrationError,
)
from airflow_provider_kafka_migration.lanes.libraries import shipped_requirements
from airflow_provider_kafka_migration.spec.types import Duration

if TYPE_CHECKING:
    from airflow.providers.databricks.hooks.databricks import DatabricksHook
    from airflow.triggers.base import BaseTrigger

log = logging.getLogger(__name__)

_SERVICE = "Databricks"
_RIGHTS = "the rights of docs/spark-engines.md: job clusters, the workspace folder, the secret scope"
_DISTRIBUTION = "airflow_provider_kafka_migration"


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCOPE = r"[\w.@-]{1,128}"
_SECRET = re.compile(rf"{_SCOPE}/{_SCOPE}")
_JOB_ID = re.compile(r"(?P<run>[1-9][0-9]{0,18})@(?P<host>[A-Za-z0-9.-]{1,253})")
#: As Databricks' own clients recognize it; the status is 400, not 404.
_NO_RUN = re.compile(r"Run .* does not exist|Run: .* in job: .* doesn't exist")
#: Names of a job's secrets in the scope; only such keys are ever deleted.
_OWN_KEY = re.compile(r"kafka-migration-[a-z0-9-]{1,36}-[A-Za-z_][A-Za-z0-9_]*")

_LIFE_CYCLES = {
    "BLOCKED": JobState.PENDING,
    "PENDING": JobState.PENDING,
    "QUEUED": JobState.PENDING,
    "WAITING_FOR_RETRY": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "TERMINATING": JobState.RUNNING,
    "SKIPPED": JobState.FAILED,
    "INTERNAL_ERROR": JobState.FAILED,
}
_RESULTS = {
    "SUCCESS": JobState.SUCCEEDED,
    "SUCCESS_WITH_FAILURES": JobState.FAILED,
    "FAILED": JobState.FAILED,
    "TIMEDOUT": JobState.FAILED,
    "MAXIMUM_CONCURRENT_RUNS_REACHED": JobState.FAILED,
    "EXCLUDED": JobState.FAILED,
    "UPSTREAM_FAILED": JobState.FAILED,
    "UPSTREAM_CANCELED": JobState.FAILED,
    "DISABLED": JobState.FAILED,
    "CANCELED": JobState.CANCELLED,
}


class DatabricksArguments(service.EngineArguments):
    """``spark.engine_args`` of the engine ``databricks``."""

    conn_id: str = Field("databricks_default", min_length=1, description="Airflow connection of type databricks.")
    new_cluster: dict[str, Any] = Field(description="The job cluster, as in Databricks' Jobs API.")
    code: Literal["workspace", "storage"] = Field(
        "workspace", description="Where the cluster reads the code: workspace_folder, or the staging location on S3."
    )
    workspace_folder: str = Field(
        "/Workspace/Shared/kafka-migration", description="Workspace folder to which the engine uploads the code."
    )
    packages: list[str] = Field(
        default_factory=shipped_requirements, description="Python packages that the cluster installs; [] for none."
    )
    secret_scope: str | None = Field(
        None, description="Scope to which the engine writes a job's secrets, and from which it deletes them."
    )
    secret_variables: dict[str, str] = Field(
        default_factory=dict, description="Environment variables from secrets that exist: VARIABLE: scope/key."
    )
    tags: dict[str, str] = Field(default_factory=dict, description="More tags of the cluster.")
    access_control_list: list[dict[str, Any]] = Field(default_factory=list, description="Who else may see the run.")
    timeout: Duration = Field("30d", description="Databricks ends a run after this time; 0s: never.")  # type: ignore[assignment]

    @field_validator("new_cluster")
    @classmethod
    def _fits(cls, value: dict[str, Any]) -> dict[str, Any]:
        found = re.fullmatch(r"(\d+)\.\d+\.x-.+", str(value.get("spark_version", "")))
        if found is None or int(found[1]) < 15:
            raise ValueError(
                "spark_version must be a runtime like 17.3.x-scala2.13, at least 15: jobs need Python 3.11 and Spark "
                "3.5, and the Python of earlier runtimes is older"
            )
        if "num_workers" not in value and "autoscale" not in value:
            raise ValueError("num_workers or autoscale is missing")
        mode = value.get("data_security_mode", "SINGLE_USER")
        if mode not in ("SINGLE_USER", "DATA_SECURITY_MODE_DEDICATED", "NONE"):
            raise ValueError(
                f"data_security_mode {mode!s:.40} does not fit: copiers need sockets and SparkContext; use SINGLE_USER"
            )
        return value

    @field_validator("workspace_folder")
    @classmethod
    def _is_folder(cls, value: str) -> str:
        if not re.fullmatch(r"/Workspace(?:/[\w.@-]+)+", value):
            raise ValueError("write /Workspace/..., letters, digits and . _ - @ only")
        return value

    @field_validator("secret_variables")
    @classmethod
    def _names_secrets(cls, value: dict[str, str]) -> dict[str, str]:
        for variable, secret in value.items():
            if not _VARIABLE.fullmatch(variable) or not _SECRET.fullmatch(secret):
                raise ValueError("write VARIABLE: scope/key, a secret scope and one of its keys")
        return value

    @field_validator("secret_scope")
    @classmethod
    def _is_scope(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(_SCOPE, value):
            raise ValueError("not a name of a secret scope")
        return value

    @model_validator(mode="after")
    def _has_one_value_each(self) -> DatabricksArguments:
        variables = self.new_cluster.get("spark_env_vars")
        if variables is not None and not isinstance(variables, dict):
            raise ValueError("new_cluster.spark_env_vars is not a mapping")
        if twice := sorted(set(variables or {}) & set(self.secret_variables)):
            raise ValueError(f"{', '.join(twice)} is in secret_variables and in new_cluster.spark_env_vars")
        return self


class DatabricksEngine:
    """Submits a job as a one-time run. Its id is ``run_id@workspace-host``."""

    name: ClassVar[str] = "databricks"
    located_by: ClassVar[tuple[str, ...]] = ("conn_id",)
    detached = True

    def __init__(self, **arguments: Any) -> None:
        self.arguments = service.check_arguments(
            DatabricksArguments,
            self.name,
            arguments,
            references=frozenset({"secret_variables", "secret_scope"}),
        )

    # -- the protocol ---------------------------------------------------------------------------------------------

    def submit(self, job: SparkJob) -> str:
        """Submit the run, or find the one with the same token. Returns ``run_id@workspace-host``.

        The same token has to come with the same secrets: a cluster that still starts would get the later ones.
        """
        if (own := self._own_secrets(job)) and self.arguments.secret_scope is None:
            raise EngineSecretsUnsafe(
                f"the job needs the secret variables {', '.join(own)}, and Databricks shows plain variables of a "
                "cluster to everybody who may see the run",
                where=service.place(job),
                next_step="store each in a secret scope and name it in spark.engine_args.secret_variables, or set "
                "secret_scope to a scope in which the connection's login may write; see docs/spark-engines.md",
            )
        document = self.document(job, *self._code(job))
        self._put_secrets(job)
        run_id = self._call("submit the job", lambda: self._hook.submit_run(document))
        if not isinstance(run_id, int) or isinstance(run_id, bool) or run_id <= 0:
            raise service.invalid_answer(_SERVICE, "submit the job", "there is no run_id in it")
        return f"{run_id}@{self._host}"

    def status(self, job_id: str) -> JobStatus:
        """Say how a job is; see :class:`~airflow_provider_kafka_migration.engines.base.SparkEngine`."""
        run_id = self._run_id(job_id)
        try:
            run = self._run(run_id, "say how the job is")
        except (EngineUnreachable, EngineAnswerInvalid, EngineRefused) as error:
            return JobStatus(JobState.UNKNOWN, error.what)
        if run is None:
            return JobStatus(JobState.LOST, f"Databricks has no run {run_id} (any more)")
        state, reason = _state_of(run)
        tail: tuple[str, ...] = ()
        if state is JobState.FAILED:
            tail, trouble = self._tail(run)
            reason = "; ".join(text for text in (reason, trouble) if text)
        if state.is_over:
            self._delete_secrets(run)
        return JobStatus(state, reason, tail)

    def cancel(self, job_id: str) -> None:
        """Cancel the run; does nothing if it is over."""
        run_id = self._run_id(job_id)
        run = self._run(run_id, "cancel the job")
        if run is not None and not _state_of(run)[0].is_over:
            self._call("cancel the job", lambda: self._hook.cancel_run(run_id))

    def trigger(self, job_id: str) -> BaseTrigger | None:
        """None: :meth:`status` is polled."""
        return None

    def links(self, job_id: str) -> dict[str, str]:
        """Return the run's page in the workspace."""
        try:
            run = self._run(self._run_id(job_id), "name the job's pages")
        except MigrationError as error:
            log.warning("No link to the Spark job %s: %s", job_id, error)
            return {}
        page = run.get("run_page_url") if run else None
        # A page of another host would be a trap for whoever clicks on it.
        if isinstance(page, str) and re.match(rf"https://{re.escape(self._host)}(?::\d+)?[/?#]", page):
            return {"Databricks run": page}
        return {}

    # -- the document ---------------------------------------------------------------------------------------------

    def document(self, job: SparkJob, main_uri: str, wheel_uri: str | None) -> dict[str, Any]:
        """Return the whole request of ``jobs/runs/submit``. It contains no secret, only names of secrets."""
        arguments = self.arguments
        seconds = int(arguments.timeout.total_seconds())
        wheels = [{"whl": wheel_uri}] if wheel_uri else []
        return {
            "run_name": job.application_name,
            "idempotency_token": job.token,
            "timeout_seconds": seconds,
            **({"access_control_list": arguments.access_control_list} if arguments.access_control_list else {}),
            "tasks": [
                {
                    "task_key": re.sub(r"[^A-Za-z0-9_-]", "-", job.name)[:100],
                    "spark_python_task": {
                        "python_file": main_uri,
                        "parameters": list(job.arguments),
                        **({"source": "WORKSPACE"} if arguments.code == "workspace" else {}),
                    },
                    "new_cluster": self._cluster(job),
                    "libraries": [*wheels, *({"pypi": {"package": package}} for package in arguments.packages)],
                    # Airflow tries again, with a look at the journal first.
                    "max_retries": 0,
                    "retry_on_timeout": False,
                    "timeout_seconds": seconds,
                }
            ],
        }

    def _cluster(self, job: SparkJob) -> dict[str, Any]:
        arguments = self.arguments
        given = arguments.new_cluster
        secrets = {name: f"{{{{secrets/{place}}}}}" for name, place in sorted(arguments.secret_variables.items())}
        for name in self._own_secrets(job):
            secrets[name] = f"{{{{secrets/{arguments.secret_scope}/{_key(job, name)}}}}}"
        return {
            "data_security_mode": "SINGLE_USER",
            **given,
            "spark_conf": {**(given.get("spark_conf") or {}), **service.service_conf(job)},
            "spark_env_vars": {
                **(given.get("spark_env_vars") or {}),
                **service.service_environment(job),
                **secrets,
            },
            "custom_tags": {
                **(given.get("custom_tags") or {}),
                **arguments.tags,
                **service.labels(job, prefix="kafka-migration-"),
            },
        }

    # -- code and secrets -----------------------------------------------------------------------------------------

    def _code(self, job: SparkJob) -> tuple[str, str | None]:
        """Upload the main and this package as a wheel, which is the only form of code that clusters install."""
        wheel = as_wheel(job.py_files) if job.py_files else None
        if self.arguments.code == "workspace":
            main_uri = self._upload(job.main.name, job.main.read_bytes())
            return main_uri, self._upload(*wheel) if wheel else None
        staging = Staging(job.staging, schemes=("s3",))
        main_uri = staging.put(job.main)
        if wheel is None:
            return main_uri, None
        with tempfile.TemporaryDirectory(prefix="kafka-migration-") as folder:
            path = Path(folder) / wheel[0]
            path.write_bytes(wheel[1])
            return main_uri, staging.put(path)

    def _upload(self, name: str, content: bytes) -> str:
        """Upload a file to the workspace, below the digest of its content, and return its path."""
        folder = f"{self.arguments.workspace_folder}/{hashlib.sha256(content).hexdigest()[:16]}"
        path = f"{folder}/{name}"
        body = {
            "path": path.removeprefix("/Workspace"),
            "format": "AUTO",
            "overwrite": True,
            "content": base64.b64encode(content).decode(),
        }
        doing = "upload the code to the workspace folder"
        self._post(doing, "2.0/workspace/mkdirs", {"path": folder.removeprefix("/Workspace")})
        self._post(doing, "2.0/workspace/import", _Unlogged(body))
        return path

    def _own_secrets(self, job: SparkJob) -> list[str]:
        """Return the job's secret variables that the arguments do not name."""
        return sorted(set(job.secret_environment) - set(self.arguments.secret_variables))

    def _put_secrets(self, job: SparkJob) -> None:
        for name in self._own_secrets(job):
            value = job.secret_environment[name]
            body = {"scope": self.arguments.secret_scope, "key": _key(job, name), "string_value": value}
            self._post("store the job's secrets", "2.0/secrets/put", _Unlogged(body), quote=False)

    def _delete_secrets(self, run: Mapping[str, Any]) -> None:
        """Delete the secrets that the engine has written for a run. What cannot be deleted is logged."""
        scope = self.arguments.secret_scope
        if scope is None:
            return
        cluster = _one_task(run).get("new_cluster")
        variables = cluster.get("spark_env_vars") if isinstance(cluster, dict) else None
        for value in (variables or {}).values() if isinstance(variables, dict) else ():
            found = re.fullmatch(rf"\{{\{{secrets/{re.escape(scope)}/({_OWN_KEY.pattern})\}}\}}", str(value))
            if found is None:
                continue
            try:
                self._post("delete a secret of a finished job", "2.0/secrets/delete", {"scope": scope, "key": found[1]})
            except MigrationError as error:
                if error.details.get("error_code") != "RESOURCE_DOES_NOT_EXIST":
                    log.warning("The secret %s/%s of a finished Spark job stays: %s", scope, found[1], error)

    # -- requests -------------------------------------------------------------------------------------------------

    @cached_property
    def _hook(self) -> DatabricksHook:
        provider = "apache-airflow-providers-databricks"
        kind = service.load("airflow.providers.databricks.hooks.databricks", "DatabricksHook", provider, "databricks")
        # We alone repeat requests, within bounds.
        hook: DatabricksHook = kind(
            self.arguments.conn_id, timeout_seconds=service.REQUEST_SECONDS, retry_limit=1, caller="kafka-migration"
        )
        return hook

    @cached_property
    def _host(self) -> str:
        host = self._call("read its connection", lambda: self._hook.host)
        if not isinstance(host, str) or not re.fullmatch(r"[A-Za-z0-9.-]{1,253}", host):
            raise ConnectionInvalid(
                "the connection to Databricks has no host",
                next_step="write the workspace's address into the connection that spark.engine_args.conn_id names",
            )
        return host

    def _call(self, doing: str, request: Callable[[], Any], *, quote: bool = True) -> Any:
        return service.call(request, lambda error: _explain(error, doing, quote=quote))

    def _post(self, doing: str, endpoint: str, body: dict[str, Any], *, quote: bool = True) -> Any:
        # The hook has no method for these endpoints.
        return self._call(doing, lambda: self._hook._do_api_call(("POST", endpoint), body), quote=quote)

    def _get(self, doing: str, endpoint: str, query: dict[str, Any]) -> dict[str, Any]:
        # The hook's get_run follows next_page_token as often as the answer has one, and our runs have one task.
        found = self._call(doing, lambda: self._hook._do_api_call(("GET", endpoint), query))
        if not isinstance(found, dict):
            raise service.invalid_answer(_SERVICE, doing, "it is no object")
        return found

    def _run(self, run_id: int, doing: str) -> dict[str, Any] | None:
        """Return a run; None if Databricks says in its documented form that there is none."""
        try:
            run = self._get(doing, "2.2/jobs/runs/get", {"run_id": run_id})
        except EngineRefused as error:
            code, message = error.details.get("error_code"), str(error.details.get("message"))
            if code == "INVALID_PARAMETER_VALUE" and _NO_RUN.search(message):
                return None
            # RESOURCE_DOES_NOT_EXIST is not documented for this request, but is what other requests answer.
            if code == "RESOURCE_DOES_NOT_EXIST" and str(run_id) in message:
                return None
            raise
        if run.get("run_id") != run_id:
            raise service.invalid_answer(_SERVICE, doing, "it is not the run that was asked for")
        return run

    def _run_id(self, job_id: str) -> int:
        found = _JOB_ID.fullmatch(job_id)
        if found is None:
            raise service.not_an_id(job_id, self.name, "run_id@workspace-host")
        if found["host"] != self._host:
            raise EngineJobConflict(
                f"the job {job_id} runs in another workspace than that of the connection ({self._host})",
                next_step="let the connection point to the job's workspace until the job ends",
            )
        return int(found["run"])

    def _tail(self, run: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
        """Return the end of the driver's output, and why there is none or what failed."""
        task = _one_task(run)
        task_run = task.get("run_id", run.get("run_id"))
        try:
            output = self._get("read the driver's log", "2.2/jobs/runs/get-output", {"run_id": task_run})
        except MigrationError as error:
            return (), f"the driver's log cannot be read: {error.what}"
        parts = [output.get(name) for name in ("logs", "error_trace")]
        return service.log_tail("\n".join(part for part in parts if isinstance(part, str))), service.one_line(
            str(output.get("error") or "")
        )


class _Unlogged(dict[str, Any]):
    """A request that the hook logs at level DEBUG without its content."""

    def __repr__(self) -> str:
        return "(not logged)"


def as_wheel(archive: Path) -> tuple[str, bytes]:
    """Return this package's zip as a wheel: its file name and its bytes. The same zip gives the same wheel.

    The wheel has no requirements: those of the whole provider include Airflow.
    """
    content = archive.read_bytes()
    try:
        release = version(_DISTRIBUTION.replace("_", "-"))
    except PackageNotFoundError:
        release = "0"
    release = f"{release}+{hashlib.sha256(content).hexdigest()[:16]}"
    about = f"{_DISTRIBUTION}-{release}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {_DISTRIBUTION.replace('_', '-')}\nVersion: {release}\n"
    kind = "Wheel-Version: 1.0\nGenerator: kafka-migration\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    written = BytesIO()
    with zipfile.ZipFile(archive) as source, zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as wheel:
        files = {name: source.read(name) for name in sorted(source.namelist()) if not name.endswith("/")}
        files |= {f"{about}/METADATA": metadata.encode(), f"{about}/WHEEL": kind.encode()}
        record = "".join(f"{name},sha256={_record_digest(data)},{len(data)}\n" for name, data in files.items())
        files[f"{about}/RECORD"] = f"{record}{about}/RECORD,,\n".encode()
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
    return f"{_DISTRIBUTION}-{release}-py3-none-any.whl", written.getvalue()


def _record_digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _key(job: SparkJob, variable: str) -> str:
    """Return the key of one of a job's secrets in the scope."""
    return f"kafka-migration-{job.token}-{variable}"


def _one_task(run: Mapping[str, Any]) -> dict[str, Any]:
    tasks = run.get("tasks")
    task = tasks[0] if isinstance(tasks, list) and tasks else None
    return task if isinstance(task, dict) else {}


def _state_of(run: Mapping[str, Any]) -> tuple[JobState, str]:
    """Return a run's state and Databricks' sentence about it."""
    state = run.get("state")
    if not isinstance(state, dict):
        return JobState.UNKNOWN, "Databricks answered without a state"
    life, result = str(state.get("life_cycle_state", "")), str(state.get("result_state", ""))
    words = service.one_line(str(state.get("state_message") or ""))
    if life == "TERMINATED":
        found = _RESULTS.get(result, JobState.UNKNOWN)
    else:
        found = _LIFE_CYCLES.get(life, JobState.UNKNOWN)
    if found in (JobState.SUCCEEDED, JobState.PENDING, JobState.RUNNING):
        return found, words
    named = service.one_line(f"{life} {result}".strip(), 80) or "no state"
    return found, f"{named}: {words}" if words else named


def _explain(error: Exception, doing: str, *, quote: bool) -> MigrationError:
    """Return the error of this package for an exception of the hook.

    :param quote: whether the service's words may be repeated.
    """
    from airflow.providers.common.compat.sdk import AirflowException
    from requests import exceptions as http

    root = _last_error(error)
    response = getattr(root, "response", None)
    if response is not None:
        answer = _answer(response)
        text = str(answer.get("message") or "") if quote else ""
        failure = service.http_failure(response.status_code, _SERVICE, doing, text, rights=_RIGHTS)
        failure.details.update({"error_code": str(answer.get("error_code") or ""), "message": service.one_line(text)})
        return failure
    if isinstance(root, http.JSONDecodeError | json.JSONDecodeError):
        return service.invalid_answer(_SERVICE, doing, "it is no JSON")
    if isinstance(root, http.RequestException):
        return service.unreachable(_SERVICE, doing, type(root)("no connection, or no answer in time"))
    if isinstance(root, AirflowException):
        words = service.one_line(str(root)) if quote else type(root).__name__
        return ConnectionInvalid(
            f"the connection to Databricks cannot be used: {words}",
            next_step="correct the connection of type databricks that spark.engine_args.conn_id names",
        )
    return service.invalid_answer(_SERVICE, doing, type(root).__name__)


def _last_error(error: Exception) -> BaseException:
    """Return what an exception of the hook is about: the hook wraps the error of its HTTP library, or of tenacity."""
    from requests.exceptions import RequestException
    from tenacity import RetryError

    cause = error.__cause__
    if isinstance(cause, RetryError):
        return cause.last_attempt.exception() or error
    return cause if isinstance(cause, RequestException) else error


def _answer(response: Any) -> dict[str, Any]:
    try:
        answer = response.json()
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}
