"""Adopted starts: documents of before keep their digests, and the example is read and written unchanged."""

from __future__ import annotations

import json
from pathlib import Path

from airflow_provider_kafka_migration.documents.adoption import AdoptedStart, Adoption, BelowMap
from airflow_provider_kafka_migration.documents.copy import CopyPartition
from airflow_provider_kafka_migration.documents.plan import Plan

CASES = Path(__file__).resolve().parents[2] / "cases"


def test_the_example_is_read_and_written_unchanged() -> None:
    data = (CASES / "adoption" / "v1" / "adoption.json").read_bytes().strip()
    document = Adoption.parse(data)
    assert document.canonical() == data
    start = document.start("orders", 0)
    assert start is not None
    assert (start.source_offset, start.target_offset, start.earlier.duplicates) == (6940, 7422, 482)
    assert document.start("orders", 1) is None
    assert document.refused[0].reason.startswith("the target's last record")


def test_partitions_that_are_left_out_came_later() -> None:
    data = (CASES / "adoption" / "v1" / "adoption-left-out.json").read_bytes()
    document = Adoption.parse(data)
    assert document.canonical() == data
    assert [(item.topic, item.partition) for item in document.left_out] == [("A.orders", 1)]
    before = (CASES / "adoption" / "v1" / "adoption.json").read_bytes()
    assert b"left_out" not in Adoption.parse(before).canonical()


def test_a_plan_of_before_keeps_its_digest() -> None:
    data = json.loads((CASES / "plan" / "plan.v1.json").read_bytes())
    plan = Plan.model_validate(data)
    assert all("adopted" not in item for topic in plan.model_dump()["topics"] for item in topic["partitions"])
    again = Plan.parse(plan.canonical())
    assert again.digest() == plan.digest()


def test_an_adopted_partition_has_no_fillers_and_says_that_it_is_adopted() -> None:
    plan = Plan.parse((CASES / "plan" / "plan.v1.json").read_bytes())
    topic = plan.topics[0]
    start = AdoptedStart(source_offset=7, target_offset=9, proof="content")
    adopted = topic.partitions[0].model_copy(
        update={"adopted": start, "source_start_offset": 7, "target_start_offset": 9}
    )
    assert adopted.filler_offsets == 0
    assert adopted.model_validate_json(adopted.model_dump_json()) == adopted
    job = CopyPartition.of_plan(topic, adopted)
    assert job.adopted
    assert job.model_dump()["adopted"] is True
    assert "adopted" not in CopyPartition.of_plan(topic, topic.partitions[0]).model_dump()


def test_the_example_of_a_map_below_is_read_and_written_unchanged() -> None:
    data = (CASES / "adoption" / "v1" / "below.json").read_bytes().strip()
    document = BelowMap.parse(data)
    assert document.canonical() == data
    assert len(document.ranges) == 6
