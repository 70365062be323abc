"""The engine ``kubernetes`` on the real hook, against a simulated API server."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_jobs import SECRET, SECRET_VARIABLE, TOKEN, assert_hidden, make_job
from rest_service import HOSTILE, Answer
from simulated_kubernetes import SimulatedKubernetes

from airflow_provider_kafka_migration.engines.base import JobState, SparkEngine
from airflow_provider_kafka_migration.engines.kubernetes import KubernetesEngine
from airflow_provider_kafka_migration.errors import (
    ConnectionInvalid,
    EngineForbidden,
    EngineJobConflict,
    EngineJobUnknown,
    EngineRefused,
    EngineThrottled,
    MigrationError,
    SpecInvalid,
    StagingRefused,
    Transient,
)

ARGUMENTS: dict[str, Any] = {
    "conn_id": "kubernetes_test",
    "image": "registry.example.com/spark-kafka-migration:4.0.1",
    "spark_version": "4.0.1",
    "main_folder": "local:///opt/kafka-migration/spark_jobs",
    "driver": {"cores": 1, "memory": "1g", "env": [{"name": "TZ", "value": "UTC"}]},
    "executor": {"instances": 2, "cores": 2, "memory": "2g"},
    "secret_variables": {"SOURCE": "kafka-connections/source"},
    "image_pull_policy": "IfNotPresent",
    "image_pull_names": ["registry-login"],
    "labels": {"team": "streaming"},
}
ID = f"spark/{TOKEN}/uid-1"


@pytest.fixture
def api(needs: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedKubernetes]:
    needs("airflow.providers.cncf.kubernetes", "apache-airflow-providers-cncf-kubernetes")
    with SimulatedKubernetes().running() as server:
        monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_TEST", server.connection())
        yield server


@pytest.fixture
def engine(api: SimulatedKubernetes) -> KubernetesEngine:
    return KubernetesEngine(**ARGUMENTS)


def test_it_is_an_engine(engine: KubernetesEngine) -> None:
    assert isinstance(engine, SparkEngine)
    assert engine.detached
    assert engine.trigger(ID) is None


def test_the_whole_document(api: SimulatedKubernetes, engine: KubernetesEngine, tmp_path: Path) -> None:
    assert engine.submit(make_job(tmp_path)) == ID
    labels = {
        "team": "streaming",
        "app.kubernetes.io/managed-by": "airflow-provider-kafka-migration",
        "kafka-migration/migration": "orders-eu",
        "kafka-migration/job": "seed",
        "kafka-migration/token": TOKEN,
    }
    secrets = [
        {"name": "SOURCE", "valueFrom": {"secretKeyRef": {"name": "kafka-connections", "key": "source"}}},
        {"name": SECRET_VARIABLE, "valueFrom": {"secretKeyRef": {"name": TOKEN, "key": SECRET_VARIABLE}}},
    ]
    plain = {"name": "KAFKA_MIGRATION_SLICE", "value": "15"}
    (created,) = api.sent("POST", "/sparkapplications$")
    created.body["metadata"].pop("uid")
    assert created.body == {
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "SparkApplication",
        "metadata": {
            "name": TOKEN,
            "namespace": "spark",
            "labels": labels,
            "annotations": {"kafka-migration/migration-id": "Orders.eu"},
        },
        "spec": {
            "type": "Python",
            "pythonVersion": "3",
            "mode": "cluster",
            "sparkVersion": "4.0.1",
            "image": "registry.example.com/spark-kafka-migration:4.0.1",
            "imagePullPolicy": "IfNotPresent",
            "imagePullSecrets": ["registry-login"],
            "mainApplicationFile": "local:///opt/kafka-migration/spark_jobs/seed.py",
            "arguments": ["--job-location", "s3://migration/prefix", "--job-key", "orders/jobs/seed.json"],
            "sparkConf": {
                "spark.app.name": "kafka-migration-Orders.eu-seed",
                "spark.speculation": "false",
                "spark.task.maxFailures": "4",
            },
            "restartPolicy": {"type": "Never"},
            "timeToLiveSeconds": 7 * 86400,
            "driver": {
                "cores": 1,
                "memory": "1g",
                "serviceAccount": "spark",
                "labels": labels,
                "env": [{"name": "TZ", "value": "UTC"}, plain, *secrets],
            },
            "executor": {"instances": 2, "cores": 2, "memory": "2g", "labels": labels, "env": [plain, *secrets]},
        },
    }
    assert created.headers["authorization"] == "Bearer api-token"


def test_secrets_are_only_in_the_secret_which_the_job_owns(
    api: SimulatedKubernetes, engine: KubernetesEngine, tmp_path: Path, all_logs: pytest.LogCaptureFixture
) -> None:
    engine.submit(make_job(tmp_path))
    secret = api.secrets[("spark", TOKEN)]
    assert "response body" in all_logs.text, "the client's own log has to be among what is searched"
    assert secret["metadata"]["ownerReferences"] == [
        {"apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication", "name": TOKEN, "uid": "uid-1"}
    ]
    assert list(secret["data"]) == [SECRET_VARIABLE]
    others = [item for item in api.requests if not (item.method == "POST" and item.path.endswith("/secrets"))]
    assert_hidden(all_logs.text, api.applications[("spark", TOKEN)], [(item.path, item.body) for item in others])
    engine.cancel(ID)
    assert api.secrets == {}


def test_a_secret_that_the_arguments_name_is_not_written(api: SimulatedKubernetes, tmp_path: Path) -> None:
    engine = KubernetesEngine(**{**ARGUMENTS, "secret_variables": {SECRET_VARIABLE: "kafka-migration/key"}})
    assert engine.submit(make_job(tmp_path)) == ID
    assert [item.path for item in api.requests if "/secrets" in item.path] == []
    variables = api.applications[("spark", TOKEN)]["spec"]["driver"]["env"]
    reference = {"secretKeyRef": {"name": "kafka-migration", "key": "key"}}
    assert {"name": SECRET_VARIABLE, "valueFrom": reference} in variables


def test_no_error_of_a_secret_quotes_the_request(
    api: SimulatedKubernetes, engine: KubernetesEngine, tmp_path: Path, all_logs: pytest.LogCaptureFixture
) -> None:
    echo = {"kind": "Status", "reason": "Invalid", "message": f"Secret is invalid: {SECRET}", "code": 422}
    api.force("POST", "/secrets$", Answer(422, echo))
    with pytest.raises(EngineRefused) as caught:
        engine.submit(make_job(tmp_path))
    assert_hidden(str(caught.value), all_logs.text)
    assert caught.value.__cause__ is None
    assert api.applications == {}


def test_the_same_token_is_the_same_job(api: SimulatedKubernetes, engine: KubernetesEngine, tmp_path: Path) -> None:
    job = make_job(tmp_path)
    assert engine.submit(job) == KubernetesEngine(**ARGUMENTS).submit(job) == ID
    assert len(api.applications) == 1
    assert len(api.sent("POST", "/sparkapplications$")) == 1


def test_a_lost_answer_to_the_submission_does_not_make_a_second_job(
    api: SimulatedKubernetes, engine: KubernetesEngine, tmp_path: Path
) -> None:
    real, calls = api.answer, []

    def lose_the_first(request: Any) -> Answer:
        answer = real(request)
        if request.method == "POST" and request.path.endswith("/sparkapplications"):
            calls.append(request)
            return Answer(0) if len(calls) == 1 else answer
        return answer

    api.answer = lose_the_first  # type: ignore[method-assign]
    assert engine.submit(make_job(tmp_path)) == ID
    assert len(calls) == 2
    assert len(api.applications) == 1


def test_a_crash_between_secret_and_job_is_repaired(
    api: SimulatedKubernetes, engine: KubernetesEngine, tmp_path: Path
) -> None:
    api.force("POST", "/sparkapplications$", *[Answer(503)] * 4)
    with pytest.raises(Transient):
        engine.submit(make_job(tmp_path))
    assert ("spark", TOKEN) in api.secrets
    assert engine.submit(make_job(tmp_path)) == ID
    assert api.secrets[("spark", TOKEN)]["metadata"]["ownerReferences"][0]["uid"] == "uid-1"


def test_foreign_objects_of_the_same_name_are_left_alone(
    api: SimulatedKubernetes, engine: KubernetesEngine, tmp_path: Path
) -> None:
    foreign = {"kind": "Secret", "metadata": {"name": TOKEN}, "data": {"k": "v"}}
    api.secrets[("spark", TOKEN)] = foreign
    with pytest.raises(EngineJobConflict, match=r"Secret spark/.* is not this job's"):
        engine.submit(make_job(tmp_path))
    assert api.secrets == {("spark", TOKEN): foreign}
    api.secrets.clear()
    api.applications[("spark", TOKEN)] = {"kind": "SparkApplication", "metadata": {"name": TOKEN, "uid": "uid-x"}}
    with pytest.raises(EngineJobConflict, match="lacks the label"):
        engine.submit(make_job(tmp_path))
    assert api.secrets == {}


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("", JobState.PENDING),
        ("SUBMITTED", JobState.PENDING),
        ("SUBMISSION_FAILED", JobState.PENDING),
        ("PENDING_RERUN", JobState.PENDING),
        ("RUNNING", JobState.RUNNING),
        ("SUCCEEDING", JobState.RUNNING),
        ("FAILING", JobState.RUNNING),
        ("COMPLETED", JobState.SUCCEEDED),
        ("FAILED", JobState.FAILED),
        ("UNKNOWN", JobState.UNKNOWN),
        ("SOMETHING_NEW", JobState.UNKNOWN),
    ],
)
def test_states(api: SimulatedKubernetes, engine: KubernetesEngine, tmp_path: Path, said: str, state: JobState) -> None:
    engine.submit(make_job(tmp_path))
    assert engine.status(ID).state is JobState.PENDING
    api.say(TOKEN, said)
    assert engine.status(ID).state is state


def test_a_failure_has_the_end_of_the_drivers_log(
    api: SimulatedKubernetes, engine: KubernetesEngine, tmp_path: Path
) -> None:
    engine.submit(make_job(tmp_path))
    api.say(TOKEN, "FAILED", "driver container failed with ExitCode: 1")
    api.logs[f"{TOKEN}-driver"] = "\n".join(f"line {n}" for n in range(100)) + "\n\x1b[31m[SOURCE_GAP] records are gone"
    status = engine.status(ID)
    assert (status.state, status.reason) == (JobState.FAILED, "driver container failed with ExitCode: 1")
    assert status.log_tail[-1] == "[SOURCE_GAP] records are gone"
    assert (len(status.log_tail), status.log_tail[0]) == (40, "line 61")
    del api.logs[f"{TOKEN}-driver"]
    status = engine.status(ID)
    assert status.log_tail == ()
    assert "the log of the driver's pod" in status.reason


def test_a_pending_job_says_what_it_waits_for(
    api: SimulatedKubernetes, engine: KubernetesEngine, tmp_path: Path
) -> None:
    engine.submit(make_job(tmp_path))
    api.say(TOKEN, "SUBMITTED")
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    api.pods[f"{TOKEN}-driver"] = {"status": {"containerStatuses": [{"state": {"waiting": waiting}}]}}
    assert engine.status(ID).reason == "ImagePullBackOff: Back-off pulling image"


def test_a_lost_job_is_one_that_kubernetes_says_does_not_exist(
    api: SimulatedKubernetes, engine: KubernetesEngine, tmp_path: Path
) -> None:
    engine.submit(make_job(tmp_path))
    api.applications.clear()
    assert engine.status(ID).state is JobState.LOST
    engine.cancel(ID)
    engine.submit(make_job(tmp_path))
    assert engine.status(f"spark/{TOKEN}/uid-2").state is JobState.PENDING
    status = engine.status(ID)
    assert (status.state, "another one" in status.reason) == (JobState.LOST, True)
    engine.cancel(ID)
    assert len(api.applications) == 1


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_answers_are_never_an_end(
    api: SimulatedKubernetes, engine: KubernetesEngine, tmp_path: Path, kind: str
) -> None:
    engine.submit(make_job(tmp_path))
    api.force("GET", "/sparkapplications/", *[HOSTILE[kind]] * 10)
    status = engine.status(ID)
    assert status.state is JobState.UNKNOWN
    assert status.reason


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_answer_to_a_submission_gives_no_id(
    api: SimulatedKubernetes, engine: KubernetesEngine, tmp_path: Path, kind: str
) -> None:
    api.force("POST", "/sparkapplications$", *[HOSTILE[kind]] * 10)
    with pytest.raises(MigrationError) as caught:
        engine.submit(make_job(tmp_path))
    assert pickle.loads(pickle.dumps(caught.value)).next_step
    api._forced.clear()
    assert engine.submit(make_job(tmp_path)) == ID


def test_throttling_is_bounded_whatever_the_server_asks_for(
    api: SimulatedKubernetes, engine: KubernetesEngine, tmp_path: Path, no_waits: list[float]
) -> None:
    engine.submit(make_job(tmp_path))
    slow = Answer(429, {"kind": "Status", "message": "slow down"}, {"Retry-After": "86400"})
    before = len(api.requests)
    api.force("GET", "/sparkapplications/", *[slow] * 100)
    assert engine.status(ID).state is JobState.UNKNOWN
    assert len(api.requests) - before == 4
    assert no_waits == [1.0, 3.0, 6.0]
    with pytest.raises(EngineThrottled):
        engine.cancel(ID)


def test_a_short_trouble_is_survived(api: SimulatedKubernetes, engine: KubernetesEngine, tmp_path: Path) -> None:
    api.force("GET", "/sparkapplications/", Answer(503), Answer(0))
    assert engine.submit(make_job(tmp_path)) == ID


def test_cancel(api: SimulatedKubernetes, engine: KubernetesEngine, tmp_path: Path) -> None:
    engine.submit(make_job(tmp_path))
    api.say(TOKEN, "COMPLETED")
    engine.cancel(ID)
    assert api.sent("DELETE", ".") == []
    api.say(TOKEN, "RUNNING")
    engine.cancel(ID)
    (deleted,) = api.sent("DELETE", ".")
    assert deleted.body == {"preconditions": {"uid": "uid-1"}, "propagationPolicy": "Foreground"}
    assert engine.status(ID).state is JobState.LOST


def test_no_rights(api: SimulatedKubernetes, engine: KubernetesEngine, tmp_path: Path) -> None:
    forbidden = {"kind": "Status", "reason": "Forbidden", "message": 'User "airflow" cannot get resource'}
    api.force("GET", "/sparkapplications/", Answer(403, forbidden))
    with pytest.raises(EngineForbidden, match='User "airflow" cannot get resource'):
        engine.submit(make_job(tmp_path))


def test_without_the_operator_the_error_says_so(
    api: SimulatedKubernetes, engine: KubernetesEngine, tmp_path: Path
) -> None:
    api.force("GET", "/sparkapplications/", HOSTILE["a 404 of a web server"])
    with pytest.raises(EngineRefused, match="knows no SparkApplications") as caught:
        engine.submit(make_job(tmp_path))
    assert "install the Spark operator" in caught.value.next_step


def test_code_is_staged_where_the_image_lacks_it(
    api: SimulatedKubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = KubernetesEngine(**{**ARGUMENTS, "main_folder": None})
    with pytest.raises(StagingRefused):
        engine.submit(make_job(tmp_path, staging="file:///tmp/nowhere"))
    assert api.applications == {}
    job = make_job(tmp_path)
    document = engine.document(job, "s3a://bucket/code/seed.py", "s3a://bucket/code/package.zip")
    assert document["spec"]["mainApplicationFile"] == "s3a://bucket/code/seed.py"
    assert document["spec"]["deps"] == {"pyFiles": ["s3a://bucket/code/package.zip"]}


def test_links(api: SimulatedKubernetes, engine: KubernetesEngine, tmp_path: Path) -> None:
    engine.submit(make_job(tmp_path))
    assert engine.links(ID) == {}
    api.say(TOKEN, "RUNNING", webUIIngressAddress="spark.example.com/ui")
    assert engine.links(ID) == {"Spark UI": "http://spark.example.com/ui"}
    api.say(TOKEN, "RUNNING", webUIIngressAddress="javascript:alert(1)//://")
    assert engine.links(ID) == {}


def test_an_id_of_another_engine_is_refused(engine: KubernetesEngine) -> None:
    for wrong in ("", "123@host", "a/b", "../../../x/y", "spark/UP/uid"):
        with pytest.raises(EngineJobUnknown):
            engine.status(wrong)


def test_a_connection_that_is_not_there(api: SimulatedKubernetes, tmp_path: Path) -> None:
    with pytest.raises(ConnectionInvalid, match="kubernetes_missing"):
        KubernetesEngine(**{**ARGUMENTS, "conn_id": "kubernetes_missing"}).submit(make_job(tmp_path))


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"image": None}, "spark.engine_args.image"),
        ({"imagge": "x"}, "spark.engine_args.imagge"),
        ({"spark_version": "3.4.4"}, "spark.engine_args.spark_version"),
        ({"main_folder": "/opt"}, "spark.engine_args.main_folder"),
        ({"namespace": "Not_A_Name"}, "spark.engine_args.namespace"),
        ({"keep": "soon"}, "spark.engine_args.keep"),
        ({"driver": {"labels": {}}}, "spark.engine_args.driver"),
        ({"secret_variables": {"A": "no key"}}, "spark.engine_args.secret_variables"),
        ({"driver": {"env": [{"name": "X", "password": SECRET}]}}, "spark.engine_args.driver.env[0].password"),
    ],
)
def test_arguments_are_checked_at_once(changes: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecInvalid) as caught:
        KubernetesEngine(**{**ARGUMENTS, **changes})
    assert [mistake["path"] for mistake in caught.value.details["mistakes"]] == [path]
    assert_hidden(str(caught.value), caught.value.as_dict())
