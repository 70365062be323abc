"""Translates positions between the two clusters of a migration, exactly and in both directions.

An application that keeps offsets somewhere else than in Kafka (a database, a checkpoint of its own, a dashboard) needs
the same translation as consumer groups do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Literal

from airflow_provider_kafka_migration.documents.cutover import Translation
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import BrokerBusy, MigrationError, NotInMigration, OffsetMapInvalid, Where
from airflow_provider_kafka_migration.groups.offsets import read_offsets, translate_below
from airflow_provider_kafka_migration.kafka.admin.groups import GroupListing, GroupOffset, GroupOffsets
from airflow_provider_kafka_migration.kafka.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.migration import Migration
from airflow_provider_kafka_migration.mirrors.copy_ends import ends_so_far
from airflow_provider_kafka_migration.offset_map.below import BelowTranslator
from airflow_provider_kafka_migration.offset_map.runs import How, PartitionMap, TranslatedPosition
from airflow_provider_kafka_migration.offset_map.transactional import TransactionalMap
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext
from airflow_provider_kafka_migration.record.offset_maps import closed_maps, load_maps, only_holes
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.state import MIRROR

#: ``to_target``: the question names a position on the source. ``to_source``: one on the target.
Direction = Literal["to_target", "to_source"]


@dataclass(frozen=True)
class Translated:
    """A position on one cluster, and where a consumer continues on the other one.

    A consumer that starts at ``to_offset`` reads next exactly the first record that it had not read before
    ``from_offset``.

    :param to_offset: None if the topic or partition is not part of the migration; ``reason`` then says why.
    :param how: as in the results of consumer groups (docs/groups.md).
    :param metadata: text of a group's commit.
    :param is_copied: whether the copy had reached this position when the translator was opened. If it had not,
        ``to_offset`` is only where it will be with an equal or shifted partition; do not start a consumer there yet.
    """

    from_topic: str
    partition: int
    from_offset: int
    to_topic: str
    to_offset: int | None
    how: Translation
    is_copied: bool
    reason: str = ""
    metadata: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the position as JSON-able data."""
        return {**asdict(self), "how": self.how.value}


@dataclass(frozen=True)
class _Side:
    """One direction of a partition: its map, its name on the other side, and what has been copied.

    :param ends: exclusive ends of the copy, here and on the other side.
    :param may_end_in_holes: whether holes behind the last copied record leave no trace on the target.
    :param begins_behind_content: the partition was adopted: its map begins at the boundary, its logs before it.
    """

    to_topic: str
    map: PartitionMap
    ends: tuple[int, int]
    may_end_in_holes: bool = False
    begins_behind_content: bool = False


class Translator:
    """Translates offsets, timestamps and the offsets of consumer groups between a migration's clusters.

    It reads the offset map when it is opened; :meth:`refresh` reads it again. While the copy goes on it also asks the
    target for the ends of its logs, so that it can say what has been copied. In a mirror clients may have written
    there, so it asks what copiers have confirmed and looks at the batches behind that. It makes no claim and writes
    nothing. A partition whose map cannot be read holds up no other one.

    :param context: a context that only reads, for instance from ``Migration.reading``.
    """

    def __init__(self, context: PhaseContext) -> None:
        self._context = context
        self._resources = ExitStack()
        self._sides: dict[Direction, dict[TopicPartition, _Side]] = {}
        self._below: dict[TopicPartition, BelowTranslator] = {}
        self._unread: dict[Direction, dict[TopicPartition, MigrationError]] = {}
        self.refresh()

    @classmethod
    def open(cls, spec: MigrationSpec, resolver: Resolver) -> Translator:
        """Open the translator of a migration that has been planned. Close it, or use it as a context manager.

        :param resolver: resolves the references of the spec; ``Resolver()`` knows ``env:`` and ``file:``.
        :raises Terminal: the migration has no plan yet.
        :raises MigrationError: storage or target cannot be reached.
        """
        with ExitStack() as resources:
            migration = resources.enter_context(Migration.open(spec, "translator", resolver, actor="translator"))
            translator = cls(resources.enter_context(migration.reading()))
            translator._resources = resources.pop_all()
            return translator

    def __enter__(self) -> Translator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to both clusters."""
        self._resources.close()

    def refresh(self) -> None:
        """Read the offset map again: partitions that are copied as ``mapped`` get new runs while the copy goes on.

        :raises OffsetMapInvalid: a mirror has ended without a finished map. Others write to its target by now, so the
            ends of the target's logs no longer say what was copied.
        """
        record = self._context.record
        record.journal.refresh()
        partitions = record.partitions()
        final, unread = record.offset_map(), dict[TopicPartition, MigrationError]()
        if final is not None:
            maps: Mapping[TopicPartition, PartitionMap] = closed_maps(final)
            logs: Mapping[TopicPartition, int] = {}
        elif record.journal.tip_state in MIRROR.endings:
            raise OffsetMapInvalid(
                f"the mirror is {record.journal.tip_state}, and it has no finished offset map",
                where=record.where("translate"),
                next_step="do not take offsets from this mirror: its clients choose their positions by timestamp",
            )
        else:
            # The ends first: a map that is read afterwards covers all that lies below them.
            logs = self._target_ends([(item.target_topic, item.partition) for item in partitions.values()])
            maps = load_maps(record, self._context.target, partitions, unread=unread)
            record.journal.refresh()
            if record.journal.tip_state in MIRROR.endings:
                # It ended meanwhile: clients may have written below the ends that were read.
                self.refresh()
                return
        copied = self._copied_ends(maps, logs) if final is None else {}
        forward: dict[TopicPartition, _Side] = {}
        back: dict[TopicPartition, _Side] = {}
        for key in sorted(set(partitions) & set(maps)):
            found, target = maps[key], (partitions[key].target_topic, partitions[key].partition)
            source_end, target_end = _ends(found, min(logs.get(target, 0), copied.get(key, logs.get(target, 0))))
            mapped = final is None and Verdict.MAPPED in (partitions[key].verdict, found.verdict)
            forward[key] = _Side(target[0], found, (source_end, target_end), mapped, partitions[key].adopted)
            back[target] = _Side(key[0], found.inverse(), (target_end, source_end), False, partitions[key].adopted)
        self._sides = {"to_target": forward, "to_source": back}
        self._unread = {
            "to_target": unread,
            "to_source": {(partitions[key].target_topic, key[1]): error for key, error in unread.items()},
        }
        self._below = {key: BelowTranslator(document) for key, document in record.maps_below().items()}

    def _target_ends(self, wanted: list[TopicPartition]) -> dict[TopicPartition, int]:
        """High watermarks of the target partitions that exist by now: before the topology is copied there are none."""
        wire = self._context.target.wire
        known = wire.metadata(sorted({topic for topic, _ in wanted}))

        def is_missing(topic: str, partition: int) -> bool:
            found = known.get(topic)
            if found is None or found.error_code == UNKNOWN_TOPIC_OR_PARTITION:
                return True
            # Any other error leaves the question to the request below, which names it.
            return not found.error_code and partition not in found.leaders

        there = [key for key in wanted if not is_missing(*key)]
        return wire.list_offsets(there, "latest") if there else {}

    def _copied_ends(
        self, maps: Mapping[TopicPartition, PartitionMap], logs: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        """Where each copy ends, if that need not be the log's end: clients may write to the target of a mirror."""
        record = self._context.record
        if record.spec.kind != "mirror":
            return {}
        known = {key: found for key, found in maps.items() if not isinstance(found, TransactionalMap)}
        ends = ends_so_far(record, self._context.target, known, logs)
        # What is not known yet is not copied.
        partitions = record.partitions()
        return {key: ends.get(key, partitions[key].target_start_offset) for key in known}

    # -- questions ----------------------------------------------------------------------------------------------------

    def partitions(self, direction: Direction = "to_target") -> list[TopicPartition]:
        """Return the partitions that can be translated, by their names on the side of the question, ascending."""
        return sorted(self._sides[direction])

    def offset(self, topic: str, partition: int, offset: int, direction: Direction = "to_target") -> Translated:
        """Translate the offset of the next record to read.

        :param topic: its name on the source; with ``to_source`` its name on the target.
        :raises NotInMigration: the migration does not have the partition.
        :raises OffsetMapInvalid: the partition is copied in transactions, and its map cannot be read.
        :raises ValueError: the offset is negative.
        """
        if offset < 0:
            raise ValueError(f"an offset is never negative: {offset}")
        side = self._side(topic, partition, direction)
        here, there = side.ends
        found = side.map.translate(offset)
        if side.begins_behind_content and found.how is How.RESET_TO_START:
            below = self._below.get((topic, partition)) if direction == "to_target" else None
            to_offset, how, reason = translate_below(offset, below)
            return Translated(topic, partition, offset, side.to_topic, to_offset, how, to_offset is not None, reason)
        is_copied = offset <= here
        if not is_copied and side.may_end_in_holes:
            # The most frequent position: a group that has read everything, up to a transaction's marker.
            is_copied = only_holes(self._context.source, (topic, partition), here, offset)
            found = TranslatedPosition(there, How.HOLE_FORWARD) if is_copied else found
        return Translated(
            topic,
            partition,
            offset,
            side.to_topic,
            found.target_offset,
            Translation(found.how.value),
            is_copied=is_copied,
        )

    def last_records(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return the offsets (source, target) of the last copied record by source partition; empty ones are absent.

        In a partition whose holes are filled, it may be the marker of a hole.
        """
        found = {}
        for key, side in self._sides["to_target"].items():
            _, end = side.ends
            if end > (side.map.target_start_offset or 0):
                found[key] = (side.map.source_of(end - 1), end - 1)
        return found

    def timestamp(
        self, topic: str, partition: int, when: datetime | int, direction: Direction = "to_target"
    ) -> Translated:
        """Translate a time: the first record at or after it, as the cluster of the question answers.

        :param when: a time with a time zone, or milliseconds since 1970. If no record is as late, it is the log's end.
        :raises NotInMigration: the migration does not have the partition.
        :raises ValueError: the time has no time zone.
        """
        milliseconds = _milliseconds(when)
        self._side(topic, partition, direction)
        wire, key = self._asked(direction).wire, (topic, partition)
        offset = wire.offsets_for([key], milliseconds)[key]
        if offset < 0:
            offset = wire.list_offsets([key], "latest")[key]
        return self.offset(topic, partition, offset, direction)

    def group(self, group: str, direction: Direction = "to_target") -> list[Translated]:
        """Translate the offsets that a consumer group has committed; ascending by topic and partition.

        Offsets of topics outside the migration are in the list with their reason and without a ``to_offset``.

        :raises NotInMigration: the cluster has no such group, or does not show it to this principal.
        :raises MigrationError: its offsets could not be read; a partial list is never returned instead.
        """
        found = self.selected_groups(lambda name: name == group, direction)
        if group not in found:
            raise NotInMigration(
                f"the {self._asked(direction).role} has no such consumer group",
                where=Where(migration_id=self._context.migration_id, cluster=self._asked(direction).role, group=group),
                next_step="check its name, and that this principal may Describe the group",
            )
        return found[group]

    def groups(self, pattern: str | re.Pattern[str], direction: Direction = "to_target") -> dict[str, list[Translated]]:
        """Translate the offsets of all groups whose whole name matches a regular expression; may be empty.

        Errors as those of :meth:`group`.
        """
        compiled = re.compile(pattern)
        return self.selected_groups(lambda name: compiled.fullmatch(name) is not None, direction)

    # -- answers ------------------------------------------------------------------------------------------------------

    def _asked(self, direction: Direction) -> Cluster:
        return self._context.source if direction == "to_target" else self._context.target

    def _side(self, topic: str, partition: int, direction: Direction) -> _Side:
        sides = self._sides[direction]
        if (topic, partition) in sides:
            return sides[topic, partition]
        if (topic, partition) in self._unread[direction]:
            raise self._unread[direction][topic, partition]
        role = self._asked(direction).role
        topics = sorted({name for name, _ in sides})
        shown = ", ".join(topics[:20]) + (" ..." if len(topics) > 20 else "")
        raise NotInMigration(
            f"the migration has no such partition on the {role}",
            where=Where(migration_id=self._context.migration_id, cluster=role, topic=topic, partition=partition),
            next_step=f"choose one of its topics: {shown}"
            if shown
            else "nothing has been copied yet: wait for the seed",
        )

    def selected_groups(
        self,
        selects: Callable[[str], bool],
        direction: Direction = "to_target",
        *,
        unread: dict[str, MigrationError] | None = None,
    ) -> dict[str, list[Translated]]:
        """Translate the offsets of the groups whose name a function accepts; only theirs are read.

        Errors as those of :meth:`group`.

        :param unread: receives the groups whose offsets could not be read, with the reason, and they are missing in the
            answer; None: the first one is an error.
        """
        cluster = self._asked(direction)
        listings = {name: item for name, item in cluster.admin.list_groups().items() if selects(name)}
        offsets = read_offsets(cluster.admin, listings) if listings else {}
        answers = {}
        for name in sorted(listings):
            try:
                committed = self._read(name, listings[name], offsets.get(name), cluster.role)
            except MigrationError as error:
                if unread is None:
                    raise
                unread[name] = error
                continue
            answers[name] = self._translated(committed, direction)
        return answers

    def _read(
        self, name: str, listing: GroupListing, found: GroupOffsets | None, role: str
    ) -> list[tuple[TopicPartition, GroupOffset]]:
        where = Where(migration_id=self._context.migration_id, cluster=role, group=name)
        if found is None:
            raise BrokerBusy("the offsets of the group were not answered", where=where, next_step="try again")
        for error in (found.error, *found.errors.values()):
            if error is not None:
                raise error.exception(
                    f"the offsets of the {listing.type} group cannot be read", where, operation="Describe on Group"
                )
        return sorted(found.offsets.items(), key=lambda item: item[0])

    def _translated(
        self, committed: Iterable[tuple[TopicPartition, GroupOffset]], direction: Direction
    ) -> list[Translated]:
        answers = []
        for (topic, partition), item in committed:
            if item.offset >= 0 and (topic, partition) in self._sides[direction]:
                found = self.offset(topic, partition, item.offset, direction)
                answers.append(replace(found, metadata=item.metadata))
                continue
            unread = self._unread[direction].get((topic, partition))
            reason = "it is not part of the migration" if unread is None else unread.what
            reason = "the committed offset is negative" if item.offset < 0 else reason
            answers.append(
                Translated(
                    topic,
                    partition,
                    item.offset,
                    "",
                    None,
                    Translation.SKIPPED,
                    False,
                    reason=reason,
                    metadata=item.metadata,
                )
            )
        return answers


def _ends(found: PartitionMap, log_end_offset: int) -> tuple[int, int]:
    """Return the exclusive ends of what was copied, on the source and on the target.

    :param log_end_offset: of the target's log, for a partition that is still being copied.
    """
    if isinstance(found, TransactionalMap):
        return found.copied_ends
    if found.source_end_offset is not None and found.target_end_offset is not None:
        return found.source_end_offset, found.target_end_offset
    return found.source_position(log_end_offset), log_end_offset


def _milliseconds(when: datetime | int) -> int:
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise ValueError("a time needs a time zone, for instance 2026-11-23T04:00:00+00:00")
        return round(when.timestamp() * 1000)
    return when
