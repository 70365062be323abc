"""``secretsmanager:`` and ``ssm:``: AWS Secrets Manager, and the Parameter Store of AWS Systems Manager.

A secret is named by its name or its ARN; an ARN also says the region. Without one, and without ``?region=``, the
machine's own region is used (``AWS_REGION``, its profile). The identity is the machine's own: environment, profile,
role of the instance, pod or job.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_kafka_migration.errors import (
    ConnectionInvalid,
    MigrationError,
    SecretAccessDenied,
    SecretNotFound,
    SecretStoreUnavailable,
)
from airflow_provider_kafka_migration.references.local import this_machine
from airflow_provider_kafka_migration.references.names import SecretName
from airflow_provider_kafka_migration.references.secret_stores import (
    ATTEMPTS,
    CONNECT_SECONDS,
    READ_SECONDS,
    is_binary,
    library_missing,
)

#: (service, region or None) -> a client of boto3.
MakeClient = Callable[[str, "str | None"], Any]

_NOT_FOUND = frozenset({"ResourceNotFoundException", "ParameterNotFound", "ParameterVersionNotFound"})
_REFUSED = frozenset(
    {
        *("AccessDenied", "AccessDeniedException", "DecryptionFailure", "ExpiredToken", "ExpiredTokenException"),
        *("IncompleteSignature", "InvalidClientTokenId", "InvalidKeyId", "InvalidSignatureException"),
        *("MissingAuthenticationToken", "NotAuthorized", "OptInRequired", "SignatureDoesNotMatch"),
        *("UnrecognizedClientException",),
    }
)
#: What no retry can change; everything else that AWS answers may pass.
_MALFORMED = frozenset(
    {"InvalidParameterException", "InvalidRequestException", "ValidationException", "ParameterValidationError"}
)
_UUID = re.compile(r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_CREATES = threading.Lock()


class AwsSecrets:
    """Reads secrets with clients of boto3.

    :param make_client: makes a client; None: with the identity of this machine.
    """

    def __init__(self, make_client: MakeClient | None = None) -> None:
        self._make_client = make_client

    def secret(self, name: SecretName) -> str:
        """Return a secret of Secrets Manager.

        ``?version=`` is a staging label (``AWSPREVIOUS``) or the id of a version.

        :raises MigrationError: see :func:`as_error`; :class:`SecretUnusable` if it is binary.
        """
        arguments: dict[str, str] = {"SecretId": name.name}
        if name.version:
            arguments["VersionId" if _UUID.fullmatch(name.version) else "VersionStage"] = name.version
        answer = self._ask(name, "secretsmanager", lambda client: client.get_secret_value(**arguments))
        text = answer.get("SecretString")
        if not isinstance(text, str):
            raise is_binary(name)
        return text

    def parameter(self, name: SecretName) -> str:
        """Return a parameter of the Parameter Store, decrypted.

        ``?version=`` is the number of a version or a label.

        :raises MigrationError: see :func:`as_error`.
        """
        full = f"{name.name}:{name.version}" if name.version else name.name
        answer = self._ask(name, "ssm", lambda client: client.get_parameter(Name=full, WithDecryption=True))
        return str(answer["Parameter"]["Value"])

    def _ask(self, name: SecretName, service: str, call: Callable[[Any], Mapping[str, Any]]) -> Mapping[str, Any]:
        try:
            import botocore.exceptions
        except ImportError:
            raise library_missing(name, "boto3", "") from None
        make = self._make_client or _machine_client
        try:
            return call(make(service, name.options.get("region") or _region_of_arn(name.name)))
        except MigrationError:
            raise
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
            raise as_error(name, error) from None


def read_secret(name: SecretName) -> str:
    """Return a secret of Secrets Manager, with this machine's identity."""
    return AwsSecrets().secret(name)


def read_parameter(name: SecretName) -> str:
    """Return a parameter of the Parameter Store, with this machine's identity."""
    return AwsSecrets().parameter(name)


def client_config() -> Any:
    """Return the configuration of boto3's clients that bounds all waits."""
    from botocore.config import Config

    retries = {"total_max_attempts": ATTEMPTS, "mode": "standard"}
    return Config(connect_timeout=CONNECT_SECONDS, read_timeout=READ_SECONDS, retries=retries)  # type: ignore[arg-type]


def _machine_client(service: str, region: str | None) -> Any:
    import boto3

    # Creating sessions is not thread-safe in boto3; clients are safe to use.
    with _CREATES:
        return boto3.session.Session(region_name=region).client(service, config=client_config())  # type: ignore[call-overload]


def _region_of_arn(name: str) -> str | None:
    parts = name.split(":")
    return parts[3] if parts[0] == "arn" and len(parts) > 5 and parts[3] else None


def as_error(name: SecretName, error: Exception) -> MigrationError:
    """Return our error for one of botocore's; none quotes what AWS wrote, only its code.

    ``SecretNotFound``, ``SecretAccessDenied``, ``ConnectionInvalid`` (malformed name, no region),
    ``SecretStoreUnavailable`` (all others).
    """
    from botocore.exceptions import ClientError, NoCredentialsError, NoRegionError

    if isinstance(error, ClientError):
        return _as_answer(name, str(error.response.get("Error", {}).get("Code", "")))
    if isinstance(error, NoCredentialsError):
        return SecretAccessDenied(
            f"{this_machine()} has no AWS identity",
            where=name.where,
            next_step="give the machine, pod or job a role that may read the secret, or AWS variables",
        )
    if isinstance(error, NoRegionError):
        return ConnectionInvalid(
            f"{this_machine()} has no AWS region",
            where=name.where,
            next_step="use the ARN of the secret, append ?region=..., or set AWS_REGION on that machine",
        )
    return SecretStoreUnavailable(
        f"AWS did not answer {this_machine()}: {type(error).__name__}",
        where=name.where,
        next_step="check that the service's endpoint can be reached from that machine; then clear the task",
    )


def _as_answer(name: SecretName, code: str) -> MigrationError:
    if code in _NOT_FOUND:
        return SecretNotFound(
            f"AWS has no such secret or version: {code}",
            where=name.where,
            next_step="check name, version, region and account; a secret of another account needs its ARN",
        )
    if code in _REFUSED:
        return SecretAccessDenied(
            f"AWS does not let {this_machine()} read the secret: {code}",
            where=name.where,
            next_step="give its identity secretsmanager:GetSecretValue or ssm:GetParameter on it, and kms:Decrypt on "
            "its key",
        )
    if code in _MALFORMED:
        return ConnectionInvalid(
            f"AWS refused the reference: {code}",
            where=name.where,
            next_step="check the name and the version; a secret that is marked for deletion cannot be read",
        )
    return SecretStoreUnavailable(
        f"AWS could not answer {this_machine()}: {code}", where=name.where, next_step="clear the task"
    )
