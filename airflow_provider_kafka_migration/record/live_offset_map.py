"""``offset-map.json`` while the copy goes on: from the end of the seed on, and kept up to date by the tail.

For people and other tools, and for a migration that ends before its cutover. Nothing is decided by it: groups are
translated with the runs in the journal store, and after the final drain with the finished map.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

from airflow_provider_kafka_migration.errors import MigrationError, Terminal
from airflow_provider_kafka_migration.record import freeze_attempt
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.offset_maps import OFFSET_MAP, load_document, open_document
from airflow_provider_kafka_migration.state import State

#: How often the tail looks whether a run was added.
UPDATE_SECONDS = 30.0

log = logging.getLogger(__name__)


def write_open_map(context: PhaseContext) -> bool:
    """Write the map as it stands; whether it was written. A finished map is never replaced.

    From the freeze on the final drain is the only one who writes it.
    """
    context.journal.refresh()
    attempt = freeze_attempt.current_attempt(context)
    if (attempt is not None and not attempt.lifted) or context.journal.is_past(State.CUTOVER):
        return False
    if attempt is None and load_document(context) is not None:
        return False
    key = context.key(OFFSET_MAP)
    data = open_document(context).canonical()
    if context.evidence_store.get(key) == data:
        return False
    context.evidence_store.put(key, data)
    return True


class MapWriter:
    """Updates the map in a thread of its own, with connections of its own, for as long as the block runs."""

    def __init__(self, context: PhaseContext) -> None:
        self._context = context
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="offset-map", daemon=True)

    def __enter__(self) -> MapWriter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        own = replace(self._context, source=self._context.source.clone(), target=self._context.target.clone())
        try:
            while not self._stop.wait(UPDATE_SECONDS):
                try:
                    write_open_map(own)
                except Terminal as error:
                    log.warning("offset-map.json is not updated any more: %s", error)
                    return
                except MigrationError as error:
                    log.warning("offset-map.json could not be updated, the next look does it: %s", error)
        except Exception:
            log.exception("offset-map.json is not updated any more")
        finally:
            own.source.close()
            own.target.close()
