"""What a mirror's task waits for without a slot: its job, the next request of a person, or the end of a pause."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from airflow_provider_kafka_migration.provider.connections import airflow_resolver, prefetch
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.triggers.drain import DrainTrigger
from airflow_provider_kafka_migration.triggers.spark_job import SparkJobTrigger, told

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.migration import Watch
    from airflow_provider_kafka_migration.mirrors.watch import MirrorWatch
    from airflow_provider_kafka_migration.references import Resolver
    from airflow_provider_kafka_migration.spec import MigrationSpec


class MirrorPausedTrigger(DrainTrigger):
    """Fires when a paused mirror shall not stay paused. It reads only the storage, and writes nothing.

    :param spec: the mirror, as JSON-serializable data.
    :param poll_seconds: time between two checks.
    """

    needs_clusters = False

    def open_watch(self, spec: MigrationSpec, resolver: Resolver) -> Watch:
        """Open the watch that performs the checks."""
        from airflow_provider_kafka_migration.mirrors.watch import MirrorWatch

        return MirrorWatch(spec, resolver, None)


class MirrorJobTrigger(SparkJobTrigger):
    """Waits for the job of a mirror, and wakes its task up as soon as a person asks for something.

    :param spec: the mirror, as JSON-serializable data.
    :param known_request: number of the last request that the task has seen; None: requests wait until it wakes up.
    :param arguments: of the base class.
    """

    def __init__(self, *, spec: dict[str, Any], known_request: int | None, **arguments: Any) -> None:
        super().__init__(spec=spec, **arguments)
        self.known_request = known_request
        self._watch_requests: MirrorWatch | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        path, arguments = super().serialize()
        return path, {**arguments, "known_request": self.known_request}

    async def _look_for_news(self) -> str:
        return await self._look_for_requests() or await super()._look_for_news()

    async def _look_for_requests(self) -> str:
        if self.known_request is None:
            return ""
        from airflow_provider_kafka_migration.mirrors.watch import MirrorWatch

        try:
            if self._watch_requests is None:
                assert self.spec is not None
                spec = parse_spec(self.spec, recorded=True)
                resolver = airflow_resolver(await prefetch(spec, clusters=False))
                self._watch_requests = await asyncio.to_thread(MirrorWatch, spec, resolver, self.known_request)
            found = await asyncio.to_thread(self._watch_requests.check)
        except Exception as error:
            # The task reads requests as well, when it is woken up. Keys of a storage may have been replaced meanwhile.
            self.log.warning("Requests cannot be looked for: %s", told(error))
            self._watch_requests = None
            return ""
        return str(found["summary"]) if found["ready"] else ""
