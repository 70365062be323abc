"""The whole requests with which the EMR engines start a job, what they refuse, and that no secret gets out."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kafka_migration.engines.find import make_engine
from airflow_provider_kafka_migration.errors import (
    EngineRefused,
    EngineSecretsUnsafe,
    MigrationError,
    SpecInvalid,
    StagingRefused,
    StorageRefused,
)

pytestmark = pytest.mark.slow

ROLE = "arn:aws:iam::123456789012:role/kafka-migration-spark"
FULL = {
    "python": "./environment/bin/python",
    "archives": ["s3://bucket/environment.tar.gz#environment"],
    "log_uri": "s3://logs/spark/",
    "log_key_arn": "arn:aws:kms:eu-west-1:123456789012:key/0a1b",
    "log_group": "/kafka-migration/spark",
    "tags": {"team": "streams", "kafka-migration-id": "not-yours"},
    "secrets": {"KAFKA_MIGRATION_SEALING_KEY": "secretsmanager:kafka-migration/sealing-key"},
}


def staged(world: Any, path: Path) -> str:
    return f"s3://{world.bucket}/staging/{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}/{path.name}"


def without_lists(world: Any) -> dict[str, Any]:
    (request,) = world.emr.started()
    return dict(request)


def spark_defaults(driver: str, *, full: bool) -> dict[str, str]:
    """The properties of the job of these tests, as written by hand."""
    properties = {
        "spark.app.name": "kafka-migration-orders-seed",
        "spark.executorEnv.KAFKA_MIGRATION_LOG": "info",
        "spark.speculation": "false",
        "spark.task.maxFailures": "4",
        f"{driver}KAFKA_MIGRATION_LOG": "info",
    }
    if full:
        properties |= {
            "spark.archives": "s3://bucket/environment.tar.gz#environment",
            "spark.executorEnv.KAFKA_MIGRATION_SEALING_KEY": "secretsmanager:kafka-migration/sealing-key",
            "spark.executorEnv.PYSPARK_PYTHON": "./environment/bin/python",
            f"{driver}KAFKA_MIGRATION_SEALING_KEY": "secretsmanager:kafka-migration/sealing-key",
            f"{driver}PYSPARK_DRIVER_PYTHON": "./environment/bin/python",
            f"{driver}PYSPARK_PYTHON": "./environment/bin/python",
        }
    return properties


TAGS = {"kafka-migration-id": "orders", "kafka-migration-job": "seed", "kafka-migration-token": "seed-0f3a9c"}


def configuration(world: Any, driver: str, cloudwatch: dict[str, Any], *, full: bool) -> dict[str, Any]:
    logs: dict[str, Any] = {"s3MonitoringConfiguration": {"logUri": f"s3://{world.bucket}/staging/logs/"}}
    if full:
        logs["s3MonitoringConfiguration"] = {"logUri": "s3://logs/spark/", "encryptionKeyArn": FULL["log_key_arn"]}
        logs |= cloudwatch
    defaults = {"classification": "spark-defaults", "properties": spark_defaults(driver, full=full)}
    return {"applicationConfiguration": [defaults], "monitoringConfiguration": logs}


@pytest.mark.parametrize("full", [False, True], ids=["smallest", "full"])
@pytest.mark.parametrize("world", ["emr-serverless"], indirect=True)
def test_the_request_of_emr_serverless(world: Any, full: bool) -> None:
    job = world.job
    job_id = world.engine(**(FULL | {"timeout_minutes": 600} if full else {})).submit(job)
    cloudwatch = {
        "cloudWatchLoggingConfiguration": {
            "enabled": True,
            "logGroupName": "/kafka-migration/spark",
            "logTypes": {"SPARK_DRIVER": ["STDERR", "STDOUT"]},
        }
    }
    assert without_lists(world) == {
        "applicationId": "00fapp1",
        "clientToken": "seed-0f3a9c",
        "name": "kafka-migration-orders-seed.seed-0f3a9c",
        "executionRoleArn": ROLE,
        "jobDriver": {
            "sparkSubmit": {
                "entryPoint": staged(world, job.main),
                "entryPointArguments": list(job.arguments),
                "sparkSubmitParameters": f"--conf spark.submit.pyFiles={staged(world, job.py_files)}",
            }
        },
        "configurationOverrides": configuration(world, "spark.emr-serverless.driverEnv.", cloudwatch, full=full),
        "tags": {"team": "streams", **TAGS} if full else TAGS,
        "mode": "BATCH",
        "retryPolicy": {"maxAttempts": 1},
        "executionTimeoutMinutes": 600 if full else 10080,
    }
    assert job_id.endswith(f"/applications/00fapp1/jobruns/{world.emr.only().id}")


@pytest.mark.parametrize("full", [False, True], ids=["smallest", "full"])
@pytest.mark.parametrize("world", ["emr-containers"], indirect=True)
def test_the_request_of_emr_on_eks(world: Any, full: bool) -> None:
    job = world.job
    image = {"image": "123456789012.dkr.ecr.eu-west-1.amazonaws.com/spark-kafka:1"}
    kubernetes = {"kubernetes_secrets": {"KAFKA_MIGRATION_SOURCE": "kafka-migration:source"}}
    job_id = world.engine(**(FULL | image | kubernetes if full else {})).submit(job)
    cloudwatch = {"cloudWatchMonitoringConfiguration": {"logGroupName": "/kafka-migration/spark"}}
    overrides = configuration(world, "spark.kubernetes.driverEnv.", cloudwatch, full=full)
    if full:
        overrides["applicationConfiguration"][0]["properties"] |= {
            "spark.kubernetes.container.image": image["image"],
            "spark.kubernetes.driver.secretKeyRef.KAFKA_MIGRATION_SOURCE": "kafka-migration:source",
            "spark.kubernetes.executor.secretKeyRef.KAFKA_MIGRATION_SOURCE": "kafka-migration:source",
        }
    assert without_lists(world) == {
        "virtualClusterId": "vc1",
        "clientToken": "seed-0f3a9c",
        "name": "kafka-migration-orders-seed.seed-0f3a9c",
        "executionRoleArn": ROLE,
        "releaseLabel": "emr-spark-8.0.0-latest",
        "jobDriver": {
            "sparkSubmitJobDriver": {
                "entryPoint": staged(world, job.main),
                "entryPointArguments": list(job.arguments),
                "sparkSubmitParameters": f"--py-files {staged(world, job.py_files)}",
            }
        },
        "configurationOverrides": overrides,
        "retryPolicyConfiguration": {"maxAttempts": 1},
        "tags": {"team": "streams", **TAGS} if full else TAGS,
    }
    assert job_id.endswith(f"/virtualclusters/vc1/jobruns/{world.emr.only().id}")


@pytest.mark.parametrize("world", ["emr-serverless"], indirect=True)
def test_the_tail_has_no_time_limit_and_no_second_attempt(world: Any) -> None:
    tail = replace(world.job, name="tail")
    world.engine().submit(tail)
    request = world.emr.started()[-1]
    assert (request["mode"], request["retryPolicy"]) == ("STREAMING", {"maxFailedAttemptsPerHour": 1})
    assert "executionTimeoutMinutes" not in request
    world.engine(tail_mode="BATCH").submit(replace(tail, token="tail-2"))
    request = world.emr.started()[-1]
    assert (request["mode"], request["executionTimeoutMinutes"]) == ("BATCH", 10080)


def test_the_files_are_uploaded_once_and_are_what_the_job_had(world: Any) -> None:
    world.engine().submit(world.job)
    first = world.stored()
    assert len(first) == 2
    for key in first:
        body = world.client("s3").get_object(Bucket=world.bucket, Key=key)["Body"].read()
        assert body in (world.job.main.read_bytes(), world.job.py_files.read_bytes())
    world.engine().submit(replace(world.job, token="seed-again"))
    assert world.stored() == first
    world.job.main.write_text("print('a new release')\n", encoding="utf-8")
    world.engine().submit(replace(world.job, token="seed-third"))
    assert len(world.stored()) == 3


def test_a_job_whose_package_is_installed_ships_none(world: Any) -> None:
    world.engine().submit(replace(world.job, py_files=None))
    (driver,) = without_lists(world)["jobDriver"].values()
    assert "sparkSubmitParameters" not in driver
    assert len(world.stored()) == 1


def test_the_longest_names_fit(world: Any) -> None:
    job = replace(world.job, migration_id="a" * 100, name="verify-archive", token="v" + "0" * 35)
    world.engine().submit(job)
    other = replace(job, token="v" + "0" * 34 + "1")
    world.engine().submit(other)
    names = [request["name"] for request in world.emr.started()]
    assert len(set(names)) == 2
    assert world.engine().submit(job) == world.emr.arn(next(iter(world.emr.runs)))


# -- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("staging", ["", "file:///tmp/x", "gs://bucket/x", "s3://key:secret@bucket/x", "s3://b/a b"])
def test_a_staging_location_that_emr_cannot_read_is_refused(world: Any, staging: str) -> None:
    with pytest.raises(MigrationError) as caught:
        world.engine().submit(replace(world.job, staging=staging))
    assert isinstance(caught.value, StagingRefused | SpecInvalid)
    assert "secret@" not in str(caught.value)
    assert world.emr.started() == []


def test_a_bucket_that_does_not_exist_is_named(world: Any) -> None:
    with pytest.raises(StorageRefused, match="NoSuchBucket"):
        world.engine().submit(replace(world.job, staging="s3://no-such-bucket-at-all/x"))
    assert world.emr.started() == []


def test_settings_that_emr_does_not_take_are_named_without_their_values(world: Any) -> None:
    conf = {"spark.long": "v" * 1025, "spark.empty": "", **{f"spark.x{number}": "1" for number in range(100)}}
    with pytest.raises(EngineRefused) as caught:
        world.engine().submit(replace(world.job, conf=conf))
    text = str(caught.value)
    assert "spark.long" in text
    assert "spark.empty" in text
    assert "100" in text
    assert "vvvv" not in text
    assert world.emr.requests == []


@pytest.mark.parametrize("world", ["emr-containers"], indirect=True)
def test_what_emr_on_eks_does_not_take_is_named(world: Any) -> None:
    with pytest.raises(EngineRefused, match="number 1"):
        world.engine().submit(replace(world.job, arguments=("x" * 10281,)))
    with pytest.raises(EngineRefused, match="characters"):
        world.engine().submit(replace(world.job, staging=f"s3://{world.bucket}/" + "f" * 250))
    assert world.emr.started() == []


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"execution_role_arn": "kafka-migration-spark"}, "execution_role_arn"),
    ({"execution_role_arn": None}, "execution_role_arn"),
    ({"region": "Frankfurt"}, "region"),
    ({"log_uri": "/var/log"}, "log_uri"),
    ({"archives": ["s3://b/x.tar.gz --conf spark.a=b"]}, "archives.0"),
    ({"python": "python; rm -rf /"}, "python"),
    ({"secrets": {"KEY": "kmpriv1_plain-text-secret"}}, "secrets.KEY"),
    ({"secrets": {"lower case": "secretsmanager:x"}}, "secrets"),
    ({"tags": {"a": "b|c"}}, "tags.a"),
    ({"tags": {f"t{number}": "v" for number in range(41)}}, "tags"),
    ({"retries": 3}, "retries"),
    ({"aws_conn_id": 7}, "aws_conn_id"),
]
WRONG_OF = {
    "emr-serverless": [
        ({"application_id": "../other"}, "application_id"),
        ({"timeout_minutes": 0}, "timeout_minutes"),
        ({"timeout_minutes": 10081}, "timeout_minutes"),
        ({"timeout_minutes": "600"}, "timeout_minutes"),
        ({"tail_mode": "FOREVER"}, "tail_mode"),
        ({"virtual_cluster_id": "vc1"}, "virtual_cluster_id"),
    ],
    "emr-containers": [
        ({"virtual_cluster_id": "a/b"}, "virtual_cluster_id"),
        ({"release_label": "latest please"}, "release_label"),
        ({"image": "--privileged"}, "image"),
        ({"kubernetes_secrets": {"KEY": "no-key"}}, "kubernetes_secrets.KEY"),
        ({"application_id": "00f"}, "application_id"),
    ],
}


def test_wrong_arguments_are_refused_by_the_constructor(world: Any) -> None:
    for wrong, path in WRONG + WRONG_OF[world.emr.kind]:
        with pytest.raises(SpecInvalid) as caught:
            world.engine(**wrong)
        paths = [mistake["path"] for mistake in caught.value.details["mistakes"]]
        assert any(item.startswith(f"spark.engine_args.{path}") for item in paths), (wrong, paths)
        for value in wrong.values():
            assert str(value) not in str(caught.value) or len(str(value)) < 6
    with pytest.raises(SpecInvalid) as caught:
        make_engine(world.kind.name, {})
    assert "execution_role_arn" in str(caught.value)
    assert world.emr.requests == []


# -- secrets ----------------------------------------------------------------------------------------------------------


SECRET = "kmpriv1_the-private-key-of-the-deployment"


def test_secret_variables_are_refused_unless_the_platform_has_them(world: Any) -> None:
    job = replace(world.job, secret_environment={"KAFKA_MIGRATION_SEALING_KEY": SECRET, "OTHER": SECRET})
    with pytest.raises(EngineSecretsUnsafe) as caught:
        world.engine(**FULL).submit(job)
    assert "OTHER" in str(caught.value)
    assert "SEALING_KEY" not in caught.value.what
    assert SECRET not in str(caught.value)
    assert world.emr.requests == []
    assert world.stored() == []


def test_credentials_of_aws_are_no_environment(world: Any) -> None:
    with pytest.raises(EngineSecretsUnsafe, match="AWS_SECRET_ACCESS_KEY"):
        world.engine().submit(replace(world.job, environment={"AWS_SECRET_ACCESS_KEY": SECRET}))
    assert world.emr.requests == []


def test_no_secret_reaches_the_service_the_bucket_or_the_log(world: Any, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)
    job = replace(world.job, secret_environment={"KAFKA_MIGRATION_SEALING_KEY": SECRET})
    engine = world.engine(**FULL)
    job_id = engine.submit(job)
    assert world.engine(**FULL).submit(job) == job_id
    world.emr.refuse("StartJobRun", 400, "ValidationException", "no")
    with pytest.raises(EngineRefused) as caught:
        engine.submit(replace(job, token="seed-other"))
    world.emr.only().state = "FAILED"
    status = engine.status(job_id)
    engine.links(job_id)
    engine.cancel(job_id)
    bodies = [world.client("s3").get_object(Bucket=world.bucket, Key=key)["Body"].read() for key in world.stored()]
    seen = [
        json.dumps(world.emr.requests),
        *(body.decode("utf-8", "replace") for body in bodies),
        *world.stored(),
        # The server of moto logs no bodies; botocore logs whole requests when asked to.
        *(record.getMessage() for record in caplog.records),
        *(repr(item) for item in (engine, job, status, job_id, caught.value, caught.value.as_dict())),
    ]
    assert json.dumps(world.emr.requests).count("secretsmanager:kafka-migration/sealing-key") >= 2
    for text in seen:
        assert SECRET not in text
        assert "the-secret-key-of-airflow" not in text
