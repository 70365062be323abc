"""The results page is made from the result files alone; a result file says by itself whether it is whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measure import CopyResult
from benchmarks.report import render, write
from benchmarks.run import is_done, line_of
from benchmarks.scenarios import SCENARIOS


def result(peer: str, **changes: Any) -> CopyResult:
    values: dict[str, Any] = {
        "peer": peer,
        "title": f"title of {peer}",
        "complete": True,
        "records_per_second": 1234.5,
        "stored_mb_per_second": 1.0,
        "data_mb_per_second": 2.0,
        "seconds": 3.0,
        "cpu_seconds": 4.0,
        "cpu_seconds_with_start": 5.0,
        "start_seconds": 6.0,
        "peak_rss_mib": 7.0,
        "worker_peak_mib": None,
    }
    return CopyResult(**{**values, **changes})


def document(rows: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "scenario": "json_1mb",
        "title": "t",
        "records": 10_000_000,
        "stored_bytes": 3_000_000_000,
        "record_bytes": 663.3,
        "batch_bytes": 990_000,
        "partitions": 8,
        "kafka": {"source": "3.9.1", "target": "4.1.1"},
        "archive": "a local folder",
        "machine": {"cpus": 2, "cpu": "X", "memory_gib": 24, "system": "S", "python": "3", "load_average": 0.1},
        "at": "2026-01-01T00:00:00Z",
        "quick": False,
        "rows": rows,
        **changes,
    }


def test_the_page_shows_every_row_also_failed_and_cut_off_ones() -> None:
    rows = [
        result("ours_direct", worker_peak_mib=47.0).as_dict(),
        result("mm2_tuned", complete=False).as_dict(),
        {"peer": "raw_limit", "title": "raw limit", "error": "it ended"},
    ]
    page = render({"json_1mb": document(rows)}, "chart.png")
    assert "| title of ours_direct | 1,234 | 2 | 3.0 | 4.00 | 7 | +47 |" in page
    assert "3.0 (cut off)" in page
    assert "| raw limit | failed |" in page
    assert "![records per second of each copier](chart.png)" in page
    assert "not to be quoted" not in page
    assert "not to be quoted" in render({"json_1mb": document(rows, quick=True)}, "chart.png")


def test_the_proofs_are_beside_a_plain_consumer_of_the_same_run() -> None:
    row = {"peer": "independent_proof", "title": "proof", "seconds": [2.0, 1.0], "records_per_second": 1_234_567}
    found = document(
        [{**row, "data_mb_per_second": 800.4, "of_consumer": 0.5}], scenario="proofs", load_after=7.5, title="JSON"
    )
    page = render({"proofs": found}, "chart.png")
    assert "| proof | 1,234,567 | 800 | 0.50 | 2.0, 1.0 |" in page
    assert "medians of 2 rounds" in page
    assert "load before the run 0.1, after it 7.5" in page


def test_without_results_the_page_says_so_and_shows_no_chart() -> None:
    page = render({}, "chart.png")
    assert "No results yet" in page
    assert "chart.png" not in page
    assert "Add a peer of your own" in page


@pytest.mark.slow
def test_page_and_chart_are_written(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    (results / "json_1mb.json").write_text(json.dumps(document([result("ours_direct").as_dict()])))
    write(results, tmp_path / "docs" / "page.md", tmp_path / "docs" / "chart.png")
    assert (tmp_path / "docs" / "chart.png").read_bytes().startswith(b"\x89PNG")
    assert "title of ours_direct" in (tmp_path / "docs" / "page.md").read_text()


def test_a_scenario_is_done_when_every_peer_has_figures_of_this_size(tmp_path: Path) -> None:
    scenario = next(item for item in SCENARIOS if item.name == "json_1mb")
    path = tmp_path / "json_1mb.json"
    assert not is_done(path, scenario)
    rows = [result(name).as_dict() for name in scenario.peers]
    path.write_text(json.dumps(document(rows)))
    assert is_done(path, scenario)
    path.write_text(json.dumps(document(rows, records=1_000_000)))
    assert not is_done(path, scenario), "of a quick run"
    path.write_text(json.dumps(document([*rows[:-1], {"peer": rows[-1]["peer"], "error": "x"}])))
    assert not is_done(path, scenario)
    path.write_text("{")
    assert not is_done(path, scenario)


def test_the_line_on_the_terminal_says_when_a_copy_was_cut_off() -> None:
    assert "time was over" not in line_of(result("p"))
    assert "time was over" in line_of(result("p", complete=False))
