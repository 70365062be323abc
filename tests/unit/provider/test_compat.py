"""What is relied on beyond the public API of Airflow and its providers, for each version that is supported."""

from __future__ import annotations

import ast
import inspect
import os
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from packaging.requirements import Requirement

import airflow_provider_kafka_migration
from airflow_provider_kafka_migration.provider import compat

PACKAGE = Path(airflow_provider_kafka_migration.__file__).parent


@pytest.mark.parametrize("name", sorted(compat.SEEN))
def test_installed_version_is_one_that_was_looked_at(name: str) -> None:
    """Red with a new release: read what this module relies on there, then add the series to ``SEEN``."""
    installed = metadata.version(name)
    assert installed.startswith(tuple(f"{series}." for series in compat.SEEN[name])), f"{name} {installed}"


def test_provider_with_private_parts_cannot_be_newer_than_what_was_looked_at() -> None:
    """Otherwise an installation takes a series whose private parts nobody has read."""
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    name = "apache-airflow-providers-apache-spark"
    allowed = next(line for line in map(Requirement, project["dependencies"]) if line.name == name).specifier
    major, minor = map(int, compat.SEEN[name][-1].split("."))
    assert metadata.version(name) in allowed
    assert f"{major}.{minor + 1}.0" not in allowed


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


def test_spark_hook_has_what_its_names_stand_for(connection: Any) -> None:
    connection("spark_default", conn_type="spark", host="spark://master:7077")
    plain = SparkSubmitHook(py_files="a.zip")
    hook = compat.OpenSparkSubmitHook.adopt(plain)
    assert (hook.master, hook.py_files, hook.running_pid, tuple(hook.last_lines)) == (
        "spark://master:7077",
        "a.zip",
        None,
        (),
    )
    hook.py_files = "b.zip"
    hook.binary_command = lambda binary: ["launcher", binary]
    command = hook._build_spark_submit_command("main.py")
    assert command[:2] == ["launcher", "spark-submit"]
    assert command[command.index("--py-files") + 1] == "b.zip"


def test_spark_operator_makes_a_hook_for_each_submission(connection: Any) -> None:
    connection("spark_other", conn_type="spark", host="spark://other:7077")
    made: list[Any] = []

    class Operator(compat.OpenSparkSubmitOperator):
        def make_hook(self, hook: SparkSubmitHook) -> SparkSubmitHook:
            made.append(compat.OpenSparkSubmitHook.adopt(hook))
            return made[-1]

    operator = Operator(task_id="x", application="main.py")
    assert operator.hook is None
    for number in (1, 2):
        hook = operator.hook_for_submission("spark_other", {}, is_cluster_mode=False)
        assert operator.hook is hook is made[-1]
        assert made[-1].master == "spark://other:7077"
        assert len(made) == number


def test_facts_of_a_connection_are_arguments_of_the_engine(connection: Any) -> None:
    extra = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": "rm:8088", "principal": "p"}
    connection("spark_yarn", conn_type="spark", host="yarn", extra=extra)
    operator = compat.OpenSparkSubmitOperator(task_id="x", keytab="/keytab")
    assert compat.OpenSparkSubmitHook.adopt(operator.plain_hook("spark_yarn")).facts == {
        "master": "yarn",
        "deploy_mode": "cluster",
        "namespace": "",
        "resource_manager": "rm:8088",
        "kerberos": True,
    }
    # The operator's argument wins, as in the provider.
    client = compat.OpenSparkSubmitOperator(task_id="y", deploy_mode="client")
    facts = compat.OpenSparkSubmitHook.adopt(client.plain_hook("spark_yarn")).facts
    assert (facts["deploy_mode"], facts["resource_manager"], facts["kerberos"]) == ("client", "", False)


def test_secret_variables_reach_the_process_and_not_the_command(connection: Any) -> None:
    connection("spark_yarn", conn_type="spark", host="yarn")
    hook = compat.OpenSparkSubmitHook.adopt(SparkSubmitHook(conn_id="spark_yarn", env_vars={"PLAIN": "x"}))
    hook.secret_environment = {"KEY": "s3cret"}
    assert "s3cret" not in " ".join(hook._build_spark_submit_command("main.py"))
    assert hook._env == {"PLAIN": "x", "KEY": "s3cret"}


def test_nothing_else_reaches_into_airflow() -> None:
    """Imports of private modules and names of Airflow, anywhere but in ``compat``."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        if path.name == "compat.py" or "from airflow." not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("airflow."):
                names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
                private = [name for name in names if name.startswith("_") or name == "SUPERVISOR_COMMS"]
                found += [f"{path.relative_to(PACKAGE)}: {name}" for name in private]
    assert found == []


#: Private attributes of the Spark provider's classes; those of our own subclasses look the same and are left out.
PROVIDER_PRIVATE = {
    name
    for kind in (SparkSubmitHook, SparkSubmitOperator)
    for name in ("_hook", "_conn_id", *(item for item in vars(kind) if item.startswith("_") and item[1] != "_"))
} | {"_submit_sp", "_connection", "_py_files", "_last_submit_log_lines"}


@pytest.mark.parametrize("path", ["operators/spark_job.py", "provider/spark_submit.py", "operators/migration.py"])
def test_spark_classes_use_public_names(path: str) -> None:
    tree = ast.parse((PACKAGE / path).read_text())
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert (used | defined) & PROVIDER_PRIVATE == set()
