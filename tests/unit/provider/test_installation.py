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
        monkeypatch.setattr(
            Variable, "keys", lambda prefix: [key for key in self.found if key.startswith(prefix)], raising=False
        )
        monkeypatch.setattr(Variable, "set", lambda key, value, **_more: self.found.update({key: value}))
        monkeypatch.setattr(installation.time, "sleep", lambda _: self.meanwhile())
        self.meanwhile: Any = lambda: None

    def _keys(self, prefix: str) -> list[str]:
        return [key for key in self.found if key.startswith(prefix)]


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


def test_an_id_that_cannot_be_read_for_a_moment_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's API answers 500: Variable.get returns its default then, as if there were no such Variable."""
    Variables(monkeypatch)
    made = installation_id()
    with monkeypatch.context() as failing:
        failing.setattr(Variable, "get", lambda _key, default: default)
        assert installation_id() == "", "its runs stay owners of what they hold"
    assert installation_id() == made


def test_an_airflow_that_does_not_answer_gets_no_id(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = Variables(monkeypatch)

    def unreachable(**_: Any) -> list[str]:
        raise ConnectionError

    monkeypatch.setattr(Variable, "keys", unreachable)
    assert installation_id() == ""
    assert variables.found == {}


def test_an_operator_may_set_it_in_the_environment() -> None:
    assert installation_id() == "tests"


def test_an_airflow_that_cannot_read_it_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: Any, **__: Any) -> str:
        raise PermissionError

    monkeypatch.setattr(Variable, "get", denied)
    assert installation_id() == ""


def test_an_airflow_that_lists_no_variables_makes_none_and_uses_one_that_a_person_has_set(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Airflow before 3.3 cannot tell a Variable that is missing from one that it cannot read now."""
    variables = Variables(monkeypatch)
    monkeypatch.delattr(Variable, "keys")
    with caplog.at_level("INFO"):
        assert (installation_id(), variables.found) == ("", {})
    assert "set it if another one uses the same storage" in caplog.text
    variables.found[VARIABLE] = "blue"
    assert installation_id() == "blue"
