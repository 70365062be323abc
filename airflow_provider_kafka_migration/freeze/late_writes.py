"""Records that were written to the source after its end was drawn: the target does not have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from airflow_provider_kafka_migration.compare.content_log import KafkaLog
from airflow_provider_kafka_migration.kafka.batches.api import LegacyBatch
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire

#: Counting ends here: the message is the same for more of them.
MAX_COUNTED = 100_000


@dataclass(frozen=True)
class LateWrites:
    """What one source partition has behind its boundary.

    :param records: committed records, counted up to :data:`MAX_COUNTED`.
    :param first_at: timestamp of the first one, ISO 8601; empty without one.
    :param producer_ids: of idempotent and transactional producers that wrote them.
    :param is_open: an open transaction hides what lies behind its first record.
    :param deleted_offsets: offsets behind the boundary that the source has deleted already.
    """

    records: int
    first_at: str = ""
    producer_ids: tuple[int, ...] = ()
    is_open: bool = False
    deleted_offsets: int = 0

    def __bool__(self) -> bool:
        return self.records > 0 or self.is_open or self.deleted_offsets > 0

    def __str__(self) -> str:
        more = "at least " if self.records >= MAX_COUNTED else ""
        text = f"{more}{self.records} records were written to the source after the cutover and are not on the target"
        text += f" (the first at {self.first_at})" if self.first_at else ""
        if self.producer_ids:
            text += f", by producer ids {', '.join(map(str, self.producer_ids[:5]))}"
        text += "; an open transaction may hold more" if self.is_open else ""
        return f"{text}; {self.deleted_offsets} more offsets are deleted already" if self.deleted_offsets else text


def read_late_writes(
    wire: Wire, boundary: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, LateWrites]:
    """Partitions of the source that have records behind their boundary. Markers and aborted records are none.

    :param boundary: exclusive end offsets of the cutover.
    :param ends: present high watermarks; partitions that are not there are left out.
    :raises MigrationError: the source cannot be read.
    """
    found = {}
    for key in sorted(ends.keys() & boundary.keys()):
        if ends[key] > boundary[key]:
            late = _read(wire, key, boundary[key], ends[key])
            if late:
                found[key] = late
    return found


def _read(wire: Wire, key: TopicPartition, from_offset: int, until_offset: int) -> LateWrites:
    records, first_ms, producers = 0, -1, set()
    log = KafkaLog(wire, *key)
    stable_offset = min(wire.list_offsets([key], "stable")[key], until_offset)
    for batch in log.batches(from_offset, stable_offset):
        records += 1 if isinstance(batch, LegacyBatch) else batch.record_count
        if not isinstance(batch, LegacyBatch):
            first_ms = batch.base_timestamp if first_ms < 0 else first_ms
            producers.add(batch.producer_id)
        if records >= MAX_COUNTED:
            break
    is_open = stable_offset < until_offset
    first_at = datetime.fromtimestamp(first_ms / 1000, UTC).isoformat(timespec="seconds") if first_ms >= 0 else ""
    deleted = sum(until - since for since, until in log.skipped)
    return LateWrites(records, first_at, tuple(sorted(producers - {-1})), is_open, deleted)
