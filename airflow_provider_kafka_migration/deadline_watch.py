"""Whether something that must not last long is over, judged by the storage alone: a freeze, or a lag above its limit.

Deadline alerts of Airflow measure the time; these watches only say what is so. They contact no cluster, hold no claim
and write nothing. What cannot be read, and a copy that nobody hears from, is *unknown*: it never counts as over.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.state import State, position

# What reads a journal is imported where it is needed: DAG files use the names of this module, too.
if TYPE_CHECKING:
    from airflow_provider_kafka_migration.jobs.tail_health import HealthWatch
    from airflow_provider_kafka_migration.lanes.figures import PartitionStanding
    from airflow_provider_kafka_migration.metrics.snapshot import TopicPartition
    from airflow_provider_kafka_migration.migration import Migration
    from airflow_provider_kafka_migration.record.context import PhaseContext
    from airflow_provider_kafka_migration.record.record import MigrationRecord

#: What can be watched.
Watched = Literal["freeze", "lag"]


class Standing(StrEnum):
    """What one check has found."""

    #: Nobody waits for anything.
    OVER = "over"
    #: Producers are frozen, or the lag is above its limit.
    GOING_ON = "going_on"
    #: It cannot be told.
    UNKNOWN = "unknown"
    #: There is no journal: nothing has begun, or the storage has lost it.
    NO_JOURNAL = "no_journal"


class Finding(NamedTuple):
    """The result of one check.

    :param summary: one line for people.
    :param number: distinguishes what is going on from what went on before it: the attempt to freeze. 0: no such number.
    """

    standing: Standing
    summary: str
    number: int = 0


@dataclass(frozen=True)
class LagLimit:
    """The largest lag that is no reason to notify anybody, of each partition. None: no limit of this kind.

    :param seconds: by the timestamps of the records.
    :param records: by offsets, which no clock can falsify.
    """

    seconds: float | None = None
    records: int | None = None

    def __str__(self) -> str:
        parts = [] if self.seconds is None else [f"{self.seconds:g} s"]
        return " and ".join(parts + ([] if self.records is None else [f"{self.records} records"]))


class _JournalWatch:
    """Reads the journal at each check, and of it only the entries that are new."""

    def __init__(self, migration: Migration) -> None:
        self._migration = migration
        self._reading = ExitStack()
        self._context: PhaseContext | None = None

    def check(self) -> Finding:
        """Check once.

        :raises MigrationError: the storage cannot be read, so the state is unknown.
        """
        if self._context is None:
            self._context = self._reading.enter_context(self._migration.reading())
        else:
            self._context.journal.refresh()
        if self._context.journal.tip_state is None:
            return Finding(Standing.NO_JOURNAL, "there is no journal")
        return self._find(self._context)

    def _find(self, context: PhaseContext) -> Finding:
        raise NotImplementedError

    def close(self) -> None:
        """Close the connections."""
        self._reading.close()
        self._migration.close()


class FreezeDeadlineWatch(_JournalWatch):
    """Producers are frozen from the request to stop them until READY_FOR_CLIENT_SWITCH, the lift, or the rollback."""

    def _find(self, context: PhaseContext) -> Finding:
        from airflow_provider_kafka_migration.freeze import open_freeze

        found = open_freeze.read(context)
        if found is None:
            return Finding(Standing.OVER, f"no freeze is open; the state is {context.journal.tip_state}")
        number = found.attempt.number
        if found.standing.is_behind_ready:
            return Finding(Standing.OVER, f"freeze {number} is over: clients may switch", number)
        return Finding(Standing.GOING_ON, f"freeze {number}: {found.lines()[0]}", number)


class LagDeadlineWatch(_JournalWatch):
    """The copy that follows the source is behind: of a migration's tail, or of a mirror.

    Before it follows, after it has ended, and while a person has paused it, nobody expects a small lag.

    :param limit: has at least one part.
    """

    def __init__(self, migration: Migration, limit: LagLimit, *, health: HealthWatch | None = None) -> None:
        from airflow_provider_kafka_migration.jobs.tail_health import HealthWatch

        super().__init__(migration)
        self._limit = limit
        self._health = health or HealthWatch()

    def _find(self, context: PhaseContext) -> Finding:
        from airflow_provider_kafka_migration.jobs import tail_health
        from airflow_provider_kafka_migration.metrics.snapshot import Snapshot
        from airflow_provider_kafka_migration.record.partition_names import partition_name

        record = context.record
        if no_copy := _why_none_follows(record):
            return Finding(Standing.OVER, no_copy)
        health = self._health.check(record)
        if not health.is_heard:
            # A document may be that of a driver that has ended: only one that changes says something about now.
            return Finding(Standing.UNKNOWN, health.text or "whether the copy runs is not known yet")
        if not health.copies_all:
            return Finding(Standing.GOING_ON, health.text)
        snapshot = Snapshot.of(record.journal_store, record.job_progress(tail_health.PHASE))
        standings = {} if snapshot is None else snapshot.standings
        missing = set(record.partitions()) - set(standings)
        if missing:
            return Finding(Standing.UNKNOWN, f"the lag of {partition_name(min(missing))} is not known")
        return self._compare(standings, int(record.now().timestamp() * 1000))

    def _compare(self, standings: Mapping[TopicPartition, PartitionStanding], now_ms: int) -> Finding:
        from airflow_provider_kafka_migration.metrics.snapshot import lag_seconds
        from airflow_provider_kafka_migration.record.partition_names import partition_name

        unknown = ""
        for key, standing in sorted(standings.items()):
            seconds = lag_seconds(standing, now_ms)
            if self._is_above(standing, seconds):
                lag = f"{standing.lag} records" + ("" if seconds is None else f" and {seconds:.0f} s")
                return Finding(Standing.GOING_ON, f"{partition_name(key)} is behind by {lag}; limit: {self._limit}")
            if standing.lag < 0 or (seconds is None and self._limit.seconds is not None):
                unknown = unknown or partition_name(key)
        if unknown:
            return Finding(Standing.UNKNOWN, f"the lag of {unknown} is not known")
        return Finding(Standing.OVER, f"every partition is within {self._limit}")

    def _is_above(self, standing: PartitionStanding, seconds: float | None) -> bool:
        in_records = self._limit.records is not None and standing.lag > self._limit.records
        return in_records or (self._limit.seconds is not None and seconds is not None and seconds > self._limit.seconds)


def _why_none_follows(record: MigrationRecord) -> str:
    """Say why no copy has to follow the source now; empty if one has to, or if that cannot be told."""
    state, working = record.journal.tip_state, record.journal.working_state
    if state is State.PAUSED or (state is not None and state.is_terminal):
        return f"no copy follows the source: the state is {state}"
    here, tail, cutover = (None if item is None else position(item) for item in (working, State.TAIL, State.CUTOVER))
    if here is None or tail is None or cutover is None:
        return ""
    if here < tail:
        return f"no copy follows the source yet: the state is {state}"
    if here > cutover or record.has_tail_ended():
        return f"no copy follows the source any more: the state is {state}"
    return ""


class DeadlineWatch(Protocol):
    """What triggers know of both watches."""

    def check(self) -> Finding:
        """Check once."""

    def close(self) -> None:
        """Close the connections."""


def open_watch(watched: Watched, spec: MigrationSpec, resolver: Resolver, limit: LagLimit) -> DeadlineWatch:
    """Open a watch, without I/O.

    :param limit: used for ``lag``.
    """
    from airflow_provider_kafka_migration.migration import Migration

    migration = Migration.open(spec, "deadline-watch", resolver, actor=f"{watched} deadline")
    return FreezeDeadlineWatch(migration) if watched == "freeze" else LagDeadlineWatch(migration, limit)


# -- beginnings -------------------------------------------------------------------------------------------------------

#: What has been unknown for this long is treated like what goes on, so that its clock starts.
UNKNOWN_SECONDS = 60.0


class Beginnings:
    """Decides when the clock of a deadline starts. One instance per process that watches.

    After a restart, something that still goes on begins once more: whoever starts the clock must not start a second
    one while the first one runs.

    :param now: seconds of a steady clock.
    """

    def __init__(self, now: float) -> None:
        self._known_at = now
        self._has_seen_journal = False
        #: Number of what has begun and is not over.
        self._told: int | None = None

    def is_new(self, found: Finding, now: float) -> bool:
        """Take in a finding; return whether something begins with it."""
        standing = found.standing
        if standing is Standing.NO_JOURNAL:
            # A journal that was there and is gone says nothing about producers or lags.
            standing = Standing.UNKNOWN if self._has_seen_journal else Standing.OVER
        elif standing is not Standing.UNKNOWN:
            self._has_seen_journal = True
        if standing is Standing.UNKNOWN:
            if self._told is not None or now - self._known_at < UNKNOWN_SECONDS:
                return False
            self._told = found.number
            return True
        self._known_at = now
        former, self._told = self._told, found.number if standing is Standing.GOING_ON else None
        return self._told is not None and self._told != former


class Ending:
    """Decides when the watch on one freeze, or on one excess of the lag, is over."""

    def __init__(self) -> None:
        self._number = 0

    def is_over(self, found: Finding) -> bool:
        """Take in a finding; return whether what was going on is known to be over."""
        if found.standing is Standing.GOING_ON:
            # Another freeze: the one before it is over, and this one has a clock of its own.
            is_another = self._number not in (0, found.number)
            self._number = found.number
            return is_another
        return found.standing is Standing.OVER
