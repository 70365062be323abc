"""The benchmark of planning with simulated metadata, with few partitions: the product's own plan phase in it works."""

from __future__ import annotations

from pathlib import Path

from benchmarks import lanes


def test_all_steps_run_and_two_plans_are_equal(tmp_path: Path) -> None:
    summary = lanes.run(230, 8, tmp_path)
    assert summary["partitions"] == 230
    assert summary["lanes"] == 8
    assert summary["equal_plans"] is True
    assert {row["step"] for row in summary["steps"]} >= {"plan", "plan again", "read plan.json", "read job.json"}
    assert summary["seconds"] < lanes.AIM_SECONDS


def test_the_simulated_clusters_are_the_same_each_time() -> None:
    (first, _), (second, _) = lanes.simulated(100), lanes.simulated(100)
    assert first.admin.sizes == second.admin.sizes
    assert len(set(first.admin.sizes.values())) > 90
