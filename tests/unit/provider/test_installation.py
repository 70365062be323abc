"""Which Airflow a claim belongs to."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import Variable

from airflow_provider_kafka_migration.provider import installation
from airflow_provider_kafka_migration.provider.installation import VARIABLE, installation_id


class Variables:
    """The Variables of one Airflow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: dict[str, str] = {}
        monkeypatch.setattr(Variable, "get", lambda key, default: self.found.get(key, default))
        monkeypatch.setattr(Variable, "set", lambda key, value, **_more: self.found.update({key: value}))
        monkeypatch.setattr(installation.time, "sleep", lambda _: self.meanwhile())
        self.meanwhile: Any = lambda: None


def test_it_is_made_once_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = Variables(monkeypatch)
    made = installation_id()
    assert len(made) == 32
    assert installation_id() == made == variables.found[VARIABLE]
    variables.found.clear()
    assert installation_id() != made, "another Airflow has another one"


def test_of_two_tasks_that_make_it_both_take_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = Variables(monkeypatch)
    variables.meanwhile = lambda: variables.found.update({VARIABLE: "of the other task"})
    assert installation_id() == "of the other task"


def test_an_operator_may_set_it_in_the_environment() -> None:
    assert installation_id() == "tests"


def test_an_airflow_that_cannot_read_it_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: Any, **__: Any) -> str:
        raise PermissionError

    monkeypatch.setattr(Variable, "get", denied)
    assert installation_id() == ""
