"""The health of the tail as it reports it: which partitions it does not copy, and whether it reports anything.

The lags of the brokers show how far the copy is, not why it has stopped, and on a quiet source not even whether the
tail copies at all: that is in ``progress/tail.json``, which the tail's driver rewrites every few seconds. A document
may belong to a driver that has ended, so a document that does not change while it is watched proves nothing. The clocks
of reader and writer may differ: only the reader's own clock measures how long the document has been the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from airflow_provider_kafka_migration.errors import CopyFailed
from airflow_provider_kafka_migration.jobs import copy_jobs
from airflow_provider_kafka_migration.kafka.clock import elapsed_seconds
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import parse_iso
from airflow_provider_kafka_migration.state import State

PHASE: Final = "tail"
#: A driver that has ended no longer writes; a new one may need this long until it writes for the first time.
STALE_SECONDS = 180.0
#: Added to the length of a slice: a driver writes every two seconds, later on a busy machine or with slow storage.
SILENT_SECONDS = 30.0
#: A shorter silence is not reported: a check may come right before the next document.
_QUIET_SECONDS = 5.0
#: Within this time a running tail has written again.
_LOOK_AGAIN_SECONDS = 5.0


@dataclass(frozen=True)
class TailHealth:
    """The result of one check of the tail.

    :param text: for people; empty if all is well.
    :param failed: partitions that wait for a person.
    :param stuck: partitions that are retried.
    :param is_certain: the failed partitions are those of a running tail, or of the last tail that ran.
    :param is_heard: the present owner's tail wrote a moment ago; without that nothing is known about it.
    :param is_silent: it has not written for longer than it may take.
    :param is_of_another: there is no document, or only an earlier owner's.
    """

    text: str = ""
    failed: int = 0
    stuck: int = 0
    is_certain: bool = False
    troubles: tuple[dict[str, Any], ...] = ()
    is_heard: bool = False
    is_silent: bool = False
    is_of_another: bool = False

    @property
    def copies_all(self) -> bool:
        """Every partition is copied, as far as the tail reports."""
        return not self.failed and not self.stuck

    @property
    def is_well(self) -> bool:
        """The tail runs and reports that every partition is copied."""
        return self.is_heard and self.copies_all


class Heartbeats:
    """When the documents of one tail changed, as seen by occasional checks.

    A change between two checks proves that the tail was alive at the time of the first one.
    """

    def __init__(self, now: float) -> None:
        self._mark: tuple[object, ...] | None = None
        self._looked_at = self._since = now
        self._heard_at: float | None = None
        self._lock = threading.Lock()

    def hear(self, mark: tuple[object, ...] | None, now: float) -> tuple[float, bool]:
        """Take in the current document.

        :param mark: distinguishes documents; None: there is none of the present owner.
        :returns: for how many seconds nothing has been heard, and whether anything ever was.
        """
        with self._lock:
            if mark is None:
                self._heard_at = None
            elif self._mark is not None and mark != self._mark:
                # If the last check was long ago, the change may be as old.
                is_new = now - self._looked_at < SILENT_SECONDS
                self._heard_at = self._looked_at if is_new else None
            self._mark, self._looked_at = mark, now
            return now - (self._since if self._heard_at is None else self._heard_at), self._heard_at is not None


#: By location and migration. What one task has seen, the next one of the same process need not wait for.
_KNOWN: dict[tuple[str, str], Heartbeats] = {}


class HealthWatch:
    """Checks the tail repeatedly; it only remembers how long the document has been the same.

    :param clock: seconds; continues while the machine sleeps. Watches with their own clock share no observations.
    """

    def __init__(self, *, clock: Callable[[], float] = elapsed_seconds) -> None:
        self._clock = clock
        self._beats = None if clock is elapsed_seconds else Heartbeats(clock())
        self._mark: tuple[object, ...] | None = None
        self._began = self._marked_at = clock()
        self._was_rewritten = False

    def check(self, record: MigrationRecord) -> TailHealth:
        """Check the tail now. A document of an earlier owner of the migration tells nothing about the present tail."""
        document = record.job_progress(PHASE)
        claim = record.journal.current_claim
        now = self._clock()
        is_present = bool(document) and (claim is None or document.get("generation") == claim.generation)
        mark = (document.get("run"), document.get("seconds"), document.get("at")) if is_present else None
        silent, is_known = self._heartbeats(record, now).hear(mark, now)
        # What was seen before this watch began shows when the tail was alive, not that this watch has waited since.
        silent = silent if is_known else now - self._began
        limit = SILENT_SECONDS + record.spec.tail.slice_seconds
        is_heard, is_silent = is_known and silent < limit, silent >= limit
        if not is_present:
            return TailHealth(text=_never_heard(document), is_silent=is_silent, is_of_another=True)
        if mark != self._mark:
            self._was_rewritten = self._mark is not None
            self._mark, self._marked_at = mark, now
        parts = [copy_jobs.describe_troubles(document)]
        if not is_heard and silent >= _QUIET_SECONDS:
            parts.append(_not_heard(document, silent))
        return TailHealth(
            text="; ".join(part for part in parts if part),
            failed=int(document.get("partitions_failed", 0)),
            stuck=int(document.get("partitions_stuck", 0)),
            is_certain=self._was_rewritten or now - self._marked_at >= STALE_SECONDS,
            troubles=tuple(document.get("troubles") or ()),
            is_heard=is_heard,
            is_silent=is_silent,
        )

    def _heartbeats(self, record: MigrationRecord, now: float) -> Heartbeats:
        if self._beats is None:
            key = (record.journal_store.uri, record.migration_id)
            self._beats = _KNOWN.setdefault(key, Heartbeats(now))
        return self._beats


def _not_heard(document: dict[str, Any], seconds: float) -> str:
    since = f" since {document['at']} by its own clock" if document.get("at") else ""
    return f"the tail has not been heard from{since} (for {seconds:.0f} s or longer): check that it runs"


def _never_heard(document: dict[str, Any]) -> str:
    if not document:
        return "the tail has not reported yet: check that it runs"
    since = f" at {document['at']}" if document.get("at") else ""
    return (
        f"the tail has not been heard from under the migration's present owner (an earlier one reported last{since}): "
        "check that it runs"
    )


def silence(record: MigrationRecord, *, sleep: Callable[[float], None] = time.sleep) -> str:
    """Report that the tail is silent, for people who check once; empty while it runs, or need not run.

    A time that is recent by this machine's clock is believed. Any other may come from a wrong clock, so this waits for
    the next document before it reports a silence.
    """
    if record.journal.tip_state not in (State.TAIL, State.DRAIN_READY, State.CUTOVER) or record.has_tail_ended():
        return ""
    watch = HealthWatch()
    found = watch.check(record)
    document = record.job_progress(PHASE)
    if found.is_heard or (not found.is_of_another and _is_recent(record, document)):
        return ""
    if not found.is_of_another:
        sleep(_LOOK_AGAIN_SECONDS)
        found = watch.check(record)
    return "" if found.is_heard else found.text or _not_heard(document, _LOOK_AGAIN_SECONDS)


def _is_recent(record: MigrationRecord, document: dict[str, Any]) -> bool:
    at = document.get("at")
    if not at:
        return False
    age_seconds = (record.now() - parse_iso(at)).total_seconds()
    return -_QUIET_SECONDS < age_seconds < SILENT_SECONDS + record.spec.tail.slice_seconds


def _any_migrated(record: MigrationRecord, troubles: Sequence[Mapping[str, Any]]) -> bool:
    migrated = record.partitions()
    return any((item["topic"], item["partition"]) in migrated for item in troubles)


def check_none_failed(record: MigrationRecord, health: TailHealth) -> None:
    """Raise for partitions that the tail does not copy until a person has acted.

    :raises CopyFailed: with the failed partitions that the tail has named.
    """
    if not health.failed or not health.is_certain:
        return
    failed = [item for item in health.troubles if item["state"] == "failed"]
    if len(failed) == health.failed and not _any_migrated(record, failed):
        # Dropped by policy a moment ago: the tail omits them once it reads its job again.
        return
    first = failed[0] if failed else {}
    raise CopyFailed(
        f"the tail does not copy all partitions: {health.text}",
        where=record.where("drain_ready", topic=first.get("topic"), partition=first.get("partition")),
        next_step=f"{first.get('next_step') or 'see progress/tail.json for the reasons'}; then clear tail and "
        "drain_ready (or kafka-migration resume FILE): the tail tries these partitions again",
        details={"partitions": failed},
    )
