"""Ranges of compacted partitions that were read so late that tombstones may have been removed, for people."""

from __future__ import annotations

import logging
from typing import Any, Final, Literal

from airflow_provider_kafka_migration.copy.read_watch import describe, read_overtaken
from airflow_provider_kafka_migration.documents.copy import TombstoneSettings
from airflow_provider_kafka_migration.documents.plan import Plan
from airflow_provider_kafka_migration.documents.proof import DEFAULT_DELETE_RETENTION_MS, CheckResult, is_compacted
from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.record.facts import partition_name
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import parse_iso
from airflow_provider_kafka_migration.spec import MigrationSpec

log = logging.getLogger(__name__)

#: Journal step of target topics that were deleted and are created again, to be copied from the source's log start.
MADE_AGAIN: Final = "topics_made_again"
_COPIED_AGAIN = "; since then the topic was deleted on the target and copied again from the source's log start"


def overtaken_tombstones(record: MigrationRecord) -> list[dict[str, Any]]:
    """All such ranges so far, by topic, partition and offset, with their figures."""
    # Backup lanes can reach only the archive.
    stores = [record.journal_store, *([record.archive_store] if record.spec.seed.via == "split" else [])]
    made_again = _made_again(record)
    return [
        {
            "topic": item.topic,
            "partition": item.partition,
            "from_offset": item.from_offset,
            "until_offset": item.until_offset,
            "caught_up_at": item.caught_up_at,
            "caught_up_offset": item.caught_up_offset,
            "read_at": item.read_at,
            "gap_seconds": item.gap_seconds,
            "retention_ms": item.retention_ms,
            "what": describe(item) + (_COPIED_AGAIN if _is_before(item.read_at, made_again.get(item.topic)) else ""),
        }
        for item in read_overtaken(stores, record.migration_id)
    ]


def _made_again(record: MigrationRecord) -> dict[str, str]:
    """When target topics were last created again, by source topic."""
    entries = record.journal.steps(MADE_AGAIN)
    names = {topic.target_name: topic.name for topic in record.plan().topics} if entries else {}
    return {names[name]: entry.at for entry in entries for name in entry.details["topics"] if name in names}


def _is_before(read_at: str, made_at: str | None) -> bool:
    return bool(read_at and made_at) and parse_iso(read_at) < parse_iso(str(made_at))


def with_overtaken(record: MigrationRecord, check: CheckResult) -> CheckResult:
    """Add to the content check what it had to compare again.

    The outcome stays: a comparison that began before such a range was copied is not trusted, so all of these partitions
    were compared since.
    """
    findings = [
        f"{partition_name((item['topic'], item['partition']))} was compared as a whole after this: {item['what']}"
        for item in overtaken_tombstones(record)
    ]
    return check.model_copy(update={"findings": [*check.findings, *findings]}) if findings else check


def tombstone_settings(
    spec: MigrationSpec, source: Cluster, plan: Plan, former: TombstoneSettings | None = None
) -> TombstoneSettings:
    """Return what copiers need: the policy, and the effective ``delete.retention.ms`` of each compacted topic.

    A copy continues while the source does not answer. If a topic's value cannot be read now, the last known one counts,
    else the plan's, else Kafka's default; the precheck warns about values that the source does not report.

    :param former: the settings of the previous job.
    """
    compacted = {topic.name: topic for topic in plan.topics if is_compacted(topic)}
    try:
        configs = source.admin.topic_configs(sorted(compacted)) if compacted else {}
        told = {name: configs[name].get("delete.retention.ms") or "" for name in compacted}
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
    policy: Literal["fail", "warn"] = "warn" if spec.offsets.on_overtaken_tombstones == "warn" else "fail"
    return TombstoneSettings(on_overtaken=policy, retention_ms=values)
