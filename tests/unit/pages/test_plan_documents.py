"""Lanes, verdicts, names, the documents beside the plan, and differences between plans. No broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from airflow_provider_kafka_migration.access.permissions import iam_policy, needed, patterns
from airflow_provider_kafka_migration.cli.app import app
from airflow_provider_kafka_migration.documents.plan import (
    ClusterFacts,
    EstimatePlan,
    LanePlan,
    PartitionPlan,
    Plan,
    TopicPlan,
    Verdict,
)
from airflow_provider_kafka_migration.errors import Terminal
from airflow_provider_kafka_migration.lanes.assignment import add_to_lanes, assign_lanes
from airflow_provider_kafka_migration.pages.plan import as_text, diff_plans, documents, estimate_cost
from airflow_provider_kafka_migration.planning.verdicts import TargetTopics, check_names, verdict_of
from airflow_provider_kafka_migration.record.finding_codes import CODES
from airflow_provider_kafka_migration.spec import MigrationSpec, parse_spec
from airflow_provider_kafka_migration.topics.configs import TargetRules

ROOT = Path(__file__).resolve().parents[3]


def _spec(**sections: Any) -> MigrationSpec:
    data: dict[str, Any] = {
        "migration_id": "orders-2026",
        "source": {"conn_id": "env:SOURCE"},
        "target": {"conn_id": "env:TARGET"},
        "storage": {"journal": "s3://bucket/journal"},
    }
    return parse_spec({**data, **sections})


def _facts(name: str, version: str, mode: Any) -> ClusterFacts:
    return ClusterFacts(cluster_id=name, kafka_version=version, mode=mode, brokers=[1, 2, 3])


def _plan(sizes: tuple[int, ...] = (1000, 2000), **changes: Any) -> Plan:
    partitions = [
        PartitionPlan(
            partition=number,
            log_start_offset=number,
            end_offset=100,
            high_watermark=100,
            size_bytes=size,
            verdict=Verdict.EQUAL,
            source_start_offset=number,
            target_start_offset=number,
        )
        for number, size in enumerate(sizes)
    ]
    topic = TopicPlan(
        name="shop.orders",
        target_name="shop.orders",
        partitions=partitions,
        replication_factor=2,
        source_replication_factor=3,
        source_configs={"retention.ms": "1000"},
        target_configs={"retention.ms": "1000"},
        dropped_configs={"message.format.version": "removed"},
        kinds=["transactional"],
    )
    plan = Plan(
        migration_id="orders-2026",
        source=_facts("old", "3.9", "zookeeper"),
        target=_facts("new", "4.1", "kraft"),
        topics=[topic],
        lanes=[LanePlan(lane=0, partitions=[("shop.orders", 0), ("shop.orders", 1)])],
        estimate=EstimatePlan(copy_bytes=3000, copy_seconds=0.1),
    )
    return plan.model_copy(update=changes)


# -- lanes -----------------------------------------------------------------------------------------------------------

_SIZES = st.dictionaries(st.tuples(st.sampled_from("abc"), st.integers(0, 50)), st.integers(-1, 10**9), max_size=60)


@given(_SIZES, st.integers(1, 12))
def test_lanes_hold_each_partition_once_and_are_stable(sizes: dict[tuple[str, int], int], lanes: int) -> None:
    made = assign_lanes(sizes, lanes)
    assert sorted(key for lane in made for key in lane.partitions) == sorted(sizes)
    assert made == assign_lanes(dict(reversed(sizes.items())), lanes)


@given(_SIZES.filter(lambda sizes: len(sizes) > 4), st.integers(2, 4))
def test_lanes_are_balanced(sizes: dict[tuple[str, int], int], lanes: int) -> None:
    weights = [lane.size_bytes + 65536 * len(lane.partitions) for lane in assign_lanes(sizes, lanes)]
    # Largest first, to the lightest: no two lanes differ by more than the largest item.
    assert max(weights) - min(weights) <= max(max(sizes.values()), 0) + 65536


@given(_SIZES.filter(bool), st.integers(1, 5), st.integers(0, 10**9))
def test_new_partitions_join_and_nothing_moves(sizes: dict[tuple[str, int], int], lanes: int, size: int) -> None:
    before = assign_lanes(sizes, lanes)
    after = add_to_lanes(before, {("new", 0): size})
    for old, new in zip(before, after, strict=True):
        assert set(old.partitions) <= set(new.partitions)
    assert sum(("new", 0) in lane.partitions for lane in after) == 1


# -- verdicts and names ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offsets", "start", "holes", "records", "verdict"),
    [
        ({}, 0, 0, -1, Verdict.EQUAL),
        ({}, 1_000_000_000, 0, -1, Verdict.EQUAL),
        ({}, 1_000_000_001, 0, -1, Verdict.SHIFTED),
        ({"mode": "equal"}, 10**12, 10**12, 1, Verdict.EQUAL),
        ({"mode": "shifted"}, 0, 0, -1, Verdict.EQUAL),
        ({"mode": "shifted"}, 1, 0, -1, Verdict.SHIFTED),
        ({"mode": "mapped"}, 0, 0, -1, Verdict.MAPPED),
        ({}, 0, 50_000_001, 10**8, Verdict.MAPPED),
        ({}, 0, 2_000_000, 100, Verdict.MAPPED),
        ({}, 0, 900_000, 100, Verdict.EQUAL),
        ({"max_filler_offsets": 0}, 1, 0, -1, Verdict.SHIFTED),
        ({}, 0, 5_000_000, 5_000_000, Verdict.MAPPED),
        ({"max_fill_time": "3h"}, 0, 5_000_000, 5_000_000, Verdict.EQUAL),
        ({"max_fill_time": "1m"}, 0, 900_000, 100, Verdict.EQUAL),
        ({"max_fill_time": "10s"}, 0, 900_000, 100, Verdict.MAPPED),
        ({"mode": "equal", "max_fill_time": 0}, 0, 900_000, 100, Verdict.EQUAL),
    ],
)
def test_verdicts(offsets: dict[str, Any], start: int, holes: int, records: int, verdict: Verdict) -> None:
    found, reason = verdict_of(_spec(offsets=offsets), start, holes, records)
    assert found is verdict
    assert reason


def test_one_topic_may_have_another_offsets_mode() -> None:
    offsets = {
        "mode": "equal",
        "on_mismatch": "note",
        "by_topic": [{"topics": ["events", "logs\\..*"], "mode": "mapped"}, {"topics": ["logs.x"], "mode": "auto"}],
    }
    spec = _spec(offsets=offsets)
    assert verdict_of(spec, 0, 10, 100, topic="orders")[0] is Verdict.EQUAL
    assert verdict_of(spec, 0, 10, 100, topic="logs.x") == (Verdict.MAPPED, "offsets.by_topic: mapped")
    found = {name: spec.offsets.on_mismatch_of(name) for name in ("orders", "events", "logs.x", "events2")}
    assert found == {"orders": "stop", "events": "note", "logs.x": "note", "events2": "stop"}


def test_transactions_are_taken_where_nothing_else_is_exact() -> None:
    assert verdict_of(_spec(offsets={"mode": "transactional"}), 5, 0, 10) == (
        Verdict.TRANSACTIONAL,
        "offsets.mode: transactional",
    )
    for mode in ("auto", "equal", "mapped"):
        found = verdict_of(_spec(offsets={"mode": mode}), 5, 0, 10, "others write there")
        assert found == (Verdict.TRANSACTIONAL, "others write there")
    target = TargetTopics(
        TargetRules(_facts("new", "4.1", "kraft"), {}, None), shared=frozenset({"a"}), no_compare="code 0"
    )
    assert "on_foreign_writer" in target.why_transactional("a")
    assert target.why_transactional("b") == "the target does not compare sequences: code 0"


def test_all_problems_with_names_come_in_one_error() -> None:
    rename = {"topics": {"a": "b", "x": "p.q", "y": "p_q", "typo": "z"}}
    with pytest.raises(Terminal) as caught:
        check_names(_spec(topics={"rename": rename}), ["a", "b", "x", "y"], migration_id="m")
    assert caught.value.details["collisions"] == {"b": ["a", "b"], "p.q, p_q": ["x", "y"]}
    assert caught.value.details["unused_renames"] == ["typo"]
    with pytest.raises(Terminal) as caught:
        check_names(_spec(topics={"rename": {"prefix": "old-cluster."}}), ["l" * 240], migration_id="m")
    assert caught.value.details["too_long"] == ["old-cluster." + "l" * 240]
    # What the source has side by side already is its own affair.
    check_names(_spec(), ["p.q", "p_q"], migration_id="m")


# -- documents -------------------------------------------------------------------------------------------------------


def test_documents_are_deterministic_and_of_this_migration() -> None:
    made = documents(_spec(), _plan())
    assert made == documents(_spec(), _plan())
    assert sorted(made) == ["cost-estimate.json", "permissions.md", "plan.md", "runbook.md"]
    assert "3 -> 2" in made["plan.md"]
    assert "orders-2026" in made["runbook.md"]
    assert "Stop all producers" in made["runbook.md"]
    webhook = _spec(cutover={"freeze": "webhook", "producer_freeze_webhook": "https://switch.example.com/x"})
    assert "POST to https://switch.example.com with action freeze" in documents(webhook, _plan())["runbook.md"]


def test_the_runbook_has_only_commands_that_exist() -> None:
    text = documents(_spec(), _plan())["runbook.md"]
    commands = [line.split("#")[0].split() for line in text.splitlines() if line.startswith("kafka-migration ")]
    assert len(commands) >= 8
    for words in commands:
        shown = CliRunner().invoke(app, [*words[1:], "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
        assert shown.exit_code == 0, f"{' '.join(words)}: {shown.output}"
        assert all(option in shown.output for option in words if option.startswith("--")), words


def test_cost_counts_what_the_way_needs_and_says_what_it_assumes() -> None:
    plan = _plan((10**9, 10**9))
    via_s3, direct = estimate_cost(_spec(), plan), estimate_cost(_spec(seed={"via": "direct"}), plan)
    names = {item.name for item in via_s3.items} - {item.name for item in direct.items}
    assert names == {"S3 segment writes", "S3 segment reads", "S3 segment storage"}
    assert via_s3.total_usd == round(sum(item.usd for item in via_s3.items), 2)
    transfer = next(item for item in via_s3.items if item.name == "network transfer")
    assert (transfer.quantity, transfer.usd) == (6.0, 0.12)
    assert any(
        "do not tell" in text or "does not tell" in text for text in estimate_cost(_spec(), _plan((-1,))).assumptions
    )


@pytest.mark.parametrize(
    ("regexes", "expected"),
    [
        ([r"shop\..*"], [("PREFIXED", "shop.")]),
        ([r"shop\..*", "b-.*"], [("PREFIXED", "b-"), ("PREFIXED", "shop.")]),
        ([".*"], [("LITERAL", "a"), ("LITERAL", "b")]),
        (["a|b"], [("LITERAL", "a"), ("LITERAL", "b")]),
    ],
)
def test_permissions_are_as_narrow_as_the_selection(regexes: list[str], expected: list[tuple[str, str]]) -> None:
    assert patterns(regexes, ["b", "a"]) == expected


def test_permissions_follow_the_spec() -> None:
    plain = needed(_spec(), _plan())
    writes = [item for item in plain if item.side == "source" and "WRITE" in item.operations]
    assert {item.name for item in writes} == {"shop.orders"}
    silent = needed(_spec(cutover={"sentinel": "end_offsets"}), _plan())
    assert not [item for item in silent if item.side == "source" and "WRITE" in item.operations]
    freezing = needed(_spec(cutover={"freeze": "acl"}), _plan())
    assert [item for item in freezing if item.side == "source" and "ALTER" in item.operations]
    mirror = {"kind": "mirror", "mirror": {"source_alias": "A", "target_alias": "B"}}
    groups = {
        policy: needed(_spec(**mirror, groups={"include": ["b.*"], "on_deleted": policy}), _plan())
        for policy in ("note", "repair")
    }
    deleting = {
        policy: [item.side for item in found if item.resource_type == "GROUP" and "DELETE" in item.operations]
        for policy, found in groups.items()
    }
    assert (deleting["note"], set(deleting["repair"])) == ([], {"target"})
    policy = json.dumps(iam_policy(_spec(), [item for item in plain if item.side == "target"], None))
    assert "kafka-cluster:WriteData" in policy
    assert "kafka-migration.orders-2026.*" in policy


# -- differences -----------------------------------------------------------------------------------------------------


def test_differences_name_their_place_and_leave_out_what_always_moves() -> None:
    old = _plan()
    topic = old.topics[0]
    grown = topic.partitions[0].model_copy(update={"end_offset": 500, "size_bytes": 9})
    moving = old.model_copy(update={"topics": [topic.model_copy(update={"partitions": [grown, topic.partitions[1]]})]})
    assert as_text(diff_plans(old, old)) == "the plans are equal"
    assert as_text(diff_plans(old, moving)) == "nothing but moving figures differs"
    assert "topics[shop.orders].partitions[0].end_offset" in as_text(diff_plans(old, moving, moving=True))
    changed = topic.model_copy(update={"target_configs": {"retention.ms": "5"}})
    added = topic.model_copy(update={"name": "shop.new", "target_name": "shop.new"})
    new = old.model_copy(update={"topics": [added, changed]})
    text = as_text(diff_plans(old, new))
    assert "~ topics[shop.orders].target_configs.retention.ms: 1000 -> 5" in text
    assert "+ topics[shop.new]" in text
    assert "- topics[shop.new]" in as_text(diff_plans(new, old))


def test_a_partition_that_joins_a_lane_is_a_difference() -> None:
    old = _plan()
    lane = LanePlan(lane=0, partitions=[*old.lanes[0].partitions, ("shop.new", 0)])
    found = diff_plans(old, old.model_copy(update={"lanes": [lane]}))
    assert [(change.path, change.before) for change in found.changes] == [("lanes[0].partitions[shop.new 0]", None)]


# -- codes -----------------------------------------------------------------------------------------------------------


def test_codes_are_unique() -> None:
    assert all(code == item.code for code, item in CODES.items())


def test_the_example_of_version_1_stays_readable() -> None:
    data = (ROOT / "tests" / "cases" / "plan" / "plan.v1.json").read_bytes()
    plan = Plan.parse(data)
    assert plan.migration_id == "demo"
    assert plan.topic("shop.orders").codecs == ["lz4"]
    assert plan.topic("shop.payments").kinds == ["transactional"]
    assert json.loads(plan.canonical()) == json.loads(data)
    assert f"Digest `{plan.digest()}`" in (ROOT / "docs" / "plan-example.md").read_text(encoding="utf-8")
