"""Leases of a mirror, which are taken for years: old ones are deleted, and no two owners get a lane by that."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kafka_migration.errors import StorageRefused
from airflow_provider_kafka_migration.lanes import slices
from airflow_provider_kafka_migration.lanes.slices import KEPT_LEASES, LeaseKeeper
from airflow_provider_kafka_migration.storage.base import ObjectInfo
from airflow_provider_kafka_migration.storage.local import LocalStore


def keeper(store: LocalStore, **options: Any) -> LeaseKeeper:
    return LeaseKeeper(store, "m", "target", 0, 60.0, forgets=True, **options)


@pytest.mark.slow
def test_thousands_of_slices_leave_a_few_leases(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for number in range(1, 1001):
        lease = keeper(store).acquire()
        assert lease is not None
        assert lease.generation == number
        keeper(store).end(lease)
    assert len(list(store.list())) <= 2 * (KEPT_LEASES + 1)


def test_leases_of_earlier_releases_are_deleted_little_by_little(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for _ in range(100):
        old = LeaseKeeper(store, "m", "target", 0, 60.0)
        lease = old.acquire()
        assert lease is not None
        old.end(lease)
    assert len(list(store.list())) == 200
    for _ in range(6):
        lease = keeper(store).acquire()
        assert lease is not None
        keeper(store).end(lease)
    assert lease.generation == 106
    assert len(list(store.list())) <= 2 * (KEPT_LEASES + 1)


class SlowStore(LocalStore):
    """A newcomer that sleeps between its look and its lease, while others take slices."""

    meanwhile: Any = None

    def put_new(self, key: str, data: Any, *, sha256: str | None = None) -> None:
        act, self.meanwhile = self.meanwhile, None
        if act is not None:
            act()
        super().put_new(key, data, sha256=sha256)


def test_a_newcomer_that_has_slept_does_not_get_a_deleted_number(tmp_path: Path) -> None:
    store, slow = LocalStore(tmp_path), SlowStore(tmp_path)
    held: list[Any] = []

    def others() -> None:
        for number in range(50):
            lease = keeper(store).acquire()
            assert lease is not None
            if number < 49:
                keeper(store).end(lease)
            held.append(lease)

    slow.meanwhile = others
    # The last of the others runs: the newcomer must wait for it, and gives up.
    assert keeper(slow).acquire(lambda: len(held) == 50) is None
    newest = [info.key for info in store.list() if info.key.endswith(".json")]
    assert newest[0] == held[-1].key
    assert keeper(store)._newest()[0] == 50
    assert all(not key.endswith("99999999.json") for key in newest), "its lease of the deleted number is gone"


def test_a_store_that_refuses_to_delete_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)

    def refuse(_key: str) -> None:
        raise StorageRefused("not allowed")

    monkeypatch.setattr(store, "delete", refuse)
    for number in range(1, 31):
        lease = keeper(store).acquire()
        assert lease is not None
        assert lease.generation == number
        keeper(store).end(lease)
    assert len(list(store.list())) == 60


def overtaken(store: LocalStore, monkeypatch: pytest.MonkeyPatch, *, refuses: bool) -> None:
    """The first lease that is written is outdated at once: a newer number is there; deletions may be refused."""
    real, put = store.put_new, []

    def put_new(key: str, data: Any, *, sha256: str | None = None) -> None:
        real(key, data, sha256=sha256)
        put.append(key)
        if len(put) == 1:
            real(key.replace("99999999", "99999998"), data)

    def delete(key: str) -> None:
        if refuses:
            raise StorageRefused("not allowed")
        LocalStore.delete(store, key)

    monkeypatch.setattr(store, "put_new", put_new)
    monkeypatch.setattr(store, "delete", delete)


def test_a_loser_that_must_not_delete_waits_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    overtaken(store, monkeypatch, refuses=True)
    lease = LeaseKeeper(store, "m", "target", 0, 0.2, forgets=True).acquire()
    assert lease is not None
    assert lease.generation == 3


def test_a_migration_deletes_no_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers are never taken twice, so whoever writes one has it; its policies may not allow to delete."""
    store = LocalStore(tmp_path)
    overtaken(store, monkeypatch, refuses=True)
    lease = LeaseKeeper(store, "m", "target", 0, 0.2).acquire()
    assert lease is not None
    assert lease.generation == 1
    assert len([info for info in store.list() if info.key.endswith(".json")]) == 2


def test_a_list_that_lags_is_not_asked_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, written = LocalStore(tmp_path), []
    real = store.put_new
    monkeypatch.setattr(store, "list", lambda *_args, **_options: iter([]))
    monkeypatch.setattr(store, "put_new", lambda key, data: (written.append(key), real(key, data)))
    assert keeper(store).acquire(lambda: len(written) >= 3) is None
    began = time.monotonic()
    assert keeper(store).acquire(lambda: len(written) >= 6) is None
    assert time.monotonic() - began >= 2 * slices._POLL_SECONDS


@pytest.mark.parametrize("seed", range(3))
def test_owners_that_race_never_hold_a_lane_together(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    store = LocalStore(tmp_path)
    inside, overlaps, generations = [0], [0], []
    lock = threading.Lock()

    def own(number: int) -> None:
        chance = random.Random(seed * 10 + number)
        for _ in range(30):
            taker = keeper(store)
            lease = taker.acquire()
            assert lease is not None
            with lock:
                inside[0] += 1
                overlaps[0] += inside[0] > 1
                generations.append(lease.generation)
            threading.Event().wait(chance.random() / 500)
            with lock:
                inside[0] -= 1
            taker.end(lease)

    threads = [threading.Thread(target=own, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert overlaps == [0]
    assert len(generations) == 120
    assert sorted(generations) == sorted(set(generations)), "each generation has one owner"


def test_objects_vanish_while_they_are_listed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for name in ("a", "b", "c"):
        store.put(name, b"x")
    listing: Iterator[ObjectInfo] = store.list()
    first = next(listing)
    for name in ("b", "c"):
        store.delete(name)
    store.delete("never there")
    assert first.key == "a"
    assert {info.key for info in listing} <= {"b", "c"}
