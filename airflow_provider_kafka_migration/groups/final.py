"""The commit that decides where groups go on: the cutover's, and the refreshes after it until clients have switched.

Groups may have followed before (:mod:`~.groups.early`, a way back). The outcome is the same as if they had not: what
was written before may be set back, and where the source has no offset any more, the group gets back what it had there,
or nothing. An early offset that cannot be taken back would let its consumer skip records, so ``results/groups.json``
names it for the approval of the client switch and for the evidence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from airflow_provider_kafka_migration.documents.cutover import GroupResult, GroupSnapshot, GroupsResult, NotUndone
from airflow_provider_kafka_migration.errors import HANDS_OFF, MigrationError
from airflow_provider_kafka_migration.groups import early, uncommitted
from airflow_provider_kafka_migration.groups.commit import GroupTranslator, commit, make_result, read_groups
from airflow_provider_kafka_migration.groups.offsets import TargetGroup, target_states, write_offsets
from airflow_provider_kafka_migration.groups.written import OwnWrites
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import PhaseContext

_OLD_REASON = "offsets of groups follow on the old cluster"
_GONE = "the source has no such group any more, or groups.include and groups.exclude leave it out"
_STAYS = "it was written before the cutover and the source has none there any more, but it cannot be taken back: {why}"


def own_writes(context: PhaseContext, *, is_after_switch: bool = False) -> OwnWrites | None:
    """Return what may be set back and taken back; None: nothing was written before, and nothing will be.

    :param is_after_switch: the cutover's commit is done, and what it has written is never set back.
    """
    if not context.spec.is_way_back:
        return early.own_writes(context, is_after_switch=is_after_switch)
    return OwnWrites(
        context, steps.OLD_GROUPS_WRITTEN, _OLD_REASON, is_final=True, is_after_switch=is_after_switch
    )  # fmt: skip


def commit_final(
    context: PhaseContext, groups: Collection[GroupSnapshot], translator: GroupTranslator
) -> list[GroupResult]:
    """Commit the snapshot of the cutover. The caller has checked that it holds the migration. Failures are data."""
    written = own_writes(context)
    results = commit(context, groups, translator, written)
    return results if written is None else _without_stale(context, results, written)


def sync_groups(context: PhaseContext) -> GroupsResult:
    """Refresh once: groups may continue on the source until they switch; the target follows, forward only.

    A group that the cutover's commit had to leave alone may have an offset from before it, which does not count.
    Writes ``results/groups.json``. Failures are in the result, not raised.
    """
    snapshots = uncommitted.since_cutover(context, read_groups(context.record, context.source))
    context.journal.check_holds()
    translator = GroupTranslator.final(context.record, context.target)
    written = own_writes(context, is_after_switch=True)
    results = commit(context, snapshots, translator, written, reads_again=True)
    if written is not None:
        results = _without_stale(context, results, written)
    result = make_result(context.record, results, snapshots)
    context.record.put_result(keys.GROUPS, result)
    return result


# -- offsets that the source has no longer ----------------------------------------------------------------------------


def _without_stale(context: PhaseContext, results: Iterable[GroupResult], written: OwnWrites) -> list[GroupResult]:
    """Take back early offsets where the source has none any more; the results, with those that stay."""
    found = {item.group: item for item in results}
    # What a person has left out of a way back is no longer ours: its offsets stay as they are.
    left_out = set(context.record.left_out_of_way_back().values())
    stale = {
        name: places
        for name in written.groups
        if (places := [place for place in _stale_places(found.get(name), name, written) if place[0] not in left_out])
    }
    kinds = {name: found[name].type if name in found else "classic" for name in stale}
    for name, there in target_states(context.target, kinds).items():
        left = _take_back(context, name, there, stale[name], written)
        if left:
            result = found.get(name) or GroupResult(
                group=name, type=there.type, source_state="NotFound", target_state=there.state, skipped_reason=_GONE
            )
            found[name] = result.model_copy(update={"not_undone": left})
    return [found[name] for name in sorted(found)]


def _stale_places(result: GroupResult | None, group: str, written: OwnWrites) -> list[TopicPartition]:
    """Return where a group may have an early offset that the source no longer has; nothing for a group that failed."""
    if result is None:
        return written.places(group)
    if result.failures:
        # Nobody knows what the source has, or the same is tried again.
        return []
    kept = {(item.target_topic, item.partition) for item in result.offsets if item.target_offset is not None}
    return [place for place in written.places(group) if place not in kept]


def _take_back(
    context: PhaseContext, group: str, there: TargetGroup, places: list[TopicPartition], written: OwnWrites
) -> list[NotUndone]:
    """Give a group its former offsets back, or none; return those that stay, with the reason."""
    own = {place: there.offsets[place] for place in written.own(group, there.offsets) if place in places}
    unread = [place for place in places if there.error is not None or place in there.errors]
    left = [_unread(place, str(there.error or there.errors[place])) for place in unread]
    if not own:
        return left
    if there.type == "share":
        why = dict.fromkeys(own, "a share group has no committed offset that could be deleted")
    elif not there.is_empty:
        why = dict.fromkeys(own, f"the group has members on the target (state {there.state})")
    else:
        why = _undo(context, group, there.type, own, written)
    return left + [
        NotUndone(topic=place[0], partition=place[1], offset=own[place].offset, reason=_STAYS.format(why=text))
        for place, text in sorted(why.items())
    ]


def _unread(place: TopicPartition, why: str) -> NotUndone:
    reason = f"an offset was written here before the cutover, and it cannot be read whether it is still there: {why}"
    return NotUndone(topic=place[0], partition=place[1], offset=-1, reason=reason)


def _undo(
    context: PhaseContext, group: str, kind: str, places: Iterable[TopicPartition], written: OwnWrites
) -> dict[TopicPartition, str]:
    """Return what the target answers where it does not change an offset."""
    admin = context.target.admin
    former = {place: written.former(group, place) for place in places}
    back = {place: item for place, item in former.items() if item is not None}
    gone = [place for place, item in former.items() if item is None]
    why: dict[TopicPartition, str] = {}
    try:
        answers = write_offsets(admin, group, kind, back) if back else {}
        answers |= admin.delete_group_offsets(group, gone) if gone else {}
    except HANDS_OFF:
        raise
    except MigrationError as error:
        return dict.fromkeys(former, error.what)
    for place, answer in answers.items():
        if answer is not None:
            why[place] = str(answer)
    return why
