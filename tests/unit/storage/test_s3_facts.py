"""What a bucket tells of itself: Object Lock of real (moto) buckets, and a clock that is far off."""

from __future__ import annotations

import time
from email.utils import formatdate
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from airflow_provider_kafka_migration.storage.local import LocalStore
from airflow_provider_kafka_migration.storage.s3 import S3Config, S3Store, StoreFacts, store_facts


def test_object_lock_is_seen_where_it_is_and_where_it_is_not(s3_in_process: Any) -> None:
    config = s3_in_process.config
    locked = store_facts(S3Store(config, s3_in_process.bucket(object_lock=True), "p"))
    plain = store_facts(S3Store(config, s3_in_process.bucket(), "p"))
    assert (locked.is_s3, locked.object_lock, plain.object_lock) == (True, True, False)
    for facts in (locked, plain):
        assert facts.clock_skew_seconds is not None
        assert abs(facts.clock_skew_seconds) < 5
    assert store_facts(S3Store(config, "no-such-bucket", "p")).object_lock is None


def test_a_folder_tells_nothing(tmp_path: Any) -> None:
    assert store_facts(LocalStore(str(tmp_path))) == StoreFacts(is_s3=False)


def _refusal(offset_seconds: float) -> ClientError:
    """S3 refuses what was signed by a clock that is far off, and says its own time."""
    date = formatdate(time.time() + offset_seconds, usegmt=True)
    answer: Any = {
        "Error": {"Code": "RequestTimeTooSkewed"},
        "ResponseMetadata": {"HTTPStatusCode": 403, "HTTPHeaders": {"date": date}},
    }
    return ClientError(answer, "HeadBucket")


@pytest.mark.parametrize("offset_seconds", [3600, -7200])
def test_the_clock_is_told_by_a_refusal_too(monkeypatch: pytest.MonkeyPatch, offset_seconds: int) -> None:
    facts = _facts_of(monkeypatch, _refusal(offset_seconds))
    assert facts.object_lock is None
    assert facts.clock_skew_seconds == pytest.approx(offset_seconds, abs=120)


@pytest.mark.parametrize(
    "error",
    [ClientError({"Error": {"Code": "403"}}, "HeadBucket"), EndpointConnectionError(endpoint_url="http://gone")],
    ids=["no-date", "no-answer"],
)
def test_an_unknown_clock_is_unknown(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    assert _facts_of(monkeypatch, error) == StoreFacts(is_s3=True)


def _facts_of(monkeypatch: pytest.MonkeyPatch, error: Exception) -> StoreFacts:
    def refuse(**_: Any) -> None:
        raise error

    store = S3Store(S3Config.from_dict({"region_name": "eu-west-1"}), "bucket")
    client = SimpleNamespace(head_bucket=refuse, get_object_lock_configuration=refuse)
    monkeypatch.setattr(store, "_client", client)
    return store_facts(store)
