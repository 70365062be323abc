"""Groups that were deleted on the source of a mirror, deleted on its target by policy (``groups.on_deleted: repair``).

Absence is not evidence. A group counts as deleted only if all brokers of the source, the cluster of the plan, have
listed their groups without it, and its coordinator answers that there is no such group and no offset of it; and if all
this is so again after ``groups.deleted_after``. An empty list of groups proves nothing, nor does one that lacks most
groups at once: a source that has lost its offsets lists such a part of them, too.

And only what is the mirror's own is deleted: a group that no client has ever joined on the target, whose offsets there
are exactly those that the mirror has recorded before it wrote them (:mod:`~.groups.written`), without an offset that
was there before. Share groups, streams groups and all others are kept, and ``results/groups-missing.json`` names each
with the reason. The deletion is journaled before it is asked for, and brokers refuse it while a group has members.

The recorded offsets are deleted, and not the group: brokers leave out offsets in topics that may not be described when
they list a group's offsets, and with the group those would be deleted, too. A group that no client has joined, without
offsets, disappears by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_kafka_migration.documents.mirror import MissingGroup, MissingGroups
from airflow_provider_kafka_migration.errors import HANDS_OFF, MigrationError
from airflow_provider_kafka_migration.groups.offsets import NO_ANSWER, read_offsets
from airflow_provider_kafka_migration.groups.written import OwnWrites
from airflow_provider_kafka_migration.kafka.admin.groups import GroupListing, GroupOffset, GroupOffsets
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso, parse_iso

log = logging.getLogger(__name__)

PHASE = "mirror"

_FIRST = "the source has it no longer by one look; the next one is due after groups.deleted_after ({after})"
_AGAIN = "brokers {brokers} of the source, which had answered before, did not answer this time"
_NO_GROUPS = "the source lists no group at all, which proves nothing"
_NO_OFFSETS = "it has no offsets on the target, so nobody knows whose it is"
#: Up to this number of groups may be deleted at once, whatever their share of all groups is.
_HANDFUL = 5
_TOO_MANY = (
    "the source lacks {missing} of {all} groups at once, which may be the loss of its offsets; if they were deleted on "
    "purpose, delete them on the target, too"
)
_OTHER_CLUSTER = "the source is the cluster {found}, and not {planned} of the plan"


def carry_out(context: PhaseContext, present: Collection[str], written: OwnWrites, check: Callable[[], None]) -> None:
    """Look at the groups that the source no longer has, and delete those that may be deleted.

    What keeps a group is stored for people, as is an error: the next look is due after ``groups.deleted_after``.

    :param present: groups that the source has, as far as the spec selects them.
    :param check: called directly before a group is deleted; it raises if groups must not be changed any more.
    :raises ClaimLost: another owner has taken over.
    """
    record = context.record
    known = {item.group: item for item in read_missing(record)}
    candidates = sorted(set(written.groups) - set(present))
    missing = {name: item for name, item in known.items() if name in candidates}
    due = [name for name in candidates if name not in missing or _is_due(context, missing[name])]
    if due:
        for name, found in _look(
            context, candidates, {name: missing.get(name) for name in due}, written, check
        ).items():
            missing.pop(name, None)
            if found is not None:
                missing[name] = found
    if missing != known:
        groups = [missing[name] for name in sorted(missing)]
        record.put_result(keys.MISSING_GROUPS, MissingGroups(migration_id=record.migration_id, groups=groups))


def read_missing(record: MigrationRecord) -> list[MissingGroup]:
    """Return the groups that the source no longer has and the target still has, ascending."""
    data = record.result(keys.MISSING_GROUPS)
    return [] if data is None else MissingGroups.parse(data).groups


def deleted(record: MigrationRecord) -> list[str]:
    """Return the groups that were deleted on the target, in order, for people."""
    return [str(entry.details["group"]) for entry in record.journal.steps(steps.GROUP_DELETED)]


def _interval(context: PhaseContext) -> timedelta:
    return context.spec.groups.deleted_after


def _is_due(context: PhaseContext, item: MissingGroup) -> bool:
    return context.now() - parse_iso(item.looked_at) >= _interval(context)


# -- looks ------------------------------------------------------------------------------------------------------------


def _look(
    context: PhaseContext,
    candidates: list[str],
    due: dict[str, MissingGroup | None],
    written: OwnWrites,
    check: Callable[[], None],
) -> dict[str, MissingGroup | None]:
    """Return what is known of these groups now; None: the source has the group, or the target has it no longer."""
    now = iso(context.now())
    try:
        answer = _ask_source(context, sorted(due), candidates, len(written.groups))
    except HANDS_OFF:
        raise
    except MigrationError as error:
        log.warning("It is not known whether groups were deleted on the source: %s", error)
        return {name: _not_known(name, item, now, error.what) for name, item in due.items()}
    found: dict[str, MissingGroup | None] = {}
    for name, before in due.items():
        if name in answer.present:
            found[name] = None
        elif answer.too_many:
            found[name] = _keep_or_forget(context, name, answer.too_many, written)
        elif answer.unknown.get(name):
            found[name] = _not_known(name, before, now, answer.unknown[name])
        else:
            found[name] = _look_at_one(context, name, before, answer.brokers, written, check)
    return found


def _look_at_one(
    context: PhaseContext,
    name: str,
    before: MissingGroup | None,
    brokers: list[int],
    written: OwnWrites,
    check: Callable[[], None],
) -> MissingGroup | None:
    """A group that the source does not have by all its answers: decide about it on the target."""
    now = iso(context.now())
    first = MissingGroup(group=name, since=now, looked_at=now, brokers=brokers)
    if before is None or not before.since:
        return first.model_copy(update={"kept": _FIRST.format(after=_interval(context))})
    if silent := sorted(set(before.brokers) - set(brokers)):
        return first.model_copy(update={"kept": _AGAIN.format(brokers=silent)})
    try:
        kept, is_refused = _delete_one(context, before, written, check), before.is_refused
    except _Refused as refusal:
        log.warning("Group %s cannot be deleted on the target: %s", name, refusal.error)
        kept, is_refused = refusal.error.what, True
    except HANDS_OFF:
        raise
    except MigrationError as error:
        log.warning("Group %s cannot be deleted on the target: %s", name, error)
        kept, is_refused = error.what, False
    if not kept:
        return None
    return before.model_copy(update={"looked_at": now, "kept": kept, "is_refused": is_refused})


class _Refused(Exception):
    """The target has answered that it does not delete."""

    def __init__(self, error: MigrationError) -> None:
        super().__init__(error.what)
        self.error = error


def _not_known(name: str, before: MissingGroup | None, now: str, why: str) -> MissingGroup:
    """Return what is known after answers that decide nothing."""
    known = before or MissingGroup(group=name, looked_at=now)
    return known.model_copy(update={"looked_at": now, "kept": why})


def _keep_or_forget(context: PhaseContext, name: str, why: str, written: OwnWrites) -> MissingGroup | None:
    """Keep a group and start its two looks again; forget it if it is not on the target either."""
    try:
        if not _still_there(context.target, name, written):
            written.forget(name)
            return None
    except HANDS_OFF:
        raise
    except MigrationError as error:
        log.warning("Group %s cannot be read on the target: %s", name, error)
    return MissingGroup(group=name, looked_at=iso(context.now()), kept=why)


@dataclass(frozen=True)
class _Answer:
    """What the brokers of the source say about groups.

    :param unknown: groups that are not listed, and of which nothing else is certain, with the reason.
    :param too_many: why none of the missing groups counts as gone; empty otherwise.
    """

    brokers: list[int]
    present: Collection[str]
    unknown: dict[str, str]
    too_many: str = ""


def _ask_source(context: PhaseContext, names: list[str], candidates: list[str], count: int) -> _Answer:
    """Ask all brokers of the source about groups.

    :param candidates: all groups that may be gone, also those that are not due.
    :param count: number of all groups that the mirror has written.
    :raises MigrationError: one of them does not answer.
    """
    facts = context.source.admin.facts()
    planned = context.record.plan().source.cluster_id
    listings = context.source.admin.list_groups()
    why = ""
    if facts.cluster_id != planned:
        why = _OTHER_CLUSTER.format(found=facts.cluster_id or "without an id", planned=planned)
    elif not listings:
        why = _NO_GROUPS
    left = [name for name in names if name not in listings]
    gone = sum(name not in listings for name in candidates)
    if not why and gone > _HANDFUL and 2 * gone > count:
        too_many = _TOO_MANY.format(missing=gone, all=count)
        return _Answer(sorted(facts.brokers), listings.keys() & set(names), {}, too_many)
    unknown = dict.fromkeys(left, why) if why else _not_certain(context.source, left, listings)
    return _Answer(sorted(facts.brokers), listings.keys() & set(names), unknown)


def _not_certain(cluster: Cluster, names: list[str], listings: dict[str, GroupListing]) -> dict[str, str]:
    """Return the groups that no broker lists and whose coordinator does not say that they are gone, with the reason."""
    if not names:
        return {}
    descriptions = cluster.admin.describe_groups(names, listings=listings)
    offsets = cluster.admin.groups_offsets(names)
    found = {}
    for name in names:
        described, fetched = descriptions.get(name), offsets.get(name)
        if described is None or fetched is None:
            found[name] = f"its coordinator on the {cluster.role} did not answer"
        elif error := described.error or fetched.error or next(iter(fetched.errors.values()), None):
            found[name] = f"its coordinator on the {cluster.role} answers {error}"
        elif described.state != "Dead" or described.members or fetched.offsets:
            found[name] = f"its coordinator on the {cluster.role} has it in state {described.state}"
    return found


# -- the target -------------------------------------------------------------------------------------------------------


def _delete_one(context: PhaseContext, item: MissingGroup, written: OwnWrites, check: Callable[[], None]) -> str:
    """Delete a group that is the mirror's own; return why it is kept, empty if it is gone."""
    group, journal = item.group, context.journal
    key = f"{group}: {item.since}"
    offsets, kept = _own_offsets(context.target, group, written)
    # A request of an earlier look whose answer is not known may have been carried out.
    is_ours = journal.find_step(steps.GROUP_DELETING, key) is not None and not item.is_refused
    if offsets is None or (kept == _NO_OFFSETS and is_ours):
        return _is_gone(context, group, key, written, is_ours=is_ours)
    if kept:
        return kept
    check()
    reason = f"group {group} is deleted on the target: all brokers of the source say since {item.since} that it is gone"
    places = {f"{topic}-{number}": value.offset for (topic, number), value in sorted(offsets.items())}
    details = {"group": group, "missing_since": item.since, "brokers": item.brokers, "offsets": places}
    # Journaled first. A process that dies here leaves a group, which the next look finds.
    journal.step_once(steps.GROUP_DELETING, key, details, reason=reason)
    again, kept = _own_offsets(context.target, group, written)
    if kept or again != offsets:
        return kept or "somebody has changed its offsets on the target"
    check()
    for place, error in sorted(context.target.admin.delete_group_offsets(group, offsets).items()):
        if error is not None:
            refusal = error.exception(
                f"group {group} cannot be deleted on the target",
                context.where(PHASE, cluster="target", group=group, topic=place[0], partition=place[1]),
                operation=f"Delete on Group {group}, Read on Topic {place[0]}",
            )
            raise _Refused(refusal) if not error.retriable and error.code > 0 else refusal
    return _is_gone(context, group, key, written, is_ours=True)


def _is_gone(context: PhaseContext, group: str, key: str, written: OwnWrites, *, is_ours: bool) -> str:
    """Forget a group that is gone, and journal it if this mirror has deleted it; return why that is not certain."""
    kept = _still_there(context.target, group, written)
    if kept:
        return f"it is not certain that it is gone from the target: {kept}"
    begun = context.journal.find_step(steps.GROUP_DELETING, key)
    if is_ours and begun is not None:
        reason = f"all that the mirror has written for group {group} is gone from the target"
        context.journal.step_once(steps.GROUP_DELETED, key, dict(begun.details), reason=reason)
    written.forget(group)
    return ""


def _still_there(target: Cluster, group: str, written: OwnWrites) -> str:
    """Return why a group may still have offsets of the mirror; empty: certainly not. Brokers list it for a while."""
    admin = target.admin
    listings = admin.list_groups()
    if group not in listings:
        return _not_certain(target, [group], listings).get(group, "")
    fetched = read_offsets(admin, {group: listings[group]}).get(group)
    error = NO_ANSWER if fetched is None else fetched.error or next(iter(fetched.errors.values()), None)
    if fetched is None or error is not None:
        return f"its offsets cannot be read: {error}"
    left = [place for place in written.places(group) if place in fetched.offsets]
    return f"it still has an offset in {left[0][0]}-{left[0][1]}" if left else ""


def _own_offsets(
    target: Cluster, group: str, written: OwnWrites
) -> tuple[dict[TopicPartition, GroupOffset] | None, str]:
    """(offsets of a group that only the mirror has ever used, why it is kept); None: the target does not list it."""
    admin = target.admin
    listings = admin.list_groups()
    listing = listings.get(group)
    if listing is None:
        return None, ""
    if listing.type in ("share", "streams"):
        return {}, f"it is a {listing.type} group on the target: those are left alone"
    description = admin.describe_groups([group], listings=listings).get(group)
    if description is None or description.error is not None:
        return {}, f"it cannot be described on the target: {description.error if description else 'no answer'}"
    if not description.is_empty:
        return {}, f"it has members on the target (state {description.state})"
    if listing.type != "simple":
        return {}, f"a client has joined it on the target (it is a {listing.type} group there)"
    fetched = read_offsets(admin, {group: listing}).get(group)
    return _checked(group, fetched, written)


def _checked(
    group: str, fetched: GroupOffsets | None, written: OwnWrites
) -> tuple[dict[TopicPartition, GroupOffset], str]:
    error = None if fetched is None else fetched.error or next(iter(fetched.errors.values()), None)
    if fetched is None or error is not None:
        return {}, f"its offsets cannot be read on the target: {error or 'no answer'}"
    if not fetched.offsets:
        return {}, _NO_OFFSETS
    if foreign := written.foreign(group, fetched.offsets):
        topic, partition = foreign[0]
        return {}, f"it has an offset on the target that this mirror has not written, in {topic}-{partition}"
    if not written.is_first(group):
        return {}, "it had offsets on the target before this mirror wrote any"
    return dict(fetched.offsets), ""
