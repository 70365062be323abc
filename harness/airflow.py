"""A complete Airflow (``airflow standalone``: scheduler, triggerer, DAG processor, API) on loopback, used over REST."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib.metadata
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from harness.processes import HarnessError, Process, free_port, release_ports, start, tail_of, wait_for
from harness.reaper import descendants

#: Long: on a busy machine each of the four components takes a minute to import Airflow.
_READY_SECONDS = 600.0
_STOP_SECONDS = 20.0
_MIGRATE_SECONDS = 300.0
_REQUEST_SECONDS = 120.0
#: Longest wait for the executor to report that a parked task has ended (see :meth:`AirflowStandalone.answer`).
_PARKED_SECONDS = 60.0
_RUN_ENDS = frozenset({"success", "failed"})
_TASK_ENDS = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})


class AirflowApiError(HarnessError):
    """The REST API answered with an error."""

    def __init__(self, method: str, path: str, status: int, body: str) -> None:
        super().__init__(f"{method} {path}: status {status}: {body[:2000]}")
        self.status = status


class AirflowStandalone:
    """Airflow from ``start()`` (or ``with``) to ``stop()``; ``stop()`` also ends the task processes.

    It has LocalExecutor, SQLite, admin rights for everyone, no examples; new DAGs are not paused.

    :param home: AIRFLOW_HOME; an existing one is reused.
    :param dags_folder: DAG files.
    :param connections: connection id -> fields (``conn_type``, ``host``, ``login``, ``password``, ``extra``, ...).
    :param env: additional environment for all components and tasks; overrides the harness's own.
    :param parallelism: task slots.
    """

    def __init__(
        self,
        home: Path,
        dags_folder: Path,
        connections: Mapping[str, Mapping[str, Any]] | None = None,
        env: Mapping[str, str] | None = None,
        parallelism: int = 8,
    ) -> None:
        self.home = home
        self.dags_folder = dags_folder
        self._connections = dict(connections or {})
        self._env = dict(env or {})
        self._parallelism = parallelism
        self._ports: list[int] = []
        self._process: Process | None = None
        self._token = ""
        self._events_answered: dict[tuple[str, str, str, int], int] = {}

    # -- life ---------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Create or reuse the database, start all components, wait until scheduler, triggerer and DAG processor run.

        :raises HarnessError: Airflow did not start in time, or ended; no process is left running then.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        self._ports = [free_port() for _ in range(3)]
        try:
            self._make_database()
            airflow = str(Path(sys.executable).with_name("airflow"))
            command = [sys.executable, str(Path(__file__).with_name("reaper.py")), airflow, "standalone"]
            # On SIGTERM the reaper still ends all descendants when this process is killed.
            self._process = start(
                "Airflow", command, self.log, env=self.environment(), cwd=self.home, death_signal=signal.SIGTERM
            )
            wait_for("Airflow's components", self._is_healthy, _READY_SECONDS, every_seconds=0.5)
        except HarnessError as error:
            self.stop()
            raise HarnessError(f"{error}; its log {self.log} ends:\n{tail_of(self.log)}") from None
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all components and tasks; do nothing if Airflow does not run. The home folder is kept."""
        if self._process is not None:
            self._process.stop(_STOP_SECONDS)
            self._process = None
        release_ports(self._ports)
        self._token = ""

    def kill(self) -> None:
        """Kill all components and tasks with SIGKILL, as when the machine loses its power."""
        for process in self._processes():
            # Asleep, it does not notice the end of its command, and sends no signal that a process could handle.
            process.signal(signal.SIGSTOP)
            kill_descendants(process.pid)
        self.stop()

    @property
    def url(self) -> str:
        """Address of UI and API. A visitor is logged in as admin."""
        return f"http://127.0.0.1:{self._ports[0]}"

    @property
    def log(self) -> Path:
        """Log file with the output of all components."""
        return self.home / "standalone.log"

    @property
    def pid(self) -> int:
        """Process id of the ancestor of all processes (see :func:`harness.reaper.descendants`)."""
        if self._process is None:
            raise HarnessError("Airflow does not run")
        return self._process.pid

    def processes_below(self) -> list[int]:
        """Process ids of all components and tasks, and of what they have started."""
        return [pid for process in self._processes() for pid in descendants(process.pid)]

    def environment(self) -> dict[str, str]:
        """Environment of all components, to run ``airflow`` commands against the same home."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
        api, log_server, trigger_log_server = self._ports
        secret = self._secret()
        settings = {
            "CORE__DAGS_FOLDER": str(self.dags_folder),
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__EXECUTOR": "LocalExecutor",
            "CORE__PARALLELISM": str(self._parallelism),
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{api}/execution/",
            "CORE__FERNET_KEY": base64.urlsafe_b64encode(hashlib.sha256(secret.encode()).digest()).decode(),
            "API__HOST": "127.0.0.1",
            "API__PORT": str(api),
            "API__BASE_URL": f"http://127.0.0.1:{api}",
            "API__WORKERS": "1",
            "API__SECRET_KEY": secret,
            "API_AUTH__JWT_SECRET": secret * 2,
            "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self._database}",
            # New files are found soon; parsing the same files again and again would occupy a core.
            "DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "60",
            "LOGGING__WORKER_LOG_SERVER_PORT": str(log_server),
            "LOGGING__TRIGGER_LOG_SERVER_PORT": str(trigger_log_server),
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
            "USAGE_DATA_COLLECTION__ENABLED": "False",
        }
        return {
            **own,
            "AIRFLOW_HOME": str(self.home),
            **{f"AIRFLOW__{name}": value for name, value in settings.items()},
            **{f"AIRFLOW_CONN_{name.upper()}": json.dumps(dict(c)) for name, c in sorted(self._connections.items())},
            # Use `airflow`, `spark-submit` and the executors' Python of this environment.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{own.get('PATH', os.defpath)}",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "NO_COLOR": "1",
            "NO_PROXY": "127.0.0.1,localhost",
            **self._env,
        }

    # -- REST ---------------------------------------------------------------------------------------------------------

    def request(
        self, method: str, path: str, body: Any = None, *, root: str = "/api/v2", **query: str | int | bool
    ) -> Any:
        """Call the REST API; ``path`` is below ``/api/v2``. Returns the decoded JSON, or None without a body.

        :raises AirflowApiError: the status is 400 or more.
        """
        text = urllib.parse.urlencode({name: str(value) for name, value in query.items()})
        url = f"{self.url}{root}{path}{'?' + text if text else ''}"
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        content = None if body is None else json.dumps(body).encode()
        try:
            with _opener.open(
                urllib.request.Request(url, content, headers, method=method), timeout=_REQUEST_SECONDS
            ) as response:
                answer = response.read()
        except urllib.error.HTTPError as error:
            with error:
                raise AirflowApiError(method, path, error.code, error.read().decode(errors="replace")) from None
        return json.loads(answer) if answer else None

    def wait_dag(self, dag_id: str, timeout_seconds: float = 120) -> None:
        """Wait until the DAG processor has loaded a DAG.

        :raises HarnessError: the DAG was not loaded in time; shows import errors.
        """

        def known() -> bool:
            self._check_running()
            try:
                return bool(self.request("GET", f"/dags/{_quoted(dag_id)}"))
            except AirflowApiError as error:
                if error.status != 404:
                    raise
                return False

        try:
            wait_for(f"DAG {dag_id}", known, timeout_seconds, every_seconds=0.5)
        except AirflowApiError:
            raise
        except HarnessError as error:
            raise HarnessError(f"{error}; import errors: {self.import_errors()}") from None

    def import_errors(self) -> dict[str, str]:
        """File -> stack trace of DAG files that cannot be imported."""
        found = self.request("GET", "/importErrors", limit=100)["import_errors"]
        return {str(item["filename"]): str(item["stack_trace"]) for item in found}

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None, run_id: str | None = None) -> str:
        """Start a run, after waiting for the DAG to be loaded; return its id."""
        self.wait_dag(dag_id)
        body: dict[str, Any] = {"logical_date": None, "conf": dict(conf or {})}
        if run_id is not None:
            body["dag_run_id"] = run_id
        return str(self.request("POST", f"/dags/{_quoted(dag_id)}/dagRuns", body)["dag_run_id"])

    def run_state(self, dag_id: str, run_id: str) -> str:
        """``queued``, ``running``, ``success`` or ``failed``."""
        return str(self.request("GET", _run(dag_id, run_id))["state"])

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """Task id -> state; None means that the task is not scheduled yet."""
        found = self.request("GET", f"{_run(dag_id, run_id)}/taskInstances", limit=500)["task_instances"]
        return {item["task_id"]: item["state"] for item in sorted(found, key=lambda item: str(item["task_id"]))}

    def task(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        """One task instance as the API returns it."""
        found: dict[str, Any] = self.request("GET", _task(dag_id, run_id, task_id))
        return found

    def hitl(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any] | None:
        """The request of an approval (subject, body, options, params, the answer); None before it asks."""
        try:
            found: dict[str, Any] = self.request("GET", f"{_task(dag_id, run_id, task_id)}/-1/hitlDetails")
        except AirflowApiError as error:
            if error.status != 404:
                raise
            return None
        return found

    def answer(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        options: Sequence[str],
        params: Mapping[str, Any] | None = None,
        timeout_seconds: float = 120,
    ) -> dict[str, Any]:
        """Wait until an approval asks, then answer it.

        An answer that comes before the scheduler has noticed the end of the parked task's process fails the task
        (Airflow 3.3.2: the late event meets the task when it is queued again), so this waits for that event in the
        scheduler's log.
        """
        self.wait_for(dag_id, run_id, task_id, ["awaiting_input"], timeout_seconds)
        number = self.task(dag_id, run_id, task_id)["try_number"]
        # A task that asks again parks again with the same try number, so each answer waits for one more event.
        attempt = (dag_id, run_id, task_id, number)
        before = self._events_answered.get(attempt, 0)
        with contextlib.suppress(HarnessError):
            wait_for("executor event", lambda: self._times_parked(*attempt) > before, _PARKED_SECONDS, 0.2)
        self._events_answered[attempt] = max(self._times_parked(*attempt), before)
        body = {"chosen_options": list(options), "params_input": dict(params or {})}
        given: dict[str, Any] = self.request("PATCH", f"{_task(dag_id, run_id, task_id)}/-1/hitlDetails", body)
        return given

    def clear(
        self, dag_id: str, run_id: str, task_ids: Sequence[str], *, downstream: bool = False
    ) -> list[tuple[str, str | None]]:
        """Clear tasks in any state; return (task id, former state) of each cleared one."""
        body = {
            "dry_run": False,
            "only_failed": False,
            "reset_dag_runs": True,
            "dag_run_id": run_id,
            "task_ids": list(task_ids),
            "include_downstream": downstream,
        }
        found = self.request("POST", f"/dags/{_quoted(dag_id)}/clearTaskInstances", body)["task_instances"]
        return [(item["task_id"], item["state"]) for item in found]

    def set_task_state(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        """Mark a task ``success`` or ``failed`` as the UI does."""
        self.request("PATCH", _task(dag_id, run_id, task_id), {"new_state": state})

    def delete_run(self, dag_id: str, run_id: str, timeout_seconds: float = 120) -> None:
        """Delete a run as an operator does: Airflow refuses to delete an active run (409), so mark it failed first,
        which ends its tasks, and delete its rows when the last task's process has ended.

        :raises HarnessError: a process of one of its tasks did not end in time.
        """
        found = self.request("GET", f"{_run(dag_id, run_id)}/taskInstances", limit=500)["task_instances"]
        pids = [int(item["pid"]) for item in found if item["state"] == "running" and item["pid"]]
        self.request("PATCH", _run(dag_id, run_id), {"state": "failed"})
        unfinished = {"running", "restarting", "deferred", "awaiting_input", "queued", "up_for_retry"}

        def ended() -> bool:
            self._check_running()
            return not any(_is_alive(pid) for pid in pids) and not unfinished & set(
                self.task_states(dag_id, run_id).values()
            )

        wait_for(f"the end of all tasks of {run_id}", ended, timeout_seconds, every_seconds=0.5)
        self.request("DELETE", _run(dag_id, run_id))

    def task_log(self, dag_id: str, run_id: str, task_id: str, try_number: int | None = None) -> str:
        """Log of an attempt (default: the last one) as text, one line per event."""
        number = try_number or self.task(dag_id, run_id, task_id)["try_number"]
        path = f"{_task(dag_id, run_id, task_id)}/logs/{number}"
        content = self.request("GET", path, full_content=True)["content"]
        return "\n".join(_log_line(item) for item in content)

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """An XCom value, decoded.

        :raises AirflowApiError: there is no such value (status 404).
        """
        path = f"{_task(dag_id, run_id, task_id)}/xcomEntries/{_quoted(key)}"
        return self.request("GET", path, deserialize=False, stringify=False)["value"]

    def state_store(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        """Key -> value of a task's state store."""
        found = self.request("GET", f"{_task(dag_id, run_id, task_id)}/state-store", limit=100)
        return {item["key"]: item["value"] for item in found["task_state_store"]}

    def wait_for(
        self,
        dag_id: str,
        run_id: str,
        task_id: str | None,
        states: Collection[str],
        timeout_seconds: float = 300,
    ) -> str:
        """Wait until a task (None: the run) is in one of ``states``; return that state.

        :raises HarnessError: the time is over, or the task (or the run) ended in another state; shows states and the
            task's log.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            self._check_running()
            run_state = self.run_state(dag_id, run_id)
            state = run_state if task_id is None else self.task_states(dag_id, run_id).get(task_id)
            if state in states:
                return str(state)
            ended = state in (_RUN_ENDS if task_id is None else _TASK_ENDS) or run_state in _RUN_ENDS
            if ended or time.monotonic() > deadline:
                raise HarnessError(self._story(dag_id, run_id, task_id, states, timeout_seconds))
            time.sleep(0.5)

    # -- parts --------------------------------------------------------------------------------------------------------

    def _story(
        self, dag_id: str, run_id: str, task_id: str | None, states: Collection[str], timeout_seconds: float
    ) -> str:
        """Why a wait was given up, with all states and the end of the relevant log."""
        all_states = self.task_states(dag_id, run_id)
        wanted = "run" if task_id is None else f"task {task_id}"
        text = f"{wanted} of {dag_id} {run_id} is not {'/'.join(states)}, waited up to {timeout_seconds:g} s; states: "
        text += str(all_states)
        failed = [name for name, state in all_states.items() if state == "failed"]
        for name in failed[:1] or ([task_id] if task_id is not None else []):
            with contextlib.suppress(HarnessError):
                lines = self.task_log(dag_id, run_id, name).splitlines()[-40:]
                text += f"\nlog of {name} ends:\n" + "\n".join(lines)
        return text

    def _processes(self) -> list[Process]:
        return [] if self._process is None else [self._process]

    def _check_running(self) -> None:
        if self._process is None:
            raise HarnessError("Airflow does not run")
        self._process.check_running()

    def _is_healthy(self) -> bool:
        self._check_running()
        try:
            if not self._token:
                self._token = self.request("GET", "/token", root="/auth")["access_token"]
            health = self.request("GET", "/monitor/health")
        except (OSError, AirflowApiError):
            return False
        parts = ("metadatabase", "scheduler", "triggerer", "dag_processor")
        return all((health.get(part) or {}).get("status") == "healthy" for part in parts)

    def _times_parked(self, dag_id: str, run_id: str, task_id: str, try_number: int) -> int:
        text = self.log.read_text(encoding="utf-8", errors="replace")
        wanted = f"dag_id='{dag_id}', task_id='{task_id}', run_id='{run_id}', try_number={try_number},"
        return sum("executor event with state success" in line and wanted in line for line in text.splitlines())

    @property
    def _database(self) -> Path:
        return self.home / "airflow.db"

    def _secret(self) -> str:
        path = self.home / "secret"
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(secrets.token_urlsafe(32), encoding="utf-8")
        return path.read_text(encoding="utf-8")

    def _make_database(self) -> None:
        """Use a cached database per set of versions: migrating an empty one takes ten seconds with the same result."""
        if self._database.exists():
            return
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        kept = base / "kafka-migration" / "airflow" / f"{_airflow_versions()}.db"
        if not kept.exists():
            airflow = str(Path(sys.executable).with_name("airflow"))
            done = subprocess.run(
                [airflow, "db", "migrate"],
                env=self.environment(),
                cwd=self.home,
                capture_output=True,
                text=True,
                timeout=_MIGRATE_SECONDS,
            )
            if done.returncode != 0:
                self._database.unlink(missing_ok=True)
                raise HarnessError(f"airflow db migrate failed:\n{(done.stdout + done.stderr)[-4000:]}")
            kept.parent.mkdir(parents=True, exist_ok=True)
            temporary = kept.with_suffix(f".{os.getpid()}")
            shutil.copyfile(self._database, temporary)
            temporary.replace(kept)
        else:
            shutil.copyfile(kept, self._database)


def kill_descendants(pid: int) -> None:
    """Kill all processes below one with SIGKILL, including those that others start meanwhile."""

    def are_gone() -> bool:
        below = descendants(pid)
        for item in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(item, signal.SIGKILL)
        return not below

    wait_for(f"the end of all processes below {pid}", are_gone, _STOP_SECONDS)


_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _airflow_versions() -> str:
    """Digest of the versions of Airflow and its providers, which may add their own tables."""
    found = {
        f"{distribution.name}=={distribution.version}"
        for distribution in importlib.metadata.distributions()
        if distribution.name.lower().startswith("apache-airflow")
    }
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()[:16]


def _is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")


def _run(dag_id: str, run_id: str) -> str:
    return f"/dags/{_quoted(dag_id)}/dagRuns/{_quoted(run_id)}"


def _task(dag_id: str, run_id: str, task_id: str) -> str:
    return f"{_run(dag_id, run_id)}/taskInstances/{_quoted(task_id)}"


#: Fields that every event of a task's log repeats.
_LOG_CONTEXT = frozenset(
    {"timestamp", "level", "event", "logger", "filename", "lineno"}
    | {"ti_id", "dag_id", "run_id", "task_id", "map_index", "try_number"}
)


def _log_line(item: Any) -> str:
    """A structured log event as a line: time, level, text, then its other fields."""
    if not isinstance(item, Mapping):
        return str(item)
    head = [str(item[name]) for name in ("timestamp", "level", "event") if item.get(name) is not None]
    rest = {name: value for name, value in item.items() if name not in _LOG_CONTEXT}
    return " ".join([*head, *(f"{name}={value}" for name, value in rest.items() if value)])
