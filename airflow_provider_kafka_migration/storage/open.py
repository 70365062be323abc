"""Opens stores by location: ``s3://bucket/prefix`` or ``file:///folder``."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from airflow_provider_kafka_migration.errors import SpecInvalid
from airflow_provider_kafka_migration.storage.base import ObjectStore
from airflow_provider_kafka_migration.storage.local import LocalStore
from airflow_provider_kafka_migration.storage.s3 import S3Config, S3Store


def split_s3_uri(uri: str) -> tuple[str, str]:
    """Split ``s3://bucket/some/prefix/`` into ``("bucket", "some/prefix")``.

    :raises SpecInvalid: the text is not such a URI.
    """
    scheme, separator, rest = uri.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme != "s3" or not separator or not bucket:
        raise _invalid("expected s3://bucket/prefix")
    if "@" in bucket or ":" in bucket:
        raise _invalid("s3://bucket/prefix must not contain credentials or a port")
    return bucket, prefix.strip("/")


def open_store(uri: str, s3_config: S3Config | None = None) -> ObjectStore:
    """Open the store at a location. Nothing is read or written yet.

    :raises SpecInvalid: any other kind of location. The error does not quote it: a wrong one may contain credentials.
    """
    scheme = uri.partition("://")[0]
    if scheme == "s3":
        bucket, prefix = split_s3_uri(uri)
        return S3Store(s3_config or S3Config(), bucket, prefix)
    if scheme == "file":
        parts = urlsplit(uri)
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/") or parts.path == "/":
            raise _invalid("expected file:///absolute/folder")
        return LocalStore(unquote(parts.path))
    raise _invalid("expected s3://bucket/prefix or file:///absolute/folder")


def _invalid(reason: str) -> SpecInvalid:
    return SpecInvalid(
        f"not a storage location: {reason}",
        next_step="correct the location in the spec's storage section",
        details={"mistakes": [{"path": "storage", "reason": reason}]},
    )
