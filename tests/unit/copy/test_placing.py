"""Where steps land, and which runs of the offset map are written ahead of them."""

from __future__ import annotations

import pytest
from placing_world import World

from airflow_provider_kafka_migration.copy.transform import Hole
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import HolesExceedBudget
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange
from airflow_provider_kafka_migration.offset_map.store import LaneMaps
from airflow_provider_kafka_migration.storage.base import ObjectStore


def test_packed_steps_write_a_run_for_each_stretch(local_store: ObjectStore) -> None:
    world = World(local_store, Verdict.MAPPED)
    copy = world.copy
    world.place([0, 1, 4], [5, 9], [10])
    assert [step.record_count for step in copy.write.pending] == [6]  # type: ignore[union-attr]
    assert world.runs() == [(0, 0), (4, 2), (9, 4)]
    assert (copy.write.source_offset, copy.write.projected_offset, copy.write.shift) == (11, 6, 5)
    world.place([11, 12], [20])
    assert world.runs() == [(0, 0), (4, 2), (9, 4), (20, 8)], "nothing lies between 10 and 12: the same run"
    assert (copy.write.source_offset, copy.write.projected_offset, copy.write.shift, copy.write.markers) == (
        21,
        9,
        12,
        0,
    )
    _, sent, sequence = copy.write.take_append()
    assert (sent.target_offset, sequence) == (0, 0)
    assert list(sent.runs_at(0)) == [OffsetRange(0, 0, 2), OffsetRange(4, 2, 2), OffsetRange(9, 4, 2)]
    step, sent, sequence = copy.write.take_append()
    assert (sent.target_offset, sent.source_offset, step.source_next_offset, sequence) == (6, 11, 21, 6)
    assert list(sent.runs_at(6)) == [OffsetRange(11, 6, 2), OffsetRange(20, 8, 1)]
    assert copy.write.is_idle is False
    assert copy.write.pending_bytes == 0


def test_what_is_decided_after_the_budget_is_spent_is_packed(local_store: ObjectStore) -> None:
    world = World(local_store, Verdict.EQUAL, max_markers=3)
    world.place([0, 2, 4], [8, 10])
    assert world.copy.verdict is Verdict.MAPPED
    assert [step.source_offset for step in world.copy.write.pending] == [0, 1, 2, 3, 4, 8, 10]
    assert world.runs() == [(0, 0), (8, 5), (10, 6)]
    world.place([12, 14, 16])
    assert world.copy.write.pending[-1].record_count == 3  # type: ignore[union-attr]
    assert world.runs()[3:] == [(12, 7), (14, 8), (16, 9)]


def fill(world: World, seconds: float) -> None:
    """All that is pending is sent and answered; each hole takes so long."""
    copy, now = world.copy, 0.0
    while copy.write.pending:
        copy.write.note_hole(now)
        if isinstance(copy.write.pending[0], Hole):
            now += seconds
            copy.write.filling = copy.write.pending[0].count
            copy.confirm_fill(copy.write.confirmed_offset + copy.write.filling, now)
        else:
            copy.write.take_append()
            copy.confirm_append()


@pytest.mark.parametrize(
    ("seconds", "limit", "verdict"),
    [
        (2.0, 94, Verdict.MAPPED),
        (2.0, 96, Verdict.EQUAL),
        (1.9, 50, Verdict.EQUAL),  # not measured for long enough
        (0.01, 0, Verdict.MAPPED),
    ],
)
def test_holes_whose_rest_takes_too_long_are_left_out(
    local_store: ObjectStore, seconds: float, limit: int, verdict: Verdict
) -> None:
    world = World(local_store, Verdict.EQUAL, max_fill_seconds=limit)
    copy = world.copy
    copy.read.last_stable_offset = 126
    world.place([0, 2, 4, 6], [8, 10])
    fill(world, seconds)
    assert copy.write.fill_seconds == pytest.approx(5 * seconds)
    world.place([12, 14, 16])  # five holes up to offset 12, and 114 offsets are left
    assert copy.verdict is verdict
    assert copy.write.fills_holes is (verdict is Verdict.EQUAL)


def test_a_partition_may_have_to_keep_its_offsets_though_others_need_not(local_store: ObjectStore) -> None:
    world = World(local_store, Verdict.EQUAL, max_fill_seconds=20, on_mismatch="note")
    world.copy.spec = world.copy.spec.model_copy(update={"on_mismatch": "stop"})
    world.copy.read.last_stable_offset = 1000
    world.place([0, 2, 4])
    fill(world, 5.0)
    with pytest.raises(HolesExceedBudget):
        world.place([6, 8])


def test_a_time_budget_that_must_be_kept_stops_the_partition(local_store: ObjectStore) -> None:
    world = World(local_store, Verdict.EQUAL, max_fill_seconds=20, on_mismatch="stop")
    world.copy.read.last_stable_offset = 1000
    world.place([0, 2, 4])
    fill(world, 5.0)
    with pytest.raises(HolesExceedBudget, match=r"another 1657 s for 3 records"):
        world.place([6, 8])


@pytest.mark.parametrize("target_end_offset", [4, 6])
def test_a_copier_that_dies_between_packed_appends_goes_on_behind_them(
    local_store: ObjectStore, target_end_offset: int
) -> None:
    world = World(local_store, Verdict.MAPPED)
    world.place([0, 3, 6, 9])
    world.place([12, 15])
    found = LaneMaps(local_store, "m1").load(world.copy.spec, target_end_offset)
    assert found.source_position(target_end_offset) == {4: 10, 6: 16}[target_end_offset]
    assert [found.source_of(offset) for offset in range(target_end_offset)] == [0, 3, 6, 9, 12, 15][:target_end_offset]
