"""``make walk``: rooms and returns of a function's calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.walk import PACKAGE, ROOT, House, walk

_FILES = {
    "__init__.py": "",
    "upper/__init__.py": "from airflow_provider_kafka_migration.upper.steps import run\n",
    "upper/steps.py": """
from airflow_provider_kafka_migration.lower import facts
from airflow_provider_kafka_migration.lower.facts import Facts as Known, ask

def run():
    helper()
    known = Known(ask())
    known.only_here()
    facts.ask()
    unknown()

def helper():
    print(len("x"))
""",
    "lower/__init__.py": "",
    "lower/facts.py": """
from airflow_provider_kafka_migration.upper.steps import helper

def ask():
    return ask()

class Base:
    def shared(self):
        return helper()

class Facts(Base):
    def __init__(self, value):
        self.shared()

    def only_here(self):
        return self.value
""",
}


def _house(tmp_path: Path) -> House:
    for name, text in _FILES.items():
        path = tmp_path / PACKAGE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return House(tmp_path)


def test_a_walk_counts_rooms_and_returns(tmp_path: Path) -> None:
    """run, helper | ask | run | Facts.__init__, Base.shared | run | only_here | run: three ways back and forth."""
    house = _house(tmp_path)
    start = house.find(f"{PACKAGE}.upper.run")
    assert start is not None, "a function is found where it is re-exported"
    seen = walk(house, *start)
    assert dict(seen.rooms) == {"upper": 4, "lower": 3}
    assert (seen.functions, seen.returns) == (6, 5)


@pytest.mark.slow
def test_the_package_itself_can_be_walked() -> None:
    house = House(ROOT)
    start = house.find(f"{PACKAGE}.phases.final_drain.run")
    assert start is not None
    seen = walk(house, *start)
    assert {"phases", "record", "kafka"} <= set(seen.rooms)
