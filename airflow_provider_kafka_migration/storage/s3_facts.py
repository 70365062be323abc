"""What a bucket says of itself: Object Lock and the store's clock. For prechecks; asks, never writes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from botocore.exceptions import ClientError

from airflow_provider_kafka_migration.storage.base import ObjectStore
from airflow_provider_kafka_migration.storage.s3 import S3Store
from airflow_provider_kafka_migration.storage.s3_errors import REQUEST_ERRORS


@dataclass(frozen=True)
class StoreFacts:
    """``None`` where the store does not tell, or is no S3.

    :param is_s3: a bucket, not a folder.
    :param object_lock: the bucket has Object Lock switched on.
    :param clock_skew_seconds: the store's clock minus ours; S3 refuses signatures beyond 15 minutes.
    """

    is_s3: bool
    object_lock: bool | None = None
    clock_skew_seconds: float | None = None


def store_facts(store: ObjectStore) -> StoreFacts:
    """Facts of a store; never raises for what a bucket does not tell."""
    if not isinstance(store, S3Store):
        return StoreFacts(is_s3=False)
    return StoreFacts(True, _object_lock(store), _clock_skew(store))


def _object_lock(store: S3Store) -> bool | None:
    try:
        answer = store.client.get_object_lock_configuration(Bucket=store.bucket)
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        return False if "ObjectLockConfigurationNotFound" in code else None
    except REQUEST_ERRORS:
        return None
    return answer.get("ObjectLockConfiguration", {}).get("ObjectLockEnabled") == "Enabled"


def _clock_skew(store: S3Store) -> float | None:
    before = time.time()
    try:
        answer = store.client.head_bucket(Bucket=store.bucket)["ResponseMetadata"]
    except ClientError as error:
        # A refusal has a date, too: beyond 15 minutes S3 refuses everything, and that is when it is asked for most.
        answer = error.response.get("ResponseMetadata", {})  # type: ignore[assignment]
    except REQUEST_ERRORS:
        return None
    try:
        theirs = parsedate_to_datetime(answer["HTTPHeaders"]["date"]).timestamp()
    except (KeyError, TypeError, ValueError):
        return None
    # The header counts whole seconds: half a second is the middle of what it may mean.
    return theirs + 0.5 - (before + time.time()) / 2
