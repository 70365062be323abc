"""What a bucket does with the journal by itself, read from a real (moto) bucket."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from airflow_provider_kafka_migration.storage.bucket_rules import rules_for
from airflow_provider_kafka_migration.storage.local import LocalStore
from airflow_provider_kafka_migration.storage.s3 import S3Store

EXPIRES = {"Expiration": {"Days": 30}}
#: Rules that leave each current object as it is.
HARMLESS = [
    {"Expiration": {"ExpiredObjectDeleteMarker": True}},
    {"NoncurrentVersionExpiration": {"NoncurrentDays": 3}},
    {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}},
    {"Transitions": [{"Days": 30, "StorageClass": "STANDARD_IA"}]},
]


def _store(s3: Any, *rules: dict[str, Any]) -> S3Store:
    store = S3Store(s3.config, s3.bucket(), "teams/a")
    complete = [{"ID": f"r{number}", "Status": "Enabled", **rule} for number, rule in enumerate(rules)]
    store.client.put_bucket_lifecycle_configuration(
        Bucket=store.bucket,
        LifecycleConfiguration={"Rules": complete},  # type: ignore[typeddict-item]
    )
    return store


@pytest.mark.parametrize("scope", ["", "teams/", "teams/a/m1", "teams/a/m1/", "teams/a/m1/journal/"])
def test_a_rule_that_deletes_the_journal_is_named(s3_in_process: Any, scope: str) -> None:
    store = _store(s3_in_process, {"Filter": {"Prefix": scope}, **EXPIRES})
    assert rules_for(store, "m1") == (["lifecycle rule r0 deletes objects after 30 days"], [])


def test_an_archive_is_named_with_its_class(s3_in_process: Any) -> None:
    moves = {"Transitions": [{"Days": 7, "StorageClass": "GLACIER"}]}
    found, unread = rules_for(_store(s3_in_process, {"Filter": {"Prefix": ""}, **moves}), "m1")
    assert found == ["lifecycle rule r0 moves objects to GLACIER after 7 days, where they cannot be read"]
    assert unread == []


@pytest.mark.parametrize("rule", HARMLESS)
def test_what_leaves_current_objects_alone_is_not_named(s3_in_process: Any, rule: dict[str, Any]) -> None:
    assert rules_for(_store(s3_in_process, {"Filter": {"Prefix": ""}, **rule}), "m1") == ([], [])


@pytest.mark.parametrize(
    "rule",
    [
        {"Filter": {"Prefix": "teams/b/"}, **EXPIRES},
        {"Filter": {"Prefix": "teams/a/m2/"}, **EXPIRES},
        {"Filter": {"Prefix": "teams/a/m12/"}, **EXPIRES},
        {"Filter": {"Tag": {"Key": "temporary", "Value": "yes"}}, **EXPIRES},
        {"Filter": {"Prefix": ""}, **EXPIRES, "Status": "Disabled"},
    ],
    ids=["another prefix", "another migration", "a longer name", "tagged objects", "off"],
)
def test_a_rule_about_other_objects_is_not_named(s3_in_process: Any, rule: dict[str, Any]) -> None:
    assert rules_for(_store(s3_in_process, rule), "m1") == ([], [])


def test_default_retention_is_named(s3_in_process: Any) -> None:
    store = S3Store(s3_in_process.config, s3_in_process.bucket(object_lock=True), "p")
    assert rules_for(store, "m1") == ([], [])
    store.client.put_object_lock_configuration(
        Bucket=store.bucket,
        ObjectLockConfiguration={
            "ObjectLockEnabled": "Enabled",
            "Rule": {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 9}},
        },
    )
    [found], unread = rules_for(store, "m1")
    assert found.startswith("the bucket's default retention (GOVERNANCE) keeps each version of each object for 9 days")
    assert unread == []


def test_what_a_store_does_not_say_could_not_be_checked(
    s3_in_process: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(**_: Any) -> None:
        raise ClientError({"Error": {"Code": "NotImplemented"}}, "GetBucketLifecycleConfiguration")

    def away(**_: Any) -> None:
        raise EndpointConnectionError(endpoint_url="http://x")

    store = S3Store(s3_in_process.config, s3_in_process.bucket(), "p")
    client = SimpleNamespace(get_bucket_lifecycle_configuration=refuses, get_object_lock_configuration=away)
    monkeypatch.setattr(S3Store, "client", client)
    assert rules_for(store, "m1") == (
        [],
        ["lifecycle rules: NotImplemented", "default retention: EndpointConnectionError"],
    )
    assert rules_for(LocalStore(tmp_path), "m1") == ([], [])
