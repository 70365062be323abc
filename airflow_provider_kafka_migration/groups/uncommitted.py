"""Partitions that a group reads and in which it has committed nothing.

A client that has read nothing in a partition commits nothing there (librdkafka's clients at least), and on the source
it needs no commit: it has a position. On the target it begins by ``auto.offset.reset``, and with ``latest`` it skips
what producers write there before it starts.

The snapshot of the cutover names these partitions, because members are gone once they switch. With
``groups.uncommitted: boundary`` they get the cutover's boundary, from which on all records are on the target alone:
not before the group has left the source, because it may still commit an earlier offset there, and none is ever set
back.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_kafka_migration.documents.cutover import CommittedOffset, GroupSnapshot, Uncommitted
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext
from airflow_provider_kafka_migration.record.partition_names import partition_name


def since_cutover(context: PhaseContext, groups: Iterable[GroupSnapshot]) -> list[GroupSnapshot]:
    """Return the groups as they are now, with what had no commit at the cutover and has none yet.

    With ``groups.uncommitted: boundary``, a group without members has the boundary there.
    """
    record = context.record
    now = {item.group: item for item in groups}
    found_at_cutover = record.groups_snapshot().groups if record.result(keys.GROUPS_SNAPSHOT) is not None else []
    before = {item.group: item for item in found_at_cutover if item.uncommitted}
    missing = [name for name in sorted(before) if name not in now and record.spec.groups.selects(name)]
    now |= {name: _gone(before[name]) for name in _that_ended(context.source, missing)}
    ends = record.boundary().ends if record.spec.groups.uncommitted == "boundary" else {}
    found = []
    for name, group in sorted(now.items()):
        places = [*group.uncommitted, *(before[name].uncommitted if name in before else ())]
        found.append(_with(group, places, ends) if group.error is None else group)
    return found


def _with(group: GroupSnapshot, places: Iterable[Uncommitted], ends: dict[str, int]) -> GroupSnapshot:
    committed = {(item.topic, item.partition) for item in group.offsets}
    open_places = {(item.topic, item.partition): item for item in places}
    left = {place: item for place, item in sorted(open_places.items()) if place not in committed}
    if group.members:
        ends = {}
    begun = {place: ends[partition_name(place)] for place in left if partition_name(place) in ends}
    offsets = [CommittedOffset(topic=topic, partition=number, offset=end) for (topic, number), end in begun.items()]
    kept = [item for place, item in left.items() if place not in begun]
    return group.model_copy(update={"offsets": [*group.offsets, *offsets], "uncommitted": kept})


def _gone(group: GroupSnapshot) -> GroupSnapshot:
    """A group without any commit disappears with its last member."""
    return group.model_copy(update={"state": "Dead", "members": []})


def _that_ended(source: Cluster, names: list[str]) -> list[str]:
    """Return which of the groups that are no longer listed have really ended; a list that lacks one proves nothing."""
    described = source.admin.describe_groups(names) if names else {}
    return [
        name for name, item in sorted(described.items()) if item.error is None and not item.members and item.is_empty
    ]
