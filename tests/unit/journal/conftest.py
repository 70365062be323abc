"""Journals on both stores, and on the quicker one."""

from __future__ import annotations

import pytest
from journal_support import OpenJournal, opener

from airflow_provider_kafka_migration.storage.base import ObjectStore
from airflow_provider_kafka_migration.storage.local import LocalStore


@pytest.fixture
def open_journal(store: ObjectStore) -> OpenJournal:
    """Opens the journal of ``m1`` on either store."""
    return opener(store)


@pytest.fixture
def open_local(local_store: LocalStore) -> OpenJournal:
    """Opens the journal of ``m1`` on the local store."""
    return opener(local_store)


@pytest.fixture
def writers(store: ObjectStore) -> int:
    """How many write at the same time: fewer on S3, because each lost race costs requests to a slow server."""
    return 20 if isinstance(store, LocalStore) else 8
