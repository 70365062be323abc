"""Reads the positions that transactional copies have committed on the target: for resumes, lags and the final drain."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_kafka_migration.errors import BrokerBusy, MigrationError, Where
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka import transactions as requests
from airflow_provider_kafka_migration.kafka.wire import GROUP_COORDINATOR, TopicPartition, Wire, by_topic
from airflow_provider_kafka_migration.offset_map.transactional_position import Position, read_position

_PARTITIONS_PER_REQUEST = 2_000


def read_positions(
    wire: Wire, group: str, keys: Iterable[TopicPartition]
) -> dict[TopicPartition, Position | MigrationError | None]:
    """Position by (target topic, partition); None: there is none.

    :class:`BrokerBusy` where a transaction is being ended whose outcome the group does not know yet.

    :raises PermissionMissing: Describe on the group is missing.
    :raises Transient: the coordinator does not answer.
    """
    wanted = sorted(set(keys))
    found: dict[TopicPartition, Position | MigrationError | None] = dict.fromkeys(wanted)
    for start in range(0, len(wanted), _PARTITIONS_PER_REQUEST):
        found.update(_read(wire, group, wanted[start : start + _PARTITIONS_PER_REQUEST]))
    return found


def _read(wire: Wire, group: str, keys: list[TopicPartition]) -> dict[TopicPartition, Position | MigrationError | None]:
    request, version = requests.fetch_offsets(group, by_topic(keys))

    def attempt() -> dict[TopicPartition, Position | MigrationError | None]:
        broker_id = wire.coordinator(group, GROUP_COORDINATOR)
        answer = wire.connection(broker_id).call(request, version=version)
        where = Where(cluster=wire.config.name, group=group)
        if answer.error_code:
            raise error_codes.error_for(
                answer.error_code, "positions cannot be read", where=where, needs=f"Describe on Group {group}"
            )
        return {
            (topic.name, item.partition_index): _position(
                item, Where(cluster=wire.config.name, topic=topic.name, partition=item.partition_index)
            )
            for topic in answer.topics
            for item in topic.partitions
        }

    return wire.retrying(attempt)


def _position(item: object, where: Where) -> Position | MigrationError | None:
    code, offset = int(item.error_code), int(item.committed_offset)  # type: ignore[attr-defined]
    if code == error_codes.UNSTABLE_OFFSET_COMMIT:
        return BrokerBusy("a transaction is being ended", where=where, next_step="none: it is asked for again")
    if code:
        return error_codes.error_for(code, "the position cannot be read", where=where)
    if offset < 0:
        return None
    try:
        return read_position(offset, str(item.metadata or ""))  # type: ignore[attr-defined]
    except MigrationError as error:
        return type(error)(error.what, where=where, next_step=error.next_step)
