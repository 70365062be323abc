"""Records larger than the copy-time limit: ``max.message.bytes`` may have been lowered after they were written.

The copy stops at such a record and reports its size. The next run of the task raises the topic's limit to that size
before it copies on, up to what one request to the brokers may hold; the final config stays that of the plan.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from airflow_provider_kafka_migration.errors import RecordTooLarge
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.topics import copy_settings, target_topics
from airflow_provider_kafka_migration.topics.recopy import STATES

log = logging.getLogger(__name__)

#: The header of a batch, and what compression by another release may add.
_SLACK_BYTES = 64 * 1024
#: What the rest of a request takes at most.
_REQUEST_BYTES = 1024 * 1024
_REQUEST_LIMIT = "socket.request.max.bytes"
_DEFAULT_REQUEST_LIMIT_BYTES = 100 * 1024 * 1024


def make_room(context: PhaseContext, phase: str) -> list[str]:
    """Raise the copy-time limit of topics at whose records the phase's last job has stopped; return their names.

    A record that no request can hold, or a limit that the target refuses, changes nothing: the copy names the record
    again.

    :raises MigrationError: the target does not answer.
    """
    record = context.record
    needed = _needed(record, record.job_progress(phase)) if context.journal.working_state in STATES else {}
    if not needed:
        return []
    plan = record.plan()
    known = {topic.target_name for topic in plan.topics if not topic.merged}
    largest = _largest(context)
    raised = {
        name: size
        for name, size in sorted(needed.items())
        if name in known and copy_settings.largest_batch_bytes(record, name) < size <= largest
    }
    changes = {name: {"max.message.bytes": str(size)} for name, size in raised.items()}
    answers = context.target.admin.alter_topic_configs(changes, validate_only=True) if changes else {}
    for name, error in sorted(answers.items()):
        if error is not None:
            log.warning("the target refuses max.message.bytes=%s for topic %s: %s", raised.pop(name), name, error)
    if not raised:
        return []
    record.journal.check_holds()
    record.journal.step(steps.LARGE_BATCHES, details={"batch_bytes": raised})
    part = plan.model_copy(update={"topics": [topic for topic in plan.topics if topic.target_name in raised]})
    settings = copy_settings.save(record, part, target_topics.read_presence(record, context.target, part))
    copy_settings.apply_configs(
        record, context.target, copy_settings.in_force(record, context.target, settings, raised)
    )
    return sorted(raised)


def _needed(record: MigrationRecord, progress: Mapping[str, Any]) -> dict[str, int]:
    """Return the limit that the stopped partitions need, by target topic."""
    partitions, found = record.partitions(), dict[str, int]()
    for row in progress.get("partitions", ()):
        item, error = partitions.get((str(row["topic"]), int(row["partition"]))), row.get("error") or {}
        size = (error.get("details") or {}).get("batch_bytes")
        if item is not None and size and error.get("code") == RecordTooLarge.code:
            found[item.target_topic] = max(found.get(item.target_topic, 0), int(size) + _SLACK_BYTES)
    return found


def _largest(context: PhaseContext) -> int:
    admin = context.target.admin
    value = admin.broker_configs(admin.facts().brokers[0]).get(_REQUEST_LIMIT)
    return int(value or _DEFAULT_REQUEST_LIMIT_BYTES) - _REQUEST_BYTES
