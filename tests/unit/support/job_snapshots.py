"""Progress documents and snapshots of jobs, without a job."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow_provider_kafka_migration.documents.copy import MetricsSettings
from airflow_provider_kafka_migration.metrics.snapshot import Sample, Snapshot
from airflow_provider_kafka_migration.storage.base import ObjectStore

#: Seconds since 1970 of the moment that the documents are about.
NOW = 1_800_000_000.0
NOW_MS = int(NOW * 1000)


def entry(topic: str, number: int, lag: int, *, waited: float | None = None, **more: Any) -> dict[str, Any]:
    """A partition of a progress document; its oldest missing record has waited for so many seconds."""
    waiting_ms = -1 if waited is None else NOW_MS - int(waited * 1000)
    found = {"topic": topic, "partition": number, "lag": lag, "held_back": 0, "source_offset": 100 + number}
    return {**found, "waiting_ms": waiting_ms, "mirrored_ms": -1, "verdict": "equal", **more}


def document(*partitions: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A progress document of a running tail, written five seconds ago."""
    at = datetime.fromtimestamp(NOW - 5, UTC).isoformat().replace("+00:00", "Z")
    found: dict[str, Any] = {"migration_id": "orders", "job": "tail", "finished": False, "at": at, "records": 7}
    found |= {
        "partitions_failed": 1,
        "partitions_stuck": 2,
        "partitions_went_back": 0,
        "stuck_seconds": 7.5,
        "partitions_done": 0,
    }
    found |= {"copied_bytes": 70, "source_bytes": 80, "holes": 0, "skipped_records": 0, "seconds": 3.0}
    return {**found, "slices": {}, "records_per_second": 3.5, "partitions": list(partitions), **more}


def snapshot(store: ObjectStore, *partitions: dict[str, Any], **more: Any) -> Snapshot:
    """A snapshot of such a document, with what the lanes in the store report."""
    found = Snapshot.of(store, document(*partitions, **more))
    assert found is not None
    return found


def samples(found: Snapshot, **settings: Any) -> list[Sample]:
    """All samples of a snapshot at :data:`NOW`."""
    return list(found.samples(MetricsSettings(**settings), NOW, recent=found.latency))


def values(found: Snapshot, **settings: Any) -> dict[tuple[str, ...], float]:
    """Value by (name, topic, partition) without what is missing."""
    return {
        (item.metric.name, *(item.labels[name] for name in ("verdict", "topic", "partition") if name in item.labels)): (
            item.value
        )
        for item in samples(found, **settings)
    }


def some_partitions(count: int) -> list[dict[str, Any]]:
    """Partitions of ten topics with lags 0, 1, 2 ..."""
    return [entry(f"t{number % 10}", number // 10, number, waited=number) for number in range(count)]
