"""What a migration will cost: transfer, S3 requests and storage, with the assumptions. Pure."""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document, Part
from airflow_provider_kafka_migration.documents.plan import Plan
from airflow_provider_kafka_migration.spec import MigrationSpec

_GB = 1_000_000_000
_MONTH_SECONDS = 30 * 86400


class CostItem(Part):
    """One item: how much of what, and dollars."""

    name: str
    quantity: float
    unit: str
    usd: float


class CostEstimate(Document):
    """``plan/cost-estimate.json``."""

    version: int = 1
    migration_id: str
    plan_digest: str
    items: list[CostItem]
    total_usd: float
    assumptions: list[str] = Field(default_factory=list)


def estimate_cost(spec: MigrationSpec, plan: Plan) -> CostEstimate:
    """The cost of one migration. Sizes that brokers do not tell count as 0, and that is said."""
    rates = spec.estimate
    total = plan.total_bytes
    partitions = sum(len(topic.partitions) for topic in plan.topics)
    via_s3 = spec.seed.via != "direct"
    segments = sum(_segments(item.size_bytes, spec) for topic in plan.topics for item in topic.partitions)
    journal_puts = 60 + 2 * partitions
    copies = 3 if via_s3 else 2
    items = [_item("network transfer", copies * total / _GB, "GB", rates.usd_per_gb_transfer)]
    items.append(_item("validation reads both sides", 2 * total / _GB, "GB", rates.usd_per_gb_transfer))
    items.append(_item("S3 journal requests", journal_puts / 1000, "1000 requests", rates.usd_per_1000_puts))
    if via_s3:
        items.append(_item("S3 segment writes", segments / 1000, "1000 requests", rates.usd_per_1000_puts))
        items.append(_item("S3 segment reads", segments / 1000, "1000 requests", rates.usd_per_1000_gets))
        months = rates.keep_segments.total_seconds() / _MONTH_SECONDS
        items.append(_item("S3 segment storage", total / _GB * months, "GB months", rates.usd_per_gb_month))
    return CostEstimate(
        migration_id=plan.migration_id,
        plan_digest=plan.digest(),
        items=items,
        total_usd=round(sum(item.usd for item in items), 2),
        assumptions=_assumptions(spec, plan),
    )


def _segments(size_bytes: int, spec: MigrationSpec) -> int:
    return math.ceil(max(size_bytes, 0) / spec.seed.segment_max_bytes)


def _item(name: str, quantity: float, unit: str, usd_each: float) -> CostItem:
    return CostItem(name=name, quantity=round(quantity, 3), unit=unit, usd=round(quantity * usd_each, 4))


def _assumptions(spec: MigrationSpec, plan: Plan) -> list[str]:
    rates: dict[str, Any] = spec.estimate.model_dump(mode="json")
    assumptions = [f"estimate.{name} = {value}" for name, value in sorted(rates.items())]
    assumptions.append(f"{plan.total_bytes:,} bytes on the source's leaders, compressed as they are, copied once")
    assumptions.append(
        "what is produced while the migration runs, and the machines of Spark and Airflow, are not in it"
    )
    if any(item.size_bytes < 0 for topic in plan.topics for item in topic.partitions):
        assumptions.append("the source does not tell the size of some partitions: they count as 0, the cost is too low")
    return assumptions
