"""Precheck of adopted partitions: whether the boundary that the plan found still holds, and what was left below it."""

from __future__ import annotations

import time
from collections.abc import Iterator

from airflow_provider_kafka_migration.adoption.boundary import forward_record, transactional_partitions
from airflow_provider_kafka_migration.adoption.last_records import LogEnd, read_log_ends
from airflow_provider_kafka_migration.documents.adoption import AdoptedPartition, Adoption
from airflow_provider_kafka_migration.documents.copy import ProducerIds
from airflow_provider_kafka_migration.documents.plan import Finding, Plan
from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.kafka.admin.producers import PartitionProducers
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.finding_codes import finding, some

#: In place of the codes' own advice: whatever is on the old cluster's topic is never to be moved or deleted.
_OLD_CLUSTER = (
    "find out who has written to, deleted or truncated this topic on the old cluster, and stop them, but delete "
    "nothing there; copy what they wrote to the new cluster if it matters, exclude the topic (way_back.exclude), and "
    "clear plan"
)


def check_adoption(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Report partitions that cannot be adopted, moved log ends, and what another copier did below the boundary."""
    adoption = context.record.adoption()
    if adoption is None or context.spec.adopt is None:
        return
    fix = _OLD_CLUSTER if context.spec.is_way_back else ""
    for item in adoption.refused:
        yield finding("B120", item.reason, subject=f"{item.topic}-{item.partition}", fix=fix)
    left_out = [f"{item.topic}-{item.partition}: {item.reason}" for item in adoption.left_out]
    if left_out:
        yield finding("W125", some(left_out), subject=adoption.adopted_from)
    yield from _in_transactions(context, plan, adoption)
    yield from _moved(context, adoption, context.spec.adopt.stable_window.total_seconds())
    yield from _lost_fences(context, adoption)
    yield from _left_below(adoption)
    if adoption.partitions:
        compared = sum(item.start.compared_records for item in adoption.partitions)
        seen = f"{len(adoption.partitions)} partitions, {compared} records before their boundaries are equal"
        yield finding("I124", seen, subject=adoption.adopted_from)


def _in_transactions(context: PhaseContext, plan: Plan, adoption: Adoption) -> Iterator[Finding]:
    """Report the topics that stay away because the migration before has copied them in transactions.

    The plan shows only that a pattern of the derived spec excludes them.
    """
    if not adoption.boundary_of:
        return
    known = transactional_partitions(forward_record(context, adoption.boundary_of))
    topics = sorted({topic for topic, _ in known} - {topic.name for topic in plan.topics})
    if topics:
        seen = f"copied in transactions next to other producers, so no map leads back: {some(topics)}"
        fix = "the other topics go back; keep these on the cluster that they are on, or move their clients without them"
        yield finding("W125", seen, subject=adoption.boundary_of, fix=fix, topics=topics)


def _moved(context: PhaseContext, adoption: Adoption, window_seconds: float) -> Iterator[Finding]:
    """Report partitions whose target log does not end at the boundary, now and after the window."""
    starts = {(item.target_topic, item.partition): item for item in adoption.partitions}
    reported: set[TopicPartition] = set()
    for pause in (0.0, window_seconds):
        if pause:
            time.sleep(pause)
        for key, end in read_log_ends(context.target.wire, starts).items():
            why = _why(end, starts[key])
            if why and key not in reported:
                reported.add(key)
                fix = _OLD_CLUSTER if context.spec.is_way_back else ""
                yield finding("B121", why, subject=f"{key[0]}-{key[1]}", fix=fix)


def _why(end: LogEnd | MigrationError, item: AdoptedPartition) -> str:
    return end.what if isinstance(end, MigrationError) else end.why_not_at(item.start.target_offset)


def _lost_fences(context: PhaseContext, adoption: Adoption) -> Iterator[Finding]:
    """Report partitions that clients write to, and that no longer keep out the copiers of the migration before.

    Leaders forget a fence ``producer.id.expiration.ms`` after its marker, and when a log was emptied to its end and its
    broker restarted.
    """
    if not adoption.boundary_of:
        return
    record = forward_record(context, adoption.boundary_of)
    fence = record.fence()
    if fence is None or not record.has_producer_ids():
        return
    ids = record.producer_ids()
    keys = {(item.topic, item.partition) for item in adoption.partitions} & fence.markers.keys()
    if not keys:
        return
    found = context.source.admin.producers(keys)
    reasons = {key: _lost_fence(found.get(key), ids) for key in sorted(keys)}
    lost = [f"{topic}-{partition}: {reason}" for (topic, partition), reason in reasons.items() if reason]
    if lost:
        yield finding("W126", some(lost), subject=adoption.boundary_of)


def _lost_fence(found: PartitionProducers | None, ids: ProducerIds) -> str:
    """Return why a partition may accept a record of the former copiers; empty: it refuses them."""
    if found is None:
        return "not checked, its broker cannot describe producers"
    if found.error is not None:
        return f"not checked, {found.error.name}"
    for state in found.producers:
        if state.producer_id == ids.data_producer_id:
            fenced = state.producer_epoch > ids.data_producer_epoch
            return "" if fenced else f"its leader has epoch {state.producer_epoch}, that of the copiers"
    return "its leader has forgotten the fence"


def _left_below(adoption: Adoption) -> Iterator[Finding]:
    names = {"duplicates": "twice", "aborted_records": "aborted", "missing": "missing"}
    for item in adoption.partitions:
        counts = {text: getattr(item.start.earlier, name) for name, text in names.items()}
        found = [f"{count} {text}" for text, count in counts.items() if count > 0]
        if found:
            yield finding(
                "W122", f"records on the target: {', '.join(found)}", subject=f"{item.topic}-{item.partition}"
            )
    notes = {f"{item.topic}-{item.partition}": item.start.note for item in adoption.partitions if item.start.note}
    if notes:
        noted = [f"{name}: {note}" for name, note in notes.items()]
        yield finding("W123", some(noted), subject=adoption.adopted_from, notes=notes)
