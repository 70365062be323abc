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

from airflow_provider_kafka_migration.errors import MigrationError
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
_SILENT = "the driver is silent"


class JobNews:
    """What a task would find if it looked now. Close it after use.

    Its connections may be closed and opened again: what was found and when survives that.

    :param job: name of the job document.
    :param known: the news that the task knows already.
    :param clock: seconds that only grow.
    """

    def __init__(self, job: str, *, known: str = "", clock: Callable[[], float] = elapsed_seconds) -> None:
        self._job = job
        self._clock = clock
        self._migration: Migration | None = None
        self._reading = ExitStack()
        self._context: PhaseContext | None = None
        self._progress_at = self._topics_at = float("-inf")
        self._trouble = self._topics = ""
        self._heartbeat: Any = None
        #: A driver that was silent stays so until it is heard: else the same silence were news again and again.
        self._heard_at = float("-inf") if _SILENT in known else clock()
        #: Why the source could not be asked the last time; empty: it could. All other news are found nevertheless.
        self.failure = ""

    @property
    def is_open(self) -> bool:
        """Whether there are connections."""
        return self._migration is not None

    def open(self, spec: MigrationSpec, resolver: Resolver) -> None:
        """Open without I/O."""
        self._migration = Migration.open(spec, "job-news", resolver, actor=self._job)

    def check(self) -> str:
        """Return the news in a sentence; empty: there are none.

        The storage and the source are not asked each time. What was found last counts until then.

        :raises MigrationError: the storage did not answer.
        """
        assert self._migration is not None
        if self._context is None:
            self._context = self._reading.enter_context(self._migration.reading())
        spec, now = self._migration.spec, self._clock()
        if now - self._progress_at >= PROGRESS_SECONDS:
            self._trouble = self._look_at_progress(self._context, now)
            self._progress_at = now
        every = max(spec.topology.refresh_interval.total_seconds(), PROGRESS_SECONDS)
        if self._job == "tail" and spec.topology.follow_new and now - self._topics_at >= every:
            # Also after a failure: a source that is away is not asked each second.
            self._topics_at, self.failure = now, ""
            try:
                self._topics = _look_at_topics(self._context)
            except MigrationError as error:
                self.failure = str(error)
        return "; ".join(filter(None, (self._asked(spec, self._context.record), self._trouble, self._topics)))

    def close(self) -> None:
        """Close the connections, if there are any."""
        migration, self._migration, self._context = self._migration, None, None
        try:
            self._reading.close()
        finally:
            if migration is not None:
                migration.close()

    def _asked(self, spec: MigrationSpec, record: MigrationRecord) -> str:
        """Return which ids copiers wait for: at each look, because their partitions stand still meanwhile."""
        if self._job != "tail" or not spec.schemas.copies:
            return ""
        wanted = wanted_ids(record)
        waiting = unanswered(wanted, record.schema_id_map()) if wanted else set()
        names = sorted(f"{item.value}" if item.context == "." else f"{item.context}:{item.value}" for item in waiting)
        return f"copiers ask for schema ids ({_shown(names)})" if names else ""

    def _look_at_progress(self, context: PhaseContext, now: float) -> str:
        document = context.record.job_progress(self._job)
        heartbeat = [document.get(name) for name in ("run", "seconds", "at")]
        if heartbeat != self._heartbeat:
            # The first one that is seen may be the last one of a driver that was silent before.
            self._heard_at = now if self._heartbeat is not None else self._heard_at
            self._heartbeat = heartbeat
        found = [
            f"{int(document.get(f'partitions_{name}', 0))} partitions {words}"
            for name, words in (("failed", "have failed"), ("went_back", "have lost records on the target"))
            if document.get(f"partitions_{name}")
        ]
        if document.get("partitions_stuck") and float(document.get("stuck_seconds", 0.0)) >= NOTICE_SECONDS:
            found.append("partitions are stuck")
        if self._job == "tail" and now - self._heard_at >= NOTICE_SECONDS:
            found.append(_SILENT)
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
