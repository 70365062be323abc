"""Schema ids in a lane: which partitions get other ids on the target, and which of them wait for a schema.

Ids are replaced between the archive, which keeps the source's own bytes, and the transform. What is compared with the
target's log at a take-over gets the same ids first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Literal

from airflow_provider_kafka_migration.copy.partition import PartitionCopy
from airflow_provider_kafka_migration.copy.transform import Chunk
from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.errors import MigrationError, SchemaIdUnknown, Transient, Where
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, read_batches
from airflow_provider_kafka_migration.schema_ids.id_map import LiveIdMap
from airflow_provider_kafka_migration.schema_ids.rewrite import IdRewriter
from airflow_provider_kafka_migration.storage.base import ObjectStore

log = logging.getLogger(__name__)


class LaneSchemaIds:
    """The id map of a lane, and what depends on it. A job without schema ids changes nothing and holds nothing.

    :param store: the journal store, which has the id map.
    """

    def __init__(self, job: CopyJob, store: ObjectStore) -> None:
        self._job = job
        self._settings = job.schema_ids
        self._ids = None if job.schema_ids is None else LiveIdMap(store, job.migration_id, job.schema_ids.id_map_key)
        self._rewriters: dict[PartitionCopy, IdRewriter] = {}
        #: partitions that wait for a schema
        self._held: dict[PartitionCopy, SchemaIdUnknown] = {}

    def rewriter(self, copy: PartitionCopy) -> IdRewriter | None:
        """Return what replaces the ids of a partition; None if it is copied as it is."""
        found = self._rewriters.get(copy)
        if found is None and (found := self._new(copy, unknown="hold")) is not None:
            self._rewriters[copy] = found
        return found

    def _new(self, copy: PartitionCopy, *, unknown: Literal["hold", "pass"]) -> IdRewriter | None:
        topic = None if self._settings is None else self._settings.topics.get(copy.spec.topic)
        if self._settings is None or self._ids is None or topic is None or not topic.rewrite:
            return None
        return IdRewriter(
            topic.parts,
            self._ids,
            context=topic.context,
            decoded=topic.decoded,
            strict=self._settings.strict and unknown == "hold",
            where=Where(
                migration_id=self._job.migration_id,
                phase=self._job.name,
                topic=copy.spec.topic,
                partition=copy.spec.partition,
            ),
            unknown=unknown,
        )

    def reader(self, copy: PartitionCopy, read: Callable[[int], Chunk | None]) -> Callable[[int], Chunk | None]:
        """Return a reader of the source's chunks as they are on the target."""
        rewriter = self._new(copy, unknown="pass")
        return read if rewriter is None else RewrittenChunks(read, rewriter)

    def ask_ahead(self, copy: PartitionCopy, batches: Iterable[AnyBatch], from_offset: int) -> None:
        """Ask for all unknown ids of batches that end above an offset, because a partition waits for the first one."""
        rewriter = self.rewriter(copy)
        if rewriter is not None:
            rewriter.ask_ahead(batch for batch in batches if batch.next_offset > from_offset)

    # -- partitions that wait ----------------------------------------------------------------------------------------

    def hold(self, copy: PartitionCopy, error: SchemaIdUnknown) -> None:
        """Let a partition wait until the id map has what a record of it needs."""
        self._held[copy] = error

    def holds(self, copy: PartitionCopy) -> bool:
        """Return whether a partition waits for a schema; the id map is read again at most once a second."""
        error = self._held.get(copy)
        if error is None or self._ids is None:
            return False
        details = error.details
        try:
            if "part" in details:
                self._ids.want_decided(details["context"], details["part"], details["id"], error.where)
                waits = self._ids.carries(copy.spec.topic, details["part"], details["id"]) is None
            else:
                self._ids.want(details["context"], details["kind"], details["id"], error.where)
                waits = self._ids.find(details["context"], details["kind"], details["id"]) is None
        except Transient as problem:
            log.warning("%s-%s waits for a schema, and the id map cannot be read: %s", *copy.key, problem)
            return True
        except MigrationError:
            # The partition meets the same error when it reads the record again, and stops with it.
            waits = False
        if not waits:
            log.info("%s-%s: the map of schema ids has the answer for %s now", *copy.key, details["id"])
            del self._held[copy]
        return waits


class RewrittenChunks:
    """Chunks of the source with the ids of the target, for comparisons with the target's log.

    An id that the map does not have stays as it is: the chunk may reach beyond what is compared.
    """

    def __init__(self, read: Callable[[int], Chunk | None], rewriter: IdRewriter) -> None:
        self._read = read
        self._rewriter = rewriter
        self._last: tuple[Chunk, Chunk] | None = None

    def __call__(self, position: int) -> Chunk | None:
        """Return the chunk that covers an offset, or None if there is none."""
        chunk = self._read(position)
        if chunk is None:
            return None
        if self._last is None or self._last[0] is not chunk:
            self._last = (chunk, rewritten(chunk, self._rewriter))
        return self._last[1]

    def check_known(self) -> None:
        """Raise :class:`SchemaIdUnknown` if any id stayed as it was: a difference may be due to that."""
        if self._rewriter.last_unknown is not None:
            raise self._rewriter.last_unknown


def rewritten(chunk: Chunk, rewriter: IdRewriter) -> Chunk:
    """Return the whole batches of a chunk with the ids of the target; the same chunk if none changes.

    :raises SchemaIdUnknown, SchemaIdUnresolved, BatchMalformed: as :meth:`IdRewriter.rewrite`.
    """
    before = read_batches(chunk.batches)[0] if chunk.parsed is None else chunk.parsed
    after = [rewriter.rewrite(batch) for batch in before]
    if all(new is old for new, old in zip(after, before, strict=True)):
        return chunk
    return replace(chunk, batches=memoryview(b"".join(batch.data for batch in after)), parsed=after)
