"""What the migration leaves out of the source's current contents: for approvals and the evidence. Only reads.

The plan lists what it left out when it was made; topics and groups come and go after it. What cannot be read is named
in ``unread`` and never counts as "there is nothing else".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from airflow_provider_kafka_migration.documents.plan import LeftOut, LeftOutGroup, Plan
from airflow_provider_kafka_migration.errors import PermissionMissing
from airflow_provider_kafka_migration.groups.offsets import read_offsets
from airflow_provider_kafka_migration.kafka.admin.groups import GroupListing, GroupOffsets, is_unsupported
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.spec import MigrationSpec

INTERNAL = "internal topic"
_LATE = "it appeared on the source after the plan and was not added (topology.follow_new: false)"
_LATE_PENDING = "it appeared on the source after the plan and is not added yet"


def read_left_out(record: MigrationRecord, source: Cluster, plan: Plan) -> LeftOut:
    """Return everything that the source has and the migration does not copy."""
    unread: dict[str, str] = {}
    return LeftOut(
        migration_id=record.migration_id,
        at=iso(record.now()),
        topics=_topics(record.spec, source, plan, unread),
        groups=left_out_groups(record.spec, source, {topic.name for topic in plan.topics}, unread),
        unread=dict(sorted(unread.items())),
    )


def record(record: MigrationRecord, source: Cluster) -> LeftOut:
    """Write ``results/left-out.json`` for the evidence."""
    found = read_left_out(record, source, record.plan())
    record.put_result(keys.LEFT_OUT, found)
    return found


def left_out_groups(
    spec: MigrationSpec, source: Cluster, topics: Collection[str], unread: dict[str, str]
) -> list[LeftOutGroup]:
    """The groups that the spec does not select, ascending, with the migrated topics in which they have offsets.

    :param topics: source topics of the migration.
    :param unread: receives what may not be read.
    """
    section = spec.groups
    try:
        listings = source.admin.list_groups()
    except PermissionMissing as error:
        unread["groups on the source"] = error.what
        return []
    others = {name: item for name, item in sorted(listings.items()) if not section.selects(name)}
    offsets = read_offsets(source.admin, others, require_stable=False) if others else {}
    return [_group(listing, section.why_left_out(name), offsets.get(name), topics) for name, listing in others.items()]


def _group(listing: GroupListing, reason: str, offsets: GroupOffsets | None, topics: Collection[str]) -> LeftOutGroup:
    if offsets is None:
        unread = "the broker did not answer for this group"
    elif offsets.error is not None and not is_unsupported(offsets.error):
        unread = offsets.error.name
    else:
        unread = ""
    read = {topic for topic, _ in offsets.offsets} if offsets is not None and not unread else set()
    return LeftOutGroup(
        group=listing.group,
        type=listing.type,
        reason=reason,
        topics_in_scope=sorted(read & set(topics)),
        unread=unread,
    )


def _topics(spec: MigrationSpec, source: Cluster, plan: Plan, unread: dict[str, str]) -> dict[str, str]:
    """What the plan left out or dropped, and what the source has gained since."""
    try:
        described = source.admin.describe_topics()
    except PermissionMissing as error:
        unread["topics on the source"] = error.what
        described = {}
    migrated = {topic.name for topic in plan.topics}
    late = _LATE_PENDING if spec.topology.follow_new else _LATE
    found = {name: spec.topics.why_left_out(name) or late for name in described if name not in migrated}
    return dict(sorted({**found, **plan.excluded_topics}.items()))


def is_internal(reason: str) -> bool:
    """Whether a topic is left out as an internal one."""
    return reason.startswith(INTERNAL)


def rows(found: LeftOut) -> list[tuple[str, str, str]]:
    """(kind, name, why) for people: groups that read migrated topics first, internal topics last."""
    groups = sorted(found.groups, key=lambda item: (not item.topics_in_scope, not item.unread, item.group))
    lines = [("group", item.group, group_reason(item)) for item in groups]
    topics: Mapping[str, str] = found.topics
    lines += [
        ("topic", name, topics[name]) for name in sorted(topics, key=lambda name: (is_internal(topics[name]), name))
    ]
    return lines + [("could not be checked", what, why) for what, why in sorted(found.unread.items())]


def group_reason(item: LeftOutGroup) -> str:
    """Why a group is left out, and which migrated topics it reads."""
    text = item.reason
    if item.topics_in_scope:
        text += f"; it has offsets in {', '.join(item.topics_in_scope[:10])}"
        more = len(item.topics_in_scope) - 10
        text += f" and {more} more" if more > 0 else ""
    return text + (f"; its offsets cannot be read: {item.unread}" if item.unread else "")
