"""Fields that came later keep the digests of documents that were journaled before them."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_kafka_migration.documents.job_end import JobEnd
from airflow_provider_kafka_migration.documents.plan import Plan, PlanSupplement, supplemented

CASES = Path(__file__).resolve().parents[2] / "cases"


def test_the_end_of_a_job_of_before_keeps_its_bytes() -> None:
    for name, application in (("end", ""), ("end-yarn", "application_1410901177871_0001")):
        data = (CASES / "job_end" / f"{name}.v1.json").read_bytes().strip()
        end = JobEnd.parse(data)
        assert end.canonical() == data
        assert (end.application_id, str(end.error)[:16]) == (application, "[EXECUTOR_UNFIT]")


def test_a_supplement_of_before_keeps_its_bytes() -> None:
    data = (CASES / "plan_supplement" / "v1" / "supplement.json").read_bytes().strip()
    assert PlanSupplement.parse(data).canonical() == data


def test_a_supplement_with_changed_configs_is_read_written_and_applied() -> None:
    data = (CASES / "plan_supplement" / "v1" / "supplement-configs.json").read_bytes().strip()
    supplement = PlanSupplement.parse(data)
    assert supplement.canonical() == data
    plan = Plan.parse((CASES / "plan" / "plan.v1.json").read_bytes())
    after = supplemented(plan, [supplement])
    topic = after.topic("shop.orders")
    assert topic.source_configs == {"retention.ms": "2000", "segment.ms": "5"}
    assert topic.target_configs == {"retention.ms": "2000"}
    assert topic.dropped_configs == {"segment.ms": "excluded by topology.config_exclude"}
    assert [item.partitions for item in after.topics] == [item.partitions for item in plan.topics]
    others = [item for item in after.topics if item.name != "shop.orders"]
    assert others == [item for item in plan.topics if item.name != "shop.orders"]
