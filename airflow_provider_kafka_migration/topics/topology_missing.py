"""Target topics that somebody has deleted since topology_copy made them: made again before they are copied again.

Whoever did it, perhaps because an error told them to, runs the phase again and means the topic to be copied from the
source's log start. The migration itself deletes a topic only by policy (:mod:`~.recopy`).
"""

from __future__ import annotations

import logging
from typing import Final

from airflow_provider_kafka_migration.compare.proven import forget_proven
from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.record import overtaken
from airflow_provider_kafka_migration.record.context import PhaseContext, Progress
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics import bring

log = logging.getLogger(__name__)

MADE_AGAIN_DONE: Final = "topics_made_again_done"
#: Topics that are deleted by policy, by name with the id that each had then (:mod:`~.recopy`).
RECOPIED: Final = "topics_recopied"
#: Before the seed topology_copy makes topics; from the freeze on a missing topic is a failure of the cutover.
STATES = frozenset({State.SEED, State.TAIL, State.DRAIN_READY})


def make_missing(context: PhaseContext, phase: str, job: CopyJob) -> list[str]:
    """Make the target topics of a job that are not there; their names, ascending.

    What was begun and not ended, because the process died in between, is done again. So is a topic that was deleted by
    policy and that is there again: whoever made it (brokers do so for anybody who asks for it), it is treated as any
    topic that topology_copy finds. All other topics are left as they are. A topic that may not be described is left to
    the copiers, who say so.

    :raises ForeignData: a topic that was deleted by policy was made by somebody else since, and has data.
    :raises MigrationError: a topic cannot be made.
    """
    if context.journal.working_state not in STATES:
        return []
    by_target = {item.target_topic: item.topic for item in job.partitions}
    described = context.target.admin.describe_topics(sorted(by_target))
    missing = {
        name
        for name, facts in described.items()
        if facts.error is not None and facts.error.code == error_codes.UNKNOWN_TOPIC_OR_PARTITION
    }
    begun, recopied = _begun(context)
    replaced = {
        name
        for name, facts in described.items()
        if facts.error is None and facts.topic_id and facts.topic_id != recopied.get(name, facts.topic_id)
    }
    todo = sorted((missing | begun | replaced) & by_target.keys())
    if not todo:
        return []
    new = sorted(missing | (replaced - begun))
    reason = f"{len(todo)} target topics were deleted and are made again; the first is {todo[0]}"
    log.warning(reason)
    context.progress(Progress(phase, reason))
    context.journal.check_holds()
    if new:
        context.journal.step(overtaken.MADE_AGAIN, key=phase, details={"topics": new}, reason=reason)
    sources = {by_target[name] for name in todo}
    keys = {item.key for item in job.partitions if item.topic in sources}
    # What was proven, was so of the topic that is gone.
    for topic, partition in sorted(keys):
        forget_proven(context.journal_store, context.migration_id, topic, partition)
    bring.make_new_partitions(context, context.load_plan(), keys)
    context.journal.step(
        MADE_AGAIN_DONE, key=phase, details={"topics": todo}, reason=f"{len(todo)} target topics are there again"
    )
    return todo


def _begun(context: PhaseContext) -> tuple[set[str], dict[str, str]]:
    """Of which topics nobody has journaled that they are complete: those that were to be made again, and those that
    were to be deleted by policy, with the ids of the topics that were meant."""
    begun: set[str] = set()
    recopied: dict[str, str] = {}
    for entry in context.journal.steps():
        if entry.step == overtaken.MADE_AGAIN:
            begun.update(str(name) for name in entry.details["topics"])
        elif entry.step == RECOPIED:
            recopied.update({str(name): str(value) for name, value in entry.details["topics"].items()})
        elif entry.step == MADE_AGAIN_DONE:
            begun.difference_update(str(name) for name in entry.details["topics"])
            for name in entry.details["topics"]:
                recopied.pop(str(name), None)
    return begun, recopied
