"""The recipes of docs/spark-engines.md for Dataproc, Databricks and Kubernetes are what the engines take and do.

Nothing of the page is repeated here, so a recipe that is changed is tested as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from engine_jobs import SECRET, TOKEN, assert_hidden, make_job
from simulated_databricks import SimulatedDatabricks
from simulated_google import SimulatedDataproc, SimulatedStorage
from simulated_kubernetes import SimulatedKubernetes

from airflow_provider_kafka_migration.engines.base import JobState, SparkEngine, SparkJob
from airflow_provider_kafka_migration.engines.find import make_engine
from airflow_provider_kafka_migration.references.sealing import KEY_VARIABLE
from airflow_provider_kafka_migration.spec import MigrationSpec, parse_spec

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "spark-engines.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """Return the text below a heading of the second level."""
    (found,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
    return str(found)


def blocks(text: str, language: str) -> list[Any]:
    """Return the YAML blocks of a section, parsed."""
    found = re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return [yaml.safe_load(block) for block in found]


def recipe(title: str) -> tuple[MigrationSpec, SparkEngine]:
    """Return the spec of a section, and its engine."""
    spec = parse_spec(blocks(section(title), "yaml")[0])
    return spec, make_engine(spec.spark.engine, spec.spark.engine_args)


def job_of(spec: MigrationSpec, folder: Path) -> SparkJob:
    """Return a job as the operators make it, with a secret that the recipe has to have a place for."""
    return make_job(
        folder,
        migration_id=spec.migration_id,
        conf=spec.spark.conf,
        secret_environment={KEY_VARIABLE: SECRET},
        staging=f"{spec.storage.journal}/{spec.migration_id}/spark",
    )


def run(engine: SparkEngine, job: SparkJob) -> str:
    """Submit a job twice, look at it, cancel it; return its id."""
    job_id = engine.submit(job)
    assert engine.submit(job) == job_id
    assert engine.status(job_id).state is JobState.PENDING
    engine.cancel(job_id)
    assert engine.links(job_id) is not None
    return job_id


@pytest.mark.parametrize("title", ["Dataproc", "Databricks", "Kubernetes"])
def test_the_arguments_of_the_page_are_all_that_there_are(title: str) -> None:
    _, engine = recipe(title)
    text = section(title)
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == set(type(engine.arguments).model_fields)  # type: ignore[attr-defined]


def test_kubernetes(needs: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    needs("airflow.providers.cncf.kubernetes", "apache-airflow-providers-cncf-kubernetes")
    spec, engine = recipe("Kubernetes")
    with SimulatedKubernetes().running() as api:
        monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", api.connection(None))
        engine.submit(job_of(spec, tmp_path))
        api.say(TOKEN, "FAILED")
        engine.status(f"kafka-migration/{TOKEN}/uid-1")
        api.say(TOKEN, "SUBMITTED")
        run(engine, job_of(spec, tmp_path))
        assert_hidden([(item.path, item.body) for item in api.requests])
        role = blocks(section("Kubernetes"), "yaml")[1]
        allowed = {(item, verb) for rule in role["rules"] for item in rule["resources"] for verb in rule["verbs"]}
        assert {asked(item.method, item.path) for item in api.requests} == allowed
        assert {item.path.split("/namespaces/")[1].split("/")[0] for item in api.requests} == {
            role["metadata"]["namespace"]
        }


def test_kubernetes_with_a_secret_of_the_engines_own(
    needs: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    needs("airflow.providers.cncf.kubernetes", "apache-airflow-providers-cncf-kubernetes")
    spec, _ = recipe("Kubernetes")
    engine = make_engine("kubernetes", {**spec.spark.engine_args, "secret_variables": {}})
    with SimulatedKubernetes().running() as api:
        monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", api.connection(None))
        # An attempt that died after the Secret makes the next one list and update it.
        labels = {"kafka-migration/token": TOKEN}
        api.secrets[("kafka-migration", TOKEN)] = {"kind": "Secret", "metadata": {"name": TOKEN, "labels": labels}}
        engine.submit(job_of(spec, tmp_path))
        used = {asked(item.method, item.path) for item in api.requests if "/secrets" in item.path}
    (rule,) = blocks(section("Kubernetes"), "yaml")[2]
    assert used == {(item, verb) for item in rule["resources"] for verb in rule["verbs"]}


def asked(method: str, path: str) -> tuple[str, str]:
    """Return the resource and the verb of a request, as Kubernetes' roles name them."""
    resource, *rest = path.split("/namespaces/")[1].split("/")[1:]
    if rest[1:] == ["log"]:
        resource = f"{resource}/log"
    verbs = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
    return resource, verbs.get(method, "get" if rest else "list")


def test_databricks(needs: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    needs("airflow.providers.databricks", "apache-airflow-providers-databricks")
    spec, engine = recipe("Databricks")
    with SimulatedDatabricks().running() as api:
        monkeypatch.setenv("AIRFLOW_CONN_DATABRICKS_DEFAULT", api.connection())
        run(engine, job_of(spec, tmp_path))
        (task,) = api.runs[100]["tasks"]
        variables = task["new_cluster"]["spark_env_vars"]
        assert variables[KEY_VARIABLE] == "{{secrets/kafka-migration/sealing-key}}"
        assert_hidden([(item.path, item.body) for item in api.requests])


def test_dataproc(needs: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    needs("airflow.providers.google", "apache-airflow-providers-google")
    from google.cloud.dataproc_v1.services.batch_controller.transports import grpc as transport

    spec, engine = recipe("Dataproc")
    with ExitStack() as stack:
        storage = stack.enter_context(SimulatedStorage().running())
        api = stack.enter_context(SimulatedDataproc().running())
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
        extra = {"is_anonymous": True}
        connection = json.dumps({"conn_type": "google_cloud_platform", "extra": extra})
        monkeypatch.setenv("AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT", connection)
        monkeypatch.setattr(transport.grpc_helpers, "create_channel", api.channel)
        job_id = run(engine, job_of(spec, tmp_path))
        api.say(job_id, "FAILED", "x", "gs://example-spark-code/out/driveroutput")
        storage.objects[("example-spark-code", "out/driveroutput.000000000")] = b"the end"
        assert engine.status(job_id).log_tail == ("the end",)
        assert_hidden(str(api.requests), repr([item.body for item in storage.requests]))
        calls = {"create": "dataproc.batches.create", "get": "dataproc.batches.get"}
        calls["cancel"] = "dataproc.operations.cancel"
        used = {calls[name] for name, _ in api.requests}
        objects = {"POST": "storage.objects.create", "GET": "storage.objects.get"}
        for item in storage.requests:
            used.add(
                "storage.objects.list" if item.path.endswith("/o") and item.method == "GET" else objects[item.method]
            )
    role = blocks(section("Dataproc"), "yaml")[1]
    assert used == set(role["includedPermissions"])
