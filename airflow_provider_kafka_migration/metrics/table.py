"""All metrics: names, units and what they mean. The documentation, the tests and all writers read this table.

A name is ``kafka_migration.<name>`` in Airflow's metrics and ``kafka_migration_<name>`` for Prometheus, where counters
end in ``_total``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

PREFIX = "kafka_migration"

#: Label values of what is not named because there are too many: no topic can have such a name.
OTHER = "(other)"

Kind = Literal["gauge", "counter", "histogram"]
Level = Literal["migration", "verdict", "topic", "partition"]

#: The labels of a level, in addition to :data:`COMMON_LABELS`.
LEVEL_LABELS: Mapping[Level, tuple[str, ...]] = MappingProxyType(
    {"migration": (), "verdict": ("verdict",), "topic": ("topic",), "partition": ("topic", "partition")}
)
#: ``phase`` is the name of the job: seed, tail, backup or restore. ``flow`` exists only for jobs that have one.
COMMON_LABELS = ("migration_id", "phase")
FLOW_LABEL = "flow"


@dataclass(frozen=True)
class Metric:
    """One metric.

    :param unit: as the names of Prometheus have it: seconds, records, bytes, partitions, groups, offset.
    :param alert: what to alert on; empty: it is for dashboards.
    :param airflow: written through Airflow's metrics configuration, by the task. Counters are gauges there: their value
        is the total.
    :param prometheus: offered by the endpoint of the long-running process.
    """

    name: str
    kind: Kind
    unit: str
    level: Level
    meaning: str
    alert: str = ""
    airflow: bool = True
    prometheus: bool = True

    @property
    def airflow_name(self) -> str:
        """The name in Airflow's metrics, without Airflow's own prefix."""
        return f"{PREFIX}.{self.name}"

    @property
    def prometheus_name(self) -> str:
        """The name of the family for Prometheus, as it is queried."""
        return f"{PREFIX}_{self.name}{'_total' if self.kind == 'counter' else ''}"

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels in addition to the common ones."""
        return LEVEL_LABELS[self.level]


_LAG = "source offsets up to the last stable offset that the target does not have yet"
_LAG_SECONDS = "now minus the timestamp of the oldest record that is not on the target"

ALL: tuple[Metric, ...] = (
    Metric("lag_records", "gauge", "records", "migration", f"Sum over all partitions: {_LAG}.", "It grows for long."),
    Metric(
        "lag_seconds",
        "gauge",
        "seconds",
        "migration",
        f"Largest of all partitions: {_LAG_SECONDS}.",
        "It exceeds what consumers may wait for, or what a freeze may last.",
    ),
    Metric("largest_lag_records", "gauge", "records", "migration", "Largest lag of one partition.", ""),
    Metric(
        "lag_unknown_partitions",
        "gauge",
        "partitions",
        "migration",
        "Partitions whose lag is not known: no copier has read them yet.",
        "It stays above 0 while the job runs.",
    ),
    Metric(
        "held_back_records",
        "gauge",
        "records",
        "migration",
        "Source offsets between the last stable offset and the high watermark: open transactions hold them back.",
        "It stays above 0: a producer has left a transaction open.",
    ),
    Metric(
        "records",
        "counter",
        "records",
        "migration",
        "Records that the target has acknowledged, over all drivers. Where a slice ended before the answer came, they "
        "are not counted.",
    ),
    Metric("copied_bytes", "counter", "bytes", "migration", "The same in bytes of batches."),
    Metric(
        "skipped_records",
        "counter",
        "records",
        "migration",
        "Records of topics with the same names in both directions that were read and not copied, because they came "
        "through the target or over too many clusters. Those that are read again after a restart count again.",
    ),
    Metric("records_per_second", "gauge", "records/s", "migration", "Rate of the slices that run."),
    Metric(
        "replication_latency_p50_seconds",
        "gauge",
        "seconds",
        "migration",
        "Half of the records of the last minute or two were acknowledged by the target at most this long after their "
        "timestamp. Absent if there were none.",
    ),
    Metric(
        "replication_latency_p99_seconds",
        "gauge",
        "seconds",
        "migration",
        "The same for 99 % of them.",
        "It exceeds what applications can stand.",
    ),
    Metric(
        "replication_latency_seconds",
        "histogram",
        "seconds",
        "migration",
        "Records by the time from their batch's newest timestamp to the target's acknowledgement.",
        airflow=False,
    ),
    Metric(
        "untimed_records",
        "counter",
        "records",
        "migration",
        "Records that are not in the latency: older than 60 s when they were acknowledged, without a timestamp, or "
        "with one in the future.",
        "It grows while the lag is small: producers' clocks are wrong.",
    ),
    Metric("partitions", "gauge", "partitions", "verdict", "Partitions by how their offsets are kept."),
    Metric("partitions_done", "gauge", "partitions", "migration", "Partitions that have reached their stop."),
    Metric(
        "partitions_failed",
        "gauge",
        "partitions",
        "migration",
        "Partitions that are not copied until a person has acted.",
        "It is above 0.",
    ),
    Metric(
        "partitions_stuck", "gauge", "partitions", "migration", "Partitions that cannot be copied now, and are retried."
    ),
    Metric(
        "stuck_seconds",
        "gauge",
        "seconds",
        "migration",
        "How long the longest of them has not been copied.",
        "It exceeds two minutes.",
    ),
    Metric(
        "partitions_went_back",
        "gauge",
        "partitions",
        "migration",
        "Partitions of which the target has lost records after they were copied.",
        "It grows.",
    ),
    Metric(
        "heartbeat_age_seconds",
        "gauge",
        "seconds",
        "migration",
        "Now minus the time of the driver's last progress document, by two clocks if the driver is on another machine.",
        "It exceeds a slice and a minute.",
    ),
    Metric(
        "silent_seconds",
        "gauge",
        "seconds",
        "migration",
        "How long the tail's task has seen no new progress document, by the task's own clock.",
        "It exceeds two minutes.",
        prometheus=False,
    ),
    Metric(
        "source_throttled_seconds",
        "counter",
        "seconds",
        "migration",
        "How long the source's quotas have held copiers up.",
    ),
    Metric(
        "target_throttled_seconds",
        "counter",
        "seconds",
        "migration",
        "The same for the target's quotas.",
        "It grows while the lag grows: raise the quota.",
    ),
    Metric("groups", "gauge", "groups", "migration", "Consumer groups that a mirror's last group sync has found."),
    Metric(
        "groups_behind",
        "gauge",
        "groups",
        "migration",
        "Those that are not on the target where they are on the source: they have read further than is mirrored, the "
        "copy of a partition has an error, their place is not known, or they could not be read or written.",
        "It stays above 0: a consumer that fails over would read records again.",
    ),
    Metric("groups_failed", "gauge", "groups", "migration", "Those of them that could not be read or written."),
    Metric(
        "groups_left_alone",
        "gauge",
        "groups",
        "migration",
        "Groups that are not written for a reason, for instance because they have members on the target.",
    ),
    Metric(
        "groups_sync_age_seconds",
        "gauge",
        "seconds",
        "migration",
        "Now minus the end of the last round of the group sync; as long as there was none, since the first one failed.",
        "It exceeds some rounds (`mirror.sync_interval`) and a minute.",
    ),
    Metric(
        "replicated_heartbeat_age_seconds",
        "gauge",
        "seconds",
        "migration",
        "Now minus the time of the newest heartbeat of the source that a mirror's target has, by the clocks of this "
        "machine and of whoever wrote it; noted every ten seconds. If none has ever arrived, since the first pass that "
        "looked for one. Only with `mirror.state_topics.heartbeats`.",
        "It exceeds a minute: the source does not answer, or nobody mirrors.",
    ),
    Metric("topic_lag_records", "gauge", "records", "topic", "Sum of the lags of a source topic's partitions."),
    Metric("topic_lag_seconds", "gauge", "seconds", "topic", "Largest lag in seconds of its partitions."),
    Metric("topic_held_back_records", "gauge", "records", "topic", "Sum of what open transactions hold back."),
    Metric("partition_lag_records", "gauge", "records", "partition", f"{_LAG[0].upper()}{_LAG[1:]}."),
    Metric("partition_lag_seconds", "gauge", "seconds", "partition", f"{_LAG_SECONDS[0].upper()}{_LAG_SECONDS[1:]}."),
    Metric("partition_held_back_records", "gauge", "records", "partition", "What open transactions hold back."),
    Metric(
        "partition_source_offset",
        "gauge",
        "offset",
        "partition",
        "Next source offset to copy; its rate is the partition's speed. Not offered for the sum of the others.",
    ),
)

BY_NAME: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in ALL})


def prometheus_series() -> frozenset[str]:
    """Return the names that a query may contain: families, and the three series of a histogram."""
    found = set()
    for metric in ALL:
        if metric.prometheus and metric.kind == "histogram":
            found |= {f"{metric.prometheus_name}_{end}" for end in ("bucket", "count", "sum")}
        elif metric.prometheus:
            found.add(metric.prometheus_name)
    return frozenset(found)


def markdown() -> str:
    """Return the table of all metrics for the documentation."""
    lines = [
        "| Airflow (StatsD, OpenTelemetry) | Prometheus | labels | unit | meaning | alert when |",
        "|---|---|---|---|---|---|",
    ]
    for metric in ALL:
        airflow = f"`{metric.airflow_name}`" if metric.airflow else "-"
        prometheus = f"`{metric.prometheus_name}`" if metric.prometheus else "-"
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "-"
        kind = "" if metric.kind == "gauge" else f" ({metric.kind})"
        cells = [airflow, prometheus + kind, labels, metric.unit, metric.meaning, metric.alert or "-"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
