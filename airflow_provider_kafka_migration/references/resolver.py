"""Resolves references to what they name, by their schemes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_kafka_migration.errors import ConnectionInvalid, Where
from airflow_provider_kafka_migration.references import secret_stores
from airflow_provider_kafka_migration.references.local import from_environment, from_file, this_machine
from airflow_provider_kafka_migration.references.names import split_reference

Handler = Callable[[str], str]
#: Takes what a reference names and returns a function that returns the current keys; None if they never change.
Renewal = Callable[[str], "Callable[[], Any] | None"]

#: Key of an object that stands for a secret inside a connection: ``{"secret": "vault:secret/kafka#password"}``.
SECRET = "secret"  # noqa: S105 - the name of a key


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
        self._handlers: dict[str, Handler] = {"env": from_environment, "file": from_file, **secret_stores.handlers()}
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

        :raises ConnectionInvalid: unknown scheme, missing variable, unreadable or world-readable file, a secret that
            does not exist or may not be read.
        :raises SecretStoreUnavailable: a secret store did not answer.
        """
        scheme, rest = split_reference(reference)
        handler = self._handlers.get(scheme)
        if handler is None:
            known = ", ".join(sorted(self._handlers))
            raise ConnectionInvalid(
                f"references of the kind {scheme!r} cannot be resolved on {this_machine()}",
                where=Where(path=reference),
                next_step=f"use one of: {known}; a process without Airflow cannot read Airflow's connections",
            )
        return handler(rest)

    def registry(self, reference: str) -> dict[str, Any]:
        """Return the settings of a schema registry behind a reference, as ``RegistryAccess.from_dict`` takes them."""
        scheme, rest = split_reference(reference)
        handler = self._registries.get(scheme)
        return self.settings(self._object(reference, handler(rest) if handler else self.text(reference)))

    def mapping(self, reference: str) -> dict[str, Any]:
        """Return the content behind a reference as a JSON object: librdkafka keys, or S3 settings."""
        return self.settings(self._object(reference, self.text(reference)))

    def settings(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a connection with the secrets that single values refer to.

        Such a value is ``{"secret": REFERENCE}``; all others stay as they are, because an ordinary password may look
        like a reference.

        :raises ConnectionInvalid: as :meth:`text`.
        """
        return {
            key: self.text(value[SECRET])
            if isinstance(value, Mapping) and list(value) == [SECRET] and isinstance(value[SECRET], str)
            else value
            for key, value in values.items()
        }

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
