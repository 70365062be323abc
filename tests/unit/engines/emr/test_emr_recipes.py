"""The recipes of docs/spark-engines.md for EMR: their specs are submitted, their policies allow what is asked for.

Nothing of the page is repeated here, so a recipe that is changed is tested as it is.
"""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import boto3
import botocore.session
import pytest
import yaml
from emr_world import Emr, serving
from packaging.requirements import Requirement

from airflow_provider_kafka_migration.engines.aws import Aws, AwsArguments
from airflow_provider_kafka_migration.engines.base import JobState, SparkEngine, SparkJob
from airflow_provider_kafka_migration.engines.emr_containers import EmrContainersArguments
from airflow_provider_kafka_migration.engines.emr_serverless import EmrServerlessArguments
from airflow_provider_kafka_migration.engines.find import make_engine
from airflow_provider_kafka_migration.spec import MigrationSpec, parse_spec

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "spark-engines.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def section(title: str) -> str:
    """The text below a heading of the second level."""
    (found,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
    return str(found)


def blocks(text: str, language: str) -> list[str]:
    """The code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


@dataclass
class Recipe:
    """A section of the page, and the simulated service that its spec leads to."""

    emr: Emr
    text: str
    spec: MigrationSpec
    engine: SparkEngine
    asked: list[tuple[str, str]]

    @property
    def arguments(self) -> Mapping[str, Any]:
        return self.spec.spark.engine_args


RECIPES = {
    "EMR Serverless": ("emr-serverless", "application_id", "emr_serverless"),
    "EMR on EKS": ("emr-containers", "virtual_cluster_id", "emr_containers"),
}


@pytest.fixture(params=list(RECIPES))
def recipe(
    request: pytest.FixtureRequest,
    s3_in_process: Any,
    connection: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Recipe]:
    """One recipe after the other; only the addresses of AWS are not those of the page."""
    kind, place, name = RECIPES[request.param]
    text = section(request.param)
    (content,) = blocks(text, "yaml")
    spec = parse_spec(yaml.safe_load(content))
    assert spec.spark.engine == name
    emr = Emr(kind, spec.spark.engine_args[place])
    moto = s3_in_process.config
    bucket = spec.storage.journal.split("/")[2]
    boto3.client("s3", **moto.to_dict()).create_bucket(Bucket=bucket)
    asked: list[tuple[str, str]] = []
    send = Aws._send

    def noted(self: Aws, service: str, operation: str, request: dict[str, Any]) -> Any:
        asked.append((service, operation))
        return send(self, service, operation, request)

    monkeypatch.setattr(Aws, "_send", noted)
    with serving(emr) as address:
        places = {service: {"endpoint_url": moto.endpoint_url} for service in ("s3", "sts", "logs")}
        connection(
            spec.spark.engine_args.get("aws_conn_id", "aws_default"),
            conn_type="aws",
            login="AKIATEST",
            password="secret",
            extra={"service_config": {kind: {"endpoint_url": address}, **places}},
        )
        yield Recipe(emr, text, spec, make_engine(spec.spark.engine, spec.spark.engine_args), asked)


def as_job(recipe: Recipe, job: SparkJob) -> SparkJob:
    spec = recipe.spec
    staging = f"{spec.storage.journal}/{spec.migration_id}/spark"
    return replace(job, migration_id=spec.migration_id, conf={**job.conf, **spec.spark.conf}, staging=staging)


def test_the_spec_of_the_recipe_runs_a_job(recipe: Recipe, job: SparkJob) -> None:
    job_id = recipe.engine.submit(as_job(recipe, job))
    (request,) = recipe.emr.started()
    (defaults,) = request["configurationOverrides"]["applicationConfiguration"]
    for key, value in recipe.spec.spark.conf.items():
        assert defaults["properties"][key] == value
    for name in {**recipe.arguments.get("secrets", {}), **recipe.arguments.get("kubernetes_secrets", {})}:
        assert any(key.endswith(f".{name}") for key in defaults["properties"])
    assert recipe.engine.status(job_id).state is JobState.PENDING
    recipe.engine.cancel(job_id)
    recipe.emr.only().state = "CANCELLED"
    assert recipe.engine.status(job_id).state is JobState.CANCELLED


def actions(policy: str) -> list[str]:
    """The actions that a policy allows, with wild cards."""
    found: list[str] = []
    for statement in json.loads(policy)["Statement"]:
        assert statement["Effect"] == "Allow"
        given = statement["Action"]
        found += [given] if isinstance(given, str) else given
    return found


def iam_action(service: str, operation: str) -> str | None:
    """The IAM action of a request; None if anybody may send it."""
    if service == "sts":
        return None
    special = {"list_objects_v2": "s3:ListBucket", "get_object": "s3:GetObject", "put_object": "s3:PutObject"}
    model = botocore.session.get_session().get_service_model(service)
    camel = "".join(part.capitalize() for part in operation.split("_"))
    assert operation in special or camel in model.operation_names
    return special.get(operation) or f"{service}:{camel}"


def test_the_policy_of_the_recipe_allows_all_that_the_engine_asks_for(
    recipe: Recipe, job: SparkJob, s3_in_process: Any
) -> None:
    engine = make_engine(recipe.spec.spark.engine, {**recipe.arguments, "log_group": "/kafka-migration/spark"})
    job_id = engine.submit(as_job(recipe, job))
    run = recipe.emr.only()
    run.state = "FAILED"
    folder = f"{recipe.emr.place}/jobs/{run.id}"
    logs = boto3.client("logs", **{**s3_in_process.config.to_dict(), "region_name": recipe.arguments["region"]})
    group = {"logGroupName": "/kafka-migration/spark"}
    logs.create_log_group(**group)
    for stream in (f"applications/{folder}/SPARK_DRIVER/stderr", f"{folder}/containers/spark-x-driver/stderr"):
        logs.create_log_stream(**group, logStreamName=stream)
        events = [{"timestamp": int(run.created.timestamp() * 1000), "message": "the end"}]
        logs.put_log_events(**group, logStreamName=stream, logEvents=events)
    assert engine.status(job_id).log_tail == ("the end",)
    logs.delete_log_group(**group)
    engine.links(job_id)
    recipe.emr.only().state = "RUNNING"
    engine.cancel(job_id)
    recipe.emr.runs.clear()
    assert engine.status(job_id).state is JobState.LOST
    wanted = {iam_action(*pair) for pair in recipe.asked} - {None} | {"s3:GetObject", "s3:PutObject"}
    assert len(wanted) >= 7
    (request,) = recipe.emr.started()
    if request["tags"]:
        wanted.add(f"{recipe.emr.kind}:TagResource")
    allowed = actions(blocks(recipe.text, "json")[0])
    for action in wanted:
        assert any(fnmatch.fnmatch(str(action), pattern) for pattern in allowed), action
    # And nothing that the engine never asks for, but handing over the role.
    assert set(allowed) - wanted <= {"iam:PassRole"}
    assert ("iam:PassRole" in allowed) is recipe.emr.is_serverless


def test_the_policies_are_about_what_the_spec_names(recipe: Recipe) -> None:
    policy = blocks(recipe.text, "json")[0]
    assert f"/{recipe.emr.place}" in policy
    assert f":{recipe.arguments['region']}:" in policy
    assert recipe.arguments["execution_role_arn"] in policy
    for text in blocks(recipe.text, "json"):
        assert f"arn:aws:s3:::{recipe.spec.storage.journal.split('/')[2]}/*" in text
    if recipe.arguments.get("log_group"):
        assert f"log-group:{recipe.arguments['log_group']}:*" in policy


def test_every_argument_is_described(recipe: Recipe) -> None:
    models: dict[str, type[AwsArguments]] = {
        "emr-serverless": EmrServerlessArguments,
        "emr-containers": EmrContainersArguments,
    }
    model = models[recipe.emr.kind]
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section("EMR Serverless") + recipe.text, flags=re.MULTILINE))
    for name, field in model.model_fields.items():
        assert f"`{name}`" in recipe.text, name
        assert name in rows, name
        if field.is_required():
            assert rows[name] == "required", name
        elif field.default is not None and isinstance(field.default, str | int):
            assert str(field.default) in rows[name], name
        else:
            assert rows[name] != "required", name
    own = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", recipe.text, flags=re.MULTILINE))
    assert set(own) <= set(model.model_fields)


def test_the_aws_commands_exist(recipe: Recipe) -> None:
    commands = [line for block in blocks(recipe.text, "bash") for line in block.replace("\\\n", " ").splitlines()]
    session = botocore.session.get_session()
    asked = [shlex.split(line) for line in commands if line.startswith("aws ")]
    assert asked
    for words in asked:
        service, command = words[1], words[2]
        # These are additions of the command line itself.
        if service == "s3" or command == "update-role-trust-policy":
            continue
        model = session.get_service_model(service)
        camel = "".join(part.capitalize() for part in command.split("-"))
        assert camel in model.operation_names, command
        members = {
            re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower() for name in model.operation_model(camel).input_shape.members
        }
        for option in (word[2:] for word in words if word.startswith("--")):
            assert option in members, f"{command} --{option}"
        for value in (word for word in words if word.startswith("{")):
            json.loads(value)


def test_the_page_says_that_no_engine_ran_on_the_real_service() -> None:
    assert "**None of these engines\n    was ever run on the real service**" in PAGE


# -- extras -----------------------------------------------------------------------------------------------------------


#: Extras that the environment of the tests leaves out: one contradicts its versions, the other has to be compiled.
APART = {"google", "kerberos"}


def test_every_extra_that_a_page_names_exists_and_is_installed_for_development() -> None:
    extras = PROJECT["optional-dependencies"]
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for names in re.findall(r"airflow-provider-kafka-migration\[([\w, -]+)\]", path.read_text(encoding="utf-8")):
            for name in names.split(","):
                assert name.strip() in extras, f"{path.name}: [{name}]"
    (own,) = (text for text in extras["dev"] if text.startswith("airflow-provider-kafka-migration["))
    assert set(Requirement(own).extras) == set(extras) - {"dev"} - APART


def test_the_hooks_of_the_emr_engines_come_with_the_package_itself() -> None:
    required = {Requirement(text).name for text in PROJECT["dependencies"]}
    assert "apache-airflow-providers-amazon" in required
    for extra, texts in PROJECT["optional-dependencies"].items():
        for text in texts:
            assert Requirement(text).name != "apache-airflow-providers-amazon", extra
