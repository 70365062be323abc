"""Documents of mirrors that version 1 has written stay readable, for ever: their files are never rewritten."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_kafka_migration.documents.mirror import (
    ComparedPartition,
    GroupSyncReport,
    MirrorComparison,
    MirrorRequest,
    MirrorVerification,
    MissingGroups,
    Promotion,
    RetentionProblems,
    StateTopicsReport,
    TopicDeletions,
)

CASES = Path(__file__).parents[2] / "cases" / "mirror" / "v1"


def test_a_request() -> None:
    data = (CASES / "request.json").read_bytes()
    request = MirrorRequest.parse(data)
    assert (request.number, request.want, request.source_gone, request.refused) == (3, "promoted", True, "")
    assert request.canonical() == data


def test_a_promotion() -> None:
    data = (CASES / "promotion.json").read_bytes()
    found = Promotion.parse(data)
    assert [item.possibly_lost for item in found.partitions] == [15, 0]
    assert found.partitions[1].source_end_offset == -1
    assert found.canonical() == data


def test_an_approved_deletion() -> None:
    data = (CASES / "topic-deletions.json").read_bytes()
    found = TopicDeletions.parse(data)
    assert [(item.remote_topic, item.log_end_offsets) for item in found.topics] == [("A.orders", [120, 0])]
    assert found.canonical() == data


def test_problems_of_the_retention() -> None:
    data = (CASES / "target-retention.json").read_bytes()
    found = RetentionProblems.parse(data)
    assert (found.count, found.problems["orders-1"]) == (2, "the partition has no leader")
    assert found.canonical() == data


def test_a_report_of_heartbeats() -> None:
    data = (CASES / "mirror-maker-heartbeats.json").read_bytes()
    found = StateTopicsReport.parse(data)
    assert (found.written_at, found.problem) == ("2026-04-24T10:40:00Z", "no broker answers")
    assert found.canonical() == data


def test_a_report_of_the_group_sync() -> None:
    data = (CASES / "group-sync.json").read_bytes()
    found = GroupSyncReport.parse(data)
    assert (found.failing_since, found.problem) == ("2026-04-24T10:12:00Z", "Describe on the groups is missing")
    assert found.canonical() == data


def test_groups_that_the_source_no_longer_has() -> None:
    data = (CASES / "groups-missing.json").read_bytes()
    found = MissingGroups.parse(data)
    assert [(item.group, item.brokers, bool(item.since)) for item in found.groups] == [
        ("billing", [1, 2, 3], True),
        ("late", [], False),
    ]
    assert found.canonical() == data


def test_a_comparison_of_contents() -> None:
    data = (CASES / "verification.json").read_bytes()
    found = MirrorVerification.parse(data)
    assert [item.outcome for item in found.partitions] == ["different", "unchecked"]
    assert (found.partitions[0].differences[0].source_offset, found.partitions[1].source_end_offset) == (4321, -1)
    assert not found.is_equal
    assert found.canonical() == data


def test_a_comparison_as_a_job() -> None:
    data = (CASES / "comparison-job.json").read_bytes()
    found = MirrorComparison.parse(data)
    assert [(item.key, item.copied_source_offset) for item in found.ranges] == [
        (("orders", 0), None),
        (("orders", 1), 5000),
    ]
    assert (found.name, found.known[0].outcome, found.last) == ("compare-3cec172", "unchecked", None)
    assert found.canonical() == data


def test_the_result_of_one_partition() -> None:
    data = (CASES / "compared-partition.json").read_bytes()
    found = ComparedPartition.parse(data)
    assert found.error is not None
    assert (found.found.outcome, found.error["code"]) == ("unchecked", "BROKER_UNREACHABLE")
    assert found.job_digest == MirrorComparison.parse((CASES / "comparison-job.json").read_bytes()).digest()
    assert found.canonical() == data
