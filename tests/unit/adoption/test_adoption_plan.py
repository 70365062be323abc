"""What a start makes of a partition's plan, and starts that the spec's promise excludes."""

from __future__ import annotations

import pytest
from phase_support import make_plan

from airflow_provider_kafka_migration.adoption.make import _refuse_other_offsets, load_finder, with_starts
from airflow_provider_kafka_migration.adoption.starts import FoundStarts, adoption_document
from airflow_provider_kafka_migration.documents.adoption import AdoptedStart
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.spec import MigrationSpec, parse_spec


def spec(**sections: object) -> MigrationSpec:
    return parse_spec(
        {
            "migration_id": "m1",
            "source": {"conn_id": "env:S"},
            "target": {"conn_id": "env:T"},
            "storage": {"journal": "file:///journal"},
            "adopt": {"from": "comparison"},
            **sections,
        }
    )


def start(source_offset: int, target_offset: int) -> AdoptedStart:
    return AdoptedStart(source_offset=source_offset, target_offset=target_offset, proof="content")


@pytest.mark.parametrize(
    ("mode", "offsets", "verdict"),
    [
        ("auto", (75, 75), Verdict.EQUAL),
        ("auto", (75, 80), Verdict.SHIFTED),
        ("equal", (75, 75), Verdict.EQUAL),
        ("mapped", (75, 75), Verdict.MAPPED),
    ],
)
def test_the_verdict_says_the_constant(mode: str, offsets: tuple[int, int], verdict: Verdict) -> None:
    (topic,) = make_plan({"orders": 2}).topics
    known = [item.model_copy(update={"size_bytes": 1000, "estimated_records": 100}) for item in topic.partitions]
    topic = topic.model_copy(update={"partitions": known})
    found = FoundStarts(starts={("orders", 1): start(*offsets)})
    document = adoption_document("m1", "comparison", found, {"orders": "orders"})
    plan = with_starts(spec(offsets={"mode": mode}), topic, document)
    ordinary, adopted = plan.partitions
    assert ordinary == known[0]
    assert (adopted.source_start_offset, adopted.target_start_offset) == offsets
    assert adopted.verdict is verdict
    assert adopted.filler_offsets == 0
    assert (adopted.size_bytes, adopted.estimated_records) == (250, 25), "only what is behind the boundary is copied"
    assert adopted.log_start_offset == known[1].log_start_offset


def test_unknown_sizes_stay_unknown() -> None:
    (topic,) = make_plan({"orders": 1}).topics
    found = FoundStarts(starts={("orders", 0): start(100, 100)})
    plan = with_starts(spec(), topic, adoption_document("m1", "comparison", found, {"orders": "orders"}))
    assert (plan.partitions[0].size_bytes, plan.partitions[0].estimated_records) == (-1, -1)


def test_where_offsets_must_be_equal_another_constant_is_refused() -> None:
    found = FoundStarts(starts={("orders", 0): start(75, 80), ("orders", 1): start(75, 75), ("plain", 0): start(1, 2)})
    section = {"mode": "auto", "by_topic": [{"topics": ["orders"], "mode": "equal"}]}
    _refuse_other_offsets(spec(offsets=section), found)
    assert found.starts.keys() == {("orders", 1), ("plain", 0)}
    assert found.refused == {("orders", 0): "source offset 75 goes to 80, but offsets.mode is equal"}


def test_the_way_back_has_a_finder() -> None:
    assert callable(load_finder("way_back"))
