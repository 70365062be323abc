"""What both EMR engines share: requests to AWS through the Amazon provider's hooks, errors, ids, and stored logs."""

from __future__ import annotations

import logging
import random
import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, quote_plus

from botocore import exceptions as aws_errors
from botocore.config import Config
from pydantic import Field, StringConstraints

from airflow_provider_kafka_migration.engines.service import (
    TAIL_LINE_LENGTH,
    TAIL_LINES,
    EngineArguments,
    log_tail,
    one_line,
)
from airflow_provider_kafka_migration.errors import (
    EngineAnswerInvalid,
    EngineCredentialsExpired,
    EngineForbidden,
    EngineJobUnknown,
    EngineNotFound,
    EngineQuotaExceeded,
    EngineRefused,
    EngineThrottled,
    EngineUnreachable,
    MigrationError,
    Transient,
    Where,
)
from airflow_provider_kafka_migration.storage.open import split_s3_uri
from airflow_provider_kafka_migration.storage.s3 import S3Config, S3Store

if TYPE_CHECKING:
    from airflow.providers.amazon.aws.hooks.base_aws import AwsBaseHook

log = logging.getLogger(__name__)

#: The connection that the Amazon provider takes for the machine's own identity if it does not exist.
DEFAULT_CONNECTION = "aws_default"

#: How to wait between attempts (seconds); tests replace it.
_sleep = time.sleep

#: Attempts of one request; together the delays add less than a minute to the requests themselves.
MAX_ATTEMPTS = 6
FIRST_DELAY_SECONDS = 1.0
MAX_DELAY_SECONDS = 20.0
#: A request is not sent again after this time: the service is slow, and whoever waits has other things to do.
MAX_SECONDS = 120.0
#: We alone retry: botocore does not know the throttling errors of EMR on EKS. All requests may be repeated, because
#: those that start something carry a client token.
_CLIENT_CONFIG = Config(retries={"mode": "standard", "total_max_attempts": 1}, connect_timeout=10, read_timeout=30)

#: Job runs per page, and how many pages are read when a run is looked up by its token.
PAGE_SIZE = 50
MAX_PAGES = 200

TAG_MIGRATION = "kafka-migration-id"
TAG_JOB = "kafka-migration-job"
TAG_TOKEN = "kafka-migration-token"  # noqa: S105 - the name of a tag

#: A log is read from its beginning, because it is compressed; more than this is not read.
MAX_LOG_BYTES = 64 * 1024 * 1024
MAX_PLAIN_LOG_BYTES = 512 * 1024 * 1024

_ROLE = r"^arn:aws[a-zA-Z0-9-]*:iam::[0-9]{12}:role/[\w+=,.@/-]+$"
_KMS_KEY = r"^arn:aws[a-zA-Z0-9-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[a-zA-Z0-9-]+$"
_TAG = r"^[A-Za-z0-9 /_.:=+@-]*$"

Role = Annotated[str, StringConstraints(pattern=_ROLE, max_length=2048)]
KmsKey = Annotated[str, StringConstraints(pattern=_KMS_KEY, max_length=2048)]
S3Uri = Annotated[str, StringConstraints(pattern=r"^s3://[a-z0-9.-]+(/[A-Za-z0-9._=+@/-]*)?$")]
Archive = Annotated[str, StringConstraints(pattern=r"^s3://[a-z0-9.-]+/[A-Za-z0-9._=+@/-]+(#[A-Za-z0-9_-]+)?$")]
ServiceId = Annotated[str, StringConstraints(pattern=r"^[0-9a-z]+$", max_length=64)]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]*$", max_length=100)]
SecretReference = Annotated[
    str, StringConstraints(pattern=r"^(secretsmanager|ssm):[A-Za-z0-9/_+=.@:?#&-]+$", max_length=900)
]
TagKey = Annotated[str, StringConstraints(pattern=_TAG, min_length=1, max_length=128)]
TagValue = Annotated[str, StringConstraints(pattern=_TAG, max_length=256)]


class AwsArguments(EngineArguments):
    """Arguments that both EMR engines have."""

    execution_role_arn: Role = Field(description="Role of driver and executors.")
    aws_conn_id: str | None = Field(
        DEFAULT_CONNECTION, description="Airflow connection of type aws; null uses the machine's own identity."
    )
    region: Annotated[str, StringConstraints(pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9]+$")] | None = Field(
        None, description="AWS region; null takes the connection's."
    )
    python: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._/-]+$")] | None = Field(
        None, description="Python of driver and executors, for instance ./environment/bin/python."
    )
    archives: list[Archive] = Field(
        default_factory=list, description="Archives for driver and executors, s3://...tar.gz#environment."
    )
    log_uri: S3Uri | None = Field(None, description="Where EMR writes logs; null: logs/ in the staging location.")
    log_key_arn: KmsKey | None = Field(None, description="KMS key that encrypts the logs on S3.")
    log_group: Annotated[str, StringConstraints(pattern=r"^[.\-_/#A-Za-z0-9]+$", max_length=512)] | None = Field(
        None, description="CloudWatch log group for the driver's log, in addition to S3."
    )
    tags: dict[TagKey, TagValue] = Field(default_factory=dict, max_length=40, description="Tags of each job run.")
    secrets: dict[VariableName, SecretReference] = Field(
        default_factory=dict,
        description="Environment variables of driver and executors whose value is a reference to a secret, for "
        "instance KAFKA_MIGRATION_SEALING_KEY: secretsmanager:NAME.",
    )


def wait(seconds: float) -> None:
    """Wait."""
    _sleep(seconds)


# -- ids --------------------------------------------------------------------------------------------------------------


_ARN = re.compile(
    r"arn:(?P<partition>aws[a-zA-Z0-9-]*):(?P<service>emr-serverless|emr-containers):(?P<region>[a-z0-9-]+)"
    r":(?P<account>[0-9]{12}):/(?P<kind>applications|virtualclusters)/(?P<place>[0-9a-zA-Z]+)/jobruns/(?P<run>[0-9a-zA-Z]+)"
)


@dataclass(frozen=True)
class JobRun:
    """A job run, as its ARN names it: the id that is journaled.

    It has everything that is needed to ask for the run, so a later change of the engine's arguments in the spec cannot
    make a running job look like a lost one.
    """

    partition: str
    service: str
    region: str
    account: str
    kind: str
    place: str
    run: str

    @classmethod
    def parse(cls, text: str, service: str) -> JobRun:
        """Read an id.

        :raises EngineJobUnknown: it is not one of this service.
        """
        match = _ARN.fullmatch(text)
        if match is None or match["service"] != service:
            raise EngineJobUnknown(
                f"the id of the job is not the ARN of a job run of {service}",
                where=Where(path=text[:200]),
                next_step="the job was submitted with another engine: set spark.engine back to it until the job ends",
            )
        return cls(**match.groupdict())

    def __str__(self) -> str:
        head = f"arn:{self.partition}:{self.service}:{self.region}:{self.account}"
        return f"{head}:/{self.kind}/{self.place}/jobruns/{self.run}"

    @property
    def console(self) -> str:
        """The address of the AWS console of the run's partition."""
        domains = {"aws-cn": "amazonaws.cn", "aws-us-gov": "amazonaws-us-gov.com"}
        return f"https://console.{domains.get(self.partition, 'aws.amazon.com')}"


def arn_of(answer: Any, service: str) -> JobRun:
    """Return the job run whose ARN an answer has.

    :raises EngineAnswerInvalid: it has none.
    """
    arn = answer.get("arn") if isinstance(answer, Mapping) else None
    try:
        return JobRun.parse(arn if isinstance(arn, str) else "", service)
    except EngineJobUnknown:
        raise EngineAnswerInvalid(
            f"{service} answered without the ARN of the job run, so its id is not known",
            next_step="clear the task: it finds the job by its token, and does not start a second one",
        ) from None


# -- errors -----------------------------------------------------------------------------------------------------------


_THROTTLING = frozenset(
    {
        *("EKSRequestThrottledException", "RequestThrottledException", "Throttling", "ThrottlingException"),
        *("ThrottledException", "TooManyRequestsException", "RequestLimitExceeded", "SlowDown", "RequestThrottled"),
    }
)
_EXPIRED = frozenset(
    {
        *("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"),
        *("CredentialRetrievalError", "UnauthorizedSSOTokenError", "SSOTokenLoadError", "TokenRetrievalError"),
    }
)
_BAD_CREDENTIALS = frozenset(
    {
        *("UnrecognizedClientException", "InvalidClientTokenId", "InvalidSignatureException", "SignatureDoesNotMatch"),
        *("IncompleteSignature", "MissingAuthenticationToken", "MissingAuthenticationTokenException"),
        *("InvalidAccessKeyId", "NoCredentialsError", "PartialCredentialsError", "NoAuthTokenError"),
    }
)
_FORBIDDEN = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "Forbidden", "403"})
_QUOTA = frozenset({"ServiceQuotaExceededException", "LimitExceededException", "QuotaExceededException"})
#: The state of the place does not permit it now, or another request with the same token is being executed.
_CONFLICT = frozenset({"ConflictException"})
_ABSENT = frozenset({"ResourceNotFoundException", "NoSuchBucket"})

#: The request may or may not have been executed.
_TRANSPORT = (
    aws_errors.ConnectionError,
    aws_errors.HTTPClientError,
    aws_errors.IncompleteReadError,
    aws_errors.ResponseStreamingError,
)


def code_of(error: BaseException) -> str:
    """Return the error code of AWS, or the class name of an error without one."""
    if isinstance(error, aws_errors.ClientError):
        return str(error.response.get("Error", {}).get("Code") or "Unknown")
    return type(error).__name__


def is_absent(error: BaseException) -> bool:
    """Return whether this is the documented answer for something that does not exist."""
    return code_of(error) == "ResourceNotFoundException"


def _status(error: BaseException) -> int:
    if not isinstance(error, aws_errors.ClientError):
        return 0
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0)


def _message(error: BaseException) -> str:
    """Return AWS's own sentence, as one line of bounded length."""
    if not isinstance(error, aws_errors.ClientError):
        return ""
    return one_line(str(error.response.get("Error", {}).get("Message") or ""), 400).rstrip(".")


def _is_service_trouble(error: BaseException) -> bool:
    return isinstance(error, _TRANSPORT) or _status(error) >= 500


def is_retriable(error: BaseException) -> bool:
    """Return whether the same request may succeed a moment later."""
    return (
        code_of(error) in _THROTTLING
        or _status(error) == 429
        or _is_service_trouble(error)
        or isinstance(error, UnreadableAnswerError)
    )


def as_ours(error: BaseException, doing: str, *, where: Where | None = None) -> MigrationError:
    """Return the error to raise for one of botocore's.

    :param doing: what was tried, for instance "start a job run of application 00f1".
    """
    code, said = code_of(error), _message(error)
    what = f"AWS refused to {doing}: {code}" + (f": {said}" if said else "")
    details = {"code": code}
    kind, next_step = _kind_of(error)
    if issubclass(kind, Transient):
        what = f"AWS did not {doing}, also when asked again: {code}" + (f": {said}" if said else "")
    return kind(what, where=where, next_step=next_step, details=details)


#: Errors with a code of their own, and what to do; the first row that has the code or the status counts.
_KINDS: tuple[tuple[frozenset[str], int, type[MigrationError], str], ...] = (
    (_THROTTLING, 429, EngineThrottled, "clear the task later, or ask AWS for a higher request rate"),
    (
        _EXPIRED,
        0,
        EngineCredentialsExpired,
        "give the connection a role, whose keys are renewed, or put a new token into it; then clear the task",
    ),
    (_BAD_CREDENTIALS, 0, EngineForbidden, "correct the keys of the connection in spark.engine_args.aws_conn_id"),
    (
        _FORBIDDEN,
        0,
        EngineForbidden,
        "allow the action to the identity of the connection; docs/spark-engines.md lists them",
    ),
    (
        _QUOTA,
        402,
        EngineQuotaExceeded,
        "end other jobs, or have the quota raised in Service Quotas; then clear the task",
    ),
    (
        _ABSENT,
        0,
        EngineNotFound,
        "correct the id, the region or the account in spark.engine_args and its connection",
    ),
    (
        _CONFLICT,
        409,
        EngineUnreachable,
        "clear the task: a job that was started with this token is found then, and is not started twice",
    ),
    (frozenset({"NoRegionError"}), 0, EngineRefused, "set spark.engine_args.region, or region_name in the connection"),
)


def _kind_of(error: BaseException) -> tuple[type[MigrationError], str]:
    code, status = code_of(error), _status(error)
    for codes, row_status, kind, next_step in _KINDS:
        if code in codes or (row_status and status == row_status):
            return kind, next_step
    if isinstance(error, UnreadableAnswerError):
        return EngineAnswerInvalid, "check that no proxy answers in place of AWS; then clear the task"
    if is_retriable(error):
        return EngineUnreachable, "check the network and the AWS health dashboard, then clear the task"
    return EngineRefused, "correct spark.engine_args or the settings that AWS names; then clear the task"


class UnreadableAnswerError(Exception):
    """An answer that botocore cannot read: HTML, or JSON of another shape than the service's model says."""


#: What a request may raise.
REQUEST_ERRORS = (aws_errors.BotoCoreError, aws_errors.ClientError, UnreadableAnswerError)


# -- requests ---------------------------------------------------------------------------------------------------------


class Aws:
    """Clients of one connection and region, whose requests are retried within bounds.

    :param hook: class of the Amazon provider's hook that knows the service.
    :param region: region of a job run; None takes that of the arguments, or of the connection.
    """

    def __init__(self, arguments: AwsArguments, hook: Callable[..., AwsBaseHook], *, region: str | None = None) -> None:
        self._arguments = arguments
        self._make_hook = hook
        self._region = region or arguments.region
        self._clients: dict[str, Any] = {}

    @cached_property
    def hook(self) -> AwsBaseHook:
        """The hook of the service.

        :raises EngineRefused: the connection does not exist, or cannot be used.
        """
        from airflow.providers.common.compat.sdk import AirflowNotFoundException

        conn_id = self._arguments.aws_conn_id
        hook = self._make_hook(aws_conn_id=conn_id, region_name=self._region)
        with self._connection_errors():
            if conn_id is not None and conn_id != DEFAULT_CONNECTION:
                try:
                    # The hook itself would take the machine's identity instead, with rights that nobody has meant.
                    hook.get_connection(conn_id)
                except AirflowNotFoundException:
                    raise self._unusable("does not exist") from None
        return hook

    @contextmanager
    def _connection_errors(self) -> Iterator[None]:
        """Translate what the provider raises about a connection of which it can make nothing."""
        try:
            yield
        except (MigrationError, *REQUEST_ERRORS):
            raise
        except Exception as error:  # the provider takes the connection's extra for granted
            # The text may quote a part of the connection.
            raise self._unusable(f"cannot be used: {type(error).__name__}") from None

    def _unusable(self, why: str) -> EngineRefused:
        return EngineRefused(
            f"the Airflow connection {why}",
            where=Where(path=f"airflow:{self._arguments.aws_conn_id}"),
            next_step="correct spark.engine_args.aws_conn_id, or the connection; then clear the task",
        )

    def _forget(self) -> None:
        """Make all clients again, from the connection as it is now."""
        self._clients.clear()
        self.__dict__.pop("hook", None)

    def _client(self, service: str) -> Any:
        if service not in self._clients:
            with self._connection_errors():
                self._clients[service] = self._new_client(service)
        return self._clients[service]

    def _new_client(self, service: str) -> Any:
        hook = self.hook
        if service != hook.client_type:
            from airflow.providers.amazon.aws.hooks.base_aws import AwsBaseHook

            hook = AwsBaseHook(aws_conn_id=self._arguments.aws_conn_id, region_name=self._region, client_type=service)
        # What the connection says about proxies and the like stays as it is.
        return hook.get_client_type(region_name=self._region, config=hook.config.merge(_CLIENT_CONFIG))

    def call(self, service: str, operation: str, **request: Any) -> Any:
        """Send one request, again if that may help, and return the answer.

        :raises BotoCoreError: the last error.
        """
        started = time.monotonic()
        renewed = False
        for attempt in range(MAX_ATTEMPTS):
            try:
                return self._send(service, operation, request)
            except REQUEST_ERRORS as error:
                stale = not renewed and code_of(error) in _EXPIRED | _BAD_CREDENTIALS
                late = time.monotonic() - started > MAX_SECONDS
                if not (is_retriable(error) or stale) or late or attempt + 1 == MAX_ATTEMPTS:
                    raise
                if stale:
                    # The keys in the connection may have been replaced since this process has read them.
                    renewed = True
                    self._forget()
                log.info("AWS %s %s: %s; asking again", service, operation, code_of(error))
            delay = min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2**attempt)
            _sleep(delay * (0.5 + random.random() / 2))  # noqa: S311 - jitter, not a secret
        raise AssertionError("unreachable")

    def _send(self, service: str, operation: str, request: dict[str, Any]) -> Any:
        method = getattr(self._client(service), operation)
        try:
            return method(**request)
        except (aws_errors.BotoCoreError, aws_errors.ClientError):
            raise
        except Exception as error:  # botocore's parsers take answers for granted, and fail in many ways
            raise UnreadableAnswerError(type(error).__name__) from error

    def account(self) -> str:
        """Return the account of the connection's identity, which anybody may ask for."""
        answer = self.call("sts", "get_caller_identity")
        return str(answer.get("Account") or "")

    def store(self, location: str) -> S3Store:
        """Open a place on S3 with the identity of the connection, whose keys are read again for each request."""
        session = self.hook.get_session(region_name=self._region)
        credentials = session.get_credentials()
        settings = {
            "endpoint_url": self.hook.conn_config.get_service_endpoint_url("s3"),
            "region_name": session.region_name,
            "verify": self.hook.verify,
            "extra_args": self.hook.conn_config.get_service_config("s3").get("extra_args"),
        }
        config = S3Config.from_dict(settings)
        if credentials is not None:
            config = replace(config, read_keys=credentials.get_frozen_credentials)
        return S3Store(config, *split_s3_uri(location))

    def pages(self, service: str, operation: str, **request: Any) -> Iterator[Mapping[str, Any]]:
        """Yield the pages of a list, until there are no more.

        :raises EngineAnswerInvalid: the list does not end, or repeats itself.
        """
        token, seen = None, set()
        for _ in range(MAX_PAGES):
            answer = self.call(service, operation, **request, **({"nextToken": token} if token else {}))
            yield answer
            token = answer.get("nextToken")
            if not token:
                return
            if token in seen:
                break
            seen.add(token)
        raise EngineAnswerInvalid(
            f"the list of {service} ({operation}) does not end: {len(seen)} pages were read",
            next_step="clear the task; if that repeats, run the migration in an application of its own",
        )


# -- logs -------------------------------------------------------------------------------------------------------------


def tail_of_gzip(chunks: Iterator[bytes]) -> tuple[str, ...]:
    """Return the last lines of a compressed log. Memory stays small however large the log is.

    :raises zlib.error: it is not gzip.
    """
    unpack = zlib.decompressobj(wbits=31)
    kept = b""
    packed_bytes = plain_bytes = 0
    for chunk in chunks:
        packed_bytes += len(chunk)
        data = chunk
        while data:
            plain = unpack.decompress(data, 1024 * 1024)
            plain_bytes += len(plain)
            kept = (kept + plain)[-TAIL_LINES * TAIL_LINE_LENGTH * 4 :]
            data = unpack.unconsumed_tail
            if unpack.eof:
                # A log of several rotated parts is several gzip members in a row.
                data, unpack = unpack.unused_data, zlib.decompressobj(wbits=31)
            if plain_bytes > MAX_PLAIN_LOG_BYTES:
                return (*log_tail(kept.decode("utf-8", "replace"))[1:], "(the log is longer; read it on S3)")
        if packed_bytes > MAX_LOG_BYTES:
            return (*log_tail(kept.decode("utf-8", "replace"))[1:], "(the log is longer; read it on S3)")
    return log_tail(kept.decode("utf-8", "replace"))


class StoredLogs:
    """The driver's logs of job runs, on S3 and in CloudWatch. Errors never matter: a log is only for people.

    :param aws: clients for the run's region.
    """

    def __init__(self, aws: Aws) -> None:
        self._aws = aws

    def on_s3(self, uri: str, folder: str, wanted: Callable[[str], bool]) -> tuple[str, ...]:
        """Return the end of the first log with content below a folder.

        :param uri: ``logUri`` of the job run.
        :param folder: the run's folder below it.
        :param wanted: whether a key is a driver's log.
        """
        bucket, prefix = split_s3_uri(uri)
        start = "/".join(part for part in (prefix, folder) if part)
        answer = self._aws.call("s3", "list_objects_v2", Bucket=bucket, Prefix=f"{start}/", MaxKeys=1000)
        keys = [str(item["Key"]) for item in answer.get("Contents", ()) if wanted(str(item["Key"]))]
        for key in sorted(keys, key=lambda key: ("stderr" not in key, key)):
            body = self._aws.call("s3", "get_object", Bucket=bucket, Key=key)["Body"]
            lines = tail_of_gzip(body.iter_chunks(256 * 1024))
            if lines:
                return lines
        return ()

    def in_cloudwatch(self, group: str, stream_prefix: str, wanted: Callable[[str], bool]) -> tuple[str, ...]:
        """Return the end of the first stream with content.

        :param stream_prefix: begin of the names of the run's streams.
        """
        answer = self._aws.call(
            "logs", "describe_log_streams", logGroupName=group, logStreamNamePrefix=stream_prefix, limit=50
        )
        names = [str(item["logStreamName"]) for item in answer.get("logStreams", ())]
        for name in sorted(filter(wanted, names), key=lambda name: ("stderr" not in name.lower(), name)):
            events = self._aws.call(
                "logs", "get_log_events", logGroupName=group, logStreamName=name, limit=TAIL_LINES, startFromHead=False
            )
            lines = log_tail("\n".join(str(event.get("message", "")) for event in events.get("events", ())))
            if lines:
                return lines
        return ()


def first_tail(*sources: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
    """Return the first log that can be read and is not empty; nothing if there is none."""
    for source in sources:
        try:
            lines = source()
        except Exception as error:  # whatever is wrong with a log, the job's own end is what counts
            log.warning("The driver's log could not be read: %s", code_of(error))
            continue
        if lines:
            return lines
    return ()


def s3_console(run: JobRun, uri: str, folder: str) -> str:
    """Return the console's page of a folder with logs."""
    bucket, prefix = split_s3_uri(uri)
    start = "/".join(part for part in (prefix, folder) if part)
    return f"{run.console}/s3/buckets/{bucket}?region={run.region}&prefix={quote(start)}/"


def cloudwatch_console(run: JobRun, group: str, stream_prefix: str) -> str:
    """Return the console's page of a job run's log streams."""
    shown = quote_plus("?logStreamNameFilter=").replace("%", "$") + quote_plus(stream_prefix)
    place = f"#logsV2:log-groups/log-group/{quote_plus(group)}{shown}"
    return f"{run.console}/cloudwatch/home?region={run.region}{place}"
