"""What a short read from the source has measured, and the time the copy takes at that rate. Beside the plan, not in it:
two plans of unchanged clusters are byte-equal, two measurements never are."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document


class MeasuredRates(Document):
    """``plan/measured-rates.json``. A rate of 0 means that there was nothing to read."""

    version: int = 1
    migration_id: str
    plan_digest: str
    partitions: list[tuple[str, int]] = Field(description="(source topic, partition) that were read, ascending")
    connections: int = Field(description="connections that read at the same time")
    read_bytes: int
    seconds: float
    read_bytes_per_second: int = Field(description="of all connections together")
    given_bytes_per_second: int = Field(description="estimate.copy_bytes_per_second of the spec")
    copy_bytes_per_second: int = Field(description="the smaller of the two: what the estimate uses")
    limited_by: Literal["source", "spec"]
    copy_bytes: int = Field(description="bytes on the source's leaders, -1 where brokers do not tell")
    copy_seconds: float = Field(description="-1 where the bytes are not known")
    errors: list[str] = Field(default_factory=list, description="partitions that could not be read, and why")

    def summary(self) -> str:
        """One line for people."""
        if not self.read_bytes:
            return "measured: nothing could be read; the given rate is used"
        time = "unknown time (the source does not tell its sizes)"
        if self.copy_seconds >= 0:
            time = f"about {self.copy_seconds:.0f} s"
        return (
            f"measured: {self.read_bytes_per_second / 1e6:,.1f} MB/s read from the source by {self.connections} "
            f"connections in {self.seconds:.1f} s; at {self.copy_bytes_per_second / 1e6:,.1f} MB/s "
            f"(limited by the {self.limited_by}) the copy takes {time}"
        )
