"""Assignment of partitions to lanes, pauses after failed slices, and rates.

``control/rates.json`` has the rates that were set while a migration runs; copiers apply them within seconds.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pydantic import Field, ValidationError

from airflow_provider_kafka_migration.documents.base import Document
from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.documents.plan import LanePlan
from airflow_provider_kafka_migration.errors import DocumentUnreadable, Transient, Where
from airflow_provider_kafka_migration.storage.base import ObjectStore

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.kafka.wire import TopicPartition

# -- lanes ------------------------------------------------------------------------------------------------------------
#
# Lanes: units of parallel work. A stable, size-balanced assignment of partitions.


#: An empty partition has a small cost too: each slice checks it.
_BASE_BYTES = 64 * 1024


def assign_lanes(sizes: Mapping[TopicPartition, int], lanes: int) -> list[LanePlan]:
    """Assign partitions, largest first, to the lightest lane; ties by name and lane: equal input gives equal lanes.

    :param sizes: bytes by (topic, partition); negative where unknown.
    """
    count = max(1, min(lanes, len(sizes)))
    members: list[list[TopicPartition]] = [[] for _ in range(count)]
    heap = [(0, lane) for lane in range(count)]
    for key, size in sorted(sizes.items(), key=lambda item: (-max(item[1], 0), item[0])):
        weight, lane = heapq.heappop(heap)
        members[lane].append(key)
        heapq.heappush(heap, (weight + max(size, 0) + _BASE_BYTES, lane))
    return [
        LanePlan(
            lane=lane,
            partitions=sorted(keys),
            size_bytes=sum(max(sizes[key], 0) for key in keys),
        )
        for lane, keys in enumerate(members)
    ]


def add_to_lanes(lanes: list[LanePlan], added: Mapping[TopicPartition, int]) -> list[LanePlan]:
    """Add new partitions to the lightest lane; partitions that are already assigned do not move."""
    weights = {lane.lane: lane.size_bytes + _BASE_BYTES * len(lane.partitions) for lane in lanes}
    members = {lane.lane: list(lane.partitions) for lane in lanes}
    sizes = {lane.lane: lane.size_bytes for lane in lanes}
    for key, size in sorted(added.items(), key=lambda item: (-max(item[1], 0), item[0])):
        lane = min(weights, key=lambda number: (weights[number], number))
        members[lane].append(key)
        sizes[lane] += max(size, 0)
        weights[lane] += max(size, 0) + _BASE_BYTES
    return [
        LanePlan(lane=number, partitions=sorted(members[number]), size_bytes=sizes[number])
        for number in sorted(members)
    ]


# -- lane pauses ------------------------------------------------------------------------------------------------------
#
# How long to wait before a lane is retried. The coordinator decides when a lane has failed permanently.


_FIRST_SECONDS = 0.5
_LONGEST_SECONDS = 30.0
#: A job that follows its source may be in a cutover, with producers stopped: it retries sooner.
_LONGEST_FOLLOWING_SECONDS = 5.0


class LanePauses:
    """Counts the consecutive failed slices of each lane. Thread-safe.

    :param follows: whether the job runs until a stop is requested.
    """

    def __init__(self, *, follows: bool = False) -> None:
        self._longest_seconds = _LONGEST_FOLLOWING_SECONDS if follows else _LONGEST_SECONDS
        self._counts: dict[int, int] = {}
        self._lock = threading.Lock()

    def after(self, lanes: Iterable[int], failed: Iterable[int]) -> float:
        """Return the seconds to wait after a slice.

        :param lanes: lanes of the slice; the counts of those that did not fail are reset.
        :param failed: lanes in which something failed.
        """
        with self._lock:
            wrong = set(failed)
            for lane in set(lanes) - wrong:
                self._counts.pop(lane, None)
            for lane in wrong:
                self._counts[lane] = self._counts.get(lane, 0) + 1
            worst = max((self._counts[lane] for lane in wrong), default=0)
        return min(_FIRST_SECONDS * 2.0 ** min(worst - 1, 16), self._longest_seconds) if worst else 0.0


# -- assignment -------------------------------------------------------------------------------------------------------


#: How often copiers read the rates.
ASK_SECONDS = 5.0
#: Jobs whose rate can be set; a backup and a restore use the rate of the job that they replace.
JOBS = ("seed", "tail")

log = logging.getLogger(__name__)


class Rates(Document):
    """Bytes per second and lane that override the spec's rates. Jobs that are not named keep the spec's rate."""

    version: int = 1
    migration_id: str
    rates: dict[str, int] = Field(default_factory=dict, description="bytes per second and lane, by job; 0: no limit")
    set_by: str = ""
    set_at: str = ""


def rates_key(migration_id: str) -> str:
    """Return the key of the document."""
    return f"{migration_id}/control/rates.json"


def read_rates(store: ObjectStore, migration_id: str) -> Rates:
    """Read the rates that were set; no rates if none were.

    :raises DocumentUnreadable: the object is not a document of rates.
    """
    data = store.get(rates_key(migration_id))
    if data is None:
        return Rates(migration_id=migration_id)
    try:
        return Rates.parse(data)
    except ValidationError as error:
        # Its values are not shown: the document may contain anything.
        problems = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or 'document'}: {item['msg']}"
            for item in error.errors(include_url=False, include_input=False)
        )
        raise DocumentUnreadable(
            f"the document of rates cannot be read ({problems}); copiers keep the rates that they had",
            where=Where(migration_id=migration_id, path=rates_key(migration_id)),
            next_step="write it again: kafka-migration throttle FILE --seed RATE --tail RATE, where RATE 'spec' means "
            "the rate in the spec",
        ) from None


def set_rates(
    store: ObjectStore, migration_id: str, changes: Mapping[str, int | None], *, set_by: str, set_at: str
) -> Rates:
    """Change rates; the rates of other jobs stay the same.

    :param changes: job -> bytes per second and lane; 0: no limit; None: the spec's rate.
    """
    try:
        before = read_rates(store, migration_id).rates
    except DocumentUnreadable:
        # Setting rates repairs an unreadable document, which copiers have ignored.
        before = {}
    rates = {**before, **changes}
    kept = {job: rate for job, rate in sorted(rates.items()) if rate is not None}
    document = Rates(migration_id=migration_id, rates=kept, set_by=set_by, set_at=set_at)
    store.put(rates_key(migration_id), document.canonical())
    return document


class RateWatch:
    """The rate of a copier: its job's rate, or the one set since."""

    def __init__(self, job: CopyJob, store: ObjectStore) -> None:
        self._job = job
        self._store = store
        self._name = job.name if job.name in JOBS else ("tail" if job.stop_key is not None else "seed")
        self._set: int | None = None
        self._asked_at = -ASK_SECONDS

    @property
    def bytes_per_second(self) -> int | None:
        """The current limit; None: no limit."""
        return self._job.max_bytes_per_second if self._set is None else self._set or None

    def poll(self) -> None:
        """Read the rates every few seconds. If they cannot be read, the rate stays the same."""
        now = time.monotonic()
        if now - self._asked_at < ASK_SECONDS:
            return
        self._asked_at = now
        try:
            self._set = read_rates(self._store, self._job.migration_id).rates.get(self._name)
        except Transient as error:
            log.debug("the rates could not be read: %s", error)
        except DocumentUnreadable as error:
            # An unreadable document must not end a copy.
            log.warning("The rate stays the same: %s", error)
