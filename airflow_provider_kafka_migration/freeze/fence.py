"""Part of ``cutover.floor_guard``: the migration's producers are fenced on the target before clients may switch.

It comes behind the journal's READY, from which on no freeze is lifted any more: a copy that has to go on could not
write under a fenced id. Until it is journaled the migration stays in ``cutover``, so nobody can acknowledge the switch.
What could not be fenced never holds the cutover up: it is named in the result, the approval and the evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_kafka_migration.documents.offset_map import MappedPartition, OffsetMapDocument
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.freeze import frozen
from airflow_provider_kafka_migration.freeze.fence_producer import fence_producer
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.offset_map.transactional_position import transactional_id
from airflow_provider_kafka_migration.record import freeze_attempt, producer_ids
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.facts import by_name, partition_name
from airflow_provider_kafka_migration.record.freeze_attempt import FreezeAttempt
from airflow_provider_kafka_migration.record.producer_ids import load_producer_ids

FENCE_STEP = "fence"


def fence_copiers(context: PhaseContext, attempt: FreezeAttempt, document: OffsetMapDocument) -> dict[str, Any]:
    """Fence every partition once, and journal where the markers are; details of the step."""
    done = freeze_attempt.step_done(context, attempt, FENCE_STEP)
    if done is not None:
        return dict(done)
    timer = frozen.StepTimer.start(context, attempt, FENCE_STEP)
    if not context.spec.cutover.fence_copiers:
        return timer.done({"summary": "copiers are not fenced (cutover.fence_copiers: false)", "unfenced": []})
    context.journal.check_holds()
    markers, problems = _fence_markers(context, document)
    fenced_ids, more_problems = _fence_transactions(context, document)
    problems.update(more_problems)
    unfenced = [
        {"topic": key[0], "partition": key[1], "reason": error.what, "error": error.code}
        for key, error in sorted(problems.items())
    ]
    summary = f"copiers are fenced on {len(markers) + fenced_ids} partitions"
    if unfenced:
        name = partition_name(min(problems))
        summary += f"; NOT on {len(unfenced)}, the first is {name}: {unfenced[0]['reason']}"
    return timer.done(
        {"summary": summary, "markers": by_name(markers), "transactional": fenced_ids, "unfenced": unfenced}
    )


def was_fenced(details: Mapping[str, Any]) -> bool:
    """Whether the details of the step are those of a fence, not of one that was left out."""
    return "markers" in details


def _fence_markers(
    context: PhaseContext, document: OffsetMapDocument
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, MigrationError]]:
    ends = {
        (item.target_topic, item.partition): item.target_end_offset
        for item in document.partitions
        if not _is_transactional(item) and item.target_end_offset is not None
    }
    ids = load_producer_ids(context)
    found = fence_producer(
        context.target.wire,
        ends,
        ids.data_producer_id,
        ids.data_producer_epoch,
        transactional_id=producer_ids.transactional_id(context),
    )
    return found.markers, found.problems


def _fence_transactions(
    context: PhaseContext, document: OffsetMapDocument
) -> tuple[int, dict[TopicPartition, MigrationError]]:
    """Copies in transactions: the coordinator gives the next epoch, and ends what an older one has open."""
    fenced, problems = 0, {}
    for item in document.partitions:
        if not _is_transactional(item):
            continue
        key = (item.target_topic, item.partition)
        try:
            context.target.wire.init_producer_id(transactional_id(context.migration_id, *key))
            fenced += 1
        except MigrationError as error:
            problems[key] = error
    return fenced, problems


def _is_transactional(item: MappedPartition) -> bool:
    return item.verdict == Verdict.TRANSACTIONAL
