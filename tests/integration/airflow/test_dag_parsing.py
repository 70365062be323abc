"""The DAG files in a fresh Python process, as the DAG processor and the tasks have one."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_kafka_migration.dag import build_migration_dag
from airflow_provider_kafka_migration.provider.preload import TASK_MODULES

pytestmark = pytest.mark.integration

DAGS = Path(__file__).parents[3] / "dags"

# One process answers all questions, because Airflow takes seconds to start. Its sockets and connections are broken from
# the start: whatever uses them at parse time or on import becomes an error.
_SCRIPT = """
import hashlib, json, socket, sys
from pathlib import Path

def refuse(*args, **kwargs):
    raise AssertionError("the network was used at parse time")

socket.socket.connect = refuse
socket.create_connection = refuse
socket.getaddrinfo = refuse
from airflow.sdk import BaseHook, Variable
BaseHook.get_connection = classmethod(refuse)
Variable.get = classmethod(refuse)

from airflow_provider_kafka_migration.provider.preload import preload
preloaded = preload()
imported = list(sys.modules)

import structlog
from airflow.dag_processing.dagbag import DagBag
from airflow.dag_processing.processor import DagFileParseRequest, _parse_file
from airflow.serialization.serialized_objects import DagSerialization
from airflow_provider_kafka_migration.dag import build_migration_dag

dags, bundle, spec = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
bag = DagBag(dags)
request = DagFileParseRequest(
    file=str(bundle / "from_yaml.py"), bundle_path=bundle, bundle_name="test", callback_requests=[]
)
parsed = _parse_file(request, structlog.get_logger())
serialised = json.dumps(DagSerialization.to_dict(build_migration_dag(spec)), sort_keys=True)
print("FOUND " + json.dumps({
    "preloaded": preloaded,
    "imported": imported,
    "dags": sorted(bag.dag_ids),
    "dag_errors": bag.import_errors,
    "bundle_dags": [dag.dag_id for dag in parsed.serialized_dags],
    "bundle_errors": parsed.import_errors,
    "digest": hashlib.sha256(serialised.encode()).hexdigest(),
}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, minimal_spec: dict[str, Any]) -> dict[str, Any]:
    """What the process prints: see the end of its script."""
    bundle = tmp_path_factory.mktemp("bundle")
    specs = {
        "good": {**minimal_spec, "migration_id": "good"},
        "typo": {**minimal_spec, "migration_id": "typo", "sorce": {}},
        "twice": {**minimal_spec, "migration_id": "good"},
        "mirrors": {
            "clusters": {"a": {"conn_id": "kafka_a"}, "b": {"conn_id": "kafka_b"}},
            "storage": minimal_spec["storage"],
            "flows": {"a->b": {}, "b->c": {}},
        },
    }
    (bundle / "specs").mkdir()
    for name, spec in specs.items():
        (bundle / "specs" / f"{name}.yaml").write_text(yaml.safe_dump(spec))
    (bundle / "from_yaml.py").write_text(
        "# airflow dag\nfrom pathlib import Path\n"
        "from airflow_provider_kafka_migration.dag import load_migration_dags\n"
        "from airflow_provider_kafka_migration.mirror_dag import load_mirror_dags\n"
        "load_migration_dags(globals(), Path(__file__).parent / 'specs')\n"
        "load_mirror_dags(globals(), Path(__file__).parent / 'specs')\n"
    )
    # Another hash seed than here, as every DAG processor has one.
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(DAGS), str(bundle), json.dumps(minimal_spec)],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    answer: dict[str, Any] = json.loads(line.removeprefix("FOUND "))
    return answer


def test_serialises_equal_in_another_process(found: dict[str, Any], minimal_spec: dict[str, Any]) -> None:
    data = json.dumps(DagSerialization.to_dict(build_migration_dag(minimal_spec)), sort_keys=True)
    assert found["digest"] == hashlib.sha256(data.encode()).hexdigest()


def test_dag_files_parse_without_connections_and_network(found: dict[str, Any]) -> None:
    assert not found["dag_errors"]
    assert found["dags"] == [
        "example_kafka_migration_group",
        *("kafka_migration", "kafka_migration_rollback", "kafka_migration_way_back"),
        "kafka_mirror",
        "kafka_mirror_verify",
    ]


def test_a_bad_file_is_an_import_error_of_its_own_and_hides_no_other(found: dict[str, Any]) -> None:
    """What Airflow's DAG processor makes of it, in its own function."""
    assert sorted(found["bundle_dags"]) == ["kafka_migration_good", "kafka_mirror_a-to-b"]
    errors = found["bundle_errors"]
    assert sorted(errors) == ["specs/mirrors.yaml", "specs/twice.yaml", "specs/typo.yaml"]
    assert "c not in clusters" in errors["specs/mirrors.yaml"]
    assert "sorce" in errors["specs/typo.yaml"]
    assert "good.yaml" in errors["specs/twice.yaml"]


def test_preloaded_modules_are_what_a_task_imports(found: dict[str, Any]) -> None:
    """After the preload, opening a migration imports nothing large."""
    assert found["preloaded"] == list(TASK_MODULES)
    wanted = {"boto3", "kafka.protocol", "pydantic", "airflow_provider_kafka_migration.phases.floor_guard"}
    assert wanted <= set(found["imported"])
    assert not {"numpy", "pyarrow", "pyspark"} & set(found["imported"]), "a task needs no data plane"
