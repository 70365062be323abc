"""Stretches of compacted partitions that were read too late for their tombstones, in object storage, written ahead.

Create-only objects ``<migration_id>/overtaken-tombstones/<topic>/<partition>/<from:020d>-<until:020d>-<event>.json``.
How many there are of a partition is what tells whether a comparison is older than the newest of them.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable

from pydantic import ValidationError

from airflow_provider_kafka_migration.documents.overtaken_tombstones import OvertakenTombstones
from airflow_provider_kafka_migration.errors import ObjectExists
from airflow_provider_kafka_migration.offset_map.topic_key import topic_key, topic_of_key
from airflow_provider_kafka_migration.storage.base import ObjectStore

_FOLDER = "overtaken-tombstones"
_NAME = re.compile(r"(?P<topic>[^/]+)/(?P<partition>[0-9]+)/(?P<from>[0-9]{20})-(?P<until>[0-9]{20})-[a-z]+\.json")

log = logging.getLogger(__name__)


def write_overtaken(store: ObjectStore, document: OvertakenTombstones) -> None:
    """Name a stretch, or that the copy has passed it. The same one twice is one.

    :raises StorageUnavailable: it cannot be named, so the copy must not go on.
    """
    name = f"{document.from_offset:020d}-{document.until_offset:020d}-{document.event}.json"
    prefix = f"{document.migration_id}/{_FOLDER}/{topic_key(document.topic)}/{document.partition}"
    try:
        store.put_new(f"{prefix}/{name}", document.canonical())
    except ObjectExists:
        return


def times_overtaken(store: ObjectStore, migration_id: str, topic: str, partition: int) -> int:
    """How many objects there are of a partition."""
    return sum(1 for _ in store.list(f"{migration_id}/{_FOLDER}/{topic_key(topic)}/{partition}/"))


def all_times_overtaken(store: ObjectStore, migration_id: str) -> Counter[tuple[str, int]]:
    """The same of all partitions, by (source topic, partition)."""
    prefix = f"{migration_id}/{_FOLDER}/"
    found: Counter[tuple[str, int]] = Counter()
    for info in store.list(prefix):
        match = _NAME.fullmatch(info.key.removeprefix(prefix))
        if match is not None:
            found[topic_of_key(match["topic"]), int(match["partition"])] += 1
    return found


def read_overtaken(stores: Iterable[ObjectStore], migration_id: str) -> list[OvertakenTombstones]:
    """All stretches that were met, ascending by partition and offset.

    :param stores: of the journal and of the archive; they may be one.
    """
    found: dict[str, OvertakenTombstones] = {}
    for store in stores:
        for info in store.list(f"{migration_id}/{_FOLDER}/"):
            data = store.get(info.key) if info.key.endswith("-met.json") else None
            if data is None:
                continue
            item = _parse(data, info.key)
            if item is not None:
                found[info.key] = item
    return sorted(found.values(), key=lambda item: (item.topic, item.partition, item.from_offset, item.until_offset))


def _parse(data: bytes, key: str) -> OvertakenTombstones | None:
    """An object that cannot be read is named by its name at least."""
    try:
        return OvertakenTombstones.parse(data)
    except ValidationError as error:
        log.warning("%s cannot be read: %s", key, error)
    migration_id, _, rest = key.partition(f"/{_FOLDER}/")
    match = _NAME.fullmatch(rest)
    if match is None:
        return None
    return OvertakenTombstones(
        migration_id=migration_id,
        topic=topic_of_key(match["topic"]),
        partition=int(match["partition"]),
        event="met",
        from_offset=int(match["from"]),
        until_offset=int(match["until"]),
        read_at="",
        retention_ms=-1,
    )
