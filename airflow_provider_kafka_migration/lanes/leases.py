"""One owner per lane: nobody starts a slice before the former owner has ended or its slice has passed.

``<migration_id>/leases/<scope>/<lane:06d>/<number:08d>.json`` is create-only, so two newcomers never get the same
generation; ``<number>.ended`` beside it says that the owner sends nothing any more. Numbers count down with the
generations, so the newest lease comes first in a listing however many there were. All jobs that write to the target
share a scope: whoever owned a lane in the seed is waited for by the tail.

A newcomer that finds an owner which neither ended nor is known to be dead waits one full slice, by its own clock and
counted from its own first look: the owner's slice began before that, so it is over by then whatever clocks say.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_kafka_migration.errors import ObjectExists
from airflow_provider_kafka_migration.kafka.clock import Deadline
from airflow_provider_kafka_migration.storage.base import ObjectStore

_POLL_SECONDS = 0.25
_FIRST_NUMBER = 99_999_999


@dataclass(frozen=True)
class Identity:
    """Who owns a lease: a process of one boot of one machine."""

    boot_id: str
    host: str
    pid: int
    started_ticks: int

    @classmethod
    def of_this_process(cls) -> Identity:
        """This process."""
        return cls(_boot_id(), socket.gethostname(), os.getpid(), _started_ticks(os.getpid()))

    def is_known_dead(self) -> bool:
        """True only if it certainly is: the same boot of the same machine, and no such process any more."""
        if self.boot_id != _boot_id() or not self.boot_id:
            return False
        return _started_ticks(self.pid) != self.started_ticks


def _boot_id() -> str:
    try:
        # The pid namespace too: the same pid in another container is another process.
        namespace = os.readlink("/proc/self/ns/pid")
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() + namespace
    except OSError:
        return ""


def _started_ticks(pid: int) -> int:
    """Start time of a process in clock ticks since boot; -1 if there is no such process (or it is a zombie)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return -1
    fields = stat.rpartition(")")[2].split()
    return -1 if fields[0] in "ZX" else int(fields[19])


@dataclass(frozen=True)
class Lease:
    """A slice of one lane, owned by this process until ``deadline`` (monotonic clock and time asleep)."""

    generation: int
    deadline: Deadline
    key: str


class LeaseKeeper:
    """Takes and ends leases of one lane.

    :param scope: who excludes each other: ``target`` for all jobs that write there, ``backup``.
    :param slice_seconds: length of a slice; the same for all copiers of a job.
    """

    def __init__(
        self,
        store: ObjectStore,
        migration_id: str,
        scope: str,
        lane: int,
        slice_seconds: float,
        *,
        identity: Identity | None = None,
    ) -> None:
        self._store = store
        self._prefix = f"{migration_id}/leases/{scope}/{lane:06d}/"
        self._slice_seconds = slice_seconds
        self._identity = identity or Identity.of_this_process()

    def acquire(self, give_up: Callable[[], bool] = lambda: False) -> Lease | None:
        """Wait until the lane is free and take it; None if told to give up.

        The deadline counts from before the lease object is written, so it is never later than others assume.
        """
        waited: dict[int, float] = {}
        while not give_up():
            generation, owner_key, ended = self._newest()
            if owner_key is not None and not ended and not self._is_free(owner_key, generation, waited):
                time.sleep(_POLL_SECONDS)
                continue
            deadline = Deadline(time.monotonic() + self._slice_seconds)
            key = f"{self._prefix}{_FIRST_NUMBER - generation:08d}.json"
            try:
                self._store.put_new(key, self._content())
            except ObjectExists:
                continue
            return Lease(generation + 1, deadline, key)
        return None

    def end(self, lease: Lease) -> None:
        """Say that this owner sends nothing any more."""
        self._store.put(lease.key.removesuffix(".json") + ".ended", b"")

    def _newest(self) -> tuple[int, str | None, bool]:
        """(generation, key, whether it ended) of the newest lease; (0, None, False) if there never was one."""
        ended = ""
        for info in self._store.list(self._prefix):
            stem, _, kind = info.key.rpartition(".")
            if kind == "json":
                number = int(stem.rsplit("/", 1)[-1])
                return _FIRST_NUMBER - number + 1, info.key, stem == ended
            ended = stem
        return 0, None, False

    def _is_free(self, key: str, generation: int, waited: dict[int, float]) -> bool:
        now = time.monotonic()
        first_seen = waited.setdefault(generation, now)
        data = self._store.get(key)
        owner = json.loads(data) if data else {}
        slice_seconds = float(owner.get("slice_seconds", self._slice_seconds))
        if now - first_seen >= slice_seconds:
            return True
        identity = Identity(
            str(owner.get("boot_id", "")),
            str(owner.get("host", "")),
            int(owner.get("pid", -1)),
            int(owner.get("started_ticks", -1)),
        )
        return identity.is_known_dead()

    def _content(self) -> bytes:
        me = self._identity
        return json.dumps(
            {
                "version": 1,
                "boot_id": me.boot_id,
                "host": me.host,
                "pid": me.pid,
                "started_ticks": me.started_ticks,
                "slice_seconds": self._slice_seconds,
            },
            sort_keys=True,
        ).encode()
