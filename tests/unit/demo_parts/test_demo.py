"""The demo's parts that need nothing running."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from airflow_provider_kafka_migration.pages import approval
from airflow_provider_kafka_migration.provider.params import spec_from_params
from airflow_provider_kafka_migration.spec import parse_spec
from demo.drive import Patience, code_in, log_story, params, waiting_story
from demo.groups import GROUPS, Groups, Switched, _read_from_before
from demo.schemas import SchemasVerdict
from demo.screen import Screen, progress_text
from demo.verdict import Verdict, _problems, _states
from demo.world import World, topics
from harness.compare import Comparison, Difference, PartitionContent, TopicResult
from harness.load import Kind
from harness.processes import HarnessError

ROOT = Path(__file__).parents[3]


@pytest.fixture
def demo_spec(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The spec that the demo triggers its run with."""
    from demo.world import Keys

    world = World.__new__(World)
    world.keys = Keys.make()
    world.webhook = SimpleNamespace(url="http://127.0.0.1:1/freeze")  # type: ignore[assignment]
    return world.spec()


def test_the_demo_migrates_at_least_six_topics_of_all_kinds() -> None:
    loads = topics()
    assert len(loads) >= 6
    assert {topic.kind for topic in loads} >= set(Kind) - {Kind.LOG_APPEND_TIME}
    assert len({topic.codec for topic in loads}) >= 4
    assert sum(topic.records for topic in loads) >= 200_000
    assert sum(topic.records * topic.record_bytes for topic in loads) >= 100_000_000


def test_three_groups_stand_at_different_places() -> None:
    assert len(GROUPS) == 3
    assert sorted(plan.fraction for plan in GROUPS) == [0.5, 0.75, 1.0]
    assert sum(plan.never is not None for plan in GROUPS) == 1


def test_the_params_of_the_run_are_the_spec(demo_spec: dict[str, Any]) -> None:
    assert spec_from_params(params(demo_spec)) == parse_spec(demo_spec)


def test_the_code_is_found_in_the_text_that_the_product_shows(demo_spec: dict[str, Any]) -> None:
    facts: dict[str, Any] = {
        **{
            name: []
            for name in ("groups", "findings", "source_drift", "overtaken_tombstones", "target_losses", "left_out")
        },
        **dict.fromkeys(("tail", "cannot_fit", "not_fenced", "signing_key"), ""),
        "lag": {},
        "total_lag": 0,
        "partitions": 1,
        "expected_freeze_seconds": 1.0,
        "active_on_source": [],
        "unfenced": [],
        "handover": {"changes": 0, "typical_seconds": 1.0},
        "behind_boundary": {"late": {}, "unchecked": {}, "partitions": 1},
        "frozen": {"frozen_seconds": 1.0},
        "proof": None,
        "schemas": None,
    }
    for kind in ("cutover", "client_switch"):
        _, body = approval.render(parse_spec(demo_spec), kind, "0a1b2c3d", facts)
        assert code_in(body) == "0a1b2c3d"
    with pytest.raises(HarnessError, match="shows no code"):
        code_in("type nothing")


def verdict(**changes: Any) -> Verdict:
    """One of a good demo, with changes."""
    good: dict[str, Any] = {
        "states": ["planned", "validating", "finalized"],
        "comparison": Comparison({"shop.a": TopicResult("shop.a", 10, 10, 100, 100)}),
        "groups": [Switched(plan.name, 0, 0, 1, 2) for plan in GROUPS],
        "schemas": SchemasVerdict(6, 8, True, 4000),
        "frozen_seconds": 3.5,
        "verdicts": {"equal": 3},
        "evidence_path": Path("build/demo/evidence.json"),
        "evidence_verified": True,
        "evidence_says": "verified",
        "independent": {"records": 100, "differences": 0, "reader": "Spark"},
        "seconds": 12.34,
    }
    return Verdict(**{**good, **changes})


def problems(found: Verdict, failed: list[Any] | None = None) -> list[str]:
    """What the demo finds wrong with it."""
    return _problems(found, SimpleNamespace(producers=[SimpleNamespace(failed=failed or [])]))  # type: ignore[arg-type]


def test_the_summary_has_exactly_the_promised_keys() -> None:
    summary = verdict().summary()
    assert list(summary) == [
        *("migration_id", "states", "topics", "groups", "schemas", "frozen_seconds", "independent"),
        *("evidence_path", "evidence_verified", "seconds"),
    ]
    assert summary["schemas"] == {"subjects": 6, "versions": 8, "ids_kept": True, "decoded_records": 4000}
    assert set(summary["topics"][0]) == {"name", "source_records", "target_records", "content_equal", "offsets_equal"}
    assert set(summary["groups"][0]) == {"group", "reread", "skipped"}
    json.dumps(summary)


def test_a_good_demo_has_no_problems() -> None:
    assert problems(verdict()) == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"states": ["planned", "failed"]}, "not finalized"),
        ({"states": []}, "not finalized"),
        ({"comparison": Comparison({"a": TopicResult("a", content_equal=False)})}, "a: the content differs"),
        ({"comparison": Comparison({"a": TopicResult("a", offsets_equal=False)})}, "a: offsets differ"),
        ({"comparison": Comparison({}, [Difference("a", 0, "end", 5, 4)], 1)}, "a-0: end"),
        ({"groups": [Switched("g", 1, 0, 0, 0)]}, "1 records re-read"),
        ({"groups": [Switched("g", 0, 2, 0, 0)]}, "2 skipped"),
        ({"groups": []}, "groups"),
        ({"schemas": SchemasVerdict(6, 8, False, 0, ["the target's registry has other ids"])}, "other ids"),
        ({"evidence_verified": False}, "does not verify"),
    ],
)
def test_whatever_is_off_is_named(changes: dict[str, Any], named: str) -> None:
    assert any(named in problem for problem in problems(verdict(**changes)))


def test_lost_records_of_the_producer_are_named() -> None:
    assert any("producers lost 1" in problem for problem in problems(verdict(), [("a", 0, "error")]))


def test_states_come_from_the_journal_in_order(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    entries = [("planned", "planned"), ("planned", "precheck"), ("precheck", "precheck"), ("precheck", "seed")]
    journal.write_text("".join(json.dumps({"from": a, "to": b}) + "\n" for a, b in entries), encoding="utf-8")
    assert _states(journal) == ["planned", "precheck", "seed"]


def test_records_from_before_a_committed_offset_count_as_reread() -> None:
    part = PartitionContent(0, 3)
    part.offsets.extend([0, 1, 2])
    part.digests += b"a" * 16 + b"b" * 16 + b"c" * 16
    reader = SimpleNamespace(seen={("t", 0): [(1, b"b" * 16), (2, b"c" * 16)]})
    content = {"t": {0: part}}
    assert _read_from_before(reader, {("t", 0): 1}, content) == 0  # type: ignore[arg-type]
    assert _read_from_before(reader, {("t", 0): 2}, content) == 1  # type: ignore[arg-type]
    assert _read_from_before(reader, {}, content) == 0  # type: ignore[arg-type]


def test_groups_without_a_live_reader_can_be_stopped() -> None:
    Groups({}, {}, {}, {}).stop()


def test_progress_as_tasks_store_it_becomes_a_line() -> None:
    stored = {"phase": "seed", "message": "12 of 17", "records_per_second": 12345.6, "done_bytes": 5, "total_bytes": 10}
    assert progress_text(stored) == "12 of 17, 12,346 rec/s, 50%"
    assert progress_text(None) == ""


def test_a_failed_task_is_told_by_its_error_first() -> None:
    log = "one\ntwo error error_detail=[{'exc_type': 'X', 'exc_value': \"it's [so]\", 'exc_notes': [], 'frames': []}]"
    story = log_story("seed", log)
    assert story.splitlines()[:3] == ["", "it's [so]", "the log of seed ends:"]
    assert log_story("seed", "only this").splitlines() == ["", "the log of seed ends:", "only this"]


def test_a_run_that_does_not_end_says_what_it_waits_for() -> None:
    states = {"plan": "success", "tail": "running", "drain_ready": "deferred", "validate": None}
    story = waiting_story("slow", states, {"tail": "lag 186453 records in 21 of 21 partitions"})
    assert "tail (running): lag 186453 records" in story
    assert "drain_ready (deferred)" in story
    assert "slow; it waits for" in story
    assert "plan" not in story
    assert "validate" not in story


def test_a_slow_run_goes_on_as_long_as_something_moves() -> None:
    """It is told once that it is slow, and it is over when nothing has moved for half an hour."""
    now = time.monotonic()
    patience = Patience()
    told = [patience.look(minute, now + 60 * minute) for minute in range(300)]
    assert [number for number, text in enumerate(told) if text] == [11]
    assert "cores" in told[11]
    assert not patience.is_over
    assert [patience.look("still", now + 60 * minute) for minute in range(300, 331)] == [""] * 31
    assert "nothing has changed for 30 minutes" in patience.look("still", now + 60 * 331)
    assert patience.is_over


def test_the_screen_prints_changes_only_where_there_is_no_terminal() -> None:
    out = io.StringIO()
    with Screen(Console(file=out, width=200)) as screen:
        for state in (None, "queued", "running", "running", "success", "success"):
            screen.show({"plan": state}, {})
    assert [line.split()[:2] for line in out.getvalue().splitlines()] == [["plan", "running"], ["plan", "success"]]


def test_a_wrong_approve_is_a_usage_error() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demo"],
        cwd=ROOT,
        env={**os.environ, "APPROVE": "perhaps"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "neither auto nor manual" in done.stderr
