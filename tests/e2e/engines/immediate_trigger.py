"""A trigger that has its event at once, as a job that has ended meanwhile or a freeze that is overdue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import TriggerEvent

from airflow_provider_kafka_migration.triggers.settled import SettledTrigger


class ImmediateTrigger(SettledTrigger):
    """Fires as soon as the base allows.

    :param number: which deferral of the task this is.
    """

    def __init__(self, number: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.number = number

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        return "immediate_trigger.ImmediateTrigger", {"number": self.number}

    async def events(self) -> AsyncIterator[TriggerEvent]:
        """Yield the event."""
        yield TriggerEvent(self.number)
