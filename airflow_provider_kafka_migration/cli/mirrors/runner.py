"""A mirror in one process: the phases before it, then the copy, again and again, until a person asks for an end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from airflow_provider_kafka_migration.errors import Interrupted, Transient
from airflow_provider_kafka_migration.migration import Migration
from airflow_provider_kafka_migration.mirror_table import BEFORE
from airflow_provider_kafka_migration.mirrors import requests
from airflow_provider_kafka_migration.mirrors.driving import Pauses, next_phase
from airflow_provider_kafka_migration.record.context import PhaseResult
from airflow_provider_kafka_migration.state import State

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5


class MirrorRunner:
    """Drives one mirror until it is paused, promoted or ended.

    A failure that may pass is tried again for ever: a mirror is meant to outlive its clusters' bad days. What a person
    has asked for is looked at before each try, so that a mirror whose source is gone can be promoted.

    :param stop: ends it early; the next run goes on.
    :param guard: opens what keeps the limit of a freeze while the mirror runs.
    """

    def __init__(
        self,
        migration: Migration,
        stop: threading.Event,
        *,
        on_result: Callable[[PhaseResult], None],
        guard: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._migration = migration
        self._stop = stop
        self._guard = guard
        self._on_result = on_result
        self.results: list[PhaseResult] = []

    def go(self) -> State | None:
        """Run until a person's request ends it, and return the state that it is in then.

        :raises MigrationError: an error that does not pass by itself.
        """
        pauses = Pauses()
        while True:
            began = time.monotonic()
            try:
                return self._go()
            except Interrupted:
                raise
            except Transient as error:
                if self._stop.is_set():
                    raise
                pause = pauses.after(time.monotonic() - began)
                log.warning("The mirror has stopped copying and goes on in %.0f s: %s", pause, error)
                self._pause(pause)

    def _go(self) -> State | None:
        status = self._migration.status()
        request = requests.read(self._migration.journal_store, self._migration.spec.migration_id)
        phase = next_phase(status.state, request)
        if phase is None:
            return status.state
        if phase == "mirror":
            for row in BEFORE:
                self._run(row.id)
        with self._guard():
            self._run(phase)
        return self._migration.status().state

    def _run(self, phase: str) -> None:
        result = self._migration.run(phase)
        self.results.append(result)
        self._on_result(result)

    def _pause(self, seconds: float) -> None:
        """Wait, but look at a request to stop often: a signal does not wake up a wait."""
        ends_at = time.monotonic() + seconds
        while (left := ends_at - time.monotonic()) > 0 and not self._stop.wait(min(left, _LOOK_SECONDS)):
            pass
