"""Locations and S3 settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_kafka_migration.errors import ConnectionInvalid, SpecInvalid
from airflow_provider_kafka_migration.storage.local import LocalStore
from airflow_provider_kafka_migration.storage.open import open_store, split_s3_uri
from airflow_provider_kafka_migration.storage.s3 import S3Config, S3Store


@pytest.mark.parametrize(
    ("uri", "bucket", "prefix"),
    [("s3://b", "b", ""), ("s3://b/", "b", ""), ("s3://b/p", "b", "p"), ("s3://b/p/q/", "b", "p/q")],
)
def test_s3_uri(uri: str, bucket: str, prefix: str) -> None:
    assert split_s3_uri(uri) == (bucket, prefix)
    store = open_store(uri, S3Config("http://127.0.0.1:1", "a", "b"))
    assert isinstance(store, S3Store)
    assert (store.bucket, store.prefix) == (bucket, prefix)
    assert store.uri == f"s3://{bucket}/{prefix}".rstrip("/")


def test_file_uri(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    store = open_store(folder.as_uri())
    assert isinstance(store, LocalStore)
    assert store.folder == folder
    assert store.uri == folder.as_uri()


@pytest.mark.parametrize(
    "uri",
    ["", "bucket/prefix", "/folder", "s3://", "s3:///p", "gs://b/p", "file://host/p", "file:///", "s3://k:pw@b/p"],
)
def test_other_locations_are_refused_and_not_quoted(uri: str) -> None:
    with pytest.raises(SpecInvalid, match="storage section") as caught:
        open_store(uri)
    assert "pw" not in str(caught.value)


def test_config_from_dict() -> None:
    data = {"endpoint_url": "http://s3", "aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": ""}
    config = S3Config.from_dict(data)
    assert config == S3Config("http://s3", "a", "b")
    assert S3Config.from_dict(config.to_dict()) == config
    assert S3Config.from_dict({}) == S3Config()


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        ({"aws_secret": "SECRET"}, "aws_secret"),
        ({"aws_access_key_id": 7, "aws_secret_access_key": "SECRET"}, "aws_access_key_id"),
        ({"aws_secret_access_key": "SECRET"}, "only one of"),
    ],
)
def test_bad_config_is_named_without_its_values(data: dict[str, object], hint: str) -> None:
    with pytest.raises(ConnectionInvalid, match=hint) as caught:
        S3Config.from_dict(data)
    assert "SECRET" not in str(caught.value)
