"""Remote topics whose source topic is gone, deleted only if a person has approved it (``on_topic_deleted: repair``).

The topic was dropped from the mirror before; its copy stays until somebody has seen what would be deleted. The code of
the approval covers the topic's id and its log ends, so a topic to which anybody has written since stays. Approvals need
no claim: whoever holds the mirror carries them out. After the deletion, a source topic of that name is a new one, and
is mirrored from its start.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from airflow_provider_kafka_migration.approvals.code import code_of
from airflow_provider_kafka_migration.compare.proven import forget_proven
from airflow_provider_kafka_migration.documents.mirror import RemoteTopic, TopicDeletions
from airflow_provider_kafka_migration.errors import ApprovalRefused
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext, Progress
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics.topics_gone import confirm

log = logging.getLogger(__name__)

PHASE = "mirror"
_CHANGED = "%s is not deleted: it has changed since the deletion was approved"


def waiting(record: MigrationRecord, target: Cluster) -> list[RemoteTopic]:
    """Return the remote topics of dropped topics that this mirror has created and that still exist, ascending.

    :raises MigrationError: the target does not answer.
    """
    record.journal.refresh()
    planned = {topic.target_name for topic in record.plan().topics}
    gone = {
        str(item.details["topic"]): str(item.details["why"]) for item in record.journal.steps(steps.SOURCE_TOPIC_GONE)
    }
    remote = {record.spec.topics.target_name(name): name for name in gone}
    created = {
        str(name): str(topic_id)
        for entry in record.journal.steps(steps.TOPIC_CREATED)
        for name, topic_id in entry.details["topics"].items()
    }
    wanted = sorted((remote.keys() & created.keys()) - planned)
    facts = target.admin.describe_topics(wanted) if wanted else {}
    # Without an id (brokers before 2.8) nobody can tell whether it is still the topic that the mirror has created.
    there = [
        name for name in wanted if facts[name].error is None and created[name] and facts[name].topic_id == created[name]
    ]
    places = [(name, item.partition) for name in there for item in facts[name].partitions]
    ends = target.wire.list_offsets(places, "log_end") if places else {}
    return [
        RemoteTopic(
            topic=remote[name],
            remote_topic=name,
            topic_id=facts[name].topic_id,
            why=gone[remote[name]],
            log_end_offsets=[
                ends[name, number] for number in sorted(item.partition for item in facts[name].partitions)
            ],
        )
        for name in there
    ]


def code(migration_id: str, topics: Collection[RemoteTopic]) -> str:
    """Return the code that approves the deletion of exactly these topics as they are."""
    return code_of(
        {
            "kind": "delete_remote_topics",
            "migration_id": migration_id,
            "topics": [item.model_dump(mode="json") for item in topics],
        }
    )


def approve(
    record: MigrationRecord, topics: Collection[RemoteTopic], given: str, *, by: str, at: str, reason: str = ""
) -> TopicDeletions:
    """Store the approval of a person; the mirror's holder carries it out.

    :param topics: what would be deleted now.
    :raises ApprovalRefused: the policy forbids it, or the code is not that of what would be deleted now.
    """
    where = record.where(PHASE)
    if record.spec.topology.on_topic_deleted != "repair":
        raise ApprovalRefused(
            f"topology.on_topic_deleted is {record.spec.topology.on_topic_deleted}: this mirror deletes no topics",
            where=where,
            next_step="set it to delete and run the mirror again; or delete the topics by hand",
        )
    wanted = code(record.migration_id, topics)
    if not topics or given.strip().lower() != wanted:
        raise ApprovalRefused(
            f"the code {given[:20]!r} does not approve what would be deleted now: {len(topics)} remote topics",
            where=where,
            next_step="look again (kafka-migration mirror topics FILE --delete), and give the code that is shown then",
        )
    found = TopicDeletions(
        migration_id=record.migration_id,
        topics=list(topics),
        code=wanted,
        approved_by=by,
        approved_at=at,
        reason=reason,
    )
    record.journal_store.put(record.key(keys.TOPIC_DELETIONS), found.canonical())
    return found


def carry_out(context: PhaseContext) -> list[str]:
    """Delete what was approved and is as it was shown; return the names of the topics that are gone now.

    A deletion that was begun and is not confirmed yet is completed first: its process may have died, the brokers may
    have refused it, or they were still deleting.

    :raises MigrationError: a topic cannot be deleted; the next pass tries again.
    """
    record = context.record
    if context.spec.topology.on_topic_deleted != "repair":
        return []
    record.journal.refresh()
    begun, approved = _begun(record), _approved(record)
    if not begun and not approved:
        return []
    there = {item.remote_topic: item for item in waiting(record, context.target)}
    if record.journal.tip_state is not State.TAIL:
        return []
    done = []
    # A newer approval of the same topic replaces the one that its deletion was begun with.
    for item, by in {**begun, **approved}.values():
        now = there.get(item.remote_topic)
        if now is not None and now.topic_id == item.topic_id:
            if now.log_end_offsets != item.log_end_offsets:
                log.warning(_CHANGED, item.remote_topic)
                continue
            if not _delete(context, item, by):
                continue
        elif _key(item) not in begun:
            continue
        if _confirm(context, item):
            done.append(item.remote_topic)
    return done


_Work = dict[str, tuple[RemoteTopic, dict[str, Any]]]


def _key(item: RemoteTopic) -> str:
    return f"{item.remote_topic}: {item.topic_id}"


def _approved(record: MigrationRecord) -> _Work:
    """Return what a person has approved, with who it was."""
    data = record.journal_store.get(record.key(keys.TOPIC_DELETIONS))
    if data is None:
        return {}
    document = TopicDeletions.parse(data)
    by = {"approved_by": document.approved_by, "approved_at": document.approved_at, "code": document.code}
    return {_key(item): (item, by) for item in document.topics}


def _begun(record: MigrationRecord) -> _Work:
    """Return the journaled deletions that nobody has confirmed yet."""
    gone = {entry.step_key for entry in record.journal.steps(steps.REMOTE_TOPIC_DELETED)}
    found: _Work = {}
    for entry in record.journal.steps(steps.REMOTE_TOPIC_DELETING):
        if entry.step_key not in gone:
            details = entry.details
            item = RemoteTopic(**{name: details[name] for name in RemoteTopic.model_fields if name in details})
            by = {name: details[name] for name in ("approved_by", "approved_at", "code")}
            found[str(entry.step_key)] = (item, by)
    return found


def _delete(context: PhaseContext, item: RemoteTopic, by: dict[str, Any]) -> bool:
    """Delete a topic if it is still what was approved; return whether it was asked for."""
    journal = context.journal
    if why := _is_back(context, item):
        log.warning("%s is not deleted: %s", item.remote_topic, why)
        return False
    journal.check_holds()
    details: dict[str, Any] = {**item.model_dump(mode="json"), **by}
    reason = f"{item.remote_topic} is deleted, as {by['approved_by']} has approved: {item.why}"
    # Journaled first. A process that dies here leaves the topic, which the next pass finds unchanged.
    journal.step_once(steps.REMOTE_TOPIC_DELETING, _key(item), details, reason=reason)
    _forget(context, item)
    # Nothing between this look and the request: what a client writes meanwhile is lost with the topic.
    if _read_ends(context.target, item) != item.log_end_offsets:
        log.warning(_CHANGED, item.remote_topic)
        return False
    error = context.target.admin.delete_topic_with_id(item.remote_topic, item.topic_id)
    if error is not None:
        raise error.exception(
            "the remote topic cannot be deleted",
            context.where(PHASE, cluster="target", topic=item.remote_topic),
            operation="Delete on Topic",
        )
    context.progress(Progress(PHASE, reason))
    return True


def _is_back(context: PhaseContext, item: RemoteTopic) -> str:
    """Return why the source may have the very topic again whose copy this is; empty if all its brokers deny it."""
    record = context.record
    planned_id = record.planned_ids().get(item.topic, "")
    if item.topic in confirm(context.source.admin, {item.topic: planned_id}, [item.topic]):
        return ""
    return f"not all brokers of the source confirm that {item.topic} (id {planned_id}) is gone"


def _read_ends(target: Cluster, item: RemoteTopic) -> list[int] | None:
    """Return the log ends of a topic now; None if there is no topic of that id."""
    facts = target.admin.describe_topics([item.remote_topic])[item.remote_topic]
    if facts.error is not None or facts.topic_id != item.topic_id:
        return None
    places = sorted((item.remote_topic, part.partition) for part in facts.partitions)
    ends = target.wire.list_offsets(places, "log_end")
    return [ends[place] for place in places]


def _forget(context: PhaseContext, item: RemoteTopic) -> None:
    """Forget proofs that apply to the topic that is deleted."""
    for number in range(len(item.log_end_offsets)):
        forget_proven(context.journal_store, context.migration_id, item.topic, number)


def _confirm(context: PhaseContext, item: RemoteTopic) -> bool:
    """Journal that a topic is gone, once all brokers answer so: they delete after they have answered."""
    if not confirm(context.target.admin, {item.remote_topic: item.topic_id}, [item.remote_topic]):
        log.info("%s is being deleted; not all brokers of the target answer yet that it is gone", item.remote_topic)
        return False
    context.journal.check_holds()
    # Its process may have died before; and the new topic is not mirrored before the next line.
    _forget(context, item)
    details = {"topic": item.topic, "remote_topic": item.remote_topic, "topic_id": item.topic_id}
    reason = f"{item.remote_topic} is gone from the target"
    context.journal.step_once(steps.REMOTE_TOPIC_DELETED, _key(item), details, reason=reason)
    return True
