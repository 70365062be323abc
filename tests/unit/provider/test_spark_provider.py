"""What is relied on beyond the public API of the Spark provider, for each version that is supported."""

from __future__ import annotations

import ast
import inspect
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

import airflow_provider_kafka_migration
from airflow_provider_kafka_migration.errors import SpecInvalid
from airflow_provider_kafka_migration.operators.spark_job import SUBMIT_ARGUMENTS
from airflow_provider_kafka_migration.provider import spark_provider

PACKAGE = Path(airflow_provider_kafka_migration.__file__).parent


def test_spark_hook_has_what_its_names_stand_for(connection: Any) -> None:
    connection("spark_default", conn_type="spark", host="spark://master:7077")
    plain = SparkSubmitHook(py_files="a.zip")
    hook = spark_provider.OpenSparkSubmitHook.adopt(plain)
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


def test_operator_makes_a_hook_for_each_submission(connection: Any) -> None:
    connection("spark_other", conn_type="spark", host="spark://other:7077")
    arguments = {"application": "main.py", "num_executors": 3}
    made = []
    for _ in range(2):
        operator = spark_provider.OpenSparkSubmitOperator.made_from(arguments)
        made.append(operator.hook_for_submission("spark_other", {}, is_cluster_mode=False))
    assert made[0] is not made[1]
    bound = spark_provider.OpenSparkSubmitHook.adopt(made[0])
    assert bound.master == "spark://other:7077"
    command = bound._build_spark_submit_command("main.py")
    assert command[command.index("--num-executors") + 1] == "3"


def test_an_argument_of_another_release_is_refused_by_name() -> None:
    with pytest.raises(SpecInvalid, match="has no argument colour"):
        spark_provider.OpenSparkSubmitOperator.made_from({"colour": "red"})


def test_arguments_that_tasks_take_are_the_provider_s() -> None:
    """All but those that a task sets itself, and those for a way to follow the driver that no task uses."""
    known = set(inspect.signature(SparkSubmitOperator.__init__).parameters) - {"self", "kwargs"}
    own = {"application", "application_args", "conf", "conn_id", "env_vars", "java_class", "name", "py_files"}
    unused = {
        *("durable", "post_submit_commands", "reconnect_on_retry"),
        *("track_driver_via_k8s_api", "yarn_track_via_rm_api"),
    }
    assert known - own - unused <= SUBMIT_ARGUMENTS
    if metadata.version("apache-airflow-providers-apache-spark").startswith("6.3."):
        assert known - own - unused == SUBMIT_ARGUMENTS


def test_last_lines_are_those_of_the_output(connection: Any) -> None:
    connection("spark_default", conn_type="spark", host="yarn")
    hook = spark_provider.OpenSparkSubmitHook.adopt(SparkSubmitHook())
    hook._process_spark_submit_log(iter(["first\n", "Submitted application application_1_2\n"]))
    assert hook.last_lines == ("first", "Submitted application application_1_2")


def test_a_hook_without_the_option_waits_for_no_driver(connection: Any) -> None:
    connection("spark_default", conn_type="spark", host="spark://m:7077", extra={"deploy-mode": "cluster"})
    plain = SparkSubmitHook()
    assert plain._should_track_driver_status
    hook = spark_provider.OpenSparkSubmitHook.adopt(plain)
    hook.wait_for_nothing()
    assert (hook._should_track_driver_status, hook._spark_exit_code) == (False, 0)


def test_facts_of_a_connection_are_arguments_of_the_engine(connection: Any) -> None:
    extra = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": "rm:8088", "principal": "p"}
    connection("spark_yarn", conn_type="spark", host="yarn", extra=extra)
    operator = spark_provider.OpenSparkSubmitOperator.made_from({"keytab": "/keytab"})
    assert spark_provider.OpenSparkSubmitHook.adopt(operator.plain_hook("spark_yarn")).facts == {
        "master": "yarn",
        "deploy_mode": "cluster",
        "namespace": "",
        "resource_manager": "rm:8088",
        "kerberos": True,
    }
    # The operator's argument wins, as in the provider.
    client = spark_provider.OpenSparkSubmitOperator.made_from({"deploy_mode": "client"})
    facts = spark_provider.OpenSparkSubmitHook.adopt(client.plain_hook("spark_yarn")).facts
    assert (facts["deploy_mode"], facts["resource_manager"], facts["kerberos"]) == ("client", "", False)


def test_secret_variables_reach_the_process_and_not_the_command(connection: Any) -> None:
    connection("spark_yarn", conn_type="spark", host="yarn")
    hook = spark_provider.OpenSparkSubmitHook.adopt(SparkSubmitHook(conn_id="spark_yarn", env_vars={"PLAIN": "x"}))
    hook.secret_environment = {"KEY": "s3cret"}
    assert "s3cret" not in " ".join(hook._build_spark_submit_command("main.py"))
    assert hook._env == {"PLAIN": "x", "KEY": "s3cret"}


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
