"""The base of triggers that wake a task: none of them fires before Airflow has recorded the deferral."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_kafka_migration.kafka.clock import elapsed_seconds


class SettledTrigger(BaseTrigger):
    """Fires no event in its first seconds.

    A task that defers ends its process, and the scheduler hears of that end from the executor a little later. If the
    task is queued again before, Airflow 3.3 takes the late report for the end of the new part, and fails the task
    ("finished with state success, but the task instance's state attribute is queued"). The database does not show
    whether the report was processed, so time has to pass.
    """

    #: Schedulers look at their executor about once a second; busy ones were seen to need more than twenty.
    SETTLE_SECONDS: ClassVar[float] = 10.0

    @abstractmethod
    def events(self) -> AsyncIterator[TriggerEvent]:
        """Yield the events of the trigger, whenever they happen."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield the same events, the first ones as soon as the deferral is recorded."""
        settled_at = elapsed_seconds() + self.SETTLE_SECONDS
        async with aclosing(self.events()) as events:  # type: ignore[type-var]
            async for event in events:
                if (left := settled_at - elapsed_seconds()) > 0:
                    await asyncio.sleep(left)
                yield event
