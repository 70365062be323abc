"""Where groups stand on a cluster, whatever their kind: committed offsets, or the start offsets of share groups.

Classic, KIP-848, simple and streams groups commit offsets; a share group (KIP-932) has a start offset per partition,
behind an api of its own that brokers have from 4.1 on (to read) and 4.2 on (to set). Both mean: the next record that
the group has not finished.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_kafka_migration.kafka.admin.admin_share_groups import is_unsupported
from airflow_provider_kafka_migration.kafka.admin.base import ItemError
from airflow_provider_kafka_migration.kafka.admin.client import Admin
from airflow_provider_kafka_migration.kafka.admin.groups import GroupListing, GroupOffset, GroupOffsets
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.record.context import PhaseContext

#: Kinds that are moved where the clusters can; see docs/groups.md.
MOVED = ("classic", "consumer", "simple", "streams", "share")

NO_SHARE_GROUPS = "the {role} cluster does not offer start offsets of share groups (Kafka 4.2 with share.version 1)"
NO_STREAMS_GROUP = (
    "the target does not have it as a streams group, and offsets committed for a group that is not there would make "
    "one of another kind, which the application could not join. Start and stop the application on the target once, "
    "and the next refresh sets the offsets"
)
OTHER_PROTOCOL = "its members speak a protocol other than the consumer's"


@dataclass(frozen=True)
class TargetGroup:
    """A group on the target: may it be written, and what does it have?

    :param cannot: why the target cannot hold such a group at all; empty if it can.
    """

    state: str
    is_empty: bool
    offsets: dict[TopicPartition, GroupOffset]
    error: ItemError | None = None
    cannot: str = ""


def read_offsets(
    admin: Admin, listings: Mapping[str, GroupListing], *, require_stable: bool = True
) -> dict[str, GroupOffsets]:
    """Offsets of groups by name. A share group's error is UNSUPPORTED_VERSION where the cluster does not tell."""
    share = [name for name in sorted(listings) if listings[name].type == "share"]
    others = [name for name in sorted(listings) if listings[name].type != "share"]
    found = admin.groups_offsets(others, require_stable=require_stable) if others else {}
    return {**found, **(admin.share_group_offsets(share) if share else {})}


def write_offsets(
    admin: Admin, group: str, kind: str, offsets: Mapping[TopicPartition, GroupOffset]
) -> dict[TopicPartition, ItemError | None]:
    """Set the offsets of a group without members; by partition its error, or ``None``."""
    if kind == "share":
        return admin.alter_share_group_offsets(group, offsets)
    return admin.alter_group_offsets(group, offsets)


def target_states(context: PhaseContext, kinds: Mapping[str, str]) -> dict[str, TargetGroup]:
    """State and offsets of groups on the target; groups that do not exist there are empty.

    :param kinds: group -> its kind on the source.
    """
    if not kinds:
        return {}
    admin = context.target.admin
    listings = admin.list_groups()
    # Describe says "Dead" for unknown classic groups, and newer brokers an error: the listing is the simple truth.
    known = [name for name in sorted(kinds) if name in listings]
    descriptions = admin.describe_groups(known, listings=listings) if known else {}
    offsets = read_offsets(admin, {name: listings[name] for name in known})
    cannot = _cannot(admin, kinds, listings)
    found = {}
    for name in sorted(kinds):
        if name not in listings:
            found[name] = TargetGroup("NotFound", True, {}, cannot=cannot.get(name, ""))
            continue
        description, committed = descriptions.get(name), offsets.get(name)
        error = (description.error if description else None) or (committed.error if committed else None)
        found[name] = TargetGroup(
            state=description.state if description else listings[name].state,
            is_empty=description.is_empty if description else False,
            offsets=committed.offsets if committed else {},
            error=error,
            cannot=cannot.get(name, ""),
        )
    return found


def _cannot(admin: Admin, kinds: Mapping[str, str], listings: Mapping[str, GroupListing]) -> dict[str, str]:
    """Groups that the target has no place for.

    For share groups asking for their offsets tells, whether they exist or not. A streams group has to be there: Kafka
    4.1 refuses its members (GROUP_ID_NOT_FOUND) where a simple group of that name holds offsets.
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
