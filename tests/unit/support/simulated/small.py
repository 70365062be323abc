"""One small topic ``t``, and what tests ask of the result of its slice."""

from __future__ import annotations

from airflow_provider_kafka_migration.documents.copy import PartitionResult
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from simulated.cluster import SimulatedCluster

KEY: TopicPartition = ("t", 0)
#: Each batch of the source is fetched, and appended, by itself.
SMALL_FETCHES = {"segment_max_bytes": 400}


def plain(source: SimulatedCluster, count: int = 30, batch: int = 5) -> None:
    """Create the topic with records 0, 1, 2, ..."""
    source.create("t")
    source.produce("t", [b"%d" % number for number in range(count)], batch=batch)


def with_hole(source: SimulatedCluster, offsets: int = 4) -> None:
    """Create the topic with ten records, a hole of markers, and six records behind it."""
    plain(source, 10)
    for _ in range(offsets):
        source.log(KEY).write_marker(5, 0, commit=True)
    source.produce("t", [b"%d" % number for number in range(6)], batch=3)


def error_code(result: PartitionResult) -> str:
    """The code of the error that stopped the partition."""
    assert result.error is not None, result
    return str(result.error["code"])


def trouble_code(result: PartitionResult) -> str:
    """The code of the error that is being retried."""
    assert result.error is None, result
    assert result.trouble is not None, result
    return str(result.trouble["code"])
