"""Tombstones that may be removed on the source before they are copied: what copiers need to know, and the findings."""

from __future__ import annotations

import logging
from typing import Literal

from airflow_provider_kafka_migration.documents.copy import TombstoneSettings
from airflow_provider_kafka_migration.documents.plan import Plan
from airflow_provider_kafka_migration.documents.proof import DEFAULT_DELETE_RETENTION_MS, CheckResult, is_compacted
from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.record.partition_names import partition_name
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.spec import MigrationSpec

log = logging.getLogger(__name__)


def with_overtaken(record: MigrationRecord, check: CheckResult) -> CheckResult:
    """Add to the content check what it had to compare again.

    The outcome stays: a comparison that began before such a range was copied is not trusted, so all of these partitions
    were compared since.
    """
    findings = [
        f"{partition_name((item['topic'], item['partition']))} was compared as a whole after this: {item['what']}"
        for item in record.overtaken()
    ]
    return check.model_copy(update={"findings": [*check.findings, *findings]}) if findings else check


def tombstone_settings(
    spec: MigrationSpec, source: Cluster, plan: Plan, former: TombstoneSettings | None = None
) -> TombstoneSettings:
    """Return what copiers need: the policy, and the effective ``delete.retention.ms`` of each compacted topic.

    A copy continues while the source does not answer, and a restore may not ask it. If a topic's value cannot be read
    now, the last known one counts, else the plan's, else Kafka's default; the precheck warns about values that the
    source does not report.

    :param former: the settings of the previous job.
    """
    compacted = {topic.name: topic for topic in plan.topics if is_compacted(topic)}
    try:
        configs = source.admin.topic_configs(sorted(compacted)) if compacted and not source.absent else {}
        told = {name: configs[name].get("delete.retention.ms") or "" for name in configs}
    except MigrationError as error:
        log.warning("delete.retention.ms cannot be read from the source now: %s", error)
        told = {}
    known = former.retention_ms if former is not None else {}
    default = str(DEFAULT_DELETE_RETENTION_MS)
    values = {}
    for name, topic in sorted(compacted.items()):
        planned = topic.source_configs.get("delete.retention.ms", default)
        values[name] = int(told[name]) if told.get(name) else known.get(name, int(planned))
    # Copiers stop the partition in both cases: topics are deleted only between two runs of the copiers.
    policy: Literal["stop", "note"] = "note" if spec.offsets.on_overtaken_tombstones == "note" else "stop"
    return TombstoneSettings(on_overtaken=policy, retention_ms=values)
