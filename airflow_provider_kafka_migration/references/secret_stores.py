"""The secret stores as handlers of references. Their clients are imported when a reference needs one."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_kafka_migration.errors import SecretLibraryMissing, SecretUnusable, Where
from airflow_provider_kafka_migration.references.local import this_machine
from airflow_provider_kafka_migration.references.names import SECRET_STORES, SecretName

#: How long one process uses what a store has answered. Copiers resolve their references again in each slice, so a
#: rotated secret is used after this time, and a store is not asked some thousand times an hour.
KEEP_SECONDS = 300.0

#: Longest wait for a connection and for an answer, and how many times a request is sent.
CONNECT_SECONDS = 5.0
READ_SECONDS = 10.0
ATTEMPTS = 3

#: Reads a secret from its store: a text, or the key-value pairs of a store whose secrets are objects.
ReadSecret = Callable[[SecretName], "str | Mapping[str, Any]"]


class SecretStores:
    """Reads secrets, and keeps each answer for a while.

    :param clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[SecretKey, tuple[float, str | Mapping[str, Any]]] = {}

    def text(self, scheme: str, rest: str, read: ReadSecret) -> str:
        """Return the text that a reference names.

        :raises ConnectionInvalid: see the errors of ``references``; no message quotes a secret.
        :raises SecretStoreUnavailable: the store did not answer.
        """
        name = SecretName.parse(scheme, rest)
        key = (name.scheme, name.name, tuple(sorted(name.options.items())))
        with self._lock:
            read_at, value = self._kept.get(key, (None, ""))
        if read_at is None or self._clock() - read_at >= KEEP_SECONDS:
            value = read(name)
            with self._lock:
                self._kept[key] = (self._clock(), value)
        return picked(name, value)

    def forget(self) -> None:
        """Forget all answers."""
        with self._lock:
            self._kept.clear()


SecretKey = tuple[str, str, tuple[tuple[str, str], ...]]

#: The answers that this process has.
_STORES = SecretStores()


def handlers(readers: Mapping[str, ReadSecret] | None = None) -> dict[str, Callable[[str], str]]:
    """Return a handler for each scheme of a secret store.

    :param readers: by scheme, instead of the plain clients; their answers are not kept.
    """
    given = readers or {}

    def handler(scheme: str) -> Callable[[str], str]:
        if scheme in given:
            return lambda rest: SecretStores().text(scheme, rest, given[scheme])
        return lambda rest: _STORES.text(scheme, rest, _reader(scheme))

    return {scheme: handler(scheme) for scheme in SECRET_STORES}


def forget_answers() -> None:
    """Read all secrets from their stores again the next time."""
    _STORES.forget()


def _reader(scheme: str) -> ReadSecret:
    if scheme == "gcp-sm":
        from airflow_provider_kafka_migration.references import google_secrets

        return google_secrets.read
    if scheme == "vault":
        from airflow_provider_kafka_migration.references import vault_secrets

        return vault_secrets.read
    from airflow_provider_kafka_migration.references import aws_secrets

    return aws_secrets.read_secret if scheme == "secretsmanager" else aws_secrets.read_parameter


# -- what a secret holds ----------------------------------------------------------------------------------------------


def picked(name: SecretName, value: str | Mapping[str, Any]) -> str:
    """Return the text of a secret, or that of one of its values.

    :raises SecretUnusable: it is not a JSON object, or has no such key.
    """
    if name.key is None:
        return value if isinstance(value, str) else json.dumps(dict(value))
    found = _object(name, value)
    if name.key not in found:
        raise SecretUnusable(
            f"the secret has no key {name.key!r}",
            where=name.where,
            next_step="correct what follows # in the reference, or add the key to the secret",
        )
    part = found[name.key]
    return part if isinstance(part, str) else json.dumps(part)


def _object(name: SecretName, value: str | Mapping[str, Any]) -> Mapping[str, Any]:
    found: Any = value
    if isinstance(value, str):
        try:
            found = json.loads(value)
        except ValueError:
            found = None
    if not isinstance(found, Mapping):
        # The text is a secret, so the error never quotes it.
        raise SecretUnusable(
            f"the secret is not a JSON object, so it has no key {name.key!r}",
            where=name.where,
            next_step="remove # and what follows from the reference, or store the secret as one JSON object",
        )
    return found


def as_text(name: SecretName, data: bytes) -> str:
    """Return the text of a secret that its store keeps as bytes.

    :raises SecretUnusable: it is binary.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise is_binary(name) from None


def is_binary(name: SecretName) -> SecretUnusable:
    """Return the error about a secret that is not text."""
    return SecretUnusable(
        "the secret is binary, not text", where=name.where, next_step="store it as text in UTF-8, for instance as JSON"
    )


def library_missing(name: SecretName, library: str, extra: str) -> SecretLibraryMissing:
    """Return the error about a client library that this Python lacks.

    :param extra: the extra of this package that brings it.
    """
    return library_missing_for(f"{name.scheme}: references", library, extra, name.where)


def library_missing_for(what: str, library: str, extra: str, where: Where | None = None) -> SecretLibraryMissing:
    """Return the error about a library that this Python lacks.

    :param what: what needs it.
    :param extra: the extra of this package that brings it; empty: the package itself does.
    """
    package = "airflow-provider-kafka-migration" + (f"[{extra}]" if extra else "")
    return SecretLibraryMissing(
        f"the Python on {this_machine()} has no {library}, which {what} need",
        where=where,
        next_step=f"install {package} there, or only {library} on a machine of Spark",
    )
