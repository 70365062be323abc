"""The callback of a missed deadline: it runs the notifier of the spec in the triggerer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow_provider_kafka_migration.deadline_watch import Watched
from airflow_provider_kafka_migration.notifications.migration import context_without_task, load_notifier
from airflow_provider_kafka_migration.spec import MigrationSpec, parse_spec

log = logging.getLogger(__name__)

#: Id of the only task of a watch's DAG.
TASK_ID = "watch"

#: ``migration_event`` of the notifier.
EVENTS: Mapping[Watched, str] = {"freeze": "freeze_deadline", "lag": "lag_deadline"}
_TEXTS: Mapping[Watched, str] = {
    "freeze": "producers are still frozen, or it is not known whether they are",
    "lag": "the lag is still above its limit ({limit}), or it is not known",
}


async def notify_missed(
    *, spec: dict[str, Any], watched: Watched, within_seconds: float, limit: str = "", context: dict[str, Any]
) -> str:
    """Run the spec's notifier, whatever ``notifications.events`` says, and return the line for people.

    :param within_seconds: the interval of the deadline.
    :param limit: the limit of a lag, for people.
    :param context: what Airflow gives to callbacks of deadlines: ``dag_run`` and ``deadline``.
    :raises SpecInvalid: the spec names no usable notifier. Airflow keeps errors in the state of the callback.
    """
    parsed = parse_spec(spec, recorded=True)
    text = missed_message(parsed, watched, within_seconds, limit)
    log.warning("%s", text)
    given = _notifier_context(context, parsed, watched, text)
    # Notifiers block, and the triggerer must not. They are called as at all other events.
    await asyncio.to_thread(lambda: load_notifier(parsed)(given))
    return text


def missed_message(spec: MigrationSpec, watched: Watched, within_seconds: float, limit: str = "") -> str:
    """Return one line for people."""
    text = _TEXTS[watched].format(limit=limit)
    return f"Kafka {spec.kind} {spec.migration_id}: after {timedelta(seconds=within_seconds)} {text}"


def _notifier_context(context: Mapping[str, Any], spec: MigrationSpec, watched: Watched, text: str) -> dict[str, Any]:
    """Return the context of the notifier: that of Airflow's callbacks of deadlines, and what templates need."""
    run = dict(context.get("dag_run") or {})
    dag_id, run_id = str(run.get("dag_id", "")), str(run.get("dag_run_id", ""))
    made = context_without_task(spec, EVENTS[watched], text, task_id=TASK_ID, dag_id=dag_id, run_id=run_id)
    return {**context, **made, "dag_run": {**run, "run_id": made["run_id"]}}
