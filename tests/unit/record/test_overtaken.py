"""What people are told of tombstones that may have gone before they were read, and what copiers know of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from phase_support import make_plan, ready

from airflow_provider_kafka_migration.approvals import request
from airflow_provider_kafka_migration.copy.read_watch import write_overtaken
from airflow_provider_kafka_migration.documents.copy import LaneReading, TombstoneSettings
from airflow_provider_kafka_migration.documents.proof import CheckResult, Outcome, OvertakenTombstones
from airflow_provider_kafka_migration.errors import BrokerUnreachable
from airflow_provider_kafka_migration.evidence import bundle
from airflow_provider_kafka_migration.kafka.admin.topics import Configs, ConfigSource, ConfigValue
from airflow_provider_kafka_migration.record.overtaken import tombstone_settings, with_overtaken

CASES = Path(__file__).resolve().parents[2] / "cases"
MET = OvertakenTombstones.parse((CASES / "overtaken_tombstones" / "v1" / "met.json").read_bytes())
NAME = "delete.retention.ms"


def test_documents_of_version_1_are_read_and_written() -> None:
    data = (CASES / "overtaken_tombstones" / "v1" / "met.json").read_bytes().strip()
    assert OvertakenTombstones.parse(data).canonical() == data
    data = (CASES / "lane_reading" / "v1" / "lane.json").read_bytes().strip()
    assert LaneReading.parse(data).canonical() == data


@pytest.mark.parametrize("kind", ["cutover", "client_switch"])
def test_approvals_and_evidence_name_them(tmp_path: Path, kind: Any) -> None:
    context = ready(tmp_path)
    assert "Tombstones" not in request.make_facts(context, kind).body
    write_overtaken(context.journal_store, MET)
    write_overtaken(context.journal_store, MET.model_copy(update={"event": "passed"}))
    body = request.make_facts(context, kind).body
    assert "## Tombstones possibly removed before they were read" in body
    rows = [line for line in body.replace("\\", "").splitlines() if line.startswith("| orders-1 |")]
    (row,) = (line for line in rows if "tombstones" in line)
    assert "2026-07-01T10:00:00.000+00:00 (offset 10)" in row
    assert "86407 s later, after more than delete.retention.ms (86400 s)" in row
    (left,) = (
        item
        for item in bundle.not_copied(context.record, context.record.plan())
        if item["kind"] == "overtaken_tombstones"
    )
    assert (left["name"], left["offsets"]) == ("orders-1", [10, 40])


def test_one_that_cannot_be_read_is_named_all_the_same(tmp_path: Path) -> None:
    context = ready(tmp_path)
    write_overtaken(context.journal_store, MET)
    (key,) = (info.key for info in context.journal_store.list("m1/overtaken-tombstones/"))
    context.journal_store.put(key, b"{")
    (found,) = context.record.overtaken()
    assert (found["topic"], found["partition"], found["from_offset"], found["until_offset"]) == ("orders", 1, 10, 40)
    assert found["what"].startswith("it is not known when the copy was last at the source's end")


@pytest.mark.parametrize(
    ("told", "known", "expected"),
    [
        ("60000", 7, 60_000),
        ("0", 7, 0),
        ("", 7, 7),
        ("", 0, 0),
        ("", None, 5),
        (None, 7, 7),
        (None, None, 5),
    ],
)
def test_the_last_known_value_counts_where_the_source_tells_none(
    tmp_path: Path, told: str | None, known: int | None, expected: int
) -> None:
    """No answer at all (None) does not keep a copy from its start."""
    context = ready(tmp_path)

    def topic_configs(names: list[str]) -> dict[str, Configs]:
        if told is None:
            raise BrokerUnreachable("nobody answers")
        values = {NAME: ConfigValue(NAME, told, ConfigSource.DYNAMIC_TOPIC)} if told else {}
        return {name: Configs(name, values) for name in names}

    source = SimpleNamespace(absent=False, admin=SimpleNamespace(topic_configs=topic_configs))
    context.source = source  # type: ignore[assignment]
    plan = make_plan({"orders": 1, "plain": 1})
    topics = {topic.name: topic for topic in plan.topics}
    orders = topics["orders"].model_copy(update={"kinds": ["compacted"], "source_configs": {NAME: "5"}})
    plan = plan.model_copy(update={"topics": [orders, topics["plain"]]})
    former = None if known is None else TombstoneSettings(on_overtaken="note", retention_ms={"orders": known})
    assert tombstone_settings(context.spec, context.source, plan, former) == TombstoneSettings(
        on_overtaken="stop", retention_ms={"orders": expected}
    )


def test_a_topic_that_was_copied_again_since_is_named_as_such(tmp_path: Path) -> None:
    context = ready(tmp_path)
    write_overtaken(context.journal_store, MET.model_copy(update={"read_at": "2000-01-01T00:00:00.000+00:00"}))
    assert "copied again" not in context.record.overtaken()[0]["what"]
    context.journal.step("topics_made_again", key="tail", details={"topics": ["orders"]})
    assert context.record.overtaken()[0]["what"].endswith("and copied again from the source's log start")
    write_overtaken(
        context.journal_store, MET.model_copy(update={"read_at": "2999-01-01T00:00:00.000+00:00", "from_offset": 11})
    )
    assert "copied again" not in context.record.overtaken()[1]["what"]


def test_the_content_check_names_them_and_passes_by_what_it_has_seen(tmp_path: Path) -> None:
    context = ready(tmp_path)
    check = CheckResult(name="content", outcome=Outcome.PASSED, summary="equal", findings=["one"])
    assert with_overtaken(context.record, check) == check
    write_overtaken(context.journal_store, MET)
    found = with_overtaken(context.record, check)
    assert found.outcome is Outcome.PASSED
    assert found.findings[0] == "one"
    assert found.findings[1].startswith("orders-1 was compared as a whole after this: the copy has everything")
