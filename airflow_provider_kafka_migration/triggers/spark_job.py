"""Waits for the end of a job on any Spark engine, and wakes its task up when there is something to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_kafka_migration.engines.base import JobState, JobStatus, SparkEngine
from airflow_provider_kafka_migration.engines.find import make_engine
from airflow_provider_kafka_migration.errors import MigrationError, Terminal, error_from_dict
from airflow_provider_kafka_migration.provider.connections import airflow_resolver, prefetch
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.triggers.settled import SettledTrigger

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.job_news import JobNews

_LEAST_WAKE_SECONDS = 60.0
#: Statuses of events. ``ended``: the job does not run any more; how it ended, its task finds out.
ENDED, WAKE, FAILED = "ended", "wake", "failed"


class SparkJobTrigger(SettledTrigger):
    """Fires once: when the job has ended, when its task has something to do, or when the engine cannot be asked.

    It stores nothing, so it may run twice or move between triggerers. Airflow's database stores its arguments; engine
    arguments hold references to connections and never a secret.

    :param engine: name of the engine.
    :param arguments: arguments of the engine.
    :param job_id: the engine's id of the job.
    :param poll_seconds: time between two looks at the job.
    :param wake_seconds: the task is woken up after this long in any case.
    :param wake_at: and when that is, in seconds since 1970: a triggerer that is restarted does not wait once more.
    :param spec: the migration, as JSON-serializable data; None: nothing is looked at but the job.
    :param job: name of the job document.
    :param known_news: the news that the task has been woken up for before.
    """

    #: A line in the triggerer's log after so many looks.
    _LINE_EVERY: ClassVar[int] = 12

    def __init__(
        self,
        *,
        engine: str,
        arguments: dict[str, Any],
        job_id: str,
        poll_seconds: float = 5.0,
        wake_seconds: float = 60.0,
        wake_at: float | None = None,
        spec: dict[str, Any] | None = None,
        job: str = "",
        known_news: str = "",
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.engine = engine
        self.arguments = arguments
        self.job_id = job_id
        self.poll_seconds = poll_seconds
        self.wake_seconds = wake_seconds
        self.wake_at = wake_at
        self.spec = spec
        self.job = job
        self.known_news = known_news
        self._news: JobNews | None = None
        self._looking: asyncio.Task[str] | None = None
        self._warned = ""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "engine": self.engine,
                "arguments": self.arguments,
                "job_id": self.job_id,
                "poll_seconds": self.poll_seconds,
                "wake_seconds": self.wake_seconds,
                "wake_at": self.wake_at,
                "spec": self.spec,
                "job": self.job,
                "known_news": self.known_news,
            },
        )

    async def events(self) -> AsyncIterator[TriggerEvent]:
        """Look at the job repeatedly. Engines block, so they are called in a thread."""
        try:
            engine = await asyncio.to_thread(make_engine, self.engine, self.arguments)
            yield await self._watch(engine)
        except Terminal as error:
            yield _failed(error)
        finally:
            await self._close()

    async def _watch(self, engine: SparkEngine) -> TriggerEvent:
        deadline = time.monotonic() + seconds_left(self.wake_seconds, self.wake_at, time.time())
        own = await self._own(engine)
        looks = 0
        while True:
            status = await self._look(engine)
            if status.state.is_over:
                return TriggerEvent({"status": ENDED, "state": str(status.state), "reason": status.reason[:500]})
            if looks % self._LINE_EVERY == 0:
                self.log.info("%s on %s is %s %s", self.job_id, self.engine, status.state, status.reason)
            looks += 1
            left = deadline - time.monotonic()
            news = await self._look_for_news()
            if left <= 0 or news:
                if news:
                    self.log.info("The task is woken up: %s", news)
                event = {"status": WAKE, "state": str(status.state), "reason": status.reason[:500]}
                return TriggerEvent({**event, "news": self.known_news})
            if own is None:
                await asyncio.sleep(min(self.poll_seconds, left))
            else:
                # The engine's own trigger knows when to look again. It is used once: afterwards the status is polled.
                await self._wait_for(own, left)
                own = None

    async def _look_for_news(self) -> str:
        """Return why the task has something to do before it is woken up anyway; empty: it has not."""
        if self.spec is None:
            return ""
        if self._looking is None:
            self._looking = asyncio.create_task(self._find_news(self.spec))
        # A source that does not answer for a minute holds up neither the end of the job nor the request of a person.
        await asyncio.wait({self._looking}, timeout=self.poll_seconds)
        if not self._looking.done():
            return ""
        looking, self._looking = self._looking, None
        return looking.result()

    async def _find_news(self, data: dict[str, Any]) -> str:
        from airflow_provider_kafka_migration.job_news import JobNews

        try:
            self._news = self._news or JobNews(self.job, known=self.known_news)
            if not self._news.is_open:
                spec = parse_spec(data, recorded=True)
                resolver = airflow_resolver(await prefetch(spec, clusters=True))
                await asyncio.to_thread(self._news.open, spec, resolver)
            found = await asyncio.to_thread(self._news.check)
        except Exception as error:
            # The task looks itself when it is woken up. Connections may have been replaced meanwhile.
            await self._check_open(told(error))
            return ""
        await self._check_open(self._news.failure)
        if found == self.known_news:
            return ""
        # What is over and comes again is new.
        self.known_news = found
        return found

    async def _check_open(self, why: str) -> None:
        """Close the connections after a failure: the next look opens them again. Each reason is logged once."""
        if why and why != self._warned:
            self.log.warning("News cannot be looked for: %s", why)
        self._warned = why
        if why:
            await self._close_news()

    async def _close(self) -> None:
        if self._looking is not None:
            # Its thread cannot be stopped, and uses the connections.
            await asyncio.wait({self._looking})
        await self._close_news()

    async def _close_news(self) -> None:
        if self._news is not None:
            await asyncio.shield(asyncio.to_thread(self._news.close))

    async def _own(self, engine: SparkEngine) -> BaseTrigger | None:
        if self.spec is not None:
            # It would not look for news.
            return None
        try:
            return await asyncio.to_thread(engine.trigger, self.job_id)
        except Terminal:
            raise
        except Exception as error:
            # Polling needs no trigger of the engine.
            self.log.warning("The engine %s gives no trigger: %s", self.engine, type(error).__name__)
            return None

    async def _look(self, engine: SparkEngine) -> JobStatus:
        try:
            return await asyncio.to_thread(engine.status, self.job_id)
        except Terminal:
            raise
        except Exception as error:
            # No answer proves nothing, so the wait goes on. The task that is woken up meanwhile tells people.
            self.log.warning("%s does not tell how %s is: %s", self.engine, self.job_id, error)
            return JobStatus(JobState.UNKNOWN, str(error) if isinstance(error, MigrationError) else "")

    async def _wait_for(self, own: BaseTrigger, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                async for _event in own.run():
                    return
        except TimeoutError:
            return
        except Exception as error:
            self.log.warning("The trigger of the engine %s has failed: %s", self.engine, type(error).__name__)
        finally:
            await own.cleanup()

    async def on_kill(self) -> None:
        """Cancel the job: a person has cleared or marked the task. Not called when a triggerer restarts."""
        try:
            engine = await asyncio.to_thread(make_engine, self.engine, self.arguments)
            await asyncio.to_thread(engine.cancel, self.job_id)
            self.log.info("%s on %s was cancelled", self.job_id, self.engine)
        except Exception as error:
            self.log.warning("%s on %s could not be cancelled: %s", self.job_id, self.engine, error)


def seconds_left(wake_seconds: float, wake_at: float | None, now: float) -> float:
    """Return how long to wait before the task is woken up anyway.

    The clock of the task's machine may be another one: then it is woken up once a minute at most, and never later.
    """
    left = wake_seconds if wake_at is None else wake_at - now
    return min(max(left, _LEAST_WAKE_SECONDS), wake_seconds)


def told(error: Exception) -> str:
    """Return an error for a log. That of another library may quote a connection."""
    return str(error) if isinstance(error, MigrationError) else type(error).__name__


def _failed(error: MigrationError) -> TriggerEvent:
    return TriggerEvent({"status": FAILED, "message": str(error), "error": error.as_dict()})


def event_error(event: Mapping[str, Any]) -> MigrationError | None:
    """Return the error in an event; None if there is none."""
    if event.get("status") in (ENDED, WAKE):
        return None
    return error_from_dict(dict(event.get("error") or {"what": str(event.get("message", "no reason given"))}))
