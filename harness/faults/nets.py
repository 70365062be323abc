"""Switches off single nets of the data plane in a copier process: a harness that cannot fail proves nothing.

This module patches the process from outside the product, which has no such switches.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_kafka_migration.copy import append as appending
from airflow_provider_kafka_migration.copy.resuming import finder
from airflow_provider_kafka_migration.copy.target import TargetSink
from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.kafka import logs, produce
from airflow_provider_kafka_migration.kafka.batches import api
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire
from airflow_provider_kafka_migration.lanes.slices import Lease, LeaseKeeper

_NEVER_SECONDS = 10_000_000.0
_MARKER_PRODUCER_ID = 7_000_000_000


class _AnyOffset(int):
    """An offset that equals every expected one."""

    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


def _without_lease() -> None:
    """No copier waits for another one."""
    LeaseKeeper._is_free = lambda *_: True  # type: ignore[method-assign]


def _without_deadline() -> None:
    """A slice never ends: a copier that wakes up keeps sending."""
    acquire = LeaseKeeper.acquire

    def endless(self: LeaseKeeper, give_up: Callable[[], bool] = lambda: False) -> Lease | None:
        lease = acquire(self, give_up)
        return None if lease is None else replace(lease, deadline=time.monotonic() + _NEVER_SECONDS)

    LeaseKeeper.acquire = endless  # type: ignore[method-assign]


def _without_sequence() -> None:
    """Each copier has its own producer id, so brokers do not compare its appends with those of others."""
    own_id = 8_000_000_000 + os.getpid() * 1_000 + time.monotonic_ns() % 1_000

    def patched(raw: Any, _producer_id: int, epoch: int, sequence: int, **options: Any) -> Any:
        return api.patched_header(raw, own_id, epoch, sequence, **options)

    appending.patched_header = patched  # type: ignore[assignment, attr-defined]
    finder.ResumeFinder._check_owner = lambda *_: None  # type: ignore[method-assign]
    TargetSink._find_other_writers = lambda *_: None  # type: ignore[method-assign]


def _without_resume_check() -> None:
    """The end of the target's log is trusted without a check."""
    finder.ResumeFinder._check = lambda *_: None  # type: ignore[method-assign]


def _without_answer_check() -> None:
    """Every base offset of an append is accepted."""
    decode = produce.decode

    def believing(body: Any, version: int) -> Any:
        answer = decode(body, version)
        changed = [item._replace(base_offset=_AnyOffset(item.base_offset)) for item in answer.partitions]
        return answer._replace(partitions=changed)

    produce.decode = believing


def _without_marker_fence() -> None:
    """All incarnations of all lanes write markers as the same producer."""
    identity = appending.MarkerIdentity(_MARKER_PRODUCER_ID, 0)
    appending.Appender._marker_identity = lambda _: identity  # type: ignore[method-assign, assignment]


def _without_registration() -> None:
    """The first marker behind the boundary of an adopted partition does not register the data id."""
    appending._registers = lambda _: False  # type: ignore[assignment, attr-defined]


def _without_registering_epoch() -> None:
    """The registering marker has the epoch of the records, so that no record fences a late one."""

    def same(producers: Any) -> appending.MarkerIdentity:
        return appending.MarkerIdentity(producers.data_producer_id, producers.data_producer_epoch)

    appending._registering_identity = same  # type: ignore[assignment]


def _without_high_watermark() -> None:
    """The high watermark is taken for the log end."""

    def hasty(wire: Wire, keys: Iterable[TopicPartition]) -> dict[TopicPartition, logs.LogEnds | MigrationError]:
        return {
            key: item
            if isinstance(item, MigrationError)
            else logs.LogEnds(item.log_start_offset, item.high_watermark, item.high_watermark)
            for key, item in logs.read_ends(wire, keys).items()
        }

    finder.read_ends = hasty  # type: ignore[attr-defined]


NETS: Mapping[str, Callable[[], None]] = {
    "lease": _without_lease,
    "deadline": _without_deadline,
    "sequence": _without_sequence,
    "resume_check": _without_resume_check,
    "answer_check": _without_answer_check,
    "marker_fence": _without_marker_fence,
    "high_watermark": _without_high_watermark,
    "registration": _without_registration,
    "registering_epoch": _without_registering_epoch,
}


def switch_off(names: Sequence[str]) -> None:
    """Switch nets off in this process."""
    for name in names:
        NETS[name]()
