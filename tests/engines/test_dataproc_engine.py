"""The engine ``dataproc`` on the real hooks: gRPC to a local server, Cloud Storage over HTTP to a simulated one."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_jobs import SECRET, SECRET_VARIABLE, TOKEN, assert_hidden, make_job
from rest_service import Answer
from simulated_google import SimulatedDataproc, SimulatedStorage

from airflow_provider_kafka_migration.engines.base import JobState, SparkEngine, SparkJob
from airflow_provider_kafka_migration.engines.dataproc import DataprocEngine
from airflow_provider_kafka_migration.errors import (
    ConnectionInvalid,
    EngineForbidden,
    EngineJobConflict,
    EngineJobUnknown,
    EngineQuotaExceeded,
    EngineRefused,
    EngineSecretsUnsafe,
    EngineThrottled,
    EngineUnreachable,
    MigrationError,
    SpecInvalid,
    StagingRefused,
    Transient,
)

ARGUMENTS: dict[str, Any] = {
    "conn_id": "google_test",
    "region": "europe-west1",
    "runtime_version": "3.0",
    "container_image": "europe-docker.pkg.dev/p/r/kafka-migration:1",
    "archives": ["gs://bucket/environment.tar.gz#environment"],
    "python": "./environment/bin/python",
    "service_account": "kafka-migration@data-platform.iam.gserviceaccount.com",
    "subnetwork": "spark",
    "network_tags": ["kafka-clients"],
    "staging_bucket": "dataproc-staging",
    "labels": {"team": "streaming"},
    "timeout": "7d",
}
ID = f"projects/data-platform/locations/europe-west1/batches/{TOKEN}"


@pytest.fixture
def storage(needs: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedStorage]:
    needs("airflow.providers.google", "apache-airflow-providers-google")
    with SimulatedStorage().running() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server


@pytest.fixture
def api(storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedDataproc]:
    from google.cloud.dataproc_v1.services.batch_controller.transports import grpc as transport

    extra = {"is_anonymous": True, "project": "data-platform"}
    connection = {"conn_type": "google_cloud_platform", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_GOOGLE_TEST", json.dumps(connection))
    with SimulatedDataproc().running() as server:
        # The hook chooses the address of the region and has no setting for another one.
        monkeypatch.setattr(transport.grpc_helpers, "create_channel", server.channel)
        yield server


@pytest.fixture
def engine(api: SimulatedDataproc) -> DataprocEngine:
    return DataprocEngine(**ARGUMENTS)


def job_for(folder: Path, **changes: Any) -> SparkJob:
    return make_job(folder, **{"secret_environment": {}, "staging": "gs://code/spark", **changes})


def status_of(code: str, text: str = "said by a test") -> Callable[[Any], Any]:
    def abort(context: Any) -> Any:
        import grpc

        context.abort(grpc.StatusCode[code], text)

    return abort


def test_it_is_an_engine(engine: DataprocEngine) -> None:
    assert isinstance(engine, SparkEngine)
    assert engine.detached
    assert engine.trigger(ID) is None


def test_the_whole_document(
    api: SimulatedDataproc, storage: SimulatedStorage, engine: DataprocEngine, tmp_path: Path
) -> None:
    from google.cloud.dataproc_v1 import Batch

    assert engine.submit(job_for(tmp_path)) == ID
    ((_, request),) = [item for item in api.requests if item[0] == "create"]
    assert request.parent == "projects/data-platform/regions/europe-west1"
    assert request.batch_id == request.request_id == TOKEN
    assert set(api.hosts) == {"europe-west1-dataproc.googleapis.com:443"}
    (main, archive) = (f"gs://{bucket}/{name}" for bucket, name in storage.objects)
    assert main.startswith("gs://code/spark/")
    assert main.endswith("/seed.py")
    assert Batch.to_dict(request.batch, always_print_fields_with_no_presence=False) == {
        "labels": {
            "team": "streaming",
            "managed-by": "airflow-provider-kafka-migration",
            "kafka-migration-migration": "orders-eu",
            "kafka-migration-job": "seed",
            "kafka-migration-token": TOKEN,
        },
        "pyspark_batch": {
            "main_python_file_uri": main,
            "python_file_uris": [archive],
            "archive_uris": ["gs://bucket/environment.tar.gz#environment"],
            "args": ["--job-location", "s3://migration/prefix", "--job-key", "orders/jobs/seed.json"],
        },
        "runtime_config": {
            "version": "3.0",
            "container_image": "europe-docker.pkg.dev/p/r/kafka-migration:1",
            "properties": {
                "spark.app.name": "kafka-migration-Orders.eu-seed",
                "spark.speculation": "false",
                "spark.task.maxFailures": "4",
                "spark.dataproc.driverEnv.KAFKA_MIGRATION_SLICE": "15",
                "spark.executorEnv.KAFKA_MIGRATION_SLICE": "15",
                "spark.dataproc.driverEnv.PYSPARK_PYTHON": "./environment/bin/python",
                "spark.executorEnv.PYSPARK_PYTHON": "./environment/bin/python",
            },
        },
        "environment_config": {
            "execution_config": {
                "service_account": "kafka-migration@data-platform.iam.gserviceaccount.com",
                "subnetwork_uri": "spark",
                "network_tags": ["kafka-clients"],
                "ttl": "604800s",
                "staging_bucket": "dataproc-staging",
            }
        },
    }
    assert next(iter(storage.objects.values())) == b"print('main')\n"


def test_secrets_are_refused_before_anything_is_written(
    api: SimulatedDataproc,
    storage: SimulatedStorage,
    engine: DataprocEngine,
    tmp_path: Path,
    all_logs: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(EngineSecretsUnsafe, match=SECRET_VARIABLE) as caught:
        engine.submit(make_job(tmp_path, staging="gs://code/spark"))
    assert_hidden(str(caught.value), caught.value.as_dict())
    assert "gcp-sm:" in caught.value.next_step
    assert (api.requests, storage.requests) == ([], [])
    reference = "gcp-sm:data-platform/kafka-migration-key"
    named = DataprocEngine(**{**ARGUMENTS, "secrets": {SECRET_VARIABLE: reference}})
    assert named.submit(make_job(tmp_path, staging="gs://code/spark")) == ID
    properties = dict(api.batches[ID].runtime_config.properties)
    assert properties[f"spark.dataproc.driverEnv.{SECRET_VARIABLE}"] == reference
    assert properties[f"spark.executorEnv.{SECRET_VARIABLE}"] == reference
    assert_hidden(str(api.requests), [(item.path, repr(item.body)) for item in storage.requests], all_logs.text)


def test_the_same_token_is_the_same_batch(
    api: SimulatedDataproc, storage: SimulatedStorage, engine: DataprocEngine, tmp_path: Path
) -> None:
    job = job_for(tmp_path)
    assert engine.submit(job) == DataprocEngine(**ARGUMENTS).submit(job) == ID
    # A week later Google has forgotten the request, but not the batch.
    api.by_request_id.clear()
    assert engine.submit(job) == ID
    assert len(api.batches) == 1
    assert len(storage.sent("POST", "^/upload")) == 2


def test_a_lost_answer_to_the_submission_does_not_make_a_second_batch(
    api: SimulatedDataproc, engine: DataprocEngine, tmp_path: Path
) -> None:
    job = job_for(tmp_path)

    def lose(context: Any) -> Any:
        import grpc

        _, request = api.requests[-1]
        api._create(request, context)
        context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")

    api.force("create", lose)
    assert engine.submit(job) == ID
    assert len(api.batches) == 1


def test_a_foreign_batch_of_the_same_name_is_left_alone(
    api: SimulatedDataproc, engine: DataprocEngine, tmp_path: Path
) -> None:
    from google.cloud.dataproc_v1 import Batch

    api.batches[ID] = Batch(name=ID, labels={"team": "another"})
    with pytest.raises(EngineJobConflict, match="is not this job's"):
        engine.submit(job_for(tmp_path))


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("STATE_UNSPECIFIED", JobState.UNKNOWN),
        ("PENDING", JobState.PENDING),
        ("RUNNING", JobState.RUNNING),
        ("CANCELLING", JobState.RUNNING),
        ("CANCELLED", JobState.CANCELLED),
        ("SUCCEEDED", JobState.SUCCEEDED),
        ("FAILED", JobState.FAILED),
    ],
)
def test_states(api: SimulatedDataproc, engine: DataprocEngine, tmp_path: Path, said: str, state: JobState) -> None:
    engine.submit(job_for(tmp_path))
    api.say(ID, said, "words of Dataproc")
    status = engine.status(ID)
    assert status.state is state
    assert "words of Dataproc" in status.reason


def test_a_state_that_is_new_is_no_end(api: SimulatedDataproc, engine: DataprocEngine, tmp_path: Path) -> None:
    engine.submit(job_for(tmp_path))
    api.batches[ID].state = 99
    assert engine.status(ID).state is JobState.UNKNOWN


def test_a_failure_has_the_end_of_the_drivers_output(
    api: SimulatedDataproc, storage: SimulatedStorage, engine: DataprocEngine, tmp_path: Path
) -> None:
    engine.submit(job_for(tmp_path))
    api.say(ID, "FAILED", "Job failed with message", "gs://dataproc-staging/out/jobs/x/driveroutput")
    text = "\n".join(f"line {n} {'x' * 100}" for n in range(20_000))
    storage.objects[("dataproc-staging", "out/jobs/x/driveroutput.000000000")] = text.encode()
    storage.objects[("dataproc-staging", "out/jobs/x/driveroutput.000000001")] = b"\n\x1b[31m[SOURCE_GAP] records gone"
    status = engine.status(ID)
    assert (status.state, status.reason) == (JobState.FAILED, "Job failed with message")
    assert (len(status.log_tail), status.log_tail[-1]) == (40, "[SOURCE_GAP] records gone")
    assert status.log_tail[-2].startswith("line 19999 ")
    ranges = [item.headers.get("range", item.headers.get("Range", "")) for item in storage.sent("GET", "^/download")]
    assert all(span.startswith("bytes=") for span in ranges), "the whole log must not be read"
    storage.force("GET", "/o$", *[Answer(403, {"error": {"code": 403, "message": "no right"}})] * 9)
    status = engine.status(ID)
    assert (status.log_tail, "cannot be read" in status.reason) == ((), True)
    api.say(ID, "FAILED", "Job failed")
    assert engine.status(ID).reason == "Job failed; the batch names no output of its driver"


def test_a_lost_batch_is_one_that_dataproc_says_does_not_exist(
    api: SimulatedDataproc, engine: DataprocEngine, tmp_path: Path
) -> None:
    engine.submit(job_for(tmp_path))
    api.batches.clear()
    assert engine.status(ID).state is JobState.LOST
    engine.cancel(ID)
    api.force("get", status_of("NOT_FOUND", "Method not found."))
    assert engine.status(ID).state is JobState.UNKNOWN


def test_hostile_answers_are_never_an_end(api: SimulatedDataproc, engine: DataprocEngine, tmp_path: Path) -> None:
    from google.cloud.dataproc_v1 import Batch

    engine.submit(job_for(tmp_path))
    api.force("get", lambda _: Batch(), lambda _: Batch(name=ID.replace(TOKEN, "another"), state="SUCCEEDED"))
    assert engine.status(ID).state is JobState.UNKNOWN
    assert engine.status(ID).state is JobState.UNKNOWN
    # Not a Batch at all: grpc cannot serialize it, and the client sees an error of the server.
    api.force("get", *[lambda _: object()] * 9)
    assert engine.status(ID).state is JobState.UNKNOWN


@pytest.mark.parametrize(
    ("code", "text", "kind", "calls"),
    [
        ("PERMISSION_DENIED", "Permission dataproc.batches.create denied", EngineForbidden, 1),
        ("UNAUTHENTICATED", "no credentials", EngineForbidden, 1),
        ("INVALID_ARGUMENT", "Runtime version 3.0 is not supported", EngineRefused, 1),
        ("FAILED_PRECONDITION", "Private Google Access is off", EngineRefused, 1),
        ("RESOURCE_EXHAUSTED", "Insufficient 'CPUS' quota. Requested 12.0, available 4.0.", EngineQuotaExceeded, 1),
        ("RESOURCE_EXHAUSTED", "Quota exceeded for quota metric 'requests per minute'", EngineThrottled, 4),
        ("UNAVAILABLE", "try again", EngineUnreachable, 4),
        ("INTERNAL", "trouble", EngineUnreachable, 4),
        ("DEADLINE_EXCEEDED", "slow", EngineUnreachable, 4),
    ],
)
def test_errors_are_named_and_waits_are_bounded(
    api: SimulatedDataproc,
    engine: DataprocEngine,
    tmp_path: Path,
    no_waits: list[float],
    code: str,
    text: str,
    kind: type[MigrationError],
    calls: int,
) -> None:
    api.force("create", *[status_of(code, text)] * 9)
    with pytest.raises(kind, match="submit the job") as caught:
        engine.submit(job_for(tmp_path))
    assert type(caught.value) is kind
    assert len([item for item in api.requests if item[0] == "create"]) == calls
    assert sum(no_waits) <= 10
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.next_step
    if issubclass(kind, Transient):
        api.force("get", *[status_of(code, text)] * 9)
        assert engine.status(ID).state is JobState.UNKNOWN


def test_cancel(api: SimulatedDataproc, engine: DataprocEngine, tmp_path: Path) -> None:
    engine.submit(job_for(tmp_path))
    api.say(ID, "SUCCEEDED")
    engine.cancel(ID)
    assert api.cancelled == []
    api.say(ID, "RUNNING")
    engine.cancel(ID)
    assert api.cancelled == [f"projects/data-platform/regions/europe-west1/operations/op-{TOKEN}"]
    assert engine.status(ID).state is JobState.RUNNING
    api.say(ID, "CANCELLED")
    assert engine.status(ID).state is JobState.CANCELLED
    api.say(ID, "RUNNING")
    api.force("cancel", status_of("NOT_FOUND", "no such operation"))
    engine.cancel(ID)
    api.batches[ID].operation = ""
    with pytest.raises(Transient, match="names no operation"):
        engine.cancel(ID)


def test_the_id_has_everything_to_find_the_batch(api: SimulatedDataproc, tmp_path: Path) -> None:
    DataprocEngine(**ARGUMENTS).submit(job_for(tmp_path))
    moved = DataprocEngine(**{**ARGUMENTS, "region": "us-central1", "project": "another-project"})
    assert moved.status(ID).state is JobState.PENDING
    for wrong in ("", "100@host", "projects/p/locations/x/batches/", f"{ID}/../x"):
        with pytest.raises(EngineJobUnknown):
            moved.status(wrong)


def test_links(engine: DataprocEngine) -> None:
    page = "https://console.cloud.google.com/dataproc/batches/europe-west1/"
    assert engine.links(ID) == {"Dataproc batch": f"{page}{TOKEN}/monitoring?project=data-platform"}


@pytest.mark.parametrize("staging", ["", "s3://bucket/x", "file:///tmp/x", "gs://", "gs://bucket/a b"])
def test_code_needs_a_place_on_google(engine: DataprocEngine, tmp_path: Path, staging: str) -> None:
    with pytest.raises(StagingRefused):
        engine.submit(job_for(tmp_path, staging=staging))


def test_code_has_a_place_of_its_own_where_the_journal_is_elsewhere(
    api: SimulatedDataproc, storage: SimulatedStorage, tmp_path: Path
) -> None:
    engine = DataprocEngine(**{**ARGUMENTS, "code": "gs://spark-code"})
    engine.submit(job_for(tmp_path, staging="s3://journal/orders/spark"))
    assert api.batches[ID].pyspark_batch.main_python_file_uri.startswith("gs://spark-code/")
    assert {bucket for bucket, _ in storage.objects} == {"spark-code"}


def test_storage_that_refuses(
    api: SimulatedDataproc, storage: SimulatedStorage, engine: DataprocEngine, tmp_path: Path
) -> None:
    storage.force("GET", ".", *[Answer(403, {"error": {"code": 403, "message": "no storage.objects.get"}})] * 9)
    with pytest.raises(EngineForbidden, match=r"storage\.objects\.get"):
        engine.submit(job_for(tmp_path))
    assert api.batches == {}


def test_a_connection_that_is_not_there(api: SimulatedDataproc, tmp_path: Path) -> None:
    with pytest.raises(ConnectionInvalid, match="google_missing"):
        DataprocEngine(**{**ARGUMENTS, "conn_id": "google_missing"}).submit(job_for(tmp_path))


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"region": None}, "spark.engine_args.region"),
        ({"regionn": "x"}, "spark.engine_args.regionn"),
        ({"runtime_version": "2.1"}, "spark.engine_args.runtime_version"),
        ({"timeout": "15d"}, "spark.engine_args.timeout"),
        ({"timeout": "1m"}, "spark.engine_args.timeout"),
        ({"archives": ["s3://bucket/x"]}, "spark.engine_args.archives"),
        ({"code": "s3://bucket/x"}, "spark.engine_args.code"),
        ({"secrets": {"KEY": SECRET}}, "spark.engine_args.secrets"),
        ({"project": "Not A Project"}, "spark.engine_args.project"),
    ],
)
def test_arguments_are_checked_at_once(changes: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecInvalid) as caught:
        DataprocEngine(**{**ARGUMENTS, **changes})
    assert [mistake["path"] for mistake in caught.value.details["mistakes"]] == [path]
    assert_hidden(str(caught.value), caught.value.as_dict())
