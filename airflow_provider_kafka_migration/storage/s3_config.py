"""How S3 is reached. All fields are optional: without them boto3's own chain applies (environment, profile, role)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from airflow_provider_kafka_migration.errors import ConnectionInvalid
from airflow_provider_kafka_migration.references import Resolver


@dataclass(frozen=True)
class S3Config:
    """Endpoint and credentials of an S3 service.

    :param endpoint_url: for services other than AWS; then path-style addressing is used.
    :param verify: ``False`` turns TLS verification off, a string is the path of a CA bundle.
    :param credentials_file: JSON with ``aws_access_key_id``, ``aws_secret_access_key`` and ``aws_session_token`` that
        somebody replaces before the keys end; it is read again when it changes, and wins over the keys here.
    :param read_keys: gives the keys that hold now, for credentials that this process renews itself. It wins over
        both, belongs to this process, and is no part of the settings as data.
    """

    endpoint_url: str | None = None
    aws_access_key_id: str | None = field(default=None, repr=False)
    aws_secret_access_key: str | None = field(default=None, repr=False)
    aws_session_token: str | None = field(default=None, repr=False)
    region_name: str | None = None
    verify: bool | str | None = None
    credentials_file: str | None = None
    read_keys: Callable[[], Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if bool(self.aws_access_key_id) != bool(self.aws_secret_access_key):
            raise ConnectionInvalid(
                "the S3 settings have only one of aws_access_key_id and aws_secret_access_key",
                next_step="give both, or neither to use the machine's own AWS identity",
            )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> S3Config:
        """Settings from a mapping (a secret reference's JSON); empty values count as not given.

        :raises ConnectionInvalid: unknown keys or values of a wrong type. Values are never quoted: they are secrets.
        """
        known = {item.name for item in fields(cls)} - {"read_keys"}
        unknown = sorted(str(key) for key in data if key not in known)
        if unknown:
            raise ConnectionInvalid(
                f"unknown S3 settings: {', '.join(unknown)}", next_step=f"use only {', '.join(sorted(known))}"
            )
        given = {key: value for key, value in data.items() if value is not None and value != ""}
        wrong = sorted(
            key for key, value in given.items() if not isinstance(value, (str, bool) if key == "verify" else str)
        )
        if wrong:
            raise ConnectionInvalid(f"S3 settings that are not text: {', '.join(wrong)}", next_step="give text")
        return cls(**given)

    @classmethod
    def of(cls, resolver: Resolver, reference: str) -> S3Config:
        """Settings behind a reference, with a way to renew credentials that end.

        :raises ConnectionInvalid: the reference cannot be resolved, or its settings cannot be used.
        """
        config = cls.from_dict(resolver.mapping(reference))
        renewal = resolver.renewal(reference)
        return replace(config, read_keys=renewal) if renewal else config

    def to_dict(self) -> dict[str, Any]:
        """The fields that are set, secrets included: for a secret reference's content, never for a log."""
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "read_keys"}
        return {name: value for name, value in values.items() if value is not None}
