"""Checks the lags of a migration until they have been small enough for long enough."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from airflow.triggers.base import TriggerEvent

from airflow_provider_kafka_migration.errors import (
    CREDENTIALS_REFUSED,
    MigrationError,
    Terminal,
    Transient,
    error_from_dict,
)
from airflow_provider_kafka_migration.kafka.clock import elapsed_seconds
from airflow_provider_kafka_migration.provider.connections import airflow_resolver, prefetch
from airflow_provider_kafka_migration.provider.lines import Lines
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.triggers.settled import SettledTrigger

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.migration import Watch
    from airflow_provider_kafka_migration.references import Resolver
    from airflow_provider_kafka_migration.spec import MigrationSpec

#: Consecutive checks that may fail (an unreachable broker, throttled storage) before the wait ends: about a week. An
#: unavailable cluster must not end a wait of days, just as it does not end the tail; the task's own timeout does.
MAX_FAILED_LOOKS = 10_000
_LONGEST_PAUSE_SECONDS = 60.0
#: Consecutive checks that may meet refused credentials: about ten minutes to change the connection.
MAX_REFUSED_LOOKS = 15
#: Status of an event that only notifies people; the wait continues after it.
TROUBLE_EVENT = "trouble"
#: The task's log gets a line after this many checks at most.
_LINE_EVERY = 5
#: Long enough that a restart of the tail does not wake anybody up.
SILENT_NOTICE_SECONDS = 60.0


class Patience(NamedTuple):
    """How long to tolerate consecutive failed checks."""

    #: The wait ends after this many.
    failed_looks: int
    #: Longest pause between two of them.
    longest_pause_seconds: float
    #: The wait also ends when checks have failed for this long.
    seconds: float = math.inf


class _Failures:
    """The checks that have failed since the last successful one."""

    def __init__(self) -> None:
        self.looks = self.refused = 0
        self._since = 0.0

    def add(self, error: MigrationError) -> None:
        if not self.looks:
            self._since = elapsed_seconds()
        self.looks += 1
        self.refused = 0 if isinstance(error, Transient) else self.refused + 1

    def exceed(self, patience: Patience) -> bool:
        return self.looks >= patience.failed_looks or elapsed_seconds() - self._since >= patience.seconds

    def pause(self, poll_seconds: float, patience: Patience) -> float:
        return min(poll_seconds * 2.0 ** min(self.looks, 16), patience.longest_pause_seconds)


class DrainTrigger(SettledTrigger):
    """Ends with one event: ready, or what went wrong. It writes nothing and stores nothing.

    It may run twice, or move between triggerers: the window then begins again, which errs on the safe side. Airflow's
    database stores its arguments, so they hold references to connections and never a secret.

    :param spec: the migration, as JSON-serializable data.
    :param poll_seconds: time between two checks.
    :param silence_is_told: people have already been notified that the tail is silent.
    :param look_at: when the task looks in any case (ISO 8601 with a time zone); None: only when there is a reason.
    """

    #: Consecutive failed checks after which the wait ends, and the longest pause between two of them.
    max_failed_looks: ClassVar[int] = MAX_FAILED_LOOKS
    longest_pause_seconds: ClassVar[float] = _LONGEST_PAUSE_SECONDS
    #: The same for refused credentials; the connections are read again before each check.
    max_refused_looks: ClassVar[int] = MAX_REFUSED_LOOKS
    #: Errors of a check after which the next one may succeed.
    passing: ClassVar[tuple[type[MigrationError], ...]] = (Transient, *CREDENTIALS_REFUSED)
    #: Whether a check contacts the clusters; if not, their connections are not resolved either.
    needs_clusters: ClassVar[bool] = True

    def __init__(
        self,
        *,
        spec: dict[str, Any],
        poll_seconds: float = 2.0,
        silence_is_told: bool = False,
        look_at: str | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.silence_is_told = silence_is_told
        self.spec = spec
        self.poll_seconds = poll_seconds
        self.look_at = look_at
        self._present: Watch | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "spec": self.spec,
                "poll_seconds": self.poll_seconds,
                "silence_is_told": self.silence_is_told,
                "look_at": self.look_at,
            },
        )

    async def events(self) -> AsyncIterator[TriggerEvent]:
        """Check repeatedly. All blocking calls run in a thread, so other triggers are not delayed."""
        try:
            self._present = await self._open()
        except MigrationError as error:
            if not self.may_pass(error):
                yield self.ended_by(error)
                return
            # The first check tries again.
            self.log.warning("The connections cannot be opened yet: %s", error)
        try:
            yield await self._watch()
        finally:
            if self._present is not None:
                # Outside the loop as well: closing waits for sockets.
                await asyncio.shield(asyncio.to_thread(self._present.close))

    async def _open(self) -> Watch:
        # The task has accepted the spec, perhaps in an earlier version.
        spec = parse_spec(self.spec, recorded=True)
        resolver = airflow_resolver(await prefetch(spec, clusters=self.needs_clusters))
        return await asyncio.to_thread(self.open_watch, spec, resolver)

    def open_watch(self, spec: MigrationSpec, resolver: Resolver) -> Watch:
        """Open the watch that performs the checks."""
        from airflow_provider_kafka_migration.migration import DrainWatch

        return DrainWatch.open(spec, resolver)

    def hand_over(self, former: Watch, opened: Watch) -> None:
        """Pass state from the former watch to the newly opened one: nothing here, its window begins again."""

    async def _look(self) -> dict[str, Any]:
        if self.look_at is not None and datetime.now(UTC) >= datetime.fromisoformat(self.look_at):
            return {"ready": True, "summary": f"it is {self.look_at}: the task looks in any case"}
        if self._present is None:
            self._present = await self._open()
        return await asyncio.to_thread(self._present.check)

    def patience(self) -> Patience:
        """Return the current patience with failed checks."""
        return Patience(self.max_failed_looks, self.longest_pause_seconds)

    def may_pass(self, error: MigrationError) -> bool:
        """Return whether to wait for connections that cannot be opened at the start."""
        return isinstance(error, Transient)

    def ended_by(self, error: MigrationError) -> TriggerEvent:
        """Return the event of a wait that this error ends."""
        return failed(error)

    async def _reopen(self) -> None:
        """Read the connections again: in the days of a tail, credentials may have expired or been replaced.

        If the connections cannot be read, the open ones stay in use.
        """
        if self._present is None:
            return
        try:
            opened = await self._open()
        except Exception as error:
            self.log.warning("The connections could not be read again: %s", type(error).__name__)
            return
        self.hand_over(self._present, opened)
        self._present, ended = opened, self._present
        await asyncio.shield(asyncio.to_thread(ended.close))

    async def _watch(self) -> TriggerEvent:
        failures, looks, lines = _Failures(), 0, Lines()
        silent_since: float | None = None
        while True:
            pause = self.poll_seconds
            try:
                event = await self._look()
                failures = _Failures()
                looks += 1
                may_be_news = looks % _LINE_EVERY == 1
                if event["ready"] or (may_be_news and lines.is_news(event["summary"], elapsed_seconds(), _gist(event))):
                    self.log.info("%s", event["summary"])
                if event["ready"]:
                    return TriggerEvent({"status": "ready", **event})
                silent_since = self._silent_since(event, silent_since)
                if event.get("tail_silent") and _is_long_ago(silent_since):
                    return TriggerEvent({"status": TROUBLE_EVENT, **event})
            except self.passing as error:
                failures.add(error)
                patience = self.patience()
                self.log.warning("%d consecutive checks have failed: %s", failures.looks, error)
                if failures.exceed(patience) or failures.refused >= self.max_refused_looks:
                    return self.ended_by(error)
                pause = failures.pause(self.poll_seconds, patience)
            except Terminal as error:
                return self.ended_by(error)
            await asyncio.sleep(pause)
            if failures.looks:
                await self._reopen()

    def _silent_since(self, event: Mapping[str, Any], since: float | None) -> float | None:
        """Return since when the tail has been silent without a notification; None: not silent, or already notified.

        Only a sign of life from the tail ends a silence: a watch that has just started has not heard it, but does not
        know yet that it is silent.
        """
        if event.get("tail_heard"):
            self.silence_is_told = False
            return None
        if self.silence_is_told:
            return None
        return elapsed_seconds() if since is None and event.get("tail_silent") else since


def _gist(event: Mapping[str, Any]) -> object:
    """Return what is news in the log whenever it changes; None: the words, but those of a lag name a partition."""
    if "total_lag" not in event:
        return None
    return event.get("partitions_failed"), bool(event.get("partitions_stuck")), event.get("tail_silent")


def _is_long_ago(silent_since: float | None) -> bool:
    return silent_since is not None and elapsed_seconds() - silent_since >= SILENT_NOTICE_SECONDS


def failed(error: MigrationError) -> TriggerEvent:
    """Return the event of a failed wait."""
    return TriggerEvent({"status": "failed", "message": str(error), "error": error.as_dict()})


def event_error(event: Mapping[str, Any]) -> MigrationError | None:
    """Return the original error in an event; None if there is none."""
    if event.get("status") == "ready":
        return None
    return error_from_dict(dict(event.get("error") or {"what": str(event.get("message", "no reason given"))}))
