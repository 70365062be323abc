"""A store in memory that belongs to the outside: it fails on demand, and a kill can follow each write."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from airflow_provider_kafka_migration.errors import ObjectExists, Where
from airflow_provider_kafka_migration.storage.base import ObjectInfo, check_key
from phase_world.outside import Outside

_NUMBERS = itertools.count(1)
#: Views and figures for people, written at any time; no decision depends on them.
_NOT_COUNTED = ("journal.jsonl", "/leases/", "/claim")


class SimStore:
    """A bucket in memory: objects are created exactly once, and replaced as a whole.

    :param name: ``journal``, ``archive`` or ``evidence``, for faults.
    """

    def __init__(self, name: str, outside: Outside, objects: dict[str, bytes]) -> None:
        self.objects = objects
        self.uri = f"memory://{next(_NUMBERS)}/{name}"
        self._name, self._outside = f"{name}_store", outside
        #: keys that are answered by a function, with what is stored
        self.answers: dict[str, Callable[[bytes | None], bytes | None]] = {}

    def put_new(self, key: str, data: bytes | bytearray, *, sha256: str | None = None) -> None:
        """See ``ObjectStore.put_new``."""

        def act() -> None:
            if check_key(key) in self.objects:
                raise ObjectExists("the object already exists", where=Where(path=key), next_step="read it")
            self.objects[key] = bytes(data)

        self._outside.call(f"{self._name}.put_new.{_base(key)}", act, changes=key)

    def put(self, key: str, data: bytes | bytearray) -> None:
        """See ``ObjectStore.put``."""

        def act() -> None:
            self.objects[check_key(key)] = bytes(data)

        changes = "" if any(part in key for part in _NOT_COUNTED) else key
        self._outside.call(f"{self._name}.put.{_base(key)}", act, changes=changes)

    def put_locked(self, key: str, data: bytes, retain_until: datetime, *, new: bool = False) -> bool:
        """See ``ObjectStore.put_locked``: this store cannot lock."""
        (self.put_new if new else self.put)(key, data)
        return False

    def get(self, key: str) -> bytes | None:
        """See ``ObjectStore.get``."""
        found = self._outside.call(f"{self._name}.get.{_base(key)}", lambda: self.objects.get(check_key(key)))
        answer = self.answers.get(key)
        return found if answer is None else answer(found)

    def delete(self, key: str) -> None:
        """See ``ObjectStore.delete``."""
        self._outside.call(f"{self._name}.delete", lambda: self.objects.pop(key, None), changes=key)

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """See ``ObjectStore.list``."""

        def act() -> Sequence[ObjectInfo]:
            after = "" if start_after is None else start_after
            keys = sorted(self.objects, key=str.encode)
            return [ObjectInfo(key, len(self.objects[key])) for key in keys if key.startswith(prefix) and key > after]

        return iter(self._outside.call(f"{self._name}.list", act))

    def lose(self, key: str) -> None:
        """Have somebody delete an object."""
        del self.objects[key]


def _base(key: str) -> str:
    return key.rpartition("/")[2]


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
