"""The two EMR services, simulated, an Airflow connection that leads to them, and an engine and a job for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from emr_world import ACCOUNT, REGION, Emr, serving

from airflow_provider_kafka_migration.engines import aws
from airflow_provider_kafka_migration.engines.base import SparkEngine, SparkJob
from airflow_provider_kafka_migration.engines.emr_containers import EmrContainersEngine
from airflow_provider_kafka_migration.engines.emr_serverless import EmrServerlessEngine

ROLE = f"arn:aws:iam::{ACCOUNT}:role/kafka-migration-spark"
TOKEN = "seed-0f3a9c"


@dataclass
class World:
    """One of the services, an engine for it, and the bucket of its files."""

    emr: Emr
    bucket: str
    client: Callable[[str], Any]
    settings: dict[str, Any]
    kind: type[EmrServerlessEngine] | type[EmrContainersEngine]
    job: SparkJob
    #: Defines the Airflow connection, with other endpoints if given: ``connect(sts="http://...")``.
    connect: Callable[..., None]

    def engine(self, **other: Any) -> SparkEngine:
        """An engine of a new process."""
        return self.kind(**{**self.settings, **other})

    def put_log(self, key: str, content: bytes) -> None:
        """Write a log to the bucket."""
        self.client("s3").put_object(Bucket=self.bucket, Key=key, Body=content)

    def stored(self) -> list[str]:
        """The keys in the bucket."""
        found = self.client("s3").list_objects_v2(Bucket=self.bucket)
        return [item["Key"] for item in found.get("Contents", ())]


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits between attempts, which take no time."""
    found: list[float] = []
    monkeypatch.setattr(aws, "_sleep", found.append)
    return found


@pytest.fixture
def job(tmp_path: Path) -> SparkJob:
    """A seed, with everything that a job may have but secrets."""
    main, package = tmp_path / "seed.py", tmp_path / "airflow_provider_kafka_migration-1234.zip"
    main.write_text("print('seed')\n", encoding="utf-8")
    package.write_bytes(b"PK-zip")
    return SparkJob(
        migration_id="orders",
        name="seed",
        token=TOKEN,
        main=main,
        py_files=package,
        arguments=("--job-location", "s3://bucket/migrations", "--job-key", "orders/jobs/seed.json"),
        conf={"spark.speculation": "false", "spark.task.maxFailures": "4", "spark.master": "local[4,4]"},
        environment={"KAFKA_MIGRATION_LOG": "info", "PYSPARK_PYTHON": "/opt/airflow/bin/python"},
    )


@pytest.fixture(params=["emr-serverless", "emr-containers"])
def world(
    request: pytest.FixtureRequest, s3_in_process: Any, connection: Callable[..., None], job: SparkJob
) -> Iterator[World]:
    """One service after the other; S3, STS and CloudWatch are moto's."""
    emr = Emr(request.param, "00fapp1" if request.param == "emr-serverless" else "vc1")
    moto, bucket = s3_in_process.config, s3_in_process.bucket()
    keys = {"aws_access_key_id": "AKIATEST", "aws_secret_access_key": "the-secret-key-of-airflow"}
    with serving(emr) as address:
        places = {emr.kind: address, "s3": moto.endpoint_url, "sts": moto.endpoint_url, "logs": moto.endpoint_url}

        def connect(**other: str) -> None:
            services = {service: {"endpoint_url": place} for service, place in {**places, **other}.items()}
            connection(
                "aws_default",
                conn_type="aws",
                login=keys["aws_access_key_id"],
                password=keys["aws_secret_access_key"],
                extra={"region_name": REGION, "service_config": services},
            )

        connect()
        settings: dict[str, Any] = {"execution_role_arn": ROLE}
        if emr.is_serverless:
            settings |= {"application_id": emr.place}
        else:
            settings |= {"virtual_cluster_id": emr.place, "release_label": "emr-spark-8.0.0-latest"}
        yield World(
            emr,
            bucket,
            lambda service: boto3.client(service, endpoint_url=moto.endpoint_url, region_name=REGION, **keys),
            settings,
            EmrServerlessEngine if emr.is_serverless else EmrContainersEngine,
            replace(job, staging=f"s3://{bucket}/staging"),
            connect,
        )
