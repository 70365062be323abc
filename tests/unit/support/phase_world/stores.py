"""A store on disk that belongs to the outside: it fails on demand, and a kill can follow each write."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from airflow_provider_kafka_migration.storage.local import LocalStore
from phase_world.outside import Outside

#: Views and figures for people, written at any time; no decision depends on them.
_NOT_COUNTED = ("journal.jsonl", "/leases/", "/claim")


class SimStore(LocalStore):
    """A folder.

    :param name: ``journal``, ``archive`` or ``evidence``, for faults.
    """

    def __init__(self, folder: Path, name: str, outside: Outside) -> None:
        super().__init__(folder)
        self._name, self._outside = f"{name}_store", outside
        #: keys that are answered by a function, with what is stored
        self.answers: dict[str, Callable[[bytes | None], bytes | None]] = {}

    def put_new(self, key: str, data: bytes | bytearray, *, sha256: str | None = None) -> None:
        """See ``LocalStore.put_new``."""
        name = f"{self._name}.put_new.{key.rpartition('/')[2]}"
        self._outside.call(name, lambda: super(SimStore, self).put_new(key, data), changes=key)

    def put(self, key: str, data: bytes | bytearray) -> None:
        """See ``LocalStore.put``."""
        changes = "" if any(part in key for part in _NOT_COUNTED) else key
        name = f"{self._name}.put.{key.rpartition('/')[2]}"
        self._outside.call(name, lambda: super(SimStore, self).put(key, data), changes=changes)

    def put_locked(self, key: str, data: bytes, retain_until: datetime, *, new: bool = False) -> bool:
        """See ``LocalStore.put_locked``."""
        (self.put_new if new else self.put)(key, data)
        return False

    def get(self, key: str) -> bytes | None:
        """See ``LocalStore.get``."""
        name = f"{self._name}.get.{key.rpartition('/')[2]}"
        found = self._outside.call(name, lambda: super(SimStore, self).get(key))
        answer = self.answers.get(key)
        return found if answer is None else answer(found)


class Heartbeat:
    """Makes ``progress/tail.json`` that of a tail that runs now: it changes at each reading."""

    def __init__(self, generation: Callable[[], int]) -> None:
        self._generation = generation
        self._beats = 0

    def __call__(self, stored: bytes | None) -> bytes:
        """Return the document of this moment."""
        self._beats += 1
        figures = dict.fromkeys(("partitions_done", "partitions_total", "records", "copied_bytes", "total_bytes"), 0)
        former = json.loads(stored) if stored else {"partitions": []}
        beat = {"run": "tail", "seconds": self._beats, "records_per_second": 0.0, "generation": self._generation()}
        return json.dumps({**figures, **former, **beat}).encode()
