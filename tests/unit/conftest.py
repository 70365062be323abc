"""What unit tests share: stores, an S3 server in this process, a small spec, Airflow connections."""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import boto3
import botocore.loaders
import botocore.session
import certifi
import pytest
import typer.main
import typer.testing
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer

from airflow_provider_kafka_migration.storage.base import ObjectStore
from airflow_provider_kafka_migration.storage.local import LocalStore
from airflow_provider_kafka_migration.storage.s3 import S3Config, S3Store
from harness.certificates import Authority

#: The folders whose tests count for the coverage that ``make test-fast`` checks.
_COVERED = {"copy", "phases"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Trace only tests that count: tracing makes others slower for nothing.

    Property tests take the same lines hundreds of times, so they are not traced either; of a test with parameters, only
    its first run is.
    """
    folder = Path(__file__).parent
    traced: set[object] = set()
    for item in items:
        test = getattr(item, "obj", None)
        counts = item.path.is_relative_to(folder) and item.path.relative_to(folder).parts[0] in _COVERED
        if not counts or getattr(test, "is_hypothesis_test", False) or test in traced:
            item.add_marker("no_cover")
        traced.add(test)


@pytest.fixture(autouse=True)
def _confirm_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a second time about a missing schema id almost at once: no registry here lags behind itself."""
    synchronization = sys.modules.get("airflow_provider_kafka_migration.schemas.sync")
    if synchronization is not None:
        monkeypatch.setattr(synchronization, "CONFIRM_SECONDS", 0.02)


@pytest.fixture(autouse=True)
def _settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let triggers fire immediately: here no scheduler has to hear of a deferral."""
    settled = sys.modules.get("airflow_provider_kafka_migration.triggers.settled")
    if settled is not None:
        monkeypatch.setattr(settled.SettledTrigger, "SETTLE_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def _one_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the Airflow of the tests of tasks, which have no API to read a Variable from."""
    monkeypatch.setenv("AIRFLOW_VAR_KAFKA_MIGRATION_INSTALLATION_ID", "tests")


@pytest.fixture(autouse=True)
def _read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call a journal tampered with at the first look: no store here is late with an object that it lists."""
    entries = sys.modules.get("airflow_provider_kafka_migration.journal.entries")
    if entries is not None:
        monkeypatch.setattr(entries, "READ_AGAIN_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def _no_look_at_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's AWS hook names its caller in the user agent, and reads the sources of the whole stack for it."""
    hooks = sys.modules.get("airflow.providers.amazon.aws.hooks.base_aws")
    if hooks is not None:
        monkeypatch.setattr(hooks.AwsGenericHook, "_get_caller", lambda *_: "Unknown")


@pytest.fixture(scope="session", autouse=True)
def _one_loader() -> Iterator[None]:
    """Parse botocore's descriptions of services once: without it, each session of a test reads megabytes of JSON."""
    loader = botocore.loaders.create_loader()
    with pytest.MonkeyPatch.context() as patch:
        # Where sessions call it: they import the function itself.
        patch.setattr(botocore.session, "create_loader", lambda _search_path=None: loader)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_command_line() -> Iterator[None]:
    """Build the commands of an app once, as each process of the command line does, and not for each call of a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Trust one authority instead of the public ones: each client of a registry reads their 150 certificates.

    The environment goes before certifi where it names a file: for the client, for httpx, and for Python's defaults.
    """
    authority = Authority(tmp_path_factory.mktemp("authority"), "authority of the unit tests")
    authority.create()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certifi, "where", lambda: str(authority.certificate))
        patch.setenv("SSL_CERT_FILE", str(authority.certificate))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_flushing() -> Iterator[None]:
    """A power cut cannot be tested here, and waiting for the disk makes nothing truer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@dataclass(frozen=True)
class S3Server:
    """A moto server on loopback."""

    config: S3Config

    @cached_property
    def _client(self) -> Any:
        return boto3.client("s3", **self.config.to_dict())

    def client(self) -> Any:
        """A plain boto3 client, to look at things from outside."""
        return self._client

    def bucket(self, *, object_lock: bool = False) -> str:
        """A new empty bucket."""
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        self.client().create_bucket(Bucket=name, ObjectLockEnabledForBucket=object_lock)
        return name


@pytest.fixture(scope="session")
def s3_in_process() -> Iterator[S3Server]:
    """moto's S3 over HTTP in a thread; conditional puts made atomic, which S3 guarantees and moto does not."""
    patch = pytest.MonkeyPatch()
    lock = threading.Lock()
    original = S3Response.put_object

    def one_at_a_time(self: S3Response, *args: Any, **kwargs: Any) -> Any:
        with lock:
            return original(self, *args, **kwargs)

    patch.setattr(S3Response, "put_object", one_at_a_time)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield S3Server(
            S3Config(
                endpoint_url=f"http://{host}:{port}",
                aws_access_key_id="unit-test-key",
                aws_secret_access_key="unit-test-secret",
                region_name="us-east-1",
            )
        )
    finally:
        server.stop()
        patch.undo()


@pytest.fixture
def local_store(tmp_path: Path) -> LocalStore:
    """A store in a new folder."""
    return LocalStore(tmp_path / "store")


@pytest.fixture
def s3_store(s3_in_process: S3Server) -> S3Store:
    """A store in a new bucket, with a prefix."""
    return S3Store(s3_in_process.config, s3_in_process.bucket(), "some/prefix")


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    """Both kinds of store, one after the other."""
    found: ObjectStore = request.getfixturevalue(f"{request.param}_store")
    return found


MINIMAL: dict[str, Any] = {
    "migration_id": "orders",
    "source": {"conn_id": "kafka_source"},
    "target": {"conn_id": "kafka_target"},
    "storage": {"conn_id": "aws_s3", "journal": "s3://bucket/migrations", "evidence": "s3://evidence/bundles"},
}


@pytest.fixture
def minimal_spec() -> dict[str, Any]:
    """The smallest useful spec."""
    return {key: dict(value) if isinstance(value, dict) else value for key, value in MINIMAL.items()}


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Defines an Airflow connection for this test: ``connection("id", conn_type="kafka", extra={...})``."""

    def define(conn_id: str, **fields: Any) -> None:
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(fields))

    return define
