"""An object that is written, read back and removed again: the proof that a machine can use a store.

Nothing else of the product deletes objects, so removal is not part of the store's interface.
"""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from airflow_provider_kafka_migration.errors import ObjectExists, StorageRefused, Where
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


#: Keys that several threads try to create, and how many threads race for each.
RACES, RACERS = 20, 3


def race(store: ObjectStore, prefix: str) -> str:
    """Let several threads create the same objects, which all have to lose but one; the objects are removed again.

    A store may refuse the second of two puts in a row, and still let two win that arrive together.

    :returns: what went wrong, for people; empty if each object had one creator.
    :raises StorageRefused: the store refuses.
    :raises StorageUnavailable: the store does not answer.
    """
    name = f"{prefix}/{uuid.uuid4().hex}"
    with ThreadPoolExecutor(RACERS) as pool:
        for number in range(RACES):
            wrong = _race_for(store, f"{name}-{number}", pool)
            if wrong:
                return wrong
    return ""


def _race_for(store: ObjectStore, key: str, pool: ThreadPoolExecutor) -> str:
    start = threading.Barrier(RACERS)

    def create(racer: int) -> bytes | None:
        content = f"racer {racer}\n".encode()
        start.wait()
        try:
            store.put_new(key, content)
        except ObjectExists:
            return None
        return content

    won = [content for content in pool.map(create, range(RACERS)) if content is not None]
    found = store.get(key)
    _remove(store, key)
    if len(won) != 1:
        return f"{len(won)} of {RACERS} create-only puts of one object at the same time succeeded"
    return "" if found == won[0] else "the object of the one create-only put that succeeded was replaced"


def _remove(store: ObjectStore, key: str) -> bool:
    check_key(key)
    if isinstance(store, S3Store):
        with suppress(*REQUEST_ERRORS):
            store.client.delete_object(**store.object_args(key))
            return True
    if isinstance(store, LocalStore):
        with suppress(OSError):
            (store.folder / key).unlink()
            return True
    return False
