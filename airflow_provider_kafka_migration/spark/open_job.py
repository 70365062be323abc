"""Opens what a driver needs: the job document, its store, the coordinator, and a named Spark session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.lanes.job_progress import JobCoordinator
from airflow_provider_kafka_migration.spark.main import JobArguments
from airflow_provider_kafka_migration.spark.session import build_session


@contextmanager
def session_for(name: str, arguments: JobArguments) -> Iterator[SparkSession]:
    """A session that ends with the block."""
    session = build_session(f"kafka-migration {name}", master=arguments.master)
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def copy_job(arguments: JobArguments) -> Iterator[tuple[SparkSession, CopyJob, JobCoordinator]]:
    """The copy job of some arguments, read before Spark starts."""
    store = arguments.pointer.store(arguments.secrets)
    job = arguments.pointer.read(CopyJob, store)
    with session_for(f"{job.migration_id} {job.name}", arguments) as session:
        coordinator = JobCoordinator(job, store)
        yield session, job, coordinator
