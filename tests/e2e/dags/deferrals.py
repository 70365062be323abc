"""Tasks that defer again and again, each time on a trigger that has its event at once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NoReturn

# Airflow looks for the words "airflow" and "dag" before it reads a file.
from airflow.sdk import DAG, BaseOperator
from immediate_trigger import ImmediateTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


class DeferringOperator(BaseOperator):
    """Defers so many times."""

    def __init__(self, *, times: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.times = times

    def execute(self, context: Context) -> int:
        """Defer for the first time."""
        self._wait(1)

    def resume(self, context: Context, event: int) -> int:
        """Defer again, or end."""
        if event < self.times:
            self._wait(event + 1)
        return event

    def _wait(self, number: int) -> NoReturn:
        self.defer(trigger=ImmediateTrigger(number), method_name="resume")
        raise AssertionError("defer never returns")


with DAG("deferrals", schedule=None, max_active_tasks=64) as dag:
    for index in range(8):
        DeferringOperator(task_id=f"task_{index}", times=int(os.environ.get("DEFERRALS", "25")), retries=0)
