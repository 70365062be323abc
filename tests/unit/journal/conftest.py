"""Journals on both stores, and on the quicker one."""

from __future__ import annotations

from pathlib import Path

import pytest
from journal_support import OpenJournal, opener

from airflow_provider_kafka_migration.storage.base import ObjectStore
from airflow_provider_kafka_migration.storage.local import LocalStore


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """S3 in this process is slow: the fast tier takes the steps of a journal to it, and the rest to a folder."""
    for item in items:
        on_s3 = getattr(item, "callspec", None) is not None and item.callspec.params.get("store") == "s3"  # type: ignore[attr-defined]
        if on_s3 and item.path.parent == Path(__file__).parent and item.path.name != "test_journal.py":
            item.add_marker("slow")


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
