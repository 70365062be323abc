"""Log starts that went back: a broker that dies soon after DeleteRecords has forgotten it.

Brokers write log starts to a checkpoint once a minute (``log.flush.start.offset.checkpoint.interval.ms``). After a
crash before that, the fillers below a partition's first offset can be read again, by consumers that begin at the
earliest offset. Only fillers are deleted again, never records of anybody else.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from airflow_provider_kafka_migration.errors import MigrationError, OutsideOfLog
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch
from airflow_provider_kafka_migration.kafka.fetch import READ_UNCOMMITTED
from airflow_provider_kafka_migration.kafka.logs import fetch_span
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire

log = logging.getLogger(__name__)


def delete_fillers_again(
    wire: Wire,
    log_starts: Mapping[TopicPartition, int],
    wanted: Mapping[TopicPartition, int],
    filler_producer_id: int,
) -> dict[TopicPartition, int | MigrationError]:
    """Move log starts to where they were, if fillers are what lies below.

    :param log_starts: as they are now.
    :param wanted: first copied offset of each partition.
    :returns: what was done: new log start by partition, or what stood in the way.
    """
    done: dict[TopicPartition, int | MigrationError] = {}
    for key, start in sorted(wanted.items()):
        if log_starts.get(key, start) >= start:
            continue
        try:
            if not _begins_with_fillers(wire, key, log_starts[key], filler_producer_id):
                continue
            log.warning(
                "%s-%s: the log start went back from %s to %s (a broker has crashed): fillers are deleted again",
                *key,
                start,
                log_starts[key],
            )
            done[key] = wire.delete_records({key: start})[key]
        except MigrationError as error:
            done[key] = error
    return done


def _begins_with_fillers(wire: Wire, key: TopicPartition, log_start_offset: int, filler_producer_id: int) -> bool:
    try:
        batches = fetch_span(wire, key, log_start_offset, isolation=READ_UNCOMMITTED).batches
    except OutsideOfLog:
        return False  # the log start has moved on meanwhile
    return bool(batches) and isinstance(batches[0], RawBatch) and batches[0].producer_id == filler_producer_id
