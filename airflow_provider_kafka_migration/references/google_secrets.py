"""``gcp-sm:``: Google Secret Manager.

A secret is named ``PROJECT/SECRET``, ``SECRET`` (of the machine's own project) or by its full resource name,
``projects/P/secrets/S``, ``projects/P/locations/L/secrets/S``. The identity is the machine's own: the application
default credentials. ``CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER`` is another address of the service, as for
``gcloud``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
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
from airflow_provider_kafka_migration.references.secret_stores import READ_SECONDS, as_text, library_missing

#: Address of the service -> (a client, the project of its identity or None).
MakeClient = Callable[["str | None"], "tuple[Any, str | None]"]

_ADDRESS_VARIABLE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER"
#: All attempts of one request together.
_ALL_SECONDS = 20.0


class GoogleSecrets:
    """Reads secrets with Google's client.

    :param make_client: makes a client; None: with the identity of this machine.
    """

    def __init__(self, make_client: MakeClient | None = None) -> None:
        self._make_client = make_client or _machine_client

    def secret(self, name: SecretName) -> str:
        """Return a secret; ``?version=`` is the number of a version or an alias.

        :raises MigrationError: see :func:`as_error`; :class:`SecretUnusable` if it is binary.
        """
        try:
            import google.api_core.exceptions
            import google.auth.exceptions
            import google.cloud.secretmanager_v1
            import requests
        except ImportError:
            raise library_missing(name, "google-cloud-secret-manager", "gcp-secrets") from None
        try:
            client, project = self._make_client(_address(name))
            full = resource_name(name, project)
            answer = client.access_secret_version(name=full, timeout=READ_SECONDS, retry=_retry())
        except (
            google.api_core.exceptions.GoogleAPIError,
            google.auth.exceptions.GoogleAuthError,
            requests.RequestException,
        ) as error:
            raise as_error(name, error) from None
        return as_text(name, self._intact(name, answer.payload))

    @staticmethod
    def _intact(name: SecretName, payload: Any) -> bytes:
        import crc32c

        data = bytes(payload.data)
        if payload.data_crc32c and crc32c.crc32c(data) != int(payload.data_crc32c):
            raise SecretStoreUnavailable(
                f"the secret reached {this_machine()} with a wrong checksum",
                where=name.where,
                next_step="clear the task; something between Google and that machine changes data",
            )
        return data


def read(name: SecretName) -> str:
    """Return a secret, with this machine's identity."""
    return GoogleSecrets().secret(name)


def resource_name(name: SecretName, project: str | None) -> str:
    """Return the full resource name of a secret's version.

    :raises ConnectionInvalid: the reference names no project, and the identity has none.
    """
    parts = name.name.split("/")
    if parts[0] == "projects":
        base = name.name
        if "versions" in parts:
            return base
    elif len(parts) == 2:
        base = f"projects/{parts[0]}/secrets/{parts[1]}"
    elif len(parts) == 1 and project:
        base = f"projects/{project}/secrets/{parts[0]}"
    else:
        raise ConnectionInvalid(
            "the reference does not say in which project the secret is",
            where=name.where,
            next_step="write gcp-sm:PROJECT/SECRET, or the full resource name",
        )
    return f"{base}/versions/{name.version or 'latest'}"


def _address(name: SecretName) -> str | None:
    given = os.environ.get(_ADDRESS_VARIABLE, "").rstrip("/")
    if given:
        return given
    parts = name.name.split("/")
    # Regional secrets are known only to the service of their region.
    return f"secretmanager.{parts[3]}.rep.googleapis.com" if len(parts) > 3 and parts[2] == "locations" else None


def _machine_client(address: str | None) -> tuple[Any, str | None]:
    import google.auth
    from google.cloud import secretmanager_v1

    credentials, project = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    return client_of(secretmanager_v1, credentials, address), project


def client_of(module: Any, credentials: Any, address: str | None) -> Any:
    """Return a client that speaks REST: proxies and CA bundles of the environment apply to it."""
    options = {"api_endpoint": address} if address else None
    return module.SecretManagerServiceClient(credentials=credentials, transport="rest", client_options=options)


def _retry() -> Any:
    import requests
    from google.api_core import exceptions, retry

    passing = retry.if_exception_type(
        exceptions.ServerError, exceptions.TooManyRequests, requests.ConnectionError, requests.Timeout
    )
    return retry.Retry(predicate=passing, initial=0.5, maximum=4.0, timeout=_ALL_SECONDS)


def as_error(name: SecretName, error: Exception) -> MigrationError:
    """Return our error for one of Google's libraries; none quotes what the service wrote.

    ``SecretNotFound``, ``SecretAccessDenied``, ``ConnectionInvalid`` (malformed name, version that is disabled),
    ``SecretStoreUnavailable`` (all others).
    """
    from google.api_core import exceptions
    from google.auth.exceptions import DefaultCredentialsError, RefreshError

    cause = getattr(error, "cause", None)
    if isinstance(error, exceptions.RetryError) and isinstance(cause, Exception):
        error = cause
    if isinstance(error, exceptions.NotFound):
        return SecretNotFound(
            "Google has no such secret or version",
            where=name.where,
            next_step="check project, name and version",
        )
    refused = isinstance(error, exceptions.Forbidden | exceptions.Unauthorized)
    if refused or (isinstance(error, RefreshError) and not error.retryable):
        return SecretAccessDenied(
            f"Google does not let {this_machine()} read the secret: {type(error).__name__}",
            where=name.where,
            next_step="give its service account the role roles/secretmanager.secretAccessor on the secret",
        )
    if isinstance(error, DefaultCredentialsError):
        return SecretAccessDenied(
            f"{this_machine()} has no Google identity",
            where=name.where,
            next_step="run with a service account, or set GOOGLE_APPLICATION_CREDENTIALS on that machine",
        )
    if isinstance(error, exceptions.ClientError) and not isinstance(error, exceptions.TooManyRequests):
        return ConnectionInvalid(
            f"Google refused the reference: {type(error).__name__}",
            where=name.where,
            next_step="check the name, and that the version is neither disabled nor destroyed",
        )
    return SecretStoreUnavailable(
        f"Google Secret Manager did not answer {this_machine()}: {type(error).__name__}",
        where=name.where,
        next_step="check that secretmanager.googleapis.com can be reached from that machine; then clear the task",
    )
