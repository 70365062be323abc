"""Consumer groups of the plan: kind, state, lag, and topics inside and outside of the migration. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, cast

from airflow_provider_kafka_migration.documents.plan import GroupPlan
from airflow_provider_kafka_migration.errors import PermissionMissing
from airflow_provider_kafka_migration.groups.offsets import read_offsets
from airflow_provider_kafka_migration.kafka.admin.admin_share_groups import is_unsupported
from airflow_provider_kafka_migration.kafka.admin.groups import GroupListing, GroupOffsets
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.record.context import PhaseContext

GroupType = Literal["classic", "consumer", "simple", "share", "streams", "unknown"]


def plan_groups(
    context: PhaseContext,
    topics: Collection[str],
    ends: Mapping[TopicPartition, int],
    unknown: dict[str, str],
) -> list[GroupPlan]:
    """The selected groups, ascending.

    :param topics: source topics of the migration.
    :param ends: last stable offsets, for the lag.
    :param unknown: gets what could not be looked at.
    """
    try:
        listings = context.source.admin.list_groups()
    except PermissionMissing as error:
        unknown["groups on the source"] = error.what
        return []
    names = [name for name in sorted(listings) if context.spec.groups.selects(name)]
    offsets = read_offsets(context.source.admin, {name: listings[name] for name in names}, require_stable=False)
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
