"""What starts the clock of a deadline, and what stops it: both read only the storage, in the triggerer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TaskSuccessEvent, TriggerEvent

from airflow_provider_kafka_migration.deadline_watch import (
    Beginnings,
    DeadlineWatch,
    Ending,
    Finding,
    LagLimit,
    Standing,
    Watched,
    open_watch,
)
from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.kafka.clock import elapsed_seconds
from airflow_provider_kafka_migration.provider.connections import airflow_resolver, prefetch
from airflow_provider_kafka_migration.spec import parse_spec


class _DeadlineTrigger(BaseTrigger):
    """Checks again and again. No error ends it: what cannot be read is unknown, and unknown is never over.

    Airflow's database stores the arguments; they hold references to connections and never a secret.

    :param spec: the migration or the mirror, as JSON-serializable data.
    :param watched: ``freeze`` or ``lag``.
    :param lag_limit_seconds: as in :class:`~..deadline_watch.LagLimit`, as is ``lag_limit_records``.
    :param poll_seconds: time between two checks.
    """

    def __init__(
        self,
        *,
        spec: dict[str, Any],
        watched: Watched,
        lag_limit_seconds: float | None = None,
        lag_limit_records: int | None = None,
        poll_seconds: float = 5.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.spec = spec
        self.watched = watched
        self.lag_limit_seconds = lag_limit_seconds
        self.lag_limit_records = lag_limit_records
        self.poll_seconds = poll_seconds
        self._watch: DeadlineWatch | None = None
        self._shown: tuple[Standing, int] | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        names = ("spec", "watched", "lag_limit_seconds", "lag_limit_records", "poll_seconds")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def findings(self) -> AsyncIterator[Finding]:
        """Yield what each check has found, for ever. All blocking calls run in a thread."""
        try:
            while True:
                found = await self._look()
                if (found.standing, found.number) != self._shown:
                    self._shown = (found.standing, found.number)
                    self.log.info("%s: %s", self.watched, found.summary)
                yield found
                await asyncio.sleep(self.poll_seconds)
        finally:
            await self._close()

    async def _look(self) -> Finding:
        try:
            if self._watch is None:
                self._watch = await self._open()
            return await asyncio.to_thread(self._watch.check)
        except Exception as error:
            if not isinstance(error, MigrationError):
                self.log.exception("The check failed; it will be repeated")
            # The connections are read again: in the years of a mirror, credentials are replaced.
            await self._close()
            return Finding(Standing.UNKNOWN, f"the storage cannot be read: {error}")

    async def _open(self) -> DeadlineWatch:
        # The DAG has accepted the spec, perhaps in an earlier version.
        spec = parse_spec(self.spec, recorded=True)
        resolver = airflow_resolver(await prefetch(spec, clusters=False))
        limit = LagLimit(self.lag_limit_seconds, self.lag_limit_records)
        return await asyncio.to_thread(open_watch, self.watched, spec, resolver, limit)

    async def _close(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            await asyncio.shield(asyncio.to_thread(watch.close))


class DeadlineStartTrigger(_DeadlineTrigger, BaseEventTrigger):
    """Fires each time that a freeze begins, or that the lag exceeds its limit. It belongs to an asset and never ends.

    It also fires when that has been unknown for a minute. A restart of the triggerer makes it fire once more for what
    still goes on; ``max_active_runs=1`` of the watch's DAG keeps that from starting a second clock.
    """

    #: Replaced in tests.
    clock: Callable[[], float] = staticmethod(elapsed_seconds)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire for each beginning."""
        beginnings = Beginnings(self.clock())
        async for found in self.findings():
            if beginnings.is_new(found, self.clock()):
                yield TriggerEvent({"watched": self.watched, "summary": found.summary})


class DeadlineEndTrigger(_DeadlineTrigger):
    """Ends its task successfully, without a worker, when the freeze is over or the lag is within its limit again."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire once."""
        ending = Ending()
        async for found in self.findings():
            if ending.is_over(found):
                self.log.info("Over: %s", found.summary)
                yield TaskSuccessEvent()
                return
