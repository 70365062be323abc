"""What is relied on beyond the public API of Airflow and its providers, for each version that is supported."""

from __future__ import annotations

import ast
import inspect
import os
from importlib import metadata
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

import airflow_provider_kafka_migration
from airflow_provider_kafka_migration.errors import ApprovalRefused, BrokerUnreachable
from airflow_provider_kafka_migration.provider import compat

PACKAGE = Path(airflow_provider_kafka_migration.__file__).parent


@pytest.mark.parametrize("name", sorted(compat.TRIED))
def test_installed_version_was_tried(name: str) -> None:
    """Red with a new release: read what is relied on there, run the tests, then add the series to ``TRIED``."""
    installed = metadata.version(name)
    assert installed.startswith(tuple(f"{series}." for series in compat.TRIED[name])), f"{name} {installed}"
    assert compat.untried() == []


def test_a_newer_airflow_is_told_and_refuses_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(compat.TRIED, "apache-airflow-core", ("2.10", "2.11"))
    compat.warn_of_untried.cache_clear()
    for _ in range(2):
        compat.warn_of_untried()
    compat.warn_of_untried.cache_clear()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1, "once in a process"
    assert told[0].startswith(f"apache-airflow-core {metadata.version('apache-airflow-core')} is newer than")
    assert "(2.10, 2.11)" in told[0]


def test_an_older_series_than_the_last_is_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compat.TRIED, "apache-airflow-core", ("9.9",))
    assert compat.untried() == []


# -- terminal errors without retry policies ----------------------------------------------------------------------------


class _Task:
    """A task on an Airflow without retry policies: :func:`compat.failing_at_once` is all that it has."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.inside: list[type[Exception]] = []

    @compat.failing_at_once
    def execute(self) -> None:
        raise self.error


class _Below(_Task):
    @compat.failing_at_once
    def execute(self) -> None:
        try:
            super().execute()
        except Exception as error:
            self.inside.append(type(error))
            raise


@pytest.mark.parametrize("kind", [_Task, _Below])
def test_a_terminal_error_ends_the_task_and_stays_what_it_is(kind: type[_Task]) -> None:
    task = kind(ApprovalRefused("no code", next_step="type it"))
    with pytest.raises(ApprovalRefused) as caught:
        task.execute()
    assert isinstance(caught.value, AirflowFailException), "only that keeps Airflow from trying again"
    assert (type(caught.value).__name__, caught.value.next_step) == ("ApprovalRefused", "type it")
    assert str(caught.value) == str(ApprovalRefused("no code", next_step="type it"))
    assert task.inside in ([], [ApprovalRefused]), "within the task it is an error like any other"


@pytest.mark.parametrize("error", [BrokerUnreachable("x"), RuntimeError("x")])
def test_other_errors_are_tried_again(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        _Task(error).execute()
    assert not isinstance(caught.value, AirflowFailException)


def test_every_task_fails_at_once_in_one_of_two_ways() -> None:
    from airflow_provider_kafka_migration.dag import build_migration_dag

    for task in build_migration_dag().tasks:
        is_wrapped = hasattr(type(task).execute, "__wrapped__") and "resume_execution" in vars(compat.TerminalFails)
        assert getattr(task, "has_retry_policy", False) == compat.HAS_RETRY_POLICIES != is_wrapped, task.task_id


def test_question_is_put_up_and_the_text_that_is_shown_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message and the answer are Airflow's own classes; only the pipe to the supervisor is not there."""
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import CreateHITLDetailPayload, HITLDetailRequestResult

    sent: list[Any] = []
    ti_id = uuid4()
    answers: list[Any] = [
        HITLDetailRequestResult(ti_id=ti_id, options=["Approve"], subject="s", body="the first text"),
        None,
    ]

    class Comms:
        def send(self, message: Any) -> Any:
            sent.append(message)
            return answers[len(sent) - 1]

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", Comms(), raising=False)
    question: dict[str, Any] = {"options": ["Approve"], "subject": "s", "body": "new text", "params": {}}
    users = [{"id": "7", "name": "anna"}]
    assert compat.put_question(ti_id, users=users, **question) == "the first text"
    assert compat.put_question(ti_id, users=[], **question) is None
    assert isinstance(sent[0], CreateHITLDetailPayload)
    assert (sent[0].body, sent[0].multiple, sent[0].defaults) == ("new text", False, None)
    assert [(user.id, user.name) for user in sent[0].assigned_users] == [("7", "anna")]


def test_database_connections_are_asked_for_as_airflow_s_own_commands_do(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.cli.commands import connection_command

    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "client")
    compat.find_connections_of_the_database()
    assert os.environ["_AIRFLOW_PROCESS_CONTEXT"] == "server"
    assert 'os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"' in inspect.getsource(connection_command)


def test_nothing_else_reaches_into_airflow() -> None:
    """Imports of private modules and names of Airflow, anywhere but in ``compat``."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        if path.name in ("compat.py", "spark_provider.py") or "from airflow." not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("airflow."):
                names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
                private = [name for name in names if name.startswith("_") or name == "SUPERVISOR_COMMS"]
                found += [f"{path.relative_to(PACKAGE)}: {name}" for name in private]
    assert found == []
