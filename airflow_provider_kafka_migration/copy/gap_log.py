"""Source gaps in object storage, written ahead: a gap is named before the copy goes on behind it.

Create-only objects ``<migration_id>/source-gaps/<topic>/<partition>/<from_offset:020d>-<until_offset:020d>.json``. A
copier that is killed between the two leaves a gap that the next one meets again, perhaps a longer one: readers join
what overlaps. Without them a gap would be known to one process alone, and a kill would make it silent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from airflow_provider_kafka_migration.documents.copy import CopyPartition
from airflow_provider_kafka_migration.documents.source_gap import SourceGapRecord
from airflow_provider_kafka_migration.errors import ObjectExists
from airflow_provider_kafka_migration.offset_map.topic_key import topic_key, topic_of_key
from airflow_provider_kafka_migration.storage.base import ObjectStore

Gap = tuple[int, int]
_FOLDER = "source-gaps"
_NAME = re.compile(r"(?P<topic>[^/]+)/(?P<partition>[0-9]+)/(?P<from>[0-9]{20})-(?P<until>[0-9]{20})\.json")


def write_gap(store: ObjectStore, migration_id: str, spec: CopyPartition, gap: Gap) -> None:
    """Name a gap. The same gap twice is one.

    :param gap: (first offset that is gone, first offset that is there).
    :raises StorageUnavailable: it cannot be named, so the copy must not go on.
    """
    document = SourceGapRecord(
        migration_id=migration_id,
        topic=spec.topic,
        topic_id=spec.topic_id,
        partition=spec.partition,
        from_offset=gap[0],
        until_offset=gap[1],
    )
    key = f"{migration_id}/{_FOLDER}/{topic_key(spec.topic)}/{spec.partition}/{gap[0]:020d}-{gap[1]:020d}.json"
    try:
        store.put_new(key, document.canonical())
    except ObjectExists:
        return


def read_gaps(stores: Iterable[ObjectStore], migration_id: str) -> dict[tuple[str, int], list[Gap]]:
    """All gaps of a migration, ascending and joined where they overlap or touch: the names tell everything.

    :param stores: of the journal and of the archive; they may be one.
    """
    prefix = f"{migration_id}/{_FOLDER}/"
    found: dict[tuple[str, int], set[Gap]] = {}
    for store in stores:
        for info in store.list(prefix):
            match = _NAME.fullmatch(info.key.removeprefix(prefix))
            if match is not None:
                key = (topic_of_key(match["topic"]), int(match["partition"]))
                found.setdefault(key, set()).add((int(match["from"]), int(match["until"])))
    return {key: joined(gaps) for key, gaps in sorted(found.items())}


def joined(gaps: Iterable[Gap]) -> list[Gap]:
    """Ranges in ascending order; those that overlap or touch are one."""
    found: list[Gap] = []
    for first, until in sorted(gaps):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], until))
        else:
            found.append((first, until))
    return found
