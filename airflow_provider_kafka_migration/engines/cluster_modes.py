"""Jobs that ``spark-submit --deploy-mode cluster`` has left on a cluster: found, asked for and cancelled there.

YARN is asked through the REST API of its ResourceManager, Kubernetes through its own API with the client that Airflow's
Spark provider uses as well. A job is found by its token: an application tag of YARN, the name of the driver pod.
"""

from __future__ import annotations

import html
import logging
import re
from collections.abc import Mapping
from typing import Any, Protocol

from airflow_provider_kafka_migration import plain_secrets
from airflow_provider_kafka_migration.engines import service
from airflow_provider_kafka_migration.engines.base import JobState, JobStatus, SparkJob
from airflow_provider_kafka_migration.errors import (
    EngineForbidden,
    EngineProviderMissing,
    EngineRefused,
    EngineUnreachable,
    SpecInvalid,
    Where,
)

log = logging.getLogger(__name__)

_REQUEST_SECONDS = 30.0
#: For each of a driver's two logs; the page of a NodeManager is longer than the log that it shows.
_LOG_SECONDS, _LOG_PAGE_BYTES = 10.0, 4 * service.TAIL_BYTES


class ClusterMode(Protocol):
    """A kind of cluster that runs drivers."""

    def conf(self, job: SparkJob) -> dict[str, str]:
        """Return the Spark conf with which ``spark-submit`` does not wait, and the job can be found by its token."""

    def environment_conf(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the Spark conf that gives the driver environment variables."""

    def find(self, token: str) -> str | None:
        """Return the id of the job with this token; None if the cluster has none."""

    def cancel_doubles(self, token: str, job_id: str) -> None:
        """Cancel all jobs with this token but one."""

    def id_in(self, lines: tuple[str, ...]) -> str:
        """Return the id in the output of ``spark-submit``; empty if it has none."""

    def status(self, job_id: str) -> JobStatus:
        """Say how a job is."""

    def cancel(self, job_id: str) -> None:
        """Ask a job to end."""

    def links(self, job_id: str) -> dict[str, str]:
        """Return pages about a job."""


def of_master(master: str, *, resource_manager: str, kerberos: bool, namespace: str) -> ClusterMode:
    """Return the kind of cluster that a master names.

    :raises SpecInvalid: it cannot run Python drivers, or an argument is missing.
    """
    if master.startswith("yarn"):
        if not resource_manager:
            raise _invalid(
                "resource_manager",
                "YARN in cluster mode needs the address of the ResourceManager (http://host:8088), there or as "
                "yarn_resourcemanager_webapp_address in the extra of the spark connection",
            )
        if plain_secrets.why_no_plain_address(_with_scheme(resource_manager)):
            # It is in messages, in links, and in a trigger's arguments, which Airflow's database keeps.
            raise _invalid("resource_manager", "it is more than http://host:8088: logins do not belong into it")
        return Yarn(resource_manager, kerberos=kerberos)
    if master.startswith("k8s://"):
        return Kubernetes(namespace or "default")
    raise _invalid("deploy_mode", f"the master {master} does not run Python drivers in cluster mode; use client")


def _invalid(argument: str, why: str) -> SpecInvalid:
    path = f"spark.engine_args.{argument}"
    return SpecInvalid(f"{path}: {why}", where=Where(path=path), next_step="correct it; docs/spark.md has an example")


# -- YARN -------------------------------------------------------------------------------------------------------------

_APPLICATION = re.compile(r"application_\d+_\d+")
_LOG_IN_PAGE = re.compile(r"<pre>(.*?)(?:</pre>|\Z)", flags=re.DOTALL | re.IGNORECASE)
_TAG = re.compile(r"<[^<>]*>")
_BEFORE_RUNNING = frozenset({"NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED"})


def _with_scheme(address: str) -> str:
    return address if "://" in address else f"http://{address}"


class Yarn:
    """Applications of a YARN cluster.

    :param address: of the ResourceManager, ``http://host:8088`` or ``host:8088``.
    """

    def __init__(self, address: str, *, kerberos: bool = False) -> None:
        self._base = _with_scheme(address).rstrip("/")
        self._kerberos = kerberos

    def conf(self, job: SparkJob) -> dict[str, str]:
        """See :class:`ClusterMode`. One attempt: a driver that was started again would copy beside its successor."""
        return {
            "spark.yarn.submit.waitAppCompletion": "false",
            "spark.yarn.tags": job.token,
            "spark.yarn.maxAppAttempts": "1",
        }

    def environment_conf(self, environment: Mapping[str, str]) -> dict[str, str]:
        """See :class:`ClusterMode`."""
        return {f"spark.yarn.appMasterEnv.{name}": environment[name] for name in sorted(environment)}

    def find(self, token: str) -> str | None:
        """See :class:`ClusterMode`. Of several, it is the first that runs, or else the first that has ended well."""
        apps = self._tagged(token)
        rank = {JobState.SUCCEEDED: 1, JobState.CANCELLED: 3, JobState.FAILED: 2}
        found = sorted(apps, key=lambda app: (rank.get(_yarn_state(app), 0), _number(app)))
        return str(found[0]["id"]) if found else None

    def cancel_doubles(self, token: str, job_id: str) -> None:
        """See :class:`ClusterMode`. YARN does not keep two from submitting the same tag at the same time."""
        for app in self._tagged(token):
            if app["id"] != job_id and not _yarn_state(app).is_over:
                log.warning("The application %s runs the same job as %s, so it is cancelled", app["id"], job_id)
                self.cancel(str(app["id"]))

    def _tagged(self, token: str) -> list[dict[str, Any]]:
        status, data = self._request("GET", f"/ws/v1/cluster/apps?applicationTags={token}")
        if status != 200 or "apps" not in data:
            raise _refused(status, "look for the job", data)
        # YARN answers {"apps": null} or {"apps": {}} if there is none.
        return list((data["apps"] or {}).get("app") or [])

    def id_in(self, lines: tuple[str, ...]) -> str:
        """See :class:`ClusterMode`."""
        found = _APPLICATION.findall("\n".join(lines))
        return str(found[-1]) if found else ""

    def status(self, job_id: str) -> JobStatus:
        """See :class:`ClusterMode`."""
        status, data = self._request("GET", f"/ws/v1/cluster/apps/{job_id}")
        if status == 404 and _is_not_found(data):
            return JobStatus(JobState.LOST, "the ResourceManager does not know this application (any more)")
        app = data.get("app")
        if status in (401, 403):
            raise _refused(status, "tell how the job is", data)
        if status != 200 or not isinstance(app, dict):
            return JobStatus(JobState.UNKNOWN, f"the ResourceManager answered HTTP {status}")
        state = _yarn_state(app)
        tail = self._log_tail(str(app.get("amContainerLogs") or "")) if state is JobState.FAILED else ()
        return JobStatus(state, str(app.get("diagnostics") or "").strip()[:500], tail)

    def _log_tail(self, logs: str) -> tuple[str, ...]:
        """Return the end of the driver's log, as far as its NodeManager (or the log server) still shows it.

        Spark writes what a Python driver prints, on both streams, to ``stdout``, so that comes last; ``stderr`` has
        Spark's own lines.
        """
        if not logs.startswith(("http://", "https://")):
            return ()
        half = service.TAIL_LINES // 2
        return tuple(line for name in ("stderr", "stdout") for line in self._log(f"{logs}/{name}")[-half:])

    def _log(self, address: str) -> tuple[str, ...]:
        import requests

        try:
            with requests.get(
                f"{address}?start=-{service.TAIL_BYTES}", auth=self._login(), timeout=_LOG_SECONDS, stream=True
            ) as answer:
                answer.raise_for_status()
                data = answer.raw.read(_LOG_PAGE_BYTES, decode_content=True)
        except Exception as error:  # the log is for people; the state is known without it
            log.info("The driver's log at %s cannot be read: %s", address, type(error).__name__)
            return ()
        return service.log_tail(_plain(bytes(data).decode("utf-8", "replace")))

    def cancel(self, job_id: str) -> None:
        """See :class:`ClusterMode`."""
        status, data = self._request("PUT", f"/ws/v1/cluster/apps/{job_id}/state", {"state": "KILLED"})
        if status in (200, 202) or (status == 404 and _is_not_found(data)):
            return
        if self.status(job_id).state.is_over:
            return
        raise _refused(status, "cancel the job", data)

    def links(self, job_id: str) -> dict[str, str]:
        """See :class:`ClusterMode`."""
        return {"YARN application": f"{self._base}/cluster/app/{job_id}"}

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        import requests

        try:
            answer = requests.request(
                method,
                self._base + path,
                json=body,
                auth=self._login(),
                timeout=_REQUEST_SECONDS,
                headers={"Accept": "application/json"},
            )
        except requests.exceptions.RequestException as error:
            raise EngineUnreachable(
                f"YARN's ResourceManager at {self._base} did not answer: {type(error).__name__}",
                next_step="check resource_manager and the network; then clear the task: a job that runs is found again",
            ) from None
        try:
            data = answer.json()
        except ValueError:
            data = {}
        return answer.status_code, data if isinstance(data, dict) else {}

    def _login(self) -> Any:
        if not self._kerberos:
            return None
        try:
            from requests_kerberos import HTTPKerberosAuth  # type: ignore[import-not-found, import-untyped, unused-ignore]
        except ImportError:
            raise EngineProviderMissing(
                "the ResourceManager wants Kerberos, but requests-kerberos is not installed",
                next_step="install requests-kerberos on workers and triggerers",
            ) from None
        return HTTPKerberosAuth()


def _number(app: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the parts of an application's id as numbers: 9999 comes before 10000."""
    return tuple(int(part) for part in re.findall(r"\d+", str(app["id"])))


def _plain(page: str) -> str:
    """Return the log in a page of a NodeManager, which has it in ``<pre>``; a text that is no page is the log."""
    if "<html" not in page[:2000].lower():
        return page
    return html.unescape(_TAG.sub("", "\n".join(_LOG_IN_PAGE.findall(page))))


def _is_not_found(data: Mapping[str, Any]) -> bool:
    """Whether the ResourceManager itself says so; a proxy's 404 proves nothing."""
    return (data.get("RemoteException") or {}).get("exception") == "NotFoundException"


def _yarn_state(app: Mapping[str, Any]) -> JobState:
    state, final = str(app.get("state")), str(app.get("finalStatus"))
    if state in _BEFORE_RUNNING:
        return JobState.PENDING
    if state in ("RUNNING", "FINISHING"):
        return JobState.RUNNING
    if state == "KILLED" or final == "KILLED":
        return JobState.CANCELLED
    if state == "FINISHED":
        return JobState.SUCCEEDED if final == "SUCCEEDED" else JobState.FAILED
    return JobState.FAILED if state == "FAILED" else JobState.UNKNOWN


def _refused(status: int, doing: str, data: Mapping[str, Any]) -> Exception:
    said = str((data.get("RemoteException") or {}).get("message") or "")[:300]
    text = f"YARN's ResourceManager does not {doing} (HTTP {status}){': ' + said if said else ''}"
    if status in (401, 403):
        return EngineForbidden(text, next_step="set kerberos: true, or give this user the right; then clear the task")
    if status >= 500 or status in (200, 408, 429):
        return EngineUnreachable(text, next_step="clear the task once it answers: a job that runs is found again")
    return EngineRefused(text, next_step="check resource_manager, and the log of the ResourceManager")


# -- Kubernetes -------------------------------------------------------------------------------------------------------


class Kubernetes:
    """Driver pods that ``spark-submit`` has made. A pod's name comes from the token, so there is one per token."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    def conf(self, job: SparkJob) -> dict[str, str]:
        """See :class:`ClusterMode`."""
        return {
            "spark.kubernetes.submission.waitAppCompletion": "false",
            "spark.kubernetes.driver.pod.name": _pod_name(job.token),
            "spark.kubernetes.namespace": self._namespace,
        }

    def environment_conf(self, environment: Mapping[str, str]) -> dict[str, str]:
        """See :class:`ClusterMode`."""
        return {f"spark.kubernetes.driverEnv.{name}": environment[name] for name in sorted(environment)}

    def find(self, token: str) -> str | None:
        """See :class:`ClusterMode`."""
        job_id = f"{self._namespace}:{_pod_name(token)}"
        return None if self._read(job_id) is None else job_id

    def cancel_doubles(self, token: str, job_id: str) -> None:
        """See :class:`ClusterMode`: there are none, because the name of the pod comes from the token."""

    def id_in(self, lines: tuple[str, ...]) -> str:
        """See :class:`ClusterMode`: the pod itself is asked for, never the output."""
        return ""

    def status(self, job_id: str) -> JobStatus:
        """See :class:`ClusterMode`."""
        pod = self._read(job_id)
        if pod is None:
            return JobStatus(JobState.LOST, "the driver's pod does not exist (any more)")
        phase = str(pod.status.phase or "Pending")
        if pod.metadata.deletion_timestamp is not None:
            return JobStatus(JobState.RUNNING, "the driver's pod is being deleted")
        states = {
            "Pending": JobState.PENDING,
            "Running": JobState.RUNNING,
            "Succeeded": JobState.SUCCEEDED,
            "Failed": JobState.FAILED,
        }
        state = states.get(phase, JobState.UNKNOWN)
        tail = self._log_tail(job_id) if state is JobState.FAILED else ()
        return JobStatus(state, str(pod.status.message or pod.status.reason or "")[:500], tail)

    def cancel(self, job_id: str) -> None:
        """See :class:`ClusterMode`."""
        namespace, name = _split(job_id)
        client, api_error = self._client()
        try:
            client.delete_namespaced_pod(name, namespace, _request_timeout=_REQUEST_SECONDS)
        except Exception as error:  # of the API, or of the HTTP client below it
            if not (isinstance(error, api_error) and _is_absent(error)):
                raise _kubernetes_error(error, "delete the driver's pod") from None

    def links(self, job_id: str) -> dict[str, str]:
        """See :class:`ClusterMode`: Kubernetes has no page of its own."""
        return {}

    def _read(self, job_id: str) -> Any:
        namespace, name = _split(job_id)
        client, api_error = self._client()
        try:
            return client.read_namespaced_pod(name, namespace, _request_timeout=_REQUEST_SECONDS)
        except Exception as error:  # of the API, or of the HTTP client below it
            if isinstance(error, api_error) and _is_absent(error):
                return None
            raise _kubernetes_error(error, "tell how the driver's pod is") from None

    def _log_tail(self, job_id: str) -> tuple[str, ...]:
        namespace, name = _split(job_id)
        client, _ = self._client()
        try:
            text = client.read_namespaced_pod_log(
                name, namespace, tail_lines=service.TAIL_LINES, _request_timeout=_REQUEST_SECONDS
            )
        except Exception:  # the log is for people; the state is known without it
            return ()
        return tuple(str(text).splitlines())[-service.TAIL_LINES :]

    @staticmethod
    def _client() -> tuple[Any, type[Exception]]:
        try:
            from airflow.providers.cncf.kubernetes import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
                kube_client,
            )
        except ImportError:
            raise EngineProviderMissing(
                "Kubernetes in cluster mode needs its Airflow provider",
                next_step="install apache-airflow-providers-cncf-kubernetes on workers and triggerers",
            ) from None
        return kube_client.get_kube_client(), kube_client.ApiException  # type: ignore[attr-defined, unused-ignore]


def _pod_name(token: str) -> str:
    return f"{token}-driver"


def _split(job_id: str) -> tuple[str, str]:
    namespace, _, name = job_id.partition(":")
    return namespace, name


def _is_absent(error: Any) -> bool:
    """Whether the API server itself says that there is no such pod; a proxy's 404 proves nothing."""
    return getattr(error, "status", None) == 404 and '"reason":"NotFound"' in str(error.body).replace(" ", "")


def _kubernetes_error(error: Any, doing: str) -> Exception:
    status = getattr(error, "status", None)
    text = f"the Kubernetes API does not {doing} ({f'HTTP {status}' if status else type(error).__name__})"
    if status in (401, 403):
        return EngineForbidden(text, next_step="give the login get, delete and log rights on pods of the namespace")
    if status is None or status >= 500 or status in (404, 408, 429):
        return EngineUnreachable(text, next_step="clear the task once it answers: a job that runs is found again")
    return EngineRefused(text, next_step="check the namespace, and the log of the API server")
