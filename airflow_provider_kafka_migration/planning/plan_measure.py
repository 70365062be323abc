"""A short, bounded read from the source, for an estimate with what this machine really gets. Reads only, keeps nothing.

It measures the way from the source's leaders to this process, over the log starts of the largest partitions. The way to
the target is not measured: plan writes to no cluster. So the rate that is used is the smaller of what was measured and
what the spec gives.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from airflow_provider_kafka_migration.documents.measured_rates import MeasuredRates
from airflow_provider_kafka_migration.documents.plan import PartitionPlan, Plan
from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.batches.header import HEAD_BYTES, unpack_head
from airflow_provider_kafka_migration.kafka.fetch import READ_UNCOMMITTED, FetchRange
from airflow_provider_kafka_migration.planning.source_snapshot import left_out
from airflow_provider_kafka_migration.record.cluster import Cluster
from airflow_provider_kafka_migration.record.context import PhaseContext, Progress

NAME = "measured-rates.json"
KEY = f"plan/{NAME}"

MAX_PARTITIONS = 16
MAX_CONNECTIONS = 4
MAX_SECONDS = 5.0
MAX_BYTES = 512 * 1024 * 1024
_FETCH_BYTES = 8 * 1024 * 1024
_LOG_OVERHEAD = 12

#: (source topic, partition, first offset, end offset)
_Piece = tuple[str, int, int, int]


@dataclass
class _Meter:
    """What all readers share."""

    deadline: float
    left_bytes: int = MAX_BYTES
    read_bytes: int = 0
    last_read: float = 0.0
    errors: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, size: int) -> None:
        with self.lock:
            self.read_bytes += size
            self.left_bytes -= size
            self.last_read = max(self.last_read, time.monotonic())

    def fail(self, place: str, why: str) -> None:
        with self.lock:
            self.errors.append(f"{place}: {why}")

    @property
    def over(self) -> bool:
        return self.left_bytes <= 0 or time.monotonic() >= self.deadline


def measure(context: PhaseContext, plan: Plan, *, seconds: float = MAX_SECONDS) -> MeasuredRates:
    """Read from the largest partitions for some seconds. A partition that cannot be read is named, and no error."""
    pieces = _largest(plan)
    connections = max(1, min(MAX_CONNECTIONS, context.spec.seed.lanes, len(pieces)))
    context.progress(Progress("plan", f"measuring: reading {len(pieces)} partitions for at most {seconds:.0f} s"))
    begun = time.monotonic()
    meter = _Meter(begun + seconds)
    with ThreadPoolExecutor(connections, thread_name_prefix="measure") as pool:
        shares = [pieces[number::connections] for number in range(connections)]
        for done in [pool.submit(_read, context.source.clone(), share, meter) for share in shares if share]:
            done.result()
    return _result(context, plan, pieces, connections, meter, max(meter.last_read - begun, 0.0))


def _largest(plan: Plan) -> list[_Piece]:
    """The largest partitions that hold anything; ties and unknown sizes by name, so always the same ones."""
    parts: list[tuple[str, PartitionPlan]] = [
        (topic.name, item)
        for topic in plan.topics
        for item in topic.partitions
        if item.end_offset > item.log_start_offset
    ]
    parts.sort(key=lambda pair: (-pair[1].size_bytes, pair[0], pair[1].partition))
    return [(topic, item.partition, item.log_start_offset, item.end_offset) for topic, item in parts[:MAX_PARTITIONS]]


def _read(source: Cluster, pieces: Sequence[_Piece], meter: _Meter) -> None:
    """One connection's share: partition after partition to its end, until time or bytes are over."""
    try:
        for topic, partition, start, end in pieces:
            if meter.over:
                break
            # A broker that is down must not hold a plan up: what time is left is all the patience there is.
            source.wire.patience_seconds = max(meter.deadline - time.monotonic(), 0.1)
            try:
                _read_one(source, (topic, partition, start, end), meter)
            except MigrationError as error:
                meter.fail(f"{topic}-{partition}", error.what)
    finally:
        source.close()


def _read_one(source: Cluster, piece: _Piece, meter: _Meter) -> None:
    topic, partition, offset, end = piece
    while offset < end and not meter.over:
        answers = source.wire.fetch_once(
            [FetchRange(topic, partition, offset, _FETCH_BYTES)], isolation=READ_UNCOMMITTED, max_bytes=_FETCH_BYTES
        )
        if (error := left_out([(topic, partition)], answers)) is not None:
            raise error
        answer = answers[0]
        if answer.error_code:
            meter.fail(f"{topic}-{partition}", error_codes.name(answer.error_code))
            return
        meter.count(len(answer.records))
        after = next_offset(answer.records)
        if after <= offset:
            return
        offset = after


def next_offset(records: memoryview) -> int:
    """The offset after the last whole batch of a piece of a log, -1 if there is none. Old formats: their offset + 1."""
    position, found = 0, -1
    while position + HEAD_BYTES <= len(records):
        head = unpack_head(records, position)
        base_offset, length, last_delta = head[0], head[1], head[6]
        if position + _LOG_OVERHEAD + length > len(records):
            break
        found = base_offset + 1 + (last_delta if records[position + 16] == 2 else 0)
        position += _LOG_OVERHEAD + length
    return found


def _result(
    context: PhaseContext, plan: Plan, pieces: Sequence[_Piece], connections: int, meter: _Meter, seconds: float
) -> MeasuredRates:
    given = context.spec.estimate.copy_bytes_per_second
    measured = round(meter.read_bytes / seconds) if meter.read_bytes and seconds > 0 else 0
    used = min(given, measured) if measured else given
    copied = plan.estimate.copy_bytes if plan.estimate is not None else -1
    return MeasuredRates(
        migration_id=plan.migration_id,
        plan_digest=plan.digest(),
        partitions=sorted((topic, partition) for topic, partition, _, _ in pieces),
        connections=connections,
        read_bytes=meter.read_bytes,
        seconds=round(seconds, 3),
        read_bytes_per_second=measured,
        given_bytes_per_second=given,
        copy_bytes_per_second=used,
        limited_by="source" if used < given else "spec",
        copy_bytes=copied,
        copy_seconds=round(copied / used, 1) if copied >= 0 else -1,
        errors=sorted(meter.errors),
    )


def copy_seconds(context: PhaseContext, plan: Plan) -> float:
    """Time of the copy: as measured for this very plan, else from the spec's rate; -1 where sizes are not known."""
    data = context.journal_store.get(context.key(KEY))
    if data is not None:
        measured = MeasuredRates.parse(data)
        if measured.plan_digest == plan.digest():
            return measured.copy_seconds
    return plan.estimate.copy_seconds if plan.estimate is not None else -1
