"""One slice of one lane: take the lease, copy until done, deadline or stop, end the lease."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from airflow_provider_kafka_migration.compare.lane_prover import LaneProver
from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.copy.lane import Lane
from airflow_provider_kafka_migration.copy.limits import SliceLimits
from airflow_provider_kafka_migration.copy.partition import PartitionCopy
from airflow_provider_kafka_migration.documents.base import Document
from airflow_provider_kafka_migration.documents.copy import CopyJob, CopyLane, PartitionResult, StopAt
from airflow_provider_kafka_migration.errors import ClaimLost, MigrationError, ObjectExists, Where
from airflow_provider_kafka_migration.kafka.clock import Deadline
from airflow_provider_kafka_migration.kafka.wire import Wire
from airflow_provider_kafka_migration.lanes.assignment import RateWatch
from airflow_provider_kafka_migration.lanes.figures import SUMS, FiguresWriter
from airflow_provider_kafka_migration.lanes.open_transactions import with_holders
from airflow_provider_kafka_migration.lanes.slice_begin import begin_seconds
from airflow_provider_kafka_migration.storage.base import ObjectStore

log = logging.getLogger(__name__)

# -- claim watch ------------------------------------------------------------------------------------------------------
#
# Data plane processes outlive the tasks that started them; this informs them that the migration has a new owner.
#
# ``<migration_id>/control/claim.json`` names the current generation. It is a copy of what the journal has, small
# enough to be read in each slice; the journal remains the authority for everything that is journaled.


_ASK_SECONDS = 2.0


class ClaimNotice(Document):
    """``control/claim.json``."""

    version: int = 1
    migration_id: str
    generation: int
    owner: str


def claim_key(migration_id: str) -> str:
    """Return the key of the notice."""
    return f"{migration_id}/control/claim.json"


def publish_claim(store: ObjectStore, migration_id: str, generation: int, owner: str) -> None:
    """Publish to copiers who owns the migration. An older generation never replaces a newer one."""
    data = store.get(claim_key(migration_id))
    if data is not None and ClaimNotice.parse(data).generation >= generation:
        return
    notice = ClaimNotice(migration_id=migration_id, generation=generation, owner=owner)
    store.put(claim_key(migration_id), notice.canonical())


class ClaimWatch:
    """Checks before and during slices whether the job's generation still owns the migration."""

    def __init__(self, job: CopyJob, store: ObjectStore) -> None:
        self._job = job
        self._store = store
        self._asked_at = -_ASK_SECONDS

    def check(self) -> None:
        """Read the notice every few seconds.

        :raises ClaimLost: another owner has taken over the migration.
        """
        now = time.monotonic()
        if now - self._asked_at < _ASK_SECONDS:
            return
        self._asked_at = now
        data = self._store.get(claim_key(self._job.migration_id))
        notice = None if data is None else ClaimNotice.parse(data)
        if notice is not None and notice.generation > self._job.generation:
            raise ClaimLost(
                f"{notice.owner} has taken over the migration (generation {notice.generation}); this copier belongs to "
                f"generation {self._job.generation}",
                where=Where(migration_id=self._job.migration_id, phase=self._job.name),
                next_step="none: the new owner's copiers continue from the target's log ends",
            )


# -- leases -----------------------------------------------------------------------------------------------------------
#
# One owner per lane: no process starts a slice before the previous owner has ended or its slice has expired.
#
# ``<migration_id>/leases/<scope>/<lane:06d>/<number:08d>.json`` is create-only, so two newcomers never get the same
# generation; ``<number>.ended`` next to it means that the owner no longer sends anything. Numbers count down as the
# generations go up, so the newest lease comes first in a listing however many there were. All jobs that write to the
# target share a scope: the tail waits for the owner of a lane in the seed.
#
# A mirror takes leases for years, so each owner deletes old ones. A newcomer that has slept since it looked may then
# create a number again that was deleted: so a new lease counts only if a look *after* its creation finds it newest.
#
# A newcomer that finds an owner which has neither ended nor is known to be dead waits one full slice, by its own clock,
# from the time it first saw the lease: the owner's slice began before that, so it is over by then whatever clocks say.


_POLL_SECONDS = 0.25
_FIRST_NUMBER = 99_999_999
#: So many generations are kept, for people who look what has happened.
KEPT_LEASES = 8
#: Most objects that one owner deletes: there may be many from earlier releases, and the slice has begun.
_MAX_DELETED = 40


@dataclass(frozen=True)
class Identity:
    """The owner of a lease: a process of one boot of one machine."""

    boot_id: str
    host: str
    pid: int
    started_ticks: int

    @classmethod
    def of_this_process(cls) -> Identity:
        """Return the identity of this process."""
        return cls(_boot_id(), socket.gethostname(), os.getpid(), _started_ticks(os.getpid()))

    def is_known_dead(self) -> bool:
        """Return True only if it certainly is dead: the same boot of this machine, and the process no longer exists."""
        if self.boot_id != _boot_id() or not self.boot_id:
            return False
        return _started_ticks(self.pid) != self.started_ticks


def _boot_id() -> str:
    try:
        # Include the pid namespace: the same pid in another container is another process.
        namespace = os.readlink("/proc/self/ns/pid")
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() + namespace
    except OSError:
        return ""


def _started_ticks(pid: int) -> int:
    """Return a process's start time in clock ticks since boot; -1 if it does not exist (or is a zombie)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return -1
    fields = stat.rpartition(")")[2].split()
    return -1 if fields[0] in "ZX" else int(fields[19])


@dataclass(frozen=True)
class Lease:
    """A slice of one lane, owned by this process until ``deadline`` (monotonic clock plus time asleep)."""

    generation: int
    deadline: Deadline
    key: str


class LeaseKeeper:
    """Takes and ends leases of one lane.

    :param scope: jobs of one scope exclude each other: ``target`` for all jobs that write there, or ``backup``.
    :param slice_seconds: length of a slice; the same for all copiers of a job.
    :param forgets: delete old leases, because the job has no end. All keepers of such a lane have to say so: only they
        look whether they have taken a number that was deleted.
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
        forgets: bool = False,
    ) -> None:
        self._store = store
        self._forgets = forgets
        self._prefix = f"{migration_id}/leases/{scope}/{lane:06d}/"
        self._slice_seconds = slice_seconds
        self._identity = identity or Identity.of_this_process()

    def acquire(self, give_up: Callable[[], bool] = lambda: False) -> Lease | None:
        """Wait until the lane is free and take it; None if ``give_up`` returns True.

        The deadline counts from before the lease object is written, so it is never later than other processes assume.
        """
        waited: dict[int, float] = {}
        while not give_up():
            generation, owner_key, ended = self._newest()
            if owner_key is not None and not ended and not self._is_free(owner_key, generation, waited):
                time.sleep(_POLL_SECONDS)
                continue
            deadline = Deadline(time.monotonic() + self._slice_seconds)
            key = self._key(generation + 1)
            try:
                self._store.put_new(key, self._content())
            except ObjectExists:
                continue
            if self._forgets:
                # Where leases are deleted, the number may be one that others had, and have deleted since.
                if self._newest()[1] != key:
                    self._withdraw(key)
                    time.sleep(_POLL_SECONDS)
                    continue
                self._forget(generation + 1 - KEPT_LEASES)
            return Lease(generation + 1, deadline, key)
        return None

    def _key(self, generation: int) -> str:
        return f"{self._prefix}{_FIRST_NUMBER - generation + 1:08d}.json"

    def _withdraw(self, key: str) -> None:
        """Delete a lease that lost. If that is refused it stays, which harms nobody: newer ones hide it."""
        try:
            self._store.delete(key)
        except MigrationError as error:
            log.warning("A lease of a lane that others hold cannot be deleted, and stays: %s", error)

    def _forget(self, generation: int) -> None:
        """Delete the leases up to a generation. If that is refused they stay, which harms nobody."""
        if generation <= 0:
            return
        try:
            newer = self._key(generation + 1)
            for info in islice(self._store.list(self._prefix, start_after=newer), _MAX_DELETED):
                self._store.delete(info.key)
        except MigrationError as error:
            log.warning("Old leases of a lane cannot be deleted, and stay: %s", error)

    def end(self, lease: Lease) -> None:
        """Record that this owner no longer sends anything."""
        self._store.put(lease.key.removesuffix(".json") + ".ended", b"")

    def _newest(self) -> tuple[int, str | None, bool]:
        """(generation, key, whether it has ended) of the newest lease; (0, None, False) if there never was one."""
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


# -- slices -----------------------------------------------------------------------------------------------------------


#: Longest time that a broker that does not answer delays a whole lane.
REQUEST_SECONDS = 10.0


class StopOffsets:
    """Where partitions stop: the job's own stop offsets, or the stop object once it exists."""

    _POLL_SECONDS = 0.5

    def __init__(self, job: CopyJob, store: ObjectStore) -> None:
        self._job = job
        self._store = store
        self._found: StopAt | None = None
        self._asked_at = 0.0

    def poll(self) -> StopAt | None:
        """Return the stop object, if it exists; it is read at intervals."""
        now = time.monotonic()
        if self._found is None and self._job.stop_key is not None and now - self._asked_at >= self._POLL_SECONDS:
            self._asked_at = now
            self._found = StopAt.in_force(self._store.get(self._job.stop_key))
        return self._found

    def until(self, copy: PartitionCopy) -> int | None:
        """Return the exclusive source offset where this partition stops, or None."""
        if copy.spec.until_offset is not None:
            return copy.spec.until_offset
        return None if self._found is None else self._found.offset(*copy.key)


def run_slice(
    job: CopyJob,
    lane: CopyLane,
    *,
    clients: Clients,
    attempt: int = 0,
    stop: Callable[[], bool] | None = None,
    slice_seconds: float | None = None,
) -> list[PartitionResult]:
    """Copy a lane for one slice; blocks. Never raises for a single partition: errors are in the results.

    :param attempt: of the task, for logs only; leases distinguish owners.
    :param stop: called regularly; True ends the slice early, whatever is left.
    :raises ClaimLost: another owner has taken over the migration.
    :raises MigrationError: nothing of the lane could be done (cluster or storage unreachable).
    """
    name = job.name
    if lane.half is not None:
        job = job.model_copy(update={"name": lane.half})
    asked_to_stop = stop or (lambda: False)
    store = clients.store(job.journal_location)
    seconds = float(slice_seconds or job.slice_seconds)
    scope = "backup" if job.name == "backup" else "target"
    keeper = LeaseKeeper(store, job.migration_id, scope, lane.lane, seconds, forgets=job.target_deletes)
    claim = ClaimWatch(job, store)
    if job.name != "backup":
        claim.check()
    lease = keeper.acquire(asked_to_stop)
    if lease is None:
        return []
    began = time.monotonic()
    stops = StopOffsets(job, store)
    rates = RateWatch(job, store)
    figures = ("source_bytes",) if lane.half == "backup" else SUMS
    writer = FiguresWriter(store, job.migration_id, name, lane.lane, lease.generation, names=figures)

    def should_stop() -> bool:
        stops.poll()
        rates.poll()
        if job.name != "backup":
            claim.check()
        return asked_to_stop()

    with ExitStack() as opened:

        def wire(side: str) -> Wire:
            found = clients.wire(side, timeout_seconds=REQUEST_SECONDS)
            opened.callback(found.close)
            return found

        # Runs after all sockets are closed: nothing from this owner can reach a cluster except what the kernel has.
        opened.callback(keeper.end, lease)
        stops.poll()
        rates.poll()
        limits = SliceLimits(lease.deadline, stops.until, should_stop, lambda: rates.bytes_per_second)
        archive = clients.store(job.archive_location) if job.via == "s3" else None
        # A restore gets no access to the source, which may be unreachable from here or no longer exist.
        source = None if job.name == "restore" else wire("source")
        is_backup = job.name == "backup"
        assert archive is not None or not is_backup
        copier = Lane(
            job,
            lane,
            source=source,
            target=None if is_backup else wire("target"),
            map_store=archive if is_backup and archive is not None else store,
            archive_store=archive,
            limits=limits,
        )
        if not is_backup:
            opened.enter_context(LaneProver(job, lane, clients, store, lease.deadline))
        with writer.watching(copier.copies):
            results = copier.run()
        begin = begin_seconds(
            copier.copies, follows=source is not None and job.stop_key is not None, began=began, now=time.monotonic()
        )
        results = [item.model_copy(update={"begin_seconds": begin}) for item in results[:1]] + results[1:]
        if source is not None:
            results = with_holders(results, copier.copies, source)
    return [result.model_copy(update={"slice_number": lease.generation}) for result in results]
