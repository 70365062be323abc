"""The runs of a partition's map in object storage, written ahead of the appends that they describe.

Create-only objects below ``<migration_id>/offset-map/<topic>/<partition>/``:

* ``takeover-<attempt:06d>.json``: the target offset from which an incarnation of the copier continues. The name makes
  attempts unique.
* ``<from_target_offset:020d>-<attempt:06d>.json``: runs, before the first of their records is appended.

A crash may leave runs that never were appended, and the next copier may decide otherwise, because the source was
compacted meanwhile: each object voids earlier runs from its target offset on. Objects are read by attempt, take-over
first, then by offset, so anything that a copier writes late, after another one has taken over, is void.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pydantic import ValidationError

from airflow_provider_kafka_migration.documents.copy import CopyPartition, RunsKind, RunsObject
from airflow_provider_kafka_migration.errors import (
    MigrationError,
    ObjectExists,
    OffsetMapConflict,
    OffsetMapInvalid,
    Where,
)
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange, PartitionMap, topic_key
from airflow_provider_kafka_migration.storage.base import ObjectStore

#: If there are more objects than this, a take-over writes the whole map as one object, so that loading stays cheap.
_CHECKPOINT_OBJECTS = 32
_MAX_CLAIMS = 20
#: Most objects that are deleted at a time.
_MAX_DELETED = 200

log = logging.getLogger(__name__)
_RUN_NAME = re.compile(r"(?:takeover|checkpoint|(?P<offset>[0-9]{20}))-(?P<attempt>[0-9]{6,})\.json")


class _Name(NamedTuple):
    """The name of a map object; sorts in reading order."""

    attempt: int
    #: -1 for take-overs
    from_target_offset: int
    key: str


class RunLog:
    """Reads and writes the runs of one partition. Use one instance per copier and partition.

    :param base: the partition's first run, from the plan and journal; it needs no object.
    """

    def __init__(
        self,
        store: ObjectStore,
        migration_id: str,
        topic: str,
        partition: int,
        base: OffsetRange,
        *,
        topic_id: str = "",
    ) -> None:
        self.store = store
        self.migration_id = migration_id
        self.topic = topic
        self.partition = partition
        self.base = base
        self.topic_id = topic_id
        self.prefix = f"{migration_id}/offset-map/{topic_key(topic)}/{partition}/"
        #: Delete what two checkpoints have replaced: the copy has no end. Readers that have listed the objects before
        #: the last checkpoint still find all of theirs.
        self.forgets = False
        #: attempt under which this instance writes; None before it has claimed one
        self.attempt: int | None = None
        self._seen: list[_Name] | None = None
        self._from_target_offset = 0
        #: target start of the last run written under the present attempt
        self._last_target_offset = -1

    def load(self) -> PartitionMap:
        """Read the map from the objects; it is open at its end.

        :raises OffsetMapInvalid: an object cannot be read, or belongs to another partition.
        """
        return self._fold(self._names())

    def _names(self) -> list[_Name]:
        return sorted(self._name(info.key) for info in self.store.list(self.prefix))

    def _name(self, key: str) -> _Name:
        match = _RUN_NAME.fullmatch(key.removeprefix(self.prefix))
        if match is None:
            raise self._invalid(key, "its name is not that of a map object")
        return _Name(int(match["attempt"]), int(match["offset"] or -1), key)

    def _fold(self, names: list[_Name]) -> PartitionMap:
        found = PartitionMap([self.base])
        for name in names[_last_checkpoint(names) :]:
            document = self._read(name.key)
            found.override(
                document.from_target_offset, [OffsetRange(source, target) for source, target in document.runs]
            )
        return found

    def take_over(self, target_end_offset: int) -> PartitionMap:
        """Take the map over at each resume, and return it up to the target's log end, where the copier continues.

        Runs at or above the log end were never appended: this leaves them out, and voids them for all readers. A
        partition without objects still has none afterwards.

        :raises OffsetMapInvalid: an object cannot be read.
        :raises OffsetMapConflict: other copiers keep taking over.
        """
        self.attempt = None
        names = self._names()
        found = self._fold(names)
        self._from_target_offset = target_end_offset
        found.override(target_end_offset, ())
        self._seen = names
        if names:
            self._claim(found if len(names) - _last_checkpoint(names) > _CHECKPOINT_OBJECTS else None)
        return found

    def _claim(self, checkpoint: PartitionMap | None) -> None:
        """Claim the next attempt exclusively. With a checkpoint, older objects need no longer be read."""
        assert self._seen is not None
        attempt = max((name.attempt for name in self._seen), default=0) + 1
        for number in range(attempt, attempt + _MAX_CLAIMS):
            try:
                self._put_takeover(number, checkpoint)
            except ObjectExists:
                continue
            self.attempt = number
            self._last_target_offset = -1
            if checkpoint is not None and self.forgets:
                self._forget(self._seen[: _last_checkpoint(self._seen)])
            return
        raise self._conflict(self.prefix, f"other copiers claimed {_MAX_CLAIMS} attempts")

    def _forget(self, names: list[_Name]) -> None:
        """Delete objects that no reader needs. If that is refused they stay, which harms nobody."""
        try:
            for name in names[:_MAX_DELETED]:
                self.store.delete(name.key)
        except MigrationError as error:
            log.warning("Replaced objects of an offset map cannot be deleted, and stay: %s", error)

    def _put_takeover(self, attempt: int, checkpoint: PartitionMap | None) -> None:
        if checkpoint is None:
            document = self._document("takeover", attempt, self._from_target_offset, [])
        else:
            document = self._document("checkpoint", attempt, 0, list(checkpoint.runs()))
        self.store.put_new(f"{self.prefix}{document.kind}-{attempt:06d}.json", document.canonical())

    def write_ahead(self, runs: Sequence[OffsetRange]) -> None:
        """Make runs durable before the first of their records is appended.

        :param runs: ascending, from the log end on that was passed to :meth:`take_over`.
        :raises OffsetMapConflict: another copier has written to this partition's map since :meth:`take_over`.
        """
        if self._seen is None:
            raise ValueError("take_over() comes before write_ahead()")
        if self.attempt is None:
            if self._names() != self._seen:
                raise self._conflict(self.prefix, "another copier has begun to write runs")
            self._claim(None)
        elif runs[0].target_start <= self._last_target_offset:
            # Objects of one attempt are read by offset, so revoking runs needs another attempt.
            self._seen = self._names()
            if any(name.attempt > self.attempt for name in self._seen):
                raise self._conflict(self.prefix, "another copier has taken over")
            self._from_target_offset = runs[0].target_start
            self._claim(None)
        assert self.attempt is not None
        document = self._document("runs", self.attempt, runs[0].target_start, runs)
        key = f"{self.prefix}{document.from_target_offset:020d}-{self.attempt:06d}.json"
        data = document.canonical()
        try:
            self.store.put_new(key, data)
        except ObjectExists:
            # The answer to an earlier try may have been lost: then the object has the same bytes.
            if self.store.get(key) != data:
                raise self._conflict(key, "the map already has other runs for the same target offsets") from None
        self._last_target_offset = runs[-1].target_start

    def _document(
        self, kind: RunsKind, attempt: int, from_target_offset: int, runs: Sequence[OffsetRange]
    ) -> RunsObject:
        return RunsObject(
            migration_id=self.migration_id,
            topic=self.topic,
            topic_id=self.topic_id,
            partition=self.partition,
            attempt=attempt,
            kind=kind,
            from_target_offset=from_target_offset,
            runs=[(run.source_start, run.target_start) for run in runs],
        )

    def _read(self, key: str) -> RunsObject:
        data = self.store.get(key)
        if data is None:
            raise self._invalid(key, "it is missing")
        try:
            document = RunsObject.parse(data)
        except ValidationError as error:
            raise self._invalid(key, f"{error.error_count()} of its fields are invalid") from None
        if (document.migration_id, document.topic, document.partition) != (
            self.migration_id,
            self.topic,
            self.partition,
        ):
            raise self._invalid(key, f"it belongs to {document.migration_id} {document.topic}-{document.partition}")
        return document

    def _invalid(self, key: str, why: str) -> OffsetMapInvalid:
        return OffsetMapInvalid(
            f"an object of the offset map cannot be used: {why}",
            where=Where(topic=self.topic, partition=self.partition, path=key),
            next_step="restore the object from a version of the bucket",
        )

    def _conflict(self, path: str, why: str) -> OffsetMapConflict:
        return OffsetMapConflict(
            f"two copiers write the offset map of one partition: {why}",
            where=Where(topic=self.topic, partition=self.partition, path=path),
            next_step="make sure that only one copier owns the partition, then clear the task",
        )


def _last_checkpoint(names: list[_Name]) -> int:
    """Return the index of the last object that voids all before it; 0 without one."""
    return max((index for index, name in enumerate(names) if "/checkpoint-" in name.key), default=0)


# -- maps -------------------------------------------------------------------------------------------------------------
#
# The offset maps of a lane's partitions, and the runs that the lane's copier adds.


def base_run(spec: CopyPartition) -> OffsetRange:
    """Return the first run of a partition, from the plan."""
    return OffsetRange(spec.source_start_offset, spec.target_start_offset)


class LaneMaps:
    """The maps of one lane. Most partitions have only their base run, and no object: one listing shows which have more.

    :param check: called before each write; raises when this owner may no longer write.
    """

    def __init__(
        self,
        store: ObjectStore,
        migration_id: str,
        check: Callable[[], None] = lambda: None,
        *,
        forgets: bool = False,
    ) -> None:
        self._store = store
        self._check = check
        self._forgets = forgets
        self._migration_id = migration_id
        self._logs: dict[tuple[str, int], RunLog] = {}
        self._maps: dict[tuple[str, int], PartitionMap] = {}
        self._with_objects: set[str] | None = None

    def load(self, spec: CopyPartition, target_end_offset: int) -> PartitionMap:
        """Take the map of a partition over, before its copy resumes.

        :param target_end_offset: the target's log end: runs at or above it are void, because a copier wrote them ahead
            and died before it appended any of their records.
        """
        if self._has_objects(spec):
            log = self._run_log(spec)
            self._maps[spec.key] = log.take_over(target_end_offset)
            self._logs[spec.key] = log
        else:
            self._logs.pop(spec.key, None)
            self._maps[spec.key] = PartitionMap([base_run(spec)])
        return self._maps[spec.key]

    def _has_objects(self, spec: CopyPartition) -> bool:
        if self._with_objects is None:
            prefix = f"{self._migration_id}/offset-map/"
            found = (info.key.removeprefix(prefix).split("/") for info in self._store.list(prefix))
            self._with_objects = {"/".join(parts[:2]) for parts in found if len(parts) > 2}
        return f"{topic_key(spec.topic)}/{spec.partition}" in self._with_objects

    def _run_log(self, spec: CopyPartition) -> RunLog:
        found = RunLog(
            self._store,
            self._migration_id,
            spec.topic,
            spec.partition,
            base_run(spec),
            topic_id=spec.topic_id,
        )
        found.forgets = self._forgets
        return found

    @property
    def maps(self) -> dict[tuple[str, int], PartitionMap]:
        """The maps by (source topic, partition)."""
        return self._maps

    def write_ahead(self, spec: CopyPartition, confirmed_offset: int, runs: Sequence[OffsetRange]) -> None:
        """Make runs durable, and add them to the map, before the first of their records is appended.

        :param confirmed_offset: the target's log end, from which on earlier runs are void.
        """
        self._check()
        log = self._logs.get(spec.key)
        if log is None:
            log = self._run_log(spec)
            self._maps[spec.key] = log.take_over(confirmed_offset)
            self._logs[spec.key] = log
        log.write_ahead(runs)
        self._maps[spec.key].override(runs[0].target_start, runs)
        if self._with_objects is not None:
            self._with_objects.add(f"{topic_key(spec.topic)}/{spec.partition}")
