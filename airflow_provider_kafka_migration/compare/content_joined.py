"""Results of the comparison of several stretches of one partition, put together."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Literal

from airflow_provider_kafka_migration.compare.comparison import KEPT_DIFFERENCES
from airflow_provider_kafka_migration.compare.content_spans import Spans
from airflow_provider_kafka_migration.documents.proof import PartitionContent

Method = Literal["payload", "decoded", "archive"]


def joined(first: PartitionContent, second: PartitionContent) -> PartitionContent:
    """What two comparisons of stretches of the same partition have found together.

    The digests are those over the two digests, so they depend on where the stretches meet; those of the two sides are
    still equal exactly if nothing differs.
    """
    spans = Spans()
    for from_offset, until_offset in (*first.uncompared, *second.uncompared):
        spans.add(from_offset, until_offset)
    return PartitionContent(
        topic=first.topic,
        partition=first.partition,
        source_records=first.source_records + second.source_records,
        target_records=first.target_records + second.target_records,
        compared=first.compared + second.compared,
        source_digest=_digest(first.source_digest, second.source_digest),
        target_digest=_digest(first.target_digest, second.target_digest),
        method=_method(first, second),
        explained=dict(sorted((Counter(first.explained) + Counter(second.explained)).items())),
        uncompared=spans.ranges(),
        uncompared_records=first.uncompared_records + second.uncompared_records,
        archive_records=first.archive_records + second.archive_records,
        uncompared_reason=first.uncompared_reason or second.uncompared_reason,
        difference_count=first.difference_count + second.difference_count,
        differences=[*first.differences, *second.differences][:KEPT_DIFFERENCES],
        error=first.error or second.error,
    )


def _digest(first: str, second: str) -> str:
    return hashlib.sha256(bytes.fromhex(first) + bytes.fromhex(second)).hexdigest()


def _method(first: PartitionContent, second: PartitionContent) -> Method:
    methods = {item.method for item in (first, second) if item.source_records or item.target_records}
    if methods == {"archive"}:
        return "archive"
    return "payload" if methods <= {"payload"} else "decoded"
