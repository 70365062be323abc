"""The EMR engines against moto, an implementation of the two services that is not ours.

What moto 5.2 simulates of a job run: start, list, describe, cancel, the errors for places and runs that do not exist. A
run of EMR Serverless is SUCCESS at once, one of EMR on EKS stays RUNNING; client tokens are stored, not compared; there
are no retry policies and no logs. ``emr_world`` has the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import boto3
import pytest

from airflow_provider_kafka_migration.engines.base import JobState, SparkJob
from airflow_provider_kafka_migration.engines.find import make_engine
from airflow_provider_kafka_migration.errors import EngineNotFound

pytestmark = pytest.mark.slow

ROLE = "arn:aws:iam::123456789012:role/kafka-migration-spark"


@pytest.fixture
def moto(s3_in_process: Any, connection: Callable[..., None]) -> dict[str, Any]:
    """The settings of a client of moto, which Airflow's connection has, too."""
    settings: dict[str, Any] = s3_in_process.config.to_dict()
    connection(
        "aws_default",
        conn_type="aws",
        login=settings["aws_access_key_id"],
        password=settings["aws_secret_access_key"],
        extra={"region_name": settings["region_name"], "endpoint_url": settings["endpoint_url"]},
    )
    return settings


def test_emr_serverless(moto: dict[str, Any], job: SparkJob, s3_in_process: Any) -> None:
    client = boto3.client("emr-serverless", **moto)
    place = client.create_application(name="spark", releaseLabel="emr-7.1.0", type="SPARK", clientToken="one")
    arguments = {"application_id": place["applicationId"], "execution_role_arn": ROLE}
    submitted = replace(job, staging=f"s3://{s3_in_process.bucket()}/staging")
    job_id = make_engine("emr_serverless", arguments).submit(submitted)
    assert make_engine("emr_serverless", arguments).submit(submitted) == job_id
    assert make_engine("emr_serverless", arguments).status(job_id).state is JobState.SUCCEEDED
    (run,) = client.list_job_runs(applicationId=place["applicationId"])["jobRuns"]
    assert run["arn"] == job_id
    described = client.get_job_run(applicationId=place["applicationId"], jobRunId=run["id"])["jobRun"]
    assert described["tags"]["kafka-migration-token"] == job.token
    missing = job_id[:-3] + "zzz"
    assert make_engine("emr_serverless", arguments).status(missing).state is JobState.LOST
    with pytest.raises(EngineNotFound, match="00nosuch"):
        make_engine("emr_serverless", {**arguments, "application_id": "00nosuch"}).submit(submitted)


def test_emr_on_eks(moto: dict[str, Any], job: SparkJob, s3_in_process: Any) -> None:
    client = boto3.client("emr-containers", **moto)
    provider = {"id": "cluster", "type": "EKS", "info": {"eksInfo": {"namespace": "kafka-migration"}}}
    place = client.create_virtual_cluster(name="spark", containerProvider=provider, clientToken="one")["id"]
    arguments = {"virtual_cluster_id": place, "execution_role_arn": ROLE, "release_label": "emr-7.1.0-latest"}
    submitted = replace(job, staging=f"s3://{s3_in_process.bucket()}/staging")
    job_id = make_engine("emr_containers", arguments).submit(submitted)
    assert make_engine("emr_containers", arguments).submit(submitted) == job_id
    engine = make_engine("emr_containers", arguments)
    assert engine.status(job_id).state is JobState.RUNNING
    engine.cancel(job_id)
    engine.cancel(job_id)
    assert engine.status(job_id).state is JobState.CANCELLED
    assert engine.status(job_id[:-3] + "zzz").state is JobState.LOST
    with pytest.raises(EngineNotFound, match="00nosuch"):
        make_engine("emr_containers", {**arguments, "virtual_cluster_id": "00nosuch"}).submit(submitted)
