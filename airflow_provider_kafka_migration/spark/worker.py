"""What a Spark task gets (where the job document is and how to resolve secrets, but no secrets) and what it runs."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from airflow_provider_kafka_migration.documents.base import Document
from airflow_provider_kafka_migration.documents.copy import CopyJob, CopyLane, PartitionResult
from airflow_provider_kafka_migration.errors import (
    ConnectionInvalid,
    DocumentUnreadable,
    JobMissing,
    MigrationError,
    Transient,
    Where,
)
from airflow_provider_kafka_migration.references import Resolver, is_self_contained
from airflow_provider_kafka_migration.references.argument import INLINE, ROLES, SEALED, parse_inline
from airflow_provider_kafka_migration.references.sealing import Binding
from airflow_provider_kafka_migration.spark.rows import ResultRow, error_row, result_rows
from airflow_provider_kafka_migration.spark.sealed import SealedReferences
from airflow_provider_kafka_migration.spark.tasks import TaskFunction
from airflow_provider_kafka_migration.storage.base import ObjectStore
from airflow_provider_kafka_migration.storage.open import open_store
from airflow_provider_kafka_migration.storage.s3 import S3Config

log = logging.getLogger(__name__)

# -- worker process ---------------------------------------------------------------------------------------------------
#
# A Python worker must not outlive its parent: no driver would control the copier.
#
# Three safeguards: Linux's parent-death signal, a check of the parent before each step of the slice, and the slice's
# deadline.


_PR_SET_PDEATHSIG = 1


def die_with_parent() -> bool:
    """Ask the kernel to send SIGKILL when the process that forked this one dies. Linux only.

    The kernel sends the signal when the *thread* that forked ends. PySpark's daemon forks in its only thread. Without
    the daemon the parent is a pooled thread of the JVM, which may end while its process lives; the signal is then not
    set.

    :returns: whether the signal is set.
    """
    parent = os.getppid()
    if not sys.platform.startswith("linux") or not _is_single_threaded_python(parent):
        return False
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        return False
    if os.getppid() != parent:  # the parent died between the two calls, so no signal will come
        os.kill(os.getpid(), signal.SIGKILL)
    return True


def _is_single_threaded_python(pid: int) -> bool:
    try:
        return "pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace")
    except OSError:
        return False


class ParentWatch:
    """Detects whether this process's parent has died since the watch began. One cheap system call per check."""

    def __init__(self) -> None:
        self._parent = os.getppid()

    def orphaned(self) -> bool:
        """Return True once another process has become the parent of this one."""
        return os.getppid() != self._parent


# -- worker -----------------------------------------------------------------------------------------------------------


_D = TypeVar("_D", bound=Document)


@dataclass(frozen=True)
class JobReferences:
    """How executors get connections. Never contains a secret, so Spark may ship, log and show it.

    The referenced document is JSON, ``{"source": ..., "target": ..., "storage": ...}``; each value is an object
    (librdkafka keys, S3 settings), a reference to one (``env:NAME``, ``file:PATH``), or null.

    :param document: reference to the document: ``file:PATH`` (mode 0600) or ``env:NAME``; empty if there is none.
    :param inline: the document itself, if all its values are references: then executors on other machines need no
        copy of the file.
    :param sealed: the connections encrypted for this job, instead of a document.
    """

    document: str
    inline: str | None = None
    sealed: SealedReferences | None = None

    @classmethod
    def open(
        cls, reference: str, resolver: Resolver | None = None, *, location: str = "", binding: Binding | None = None
    ) -> JobReferences:
        """Read the references once, on the driver, so that a mistake is found before any task starts.

        :param reference: any form of the argument ``--references``, see :mod:`..references.argument`.
        :param location: the store of the job document; sealed references have their renewals there.
        :param binding: the job that is run; sealed references of any other are refused.
        :raises ConnectionInvalid: the references are unreadable, readable by other users, malformed, or not this job's.
        """
        resolver = resolver or Resolver()
        if reference.startswith(SEALED):
            if binding is None:
                raise ValueError("sealed references need the job that they are for")
            return cls("", sealed=SealedReferences.open(reference, location, binding, resolver))
        if reference.startswith(INLINE):
            return cls("", json.dumps(parse_inline(reference), sort_keys=True))
        document = reference if is_self_contained(reference) else f"file:{reference}"
        values = _read(document, resolver)
        if any(isinstance(value, dict) for value in values.values()):
            return cls(document)
        return cls(document, json.dumps(values, sort_keys=True))

    def resolve(self, resolver: Resolver | None = None) -> dict[str, Any]:
        """``{"source": {...} | None, "target": {...} | None, "storage": {...} | S3Config | None}``, with secrets.

        :raises ConnectionInvalid: this machine cannot resolve a reference.
        """
        resolver = resolver or Resolver()
        if self.sealed is not None:
            return self.sealed.resolve(resolver)
        values = json.loads(self.inline) if self.inline else _read(self.document, resolver)
        return {role: _connection(values.get(role), resolver) for role in ROLES}

    def refreshed(self) -> JobReferences:
        """Return what the driver should ship now: with the newest renewal, if there is one and it can be read."""
        if self.sealed is None:
            return self
        try:
            return replace(self, sealed=self.sealed.refreshed())
        except Transient as error:
            # What was shipped before may still be valid; each executor finds out for itself.
            log.warning("The sealed references could not be refreshed: %s", error)
            return self


def _connection(value: Any, resolver: Resolver) -> dict[str, Any] | None:
    if isinstance(value, str):
        return resolver.mapping(value)
    return None if value is None else resolver.settings(value)


def _read(document: str, resolver: Resolver) -> dict[str, Any]:
    values = resolver.mapping(document)
    unknown = sorted(set(values) - set(ROLES))
    wrong = sorted(role for role in ROLES if not isinstance(values.get(role), dict | str | None))
    if unknown or wrong:
        # Values are never quoted: they may be secrets.
        problems = [f"{key} is unknown" for key in unknown] + [
            f"{role} is neither an object nor a reference" for role in wrong
        ]
        raise ConnectionInvalid(
            f"the references document has mistakes: {'; '.join(problems)}",
            where=Where(path=document),
            next_step='write {"source": {...}, "target": {...}, "storage": {...} or null}',
        )
    return values


@dataclass(frozen=True)
class JobPointer:
    """Where the job document is, and the references it needs.

    :param location: ``s3://bucket/prefix`` or ``file:///folder``.
    :param key: key of the document below the location.
    """

    location: str
    key: str
    references: JobReferences

    def store(self, secrets: Mapping[str, Any]) -> ObjectStore:
        """Open the store that contains the document.

        :param secrets: the result of :meth:`JobReferences.resolve`.
        """
        settings = secrets.get("storage")
        if settings is None or isinstance(settings, S3Config):
            return open_store(self.location, settings)
        return open_store(self.location, S3Config.from_dict(settings))

    def refreshed(self) -> JobPointer:
        """Return the pointer that the driver should ship now (:meth:`JobReferences.refreshed`)."""
        return replace(self, references=self.references.refreshed())

    def read(self, kind: type[_D], store: ObjectStore) -> _D:
        """Read the document.

        :raises JobMissing: it does not exist.
        :raises DocumentUnreadable: it is not of this kind.
        """
        data = store.get(self.key)
        where = Where(path=f"{self.location}/{self.key}")
        if data is None:
            raise JobMissing(
                "the job document does not exist",
                where=where,
                next_step="run the phase that writes it first, and check --job-location and --job-key",
            )
        try:
            return kind.parse(data)
        except ValidationError as error:
            raise DocumentUnreadable(
                f"the job document has {error.error_count()} mistakes; the first is: {error.errors()[0]['msg']}",
                where=where,
                next_step="write it again by clearing the phase; driver and executors must run the same version",
            ) from None


# -- slice function ---------------------------------------------------------------------------------------------------
#
# What a Spark task does: take the lanes of its unit, drive each for one slice, and return their results as rows.
#
# The bytes go through sockets that the task opens itself. Spark retries a lost task; the new attempt waits for the
# lease of the previous one and continues from the target's log end, so retrying is always safe.


#: (job, lane, secrets, attempt, stop) -> a result per partition; blocks for one slice.
RunLane = Callable[[CopyJob, CopyLane, dict[str, Any], int, Callable[[], bool]], list[PartitionResult]]


def run_lane(
    job: CopyJob, lane: CopyLane, secrets: dict[str, Any], attempt: int, stop: Callable[[], bool]
) -> list[PartitionResult]:
    """Run one slice of a lane with its own clients."""
    # The driver imports this module, too, and copies nothing.
    from airflow_provider_kafka_migration.copy.clients import Clients
    from airflow_provider_kafka_migration.lanes.slices import run_slice

    return run_slice(job, lane, clients=Clients(secrets), attempt=attempt, stop=stop)


def make_copy_slice(
    pointer: JobPointer,
    lanes: Sequence[int],
    run: RunLane = run_lane,
    left: Sequence[tuple[str, int]] | None = None,
    *,
    seconds: int = 0,
    first: Sequence[tuple[str, int]] = (),
) -> TaskFunction:
    """Return a task that drives lanes for one slice; its rows have :data:`~.rows.RESULT_COLUMNS`.

    :param left: partitions that are not finished yet; None: all partitions of the lanes.
    :param seconds: length of the slice; 0: as the job document says.
    :param first: partitions that go first, longest wait first.
    """
    numbers = sorted(lanes)
    order = list(first)
    wanted = None if left is None else frozenset(left)
    pointer = pointer.refreshed()

    def copy_slice(_number: int) -> Iterator[ResultRow]:
        return drive_lanes(pointer, numbers, run, wanted, seconds=seconds, first=order)

    return copy_slice


def drive_lanes(
    pointer: JobPointer,
    lanes: list[int],
    run: RunLane,
    wanted: frozenset[tuple[str, int]] | None = None,
    *,
    seconds: int = 0,
    first: Sequence[tuple[str, int]] = (),
) -> Iterator[ResultRow]:
    """Drive some lanes in parallel, each in a thread; yield the rows of a lane as soon as it has ended its slice.

    A :class:`MigrationError` of a lane is data: the driver decides. Any other error fails the task, and Spark retries.
    """
    if not lanes:
        return
    die_with_parent()
    watch = ParentWatch()
    ended = threading.Event()
    attempt = _attempt()
    try:
        secrets, job = _open_job(pointer)
    except MigrationError as error:
        yield from (error_row(number, error) for number in lanes)
        return
    if seconds:
        job = job.model_copy(update={"slice_seconds": seconds})
    by_number = {lane.lane: _narrowed(lane, wanted, first) for lane in job.lanes}

    def stop() -> bool:
        return ended.is_set() or watch.orphaned()

    def drive(number: int) -> list[ResultRow]:
        try:
            lane = by_number.get(number)
            return result_rows(run(job, lane, secrets, attempt, stop) if lane is not None else [])
        except MigrationError as error:
            return [error_row(number, error)]

    with ThreadPoolExecutor(len(lanes), thread_name_prefix="lane") as pool:
        futures = [pool.submit(drive, number) for number in lanes]
        try:
            for future in as_completed(futures):
                yield from future.result()
        finally:
            # A cancelled task closes this generator: the other lanes end their slices before the process continues.
            ended.set()


def _attempt() -> int:
    """Return how often Spark has started this task before; 0 outside of Spark."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.attemptNumber() if context else 0


def _open_job(pointer: JobPointer) -> tuple[dict[str, Any], CopyJob]:
    """Read secrets and job, in each slice: a tail takes up partitions that appear while it runs."""
    secrets = pointer.references.resolve()
    return secrets, pointer.read(CopyJob, pointer.store(secrets))


def _narrowed(
    lane: CopyLane, wanted: frozenset[tuple[str, int]] | None, first: Sequence[tuple[str, int]] = ()
) -> CopyLane:
    if first:
        lane = lane.model_copy(update={"goes_first": list(first)})
    if wanted is None:
        return lane
    return lane.model_copy(update={"partitions": [spec for spec in lane.partitions if spec.key in wanted]})
