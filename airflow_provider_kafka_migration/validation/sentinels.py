"""Check: the sentinels that ended the source's log are at the ends of the copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_kafka_migration.documents.copy import OffsetMapDocument
from airflow_provider_kafka_migration.documents.cutover import Boundary
from airflow_provider_kafka_migration.documents.proof import (
    CheckResult,
    Outcome,
)
from airflow_provider_kafka_migration.freeze.sentinel_records import sentinels_between
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.record.offset_maps import closed_maps
from airflow_provider_kafka_migration.record.record import MigrationRecord


def check_sentinels(
    boundary: Boundary,
    expected: Mapping[TopicPartition, int | None],
    on_target: Mapping[TopicPartition, int | None],
) -> CheckResult:
    """Check that every sentinel is on the target, at the offset that the map gives.

    :param expected: target offset of the sentinel by source partition; None: the map has no offset for it.
    :param on_target: target offset at which it was found; None: it was not found.
    """
    if boundary.mode == "end_offsets":
        return CheckResult(
            name="sentinels",
            outcome=Outcome.PASSED,
            summary="none were written (sentinel: end_offsets); the recorded ends are checked with the offsets",
        )
    rows: list[dict[str, Any]] = []
    findings = []
    for sentinel in sorted(boundary.sentinels, key=lambda item: (item.topic, item.partition)):
        key = (sentinel.topic, sentinel.partition)
        wanted, seen = expected.get(key), on_target.get(key)
        good = wanted is not None and wanted == seen
        if not good:
            place = "not found" if seen is None else f"at offset {seen}"
            findings.append(f"{key[0]}-{key[1]}: the sentinel is {place} on the target, expected at offset {wanted}")
        rows.append(
            {
                "topic": key[0],
                "partition": key[1],
                "source_offset": sentinel.offset,
                "target_offset": seen,
                "outcome": (Outcome.PASSED if good else Outcome.FAILED).value,
            }
        )
    missing = sorted(expected.keys() - {(item.topic, item.partition) for item in boundary.sentinels})
    findings += [f"{topic}-{partition}: no sentinel was written" for topic, partition in missing]
    return CheckResult(
        name="sentinels",
        outcome=Outcome.FAILED if findings else Outcome.PASSED,
        summary=f"{len(rows) - len(findings) + len(missing)} of {len(expected)} sentinels at the expected offset",
        partitions=rows,
        findings=findings,
    )


def check(record: MigrationRecord, target: Cluster, document: OffsetMapDocument, boundary: Boundary) -> CheckResult:
    """Look for each sentinel at its translated offset on the target. A partition without one fails the check."""
    if boundary.mode == "end_offsets":
        return check_sentinels(boundary, {}, {})
    maps = closed_maps(document)
    target_topics = {(item.topic, item.partition): item.target_topic for item in document.partitions}
    expected = {
        (item.topic, item.partition): maps[item.topic, item.partition].translate(item.offset).target_offset
        for item in boundary.sentinels
        if (item.topic, item.partition) in maps
    }
    starts = {(target_topics[key], key[1]): offset for key, offset in expected.items() if offset is not None}
    ends = {key: offset + 1 for key, offset in starts.items()}
    log_ends = target.wire.list_offsets(list(starts), "latest") if starts else {}
    reachable = {key: offset for key, offset in starts.items() if offset < log_ends[key]}
    found = sentinels_between(target.wire, record.migration_id, reachable, ends) if reachable else {}
    seen = {key: found.get((target_topics[key], key[1])) for key in expected}
    everywhere: dict[TopicPartition, int | None] = dict.fromkeys(target_topics)
    return check_sentinels(boundary, {**everywhere, **expected}, seen)
