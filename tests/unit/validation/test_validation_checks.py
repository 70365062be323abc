"""Each check finds what it is there for, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from phase_support import make_plan

from airflow_provider_kafka_migration.documents.copy import OffsetMapDocument
from airflow_provider_kafka_migration.documents.cutover import (
    Boundary,
    GroupResult,
    Sentinel,
    TranslatedOffset,
    Translation,
)
from airflow_provider_kafka_migration.documents.proof import ContentDifference, Outcome, PartitionContent, worst
from airflow_provider_kafka_migration.freeze.late_writes import LateWrites
from airflow_provider_kafka_migration.offset_map.runs import (
    MapEntry,
    OffsetRange,
    PartitionMap,
    build_offset_map_document,
)
from airflow_provider_kafka_migration.spec import ValidationSection
from airflow_provider_kafka_migration.validation.content import check_content
from airflow_provider_kafka_migration.validation.counts import CountRules, Ends, check_counts
from airflow_provider_kafka_migration.validation.groups import TargetCommits, check_groups
from airflow_provider_kafka_migration.validation.sentinels import check_sentinels
from airflow_provider_kafka_migration.validation.topics import TargetTopic, check_topic_parity

KEY = ("orders", 0)
GOOD = {"retention.ms": "1000"}


def test_worst() -> None:
    assert worst([]) is Outcome.PASSED
    assert worst([Outcome.PASSED, Outcome.WARNING]) is Outcome.WARNING
    assert worst([Outcome.FAILED, Outcome.WARNING]) is Outcome.FAILED


@pytest.mark.parametrize(
    ("target", "finding"),
    [
        (TargetTopic(2, GOOD), ""),
        (TargetTopic(0, {}), "not on the target"),
        (TargetTopic(3, GOOD), "3 partitions"),
        (TargetTopic(2, {"retention.ms": "-1"}), "retention.ms is -1"),
        (TargetTopic(2, {}), "retention.ms is not set"),
        (TargetTopic(2, {**GOOD, "min.compaction.lag.ms": "9"}), "min.compaction.lag.ms is 9"),
    ],
)
def test_topic_parity(target: TargetTopic, finding: str) -> None:
    result = check_topic_parity(make_plan().topics, {"orders": 2}, {"orders": target})
    assert result.outcome is (Outcome.FAILED if finding else Outcome.PASSED)
    assert bool(result.findings) == bool(finding)
    assert finding in " ".join(result.findings)


def document() -> OffsetMapDocument:
    offset_map = PartitionMap([OffsetRange(10, 10)], source_end_offset=100, target_end_offset=100)
    return build_offset_map_document("m1", [MapEntry("orders", 0, offset_map)])


def content(**changes: Any) -> PartitionContent:
    return PartitionContent.model_validate(
        {
            "topic": "orders",
            "partition": 0,
            "source_records": 80,
            "target_records": 80,
            "compared": 80,
            "source_digest": "d",
            "target_digest": "d",
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("source", "target", "changes", "outcome"),
    [
        (Ends(10, 100), Ends(10, 100), {}, "PASSED"),
        (Ends(50, 100), Ends(10, 150), {}, "PASSED"),  # retention on the source, clients on the target
        (Ends(10, 100), Ends(0, 100), {}, "FAILED"),  # a crash has brought fillers back
        (Ends(10, 101), Ends(10, 100), {}, "PASSED"),  # a marker, no record, was written to the source
        (Ends(10, 99), Ends(10, 100), {}, "FAILED"),  # the source lost its end
        # cut after it was compared: applications delete what is theirs
        (Ends(10, 100), Ends(11, 100), {}, "WARNING"),
        # cut before: it may be lost
        (Ends(10, 100), Ends(11, 100), {"difference_count": 1}, "FAILED"),
        (Ends(100, 100), Ends(11, 100), {"uncompared": [(10, 11)]}, "FAILED"),
        (Ends(10, 100), Ends(10, 99), {}, "FAILED"),
        (Ends(10, 100), Ends(10, 100), {"target_records": 79}, "FAILED"),
        (Ends(10, 100), Ends(10, 100), {"target_records": 85, "explained": {"compacted": 5}}, "PASSED"),
        (Ends(10, 100), Ends(10, 100), {"target_records": 85, "explained": {"compacted": 4}}, "FAILED"),
    ],
)
def test_counts_and_offsets(source: Ends, target: Ends, changes: dict[str, Any], outcome: str) -> None:
    rules = CountRules()
    result = check_counts(document(), {KEY: 100}, {KEY: source}, {KEY: target}, {KEY: content(**changes)}, rules)
    assert result.outcome == outcome, result.findings


@pytest.mark.parametrize(("policy", "outcome"), [("stop", "FAILED"), ("note", "WARNING")])
def test_records_behind_the_boundary_fail_by_default(policy: Any, outcome: str) -> None:
    assert ValidationSection().on_late_writes == "stop"
    late = LateWrites(3, "2026-01-01T00:00:00+00:00", (7,))
    rules = CountRules(late_writes={KEY: str(late)}, on_late_writes=policy)
    ends = {KEY: Ends(10, 103)}
    result = check_counts(document(), {KEY: 100}, ends, {KEY: Ends(10, 100)}, {KEY: content()}, rules)
    assert result.outcome == outcome
    assert "3 records were written to the source after the cutover" in result.findings[0]
    assert "producer ids 7" in result.findings[0]


def test_below_an_adopted_range_is_content_of_others() -> None:
    args = (document(), {KEY: 100}, {KEY: Ends(10, 100)}, {KEY: Ends(0, 101)}, {KEY: content()})
    assert check_counts(*args, CountRules()).outcome is Outcome.FAILED, "fillers came back"
    assert check_counts(*args, CountRules(adopted=frozenset({KEY}))).outcome is Outcome.PASSED


def test_a_log_start_may_move_once_retention_is_back() -> None:
    rules = CountRules(retention_is_back=True)
    ends = {KEY: Ends(10, 100)}
    args = (document(), {KEY: 100}, ends, {KEY: Ends(99, 100)})
    assert check_counts(*args, {KEY: content()}, rules).outcome is Outcome.PASSED
    assert check_counts(*args, {KEY: content(difference_count=1)}, rules).outcome is Outcome.FAILED
    assert check_counts(*args, {}, rules).outcome is Outcome.FAILED, "nothing was compared"


@pytest.mark.parametrize(
    "changes",
    [{"uncompared": [(10, 20)]}, {"compared": 0, "explained": {"compacted": 80}, "source_records": 0}],
    ids=["uncompared", "all explained"],
)
@pytest.mark.parametrize(
    ("seen", "outcome"), [(10, Outcome.WARNING), (9, Outcome.WARNING), (11, Outcome.FAILED), (None, Outcome.FAILED)]
)
def test_a_log_start_that_moved_after_the_comparison_is_no_loss(
    changes: dict[str, Any], seen: int | None, outcome: Outcome
) -> None:
    rules = CountRules(compared_log_starts={} if seen is None else {KEY: seen})
    found = check_counts(
        document(), {KEY: 100}, {KEY: Ends(10, 100)}, {KEY: Ends(15, 100)}, {KEY: content(**changes)}, rules
    )
    assert found.outcome is outcome, found.findings
    differing = content(**changes, difference_count=1)
    failed = check_counts(document(), {KEY: 100}, {KEY: Ends(10, 100)}, {KEY: Ends(15, 100)}, {KEY: differing}, rules)
    assert failed.outcome is Outcome.FAILED


def test_a_boundary_other_than_the_maps_end_fails() -> None:
    ends = {KEY: Ends(10, 100)}
    result = check_counts(document(), {KEY: 90}, {KEY: Ends(10, 90)}, ends, {KEY: content()}, CountRules())
    assert result.outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({}, ""),
        ({"difference_count": 1, "differences": [ContentDifference(kind="missing", source_offset=7)]}, "missing"),
        ({"error": {"what": "no broker"}}, "no broker"),
        ({"target_digest": "e"}, "digests"),
        ({"target_digest": "e", "explained": {"compacted": 1}}, ""),
    ],
)
def test_content(changes: dict[str, Any], finding: str) -> None:
    result = check_content([content(**changes)], [KEY])
    assert result.outcome is (Outcome.FAILED if finding else Outcome.PASSED)
    assert finding in " ".join(result.findings)


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        (
            {"source_records": 0, "compared": 0, "uncompared": [(10, 100)], "uncompared_records": 80},
            "source offsets 10..99 were deleted on the source before they were compared (there is no archive)",
        ),
        ({"uncompared": [(10, 20)], "uncompared_records": 0}, "the target has 0 records there, 80 other"),
        ({"compared": 0, "source_records": 0, "explained": {"compacted": 80}}, "none of its 80 records"),
    ],
)
def test_what_could_not_be_compared_is_a_warning_with_its_ranges(changes: dict[str, Any], finding: str) -> None:
    result = check_content([content(**changes)], [KEY])
    assert result.outcome is Outcome.WARNING
    assert finding in " ".join(result.findings)
    assert result.partitions[0]["outcome"] == "WARNING"
    counts = check_counts(
        document(), {KEY: 100}, {KEY: Ends(100, 100)}, {KEY: Ends(10, 100)}, {KEY: content(**changes)}, CountRules()
    )
    assert counts.outcome is Outcome.PASSED, "what the source has deleted is not a difference in numbers"


def test_a_partition_without_records_has_nothing_to_compare() -> None:
    empty = content(compared=0, source_records=0, target_records=0)
    assert check_content([empty], [KEY]).outcome is Outcome.PASSED


def test_a_partition_that_was_not_compared_fails() -> None:
    assert check_content([], [KEY]).outcome is Outcome.FAILED


def boundary(**changes: Any) -> Boundary:
    return Boundary.model_validate(
        {
            "migration_id": "m1",
            "attempt": 1,
            "mode": "record",
            "sentinels": [Sentinel(topic="orders", partition=0, offset=99)],
            "ends": {"orders-0": 100},
            **changes,
        }
    )


@pytest.mark.parametrize(("seen", "outcome"), [(99, "PASSED"), (98, "FAILED"), (None, "FAILED")])
def test_sentinels(seen: int | None, outcome: str) -> None:
    assert check_sentinels(boundary(), {KEY: 99}, {KEY: seen}).outcome == outcome


def test_a_partition_without_a_sentinel_fails_but_not_with_end_offsets() -> None:
    expected: dict[tuple[str, int], int | None] = {KEY: 99, ("orders", 1): None}
    assert check_sentinels(boundary(), expected, {KEY: 99}).outcome is Outcome.FAILED
    assert check_sentinels(boundary(mode="end_offsets", sentinels=[]), {}, {}).outcome is Outcome.PASSED


def group(target_offset: int | None = 50, **changes: Any) -> GroupResult:
    offset = TranslatedOffset(
        topic="orders",
        target_topic="orders",
        partition=0,
        source_offset=50,
        target_offset=target_offset,
        translation=Translation.EQUAL if target_offset is not None else Translation.SKIPPED,
        reason=changes.pop("reason", ""),
    )
    return GroupResult.model_validate(
        {"group": "g", "type": "classic", "source_state": "Empty", "offsets": [offset], **changes}
    )


def commits(offset: int | None, *, is_empty: bool = True, error: str = "") -> dict[str, TargetCommits]:
    offsets = {} if offset is None else {KEY: offset}
    return {"g": TargetCommits("Empty" if is_empty else "Stable", is_empty, offsets, error)}


@pytest.mark.parametrize(
    ("result", "there", "outcome"),
    [
        (group(), commits(50), "PASSED"),
        (group(), commits(49), "FAILED"),
        (group(), commits(None), "FAILED"),
        (group(), commits(51), "WARNING"),
        (group(), commits(51, is_empty=False), "PASSED"),
        (group(), commits(101, is_empty=False), "FAILED"),
        (group(reason="the target is ahead"), commits(60), "PASSED"),
        (group(None), commits(None), "WARNING"),
        (group(failures=[{"what": "no"}]), commits(50), "FAILED"),
        (group(skipped_reason="members"), commits(None), "WARNING"),
        (group(), commits(50, error="denied"), "FAILED"),
        (group(), {}, "FAILED"),
    ],
)
def test_groups(result: GroupResult, there: dict[str, TargetCommits], outcome: str) -> None:
    found = check_groups([result], there, {KEY: 100})
    assert found.outcome == outcome
    assert bool(found.findings) == (outcome != "PASSED")


def test_groups_active_on_the_source_are_a_warning() -> None:
    assert check_groups([group()], commits(50), {KEY: 100}, ["g"]).outcome is Outcome.WARNING
