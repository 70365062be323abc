"""Driver pods of ``spark-submit`` in cluster mode, over HTTP: the client is real, the API server is not."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kafka_migration.engines import cluster_modes
from airflow_provider_kafka_migration.engines.base import JobState, SparkEngine, SparkJob
from airflow_provider_kafka_migration.engines.find import make_engine
from airflow_provider_kafka_migration.errors import EngineForbidden, EngineUnreachable, SparkJobFailed

pytestmark = pytest.mark.slow

pytest.importorskip("airflow.providers.cncf.kubernetes.kube_client")

PODS = "/api/v1/namespaces/etl/pods/"
NOT_FOUND = {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}


class ApiServer:
    """Phases of pods by name. ``broken`` is answered to everything: (status, body)."""

    def __init__(self) -> None:
        self.pods: dict[str, str] = {}
        self.requests: list[str] = []
        self.broken: tuple[int, bytes] | None = None
        self.url = ""
        self.log_seconds = 0.0

    def answer(self, method: str, path: str) -> tuple[int, bytes]:
        self.requests.append(f"{method} {path}")
        if self.broken is not None:
            return self.broken
        name, _, below = path.partition("?")[0].removeprefix(PODS).partition("/")
        if name not in self.pods:
            return 404, json.dumps(NOT_FOUND).encode()
        if below == "log":
            threading.Event().wait(self.log_seconds)
            return 200, b"one\n[EXECUTOR_UNFIT] no kafka. Next: install it\n"
        pod = {"kind": "Pod", "metadata": {"name": name}, "status": {"phase": self.pods[name], "reason": "why"}}
        if method == "DELETE":
            del self.pods[name]
        return 200, json.dumps(pod).encode()


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    found = ApiServer()

    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, content = found.answer(self.command, self.path)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_DELETE = _do

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    found.url = f"http://127.0.0.1:{server.server_port}"
    config = tmp_path / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": found.url}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    user = {"name": "u", "user": {"token": "t"}}
    document = {"clusters": [cluster], "contexts": [context], "users": [user], "current-context": "c"}
    config.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **document}))
    monkeypatch.setenv("AIRFLOW__KUBERNETES_EXECUTOR__IN_CLUSTER", "False")
    monkeypatch.setenv("AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE", str(config))
    yield found
    server.shutdown()
    server.server_close()


@pytest.fixture
def engine() -> SparkEngine:
    made = make_engine("submit", {"master": "k8s://https://k", "deploy_mode": "cluster", "namespace": "etl"})
    assert made.detached
    return made


@pytest.fixture
def spark_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    def install(script: str) -> Path:
        binary = tmp_path / "bin" / "spark-submit"
        binary.parent.mkdir(exist_ok=True)
        binary.write_text(
            f"#!{sys.executable}\nimport sys\n"
            f"open({str(tmp_path / 'argv')!r}, 'a').write(' '.join(sys.argv))\n{script}\n"
        )
        binary.chmod(0o755)
        monkeypatch.setenv("PATH", f"{binary.parent}:{os.environ['PATH']}")
        return tmp_path / "argv"

    return install


def job() -> SparkJob:
    return SparkJob("orders", "seed", "seed-1", Path("/seed.py"), None, (), {}, {"TZ": "UTC"})


def test_the_pod_s_name_finds_the_job(engine: SparkEngine, api: ApiServer, spark_submit: Callable[[str], Path]) -> None:
    seen = spark_submit("sys.exit(1)")
    with pytest.raises(SparkJobFailed):
        engine.submit(job())
    for setting in (
        "spark.kubernetes.driver.pod.name=seed-1-driver",
        "spark.kubernetes.submission.waitAppCompletion=false",
        "spark.kubernetes.namespace=etl",
        "spark.kubernetes.driverEnv.TZ=UTC",
    ):
        assert setting in seen.read_text()
    seen.unlink()
    api.pods["seed-1-driver"] = "Pending"
    assert engine.submit(job()) == "etl:seed-1-driver"
    assert not seen.exists()


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        ("Pending", JobState.PENDING),
        ("Running", JobState.RUNNING),
        ("Succeeded", JobState.SUCCEEDED),
        ("Failed", JobState.FAILED),
        ("Unknown", JobState.UNKNOWN),
    ],
)
def test_phases_of_the_pod(engine: SparkEngine, api: ApiServer, phase: str, expected: JobState) -> None:
    api.pods["seed-1-driver"] = phase
    status = engine.status("etl:seed-1-driver")
    assert status.state is expected
    assert bool(status.log_tail) == (expected is JobState.FAILED)


def test_a_log_that_does_not_come_holds_nobody_up(
    engine: SparkEngine, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.pods["seed-1-driver"], api.log_seconds = "Failed", 3.0
    monkeypatch.setattr(cluster_modes, "_REQUEST_SECONDS", 0.5)
    status = engine.status("etl:seed-1-driver")
    assert (status.state, status.log_tail) == (JobState.FAILED, ())


def test_only_the_api_server_s_own_404_says_that_a_job_is_lost(engine: SparkEngine, api: ApiServer) -> None:
    assert engine.status("etl:seed-1-driver").state is JobState.LOST
    for broken in ((404, b"<html>nginx</html>"), (503, b"{}")):
        api.broken = broken
        with pytest.raises(EngineUnreachable):
            engine.status("etl:seed-1-driver")
    api.broken = (403, b"{}")
    with pytest.raises(EngineForbidden):
        engine.cancel("etl:seed-1-driver")


def test_cancelling_deletes_the_pod_once(engine: SparkEngine, api: ApiServer) -> None:
    api.pods["seed-1-driver"] = "Running"
    engine.cancel("etl:seed-1-driver")
    assert api.pods == {}
    engine.cancel("etl:seed-1-driver")
