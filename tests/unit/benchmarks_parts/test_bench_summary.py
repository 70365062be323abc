"""The summary says what the rows say, and nothing where nothing was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.summary import AIMS, LIMITS, against_aims, load, summarise

KEYS = {
    "ratios": {
        "records_per_second_vs_mm2_tuned",
        "cpu_seconds_mm2_tuned_vs_ours",
        "raw_limit_direct",
        "raw_limit_s3",
    },
    "tail_ms": {"p50", "p99", "mm2_p50", "mm2_p99"},
}


def row(peer: str, rate: float, cpu: float, worker: float | None = None) -> dict[str, Any]:
    return {
        "peer": peer,
        "title": peer,
        "records_per_second": rate,
        "cpu_seconds": cpu,
        "worker_peak_mib": worker,
    }


def tail_row(peer: str, rate: int, p50: float, p99: float) -> dict[str, Any]:
    return {"peer": peer, "title": peer, "records_per_second": rate, "p50_ms": p50, "p99_ms": p99}


def documents() -> dict[str, Any]:
    headline = [
        row("raw_limit", 1_000_000, 2.0, 10.0),
        row("ours_direct", 950_000, 2.5, 60.0),
        row("ours_s3", 500_000, 6.0, 164.25),
        row("confluent_loop", 150_000, 30.0, 900.0),
        row("mm2_tuned", 100_000, 125.0),
    ]
    tail = [
        tail_row("ours_direct", 1_000, 0.5, 1.0),
        tail_row("ours_direct", 10_000, 2.0, 16.0),
        tail_row("mm2_tuned", 10_000, 4.0, 60.0),
        tail_row("mm2_tuned", 10_000, 6.0, 40.0),
        {"peer": "mm2_tuned", "title": "x", "records_per_second": 10_000, "error": "it ended"},
    ]
    other = [row("ours_direct", 1, 1.0, 200.0), {"peer": "ours_s3", "title": "x", "error": "refused"}]
    return {
        "json_1mb": {"scenario": "json_1mb", "rows": headline},
        "tail": {"scenario": "tail", "rows": tail},
        "compacted": {"scenario": "compacted", "rows": other},
    }


def test_the_summary_has_exactly_the_keys_that_were_promised() -> None:
    for found in (summarise({}), summarise(documents())):
        assert set(found) == {"ratios", "tail_ms", "worker_peak_mib"}
        assert {name: set(found[name]) for name in KEYS} == KEYS


def test_ratios_are_of_the_headline_scenario() -> None:
    assert summarise(documents())["ratios"] == {
        "records_per_second_vs_mm2_tuned": 9.5,
        "cpu_seconds_mm2_tuned_vs_ours": 50.0,
        "raw_limit_direct": 0.95,
        "raw_limit_s3": 0.5,
    }


def test_tail_is_at_the_higher_rate_and_mirror_maker_at_its_best() -> None:
    assert summarise(documents())["tail_ms"] == {"p50": 2.0, "p99": 16.0, "mm2_p50": 6.0, "mm2_p99": 40.0}


def test_worker_peak_is_of_our_workers_over_all_scenarios() -> None:
    assert summarise(documents())["worker_peak_mib"] == 200.0


def test_what_was_not_measured_is_none() -> None:
    found = summarise({})
    assert set(found["ratios"].values()) == set(found["tail_ms"].values()) == {None}
    assert found["worker_peak_mib"] is None
    assert {met for *_, met in against_aims(found)} == {None}


def test_a_failed_peer_gives_no_ratio() -> None:
    given = documents()
    given["json_1mb"]["rows"][4] = {"peer": "mm2_tuned", "title": "x", "error": "no record on the target"}
    ratios = summarise(given)["ratios"]
    assert ratios["records_per_second_vs_mm2_tuned"] is None
    assert ratios["cpu_seconds_mm2_tuned_vs_ours"] is None
    assert ratios["raw_limit_direct"] == 0.95


def test_aims_are_met_or_missed() -> None:
    found = {what: (value, met) for what, value, _, met in against_aims(summarise(documents()))}
    assert found["records per second, times MirrorMaker 2 tuned"] == (9.5, False)
    assert found["CPU of MirrorMaker 2 tuned, times ours"] == (50.0, True)
    assert found["memory of a worker above idle, MiB"] == (200.0, True)


def test_each_aim_has_what_limits_it() -> None:
    assert set(LIMITS) == {what for what, *_ in AIMS}


def test_only_result_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "json_1mb.json").write_text(json.dumps(documents()["json_1mb"]))
    (tmp_path / "summary.json").write_text(json.dumps(summarise(documents())))
    (tmp_path / "torn.json").write_text('{"scenario": "torn", "ro')
    assert set(load(tmp_path)) == {"json_1mb"}
    with pytest.raises(KeyError):
        load(tmp_path)["summary"]
