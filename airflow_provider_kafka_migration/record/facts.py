"""The partitions of a migration as the copy jobs know them, and small helpers that several phases share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_kafka_migration.copy.archive import joined, read_gaps
from airflow_provider_kafka_migration.documents.base import Document
from airflow_provider_kafka_migration.documents.copy import CopyJob, CopyPartition
from airflow_provider_kafka_migration.documents.proof import Outcome, ValidationResult
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.record.record import MigrationRecord


def partition_name(key: TopicPartition) -> str:
    """Return ``topic-partition``, the name of a partition in documents."""
    return f"{key[0]}-{key[1]}"


def by_name(offsets: Mapping[TopicPartition, int]) -> dict[str, int]:
    """Return offsets for a document, ascending by topic and partition."""
    return {partition_name(key): offsets[key] for key in sorted(offsets)}


def load_job(record: MigrationRecord, name: str) -> CopyJob | None:
    """Load a copy job (``seed`` or ``tail``); ``None`` if it was not written yet."""
    data = record.journal_store.get(record.key(f"jobs/{name}.json"))
    return CopyJob.parse(data) if data is not None else None


def migrated_partitions(record: MigrationRecord) -> dict[TopicPartition, CopyPartition]:
    """Return all partitions by (source topic, partition), ascending.

    The tail's job is the most recent: it has the partitions that appeared while the migration ran. Before it exists,
    the seed's job counts, and before that the plan.
    """
    jobs = (load_job(record, name) for name in ("tail", "seed", "restore", "backup"))
    job = next((job for job in jobs if job is not None), None)
    if job is not None:
        return {item.key: item for item in job.partitions}
    found = [
        CopyPartition(
            topic=topic.name,
            target_topic=topic.target_name,
            partition=item.partition,
            topic_id=topic.topic_id,
            source_start_offset=item.source_start_offset,
            target_start_offset=item.target_start_offset,
            verdict=item.verdict,
            size_bytes=item.size_bytes,
        )
        for topic in record.plan().topics
        for item in topic.partitions
    ]
    return {item.key: item for item in sorted(found, key=lambda item: item.key)}


def target_key(partition: CopyPartition) -> TopicPartition:
    """(target topic, partition)."""
    return (partition.target_topic, partition.partition)


def put_result(record: MigrationRecord, name: str, document: Document) -> str:
    """Write or replace ``results/<name>.json`` and return its key."""
    key = record.key(f"results/{name}.json")
    record.journal_store.put(key, document.canonical())
    return key


def get_result(record: MigrationRecord, name: str) -> bytes | None:
    """Read ``results/<name>.json``; ``None`` if there is none."""
    return record.journal_store.get(record.key(f"results/{name}.json"))


def result_data(record: MigrationRecord, name: str) -> dict[str, Any]:
    """Read ``results/<name>.json`` as plain data; empty if there is none."""
    data = get_result(record, name)
    value = json.loads(data) if data else {}
    return value if isinstance(value, dict) else {}


# -- source gaps ------------------------------------------------------------------------------------------------------
#
# Source ranges that retention deleted before they were read, for journal and evidence.


#: Steps whose journal entries contain gaps, too.
_STEPS = ("seed_done", "tail_done")


def source_gaps(record: MigrationRecord) -> list[dict[str, Any]]:
    """All gaps so far, by topic and partition; ``ranges`` are [first lost offset, first offset that still existed]."""
    # Backup lanes can reach only the archive.
    stores = [record.journal_store, *([record.archive_store] if record.spec.seed.via == "split" else [])]
    found = {key: list(gaps) for key, gaps in read_gaps(stores, record.migration_id).items()}
    for name in _STEPS:
        for entry in record.journal.steps(name):
            for item in entry.details.get("gaps", []):
                ranges = [(int(first), int(until)) for first, until in item["ranges"]]
                found.setdefault((str(item["topic"]), int(item["partition"])), []).extend(ranges)
    return [
        {"topic": topic, "partition": partition, "ranges": [list(gap) for gap in joined(gaps)]}
        for (topic, partition), gaps in sorted(found.items())
    ]


# -- validate result --------------------------------------------------------------------------------------------------
#
# The stored result of a validation, and whether it is still valid.


STEP = "validated"
RESULT = "validation"


def passed_result(record: MigrationRecord) -> ValidationResult | None:
    """Return the stored result if the last validation did not fail and the document is the journaled one."""
    entry = record.journal.find_step(STEP)
    result = load_result(record)
    if entry is None or result is None or result.outcome is Outcome.FAILED:
        return None
    return result if entry.details.get("digest") == result.digest() else None


def load_result(record: MigrationRecord) -> ValidationResult | None:
    """Read ``results/validation.json``; ``None`` if there is none."""
    data = get_result(record, RESULT)
    return ValidationResult.parse(data) if data is not None else None
