"""Which failures of a mirror are journaled: it tries again for ever, and its journal must not grow with each try."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow_provider_kafka_migration.errors import Transient
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.record.times import parse_iso
from airflow_provider_kafka_migration.state import State

#: A failure that lasts is journaled again after this time.
REPEATED_WITHIN = timedelta(hours=1)


def is_repeated(journal: Journal, error: Exception, now: datetime) -> bool:
    """Return whether a failure that may pass is that of a while ago: the journal has its code within the last hour.

    Not only the last one counts: while a cluster is away, failures of several kinds take turns.
    """
    if not isinstance(error, Transient):
        return False
    journal.refresh()
    for item in reversed(journal.entries()):
        if item.to_state is not State.FAILED:
            continue
        if not timedelta(0) <= now - parse_iso(item.at) < REPEATED_WITHIN:
            return False
        if (item.details.get("error") or {}).get("code") == error.code:
            return True
    return False
