"""Consumer groups: read on the source, translated, and committed on the target."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from airflow_provider_kafka_migration.documents.copy import CopyPartition
from airflow_provider_kafka_migration.documents.cutover import (
    CommittedOffset,
    GroupResult,
    GroupSnapshot,
    GroupsResult,
    GroupsSnapshot,
    TranslatedOffset,
    Uncommitted,
)
from airflow_provider_kafka_migration.errors import (
    HANDS_OFF,
    FreezeFailed,
    GroupsIncomplete,
    MigrationError,
    Where,
)
from airflow_provider_kafka_migration.groups.offsets import (
    MOVED,
    NO_SHARE_GROUPS,
    OTHER_PROTOCOL,
    TargetGroup,
    count_translations,
    has_changed,
    read_offsets,
    target_states,
    translate_group,
    write_offsets,
)
from airflow_provider_kafka_migration.kafka.admin import groups as admin_groups
from airflow_provider_kafka_migration.kafka.admin.groups import is_unsupported
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.offset_map.below import BelowTranslator
from airflow_provider_kafka_migration.offset_map.runs import OffsetTranslator
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext, Progress
from airflow_provider_kafka_migration.record.offset_maps import closed_maps, load_maps
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso

PHASE = "cutover"
_CHANGED = (
    "it was used on the target, or could not be read again, since this pass has read it; the next pass looks again"
)

#: Committed offsets of one group, by partition.
Offsets = Mapping[TopicPartition, admin_groups.GroupOffset]


def read_groups(record: MigrationRecord, source: Cluster) -> list[GroupSnapshot]:
    """Read all selected groups with their committed offsets on the source, ascending. A group's failure is data."""
    admin = source.admin
    listings = {name: item for name, item in admin.list_groups().items() if record.spec.groups.selects(name)}
    names = sorted(listings)
    descriptions = admin.describe_groups(names, listings=listings) if names else {}
    offsets = read_offsets(admin, {name: listings[name] for name in names})
    places = record.partitions().keys()
    return [_snapshot(record, listings[name], descriptions.get(name), offsets.get(name), places) for name in names]


def _snapshot(
    record: MigrationRecord,
    listing: admin_groups.GroupListing,
    description: admin_groups.GroupDescription | None,
    offsets: admin_groups.GroupOffsets | None,
    places: Collection[TopicPartition],
) -> GroupSnapshot:
    topics = {topic for topic, _ in places}
    committed = offsets.offsets if offsets is not None else {}
    failure = _read_failure(record, listing, offsets, topics)
    return GroupSnapshot(
        group=listing.group,
        type=listing.type,
        state=description.state if description is not None and description.error is None else listing.state,
        members=sorted(f"{member.client_id} {member.client_host}" for member in description.members)
        if description
        else [],
        offsets=[
            CommittedOffset(topic=key[0], partition=key[1], offset=value.offset, metadata=value.metadata)
            for key, value in sorted(committed.items())
            if key[0] in topics
        ],
        other_topics=sorted({topic for topic, _ in committed} - topics),
        error=failure.as_dict() if failure else None,
        uncommitted=[] if failure else _uncommitted(listing, description, committed, places),
    )


#: Kinds whose members begin by ``auto.offset.reset`` where nothing is committed.
_RESETTING = ("classic", "consumer")


def _uncommitted(
    listing: admin_groups.GroupListing,
    description: admin_groups.GroupDescription | None,
    committed: Offsets,
    places: Collection[TopicPartition],
) -> list[Uncommitted]:
    """Return where members read without a commit: they have a position there, which a restart loses."""
    if description is None or not description.members or listing.type not in _RESETTING:
        return []
    read = {topic for topic, _ in committed} | {topic for item in description.members for topic, _ in item.assigned}
    return [
        Uncommitted(topic=topic, partition=number)
        for topic, number in sorted(places)
        if topic in read and (topic, number) not in committed
    ]


def _read_failure(
    record: MigrationRecord,
    listing: admin_groups.GroupListing,
    offsets: admin_groups.GroupOffsets | None,
    topics: set[str],
) -> MigrationError | None:
    group = listing.group
    if offsets is None:
        return FreezeFailed(
            "the broker's answer does not contain the group's offsets",
            where=_where(record, group),
            next_step="clear the task",
        )
    errors = [error for key, error in offsets.errors.items() if key[0] in topics]
    error = offsets.error or next(iter(errors), None)
    if error is None or (listing.type == "share" and is_unsupported(error)):
        return None
    return error.exception(
        "the group's offsets cannot be read on the source",
        _where(record, group, cluster="source"),
        operation=f"Describe on group {group} and on its topics",
    )


def _where(record: MigrationRecord, group: str, **fields: Any) -> Where:
    return record.where(PHASE, group=group, **fields)


def take_snapshot(record: MigrationRecord, source: Cluster) -> GroupsSnapshot:
    """Return the current state of the groups."""
    return GroupsSnapshot(
        migration_id=record.migration_id, taken_at=iso(record.now()), groups=read_groups(record, source)
    )


@dataclass(frozen=True)
class GroupTranslator:
    """Partitions and offset maps at one moment."""

    partitions: Mapping[TopicPartition, CopyPartition]
    maps: Mapping[TopicPartition, OffsetTranslator]
    below: Mapping[TopicPartition, BelowTranslator] = field(default_factory=dict)
    #: partitions to which nothing is copied by decision, with the reason
    left_out: Mapping[TopicPartition, str] = field(default_factory=dict)

    @classmethod
    def final(cls, record: MigrationRecord, target: Cluster) -> GroupTranslator:
        """With the closed maps of ``offset-map.json``; before the final drain with the run log's open maps."""
        document = record.offset_map()
        maps: Mapping[TopicPartition, OffsetTranslator]
        maps = closed_maps(document) if document is not None else load_maps(record, target)
        return cls(record.partitions(), maps, _below(record), _left_out(record))

    @classmethod
    def live(
        cls, record: MigrationRecord, target: Cluster, maps: Mapping[TopicPartition, OffsetTranslator] | None = None
    ) -> GroupTranslator:
        """With the open maps of the run log, while the tail runs.

        :param maps: maps that are loaded already; None: load all of them.
        """
        partitions = record.partitions()
        maps = load_maps(record, target, partitions) if maps is None else maps
        return cls(partitions, maps, _below(record), _left_out(record))

    def translate(self, group: GroupSnapshot) -> list[TranslatedOffset]:
        """Translate all offsets of a group."""
        found = translate_group(group, self.partitions, self.maps, self.below)
        return [self._named(item) for item in found] if self.left_out else found

    def _named(self, item: TranslatedOffset) -> TranslatedOffset:
        """Give an offset in a partition that is left out its own reason: the source still has that partition."""
        why = self.left_out.get((item.topic, item.partition))
        if why is None or item.target_offset is not None:
            return item
        return item.model_copy(update={"reason": f"nothing is copied to the partition: {why}"})


def _left_out(record: MigrationRecord) -> dict[TopicPartition, str]:
    return {
        (topic.name, item.partition): item.left_out
        for topic in (record.plan().topics if record.spec.adopt is not None else ())
        for item in topic.partitions
        if item.left_out
    }


def _below(record: MigrationRecord) -> dict[TopicPartition, BelowTranslator]:
    return {key: BelowTranslator(document) for key, document in record.maps_below().items()}


def preview(record: MigrationRecord, source: Cluster, target: Cluster) -> list[GroupResult]:
    """What a commit would do now, without writing: for approvals."""
    snapshots = read_groups(record, source)
    translator = GroupTranslator.live(record, target)
    states = target_states(target, {item.group: item.type for item in snapshots})
    return [
        GroupResult(
            group=item.group,
            type=item.type,
            source_state=item.state,
            target_state=states[item.group].state,
            offsets=translator.translate(item),
            skipped_reason=_left_alone(item, states[item.group]),
            failures=[item.error] if item.error else [],
            uncommitted=item.uncommitted,
        )
        for item in snapshots
    ]


def _left_alone(group: GroupSnapshot, target: TargetGroup) -> str:
    """Why a whole group is not written; empty if it may be."""
    if group.error is not None:
        return "its offsets could not be read on the source"
    if group.type not in MOVED:
        return OTHER_PROTOCOL
    if target.cannot:
        return target.cannot
    if not group.offsets:
        if group.type == "share":
            return f"no start offset is known: it has read nothing yet, or {NO_SHARE_GROUPS.format(role='source')}"
        return "it has no committed offsets in the migrated topics"
    if not target.is_empty and target.error is None:
        return f"it has members on the target (state {target.state})"
    return ""


class WriteLog(Protocol):
    """Knows what the migration itself has written for groups on the target, and hears of it before more is written."""

    def floors(self, group: str, present: Offsets) -> Offsets:
        """Return the offsets below which a group must not be set: those present, as if nobody had written any here."""

    def left_alone(self, group: str, present: Offsets, unread: Collection[TopicPartition]) -> str:
        """Return why a group must not be written, because others use it on the target; empty if it may be.

        :param unread: where nobody knows whether the group has an offset.
        """

    def again(self, group: str, present: Offsets) -> Collection[TopicPartition]:
        """Return where an offset that is right already is written again, so that it expires later."""

    def about_to_write(self, wanted: Mapping[str, Offsets], present: Mapping[str, Offsets]) -> None:
        """Called before offsets are written, with those that are there; both by group, then target partition."""


@dataclass(frozen=True)
class _Planned:
    """One group: what is to be written, or why nothing is."""

    group: GroupSnapshot
    there: TargetGroup
    wanted: Offsets
    offsets: list[TranslatedOffset]
    reason: str
    failures: list[dict[str, Any]]


def commit(
    context: PhaseContext,
    groups: Iterable[GroupSnapshot],
    translator: GroupTranslator,
    written: WriteLog | None = None,
    *,
    before_each: Callable[[], None] = lambda: None,
    reads_again: bool = False,
    refreshes: Callable[[str], bool] = lambda _group: False,
) -> list[GroupResult]:
    """Commit offsets that are missing or different on the target. Idempotent, forward only; failures are data.

    The caller has checked that it holds the migration.

    :param written: what the migration may set back, because it has written it itself.
    :param before_each: called before each group that is written; it raises if groups must not be written any more.
    :param reads_again: read each group again directly before it is written, and skip it if it differs from what was
        read of all groups: writes take minutes, and clients may use the target meanwhile. For passes with a next one.
    :param refreshes: whether a group's offsets are written again although they are right, so that they expire later.
    """
    groups = sorted(groups, key=lambda item: item.group)
    states = target_states(context.target, {item.group: item.type for item in groups})
    planned = [
        _plan_group(context.record, group, translator, states[group.group], written, refresh=refreshes(group.group))
        for group in groups
    ]
    changing = {item.group.group: item.wanted for item in planned if item.wanted}
    if written is not None and changing:
        written.about_to_write(changing, {name: states[name].offsets for name in changing})
    results = []
    for number, item in enumerate(planned, start=1):
        if item.wanted:
            before_each()
        if item.wanted and reads_again:
            item = _unless_changed(context.target, item)
        results.append(_commit_group(context.record, context.target, item))
        if number % 50 == 0 or number == len(planned):
            context.progress(Progress(PHASE, "groups", done=number, total=len(planned), unit="groups"))
    return results


def _unless_changed(target: Cluster, planned: _Planned) -> _Planned:
    """Return what to do with a group whose turn it is; a failure of this group is data, too."""
    group = planned.group
    try:
        changed = has_changed(target, group.group, group.type, planned.there)
    except HANDS_OFF:
        raise
    except MigrationError as error:
        return replace(planned, wanted={}, failures=[error.as_dict()])
    return replace(planned, wanted={}, reason=_CHANGED) if changed else planned


def _plan_group(
    record: MigrationRecord,
    group: GroupSnapshot,
    translator: GroupTranslator,
    there: TargetGroup,
    written: WriteLog | None,
    *,
    refresh: bool,
) -> _Planned:
    translated = translator.translate(group)
    right = there.offsets.keys() if refresh else ()
    reason = _left_alone(group, there)
    failures = [group.error] if group.error else []
    if there.error is not None:
        failures.append(_failure(record, group.group, there.error, "the group cannot be read"))
    failures += _unread(record, group.group, translated, there)
    if reason or failures:
        return _Planned(group, there, {}, translated, reason, failures)
    if written is None:
        wanted, final = _decide(translated, there.offsets, there.offsets, right)
        return _Planned(group, there, wanted, final, "", [])
    reason = written.left_alone(group.group, there.offsets, there.errors)
    if reason:
        return _Planned(group, there, {}, translated, reason, [])
    floors = written.floors(group.group, there.offsets)
    again = {*written.again(group.group, there.offsets), *right}
    wanted, final = _decide(translated, there.offsets, floors, again)
    return _Planned(group, there, wanted, final, "", [])


def _unread(
    record: MigrationRecord, group: str, translated: list[TranslatedOffset], there: TargetGroup
) -> list[dict[str, Any]]:
    """Return the errors of offsets that would be overwritten without anybody knowing them."""
    wanted = {(item.target_topic, item.partition) for item in translated if item.target_offset is not None}
    what = "the offset that the group has cannot be read, and it must not be set back"
    return [
        _failure(record, group, error, what, topic=key[0], partition=key[1])
        for key, error in sorted(there.errors.items())
        if key in wanted
    ]


def _commit_group(record: MigrationRecord, target: Cluster, planned: _Planned) -> GroupResult:
    group, there, wanted, final = planned.group, planned.there, planned.wanted, planned.offsets
    base: dict[str, Any] = {
        "group": group.group,
        "type": group.type,
        "source_state": group.state,
        "target_state": there.state,
        "uncommitted": group.uncommitted,
    }
    if planned.reason or planned.failures:
        return GroupResult(**base, offsets=final, skipped_reason=planned.reason, failures=planned.failures)
    try:
        errors = write_offsets(target.admin, group.group, group.type, wanted) if wanted else {}
    except MigrationError as error:
        return GroupResult(**base, offsets=final, failures=[error.as_dict()])
    failures = [
        _failure(record, group.group, error, "the offset cannot be committed", topic=key[0], partition=key[1])
        for key, error in sorted(errors.items())
        if error is not None
    ]
    count = sum(error is None for error in errors.values())
    unchanged = sum(item.target_offset is not None for item in final) - len(wanted)
    return GroupResult(**base, offsets=final, committed=count, unchanged=unchanged, failures=failures)


def _decide(
    translated: list[TranslatedOffset], present: Offsets, floors: Offsets, again: Collection[TopicPartition]
) -> tuple[dict[TopicPartition, admin_groups.GroupOffset], list[TranslatedOffset]]:
    """(what to commit by target partition, translations with a note where the target is ahead).

    :param floors: never less than these is committed; they differ from ``present`` where the migration itself wrote.
    :param again: what is written even if it is there already.
    """
    wanted: dict[TopicPartition, admin_groups.GroupOffset] = {}
    final = []
    for item in translated:
        key = (item.target_topic, item.partition)
        there, floor = present.get(key), floors.get(key)
        if item.target_offset is None:
            final.append(item)
            continue
        to_commit = admin_groups.GroupOffset(item.target_offset, -1, item.metadata)
        if floor is not None and floor.offset > item.target_offset:
            note = f"the target is ahead: it has {floor.offset}; a group is never set back"
            final.append(item.model_copy(update={"reason": note}))
            if floor is there:
                continue
            to_commit = floor
        else:
            final.append(item)
        same = there is not None and (there.offset, there.metadata) == (to_commit.offset, to_commit.metadata)
        if not same or key in again:
            wanted[key] = to_commit
    return wanted, final


def _failure(record: MigrationRecord, group: str, error: ItemError, what: str, **fields: Any) -> dict[str, Any]:
    where = _where(record, group, cluster="target", **fields)
    return error.exception(what, where, operation=f"Read on group {group} and on the topics (Describe, too)").as_dict()


def make_result(
    record: MigrationRecord, results: list[GroupResult], snapshots: Iterable[GroupSnapshot]
) -> GroupsResult:
    """The document of all groups."""
    return GroupsResult(
        migration_id=record.migration_id,
        at=iso(record.now()),
        groups=results,
        active_on_source=sorted(item.group for item in snapshots if item.members),
    )


def summarize(results: Iterable[GroupResult]) -> str:
    """One line for people."""
    results = list(results)
    counts = count_translations([item for group in results for item in group.offsets])
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "no offsets"
    failed = sum(bool(group.failures) for group in results)
    left = sum(bool(group.skipped_reason) and not group.failures for group in results)
    text = f"{len(results)} groups ({kinds})"
    text += f"; {left} left alone" if left else ""
    return text + (f"; {failed} FAILED" if failed else "")


def failures_error(record: MigrationRecord, results: Iterable[GroupResult]) -> GroupsIncomplete | None:
    """Return one error about all groups that failed, or ``None``."""
    failed = [group for group in results if group.failures]
    if not failed:
        return None
    first = failed[0]
    return GroupsIncomplete(
        f"{len(failed)} groups could not be moved (all others are done); {first.group}: {first.failures[0]['what']}",
        where=record.where(PHASE, group=first.group),
        next_step="correct the causes listed in details, or delete on the source the groups that nobody needs; then "
        "clear the task: groups that are done stay as they are",
        details={"groups": {group.group: group.failures for group in failed}},
    )
