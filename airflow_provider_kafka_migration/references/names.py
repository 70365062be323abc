"""The text of a reference: its scheme, and what the scheme's own part names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote

from airflow_provider_kafka_migration.errors import ConnectionInvalid, Where

DEFAULT_SCHEME = "airflow"

#: Schemes of services that keep secrets, with the words that their references take after ``?``.
SECRET_STORES: Mapping[str, tuple[str, ...]] = {
    "secretsmanager": ("version", "region"),
    "ssm": ("version", "region"),
    "gcp-sm": ("version",),
    "vault": ("version", "mount", "kv"),
}

#: Schemes that a process without Airflow can resolve, if its machine has what they name.
SELF_CONTAINED = ("env", "file", *SECRET_STORES)


def split_reference(reference: str) -> tuple[str, str]:
    """Split ``env:NAME`` into ``("env", "NAME")``; a word without a scheme is an Airflow connection id."""
    scheme, separator, rest = reference.partition(":")
    is_scheme = scheme.isidentifier() or scheme in SECRET_STORES
    if separator and is_scheme and rest and not rest.startswith("//"):
        return scheme, rest
    return DEFAULT_SCHEME, reference


def is_self_contained(reference: str) -> bool:
    """Return whether a process without Airflow can resolve the reference."""
    return split_reference(reference)[0] in SELF_CONTAINED


@dataclass(frozen=True)
class SecretName:
    """What a reference to a secret store names: ``NAME?version=V#KEY``.

    :param name: the store's own name of the secret.
    :param options: what follows ``?``.
    :param key: of a secret that is a JSON object, the value to take; None: the whole secret.
    """

    scheme: str
    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None

    @property
    def where(self) -> Where:
        """The reference, for error messages. A name is not a secret."""
        return Where(path=f"{self.scheme}:{self.name}")

    @property
    def version(self) -> str | None:
        """The version that the reference asks for; None: the current one."""
        return self.options.get("version")

    @classmethod
    def parse(cls, scheme: str, rest: str) -> SecretName:
        """Read the part of a reference that follows its scheme.

        :raises ConnectionInvalid: no name, or a word after ``?`` that the scheme does not know.
        """
        text, hash_sign, key = rest.partition("#")
        name, _, query = text.partition("?")
        options = dict(parse_qsl(query, keep_blank_values=True))
        known = SECRET_STORES[scheme]
        unknown = sorted(set(options) - set(known))
        empty = sorted(word for word, value in options.items() if not value)
        if not name or unknown or empty or (query and not options) or (hash_sign and not key):
            wrong = ", ".join([*unknown, *empty]) or "a part of it is empty"
            raise ConnectionInvalid(
                f"the reference is malformed: {wrong}",
                where=Where(path=f"{scheme}:{name}"),
                next_step=f"write {scheme}:NAME, with ?{'=...&'.join(known)}=... and #KEY where needed",
            )
        return cls(scheme, unquote(name), options, unquote(key) or None)
