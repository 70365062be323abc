"""The engine ``databricks`` on the real hook, against a simulated workspace."""

from __future__ import annotations

import base64
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from engine_jobs import SECRET, SECRET_VARIABLE, TOKEN, assert_hidden, make_job
from rest_service import HOSTILE, Answer
from simulated_databricks import SimulatedDatabricks

from airflow_provider_kafka_migration.engines.base import JobState, SparkEngine
from airflow_provider_kafka_migration.engines.databricks import DatabricksEngine, as_wheel
from airflow_provider_kafka_migration.errors import (
    ConnectionInvalid,
    EngineForbidden,
    EngineJobConflict,
    EngineJobUnknown,
    EngineRefused,
    EngineSecretsUnsafe,
    EngineThrottled,
    MigrationError,
    SpecInvalid,
    StagingRefused,
)

ARGUMENTS: dict[str, Any] = {
    "conn_id": "databricks_test",
    "new_cluster": {
        "spark_version": "17.3.x-scala2.13",
        "node_type_id": "m7g.xlarge",
        "num_workers": 2,
        "spark_conf": {"spark.speculation": "true", "spark.databricks.io.cache.enabled": "false"},
        "spark_env_vars": {"TZ": "UTC"},
        "custom_tags": {"cost-center": "42"},
    },
    "workspace_folder": "/Workspace/Shared/migrations",
    "packages": ["kafka-python==3.0.12"],
    "secret_scope": "kafka-jobs",
    "secret_variables": {"SOURCE": "kafka/source"},
    "tags": {"team": "streaming"},
    "access_control_list": [{"group_name": "streaming", "permission_level": "CAN_VIEW"}],
}
ID = "100@127.0.0.1"
KEY = f"kafka-migration-{TOKEN}-{SECRET_VARIABLE}"


@pytest.fixture
def api(needs: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedDatabricks]:
    needs("airflow.providers.databricks", "apache-airflow-providers-databricks")
    with SimulatedDatabricks().running() as server:
        monkeypatch.setenv("AIRFLOW_CONN_DATABRICKS_TEST", server.connection())
        yield server


@pytest.fixture
def engine(api: SimulatedDatabricks) -> DatabricksEngine:
    return DatabricksEngine(**ARGUMENTS)


def test_it_is_an_engine(engine: DatabricksEngine) -> None:
    assert isinstance(engine, SparkEngine)
    assert engine.detached
    assert engine.trigger(ID) is None


def test_the_whole_document(api: SimulatedDatabricks, engine: DatabricksEngine, tmp_path: Path) -> None:
    assert engine.submit(make_job(tmp_path)) == ID
    (sent,) = api.sent("POST", "runs/submit$")
    (main, wheel) = (f"/Workspace{path}" for path in api.files)
    assert main.startswith("/Workspace/Shared/migrations/")
    assert main.endswith("/seed.py")
    assert sent.body == {
        "run_name": "kafka-migration-Orders.eu-seed",
        "idempotency_token": TOKEN,
        "timeout_seconds": 30 * 86400,
        "access_control_list": [{"group_name": "streaming", "permission_level": "CAN_VIEW"}],
        "tasks": [
            {
                "task_key": "seed",
                "spark_python_task": {
                    "python_file": main,
                    "parameters": ["--job-location", "s3://migration/prefix", "--job-key", "orders/jobs/seed.json"],
                    "source": "WORKSPACE",
                },
                "new_cluster": {
                    "data_security_mode": "SINGLE_USER",
                    "spark_version": "17.3.x-scala2.13",
                    "node_type_id": "m7g.xlarge",
                    "num_workers": 2,
                    "spark_conf": {
                        "spark.speculation": "false",
                        "spark.databricks.io.cache.enabled": "false",
                        "spark.task.maxFailures": "4",
                    },
                    "spark_env_vars": {
                        "TZ": "UTC",
                        "KAFKA_MIGRATION_SLICE": "15",
                        "SOURCE": "{{secrets/kafka/source}}",
                        SECRET_VARIABLE: f"{{{{secrets/kafka-jobs/{KEY}}}}}",
                    },
                    "custom_tags": {
                        "cost-center": "42",
                        "team": "streaming",
                        "managed-by": "airflow-provider-kafka-migration",
                        "kafka-migration-migration": "orders-eu",
                        "kafka-migration-job": "seed",
                        "kafka-migration-token": TOKEN,
                    },
                },
                "libraries": [{"whl": wheel}, {"pypi": {"package": "kafka-python==3.0.12"}}],
                "max_retries": 0,
                "retry_on_timeout": False,
                "timeout_seconds": 30 * 86400,
            }
        ],
    }
    contents = [base64.b64decode(content) for content in api.files.values()]
    assert contents[0] == b"print('main')\n"
    with zipfile.ZipFile(BytesIO(contents[1])) as archive:
        assert "airflow_provider_kafka_migration/errors.py" in archive.namelist()


def test_secrets_are_only_in_the_scope_until_the_job_is_over(
    api: SimulatedDatabricks, engine: DatabricksEngine, tmp_path: Path, all_logs: pytest.LogCaptureFixture
) -> None:
    engine.submit(make_job(tmp_path))
    assert api.scopes["kafka-jobs"] == {KEY: SECRET}
    api.say(100, "RUNNING")
    engine.status(ID)
    assert api.scopes["kafka-jobs"] == {KEY: SECRET}
    api.scopes["kafka-jobs"]["somebody-elses"] = "kept"
    api.say(100, "TERMINATED", "SUCCESS")
    engine.status(ID)
    engine.status(ID)
    assert api.scopes["kafka-jobs"] == {"somebody-elses": "kept"}
    others = [item for item in api.requests if not item.path.endswith("/secrets/put")]
    assert_hidden(all_logs.text, api.runs, [(item.path, item.query, item.body) for item in others])
    assert "2.0/secrets/put with payload: (not logged)" in all_logs.text, "the hook's own log has to be searched"
    assert "api-token" not in all_logs.text


def test_only_the_jobs_own_secrets_are_deleted(
    api: SimulatedDatabricks, engine: DatabricksEngine, tmp_path: Path
) -> None:
    engine.submit(make_job(tmp_path))
    api.scopes["kafka-jobs"]["precious"] = "kept"
    variables = api.runs[100]["tasks"][0]["new_cluster"]["spark_env_vars"]
    variables["EVIL"] = "{{secrets/kafka-jobs/precious}}"
    variables["EVIL_2"] = "{{secrets/another/kafka-migration-x-Y}}"
    api.say(100, "TERMINATED", "FAILED")
    engine.status(ID)
    assert api.scopes["kafka-jobs"] == {"precious": "kept"}
    assert [item.body["key"] for item in api.sent("POST", "secrets/delete")] == [KEY]


def test_without_a_scope_secrets_are_refused_before_anything_is_written(
    api: SimulatedDatabricks, tmp_path: Path
) -> None:
    engine = DatabricksEngine(**{**ARGUMENTS, "secret_scope": None})
    with pytest.raises(EngineSecretsUnsafe, match=SECRET_VARIABLE) as caught:
        engine.submit(make_job(tmp_path))
    assert_hidden(str(caught.value))
    assert api.requests == []
    assert engine.submit(make_job(tmp_path, secret_environment={})) == ID
    named = {**ARGUMENTS, "secret_scope": None, "secret_variables": {SECRET_VARIABLE: "kafka/key"}}
    assert DatabricksEngine(**named).submit(make_job(tmp_path, token="km-other-token")) == "101@127.0.0.1"
    assert api.sent("POST", "secrets/put") == []
    variables = api.runs[101]["tasks"][0]["new_cluster"]["spark_env_vars"]
    assert variables[SECRET_VARIABLE] == "{{secrets/kafka/key}}"


def test_no_error_of_a_secret_quotes_the_request(
    api: SimulatedDatabricks, engine: DatabricksEngine, tmp_path: Path, all_logs: pytest.LogCaptureFixture
) -> None:
    api.force("POST", "secrets/put", Answer(400, {"error_code": "BAD", "message": f"cannot store {SECRET}"}))
    with pytest.raises(EngineRefused) as caught:
        engine.submit(make_job(tmp_path))
    assert_hidden(str(caught.value), caught.value.as_dict())
    assert caught.value.__cause__ is None
    assert api.runs == {}


def test_the_same_token_is_the_same_run(api: SimulatedDatabricks, engine: DatabricksEngine, tmp_path: Path) -> None:
    job = make_job(tmp_path)
    assert engine.submit(job) == DatabricksEngine(**ARGUMENTS).submit(job) == ID
    assert len(api.runs) == 1


def test_a_lost_answer_to_the_submission_does_not_make_a_second_run(
    api: SimulatedDatabricks, engine: DatabricksEngine, tmp_path: Path
) -> None:
    real, calls = api.answer, []

    def lose_the_first(request: Any) -> Answer:
        answer = real(request)
        if request.path.endswith("runs/submit"):
            calls.append(request)
            return Answer(0) if len(calls) == 1 else answer
        return answer

    api.answer = lose_the_first  # type: ignore[method-assign]
    assert engine.submit(make_job(tmp_path)) == ID
    assert len(calls) == 2
    assert len(api.runs) == 1


@pytest.mark.parametrize(
    ("life", "result", "state"),
    [
        ("PENDING", None, JobState.PENDING),
        ("QUEUED", None, JobState.PENDING),
        ("BLOCKED", None, JobState.PENDING),
        ("WAITING_FOR_RETRY", None, JobState.PENDING),
        ("RUNNING", None, JobState.RUNNING),
        ("TERMINATING", "SUCCESS", JobState.RUNNING),
        ("TERMINATED", "SUCCESS", JobState.SUCCEEDED),
        ("TERMINATED", "FAILED", JobState.FAILED),
        ("TERMINATED", "TIMEDOUT", JobState.FAILED),
        ("TERMINATED", "CANCELED", JobState.CANCELLED),
        ("TERMINATED", "SUCCESS_WITH_FAILURES", JobState.FAILED),
        ("TERMINATED", "SOMETHING_NEW", JobState.UNKNOWN),
        ("TERMINATED", None, JobState.UNKNOWN),
        ("SKIPPED", None, JobState.FAILED),
        ("INTERNAL_ERROR", "FAILED", JobState.FAILED),
        ("SOMETHING_NEW", None, JobState.UNKNOWN),
    ],
)
def test_states(
    api: SimulatedDatabricks,
    engine: DatabricksEngine,
    tmp_path: Path,
    life: str,
    result: str | None,
    state: JobState,
) -> None:
    engine.submit(make_job(tmp_path))
    assert engine.status(ID).state is JobState.PENDING
    api.say(100, life, result)
    assert engine.status(ID).state is state


def test_a_failure_has_the_end_of_the_drivers_output(
    api: SimulatedDatabricks, engine: DatabricksEngine, tmp_path: Path
) -> None:
    engine.submit(make_job(tmp_path))
    api.say(100, "TERMINATED", "FAILED", "Workload failed, see run output for details")
    api.outputs[100] = {
        "error": "SystemExit: 1",
        "logs": "\n".join(f"line {n}" for n in range(100)),
        "error_trace": "\x1b[31mSystemExit\x1b[0m: 1",
    }
    status = engine.status(ID)
    assert status.state is JobState.FAILED
    assert status.reason == "TERMINATED FAILED: Workload failed, see run output for details; SystemExit: 1"
    assert (len(status.log_tail), status.log_tail[-1]) == (40, "SystemExit: 1")
    api.force("GET", "get-output", Answer(403, {"error_code": "PERMISSION_DENIED", "message": "not yours"}))
    status = engine.status(ID)
    assert status.log_tail == ()
    assert "the driver's log cannot be read" in status.reason


def test_a_lost_run_is_one_that_databricks_says_does_not_exist(
    api: SimulatedDatabricks, engine: DatabricksEngine, tmp_path: Path
) -> None:
    engine.submit(make_job(tmp_path))
    api.runs.clear()
    assert engine.status(ID).state is JobState.LOST
    engine.cancel(ID)
    api.force("GET", "runs/get$", Answer(404, {"error_code": "ENDPOINT_NOT_FOUND", "message": "No such path"}))
    assert engine.status(ID).state is JobState.UNKNOWN
    api.force("GET", "runs/get$", Answer(400, {"error_code": "INVALID_PARAMETER_VALUE", "message": "Bad page token"}))
    assert engine.status(ID).state is JobState.UNKNOWN


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_answers_are_never_an_end(
    api: SimulatedDatabricks, engine: DatabricksEngine, tmp_path: Path, kind: str
) -> None:
    engine.submit(make_job(tmp_path))
    api.force("GET", "runs/get$", *[HOSTILE[kind]] * 10)
    status = engine.status(ID)
    assert status.state is JobState.UNKNOWN
    assert status.reason


@pytest.mark.parametrize("kind", [kind for kind in HOSTILE if kind != "another object"])
def test_a_hostile_answer_to_a_submission_gives_no_id(
    api: SimulatedDatabricks, engine: DatabricksEngine, tmp_path: Path, kind: str
) -> None:
    api.force("POST", "runs/submit$", *[HOSTILE[kind]] * 10)
    with pytest.raises(MigrationError) as caught:
        engine.submit(make_job(tmp_path))
    assert pickle.loads(pickle.dumps(caught.value)).next_step
    api._forced.clear()
    assert engine.submit(make_job(tmp_path)) == ID


@pytest.mark.parametrize("run_id", ["100", 0, -1, True, None, 1.5])
def test_a_run_id_has_to_be_one(
    api: SimulatedDatabricks, engine: DatabricksEngine, tmp_path: Path, run_id: Any
) -> None:
    api.force("POST", "runs/submit$", Answer(200, {"run_id": run_id}))
    with pytest.raises(MigrationError, match="there is no run_id"):
        engine.submit(make_job(tmp_path))


def test_throttling_is_bounded_whatever_the_server_asks_for(
    api: SimulatedDatabricks, engine: DatabricksEngine, tmp_path: Path, no_waits: list[float]
) -> None:
    engine.submit(make_job(tmp_path))
    slow = Answer(429, {"error_code": "REQUEST_LIMIT_EXCEEDED", "message": "slow down"}, {"Retry-After": "86400"})
    before = len(api.requests)
    api.force("GET", "runs/get$", *[slow] * 100)
    assert engine.status(ID).state is JobState.UNKNOWN
    assert len(api.requests) - before == 4
    assert sum(no_waits) <= 10
    with pytest.raises(EngineThrottled):
        engine.cancel(ID)


def test_pages_without_end_are_not_followed(api: SimulatedDatabricks, engine: DatabricksEngine, tmp_path: Path) -> None:
    engine.submit(make_job(tmp_path))
    api.runs[100]["next_page_token"] = "again"
    before = len(api.requests)
    assert engine.status(ID).state is JobState.PENDING
    assert len(api.requests) - before == 1


def test_cancel(api: SimulatedDatabricks, engine: DatabricksEngine, tmp_path: Path) -> None:
    engine.submit(make_job(tmp_path))
    api.say(100, "TERMINATED", "SUCCESS")
    engine.cancel(ID)
    assert api.sent("POST", "runs/cancel") == []
    api.say(100, "RUNNING")
    engine.cancel(ID)
    assert [item.body for item in api.sent("POST", "runs/cancel")] == [{"run_id": 100}]
    assert engine.status(ID).state is JobState.CANCELLED


def test_no_rights(api: SimulatedDatabricks, engine: DatabricksEngine, tmp_path: Path) -> None:
    denied = {"error_code": "PERMISSION_DENIED", "message": "You are not authorized to create clusters."}
    api.force("POST", "runs/submit$", Answer(403, denied))
    with pytest.raises(EngineForbidden, match="not authorized to create clusters"):
        engine.submit(make_job(tmp_path))


def test_a_missing_scope_is_named(api: SimulatedDatabricks, engine: DatabricksEngine, tmp_path: Path) -> None:
    api.scopes.clear()
    with pytest.raises(EngineRefused, match="store the job's secrets"):
        engine.submit(make_job(tmp_path))


def test_links(api: SimulatedDatabricks, engine: DatabricksEngine, tmp_path: Path) -> None:
    engine.submit(make_job(tmp_path))
    assert engine.links(ID) == {"Databricks run": "https://127.0.0.1/?o=7#job/1/run/100"}
    for page in ("https://127.0.0.1.evil.example/x", "javascript:alert(1)", 7, None):
        api.runs[100]["run_page_url"] = page
        assert engine.links(ID) == {}


def test_a_job_of_another_workspace_is_not_lost(engine: DatabricksEngine) -> None:
    with pytest.raises(EngineJobConflict, match="another workspace"):
        engine.status("100@adb-1.azuredatabricks.net")
    for wrong in ("", "100", "0@127.0.0.1", "spark/a/b"):
        with pytest.raises(EngineJobUnknown):
            engine.status(wrong)


def test_storage_instead_of_the_workspace(api: SimulatedDatabricks, tmp_path: Path) -> None:
    engine = DatabricksEngine(**{**ARGUMENTS, "code": "storage"})
    with pytest.raises(StagingRefused):
        engine.submit(make_job(tmp_path, staging="gs://bucket/x"))
    document = engine.document(make_job(tmp_path), "s3://bucket/seed.py", "s3://bucket/package.whl")
    assert document["tasks"][0]["spark_python_task"]["python_file"] == "s3://bucket/seed.py"
    assert "source" not in document["tasks"][0]["spark_python_task"]


def test_a_connection_that_is_not_there(api: SimulatedDatabricks, tmp_path: Path) -> None:
    with pytest.raises(ConnectionInvalid, match="databricks_missing"):
        DatabricksEngine(**{**ARGUMENTS, "conn_id": "databricks_missing"}).submit(make_job(tmp_path))


def test_the_wheel_can_be_installed_and_is_reproducible(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    assert job.py_files is not None
    name, content = as_wheel(job.py_files)
    assert (name, content) == as_wheel(job.py_files)
    wheel = tmp_path / name
    wheel.write_bytes(content)
    target = tmp_path / "installed"
    installer = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--offline"]
    subprocess.run([*installer, "--target", str(target), str(wheel)], check=True, capture_output=True, timeout=120)
    code = "from airflow_provider_kafka_migration.errors import WORD; print(WORD)"
    found = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=target, capture_output=True, text=True, timeout=60, check=True
    )
    assert found.stdout == "shipped\n"


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"new_cluster": {"num_workers": 1}}, "spark.engine_args.new_cluster"),
        ({"new_cluster": {"spark_version": "14.3.x-scala2.12", "num_workers": 1}}, "spark.engine_args.new_cluster"),
        ({"new_cluster": {"spark_version": "17.3.x-scala2.13"}}, "spark.engine_args.new_cluster"),
        (
            {"new_cluster": {**ARGUMENTS["new_cluster"], "data_security_mode": "USER_ISOLATION"}},
            "spark.engine_args.new_cluster",
        ),
        ({"serverless": True}, "spark.engine_args.serverless"),
        ({"workspace_folder": "dbfs:/x"}, "spark.engine_args.workspace_folder"),
        ({"secret_variables": {"A": "value"}}, "spark.engine_args.secret_variables"),
        ({"timeout": "soon"}, "spark.engine_args.timeout"),
        (
            {"new_cluster": {**ARGUMENTS["new_cluster"], "spark_env_vars": {"KAFKA_PASSWORD": SECRET}}},
            "spark.engine_args.new_cluster.spark_env_vars.KAFKA_PASSWORD",
        ),
    ],
)
def test_arguments_are_checked_at_once(changes: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecInvalid) as caught:
        DatabricksEngine(**{**ARGUMENTS, **changes})
    assert [mistake["path"] for mistake in caught.value.details["mistakes"]] == [path]
    assert_hidden(str(caught.value), caught.value.as_dict())
