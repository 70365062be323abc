"""What the probe of Spark is asked, and what it saw: ``jobs/probe.json`` and ``results/spark-probe.json``.

A machine that could not be asked, and a thing that could not be looked at, are named as such: neither counts as good.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document, Part


class ProbeJob(Document):
    """The job of the probe. Without secrets, as every job document."""

    version: int = 1
    migration_id: str
    name: Literal["probe"] = "probe"
    generation: int = Field(description="generation of the claim under which the job was written")
    token: str = Field("", description="of this run of the probe; its result carries the same")
    basis: str = Field("", description="digest of the parts of the spec that the job was written for")
    asked_at: float = Field(-1.0, description="seconds since 1970, by the clock of the task that wrote the job")
    journal_location: str
    archive_location: str | None = Field(None, description="None: copiers of this migration need no archive")
    brokers: dict[str, list[str]] = Field(
        default_factory=dict,
        description="host:port by source and target, as the task that wrote the job saw them: a machine that reaches "
        "no bootstrap server tries these all the same",
    )
    packages: dict[str, str] = Field(
        default_factory=dict, description="import name to distribution, of what copiers import"
    )


class ClockSpan(Part):
    """By how many seconds another clock is ahead of the local one: somewhere from ``low`` to ``high``."""

    low: float
    high: float

    @property
    def least(self) -> float:
        """The difference that is certain: 0 if the clocks may be equal."""
        return max(self.low, 0.0) if self.low > 0 else min(self.high, 0.0)

    def minus(self, other: ClockSpan) -> ClockSpan:
        """Return by how much the clock of this span is ahead of the other's, both measured from the same machine."""
        return ClockSpan(low=self.low - other.high, high=self.high - other.low)

    @classmethod
    def narrowest(cls, spans: Iterable[ClockSpan]) -> ClockSpan | None:
        """Return what all spans allow; None without any. Spans that contradict each other leave the narrowest one."""
        found = sorted(spans, key=lambda span: span.high - span.low)
        if not found:
            return None
        low, high = max(span.low for span in found), min(span.high for span in found)
        return cls(low=low, high=high) if low <= high else found[0]


class AddressLook(Part):
    """One address of a broker, tried with the product's own wire client: TCP, TLS, login, and one request."""

    cluster: Literal["source", "target"]
    address: str = Field(description="host:port")
    role: Literal["bootstrap", "advertised"]
    error: dict[str, Any] | None = Field(None, description="MigrationError.as_dict(); None: the broker answered")
    seconds: float = -1.0


class StoreLook(Part):
    """One storage location: an object was written, read and removed."""

    location: str
    error: dict[str, Any] | None = None
    left_behind: str = Field("", description="key of the probe's object, if it could not be removed")
    clock: ClockSpan | None = Field(None, description="the store's clock against this machine's; None: not known")


class MachineLook(Part):
    """What one process saw: the driver, or a Python worker of an executor."""

    name: str = Field(description="driver, or the executor's id, or host/pid where Spark does not name it")
    host: str
    python: str = ""
    package_version: str | None = Field(None, description="of this package; None: it cannot be imported")
    package_error: str = ""
    packages: dict[str, str | None] = Field(
        default_factory=dict, description="distribution to version; None: missing; empty: its version is unknown"
    )
    unresolved: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="references that cannot be resolved there, by source, target and storage"
    )
    addresses: list[AddressLook] = Field(default_factory=list)
    stores: list[StoreLook] = Field(default_factory=list)
    not_looked_at: dict[str, str] = Field(default_factory=dict, description="what could not be tried, and why")
    free_disk_bytes: int = Field(-1, description="where Python and Spark put temporary files; -1: unknown")
    began_at: float = Field(-1.0, description="seconds since 1970, by the clock of this machine")
    ended_at: float = -1.0
    clock: ClockSpan | None = Field(
        None, description="this machine's clock against the driver's (of the driver: against Airflow's)"
    )


class SparkProbe(Document):
    """``results/spark-probe.json``: what is known about Spark before anything is written to the target."""

    version: int = 1
    migration_id: str
    kind: Literal["probed", "local", "failed"] = Field(
        description="local: everything runs on this machine, so only settings were checked; failed: the probe's job "
        "could not run, for the reason in error"
    )
    token: str = Field("", description="of the job that this is the result of")
    at: str = Field("", description="ISO 8601, by the clock of the task that ran the probe")
    basis: str = Field("", description="digest of what the probe depends on: connections, storage, and Spark's section")
    engine: str = ""
    master: str = ""
    application_id: str = ""
    spark_version: str = ""
    java_version: str = ""
    settings: dict[str, str] = Field(default_factory=dict, description="Spark's settings that a copy depends on")
    unsafe_settings: list[str] = Field(default_factory=list)
    airflow_package_version: str = ""
    airflow_python: str = ""
    driver: MachineLook | None = None
    executors: list[MachineLook] = Field(default_factory=list)
    executors_asked: int = Field(-1, description="how many the settings ask for; -1: they do not tell")
    not_asked: list[str] = Field(
        default_factory=list,
        description="executors that Spark names, but that did not answer; the probe says nothing of them",
    )
    not_asked_reason: str = ""
    error: dict[str, Any] | None = None

    @property
    def machines(self) -> list[MachineLook]:
        """All machines that answered, the driver first."""
        return ([self.driver] if self.driver is not None else []) + list(self.executors)
