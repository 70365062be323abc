"""Consumer groups: read on the source, translated, and committed on the target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_kafka_migration.documents.copy import CopyPartition
from airflow_provider_kafka_migration.documents.cutover import (
    CommittedOffset,
    GroupResult,
    GroupSnapshot,
    GroupsResult,
    GroupsSnapshot,
    TranslatedOffset,
)
from airflow_provider_kafka_migration.errors import (
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
    read_offsets,
    target_states,
    translate_group,
    write_offsets,
)
from airflow_provider_kafka_migration.kafka.admin import groups as admin_groups
from airflow_provider_kafka_migration.kafka.admin.base import ItemError
from airflow_provider_kafka_migration.kafka.admin.groups import is_unsupported
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.offset_map.below import BelowTranslator
from airflow_provider_kafka_migration.offset_map.runs import PartitionMap
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext, Progress
from airflow_provider_kafka_migration.record.offset_maps import closed_maps, load_maps
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso

PHASE = "cutover"


def read_groups(record: MigrationRecord, source: Cluster) -> list[GroupSnapshot]:
    """Read all selected groups with their committed offsets on the source, ascending. A group's failure is data."""
    admin = source.admin
    listings = {name: item for name, item in admin.list_groups().items() if record.spec.groups.selects(name)}
    names = sorted(listings)
    descriptions = admin.describe_groups(names, listings=listings) if names else {}
    offsets = read_offsets(admin, {name: listings[name] for name in names})
    topics = {topic for topic, _ in record.partitions()}
    return [_snapshot(record, listings[name], descriptions.get(name), offsets.get(name), topics) for name in names]


def _snapshot(
    record: MigrationRecord,
    listing: admin_groups.GroupListing,
    description: admin_groups.GroupDescription | None,
    offsets: admin_groups.GroupOffsets | None,
    topics: set[str],
) -> GroupSnapshot:
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
    )


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
class Translator:
    """Partitions and offset maps at one moment."""

    partitions: Mapping[TopicPartition, CopyPartition]
    maps: Mapping[TopicPartition, PartitionMap]
    below: Mapping[TopicPartition, BelowTranslator] = field(default_factory=dict)

    @classmethod
    def final(cls, record: MigrationRecord, target: Cluster) -> Translator:
        """With the closed maps of ``offset-map.json``; before the final drain with the run log's open maps."""
        document = record.offset_map()
        maps = closed_maps(document) if document is not None else load_maps(record, target)
        return cls(record.partitions(), maps, _below(record))

    @classmethod
    def live(cls, record: MigrationRecord, target: Cluster) -> Translator:
        """With the open maps of the run log: for previews while the tail runs."""
        partitions = record.partitions()
        return cls(partitions, load_maps(record, target, partitions), _below(record))

    def translate(self, group: GroupSnapshot) -> list[TranslatedOffset]:
        """Translate all offsets of a group."""
        return translate_group(group, self.partitions, self.maps, self.below)


def _below(record: MigrationRecord) -> dict[TopicPartition, BelowTranslator]:
    return {key: BelowTranslator(document) for key, document in record.maps_below().items()}


def preview(record: MigrationRecord, source: Cluster, target: Cluster) -> list[GroupResult]:
    """What a commit would do now, without writing: for approvals."""
    snapshots = read_groups(record, source)
    translator = Translator.live(record, target)
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


def commit(context: PhaseContext, groups: Iterable[GroupSnapshot], translator: Translator) -> list[GroupResult]:
    """Commit offsets that are missing or different on the target. Idempotent, forward only; failures are data.

    The caller has checked that it holds the migration.
    """
    groups = sorted(groups, key=lambda item: item.group)
    states = target_states(context.target, {item.group: item.type for item in groups})
    results = []
    for number, group in enumerate(groups, start=1):
        results.append(_commit_group(context.record, context.target, group, translator, states[group.group]))
        if number % 50 == 0 or number == len(groups):
            context.progress(Progress(PHASE, "groups", done=number, total=len(groups), unit="groups"))
    return results


def _commit_group(
    record: MigrationRecord, target: Cluster, group: GroupSnapshot, translator: Translator, there: TargetGroup
) -> GroupResult:
    base = {"group": group.group, "type": group.type, "source_state": group.state, "target_state": there.state}
    translated = translator.translate(group)
    reason = _left_alone(group, there)
    failures = [group.error] if group.error else []
    if there.error is not None:
        failures.append(_failure(record, group.group, there.error, "the group cannot be described"))
    if reason or failures:
        return GroupResult(**base, offsets=translated, skipped_reason=reason, failures=failures)
    wanted, final = _decide(translated, there.offsets)
    try:
        errors = write_offsets(target.admin, group.group, group.type, wanted) if wanted else {}
    except MigrationError as error:
        return GroupResult(**base, offsets=final, failures=[error.as_dict()])
    failures = [
        _failure(record, group.group, error, "the offset cannot be committed", topic=key[0], partition=key[1])
        for key, error in sorted(errors.items())
        if error is not None
    ]
    written = sum(error is None for error in errors.values())
    unchanged = sum(item.target_offset is not None for item in final) - len(wanted)
    return GroupResult(**base, offsets=final, committed=written, unchanged=unchanged, failures=failures)


def _decide(
    translated: list[TranslatedOffset], present: Mapping[TopicPartition, admin_groups.GroupOffset]
) -> tuple[dict[TopicPartition, admin_groups.GroupOffset], list[TranslatedOffset]]:
    """(what to commit by target partition, translations with a note where the target is ahead)."""
    wanted: dict[TopicPartition, admin_groups.GroupOffset] = {}
    final = []
    for item in translated:
        key = (item.target_topic, item.partition)
        there = present.get(key)
        if item.target_offset is None:
            final.append(item)
        elif there is not None and there.offset > item.target_offset:
            note = f"the target is ahead: it has {there.offset}; a group is never set back"
            final.append(item.model_copy(update={"reason": note}))
        else:
            final.append(item)
            if there is None or there.offset != item.target_offset or there.metadata != item.metadata:
                wanted[key] = admin_groups.GroupOffset(item.target_offset, -1, item.metadata)
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
        next_step="correct the causes listed in details, or exclude the groups (groups.exclude); then clear the task: "
        "groups that are done stay as they are",
        details={"groups": {group.group: group.failures for group in failed}},
    )


def sync_groups(context: PhaseContext) -> GroupsResult:
    """Refresh once: groups may continue on the source until they switch; the target follows, forward only.

    Writes ``results/groups.json``. Failures are in the result, not raised.
    """
    snapshots = read_groups(context.record, context.source)
    context.journal.check_holds()
    results = commit(context, snapshots, Translator.final(context.record, context.target))
    result = make_result(context.record, results, snapshots)
    context.record.put_result(keys.GROUPS, result)
    return result
