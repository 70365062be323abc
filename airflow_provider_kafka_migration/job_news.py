"""Looks whether there is something to do for a task whose Spark job runs elsewhere. It only reads, and holds no claim.

A task that waits without a slot is woken up by news, and else every quarter of an hour: each part of a task costs a
process and its log. News are partitions that fail, are stuck or have lost records, a driver that is silent, schema ids
that copiers ask for, and topics and partitions of the source that the plan does not have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from airflow_provider_kafka_migration.kafka.clock import elapsed_seconds
from airflow_provider_kafka_migration.migration import Migration
from airflow_provider_kafka_migration.planning.follow import compare
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.schemas.id_map_document import unanswered, wanted_ids
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.topics.topics_gone import mirrored_again

#: Between two looks at what the driver has reported: it rewrites that every few seconds.
PROGRESS_SECONDS = 30.0
#: Partitions that are stuck for less may go on by themselves, and a driver may be late on a busy machine.
NOTICE_SECONDS = 120.0


class JobNews:
    """What a task would find if it looked now. Close it after use.

    :param job: name of the job document.
    :param clock: seconds that only grow.
    """

    def __init__(self, migration: Migration, job: str, *, clock: Callable[[], float] = elapsed_seconds) -> None:
        self._migration = migration
        self._job = job
        self._clock = clock
        self._reading = ExitStack()
        self._context: PhaseContext | None = None
        self._progress_at = self._topics_at = float("-inf")
        self._trouble = self._topics = ""
        self._heartbeat: Any = None
        self._heard_at = clock()

    @classmethod
    def open(cls, spec: MigrationSpec, resolver: Resolver, job: str) -> JobNews:
        """Open without I/O."""
        return cls(Migration.open(spec, "job-news", resolver, actor=job), job)

    def check(self) -> str:
        """Return the news in a sentence; empty: there are none.

        The storage and the source are not asked each time. What was found last counts until then.

        :raises MigrationError: one of them did not answer.
        """
        if self._context is None:
            self._context = self._reading.enter_context(self._migration.reading())
        now = self._clock()
        if now - self._progress_at >= PROGRESS_SECONDS:
            self._trouble = self._look_at_progress(self._context, now)
            self._progress_at = now
        every = max(self._migration.spec.topology.refresh_interval.total_seconds(), PROGRESS_SECONDS)
        if self._follows_topics() and now - self._topics_at >= every:
            # Also after a failure: a source that is away is not asked each second.
            self._topics_at = now
            self._topics = _look_at_topics(self._context)
        return "; ".join(filter(None, (self._asked(self._context.record), self._trouble, self._topics)))

    def close(self) -> None:
        """Close the connections."""
        try:
            self._reading.close()
        finally:
            self._migration.close()

    def _follows_topics(self) -> bool:
        return self._job == "tail" and self._migration.spec.topology.follow_new

    def _asked(self, record: MigrationRecord) -> str:
        """Return how many ids copiers wait for: at each look, because their partitions stand still meanwhile."""
        if self._job != "tail" or not self._migration.spec.schemas.copies:
            return ""
        wanted = wanted_ids(record)
        count = len(unanswered(wanted, record.schema_id_map())) if wanted else 0
        return f"copiers ask for {count} schema ids" if count else ""

    def _look_at_progress(self, context: PhaseContext, now: float) -> str:
        document = context.record.job_progress(self._job)
        heartbeat = [document.get(name) for name in ("run", "seconds", "at")]
        if heartbeat != self._heartbeat:
            self._heartbeat, self._heard_at = heartbeat, now
        found = [
            f"{int(document.get(f'partitions_{name}', 0))} partitions {words}"
            for name, words in (("failed", "have failed"), ("went_back", "have lost records on the target"))
            if document.get(f"partitions_{name}")
        ]
        if document.get("partitions_stuck") and float(document.get("stuck_seconds", 0.0)) >= NOTICE_SECONDS:
            found.append("partitions are stuck")
        if self._job == "tail" and now - self._heard_at >= NOTICE_SECONDS:
            found.append("the driver is silent")
        return ", ".join(found)


def _look_at_topics(context: PhaseContext) -> str:
    context.journal.refresh()
    if not context.record.has_plan():
        return ""
    news = compare(context.spec, context.source, context.record.plan(), mirrored_again(context.record))
    names = {"new": sorted(news.new), "more partitions": sorted(news.grown), "gone": sorted(news.gone)}
    texts = [f"{what}: {_shown(found)}" for what, found in names.items() if found]
    return f"topics of the source differ from the plan ({'; '.join(texts)})" if texts else ""


def _shown(names: list[str]) -> str:
    """Return names for a line; of many, the first ones and what tells one list from another."""
    if len(names) <= 3:
        return ", ".join(names)
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:8]
    return f"{', '.join(names[:3])} and {len(names) - 3} more ({digest})"
