"""The lag of all partitions: how much of the source the target still lacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from airflow_provider_kafka_migration.documents.copy import CopyPartition
from airflow_provider_kafka_migration.errors import (
    BrokerBusy,
    ForeignData,
    TargetTopicMissing,
    leave_out_of_way_back,
)
from airflow_provider_kafka_migration.jobs.tail_health import HealthWatch, TailHealth, check_none_failed
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext, Progress
from airflow_provider_kafka_migration.record.offset_maps import SourcePositions
from airflow_provider_kafka_migration.record.partition_names import target_key
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.topics import recopy, topics_gone

PHASE = "drain_ready"


POLL_SECONDS = 1.0
#: How long an approval and the freeze wait while a lag does not shrink before they refuse.
SMALL_AGAIN_SECONDS = 30.0


@dataclass(frozen=True)
class PartitionLag:
    """Lag of one partition in source offsets, so holes count.

    :param position: next source offset to copy, from the target's log end.
    """

    topic: str
    partition: int
    source_end: int
    position: int
    target_end: int

    @property
    def lag(self) -> int:
        """Number of source offsets that the target still lacks."""
        return self.source_end - self.position

    def as_dict(self) -> dict[str, Any]:
        """The lag as data."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "source_end_offset": self.source_end,
            "target_end_offset": self.target_end,
            "position": self.position,
            "lag": self.lag,
        }


@dataclass(frozen=True)
class DrainStatus:
    """One measurement of all lags.

    :param stable_since: when all lags became small enough, without a break since; ``None`` if they are not.
        The only state of the wait: pass it to the next :func:`check`. Losing it only restarts the window.
    """

    at: datetime
    lags: tuple[PartitionLag, ...]
    max_lag: int
    stable_since: datetime | None
    ready: bool
    #: what the tail reports about itself
    tail: TailHealth = field(default_factory=TailHealth)

    @property
    def is_small(self) -> bool:
        """All lags are at or below the limit, the tail runs, and no partition is known to have stopped."""
        worst = self.worst
        return (worst is None or worst.lag <= self.max_lag) and self.tail.is_well

    @property
    def worst(self) -> PartitionLag | None:
        """The partition with the largest lag."""
        return max(self.lags, key=lambda item: item.lag, default=None)

    @property
    def total(self) -> int:
        """Sum of all lags."""
        return sum(item.lag for item in self.lags)

    @property
    def stable_seconds(self) -> float:
        """For how long all lags have been small enough."""
        return (self.at - self.stable_since).total_seconds() if self.stable_since else 0.0

    def summary(self) -> str:
        """One line for people."""
        worst = self.worst
        if worst is None:
            return "no partitions"
        tail = f"; {self.tail.text}" if self.tail.text else ""
        return (
            f"lag {self.total} in {len(self.lags)} partitions, largest {worst.lag} at {worst.topic}-{worst.partition}"
            f" (limit {self.max_lag}), stable for {self.stable_seconds:.0f} s{tail}"
        )

    def as_event(self) -> dict[str, Any]:
        """A small JSON-able form for triggers."""
        return {
            "at": iso(self.at),
            "ready": self.ready,
            "stable_since": iso(self.stable_since) if self.stable_since else None,
            "summary": self.summary(),
            "total_lag": self.total,
            "partitions_failed": self.tail.failed,
            "partitions_stuck": self.tail.stuck,
            "tail_silent": self.tail.is_silent,
            "tail_heard": self.tail.is_heard,
        }


def small_again(context: PhaseContext, *, sleep: Callable[[float], None] = time.sleep) -> DrainStatus:
    """Measure until all lags are small, as long as they shrink, and return the last measurement.

    The lag of a busy source varies (between two slices of the tail, for instance), and a tail that was stopped has much
    to catch up with. A single measurement above the limit means little; a lag that no longer shrinks means that the
    tail does not keep up.
    """
    health = HealthWatch()
    began = shrunk_at = time.monotonic()
    least: int | None = None
    longest = context.spec.tail.drain_ready_timeout.total_seconds()
    while True:
        status = check(context.record, context.source, context.target, health=health)
        now = time.monotonic()
        if least is None or status.total < least:
            least, shrunk_at = status.total, now
        if status.is_small or now - shrunk_at >= SMALL_AGAIN_SECONDS or now - began >= longest:
            return status
        context.progress(Progress(PHASE, f"catching up: {status.summary()}"))
        sleep(POLL_SECONDS)


def measure(record: MigrationRecord, source: Cluster, target: Cluster) -> list[PartitionLag]:
    """Return the lag of every partition, ascending, except for deleted topics that the policy drops.

    :raises TopicRecreated: a source topic was deleted or created again: its offsets no longer relate to the copy.
    :raises ForeignData: a target end is beyond the source's end: another client writes there.
    :raises TargetTopicMissing: a target topic was deleted.
    """
    topics_gone.check_none_gone(record)
    partitions = record.partitions()
    gone = topics_gone.check_ids(record, source, partitions.values())
    partitions = {key: item for key, item in partitions.items() if key[0] not in gone}
    # Read the target first: the source's end only grows, so a race can never look like a target that is ahead.
    target_ends = _target_ends(record, target, partitions.values())
    positions = SourcePositions.load(record, target)
    source_ends = source.wire.list_offsets(list(partitions), "stable")
    lags = [_lag(item, source_ends[key], target_ends[target_key(item)], positions) for key, item in partitions.items()]
    _check_not_ahead(record, lags)
    return lags


def _target_ends(
    record: MigrationRecord, target: Cluster, partitions: Collection[CopyPartition]
) -> dict[TopicPartition, int]:
    """Return the log ends on the target.

    :raises TargetTopicMissing: topics were deleted there, so the ends of all cannot be listed in one request.
    :raises BrokerBusy: the same for a while, such as for topics that the tail deletes to copy them again.
    """
    try:
        return target.wire.list_offsets([target_key(item) for item in partitions], "log_end")
    except BrokerBusy as error:
        sources = {item.target_topic: item.topic for item in partitions}
        again = _made_again(record)
        found = topics_gone.find_gone(target.admin, dict.fromkeys(sources, ""))
        # Read before and after the cluster: the tail may begin or end that in between.
        gone = sorted(found.keys() - again - _made_again(record))
        if not gone:
            raise
        raise TargetTopicMissing(
            f"{len(gone)} target topics no longer exist: somebody has deleted {', '.join(gone[:10])}",
            where=record.where(PHASE, cluster="target", topic=gone[0]),
            next_step=leave_out_of_way_back(sources[gone[0]])
            if record.spec.is_way_back
            else "clear tail (or kafka-migration resume FILE): its error says what to do with such a topic",
            details={"topics": gone},
        ) from error


def _made_again(record: MigrationRecord) -> set[str]:
    record.journal.refresh()
    return recopy.being_made_again(record)


def _lag(item: CopyPartition, source_end: int, target_end: int, positions: SourcePositions) -> PartitionLag:
    position = positions.of(item, target_end)
    return PartitionLag(item.topic, item.partition, source_end, position, target_end)


def _check_not_ahead(record: MigrationRecord, lags: list[PartitionLag]) -> None:
    ahead = [item for item in lags if item.lag < 0]
    if ahead:
        first = ahead[0]
        raise ForeignData(
            f"{len(ahead)} target partitions end beyond the source's last stable offset; the first one by {-first.lag}",
            where=record.where(PHASE, topic=first.topic, partition=first.partition, offset=first.target_end),
            next_step="check whether the new cluster has lost records in an unclean leader election; if not, "
            + leave_out_of_way_back(first.topic)
            if record.spec.is_way_back
            else "find out who else writes to the target (DescribeProducers), or whether the source lost records in an "
            "unclean leader election; the target's records from that offset on are not the source's",
            details={"partitions": [item.as_dict() for item in ahead]},
        )


def check(
    record: MigrationRecord,
    source: Cluster,
    target: Cluster,
    stable_since: datetime | None = None,
    *,
    health: HealthWatch | None = None,
) -> DrainStatus:
    """Measure the lags once. This function keeps no state, so any thread or process may continue the wait.

    The window restarts when a lag is above the limit, when the tail does not copy a partition, or when the tail is
    silent. A single measurement cannot hear the tail: the tail has to write between two of them.

    :param health: the watch of a caller that checks repeatedly; without it failed partitions are reported but raise
        nothing.
    :raises CopyFailed: the tail has stopped copying some partitions until an operator intervenes.
    """
    lags = measure(record, source, target)
    tail = (health or HealthWatch()).check(record)
    check_none_failed(record, tail)
    status = judge(
        lags,
        at=record.now(),
        stable_since=stable_since,
        max_lag=record.spec.tail.drain_max_partition_lag,
        window_seconds=record.spec.tail.drain_stable_window.total_seconds(),
    )
    if not tail.copies_all or tail.is_silent:
        return replace(status, tail=tail, stable_since=None, ready=False)
    # Small lags alone prove nothing: a quiet source has no lag, whether or not the tail copies.
    return replace(status, tail=tail, ready=status.ready and tail.is_heard)


def judge(
    lags: list[PartitionLag], *, at: datetime, stable_since: datetime | None, max_lag: int, window_seconds: float
) -> DrainStatus:
    """What one measurement of the lags means for the window."""
    if any(item.lag > max_lag for item in lags):
        return DrainStatus(at, tuple(lags), max_lag, None, ready=False)
    since = at if stable_since is None or stable_since > at else stable_since
    return DrainStatus(at, tuple(lags), max_lag, since, ready=(at - since).total_seconds() >= window_seconds)


def lag_by_topic(lags: list[PartitionLag]) -> dict[str, dict[str, int]]:
    """Per source topic: partitions, total and largest lag; for approvals."""
    topics: dict[str, dict[str, int]] = {}
    for item in sorted(lags, key=lambda item: (item.topic, item.partition)):
        entry = topics.setdefault(item.topic, {"partitions": 0, "total_lag": 0, "largest_lag": 0})
        entry["partitions"] += 1
        entry["total_lag"] += item.lag
        entry["largest_lag"] = max(entry["largest_lag"], item.lag)
    return topics
