"""Who answers on the command line: the user of the operating system, whatever the environment says."""

from __future__ import annotations

import os
import pwd

import pytest

from airflow_provider_kafka_migration.cli import session


@pytest.mark.parametrize("variable", ["LOGNAME", "USER", "LNAME", "USERNAME"])
def test_no_variable_makes_one_person_another(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "bob")
    name = pwd.getpwuid(os.getuid()).pw_name
    assert session.person() == name
    assert session.identity().startswith(f"{name}@")


def test_a_user_id_without_a_name_is_named_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "bob")
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert session.person() == "uid-54321"
