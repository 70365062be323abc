"""An ``aws`` connection with a role: its keys end after an hour, and a migration runs for days."""

from __future__ import annotations

import asyncio
import json
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_provider_kafka_migration import migration as core
from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.errors import ConnectionInvalid, StorageUnavailable, Transient
from airflow_provider_kafka_migration.migration import FreezeWatch, Migration
from airflow_provider_kafka_migration.provider import job_references as job_references_module
from airflow_provider_kafka_migration.provider.connections import airflow_resolver
from airflow_provider_kafka_migration.provider.job_references import SparkPlace, job_references
from airflow_provider_kafka_migration.references.sealing import KEY_VARIABLE, Binding, PrivateKey
from airflow_provider_kafka_migration.spark import sealed as sealed_module
from airflow_provider_kafka_migration.spark.worker import JobReferences
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.storage import s3_credentials
from airflow_provider_kafka_migration.storage.s3 import S3Config, S3Store
from airflow_provider_kafka_migration.storage.s3_credentials import KeysFile, S3Keys, write_keys
from airflow_provider_kafka_migration.triggers.freeze_limit import FreezeLimitTrigger

pytestmark = pytest.mark.slow

Define = Callable[..., None]


@pytest.fixture
def role(connection: Define, s3_in_process: Any) -> str:
    """A connection whose keys live for as long as botocore wants to have left: each use renews them."""
    config = s3_in_process.config
    connection(
        "aws_s3",
        conn_type="aws",
        login=config.aws_access_key_id,
        password=config.aws_secret_access_key,
        extra={
            "region_name": "us-east-1",
            "role_arn": "arn:aws:iam::123456789012:role/migrations",
            "assume_role_kwargs": {"DurationSeconds": 900},
            "service_config": {
                "s3": {"endpoint_url": config.endpoint_url},
                "sts": {"endpoint_url": config.endpoint_url},
            },
        },
    )
    return "aws_s3"


def _key_ids(store: S3Store) -> list[str]:
    """The key ids in the requests that really leave."""
    found: list[str] = []

    def note(request: Any, **_: Any) -> None:
        text = request.headers["Authorization"]
        text = text.decode() if isinstance(text, bytes) else text
        found.append(text.partition("Credential=")[2].partition("/")[0])

    store.client.meta.events.register("before-send.s3", note)
    return found


def test_keys_of_a_role_are_renewed_while_a_task_runs(
    role: str, s3_in_process: Any, minimal_spec: dict[str, Any]
) -> None:
    minimal_spec["storage"] = {"conn_id": role, "journal": f"s3://{s3_in_process.bucket()}/x"}
    with Migration.open(parse_spec(minimal_spec), "run", airflow_resolver(), actor="tail") as migration:
        store = migration.journal_store
        assert isinstance(store, S3Store)
        seen = _key_ids(store)
        store.put("a", b"1")
        store.put("b", b"2")
        assert store.get("a") == b"1"
    assert len(set(seen)) == 3, "every request was signed with the same keys"


def test_connection_with_plain_keys_is_renewed_by_nobody(connection: Define) -> None:
    connection("plain", conn_type="aws", login="a", password="b")
    assert airflow_resolver().renewal("plain") is None
    assert airflow_resolver().renewal("env:NAME") is None


def test_session_token_that_somebody_replaces_in_the_connection_is_taken(
    connection: Define, s3_in_process: Any, minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tail runs for days; the token of the connection that it started with expires within hours."""
    config = s3_in_process.config

    def put(key_id: str, **more: Any) -> None:
        extra = {"region_name": "us-east-1", "endpoint_url": config.endpoint_url, **more}
        connection("aws_s3", conn_type="aws", login=key_id, password="secret", extra=extra)

    put("FIRST", aws_session_token="t1")
    monkeypatch.setattr(s3_credentials, "RENEW_SECONDS", 0.0)
    minimal_spec["storage"] = {"conn_id": "aws_s3", "journal": f"s3://{s3_in_process.bucket()}/x"}
    with Migration.open(parse_spec(minimal_spec), "run", airflow_resolver(), actor="tail") as migration:
        store = migration.journal_store
        assert isinstance(store, S3Store)
        seen = _key_ids(store)
        store.put("a", b"1")
        put("SECOND", aws_session_token="t2")
        store.put("b", b"2")
        monkeypatch.delenv("AIRFLOW_CONN_AWS_S3")
        assert store.get("a") == b"1", "a connection that cannot be read now ends nothing: its keys may still hold"
    assert seen == ["FIRST", "SECOND", "SECOND"]


def test_triggerer_does_not_fetch_a_connection_again() -> None:
    found = Connection(
        conn_id="aws_s3", conn_type="aws", login="a", password="b", extra='{"aws_session_token": "token"}'
    )
    assert airflow_resolver({"aws_s3": found}).renewal("aws_s3") is None


def test_role_that_cannot_be_assumed_now_is_worth_another_try(connection: Define) -> None:
    connection(
        "aws_s3",
        conn_type="aws",
        login="a",
        password="secret-key",
        extra={
            "region_name": "us-east-1",
            "role_arn": "arn:aws:iam::123456789012:role/migrations",
            "service_config": {"sts": {"endpoint_url": "http://127.0.0.1:9"}},
            "config_kwargs": {"connect_timeout": 0.2, "retries": {"total_max_attempts": 1}},
        },
    )
    with pytest.raises(StorageUnavailable, match="could not be obtained") as caught:
        airflow_resolver().mapping("aws_s3")
    assert "secret-key" not in str(caught.value)


def test_keys_that_cannot_be_renewed_are_a_passing_error(s3_in_process: Any) -> None:
    def read() -> S3Keys:
        raise RuntimeError("the secret is in here")

    config = replace(s3_in_process.config, read_keys=read)
    store = S3Store(config, "bucket", sleep=lambda _: None)
    with pytest.raises(StorageUnavailable) as caught:
        store.get("key")
    assert "secret" not in str(caught.value)


# ---- Spark


def test_spark_gets_a_file_of_keys_that_is_replaced(
    role: str, s3_in_process: Any, minimal_spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What driver and workers do with the file of references while the task replaces the keys beside it."""
    location = f"s3://{s3_in_process.bucket()}/x"
    minimal_spec |= {"storage": {"conn_id": role, "journal": location}}
    minimal_spec |= {"source": {"conn_id": "env:A"}, "target": {"conn_id": "env:B"}}
    for name in "AB":
        monkeypatch.setenv(name, json.dumps({"bootstrap.servers": f"{name}:1"}))
    monkeypatch.setattr(s3_credentials, "RENEW_SECONDS", 0.01)
    spec, resolver = parse_spec(minimal_spec), airflow_resolver()
    folder, place = tmp_path / "private", SparkPlace(True, "local")
    with job_references(spec, resolver, place=place, job="seed", token="t1", folder=folder) as argument:
        path = Path(argument)
        assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
        assert "aws_secret_access_key" not in json.loads(path.read_text())["storage"], "those would end"
        clients = Clients.from_file(str(path))
        store = clients.store(location)
        assert isinstance(store, S3Store)
        assert clients.store(location).client is store.client, "the settings stay equal, so the client is shared"  # type: ignore[attr-defined]
        seen = _key_ids(store)
        deadline = time.monotonic() + 120
        while len(set(seen)) < 2:
            assert time.monotonic() < deadline, "the keys were never replaced"
            store.put("a", b"1")
    assert not folder.exists()


def test_plain_keys_need_no_file_of_keys(connection: Define, minimal_spec: dict[str, Any], tmp_path: Path) -> None:
    minimal_spec |= {"source": {"conn_id": "kafka_a"}, "target": {"conn_id": "kafka_b"}}
    for name in "ab":
        connection(f"kafka_{name}", conn_type="kafka", extra={"bootstrap.servers": f"{name}:1"})
    connection("aws_s3", conn_type="aws", login="a", password="b")
    spec, folder, place = parse_spec(minimal_spec), tmp_path / "private", SparkPlace(True, "local")
    with job_references(spec, airflow_resolver(), place=place, job="seed", token="t1", folder=folder) as argument:
        assert [path.name for path in folder.iterdir()] == ["references.json"]
        assert json.loads(Path(argument).read_text())["storage"]["aws_secret_access_key"] == "b"


def test_sealed_keys_of_a_role_are_renewed_where_they_are_used(
    role: str, s3_in_process: Any, minimal_spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task replaces a sealed object in the journal's store; a copier on another machine reads it again."""
    location = f"s3://{s3_in_process.bucket()}/x"
    pair = PrivateKey.new()
    minimal_spec |= {"storage": {"conn_id": role, "journal": location}, "spark": {"executor_references": "sealed"}}
    minimal_spec |= {"source": {"conn_id": "env:A"}, "target": {"conn_id": "env:B"}}
    for name in "AB":
        monkeypatch.setenv(name, json.dumps({"bootstrap.servers": f"{name}:1"}))
    monkeypatch.setattr(job_references_module, "RENEW_SECONDS", 0.01)
    monkeypatch.setattr(sealed_module, "RENEW_SECONDS", 0.0)
    monkeypatch.setattr(sealed_module, "_RENEWALS", sealed_module._Renewals())
    monkeypatch.setenv(KEY_VARIABLE, pair.text)
    spec, place = parse_spec(minimal_spec), SparkPlace(False, "yarn", pair.public.text)
    with job_references(
        spec, airflow_resolver(), place=place, job="seed", token="t1", folder=tmp_path / "private"
    ) as argument:
        binding = Binding(spec.migration_id, "seed")
        secrets = JobReferences.open(argument, location=location, binding=binding).resolve()
        store = Clients(secrets).store(location)
        assert isinstance(store, S3Store)
        seen = _key_ids(store)
        deadline = time.monotonic() + 120
        while len(set(seen)) < 2:
            assert time.monotonic() < deadline, "the keys were never replaced"
            store.put("a", b"1")


def test_keys_file_that_is_gone_leaves_the_last_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keys = KeysFile(path)
    with pytest.raises(OSError, match=r"keys\.json"):
        keys()
    write_keys(path, S3Keys("a", "b", "c"))
    assert keys() == S3Keys("a", "b", "c")
    write_keys(path, S3Keys("d", "e"))
    assert keys() == S3Keys("d", "e", None)
    path.unlink()
    assert keys() == S3Keys("d", "e", None)


def test_keys_file_is_a_setting_for_everybody(tmp_path: Path, s3_in_process: Any) -> None:
    """Outside of Airflow: an agent replaces the file, whoever reads the settings needs no restart."""
    config = s3_in_process.config
    path = tmp_path / "keys.json"
    settings = {"endpoint_url": config.endpoint_url, "region_name": "us-east-1", "credentials_file": str(path)}
    write_keys(path, S3Keys("key-before", "secret"))
    store = S3Store(S3Config.from_dict(settings), s3_in_process.bucket())
    seen = _key_ids(store)
    for name in ("one", "two"):
        write_keys(path, S3Keys(f"key-{name}", "secret"))
        store.put("key", b"")
    assert seen == ["key-one", "key-two"]


@pytest.mark.parametrize(
    ("mode", "text", "told"),
    [
        (0o644, '{"aws_access_key_id": "a", "aws_secret_access_key": "top-secret"}', "other users may read it"),
        (0o600, '{"aws_access_key_id": "a"}', "not JSON with"),
        (0o600, "top-secret", "not JSON with"),
        (None, "", "cannot be read"),
    ],
    ids=["readable by all", "no secret key", "no JSON", "no file"],
)
def test_keys_file_that_cannot_be_right_is_no_passing_error(
    tmp_path: Path, mode: int | None, text: str, told: str
) -> None:
    """As an error of a request it would look transient, and be tried for as long as the task lives."""
    path = tmp_path / "keys.json"
    if mode is not None:
        path.write_text(text)
        path.chmod(mode)
    with pytest.raises(ConnectionInvalid, match=told) as caught:
        S3Store(S3Config(credentials_file=str(path)), "bucket").get("key")
    assert "top-secret" not in str(caught.value)


# ---- the watch over a freeze


class _Watch:
    """Looks with the keys that it was opened with; they have ended for all but the last."""

    opened: list[_Watch]

    def __init__(self) -> None:
        self.closed = 0

    def check(self) -> dict[str, Any]:
        if len(self.opened) < 3:
            raise StorageUnavailable("ExpiredToken")
        return {"ready": True, "summary": "freeze 1 was to end"}

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def watches(monkeypatch: pytest.MonkeyPatch) -> list[_Watch]:
    _Watch.opened = []

    def open_watch(_cls: Any, _spec: Any, _resolver: Any) -> _Watch:
        _Watch.opened.append(_Watch())
        return _Watch.opened[-1]

    monkeypatch.setattr(core.FreezeWatch, "open", classmethod(open_watch))
    return _Watch.opened


def test_watch_over_a_freeze_reads_the_connections_again_when_keys_have_ended(
    watches: list[_Watch], connection: Define, minimal_spec: dict[str, Any]
) -> None:
    for name in ("kafka_source", "kafka_target"):
        connection(name, conn_type="kafka", extra={"bootstrap.servers": "a:1"})
    connection("aws_s3", conn_type="aws", login="a", password="b")

    async def first() -> dict[str, Any]:
        trigger = FreezeLimitTrigger(spec=minimal_spec, poll_seconds=0.001)
        return [event.payload async for event in trigger.run()][0]  # noqa: RUF015

    assert asyncio.run(asyncio.wait_for(first(), 60))["status"] == "ready"
    assert [watch.closed for watch in watches] == [1, 1, 1]


def test_watch_over_a_freeze_survives_an_expired_token(
    connection: Define, s3_in_process: Any, minimal_spec: dict[str, Any]
) -> None:
    """The error itself, from S3's answer to a look at the journal: a reason to look again, not to end."""
    from botocore.exceptions import ClientError

    resolver = airflow_resolver()
    config = s3_in_process.config
    connection(
        "aws_s3",
        conn_type="aws",
        login=config.aws_access_key_id,
        password=config.aws_secret_access_key,
        extra={"endpoint_url": config.endpoint_url, "region_name": "us-east-1"},
    )
    minimal_spec["storage"] = {"conn_id": "aws_s3", "journal": f"s3://{s3_in_process.bucket()}/x"}
    watch = FreezeWatch.open(parse_spec(minimal_spec), resolver)
    store = watch._migration.journal_store
    assert isinstance(store, S3Store)
    store._sleep = lambda _: None

    def expired(**_: Any) -> None:
        error = {"Error": {"Code": "ExpiredToken", "Message": "The provided token has expired."}}
        raise ClientError(error, "GetObject")

    store.client.meta.events.register("before-send.s3", expired)
    with pytest.raises(Transient) as caught:
        store.get("key")
    assert "ExpiredToken" in str(caught.value)
    store.client.meta.events.unregister("before-send.s3", expired)
    watch.close()
