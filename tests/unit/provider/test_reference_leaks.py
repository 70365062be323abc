"""Searches for secrets where they must not be, for each way in which connections get to Spark's processes.

Each secret contains a mark. A child process stands for Spark's driver: it reads its arguments with the driver's own
code and pickles what it ships to executors. While it lives, the argument lists of all processes are searched, and
afterwards all that is left: logs, outputs, the journal's store, the private folder.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest
from secret_servers import GoogleSecretManager, HttpServer, Vault, service_account

from airflow_provider_kafka_migration.operators.migration import KafkaMigrationPlanOperator, KafkaMigrationSeedOperator
from airflow_provider_kafka_migration.provider.job_references import SparkPlace, job_references
from airflow_provider_kafka_migration.record.context import JobRef
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.references.sealing import KEY_VARIABLE, Binding, PrivateKey
from airflow_provider_kafka_migration.spark.worker import JobReferences
from airflow_provider_kafka_migration.spec import parse_spec
from harness.processes import wait_for

pytestmark = pytest.mark.slow

MARK = f"mark{uuid.uuid4().hex}"
PAIR = PrivateKey.new()
SOURCE = {"bootstrap.servers": "a:1", "sasl.password": f"{MARK}-source"}
TARGET = {"bootstrap.servers": "b:1", "sasl.password": f"{MARK}-target"}
ROOT = Path(__file__).parents[3]

#: Reads the arguments as a driver does, pickles what it would ship, uses it as an executor would, and then waits.
DRIVER = """\
import hashlib, json, logging, sys
from pathlib import Path
from pyspark import cloudpickle
from airflow_provider_kafka_migration.spark import main, worker

logging.basicConfig(level=logging.DEBUG)
arguments = main.parse_arguments(sys.argv[2:], "driver")
logging.info("arguments: %r", arguments)
shipped = cloudpickle.dumps(worker.make_copy_slice(arguments.pointer, [0]))
Path(sys.argv[1], "shipped").write_bytes(shipped + cloudpickle.dumps(arguments.pointer.refreshed()))
pointer = cloudpickle.loads(cloudpickle.dumps(arguments.pointer))
secrets = pointer.references.resolve()
digests = {role: hashlib.sha256(json.dumps(secrets[role]).encode()).hexdigest() for role in ("source", "target")}
Path(sys.argv[1], "digests.json").write_text(json.dumps(digests))
print("ready", flush=True)
sys.stdin.read()
"""


@dataclass
class Mode:
    """One way for connections.

    :param spec: what the spec says about it.
    :param environment: what the platform gives the driver's machine.
    :param has_secrets: whether that environment holds connections, by design.
    """

    spec: dict[str, Any]
    place: SparkPlace
    environment: dict[str, str] = field(default_factory=dict)
    has_secrets: bool = False
    resolver: Resolver = field(
        default_factory=lambda: Resolver({"airflow": lambda name: json.dumps({"a": SOURCE, "b": TARGET}[name])})
    )


REMOTE = SparkPlace(False, "yarn", PAIR.public.text)


def _file(_: Path) -> Mode:
    return Mode({}, SparkPlace(True, "local"))


def _env(_: Path) -> Mode:
    given = {"KAFKA_MIGRATION_SOURCE": json.dumps(SOURCE), "KAFKA_MIGRATION_TARGET": json.dumps(TARGET)}
    return Mode({"spark": {"executor_references": "env"}}, REMOTE, given, has_secrets=True)


def _sealed(_: Path) -> Mode:
    return Mode({"spark": {"executor_references": "sealed"}}, REMOTE, {KEY_VARIABLE: PAIR.text})


def _sealed_object(folder: Path) -> Mode:
    mode = _sealed(folder)
    long = {"ssl.ca.pem": f"{MARK}{os.urandom(5000).hex()}"}
    mode.resolver = Resolver({"airflow": lambda name: json.dumps({"a": SOURCE | long, "b": TARGET | long}[name])})
    return mode


def _sealed_with_key_in_a_file(folder: Path) -> Mode:
    file = folder / "private-key"
    file.write_text(PAIR.text)
    file.chmod(0o600)
    return Mode({"spark": {"executor_references": "sealed"}}, REMOTE, {KEY_VARIABLE: f"file:{file}"})


def _files_of_the_machine(folder: Path) -> Mode:
    for name, keys in (("a", SOURCE), ("b", TARGET)):
        (folder / name).write_text(json.dumps(keys))
        (folder / name).chmod(0o600)
    return Mode({"source": {"conn_id": f"file:{folder}/a"}, "target": {"conn_id": f"file:{folder}/b"}}, REMOTE)


WAYS = [_file, _env, _sealed, _sealed_object, _sealed_with_key_in_a_file, _files_of_the_machine]


def processes_with(mark: str) -> list[int]:
    """Return the processes of this machine that have a text in their argument list."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def files_with(mark: str, folder: Path) -> list[Path]:
    """Return the files below a folder that contain a text."""
    return [path for path in folder.rglob("*") if path.is_file() and mark.encode() in path.read_bytes()]


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts the driver with an argument, and returns the process once it has read and pickled everything."""
    started: list[subprocess.Popen[str]] = []

    def start(argument: str, location: str, environment: dict[str, str]) -> subprocess.Popen[str]:
        known = {key: value for key, value in os.environ.items() if MARK not in value}
        child = subprocess.Popen(
            [
                *(sys.executable, "-c", DRIVER, str(tmp_path), "--job-location", location),
                *("--job-key", "orders/jobs/seed.json", "--references", argument),
            ],
            env={**known, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(tmp_path / "driver.log").open("w"),
            text=True,
        )
        started.append(child)
        assert child.stdout is not None
        line = child.stdout.readline()
        assert line == "ready\n", (tmp_path / "driver.log").read_text()
        return child

    yield start
    for child in started:
        child.communicate(timeout=60)


def test_the_search_finds_what_is_there(tmp_path: Path) -> None:
    """Otherwise none of the searches below means anything."""
    program = "print('ready', flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", program, f"{MARK}-planted"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        # Popen returns when exec has closed the pipe of errors, which is before /proc shows the new arguments.
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert processes_with(f"{MARK}-planted") == [child.pid]
    finally:
        child.communicate(b"\n", timeout=60)
    (tmp_path / "x").write_text(f"..{MARK}..")
    assert files_with(MARK, tmp_path) == [tmp_path / "x"]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.strip("_"))
def test_no_secret_is_where_it_must_not_be(
    way: Callable[[Path], Mode],
    minimal_spec: dict[str, Any],
    tmp_path: Path,
    driver: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    (own := tmp_path / "machine").mkdir()
    mode = way(own)
    location = (tmp_path / "store").as_uri()
    minimal_spec |= {"source": {"conn_id": "a"}, "target": {"conn_id": "b"}, "storage": {"journal": location}}
    spec = parse_spec({**minimal_spec, **mode.spec})
    folder = tmp_path / "private"
    with job_references(spec, mode.resolver, place=mode.place, job="seed", token="seed-1", folder=folder) as argument:
        child = driver(argument, location, mode.environment)
        environment = Path(f"/proc/{child.pid}/environ").read_bytes()
        assert processes_with(MARK) == []
        assert processes_with(PAIR.text) == []
        assert (MARK.encode() in environment) is mode.has_secrets
        assert {path.name for path in files_with(MARK, folder)} == ({"references.json"} if way is _file else set())
    _, rest = child.communicate(timeout=60)

    digests = json.loads((tmp_path / "digests.json").read_text())
    assert set(digests) == {"source", "target"}
    assert len(set(digests.values())) == 2, "the driver has got two connections, so there was something to leak"
    shipped = (tmp_path / "shipped").read_bytes()
    assert b"JobPointer" in shipped
    for secret in (MARK, PAIR.text):
        assert secret.encode() not in shipped
        assert secret not in f"{rest}{(tmp_path / 'driver.log').read_text()}{caplog.text}{argument}"
        assert [path for path in files_with(secret, tmp_path) if own not in path.parents] == []
    assert not folder.exists()


def test_secrets_of_a_store_are_only_in_memory(
    minimal_spec: dict[str, Any], tmp_path: Path, driver: Callable[..., Any], s3_in_process: Any
) -> None:
    """``secretsmanager:`` and ``ssm:`` with moto over HTTP: the driver reads them with the identity of its machine."""
    config = s3_in_process.config
    machine = {
        "AWS_ENDPOINT_URL": config.endpoint_url,
        "AWS_ACCESS_KEY_ID": config.aws_access_key_id,
        "AWS_SECRET_ACCESS_KEY": config.aws_secret_access_key,
        "AWS_REGION": "us-east-1",
    }
    session = boto3.session.Session(config.aws_access_key_id, config.aws_secret_access_key, region_name="us-east-1")
    options = {"endpoint_url": config.endpoint_url}
    session.client("secretsmanager", **options).create_secret(Name=MARK[4:], SecretString=json.dumps({"x": SOURCE}))
    session.client("ssm", **options).put_parameter(Name=f"/{MARK[4:]}", Value=json.dumps(TARGET), Type="SecureString")
    location = (tmp_path / "store").as_uri()
    minimal_spec |= {"source": {"conn_id": f"secretsmanager:{MARK[4:]}#x"}, "storage": {"journal": location}}
    minimal_spec |= {"target": {"conn_id": f"ssm:/{MARK[4:]}"}}
    with job_references(
        parse_spec(minimal_spec), Resolver(), place=REMOTE, job="seed", token="seed-1", folder=tmp_path / "private"
    ) as argument:
        assert argument == f"inline:source=secretsmanager:{MARK[4:]}%23x,target=ssm:/{MARK[4:]}"
        child = driver(argument, location, machine)
        assert processes_with(f"{MARK}-") == []
        assert MARK.encode() not in Path(f"/proc/{child.pid}/environ").read_bytes()
    child.communicate(timeout=60)
    assert len(set(json.loads((tmp_path / "digests.json").read_text()).values())) == 2
    assert files_with(f"{MARK}-", tmp_path) == []


@pytest.mark.parametrize("store", ["vault", "gcp-sm"])
def test_secrets_of_other_stores_are_only_in_memory(
    store: str, minimal_spec: dict[str, Any], tmp_path: Path, driver: Callable[..., Any]
) -> None:
    """Vault and Google Secret Manager in their wire formats; the driver has only the login of its machine."""
    (own := tmp_path / "machine").mkdir()
    answers: Vault | GoogleSecretManager
    if store == "vault":
        pytest.importorskip("hvac")
        answers = Vault({"kafka/a": [SOURCE], "kafka/b": [TARGET]})
        references = ["vault:secret/kafka/a", "vault:secret/kafka/b"]
    else:
        pytest.importorskip("google.cloud.secretmanager_v1")
        versions = {"a": SOURCE, "b": TARGET}
        answers = GoogleSecretManager(
            {f"projects/p/secrets/{name}/versions/latest": json.dumps(keys).encode() for name, keys in versions.items()}
        )
        references = ["gcp-sm:p/a", "gcp-sm:p/b"]
    location = (tmp_path / "store").as_uri()
    minimal_spec |= {"source": {"conn_id": references[0]}, "target": {"conn_id": references[1]}}
    minimal_spec |= {"storage": {"journal": location}}
    with HttpServer(answers) as server:
        machine = {
            "VAULT_ADDR": server.url,
            "VAULT_TOKEN": Vault().token,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER": server.url,
            "GOOGLE_APPLICATION_CREDENTIALS": str(service_account(own, server.url)),
        }
        with job_references(
            parse_spec(minimal_spec), Resolver(), place=REMOTE, job="seed", token="seed-1", folder=tmp_path / "private"
        ) as argument:
            assert argument == f"inline:source={references[0]},target={references[1]}"
            child = driver(argument, location, machine)
            assert processes_with(MARK) == []
            assert MARK.encode() not in Path(f"/proc/{child.pid}/environ").read_bytes()
        child.communicate(timeout=60)
        assert server.requests, "the driver has asked the store"
    assert len(set(json.loads((tmp_path / "digests.json").read_text()).values())) == 2
    assert files_with(MARK, tmp_path) == []


# --- operators ------------------------------------------------------------------------------------------------------

#: Stands for spark-submit: notes what it gets.
FAKE = """\
#!{python}
import json, os, pathlib, sys
pathlib.Path({folder!r}, "seen.json").write_text(json.dumps({{"argv": sys.argv}}))
"""


TOKEN = "seed-1"


class _TaskInstance:
    dag_id, run_id, task_id = "kafka_migration", "manual__1", "seed"


@pytest.fixture
def airflow_of_a_cluster(
    connection: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Connections in Airflow, Spark on YARN, a sealing key in the configuration; returns a spec."""
    binary = tmp_path / "bin" / "spark-submit"
    binary.parent.mkdir()
    binary.write_text(FAKE.format(python=sys.executable, folder=str(tmp_path)))
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", f"{binary.parent}:{os.environ['PATH']}")
    connection("spark_default", conn_type="spark", host="yarn")
    connection("kafka_source", conn_type="kafka", extra=SOURCE)
    connection("kafka_target", conn_type="kafka", extra=TARGET)
    monkeypatch.setenv("AIRFLOW__KAFKA_MIGRATION__SECRETS_DIRECTORY", str(tmp_path / "secrets"))
    monkeypatch.setenv("AIRFLOW__KAFKA_MIGRATION__SEALING_KEY", PAIR.public.text)
    return {
        "migration_id": "orders",
        "source": {"conn_id": "kafka_source"},
        "target": {"conn_id": "kafka_target"},
        "topics": {"include": ["orders"]},
        "storage": {"journal": (tmp_path / "store").as_uri()},
    }


def _seed(spec: dict[str, Any]) -> KafkaMigrationSeedOperator:
    operator = KafkaMigrationSeedOperator(task_id="seed", spec=spec)
    context: Any = {"ti": _TaskInstance(), "params": {}}
    runner = operator.make_runner(context, parse_spec(spec))
    job = JobRef("seed", spec["storage"]["journal"], "orders/jobs/seed.json")
    with runner.make_job(job, TOKEN) as described:
        job_id = runner.engine.submit(described)
        wait_for("the driver's end", lambda: runner.engine.status(job_id).state.is_over, 60)
    return operator


def test_an_operator_seals_airflow_s_connections_for_a_cluster(
    airflow_of_a_cluster: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    operator = _seed(airflow_of_a_cluster)
    argv = json.loads((tmp_path / "seen.json").read_text())["argv"]
    argument = argv[argv.index("--references") + 1]
    assert argument.startswith("sealed:v1.")
    shown = [getattr(operator, name) for name in operator.template_fields]
    for secret in (MARK, PAIR.text):
        assert secret not in f"{argv}{caplog.text}{shown}"
        assert files_with(secret, tmp_path) == []
    monkeypatch.setenv(KEY_VARIABLE, PAIR.text)
    location = airflow_of_a_cluster["storage"]["journal"]
    found = JobReferences.open(argument, location=location, binding=Binding("orders", "seed", TOKEN)).resolve()
    assert found["source"] == SOURCE


def test_a_plan_is_refused_before_anything_is_written(
    airflow_of_a_cluster: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_kafka_migration.errors import ReferencesUnfit

    monkeypatch.delenv("AIRFLOW__KAFKA_MIGRATION__SEALING_KEY")
    operator = KafkaMigrationPlanOperator(task_id="plan", spec=airflow_of_a_cluster)
    context: Any = {"ti": _TaskInstance(), "params": {}, "dag": None}
    with pytest.raises(ReferencesUnfit, match="master yarn") as caught:
        operator.execute(context)
    assert MARK not in str(caught.value)
    assert not (tmp_path / "store").exists()
