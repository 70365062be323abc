"""An object that is written, read back and removed again: the proof that a machine can use a store.

Nothing else of the product deletes objects, so removal is not part of the store's interface.
"""

from __future__ import annotations

import uuid
from contextlib import suppress

from airflow_provider_kafka_migration.errors import StorageRefused, Where
from airflow_provider_kafka_migration.storage.base import ObjectStore, check_key
from airflow_provider_kafka_migration.storage.local import LocalStore
from airflow_provider_kafka_migration.storage.s3 import REQUEST_ERRORS, S3Store

_CONTENT = b"kafka-migration: written, read and removed by the probe of Spark\n"


def try_store(store: ObjectStore, prefix: str) -> str:
    """Write an object below a prefix, read it back, and remove it.

    :param prefix: of the key, without a slash at its end.
    :returns: the key, if the object could not be removed (the right to delete is not needed otherwise); else empty.
    :raises StorageRefused: the store refuses, or returns something else than what was written.
    :raises StorageUnavailable: the store does not answer.
    """
    key = f"{prefix}/{uuid.uuid4().hex}"
    store.put_new(key, _CONTENT)
    found = store.get(key)
    left = "" if _remove(store, key) else key
    if found != _CONTENT:
        raise StorageRefused(
            "the store did not return the object that was written"
            if found is None
            else "the store returned other content",
            where=Where(path=f"{store.uri}/{key}"),
            next_step="check the object store; on several machines a folder must be the same one everywhere",
        )
    return left


def _remove(store: ObjectStore, key: str) -> bool:
    check_key(key)
    if isinstance(store, S3Store):
        with suppress(*REQUEST_ERRORS):
            store.client.delete_object(Bucket=store.bucket, Key=f"{store.prefix}/{key}" if store.prefix else key)
            return True
    if isinstance(store, LocalStore):
        with suppress(OSError):
            (store.folder / key).unlink()
            return True
    return False
