"""Target topics: which exist, who owns them, and creating the missing ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_kafka_migration.documents.adoption import AdoptedStart
from airflow_provider_kafka_migration.documents.plan import Plan, TopicPlan
from airflow_provider_kafka_migration.documents.target import CopySettings
from airflow_provider_kafka_migration.errors import (
    ForeignData,
    MigrationError,
    PermissionMissing,
    TopologyRefused,
    leave_out_of_way_back,
)
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.admin.access import with_implied
from airflow_provider_kafka_migration.kafka.admin.topics import TOPIC_ALREADY_EXISTS, CreatedTopic, NewTopic
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError, batches
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext, Progress
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.spec.advice import begin_again

PHASE = "topology_copy"

#: The journal gets an entry per batch of topics, before and after the batch is created.
TOPICS_PER_ENTRY = 100


_WIDER = "partitions are never removed: delete these (empty) topics on the target, or add partitions on the source"
#: Adopted topics hold data of clients or of another tool, so the advice never asks anyone to remove any of it.
_FOREIGN_TO_ADOPTION = "exclude these topics ({key}): what they hold was neither adopted nor left out by the plan"
_WIDER_TO_ADOPTION = "add partitions on the source, or exclude these topics ({key})"


@dataclass(frozen=True)
class Presence:
    """The current state of a target topic.

    :param exists: the topic exists; otherwise all other fields are empty.
    :param ours: the journal says that this migration created or adopted this very topic (by its id), or the migration
        intended to create it and the topic is empty.
    :param end_offsets: log end by partition.
    :param before: overrides of an existing topic that is not ours, else ``None``.
    """

    exists: bool
    ours: bool = False
    topic_id: str = ""
    partitions: int = 0
    start_offsets: Mapping[int, int] = field(default_factory=dict)
    end_offsets: Mapping[int, int] = field(default_factory=dict)
    before: dict[str, str] | None = None

    @property
    def empty(self) -> bool:
        """Nothing was ever written to it."""
        return not any(self.end_offsets.values())


@dataclass(frozen=True)
class Made:
    """What was done: names of target topics."""

    created: list[str]
    adopted: list[str]
    widened: dict[str, int]
    anything: bool


def journaled_ids(record: MigrationRecord) -> dict[str, str]:
    """Target topic -> topic id of all topics that the journal calls ours; the newest entry counts."""
    known: dict[str, str] = {}
    for entry in record.journal.steps():
        if entry.step in (steps.TOPIC_CREATED, steps.TOPIC_ADOPTED):
            known.update({str(name): str(value) for name, value in entry.details["topics"].items()})
    return known


def journaled_shared(record: MigrationRecord) -> set[str]:
    """Target topics that others write to as well and that the migration copies into."""
    return {str(name) for entry in record.journal.steps(steps.TOPIC_SHARED) for name in entry.details["topics"]}


def _intended(record: MigrationRecord) -> set[str]:
    return {str(name) for entry in record.journal.steps(steps.TOPIC_CREATING) for name in entry.details["topics"]}


def read_presence(record: MigrationRecord, target: Cluster, plan: Plan) -> dict[str, Presence]:
    """Return the current state of each target topic of the plan.

    :raises PermissionMissing: a topic may not be described, so it is unknown whether it exists.
    """
    names = sorted(topic.target_name for topic in plan.topics)
    facts = target.admin.describe_topics(names)
    _check_described(record, {name: item.error for name, item in facts.items() if item.error is not None})
    there = [name for name in names if facts[name].error is None]
    keys = [(name, item.partition) for name in there for item in facts[name].partitions]
    starts = target.wire.list_offsets(keys, "earliest") if keys else {}
    ends = target.wire.list_offsets(keys, "log_end") if keys else {}
    ids, intended = journaled_ids(record), _intended(record)
    found: dict[str, Presence] = {name: Presence(exists=False) for name in names}
    for name in there:
        item = facts[name]
        numbers = [partition.partition for partition in item.partitions]
        end_offsets = {number: ends[name, number] for number in numbers}
        ours = (name in ids and ids[name] == item.topic_id) or (name in intended and not any(end_offsets.values()))
        found[name] = Presence(
            exists=True,
            ours=ours,
            topic_id=item.topic_id,
            partitions=len(numbers),
            start_offsets={number: starts[name, number] for number in numbers},
            end_offsets=end_offsets,
        )
    strangers = [name for name in there if not found[name].ours]
    configs = target.admin.topic_configs(strangers)
    for name in strangers:
        found[name] = Presence(**{**vars(found[name]), "before": dict(configs[name].overrides)})
    return found


def _check_described(record: MigrationRecord, errors: Mapping[str, ItemError]) -> None:
    for name, error in sorted(errors.items()):
        if error.code != error_codes.UNKNOWN_TOPIC_OR_PARTITION:
            raise error.exception(
                "the target topic cannot be described",
                record.where(PHASE, cluster="target", topic=name),
                operation="Describe on Topic",
            )


def foreign_ends(topic: TopicPlan, here: Presence) -> dict[int, int]:
    """Return the log ends of a topic's partitions that hold data which the plan neither adopts nor leaves alone."""
    if here.ours or topic.shared:
        return {}
    known = {item.partition for item in topic.partitions if item.adopted is not None or item.left_out}
    return {number: end for number, end in here.end_offsets.items() if end > 0 and number not in known}


def _refuse_moved(record: MigrationRecord, plan: Plan, present: Mapping[str, Presence]) -> None:
    """Refuse adopted partitions whose target log is not the one that the boundary was found on, or has moved since."""
    moved: dict[str, str] = {}
    sources: dict[str, str] = {}
    for topic in plan.topics:
        here = present[topic.target_name]
        for item in topic.partitions:
            if item.adopted is not None:
                why = _why_not_adopted(item.partition, item.adopted, here)
                if why:
                    moved[f"{topic.target_name}-{item.partition}"] = why
                    sources[topic.target_name] = topic.name
    if moved:
        name, why = min(moved.items())
        raise ForeignData(
            f"{len(moved)} partitions cannot be adopted any more; {name}: {why}",
            where=record.where(PHASE, cluster="target", topic=name.rpartition("-")[0]),
            next_step=leave_out_of_way_back(sources[name.rpartition("-")[0]])
            if record.spec.is_way_back
            else "find out who wrote to, deleted or recreated these topics on the target; before anything was copied, "
            "clear plan to look for the boundary again",
            details={"partitions": moved},
        )


def _why_not_adopted(partition: int, start: AdoptedStart, here: Presence) -> str:
    if not here.exists or partition not in here.end_offsets:
        return "it does not exist on the target any more"
    if here.topic_id and start.target_topic_id and here.topic_id != start.target_topic_id:
        return f"the target topic was deleted and created again (id {here.topic_id}, then {start.target_topic_id})"
    end = here.end_offsets[partition]
    if end < start.target_offset or (end != start.target_offset and not here.ours):
        return f"its log ends at {end}, but the boundary is {start.target_offset}"
    return ""


def fix_of_foreign(spec: MigrationSpec) -> str:
    """Return what to do before the copy begins, where a topic holds data of others; empty if nothing is adopted."""
    return _FOREIGN_TO_ADOPTION.format(key=_excluding_key(spec)) if spec.adopt is not None else ""


def fix_of_wider(spec: MigrationSpec) -> str:
    """Return what to do where a topic has more partitions than on the source; empty if nothing is adopted."""
    return _WIDER_TO_ADOPTION.format(key=_excluding_key(spec)) if spec.adopt is not None else ""


def _excluding_key(spec: MigrationSpec) -> str:
    return "way_back.exclude" if spec.is_way_back else "topics.exclude"


def _after_foreign(spec: MigrationSpec, topic: str) -> str:
    """Return what to do about data of others once the precheck has passed: the selection may no longer change."""
    if spec.is_way_back:
        return leave_out_of_way_back(topic)
    if spec.adopt is not None:
        return (
            "what these topics hold was neither adopted nor left out by the plan, so delete nothing; "
            f"{begin_again(spec)} and topics.exclude"
        )
    return (
        "delete these topics on the target, then clear the task; to keep them, "
        f"{begin_again(spec)} and topics.rename, topics.exclude or offsets.on_foreign_writer: note"
    )


def _after_wider(spec: MigrationSpec) -> str:
    if spec.adopt is None:
        return _WIDER
    add = "add partitions on the source, then clear the task"
    return add if spec.is_way_back else f"{add}; or {begin_again(spec)} and topics.exclude"


def refuse(record: MigrationRecord, plan: Plan, present: Mapping[str, Presence]) -> None:
    """Raise for topics that must not be touched, all of them in one error.

    :raises ForeignData: topics hold another party's data, or adopted partitions have moved since the plan.
    :raises TopologyRefused: more partitions than the source has, or drift under ``on_config_drift: stop``.
    """
    _refuse_moved(record, plan, present)
    foreign = {
        topic.target_name: ends
        for topic in sorted(plan.topics, key=lambda item: item.target_name)
        if (ends := foreign_ends(topic, present[topic.target_name]))
    }
    if foreign:
        first = next(iter(foreign))
        raise ForeignData(
            f"{len(foreign)} target topics hold data that is not from this migration: {', '.join(list(foreign)[:10])}",
            where=record.where(PHASE, cluster="target", topic=first),
            next_step=_after_foreign(
                record.spec, next(topic.name for topic in plan.topics if topic.target_name == first)
            ),
            details={"topics": {name: {str(k): v for k, v in ends.items()} for name, ends in foreign.items()}},
        )
    wider = {
        topic.target_name: [present[topic.target_name].partitions, len(topic.partitions)]
        for topic in plan.topics
        if present[topic.target_name].partitions > len(topic.partitions)
        and not present[topic.target_name].ours
        and not topic.shared
    }
    if wider:
        raise TopologyRefused(
            f"{len(wider)} target topics have more partitions than the source: {', '.join(list(wider)[:10])}",
            where=record.where(PHASE, cluster="target", topic=next(iter(wider))),
            next_step=_after_wider(record.spec),
            details={"topics": wider},
        )
    _refuse_narrow(record, plan, present)
    _refuse_drift(record, plan, present)


def _refuse_narrow(record: MigrationRecord, plan: Plan, present: Mapping[str, Presence]) -> None:
    """Refuse narrow shared topics: more partitions would move the keys of those who write to them."""
    narrow = {
        topic.target_name: [present[topic.target_name].partitions, len(topic.partitions)]
        for topic in plan.topics
        # A merged topic grows on both clusters, so that a key has the same partition on both.
        if topic.shared and not topic.merged and present[topic.target_name].partitions < len(topic.partitions)
    }
    if narrow:
        raise TopologyRefused(
            f"{len(narrow)} shared target topics have fewer partitions than the source: {', '.join(list(narrow)[:10])}",
            where=record.where(PHASE, cluster="target", topic=next(iter(narrow))),
            next_step="add partitions together with those who write to these topics, then clear the task; to leave "
            f"them out, {begin_again(record.spec)} and topics.exclude",
            details={"topics": narrow},
        )


def _refuse_drift(record: MigrationRecord, plan: Plan, present: Mapping[str, Presence]) -> None:
    if record.spec.topology.on_config_drift != "stop":
        return
    drifted = {
        topic.target_name: topic.drift for topic in plan.topics if topic.drift and not present[topic.target_name].ours
    }
    if drifted:
        raise TopologyRefused(
            f"{len(drifted)} target topics have other configs than the source: {', '.join(list(drifted)[:10])}",
            where=record.where(PHASE, cluster="target", topic=next(iter(drifted))),
            next_step="make them equal, then clear the task; to have them overwritten or kept instead, "
            f"{begin_again(record.spec)} and another topology.on_config_drift",
            details={"topics": drifted},
        )


def make(context: PhaseContext, plan: Plan, present: Mapping[str, Presence], settings: CopySettings) -> Made:
    """Create, adopt and widen topics; each step is journaled with the topics' ids.

    :raises TopologyRefused: some topics could not be created; the others are.
    """
    topics = {topic.target_name: topic for topic in plan.topics}
    missing = [name for name in sorted(topics) if not present[name].exists]
    ids = journaled_ids(context.record)
    shared = {name: present[name].topic_id for name in sorted(topics) if topics[name].shared and present[name].exists}
    if shared.keys() - journaled_shared(context.record):
        reason = f"{len(shared)} topics that others write to are copied into, in transactions"
        context.journal.step(steps.TOPIC_SHARED, details={"topics": shared}, reason=reason)
    adopted = {
        name: present[name].topic_id
        for name in sorted(topics)
        if present[name].exists and ids.get(name) != present[name].topic_id and name not in shared
    }
    if adopted:
        full = sum(any(item.adopted for item in topics[name].partitions) for name in adopted)
        reason = f"{len(adopted) - full} empty topics adopted" + (f", {full} with their content" if full else "")
        context.journal.step(steps.TOPIC_ADOPTED, details={"topics": adopted}, reason=reason)
    failures = _create(context, [topics[name] for name in missing], settings)
    widened = {
        name: len(topics[name].partitions)
        for name in sorted(topics)
        if present[name].exists and present[name].partitions < len(topics[name].partitions)
    }
    errors = context.target.admin.create_partitions(widened) if widened else {}
    failures.update({name: error for name, error in errors.items() if error is not None})
    if failures:
        raise _failure(context.record, failures)
    return Made(missing, sorted(adopted), widened, bool(missing or adopted or widened))


#: What copying needs on each target topic; Delete is for DeleteRecords.
NEEDED = frozenset({"ALTER_CONFIGS", "DESCRIBE_CONFIGS", "READ", "WRITE"})


def check_permissions(record: MigrationRecord, target: Cluster, plan: Plan) -> None:
    """Check before hours of copying that this principal may do on each topic what copying needs (KIP-430).

    Brokers cannot answer this for topics that do not exist yet, so precheck could not check it.

    :raises PermissionMissing: with all missing operations and their topics.
    """
    # A mirror deletes on the target what the source has deleted.
    follows = record.spec.kind == "mirror" and record.spec.mirror.target_retention == "source"
    cut = {
        topic.target_name
        for topic in plan.topics
        if not topic.shared and (follows or any(item.filler_offsets for item in topic.partitions))
    }
    names = sorted(topic.target_name for topic in plan.topics)
    missing: dict[str, list[str]] = {}
    for name, facts in target.admin.describe_topics(names, operations=True).items():
        needed = NEEDED | {"DELETE"} if name in cut else NEEDED
        if facts.operations is None:
            continue
        for operation in sorted(needed - with_implied(facts.operations)):
            missing.setdefault(operation, []).append(name)
    if not missing:
        return
    operation, topics = sorted(missing.items())[0]
    listing = "; ".join(f"{item} on {len(found)} topics" for item, found in sorted(missing.items()))
    raise PermissionMissing(
        f"the migration's principal lacks rights on target topics: {listing}",
        where=record.where(PHASE, cluster="target", topic=topics[0]),
        next_step=f"grant {operation} and the others as described in permissions.md; then clear topology_copy to "
        "continue",
        details={"topics": missing},
    )


def _create(context: PhaseContext, topics: Sequence[TopicPlan], settings: CopySettings) -> dict[str, ItemError]:
    failures: dict[str, ItemError] = {}
    done = 0
    for batch in batches(topics, TOPICS_PER_ENTRY):
        names = [topic.target_name for topic in batch]
        context.journal.check_holds()
        context.journal.step(steps.TOPIC_CREATING, details={"topics": names}, reason=f"{len(names)} topics are created")
        wanted = [
            NewTopic(
                topic.target_name,
                len(topic.partitions),
                topic.replication_factor,
                topic.target_configs if topic.merged else settings.topics[topic.target_name].copy_time,
            )
            for topic in batch
        ]
        answers = context.target.admin.create_topics(wanted)
        created = {name: item.topic_id for name, item in answers.items() if item.error is None}
        created.update(_answers_lost(context.target, batch, answers))
        failures.update({name: item.error for name, item in answers.items() if item.error and name not in created})
        unknown = [name for name, topic_id in created.items() if not topic_id]
        facts = context.target.admin.describe_topics(unknown) if unknown else {}
        created.update({name: item.topic_id for name, item in facts.items() if item.error is None})
        if created:
            context.journal.step(
                steps.TOPIC_CREATED,
                details={"topics": dict(sorted(created.items()))},
                reason=f"{len(created)} topics created",
            )
            partitions = {topic.target_name: len(topic.partitions) for topic in batch}
            context.target.wire.leaders([(name, n) for name in sorted(created) for n in range(partitions[name])])
        done += len(batch)
        context.progress(Progress(PHASE, f"{done} of {len(topics)} topics created", done, len(topics), "topics"))
    return failures


def _answers_lost(target: Cluster, batch: Sequence[TopicPlan], answers: Mapping[str, CreatedTopic]) -> dict[str, str]:
    """Topics that exist although they did not a moment ago, with their ids: a broker's answer was lost, and the second
    attempt met the topic of the first. Such a topic is empty and as wide as requested; any other is not ours."""
    met = [name for name, item in answers.items() if item.error and item.error.code == TOPIC_ALREADY_EXISTS]
    if not met:
        return {}
    width = {topic.target_name: len(topic.partitions) for topic in batch}
    facts = target.admin.describe_topics(met)
    same = [name for name in met if facts[name].error is None and len(facts[name].partitions) == width[name]]
    ends = target.wire.list_offsets([(name, n) for name in same for n in range(width[name])], "log_end")
    return {name: facts[name].topic_id for name in same if not any(ends[name, n] for n in range(width[name]))}


def _failure(record: MigrationRecord, failures: Mapping[str, ItemError]) -> MigrationError:
    details: dict[str, Any] = {"topics": {name: error.as_dict() for name, error in sorted(failures.items())}}
    name, error = min(failures.items(), key=lambda item: (item[1].retriable, item[0]))
    what = f"{len(failures)} target topics could not be created or widened; {name}"
    where = record.where(PHASE, cluster="target", topic=name)
    if error.code == TOPIC_ALREADY_EXISTS:
        return ForeignData(
            f"{what} was created by someone else at the same moment",
            where=where,
            next_step="clear topology_copy: it checks the topic again",
            details=details,
        )
    kind = error.exception(what, where, operation="Create on Topic or Cluster, Alter on Topic")
    if error.retriable or error.unauthorized:
        return type(kind)(kind.what, where=where, next_step=kind.next_step, details=details)
    return TopologyRefused(
        kind.what,
        where=where,
        next_step="see the details for all of them; correct or exclude them",
        details=details,
    )
