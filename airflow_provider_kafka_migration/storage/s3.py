"""S3 as object store, by boto3. Create-only puts are ``If-None-Match: *``, so that S3 itself is the judge of races."""

from __future__ import annotations

import base64
import functools
import hashlib
import logging
import os
import random
import secrets
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from airflow_provider_kafka_migration.errors import ConnectionInvalid, ObjectExists, Where
from airflow_provider_kafka_migration.storage.base import Bytes, ObjectInfo
from airflow_provider_kafka_migration.storage.keys import check_key
from airflow_provider_kafka_migration.storage.s3_config import S3Config
from airflow_provider_kafka_migration.storage.s3_credentials import KeysFile, live_session
from airflow_provider_kafka_migration.storage.s3_errors import (
    REQUEST_ERRORS,
    as_ours,
    code_of,
    is_lock_refused,
    is_missing_key,
    is_precondition_failed,
    is_retriable,
)

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_s3.type_defs import ListObjectsV2OutputTypeDef

log = logging.getLogger(__name__)

_T = TypeVar("_T")

#: Tries of one request; with the delays below about 10 seconds of waiting besides the requests themselves.
MAX_ATTEMPTS = 8
#: A request is not tried again after so long, however few tries there were: the service answers slowly or not at all.
MAX_SECONDS = 90.0
FIRST_DELAY_SECONDS = 0.1
MAX_DELAY_SECONDS = 3.0

#: Metadata of a created object: tells its creator from others when the answer to the put was lost.
_CREATOR = "kafka-migration-creator"

_CLIENT_CONFIG = Config(
    # Tries are ours alone: a hidden second try of a create-only put would meet its own object.
    retries={"mode": "standard", "total_max_attempts": 1},
    connect_timeout=5,
    # Of silence: a large put is not silent while its body is being sent.
    read_timeout=30,
    max_pool_connections=32,
    # The newer checksum trailers are unknown to many S3 services; Content-MD5 is sent instead.
    request_checksum_calculation="when_required",
    response_checksum_validation="when_required",
)


class S3Store:
    """A bucket and prefix as :class:`~.base.ObjectStore`. May be used by many threads.

    :param sleep: how to wait between tries (seconds); tests give another one.
    """

    def __init__(
        self, config: S3Config, bucket: str, prefix: str = "", *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.bucket = bucket
        self.prefix = prefix.strip("/")
        self._endpoint = config.endpoint_url
        self._sleep = sleep
        self._client = _client(config, os.getpid())

    def __repr__(self) -> str:
        return f"S3Store({self.uri!r})"

    @property
    def client(self) -> S3Client:
        """The boto3 client behind it, for questions about the bucket itself."""
        return self._client

    @property
    def uri(self) -> str:
        """``s3://bucket/prefix``."""
        return f"s3://{self.bucket}/{self.prefix}" if self.prefix else f"s3://{self.bucket}"

    def put_new(self, key: str, data: Bytes, *, sha256: str | None = None) -> None:
        """See :meth:`~.base.ObjectStore.put_new`."""
        self._create(key, data, {}, sha256=sha256)

    def put(self, key: str, data: Bytes) -> None:
        """See :meth:`~.base.ObjectStore.put`."""
        self._replace(key, data, {})

    def put_locked(self, key: str, data: bytes, retain_until: datetime, *, new: bool = False) -> bool:
        """See :meth:`~.base.ObjectStore.put_locked`. Logs a warning where the lock was refused."""
        if retain_until.tzinfo is None:
            raise ValueError("retain_until needs a time zone")
        lock = {"ObjectLockMode": "COMPLIANCE", "ObjectLockRetainUntilDate": retain_until.astimezone(UTC)}
        write = self._create if new else self._replace
        try:
            write(key, data, lock, refusable=True)
        except _LockRefusedError as refusal:
            log.warning("%s/%s is written without Object Lock: %s", self.uri, key, refusal)
        else:
            return True
        write(key, data, {})
        return False

    def get(self, key: str) -> bytes | None:
        """See :meth:`~.base.ObjectStore.get`."""
        full_key = self._full_key(key)

        def attempt(_: int) -> bytes | None:
            try:
                return self._client.get_object(Bucket=self.bucket, Key=full_key)["Body"].read()
            except ClientError as error:
                if is_missing_key(error):
                    return None
                raise

        return self._try(key, attempt)

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """See :meth:`~.base.ObjectStore.list`. Pages are fetched as they are needed."""
        root = f"{self.prefix}/" if self.prefix else ""
        request: dict[str, Any] = {"Bucket": self.bucket, "Prefix": root + prefix}
        if start_after is not None:
            request["StartAfter"] = root + start_after
        while True:
            page = self._page(prefix, request)
            for item in page.get("Contents", []):
                yield ObjectInfo(item["Key"].removeprefix(root), item["Size"])
            if not page.get("IsTruncated"):
                return
            request["ContinuationToken"] = page["NextContinuationToken"]

    def _page(self, prefix: str, request: dict[str, Any]) -> ListObjectsV2OutputTypeDef:
        return self._try(prefix, lambda _: self._client.list_objects_v2(**request))

    def _create(
        self, key: str, data: Bytes, extra: dict[str, Any], *, refusable: bool = False, sha256: str | None = None
    ) -> None:
        """Put with ``If-None-Match: *``.

        A put whose answer was lost may have been done; tried again, it meets its own object. So each creation
        carries a random mark in the object's metadata, by which 412 is told from "it was me".
        """
        mark = secrets.token_hex(16)
        request = self._put_request(key, data, sha256) | extra | {"IfNoneMatch": "*", "Metadata": {_CREATOR: mark}}

        def attempt(number: int) -> None:
            try:
                self._put(request, refusable)
            except ClientError as error:
                if not is_precondition_failed(error):
                    raise
                if number > 0 and self._is_mine(request["Key"], mark, data):
                    return
                raise ObjectExists(
                    "the object is already there", where=Where(path=f"{self.uri}/{key}"), next_step="read it and decide"
                ) from None

        self._try(key, attempt)

    def _replace(self, key: str, data: Bytes, extra: dict[str, Any], *, refusable: bool = False) -> None:
        request = self._put_request(key, data) | extra
        self._try(key, lambda _: self._put(request, refusable))

    def _put(self, request: dict[str, Any], refusable: bool) -> None:
        try:
            self._client.put_object(**request)
        except ClientError as error:
            if refusable and is_lock_refused(error):
                raise _LockRefusedError(code_of(error)) from None
            raise

    def _put_request(self, key: str, data: Bytes, sha256: str | None = None) -> dict[str, Any]:
        request = {"Bucket": self.bucket, "Key": self._full_key(key), "Body": data}
        if sha256 is not None:
            # Services that do not know this header check the body all the same: without Content-MD5 its SHA-256 is
            # part of the request's signature. MD5 of large segments costs more than sending them.
            return request | {"ChecksumSHA256": base64.b64encode(bytes.fromhex(sha256)).decode()}
        # Content-MD5 is the one integrity check that every S3 service knows; Object Lock requires one.
        digest = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        return request | {"ContentMD5": digest}

    def _is_mine(self, full_key: str, mark: str, data: Bytes) -> bool:
        found = self._client.get_object(Bucket=self.bucket, Key=full_key)
        stored_mark = found.get("Metadata", {}).get(_CREATOR)
        # A service that drops metadata leaves only the content to compare.
        return stored_mark == mark if stored_mark is not None else found["Body"].read() == data

    def _full_key(self, key: str) -> str:
        check_key(key)
        return f"{self.prefix}/{key}" if self.prefix else key

    def _try(self, key: str, attempt: Callable[[int], _T]) -> _T:
        """Run ``attempt(number)`` until it succeeds, at most :data:`MAX_ATTEMPTS` times."""
        began = time.monotonic()
        for number in range(MAX_ATTEMPTS):
            try:
                return attempt(number)
            except REQUEST_ERRORS as error:
                is_last = number + 1 == MAX_ATTEMPTS or time.monotonic() - began >= MAX_SECONDS
                if is_last or not is_retriable(error):
                    raise as_ours(
                        error, bucket=self.bucket, endpoint=self._endpoint, path=f"{self.uri}/{key}"
                    ) from error
                log.info("%s/%s: %s, trying again", self.uri, key, code_of(error))
            delay = min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2**number)
            self._sleep(delay * (0.5 + random.random() / 2))  # noqa: S311 - jitter, not a secret
        raise AssertionError("unreachable")


class _LockRefusedError(Exception):
    """The put was refused because of its lock."""


@functools.lru_cache(maxsize=16)
def _client(config: S3Config, pid: int) -> S3Client:
    """One client for all stores of a configuration: it is costly to make, and its connections are shared.

    :param pid: this process: a forked child must not use its parent's connections.
    """
    try:
        session = _session(config)
        return session.client(
            "s3",
            endpoint_url=config.endpoint_url,
            # Other services than AWS need a region only to sign with.
            region_name=config.region_name or session.region_name or "us-east-1",
            verify=config.verify,
            config=_CLIENT_CONFIG,
        )
    except (BotoCoreError, ValueError) as error:
        raise ConnectionInvalid(
            f"the S3 settings cannot be used: {type(error).__name__}",
            where=Where(path=config.endpoint_url),
            next_step="check endpoint_url, region_name and the AWS profile",
        ) from error


def _session(config: S3Config) -> boto3.session.Session:
    read_keys = config.read_keys or (KeysFile(config.credentials_file).check() if config.credentials_file else None)
    if read_keys is not None:
        return boto3.session.Session(botocore_session=live_session(read_keys), region_name=config.region_name)
    return boto3.session.Session(
        aws_access_key_id=config.aws_access_key_id,
        aws_secret_access_key=config.aws_secret_access_key,
        aws_session_token=config.aws_session_token,
        region_name=config.region_name,
    )
