"""How long producers are frozen, with many partitions and groups. Figures go to ``build/frozen-time/``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cutover_support import CUTOVER_STEPS, Lab

from airflow_provider_kafka_migration.kafka.admin.groups import GroupOffset
from airflow_provider_kafka_migration.phases import groups

pytestmark = pytest.mark.integration

BUILD = Path(__file__).parents[3] / "build" / "frozen-time"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("topics", "partitions", "group_count"),
    [
        pytest.param(4, 25, 20, id="100-partitions-20-groups"),
        pytest.param(20, 50, 200, id="1000-partitions-200-groups", marks=pytest.mark.soak),
    ],
)
def test_frozen_time(
    make_lab: Callable[..., Lab],
    fill: Callable[..., None],
    unique_name: Callable[[str], str],
    topics: int,
    partitions: int,
    group_count: int,
) -> None:
    names = {unique_name(f"t{number}"): partitions for number in range(topics)}
    fill(names, 3)
    lab = make_lab(list(names), cutover={"max_producer_freeze": "10m"})
    context = lab.begin()
    offsets = {(name, number): GroupOffset(2) for name in names for number in range(partitions)}
    for number in range(group_count):
        context.source.admin.alter_group_offsets(f"{lab.migration_id}.{number:04d}", offsets)
    lab.start_tail()
    lab.enter_cutover(context)
    for step in CUTOVER_STEPS:
        if step is groups.commit_groups:
            lab.join_tail(120)
        step(context)
    frozen = context.record.stored_result("frozen-time")
    size = f"{topics * partitions}-partitions-{group_count}-groups"
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / f"{size}.json").write_text(json.dumps(frozen, indent=2, sort_keys=True) + "\n")
    assert set(frozen["steps"]) == {
        "freeze",
        "sentinels",
        "final_drain",
        "snapshot_groups",
        "commit_groups",
        "floor_guard",
    }
    assert frozen["frozen_seconds"] >= sum(frozen["steps"].values()) - 0.1
    assert frozen["frozen_seconds"] <= 60
    found = context.target.admin.groups_offsets([f"{lab.migration_id}.{n:04d}" for n in range(group_count)])
    assert {item.offset for group in found.values() for item in group.offsets.values()} == {2}
    assert {len(group.offsets) for group in found.values()} == {topics * partitions}
