"""Offsets of groups on a cluster, for all kinds: committed offsets, or the start offsets of share groups.

Classic, KIP-848, simple and streams groups commit offsets. A share group (KIP-932) has a start offset per partition,
behind a separate API that brokers have from 4.1 on (to read) and 4.2 on (to set). Both mean: the next record that the
group has not finished.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, cast

from airflow_provider_kafka_migration.documents.copy import CopyPartition
from airflow_provider_kafka_migration.documents.cutover import (
    LAGS_BEHIND_BOUNDARY,
    CommittedOffset,
    GroupSnapshot,
    TranslatedOffset,
    Translation,
)
from airflow_provider_kafka_migration.documents.plan import GroupPlan
from airflow_provider_kafka_migration.errors import OffsetMapInvalid, PermissionMissing
from airflow_provider_kafka_migration.kafka.admin.client import Admin
from airflow_provider_kafka_migration.kafka.admin.groups import (
    GroupDescription,
    GroupListing,
    GroupOffset,
    GroupOffsets,
    is_unsupported,
)
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.offset_map.below import BelowTranslator
from airflow_provider_kafka_migration.offset_map.runs import OffsetTranslator
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.spec import MigrationSpec

#: Kinds that are moved where the clusters support it; see docs/groups.md.
MOVED = ("classic", "consumer", "simple", "streams", "share")

NO_SHARE_GROUPS = "the {role} cluster does not offer start offsets of share groups (Kafka 4.2 with share.version 1)"
NO_STREAMS_GROUP = (
    "the target does not have it as a streams group, and offsets committed for a missing group would create a group "
    "of another kind, which the application could not join. Start and stop the application on the target once, "
    "and the next refresh sets the offsets"
)
#: No partition is adopted.
NOTHING_BELOW: Mapping[TopicPartition, BelowTranslator] = MappingProxyType({})
NO_ANSWER = ItemError(-1, "NO_ANSWER", "the broker's answer does not contain the group", retriable=True)
NOT_LISTED = ItemError(
    -1, "NOT_LISTED", "no broker lists the group, but its coordinator has offsets of it", retriable=True
)
OTHER_PROTOCOL = "its members speak a protocol other than the consumer's"


@dataclass(frozen=True)
class TargetGroup:
    """A group on the target: whether it may be written, and its offsets.

    :param errors: errors of single partitions: nobody knows which offset the group has there.
    :param cannot: why the target cannot hold such a group at all; empty if it can.
    :param type: its kind on the target; empty if it does not exist there.
    """

    state: str
    is_empty: bool
    offsets: dict[TopicPartition, GroupOffset]
    error: ItemError | None = None
    cannot: str = ""
    errors: Mapping[TopicPartition, ItemError] = field(default_factory=dict)
    type: str = ""


def read_offsets(
    admin: Admin, listings: Mapping[str, GroupListing], *, require_stable: bool = True
) -> dict[str, GroupOffsets]:
    """Read offsets of groups by name. A share group's error is UNSUPPORTED_VERSION if the cluster cannot list them."""
    share = [name for name in sorted(listings) if listings[name].type == "share"]
    others = [name for name in sorted(listings) if listings[name].type != "share"]
    found = admin.groups_offsets(others, require_stable=require_stable) if others else {}
    return {**found, **(admin.share_group_offsets(share) if share else {})}


def write_offsets(
    admin: Admin, group: str, kind: str, offsets: Mapping[TopicPartition, GroupOffset]
) -> dict[TopicPartition, ItemError | None]:
    """Set the offsets of a group without members; returns each partition's error, or ``None``."""
    if kind == "share":
        return admin.alter_share_group_offsets(group, offsets)
    return admin.alter_group_offsets(group, offsets)


def target_states(target: Cluster, kinds: Mapping[str, str]) -> dict[str, TargetGroup]:
    """State and offsets of groups on the target; groups that do not exist there are empty.

    That a group is not listed proves little, and that an answer lacks it proves nothing: one without an answer has an
    error, and so has one that is not listed and has offsets.

    :param kinds: group -> its kind on the source.
    """
    if not kinds:
        return {}
    admin = target.admin
    listings = admin.list_groups()
    # Describe returns "Dead" for unknown classic groups, and newer brokers return an error; the listing is reliable.
    known = [name for name in sorted(kinds) if name in listings]
    descriptions = admin.describe_groups(known, listings=listings) if known else {}
    offsets = read_offsets(admin, {name: listings[name] for name in known})
    unlisted = [name for name in sorted(kinds) if name not in listings and kinds[name] != "share"]
    offsets |= admin.groups_offsets(unlisted) if unlisted else {}
    cannot = _cannot(admin, kinds, listings)
    found = {}
    for name in sorted(kinds):
        if name in listings:
            state = _listed(listings[name], descriptions.get(name), offsets.get(name))
        elif kinds[name] == "share":
            state = TargetGroup("NotFound", True, {})
        else:
            state = _unlisted(offsets.get(name))
        found[name] = replace(state, cannot=cannot.get(name, ""))
    return found


def _listed(listing: GroupListing, described: GroupDescription | None, committed: GroupOffsets | None) -> TargetGroup:
    if described is None or committed is None:
        return TargetGroup(listing.state, False, {}, error=NO_ANSWER, type=listing.type)
    return TargetGroup(
        state=described.state,
        is_empty=described.is_empty,
        offsets=committed.offsets,
        error=described.error or committed.error,
        errors=committed.errors,
        type=listing.type,
    )


def _unlisted(committed: GroupOffsets | None) -> TargetGroup:
    error = NO_ANSWER if committed is None else committed.error
    if error is None and committed is not None and committed.offsets:
        error = NOT_LISTED
    return TargetGroup("NotFound", error is None, {}, error=error, errors=committed.errors if committed else {})


def has_changed(target: Cluster, group: str, kind: str, before: TargetGroup) -> bool:
    """Read a group on the target again, directly before it is written: whether it differs from what was read before.

    Does not list all groups again: a group that was missing shows by its offsets, and brokers themselves refuse
    offsets for one that has got members.

    :param kind: its kind on the source, for a group that is not on the target.
    """
    listing = GroupListing(group, before.type or kind, before.state, "consumer", -1)
    offsets = read_offsets(target.admin, {group: listing}).get(group)
    if offsets is None or offsets.error is not None:
        return True
    if (offsets.offsets, offsets.errors) != (before.offsets, before.errors):
        return True
    if not before.type:
        return False
    described = target.admin.describe_groups([group], listings={group: listing}).get(group)
    return described is None or not described.is_empty


def _cannot(admin: Admin, kinds: Mapping[str, str], listings: Mapping[str, GroupListing]) -> dict[str, str]:
    """Groups that the target cannot hold.

    For share groups a request for their offsets shows it, whether they exist or not. A streams group has to exist:
    Kafka 4.1 refuses its members (GROUP_ID_NOT_FOUND) where a simple group of that name holds offsets.
    """
    streams = [name for name, kind in kinds.items() if kind == "streams"]
    missing = [name for name in streams if name not in listings or listings[name].type != "streams"]
    share = [name for name in sorted(kinds) if kinds[name] == "share"]
    answers = admin.share_group_offsets(share) if share else {}
    reason = NO_SHARE_GROUPS.format(role="target")
    unsupported = {
        name: reason
        for name, answer in answers.items()
        if is_unsupported(answer.error) or not admin.alters_share_groups
    }
    return {**unsupported, **dict.fromkeys(sorted(missing), NO_STREAMS_GROUP)}


# -- group translation ------------------------------------------------------------------------------------------------
#
# Committed offsets of the source become offsets of the target. Pure: maps in, translations out.
#
# The linear formula, ``target_first + (committed - source_first)``, is right where a partition is one run. The
# runs of the offset map make it right everywhere: a consumer that starts at the result first reads the first record
# that it had not read on the source.


def translate_offset(
    committed: CommittedOffset,
    partitions: Mapping[TopicPartition, CopyPartition],
    maps: Mapping[TopicPartition, OffsetTranslator],
    below: Mapping[TopicPartition, BelowTranslator] = NOTHING_BELOW,
) -> TranslatedOffset:
    """Translate one offset; skipped with a reason if there is nothing to translate to.

    :param below: positions below the boundary of adopted partitions. Without one, a group that lags behind the boundary
        is skipped: the records that it has not read are on the target, but nobody knows where.
    """
    key = (committed.topic, committed.partition)
    item, offset_map = partitions.get(key), maps.get(key)
    if item is None or offset_map is None:
        return TranslatedOffset(
            topic=committed.topic,
            target_topic="",
            partition=committed.partition,
            source_offset=committed.offset,
            target_offset=None,
            translation=Translation.SKIPPED,
            metadata=committed.metadata,
            reason="the source no longer has this partition",
        )
    if committed.offset < 0:
        found_offset, how, reason = None, Translation.SKIPPED, "the committed offset is negative"
    else:
        found_offset, how, reason = _translated(offset_map, committed.offset)
        if item.adopted and how is Translation.RESET_TO_START:
            found_offset, how, reason = translate_below(committed.offset, below.get(key))
    return TranslatedOffset(
        topic=committed.topic,
        target_topic=item.target_topic,
        partition=committed.partition,
        source_offset=committed.offset,
        target_offset=found_offset,
        translation=how,
        verdict=offset_map.verdict or item.verdict,
        metadata=committed.metadata,
        reason=reason,
    )


def _translated(offset_map: OffsetTranslator, source_offset: int) -> tuple[int | None, Translation, str]:
    """Return the target offset, how it was found, and why there is none."""
    try:
        found = offset_map.translate(source_offset)
    except OffsetMapInvalid as error:
        # Of a copy in transactions, only what is asked for is read; other partitions do not need it.
        return None, Translation.SKIPPED, error.what
    reason = "" if found.target_offset is not None else "the partition has no data on the target"
    return found.target_offset, Translation(found.how.value), reason


def translate_below(source_offset: int, below: BelowTranslator | None) -> tuple[int | None, Translation, str]:
    """Translate an offset below the boundary of an adopted partition: target offset, how, and why there is none."""
    position = None if below is None else below.translate(source_offset)
    if position is None:
        return None, Translation.SKIPPED, f"{LAGS_BEHIND_BOUNDARY}, and its position there is not known"
    if not position.is_exact:
        return position.target_offset, Translation.EARLIER, ""
    how = Translation.EQUAL if position.target_offset == source_offset else Translation.EXACT
    return position.target_offset, how, ""


def translate_group(
    group: GroupSnapshot,
    partitions: Mapping[TopicPartition, CopyPartition],
    maps: Mapping[TopicPartition, OffsetTranslator],
    below: Mapping[TopicPartition, BelowTranslator] = NOTHING_BELOW,
) -> list[TranslatedOffset]:
    """All offsets of a group, ascending by topic and partition."""
    return [
        translate_offset(item, partitions, maps, below)
        for item in sorted(group.offsets, key=lambda item: (item.topic, item.partition))
    ]


def count_translations(offsets: list[TranslatedOffset]) -> dict[str, int]:
    """Count translations by kind, for summaries; in the order of :class:`Translation`."""
    counts = {kind.value: 0 for kind in Translation}
    for item in offsets:
        counts[item.translation.value] += 1
    return {kind: count for kind, count in counts.items() if count}


# -- plan groups ------------------------------------------------------------------------------------------------------
#
# Consumer groups of the plan: kind, state, lag, and topics inside and outside of the migration. Only reads.


GroupType = Literal["classic", "consumer", "simple", "share", "streams", "unknown"]


def plan_groups(
    spec: MigrationSpec,
    source: Cluster,
    topics: Collection[str],
    ends: Mapping[TopicPartition, int],
    unknown: dict[str, str],
) -> list[GroupPlan]:
    """Plan the selected groups, ascending.

    :param topics: source topics of the migration.
    :param ends: last stable offsets, for the lag.
    :param unknown: receives what could not be read.
    """
    try:
        listings = source.admin.list_groups()
    except PermissionMissing as error:
        unknown["groups on the source"] = error.what
        return []
    names = [name for name in sorted(listings) if spec.groups.selects(name)]
    offsets = read_offsets(source.admin, {name: listings[name] for name in names}, require_stable=False)
    return [_group(listings[name], offsets.get(name), topics, ends, unknown) for name in names]


def _group(
    listing: GroupListing,
    offsets: GroupOffsets | None,
    topics: Collection[str],
    ends: Mapping[TopicPartition, int],
    unknown: dict[str, str],
) -> GroupPlan:
    if offsets is not None and offsets.error is not None and not is_unsupported(offsets.error):
        unknown[f"offsets of group {listing.group}"] = offsets.error.name
    committed = offsets.offsets if offsets is not None else {}
    read = sorted({topic for topic, _ in committed})
    inside = [key for key in committed if key[0] in topics and key in ends]
    lag = sum(max(ends[key] - committed[key].offset, 0) for key in inside) if inside else -1
    return GroupPlan(
        group=listing.group,
        type=cast(GroupType, listing.type),
        state=listing.state,
        topics_in_scope=[topic for topic in read if topic in topics],
        topics_out_of_scope=[topic for topic in read if topic not in topics],
        lag=lag,
    )
