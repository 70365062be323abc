"""The engine ``submit`` in cluster mode, against a ResourceManager that answers over HTTP as YARN does."""

from __future__ import annotations

import html
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from airflow_provider_kafka_migration.engines.base import JobState, SparkEngine, SparkJob
from airflow_provider_kafka_migration.engines.find import make_engine
from airflow_provider_kafka_migration.engines.submit import SubmitEngine
from airflow_provider_kafka_migration.errors import (
    EngineForbidden,
    EngineSecretsUnsafe,
    EngineUnreachable,
    SparkJobFailed,
    SpecInvalid,
)

NOT_FOUND = {"RemoteException": {"exception": "NotFoundException", "message": "app not found"}}


class ResourceManager:
    """Applications by id, and the requests for them. ``broken`` is answered to everything: (status, body)."""

    def __init__(self) -> None:
        self.apps: dict[str, dict[str, Any]] = {}
        self.requests: list[str] = []
        self.broken: tuple[int, bytes] | None = None
        self.address = ""
        #: What a NodeManager shows: path -> page.
        self.logs: dict[str, str] = {}

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        self.requests.append(f"{method} {path}")
        if path.startswith("/node/"):
            page = self.logs.get(path)
            return (404, b"") if page is None else (200, page.encode())
        url = urlsplit(path)
        parts = url.path.removeprefix("/ws/v1/cluster/apps").strip("/").split("/")
        if not parts[0]:
            tags = parse_qs(url.query)["applicationTags"]
            found = [app for app in self.apps.values() if app["applicationTags"] in tags]
            return 200, {"apps": {"app": found} if found else None}
        app = self.apps.get(parts[0])
        if app is None:
            return 404, NOT_FOUND
        if method == "PUT":
            assert json.loads(body) == {"state": "KILLED"}
            app.update(state="KILLED", finalStatus="KILLED")
            return 202, {"state": "ACCEPTED"}
        return 200, {"app": app}


@pytest.fixture
def yarn() -> Iterator[ResourceManager]:
    manager = ResourceManager()

    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, data = manager.answer(self.command, self.path, body)
            content = data if isinstance(data, bytes) else json.dumps(data).encode()
            if manager.broken is not None:
                status, content = manager.broken
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = _do

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    manager.address = f"127.0.0.1:{server.server_port}"
    yield manager
    server.shutdown()
    server.server_close()


@pytest.fixture
def engine(yarn: Any) -> SubmitEngine:
    made = make_engine("submit", {"master": "yarn", "deploy_mode": "cluster", "resource_manager": yarn.address})
    assert isinstance(made, SubmitEngine)
    assert isinstance(made, SparkEngine)
    assert made.detached
    return made


def job(token: str = "seed-1", **changes: Any) -> SparkJob:
    given: dict[str, Any] = {
        "migration_id": "orders",
        "name": "seed",
        "token": token,
        "main": Path("/jobs/seed.py"),
        "py_files": Path("/code.zip"),
        "arguments": ("--token", token),
        "conf": {"a": "b"},
        "environment": {"TZ": "UTC"},
    }
    return SparkJob(**{**given, **changes})


@pytest.fixture
def spark_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A program named spark-submit, first on PATH, that notes its arguments and then does what it is told."""

    def install(script: str) -> Path:
        binary = tmp_path / "bin" / "spark-submit"
        binary.parent.mkdir(exist_ok=True)
        binary.write_text(
            f"#!{sys.executable}\nimport json, os, sys\nopen({str(tmp_path / 'argv')!r}, 'a').write("
            f"json.dumps([sys.argv[1:], os.environ.get('TZ')]) + '\\n')\n{script}\n"
        )
        binary.chmod(0o755)
        monkeypatch.setenv("PATH", f"{binary.parent}:{os.environ['PATH']}")
        return tmp_path / "argv"

    return install


def accept(yarn: Any, number: int, token: str) -> str:
    app_id = f"application_1700000000000_{number:04d}"
    yarn.apps[app_id] = {"id": app_id, "state": "ACCEPTED", "finalStatus": "UNDEFINED", "applicationTags": token}
    return app_id


def test_a_job_is_submitted_and_does_not_wait_for_its_end(
    engine: SubmitEngine, yarn: Any, spark_submit: Callable[[str], Path]
) -> None:
    seen = spark_submit("print('Submitted application application_1700000000000_0007')")
    assert engine.submit(job()) == "application_1700000000000_0007"
    argv, _ = json.loads(seen.read_text())
    assert argv[:6] == ["--master", "yarn", "--name", "kafka-migration-orders-seed", "--deploy-mode", "cluster"]
    for setting in (
        "a=b",
        "spark.yarn.tags=seed-1",
        "spark.yarn.maxAppAttempts=1",
        "spark.yarn.submit.waitAppCompletion=false",
        "spark.yarn.appMasterEnv.TZ=UTC",
    ):
        assert setting in argv
    assert argv[-5:] == ["--py-files", "/code.zip", "/jobs/seed.py", "--token", "seed-1"]


def test_a_token_that_yarn_knows_is_not_submitted_again(
    engine: SubmitEngine, yarn: Any, spark_submit: Callable[[str], Path]
) -> None:
    seen = spark_submit("")
    accept(yarn, 1, "another")
    app_id = accept(yarn, 2, "seed-1")
    assert engine.submit(job()) == app_id
    assert not seen.exists()


def test_of_several_applications_with_a_token_the_first_that_runs_is_the_job(
    engine: SubmitEngine, yarn: Any, spark_submit: Callable[[str], Path]
) -> None:
    spark_submit("")
    killed, ended, *running = (accept(yarn, number, "seed-1") for number in (7, 8, 10000, 9999))
    another = accept(yarn, 6, "another")
    yarn.apps[killed].update(state="KILLED", finalStatus="KILLED")
    yarn.apps[ended].update(state="FINISHED", finalStatus="SUCCEEDED")
    assert engine.submit(job()) == running[1]
    engine.cancel_doubles("seed-1", running[1])
    states = {app_id: yarn.apps[app_id]["state"] for app_id in (ended, *running, another)}
    assert list(states.values()) == ["FINISHED", "KILLED", "ACCEPTED", "ACCEPTED"]
    yarn.apps[running[1]].update(state="KILLED", finalStatus="KILLED")
    assert engine.submit(job()) == ended


def test_a_spark_submit_that_fails_after_yarn_has_accepted(
    engine: SubmitEngine, yarn: Any, spark_submit: Callable[[str], Path]
) -> None:
    address = f"http://{yarn.address}"
    spark_submit("print('the network went away'); sys.exit(1)")
    before = yarn.answer

    def late(method: str, path: str, body: bytes) -> tuple[int, Any]:
        answer: tuple[int, Any] = before(method, path, body)
        accept(yarn, 5, "seed-1")
        return answer

    yarn.answer = late
    assert address
    assert engine.submit(job()) == "application_1700000000000_0005"


def test_a_spark_submit_that_fails_is_an_error_with_its_last_words(
    engine: SubmitEngine, spark_submit: Callable[[str], Path]
) -> None:
    spark_submit("print('queue is full'); sys.exit(1)")
    with pytest.raises(SparkJobFailed, match=r"did not submit the job \(status 1\): queue is full"):
        engine.submit(job())


def test_secrets_are_refused_before_anything_is_started(
    engine: SubmitEngine, spark_submit: Callable[[str], Path]
) -> None:
    seen = spark_submit("")
    with pytest.raises(EngineSecretsUnsafe, match="cluster mode") as caught:
        engine.submit(job(secret_environment={"KEY": "s3cret"}))
    assert "s3cret" not in str(caught.value)
    assert "KEY" in caught.value.next_step
    assert not seen.exists()


@pytest.mark.parametrize(
    ("state", "final", "expected"),
    [
        ("NEW_SAVING", "UNDEFINED", JobState.PENDING),
        ("RUNNING", "UNDEFINED", JobState.RUNNING),
        ("FINISHING", "SUCCEEDED", JobState.RUNNING),
        ("FINISHED", "SUCCEEDED", JobState.SUCCEEDED),
        ("FINISHED", "FAILED", JobState.FAILED),
        ("FAILED", "FAILED", JobState.FAILED),
        ("KILLED", "KILLED", JobState.CANCELLED),
        ("DREAMING", "UNDEFINED", JobState.UNKNOWN),
    ],
)
def test_states_of_yarn(engine: SubmitEngine, yarn: Any, state: str, final: str, expected: JobState) -> None:
    app_id = accept(yarn, 1, "seed-1")
    yarn.apps[app_id].update(state=state, finalStatus=final, diagnostics="why\n")
    status = engine.status(app_id)
    assert (status.state, status.reason) == (expected, "why")


LOGS = "/node/containerlogs/container_1_0001_01_000001/spark"


@pytest.mark.parametrize("is_page", [True, False])
def test_a_driver_that_has_failed_shows_the_end_of_its_log(engine: SubmitEngine, yarn: Any, *, is_page: bool) -> None:
    """Its NodeManager shows it as a page, the REST address of newer ones as text."""
    lines = [f"line {number}" for number in range(100)] + ["[EXECUTOR_UNFIT] kafka <3 & more. Next: install it"]
    text = "\n".join(lines)
    if is_page:
        text = f"<html><td>Local Logs</td><pre>{html.escape(text)}</pre><a>x</a></html>"
    yarn.logs = {f"{LOGS}/stdout?start=-65536": text, f"{LOGS}/stderr?start=-65536": "exited with 1\n"}
    app_id = accept(yarn, 1, "seed-1")
    yarn.apps[app_id].update(state="FINISHED", finalStatus="FAILED", amContainerLogs=f"http://{yarn.address}{LOGS}")
    status = engine.status(app_id)
    assert status.state is JobState.FAILED
    assert status.log_tail == ("exited with 1", *lines[-20:])


@pytest.mark.parametrize("logs", ["", "file:///etc/passwd", "http://127.0.0.1:1/node", "http://{}/node/gone", None])
def test_a_driver_whose_log_cannot_be_read_has_failed_all_the_same(engine: SubmitEngine, yarn: Any, logs: str) -> None:
    app_id = accept(yarn, 1, "seed-1")
    yarn.apps[app_id].update(state="FAILED", finalStatus="FAILED", diagnostics="why")
    if logs is not None:
        yarn.apps[app_id]["amContainerLogs"] = logs.format(yarn.address)
    status = engine.status(app_id)
    assert (status.state, status.reason, status.log_tail) == (JobState.FAILED, "why", ())


def test_only_the_resource_manager_s_own_404_says_that_a_job_is_lost(engine: SubmitEngine, yarn: Any) -> None:
    assert engine.status("application_1_1").state is JobState.LOST
    for broken in ((404, b"<html>nginx</html>"), (502, b""), (200, b"{}"), (200, b"[]"), (404, b"{}")):
        yarn.broken = broken
        assert engine.status("application_1_1").state is JobState.UNKNOWN, broken
        with pytest.raises(Exception, match="ResourceManager does not look for the job"):
            engine.submit(job())
    yarn.broken = (403, b"{}")
    with pytest.raises(EngineForbidden):
        engine.status("application_1_1")


def test_a_login_in_the_address_is_refused_and_not_quoted() -> None:
    """The address is in errors, in links, and in the arguments of the trigger, which Airflow's database keeps."""
    for address in ("http://me:mark-9f2c@rm:8088", "me:mark-9f2c@rm:8088", "http://rm:8088/?token=mark-9f2c"):
        with pytest.raises(SpecInvalid, match="resource_manager") as caught:
            make_engine("submit", {"master": "yarn", "deploy_mode": "cluster", "resource_manager": address})
        assert "mark-9f2c" not in str(caught.value)


def test_a_resource_manager_that_is_away() -> None:
    away = make_engine("submit", {"master": "yarn", "deploy_mode": "cluster", "resource_manager": "127.0.0.1:1"})
    for ask in (lambda: away.status("application_1_1"), lambda: away.cancel("application_1_1")):
        with pytest.raises(EngineUnreachable, match=re.escape("http://127.0.0.1:1")):
            ask()


def test_cancelling(engine: SubmitEngine, yarn: Any) -> None:
    app_id = accept(yarn, 1, "seed-1")
    engine.cancel(app_id)
    assert engine.status(app_id).state is JobState.CANCELLED
    engine.cancel(app_id)
    engine.cancel("application_1_1")
    assert engine.links(app_id) == {"YARN application": f"http://{yarn.address}/cluster/app/{app_id}"}


def test_the_trigger_s_engine_asks_for_the_same_job(engine: SubmitEngine, yarn: Any) -> None:
    app_id = accept(yarn, 1, "seed-1")
    other = make_engine("submit", json.loads(json.dumps(engine.arguments)))
    assert other.detached
    assert other.status(app_id).state is JobState.PENDING


@pytest.mark.parametrize(
    ("arguments", "mistake"),
    [
        ({"master": "spark://m:7077", "deploy_mode": "cluster"}, "does not run Python drivers in cluster mode"),
        ({"master": "yarn", "deploy_mode": "cluster"}, "needs the address of the ResourceManager"),
        ({"deploy_mode": "both"}, "not client or cluster"),
        ({"options": {"conf": "a=b"}}, "cannot be given"),
        ({"options": {"num-executors": [1]}}, "neither a text nor a number"),
        ({"options": {"proxy-password": "mark-9f2c"}}, "options.proxy-password: this looks like a secret"),
        ({"options": {"driver-java-options": "-Da.password=mark-9f2c"}}, "driver-java-options: this looks like a"),
    ],
)
def test_arguments_that_cannot_work(arguments: dict[str, Any], mistake: str) -> None:
    with pytest.raises(SpecInvalid, match=mistake) as caught:
        make_engine("submit", arguments)
    assert "mark-9f2c" not in str(caught.value)


def test_client_mode_gives_the_process_secrets_and_options(spark_submit: Callable[[str], Path]) -> None:
    seen = spark_submit("sys.exit(3 if os.environ['KEY'] == 's3cret' else 4)")
    here = make_engine("submit", {"master": "spark://m:7077", "options": {"total-executor-cores": 2}})
    assert not here.detached
    job_id = here.submit(job(secret_environment={"KEY": "s3cret"}))
    while not (status := here.status(job_id)).state.is_over:
        threading.Event().wait(0.02)
    assert (status.state, "status 3" in status.reason) == (JobState.FAILED, True)
    (argv, zone) = json.loads(seen.read_text())
    assert zone == "UTC"
    assert argv[argv.index("--total-executor-cores") + 1] == "2"
    assert "s3cret" not in seen.read_text()
    assert make_engine("submit", {}).status(job_id).state is JobState.LOST
