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
    """Return whether a failure that may pass is that of a moment ago: the last one in the journal has its code."""
    if not isinstance(error, Transient):
        return False
    journal.refresh()
    last = next((item for item in reversed(journal.entries()) if item.to_state is State.FAILED), None)
    if last is None:
        return False
    code = (last.details.get("error") or {}).get("code")
    return code == error.code and timedelta(0) <= now - parse_iso(last.at) < REPEATED_WITHIN
