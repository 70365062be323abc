"""Pages of the offset maps of transactional partitions, in the journal's object store.

Objects below ``<migration_id>/transactional-map/<topic>/<partition>/``: ``<number:08d>-<digest>.json`` are pages,
``begun.json`` says that a position was committed on the target. Pages are named by their content and written before the
commit that names them, so one that is there although its transaction was aborted does no harm: nobody names it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from pydantic import ValidationError

from airflow_provider_kafka_migration.documents.offset_map import MappedPartition
from airflow_provider_kafka_migration.documents.transactional import CopyBegun, FinalMap, MapPage
from airflow_provider_kafka_migration.errors import ObjectExists, OffsetMapInvalid, Where
from airflow_provider_kafka_migration.offset_map.runs import Run
from airflow_provider_kafka_migration.offset_map.topic_key import topic_key
from airflow_provider_kafka_migration.offset_map.transactional import TransactionalMap, flat_runs, read_map, runs_of
from airflow_provider_kafka_migration.offset_map.transactional_position import Position
from airflow_provider_kafka_migration.storage.base import ObjectStore


class MapPages:
    """The pages of one partition.

    :param topic: source topic.
    """

    def __init__(self, store: ObjectStore, migration_id: str, topic: str, partition: int) -> None:
        self._store = store
        self._migration_id = migration_id
        self._topic = topic
        self._partition = partition
        self.prefix = f"{migration_id}/transactional-map/{topic_key(topic)}/{partition}/"

    def put(self, position: Position) -> Position:
        """Write the runs of a position as a page; the position that names it in their place."""
        number = int(position.page.split("-", 1)[0]) + 1 if position.page else 1
        page = MapPage(
            migration_id=self._migration_id,
            topic=self._topic,
            partition=self._partition,
            number=number,
            previous=position.page,
            producer_ids=list(position.producer_ids),
            runs=flat_runs(position.runs),
        )
        data = page.canonical()
        name = f"{number:08d}-{hashlib.sha256(data).hexdigest()[:24]}"
        self._put_new(f"{self.prefix}{name}.json", data)
        return position.paged(name)

    def _put_new(self, key: str, data: bytes) -> None:
        try:
            self._store.put_new(key, data)
        except ObjectExists:
            if self._store.get(key) != data:
                raise self._invalid(key, "its content is not what its name says") from None

    def load(self, position: Position) -> TransactionalMap:
        """The whole map of a committed position.

        :raises OffsetMapInvalid: a page is gone, or was changed.
        """
        pages = list(self._chain(position.page))
        pages.reverse()
        runs: list[Run] = []
        ids = set(position.producer_ids)
        for page in pages:
            runs += runs_of(page.runs)
            ids.update(page.producer_ids)
        return TransactionalMap(
            position.start,
            [*runs, *position.runs],
            copied_until_offset=position.source_offset,
            producer_ids=ids,
        )

    def _chain(self, name: str) -> Iterator[MapPage]:
        """Pages from the newest on."""
        while name:
            page = self._read(name)
            yield page
            name = page.previous

    def _read(self, name: str) -> MapPage:
        key = f"{self.prefix}{name}.json"
        data = self._store.get(key)
        if data is None:
            raise self._invalid(key, "it is gone")
        if hashlib.sha256(data).hexdigest()[:24] != name.split("-", 1)[1]:
            raise self._invalid(key, "its content is not what its name says")
        try:
            page = MapPage.parse(data)
        except ValidationError as error:
            raise self._invalid(key, f"{error.error_count()} fields are wrong") from None
        if (page.migration_id, page.topic, page.partition) != (self._migration_id, self._topic, self._partition):
            raise self._invalid(key, f"it is of {page.migration_id} {page.topic}-{page.partition}")
        return page

    # -- whether a position was ever committed -----------------------------------------------------------------------

    def has_begun(self) -> bool:
        """Whether a position of this partition was committed on the target once."""
        return self._store.get(f"{self.prefix}begun.json") is not None

    def begin(self, group: str) -> None:
        """Say so: from now on a position that is not there was lost. Written after the first commit."""
        document = CopyBegun(migration_id=self._migration_id, topic=self._topic, partition=self._partition, group=group)
        self._put_new(f"{self.prefix}begun.json", document.canonical())

    # -- when all is copied ------------------------------------------------------------------------------------------

    def finish(self, closed: TransactionalMap, entry: MappedPartition) -> None:
        """Keep the map of the finished copy: the group's offsets may expire before the contents are compared."""
        document = FinalMap(migration_id=self._migration_id, producer_ids=sorted(closed.producer_ids), map=entry)
        key, data = f"{self.prefix}final.json", document.canonical()
        if self._store.get(key) != data:
            self._store.put(key, data)

    def load_final(self) -> TransactionalMap:
        """The map of the finished copy.

        :raises OffsetMapInvalid: it is not there, or cannot be read.
        """
        key = f"{self.prefix}final.json"
        data = self._store.get(key)
        if data is None:
            raise self._invalid(key, "it is not there: clear cutover.final_drain")
        try:
            document = FinalMap.parse(data)
        except ValidationError as error:
            raise self._invalid(key, f"{error.error_count()} fields are wrong") from None
        found = read_map(document.map)
        if not isinstance(found, TransactionalMap):
            raise self._invalid(key, f"its verdict is {document.map.verdict}")
        found.producer_ids = frozenset(document.producer_ids)
        return found

    def _invalid(self, key: str, why: str) -> OffsetMapInvalid:
        return OffsetMapInvalid(
            f"a page of the offset map cannot be used: {why}",
            where=Where(topic=self._topic, partition=self._partition, path=key),
            next_step="restore the object from a version of the bucket",
        )
