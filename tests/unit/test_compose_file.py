"""docker-compose.yaml: what `docker compose config` checks, and what it does not."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.spec import load_spec
from airflow_provider_kafka_migration.storage.s3 import S3Config

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yaml"

_TEXTS = {"type": "array", "items": {"type": "string"}}
_COMMAND = {"anyOf": [{"type": "string"}, _TEXTS]}
#: The part of the Compose specification that the file uses. Unknown keys are mistakes, as they are for Compose.
_SERVICE = {
    "type": "object",
    "additionalProperties": False,
    "required": ["image"],
    "properties": {
        "image": {"type": "string"},
        "build": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "context": {"type": "string"},
                "dockerfile": {"type": "string"},
                "args": {"type": "object", "additionalProperties": {"type": "string"}},
            },
        },
        "command": _COMMAND,
        "entrypoint": _COMMAND,
        "environment": {"type": "object", "additionalProperties": {"type": "string"}},
        "expose": _TEXTS,
        "ports": _TEXTS,
        "profiles": _TEXTS,
        "restart": {"enum": ["no", "always", "on-failure", "unless-stopped"]},
        "user": {"type": "string"},
        "volumes": _TEXTS,
        "healthcheck": {
            "type": "object",
            "additionalProperties": False,
            "required": ["test"],
            "properties": {
                "test": {"type": "array", "prefixItems": [{"enum": ["CMD", "CMD-SHELL"]}], "minItems": 2},
                "interval": {"type": "string", "pattern": r"^\d+(s|m)$"},
                "timeout": {"type": "string", "pattern": r"^\d+(s|m)$"},
                "start_period": {"type": "string", "pattern": r"^\d+(s|m)$"},
                "retries": {"type": "integer"},
            },
        },
        "depends_on": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "additionalProperties": False,
                "required": ["condition"],
                "properties": {
                    "condition": {"enum": ["service_started", "service_healthy", "service_completed_successfully"]}
                },
            },
        },
    },
}
_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["services"],
    "patternProperties": {"^x-": {}},
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]*$"},
        "services": {"type": "object", "additionalProperties": _SERVICE},
        "volumes": {"type": "object", "additionalProperties": {"type": ["object", "null"]}},
    },
}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The file, anchors and merges resolved."""
    loaded: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return loaded


def test_the_file_has_the_shape_that_compose_accepts(compose: dict[str, Any]) -> None:
    jsonschema.validate(compose, _SCHEMA)


def test_compose_itself_accepts_the_file() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True).returncode:
        pytest.skip("no Compose client here; the structure is checked by the other tests")
    done = subprocess.run([docker, "compose", "-f", str(FILE), "config", "--quiet"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_services_are_those_of_airflows_own_file_plus_the_clusters(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == {
        "postgres",
        "airflow-init",
        "airflow-apiserver",
        "airflow-scheduler",
        "airflow-dag-processor",
        "airflow-triggerer",
        "airflow-cli",
        "zookeeper",
        "source",
        "target",
        "s3",
        "registry-source",
        "registry-target",
        "spark-master",
        "spark-worker",
        "trial-data",
    }


def test_dependencies_exist_and_can_be_fulfilled(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, service in services.items():
        for other, wanted in service.get("depends_on", {}).items():
            assert other in services, f"{name} depends on {other}"
            if wanted["condition"] == "service_healthy":
                assert "healthcheck" in services[other], f"{name} waits for the health of {other}"
            if wanted["condition"] == "service_completed_successfully":
                assert "restart" not in services[other], f"{name} waits for the end of {other}, which is restarted"


def test_dependencies_have_no_cycle(compose: dict[str, Any]) -> None:
    left = {name: set(service.get("depends_on", {})) for name, service in compose["services"].items()}
    while left:
        free = {name for name, needs in left.items() if not needs & left.keys()}
        assert free, f"a cycle among {sorted(left)}"
        left = {name: needs for name, needs in left.items() if name not in free}


def test_mounted_files_and_volumes_exist(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for volume in service.get("volumes", []):
            place = re.sub(r"\$\{[A-Z_]+:-([^}]*)\}", r"\1", volume).split(":")[0]
            if place.startswith("."):
                assert (ROOT / place).exists(), f"{name} mounts {place}"
            else:
                assert place in compose["volumes"], f"{name} mounts the volume {place}"


def test_published_ports_are_on_loopback(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_images_can_be_chosen_by_variables_and_have_a_version(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        default = re.sub(r"\$\{[A-Z0-9_]+:-([^}]*)\}", r"\1", service["image"])
        assert ":" in default, f"{name} has no version"
        assert not default.endswith(":latest")


def test_connections_are_json_that_the_provider_accepts(compose: dict[str, Any]) -> None:
    environment = compose["services"]["airflow-scheduler"]["environment"]
    connections = {
        name.removeprefix("AIRFLOW_CONN_").lower(): json.loads(text)
        for name, text in environment.items()
        if name.startswith("AIRFLOW_CONN_")
    }
    spec = load_spec(ROOT / "docker" / "migrations" / "trial.yaml")
    settings = {
        reference: json.loads(environment[str(reference).removeprefix("env:")])
        for reference in (
            spec.source.conn_id,
            spec.target.conn_id,
            spec.storage.conn_id,
            spec.schemas.source,
            spec.schemas.target,
        )
    }
    for cluster in (spec.source, spec.target):
        assert ClientConfig.from_librdkafka(settings[cluster.conn_id], cluster.conn_id).bootstrap
    assert S3Config.from_dict(settings[spec.storage.conn_id]).endpoint_url
    for registry in (spec.schemas.source, spec.schemas.target):
        assert settings[registry]["url"].startswith("http://registry-")
    assert spec.spark.conn_id in connections
    worker = compose["services"]["spark-worker"]["environment"]
    assert all(
        worker[name.removeprefix("env:")] == environment[name.removeprefix("env:")] for name in map(str, settings)
    )
    assert spec.evidence.signing_key == "airflow:evidence_key"
    assert len(bytes.fromhex(connections["evidence_key"]["password"])) == 32


def test_the_image_is_built_once_and_the_dockerfile_takes_its_arguments(compose: dict[str, Any]) -> None:
    built = {name: service["build"] for name, service in compose["services"].items() if "build" in service}
    assert set(built) == {"airflow-init"}
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    for argument in built["airflow-init"]["args"]:
        assert f"ARG {argument}" in text
