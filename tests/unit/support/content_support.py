"""In-memory logs for content tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_provider_kafka_migration.compare.comparison import ContentOptions, compare_content, range_map
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.documents.proof import ContentRange, PartitionContent, TopicRules
from airflow_provider_kafka_migration.kafka.batches.api import (
    AnyBatch,
    RawBatch,
    Record,
    encode_batch,
    patched_header,
    rebuild,
    records,
)
from airflow_provider_kafka_migration.offset_map.runs import PartitionMap

DELETED_ONLY = TopicRules(compacted=False)
COMPACTED = TopicRules(compacted=True, delete_retention_ms=1_000)
NOW_MS = 1_700_000_000_000


class MemoryLog:
    """A log as a list of batches; implements ``CommittedLog``."""

    def __init__(self, batches: Sequence[AnyBatch], log_start: int = 0) -> None:
        self.stored = list(batches)
        self.log_start = log_start
        self.read_bytes = 0
        self.skipped: list[tuple[int, int]] = []
        self.reads = 0

    def batches(self, start_offset: int, stop_offset: int) -> Iterator[AnyBatch]:
        """What overlaps the range."""
        self.reads += 1
        first = max(start_offset, self.log_start)
        if first > start_offset:
            self.skipped.append((start_offset, first))
        for batch in self.stored:
            if (
                batch.next_offset > first
                and batch.next_offset - 1 >= self.log_start
                and self._base(batch) < stop_offset
            ):
                self.read_bytes += batch.size_bytes
                yield batch

    @staticmethod
    def _base(batch: AnyBatch) -> int:
        return batch.base_offset if isinstance(batch, RawBatch) else batch.last_offset

    def log_start_offset(self) -> int:
        """The log start."""
        return self.log_start

    def last_stable_offset(self) -> int:
        """One past the last batch."""
        return max((batch.next_offset for batch in self.stored), default=self.log_start)


def record(offset: int, key: bytes | None = None, value: bytes | None = b"", time: int = 0) -> Record:
    """A record with a value of its own unless one is given."""
    content = f"value {offset}".encode() if value == b"" else value
    return Record(offset, NOW_MS - 60_000 + (time or offset), key, content, [(b"trace", b"1"), (b"trace", None)])


def batch(batch_records: Sequence[Record], codec: int = 3, **fields: int) -> RawBatch:
    """One batch."""
    return RawBatch(memoryview(encode_batch(batch_records, codec, **fields)))  # type: ignore[arg-type]


def log_of(count: int, per_batch: int = 10, first: int = 0, key_every: int = 0) -> MemoryLog:
    """A log without holes."""
    made = [
        record(offset, key=f"key {offset % key_every}".encode() if key_every else None)
        for offset in range(first, first + count)
    ]
    return MemoryLog([batch(made[at : at + per_batch]) for at in range(0, count, per_batch)], log_start=first)


def raw_copy(source: RawBatch, shift: int = 0) -> RawBatch:
    """What the target holds of a batch that was forwarded: another header, the same payload."""
    header = bytearray(patched_header(source, producer_id=7, producer_epoch=0, base_sequence=0))
    header[0:8] = (source.base_offset - shift).to_bytes(8, "big")
    return RawBatch(memoryview(bytes(header) + bytes(source.payload)))


def copy_of(log: MemoryLog, shift: int = 0) -> MemoryLog:
    """A faithful copy of all batches; those with holes are rebuilt."""
    made: list[AnyBatch] = []
    for source in log.stored:
        assert isinstance(source, RawBatch)
        parts = [source] if source.is_full and not source.is_log_append_time else rebuild(source)
        made += [raw_copy(part, shift) for part in parts]
    return MemoryLog(made, log_start=log.log_start - shift)


def rewrite(log: MemoryLog, change: dict[int, Record | None], inserted: Sequence[Record] = ()) -> MemoryLog:
    """The log with some records replaced or left out, each batch encoded anew."""
    made: list[AnyBatch] = []
    for old in log.stored:
        assert isinstance(old, RawBatch)
        kept = [change.get(item.offset, item) for item in records(old)]
        left = [item for item in kept if item is not None]
        if left:
            made.append(batch(left, old.codec, base_offset=old.base_offset, last_offset=old.last_offset))
    if inserted:
        made.append(batch(inserted))
    return MemoryLog(made, log.log_start)


def content_range(
    source_start: int, source_end: int, shift: int = 0, target_end: int | None = None, verdict: str = "equal"
) -> ContentRange:
    """A range of partition 0 of the topic ``orders``."""
    return ContentRange(
        topic="orders",
        target_topic="orders",
        partition=0,
        verdict=Verdict(verdict),
        source_start_offset=source_start,
        source_end_offset=source_end,
        target_start_offset=source_start - shift,
        target_end_offset=source_end - shift if target_end is None else target_end,
    )


def compare(
    source: MemoryLog,
    target: MemoryLog,
    compared: ContentRange | None = None,
    *,
    rules: TopicRules = DELETED_ONLY,
    offset_map: PartitionMap | None = None,
    options: ContentOptions | None = None,
) -> PartitionContent:
    """Compare two logs; by default all that the target has, with equal offsets."""
    if compared is None:
        end = max(source.last_stable_offset(), target.last_stable_offset())
        compared = content_range(min(source.log_start, target.log_start), end)
    return compare_content(
        compared,
        offset_map or range_map(compared),
        rules,
        source,
        target,
        options or ContentOptions(now_ms=NOW_MS),
    )


def kinds(content: PartitionContent) -> list[tuple[str, int | None]]:
    """(kind, source offset) of the kept differences."""
    return [(difference.kind, difference.source_offset) for difference in content.differences]
