"""The engine ``kubernetes``: a SparkApplication of the Spark operator (``sparkoperator.k8s.io/v1beta2``) per job.

The object's name is the job's token, so Kubernetes itself makes sure that there is one job per token. Secrets of a job
go into a Secret of the same name, which belongs to the SparkApplication and disappears with it; the SparkApplication
only names its keys.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, field_validator

from airflow_provider_kafka_migration.engines import service
from airflow_provider_kafka_migration.engines.base import JobState, JobStatus, SparkJob
from airflow_provider_kafka_migration.engines.staging import Staging
from airflow_provider_kafka_migration.errors import (
    ConnectionInvalid,
    EngineAnswerInvalid,
    EngineJobConflict,
    EngineNotFound,
    EngineRefused,
    EngineUnreachable,
    MigrationError,
)
from airflow_provider_kafka_migration.spec.types import Duration

if TYPE_CHECKING:
    from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
    from airflow.triggers.base import BaseTrigger

log = logging.getLogger(__name__)

_SERVICE = "the Kubernetes API"
_GROUP, _VERSION, _PLURAL = "sparkoperator.k8s.io", "v1beta2", "sparkapplications"
_PREFIX = "kafka-migration/"
_TOKEN_LABEL = f"{_PREFIX}token"
_DRIVER_CONTAINER = "spark-kubernetes-driver"
_RIGHTS = "the rights of docs/spark-engines.md: sparkapplications, secrets, pods and pods/log of the namespace"

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_UID = re.compile(r"[A-Za-z0-9-]{1,64}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_KEY = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}/[-._A-Za-z0-9]{1,253}")

#: States of the operator's applicationState, of its versions 1 and 2. SUBMISSION_FAILED is followed by FAILED.
_STATES = {
    "": JobState.PENDING,
    "NEW": JobState.PENDING,
    "SUBMITTED": JobState.PENDING,
    "SUBMISSION_FAILED": JobState.PENDING,
    "PENDING_RERUN": JobState.PENDING,
    "INVALIDATING": JobState.PENDING,
    "RESUMING": JobState.PENDING,
    "SUSPENDING": JobState.RUNNING,
    "SUSPENDED": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "SUCCEEDING": JobState.RUNNING,
    "FAILING": JobState.RUNNING,
    "COMPLETED": JobState.SUCCEEDED,
    "FAILED": JobState.FAILED,
}


class KubernetesArguments(service.EngineArguments):
    """``spark.engine_args`` of the engine ``kubernetes``."""

    conn_id: str = Field("kubernetes_default", min_length=1, description="Airflow connection of type kubernetes.")
    namespace: str | None = Field(None, description="Namespace of the jobs; default: the connection's, or default.")
    image: str = Field(min_length=1, description="Image with Spark, Python, and the packages that executors need.")
    spark_version: str = Field("4.0.0", description="Version of Spark in the image, at least 3.5.")
    main_folder: str | None = Field(
        None, description="local:///folder of the image with the Spark mains; this package is installed in the image."
    )
    service_account: str = Field("spark", min_length=1, description="Service account of the driver.")
    driver: dict[str, Any] = Field(default_factory=dict, description="Additions to spec.driver: cores, memory ...")
    executor: dict[str, Any] = Field(default_factory=dict, description="Additions to spec.executor: instances ...")
    volumes: list[dict[str, Any]] = Field(default_factory=list, description="spec.volumes.")
    image_pull_policy: str | None = Field(None, description="spec.imagePullPolicy.")
    image_pull_names: list[str] = Field(default_factory=list, description="spec.imagePullSecrets: names only.")
    secret_variables: dict[str, str] = Field(
        default_factory=dict,
        description="Environment variables of driver and executors from Secrets that exist: VARIABLE: secret-name/key.",
    )
    labels: dict[str, str] = Field(default_factory=dict, description="More labels of the job and its pods.")
    keep: Duration = Field("7d", description="How long a finished job and its driver's log are kept.")  # type: ignore[assignment]

    @field_validator("namespace")
    @classmethod
    def _is_name(cls, value: str | None) -> str | None:
        if value is not None and not _NAME.fullmatch(value):
            raise ValueError("not a name of a namespace")
        return value

    @field_validator("spark_version")
    @classmethod
    def _is_at_least_3_5(cls, value: str) -> str:
        if not re.fullmatch(r"(?:3\.[5-9]|[4-9]\.\d+)\.\d+.*", value):
            raise ValueError("write it as 4.0.0, at least 3.5.0: jobs never ran on an older one")
        return value

    @field_validator("main_folder")
    @classmethod
    def _is_in_image(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith("local:///"):
            raise ValueError("write local:///folder, a folder of the image")
        return value.rstrip("/") if value else value

    @field_validator("driver", "executor")
    @classmethod
    def _leaves_ours_alone(cls, value: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted({"labels", "serviceAccount", "envVars", "envSecretKeyRefs"} & set(value)):
            raise ValueError(f"the engine sets {', '.join(taken)}; use labels, service_account, env, secret_variables")
        return value

    @field_validator("secret_variables")
    @classmethod
    def _names_keys(cls, value: dict[str, str]) -> dict[str, str]:
        for variable, key in value.items():
            if not _VARIABLE.fullmatch(variable) or not _SECRET_KEY.fullmatch(key):
                raise ValueError("write VARIABLE: secret-name/key, the name of a Secret and one of its keys")
        return value


class KubernetesEngine:
    """Submits a job as a SparkApplication. Its id is ``namespace/name/uid``."""

    name: ClassVar[str] = "kubernetes"
    located_by: ClassVar[tuple[str, ...]] = ("conn_id", "namespace")
    detached = True

    def __init__(self, **arguments: Any) -> None:
        self.arguments = service.check_arguments(
            KubernetesArguments, self.name, arguments, references=frozenset({"secret_variables", "image_pull_names"})
        )

    # -- the protocol ---------------------------------------------------------------------------------------------

    def submit(self, job: SparkJob) -> str:
        """Create the SparkApplication, or find the one with the same token. Returns ``namespace/name/uid``.

        The same token has to come with the same secrets: those of an existing job are left as they are.
        """
        namespace = self._namespace
        found = self._find(namespace, job.token, "look for the job")
        if found is None:
            document = self.document(job, *self._code(job))
            self._put_secret(namespace, job)
            found = self._create(namespace, document)
        uid = _uid_of(found, job)
        if self._own_secrets(job):
            self._give_secret_to(namespace, job.token, uid)
        return f"{namespace}/{job.token}/{uid}"

    def status(self, job_id: str) -> JobStatus:
        """Say how a job is; see :class:`~airflow_provider_kafka_migration.engines.base.SparkEngine`."""
        namespace, name, uid = _parts(job_id)
        try:
            found = self._find(namespace, name, "say how the job is")
        except (EngineUnreachable, EngineAnswerInvalid, EngineRefused) as error:
            return JobStatus(JobState.UNKNOWN, error.what)
        if found is None:
            return JobStatus(JobState.LOST, f"there is no SparkApplication {namespace}/{name} any more")
        if _text(found, "metadata", "uid") != uid:
            return JobStatus(JobState.LOST, f"the SparkApplication {namespace}/{name} is another one of the same name")
        return self._status_of(namespace, name, found)

    def cancel(self, job_id: str) -> None:
        """Delete the SparkApplication of a running job; its pods end with it."""
        namespace, name, uid = _parts(job_id)
        found = self._find(namespace, name, "cancel the job")
        if found is None or _text(found, "metadata", "uid") != uid or _state_of(found).is_over:
            return
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Foreground"}
        try:
            self._call(
                "cancel the job",
                lambda: self._hook.custom_object_client.delete_namespaced_custom_object(
                    _GROUP, _VERSION, namespace, _PLURAL, name, body=options, _request_timeout=service.REQUEST_SECONDS
                ),
            )
        except EngineNotFound:
            return
        except EngineJobConflict:
            # The object with this uid is gone; the one with its name is somebody else's.
            return

    def trigger(self, job_id: str) -> BaseTrigger | None:
        """None: :meth:`status` is polled."""
        return None

    def links(self, job_id: str) -> dict[str, str]:
        """Return the address of Spark's UI, where the operator made an ingress for it."""
        namespace, name, uid = _parts(job_id)
        try:
            found = self._find(namespace, name, "name the job's pages")
        except MigrationError as error:
            log.warning("No link to the Spark job %s: %s", job_id, error)
            return {}
        if found is None or _text(found, "metadata", "uid") != uid:
            return {}
        address = _text(found, "status", "driverInfo", "webUIIngressAddress")
        if address and "://" not in address:
            address = f"http://{address}"
        return {"Spark UI": address} if re.fullmatch(r"https?://[^\s<>\"']+", address) else {}

    # -- the document ---------------------------------------------------------------------------------------------

    def document(self, job: SparkJob, main_uri: str, zip_uri: str | None) -> dict[str, Any]:
        """Return the whole SparkApplication. It contains no secret, only names of keys of Secrets."""
        arguments = self.arguments
        labels = {
            **arguments.labels,
            **service.labels(job, prefix=_PREFIX, managed_by="app.kubernetes.io/managed-by"),
        }
        optional = {
            "imagePullPolicy": arguments.image_pull_policy,
            "imagePullSecrets": arguments.image_pull_names,
            "volumes": arguments.volumes,
            "deps": {"pyFiles": [zip_uri]} if zip_uri else None,
        }
        return {
            "apiVersion": f"{_GROUP}/{_VERSION}",
            "kind": "SparkApplication",
            "metadata": {
                "name": job.token,
                "namespace": self._namespace,
                "labels": labels,
                "annotations": {f"{_PREFIX}migration-id": job.migration_id},
            },
            "spec": {
                "type": "Python",
                "pythonVersion": "3",
                "mode": "cluster",
                "sparkVersion": arguments.spark_version,
                "image": arguments.image,
                "mainApplicationFile": main_uri,
                "arguments": list(job.arguments),
                "sparkConf": {"spark.app.name": job.application_name, **service.service_conf(job)},
                # Airflow tries again, with a look at the journal first. A second driver beside it would only wait.
                "restartPolicy": {"type": "Never"},
                "timeToLiveSeconds": int(arguments.keep.total_seconds()),
                "driver": {
                    **arguments.driver,
                    "serviceAccount": arguments.service_account,
                    "labels": labels,
                    "env": self._variables(job, arguments.driver),
                },
                "executor": {
                    "instances": 1,
                    **arguments.executor,
                    "labels": labels,
                    "env": self._variables(job, arguments.executor),
                },
                **{key: value for key, value in optional.items() if value},
            },
        }

    def _variables(self, job: SparkJob, pod: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the variables of a pod: the user's, the job's, and references to keys of Secrets."""
        variables = {str(entry.get("name")): entry for entry in pod.get("env", [])}
        for name, value in service.service_environment(job).items():
            variables[name] = {"name": name, "value": value}
        for name, place in sorted(self.arguments.secret_variables.items()):
            secret, _, key = place.partition("/")
            variables[name] = _from_secret(name, secret, key)
        for name in self._own_secrets(job):
            variables[name] = _from_secret(name, job.token, name)
        return list(variables.values())

    def _code(self, job: SparkJob) -> tuple[str, str | None]:
        """Return where driver and executors read the main and this package."""
        if self.arguments.main_folder:
            return f"{self.arguments.main_folder}/{job.main.name}", None
        staging = Staging(job.staging, schemes=("s3",))
        uris = [staging.put(path) for path in (job.main, job.py_files) if path is not None]
        # Hadoop's connector, which reads them, has a scheme of its own.
        main_uri, *zips = [re.sub("^s3:", "s3a:", uri) for uri in uris]
        return main_uri, zips[0] if zips else None

    # -- requests -------------------------------------------------------------------------------------------------

    @cached_property
    def _hook(self) -> KubernetesHook:
        provider = "apache-airflow-providers-cncf-kubernetes"
        kind = service.load(
            "airflow.providers.cncf.kubernetes.hooks.kubernetes", "KubernetesHook", provider, "kubernetes"
        )
        hook: KubernetesHook = kind(conn_id=self.arguments.conn_id)
        return hook

    @cached_property
    def _namespace(self) -> str:
        namespace = self.arguments.namespace or self._call("read its connection", self._hook.get_namespace) or "default"
        return str(namespace)

    def _prepare(self) -> None:
        """Load the credentials, and switch off that the HTTP client itself waits as long as a server asks for."""
        from urllib3 import Retry

        pools = self._hook.api_client.rest_client.pool_manager
        pools.connection_pool_kw["retries"] = Retry(total=0, redirect=0)

    def _call(self, doing: str, request: Callable[[], Any]) -> Any:
        return service.call(request, lambda error: _explain(error, doing))

    def _find(self, namespace: str, name: str, doing: str) -> dict[str, Any] | None:
        """Return a SparkApplication; None if Kubernetes says in its documented form that there is none."""
        self._call(doing, self._prepare)
        try:
            found = self._call(
                doing,
                lambda: self._hook.custom_object_client.get_namespaced_custom_object(
                    _GROUP, _VERSION, namespace, _PLURAL, name, _request_timeout=service.REQUEST_SECONDS
                ),
            )
        except EngineNotFound as error:
            if error.details.get("object") == name:
                return None
            raise _refused_path(error, doing) from None
        return _checked(found, "SparkApplication", name, doing)

    def _create(self, namespace: str, document: dict[str, Any]) -> dict[str, Any]:
        name = document["metadata"]["name"]
        try:
            created = self._call(
                "submit the job",
                lambda: self._hook.custom_object_client.create_namespaced_custom_object(
                    _GROUP, _VERSION, namespace, _PLURAL, document, _request_timeout=service.REQUEST_SECONDS
                ),
            )
        except EngineJobConflict:
            # Another attempt of this task was faster, or the answer to an earlier request was lost.
            found = self._find(namespace, name, "submit the job")
            if found is None:
                raise service.invalid_answer(_SERVICE, "submit the job", f"{name} both exists and does not") from None
            return found
        except EngineNotFound as error:
            raise _refused_path(error, "submit the job") from None
        return _checked(created, "SparkApplication", name, "submit the job")

    def _own_secrets(self, job: SparkJob) -> list[str]:
        """Return the job's secret variables that the arguments do not name."""
        return sorted(set(job.secret_environment) - set(self.arguments.secret_variables))

    def _put_secret(self, namespace: str, job: SparkJob) -> None:
        """Write the job's secrets into a Secret with the job's name."""
        if not (own := self._own_secrets(job)):
            return
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "metadata": {
                "name": job.token,
                "namespace": namespace,
                "labels": service.labels(job, prefix=_PREFIX, managed_by="app.kubernetes.io/managed-by"),
            },
            "stringData": {name: job.secret_environment[name] for name in own},
        }
        # The client logs the answers that it parses, at level DEBUG, and this answer contains the secrets.
        unread = {"_preload_content": False, "_request_timeout": service.REQUEST_SECONDS}
        core, doing = self._hook.core_v1_client, "store the job's secrets"
        try:
            self._call_quiet(job.token, doing, lambda: core.create_namespaced_secret(namespace, body, **unread))
        except EngineJobConflict:
            self._check_secret(namespace, job)
            self._call_quiet(
                job.token, doing, lambda: core.replace_namespaced_secret(job.token, namespace, body, **unread)
            )

    def _call_quiet(self, name: str, doing: str, request: Callable[[], Any]) -> None:
        """Send a request about a Secret whose answer, and whose errors, may not be shown."""

        def parsed() -> Any:
            with request() as answer:
                return json.loads(answer.read(4 * 1024 * 1024))

        _checked(service.call(parsed, lambda error: _explain(error, doing, quote=False)), "Secret", name, doing)

    def _check_secret(self, namespace: str, job: SparkJob) -> None:
        """Refuse to overwrite a Secret that is not this job's. Reads nothing but its labels."""
        found = self._call(
            "look at the job's Secret",
            lambda: self._hook.core_v1_client.list_namespaced_secret(
                namespace,
                field_selector=f"metadata.name={job.token}",
                label_selector=f"{_TOKEN_LABEL}={job.token}",
                _preload_content=False,
                _request_timeout=service.REQUEST_SECONDS,
            ),
        )
        with found:
            try:
                listed = json.loads(found.read(4 * 1024 * 1024))["items"]
            except (ValueError, KeyError, TypeError):
                raise service.invalid_answer(_SERVICE, "look at the job's Secret", "not a list of Secrets") from None
        if not listed:
            raise EngineJobConflict(
                f"the Secret {namespace}/{job.token} exists and is not this job's",
                where=service.place(job),
                next_step="delete or rename that Secret, then clear the task",
            )

    def _give_secret_to(self, namespace: str, name: str, uid: str) -> None:
        """Make the SparkApplication the owner of its Secret, so that Kubernetes deletes both together."""
        owner = {"apiVersion": f"{_GROUP}/{_VERSION}", "kind": "SparkApplication", "name": name, "uid": uid}
        body = {"metadata": {"ownerReferences": [owner]}}
        try:
            self._call_quiet(
                name,
                "let the job own its Secret",
                lambda: self._hook.core_v1_client.patch_namespaced_secret(
                    name, namespace, body, _preload_content=False, _request_timeout=service.REQUEST_SECONDS
                ),
            )
        except EngineNotFound:
            log.warning(
                "The Secret %s/%s of a Spark job is gone; a driver that has not started yet needs it", namespace, name
            )

    # -- answers --------------------------------------------------------------------------------------------------

    def _status_of(self, namespace: str, name: str, found: dict[str, Any]) -> JobStatus:
        state = _state_of(found)
        reason = service.one_line(_text(found, "status", "applicationState", "errorMessage"))
        if state is JobState.UNKNOWN:
            named = service.one_line(_text(found, "status", "applicationState", "state"), 40) or "no state"
            return JobStatus(state, f"the Spark operator says {named}. {reason}".strip())
        pod = _text(found, "status", "driverInfo", "podName") or f"{name}-driver"
        if not _NAME.fullmatch(pod):
            return JobStatus(state, reason)
        if state is JobState.PENDING:
            return JobStatus(state, reason or self._why_pending(namespace, pod))
        if state is JobState.FAILED:
            tail, trouble = self._tail(namespace, pod)
            return JobStatus(state, "; ".join(text for text in (reason, trouble) if text), tail)
        return JobStatus(state, reason)

    def _why_pending(self, namespace: str, pod: str) -> str:
        """Return what the driver's pod waits for, for instance its image; empty if that is not known."""
        try:
            found = self._call(
                "look at the driver's pod",
                lambda: self._hook.core_v1_client.read_namespaced_pod(
                    pod, namespace, _preload_content=False, _request_timeout=service.REQUEST_SECONDS
                ),
            )
            with found:
                containers = json.loads(found.read(1024 * 1024))["status"]["containerStatuses"]
            waiting = [entry["state"]["waiting"] for entry in containers if "waiting" in entry.get("state", {})]
            return service.one_line("; ".join(f"{item.get('reason')}: {item.get('message', '')}" for item in waiting))
        except (MigrationError, ValueError, KeyError, TypeError, AttributeError):
            return ""

    def _tail(self, namespace: str, pod: str) -> tuple[tuple[str, ...], str]:
        """Return the end of the driver's log, and why there is none."""
        try:
            answer = self._call(
                "read the driver's log",
                lambda: self._hook.core_v1_client.read_namespaced_pod_log(
                    pod,
                    namespace,
                    container=_DRIVER_CONTAINER,
                    tail_lines=service.TAIL_LINES,
                    limit_bytes=16 * service.TAIL_BYTES,
                    _preload_content=False,
                    _request_timeout=service.REQUEST_SECONDS,
                ),
            )
            with answer:
                return service.log_tail(answer.read(16 * service.TAIL_BYTES).decode("utf-8", "replace")), ""
        except MigrationError as error:
            return (), f"the log of the driver's pod {pod} cannot be read: {error.what}"


def _explain(error: Exception, doing: str, *, quote: bool = True) -> MigrationError:
    """Return the error of this package for an exception of the hook.

    :param quote: whether the service's words may be repeated.
    """
    from airflow.providers.common.compat.sdk import AirflowException
    from kubernetes.client.exceptions import ApiException
    from kubernetes.config import ConfigException
    from urllib3.exceptions import HTTPError

    if isinstance(error, ApiException):
        answer = _answer(error)
        text = str(answer.get("message") or "") if quote else ""
        if error.status == 404:
            details = answer.get("details") if answer.get("reason") == "NotFound" else None
            name = details.get("name") if isinstance(details, dict) else None
            return EngineNotFound(
                f"{_SERVICE} could not {doing} (HTTP 404): {service.one_line(text)}", details={"object": name}
            )
        if error.status == 409:
            return EngineJobConflict(
                f"{_SERVICE} could not {doing} (HTTP 409): {service.one_line(text)}",
                next_step="clear the task: it looks at the objects again",
            )
        return service.http_failure(int(error.status or 0), _SERVICE, doing, text, rights=_RIGHTS)
    if isinstance(error, ConfigException | AirflowException):
        return ConnectionInvalid(
            f"the connection to Kubernetes cannot be used: {service.one_line(str(error))}",
            next_step="correct the connection of type kubernetes that spark.engine_args.conn_id names",
        )
    if isinstance(error, HTTPError | OSError):
        return service.unreachable(_SERVICE, doing, error)
    return service.invalid_answer(
        _SERVICE, doing, f"{type(error).__name__}: {error}" if quote else type(error).__name__
    )


def _answer(error: Any) -> dict[str, Any]:
    """Return the Status object in an answer; empty if there is none."""
    body = error.body
    if isinstance(body, bytes):
        body = body.decode("utf-8", "replace")
    try:
        answer = json.loads(body or "")
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) and answer.get("kind") == "Status" else {}


def _refused_path(error: MigrationError, doing: str) -> EngineRefused:
    return EngineRefused(
        f"{_SERVICE} could not {doing}: it knows no SparkApplications ({_GROUP}/{_VERSION}) there, or no such "
        f"namespace. It says: {service.one_line(error.what)}",
        next_step="install the Spark operator with its custom resource definitions, check the namespace and the "
        "connection's cluster; then clear the task",
    )


def _checked(found: Any, kind: str, name: str, doing: str) -> dict[str, Any]:
    """Return an object of Kubernetes.

    :raises EngineAnswerInvalid: it is something else.
    """
    if _text(found, "kind") != kind or _text(found, "metadata", "name") != name:
        raise service.invalid_answer(_SERVICE, doing, f"it is not the {kind} that was asked for")
    return dict(found)


def _uid_of(found: dict[str, Any], job: SparkJob) -> str:
    """Return the uid of a SparkApplication, if it is this job's.

    :raises EngineJobConflict: the object was made by somebody else.
    :raises EngineAnswerInvalid: it has no uid.
    """
    if _text(found, "metadata", "labels", _TOKEN_LABEL) != job.token:
        raise EngineJobConflict(
            f"a SparkApplication {job.token} exists and is not this job's: it lacks the label {_TOKEN_LABEL}",
            where=service.place(job),
            next_step="delete or rename that SparkApplication, then clear the task",
        )
    uid = _text(found, "metadata", "uid")
    if not _UID.fullmatch(uid):
        raise service.invalid_answer(_SERVICE, "submit the job", "the SparkApplication has no uid")
    return uid


def _state_of(found: dict[str, Any]) -> JobState:
    return _STATES.get(_text(found, "status", "applicationState", "state"), JobState.UNKNOWN)


def _text(found: Any, *path: str) -> str:
    """Return a text inside of an answer; empty if there is none at that path."""
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, str) else ""


def _from_secret(name: str, secret: str, key: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def _parts(job_id: str) -> tuple[str, str, str]:
    parts = job_id.split("/")
    if len(parts) != 3 or not (_NAME.fullmatch(parts[0]) and _NAME.fullmatch(parts[1]) and _UID.fullmatch(parts[2])):
        raise service.not_an_id(job_id, KubernetesEngine.name, "namespace/name/uid")
    return parts[0], parts[1], parts[2]
