"""Decide whether a planned topic is gone from the source. One broker's answer is not evidence of that.

A broker that has just started, or that is cut off from its controller, does not know all existing topics. Without
Describe a principal sees no topic (asked for by name: TOPIC_AUTHORIZATION_FAILED), and an answer may be cut short. So a
topic counts as gone only when *every* broker of the cluster, asked for it by name, answers that there is no such topic,
or one with another id; for a deletion several times in a row. Any other answer decides nothing: the next check asks
again, and a copier that cannot read the topic in the meantime reports that error.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from airflow_provider_kafka_migration.documents.copy import CopyPartition
from airflow_provider_kafka_migration.errors import (
    TopicRecreated,
    Transient,
)
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.admin.topics import TopicFacts, TopicsAdmin
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.record.record import MigrationRecord

PHASE = "tail"

log = logging.getLogger(__name__)

#: A topic counts as deleted when all brokers have said so this many times in a row.
LOOKS = 4
PAUSE_SECONDS = 1.0

_Answers = Mapping[int, Mapping[str, TopicFacts] | Transient]


class _Says(Enum):
    """One broker's answer about a planned topic."""

    PRESENT = "it is there"
    DELETED = "it was deleted on the source"
    ANOTHER = "it was deleted and created again on the source"
    NOTHING = "nothing"


def why_suspect(planned_id: str, facts: TopicFacts) -> str:
    """Why a topic may be gone according to one broker; empty if it exists, or if that broker cannot tell."""
    said = _says(planned_id, facts)
    return _reason(planned_id, [facts]) if said in (_Says.DELETED, _Says.ANOTHER) else ""


def find_gone(admin: TopicsAdmin, planned: Mapping[str, str]) -> dict[str, str]:
    """Return topics that are no longer the planned ones, with the reason; asks all brokers about suspects.

    :param planned: topic ids by name; an empty id (brokers before 2.8) matches any topic.
    :raises Transient: no broker of the cluster answers.
    """
    described = admin.describe_topics(sorted(planned))
    return confirm(admin, planned, [name for name, facts in described.items() if why_suspect(planned[name], facts)])


def confirm(admin: TopicsAdmin, planned: Mapping[str, str], suspects: Iterable[str]) -> dict[str, str]:
    """Return, of topics that one broker reports as gone, those that all brokers report as gone, with the reason."""
    gone: dict[str, str] = {}
    names = sorted(suspects)
    for look in range(LOOKS):
        if not names:
            break
        if look:
            time.sleep(PAUSE_SECONDS)
        answers = admin.describe_topics_by_broker(names)
        found = {name: _judge(name, planned[name], answers) for name in names}
        gone.update({name: why for name, why in found.items() if why is not None and why != _Says.DELETED.value})
        names = [name for name in names if found[name] == _Says.DELETED.value]
    return dict(sorted({**gone, **dict.fromkeys(names, _Says.DELETED.value)}.items()))


def _judge(name: str, planned_id: str, answers: _Answers) -> str | None:
    """Why a topic is gone by the answers of all brokers; None if one of them does not confirm it."""
    for broker_id, answer in sorted(answers.items()):
        facts = None if isinstance(answer, Transient) else answer.get(name)
        said = _Says.NOTHING if facts is None else _says(planned_id, facts)
        if said in (_Says.PRESENT, _Says.NOTHING):
            what = str(answer) if isinstance(answer, Transient) else facts.error if facts is not None else "no answer"
            log.warning(
                "%s: another broker reports it as gone; broker %s does not: %s",
                name,
                broker_id,
                said.value if said is _Says.PRESENT else what,
            )
            return None
    described = [answer[name] for answer in answers.values() if not isinstance(answer, Transient)]
    return _reason(planned_id, described) if described else None


def _says(planned_id: str, facts: TopicFacts) -> _Says:
    if facts.error is not None:
        is_unknown = facts.error.code == error_codes.UNKNOWN_TOPIC_OR_PARTITION
        return _Says.DELETED if is_unknown else _Says.NOTHING
    if planned_id and facts.topic_id and facts.topic_id != planned_id:
        return _Says.ANOTHER
    return _Says.PRESENT


def _reason(planned_id: str, described: Iterable[TopicFacts]) -> str:
    ids = sorted({facts.topic_id for facts in described if facts.error is None})
    return f"{_Says.ANOTHER.value} (id {', '.join(ids)}, planned {planned_id})" if ids else _Says.DELETED.value


def was_created_again(reason: str) -> bool:
    """Whether a reason of :func:`confirm` says that a topic of the same name is there."""
    return reason.startswith(_Says.ANOTHER.value)


def check_none_gone(record: MigrationRecord) -> None:
    """Raise for a topic that the tail has found deleted or created again, unless the policy is to drop it.

    :raises TopicRecreated: its partitions can no longer be copied.
    """
    record.journal.refresh()
    gone = record.journal.steps(steps.SOURCE_TOPIC_GONE)
    planned = {topic.name for topic in record.plan().topics} if gone else set()
    again = mirrored_again(record)
    for entry in gone:
        name = str(entry.details["topic"])
        if name in planned and entry.seq > again.get(name, -1):
            raise _gone_error(record, name, dict(entry.details))


def mirrored_again(record: MigrationRecord) -> dict[str, int]:
    """Source topics whose remote topic was deleted by approval, with the journal's number of the last deletion.

    What the source has under such a name is a new topic, if it has one. A deletion that was begun does not count, nor
    one from before the topic was dropped again: the old copy is still there, and the new topic's records must not
    follow it.
    """
    found: dict[str, int] = {}
    for entry in record.journal.steps():
        if entry.step == steps.REMOTE_TOPIC_DELETED:
            found[str(entry.details["topic"])] = entry.seq
        elif entry.step == steps.REMOTE_TOPIC_DELETING:
            found.pop(str(entry.details["topic"]), None)
        elif entry.step == steps.PLAN_SUPPLEMENTED:
            for name in entry.details.get("dropped", {}):
                found.pop(str(name), None)
    return found


def _gone_error(record: MigrationRecord, name: str, details: dict[str, Any]) -> TopicRecreated:
    return TopicRecreated(
        f"source topic {name}: {details['why']}",
        where=record.where(PHASE, cluster="source", topic=name),
        next_step="to continue without it, set topology.on_topic_deleted: note and clear tail (its copy on the "
        "target stays)"
        + ("" if record.spec.mirror.merges else "; or delete it on the target and start a new migration"),
        details=details,
    )


def check_ids(record: MigrationRecord, source: Cluster, partitions: Iterable[CopyPartition]) -> set[str]:
    """Compare topic ids with the source's metadata now, independently of the tail's checks.

    :returns: topics that are gone and that the policy drops.
    :raises TopicRecreated: a topic is gone, or was created again (``on_topic_deleted: stop``).
    """
    planned = {item.topic: item.topic_id for item in partitions}
    gone = find_gone(source.admin, planned)
    if gone and record.spec.topology.on_topic_deleted == "stop":
        name = min(gone)
        raise _gone_error(record, name, {"topic": name, "why": gone[name], "policy": "stop"})
    return set(gone)
