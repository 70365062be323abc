"""The boundary of a cutover: up to where the source belongs to the migration."""

from __future__ import annotations

from airflow_provider_kafka_migration.documents.cutover import Boundary
from airflow_provider_kafka_migration.errors import FreezeFailed
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.facts import get_result, migrated_partitions, partition_name

PHASE = "cutover"


def load_boundary(context: PhaseContext) -> Boundary:
    """The end of the source as the sentinels step left it.

    :raises FreezeFailed: the step was not done.
    """
    data = get_result(context, "boundary")
    if data is None:
        raise FreezeFailed(
            "the end of the source is not known: the sentinels were not written",
            where=context.where(PHASE),
            next_step="clear cutover.sentinels",
        )
    return Boundary.parse(data)


def boundary_ends(context: PhaseContext, boundary: Boundary) -> dict[TopicPartition, int]:
    """Exclusive source end of each partition.

    :raises FreezeFailed: a partition appeared after the freeze.
    """
    partitions = migrated_partitions(context)
    missing = [key for key in partitions if partition_name(key) not in boundary.ends]
    if missing:
        raise FreezeFailed(
            f"{len(missing)} partitions appeared after the freeze, the first is {partition_name(missing[0])}",
            where=context.where(PHASE, topic=missing[0][0], partition=missing[0][1]),
            next_step="stop who creates topics or partitions on the source; then approve the cutover again",
        )
    return {key: boundary.ends[partition_name(key)] for key in partitions}
