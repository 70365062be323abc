"""Reads the segments of an archive (a backup, or a seed through S3) as a DataFrame, so that a backup can be queried.

Segments hold Kafka's own batches, as the source's broker stored them, compressed by its codecs, with the records of
aborted transactions among them. No reader of Spark's JVM knows this format, so executors decode them in Python, a
segment at a time, into Arrow batches (``mapInArrow``): records never become Python rows of Spark. Executors need this
package and ``pyarrow``.

Example::

    from airflow_provider_kafka_migration.spark.frames.segments import read_segments

    orders = read_segments(spark, "s3://backups/kafka", "orders-backup", ["orders"], storage="env:BACKUP_STORAGE")
    orders.where("timestamp > '2026-01-01'").selectExpr("count(*)", "sum(length(value))").show()
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_kafka_migration.copy.archive import ArchivedSpan, archived_spans, read_span
from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, LegacyBatch, Record, records

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: As Spark's Kafka source gives them.
COLUMNS: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)
_SPANS: Final = "topic string, partition int, key string, from_offset bigint, until_offset bigint"
#: Records of an Arrow batch, and about so many bytes.
_BATCH_RECORDS: Final = 10_000
_BATCH_BYTES: Final = 16_000_000
#: Spark partitions, unless the caller says otherwise.
_MOST_SPLITS: Final = 1_000


def read_segments(
    spark: SparkSession,
    location: str,
    migration_id: str,
    topics: Iterable[str] = (),
    *,
    storage: str | None = None,
    splits: int = 0,
) -> DataFrame:
    """Return the committed records of an archive, with the columns of :func:`~.topics.read_topic`.

    Each offset is there once, however many copiers have archived it. Where the archive has a gap, nothing is there:
    ``manifest.json`` names gaps.

    :param location: of the archive (``storage.archive`` of the spec), ``s3://`` or ``file://``; executors read it, too.
    :param migration_id: of the backup or migration that has written it.
    :param topics: source topics; empty: all.
    :param storage: a reference to the storage's settings that the driver and each executor resolve (``env:NAME``,
        ``file:PATH`` and the secret stores); None: their own identity. Spark's plans would show settings themselves.
    :param splits: number of Spark partitions; 0: one for each segment, at most 1,000.
    :raises ConnectionInvalid: the reference cannot be resolved here.
    """
    with Clients({"storage": storage}) as clients:
        spans = archived_spans(clients.store(location), migration_id, topics)
    frame = spark.createDataFrame(spans, _SPANS)
    number = splits or max(1, min(len(spans), _MOST_SPLITS))
    return frame.repartition(number).mapInArrow(_Reader(location, migration_id, storage), COLUMNS)


@dataclass(frozen=True)
class _Reader:
    """Reads segments on an executor."""

    location: str
    migration_id: str
    storage: str | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with Clients({"storage": self.storage}) as clients:
            store = clients.store(self.location)
            for batch in batches:
                for row in batch.to_pylist():
                    span = ArchivedSpan(**row)
                    yield from _arrow(span, read_span(store, self.migration_id, span))


def _arrow(span: ArchivedSpan, batches: Iterable[AnyBatch]) -> Iterator[pa.RecordBatch]:
    rows: list[tuple[Record, int]] = []
    size_bytes = 0
    for batch in batches:
        kind = int(batch.is_log_append_time)
        of_batch = batch.records() if isinstance(batch, LegacyBatch) else records(batch)
        for record in of_batch:
            if not span.from_offset <= record.offset < span.until_offset:
                continue
            rows.append((record, kind))
            size_bytes += len(record.key or b"") + len(record.value or b"")
            if len(rows) >= _BATCH_RECORDS or size_bytes >= _BATCH_BYTES:
                yield _batch(span, rows)
                rows, size_bytes = [], 0
    if rows:
        yield _batch(span, rows)


def _batch(span: ArchivedSpan, rows: list[tuple[Record, int]]) -> pa.RecordBatch:
    import pyarrow as pa

    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    count = len(rows)
    columns: list[tuple[str, Any]] = [
        ("key", pa.array([record.key for record, _ in rows], pa.binary())),
        ("value", pa.array([record.value for record, _ in rows], pa.binary())),
        ("topic", pa.array([span.topic] * count, pa.string())),
        ("partition", pa.array([span.partition] * count, pa.int32())),
        ("offset", pa.array([record.offset for record, _ in rows], pa.int64())),
        ("timestamp", pa.array([record.timestamp * 1000 for record, _ in rows], pa.timestamp("us", tz="UTC"))),
        ("timestampType", pa.array([kind for _, kind in rows], pa.int32())),
        ("headers", pa.array([_headers(record) for record, _ in rows], pa.list_(header))),
    ]
    return pa.RecordBatch.from_arrays([column for _, column in columns], names=[name for name, _ in columns])


def _headers(record: Record) -> list[dict[str, Any]] | None:
    """Return the headers as Spark's Kafka source does: null for a record without any."""
    if not record.headers:
        return None
    return [{"key": name.decode("utf-8", "replace"), "value": value} for name, value in record.headers]
