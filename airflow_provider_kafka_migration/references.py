"""References to secrets: the spec, argv and journals hold references, never the secrets themselves.

A reference is ``env:NAME`` (an environment variable), ``file:PATH`` (a file that only its owner may read) or a scheme
that a higher layer adds (``airflow:CONN_ID``). A plain word without a scheme is an Airflow connection id.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from airflow_provider_kafka_migration.errors import ConnectionInvalid, Where

Handler = Callable[[str], str]
#: Takes what a reference names and returns a function that returns the current keys; None if they never change.
Renewal = Callable[[str], "Callable[[], Any] | None"]

DEFAULT_SCHEME = "airflow"


def split_reference(reference: str) -> tuple[str, str]:
    """Split ``env:NAME`` into ``("env", "NAME")``; a word without a scheme is an Airflow connection id."""
    scheme, separator, rest = reference.partition(":")
    if separator and scheme.isidentifier() and rest and not rest.startswith("//"):
        return scheme, rest
    return DEFAULT_SCHEME, reference


def _from_environment(name: str) -> str:
    value = os.environ.get(name)
    if value is None:
        raise ConnectionInvalid(
            f"the environment variable {name} is not set",
            where=Where(path=f"env:{name}"),
            next_step=f"set {name} for this process, or use another reference",
        )
    return value


def _from_file(path: str) -> str:
    file = Path(path).expanduser()
    try:
        mode = file.stat().st_mode
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConnectionInvalid(
            f"the file cannot be read: {error.strerror}",
            where=Where(path=f"file:{path}"),
            next_step="check the path and that this user owns the file",
        ) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConnectionInvalid(
            "the file holds a secret and other users may read it",
            where=Where(path=f"file:{path}"),
            next_step=f"chmod 600 {path}",
        )
    return text


class Resolver:
    """Resolves references to their content.

    :param handlers: additional schemes, for instance ``airflow`` (from the Airflow layer).
    :param renewals: for schemes whose credentials may be temporary.
    :param registries: for schemes under which the settings of a schema registry are not a JSON text.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler] | None = None,
        renewals: Mapping[str, Renewal] | None = None,
        registries: Mapping[str, Handler] | None = None,
    ) -> None:
        self._handlers: dict[str, Handler] = {"env": _from_environment, "file": _from_file}
        self._handlers.update(handlers or {})
        self._renewals = dict(renewals or {})
        self._registries = dict(registries or {})

    def renewal(self, reference: str) -> Callable[[], Any] | None:
        """Return a function that returns the current keys, for credentials that expire and are replaced; else None.

        :raises ConnectionInvalid: the connection does not exist.
        """
        scheme, rest = split_reference(reference)
        renewal = self._renewals.get(scheme)
        return renewal(rest) if renewal else None

    def text(self, reference: str) -> str:
        """Return the content behind a reference.

        :raises ConnectionInvalid: unknown scheme, missing variable, unreadable or world-readable file.
        """
        scheme, rest = split_reference(reference)
        handler = self._handlers.get(scheme)
        if handler is None:
            known = ", ".join(sorted(self._handlers))
            raise ConnectionInvalid(
                f"references of the kind {scheme!r} cannot be resolved",
                where=Where(path=reference),
                next_step=f"use one of: {known}; without Airflow, give connections as env:NAME or file:PATH",
            )
        return handler(rest)

    def registry(self, reference: str) -> dict[str, Any]:
        """Return the settings of a schema registry behind a reference, as ``RegistryAccess.from_dict`` takes them."""
        scheme, rest = split_reference(reference)
        handler = self._registries.get(scheme)
        return self._object(reference, handler(rest) if handler else self.text(reference))

    def mapping(self, reference: str) -> dict[str, Any]:
        """Return the content behind a reference as a JSON object: librdkafka keys, or S3 settings."""
        return self._object(reference, self.text(reference))

    @staticmethod
    def _object(reference: str, text: str) -> dict[str, Any]:
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            # The text may hold a secret, so the error never quotes it.
            raise ConnectionInvalid(
                "the content is not a JSON object",
                where=Where(path=reference),
                next_step='write one JSON object, for instance {"bootstrap.servers": "broker:9092"}',
            ) from None
        if not isinstance(value, dict):
            raise ConnectionInvalid(
                "the content is JSON, but not an object",
                where=Where(path=reference),
                next_step='write one JSON object, for instance {"bootstrap.servers": "broker:9092"}',
            )
        return value
