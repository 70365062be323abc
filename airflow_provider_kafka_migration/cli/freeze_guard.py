"""The freeze limit on the command line: a thread that lifts an overdue freeze while another thread is busy.

The running step also lifts the freeze at its deadline, but not while it waits for a broker that does not answer. So it
is in a mirror, whose promotion the guard calls off; then it goes on, as the mirror does.
"""

from __future__ import annotations

import logging
import threading

from airflow_provider_kafka_migration.errors import UNREADABLE, FreezeFailed, MigrationError, Transient
from airflow_provider_kafka_migration.migration import Migration

log = logging.getLogger(__name__)

#: Seconds between two checks of the journal.
LOOK_SECONDS = 2.0


class FreezeGuard:
    """Checks the freeze as long as the cutover or the mirror runs. Use it as a context manager.

    :param migration: a separate instance with the same owner. Closed at the end.
    :param phase: the one that lifts an overdue freeze; that of a mirror is ``freeze_limit``.
    """

    def __init__(
        self, migration: Migration, *, look_seconds: float = LOOK_SECONDS, phase: str = "cutover.freeze_limit"
    ) -> None:
        self._migration = migration
        self._phase = phase
        self._look_seconds = look_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="freeze-guard", daemon=True)
        #: Why it has ended: the freeze that it lifted, or an error.
        self.ended_by: MigrationError | None = None

    def __enter__(self) -> FreezeGuard:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._migration.close()

    def _run(self) -> None:
        while not self._stop.wait(self._look_seconds):
            try:
                if not self._migration.run(self._phase).details.get("watch"):
                    return
            except (Transient, *UNREADABLE) as error:
                # Producers may be frozen, so the guard continues as long as the command runs.
                log.warning("The limit of the freeze cannot be enforced now; retrying: %s", error)
            except FreezeFailed as error:
                log.warning("%s", error)
                self.ended_by = error
                return
            except MigrationError as error:
                log.warning("The limit of the freeze is no longer enforced: %s", error)
                self.ended_by = error
                return
