"""The chain of runs of a mirror: names, the end of a run's time, one owner."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.utils.types import DagRunType

from airflow_provider_kafka_migration.provider.run_chain import (
    ends_at,
    first_run,
    follows_another,
    is_followed,
    is_over,
    next_run,
)
from airflow_provider_kafka_migration.provider.task import run_owner

_FIRST = "scheduled__2026-04-24T10:40:00+00:00"


def _context(run_id: str = _FIRST, **of_run: Any) -> Any:
    instance = SimpleNamespace(dag_id="kafka_mirror", run_id=run_id, task_id="mirror", **of_run)
    return {"ti": instance, "dag_run": SimpleNamespace(start_date=of_run.get("began"))}


def test_each_run_knows_the_next_one() -> None:
    second = next_run(_FIRST)
    third = next_run(second)
    assert (second, third) == (f"next-2__{_FIRST}", f"next-3__{_FIRST}")
    assert [follows_another(item) for item in (_FIRST, second, third)] == [False, True, True]
    assert {first_run(item) for item in (_FIRST, second, third)} == {_FIRST}


def test_airflow_takes_the_names_for_no_run_of_a_schedule() -> None:
    """It refuses an id that begins with the name of another type of runs."""
    assert DagRunType.from_run_id(_FIRST) is DagRunType.SCHEDULED
    assert DagRunType.from_run_id(next_run(_FIRST)) is DagRunType.MANUAL


def test_all_runs_of_a_chain_are_one_owner() -> None:
    """So the claim, and the generation of a Spark job that runs, stay the same."""
    owners = {run_owner(_context(item)) for item in (_FIRST, next_run(_FIRST), next_run(next_run(_FIRST)))}
    assert owners == {f"kafka_mirror/{_FIRST}"}
    assert run_owner(_context("manual__2")) == "kafka_mirror/manual__2"


def test_a_run_ends_in_time_but_mirrors_for_a_while_first() -> None:
    began, day = datetime(2026, 4, 24, 10, 0, tzinfo=UTC), timedelta(days=1)
    assert ends_at(_context(began=began, start_date=began + timedelta(hours=3)), day) == began + day
    after_a_long_seed = began + timedelta(days=5)
    ends = after_a_long_seed + timedelta(minutes=10)
    assert ends_at(_context(began=began, start_date=after_a_long_seed), day) == ends
    assert ends_at(_context(began=began), None) is None
    assert ends_at(_context(), day) is None, "no Airflow, no time"


@pytest.mark.parametrize(("hours", "over"), [(23, False), (25, True)])
def test_the_time_is_that_which_housekeeping_looks_at(hours: int, over: bool) -> None:
    began = datetime.now(UTC) - timedelta(hours=hours)
    assert is_over(_context(began=began), timedelta(days=1)) is over


@pytest.mark.parametrize("count", [0, 1])
def test_a_run_is_followed_by_the_next_one_of_its_dag(count: int) -> None:
    asked: list[Any] = []

    def get_dr_count(**given: Any) -> int:
        asked.append(given)
        return count

    assert is_followed(_context(get_dr_count=get_dr_count)) is bool(count)
    assert asked == [{"dag_id": "kafka_mirror", "run_ids": [next_run(_FIRST)]}]
