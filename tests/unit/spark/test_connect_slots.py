"""Slots of a Spark Connect server: asked again, from a plan."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_kafka_migration.spark.tasks import ConnectRunner


class Session:
    """Answers as a server does. ``plan``: its text of a plan; ``last``: the last partition of a range, by a job."""

    def __init__(self, plan: str, last: int = 0) -> None:
        self.plan, self.last = plan, last
        self.asked: list[str] = []

    def sql(self, text: str) -> Any:
        self.asked.append("plan")
        return SimpleNamespace(collect=lambda: [(self.plan,)])

    def range(self, *_: int) -> Any:
        self.asked.append("job")
        rows = SimpleNamespace(collect=lambda: [{"last": self.last}])
        return SimpleNamespace(selectExpr=lambda _: SimpleNamespace(selectExpr=lambda _: rows))


def plan(splits: str) -> str:
    return f"== Physical Plan ==\n*(1) Range (0, 1000000, step=1, splits={splits})\n\n"


@pytest.mark.parametrize(("text", "slots"), [(plan("3"), 3), (plan("Some(12)"), 12), (plan("0"), 1)])
def test_the_number_of_a_plan(text: str, slots: int) -> None:
    session = Session(text)
    assert ConnectRunner(session).slots() == slots  # type: ignore[arg-type]
    assert session.asked == ["plan"]


def test_executors_that_come_later_are_noticed() -> None:
    now = [100.0]
    session = Session(plan("2"))
    runner = ConnectRunner(session, clock=lambda: now[0])  # type: ignore[arg-type]
    assert runner.slots() == 2
    session.plan = plan("8")
    assert runner.slots() == 2
    now[0] += 10
    assert runner.slots() == 8
    assert session.asked == ["plan", "plan"]


def test_a_server_whose_plans_do_not_tell_is_counted_once() -> None:
    now = [0.0]
    session = Session("a plan of another kind", last=3)
    runner = ConnectRunner(session, clock=lambda: now[0])  # type: ignore[arg-type]
    for _ in range(3):
        assert runner.slots() == 4
        now[0] += 60
    assert session.asked.count("job") == 1
