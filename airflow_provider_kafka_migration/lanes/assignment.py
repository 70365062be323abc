"""Rates that were set while a migration runs: ``control/rates.json``, obeyed by copiers within seconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from pydantic import Field, ValidationError

from airflow_provider_kafka_migration.documents.base import Document
from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.errors import DocumentUnreadable, Transient, Where
from airflow_provider_kafka_migration.storage.base import ObjectStore

#: Copiers look so often.
ASK_SECONDS = 5.0
#: Jobs whose rate can be set; a backup and a restore have that of the job whose place they take.
JOBS = ("seed", "tail")

log = logging.getLogger(__name__)


class Rates(Document):
    """Bytes per second and lane, in place of what the spec says. Jobs that are not named keep the spec's."""

    version: int = 1
    migration_id: str
    rates: dict[str, int] = Field(default_factory=dict, description="job to bytes per second and lane; 0: no limit")
    set_by: str = ""
    set_at: str = ""


def rates_key(migration_id: str) -> str:
    """Where the document is."""
    return f"{migration_id}/control/rates.json"


def read_rates(store: ObjectStore, migration_id: str) -> Rates:
    """What was set; no rates if nothing was.

    :raises DocumentUnreadable: somebody has written something else there.
    """
    data = store.get(rates_key(migration_id))
    if data is None:
        return Rates(migration_id=migration_id)
    try:
        return Rates.parse(data)
    except ValidationError as error:
        # Its values are not shown: whoever wrote it may have put anything in there.
        problems = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or 'document'}: {item['msg']}"
            for item in error.errors(include_url=False, include_input=False)
        )
        raise DocumentUnreadable(
            f"the document of rates cannot be read ({problems}); copiers keep the rates that they had",
            where=Where(migration_id=migration_id, path=rates_key(migration_id)),
            next_step="write it again: kafka-migration throttle FILE --seed RATE --tail RATE, where the rate spec "
            "stands for what the spec says",
        ) from None


def set_rates(
    store: ObjectStore, migration_id: str, changes: Mapping[str, int | None], *, set_by: str, set_at: str
) -> Rates:
    """Change rates; those of other jobs stay.

    :param changes: job to bytes per second and lane; 0: no limit; None: as the spec says.
    """
    try:
        before = read_rates(store, migration_id).rates
    except DocumentUnreadable:
        # Setting rates is how a document is healed that cannot be read: copiers have gone on without it.
        before = {}
    rates = {**before, **changes}
    kept = {job: rate for job, rate in sorted(rates.items()) if rate is not None}
    document = Rates(migration_id=migration_id, rates=kept, set_by=set_by, set_at=set_at)
    store.put(rates_key(migration_id), document.canonical())
    return document


class RateWatch:
    """The rate of a copier: that of its job, or what was set since."""

    def __init__(self, job: CopyJob, store: ObjectStore) -> None:
        self._job = job
        self._store = store
        self._name = job.name if job.name in JOBS else ("tail" if job.stop_key is not None else "seed")
        self._set: int | None = None
        self._asked_at = -ASK_SECONDS

    @property
    def bytes_per_second(self) -> int | None:
        """The limit in force; None: there is none."""
        return self._job.max_bytes_per_second if self._set is None else self._set or None

    def poll(self) -> None:
        """Ask now and then. No answer, or one that cannot be read, changes nothing: the rate stays as it was."""
        now = time.monotonic()
        if now - self._asked_at < ASK_SECONDS:
            return
        self._asked_at = now
        try:
            self._set = read_rates(self._store, self._job.migration_id).rates.get(self._name)
        except Transient as error:
            log.debug("the rates could not be read: %s", error)
        except DocumentUnreadable as error:
            # A copy must not end by it.
            log.warning("The rate stays as it was: %s", error)
