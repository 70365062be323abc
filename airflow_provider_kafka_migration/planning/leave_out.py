"""Topics that a person takes out of a way back that has begun, because others have written to them on the old cluster.

Such a partition can never go back: its log on the old cluster no longer ends where records would come back to. Rather
than giving up the way back of all others, a person may leave the topic out. That never happens by itself: it needs a
code over the facts, it is journaled with the person, and the evidence names the topic as not gone back.

A supplement of the plan takes the topic out, as one that was deleted on the source. What has come back already stays on
the old cluster, and so does what others wrote. The topic's own settings are put back with those of all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow_provider_kafka_migration.documents.plan import Plan, PlanSupplement, TopicPlan, supplemented
from airflow_provider_kafka_migration.errors import HANDS_OFF, IllegalTransition, MigrationError, SpecInvalid
from airflow_provider_kafka_migration.groups.written import left_there
from airflow_provider_kafka_migration.jobs import copy_jobs
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.planning import follow
from airflow_provider_kafka_migration.record import keys, rolling_back, steps
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext
from airflow_provider_kafka_migration.record.partition_names import partition_name
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics import topics_gone

PHASE = "way_back"
TAIL = follow.PHASE
#: From the first change of the old cluster to the cutover in its direction, whose boundary then stands.
STATES = (State.TOPOLOGY_COPY, State.SEED, State.TAIL, State.DRAIN_READY)


def check_allowed(record: MigrationRecord) -> None:
    """Check that topics may be left out now.

    :raises IllegalTransition: too early, too late, or the return has begun.
    """
    record.journal.refresh()
    rolling_back.check_not_begun(record.journal, record.spec, "leave-out")
    tip, working = record.journal.tip_state, record.journal.working_state
    if tip is not State.ROLLED_BACK and working in STATES and not record.is_frozen():
        return
    is_early = working in (None, State.PLANNED, State.PRECHECK)
    raise IllegalTransition(
        f"topics cannot be left out of the way back in state {tip or 'not started'}",
        where=record.where(PHASE),
        next_step="add them to way_back.exclude in the spec: the plan is made without them"
        if is_early
        else "the return has begun, or the way back has ended: what goes back is decided",
    )


def named(record: MigrationRecord, names: Iterable[str]) -> list[TopicPlan]:
    """Return the topics of the way back with these names, on the new cluster or on the old one, ascending.

    Where topics are renamed, a name may be that of one topic on the new cluster and of another on the old one: the
    former is meant, as in the errors that advise to leave it out.

    :raises SpecInvalid: the way back has no such topic, or no other one.
    """
    plan = record.plan()
    by_name = {item.target_name: item for item in plan.topics} | {item.name: item for item in plan.topics}
    found: dict[str, TopicPlan] = {}
    for name in names:
        topic = by_name.get(name)
        if topic is None:
            why = plan.excluded_topics.get(name)
            raise SpecInvalid(
                f"topic {name} is not part of the way back{f': {why}' if why else ''}",
                where=record.where(PHASE, topic=name),
                next_step="`kafka-migration way-back status FILE` shows the partitions that are not copied",
            )
        found[topic.name] = topic
    if len(found) == len(plan.topics):
        raise SpecInvalid(
            "no topic would be left in the way back",
            where=record.where(PHASE),
            next_step="`kafka-migration way-back keep FILE` ends it and releases the old cluster",
        )
    return [found[name] for name in sorted(found)]


def facts(record: MigrationRecord, source: Cluster, target: Cluster, topics: list[TopicPlan]) -> list[dict[str, Any]]:
    """Return what is known of topics that would be left out, by partition. Queries both clusters.

    An end offset is None where it cannot be read; ``new_unread`` and ``old_unread`` of the topic say why. A topic that
    was deleted is one of the reasons to leave it out.

    ``group_offsets`` are those that this way back has written on the old cluster: nobody sets them back afterwards.
    """
    errors = copy_errors(record)
    written = left_there(record)
    new_ends, new_unread = _ends(source, {topic.name: topic for topic in topics})
    old_ends, old_unread = _ends(target, {topic.target_name: topic for topic in topics})
    return [
        {
            "topic": topic.name,
            "old_topic": topic.target_name,
            "new_unread": new_unread.get(topic.name, ""),
            "old_unread": old_unread.get(topic.target_name, ""),
            "partitions": [
                {
                    "partition": item.partition,
                    "from_offset": item.source_start_offset,
                    "new_end_offset": new_ends.get((topic.name, item.partition)),
                    "old_end_offset": old_ends.get((topic.target_name, item.partition)),
                    "error": errors.get((topic.name, item.partition), {}),
                }
                for item in topic.partitions
            ],
            "group_offsets": [item for item in written if item["topic"] == topic.target_name],
        }
        for topic in topics
    ]


def _ends(cluster: Cluster, topics: Mapping[str, TopicPlan]) -> tuple[dict[TopicPartition, int], dict[str, str]]:
    """Return the high watermarks of topics, by their names on a cluster, and why those of others cannot be read."""
    ends: dict[TopicPartition, int] = {}
    unread: dict[str, str] = {}
    for name, topic in sorted(topics.items()):
        try:
            gone = topics_gone.find_gone(cluster.admin, {name: ""})
            if gone:
                unread[name] = "it does not exist"
                continue
            ends |= cluster.wire.list_offsets([(name, item.partition) for item in topic.partitions], "latest")
        except HANDS_OFF:
            raise
        except MigrationError as error:
            unread[name] = error.what
    return ends, unread


def copy_errors(record: MigrationRecord) -> dict[TopicPartition, dict[str, Any]]:
    """Return the errors of partitions in the last reports of seed and tail: ``code`` and ``what``."""
    return {
        (str(item["topic"]), int(item["partition"])): {
            "code": str(item["error"].get("code", "")),
            "what": str(item["error"].get("what", "")),
        }
        for name in ("seed", "tail")
        for item in record.job_progress(name).get("partitions", [])
        if item.get("error")
    }


def leave_out(context: PhaseContext, topics: list[TopicPlan], *, by: str, code: str) -> PlanSupplement:
    """Take topics out of the plan; the next run of the seed or tail copies without them. The caller checked the code.

    :raises IllegalTransition: it is too late.
    """
    record = context.record
    check_allowed(record)
    number = len(record.journal.steps(steps.PLAN_SUPPLEMENTED)) + 1
    errors = copy_errors(record)
    reasons = {topic.name: _reason(topic, errors, by, iso(context.now())) for topic in topics}
    document = PlanSupplement(migration_id=record.migration_id, number=number, dropped=reasons)
    digest = document.digest()
    name = keys.supplement(number, digest)
    plan = record.plan()
    record.journal.check_holds()
    record.journal_store.put(record.key(name), document.canonical())
    record.journal.step(
        steps.PLAN_SUPPLEMENTED,
        key=str(number),
        details={
            "document": name,
            "digest": digest,
            "new_topics": [],
            "partitions": [],
            "dropped": reasons,
            "left_out": {
                "topics": sorted(reasons),
                "by": by,
                "code": code,
                "former_plan_digest": plan.digest(),
                "plan_digest": supplemented(plan, [document]).digest(),
            },
        },
        reason=f"{len(topics)} topics do not go back, by decision of {by}: {', '.join(sorted(reasons))}",
    )
    _stop_copying(record)
    return document


def _stop_copying(record: MigrationRecord) -> None:
    """Show it to a tail that runs elsewhere, which reads its job again in each slice; a new tail reads the plan."""
    job = record.job(TAIL)
    if job is not None:
        planned = copy_jobs.planned_partitions(record.spec, record.plan())
        without = job.model_copy(update={"lanes": follow.lanes_with(job, planned, {})})
        record.journal_store.put(copy_jobs.job_key(record, TAIL), without.canonical())


def _reason(topic: TopicPlan, errors: dict[TopicPartition, dict[str, Any]], by: str, at: str) -> str:
    text = f"left out of the way back by {by} at {at}"
    for item in topic.partitions:
        error = errors.get((topic.name, item.partition))
        if error is not None:
            return f"{text}: {partition_name((topic.name, item.partition))}: [{error['code']}] {error['what']}"
    return text


def left_out(record: MigrationRecord) -> dict[str, str]:
    """Return the topics that people have left out of a way back, with the reasons, ascending."""
    found = {
        name: str(entry.details["dropped"][name])
        for entry in record.journal.steps(steps.PLAN_SUPPLEMENTED)
        for name in entry.details.get("left_out", {}).get("topics", [])
    }
    return dict(sorted(found.items()))


def binding(record: MigrationRecord, topics: list[TopicPlan]) -> dict[str, Any]:
    """Return what the code for leaving topics out confirms, as data that changes only when the decision does."""
    errors = copy_errors(record)
    plan: Plan = record.plan()
    return {
        "kind": "leave_out",
        "migration_id": record.migration_id,
        "plan": plan.digest(),
        "topics": [topic.name for topic in topics],
        "errors": {
            partition_name((topic.name, item.partition)): errors[topic.name, item.partition]["code"]
            for topic in topics
            for item in topic.partitions
            if (topic.name, item.partition) in errors
        },
    }
