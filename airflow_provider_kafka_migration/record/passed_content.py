"""A passed comparison of all content: journaled with its ranges before anything may be deleted.

Once it has passed, configs that delete data return to the target, and applications delete their own data (Kafka Streams
deletes what it has read from its repartition topics). So a later run of the validation must not compare again: records
that were deleted by then are not missing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from airflow_provider_kafka_migration.compare.proven import is_another_log, load_proven
from airflow_provider_kafka_migration.documents.copy import OffsetMapDocument
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.documents.proof import CheckResult, ContentRange, PartitionContent, PassedContent
from airflow_provider_kafka_migration.documents.schemas import id_rule
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.record.partition_names import by_name, partition_name
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.schema_id_settings import schema_id_settings
from airflow_provider_kafka_migration.record.times import iso

# -- content ranges ---------------------------------------------------------------------------------------------------
#
# The range to compare in each partition, from the offset map of the finished copy.


def content_ranges(document: OffsetMapDocument) -> list[ContentRange]:
    """Return what is compared: each partition from its first to its last copied offset."""
    return [
        ContentRange(
            topic=item.topic,
            target_topic=item.target_topic,
            partition=item.partition,
            verdict=Verdict(item.verdict),
            source_start_offset=item.source_start_offset or 0,
            source_end_offset=item.source_end_offset or 0,
            target_start_offset=item.target_start_offset or 0,
            target_end_offset=item.target_end_offset or 0,
        )
        for item in document.partitions
        if item.verdict
    ]


log = logging.getLogger(__name__)


def load_passed(record: MigrationRecord, target: Cluster, ranges: Sequence[ContentRange]) -> PassedContent | None:
    """Return the passed comparison if it covers exactly these ranges and is the journaled one."""
    entry = record.journal.find_step(steps.CONTENT_PASSED)
    data = record.result(keys.CONTENT_PASSED)
    if entry is None or data is None:
        return None
    try:
        found = PassedContent.parse(data)
    except ValidationError as error:
        log.warning("results/%s.json cannot be read; everything is compared again: %s", keys.CONTENT_PASSED, error)
        return None
    wanted = sorted(ranges, key=lambda item: item.key)
    if entry.details.get("digest") != found.digest() or found.ranges != wanted:
        return None
    if not record.is_retention_restored() and (
        _lacks_ids(record, found.contents) or _was_replaced(record, target, found.ranges)
    ):
        return None
    return found


def _lacks_ids(record: MigrationRecord, contents: Sequence[PartitionContent]) -> bool:
    """Whether schema ids of some partition were not gathered, or were compared in another way than they are now.

    Checked as long as retention is not known to be restored. Afterwards, records may be missing on the target; whoever
    reads the ids then sees that the result has no rule for them.

    :raises DocumentUnreadable: the schema plan is missing, or is not the one that the plan was made with.
    """
    settings = schema_id_settings(record)
    lacking = [item for item in contents if item.schema_id_rule != id_rule(settings, item.topic)]
    if lacking:
        log.warning("%s-%d: its schema ids were not gathered; everything is compared again", *lacking[0].key)
    return bool(lacking)


def _was_replaced(record: MigrationRecord, target: Cluster, ranges: Sequence[ContentRange]) -> bool:
    """Whether some partition on the target has another log than the one that passed.

    Checked as long as retention is not known to be restored, that is, as long as comparing again is still useful.

    :raises MigrationError: the target cannot be queried.
    """
    for item in ranges:
        found = load_proven(record.journal_store, record.migration_id, item).proven
        if found is not None and is_another_log(target.wire, found, item.target_topic, item.partition):
            log.warning("%s-%d: the target's log was written again; everything is compared again", *item.key)
            return True
    return False


def compared_log_starts(
    record: MigrationRecord, ranges: Sequence[ContentRange], passed: PassedContent | None
) -> dict[TopicPartition, int]:
    """By source partition: the target's log start as read after the comparison; only known ones.

    The lowest value that was read: everything above it existed during the whole comparison.
    """
    known: dict[TopicPartition, int] = {}
    for item in ranges:
        found = load_proven(record.journal_store, record.migration_id, item).proven
        seen = [] if found is None else [found.target_log_start_offset]
        if passed is not None:
            seen.append(passed.target_log_starts.get(partition_name((item.target_topic, item.partition)), -1))
        seen = [offset for offset in seen if offset >= 0]
        if seen:
            known[item.key] = min(seen)
    return known


def save_passed(
    record: MigrationRecord,
    ranges: Sequence[ContentRange],
    contents: Sequence[PartitionContent],
    sentinels: CheckResult,
    target_log_starts: Mapping[TopicPartition, int],
) -> PassedContent:
    """Store and journal a passed comparison. Call it before configs that delete data are restored."""
    passed = PassedContent(
        migration_id=record.migration_id,
        passed_at=iso(record.now()),
        ranges=sorted(ranges, key=lambda item: item.key),
        contents=sorted(contents, key=lambda item: item.key),
        sentinels=sentinels,
        target_log_starts=by_name(target_log_starts),
    )
    key = record.put_result(keys.CONTENT_PASSED, passed)
    details = {
        "digest": passed.digest(),
        "result": key,
        "partitions": len(passed.ranges),
        "compared": sum(item.compared for item in contents),
        "uncompared_records": sum(item.uncompared_records for item in contents),
        "source_offsets": sum(item.source_end_offset - item.source_start_offset for item in passed.ranges),
    }
    record.journal.step(
        steps.CONTENT_PASSED, details=details, reason=f"the content of {len(passed.ranges)} partitions is proven"
    )
    return passed
