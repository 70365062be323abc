"""Amend the plan, visibly, with partitions that source topics have gained between plan and topology_copy.

A partition that is not in the plan would not be copied, so it is never left out silently. It joins the lightest lane,
and no planned partition moves. The amended plan has a new digest, which is journaled and which approvals refer to.
Partitions that appear later are added by the tail (``topology.follow_new``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from airflow_provider_kafka_migration.documents.plan import PartitionPlan, Plan, Severity, TopicPlan, Verdict
from airflow_provider_kafka_migration.errors import (
    IllegalTransition,
    PrecheckBlocked,
    Terminal,
    TopicRecreated,
    TopologyRefused,
)
from airflow_provider_kafka_migration.kafka.admin.topics import UNKNOWN_TOPIC_OR_PARTITION, TopicFacts
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.lanes.assignment import add_to_lanes
from airflow_provider_kafka_migration.planning.make import put_plan
from airflow_provider_kafka_migration.planning.verdicts import verdict_of
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext, Progress
from airflow_provider_kafka_migration.record.finding_codes import seen_with_subject
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.spec import MigrationSpec

PHASE = "topology_copy"
_TRIES, _PAUSE_SECONDS = 6, 0.5


def follow(context: PhaseContext, plan: Plan) -> Plan:
    """Return the plan with partitions that the source's topics have gained; a changed plan is written and journaled.

    Idempotent: an amended plan already has them.

    :raises TopicRecreated: a topic is no longer the planned one, or has fewer partitions.
    :raises TopologyRefused: there are new partitions and ``topology.follow_new`` is false.
    :raises Terminal: a planned topic is gone.
    """
    facts = _describe(context.source, [topic.name for topic in plan.topics])
    for topic in plan.topics:
        _check_same(context.record, topic, facts[topic.name])
    grown = {
        topic.name: (len(topic.partitions), len(facts[topic.name].partitions))
        for topic in plan.topics
        if len(facts[topic.name].partitions) > len(topic.partitions)
    }
    if not grown:
        return plan
    if not context.spec.topology.follow_new:
        raise TopologyRefused(
            f"{len(grown)} source topics have more partitions than the plan: {', '.join(list(grown)[:10])}",
            where=context.where(PHASE, cluster="source", topic=next(iter(grown))),
            next_step="set topology.follow_new: true, so that they are added; then clear topology_copy",
            details={"topics": {name: list(counts) for name, counts in grown.items()}},
        )
    amended = _amended(context.spec, context.source, plan, grown)
    added = sum(now - planned for planned, now in grown.values())
    context.journal.step(
        steps.PARTITIONS_FOLLOWED,
        details={
            "topics": {name: list(counts) for name, counts in grown.items()},
            "former_digest": plan.digest(),
            "digest": amended.digest(),
        },
        reason=f"{added} partitions that appeared since the plan are added",
    )
    # Journaled first: an amended plan without its entry would be a plan that was never checked.
    put_plan(context.record, context.source, context.target, amended)
    context.progress(Progress(PHASE, f"{added} partitions appeared on the source since the plan; they are added"))
    return amended


def checked_digest(record: MigrationRecord, plan: Plan) -> str:
    """Digest of the plan that the precheck saw: amendments are undone one after the other.

    So are decisions to leave topics out of a way back, which change nothing about the others.
    """
    digest = plan.digest()
    for entry in reversed(record.journal.steps()):
        if entry.step == steps.PARTITIONS_FOLLOWED and entry.details["digest"] == digest:
            digest = str(entry.details["former_digest"])
        elif entry.step == steps.PLAN_SUPPLEMENTED:
            left_out = entry.details.get("left_out", {})
            if left_out.get("plan_digest") == digest:
                digest = str(left_out["former_plan_digest"])
    return digest


def _describe(source: Cluster, names: list[str]) -> dict[str, TopicFacts]:
    """Describe the topics. Unknown ones are requested again: a broker that has just started knows none."""
    facts = source.admin.describe_topics(names)
    for _ in range(_TRIES):
        again = [name for name, item in facts.items() if item.error is not None and item.error.retriable]
        if not again:
            break
        time.sleep(_PAUSE_SECONDS)
        facts.update(source.admin.describe_topics(again))
    return facts


def _check_same(record: MigrationRecord, topic: TopicPlan, now: TopicFacts) -> None:
    where = record.where(PHASE, cluster="source", topic=topic.name)
    if now.error is not None:
        if now.error.code != UNKNOWN_TOPIC_OR_PARTITION:
            raise now.error.exception("a planned topic cannot be described", where, operation="Describe on Topic")
        raise Terminal(
            f"a planned topic is no longer on the source: {now.error.name}",
            where=where,
            next_step="find out who deleted it; exclude it in a new migration, or restore it",
        )
    if topic.topic_id and now.topic_id and topic.topic_id != now.topic_id:
        what = f"the source topic was deleted and created again (id {now.topic_id}, planned {topic.topic_id})"
    elif len(now.partitions) < len(topic.partitions):
        what = f"the source topic has {len(now.partitions)} partitions, but {len(topic.partitions)} were planned"
    else:
        return
    raise TopicRecreated(what, where=where, next_step="start a new migration for this topic: it holds other records")


def _amended(spec: MigrationSpec, source: Cluster, plan: Plan, grown: Mapping[str, tuple[int, int]]) -> Plan:
    keys = [(name, number) for name, (planned, now) in grown.items() for number in range(planned, now)]
    wire = source.wire
    starts, stable, high = (wire.list_offsets(keys, which) for which in ("earliest", "stable", "latest"))
    why = {topic.name: why_transactional(topic) for topic in plan.topics}
    found = {key: _partition(spec, key, (starts[key], stable[key], high[key]), why[key[0]]) for key in keys}
    topics = [
        topic.model_copy(
            update={
                "partitions": [
                    *topic.partitions,
                    *(found[topic.name, number] for number in range(*grown.get(topic.name, (0, 0)))),
                ]
            }
        )
        for topic in plan.topics
    ]
    notes = [
        f"{name} has gained {now - planned} partitions since it was planned ({planned} -> {now})"
        for name, (planned, now) in grown.items()
    ]
    return plan.model_copy(
        update={
            "topics": topics,
            "lanes": add_to_lanes(plan.lanes, dict.fromkeys(keys, -1)),
            "notes": sorted({*plan.notes, *notes}),
        }
    )


def why_transactional(topic: TopicPlan) -> str:
    """Why a topic cannot use compare-and-append; the reason also applies to its new partitions."""
    return next((item.reason for item in topic.partitions if item.verdict is Verdict.TRANSACTIONAL), "")


def _partition(spec: MigrationSpec, key: TopicPartition, offsets: tuple[int, int, int], why: str) -> PartitionPlan:
    """Plan a new partition: its size is not queried, and its holes are not sampled.

    :param offsets: log start, last stable offset, high watermark.
    """
    start, stable, high = offsets
    verdict, reason = verdict_of(spec, start, 0, -1, why, topic=key[0])
    return PartitionPlan(
        partition=key[1],
        log_start_offset=start,
        end_offset=stable,
        high_watermark=high,
        size_bytes=-1,
        verdict=verdict,
        reason=f"{reason}; appeared after the plan",
        source_start_offset=start,
        target_start_offset=start if verdict is Verdict.EQUAL else 0,
    )


def check_is_of(record: MigrationRecord, plan: Plan) -> None:
    """Refuse a plan that did not pass its precheck, except for partitions that topology_copy itself has added.

    Topics that a person has left out since do not count.

    :raises IllegalTransition: the plan was made after the precheck.
    :raises PrecheckBlocked: the precheck found blockers, and somebody let the migration go on without it.
    """
    checked = record.precheck()
    if checked is None or checked.plan_digest != checked_digest(record, plan):
        raise IllegalTransition(
            "the plan is newer than its precheck",
            where=record.where(PHASE),
            next_step="clear precheck and everything below it",
        )
    blockers = [item for item in checked.findings if item.severity is Severity.BLOCKER]
    if blockers:
        raise PrecheckBlocked(
            f"the precheck of this plan ended with {len(blockers)} blockers, the first is {blockers[0].code}: "
            f"{seen_with_subject(blockers[0].model_dump())}",
            where=record.where(PHASE),
            next_step=f"{blockers[0].fix}; then clear precheck and everything below it",
        )
