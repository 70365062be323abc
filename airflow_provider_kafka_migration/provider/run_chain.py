"""The chain of DAG runs of one mirror: their names, when a run's time is over, and whether another one has followed.

Airflow's own housekeeping (``airflow db clean``) deletes DAG runs by the date of their start, also those that run. So
no run of a mirror is older than some days: it ends well, and the next one of the same DAG goes on. To the journal the
runs of a chain are one owner, named after the first: the claim and a Spark job that runs pass on without a word.

The number in a run's id says which one it is, so whoever starts it again after a kill finds the run that is there.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk import Context

#: XCom of the task ``mirror`` has this key if the next run shall follow.
RUN_IS_OVER = "run_is_over"
#: Each run mirrors for at least this long, whatever came before: else a chain could pass on and never copy.
_LEAST = timedelta(minutes=10)

_NEXT = re.compile(r"next-(?P<number>[0-9]+)__(?P<first>.+)", re.DOTALL)


def first_run(run_id: str) -> str:
    """Return the id of the chain's first run."""
    found = _NEXT.fullmatch(run_id)
    return found["first"] if found else run_id


def next_run(run_id: str) -> str:
    """Return the id of the run that follows. It begins with no type of Airflow's runs: those are reserved."""
    found = _NEXT.fullmatch(run_id)
    return f"next-{int(found['number']) + 1 if found else 2}__{first_run(run_id)}"


def follows_another(run_id: str) -> bool:
    """Return whether a run goes on with what earlier runs of its chain have begun."""
    return first_run(run_id) != run_id


def is_followed(context: Context) -> bool:
    """Return whether the next run exists already: then nothing is left to do in this one, which was cleared."""
    run: Any = context["ti"]
    count = getattr(run, "get_dr_count", None)
    return count is not None and bool(count(dag_id=run.dag_id, run_ids=[next_run(run.run_id)]))


def ends_at(context: Context, run_for: timedelta | None) -> datetime | None:
    """Return when the run's time is over; None: never.

    :param run_for: how long a run lasts, from the start that ``airflow db clean`` looks at.
    """
    began = getattr(context.get("dag_run"), "start_date", None)
    if run_for is None or began is None:
        return None
    # Of this attempt; a deferral does not change it.
    task_began = getattr(context["ti"], "start_date", None) or began
    ends: datetime = max(began + run_for, task_began + min(run_for, _LEAST))
    return ends


def is_over(context: Context, run_for: timedelta | None) -> bool:
    """Return whether the run's time is over."""
    ends = ends_at(context, run_for)
    return ends is not None and datetime.now(UTC) >= ends


# -- a run that gets old -----------------------------------------------------------------------------------------------

#: Begins what people are told about a run that gets old.
RUN_IS_OLD = "RUN_IS_OLD"
#: Well below the limits of a month that sites give their housekeeping.
_OLD = timedelta(days=7)


def old_run(context: Context) -> str:
    """Return what people have to know about a run that housekeeping may delete; empty while it is young."""
    began = getattr(context.get("dag_run"), "start_date", None)
    if began is None or datetime.now(UTC) - began < _OLD:
        return ""
    dag_id, since = context["ti"].dag_id, began.isoformat(timespec="minutes")
    return (
        f"{RUN_IS_OLD}: this DAG run began at {since}, and `airflow db clean` deletes runs "
        f"by the date of their start, also while they run. Spare this DAG (--exclude-dag-ids {dag_id}) wherever it is "
        "called; if the run was deleted, trigger the DAG again with the same migration_id and takeover"
    )
