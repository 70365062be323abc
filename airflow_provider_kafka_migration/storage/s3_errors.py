"""S3's and botocore's errors as ours: which are worth another try, and what a person should do about the others."""

from __future__ import annotations

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

from airflow_provider_kafka_migration.errors import MigrationError, StorageRefused, StorageUnavailable, Where

#: Answers that the same request may not get again a moment later.
RETRIABLE_CODES = frozenset(
    {
        "ConditionalRequestConflict",
        # Keys that are renewed while we wait: of a role, a profile or a file, or a token replaced in the connection.
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
    "into it; a running task takes it within a minute, a failed one is cleared"
)

_THROTTLED = (
    "ask less of the bucket: lower seed.lanes, seed.max_concurrent_partitions or max_bytes_per_second, raise "
    "seed.segment_max_bytes; or ask its owner for more; then clear the task"
)

_NEXT_STEPS = {
    "SlowDown": _THROTTLED,
    "Throttling": _THROTTLED,
    "ThrottlingException": _THROTTLED,
    "RequestLimitExceeded": _THROTTLED,
    "TooManyRequests": _THROTTLED,
    "NoSuchBucket": "create the bucket, or correct its name in the spec's storage section",
    "InvalidBucketName": "correct the bucket's name in the spec's storage section",
    "AccessDenied": "allow s3:ListBucket on the bucket and s3:GetObject, s3:PutObject on its objects",
    "Forbidden": "allow s3:ListBucket on the bucket and s3:GetObject, s3:PutObject on its objects",
    "AllAccessDisabled": "ask the owner of the bucket",
    "InvalidAccessKeyId": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "InvalidToken": _CREDENTIALS,
    "ExpiredToken": _EXPIRED,
    "ExpiredTokenException": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "CredentialRetrievalError": "check that the role of the storage connection, or the machine's AWS identity, can "
    "still be had (STS, metadata service); it is tried again, and the log has the reason",
    "RequestTimeTooSkewed": "set this machine's clock: it differs from the object store's",
    "PermanentRedirect": "set region_name to the bucket's region",
    "AuthorizationHeaderMalformed": "set region_name to the bucket's region",
    "IllegalLocationConstraintException": "set region_name to the bucket's region",
    "ParamValidationError": "correct the bucket's name in the spec's storage section",
    "SSLError": "check the certificate of endpoint_url; verify takes the path of a CA bundle",
    "NotImplemented": "use an object store that supports If-None-Match on PutObject",
}

#: What a request may end with: botocore wraps its transport's errors, except those of reading the body of an answer.
REQUEST_ERRORS = (BotoCoreError, ClientError, HTTPError)

#: Transport errors: the request may or may not have been done.
_TRANSPORT = (ConnectionError, HTTPClientError, IncompleteReadError, ResponseStreamingError, HTTPError)

#: Nothing was sent: whoever gives the keys (STS, a metadata service, a file) did not answer just now.
_NO_KEYS_NOW = (CredentialRetrievalError,)


def code_of(error: BaseException) -> str:
    """S3's error code, or the class name of an error that has none. ``str(error)`` is avoided: it may be long."""
    if isinstance(error, ClientError):
        return str(error.response.get("Error", {}).get("Code") or "Unknown")
    return type(error).__name__


def status_of(error: BaseException) -> int:
    """The HTTP status of S3's answer, 0 without one."""
    if isinstance(error, ClientError):
        return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0)
    return 0


def is_retriable(error: BaseException) -> bool:
    """Whether the same request may succeed a moment later."""
    if isinstance(error, ClientError):
        return code_of(error) in RETRIABLE_CODES or status_of(error) in (429, 500, 502, 503, 504)
    return isinstance(error, (*_TRANSPORT, *_NO_KEYS_NOW))


def is_precondition_failed(error: BaseException) -> bool:
    """``If-None-Match: *`` met an existing object."""
    return code_of(error) in ("PreconditionFailed", "412") or status_of(error) == 412


def is_missing_key(error: BaseException) -> bool:
    """There is no such object (but the bucket is there)."""
    return code_of(error) == "NoSuchKey"


def is_lock_refused(error: BaseException) -> bool:
    """The bucket, the service or the identity cannot lock objects; the same put without a lock may work."""
    code = code_of(error)
    if code in ("InvalidRequest", "InvalidArgument", "MalformedXML") and isinstance(error, ClientError):
        return "lock" in str(error.response.get("Error", {}).get("Message", "")).lower()
    return code in ("ObjectLockConfigurationNotFoundError", "NotImplemented", "AccessDenied", "MethodNotAllowed")


def as_ours(
    error: BotoCoreError | ClientError | HTTPError, *, bucket: str, endpoint: str | None, path: str
) -> MigrationError:
    """The error to raise for one of botocore's. Names the bucket, never credentials."""
    service = f" at {endpoint}" if endpoint else ""
    where = Where(path=path)
    code = code_of(error)
    if is_retriable(error):
        return StorageUnavailable(
            f"S3{service} did not do what was asked of bucket {bucket}: {code}, also not when tried again",
            where=where,
            next_step=_NEXT_STEPS.get(code, "check the network and the object store's health, then clear the task"),
            details={"code": code, "bucket": bucket},
        )
    if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
        what, next_step = f"no usable AWS credentials for bucket {bucket}", _CREDENTIALS
    else:
        what = f"S3{service} refused for bucket {bucket}: {code}"
        next_step = _NEXT_STEPS.get(code, "check the storage connection and the bucket")
    return StorageRefused(what, where=where, next_step=next_step, details={"code": code, "bucket": bucket})
