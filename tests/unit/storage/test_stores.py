"""One suite for both stores."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_kafka_migration.errors import ObjectExists, StorageRefused
from airflow_provider_kafka_migration.storage.base import ObjectStore

LATER = datetime.now(UTC) + timedelta(days=365)


def test_absent_object_is_none(store: ObjectStore) -> None:
    assert store.get("no/such/key") is None
    assert list(store.list()) == []


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 40_000])
def test_put_then_get(store: ObjectStore, data: bytes) -> None:
    store.put("a/b.bin", data)
    assert store.get("a/b.bin") == data


def test_put_replaces(store: ObjectStore) -> None:
    store.put("key", b"a longer first content")
    store.put("key", b"second")
    assert store.get("key") == b"second"
    assert [(item.key, item.size_bytes) for item in store.list()] == [("key", 6)]


def test_delete(store: ObjectStore) -> None:
    for name in ("a", "a/b", "b"):
        store.put(f"folder/{name}x", b"content")
    store.delete("folder/a/bx")
    store.delete("folder/never/there")
    assert [item.key for item in store.list()] == ["folder/ax", "folder/bx"]
    store.put_new("folder/a/bx", b"again")
    assert store.get("folder/a/bx") == b"again"


def test_put_new_refuses_an_existing_object_and_keeps_it(store: ObjectStore) -> None:
    store.put_new("key", b"first")
    with pytest.raises(ObjectExists) as caught:
        store.put_new("key", b"second")
    assert store.uri in str(caught.value)
    assert store.get("key") == b"first"


def test_put_new_of_equal_content_is_refused_too(store: ObjectStore) -> None:
    store.put_new("key", b"same")
    with pytest.raises(ObjectExists):
        store.put_new("key", b"same")


def test_of_20_concurrent_creators_exactly_one_wins(store: ObjectStore) -> None:
    barrier = threading.Barrier(20)

    def create(number: int) -> bool:
        barrier.wait()
        try:
            store.put_new("contended", str(number).encode())
        except ObjectExists:
            return False
        return True

    with ThreadPoolExecutor(20) as pool:
        for _ in range(3):
            won = list(pool.map(create, range(20)))
            if any(won):
                winner = won.index(True)
                assert won.count(True) == 1
                assert store.get("contended") == str(winner).encode()
            else:
                assert store.get("contended") is not None
    assert len(list(store.list())) == 1


def test_concurrent_replacers_leave_one_whole_object(store: ObjectStore) -> None:
    contents = [bytes([number]) * (1000 + number) for number in range(10)]
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda data: store.put("key", data), contents))
    assert store.get("key") in contents
    assert len(list(store.list())) == 1


KEYS = ["a", "a/b", "a-b", "a.b/c", "é", "z/1", "z/10", "z/2", "Z"]


def test_list_is_ordered_by_bytes_and_starts_after(store: ObjectStore) -> None:
    keys = [key for key in KEYS if key != "a"]
    for key in keys:
        store.put(key, key.encode())
    expected = sorted(keys, key=str.encode)
    assert [item.key for item in store.list()] == expected
    for index, key in enumerate(expected):
        assert [item.key for item in store.list(start_after=key)] == expected[index + 1 :]
    assert [item.key for item in store.list("z/")] == ["z/1", "z/10", "z/2"]
    assert [item.key for item in store.list("z/1")] == ["z/1", "z/10"]
    assert [item.key for item in store.list("z/", start_after="z/1")] == ["z/10", "z/2"]
    assert [item.key for item in store.list("a")] == ["a-b", "a.b/c", "a/b"]
    assert list(store.list("nothing/here")) == []


@pytest.mark.parametrize("key", ["", "/a", "a//b", "a/../b", "..", "a/", "./a", "x" * 1025, ".tmp-1"])
def test_bad_keys_are_refused(store: ObjectStore, key: str) -> None:
    with pytest.raises(StorageRefused, match="not a usable key"):
        store.put("" + key, b"")
    with pytest.raises(StorageRefused, match="not a usable key"):
        store.get(key)


def test_put_locked_without_object_lock_writes_and_says_so(
    store: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    assert store.put_locked("evidence.json", b"{}", LATER) is False
    assert store.get("evidence.json") == b"{}"
    assert any("evidence.json" in record.getMessage() for record in caplog.records if record.levelname == "WARNING")


def test_put_locked_new_is_create_only(store: ObjectStore) -> None:
    store.put_locked("attempt.json", b"1", LATER, new=True)
    with pytest.raises(ObjectExists):
        store.put_locked("attempt.json", b"2", LATER, new=True)
    assert store.get("attempt.json") == b"1"


def test_put_locked_needs_a_time_zone(store: ObjectStore) -> None:
    with pytest.raises(ValueError, match="time zone"):
        store.put_locked("key", b"", datetime(2030, 1, 1))
    assert store.get("key") is None
