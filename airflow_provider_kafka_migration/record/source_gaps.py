"""Source ranges that were lost to retention before they were read, for journal and evidence."""

from __future__ import annotations

from typing import Any

from airflow_provider_kafka_migration.copy.gap_log import joined, read_gaps
from airflow_provider_kafka_migration.record.context import PhaseContext

#: Steps whose entries say them, too.
_STEPS = ("seed_done", "tail_done")


def source_gaps(context: PhaseContext) -> list[dict[str, Any]]:
    """All gaps so far, by topic and partition; ``ranges`` are [first offset lost, first offset that was there]."""
    # Backup lanes know no other store than the archive.
    stores = [context.journal_store, *([context.archive_store] if context.spec.seed.via == "split" else [])]
    found = {key: list(gaps) for key, gaps in read_gaps(stores, context.migration_id).items()}
    for name in _STEPS:
        for entry in context.journal.steps(name):
            for item in entry.details.get("gaps", []):
                ranges = [(int(first), int(until)) for first, until in item["ranges"]]
                found.setdefault((str(item["topic"]), int(item["partition"])), []).extend(ranges)
    return [
        {"topic": topic, "partition": partition, "ranges": [list(gap) for gap in joined(gaps)]}
        for (topic, partition), gaps in sorted(found.items())
    ]
