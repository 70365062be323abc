"""Documents of version 1 stay readable: what a backup says of its source, and what came to a plan later."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_kafka_migration.documents.copy import BackupEnd, BackupSource
from airflow_provider_kafka_migration.documents.plan import (
    ClusterFacts,
    LanePlan,
    PartitionPlan,
    Plan,
    PlanSupplement,
    TopicPlan,
    Verdict,
    supplemented,
)
from airflow_provider_kafka_migration.planning.source_snapshot import archived, snapshot_of

CASES = Path(__file__).parents[2] / "cases"


def test_source_of_version_1_is_a_look_and_back() -> None:
    data = (CASES / "backup" / "v1" / "source.json").read_bytes()
    document = BackupSource.parse(data)
    assert document.version == 1
    assert document.canonical() == data.rstrip(b"\n")
    look = snapshot_of(document)
    assert look.keys == [("orders", 0), ("orders", 1)]
    assert look.configs["orders"].overrides == {"cleanup.policy": "compact"}
    assert look.configs["orders"].get("retention.ms") == "604800000"
    assert look.topics["orders"].replication_factor == 3
    assert (look.starts["orders", 0], look.stable["orders", 0], look.sizes["orders", 0]) == (3, 12, 512)
    assert look.samples["orders", 0].density == 6 / 9
    assert archived("orders-2026", look) == document


def test_end_of_version_1() -> None:
    data = (CASES / "backup" / "v1" / "end.json").read_bytes()
    document = BackupEnd.parse(data)
    assert document.version == 1
    assert document.canonical() == data.rstrip(b"\n")
    assert (document.until("orders", 0), document.until("orders", 1), document.until("orders", 2)) == (12, 0, None)


def _partition(number: int) -> PartitionPlan:
    return PartitionPlan(
        partition=number,
        log_start_offset=0,
        end_offset=9,
        high_watermark=9,
        verdict=Verdict.EQUAL,
        source_start_offset=0,
        target_start_offset=0,
    )


def _topic(name: str, count: int) -> TopicPlan:
    return TopicPlan(
        name=name,
        target_name=name,
        partitions=[_partition(number) for number in range(count)],
        replication_factor=1,
        source_replication_factor=1,
        source_configs={},
        target_configs={"retention.ms": "7"},
    )


def test_a_supplement_of_version_1_is_laid_over_a_plan() -> None:
    data = (CASES / "plan_supplement" / "v1" / "supplement.json").read_bytes()
    supplement = PlanSupplement.parse(data)
    assert supplement.canonical() == data.rstrip(b"\n")
    facts = ClusterFacts(cluster_id="c", kafka_version="4.1", mode="kraft", brokers=[1])
    lanes = [LanePlan(lane=0, partitions=[("old", 0), ("orders", 0), ("orders", 1)])]
    plan = Plan(
        migration_id="m", source=facts, target=facts, topics=[_topic("old", 1), _topic("orders", 2)], lanes=lanes
    )
    after = supplemented(plan, [supplement])
    assert {topic.name: [item.partition for item in topic.partitions] for topic in after.topics} == {
        "new": [0],
        "orders": [0, 1, 2],
    }
    assert after.topic("orders").target_configs == {"retention.ms": "7"}, "rules of a topic do not change when it grows"
    assert after.excluded_topics == {"old": "it was deleted on the source"}
    assert [tuple(key) for key in after.lanes[0].partitions] == [("orders", 0), ("orders", 1)]
    again = PlanSupplement(migration_id="m", number=2, topics=[_topic("old", 3)])
    both = supplemented(plan, [again, supplement])
    assert len(both.topic("old").partitions) == 3, "the order is that of the numbers"
