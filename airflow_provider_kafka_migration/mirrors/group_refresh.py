"""Offsets of idle groups on a mirror's target are written again before they expire.

Nobody has joined these groups there, so the target forgets an offset ``offsets.retention.minutes`` after its commit. A
sync that runs notices that and writes it again; but a mirror that is promoted syncs no more, and its consumers may
start weeks later. So each offset is younger than half of that time while a mirror runs, also after a pause.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from airflow_provider_kafka_migration.documents.cutover import GroupsResult
from airflow_provider_kafka_migration.errors import PhaseOver
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.times import iso, parse_iso
from airflow_provider_kafka_migration.state import State

#: Kafka's default: seven days.
DEFAULT_MINUTES = 7 * 24 * 60
_CONFIG = "offsets.retention.minutes"
#: The id of no group.
_ANY = ""


def due(context: PhaseContext) -> Callable[[str], bool]:
    """Return which groups are to be written again now: all, those that failed last time, or none."""
    last = context.journal.find_step(steps.GROUPS_REFRESHED)
    if last is None:
        return lambda _group: True
    age_seconds = (context.now() - parse_iso(last.details["all_at"])).total_seconds()
    if age_seconds >= float(last.details["retention_minutes"]) * 60 / 2:
        return lambda _group: True
    return frozenset(last.details["failed"]).__contains__


def note(context: PhaseContext, refreshed: Callable[[str], bool], result: GroupsResult) -> None:
    """Journal a pass that has written groups again, with those that failed: they are written by the next one.

    :param refreshed: what :func:`due` has returned for it.
    """
    last = context.journal.find_step(steps.GROUPS_REFRESHED)
    failed = sorted(item.group for item in result.groups if refreshed(item.group) and item.failures)
    details: dict[str, Any] = {"failed": failed}
    if last is None or refreshed(_ANY):
        details |= {"all_at": iso(context.now()), "retention_minutes": retention_minutes(context)}
    elif failed == last.details["failed"]:
        return
    else:
        details |= {name: last.details[name] for name in ("all_at", "retention_minutes")}
    with suppress(PhaseOver):
        context.journal.step(steps.GROUPS_REFRESHED, details=details, only_in={State.SEED, State.TAIL})


def retention_minutes(context: PhaseContext) -> int:
    """Read for how long the target keeps offsets; its default if it does not tell."""
    admin = context.target.admin
    value = admin.broker_configs(admin.facts().brokers[0]).get(_CONFIG)
    return int(value) if value else DEFAULT_MINUTES
