"""Which offsets of groups on the target were written here, and what the groups had there before.

Each value is recorded before it is written (``results/groups-written.json``), so an offset that is none of the recorded
ones is somebody else's, also after a kill at any moment. What was written here may be set back, but never below the
offset that the group had there before; what others have written stays the least that is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_kafka_migration.documents.way_back import WrittenGroups, WrittenOffset
from airflow_provider_kafka_migration.groups.commit import Offsets
from airflow_provider_kafka_migration.groups.offsets import target_states
from airflow_provider_kafka_migration.kafka.admin.groups import GroupOffset
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext
from airflow_provider_kafka_migration.record.record import MigrationRecord

Kept = dict[tuple[str, str, int], WrittenOffset]

_NOT_OURS = (
    "others use it on the target: its offset there in {topic}-{partition}, {offset}, is none that was written here; "
    "it is left alone until the cutover, which never sets it back"
)
_UNREAD = (
    "its offset on the target in {topic}-{partition} cannot be read, so nobody knows whether others use it there; "
    "it is left alone until that is known"
)


class OwnWrites:
    """Which offsets have been written here (see ``groups.commit.WriteLog``).

    :param step: journaled once before the first write; it makes a missing document an error.
    :param reason: for that step.
    :param check: called directly before the record of a pass is written; it raises if it is too late to write.
    :param is_final: the step that decides: it may set back what was written before, and writes it again, so that its
        offsets expire as late as if nothing had been written before. Else forward only.
    :param is_after_switch: final as well, but what the cutover's commit itself has written counts as the group's own
        offset from then on, which is never set back.
    :param leaves_used: leave groups alone that have offsets of others on the target, in whatever topic.
    """

    def __init__(
        self,
        context: PhaseContext,
        step: str,
        reason: str,
        *,
        check: Callable[[], None] | None = None,
        is_final: bool = False,
        is_after_switch: bool = False,
        leaves_used: bool = False,
    ) -> None:
        self._context = context
        self._step = step
        self._reason = reason
        self._check = check
        self._is_final = is_final or is_after_switch
        self._is_after_switch = is_after_switch
        self._leaves_used = leaves_used
        known = context.record.written_groups()
        self._known: Kept = {} if known is None else _by_place(known)
        #: as stored when it was last read or written here
        self._stored: Kept = dict(self._known)

    def floors(self, group: str, present: Offsets) -> Offsets:
        """Return what was there before anything was written here, or what others have written since."""
        if not self._is_final:
            return present
        found = {}
        for place, item in present.items():
            if not self._is_own(group, place, item):
                found[place] = item
            elif (former := self.former(group, place)) is not None:
                found[place] = former
        return found

    def former(self, group: str, place: TopicPartition) -> GroupOffset | None:
        """Return the offset that a group had in a place before anything was written there; None: it had none."""
        kept = self._known[group, *place]
        return None if kept.former_offset is None else GroupOffset(kept.former_offset, -1, kept.former_metadata)

    def own(self, group: str, present: Offsets) -> list[TopicPartition]:
        """Return where a group has offsets that were written here, ascending by topic and partition."""
        return sorted(place for place, item in present.items() if self._is_own(group, place, item))

    def places(self, group: str) -> list[TopicPartition]:
        """Return where anything was ever written for a group, ascending by topic and partition."""
        return sorted((topic, number) for name, topic, number in self._known if name == group)

    def left_alone(self, group: str, present: Offsets, unread: Collection[TopicPartition]) -> str:
        """Return why a group must not be written, because others use it on the target; empty if it may be."""
        if not self._leaves_used:
            return ""
        if unread:
            topic, partition = min(unread)
            return _UNREAD.format(topic=topic, partition=partition)
        foreign = self.foreign(group, present)
        if not foreign:
            return ""
        topic, partition = foreign[0]
        return _NOT_OURS.format(topic=topic, partition=partition, offset=present[topic, partition].offset)

    def foreign(self, group: str, present: Offsets) -> list[TopicPartition]:
        """Return where a group has offsets that were not written here, ascending by topic and partition."""
        return sorted(place for place, item in present.items() if not self._is_own(group, place, item))

    def again(self, group: str, present: Offsets) -> Collection[TopicPartition]:
        """Return where an offset that is right already is written again."""
        if not self._is_final:
            return ()
        return self.own(group, present)

    def _is_own(self, group: str, place: TopicPartition, item: GroupOffset) -> bool:
        kept = self._known.get((group, *place))
        if kept is None or item.offset not in kept.written:
            return False
        return not (self._is_after_switch and kept.is_final and item.offset == kept.written[-1])

    def about_to_write(self, wanted: Mapping[str, Offsets], present: Mapping[str, Offsets]) -> None:
        """Record what is about to be written."""
        record = self._context.record
        for group, offsets in wanted.items():
            for place, item in offsets.items():
                known = self._known.get((group, *place))
                noted = _noted(place, known, present[group].get(place), item.offset)
                self._known[group, *place] = noted.model_copy(update={"is_final": self._is_final})
        if self._check is not None:
            self._check()
        self._put()
        details = {"document": keys.result(keys.WRITTEN_GROUPS)}
        record.journal.step_once(self._step, None, details, reason=self._reason)

    def forget(self, group: str) -> None:
        """Forget a group that is gone from the target."""
        self._known = {key: item for key, item in self._known.items() if key[0] != group}
        self._put()

    @property
    def groups(self) -> list[str]:
        """All groups with recorded writes, ascending."""
        return sorted({group for group, *_ in self._known})

    def is_first(self, group: str) -> bool:
        """Whether a group had no offset of others wherever it was written here."""
        return all(item.former_offset is None for (name, *_), item in self._known.items() if name == group)

    def _put(self) -> None:
        """Store what has changed here, behind another look: a process that slept must not undo what another wrote."""
        record = self._context.record
        document = record.written_groups()
        self._known = _united(self._stored, self._known, {} if document is None else _by_place(document))
        record.put_result(keys.WRITTEN_GROUPS, _document(record.migration_id, self._known))
        self._stored = dict(self._known)


def _noted(
    place: tuple[str, int], known: WrittenOffset | None, present: GroupOffset | None, wanted: int
) -> WrittenOffset:
    if known is not None and (present is None or present.offset in known.written):
        # Of those that were recorded, only the present one was written.
        written = [] if present is None else [present.offset]
        return known.model_copy(update={"written": [*written, wanted]})
    if known is not None and present is not None and present.offset == known.former_offset:
        # Recorded by a process that died before it wrote.
        return known.model_copy(update={"written": [wanted]})
    return WrittenOffset(
        topic=place[0],
        partition=place[1],
        former_offset=None if present is None else present.offset,
        former_metadata="" if present is None else present.metadata,
        written=[wanted],
    )


def _united(base: Kept, mine: Kept, theirs: Kept) -> Kept:
    """Return what others have stored since ``base``, with what has changed here; both where both have changed."""
    found = dict(theirs)
    for place in base.keys() | mine.keys():
        before, own, other = base.get(place), mine.get(place), theirs.get(place)
        if own == before:
            continue
        if own is None:
            if other == before:
                found.pop(place, None)
        elif other is None or other == before:
            found[place] = own
        else:
            written = [*(item for item in other.written if item not in own.written), *own.written]
            found[place] = other.model_copy(update={"written": written, "is_final": own.is_final})
    return found


def _by_place(document: WrittenGroups) -> Kept:
    return {
        (group, item.topic, item.partition): item for group, items in document.groups.items() for item in items
    }  # fmt: skip


def _document(migration_id: str, known: Kept) -> WrittenGroups:
    groups: dict[str, list[WrittenOffset]] = {}
    for (group, *_), item in sorted(known.items()):
        groups.setdefault(group, []).append(item)
    return WrittenGroups(migration_id=migration_id, groups=groups)


def left_there(record: MigrationRecord) -> list[dict[str, Any]]:
    """List the offsets that were recorded for groups on the target, with those that the groups had there before.

    What is there now may differ: see :func:`read_left`.
    """
    document = record.written_groups()
    return [
        {
            "group": group,
            "topic": item.topic,
            "partition": item.partition,
            "former_offset": item.former_offset,
            "offset": item.written[-1],
        }
        for group, items in sorted((document.groups if document is not None else {}).items())
        for item in items
    ]


@dataclass(frozen=True)
class LeftOffsets:
    """Recorded offsets of groups as the target has them now, rows as in :func:`left_there`.

    :param own: written here. Those that cannot be read have ``unread``, the reason; those of share groups ``type``.
    :param others: another offset is there, which somebody else has committed; ``offset`` is that one.
    """

    own: list[dict[str, Any]]
    others: list[dict[str, Any]]


def read_left(record: MigrationRecord, target: Cluster) -> LeftOffsets:
    """Read what the target has of the recorded offsets. What is not there any more is in neither list.

    :raises MigrationError: the target does not answer; nothing is known then.
    """
    document = record.written_groups()
    recorded = {} if document is None else document.groups
    states = target_states(target, dict.fromkeys(recorded, "classic"))
    own: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for row in left_there(record):
        there, place = states[row["group"]], (row["topic"], row["partition"])
        error = there.error or there.errors.get(place)
        present = there.offsets.get(place)
        if error is not None:
            own.append({**row, "unread": str(error)})
        elif present is not None:
            found = {**row, "offset": present.offset, **({"type": "share"} if there.type == "share" else {})}
            written = next(item.written for item in recorded[row["group"]] if (item.topic, item.partition) == place)
            (own if present.offset in written else others).append(found)
    return LeftOffsets(own, others)


def unread_left(record: MigrationRecord, why: str) -> LeftOffsets:
    """List all recorded offsets as ones that cannot be read."""
    return LeftOffsets([{**row, "unread": why} for row in left_there(record)], [])
