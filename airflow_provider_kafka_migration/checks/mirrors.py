"""Precheck of mirrors: topics of heartbeats that are taken for topics like any other."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_kafka_migration.documents.plan import Finding, Plan
from airflow_provider_kafka_migration.errors import ForeignData
from airflow_provider_kafka_migration.mirror_maker.formats import Heartbeat
from airflow_provider_kafka_migration.mirror_maker.state_writer import StateLog
from airflow_provider_kafka_migration.naming.policies import HEARTBEATS
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.finding_codes import finding
from airflow_provider_kafka_migration.spec import MigrationSpec

#: How many of the last offsets of a topic are read.
_LAST = 100


def check_heartbeats(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Report topics of heartbeats that are mirrored as records, because an alias in front of them is not known.

    Such a topic gets a record each second for ever, so the source's ends never stand still, and no promotion ends.
    """
    spec = context.spec
    if spec.kind != "mirror":
        return
    for topic in plan.topics:
        unknown = _unknown_aliases(spec, topic.name)
        seen = _seen(context, topic.name) if unknown else ""
        if seen:
            fix = (
                f"add {', '.join(unknown)} to mirror.known_aliases of this flow and of all flows behind it; if it is a "
                "topic of your own and clients stop writing to it before a promotion, accept the warning (waive)"
            )
            yield finding("W044", seen, subject=topic.name, fix=fix, aliases=unknown)


def _unknown_aliases(spec: MigrationSpec, topic: str) -> list[str]:
    """Return what would have to be aliases for the topic to be one of heartbeats; nothing if its name is another."""
    *parts, name = topic.split(spec.mirror.separator)
    unknown = sorted(set(parts) - spec.mirror.aliases)
    return unknown if name == HEARTBEATS and all(parts) else []


def _seen(context: PhaseContext, topic: str) -> str:
    """Return what the last records say; empty: they are no heartbeats.

    :raises MigrationError: they cannot be read.
    """
    try:
        values = StateLog(context.source.wire, topic, last=_LAST).read().values
    except ForeignData:
        return ""  # heartbeats have keys and values
    if not values:
        return "it is called like a topic of heartbeats, and has no records that could show what it is"
    try:
        beats = [Heartbeat.decode(key, value) for key, value in values.items()]
    except ValueError:
        return ""
    flows = sorted({f"{beat.source_alias} -> {beat.target_alias}" for beat in beats})
    return f"heartbeats of {', '.join(flows)} are mirrored as records, so the source never stands still"
