"""Whether the source's log ends have stopped moving, and which producers continue to write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_provider_kafka_migration.documents.cutover import Bypass, FreezeResult
from airflow_provider_kafka_migration.errors import FreezeFailed
from airflow_provider_kafka_migration.freeze import stops, words
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.record.freeze_attempt import FreezeAttempt
from airflow_provider_kafka_migration.record.partition_names import by_name, partition_name
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso

POLL_SECONDS = 0.2
#: In addition to the window: records that were in flight when producers stopped may still arrive for this long.
GRACE_SECONDS = 3.0


@dataclass(frozen=True)
class SourceEnds:
    """One reading of the source: log end, high watermark and last stable offset of each partition."""

    log_end: dict[TopicPartition, int]
    high_watermark: dict[TopicPartition, int]
    stable: dict[TopicPartition, int]

    @classmethod
    def read(cls, record: MigrationRecord, source: Cluster) -> SourceEnds:
        """Ask the source's leaders. The stable offset first: later, it would hide a transaction that just began."""
        keys = list(record.partitions())
        wire = source.wire
        stable = wire.list_offsets(keys, "stable")
        high_watermark = wire.list_offsets(keys, "latest")
        return cls(wire.list_offsets(keys, "log_end"), high_watermark, stable)

    @property
    def open_transactions(self) -> list[TopicPartition]:
        """Partitions with an open transaction, which holds back their last stable offset."""
        return sorted(key for key, offset in self.stable.items() if offset < self.high_watermark[key])

    @property
    def unreplicated(self) -> list[TopicPartition]:
        """Partitions whose log end is not on all in-sync replicas yet."""
        return sorted(key for key, offset in self.high_watermark.items() if offset < self.log_end[key])


@dataclass
class StillWatch:
    """Decides whether log ends have stopped moving. Pure: the caller passes times, in seconds of one clock."""

    window_seconds: float
    started: float
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    first_ends: dict[TopicPartition, int] = field(default_factory=dict)
    still_since: float | None = None

    def see(self, ends: dict[TopicPartition, int], at: float, *, settled: bool) -> bool:
        """Note one reading; return whether ends were unchanged and ``settled`` was true for the whole window."""
        self.first_ends = self.first_ends or dict(ends)
        if ends != self.ends or not settled:
            self.ends, self.still_since = dict(ends), None
        if self.still_since is None and settled:
            self.still_since = at
        return self.still_since is not None and at - self.still_since >= self.window_seconds

    def moved(self) -> list[TopicPartition]:
        """Return the partitions whose end has changed since the first reading."""
        return sorted(key for key, end in self.ends.items() if end != self.first_ends.get(key, end))


@dataclass(frozen=True)
class Watch:
    """How to look at the source again and again.

    :param sleep: waits between two looks; what it raises ends the wait.
    :param clock: seconds of a steady clock.
    """

    poll_seconds: float
    sleep: Callable[[float], None]
    clock: Callable[[], float]


def verify(
    record: MigrationRecord, source: Cluster, attempt: FreezeAttempt, details: dict[str, Any], watch: Watch
) -> FreezeResult:
    """Wait until the source stands still, and return what the journal keeps of a verified freeze.

    :param details: what the method that stops the producers has returned.
    :raises FreezeFailed: it does not stand still; see :func:`stand_still`.
    """
    ends, bypasses = stand_still(record, source, attempt, watch)
    return FreezeResult(
        migration_id=record.migration_id,
        attempt=attempt.number,
        method=attempt.method,
        requested_at=iso(attempt.requested_at),
        verified_at=iso(record.now()),
        deadline=iso(attempt.deadline),
        ends=by_name(ends),
        bypasses=bypasses,
        details=details,
    )


def stand_still(
    record: MigrationRecord, source: Cluster, attempt: FreezeAttempt, watch: Watch
) -> tuple[dict[TopicPartition, int], list[Bypass]]:
    """Wait until the source's log ends stop moving; return them, and who still writes, if the policy is to continue."""
    section = record.spec.cutover
    still = StillWatch(section.freeze_stable_window.total_seconds(), watch.clock())
    while True:
        look = SourceEnds.read(record, source)
        now = watch.clock()
        if still.see(look.log_end, now, settled=not look.open_transactions and not look.unreplicated):
            return look.log_end, []
        waited = now - still.started
        if look.open_transactions and waited > section.max_open_transaction_wait.total_seconds():
            raise _held_back(record, source, look)
        moving = still.moved()
        patience = still.window_seconds + GRACE_SECONDS
        # Ends that have moved, but are unchanged by now, only need another window.
        if moving and waited > patience and _moved_lately(still, now):
            bypasses = name_bypasses(source, attempt.requested_at, still.first_ends, look.log_end)
            if section.on_bypass == "stop":
                raise bypassed(record, bypasses)
            if not look.open_transactions and not look.unreplicated:
                return look.log_end, bypasses
        stops.check_deadline(record, attempt)
        watch.sleep(watch.poll_seconds)


def _moved_lately(still: StillWatch, now: float) -> bool:
    return still.still_since is None or now - still.still_since < still.window_seconds / 2


def name_bypasses(
    source: Cluster, since: datetime, before: dict[TopicPartition, int], after: dict[TopicPartition, int]
) -> list[Bypass]:
    """Name who wrote between two readings, as far as brokers know (DescribeProducers: idempotent producers only)."""
    moved = sorted(key for key, end in after.items() if end > before.get(key, end))
    producers = source.admin.producers(moved)
    names = {item.producer_id: item.transactional_id for item in source.admin.list_transactions() or []}
    since_ms = int(since.timestamp() * 1000)
    found = []
    for key in moved:
        states = producers[key].producers if key in producers else ()
        found.append(
            Bypass(
                topic=key[0],
                partition=key[1],
                from_offset=before[key],
                to_offset=after[key],
                producers=[
                    {
                        "producer_id": state.producer_id,
                        "producer_epoch": state.producer_epoch,
                        "last_timestamp_ms": state.last_timestamp_ms,
                        "transactional_id": names.get(state.producer_id, ""),
                    }
                    for state in states
                    if state.last_timestamp_ms >= since_ms
                ],
            )
        )
    return found


def bypassed(record: MigrationRecord, bypasses: list[Bypass]) -> FreezeFailed:
    """Return the error that names who continued to write."""
    first = bypasses[0]
    known = [f"producer id {item['producer_id']}" + _named(item) for item in first.producers]
    who = ", ".join(known) or "a producer without idempotence, which the broker does not name"
    return FreezeFailed(
        f"{len(bypasses)} partitions were written to after the freeze; {first.topic}-{first.partition} got "
        f"offsets {first.from_offset} to {first.to_offset - 1} from {who}",
        where=record.where(words.phase_of(record.spec), cluster="source", topic=first.topic, partition=first.partition),
        next_step=f"stop that producer, then {words.again(record.spec)}; for one that only needs longer to stop, raise "
        "cutover.freeze_stable_window",
        details={"bypasses": [item.model_dump(mode="json") for item in bypasses]},
    )


def _named(item: dict[str, Any]) -> str:
    return f" (transactional id {item['transactional_id']})" if item["transactional_id"] else ""


@dataclass(frozen=True)
class Holders:
    """Whose open transactions hold back the ends of partitions, as far as brokers tell."""

    producer_ids: list[int]
    transactional_ids: list[str]
    #: for people
    text: str

    @classmethod
    def of(cls, source: Cluster, held: list[TopicPartition]) -> Holders:
        """Ask the leaders of these partitions, and the coordinators for the names of what they answer."""
        producers = source.admin.producers(held)
        open_ids = sorted(
            {
                state.producer_id
                for key in held
                if key in producers
                for state in producers[key].producers
                if state.transaction_start >= 0
            }
        )
        named = [item for item in source.admin.open_transactions() or [] if item.producer_id in open_ids]
        names = ", ".join(f"{item.transactional_id} (producer id {item.producer_id})" for item in named)
        nameless = f"producer ids {open_ids}" if open_ids else "of producers that the brokers do not name"
        return cls(open_ids, [item.transactional_id for item in named], names or nameless)


def _held_back(record: MigrationRecord, source: Cluster, look: SourceEnds) -> FreezeFailed:
    held = look.open_transactions
    holders = Holders.of(source, held)
    topic, partition = held[0]
    phase, offset = words.phase_of(record.spec), look.stable[held[0]]
    return FreezeFailed(
        f"{len(held)} partitions have open transactions after the freeze: {holders.text}",
        where=record.where(phase, cluster="source", topic=topic, partition=partition, offset=offset),
        next_step="let the application end its transaction, or abort it (kafka-transactions.sh abort); then "
        f"{words.again(record.spec)}",
        details={
            "partitions": [partition_name(key) for key in held],
            "producer_ids": holders.producer_ids,
            "transactional_ids": holders.transactional_ids,
        },
    )


def check_not_bypassed(
    record: MigrationRecord, source: Cluster, attempt: FreezeAttempt, expected: dict[TopicPartition, int]
) -> list[Bypass]:
    """Check again after the freeze that the source's log ends are still where they should be.

    :returns: producers that have moved them, if the policy is ``note``.
    :raises FreezeFailed: they have moved, and the policy is ``stop``.
    """
    ends = source.wire.list_offsets(list(expected), "log_end")
    if all(ends[key] <= end for key, end in expected.items()):
        return []
    bypasses = name_bypasses(source, attempt.requested_at, expected, ends)
    if record.spec.cutover.on_bypass != "note":
        raise bypassed(record, bypasses)
    return bypasses
