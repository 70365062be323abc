"""What the findings of Spark's own Kafka source mean for a partition of a mirror."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_kafka_migration.compare.mirrored import judged_independently
from airflow_provider_kafka_migration.documents.independent import IndependentResult
from airflow_provider_kafka_migration.documents.mirror import MirroredRange
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.documents.proof import ContentDifference, ContentRange, TopicRules

RANGE = ContentRange(
    topic="orders",
    target_topic="A.orders",
    partition=1,
    verdict=Verdict.EQUAL,
    source_start_offset=0,
    source_end_offset=10,
    target_start_offset=0,
    target_end_offset=10,
)


def piece(**fields: Any) -> MirroredRange:
    rules = TopicRules(compacted=True)
    return MirroredRange(
        range=RANGE, first_source_offset=0, first_target_offset=0, source_rules=rules, target_rules=rules, **fields
    )


def found(**fields: Any) -> IndependentResult:
    values = {"source_records": 10, "target_records": 10, "compared": 10, **fields}
    return IndependentResult(migration_id="m1", job_digest="d", range=RANGE, reader="a reader", **values)


@pytest.mark.parametrize(
    ("of_piece", "of_result", "outcome", "reason"),
    [
        ({}, {}, "equal", ""),
        ({}, {"difference_count": 1}, "different", ""),
        ({"held_back": "an open transaction hides it"}, {}, "unchecked", "an open transaction hides it; 10 records"),
        ({"lacking": "the target has deleted it"}, {}, "unchecked", "the target has deleted it; 10 records"),
        ({}, {"source_only": {"undated": 2}}, "unchecked", "2 records cannot be compared: tombstones"),
        ({}, {"explained": {"marked": 3}}, "unchecked", "3 records outside the offset map say that"),
        ({}, {"not_compared": "timestamps"}, "unchecked", "timestamps"),
        ({}, {"not_compared": "timestamps", "difference_count": 1}, "different", ""),
        ({}, {"compared": 0}, "unchecked", "none of its records could be compared"),
        ({}, {"compared": 0, "source_records": 0, "target_records": 0}, "nothing", "neither side has a record"),
        ({}, {"explained": {"marked": 3}, "difference_count": 1}, "different", ""),
    ],
)
def test_outcomes(of_piece: dict[str, Any], of_result: dict[str, Any], outcome: str, reason: str) -> None:
    judged = judged_independently(piece(**of_piece), found(**of_result))
    assert judged.outcome == outcome
    assert judged.reason.startswith(reason)
    assert bool(judged.reason) is bool(reason)


def test_what_each_side_lacks_is_told_apart() -> None:
    differences = [ContentDifference(kind="missing", source_offset=3, target_offset=3)]
    judged = judged_independently(
        piece(below="source offsets 0 to 4 are gone"),
        found(
            source_only={"compacted": 2, "undated": 1},
            explained={"expired": 4, "marked": 1},
            deleted_records=5,
            target_deleted_records=6,
            difference_count=1,
            differences=differences,
        ),
    )
    assert judged.only_on_source == {"compacted": 2}
    assert judged.only_on_target == {"expired": 4}
    assert judged.deleted_meanwhile == 11
    assert judged.differences == differences
    assert judged.notes == [
        "source offsets 0 to 4 are gone",
        "5 records of the target could not be compared: the source has deleted them meanwhile",
        "6 records of the source could not be compared: the target has deleted them meanwhile",
    ]
