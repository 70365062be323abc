"""Records that were written to the source after the boundary of a cutover or a promotion: the target lacks them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_kafka_migration.compare.logs import KafkaLog
from airflow_provider_kafka_migration.documents.cutover import Boundary
from airflow_provider_kafka_migration.errors import HANDS_OFF, MigrationError
from airflow_provider_kafka_migration.freeze import words
from airflow_provider_kafka_migration.kafka.batches.api import LegacyBatch
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.record.partition_names import partition_name
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso_of_ms
from airflow_provider_kafka_migration.spec import MigrationSpec

#: Counting ends here: the message says "at least" from then on.
MAX_COUNTED = 100_000


@dataclass(frozen=True)
class LateWrites:
    """What one source partition has beyond its boundary.

    :param records: committed records, counted up to :data:`MAX_COUNTED`.
    :param first_at: timestamp of the first one, ISO 8601, or as a number that is no time; empty if it has none.
    :param producer_ids: ids of the idempotent and transactional producers that wrote them.
    :param is_open: an open transaction hides everything from its first record on.
    :param deleted_offsets: offsets beyond the boundary that the source has deleted already.
    :param after: what drew the boundary, for people.
    """

    records: int
    first_at: str = ""
    producer_ids: tuple[int, ...] = ()
    is_open: bool = False
    deleted_offsets: int = 0
    after: str = "the cutover"
    #: of whom the log is that was read: of the source, or of a target to which only the copy should have written
    role: str = "source"

    def __bool__(self) -> bool:
        return self.records > 0 or self.is_open or self.deleted_offsets > 0

    def __str__(self) -> str:
        more = "at least " if self.records >= MAX_COUNTED else ""
        other = "target" if self.role == "source" else "source"
        text = f"{more}{self.records} records were written to the {self.role} after {self.after} and are not on the "
        text += other
        text += f" (the first at {self.first_at})" if self.first_at else ""
        if self.producer_ids:
            text += f", by producer ids {', '.join(map(str, self.producer_ids[:5]))}"
        text += "; an open transaction may hold more" if self.is_open else ""
        return f"{text}; {self.deleted_offsets} more offsets were deleted already" if self.deleted_offsets else text


def read_late_writes(
    wire: Wire,
    boundary: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    *,
    ours: Collection[int] = (),
) -> dict[TopicPartition, LateWrites]:
    """Find the source partitions that have records beyond their boundary. Markers and aborted records do not count.

    :param boundary: exclusive end offsets of the cutover.
    :param ends: current high watermarks, or the offsets from which on others write by right; partitions without one
        are left out.
    :param ours: producer ids whose records do not count: those of a way back, which bring what is on the target.
    :raises MigrationError: the source cannot be read.
    """
    found = {}
    for key in sorted(ends.keys() & boundary.keys()):
        if ends[key] > boundary[key]:
            late = _read(wire, key, boundary[key], ends[key], ours)
            if late:
                found[key] = late
    return found


def _read(wire: Wire, key: TopicPartition, from_offset: int, until_offset: int, ours: Collection[int]) -> LateWrites:
    records, first_ms, producers = 0, -1, set()
    log = KafkaLog(wire, *key)
    stable_offset = min(wire.list_offsets([key], "stable")[key], until_offset)
    for batch in log.batches(from_offset, stable_offset):
        if batch.next_offset > until_offset:
            break  # what was read with the last of them
        if not isinstance(batch, LegacyBatch) and batch.producer_id in ours:
            continue
        records += 1 if isinstance(batch, LegacyBatch) else batch.record_count
        if not isinstance(batch, LegacyBatch):
            first_ms = batch.base_timestamp if first_ms < 0 else first_ms
            producers.add(batch.producer_id)
        if records >= MAX_COUNTED:
            break
    is_open = stable_offset < until_offset
    first_at = iso_of_ms(first_ms) if first_ms >= 0 else ""
    deleted = sum(until - since for since, until in log.skipped)
    return LateWrites(records, first_at, tuple(sorted(producers - {-1})), is_open, deleted)


# -- behind boundary --------------------------------------------------------------------------------------------------
#
# The check before clients switch that the source still ends at the cutover's boundary.
#
# Records beyond the boundary are on the source only. Once clients write to the target, they can no longer be inserted
# at their place. So they are named while a person can still stop the producer and have them sent again.


@dataclass(frozen=True)
class BehindBoundary:
    """The result of one check of the source.

    :param partitions: how many partitions were checked.
    :param late: by partition: a description of the records beyond the boundary.
    :param records: number of these records, as far as they were counted.
    :param unchecked: by partition (or ``source``): why it is unknown whether there are any.
    """

    partitions: int
    late: dict[str, str] = field(default_factory=dict)
    records: int = 0
    unchecked: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON-able data."""
        return {
            "partitions": self.partitions,
            "late": dict(self.late),
            "records": self.records,
            "unchecked": dict(self.unchecked),
        }

    @property
    def problem(self) -> str:
        """Why clients must not switch yet, one clause; empty if the source ends at the boundary."""
        parts = []
        if self.late:
            name, text = next(iter(self.late.items()))
            parts.append(f"{len(self.late)} partitions of the source have records beyond the boundary; {name}: {text}")
        if self.unchecked:
            name, why = next(iter(self.unchecked.items()))
            parts.append(
                f"{len(self.unchecked)} partitions could not be checked for records beyond the boundary; {name}: {why}"
                if name != "source"
                else f"the source could not be checked for records beyond the boundary: {why}"
            )
        return "; ".join(parts)

    @property
    def next_step(self) -> str:
        """What to do about :attr:`problem`."""
        steps = []
        if self.late:
            steps.append("stop the producers that write to the source, and have the named records sent to the target")
        if self.unchecked:
            steps.append("make sure that the source answers for all partitions")
        return (
            f"{' and '.join(steps)}; then approve the client switch again. Such records stay on the source: once they "
            "are on the target, too, set cutover.on_bypass: note: the migration then names them and continues; "
            f"{words.IF_PARAMS}"
        )


def read(record: MigrationRecord, source: Cluster) -> BehindBoundary:
    """Ask the source's leaders for their log ends, and read what lies beyond the boundary.

    A partition that cannot be read is named as unchecked, never counted as having no such records.
    """
    try:
        boundary = _boundary(record)
    except HANDS_OFF:
        raise
    except MigrationError as error:
        return BehindBoundary(0, unchecked={"source": error.what})
    return read_behind(source, boundary)


def read_behind(
    source: Cluster, boundary: Mapping[TopicPartition, int | None], *, after: str = "the cutover"
) -> BehindBoundary:
    """Do the same for any boundary.

    :param boundary: exclusive source end by partition; None: it is not known.
    :param after: what drew the boundary, for people.
    """
    try:
        # The log end first: a high watermark that is read later and has reached it leaves nothing out.
        log_ends = source.wire.list_offsets(sorted(boundary), "log_end")
        ends = source.wire.list_offsets(sorted(boundary), "latest")
    except HANDS_OFF:
        raise
    except MigrationError as error:
        return BehindBoundary(0, unchecked={source.role: error.what})
    if not boundary:
        return BehindBoundary(0, unchecked={source.role: f"no boundary of {after} is known"})
    late: dict[str, str] = {}
    unchecked: dict[str, str] = {}
    records = 0
    for key, end in sorted(boundary.items()):
        found = ends.get(key)
        if end is None or found is None:
            unchecked[partition_name(key)] = "it has no boundary" if end is None else "its log end is not known"
        elif found < end:
            unchecked[partition_name(key)] = (
                f"the {source.role} ends at offset {found}, before the boundary {end}: its log was truncated, or the "
                "topic was created again"
            )
        else:
            if found > end:
                records += _read_partition(source, key, end, found, late, unchecked, after)
            if log_ends.get(key, found) > found:
                unchecked.setdefault(
                    partition_name(key),
                    f"offsets {found} to {log_ends[key] - 1} are not on all in-sync replicas of the {source.role} yet, "
                    "so they cannot be read",
                )
    return BehindBoundary(len(boundary), late, records, unchecked)


def _boundary(record: MigrationRecord) -> dict[TopicPartition, int | None]:
    """Load the exclusive source ends of all partitions; None: a partition that the cutover did not know."""
    data = record.result("boundary")
    if data is None:
        return {}
    ends = Boundary.parse(data).ends
    return {key: ends.get(partition_name(key)) for key in record.partitions()}


def _read_partition(
    source: Cluster,
    key: TopicPartition,
    boundary: int,
    end: int,
    late: dict[str, str],
    unchecked: dict[str, str],
    after: str,
) -> int:
    """Read what lies beyond the boundary of one partition; return how many records it counted."""
    try:
        found = read_late_writes(source.wire, {key: boundary}, {key: end}).get(key)
    except MigrationError as error:
        unchecked[partition_name(key)] = f"offsets {boundary} to {end - 1} could not be read: {error.what}"
        return 0
    if found is None:
        return 0
    late[partition_name(key)] = str(replace(found, after=after, role=source.role))
    return found.records


def is_accepted(spec: MigrationSpec) -> bool:
    """Whether records beyond the boundary, or a source that cannot be read, are only shown and do not block."""
    return bool(spec.cutover.on_bypass == "note")
