"""How S3 is reached. All fields are optional: without them boto3's own chain applies (environment, profile, role)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from airflow_provider_kafka_migration.errors import ConnectionInvalid


@dataclass(frozen=True)
class S3Config:
    """Endpoint and credentials of an S3 service.

    :param endpoint_url: for services other than AWS; then path-style addressing is used.
    :param verify: ``False`` turns TLS verification off, a string is the path of a CA bundle.
    """

    endpoint_url: str | None = None
    aws_access_key_id: str | None = field(default=None, repr=False)
    aws_secret_access_key: str | None = field(default=None, repr=False)
    aws_session_token: str | None = field(default=None, repr=False)
    region_name: str | None = None
    verify: bool | str | None = None

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
        known = {item.name for item in fields(cls)}
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

    def to_dict(self) -> dict[str, Any]:
        """The fields that are set, secrets included: for a secret reference's content, never for a log."""
        return {item.name: getattr(self, item.name) for item in fields(self) if getattr(self, item.name) is not None}
