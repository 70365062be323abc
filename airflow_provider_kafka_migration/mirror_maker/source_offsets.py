"""Source offsets of MirrorMaker 2: how far its MirrorSourceConnector has copied, in the offsets topic of Connect.

The topic is on the target. A record is plain JSON, and Connect looks a position up by the bytes of its key, so the
order of the fields counts. The value has the last offset that was copied; MirrorMaker 2 goes on at the one behind it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from airflow_provider_kafka_migration.errors import TopologyRefused, Where
from airflow_provider_kafka_migration.kafka.admin.client import Admin
from airflow_provider_kafka_migration.kafka.admin.topics import TOPIC_ALREADY_EXISTS, NewTopic
from airflow_provider_kafka_migration.kafka.batches.api import Record
from airflow_provider_kafka_migration.kafka.wire import TopicPartition

#: The connector's name in dedicated mode.
CONNECTOR = "MirrorSourceConnector"
#: Connect's default for ``offset.storage.partitions``.
_PARTITIONS = 25
#: Keys of a source partition of MirrorSourceConnector; those of its other connectors differ.
_PARTITION_KEYS = {"cluster", "partition", "topic"}


class SourcePosition(NamedTuple):
    """One record of the offsets topic: the last source offset that was copied; None: removed."""

    connector: str
    key: TopicPartition
    offset: int | None

    def encode(self, source_alias: str) -> tuple[bytes, bytes | None]:
        """Return key and value as Connect writes them."""
        topic, partition = self.key
        name = [self.connector, {"cluster": source_alias, "partition": partition, "topic": topic}]
        return _json(name), None if self.offset is None else _json({"offset": self.offset})


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def parse_position(record: Record, source_alias: str) -> SourcePosition | None:
    """Parse a record of the offsets topic; None if it is of another connector, cluster or format."""
    try:
        connector, partition = json.loads(record.key or b"")
        if set(partition) != _PARTITION_KEYS or partition["cluster"] != source_alias:
            return None
        key = (str(partition["topic"]), int(partition["partition"]))
        value = None if record.value is None else json.loads(record.value)
        return SourcePosition(str(connector), key, None if value is None else int(value["offset"]))
    except (ValueError, TypeError, KeyError):
        return None


@dataclass(frozen=True)
class OffsetsTopic:
    """The offsets topic of one MirrorMaker 2.

    :param source_alias: name of the source in its configuration.
    :param name: empty: the name in dedicated mode; of a Connect cluster it is ``offset.storage.topic``.
    """

    source_alias: str
    name: str = ""

    @property
    def topic(self) -> str:
        """Its name."""
        return self.name or f"mm2-offsets.{self.source_alias}.internal"

    def create(self, admin: Admin) -> bool:
        """Create it as Connect does; return whether it was missing.

        :raises TopologyRefused: a broker refuses it.
        """
        error = admin.create_topics([NewTopic(self.topic, _PARTITIONS, configs={"cleanup.policy": "compact"})])[
            self.topic
        ].error
        if error is None or error.code == TOPIC_ALREADY_EXISTS:
            return error is None
        raise TopologyRefused(
            f"the offsets topic of MirrorMaker 2 cannot be created: {error}",
            where=Where(cluster="target", topic=self.topic),
            next_step="grant the principal Create on it, or create it with 25 partitions and cleanup.policy=compact",
        )


def last_positions(positions: Iterable[SourcePosition], connector: str) -> dict[TopicPartition, int]:
    """Return the last position of each partition of one connector; removed ones are absent."""
    last = {item.key: item.offset for item in positions if item.connector == connector}
    return {key: offset for key, offset in last.items() if offset is not None}
