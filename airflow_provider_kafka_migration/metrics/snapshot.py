"""What is known about a copy job at one moment, and the samples of all metrics that follow from it.

It is read from what the job has stored anyway: the driver's progress document, which has the ends of slices, and the
figures of the slices that run. No broker is asked.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from airflow_provider_kafka_migration.copy.latency import LatencyHistogram
from airflow_provider_kafka_migration.documents.copy import MetricsSettings
from airflow_provider_kafka_migration.lanes.figures import (
    LaneFigures,
    PartitionStanding,
    lanes_under_way,
    with_lanes,
)
from airflow_provider_kafka_migration.metrics.groups import GroupFigures, read_failing_since, read_heartbeat
from airflow_provider_kafka_migration.metrics.table import BY_NAME, FLOW_LABEL, OTHER, Metric
from airflow_provider_kafka_migration.storage.base import ObjectStore

TopicPartition = tuple[str, int]

#: The job beside which groups are brought up to date.
GROUPS_JOB = "tail"
#: Percentiles are those of what was acknowledged within about this time.
WINDOW_SECONDS = 60.0


class Sample(NamedTuple):
    """One value of a metric.

    :param labels: all of them, the common ones too.
    """

    metric: Metric
    labels: dict[str, str]
    value: float


def lag_seconds(standing: PartitionStanding, now_ms: int) -> float | None:
    """Return a partition's lag in seconds; None if it is not known.

    - No lag in records: 0, however old the last record is. So an idle partition shows 0.
    - A record is read and not acknowledged: now minus the timestamp of the oldest such record.
    - Otherwise the oldest missing record was not read yet, and its timestamp is not known: now minus the newest
      timestamp of the batch that was acknowledged last. That is too much by the time during which nothing was written.
    - Nothing was acknowledged since the driver began: not known.

    The timestamps are those of the records. A producer's clock that is ahead makes the lag too small, down to 0, and
    one that is behind makes it too large; the lag in records does not depend on clocks.
    """
    if standing.lag < 0:
        return None
    if standing.lag == 0:
        return 0.0
    since_ms = standing.waiting_ms if standing.waiting_ms >= 0 else standing.mirrored_ms
    return None if since_ms < 0 else max(now_ms - since_ms, 0) / 1000


@dataclass
class Sums:
    """Lags of several partitions together; of unknown ones only their number is known."""

    lag: int = 0
    largest_lag: int = 0
    held_back: int = 0
    #: largest that is known
    seconds: float | None = None
    unknown: int = 0

    def add(self, standing: PartitionStanding, seconds: float | None) -> None:
        """Add a partition."""
        self.held_back += standing.held_back
        if standing.lag < 0:
            self.unknown += 1
            return
        self.lag += standing.lag
        self.largest_lag = max(self.largest_lag, standing.lag)
        if seconds is not None:
            self.seconds = seconds if self.seconds is None else max(self.seconds, seconds)


@dataclass(frozen=True)
class Snapshot:
    """One moment of a copy job.

    :param document: the progress document, with what running slices have moved; never empty.
    :param standings: of every partition of the job.
    :param groups: of a job beside which groups are brought up to date; None before the first round.
    :param never_synced_since: since when the first round of the groups has failed, in seconds since 1970; None: there
        was a round, or none has failed.
    :param heartbeat_at: newest heartbeat of the source on the target of a mirror, in seconds since 1970; None: none.
    """

    document: Mapping[str, Any]
    standings: Mapping[TopicPartition, PartitionStanding] = field(repr=False)
    groups: GroupFigures | None = None
    heartbeat_at: float | None = None
    never_synced_since: float | None = None

    @classmethod
    def read(cls, store: ObjectStore, migration_id: str, job_name: str) -> Snapshot | None:
        """Read the newest state of a job; None before its driver has written progress.

        :raises StorageUnavailable: the storage does not answer.
        """
        data = store.get(f"{migration_id}/progress/{job_name}.json")
        return None if data is None else cls.of(store, json.loads(data))

    @classmethod
    def of(cls, store: ObjectStore, document: Mapping[str, Any]) -> Snapshot | None:
        """Complete a progress document with what running slices report; None if it is empty."""
        if not document:
            return None
        lanes = lanes_under_way(store, document)
        groups = heartbeat_at = never = None
        if document.get("job") == GROUPS_JOB:
            name = str(document["migration_id"])
            groups, heartbeat_at = GroupFigures.read(store, name), read_heartbeat(store, name)
            never = read_failing_since(store, name) if groups is None else None
        return cls(with_lanes(document, lanes), _standings(document, lanes), groups, heartbeat_at, never)

    @property
    def labels(self) -> dict[str, str]:
        """The labels that all samples have."""
        return {"migration_id": str(self.document["migration_id"]), "phase": str(self.document["job"])}

    @property
    def latency(self) -> LatencyHistogram:
        """The replication latency of what this driver's slices have copied."""
        found = LatencyHistogram()
        found.merge(self.document.get("latency") or ())
        return found

    def samples(self, settings: MetricsSettings, now: float, *, recent: LatencyHistogram | None) -> Iterator[Sample]:
        """Yield the samples of all metrics but histograms. What is not known has no sample.

        :param now: seconds since 1970.
        :param recent: the latency of the last while (:class:`LatencyWindow`); None: not known.
        """
        labels = {**self.labels, **({FLOW_LABEL: settings.flow} if settings.flow else {})}
        now_ms = int(now * 1000)
        seconds = {key: lag_seconds(standing, now_ms) for key, standing in self.standings.items()}
        for name, value in self._migration_values(seconds, now, recent):
            if value is not None:
                yield Sample(BY_NAME[name], labels, float(value))
        verdicts = Counter(str(item.get("verdict") or "unknown") for item in self.document.get("partitions", ()))
        for verdict, count in sorted(verdicts.items()):
            yield Sample(BY_NAME["partitions"], {**labels, "verdict": verdict}, float(count))
        yield from self._topic_samples(settings.max_topics, labels, seconds)
        yield from self._partition_samples(settings.max_partitions, labels, seconds)

    def _migration_values(
        self, seconds: Mapping[TopicPartition, float | None], now: float, recent: LatencyHistogram | None
    ) -> Iterator[tuple[str, float | None]]:
        document, sums = self.document, _sums(self.standings, self.standings, seconds)
        everything = document.get("all_runs") or document
        yield "lag_records", sums.lag
        yield "lag_seconds", sums.seconds
        yield "largest_lag_records", sums.largest_lag
        yield "lag_unknown_partitions", sums.unknown
        yield "held_back_records", sums.held_back
        yield "records", everything.get("records")
        yield "copied_bytes", everything.get("copied_bytes")
        yield "skipped_records", everything.get("skipped_records")
        yield "untimed_records", self.latency.untimed
        if recent is not None:
            yield "replication_latency_p50_seconds", recent.percentile_seconds(0.5)
            yield "replication_latency_p99_seconds", recent.percentile_seconds(0.99)
        if document.get("at"):
            yield "heartbeat_age_seconds", max(now - datetime.fromisoformat(str(document["at"])).timestamp(), 0.0)
        for name in _OF_DOCUMENT:
            yield name, document.get(name)
        if self.groups is not None:
            yield "groups", self.groups.groups
            yield "groups_behind", self.groups.behind
            yield "groups_failed", self.groups.failed
            yield "groups_left_alone", self.groups.left_alone
            yield "groups_sync_age_seconds", max(now - self.groups.at, 0.0)
        elif self.never_synced_since is not None:
            yield "groups_sync_age_seconds", max(now - self.never_synced_since, 0.0)
        if self.heartbeat_at is not None:
            yield "replicated_heartbeat_age_seconds", max(now - self.heartbeat_at, 0.0)

    def _topic_samples(
        self, limit: int, labels: Mapping[str, str], seconds: Mapping[TopicPartition, float | None]
    ) -> Iterator[Sample]:
        keys: dict[str, list[TopicPartition]] = {}
        for key in self.standings:
            keys.setdefault(key[0], []).append(key)
        by_topic = {topic: _sums(self.standings, found, seconds) for topic, found in keys.items()}
        order = sorted(by_topic, key=lambda topic: (*_worst_first(by_topic[topic]), topic))
        rest = [key for topic in order[limit:] for key in keys[topic]]
        shown = [(topic, by_topic[topic], len(keys[topic])) for topic in order[:limit]]
        if rest:
            shown.append((OTHER, _sums(self.standings, rest, seconds), len(rest)))
        for topic, sums, count in shown:
            yield from _level_samples("topic", {**labels, "topic": topic}, sums, count)

    def _partition_samples(
        self, limit: int, labels: Mapping[str, str], seconds: Mapping[TopicPartition, float | None]
    ) -> Iterator[Sample]:
        order = sorted(
            self.standings,
            key=lambda key: (-self.standings[key].lag, -(seconds[key] or 0.0), -self.standings[key].held_back, key),
        )
        for topic, number in order[:limit]:
            standing = self.standings[(topic, number)]
            own = {**labels, "topic": topic, "partition": str(number)}
            yield from _level_samples("partition", own, _sums(self.standings, [(topic, number)], seconds), 1)
            if standing.source_offset >= 0:
                yield Sample(BY_NAME["partition_source_offset"], own, float(standing.source_offset))
        if rest := order[limit:]:
            own = {**labels, "topic": OTHER, "partition": OTHER}
            yield from _level_samples("partition", own, _sums(self.standings, rest, seconds), len(rest))


#: Metrics that have the name of a figure of the progress document.
_OF_DOCUMENT = (
    "records_per_second",
    "partitions_done",
    "partitions_failed",
    "partitions_stuck",
    "partitions_went_back",
    "stuck_seconds",
    "source_throttled_seconds",
    "target_throttled_seconds",
)


def _standings(document: Mapping[str, Any], lanes: Sequence[LaneFigures]) -> dict[TopicPartition, PartitionStanding]:
    """Merge the ends of slices with what running slices report."""
    found = {
        (str(item["topic"]), int(item["partition"])): PartitionStanding(
            source_offset=item.get("source_offset", -1),
            lag=item.get("lag", -1),
            held_back=item.get("held_back", 0),
            waiting_ms=item.get("waiting_ms", -1),
            mirrored_ms=item.get("mirrored_ms", -1),
        )
        for item in document.get("partitions", ())
    }
    merged = document.get("slices") or {}
    for lane in lanes:
        if not lane.slices or lane.slices[-1].slice_number <= merged.get(str(lane.lane), 0):
            continue
        for key, live in lane.partitions():
            former = found.get(key)
            # Partitions that the job no longer has are not shown.
            if former is not None and live.lag >= 0:
                mirrored_ms = live.mirrored_ms if live.mirrored_ms >= 0 else former.mirrored_ms
                found[key] = live._replace(mirrored_ms=mirrored_ms)
    return found


def _sums(
    standings: Mapping[TopicPartition, PartitionStanding],
    keys: Iterable[TopicPartition],
    seconds: Mapping[TopicPartition, float | None],
) -> Sums:
    sums = Sums()
    for key in keys:
        sums.add(standings[key], seconds[key])
    return sums


def _worst_first(sums: Sums) -> tuple[float, ...]:
    return (-sums.lag, -(sums.seconds or 0.0), -sums.held_back)


def _level_samples(level: str, labels: dict[str, str], sums: Sums, count: int) -> Iterator[Sample]:
    """Yield the samples that topics and partitions have in common; no lag where no partition has a known one."""
    if sums.unknown < count:
        yield Sample(BY_NAME[f"{level}_lag_records"], labels, float(sums.lag))
    if sums.seconds is not None:
        yield Sample(BY_NAME[f"{level}_lag_seconds"], labels, sums.seconds)
    yield Sample(BY_NAME[f"{level}_held_back_records"], labels, float(sums.held_back))


class LatencyWindow:
    """The latency of about the last minute: the difference between two states of a histogram that only grows.

    One per writer of metrics; used by one thread at a time.
    """

    def __init__(self, seconds: float = WINDOW_SECONDS) -> None:
        self._seconds = seconds
        #: (seconds of any steady clock, state at that time), ascending
        self._states: list[tuple[float, LatencyHistogram]] = []

    def take(self, state: LatencyHistogram, now: float) -> LatencyHistogram:
        """Take in the present state; return what was added within the window. The first call returns nothing."""
        if not self._states:
            self._states.append((now, state))
            return LatencyHistogram()
        # The newest of the states that are at least a window old is where the window begins.
        while len(self._states) >= 2 and now - self._states[1][0] >= self._seconds:
            del self._states[0]
        recent = state.since(self._states[0][1])
        if recent is state:
            # That of another driver, which counts from 0.
            self._states = [(now, LatencyHistogram())]
        if now - self._states[-1][0] >= self._seconds / 12:
            self._states.append((now, state))
        return recent
