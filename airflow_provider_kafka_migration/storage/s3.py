"""An object store on S3, with boto3. Create-only puts use ``If-None-Match: *``, so that S3 itself decides races."""

from __future__ import annotations

import base64
import functools
import hashlib
import logging
import os
import random
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ResponseStreamingError,
)
from urllib3.exceptions import HTTPError

from airflow_provider_kafka_migration.errors import (
    ConnectionInvalid,
    MigrationError,
    ObjectExists,
    StorageRefused,
    StorageUnavailable,
    Where,
)
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.storage.base import Bytes, ObjectInfo, ObjectStore, check_key
from airflow_provider_kafka_migration.storage.s3_credentials import KeysFile, live_session

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_s3.type_defs import ListObjectsV2OutputTypeDef


# -- s3 errors --------------------------------------------------------------------------------------------------------
#
# Translates S3's and botocore's errors to ours: which are worth a retry, and what a person should do about the others.


#: Answers that the same request may not get again a moment later, so that a retry may help.
RETRIABLE_CODES = frozenset(
    {
        "ConditionalRequestConflict",
        # Keys may be renewed while we wait: those of a role, a profile or a file, or a token in the connection.
        "ExpiredToken",
        "ExpiredTokenException",
        "InternalError",
        "OperationAborted",
        "RequestLimitExceeded",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TokenRefreshRequired",
        "TooManyRequests",
    }
)

_CREDENTIALS = "check the credentials of the storage connection, or the machine's AWS identity"

_EXPIRED = (
    "the session token has expired: give the storage connection a role, whose keys are renewed, or put a new token "
    "into it; a running task uses it within a minute; a failed task must be cleared"
)

_THROTTLED = (
    "ask less of the bucket: lower seed.max_concurrent_partitions or seed.max_bytes_per_second, or raise "
    "seed.segment_max_bytes; or ask its owner for a higher limit; then clear the task"
)

_RIGHTS = (
    "allow s3:ListBucket on the bucket and s3:GetObject, s3:PutObject on its objects (with a KMS key "
    "also kms:GenerateDataKey and kms:Decrypt); if the bucket's policy demands headers, such as those of encryption, "
    "give them in extra_args of the storage connection"
)
#: Only mirrors need it, for some objects of theirs.
_DELETION = "allow s3:DeleteObject on this object; docs/security.md lists the prefixes that need it"
#: An answer to HEAD has no body, so its code is the status.
_DENIED = frozenset({"AccessDenied", "Forbidden", "403"})

_NEXT_STEPS = {
    "SlowDown": _THROTTLED,
    "Throttling": _THROTTLED,
    "ThrottlingException": _THROTTLED,
    "RequestLimitExceeded": _THROTTLED,
    "TooManyRequests": _THROTTLED,
    "NoSuchBucket": "create the bucket, or correct its name in the spec's storage section",
    "InvalidBucketName": "correct the bucket's name in the spec's storage section",
    **dict.fromkeys(_DENIED, _RIGHTS),
    "AllAccessDisabled": "ask the owner of the bucket",
    "InvalidAccessKeyId": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "InvalidToken": _CREDENTIALS,
    "ExpiredToken": _EXPIRED,
    "ExpiredTokenException": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "CredentialRetrievalError": "check that the role of the storage connection, or the machine's AWS identity, is "
    "still available (STS, metadata service); the request is retried, and the log has the reason",
    "RequestTimeTooSkewed": "set this machine's clock: it differs from the object store's clock",
    "PermanentRedirect": "set region_name to the bucket's region",
    "AuthorizationHeaderMalformed": "set region_name to the bucket's region",
    "IllegalLocationConstraintException": "set region_name to the bucket's region",
    "ParamValidationError": "correct the bucket's name in the spec's storage section",
    "SSLError": "check the certificate of endpoint_url; set verify to the path of a CA bundle",
    "NotImplemented": "use an object store that supports If-None-Match on PutObject",
}

#: What a request may raise: botocore wraps transport errors, except those of reading the body of an answer.
REQUEST_ERRORS = (BotoCoreError, ClientError, HTTPError)

#: Transport errors: the request may or may not have been executed.
_TRANSPORT = (ConnectionError, HTTPClientError, IncompleteReadError, ResponseStreamingError, HTTPError)

#: Nothing was sent: the provider of the keys (STS, a metadata service, a file) did not answer.
_NO_KEYS_NOW = (CredentialRetrievalError,)


def code_of(error: BaseException) -> str:
    """Return S3's error code, or the class name of an error without one. ``str(error)`` is avoided: it may be long."""
    if isinstance(error, ClientError):
        return str(error.response.get("Error", {}).get("Code") or "Unknown")
    return type(error).__name__


def status_of(error: BaseException) -> int:
    """Return the HTTP status of S3's answer, 0 without one."""
    if isinstance(error, ClientError):
        return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0)
    return 0


def is_retriable(error: BaseException) -> bool:
    """Return whether the same request may succeed a moment later."""
    if isinstance(error, ClientError):
        return code_of(error) in RETRIABLE_CODES or status_of(error) in (429, 500, 502, 503, 504)
    return isinstance(error, (*_TRANSPORT, *_NO_KEYS_NOW))


def is_precondition_failed(error: BaseException) -> bool:
    """Return whether ``If-None-Match: *`` failed because the object exists. Some services answer 304, as to a GET."""
    return code_of(error) in ("PreconditionFailed", "412") or status_of(error) in (304, 412)


def is_missing_key(error: BaseException) -> bool:
    """Return whether the object does not exist (but the bucket does)."""
    return code_of(error) == "NoSuchKey"


def is_lock_refused(error: BaseException) -> bool:
    """Return whether the bucket, service or identity cannot lock objects; the same put without a lock may work."""
    code = code_of(error)
    if code in ("InvalidRequest", "InvalidArgument", "MalformedXML") and isinstance(error, ClientError):
        return "lock" in str(error.response.get("Error", {}).get("Message", "")).lower()
    return code in ("ObjectLockConfigurationNotFoundError", "NotImplemented", "AccessDenied", "MethodNotAllowed")


def _next_step(error: BaseException, otherwise: str) -> str:
    code = code_of(error)
    if code in _DENIED and isinstance(error, ClientError) and error.operation_name == "DeleteObject":
        return _DELETION
    return _NEXT_STEPS.get(code, otherwise)


def as_ours(
    error: BotoCoreError | ClientError | HTTPError, *, bucket: str, endpoint: str | None, path: str
) -> MigrationError:
    """Return the error to raise for one of botocore's errors. It names the bucket, never credentials."""
    service = f" at {endpoint}" if endpoint else ""
    where = Where(path=path)
    code = code_of(error)
    if is_retriable(error):
        return StorageUnavailable(
            f"a request to S3{service} for bucket {bucket} failed, also when retried: {code}",
            where=where,
            next_step=_next_step(error, "check the network and the object store's health, then clear the task"),
            details={"code": code, "bucket": bucket},
        )
    if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
        what, next_step = f"no usable AWS credentials for bucket {bucket}", _CREDENTIALS
    else:
        what = f"S3{service} refused a request for bucket {bucket}: {code}"
        next_step = _next_step(error, "check the storage connection and the bucket")
    return StorageRefused(what, where=where, next_step=next_step, details={"code": code, "bucket": bucket})


# -- s3 config --------------------------------------------------------------------------------------------------------
#
# How to reach S3. All fields are optional: without them boto3's own chain applies (environment, profile, role).


#: ``write`` is PutObject, ``object`` any other request about objects, ``bucket`` one about the bucket itself.
RequestKind = Literal["write", "object", "bucket"]

#: What an object store may demand in addition, by boto3's names, and the requests that take it.
EXTRA_ARGS: Mapping[str, frozenset[RequestKind]] = {
    "ServerSideEncryption": frozenset({"write"}),
    "SSEKMSKeyId": frozenset({"write"}),
    "SSEKMSEncryptionContext": frozenset({"write"}),
    "ACL": frozenset({"write"}),
    "ExpectedBucketOwner": frozenset({"write", "object", "bucket"}),
    "RequestPayer": frozenset({"write", "object"}),
}


@dataclass(frozen=True)
class S3Config:
    """Endpoint and credentials of an S3 service.

    :param endpoint_url: for services other than AWS; then path-style addressing is used.
    :param verify: ``False`` turns TLS verification off, a string is the path of a CA bundle.
    :param credentials_file: JSON with ``aws_access_key_id``, ``aws_secret_access_key`` and ``aws_session_token`` that
        another program replaces before the keys expire; it is reread when it changes, and wins over the keys here.
    :param extra_args: names and values from :data:`EXTRA_ARGS`, for buckets that demand more headers than others.
    :param read_keys: returns the current keys, for credentials that this process renews itself. It wins over both,
        belongs to this process, and is not part of the settings as data.
    """

    endpoint_url: str | None = None
    aws_access_key_id: str | None = field(default=None, repr=False)
    aws_secret_access_key: str | None = field(default=None, repr=False)
    aws_session_token: str | None = field(default=None, repr=False)
    region_name: str | None = None
    verify: bool | str | None = None
    credentials_file: str | None = None
    extra_args: tuple[tuple[str, str], ...] = ()
    read_keys: Callable[[], Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if bool(self.aws_access_key_id) != bool(self.aws_secret_access_key):
            raise ConnectionInvalid(
                "the S3 settings have only one of aws_access_key_id and aws_secret_access_key",
                next_step="set both, or neither to use the machine's own AWS identity",
            )
        wrong = sorted(name for name, _ in self.extra_args if name not in EXTRA_ARGS)
        if wrong:
            raise ConnectionInvalid(
                f"unknown extra_args of the S3 settings: {', '.join(wrong)}",
                next_step=f"use only {', '.join(sorted(EXTRA_ARGS))}",
            )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> S3Config:
        """Read settings from a mapping (a secret reference's JSON); empty values count as not given.

        :raises ConnectionInvalid: unknown keys or values of a wrong type. Values are never quoted: they are secrets.
        """
        known = {item.name for item in fields(cls)} - {"read_keys"}
        unknown = sorted(str(key) for key in data if key not in known)
        if unknown:
            raise ConnectionInvalid(
                f"unknown S3 settings: {', '.join(unknown)}", next_step=f"use only {', '.join(sorted(known))}"
            )
        given = {key: value for key, value in data.items() if value is not None and value not in ("", {})}
        extra = given.pop("extra_args", {})
        if not isinstance(extra, Mapping) or not all(isinstance(value, str) for value in extra.values()):
            raise ConnectionInvalid(
                "extra_args of the S3 settings is not an object of texts",
                next_step='write for example {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "..."}',
            )
        wrong = sorted(
            key for key, value in given.items() if not isinstance(value, (str, bool) if key == "verify" else str)
        )
        if wrong:
            raise ConnectionInvalid(f"S3 settings that are not text: {', '.join(wrong)}", next_step="use text")
        return cls(**given, extra_args=tuple(sorted(extra.items())))

    @classmethod
    def of(cls, resolver: Resolver, reference: str) -> S3Config:
        """Resolve the settings of a reference, with a way to renew credentials that expire.

        :raises ConnectionInvalid: the reference cannot be resolved, or its settings cannot be used.
        """
        config = cls.from_dict(resolver.mapping(reference))
        renewal = resolver.renewal(reference)
        return replace(config, read_keys=renewal) if renewal else config

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that are set, including secrets: for a secret reference's content, never for a log."""
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "read_keys"}
        found = {name: value for name, value in values.items() if value is not None and value != ()}
        return found | ({"extra_args": dict(self.extra_args)} if self.extra_args else {})

    def extra_of(self, kind: RequestKind) -> dict[str, str]:
        """Return the extra arguments of a kind of request, as boto3 names them."""
        return {name: value for name, value in self.extra_args if kind in EXTRA_ARGS[name]}


# -- s3 ---------------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

_T = TypeVar("_T")

#: Attempts of one request; the delays below add about 10 seconds of waiting to the requests themselves.
MAX_ATTEMPTS = 8
#: A request is not retried after this time, however few attempts there were: the service is slow or does not answer.
MAX_SECONDS = 90.0
FIRST_DELAY_SECONDS = 0.1
MAX_DELAY_SECONDS = 3.0

#: Metadata of a created object: identifies its creator when the answer to the put was lost.
_CREATOR = "kafka-migration-creator"

_CLIENT_CONFIG = Config(
    # We alone retry: a hidden second attempt of a create-only put would find its own object.
    retries={"mode": "standard", "total_max_attempts": 1},
    connect_timeout=5,
    # Limits silence: a large put is not silent while its body is being sent.
    read_timeout=30,
    max_pool_connections=32,
    # Many S3 services do not know the newer checksum trailers; we send Content-MD5 instead.
    request_checksum_calculation="when_required",
    response_checksum_validation="when_required",
)


class S3Store:
    """A bucket and prefix as :class:`~.base.ObjectStore`. Thread-safe.

    :param sleep: how to wait between attempts (seconds); tests replace it.
    """

    def __init__(
        self, config: S3Config, bucket: str, prefix: str = "", *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.bucket = bucket
        self.prefix = prefix.strip("/")
        self._endpoint = config.endpoint_url
        self._sleep = sleep
        self._client = _client(config, os.getpid())
        self._on_write: dict[str, Any] = dict(config.extra_of("write"))
        self._on_object: dict[str, Any] = dict(config.extra_of("object"))
        #: Arguments of requests about the bucket itself.
        self.on_bucket: dict[str, Any] = dict(config.extra_of("bucket"))

    def __repr__(self) -> str:
        return f"S3Store({self.uri!r})"

    @property
    def client(self) -> S3Client:
        """The underlying boto3 client, for requests about the bucket itself."""
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
        """See :meth:`~.base.ObjectStore.put_locked`. Logs a warning if the lock is refused, or cannot be read back.

        A service that does not know Object Lock ignores its headers and accepts the put.
        """
        if retain_until.tzinfo is None:
            raise ValueError("retain_until needs a time zone")
        lock = {"ObjectLockMode": "COMPLIANCE", "ObjectLockRetainUntilDate": retain_until.astimezone(UTC)}
        write = self._create if new else self._replace
        try:
            version = write(key, data, lock, refusable=True)
        except _LockRefusedError as refusal:
            log.warning("%s/%s is written without Object Lock, which was refused: %s", self.uri, key, refusal)
        else:
            return self._is_locked(key, version, retain_until)
        write(key, data, {})
        return False

    def _is_locked(self, key: str, version: str | None, retain_until: datetime) -> bool:
        """Read the lock of a stored object back.

        A version is named only if it is not the newest one any more: that needs another right (s3:GetObjectVersion).
        """
        request = self.object_args(key)

        def attempt(_: int) -> str:
            try:
                found = self._client.head_object(**request)
                if version and found.get("VersionId") != version:
                    found = self._client.head_object(**request, VersionId=version)
            except ClientError as error:
                if is_retriable(error):
                    raise
                return code_of(error)
            mode, until = found.get("ObjectLockMode"), found.get("ObjectLockRetainUntilDate")
            # Services keep whole seconds, or milliseconds.
            is_locked = mode == "COMPLIANCE" and until is not None and until >= retain_until - timedelta(seconds=1)
            return "" if is_locked else f"mode {mode}, until {until}"

        why = self._try(key, attempt)
        if why:
            log.warning(
                "%s/%s was accepted with Object Lock, but reading it back does not show the lock (%s): the service "
                "ignores it, or s3:GetObjectRetention is missing",
                self.uri,
                key,
                why,
            )
        return not why

    def get(self, key: str) -> bytes | None:
        """See :meth:`~.base.ObjectStore.get`."""
        request = self.object_args(key)

        def attempt(_: int) -> bytes | None:
            try:
                return self._client.get_object(**request)["Body"].read()
            except ClientError as error:
                if is_missing_key(error):
                    return None
                raise

        return self._try(key, attempt)

    def delete(self, key: str) -> None:
        """See :meth:`~.base.ObjectStore.delete`."""
        request = self.object_args(key)
        self._try(key, lambda _: self._client.delete_object(**request))

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """See :meth:`~.base.ObjectStore.list`. Pages are fetched as they are needed."""
        root = f"{self.prefix}/" if self.prefix else ""
        request: dict[str, Any] = {"Bucket": self.bucket, "Prefix": root + prefix, **self._on_object}
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
    ) -> str | None:
        """Put with ``If-None-Match: *``; return the version, if the bucket has versions.

        A put whose answer was lost may have been executed; its retry then finds its own object. Proxies retry puts,
        too, so even the first answer may be about our own object. Each creation therefore carries a random mark in
        the object's metadata, which shows after a 412 whose object it is.
        """
        mark = secrets.token_hex(16)
        request = self._put_request(key, data, sha256) | extra | {"IfNoneMatch": "*", "Metadata": {_CREATOR: mark}}

        def attempt(number: int) -> str | None:
            try:
                return self._put(request, refusable)
            except ClientError as error:
                if not is_precondition_failed(error):
                    raise
                if self._is_mine(key, mark, data, is_retry=number > 0):
                    return None
                raise ObjectExists(
                    "the object already exists",
                    where=Where(path=f"{self.uri}/{key}"),
                    next_step="read the existing object and decide how to proceed",
                ) from None

        return self._try(key, attempt)

    def _replace(self, key: str, data: Bytes, extra: dict[str, Any], *, refusable: bool = False) -> str | None:
        request = self._put_request(key, data) | extra
        return self._try(key, lambda _: self._put(request, refusable))

    def _put(self, request: dict[str, Any], refusable: bool) -> str | None:
        try:
            return self._client.put_object(**request).get("VersionId")
        except ClientError as error:
            if refusable and is_lock_refused(error):
                raise _LockRefusedError(code_of(error)) from None
            raise

    def object_args(self, key: str) -> dict[str, Any]:
        """Return the arguments of a request about an object other than PutObject."""
        return {"Bucket": self.bucket, "Key": self.full_key(key), **self._on_object}

    def _put_request(self, key: str, data: Bytes, sha256: str | None = None) -> dict[str, Any]:
        request = {"Bucket": self.bucket, "Key": self.full_key(key), "Body": data, **self._on_write}
        if sha256 is not None:
            # Services that do not know this header still check the body: without Content-MD5 its SHA-256 is part of
            # the request's signature. MD5 of large segments costs more than sending them.
            return request | {"ChecksumSHA256": base64.b64encode(bytes.fromhex(sha256)).decode()}
        # Content-MD5 is the only integrity check that every S3 service knows; Object Lock requires one.
        digest = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        return request | {"ContentMD5": digest}

    def _is_mine(self, key: str, mark: str, data: Bytes, *, is_retry: bool) -> bool:
        try:
            found = self._client.head_object(**self.object_args(key))
        except ClientError as error:
            if status_of(error) == 404:
                return False  # another creator's, deleted since
            if not is_retry and not is_retriable(error):
                return False  # where this cannot be asked, the first answer counts
            raise
        stored_mark = found.get("Metadata", {}).get(_CREATOR)
        if stored_mark is not None or not is_retry:
            return stored_mark == mark
        # A service that drops metadata leaves only the content to compare.
        return bool(self._client.get_object(**self.object_args(key))["Body"].read() == data)

    def full_key(self, key: str) -> str:
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
                log.info("%s/%s: %s, retrying", self.uri, key, code_of(error))
            delay = min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2**number)
            self._sleep(delay * (0.5 + random.random() / 2))  # noqa: S311 - jitter, not a secret
        raise AssertionError("unreachable")


class _LockRefusedError(Exception):
    """S3 refused the put because of its lock."""


@functools.lru_cache(maxsize=16)
def _client(config: S3Config, pid: int) -> S3Client:
    """Return one client for all stores of a configuration: creating it is costly, and its connections are shared.

    :param pid: this process; a forked child must not use its parent's connections.
    """
    try:
        session = _session(config)
        return session.client(
            "s3",
            endpoint_url=config.endpoint_url,
            # Services other than AWS need a region only for signing.
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


# -- s3 facts ---------------------------------------------------------------------------------------------------------
#
# Facts about a bucket, for prechecks: Object Lock and the store's clock. Only reads, never writes.


@dataclass(frozen=True)
class StoreFacts:
    """Facts about a store; ``None`` where the store does not report them, or is not S3.

    :param is_s3: whether it is a bucket, not a folder.
    :param object_lock: whether the bucket has Object Lock enabled.
    :param clock_skew_seconds: the store's clock minus ours; S3 refuses signatures beyond 15 minutes.
    """

    is_s3: bool
    object_lock: bool | None = None
    clock_skew_seconds: float | None = None


def store_facts(store: ObjectStore) -> StoreFacts:
    """Read the facts about a store; never raises for what a bucket does not report."""
    if not isinstance(store, S3Store):
        return StoreFacts(is_s3=False)
    return StoreFacts(True, _object_lock(store), _clock_skew(store))


def _object_lock(store: S3Store) -> bool | None:
    try:
        answer = store.client.get_object_lock_configuration(Bucket=store.bucket, **store.on_bucket)
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        return False if "ObjectLockConfigurationNotFound" in code else None
    except REQUEST_ERRORS:
        return None
    return answer.get("ObjectLockConfiguration", {}).get("ObjectLockEnabled") == "Enabled"


def _clock_skew(store: S3Store) -> float | None:
    span = clock_span(store)
    # The middle of the interval.
    return None if span is None else (span[0] + span[1]) / 2


def clock_span(store: ObjectStore) -> tuple[float, float] | None:
    """Ask once by how many seconds the store's clock is ahead of this machine's: from, to. None: it does not tell."""
    if not isinstance(store, S3Store):
        return None
    before = time.time()
    try:
        answer = store.client.head_bucket(Bucket=store.bucket, **store.on_bucket)["ResponseMetadata"]
    except ClientError as error:
        # A refusal has a date too: beyond 15 minutes S3 refuses everything, and then the date is needed most.
        answer = error.response.get("ResponseMetadata", {})  # type: ignore[assignment]
    except REQUEST_ERRORS:
        return None
    after = time.time()
    try:
        theirs = parsedate_to_datetime(answer["HTTPHeaders"]["date"]).timestamp()
    except (KeyError, TypeError, ValueError):
        return None
    # The header has whole seconds: the store's clock was anywhere in the second that begins there.
    return theirs - after, theirs + 1 - before
