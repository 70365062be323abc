"""Rates that change while a copier runs."""

from __future__ import annotations

from typing import Any

import pytest
from feed_world import World
from job_documents import job

from airflow_provider_kafka_migration.copy import read_ahead as feed_module
from airflow_provider_kafka_migration.errors import StorageUnavailable
from airflow_provider_kafka_migration.lanes import assignment
from airflow_provider_kafka_migration.lanes.assignment import RateWatch, read_rates, set_rates
from airflow_provider_kafka_migration.storage.local import LocalStore


@pytest.fixture(autouse=True)
def always_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment, "ASK_SECONDS", 0.0)


def put(store: LocalStore, **changes: int | None) -> None:
    set_rates(store, "m1", changes, set_by="ann", set_at="now")


def test_a_running_copier_obeys_what_is_set(local_store: LocalStore) -> None:
    watch = RateWatch(job([], "seed", max_bytes_per_second=500), local_store)
    watch.poll()
    assert watch.bytes_per_second == 500
    put(local_store, seed=100, tail=7)
    watch.poll()
    assert watch.bytes_per_second == 100
    put(local_store, seed=0)
    watch.poll()
    assert watch.bytes_per_second is None, "no limit"
    put(local_store, seed=None)
    watch.poll()
    assert watch.bytes_per_second == 500, "what the spec says"
    assert read_rates(local_store, "m1").rates == {"tail": 7}, "the other job's rate stays"


@pytest.mark.parametrize(
    ("name", "stop_key", "expected"), [("backup", None, 1), ("backup", "k", 2), ("restore", "k", 2)]
)
def test_the_halves_of_a_split_copy_have_the_rate_of_their_job(
    local_store: LocalStore, name: str, stop_key: str | None, expected: int
) -> None:
    put(local_store, seed=1, tail=2)
    watch = RateWatch(job([], name, stop_key=stop_key), local_store)
    watch.poll()
    assert watch.bytes_per_second == expected


def test_a_store_that_does_not_answer_changes_nothing(local_store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put(local_store, tail=100)
    watch = RateWatch(job([], "tail"), local_store)
    watch.poll()

    def fail(_key: str) -> Any:
        raise StorageUnavailable("503", next_step="wait")

    monkeypatch.setattr(local_store, "get", fail)
    watch.poll()
    assert watch.bytes_per_second == 100


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"migration_id": "m1", "rates": {"tail": "fast"}}', b"\xff"])
def test_a_document_that_cannot_be_read_changes_nothing_and_is_named(
    local_store: LocalStore, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    put(local_store, tail=100)
    watch = RateWatch(job([], "tail"), local_store)
    watch.poll()
    local_store.put(assignment.rates_key("m1"), data)
    watch.poll()
    assert watch.bytes_per_second == 100
    assert "m1/control/rates.json" in caplog.text
    put(local_store, tail=7)
    watch.poll()
    assert watch.bytes_per_second == 7, "setting it again heals the document"


def test_a_pause_of_the_old_rate_ends_when_the_rate_changes(
    local_store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand seconds of pause at one byte a second are over as soon as there is no limit any more."""
    world = World(local_store, segment_max_bytes=10**6)
    now = 50.0
    monkeypatch.setattr(feed_module.time, "monotonic", lambda: now)
    rate: list[int | None] = [1]
    world.feed._rate = lambda: rate[0]
    world.feed._throttle(1_000)
    assert world.feed._is_held_back(now + 900)
    rate[0] = 10
    assert not world.feed._is_held_back(now + 1), "the next read is paid at the new rate"
    world.feed._throttle(1_000)
    assert world.feed._is_held_back(now + 90)
    assert not world.feed._is_held_back(now + 102)
