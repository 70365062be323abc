"""What is known about Spark, and whether it still counts: specs change, and clusters change by themselves."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable

from pydantic import ValidationError

from airflow_provider_kafka_migration import __version__
from airflow_provider_kafka_migration.documents.base import canonical_digest
from airflow_provider_kafka_migration.documents.spark_probe import SparkProbe
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.record.context import CopyRunner
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import parse_iso, words
from airflow_provider_kafka_migration.spec import MigrationSpec

#: After this time the probe is made again: executors, certificates and routes change without anybody telling us.
VALID_FOR = timedelta(days=1)


@runtime_checkable
class SparkSide(CopyRunner, Protocol):
    """A runner that runs jobs on Spark. One that lacks this method runs them in its own process."""

    def spark_master(self, spec: MigrationSpec) -> str:
        """Return Spark's master, ``local[4,4]`` for instance; empty where a service chooses it."""


def basis_of(spec: MigrationSpec) -> str:
    """Return a digest of what the result of a probe depends on. A waiver, for instance, does not change it."""
    data = spec.model_dump(mode="json")
    parts = {name: data[name] for name in ("source", "target", "storage", "spark")}
    return canonical_digest({**parts, "via": data["seed"]["via"]})


def read_probe(record: MigrationRecord) -> SparkProbe | None:
    """Return what was stored last; None if there is nothing, or nothing that this version can read."""
    data = record.result(keys.SPARK_PROBE)
    if data is None:
        return None
    try:
        return SparkProbe.parse(data)
    except ValidationError:
        return None


def outdated(probe: SparkProbe, spec: MigrationSpec, now: datetime, master: str = "") -> str:
    """Return why a probe no longer counts, for people; empty if it does.

    :param master: Spark's master as it is now; empty where that is not known here.
    """
    if probe.basis != basis_of(spec):
        return "the spec's connections, storage or spark section have changed since"
    if master and probe.master != master:
        return f"Spark's master was {probe.master or 'not known'} then, and is {master} now"
    if probe.airflow_package_version != __version__:
        return f"this package had version {probe.airflow_package_version} then, and has {__version__} now"
    age = now - parse_iso(probe.at)
    if age > VALID_FOR:
        return f"it is {words(age.total_seconds())} old"
    if age < -VALID_FOR:
        return "that is in the future of this machine's clock"
    return ""
